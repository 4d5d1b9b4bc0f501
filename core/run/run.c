/* SPDX-License-Identifier: Apache-2.0 */
/* A run: launch the rank program, watch, judge, measure.
**
** Not here: what a rank does (trainer.c), what a verdict says (expect.c).
*/
#include "core/run/run.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/run/rank.h"
#include "core/plan/replica/replica.h"
#include "core/run/tap.h"
#include "core/run/verdict.h"
#include "core/trace/tracer.h"

cddp_run_options cddp_run_options_default(void)
{
    return (cddp_run_options){.size = sizeof(cddp_run_options),
                              .level = CDDP_TRACE_DIGEST,
                              .judge = true,
                              .oracle = true};
}

/* ---- the judge with the checks of a registry ---- */

static cddp_status make_judge(const cddp_registry *registry, const cddp_allocator *allocator,
                              cd_judge **judge, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t count = 0;
    while (cddp_registry_check(registry, count) != NULL) count++;
    const cddp_check **checks = cd_allocate_array(allocator, count + 1, sizeof *checks);
    if (checks == NULL) return cd_fail_memory(err, "%zu checks", count);
    for (size_t i = 0; i < count; i++) checks[i] = cddp_registry_check(registry, i);
    /* The judge keeps the array's pointers, not the array: the tables are the registry's. */
    const cd_judge_options options = {.checks = checks,
                                      .check_count = count,
                                      .allocator = allocator};
    CD_TRY_OUT(cd_judge_create(&options, judge, err));
out:
    cd_release(allocator, checks, (count + 1) * sizeof *checks);
    return status;
}

/* ---- the frame around the ranks ---- */

struct cd_run {
    cddp_run_options options;
    cd_rank_argument argument;
    cd_reference_share reference_share; /* of ranks that share a thread */
    /* over the run's allocator, where it holds the storage */
    cddp_device devices[CD_REPLICA_DEVICES];
    cd_judge *judge; /* NULL: not judged */
    cd_tap tap;
    struct cddp_tracer world;
    cddp_rank_result *results;   /* (world size) */
    const cddp_trace_sink *sink; /* of the ranks */
    uint64_t plan_digest;
};

static void report_begin(cd_run *run)
{
    const cddp_plan *plan = run->options.plan;
    CD_EMIT(&run->world, run_begin, plan->title, .world_size = (int64_t)plan->world.size,
            .steps = (int64_t)plan->settings.train.steps, .seed = (int64_t)plan->world.seed,
            .plan = (int64_t)run->plan_digest, .level = run->options.level);
}

/* Ranks that were killed or hung did not say so themselves. */
static void report_ends(cd_tap *tap, const cddp_rank_result *results)
{
    for (uint32_t i = 0; i < tap->rank_count; i++) {
        if (results[i].end == CDDP_RANK_RETURNED) continue;
        cddp_event event = {.time_ns = cd_tap_time(tap),
                            .sequence = tap->ranks[i].count,
                            .rank = i,
                            .kind = CDDP_EV_rank_end,
                            .level = CDDP_TRACE_ORDER,
                            .text = results[i].error.message};
        event.as.rank_end =
            (cddp_event_rank_end){results[i].status, results[i].end, results[i].detail};
        tap->sink.event(tap->sink.self, &event);
    }
}

static void report_end(cd_tap *tap, struct cddp_tracer *world, const cddp_rank_result *results)
{
    bool complete = true;
    for (size_t i = 0; i < tap->rank_count; i++) complete &= results[i].end == CDDP_RANK_RETURNED;
    world->time_ns = cd_tap_time(tap);
    CD_EMIT(world, run_end, NULL, .status = CDDP_OK, .complete = complete);
}

static cddp_status begin(cd_run *run, const cd_run_manner *manner, cddp_error *err)
{
    const cddp_run_options *options = &run->options;
    const size_t world = (size_t)options->plan->world.size;
    run->plan_digest = cddp_plan_digest(options->plan);
    run->results = cd_allocate_array(options->allocator, world, sizeof *run->results);
    if (run->results == NULL) return cd_fail_memory(err, "the results of %zu ranks", world);
    if (options->judge) CD_TRY(make_judge(options->registry, options->allocator, &run->judge, err));
    CD_TRY(cd_tap_init(&run->tap, options,
                       run->judge != NULL ? cd_judge_get_sink(run->judge) : NULL, err));
    run->sink = manner->is_unheard ? options->sinks[0] : &run->tap.sink;
    run->world = (struct cddp_tracer){.sink = run->sink, .level = options->level};
    run->argument =
        (cd_rank_argument){.options = options, .sink = run->sink, .recall = manner->recall};
    if (options->bind == NULL && !options->oracle_apart) {
        CD_TRY(cd_oracle_share_create(options->allocator, &run->argument.share, err));
        cd_reference_share_init(&run->reference_share, options->plan, options->allocator);
        run->argument.reference_share = &run->reference_share;
    }
    run->tap.without_digests = manner->without_digests;
    if (manner->holds_storage) {
        cd_replica_make_devices(options->allocator, run->devices);
        run->argument.devices = run->devices;
    }
    cd_run_resume(run);
    report_begin(run);
    return CDDP_OK;
}

