/* SPDX-License-Identifier: Apache-2.0 */
/* Results of stored runs. */
#include "verify/report/stored.h"

#include "verify/report/command_line.h"
#include "verify/report/place.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void cd_stored_describe(cd_result *result, const cddp_store *store, const cddp_stored_run *run)
{
    const cddp_run_provenance *p = &run->provenance;
    cd_text text;
    /* Choices that a plain run would not make. */
    const char *taken = run->outcome.schedule;
    const bool deviates = strcmp(p->backend, "sim") == 0 && taken != NULL &&
                          strlen(taken) > strlen("s1:") && strlen(taken) <= CD_SCHEDULE_PASTEABLE;
    cd_text_init(&text, false);
    cd_command_line_print(&text, &(cd_command_line){.source = p->source,
                                                    .overrides = p->options,
                                                    .schedule = deviates ? taken : NULL});
    /* nothing runs a recorded program again */
    result->reproduce = p->scenario[0] != '\0' ? cd_result_copy(result, cd_text_get(&text)) : "";
    cd_text_fini(&text);
    if (strcmp(p->backend, "sim") == 0 && run->complete) {
        char number[32];
        snprintf(number, sizeof number, " --run %" PRId64, run->run);
        cd_text_init(&text, false);
        cd_command_line_print(&text, &(cd_command_line){.source = cddp_store_path(store),
                                                        .overrides = "",
                                                        .command = "shrink"});
        cd_text_push(&text, number);
        result->shrink = cd_result_copy(result, cd_text_get(&text));
        cd_text_fini(&text);
    }
    result->source = cd_result_copy(result, cddp_store_path(store));
    result->title = cd_result_copy(result, p->title);
    result->backend = cd_result_copy(result, p->backend);
    result->schedule = cd_result_copy(result, p->schedule);
    result->stored_run = run->run;
    result->world_size = p->world_size;
    result->steps = p->steps;
    result->seed = p->seed;
    result->verdict.plan_digest = p->plan;
    result->verdict.event_count = run->event_count;
    result->verdict.trace_digest = run->outcome.digest;
    result->verdict.time_ns = run->outcome.virtual_time_ns;
    result->judged = run->complete;
}

/* ---- as it was found ---- */

typedef struct collection {
    cd_result *result;
    cddp_finding *findings; /* (capacity) */
    cddp_exercise *exercises;
    size_t capacity;
} collection;

static cddp_status take_finding(void *context, const cddp_finding *finding, cddp_error *err)
{
    collection *c = context;
    cd_result *r = c->result;
    if (r->verdict.finding_count == c->capacity)
        return cd_fail(err, CDDP_E_CORRUPT, "the store holds more findings than it counted (%zu)",
                       c->capacity);
    c->findings[r->verdict.finding_count++] = cd_result_copy_finding(r, finding);
    return CDDP_OK;
}

static cddp_status count_pair(void *context, const char *name, const char *text, cddp_error *err)
{
    (void)name, (void)text, (void)err;
    ++*(size_t *)context;
    return CDDP_OK;
}

static cddp_status take_exercise(void *context, const char *check, const char *how, cddp_error *err)
{
    (void)err;
    collection *c = context;
    cd_result *r = c->result;
    c->exercises[r->verdict.exercise_count++] =
        (cddp_exercise){cd_result_copy(r, check), cd_result_copy(r, how), 0};
    return CDDP_OK;
}

static void take_event(void *self, const cddp_event *event) { cd_result_add_context(self, event); }

static cddp_status take_findings(cd_result *result, cddp_store *store, const cddp_stored_run *run,
                                 cddp_error *err)
{
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, result, take_event, NULL};
    collection c = {.result = result, .capacity = run->finding_count};
    /* also of none: their seal says how many there were */
    if (run->finding_count == 0)
        return CD_PASS(cddp_store_each_finding(store, run->run, take_finding, &c, err));
    c.findings = cd_arena_push(&result->arena, run->finding_count * sizeof *c.findings);
    result->verdict.findings = c.findings;
    if (c.findings == NULL) return cd_fail_memory(err, "%zu findings", (size_t)run->finding_count);
    CD_TRY(cddp_store_each_finding(store, run->run, take_finding, &c, err));
    CD_TRY(cddp_store_each_event(store, run->run, CDDP_STORE_RECORDED, &sink, err));
    return CDDP_OK;
}

static cddp_status take_exercises(cd_result *result, cddp_store *store, int64_t run,
                                  cddp_error *err)
{
    size_t count = 0;
    CD_TRY(cddp_store_each_exercised(store, run, count_pair, &count, err));
    if (count == 0) return CDDP_OK;
    collection c = {.result = result, .capacity = count};
    c.exercises = cd_arena_push(&result->arena, count * sizeof *c.exercises);
    result->verdict.exercises = c.exercises;
    if (c.exercises == NULL) return cd_fail_memory(err, "%zu invariants", count);
    CD_TRY(cddp_store_each_exercised(store, run, take_exercise, &c, err));
    return CDDP_OK;
}

cddp_status cd_stored_take(cd_result *result, cddp_store *store, const cddp_stored_run *run,
                           cddp_error *err)
{
    cd_stored_describe(result, store, run);
    CD_TRY(take_findings(result, store, run, err));
    CD_TRY(take_exercises(result, store, run->run, err));
    if (!run->complete) {
        cd_result_set_failure(result, CDDP_OUTCOME_INCONCLUSIVE,
                              "the run was interrupted; every finished iteration is in the store",
                              "");
        return CDDP_OK;
    }
    result->verdict.outcome = run->outcome.exit_code <= CDDP_OUTCOME_INCONCLUSIVE
                                  ? (int)run->outcome.exit_code
                                  : CDDP_OUTCOME_INCONCLUSIVE;
    const char *recorded = run->outcome.verdict;
    const bool is_expected =
        strncmp(recorded, CD_RESULT_AS_EXPECTED, strlen(CD_RESULT_AS_EXPECTED)) == 0;
    result->name = is_expected ? "verified" : cd_result_copy(result, recorded);
    result->verdict.reason = result->verdict.summary = cd_result_copy(result, run->outcome.reason);
    result->verdict.as_expected = result->verdict.outcome == CDDP_OUTCOME_VERIFIED && is_expected;
    if (run->provenance.scenario[0] != '\0')
        cd_result_locate(result, run->provenance.source, run->provenance.scenario);
    return CDDP_OK;
}
