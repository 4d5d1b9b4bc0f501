/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the communication that the reducer leaves exposed, on real processes with ResNet-50's
** list. The backward computes for a given time per tensor: it sleeps until then, so that the
** transport has the processors.
**
** Every round first measures each bucket's all-reduce alone: once with the rank otherwise idle,
** and once while another of its threads wakes as often as the computation. Then it posts the same
** buckets by hand at the times at which they would be full: unchanged, divided by hand before, and
** each only when the next one is full. Last comes DDP with gradient views and with copies. The
** ideal pipeline begins a bucket when it is full and the one before it has ended. It takes the time
** that the bucket took alone: the time beside the computation's wakes during backward, and the idle
** time afterwards. The part after the end of backward is exposed. (A wake displaces the
** transport's threads, so an ideal without wakes would be impossible for any pipeline.) For DDP
** with copies the ideal then copies all gradients back, as PyTorch does. The limit for DDP is 1.1
** times the ideal. Ratios are of one round; quote their medians. Three computations: half as long
** as the communication, as long, twice as long.
**
** No pipeline ends before the processors of this machine have done its work. The least duration of
** a step is the processor time of all ranks for communication and division, measured in the same
** round, divided by the number of processors. When that is later than the ideal pipeline, the bench
** says so and uses it as the ideal (not with an MPI, which also uses a processor to wait). When
** the same transport misses the limit without DDP, driven by hand and dividing like DDP, the limit
** is open.
**
** With --limits it fails when DDP is nearer to posting a bucket late than to the ideal, computing
** at least as long as communicating. With --hosts, each rank is on its own host
** (bench/overlap_on_a_link.sh).
**
**     overlap_bench [--module FILE.so] [--options KEY=VALUE] [--hosts PREFIX] [--rounds N]
**                   [--limits]
**
** Run it under mpirun with the module of an MPI.
*/
#define _POSIX_C_SOURCE 200809L
#include "bench/ranks.h"
#include "bench/replica.h"
#include "core/base/os.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS_MAX 200
#define TIMES_MAX 1.1

#define LATE_SHARE_MAX 0.5 /* --limits: nearer to the ideal than to what is posted a bucket late */

typedef enum phase {
    BY_HAND,
    DIVIDED_BY_HAND,
    LATE_BY_HAND,
    DDP_VIEWS,
    DDP_COPIES,
    PHASE_COUNT
} phase;
static const char *const phase_names[PHASE_COUNT] = {"posted by hand", "divided by hand",
                                                     "a bucket late", "ddp, views", "ddp, copies"};

typedef struct bench {
    const bench_list *list;
    int rounds;
    bool limits;
} bench;

typedef struct rank_side {
    const bench *b;
    cddp_group *group;
    bench_replica replicas[2]; /* with views, with copies */
    bench_slab slab;
    /* how many tensors are ready when bucket b is full */
    uint32_t full_after[BENCH_PARAMETERS_MAX];
    double alone_ns[BENCH_PARAMETERS_MAX]; /* of bucket b, with the rank idle besides */
    /* of bucket b, while a thread wakes as the computation does */
    double beside_ns[BENCH_PARAMETERS_MAX];
    /* of a rank, for all buckets and for dividing them; 0: cannot be separated from waiting */
    double processor_ns;
    bool waits_busily;
    double slice_ns;                              /* of computation per tensor */
    double exposed[PHASE_COUNT + 1][ROUNDS_MAX];  /* in us; the last: of the ideal pipeline */
    double crowded[ROUNDS_MAX];                   /* in us: the minimum that the processors need */
    double alone[ROUNDS_MAX], beside[ROUNDS_MAX]; /* in us: of all buckets */
    double ratio[PHASE_COUNT][ROUNDS_MAX];
    double late_share[PHASE_COUNT][ROUNDS_MAX]; /* 0: ideal, 1: as what is posted a bucket late */
    /* --limits: rounds in which late posting could not be distinguished from posting in time */
    int unreported;
    /* how often DDP did not keep the limit; not counted as missed because nobody could */
    int missed, open;
} rank_side;

static void sleep_until(uint64_t until_ns)
{
    struct timespec t = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

/* Both ranks go on from here together, as well as they can. */
static cddp_status meet(const rank_side *r, cddp_error *err)
{
    static float one;
    int64_t numel = 1;
    cddp_work *work = NULL;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), &one, 0, CDDP_F32, &numel, 1);
    BENCH_TRY(cddp_group_allreduce(r->group, &t, CDDP_RED_SUM, &work, err));
    return cddp_work_wait(work, 0, err);
}

