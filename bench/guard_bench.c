/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of the guard for a training step: ranks that compute over Gloo, with and without it.
**
** A step computes as much for each parameter as the gradient of a matrix for so many rows: an
** eighth of what ResNet-50 does for one image, and a third of what GPT-2 does for 64 tokens. Then
** comes DDP with gradient views. Two wrappers in the same processes take steps by turns, and the
** second of a pair begins the next one. The guard's messages travel while the ranks compute, so a
** step without computing would say little of one that trains.
**
** Quote the median of the pairs' quotients. Where threads begin makes one wrapper slower than the
** other for a whole start, so there are nine: the second lowest and the second highest median of a
** start enclose the median of all starts with 96 %.
**
**     guard_bench [--module PATH/cddp-gloo.so] [--pairs N] [--list resnet50|gpt2]
*/
#define _GNU_SOURCE
#include "bench/ranks.h"
#include "bench/replica.h"
#include "core/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RANKS = 2, STARTS = 9, ENCLOSED_BY = 1, PAIRS_MAX = 100, ROWS = 64, BLOCK = 1024 };
enum { PLAIN, GUARDED, SIDES };

/* Of all starts, one behind the other; written by rank 0, in memory that it shares. */
typedef struct record {
    double plain_ms[STARTS * PAIRS_MAX], ratios[STARTS * PAIRS_MAX];
} record;

typedef struct bench {
    const bench_list *list;
    int pairs; /* of a start */
    const bench_call *call;
    record *record;
} bench;

/* A block of the gradient stays in the cache, as in a matrix product. */
static void compute(float *gradient, int64_t numel)
{
    static float values[BLOCK + ROWS];
    for (int64_t at = 0; at < numel; at += BLOCK) {
        const int64_t count = numel - at < BLOCK ? numel - at : BLOCK;
        for (int row = 0; row < ROWS; row++)
            for (int64_t i = 0; i < count; i++)
                gradient[at + i] += (float)row * 0.01f * values[i + row];
    }
}

static cddp_status take_step(bench_replica *r, const bench_list *list, cddp_error *err)
{
    BENCH_TRY(cddp_ddp_forward_begin(r->ddp, true, err));
    BENCH_TRY(cddp_ddp_forward_end(r->ddp, NULL, err));
    for (size_t i = list->count; i-- > 0;) { /* the last layer first */
        cddp_grad_drop(&r->grads[i]);
        BENCH_TRY(cddp_grad_define(&r->grads[i], &r->parameters[i].tensor, err));
        const cddp_tensor *g = &r->grads[i].value;
        float *values = (float *)g->storage + g->offset;
        memset(values, 0, (size_t)list->numel[i] * sizeof *values);
        compute(values, list->numel[i]);
        BENCH_TRY(cddp_ddp_mark_variable_ready(r->ddp, i, err));
    }
    return cddp_ddp_backward_end(r->ddp, err);
}

static void report(const bench *b)
{
    double medians[STARTS], own[PAIRS_MAX];
    for (int i = 0; i < STARTS; i++) {
        memcpy(own, b->record->ratios + i * b->pairs, (size_t)b->pairs * sizeof *own);
        medians[i] = bench_median(own, b->pairs);
    }
    (void)bench_median(medians, STARTS); /* sorts them */
    const double low = medians[ENCLOSED_BY], high = medians[STARTS - 1 - ENCLOSED_BY];
    printf("%s: the guard costs %+.2f %% of a step that computes (%+.2f to %+.2f), %.1f ms without "
           "it, %d pairs on Gloo\n",
           b->list->name, 100 * (bench_median(b->record->ratios, STARTS * b->pairs) - 1),
           100 * (low - 1), 100 * (high - 1), bench_median(b->record->plain_ms, STARTS * b->pairs),
           STARTS * b->pairs);
    fflush(stdout);
}

static cddp_status measure(cddp_group *group, const char *directory, void *argument,
                           cddp_error *err)
{
    const bench *b = argument;
    (void)directory;
    static bench_replica sides[SIDES];
    BENCH_TRY(bench_replica_init(&sides[PLAIN], b->list, group, true, err));
    BENCH_TRY(bench_replica_init(&sides[GUARDED], b->list, b->call->second, true, err));
    for (int i = 0; i < 3 * SIDES; i++) /* past the rebuild */
        BENCH_TRY(take_step(&sides[i % SIDES], b->list, err));
    for (int pair = 0; pair < b->pairs; pair++) {
        double ms[SIDES];
        for (int turn = 0; turn < SIDES; turn++) {
            const int side = (turn + pair) % SIDES;
            BENCH_TRY(cddp_group_barrier(group, err));
            const uint64_t before = cd_os_now_ns();
            BENCH_TRY(take_step(&sides[side], b->list, err));
            ms[side] = (double)(cd_os_now_ns() - before) * 1e-6;
        }
        if (cddp_group_rank(group) != 0) continue;
        const int at = (int)b->call->start * b->pairs + pair;
        b->record->plain_ms[at] = ms[PLAIN];
        b->record->ratios[at] = ms[GUARDED] / ms[PLAIN];
    }
    for (int i = 0; i < SIDES; i++) bench_replica_fini(&sides[i], b->list);
    return CDDP_OK;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int pairs;
    } lists[] = {{"resnet50", 6}, {"gpt2", 40}};
    const char *only = NULL;
    int pairs = 0, failed = 0;
    bench b = {.list = NULL};
    bench_call call = {.module = CDDP_BENCH_MODULE,
                       .size = RANKS,
                       .starts = STARTS,
                       .body = measure,
                       .argument = &b,
                       .options = "guard=0",
                       .second_options = "guard=1"};
    b.call = &call;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--module") == 0)
            call.module = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--pairs") == 0)
            pairs = atoi(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--list") == 0)
            only = argv[i + 1];
        else
            return fprintf(stderr, "usage: guard_bench [--module FILE.so] [--pairs N] [--list "
                                   "NAME]\n"),
                   2;
    }
    if (pairs < 0 || pairs > PAIRS_MAX)
        return fprintf(stderr, "--pairs is 1 to %d\n", PAIRS_MAX), 2;
    b.record =
        mmap(NULL, sizeof *b.record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.record == MAP_FAILED) return perror("mmap"), 1;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        b.list = bench_list_find(lists[i].name);
        b.pairs = pairs > 0 ? pairs : lists[i].pairs;
        if (b.list == NULL) return 1;
        if (only != NULL && strcmp(only, lists[i].name) != 0) continue;
        failed |= bench_run(&call);
        if (!failed) report(&b);
    }
    return failed;
}
