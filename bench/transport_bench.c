/* SPDX-License-Identifier: Apache-2.0 */
/* What our all-reduce costs beyond its library's: the same sums, by turns, in the same two processes. The library alone is
** driven from a queue thread of this program (bare.h), ours through a group, as the reducer does it.
**
** The limits: ours takes at most 3 % longer at 1 MiB and above, at most 10 us longer below, both as medians of 200 pairs or more.
**
** Each measured operation follows one of one element by the same side, so that both ranks begin together; who of the two
** sides comes first alternates. Two clocks: the wall, and the processor time of the whole process (all its threads).
**
**     gloo_bench [--module FILE.so] [--options algorithm=ring] [--pairs N] [--count ELEMENTS]
**     mpirun -n 2 mpi_bench …
*/
#define _POSIX_C_SOURCE 200809L
#include "bench/bare.h"
#include "bench/ranks.h"
#include "core/base/os.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAIRS_MAX 2000
#define PAIRS_MIN 200 /* for a verdict */
#define LARGE_BYTES ((size_t)1 << 20)
#define TIMES_MAX 1.03
#define BEYOND_US_MAX 10.0
#define ELEMENTS_MAX ((size_t)4 << 20)

/* ---- the library alone, from a queue thread ---- */

typedef struct queue {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t arrived, ended;
    float *data; /* of the operation that waits to be run, or NULL */
    size_t count;
    bool done, closing, failed;
} queue;

static void *queue_main(void *argument)
{
    queue *q = argument;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (q->data == NULL && !q->closing) pthread_cond_wait(&q->arrived, &q->lock);
        if (q->data == NULL) break;
        float *data = q->data;
        q->data = NULL;
        pthread_mutex_unlock(&q->lock);
        bool ok = bare_allreduce(data, q->count);
        pthread_mutex_lock(&q->lock);
        q->done = true;
        q->failed = q->failed || !ok;
        pthread_cond_signal(&q->ended);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static bool queue_run(queue *q, float *data, size_t count)
{
    pthread_mutex_lock(&q->lock);
    q->data = data;
    q->count = count;
    q->done = false;
    pthread_cond_signal(&q->arrived);
    while (!q->done) pthread_cond_wait(&q->ended, &q->lock);
    pthread_mutex_unlock(&q->lock);
    return !q->failed;
}

/* ---- by turns ---- */

typedef enum side { BARE, OURS, SIDE_COUNT } side;
typedef enum clock_kind { WALL, PROCESSOR, CLOCK_COUNT } clock_kind;

typedef struct bench {
    int pairs;
    size_t only; /* elements; 0: the usual sizes */
} bench;

typedef struct rank_side {
    const bench *b;
    cddp_group *group;
    queue queue;
    float *data;
    double times[CLOCK_COUNT][SIDE_COUNT][PAIRS_MAX];
    double beyond[PAIRS_MAX]; /* ours less the library's, within a pair: what disturbs the machine disturbs both */
    double ratio[CLOCK_COUNT][PAIRS_MAX];
    int missed; /* sizes whose limit was not kept */
} rank_side;

static cddp_status reduce(rank_side *r, side who, size_t count, cddp_error *err)
{
    cddp_work *work = NULL;
    int64_t numel = (int64_t)count;
    if (who == BARE) return queue_run(&r->queue, r->data, count) ? CDDP_OK : CDDP_E_BACKEND;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), r->data, 0, CDDP_F32, &numel, 1);
    BENCH_TRY(cddp_group_allreduce(r->group, &t, CDDP_RED_SUM, &work, err));
    BENCH_TRY(cddp_work_wait(work, 0, err));
    return CDDP_OK;
}