static double processor_now_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* One all-reduce after the other. */
static cddp_status measure_each(const rank_side *r, double *each_ns, double *processor_ns,
                                cddp_error *err)
{
    int64_t at = 0;
    *processor_ns = 0;
    for (uint32_t b = 0; b < r->slab.count; b++) {
        cddp_work *work = NULL;
        BENCH_TRY(meet(r, err));
        const uint64_t start = cd_os_now_ns();
        const double taken = processor_now_ns();
        BENCH_TRY(bench_slab_post(&r->slab, r->group, b, at, &work, err));
        BENCH_TRY(cddp_work_wait(work, 0, err));
        each_ns[b] = (double)(cd_os_now_ns() - start);
        *processor_ns += processor_now_ns() - taken;
        at += r->slab.sizes[b];
    }
    return CDDP_OK;
}

/* The mean of both ranks, so that both compute for the same time. */
static cddp_status average(const rank_side *r, double *values, int64_t count, cddp_error *err)
{
    cddp_work *work = NULL;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F64, &count, 1);
    BENCH_TRY(cddp_group_allreduce(r->group, &t, CDDP_RED_AVG, &work, err));
    return cddp_work_wait(work, 0, err);
}

static double sum_us(const double *values_ns, uint32_t count)
{
    double sum = 0;
    for (uint32_t b = 0; b < count; b++) sum += values_ns[b];
    return sum / 1e3;
}

static cddp_status measure_alone(rank_side *r, double compute, cddp_error *err)
{
    double processor_ns = 0;
    BENCH_TRY(measure_each(r, r->alone_ns, &processor_ns, err));
    const double taken = processor_now_ns();
    BENCH_TRY(cddp_device_cpu()->multiply_reciprocal(&r->slab.all, &r->slab.all,
                                                     cddp_group_size(r->group), NULL, err));
    processor_ns += processor_now_ns() - taken;
    BENCH_TRY(average(r, r->alone_ns, r->slab.count, err));
    BENCH_TRY(average(r, &processor_ns, 1, err));
    r->processor_ns = r->waits_busily ? 0 : processor_ns;
    r->slice_ns = compute * 1e3 * sum_us(r->alone_ns, r->slab.count) / (double)r->b->list->count;
    return CDDP_OK;
}

typedef struct wakes {
    double slice_ns;
    atomic_bool over;
} wakes;

static void *wake_often(void *argument)
{
    wakes *w = argument;
    const uint64_t start = cd_os_now_ns();
    for (uint64_t i = 1; !atomic_load(&w->over); i++)
        sleep_until(start + (uint64_t)((double)i * w->slice_ns));
    return NULL;
}

static cddp_status measure_beside(rank_side *r, cddp_error *err)
{
    wakes w = {.slice_ns = r->slice_ns};
    double processor_ns;
    pthread_t thread;
    if (pthread_create(&thread, NULL, wake_often, &w) != 0) return CDDP_E_LIMIT;
    const cddp_status status = measure_each(r, r->beside_ns, &processor_ns, err);
    atomic_store(&w.over, true);
    pthread_join(thread, NULL);
    BENCH_TRY(status);
    return average(r, r->beside_ns, r->slab.count, err);
}

static double ideal_exposed_us(const rank_side *r)
{
    const double computed = (double)r->b->list->count * r->slice_ns;
    double end = 0;
    for (uint32_t b = 0; b < r->slab.count; b++) {
        const double full = r->full_after[b] * r->slice_ns, start = full > end ? full : end,
                     beside = r->beside_ns[b];
        const double left = computed > start ? computed - start : 0; /* of the computation */
        end = beside <= left ? start + beside : start + left + (1 - left / beside) * r->alone_ns[b];
    }
    return (end - computed) / 1e3;
}

