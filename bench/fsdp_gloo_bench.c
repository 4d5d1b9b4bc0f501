/* SPDX-License-Identifier: Apache-2.0 */
/* What the sharded runtime costs beside the gathers and reductions that it posts: two real ranks,
** 12 units of 4 MiB, FULL_SHARD with BACKWARD_PRE, nothing computed.
**
** By turns, in the same processes and the same group: a step of the runtime, and twice the same
** collectives of the same sizes in the same order, posted by hand on buffers that are always
** there. The two by hand differ by chance alone. The runtime also divides gradients, adds them to
** the shards' and checks what may be used when.
**
** The limit: the median of the ratios, of a step to the mean of its two neighbours by hand, is at
** most 1.10. The order of the sides changes from turn to turn, and the ranks are started several
** times. With --limits it fails when the third lowest median of a start is over the limit, too: a
** start may favour one side by chance.
**
** Where the two by hand differ by more than 5 % from start to start, the machine is busy, and times
** are chance. Then what the rank's own thread computes more than by hand is held against a tenth of
** the processor time of a step by hand, which does not depend on who else uses the machine.
**
**     fsdp_gloo_bench [--module FILE.so] [--pairs N] [--layout rows] [--limits]
*/
#define _POSIX_C_SOURCE 200809L
#include "bench/ranks.h"
#include "cddp/fsdp.h"
#include "core/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNITS = 12, NUMEL = 1 << 20, STARTS = 7, ENCLOSED_BY = 2, PAIRS_MAX = 200, WARM = 2 };
#define TIMES_MAX 1.10
#define QUIET 0.05 /* what two equal sides differ by */

typedef enum side { RUNTIME, BY_HAND, CONTROL, SIDE_COUNT } side;

/* Elapsed; processor time of the rank's own thread, and of all threads. */
typedef enum clock_of { ELAPSED, OWN, PROCESS, CLOCK_COUNT } clock_of;

/* Of rank 0, by start. */
typedef struct times {
    double us[CLOCK_COUNT][SIDE_COUNT][PAIRS_MAX];
} times;

typedef struct bench {
    bench_call *call;
    times *starts; /* (STARTS) shared with the ranks */
    cddp_fsdp_layout layout;
    int pairs; /* of a start */
    bool limits;
} bench;

typedef struct rank_side {
    const bench *b;
    cddp_group *group;
    cddp_fsdp *fsdp;
    cddp_parameter parameters[UNITS];
    cddp_grad grads[UNITS];
    char names[UNITS][16], units[UNITS][16];
    const char *words[UNITS];
    float *storage; /* (UNITS · NUMEL) of parameters, then what is posted by hand */
    cddp_tensor shards[UNITS], full[UNITS], scattered[UNITS];
} rank_side;

/* ---- the runtime ---- */

static cddp_status wrap(rank_side *r, cddp_error *err)
{
    const int64_t numel = NUMEL;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    for (size_t i = 0; i < UNITS; i++) {
        snprintf(r->units[i], sizeof r->units[i], "l%zu", i);
        snprintf(r->names[i], sizeof r->names[i], i > 0 ? "l%zu.w" : "w", i);
        if (i > 0) r->words[i - 1] = r->units[i];
        r->parameters[i] =
            (cddp_parameter){.name = r->names[i],
                             .tensor = cddp_tensor_of(cddp_device_cpu(), r->storage,
                                                      (int64_t)i * NUMEL, CDDP_F32, &numel, 1),
                             .grad = &r->grads[i],
                             .requires_grad = true};
    }
    o.parameters = r->parameters;
    o.parameter_count = UNITS;
    o.group = r->group;
    o.layout = r->b->layout;
    o.wrap.kind = CDDP_FSDP_WRAP_NAMES;
    o.wrap.words = r->words;
    o.wrap.word_count = UNITS - 1;
    return cddp_fsdp_create(&o, &r->fsdp, err);
}

static cddp_status backward_unit(rank_side *r, uint32_t unit, cddp_error *err)
{
    BENCH_TRY(cddp_fsdp_pre_backward(r->fsdp, unit, err));
    BENCH_TRY(cddp_grad_define(&r->grads[unit], cddp_fsdp_parameter(r->fsdp, unit), err));
    return cddp_fsdp_post_backward(r->fsdp, unit, err);
}

static cddp_status run_runtime(rank_side *r, cddp_error *err)
{
    BENCH_TRY(cddp_fsdp_pre_forward(r->fsdp, 0, true, err));
    for (uint32_t k = 1; k < UNITS; k++) {
        BENCH_TRY(cddp_fsdp_pre_forward(r->fsdp, k, true, err));
        BENCH_TRY(cddp_fsdp_post_forward(r->fsdp, k, true, err));
    }
    BENCH_TRY(cddp_fsdp_post_forward(r->fsdp, 0, true, err));
    for (uint32_t k = UNITS; k-- > 0;) BENCH_TRY(backward_unit(r, k, err));
    BENCH_TRY(cddp_fsdp_backward_end(r->fsdp, err));
    return cddp_fsdp_zero_grad(r->fsdp, true, err);
}

