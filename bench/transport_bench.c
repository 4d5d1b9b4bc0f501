/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of our all-reduce beyond its library's: the same sums, by turns, in the same two
** processes. The library alone is driven from a queue thread of this program (bare.h), ours
** through a group, as the reducer does it: one with guard=0, one with the guard. The control is the
** library alone once more, with its own connections and queue thread: its difference is not a cost.
**
** Busy neighbours are processes that only compute. They share the processors with the ranks, as
** other jobs do on a machine for tests.
**
** The limits, medians of 200 pairs or more, whatever the neighbours: with guard=0 ours takes at
** most 1.2 times the library's time at any size; with the guard at most 2.5 times below 64 KiB.
**
** Each measured operation follows one of one element by the same side, so that both ranks begin
** together; the order of the sides changes from pair to pair. Two clocks: the wall, and the
** processor time of the whole process (all its threads).
**
** Threads on the same processor tend to stay there. So one start of the processes favours one side
** until its end, by half the time of an operation when processors are few. Hence 12 starts; the
** medians of starts say how certain a median is: the third lowest and the third highest enclose it
** in 96 of 100 cases. A median over its limit whose enclosure is not is called open, not missed.
**
**     gloo_bench [--module FILE.so] [--options algorithm=ring] [--pairs N] [--count ELEMENTS]
**                [--neighbours 0,1,2,4]
**     mpirun -n 2 openmpi_bench …
*/
#define _GNU_SOURCE
#include "bench/bare.h"
#include "bench/ranks.h"
#include "core/base/os.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STARTS 12
/* of STARTS sorted medians the ones with that many outside of them, on each side */
#define ENCLOSED_BY 2
#define PAIRS_MAX 1992
#define PAIRS_MIN 200 /* for a verdict */
#define TIMES_MAX 1.2
#define GUARDED_TIMES_MAX 2.5 /* below GUARDED_BYTES */
#define GUARDED_BYTES ((size_t)64 << 10)
#define SLOW_BYTES ((size_t)16 << 20) /* from here on a quarter of the pairs */
#define ELEMENTS_MAX ((size_t)16 << 20)
#define NEIGHBOURS_MAX 16
#define LOADS_MAX 8

/* ---- the library alone, from a queue thread ---- */

typedef struct queue {
    bare *library;
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
        bool ok = bare_allreduce(q->library, data, q->count);
        pthread_mutex_lock(&q->lock);
        q->done = true;
        q->failed = q->failed || !ok;
        pthread_cond_signal(&q->ended);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static bool queue_open(queue *q, bare *library)
{
    *q = (queue){.library = library};
    if (library == NULL) return false;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->arrived, NULL);
    pthread_cond_init(&q->ended, NULL);
    return pthread_create(&q->thread, NULL, queue_main, q) == 0;
}

static void queue_close(queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_signal(&q->arrived);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    bare_close(q->library);
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

typedef enum side { BARE, OURS, GUARDED, CONTROL, SIDE_COUNT } side;
typedef enum clock_kind { WALL, PROCESSOR, CLOCK_COUNT } clock_kind;

static const size_t usual_counts[] = {1, 256, 4096, 16384, 262144, 1048576, ELEMENTS_MAX};
#define SIZES (sizeof usual_counts / sizeof usual_counts[0])

/* Of one size, on rank 0, start after start. */
typedef struct times {
    double us[CLOCK_COUNT][SIDE_COUNT][PAIRS_MAX];
} times;

/* Outlives the ranks. */
typedef struct record {
    bool is_mine; /* rank 0 wrote it, from this process or a child of it */
    uint32_t ranks;
    char backend[64];
    times of[LOADS_MAX][SIZES];
} record;

typedef struct bench {
    int pairs; /* of a start */
    size_t counts[SIZES], count_of_counts;
    int neighbours[LOADS_MAX], count_of_loads;
    bench_call *call;
    record *record;
} bench;

typedef struct rank_side {
    const bench *b;
    cddp_group *groups[SIDE_COUNT]; /* of OURS and GUARDED */
    queue queues[SIDE_COUNT];       /* of BARE and CONTROL */
    int load;                       /* index of neighbours */
    float *data;
} rank_side;

static cddp_status reduce(rank_side *r, side who, size_t count, cddp_error *err)
{
    cddp_work *work = NULL;
    int64_t numel = (int64_t)count;
    if (r->groups[who] == NULL)
        return queue_run(&r->queues[who], r->data, count) ? CDDP_OK : CDDP_E_BACKEND;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), r->data, 0, CDDP_F32, &numel, 1);
    BENCH_TRY(cddp_group_allreduce(r->groups[who], &t, CDDP_RED_SUM, &work, err));
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

