/* SPDX-License-Identifier: Apache-2.0 */
/* What a stored run says about running it again. */
#define _POSIX_C_SOURCE 200809L
#include "cli/recipe.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct taking {
    cd_recipe *recipe;
    const char *what;
} taking;

static cddp_status take_run(void *context, const cddp_stored_run *run, cddp_error *err)
{
    const taking *t = context;
    cd_recipe *r = t->recipe;
    const cddp_run_provenance *p = &run->provenance;
    if (!run->complete)
        return cd_fail(err, CDDP_E_ARG,
                       "run %" PRId64 " was interrupted while it was recorded; only whole runs can be %s", run->run,
                       t->what);
    if (strcmp(p->backend, "sim") != 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "run %" PRId64 " was recorded on backend %s; only runs of the simulator can be %s", run->run,
                       p->backend, t->what);
    /* The schedule that was taken is known only at the end; the one of the beginning is what was asked for. */
    const char *taken = run->outcome.schedule;
    r->scenario = strdup(p->scenario);
    r->source = strdup(p->source);
    r->options = strdup(p->options);
    r->schedule = strdup(taken != NULL && taken[0] != '\0' ? taken : p->schedule);
    if (r->scenario == NULL || r->source == NULL || r->options == NULL || r->schedule == NULL)
        return cd_fail(err, CDDP_E_NOMEM, "no memory for a stored run");
    r->run = run->run;
    r->plan_digest = p->plan;
    /* What another level tells has other digests. */
    r->trace_digest = p->level == CDDP_TRACE_DIGEST ? run->outcome.digest : 0;
    r->exit_code = run->outcome.exit_code;
    snprintf(r->verdict, sizeof r->verdict, "%s", run->outcome.verdict);
    return CDDP_OK;
}

cddp_status cd_recipe_load(cd_recipe *recipe, cddp_store *store, uint64_t number, const char *what, cddp_error *err)
{
    int64_t run = 0;
    taking t = {recipe, what};
    CD_TRY(cddp_store_last_run(store, &run, err));
    if (number > (uint64_t)run)
        return cd_fail(err, CDDP_E_ARG, "'%s' has no run %" PRIu64 "; its last one is %" PRId64, cddp_store_path(store),
                       number, run);
    if (number != 0) run = (int64_t)number;
    CD_TRY(cddp_store_each_run(store, run, take_run, &t, err));
    return CDDP_OK;
}

void cd_recipe_fini(cd_recipe *recipe)
{
    free(recipe->scenario);
    free(recipe->source);
    free(recipe->options);
    free(recipe->schedule);
    *recipe = (cd_recipe){.run = 0};
}

cddp_status cd_recipe_read_plan(const cd_recipe *recipe, const cd_session *session, cddp_plan **plan, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_plan *read = NULL;
    cd_result mistakes;
    cd_result_init(&mistakes);
    cd_session_read_plan(session, recipe->source, recipe->scenario, &read, &mistakes);
    if (read == NULL) {
        status = cd_fail(err, CDDP_E_CONFIG, "the recorded scenario cannot be read any more: %s %s", mistakes.summary,
                         mistakes.details);
    } else if (cddp_plan_digest(read) != recipe->plan_digest) {
        status = cd_fail(err, CDDP_E_MISMATCH,
                         "the recorded scenario no longer means the same: its plan has digest %016" PRIx64
                         ", the record says %016" PRIx64,
                         cddp_plan_digest(read), recipe->plan_digest);
        cddp_plan_destroy(read);
    } else {
        *plan = read;
    }
    cd_result_fini(&mistakes);
    return status;
}
