/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of data parallelism beyond the work itself: real processes over Gloo, or the
** simulator's direct mode for the reducer alone. The models are ResNet-50's list of parameters, a
** thousand tiny tensors and a small MLP.
**
** Everything is measured in the same processes, in rounds. Baselines are local work (every
** gradient written once), bare collectives of exactly the bucket sizes, copies of the same bytes in
** and out, and one in-place scaling pass. Then comes DDP with copies and with gradient views.
** Quote the ratios; absolute times are this machine's.
**
** Two clocks: the wall, and the processor time of the thread that trains. The second is what the
** reducer itself costs; it hardly depends on what else the machine does, while the first, on a busy
** one, measures the neighbours.
**
**     reducer_bench [--module PATH/cddp-gloo.so] [--rounds N] [--list resnet50|tiny|mlp]
**     reducer_bench --print resnet50                    the list itself, for
**                                                       bench/pytorch_reducer.py
*/
#define _POSIX_C_SOURCE 200809L
#include "bench/ranks.h"
#include "bench/replica.h"
#include "core/base/os.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS 2
#define LANES 2 /* copies, views */
#define ROUNDS_MAX 200

typedef enum phase {
    LOCAL,
    BARE,
    COPIES,
    SCALING,
    DDP_COPIES,
    DDP_VIEWS,
    MARKING,
    PHASE_COUNT
} phase;
static const char *const phase_names[PHASE_COUNT] = {"local work",        "bare collectives",
                                                     "copies in and out", "scaling pass",
                                                     "ddp, copies",       "ddp, views",
                                                     "mark ready only"};

typedef struct bench {
    const bench_list *parameters;
    int rounds;
} bench;

typedef struct lane {
    bench_replica replica;
    double marking_us; /* processor time of marking everything ready, launches included */
} lane;

/* Backward: every gradient is made and written once. */
typedef enum clock_kind { WALL, PROCESSOR, CLOCK_COUNT } clock_kind;

