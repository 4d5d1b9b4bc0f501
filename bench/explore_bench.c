/* SPDX-License-Identifier: Apache-2.0 */
/* How many schedules of the real reducer a core explores per second.
**
**     explore_bench                          all of it, with the sizes below
**     explore_bench RANKS BUCKETS [SECONDS]  order only, with these
**     explore_bench judged [SECONDS [cpu]]   only what is judged; cpu: 3 x 4 at random on cpu alone
**     explore_bench runs COUNT [DEVICE [LEVEL]]
**                                            3 x 4 at random, so many, to count instructions; cpu
**                                            and level digest unless others are named
**     explore_bench level [ROUNDS]           3 x 4 at random, level digest against level order, in
**                                            turns; the median of the rounds' quotients
**
** order only     device shape, no trace, no store; one gradient per bucket, becoming ready in an
**                order that is uniform over all orders of all ranks; the collectives that every
**                rank issues are hashed as its sequence. A schedule is one iteration: forward,
**                gradients, backward_end. It begins in the state in which the one before it ended;
**                the first two, which end with the rebuild, do not count. All ranks' sequences
**                are compared.
** random         the whole program of a scenario from its construction, on device shape and on cpu,
**                all invariants
** judged exhaustive     the same with every schedule, up to what cannot matter
** bench/explore.pml is the same thing as a model for Spin, and says what it leaves out. The rates
** are per second of CPU time of this one thread (getrusage), since the machine may have other
** things to do.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/sim/sim_backend.h"
#include "cddp/comm.h"
#include "cddp/ddp.h"
#include "cddp/device.h"
#include "verify/explore/run.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/prng.h"
#include "sim/digest_set.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define RANKS_MAX 16
#define BUCKETS_MAX 32

typedef struct bench {
    uint32_t ranks, buckets;
    double seconds, began;
    cddp_backend backend, inner; /* the backend of the groups, and the simulator's */
    void *handles[RANKS_MAX];    /* its groups, by rank */
    /* of this iteration and of the one that others may be in already */
    uint64_t sequences[2][RANKS_MAX];
    uint64_t iterations[RANKS_MAX], stop_at;
    uint64_t order[2];
    uint64_t schedules, choices, different;
    cd_digest_set orders; /* the choices of a schedule, of all ranks together */
    cd_prng prng;
} bench;

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6 +
           (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec * 1e-6;
}

static void die_of(const cddp_error *err)
{
    fprintf(stderr, "explore_bench: %s\n", err->message);
    exit(1);
}

#define TRY(call)                                     \
    do {                                              \
        cddp_status try_status = (call);              \
        if (try_status != CDDP_OK) return try_status; \
    } while (0)

/* ---- the chooser: uniform orders; turns in the order of waking ---- */

static uint32_t choose(void *self, const cddp_choice *choice, cd_place place)
{
    bench *b = self;
    (void)place;
    if (choice->kind != CDDP_CHOICE_READY) return 0;
    uint32_t chosen = (uint32_t)cd_prng_below(&b->prng, choice->option_count);
    uint64_t *order = &b->order[b->iterations[choice->rank] %
                                2]; /* ranks choose in turn: rank by rank, or as they wake */
    *order += cd_hash_mix(cd_hash_mix(choice->rank, choice->option_count), chosen);
    b->choices++;
    return chosen;
}

/* ---- one rank ---- */

typedef struct lane {
    cddp_parameter parameters[BUCKETS_MAX];
    cddp_grad grads[BUCKETS_MAX];
    char names[BUCKETS_MAX][16];
    cddp_group *group;
    cddp_ddp *ddp;
} lane;

