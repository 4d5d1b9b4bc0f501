/* SPDX-License-Identifier: Apache-2.0 */
/* A run: launch the rank program, watch, judge, measure.
**
** Not here: what a rank does (trainer.c), what a verdict says (expect.c).
*/
#include "cddp/run.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/run/rank.h"
#include "core/run/tap.h"
#include "core/run/verdict.h"
#include "core/trace/tracer.h"

cddp_run_options cddp_run_options_default(void)
{
    return (cddp_run_options){.size = sizeof(cddp_run_options), .level = CDDP_TRACE_DIGEST, .judge = true, .oracle = true};
}

/* ---- the judge with the checks of a registry ---- */

static cddp_status make_judge(const cddp_registry *registry, const cddp_allocator *allocator, cd_judge **judge,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t count = 0;
    while (cddp_registry_check(registry, count) != NULL) {
        count++;
    }
    const cddp_check **checks = cd_allocate_array(allocator, count + 1, sizeof *checks);
    if (checks == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for %zu checks", count);
    }
    for (size_t i = 0; i < count; i++) {
        checks[i] = cddp_registry_check(registry, i);
    }
    /* The judge keeps the array's pointers, not the array: the tables are the registry's. */
    const cd_judge_options options = {.checks = checks, .check_count = count, .allocator = allocator};
    CD_TRY_OUT(cd_judge_create(&options, judge, err));
out:
    cd_release(allocator, checks, (count + 1) * sizeof *checks);
    return status;
}

/* ---- the frame around the ranks ---- */

static cddp_status tell_begin(const cddp_run_options *options, struct cddp_tracer *world)
{
    const cddp_plan *plan = options->plan;
    CD_EMIT(world, run_begin, plan->title, .world_size = (int64_t)plan->world.size, .steps = (int64_t)plan->settings.train.steps,
            .seed = (int64_t)plan->world.seed, .plan = (int64_t)cddp_plan_digest(plan), .level = options->level);
    return CDDP_OK;
}

/* Ranks that were killed or hung did not say so themselves. */
static void tell_ends(cd_tap *tap, const cddp_rank_result *results)
{
    for (uint32_t i = 0; i < tap->rank_count; i++) {
        if (results[i].end == CDDP_RANK_RETURNED) {
            continue;
        }
        cddp_event event = {.time_ns = cd_tap_time(tap), .sequence = tap->ranks[i].count, .rank = i, .kind = CDDP_EV_rank_end,
                            .level = CDDP_TRACE_ORDER, .text = results[i].error.message};
        event.as.rank_end = (cddp_event_rank_end){results[i].status, results[i].end, results[i].detail};
        tap->sink.event(tap->sink.self, &event);
    }
}

static cddp_status tell_end(cd_tap *tap, struct cddp_tracer *world, const cddp_rank_result *results)
{
    bool complete = true;
    for (size_t i = 0; i < tap->rank_count; i++) {
        complete &= results[i].end == CDDP_RANK_RETURNED;
    }
    world->time_ns = cd_tap_time(tap);
    CD_EMIT(world, run_end, NULL, .status = CDDP_OK, .complete = complete);
    return CDDP_OK;
}

static cddp_status launch(const cddp_run_options *options, cd_tap *tap, cddp_rank_result *results, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_rank_argument argument = {.options = options, .sink = &tap->sink};
    cddp_tracer *world = NULL;
    CD_TRY_OUT(cddp_tracer_create(NULL, &tap->sink, options->level, &world, err));
    if (options->bind == NULL && !options->oracle_apart) {
        CD_TRY_OUT(cd_oracle_share_create(options->allocator, &argument.share, err));
    }
    CD_TRY_OUT(tell_begin(options, world));
    CD_TRY_OUT(options->world_ops->launch(options->world, cd_rank_program, &argument, results, err));
    if (options->relay != NULL) {
        options->relay->muted = false;
    }
    tell_ends(tap, results);
    CD_TRY_OUT(tell_end(tap, world, results));
    CD_TRY_OUT(tap->sink.flush(tap->sink.self, err));
out:
    cd_oracle_share_destroy(argument.share);
    cddp_tracer_destroy(world);
    return status;
}

static cddp_status run_accepted(const cddp_run_options *options, cddp_verdict **verdict, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const size_t world = (size_t)options->plan->world.size;
    cd_judge *judge = NULL;
    cd_tap tap = {0};
    cddp_rank_result *results = cd_allocate_array(options->allocator, world, sizeof *results);
    if (results == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the results of %zu ranks", world);
    }
    if (options->judge) {
        CD_TRY_OUT(make_judge(options->registry, options->allocator, &judge, err));
    }
    CD_TRY_OUT(cd_tap_init(&tap, options, judge != NULL ? cd_judge_get_sink(judge) : NULL, err));
    if (options->relay != NULL) {
        options->relay->target = &tap.sink;
    }
    CD_TRY_OUT(launch(options, &tap, results, err));
    if (judge != NULL) {
        CD_TRY_OUT(cd_judge_end(judge, err));
    }
    const cd_verdict_input input = {.plan = options->plan, .allocator = options->allocator, .judge = judge, .tap = &tap, .results = results};
    CD_TRY_OUT(cd_verdict_create(&input, verdict, err));
out:
    if (options->relay != NULL) {
        options->relay->target = NULL;
    }
    cd_tap_fini(&tap);
    cd_judge_destroy(judge);
    cd_release(options->allocator, results, world * sizeof *results);
    return status;
}

cddp_status cddp_run(const cddp_run_options *options, cddp_verdict **verdict, cddp_error *err)
{
    cddp_error refusal = CDDP_ERROR_INIT;
    if (cddp_plan_check(options->plan, &refusal) != CDDP_OK) {
        const cd_verdict_input input = {.plan = options->plan, .allocator = options->allocator, .refusal = refusal.message};
        CD_TRY(cd_verdict_create(&input, verdict, err));
        return CDDP_OK;
    }
    CD_TRY(run_accepted(options, verdict, err));
    return CDDP_OK;
}

cddp_status cddp_judge(const cddp_plan *plan, const cddp_registry *registry, cddp_replay_fn replay, void *source,
                       cddp_verdict **verdict, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_judge *judge = NULL;
    cd_tap tap = {0};
    const cddp_run_options options = {.plan = plan};
    CD_TRY_OUT(make_judge(registry, NULL, &judge, err));
    CD_TRY_OUT(cd_tap_init(&tap, &options, cd_judge_get_sink(judge), err));
    CD_TRY_OUT(replay(source, &tap.sink, err));
    CD_TRY_OUT(cd_judge_end(judge, err));
    const cd_verdict_input input = {.plan = plan, .judge = judge, .tap = &tap};
    CD_TRY_OUT(cd_verdict_create(&input, verdict, err));
out:
    cd_tap_fini(&tap);
    cd_judge_destroy(judge);
    return status;
}