/* The work that is left when computation ends because the processors were not faster. */
static double crowded_exposed_us(const rank_side *r)
{
    const double least_ns = r->processor_ns * cddp_group_size(r->group) / cd_os_core_count();
    return (least_ns - (double)r->b->list->count * r->slice_ns) / 1e3;
}

/* The copies of DDP at the end, which do not count as communication. */
static double copy_back_us(const rank_side *r)
{
    const uint64_t start = cd_os_now_ns();
    memcpy(r->slab.other.storage, r->slab.all.storage,
           (size_t)cddp_tensor_numel(&r->slab.all) * sizeof(float));
    return (double)(cd_os_now_ns() - start) / 1e3;
}

static cddp_status by_hand(rank_side *r, phase which, uint64_t start, cddp_error *err)
{
    const cddp_device *cpu = cddp_device_cpu();
    const uint32_t late = which == LATE_BY_HAND, last = r->slab.count - 1;
    cddp_work *works[BENCH_PARAMETERS_MAX];
    int64_t at = 0;
    uint32_t b = 0;
    /* the computation is DDP's: it wakes as often */
    for (uint32_t i = 0; i < r->b->list->count; i++) {
        sleep_until(start + (uint64_t)((double)(i + 1) * r->slice_ns));
        for (; b <= last && i + 1 >= r->full_after[b < last ? b + late : last];
             at += r->slab.sizes[b++]) {
            cddp_tensor piece = cddp_tensor_slice(&r->slab.all, at, r->slab.sizes[b]);
            if (which == DIVIDED_BY_HAND)
                BENCH_TRY(
                    cpu->multiply_reciprocal(&piece, &piece, cddp_group_size(r->group), NULL, err));
            BENCH_TRY(bench_slab_post(&r->slab, r->group, b, at, &works[b], err));
        }
    }
    for (b = 0; b < r->slab.count; b++) BENCH_TRY(cddp_work_wait(works[b], 0, err));
    return CDDP_OK;
}

static cddp_status backward(rank_side *r, bench_replica *replica, uint64_t start, cddp_error *err)
{
    const size_t count = r->b->list->count;
    for (size_t i = 0; i < count; i++) { /* as backward comes: the last layer first */
        sleep_until(start + (uint64_t)((double)(i + 1) * r->slice_ns));
        BENCH_TRY(cddp_ddp_mark_variable_ready(replica->ddp, count - 1 - i, err));
    }
    return cddp_ddp_backward_end(replica->ddp, err);
}

static cddp_status measure_phase(rank_side *r, phase which, double *exposed_us, cddp_error *err)
{
    bench_replica *replica = &r->replicas[which == DDP_COPIES];
    const bool is_ddp = which == DDP_VIEWS || which == DDP_COPIES;
    if (is_ddp) {
        BENCH_TRY(cddp_ddp_forward_begin(replica->ddp, true, err));
        BENCH_TRY(cddp_ddp_forward_end(replica->ddp, NULL, err));
    }
    BENCH_TRY(meet(r, err));
    const uint64_t start = cd_os_now_ns();
    BENCH_TRY(is_ddp ? backward(r, replica, start, err) : by_hand(r, which, start, err));
    *exposed_us =
        ((double)(cd_os_now_ns() - start) - (double)r->b->list->count * r->slice_ns) / 1e3;
    return CDDP_OK;
}

