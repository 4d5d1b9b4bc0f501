/* SPDX-License-Identifier: Apache-2.0 */
/* Meeting through the store: rounds, attempts, a host that goes, a network that parts, in any
** schedule. */
#include "tests/unit/sim/fixture.h"

#include "backends/sim/sim_store.h"
#include "sim/wire.h"

#include <string.h>

#define RANKS 4
#define MS UINT64_C(1000000)

typedef struct meeting_test {
    sim_fixture fixture; /* first: fixture_launch hands it to the programs */
    cd_sim_store store;
    cd_sim_store_agent agents[RANKS];
    cd_memory_sink sink;
    uint64_t met_ns[RANKS];
    size_t events; /* when the world had ended; unwinding after that is not part of the run */
} meeting_test;

static void world_ended(void *context)
{
    meeting_test *t = context;
    t->events = t->sink.count;
}

static cddp_status meet(cddp_rank *rank, void *argument, cddp_error *err)
{
    meeting_test *t = argument;
    cddp_tracer *tracer = NULL;
    cddp_group *group = NULL;
    cddp_status status = cddp_tracer_create(rank, &t->sink.sink, CDDP_TRACE_ORDER, &tracer, err);
    if (status != CDDP_OK) return status;
    cddp_group_options o = {.size = sizeof o,
                            .backend = &t->fixture.backend,
                            .rank = rank,
                            .tracer = tracer,
                            .works_max = 8};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = "world",
                               .group_rank = rank->rank,
                               .group_size = RANKS,
                               .members = t->fixture.members,
                               .timeout_ns = 2000 * MS};
    status = cddp_group_create(&o, &group, err);
    if (status == CDDP_OK) t->met_ns[rank->rank] = rank->ops->now_ns(rank);
    cddp_group_destroy(group);
    cddp_tracer_destroy(tracer);
    return status;
}

/* Patient ranks, all at once; each test changes its own setting. */
static void prepare(meeting_test *t)
{
    memset(t, 0, sizeof *t);
    t->fixture.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    t->fixture.config.world_size = RANKS;
    t->fixture.config.transport = CD_SIM_MESSAGES;
    t->fixture.config.network.inter =
        (cd_link){.name = "", .latency_ns = 50000, .bytes_per_second = 1000000000};
    t->store = (cd_sim_store){.agents = t->agents, .generations = true};
    for (uint32_t i = 0; i < RANKS; i++) {
        t->agents[i] = (cd_sim_store_agent){.timeout_ns = 1000 * MS, .attempts = 1};
        t->fixture.members[i] = i;
    }
    cd_memory_sink_init(&t->sink, NULL);
    t->fixture.config.sink = &t->sink.sink;
    t->fixture.config.ended = world_ended;
    t->fixture.config.ended_context = t;
}

static void run(meeting_test *t)
{
    fixture_create(&t->fixture);
    t->store.sim = t->fixture.sim;
    t->store.inner = t->fixture.backend;
    t->fixture.backend = cd_sim_store_backend(&t->store);
    fixture_launch(&t->fixture, meet);
}

static void finish(meeting_test *t)
{
    fixture_destroy(&t->fixture);
    cd_memory_sink_fini(&t->sink);
}

static void assert_all_met(const meeting_test *t)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_ok(t->fixture.results[i].status, &t->fixture.results[i].error);
        assert_int_equal(t->fixture.results[i].end, CDDP_RANK_RETURNED);
    }
}

/* The generation in which a rank met the others, 0: it did not. */
static int64_t generation_of(const meeting_test *t, uint32_t rank)
{
    for (size_t i = 0; i < t->events; i++) {
        const cddp_event e = cd_memory_sink_get(&t->sink, i);
        if (e.rank == rank && e.kind == CDDP_EV_store_done && e.as.store_done.status == CDDP_OK)
            return e.as.store_done.generation;
    }
    return 0;
}

static uint32_t count(const meeting_test *t, cddp_event_kind kind, uint32_t rank)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t->events; i++) {
        const cddp_event e = cd_memory_sink_get(&t->sink, i);
        n += e.kind == kind && e.rank == rank;
    }
    return n;
}

TEST(sim_store, everybody_sets_a_key_and_reads_those_of_all_others)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    t.agents[0].late_ns = 12 * MS; /* the host: attempts of the others fail at first */
    t.agents[3].late_ns = 700 * MS;
    run(&t);
    assert_all_met(&t);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(count(&t, CDDP_EV_store_key, i), RANKS);
        assert_int_equal(generation_of(&t, i), 1);
        assert_true(t.met_ns[i] >= 700 * MS && t.met_ns[i] < 710 * MS);
    }
    finish(&t);
}