static cddp_status take_turn(rank_side *r, side who, size_t size, int pair, cddp_error *err)
{
    times *kept = &r->b->record->of[r->load][size];
    BENCH_TRY(reduce(r, who, 1, err));
    const double wall = clock_read_us(WALL), processor = clock_read_us(PROCESSOR);
    BENCH_TRY(reduce(r, who, r->b->counts[size], err));
    const double wall_us = clock_read_us(WALL) - wall,
                 processor_us = clock_read_us(PROCESSOR) - processor;
    if (cddp_group_rank(r->groups[OURS]) != 0 || pair < 0) return CDDP_OK;
    kept->us[WALL][who][pair] = wall_us;
    kept->us[PROCESSOR][who][pair] = processor_us;
    return CDDP_OK;
}

static int pairs_of(const bench *b, size_t count)
{
    return count * sizeof(float) < SLOW_BYTES || b->pairs < 4 ? b->pairs : b->pairs / 4;
}

static cddp_status measure(rank_side *r, size_t size, cddp_error *err)
{
    const int pairs = pairs_of(r->b, r->b->counts[size]), start = (int)r->b->call->start, warm = 3;
    for (int pair = -warm; pair < pairs; pair++) {
        const int turn = pair + warm + start;
        for (int i = 0; i < SIDE_COUNT; i++) {
            const int place = turn / SIDE_COUNT % 2 == 0 ? i : SIDE_COUNT - 1 - i;
            BENCH_TRY(take_turn(r, (side)((turn + place) % SIDE_COUNT), size,
                                pair < 0 ? -1 : start * pairs + pair, err));
        }
    }
    return CDDP_OK;
}

/* ---- neighbours ---- */

static void neighbours_start(pid_t pids[NEIGHBOURS_MAX], int count)
{
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        if (pids[i] != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (volatile unsigned n = 0;;) n = n + 1;
    }
}

