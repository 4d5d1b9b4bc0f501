/* SPDX-License-Identifier: Apache-2.0 */
/* Stored runs, as a session reads them. */
#include "cli/recorded.h"

#include "cli/imported.h"

#include "core/base/error.h"
#include "core/check/check.h"
#include "verify/report/place.h"
#include "verify/report/stored.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the plan ---- */

cddp_status cd_recorded_read_plan(const cd_recipe *recipe, const cd_session *session,
                                  cddp_plan **plan, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_plan *read = NULL;
    cd_result mistakes;
    if (recipe->scenario[0] == '\0')
        return cd_fail(err, CDDP_E_CONFIG,
                       "run %" PRId64 " was recorded from a program, and no scenario describes it: "
                       "there is nothing to run again. \"cddp-verify lift %s -o job.toml\" writes "
                       "one; check judges the run, report and diff show it",
                       recipe->run, session->cli->args->operands[0]);
    cd_result_init(&mistakes);
    cd_session reading = *session;
    reading.may_skip = true; /* tells what a plugin may bring from mistakes */
    cd_session_read_plan(&reading, recipe->source, recipe->scenario, &read, &mistakes);
    if (read == NULL && mistakes.skipped)
        status = cd_fail(err, CDDP_E_CONFIG,
                         "run %" PRId64 " was recorded with a plugin that is not loaded: %.200s. "
                         "Load it with --plugin FILE.so",
                         recipe->run, mistakes.verdict.summary);
    else if (read == NULL)
        status = cd_fail(err, CDDP_E_CONFIG, "the recorded scenario cannot be read any more: %s",
                         mistakes.details[0] != '\0' ? mistakes.details : mistakes.verdict.summary);
    else
        status = cd_recipe_check_plan(recipe, read, err);
    if (status == CDDP_OK)
        *plan = read;
    else
        cddp_plan_destroy(read);
    cd_result_fini(&mistakes);
    return status;
}

/* ---- judged again ---- */

static void take_event(void *self, const cddp_event *event) { cd_result_add_context(self, event); }

typedef struct source {
    cddp_store *store;
    int64_t run;
    bool is_complete;
} source;

/* A run up to where it was interrupted: from the first rank that was made to end, nothing is the
** program's doing. */
typedef struct beginning {
    const cddp_trace_sink *to;
    bool is_over;
} beginning;

static void pass_beginning(void *self, const cddp_event *event)
{
    beginning *b = self;
    b->is_over |= event->kind == CDDP_EV_rank_end && event->as.rank_end.status == CDDP_E_ABORTED;
    if (!b->is_over) b->to->event(b->to->self, event);
}

/* As recorded: every rank's own order is what checks rely on, and shards were merged when they were
** stored. */
static cddp_status replay(void *context, const cddp_trace_sink *sink, cddp_error *err)
{
    source *s = context;
    beginning b = {.to = sink};
    const cddp_trace_sink first = {sizeof first, CDDP_TRACE_ABI, &b, pass_beginning, NULL};
    return CD_PASS(cddp_store_each_event(s->store, s->run, CDDP_STORE_RECORDED,
                                         s->is_complete ? sink : &first, err));
}

static cddp_status judge_plan(cd_result *result, const cd_session *session, const cddp_plan *plan,
                              const cddp_stored_run *run, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, result, take_event, NULL};
    CD_TRY(cddp_judge(plan, session->cli->registry, replay,
                      &(source){session->store, run->run, run->complete}, &verdict, err));
    cddp_status status = cd_result_take_verdict(result, verdict, err);
    cddp_verdict_destroy(verdict);
    cd_result_locate(result, run->provenance.source, run->provenance.scenario);
    if (status == CDDP_OK && result->verdict.finding_count > 0)
        status = cddp_store_each_event(session->store, run->run, CDDP_STORE_RECORDED, &sink, err);
    return status;
}