TEST(sim_store, attempts_that_fail_lead_to_a_later_generation_for_all)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    for (uint32_t i = 0; i < RANKS; i++)
        t.agents[i] = (cd_sim_store_agent){0, 100 * MS, 50 * MS, 10};
    t.agents[3].late_ns = 350 * MS;
    run(&t);
    assert_all_met(&t);
    const int64_t generation = generation_of(&t, 0);
    assert_true(generation > 1);
    for (uint32_t i = 1; i < RANKS; i++) assert_int_equal(generation_of(&t, i), generation);
    assert_true(count(&t, CDDP_EV_store_done, 0) > 1);
    finish(&t);
}

TEST(sim_store, who_is_missing_is_named_with_the_key)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    for (uint32_t i = 0; i < RANKS; i++) t.agents[i].timeout_ns = 100 * MS;
    t.agents[2].late_ns = 5000 * MS;
    run(&t);
    assert_int_equal(t.fixture.results[0].status, CDDP_E_TIMEOUT);
    assert_non_null(strstr(t.fixture.results[0].error.message, "key 'world/2' did not appear"));
    assert_non_null(strstr(t.fixture.results[0].error.message,
                           "rank 0 waits for rank 2, which has not come to the store on rank 0"));
    /* When rank 2 comes, the host's program has ended. */
    assert_non_null(strstr(t.fixture.results[2].error.message,
                           "rank 2 waits for the store on rank 0, which is not there"));
    finish(&t);
}

TEST(sim_store, a_host_that_died_is_waited_for_and_nobody_else)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    const cd_fault kill = {.kind = CDDP_FAULT_KILL,
                           .when = CDDP_FAULT_TIME,
                           .rank = 0,
                           .at = 100 * MS};
    t.fixture.config.faults = &kill;
    t.fixture.config.fault_count = 1;
    t.agents[3].late_ns = 300 * MS;
    run(&t);
    assert_int_equal(t.fixture.results[0].end, CDDP_RANK_KILLED);
    assert_non_null(strstr(t.fixture.results[0].error.message, "last: asked the rendezvous"));
    for (uint32_t i = 1; i < RANKS; i++) {
        assert_int_equal(t.fixture.results[i].status, CDDP_E_TIMEOUT);
        assert_non_null(strstr(t.fixture.results[i].error.message,
                               "waits for the store on rank 0, which is dead or hangs"));
        assert_int_equal(count(&t, CDDP_EV_waiting_for, i), 1);
    }
    finish(&t);
}

/* The same death around the join of rank 2. Before the join no ranks meet. When rank 2 has met
** all, so have the others, except for answers of the store that are still in flight. */
TEST(sim_store, faults_strike_around_the_join_of_another_rank)
{
    static meeting_test t;
    (void)state;
    for (cddp_plan_fault_when when = CDDP_FAULT_BEFORE_JOIN; when <= CDDP_FAULT_AFTER_JOIN;
         when++) {
        prepare(&t);
        const cd_fault kill = {.kind = CDDP_FAULT_KILL, .when = when, .rank = 0, .joiner = 2};
        t.fixture.config.faults = &kill;
        t.fixture.config.fault_count = 1;
        t.agents[2].late_ns = 50 * MS;
        run(&t);
        assert_int_equal(t.fixture.results[0].end, CDDP_RANK_KILLED);
        assert_int_equal(count(&t, CDDP_EV_store_key, 2), when == CDDP_FAULT_BEFORE_JOIN   ? 0
                                                          : when == CDDP_FAULT_INSIDE_JOIN ? 1
                                                                                           : RANKS);
        assert_int_equal(generation_of(&t, 2), when == CDDP_FAULT_AFTER_JOIN);
        assert_int_equal(count(&t, CDDP_EV_fault, UINT32_MAX), 1);
        finish(&t);
    }
}