static cddp_status lane_init(bench *b, lane *l, cddp_rank *rank, cddp_error *err)
{
    static const uint32_t all[RANKS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int64_t one = 1;
    const cddp_device *shape = cddp_device_shape();
    cddp_group_options o = {.size = sizeof o,
                            .backend = &b->backend,
                            .rank = rank,
                            .works_max = BUCKETS_MAX + 4};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = all};
    TRY(cddp_group_create(&o, &l->group, err));
    for (uint32_t i = 0; i < b->buckets; i++) {
        void *storage = NULL;
        snprintf(l->names[i], sizeof l->names[i], "p%u", (unsigned)i);
        TRY(shape->allocate(shape, CDDP_F32, 1, &storage, err));
        l->parameters[i] =
            (cddp_parameter){.name = l->names[i],
                             .tensor = cddp_tensor_of(shape, storage, 0, CDDP_F32, &one, 1),
                             .grad = &l->grads[i],
                             .requires_grad = true};
    }
    cddp_ddp_options d = cddp_ddp_options_default();
    d.parameters = l->parameters;
    d.parameter_count = b->buckets;
    d.group = l->group;
    d.bucket_cap_mb = 1e-6; /* one bucket per gradient */
    d.gradient_as_bucket_view = true;
    d.allocator = rank->allocator;
    TRY(cddp_ddp_create(&d, &l->ddp, err));
    return CDDP_OK;
}

static cddp_status iterate(const bench *b, lane *l, cddp_rank *rank, bool chosen, cddp_error *err)
{
    uint64_t held[BUCKETS_MAX];
    TRY(cddp_ddp_forward_begin(l->ddp, true, err));
    TRY(cddp_ddp_forward_end(l->ddp, NULL, err));
    for (uint32_t i = 0; i < b->buckets; i++)
        held[i] = b->buckets - 1 - i; /* as an engine gives them: the last layer first */
    for (uint32_t count = b->buckets; count > 0; count--) {
        cddp_choice choice = {.size = sizeof choice,
                              .kind = CDDP_CHOICE_READY,
                              .rank = rank->rank,
                              .option_count = count,
                              .options = held,
                              .name = "ready"};
        uint32_t at = chosen ? rank->ops->choose(rank, &choice) : 0;
        uint32_t v = (uint32_t)held[at];
        memmove(held + at, held + at + 1, (count - 1 - at) * sizeof *held);
        TRY(cddp_grad_define(&l->grads[v], &l->parameters[v].tensor, err));
        TRY(cddp_ddp_mark_variable_ready(l->ddp, v, err));
    }
    return cddp_ddp_backward_end(l->ddp, err);
}

/* When the backward of rank 0 has ended, every rank has posted its last call, and none is two
** ahead. */
static void judge_calls(bench *b)
{
    uint64_t *sequences = b->sequences[b->iterations[0] % 2];
    for (uint32_t r = 1; r < b->ranks; r++) b->different += sequences[r] != sequences[0];
    uint64_t *order = &b->order[b->iterations[0] % 2];
    if (cd_digest_set_add(&b->orders, *order) == CD_DIGEST_NO_MEMORY) exit(1);
    memset(sequences, 0, sizeof b->sequences[0]);
    *order = 0;
    b->schedules++;
    if (b->schedules % 1024 == 0 && b->stop_at == UINT64_MAX &&
        cpu_seconds() - b->began > b->seconds)
        b->stop_at = b->iterations[0] + 2;
}

static cddp_status rank_main(cddp_rank *rank, void *argument, cddp_error *err)
{
    bench *b = argument;
    static lane lanes[RANKS_MAX];
    lane *l = &lanes[rank->rank];
    TRY(lane_init(b, l, rank, err));
    /* past the rebuild */
    for (int warm = 0; warm < 2; warm++) TRY(iterate(b, l, rank, false, err));
    b->sequences[0][rank->rank] = 0;
    if (rank->rank == 0) b->began = cpu_seconds();
    for (uint64_t *i = &b->iterations[rank->rank]; *i < b->stop_at; ++*i) {
        TRY(iterate(b, l, rank, true, err));
        if (rank->rank == 0) judge_calls(b);
    }
    cddp_ddp_destroy(l->ddp);
    cddp_group_destroy(l->group);
    return CDDP_OK;
}