static double clock_read_us(clock_kind kind)
{
    struct timespec t = {0};
    if (kind == WALL) return (double)cd_os_now_ns() / 1e3;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static cddp_status write_gradient(lane *l, size_t i, cddp_error *err)
{
    cddp_grad_drop(&l->replica.grads[i]);
    BENCH_TRY(cddp_grad_define(&l->replica.grads[i], &l->replica.parameters[i].tensor, err));
    cddp_tensor *g = &l->replica.grads[i].value;
    memset((float *)g->storage + g->offset, 0, (size_t)cddp_tensor_numel(g) * sizeof(float));
    return CDDP_OK;
}

static cddp_status iterate(lane *l, const bench_list *p, bool writes, cddp_error *err)
{
    BENCH_TRY(cddp_ddp_forward_begin(l->replica.ddp, true, err));
    BENCH_TRY(cddp_ddp_forward_end(l->replica.ddp, NULL, err));
    const double start = writes ? 0 : clock_read_us(PROCESSOR);
    for (size_t i = p->count; i-- > 0;) { /* as backward comes: the last layer first */
        if (writes) BENCH_TRY(write_gradient(l, i, err));
        BENCH_TRY(cddp_ddp_mark_variable_ready(l->replica.ddp, i, err));
    }
    if (!writes) l->marking_us = clock_read_us(PROCESSOR) - start;
    return cddp_ddp_backward_end(l->replica.ddp, err);
}

static cddp_status bare(const bench_slab *s, cddp_group *group, cddp_error *err)
{
    cddp_work *works[BENCH_PARAMETERS_MAX];
    int64_t at = 0;
    for (uint32_t b = 0; b < s->count; b++) {
        BENCH_TRY(bench_slab_post(s, group, b, at, &works[b], err));
        at += s->sizes[b];
    }
    for (uint32_t b = 0; b < s->count; b++) BENCH_TRY(cddp_work_wait(works[b], 0, err));
    return CDDP_OK;
}

static cddp_status run_phase(phase which, lane lanes[LANES], const bench_slab *s,
                             const bench_list *p, cddp_group *group, cddp_error *err)
{
    float *a = s->all.storage, *b = s->other.storage;
    size_t bytes = (size_t)cddp_tensor_numel(&s->all) * sizeof(float);
    switch (which) {
    case LOCAL:
        for (size_t i = p->count; i-- > 0;) BENCH_TRY(write_gradient(&lanes[0], i, err));
        return CDDP_OK;
    case BARE:
        return bare(s, group, err);
    case COPIES:
        memcpy(a, b, bytes);
        memcpy(b, a, bytes);
        return CDDP_OK;
    case SCALING:
        return s->all.device->multiply_reciprocal(&s->all, &s->all, RANKS, NULL, err);
    case DDP_COPIES:
        return iterate(&lanes[0], p, true, err);
    case DDP_VIEWS:
        return iterate(&lanes[1], p, true, err);
    case MARKING:
        return iterate(&lanes[1], p, false, err);
    case PHASE_COUNT:
        break;
    }
    return CDDP_OK;
}

static void report_clock(const bench *b, const char *name, const double m[PHASE_COUNT])
{
    double over_copies = m[DDP_COPIES] - m[LOCAL] - m[BARE],
           over_views = m[DDP_VIEWS] - m[LOCAL] - m[BARE];
    printf("  %s, ddp beyond local and collectives: copies %.1f us (%.2f of the copies), views "
           "%.1f us (%.2f of a scaling pass)\n",
           name, over_copies, over_copies / m[COPIES], over_views, over_views / m[SCALING]);
    printf("  %s, per tensor beyond both: copies %.3f us, views %.3f us\n", name,
           over_copies / (double)b->parameters->count, over_views / (double)b->parameters->count);
}

static void report(const bench *b, const char *backend, const bench_slab *s,
                   double times[CLOCK_COUNT][PHASE_COUNT][ROUNDS_MAX], double *marking)
{
    double m[CLOCK_COUNT][PHASE_COUNT];
    for (int k = 0; k < CLOCK_COUNT; k++)
        for (int i = 0; i < PHASE_COUNT; i++) m[k][i] = bench_median(times[k][i], b->rounds);
    printf("%s: %zu tensors, %.2f MB, %u buckets, %d ranks on %s, %d rounds\n", b->parameters->name,
           b->parameters->count, (double)cddp_tensor_numel(&s->all) * 4e-6, s->count, RANKS,
           backend, b->rounds);
    for (int i = 0; i < PHASE_COUNT; i++)
        printf("  %-18s %10.1f us wall %10.1f us processor\n", phase_names[i], m[WALL][i],
               m[PROCESSOR][i]);
    report_clock(b, "wall", m[WALL]);
    report_clock(b, "processor", m[PROCESSOR]);
    printf("  processor, marking one gradient ready, its bucket's launch included: %.3f us\n",
           bench_median(marking, b->rounds) / (double)b->parameters->count);
    fflush(stdout);
}

static cddp_status measure(cddp_group *group, const char *directory, void *argument,
                           cddp_error *err)
{
    const bench *b = argument;
    (void)directory;
    static lane lanes[LANES];
    static bench_slab s;
    static double marking[ROUNDS_MAX];
    static double times[CLOCK_COUNT][PHASE_COUNT][ROUNDS_MAX];
    const bench_list *p = b->parameters;
    for (int i = 0; i < LANES; i++)
        BENCH_TRY(bench_replica_init(&lanes[i].replica, p, group, i > 0, err));
    for (int warm = 0; warm < 3; warm++) /* past the rebuild */
        for (int i = 0; i < LANES; i++) BENCH_TRY(iterate(&lanes[i], p, true, err));
    BENCH_TRY(bench_slab_init(&s, lanes[0].replica.ddp, err));
    for (int round = 0; round < b->rounds; round++) {
        for (int k = 0; k < PHASE_COUNT; k++) {
            /* rotated, so that no phase profits from its place */
            phase which = (phase)((k + round) % PHASE_COUNT);
            BENCH_TRY(cddp_group_barrier(group, err));
            const double wall = clock_read_us(WALL), processor = clock_read_us(PROCESSOR);
            BENCH_TRY(run_phase(which, lanes, &s, p, group, err));
            times[WALL][which][round] = clock_read_us(WALL) - wall;
            times[PROCESSOR][which][round] = clock_read_us(PROCESSOR) - processor;
            if (which == MARKING) marking[round] = lanes[1].marking_us;
        }
    }
    if (cddp_group_rank(group) == 0) report(b, cddp_group_backend_name(group), &s, times, marking);
    for (int i = 0; i < LANES; i++) bench_replica_fini(&lanes[i].replica, p);
    bench_slab_fini(&s);
    return CDDP_OK;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"resnet50", "tiny", "mlp"};
    const char *only = NULL, *print = NULL;
    bench b = {.rounds = 21};
    bench_call call = {.module = CDDP_BENCH_MODULE, .size = RANKS, .body = measure, .argument = &b};
    call.options = "guard=0";
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--module") == 0)
            call.module = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
            b.rounds = atoi(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--list") == 0)
            only = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--print") == 0)
            print = argv[i + 1];
        else
            return fprintf(stderr, "usage: reducer_bench [--module FILE.so] [--rounds N] [--list "
                                   "NAME] [--print NAME]\n"),
                   2;
    }
    if (b.rounds < 1 || b.rounds > ROUNDS_MAX)
        return fprintf(stderr, "--rounds is 1 to %d\n", ROUNDS_MAX), 2;
    int failed = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        b.parameters = bench_list_find(names[i]);
        if (b.parameters == NULL) return 1;
        for (size_t k = 0; print != NULL && strcmp(print, names[i]) == 0 && k < b.parameters->count;
             k++)
            printf("%" PRId64 "\n", b.parameters->numel[k]);
        if (print == NULL && (only == NULL || strcmp(only, names[i]) == 0))
            failed |= bench_run(&call);
    }
    return failed;
}
