/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of an exploration into a store. See explore_record.h. */
#include "cli/explore_record.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <string.h>

/* ---- is it there already? ---- */

typedef struct search {
    uint64_t plan;
    const char *schedule;
    bool found;
} search;

static cddp_status compare(void *context, const cddp_stored_run *run, cddp_error *err)
{
    (void)err;
    search *s = context;
    s->found = s->found ||
               (run->complete && run->provenance.plan == s->plan && run->outcome.schedule != NULL &&
                strcmp(run->outcome.schedule, s->schedule) == 0);
    return CDDP_OK;
}

static cddp_status find(const cd_session *session, const cddp_plan *plan, const char *schedule,
                        bool *found, cddp_error *err)
{
    search s = {.plan = cddp_plan_digest(plan), .schedule = schedule};
    int64_t last = 0;
    cddp_error none = CDDP_ERROR_INIT;
    if (cddp_store_last_run(session->store, &last, &none) == CDDP_OK) /* each_run wants one */
        CD_TRY(cddp_store_each_run(session->store, 0, compare, &s, err));
    *found = s.found;
    return CDDP_OK;
}

/* ---- once more ---- */

static cddp_status record(const cd_session *session, const cddp_plan *plan, const char *source,
                          const cd_failure_kind *kind, cddp_error *err)
{
    cd_result result;
    cddp_status status = CDDP_OK;
    cd_session again = *session;
    again.schedule = kind->schedule;
    cd_result_init(&result);
    result.source = cd_result_copy(&result, source);
    CD_TRY_OUT(cd_session_run_plan(&again, plan, &result, err));
    if (result.verdict.outcome == CDDP_OUTCOME_VERIFIED)
        CD_TRY_OUT(cd_fail(err, CDDP_E_STATE,
                           "schedule %" PRIu64
                           " was not verified when it was explored, and is verified now",
                           kind->at));
out:
    cd_result_fini(&result);
    return status;
}

cddp_status cd_explore_record(const cd_session *session, const cddp_plan *plan, const char *source,
                              const cd_failures *failures, cd_explore_recorded *recorded,
                              cddp_error *err)
{
    for (uint32_t i = 0; i < failures->kind_count; i++) {
        const cd_failure_kind *kind = &failures->kinds[i];
        bool found = false;
        if (kind->schedule[0] == '\0') {
            recorded->too_long++;
            continue;
        }
        CD_TRY(find(session, plan, kind->schedule, &found, err));
        if (found) {
            recorded->known++;
            continue;
        }
        CD_TRY(record(session, plan, source, kind, err));
        recorded->runs++;
    }
    return CDDP_OK;
}