cddp_status cd_run_begin(const cddp_run_options *options, const cd_run_manner *manner, cd_run **run,
                         cddp_error *err)
{
    cd_run *r = cd_allocate_zero(options->allocator, sizeof *r);
    if (r == NULL) return cd_fail_memory(err, "a run");
    r->options = *options;
    const cddp_status status = begin(r, manner, err);
    if (status == CDDP_OK)
        *run = r;
    else
        cd_run_destroy(r);
    return status;
}

void cd_run_resume(cd_run *run)
{
    if (run->options.relay != NULL) {
        run->options.relay->target = run->sink;
        run->options.relay->muted = false;
    }
}

cddp_rank_result *cd_run_get_results(cd_run *run) { return run->results; }

cddp_status cd_run_launch(cd_run *run, cddp_error *err)
{
    const cddp_run_options *options = &run->options;
    return CD_PASS(options->world_ops->launch(options->world, cd_rank_program, &run->argument,
                                              run->results, err));
}

cddp_status cd_run_end(cd_run *run, cddp_verdict **verdict, cddp_error *err)
{
    const cddp_run_options *options = &run->options;
    if (options->relay != NULL) options->relay->muted = false;
    report_ends(&run->tap, run->results);
    report_end(&run->tap, &run->world, run->results);
    CD_TRY(run->tap.sink.flush(run->tap.sink.self, err));
    if (run->judge != NULL) CD_TRY(cd_judge_end(run->judge, err));
    const cd_verdict_input input = {.plan = options->plan,
                                    .plan_digest = run->plan_digest,
                                    .allocator = options->allocator,
                                    .judge = run->judge,
                                    .tap = &run->tap,
                                    .results = run->results,
                                    .is_observed =
                                        options->oracle && options->plan->settings.model.device !=
                                                               CDDP_MODEL_DEVICE_SHAPE};
    return CD_PASS(cd_verdict_create(&input, verdict, err));
}

void cd_run_destroy(cd_run *run)
{
    if (run == NULL) return;
    const cddp_allocator *allocator = run->options.allocator;
    if (run->options.relay != NULL) run->options.relay->target = NULL;
    cd_oracle_share_destroy(run->argument.share);
    cd_reference_share_fini(&run->reference_share);
    cd_tap_fini(&run->tap);
    cd_judge_destroy(run->judge);
    cd_release(allocator, run->results,
               (size_t)run->options.plan->world.size * sizeof *run->results);
    cd_release(allocator, run, sizeof *run);
}

static cddp_status run_accepted(const cddp_run_options *options, cddp_verdict **verdict,
                                cddp_error *err)
{
    cd_run *run = NULL;
    CD_TRY(cd_run_begin(options, &(cd_run_manner){.holds_storage = false}, &run, err));
    cddp_status status = cd_run_launch(run, err);
    if (status == CDDP_OK) status = cd_run_end(run, verdict, err);
    cd_run_destroy(run);
    return status;
}

cddp_status cddp_run(const cddp_run_options *options, cddp_verdict **verdict, cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_run_options, plan, err));
    cddp_error refusal = CDDP_ERROR_INIT;
    if (cddp_plan_check(options->plan, &refusal) != CDDP_OK) {
        const cd_verdict_input input = {.plan = options->plan,
                                        .plan_digest = cddp_plan_digest(options->plan),
                                        .allocator = options->allocator,
                                        .refusal = refusal.message};
        CD_TRY(cd_verdict_create(&input, verdict, err));
        return CDDP_OK;
    }
    CD_TRY(run_accepted(options, verdict, err));
    return CDDP_OK;
}

cddp_status cddp_judge(const cddp_plan *plan, const cddp_registry *registry, cddp_replay_fn replay,
                       void *source, cddp_verdict **verdict, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_judge *judge = NULL;
    cd_tap tap = {0};
    const cddp_run_options options = {.plan = plan};
    CD_TRY_OUT(make_judge(registry, NULL, &judge, err));
    CD_TRY_OUT(cd_tap_init(&tap, &options, cd_judge_get_sink(judge), err));
    CD_TRY_OUT(replay(source, &tap.sink, err));
    CD_TRY_OUT(cd_judge_end(judge, err));
    const cd_verdict_input input = {.plan = plan,
                                    .plan_digest = cddp_plan_digest(plan),
                                    .judge = judge,
                                    .tap = &tap};
    CD_TRY_OUT(cd_verdict_create(&input, verdict, err));
out:
    cd_tap_fini(&tap);
    cd_judge_destroy(judge);
    return status;
}
