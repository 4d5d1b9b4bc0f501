/* SPDX-License-Identifier: Apache-2.0 */
/* A run: launch the rank program, watch, judge, measure.
**
** Not here: what a rank does (trainer.c), what a verdict says (expect.c).
*/
#include "core/run/run.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/run/bound.h"
#include "core/run/rank.h"
#include "core/plan/replica/replica.h"
#include "core/run/tap.h"
#include "core/run/verdict.h"
#include "core/trace/rank_end.h"
#include "core/trace/tracer.h"

cddp_run_options cddp_run_options_default(void)
{
    return (cddp_run_options){.size = sizeof(cddp_run_options),
                              .level = CDDP_TRACE_DIGEST,
                              .judge = true,
                              .oracle = true};
}

/* ---- the frame around the ranks ---- */

struct cd_run {
    cddp_run_options options;
    cd_rank_argument argument;
    cd_run_wrappers wrappers;
    /* over the run's allocator, where it holds the storage */
    cddp_device devices[CD_REPLICA_DEVICES];
    cd_judges judges; /* none: not judged */
    cd_tap tap;
    cd_bound bound;
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

/* Before the ends of the ranks, which it explains. */
static void report_endless(cd_run *run)
{
    if (!run->bound.is_over) return;
    run->world.time_ns = cd_tap_time(&run->tap);
    CD_EMIT(&run->world, mark, CD_RANK_ENDLESS, .value = run->bound.rank);
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
    if (options->judge)
        CD_TRY(cd_judges_open(&run->judges, options->plan, options->registry, options->allocator,
                              err));
    CD_TRY(cd_tap_init(&run->tap, options, cd_judges_get_sink(&run->judges), err));
    run->sink = manner->is_unheard ? options->sinks[0] : &run->tap.sink;
    cd_bound_init(&run->bound, options, run->sink);
    if (options->relay != NULL) run->sink = &run->bound.sink;
    run->world = (struct cddp_tracer){.sink = run->sink, .level = options->level};
    run->argument = (cd_rank_argument){.options = options,
                                       .sink = run->sink,
                                       .values = manner->is_unheard ? manner->values : NULL,
                                       .recall = manner->recall,
                                       .is_dropped = manner->is_dropped};
    CD_TRY(cd_run_wrappers_open(&run->wrappers, options, err));
    run->argument.wrappers = &run->wrappers;
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
        run->options.relay->muted = run->options.relay->is_endless = false;
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
    report_endless(run);
    report_ends(&run->tap, run->results);
    report_end(&run->tap, &run->world, run->results);
    CD_TRY(run->tap.sink.flush(run->tap.sink.self, err));
    CD_TRY(cd_judges_end(&run->judges, err));
    const cd_verdict_input input = {.plan = options->plan,
                                    .plan_digest = run->plan_digest,
                                    .allocator = options->allocator,
                                    .judges = &run->judges,
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
    cd_run_wrappers_close(&run->wrappers);
    cd_bound_fini(&run->bound);
    cd_tap_fini(&run->tap);
    cd_judges_close(&run->judges);
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
    cd_judges judges = {0};
    cd_tap tap = {0};
    const cddp_run_options options = {.plan = plan};
    CD_TRY_OUT(cd_judges_open(&judges, plan, registry, NULL, err));
    CD_TRY_OUT(cd_tap_init(&tap, &options, cd_judges_get_sink(&judges), err));
    CD_TRY_OUT(replay(source, &tap.sink, err));
    CD_TRY_OUT(cd_judges_end(&judges, err));
    const cd_verdict_input input = {.plan = plan,
                                    .plan_digest = cddp_plan_digest(plan),
                                    .judges = &judges,
                                    .tap = &tap};
    CD_TRY_OUT(cd_verdict_create(&input, verdict, err));
out:
    cd_tap_fini(&tap);
    cd_judges_close(&judges);
    return status;
}