static void neighbours_end(const pid_t pids[NEIGHBOURS_MAX], int count)
{
    for (int i = 0; i < count; i++) {
        if (pids[i] <= 0) continue;
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
}

static cddp_status measure_beside(rank_side *r, cddp_error *err)
{
    pid_t pids[NEIGHBOURS_MAX] = {0};
    cddp_status status = CDDP_OK;
    const bool starts = cddp_group_rank(r->groups[OURS]) == 0;
    const int count = r->b->neighbours[r->load];
    if (starts) neighbours_start(pids, count);
    for (size_t i = 0; status == CDDP_OK && i < r->b->count_of_counts; i++)
        status = measure(r, i, err);
    if (starts) neighbours_end(pids, count);
    return status;
}

static cddp_status rank_run(cddp_group *group, const char *directory, void *argument,
                            cddp_error *err)
{
    static rank_side r;
    const bench *b = argument;
    const int rank = (int)cddp_group_rank(group), size = (int)cddp_group_size(group);
    r = (rank_side){.b = b,
                    .groups = {[OURS] = group, [GUARDED] = b->call->second},
                    .data = calloc(ELEMENTS_MAX, sizeof *r.data)};
    if (r.data == NULL) return CDDP_E_NOMEM;
    for (int i = 0; i < 2; i++) { /* by turns the one is made first and the other */
        const side who = (i + (int)b->call->start) % 2 == 0 ? BARE : CONTROL;
        char own[64];
        snprintf(own, sizeof own, "%s/%d", directory, (int)who);
        if (directory[0] != '\0' && mkdir(own, 0700) != 0 && errno != EEXIST) return CDDP_E_BACKEND;
        if (!queue_open(&r.queues[who], bare_open(own, rank, size))) return CDDP_E_BACKEND;
    }
    for (r.load = 0; r.load < b->count_of_loads; r.load++) BENCH_TRY(measure_beside(&r, err));
    if (rank == 0) {
        b->record->is_mine = true;
        b->record->ranks = (uint32_t)size;
        snprintf(b->record->backend, sizeof b->record->backend, "%s",
                 cddp_group_backend_name(group));
    }
    queue_close(&r.queues[BARE]);
    queue_close(&r.queues[CONTROL]);
    free(r.data);
    return CDDP_OK;
}

/* ---- the verdict ---- */

/* Our time less or divided by the library's, pair by pair: a disturbance of the machine affects
** both. */
typedef struct comparison {
    double median, low, high;
} comparison;

static comparison compare_sides(const times *t, clock_kind clock, side who, bool as_ratio,
                                int pairs)
{
    double all[PAIRS_MAX], own[PAIRS_MAX], medians[STARTS];
    for (int i = 0; i < STARTS * pairs; i++) {
        const double theirs = t->us[clock][BARE][i], mine = t->us[clock][who][i];
        all[i] = as_ratio ? mine / theirs : mine - theirs;
    }
    for (int i = 0; i < STARTS; i++) {
        memcpy(own, all + i * pairs, (size_t)pairs * sizeof *own);
        medians[i] = bench_median(own, pairs);
    }
    (void)bench_median(medians, STARTS); /* sorts them */
    return (comparison){bench_median(all, STARTS * pairs), medians[ENCLOSED_BY],
                        medians[STARTS - 1 - ENCLOSED_BY]};
}

static double median_of(const times *t, clock_kind clock, side who, int pairs)
{
    double all[PAIRS_MAX];
    memcpy(all, t->us[clock][who], (size_t)(STARTS * pairs) * sizeof *all);
    return bench_median(all, STARTS * pairs);
}

typedef enum finding { KEPT, OPEN, MISSED, FINDING_COUNT } finding;

static finding find(const comparison *c, double limit)
{
    return c->median <= limit ? KEPT : c->low <= limit ? OPEN : MISSED;
}

static void judge(const bench *b, int load, size_t size, int found[FINDING_COUNT])
{
    static const char *const words[] = {"kept", "open", "MISSED"};
    const size_t bytes = b->counts[size] * sizeof(float);
    const times *t = &b->record->of[load][size];
    const int pairs = pairs_of(b, b->counts[size]);
    const comparison ours = compare_sides(t, WALL, OURS, true, pairs),
                     guarded = compare_sides(t, WALL, GUARDED, true, pairs),
                     control = compare_sides(t, WALL, CONTROL, true, pairs);
    const finding plain = find(&ours, TIMES_MAX),
                  with = bytes < GUARDED_BYTES ? find(&guarded, GUARDED_TIMES_MAX) : KEPT;
    printf("%6d %9zu %10.1f %10.1f %10.1f   %6.3f (%.3f to %.3f)   %6.3f (%.3f to %.3f)   %6.3f "
           "(%.3f to %.3f)   %6.3f %6.3f   %s\n",
           b->neighbours[load], bytes, median_of(t, WALL, BARE, pairs),
           median_of(t, WALL, OURS, pairs), median_of(t, WALL, GUARDED, pairs), ours.median,
           ours.low, ours.high, guarded.median, guarded.low, guarded.high, control.median,
           control.low, control.high, compare_sides(t, PROCESSOR, OURS, true, pairs).median,
           compare_sides(t, PROCESSOR, GUARDED, true, pairs).median,
           STARTS * b->pairs < PAIRS_MIN ? "-" : words[plain > with ? plain : with]);
    found[plain]++;
    found[with]++;
}

static void report(const bench *b)
{
    int found[FINDING_COUNT] = {0};
    const record *r = b->record;
    printf(
        "%u ranks, %d starts of %d pairs, %u processors; medians in us and of the times per pair; "
        "%s alone, ours through a group of %s beside it without and with the guard, and it beside "
        "itself\n",
        r->ranks, STARTS, b->pairs, cd_os_core_count(), bare_name, r->backend);
    printf("%6s %9s %10s %10s %10s   %-24s   %-24s   %-24s   %6s %6s   limits\n", "beside", "bytes",
           "alone", "guard=0", "guarded", "guard=0 times alone", "guarded times alone",
           "alone times itself", "cpu", "cpu");
    for (int load = 0; load < b->count_of_loads; load++)
        for (size_t i = 0; i < b->count_of_counts; i++) judge(b, load, i, found);
    if (STARTS * b->pairs < PAIRS_MIN)
        printf("verdict: none, with fewer than %d pairs\n", PAIRS_MIN);
    else if (found[MISSED] != 0)
        printf("verdict: a limit is missed\n");
    else if (found[OPEN] != 0)
        printf("verdict: no limit is missed; open is what differs more from start to start than "
               "the limit allows\n");
    else
        printf("verdict: all limits are kept\n");
}

/* "0,1,2,4" */
static bool read_neighbours(bench *b, const char *text)
{
    b->count_of_loads = 0;
    for (char *end; *text != '\0'; text = *end == ',' ? end + 1 : end) {
        const long n = strtol(text, &end, 10);
        if (end == text || (*end != ',' && *end != '\0') || n < 0 || n > NEIGHBOURS_MAX ||
            b->count_of_loads == LOADS_MAX)
            return false;
        b->neighbours[b->count_of_loads++] = (int)n;
    }
    return b->count_of_loads > 0;
}

int main(int argc, char **argv)
{
    bench b = {.pairs = (PAIRS_MIN + STARTS - 1) / STARTS,
               .count_of_counts = SIZES,
               .count_of_loads = 1};
    bench_call call = {
        .module = CDDP_BENCH_MODULE, .size = 2, .body = rank_run, .argument = &b, .starts = STARTS};
    char options[128] = "guard=0";
    void *memory = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    memcpy(b.counts, usual_counts, sizeof usual_counts);
    b.call = &call;
    call.options = options;
    call.second_options = "guard=1";
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--module") == 0)
            call.module = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--options") == 0)
            call.second_options = argv[i + 1],
            snprintf(options, sizeof options, "%s,guard=0", argv[i + 1]);
        else if (i + 1 < argc && strcmp(argv[i], "--pairs") == 0)
            b.pairs = (atoi(argv[i + 1]) + STARTS - 1) / STARTS;
        else if (i + 1 < argc && strcmp(argv[i], "--neighbours") == 0 &&
                 read_neighbours(&b, argv[i + 1]))
            continue;
        else if (i + 1 < argc && strcmp(argv[i], "--count") == 0)
            b.counts[0] = strtoul(argv[i + 1], NULL, 10), b.count_of_counts = 1;
        else
            return fprintf(stderr,
                           "usage: %s [--module FILE.so] [--options KEY=VALUE] [--pairs N] "
                           "[--count ELEMENTS] [--neighbours 0,1,2,4]\n",
                           argv[0]),
                   2;
    }
    if (b.pairs < 1 || b.pairs * STARTS > PAIRS_MAX || b.counts[0] < 1 ||
        b.counts[0] > ELEMENTS_MAX)
        return fprintf(stderr, "--pairs is 1 to %d, --count 1 to %zu\n", PAIRS_MAX, ELEMENTS_MAX),
               2;
    if (cd_os_shared_open(sizeof *b.record, &memory, &err) != CDDP_OK)
        return fprintf(stderr, "%s\n", err.message), 1;
    b.record = memory;
    const int failed = bench_run(&call);
    if (failed == 0 && b.record->is_mine) report(&b);
    cd_os_shared_close(b.record, sizeof *b.record);
    return failed;
}