/* ---- the calls of the ranks ---- */

static bench *explored; /* the posts of a backend know their group and nothing else */

static cddp_status open_group(const cddp_backend *backend, cddp_rank *rank,
                              const cddp_group_spec *spec, void **group, cddp_error *err)
{
    TRY(explored->inner.open(backend, rank, spec, group, err));
    explored->handles[rank->rank] = *group;
    return CDDP_OK;
}

static cddp_status post(void *group, const cddp_collective *c, void **work, cddp_error *err)
{
    uint32_t r = 0;
    while (explored->handles[r] != group) r++;
    uint64_t *calls = &explored->sequences[explored->iterations[r] % 2][r];
    *calls =
        cd_hash_mix(*calls, ((uint64_t)c->op << 32) |
                                c->label); /* the label of a bucket's collective is its number */
    return explored->inner.post(group, c, work, err);
}

static void order_only(bench *b)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_chooser chooser = {.self = b, .name = "uniform", .choose = choose};
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    cd_sim *sim = NULL;
    cddp_rank_result results[RANKS_MAX];
    config.world_size = b->ranks;
    config.chooser = &chooser;
    config.deviations_max = 1; /* no choice string is wanted */
    b->prng = cd_prng_seed(1);
    b->stop_at = UINT64_MAX;
    explored = b;
    if (cd_sim_create(&config, &sim, &err) != CDDP_OK) die_of(&err);
    b->inner = b->backend = cd_sim_backend(sim);
    b->backend.open = open_group;
    b->backend.post = post;
    if (cd_sim_ops()->launch(sim, rank_main, b, results, &err) != CDDP_OK) die_of(&err);
    for (uint32_t i = 0; i < b->ranks; i++)
        if (results[i].status != CDDP_OK) die_of(&results[i].error);
    double seconds = cpu_seconds() - b->began;
    printf("order only  %2u ranks x %2u buckets: %9" PRIu64
           " schedules, %8.0f per second of CPU time, %.1f choices each, %zu different orders, "
           "%" PRIu64 " sequences of calls that differ from rank 0's\n",
           b->ranks, b->buckets, b->schedules, (double)b->schedules / seconds,
           (double)b->choices / (double)b->schedules, b->orders.count, b->different);
    cd_sim_destroy(sim);
    cd_digest_set_fini(&b->orders);
}

/* ---- the whole program, judged ---- */

static void set(cddp_plan *plan, const char *key, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (cddp_plan_set(plan, key, value, &err) != CDDP_OK) die_of(&err);
}

/* A world whose gradients have a bucket each. */
static void open_subject(cd_explore_subject *subject, uint32_t ranks, uint32_t buckets,
                         const char *device)
{
    char text[32];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    cd_text overrides;
    cd_text_init(&overrides, false);
    if (cddp_registry_create(NULL, &registry, &err) != CDDP_OK ||
        cddp_plan_create(NULL, &subject->plan, &err) != CDDP_OK)
        die_of(&err);
    subject->registry = registry;
    set(subject->plan, "title", "a bucket for every gradient");
    snprintf(text, sizeof text, "%u", (unsigned)ranks);
    set(subject->plan, "world.size", text);
    set(subject->plan, "model.name", "params");
    snprintf(text, sizeof text, "count=%u,numel=1", (unsigned)buckets);
    set(subject->plan, "model.options", text);
    set(subject->plan, "model.device", device);
    set(subject->plan, "ddp.bucket_cap_mb", "0.000001");
    set(subject->plan, "ddp.first_bucket_bytes", "1");
    set(subject->plan, "train.steps", "1");
    if (cd_explore_prepare(subject->plan, true, &overrides, &err) != CDDP_OK) die_of(&err);
    cd_text_fini(&overrides);
}

static void close_subject(cd_explore_subject *subject)
{
    cddp_registry *registry = (cddp_registry *)subject->registry;
    cd_explore_fini(subject);
    cddp_plan_destroy(subject->plan);
    cddp_registry_destroy(registry);
}