TEST(sim_store, an_attempt_number_says_which_join_a_fault_waits_for)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    const cd_fault hang = {
        .kind = CDDP_FAULT_HANG, .when = CDDP_FAULT_BEFORE_JOIN, .rank = 1, .joiner = 1, .at = 1};
    t.fixture.config.faults = &hang;
    t.fixture.config.fault_count = 1;
    for (uint32_t i = 0; i < RANKS; i++)
        t.agents[i] = (cd_sim_store_agent){0, 100 * MS, 50 * MS, 3};
    t.agents[3].late_ns = 120 * MS;
    run(&t);
    assert_int_equal(t.fixture.results[1].end, CDDP_RANK_HUNG);
    /* the first attempt ended, the second never began */
    assert_int_equal(count(&t, CDDP_EV_store_done, 1), 1);
    assert_non_null(strstr(t.fixture.results[0].error.message, "waits for rank 1"));
    finish(&t);
}

TEST(sim_store, a_partition_that_heals_only_delays)
{
    static meeting_test t;
    (void)state;
    static const bool side[RANKS] = {false, false, true, false};
    const cd_fault parts = {.kind = CDDP_FAULT_PARTITION,
                            .side = side,
                            .peer = UINT32_MAX,
                            .duration_ns = 400 * MS};
    prepare(&t);
    t.fixture.config.faults = &parts;
    t.fixture.config.fault_count = 1;
    run(&t);
    assert_all_met(&t);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_true(t.met_ns[i] >= 400 * MS && t.met_ns[i] < 420 * MS);
    finish(&t);
}

TEST(sim_store, a_partition_that_lasts_is_said_to_be_one)
{
    static meeting_test t;
    (void)state;
    static const bool side[RANKS] = {false, false, true, false};
    const cd_fault parts = {.kind = CDDP_FAULT_PARTITION, .side = side, .peer = UINT32_MAX};
    prepare(&t);
    t.fixture.config.faults = &parts;
    t.fixture.config.fault_count = 1;
    run(&t);
    assert_non_null(strstr(t.fixture.results[2].error.message, "which the network does not reach"));
    assert_non_null(strstr(t.fixture.results[0].error.message, "waits for rank 2"));
    finish(&t);
}

/* Time-outs that fall together with arrivals, and links of any delay: in every schedule those who
** met did so in one generation, and all of them or nobody. */
TEST(sim_store, all_meet_in_one_generation_or_nobody_does_in_any_schedule)
{
    static meeting_test t;
    (void)state;
    uint32_t met_runs = 0, late_runs = 0;
    for (uint64_t seed = 0; seed < 120; seed++) {
        prepare(&t);
        t.fixture.chooser = cd_chooser_random(&t.fixture.random, seed);
        t.fixture.config.chooser = &t.fixture.chooser;
        const cd_fault delay = {.kind = CDDP_FAULT_LINK_DELAY,
                                .rank = (uint32_t)(1 + seed % 3),
                                .peer = UINT32_MAX,
                                .amount = 1 + seed % 7 * MS};
        t.fixture.config.faults = &delay;
        t.fixture.config.fault_count = 1;
        for (uint32_t i = 0; i < RANKS; i++)
            t.agents[i] = (cd_sim_store_agent){0, 20 * MS, (seed % 5) * MS, 4};
        t.agents[3].late_ns = (15 + seed % 11) * MS + (seed % 13) * 50000;
        run(&t);
        uint32_t met = 0;
        int64_t generation = 0;
        for (uint32_t i = 0; i < RANKS; i++) {
            const int64_t g = generation_of(&t, i);
            if (g == 0) continue;
            assert_true(generation == 0 || g == generation);
            generation = g;
            met++;
        }
        assert_true(met == 0 || met == RANKS);
        met_runs += met == RANKS;
        late_runs += generation > 1;
        finish(&t);
    }
    assert_true(met_runs > 60 && late_runs > 20); /* it was put to the test */
}

TEST(sim_store, a_run_begins_with_an_empty_store)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    run(&t);
    const uint64_t first = t.met_ns[1];
    fixture_launch(&t.fixture, meet);
    assert_all_met(&t);
    assert_int_equal(t.met_ns[1], first);
    assert_int_equal(generation_of(&t, 1), 1);
    finish(&t);
}

TEST(sim_store, too_little_memory_is_reported)
{
    static meeting_test t;
    (void)state;
    prepare(&t);
    t.fixture.config.heap_bytes = 1 << 20;
    run(&t);
    bool is_reported = false;
    for (uint32_t i = 0; i < RANKS; i++) is_reported |= t.fixture.results[i].status == CDDP_E_NOMEM;
    assert_true(is_reported);
    finish(&t);
}

TEST_MAIN()
