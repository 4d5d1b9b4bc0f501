/* SPDX-License-Identifier: Apache-2.0 */
/* Laws of the world, over drawn worlds, schedules and faults of timing that end: what collectives
** return is the sum; what is sent arrives once, whole, and not before it left; time does not go
** back; and once everything has healed everybody finishes. Judged from what ranks hold and from
** message events, never from the world's own counters alone. */
#include "tests/unit/sim/fixture.h"

#include "core/base/prng.h"

#include <string.h>

#define RANKS_MAX 6u
#define ROUNDS 5
#define LENGTH 24
#define FAULTS 3
#define US UINT64_C(1000)

typedef struct witness {
    cddp_trace_sink sink;
    uint64_t now_ns, latency_ns, messages, bytes, too_early, went_back;
    uint64_t flow[RANKS_MAX][RANKS_MAX]; /* bytes from, to */
} witness;

typedef struct drawn {
    sim_fixture fixture; /* first */
    witness witness;
    cd_fault faults[FAULTS];
    bool sides[FAULTS][RANKS_MAX];
    uint64_t wrong[RANKS_MAX], last_ns[RANKS_MAX], back[RANKS_MAX];
} drawn;

static void see(void *self, const cddp_event *e)
{
    witness *w = self;
    if (e->rank != UINT32_MAX) return;
    w->went_back += e->time_ns < w->now_ns;
    w->now_ns = e->time_ns;
    if (e->kind != CDDP_EV_message) return;
    const cddp_event_message *m = &e->as.message;
    w->messages++;
    w->bytes += (uint64_t)m->bytes;
    w->flow[m->source][m->target] += (uint64_t)m->bytes;
    w->too_early += e->time_ns < (uint64_t)m->sent + (m->source != m->target ? w->latency_ns : 0);
}

static void look_at_the_clock(drawn *d, cddp_rank *rank)
{
    const uint64_t now = rank->ops->now_ns(rank);
    d->back[rank->rank] += now < d->last_ns[rank->rank];
    d->last_ns[rank->rank] = now;
}

static cddp_status sums(cddp_rank *rank, void *argument, cddp_error *err)
{
    drawn *d = argument;
    cddp_group *g = NULL;
    int64_t data[LENGTH], n = LENGTH;
    const int64_t w = rank->world_size;
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_I64, &n, 1);
    cddp_status status = fixture_group(&d->fixture, rank, "world", &g, err);
    for (int64_t k = 0; status == CDDP_OK && k < ROUNDS; k++) {
        cddp_work *work = NULL;
        for (int64_t i = 0; i < n; i++) data[i] = 1000 * rank->rank + 7 * k + i;
        status = rank->ops->compute(rank, 500 * (1 + rank->rank), "backward", err);
        look_at_the_clock(d, rank);
        if (status == CDDP_OK) status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        look_at_the_clock(d, rank);
        for (int64_t i = 0; status == CDDP_OK && i < n; i++)
            d->wrong[rank->rank] += data[i] != 1000 * w * (w - 1) / 2 + w * (7 * k + i);
    }
    cddp_group_destroy(g);
    return status;
}

static uint64_t draw(cd_prng *p, uint64_t from, uint64_t to)
{
    return from + cd_prng_below(p, to - from + 1);
}

/* A fault of timing that ends. */
static cd_fault draw_fault(cd_prng *p, uint32_t world, bool sides[RANKS_MAX])
{
    static const cddp_event_enum_fault_kind kinds[] = {
        CDDP_FAULT_HANG,       CDDP_FAULT_SLOW_RANK,    CDDP_FAULT_LINK_CUT,
        CDDP_FAULT_LINK_DELAY, CDDP_FAULT_LINK_REORDER, CDDP_FAULT_PARTITION};
    cd_fault f = {.kind = kinds[draw(p, 0, 5)],
                  .rank = (uint32_t)draw(p, 0, world - 1),
                  .peer = UINT32_MAX};
    f.when = draw(p, 0, 1) == 0 ? CDDP_FAULT_TIME : CDDP_FAULT_BEFORE;
    f.at = f.when == CDDP_FAULT_TIME ? draw(p, 0, 40) * US : draw(p, 0, ROUNDS - 1);
    f.duration_ns = draw(p, 1, 500) * US;
    f.amount = f.kind == CDDP_FAULT_SLOW_RANK ? draw(p, 1500, 9000) : draw(p, 1, 200) * US;
    for (uint32_t r = 0; r < world; r++) sides[r] = r <= (f.rank < world - 1 ? f.rank : world - 2);
    if (f.kind == CDDP_FAULT_PARTITION) f.side = sides;
    return f;
}

