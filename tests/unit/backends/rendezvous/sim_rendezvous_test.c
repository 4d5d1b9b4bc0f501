/* SPDX-License-Identifier: Apache-2.0 */
/* The store of the real backends, its wire format and its client, over the simulated transport:
** what happens when its
*** host dies, when an agent tries again, when a rank comes late. */
#include "backends/rendezvous/client.h"
#include "backends/rendezvous/kv.h"
#include "sim/wire.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define RANKS 4
#define MS UINT64_C(1000000)

typedef struct store {
    cd_sim *sim;
    cd_kv kv;
    cd_kv_client clients[RANKS];
    cd_wire *wire;
    uint64_t done_ns[RANKS];
    uint32_t attempts[RANKS];
} store;

/* ---- the server ---- */

static bool feed(void *self, uint32_t client, const void *bytes, size_t byte_count)
{
    store *s = self;
    const char *reason = NULL;
    if (!cd_kv_feed(&s->kv, &s->clients[client], bytes, byte_count, &reason)) return false;
    for (uint32_t i = 0; i < RANKS; i++) (void)cd_kv_resume(&s->kv, &s->clients[i]);
    return true;
}

static size_t take(void *self, uint32_t client, void *bytes, size_t room)
{
    store *s = self;
    cd_kv_client *c = &s->clients[client];
    size_t ready = c->answer_bytes - c->answer_sent, n = ready < room ? ready : room;
    memcpy(bytes, c->answer + c->answer_sent, n);
    c->answer_sent += n;
    return n;
}

static bool has_answer(void *self, uint32_t client)
{
    const store *s = self;
    return s->clients[client].answer_bytes > s->clients[client].answer_sent;
}

static void reset(void *self, uint32_t client)
{
    store *s = self;
    cd_kv_client_reset(&s->clients[client]);
}

/* ---- the client's link ---- */

typedef struct wire_link {
    store *store;
    cddp_rank *rank;
} wire_link;

static uint64_t now_ns(void *self)
{
    const wire_link *l = self;
    return l->rank->ops->now_ns(l->rank);
}

static cddp_status connect_wire(void *self, uint64_t deadline_ns, char local[CD_STORE_LOCAL_BYTES],
                                cddp_error *err)
{
    wire_link *l = self;
    snprintf(local, CD_STORE_LOCAL_BYTES, "rank %u", l->rank->rank);
    return cd_wire_connect(l->store->wire, l->rank, deadline_ns, err);
}

static cddp_status write_wire(void *self, const void *bytes, size_t n, uint64_t deadline_ns,
                              cddp_error *err)
{
    wire_link *l = self;
    return cd_wire_write(l->store->wire, l->rank, bytes, n, deadline_ns, err);
}

static cddp_status read_wire(void *self, void *bytes, size_t n, uint64_t deadline_ns,
                             cddp_error *err)
{
    wire_link *l = self;
    return cd_wire_read(l->store->wire, l->rank, bytes, n, deadline_ns, err);
}

static void disconnect_wire(void *self)
{
    wire_link *l = self;
    cd_wire_disconnect(l->store->wire, l->rank);
}

static cddp_status open_store(wire_link *l, uint64_t generation, uint64_t timeout_ns,
                              cddp_rendezvous **r, cddp_error *err)
{
    const cddp_rendezvous_options o = {.size = sizeof o,
                                       .secret = "s",
                                       .generation = generation,
                                       .timeout_ns = timeout_ns};
    const cd_store_link link = {l,         "the simulated host", now_ns, connect_wire, write_wire,
                                read_wire, disconnect_wire,      NULL};
    return cd_store_client_open(&o, &link, r, err);
}

/* ---- running ---- */

static void run(store *s, cd_sim_config config, cddp_rank_fn program,
                cddp_rank_result results[RANKS])
{
    static const cd_wire_server_ops ops = {feed, take, has_answer, reset};
    cddp_error err = CDDP_ERROR_INIT;
    config.world_size = RANKS;
    config.network.inter = (cd_link){.latency_ns = 50000, .bytes_per_second = 1000000000};
    assert_ok(cd_sim_create(&config, &s->sim, &err), &err);
    assert_ok(cd_kv_init(&s->kv, NULL, 64, "s", &err), &err);
    for (int i = 0; i < RANKS; i++) assert_ok(cd_kv_client_init(&s->clients[i], NULL, &err), &err);
    assert_ok(cd_wire_create(s->sim, &(cd_wire_options){.ops = ops, .self = s}, &s->wire, &err),
              &err);
    assert_ok(cd_sim_ops()->launch(s->sim, program, s, results, &err), &err);
    cd_wire_destroy(s->wire);
    for (int i = 0; i < RANKS; i++) cd_kv_client_fini(&s->clients[i], NULL);
    cd_kv_fini(&s->kv);
    cd_sim_destroy(s->sim);
}