/* The limits are relative, so that a busy machine does not break them. They distinguish a reducer
** that launches a bucket only when the next one is full from one that launches at once. That needs
** two conditions: posting by hand in time differs from posting late, and views and copies
** agree. */
static cddp_status judge(rank_side *r, double compute, cddp_error *err)
{
    double share[PHASE_COUNT];
    for (int k = 0; k < PHASE_COUNT; k++) share[k] = bench_median(r->late_share[k], r->b->rounds);
    printf("  of the way from the ideal to a bucket late: by hand %.2f, divided %.2f, ddp with "
           "views %.2f, with copies %.2f\n",
           share[BY_HAND], share[DIVIDED_BY_HAND], share[DDP_VIEWS], share[DDP_COPIES]);
    const bool reported = bench_median(r->ratio[LATE_BY_HAND], r->b->rounds) > 1 &&
                          share[BY_HAND] <= LATE_SHARE_MAX / 2 &&
                          share[DIVIDED_BY_HAND] <= LATE_SHARE_MAX / 2;
    const int late = (share[DDP_VIEWS] >= LATE_SHARE_MAX) + (share[DDP_COPIES] >= LATE_SHARE_MAX);
    r->unreported += !reported || late == 1;
    if (!reported || late < 2) return CDDP_OK;
    return cddp_error_set(err, CDDP_E_STATE,
                          "computing %.1f times as long as communicating, ddp is %.2f (views) and "
                          "%.2f (copies) of the way to a bucket late",
                          compute, share[DDP_VIEWS], share[DDP_COPIES]);
}

static cddp_status measure(rank_side *r, double compute, cddp_error *err)
{
    const int rounds = r->b->rounds;
    double best[PHASE_COUNT]; /* the ideal of each */
    for (int round = 0; round < rounds; round++) {
        BENCH_TRY(measure_alone(r, compute, err));
        BENCH_TRY(measure_beside(r, err));
        r->alone[round] = sum_us(r->alone_ns, r->slab.count);
        r->beside[round] = sum_us(r->beside_ns, r->slab.count);
        const double pipeline = r->exposed[PHASE_COUNT][round] = ideal_exposed_us(r),
                     crowded = r->crowded[round] = crowded_exposed_us(r);
        const double ideal = crowded > pipeline ? crowded : pipeline, copying = copy_back_us(r);
        for (int k = 0; k < PHASE_COUNT; k++) {
            /* rotated, so that no phase profits from its place */
            const phase which = (phase)((k + round) % PHASE_COUNT);
            BENCH_TRY(measure_phase(r, which, &r->exposed[which][round], err));
            best[which] = ideal + (which == DDP_COPIES ? copying : 0);
            r->ratio[which][round] = r->exposed[which][round] / best[which];
        }
        for (int k = 0; k < PHASE_COUNT; k++)
            r->late_share[k][round] = (r->exposed[k][round] - best[k]) /
                                      (r->exposed[LATE_BY_HAND][round] - best[BY_HAND]);
    }
    if (cddp_group_rank(r->group) != 0) return CDDP_OK;
    double times[PHASE_COUNT];
    for (int k = 0; k < PHASE_COUNT; k++) times[k] = bench_median(r->ratio[k], rounds);
    const double crowded = bench_median(r->crowded, rounds),
                 pipeline = bench_median(r->exposed[PHASE_COUNT], rounds);
    printf("computing %.1f times as long as communicating: the ideal pipeline leaves %.1f us "
           "exposed\n",
           compute, pipeline);
    const double alone = bench_median(r->alone, rounds), size = cddp_group_size(r->group);
    const double sent_bytes =
        (double)cddp_tensor_numel(&r->slab.all) * sizeof(float) * 2 * (size - 1) / size;
    printf("  all buckets one by one: %.1f us, %.1f us beside the computation's wakes; a rank "
           "sends %.3f Gbit/s\n",
           alone, bench_median(r->beside, rounds), sent_bytes * 8e-3 / alone);
    if (crowded > pipeline)
        printf("  %u processors leave at least %.1f us\n", cd_os_core_count(), crowded);
    for (int k = 0; k < PHASE_COUNT; k++) {
        const bool is_ddp = k == DDP_VIEWS || k == DDP_COPIES, kept = times[k] <= TIMES_MAX,
                   open = !kept && times[DIVIDED_BY_HAND] > TIMES_MAX;
        r->missed += is_ddp && !kept && !open;
        r->open += is_ddp && open;
        printf("  %-16s %10.1f us, %.3f times the ideal%s\n", phase_names[k],
               bench_median(r->exposed[k], rounds), times[k],
               !is_ddp ? ""
               : kept  ? "   kept"
               : open  ? "   open: over 1.1 times, and so is what is divided by hand"
                       : "   MISSED: over 1.1 times");
    }
    fflush(stdout);
    return r->b->limits ? judge(r, compute, err) : CDDP_OK;
}