cddp_status cd_recorded_judge(cd_result *result, const cd_session *session,
                              const cddp_stored_run *run, cddp_error *err)
{
    cddp_plan *plan = NULL;
    cd_session reading = *session;
    reading.overrides = run->provenance.options;
    cd_stored_describe(result, session->store, run);
    if (run->provenance.scenario[0] == '\0')
        return CD_PASS(cd_imported_judge(result, session, run, err));
    cd_session_read_plan(&reading, run->provenance.source, run->provenance.scenario, &plan, result);
    if (plan == NULL) return CDDP_OK;
    /* Nor was it judged then: how its ranks ended is the machine's doing. */
    if (run->complete && run->outcome.exit_code == CD_EXIT_ENVIRONMENT) {
        cd_result_set_failure(result, CD_EXIT_ENVIRONMENT, run->outcome.reason, "");
        cddp_plan_destroy(plan);
        return CDDP_OK;
    }
    cddp_status status = judge_plan(result, session, plan, run, err);
    cddp_plan_destroy(plan);
    /* That ranks did not finish is all that an interruption shows by itself. */
    if (status == CDDP_OK && !run->complete && result->verdict.finding_count == 0)
        cd_result_set_failure(result, CD_EXIT_INCONCLUSIVE,
                              "nothing is broken as far as the run went, but it was interrupted",
                              "");
    return status;
}

/* ---- how the ranks ended ---- */

typedef struct ends {
    cddp_trace_sink sink;
    const cddp_trace_sink *judge;
    cddp_verdict_rank *ranks; /* (count) */
    uint32_t count;
} ends;

static void take_end(void *self, const cddp_event *event)
{
    ends *e = self;
    e->judge->event(e->judge->self, event);
    if (event->rank >= e->count) return;
    cddp_verdict_rank *r = &e->ranks[event->rank];
    r->events++;
    if (event->kind != CDDP_EV_rank_end) {
        r->step = event->step;
        return;
    }
    r->result.status = (cddp_status)event->as.rank_end.status;
    r->result.end = (cddp_rank_end)event->as.rank_end.end;
    r->result.detail = (int32_t)event->as.rank_end.detail;
    snprintf(r->result.error.message, sizeof r->result.error.message, "%s",
             event->text != NULL ? event->text : "");
    cd_text_clean(r->result.error.message);
}

cddp_status cd_recorded_take_ends(cd_result *result, cddp_store *store, const cddp_stored_run *run,
                                  cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_check *live = cd_check_find("I-LIVE");
    const cd_judge_options options = {.checks = &live, .check_count = 1};
    cd_judge *judge = NULL;
    ends e = {.count = run->provenance.world_size};
    e.sink = (cddp_trace_sink){sizeof e.sink, CDDP_TRACE_ABI, &e, take_end, NULL};
    /* A store may say anything of its size. */
    if (e.count > run->event_count) e.count = (uint32_t)run->event_count;
    if (e.count > 0) e.ranks = cd_arena_push(&result->arena, e.count * sizeof *e.ranks);
    if (e.count > 0 && e.ranks == NULL) return cd_fail_memory(err, "%u ranks", e.count);
    for (uint32_t i = 0; i < e.count; i++)
        e.ranks[i].size = sizeof *e.ranks, e.ranks[i].result.size = sizeof e.ranks[i].result;
    CD_TRY(cd_judge_create(&options, &judge, err));
    e.judge = cd_judge_get_sink(judge);
    CD_TRY_OUT(cddp_store_each_event(store, run->run, CDDP_STORE_RECORDED, &e.sink, err));
    CD_TRY_OUT(cd_judge_end(judge, err));
    result->verdict.ranks = e.ranks;
    result->verdict.rank_count = e.count;
    const size_t count = cd_judge_wait_count(judge);
    const cddp_verdict found = {.size = sizeof found,
                                .waits = count > 0 ? cd_judge_get_wait(judge, 0) : NULL,
                                .wait_count = count};
    CD_TRY_OUT(cd_result_take_waits(result, &found, err));
out:
    cd_judge_destroy(judge);
    return status;
}