/* Everybody adds itself, and waits until all have: a rendezvous in the small. Rank 0 serves until
** they have read it. */
static cddp_status meet(store *s, cddp_rank *rank, uint64_t generation, uint64_t timeout_ns,
                        cddp_error *err)
{
    wire_link link = {s, rank};
    cddp_rendezvous *r = NULL;
    cddp_status status = open_store(&link, generation, timeout_ns, &r, err);
    char value[16] = "";
    size_t bytes = sizeof value;
    int64_t sum = 0;
    if (status == CDDP_OK) status = r->add(r->self, "arrived", 1, &sum, err);
    if (status == CDDP_OK && sum == RANKS) status = r->set(r->self, "all", "here", 4, err);
    if (status == CDDP_OK) {
        status = r->get(r->self, "all", timeout_ns, value, &bytes, err);
        if (status == CDDP_E_TIMEOUT) { /* or a rank that comes later would meet a ghost */
            cddp_error ignored = CDDP_ERROR_INIT;
            status = r->add(r->self, "arrived", -1, &sum, &ignored) == CDDP_E_ABORTED
                         ? CDDP_E_ABORTED
                         : status;
        }
    }
    if (status == CDDP_OK && (bytes != 4 || memcmp(value, "here", 4) != 0)) status = CDDP_E_CORRUPT;
    if (status == CDDP_OK) status = r->add(r->self, "read", 1, &sum, err);
    if (status == CDDP_OK) s->done_ns[rank->rank] = rank->ops->now_ns(rank);
    while (status == CDDP_OK && rank->rank == 0 && sum < RANKS) {
        status = rank->ops->sleep_ns(rank, MS, err);
        if (status == CDDP_OK) status = r->add(r->self, "read", 0, &sum, err);
    }
    cddp_rendezvous_close(r);
    return status;
}

static cddp_status late_joiner(cddp_rank *rank, void *argument, cddp_error *err)
{
    store *s = argument;
    uint64_t late = rank->rank == 0 ? 12 * MS : rank->rank == 3 ? 700 * MS : 0;
    cddp_status status = late > 0 ? rank->ops->sleep_ns(rank, late, err) : CDDP_OK;
    if (rank->rank == 0) cd_wire_listen(s->wire, rank);
    return status == CDDP_OK ? meet(s, rank, 1, 5000 * MS, err) : status;
}

/* Ranks 1 and 2 knock before the store is there, rank 3 comes when all others wait. */
TEST(sim_rendezvous, early_and_late_ranks_meet)
{
    static store s;
    cddp_rank_result results[RANKS];
    memset(&s, 0, sizeof s);
    run(&s, (cd_sim_config)CD_SIM_CONFIG_INIT, late_joiner, results);
    for (int i = 0; i < RANKS; i++) {
        assert_ok(results[i].status, &results[i].error);
        assert_true(s.done_ns[i] >= 700 * MS && s.done_ns[i] < 702 * MS);
    }
}

static cddp_status impatient(cddp_rank *rank, void *argument, cddp_error *err)
{
    store *s = argument;
    if (rank->rank == 0) cd_wire_listen(s->wire, rank);
    cddp_status status = rank->rank == 3 ? rank->ops->sleep_ns(rank, 700 * MS, err) : CDDP_OK;
    return status == CDDP_OK ? meet(s, rank, 1, 300 * MS, err) : status;
}

