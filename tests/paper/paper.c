/* SPDX-License-Identifier: Apache-2.0 */
/* Reading, changing and running a scenario, with a sink that reads the clock of rank 0. */
#include "tests/paper/paper.h"

#include "verify/worlds/compose.h"
#include "core/base/error.h"
#include "scenarios/reader/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 64

typedef struct stopwatch {
    cddp_trace_sink sink;
    uint64_t begin_ns[STEPS_MAX]; /* of each step on rank 0 */
    uint64_t compute_ns[STEPS_MAX];
    uint64_t bytes[STEPS_MAX];
    uint32_t collectives[STEPS_MAX];
    uint32_t steps;
} stopwatch;

static void watch(void *self, const cddp_event *event)
{
    stopwatch *w = self;
    if (event->kind == CDDP_EV_stop && event->rank == 0 && event->step < STEPS_MAX) {
        w->begin_ns[event->step] = event->time_ns;
        w->steps = event->step + 1;
    }
    if (w->steps == 0) return;
    if (event->kind == CDDP_EV_compute && event->as.compute.who == 0) {
        w->compute_ns[w->steps - 1] += (uint64_t)event->as.compute.duration;
    } else if (event->kind == CDDP_EV_collective_post && event->rank == 0) {
        w->collectives[w->steps - 1]++;
        if (event->as.collective_post.dtype >= 0)
            w->bytes[w->steps - 1] += (uint64_t)event->as.collective_post.numel *
                                      cddp_dtype_bytes((cddp_dtype)event->as.collective_post.dtype);
    }
}

static void die(const char *scenario, const cddp_error *err)
{
    char text[2048];
    cd_error_print(err, text, sizeof text);
    fprintf(stderr, "%s: %s\n", scenario, text);
    exit(EXIT_FAILURE);
}

static void complain(void *context, const cd_complaint *complaint)
{
    char text[1024];
    (void)context;
    cd_complaint_print(complaint, text, sizeof text);
    fputs(text, stderr);
}

static cddp_status set_one(cddp_plan *plan, const char *set, cddp_error *err)
{
    char key[64];
    const char *equals = strchr(set, '=');
    if (equals == NULL || (size_t)(equals - set) >= sizeof key)
        return cd_fail(err, CDDP_E_ARG, "'%s' is not key=value", set);
    memcpy(key, set, (size_t)(equals - set));
    key[equals - set] = '\0';
    CD_TRY(cddp_plan_set(plan, key, equals + 1, err));
    return CDDP_OK;
}

static cddp_status run_plan(const cddp_plan *plan, stopwatch *watch, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    cddp_registry *registry = NULL;
    cddp_verdict *verdict = NULL;
    const cddp_trace_sink *sinks[] = {&watch->sink};
    CD_TRY_OUT(cddp_registry_create(NULL, &registry, err));
    const cd_compose_options options = {.plan = plan,
                                        .registry = registry,
                                        .level = CDDP_TRACE_ORDER};
    CD_TRY_OUT(cd_compose_open(&options, &compose, err));
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(compose, &run);
    run.registry = registry;
    run.sinks = sinks;
    run.sink_count = 1;
    run.judge = run.oracle = false;
    CD_TRY_OUT(cddp_run(&run, &verdict, err));
    for (size_t i = 0; i < verdict->rank_count && status == CDDP_OK; i++) {
        const cddp_rank_result *r = &verdict->ranks[i].result;
        if (r->status != CDDP_OK)
            status = cd_fail(err, r->status, "rank %zu: %s", i, r->error.message);
    }
out:
    cddp_verdict_destroy(verdict);
    cd_compose_close(compose);
    cddp_registry_destroy(registry);
    return status;
}

paper_time paper_run(const char *scenario, const char *const *sets)
{
    const cd_reader_options reader = {.complain = complain};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    stopwatch w = {.sink = {.size = sizeof w.sink, .abi = CDDP_TRACE_ABI, .event = watch}};
    char path[512];
    w.sink.self = &w;
    snprintf(path, sizeof path, "%s/%s.toml", CDDP_PAPER_SCENARIOS, scenario);
    if (cd_reader_read_file(&reader, path, &plan, &err) != CDDP_OK) die(scenario, &err);
    for (size_t i = 0; sets != NULL && sets[i] != NULL; i++)
        if (set_one(plan, sets[i], &err) != CDDP_OK) die(scenario, &err);
    if (cddp_plan_check(plan, &err) != CDDP_OK || run_plan(plan, &w, &err) != CDDP_OK)
        die(scenario, &err);
    cddp_plan_destroy(plan);
    if (w.steps < 4) {
        fprintf(stderr,
                "%s: %u steps are too few: the buckets of the second are new, and the last has no "
                "end\n",
                scenario, w.steps);
        exit(EXIT_FAILURE);
    }
    uint32_t last = w.steps - 2;
    paper_time t = {.iteration_ms = (double)(w.begin_ns[last + 1] - w.begin_ns[last]) / 1e6,
                    .compute_ms = (double)w.compute_ns[last] / 1e6,
                    .collectives = w.collectives[last],
                    .bytes = w.bytes[last]};
    t.exposed_ms = t.iteration_ms - t.compute_ms;
    return t;
}