static void open_explorer(cd_explorer *e, const cd_explore_subject *subject,
                          const cd_explore_options *options)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_explore_options o = *options;
    o.world_size = (uint32_t)subject->plan->world.size;
    o.without_rebuild = cd_explore_is_without_rebuild(subject->plan);
    if (cd_explorer_init(e, &o, &err) != CDDP_OK) die_of(&err);
}

/* So many, whatever they take. */
static void judge_runs(uint64_t count, const char *device, bool order_only,
                       const cd_explore_options *options)
{
    static cd_explored what;
    cd_explore_subject subject = {.order_only = order_only};
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    open_subject(&subject, 3, 4, device);
    open_explorer(&e, &subject, options);
    for (const cd_chooser *chooser; e.runs < count && (chooser = cd_explorer_next(&e)) != NULL;)
        if (cd_explore_run(&subject, &e, chooser, &what, &err) != CDDP_OK ||
            cd_explorer_done(&e, what.outcome, &err) != CDDP_OK)
            die_of(&err);
    printf("%" PRIu64 " runs, %" PRIu64 " of them needed no referee\n", e.runs, subject.recalled);
    cd_explorer_fini(&e);
    close_subject(&subject);
}

/* For so long, or until the search ends. Returns how long it took. */
static double explore(cd_explore_subject *subject, cd_explorer *e, double seconds)
{
    static cd_explored what;
    cddp_error err = CDDP_ERROR_INIT;
    double began = cpu_seconds();
    /* Asking the clock is a system call. */
    for (const cd_chooser *chooser; (e->runs % 64 != 0 || cpu_seconds() - began < seconds) &&
                                    (chooser = cd_explorer_next(e)) != NULL;)
        if (cd_explore_run(subject, e, chooser, &what, &err) != CDDP_OK ||
            cd_explorer_done(e, what.outcome, &err) != CDDP_OK)
            die_of(&err);
    return cpu_seconds() - began;
}

static void judged(uint32_t ranks, uint32_t buckets, double seconds, const char *device,
                   const cd_explore_options *o)
{
    cd_explore_subject subject = {.anonymous = o->symmetry};
    cd_explorer e;
    open_subject(&subject, ranks, buckets, device);
    open_explorer(&e, &subject, o);
    double took = explore(&subject, &e, seconds);
    printf("%-10s  %2u ranks x %2u buckets: %9" PRIu64
           " schedules, %8.0f per second of CPU time, judged, device %s, %zu outcome(s)%s",
           cd_strategy_name(o->strategy), ranks, buckets, e.runs, (double)e.runs / took, device,
           e.outcomes.count, o->strategy == CD_STRATEGY_EXHAUSTIVE ? "" : "\n");
    if (o->strategy == CD_STRATEGY_EXHAUSTIVE)
        printf(", %zu states, %s in %.3f s\n", e.states.count,
               e.exhausted ? "everything" : "NOT everything", took);
    cd_explorer_fini(&e);
    close_subject(&subject);
}

/* ---- what digests cost ---- */

#define ROUNDS_MAX 101
#define ROUND_SECONDS 0.1

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static double rate_of_round(cd_explore_subject *subject, cd_explorer *e)
{
    const uint64_t before = e->runs;
    const double took = explore(subject, e, ROUND_SECONDS);
    return (double)(e->runs - before) / took;
}