/* ---- by hand ---- */

static cddp_status scatter(const rank_side *r, uint32_t k, cddp_work **work, cddp_error *err)
{
    cddp_collective c = {.op = CDDP_OP_REDUCE_SCATTER,
                         .reduce_op = CDDP_RED_SUM,
                         .input = r->full[k],
                         .output = r->scattered[k]};
    return cddp_group_post(r->group, &c, work, err);
}

static cddp_status gather(const rank_side *r, uint32_t k, cddp_work **work, cddp_error *err)
{
    return cddp_group_allgather(r->group, &r->shards[k], &r->full[k], work, err);
}

/* AG R | AG 1 … AG L | AG L  AG L-1 RS L | … | RS R, at most two reductions in flight. */
static cddp_status run_by_hand(rank_side *r, cddp_error *err)
{
    cddp_work *ahead = NULL, *reducing[UNITS] = {NULL};
    for (uint32_t k = 0; k < UNITS; k++) {
        BENCH_TRY(gather(r, k, &ahead, err));
        BENCH_TRY(cddp_work_wait(ahead, 0, err));
    }
    BENCH_TRY(gather(r, UNITS - 1, &ahead, err));
    for (uint32_t k = UNITS; k-- > 0;) {
        if (k > 0) BENCH_TRY(cddp_work_wait(ahead, 0, err));
        if (k > 1) BENCH_TRY(gather(r, k - 1, &ahead, err));
        if (k + 2 < UNITS) BENCH_TRY(cddp_work_wait(reducing[k + 2], 0, err));
        BENCH_TRY(scatter(r, k, &reducing[k], err));
    }
    BENCH_TRY(cddp_work_wait(reducing[1], 0, err));
    return cddp_work_wait(reducing[0], 0, err);
}

/* ---- by turns ---- */

static cddp_status meet(const rank_side *r, cddp_error *err)
{
    static float one;
    const int64_t numel = 1;
    cddp_work *work = NULL;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), &one, 0, CDDP_F32, &numel, 1);
    BENCH_TRY(cddp_group_allreduce(r->group, &t, CDDP_RED_SUM, &work, err));
    return cddp_work_wait(work, 0, err);
}