static void run(drawn *d, uint64_t seed)
{
    cd_prng p = cd_prng_seed(seed);
    memset(d, 0, sizeof *d);
    const uint32_t world = (uint32_t)draw(&p, 2, RANKS_MAX);
    cd_sim_config *c = &d->fixture.config;
    *c = (cd_sim_config)CD_SIM_CONFIG_INIT;
    c->world_size = world;
    c->seed = seed;
    c->transport = CD_SIM_MESSAGES;
    c->algorithm = (cd_algorithm)draw(&p, 0, CD_ALGORITHM_COUNT - 1);
    c->network.inter = (cd_link){.name = "",
                                 .latency_ns = draw(&p, 1, 20) * US,
                                 .bytes_per_second = 1000000000,
                                 .overhead_ns = draw(&p, 0, 300)};
    c->network.jitter_ns = draw(&p, 0, 1) * 5 * US;
    c->completion = draw(&p, 0, 1) == 0 ? CD_SIM_COMPLETE_AT_ONCE : CD_SIM_COMPLETE_CHOICE;
    d->fixture.chooser = cd_chooser_random(&d->fixture.random, seed);
    c->chooser = &d->fixture.chooser;
    for (int i = 0; i < FAULTS; i++) d->faults[i] = draw_fault(&p, world, d->sides[i]);
    c->faults = d->faults;
    c->fault_count = (size_t)draw(&p, 0, FAULTS);
    d->witness = (witness){.sink = {.size = sizeof(cddp_trace_sink),
                                    .abi = CDDP_TRACE_ABI,
                                    .self = &d->witness,
                                    .event = see},
                           .latency_ns = c->network.inter.latency_ns};
    c->sink = &d->witness.sink;
    c->trace_level = CDDP_TRACE_PAYLOAD;
    fixture_create(&d->fixture);
    fixture_launch(&d->fixture, sums);
}

TEST(laws, hold_in_every_world_schedule_and_fault_that_heals)
{
    static drawn d;
    uint64_t struck = 0, messages = 0;
    const uint64_t first = cd_test_seed();
    (void)state;
    for (uint64_t seed = first; seed < first + 200; seed++) {
        cd_test_row("seed %llu", (unsigned long long)seed);
        run(&d, seed);
        cd_sim_stats stats;
        cd_sim_get_stats(d.fixture.sim, &stats);
        for (uint32_t r = 0; r < d.fixture.config.world_size; r++) {
            /* liveness after healing */
            assert_ok(d.fixture.results[r].status, &d.fixture.results[r].error);
            assert_int_equal(d.fixture.results[r].end, CDDP_RANK_RETURNED);
            assert_int_equal(d.wrong[r], 0); /* safety */
            assert_int_equal(d.back[r], 0);  /* no time travel */
        }
        assert_int_equal(d.witness.went_back, 0);
        assert_int_equal(d.witness.too_early, 0);
        assert_int_equal(d.witness.messages, stats.messages); /* conservation */
        assert_int_equal(d.witness.bytes, stats.bytes);
        assert_int_equal(stats.messages_sent, stats.messages);
        assert_int_equal(stats.bytes_sent, stats.bytes);
        assert_int_equal(stats.messages_lost, 0);
        struck += stats.time_ns > 500 * US;
        messages += stats.messages;
        fixture_destroy(&d.fixture);
    }
    assert_true(struck > 10 && messages > 5000); /* it was put to the test */
}

/* On a ring every member sends 2(n-1) chunks of a round to the one before it, and nobody else
** anything. */
TEST(laws, a_ring_moves_the_bytes_that_it_has_to_and_no_others)
{
    static drawn d;
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        run(&d, seed);
        const uint32_t n = d.fixture.config.world_size;
        const bool is_ring = d.fixture.config.algorithm == CD_ALGORITHM_ring && LENGTH % n == 0;
        for (uint32_t a = 0; a < n && is_ring; a++)
            for (uint32_t b = 0; b < n; b++)
                assert_int_equal(d.witness.flow[a][b], b == (a + n - 1) % n
                                                           ? ROUNDS * 2 * (n - 1) * (LENGTH / n) * 8
                                                           : 0);
        fixture_destroy(&d.fixture);
    }
}

/* The canary of the laws: a cut that does not heal is no liveness, and lost messages are
** counted. */
TEST(laws, a_cut_for_good_breaks_them)
{
    static drawn d;
    (void)state;
    memset(&d, 0, sizeof d);
    d.fixture.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    d.fixture.config.world_size = 3;
    d.fixture.config.transport = CD_SIM_MESSAGES;
    d.faults[0] =
        (cd_fault){.kind = CDDP_FAULT_LINK_CUT, .rank = 1, .peer = UINT32_MAX, .at = 1000};
    d.fixture.config.faults = d.faults;
    d.fixture.config.fault_count = 1;
    fixture_create(&d.fixture);
    fixture_launch(&d.fixture, sums);
    cd_sim_stats stats;
    cd_sim_get_stats(d.fixture.sim, &stats);
    for (int r = 0; r < 3; r++) assert_int_equal(d.fixture.results[r].end, CDDP_RANK_HUNG);
    assert_true(stats.messages_lost > 0);
    assert_int_equal(stats.messages_sent, stats.messages + stats.messages_lost);
    fixture_destroy(&d.fixture);
}

TEST_MAIN()