static void compare_levels(uint32_t ranks, uint32_t buckets, const char *device, int rounds,
                           const cd_explore_options *options)
{
    cd_explore_subject subjects[2] = {{.order_only = true}, {.order_only = false}};
    cd_explorer explorers[2];
    double rates[2][ROUNDS_MAX], quotients[ROUNDS_MAX];
    uint64_t subject_counts[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        open_subject(&subjects[i], ranks, buckets, device);
        open_explorer(&explorers[i], &subjects[i], options);
    }
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 2; i++) rates[i][round] = rate_of_round(&subjects[i], &explorers[i]);
        quotients[round] = rates[1][round] / rates[0][round];
    }
    for (int i = 0; i < 2; i++) {
        qsort(rates[i], (size_t)rounds, sizeof(double), by_value);
        subject_counts[0] += subjects[i].recalled;
        subject_counts[1] += explorers[i].runs;
        cd_explorer_fini(&explorers[i]);
        close_subject(&subjects[i]);
    }
    qsort(quotients, (size_t)rounds, sizeof(double), by_value);
    printf("recalled    %" PRIu64 " of %" PRIu64 " runs needed no referee\n", subject_counts[0],
           subject_counts[1]);
    printf("levels      %2u ranks x %2u buckets: order %6.0f, digest %6.0f schedules per second of "
           "CPU time, device %s: digest keeps %.0f %%\n",
           ranks, buckets, rates[0][rounds / 2], rates[1][rounds / 2], device,
           100 * quotients[rounds / 2]);
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t ranks, buckets;
    } sizes[] = {{3, 4}, {4, 8}, {16, 8}};
    static bench b;
    bool only_judged = argc > 1 && strcmp(argv[1], "judged") == 0;
    const bool only_levels = argc > 1 && strcmp(argv[1], "level") == 0;
    const bool only_runs = argc > 2 && strcmp(argv[1], "runs") == 0;
    const double seconds = only_judged && argc > 2 ? atof(argv[2]) : argc > 3 ? atof(argv[3]) : 2.0;
    for (size_t i = 0;
         i < sizeof sizes / sizeof sizes[0] && !only_judged && !only_levels && !only_runs; i++) {
        memset(&b, 0, sizeof b);
        b.ranks = argc > 2 ? (uint32_t)atoi(argv[1]) : sizes[i].ranks;
        b.buckets = argc > 2 ? (uint32_t)atoi(argv[2]) : sizes[i].buckets;
        b.seconds = seconds;
        if (b.ranks < 1 || b.ranks > RANKS_MAX || b.buckets < 1 || b.buckets > BUCKETS_MAX)
            return fprintf(stderr,
                           "usage: explore_bench [RANKS BUCKETS [SECONDS]], at most %d and %d\n",
                           RANKS_MAX, BUCKETS_MAX),
                   2;
        order_only(&b);
        if (argc > 2) return 0;
    }
    const cd_explore_options at_random = {.strategy = CD_STRATEGY_RANDOM,
                                          .seed = 1,
                                          .reduce = true,
                                          .without_coverage = true};
    const cd_explore_options all = {.strategy = CD_STRATEGY_EXHAUSTIVE,
                                    .reduce = true,
                                    .merge = true,
                                    .symmetry = true,
                                    .without_coverage = true};
    const cd_explore_options distinguished = {.strategy = CD_STRATEGY_EXHAUSTIVE,
                                              .reduce = true,
                                              .merge = true,
                                              .without_coverage = true};
    if (only_runs) {
        judge_runs((uint64_t)atoll(argv[2]), argc > 3 ? argv[3] : "cpu",
                   argc > 4 && strcmp(argv[4], "order") == 0, &at_random);
        return 0;
    }
    if (only_levels) {
        const int rounds = argc > 2 ? atoi(argv[2]) : 21;
        if (rounds < 1 || rounds > ROUNDS_MAX)
            return fprintf(stderr, "explore_bench: 1 to %d rounds\n", ROUNDS_MAX), 2;
        compare_levels(3, 4, "shape", rounds, &at_random);
        compare_levels(3, 4, "cpu", rounds, &at_random);
        return 0;
    }
    const bool only_cpu = only_judged && argc > 3 && strcmp(argv[3], "cpu") == 0;
    if (!only_cpu) judged(3, 4, seconds, "shape", &at_random);
    judged(3, 4, seconds, "cpu", &at_random);
    if (only_cpu) return 0;
    judged(4, 5, 60.0, "shape", &all);
    judged(4, 5, 60.0, "cpu", &distinguished);
    return 0;
}