TEST(sim_rendezvous, a_rank_that_comes_too_late_is_missed_by_name)
{
    static store s;
    cddp_rank_result results[RANKS];
    memset(&s, 0, sizeof s);
    run(&s, (cd_sim_config)CD_SIM_CONFIG_INIT, impatient, results);
    assert_int_equal(results[0].status, CDDP_E_TIMEOUT);
    assert_non_null(
        strstr(results[0].error.message, "rendezvous key 'all' did not appear within 300 ms"));
    /* The host gave up first, since nothing is between it and its store; the store went with it. */
    for (int i = 1; i < 3; i++) {
        assert_int_equal(results[i].status, CDDP_E_IO);
        assert_non_null(strstr(results[i].error.message, "closed the connection"));
    }
    assert_int_equal(results[3].status, CDDP_E_TIMEOUT);
    assert_non_null(strstr(results[3].error.message, "nobody answers"));
}

/* The host is killed while the others wait; they get no notice. */
TEST(sim_rendezvous, when_the_host_dies_the_others_end_by_their_deadline)
{
    static store s;
    cddp_rank_result results[RANKS];
    memset(&s, 0, sizeof s);
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    const cd_fault kill = {.kind = CDDP_FAULT_KILL,
                           .when = CDDP_FAULT_TIME,
                           .rank = 0,
                           .at = 100 * MS};
    config.faults = &kill;
    config.fault_count = 1;
    run(&s, config, impatient, results);
    assert_int_equal(results[0].end, CDDP_RANK_KILLED);
    for (int i = 1; i < RANKS; i++) {
        assert_int_equal(results[i].end, CDDP_RANK_RETURNED);
        assert_int_equal(results[i].status, CDDP_E_TIMEOUT);
    }
    assert_non_null(strstr(results[3].error.message, "cannot reach the rendezvous"));
}

/* An agent that tries again, each time in a new generation; the second host is rank 1. */
static cddp_status agent(cddp_rank *rank, void *argument, cddp_error *err)
{
    store *s = argument;
    if (rank->rank == 0) cd_wire_listen(s->wire, rank);
    cddp_status status = rank->rank == 3 ? rank->ops->sleep_ns(rank, 350 * MS, err) : CDDP_OK;
    for (uint64_t generation = 1; status == CDDP_OK && generation <= 20; generation++) {
        s->attempts[rank->rank]++;
        status = meet(s, rank, generation, 100 * MS, err);
        if (status != CDDP_E_TIMEOUT) break;
        /* attempts end at the same times everywhere: generations are 200 ms long */
        uint64_t now = rank->ops->now_ns(rank), next = generation * 200 * MS;
        status = next > now ? rank->ops->sleep_ns(rank, next - now, err) : CDDP_OK;
    }
    return status;
}

TEST(sim_rendezvous, agents_that_try_again_meet_in_a_later_generation)
{
    static store s;
    cddp_rank_result results[RANKS];
    memset(&s, 0, sizeof s);
    run(&s, (cd_sim_config)CD_SIM_CONFIG_INIT, agent, results);
    /* Rank 3 starts at 350 ms with generation 1, where the others no longer are, and catches up by
    ** their clock. */
    for (int i = 0; i < RANKS; i++) {
        assert_ok(results[i].status, &results[i].error);
        assert_true(s.attempts[i] > 1 && s.attempts[i] < 20);
    }
    assert_int_equal(s.attempts[1], s.attempts[2]);
}

/* The same run again is the same run. */
TEST(sim_rendezvous, two_runs_end_at_the_same_times)
{
    static store a, b;
    cddp_rank_result results[RANKS];
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    run(&a, (cd_sim_config)CD_SIM_CONFIG_INIT, late_joiner, results);
    run(&b, (cd_sim_config)CD_SIM_CONFIG_INIT, late_joiner, results);
    for (int i = 0; i < RANKS; i++) assert_true(a.done_ns[i] == b.done_ns[i] && a.done_ns[i] > 0);
}

static cddp_status makes_wire(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    static const cd_wire_server_ops ops = {feed, take, has_answer, reset};
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    cd_wire *wire = NULL;
    cd_sim *sim = NULL;
    config.world_size = RANKS;
    config.allocator = allocator;
    cddp_status status = cd_sim_create(&config, &sim, err);
    if (status != CDDP_OK) return status;
    status =
        cd_wire_create(sim,
                       &(cd_wire_options){.ops = ops, .self = argument, .allocator = allocator},
                       &wire, err);
    cd_wire_destroy(wire);
    cd_sim_destroy(sim);
    return status;
}

TEST(sim_rendezvous, a_wire_survives_every_failing_allocation)
{
    assert_true(cd_test_oom_loop(makes_wire, NULL) >= 3);
}

TEST_MAIN()