static void read_clocks(double us[CLOCK_COUNT])
{
    static const clockid_t processor[] = {
        [OWN] = CLOCK_THREAD_CPUTIME_ID, [PROCESS] = CLOCK_PROCESS_CPUTIME_ID};
    us[ELAPSED] = (double)cd_os_now_ns() / 1e3;
    for (clock_of c = OWN; c < CLOCK_COUNT; c++) {
        struct timespec t;
        clock_gettime(processor[c], &t);
        us[c] = (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
    }
}

static cddp_status take_turn(rank_side *r, side who, int pair, cddp_error *err)
{
    BENCH_TRY(meet(r, err));
    double before[CLOCK_COUNT], after[CLOCK_COUNT];
    read_clocks(before);
    BENCH_TRY(who == RUNTIME ? run_runtime(r, err) : run_by_hand(r, err));
    read_clocks(after);
    times *t = &r->b->starts[r->b->call->start];
    for (clock_of c = ELAPSED; c < CLOCK_COUNT && cddp_group_rank(r->group) == 0 && pair >= 0; c++)
        t->us[c][who][pair] = after[c] - before[c];
    return CDDP_OK;
}

static cddp_status rank_run(cddp_group *group, const char *directory, void *argument,
                            cddp_error *err)
{
    static rank_side r;
    const bench *b = argument;
    const int64_t numel = NUMEL, share = NUMEL / cddp_group_size(group);
    (void)directory;
    r = (rank_side){.b = b, .group = group, .storage = calloc(3 * UNITS, NUMEL * sizeof(float))};
    if (r.storage == NULL) return CDDP_E_NOMEM;
    for (int64_t k = 0; k < UNITS; k++) {
        float *own = r.storage + k * NUMEL;
        r.full[k] = cddp_tensor_of(cddp_device_cpu(), own + UNITS * NUMEL, 0, CDDP_F32, &numel, 1);
        own += 2 * UNITS * NUMEL;
        r.shards[k] = cddp_tensor_of(cddp_device_cpu(), own, 0, CDDP_F32, &share, 1);
        r.scattered[k] = cddp_tensor_of(cddp_device_cpu(), own + share, 0, CDDP_F32, &share, 1);
    }
    memset(r.storage, 0, 3 * UNITS * NUMEL * sizeof(float)); /* its pages are there */
    BENCH_TRY(wrap(&r, err));
    for (int pair = -WARM; pair < b->pairs; pair++) {
        const int turn = pair + WARM + (int)b->call->start;
        for (int i = 0; i < SIDE_COUNT; i++)
            BENCH_TRY(take_turn(&r, (side)((turn + i) % SIDE_COUNT), pair, err));
    }
    cddp_fsdp_destroy(r.fsdp);
    for (size_t i = 0; i < UNITS; i++) cddp_grad_fini(&r.grads[i]);
    free(r.storage);
    return CDDP_OK;
}

/* ---- the verdict ---- */

/* What a side is compared with: the runtime with both by hand, the second with the first. */
static double base_of(const times *t, side who, int pair)
{
    const double *by_hand = t->us[ELAPSED][BY_HAND], *again = t->us[ELAPSED][CONTROL];
    return who == RUNTIME ? (by_hand[pair] + again[pair]) / 2 : by_hand[pair];
}

static double compare(const bench *b, side who, double medians[STARTS])
{
    double all[STARTS * PAIRS_MAX], own[PAIRS_MAX];
    for (int s = 0; s < STARTS; s++) {
        for (int i = 0; i < b->pairs; i++)
            all[s * b->pairs + i] = own[i] =
                b->starts[s].us[ELAPSED][who][i] / base_of(&b->starts[s], who, i);
        medians[s] = bench_median(own, b->pairs);
    }
    (void)bench_median(medians, STARTS); /* sorts them */
    return bench_median(all, STARTS * b->pairs);
}

static double median_ms(const bench *b, clock_of clock, side who)
{
    double all[STARTS * PAIRS_MAX];
    for (int s = 0; s < STARTS; s++)
        memcpy(all + s * b->pairs, b->starts[s].us[clock][who], (size_t)b->pairs * sizeof *all);
    return bench_median(all, STARTS * b->pairs) / 1e3;
}

static int judge(const bench *b)
{
    static const char *const names[] = {"the runtime", "by hand", "by hand again"};
    const double more = median_ms(b, OWN, RUNTIME) - median_ms(b, OWN, BY_HAND);
    const double computed = 1 + more / median_ms(b, PROCESS, BY_HAND);
    double control[STARTS];
    (void)compare(b, CONTROL, control);
    const bool is_quiet =
        control[ENCLOSED_BY] >= 1 - QUIET && control[STARTS - 1 - ENCLOSED_BY] <= 1 + QUIET;
    bool misses = false;
    for (side who = RUNTIME; who < SIDE_COUNT; who++) {
        double medians[STARTS];
        const double ratio = compare(b, who, medians);
        const double low = medians[ENCLOSED_BY], high = medians[STARTS - 1 - ENCLOSED_BY];
        printf("%-14s %9.3f ms a step, %6.3f ms on the rank's thread", names[who],
               median_ms(b, ELAPSED, who), median_ms(b, OWN, who));
        if (who != BY_HAND) printf("   %.3f times by hand (%.3f to %.3f)", ratio, low, high);
        if (who == RUNTIME) {
            printf(", limit %.2f: %s", TIMES_MAX,
                   ratio <= TIMES_MAX ? "kept"
                   : low <= TIMES_MAX ? "open"
                                      : "MISSED");
            misses = low > TIMES_MAX;
        }
        printf("\n");
    }
    printf("computed more: %.3f times by hand, limit %.2f: %s%s\n", computed, TIMES_MAX,
           computed <= TIMES_MAX ? "kept" : "MISSED", is_quiet ? "" : "; the machine is busy");
    return b->limits && ((is_quiet && misses) || computed > TIMES_MAX);
}

int main(int argc, char **argv)
{
    bench b = {.pairs = 6};
    bench_call call = {.module = CDDP_BENCH_MODULE,
                       .options = "guard=0",
                       .size = 2,
                       .body = rank_run,
                       .argument = &b,
                       .starts = STARTS};
    cddp_error err = CDDP_ERROR_INIT;
    void *memory = NULL;
    b.call = &call;
    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        if (strcmp(argv[i], "--limits") == 0)
            b.limits = true;
        else if (has_value && strcmp(argv[i], "--module") == 0)
            call.module = argv[++i];
        else if (has_value && strcmp(argv[i], "--pairs") == 0)
            b.pairs = atoi(argv[++i]);
        else if (has_value && strcmp(argv[i], "--layout") == 0)
            b.layout = strcmp(argv[++i], "rows") == 0 ? CDDP_FSDP_ROWS : CDDP_FSDP_FLAT;
        else
            b.pairs = 0;
    }
    if (b.pairs < 1 || b.pairs > PAIRS_MAX) {
        fprintf(stderr,
                "usage: fsdp_gloo_bench [--module FILE.so] [--pairs 1..%d] [--layout rows] "
                "[--limits]\n",
                PAIRS_MAX);
        return 2;
    }
    if (cd_os_shared_open(STARTS * sizeof *b.starts, &memory, &err) != CDDP_OK) {
        fprintf(stderr, "fsdp_gloo_bench: %s\n", err.message);
        return 1;
    }
    b.starts = memory;
    int code = bench_run(&call);
    if (code == 0) code = judge(&b);
    cd_os_shared_close(memory, STARTS * sizeof *b.starts);
    return code;
}
