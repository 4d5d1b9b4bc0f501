/* SPDX-License-Identifier: Apache-2.0 */
/* What judging costs: nanoseconds per event of the construction of a module and of training steps,
** with every check. Arguments: ranks, parameters, steps. */
#include "core/base/os.h"
#include "core/check/check.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <stdlib.h>

#define BUCKET_PARAMS 20

typedef struct bench {
    const cddp_trace_sink *sink;
    uint32_t ranks, rank, step;
    int64_t params;
    uint64_t events, sequence;
} bench;

static void put(bench *b, cddp_event *e)
{
    e->time_ns = b->sequence;
    e->sequence = b->sequence++;
    e->rank = b->rank;
    e->step = b->step;
    b->events++;
    b->sink->event(b->sink->self, e);
}
#define PUT(b, name, words, ...)                                          \
    do {                                                                  \
        cddp_event put_event = {.kind = CDDP_EV_##name, .text = (words)}; \
        put_event.as.name = (cddp_event_##name){__VA_ARGS__};             \
        put((b), &put_event);                                             \
    } while (0)

static void construct(bench *b)
{
    char name[48];
    PUT(b, rank_begin, NULL, .world_size = b->ranks);
    PUT(b, group, "world", .group = 1, .members = b->ranks, .group_rank = b->rank,
        .members_digest = 7);
    for (int64_t p = 0; p < b->params; p++) {
        snprintf(name, sizeof name, "layers.%lld.weight", (long long)p);
        PUT(b, param, name, .param = p, .ordinal = p, .numel = 16, .requires_grad = 1, .name = p);
    }
    for (int64_t p = 0; p < b->params; p++)
        PUT(b, bucket_layout, NULL, .bucket = p / BUCKET_PARAMS, .slot = p % BUCKET_PARAMS,
            .param = p, .offset = p % BUCKET_PARAMS * 16, .numel = 16, .limit = -1);
    PUT(b, wrap, NULL, .params = b->params, .group = 1, .init_sync = 1);
}

static void train(bench *b)
{
    PUT(b, forward_begin, NULL, .iteration = b->step, .sync = 1, .grad_mode = 1);
    PUT(b, backward_begin, NULL, .sync = 1);
    for (int64_t p = 0; p < b->params; p++) {
        PUT(b, grad_local, NULL, .param = p, .presence = 2, .digest = p + b->rank + 1,
            .contributions = 1);
        PUT(b, mark_ready, NULL, .param = p, .bucket = p / BUCKET_PARAMS, .slot = p % BUCKET_PARAMS,
            .factor = b->ranks);
    }
    for (int64_t p = 0; p < b->params; p++)
        PUT(b, grad_final, NULL, .param = p, .presence = 2, .digest = p + 1,
            .bucket = p / BUCKET_PARAMS);
    PUT(b, backward_end, NULL, .finalized = 1);
    for (int64_t p = 0; p < b->params; p++) {
        PUT(b, optimizer_touch, NULL, .param = p, .touched = 1);
        PUT(b, value, NULL, .moment = 5, .id = p, .presence = 2, .digest = p + 9, .param = p,
            .nonfinite = -1);
    }
}

typedef void (*phase_fn)(bench *b);

static void measure(bench *b, const char *name, phase_fn phase, uint32_t times)
{
    const uint64_t start = cd_os_now_ns();
    b->events = 0;
    for (b->step = 0; b->step < times; b->step++)
        for (b->rank = 0; b->rank < b->ranks; b->rank++) phase(b);
    const double took = (double)(cd_os_now_ns() - start);
    printf("%-14s %8llu events %7.1f ms %6.1f ns per event\n", name, (unsigned long long)b->events,
           took / 1e6, took / (double)b->events);
}

int main(int argc, char **argv)
{
    bench b = {.ranks = argc > 1 ? (uint32_t)atoi(argv[1]) : 256,
               .params = argc > 2 ? atoi(argv[2]) : 400};
    const uint32_t steps = argc > 3 ? (uint32_t)atoi(argv[3]) : 1;
    cd_judge *judge = NULL;
    if (cd_judge_create(&(cd_judge_options){0}, &judge, NULL) != CDDP_OK) return 1;
    b.sink = cd_judge_get_sink(judge);
    measure(&b, "construction", construct, 1);
    measure(&b, "training", train, steps);
    const uint64_t start = cd_os_now_ns();
    const bool is_judged = cd_judge_end(judge, NULL) == CDDP_OK;
    printf("%-14s %23.1f ms\n", "end", (double)(cd_os_now_ns() - start) / 1e6);
    cd_judge_destroy(judge);
    return is_judged ? 0 : 1;
}