static double clock_read_us(clock_kind kind)
{
    struct timespec t = {0};
    if (kind == WALL) return (double)cd_os_now_ns() / 1e3;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static cddp_status take_turn(rank_side *r, side who, size_t count, int pair, cddp_error *err)
{
    BENCH_TRY(reduce(r, who, 1, err));
    const double wall = clock_read_us(WALL), processor = clock_read_us(PROCESSOR);
    BENCH_TRY(reduce(r, who, count, err));
    r->times[WALL][who][pair] = clock_read_us(WALL) - wall;
    r->times[PROCESSOR][who][pair] = clock_read_us(PROCESSOR) - processor;
    return CDDP_OK;
}

static cddp_status measure(rank_side *r, size_t count, cddp_error *err)
{
    const int pairs = r->b->pairs, warm = 5;
    memset(r->data, 0, count * sizeof *r->data);
    for (int pair = -warm; pair < pairs; pair++) {
        const int at = pair < 0 ? 0 : pair;
        const side first = pair % 2 == 0 ? BARE : OURS;
        BENCH_TRY(take_turn(r, first, count, at, err));
        BENCH_TRY(take_turn(r, first == BARE ? OURS : BARE, count, at, err));
        r->beyond[at] = r->times[WALL][OURS][at] - r->times[WALL][BARE][at];
        for (int k = 0; k < CLOCK_COUNT; k++) r->ratio[k][at] = r->times[k][OURS][at] / r->times[k][BARE][at];
    }
    double m[CLOCK_COUNT][SIDE_COUNT], ratio[CLOCK_COUNT];
    const double beyond = bench_median(r->beyond, pairs);
    for (int k = 0; k < CLOCK_COUNT; k++) {
        ratio[k] = bench_median(r->ratio[k], pairs);
        for (int i = 0; i < SIDE_COUNT; i++) m[k][i] = bench_median(r->times[k][i], pairs);
    }
    if (cddp_group_rank(r->group) != 0) return CDDP_OK;
    const bool is_large = count * sizeof(float) >= LARGE_BYTES, kept = is_large ? ratio[WALL] <= TIMES_MAX : beyond <= BEYOND_US_MAX;
    r->missed += !kept;
    printf("%10zu  %10.1f %10.1f  %+9.1f  %6.3f   %10.1f %10.1f  %6.3f   %s\n", count * sizeof(float), m[WALL][BARE], m[WALL][OURS], beyond,
           ratio[WALL], m[PROCESSOR][BARE], m[PROCESSOR][OURS], ratio[PROCESSOR],
           r->b->pairs < PAIRS_MIN ? "-" : kept ? "kept" : is_large ? "MISSED: over 1.03 times" : "MISSED: over 10 us");
    fflush(stdout);
    return CDDP_OK;
}

static cddp_status measure_all(rank_side *r, cddp_error *err)
{
    static const size_t counts[] = {1, 256, 16384, 131072, 262144, 1048576, ELEMENTS_MAX};
    if (cddp_group_rank(r->group) == 0)
        printf("%u ranks, %d pairs; medians in us, and of the ratios of pairs; %s alone, ours through a group of %s\n%10s  %10s %10s  %9s  %6s   %10s %10s  %6s   limit\n",
               cddp_group_size(r->group), r->b->pairs, bare_name, cddp_group_backend_name(r->group), "bytes", "alone", "ours", "beyond", "times",
               "processor", "ours", "times");
    if (r->b->only != 0) BENCH_TRY(measure(r, r->b->only, err));
    for (size_t i = 0; r->b->only == 0 && i < sizeof counts / sizeof counts[0]; i++) BENCH_TRY(measure(r, counts[i], err));
    if (cddp_group_rank(r->group) != 0) return CDDP_OK;
    if (r->b->pairs < PAIRS_MIN)
        printf("verdict: none, with fewer than %d pairs\n", PAIRS_MIN);
    else
        printf("verdict: %s\n", r->missed == 0 ? "all limits are kept" : "a limit is missed");
    return CDDP_OK;
}

static cddp_status rank_run(cddp_group *group, const char *directory, void *argument, cddp_error *err)
{
    static rank_side r;
    r = (rank_side){.b = argument, .group = group, .data = calloc(ELEMENTS_MAX, sizeof *r.data)};
    if (r.data == NULL || !bare_open(directory, (int)cddp_group_rank(group), (int)cddp_group_size(group))) return CDDP_E_BACKEND;
    pthread_mutex_init(&r.queue.lock, NULL);
    pthread_cond_init(&r.queue.arrived, NULL);
    pthread_cond_init(&r.queue.ended, NULL);
    if (pthread_create(&r.queue.thread, NULL, queue_main, &r.queue) != 0) return CDDP_E_LIMIT;
    cddp_status status = measure_all(&r, err);
    pthread_mutex_lock(&r.queue.lock);
    r.queue.closing = true;
    pthread_cond_signal(&r.queue.arrived);
    pthread_mutex_unlock(&r.queue.lock);
    pthread_join(r.queue.thread, NULL);
    bare_close();
    free(r.data);
    return status;
}

int main(int argc, char **argv)
{
    bench b = {.pairs = 201};
    bench_call call = {.module = CDDP_BENCH_MODULE, .size = 2, .body = rank_run, .argument = &b};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--module") == 0) call.module = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--options") == 0) call.options = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--pairs") == 0) b.pairs = atoi(argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--count") == 0) b.only = strtoul(argv[i + 1], NULL, 10);
        else return fprintf(stderr, "usage: %s [--module FILE.so] [--options KEY=VALUE] [--pairs N] [--count ELEMENTS]\n", argv[0]), 2;
    }
    if (b.pairs < 1 || b.pairs > PAIRS_MAX || b.only > ELEMENTS_MAX)
        return fprintf(stderr, "--pairs is 1 to %d, --count at most %zu\n", PAIRS_MAX, ELEMENTS_MAX), 2;
    return bench_run(&call);
}