static cddp_status find_full(rank_side *r, cddp_error *err)
{
    uint32_t ready = 0;
    for (uint32_t b = 0; b < r->slab.count; b++) {
        cddp_bucket_info info = {.size = sizeof info};
        BENCH_TRY(cddp_ddp_bucket(r->replicas[0].ddp, b, &info, err));
        /* rebuilt, buckets are in the order in which they fill */
        r->full_after[b] = ready += info.variable_count;
    }
    return CDDP_OK;
}

static cddp_status rank_run(cddp_group *group, const char *directory, void *argument,
                            cddp_error *err)
{
    static rank_side r;
    static const double computes[] = {0.5, 1, 2};
    r.b = argument;
    r.group = group;
    r.waits_busily = directory[0] == '\0'; /* a launcher's: an MPI */
    for (int i = 0; i < 2; i++)
        BENCH_TRY(bench_replica_init(&r.replicas[i], r.b->list, group, i == 0, err));
    for (int i = 0; i < 6; i++) { /* past the rebuild */
        bench_replica *replica = &r.replicas[i % 2];
        BENCH_TRY(cddp_ddp_forward_begin(replica->ddp, true, err));
        BENCH_TRY(cddp_ddp_forward_end(replica->ddp, NULL, err));
        for (size_t k = 0; k < r.b->list->count; k++) {
            cddp_grad *grad = &replica->grads[k];
            if (grad->kind == CDDP_GRAD_UNDEFINED)
                BENCH_TRY(cddp_grad_define(grad, &replica->parameters[k].tensor, err));
        }
        BENCH_TRY(backward(&r, replica, 0, err));
    }
    BENCH_TRY(bench_slab_init(&r.slab, r.replicas[0].ddp, err));
    BENCH_TRY(find_full(&r, err));
    if (cddp_group_rank(group) == 0)
        printf("%s: %zu tensors, %.2f MB, %u buckets, %u ranks on %s, %d rounds\n", r.b->list->name,
               r.b->list->count, (double)cddp_tensor_numel(&r.slab.all) * 4e-6, r.slab.count,
               cddp_group_size(group), cddp_group_backend_name(group), r.b->rounds);
    for (size_t i = 0; i < sizeof computes / sizeof computes[0]; i++)
        if (!r.b->limits || computes[i] >= 1) BENCH_TRY(measure(&r, computes[i], err));
    if (cddp_group_rank(group) == 0 && r.b->limits)
        puts(r.unreported == 0 ? "verdict: buckets are launched in time"
                               : "inconclusive: this machine cannot distinguish posting a bucket "
                                 "late from posting it in time");
    else if (cddp_group_rank(group) == 0)
        printf("verdict: %s\n", r.missed != 0 ? "a limit is missed"
                                : r.open != 0 ? "no limit is missed that the same keeps without DDP"
                                              : "all limits are kept");
    for (int i = 0; i < 2; i++) bench_replica_fini(&r.replicas[i], r.b->list);
    bench_slab_fini(&r.slab);
    return CDDP_OK;
}

int main(int argc, char **argv)
{
    bench b = {.rounds = 21};
    bench_call call = {.module = CDDP_BENCH_MODULE, .size = 2, .body = rank_run, .argument = &b};
    for (int i = 1; i < argc; i += 2) {
        if (strcmp(argv[i], "--limits") == 0)
            b.limits = true, i--;
        else if (i + 1 < argc && strcmp(argv[i], "--module") == 0)
            call.module = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--hosts") == 0)
            call.hosts = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--options") == 0)
            call.options = argv[i + 1];
        else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0)
            b.rounds = atoi(argv[i + 1]);
        else
            return fprintf(stderr, "usage: overlap_bench [--module FILE.so] [--options KEY=VALUE] "
                                   "[--hosts PREFIX] [--rounds N] [--limits]\n"),
                   2;
    }
    if (b.rounds < 1 || b.rounds > ROUNDS_MAX)
        return fprintf(stderr, "--rounds is 1 to %d\n", ROUNDS_MAX), 2;
    b.list = bench_list_find("resnet50");
    return b.list != NULL ? bench_run(&call) : 1;
}
