/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler: time, choices, replay, hangs with their reasons, clean-up, memory, snapshots. */
#include "tests/unit/sim/fixture.h"

#include "core/base/error.h"
#include "core/base/prng.h"
#include "sim/fiber.h"

#include <stdio.h>
#include <string.h>

static cddp_status sleeper(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    uint64_t before = rank->ops->now_ns(rank);
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t duration = 100 * (rank->rank + 1) + i;
        cddp_status status = i % 2 ? rank->ops->sleep_ns(rank, duration, err)
                                   : rank->ops->compute(rank, duration, "work", err);
        if (status != CDDP_OK) return status;
        assert_int_equal(rank->ops->now_ns(rank), before + duration);
        before += duration;
    }
    return CDDP_OK;
}

TEST(world, time_passes_for_each_rank_by_what_it_asked_for)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 7;
    fixture_run(&f, sleeper);
    cd_sim_stats stats;
    cd_sim_get_stats(f.sim, &stats);
    assert_int_equal(stats.time_ns, 700 * 5 + 10);
    assert_int_equal(cd_sim_get_rank_times(f.sim, 2).compute_ns, 300 + 302 + 304);
    cd_sim_audit(f.sim);
    fixture_destroy(&f);
}

static cddp_status one_computation(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    return rank->ops->compute(rank, 1000, "work", err);
}

static cddp_status four_computations(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (int i = 0; status == CDDP_OK && i < 4; i++) status = one_computation(rank, argument, err);
    return status;
}

/* Each of eight computations takes 1000 or, by choice, 1500 ns; fifo never delays, and a string
** says which do. */
TEST(world, a_computation_may_take_longer_by_choice)
{
    (void)state;
    uint64_t delays = 0;
    char text[256];
    for (uint64_t seed = 0; seed < 5; seed++) {
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
        f.config.world_size = 2;
        f.config.delay_permille = 500;
        f.chooser = cd_chooser_random(&f.random, seed);
        if (seed > 0) f.config.chooser = &f.chooser;
        fixture_run(&f, four_computations);
        uint64_t ends[2];
        for (uint32_t r = 0; r < 2; r++) {
            ends[r] = cd_sim_get_rank_times(f.sim, r).ended_ns;
            assert_true(ends[r] >= 4000 && ends[r] <= 6000 && ends[r] % 500 == 0);
            assert_int_equal(cd_sim_get_rank_times(f.sim, r).compute_ns, ends[r]);
            delays += (ends[r] - 4000) / 500;
        }
        if (seed == 0) assert_int_equal(delays, 0);
        cd_schedule_print(cd_sim_schedule(f.sim), text, sizeof text);
        fixture_destroy(&f);
        sim_fixture again = {.config = f.config};
        cd_replay_chooser replay;
        assert_ok(cd_chooser_replay(&replay, text, &again.chooser, &again.err), &again.err);
        again.config.chooser = &again.chooser;
        fixture_run(&again, four_computations);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(cd_sim_get_rank_times(again.sim, r).ended_ns, ends[r]);
        fixture_destroy(&again);
    }
    assert_true(delays > 4); /* of 32 that may be */
}

TEST(world, a_slow_rank_computes_longer)
{
    (void)state;
    uint32_t slow[2] = {1000, 3000};
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 2;
    f.config.network.slow_permille = slow;
    fixture_create(&f);
    slow[1] = 0; /* it was copied */
    fixture_launch(&f, one_computation);
    assert_int_equal(cd_sim_get_rank_times(f.sim, 0).ended_ns, 1000);
    assert_int_equal(cd_sim_get_rank_times(f.sim, 1).ended_ns, 3000);
    fixture_destroy(&f);
}

/* Ranks append their numbers to a shared list whenever they run. */
typedef struct trail {
    char text[4096];
    size_t length;
} trail;

static cddp_status walker(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)err;
    trail *t = ((sim_fixture *)argument)->data;
    for (int i = 0; i < 6; i++) {
        const uint64_t ids[3] = {100, 200, 300};
        cddp_choice c = {.size = sizeof c,
                         .kind = CDDP_CHOICE_USER,
                         .rank = rank->rank,
                         .option_count = 3,
                         .options = ids,
                         .name = "branch"};
        t->text[t->length++] = (char)('a' + rank->rank);
        t->text[t->length++] = (char)('0' + rank->ops->choose(rank, &c));
        rank->ops->yield(rank);
    }
    return CDDP_OK;
}

static uint64_t walk(sim_fixture *f, const cd_chooser *chooser, trail *t, char *schedule,
                     size_t schedule_bytes)
{
    *t = (trail){{0}, 0};
    f->config.world_size = 3;
    f->config.chooser = chooser;
    f->data = t;
    cd_digest_sink_init(&f->digest, false);
    f->config.sink = &f->digest.sink;
    fixture_run(f, walker);
    cd_schedule_print(cd_sim_schedule(f->sim), schedule, schedule_bytes);
    fixture_destroy(f);
    return f->digest.digest;
}

TEST(world, replaying_the_choice_string_gives_the_same_run)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
        trail first, second;
        char one[512], two[512];
        cd_chooser random = cd_chooser_random(&f.random, cd_test_seed() + seed), replay;
        uint64_t digest = walk(&f, &random, &first, one, sizeof one);
        cd_replay_chooser replayer;
        assert_ok(cd_chooser_replay(&replayer, one, &replay, &f.err), &f.err);
        assert_int_equal(walk(&f, &replay, &second, two, sizeof two), digest);
        assert_string_equal(one, two);
        assert_memory_equal(first.text, second.text, sizeof first.text);
    }
}

TEST(world, without_a_chooser_it_is_fifo_and_the_choice_string_is_empty)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    trail first, second;
    char one[64], two[64];
    cd_chooser fifo = cd_chooser_fifo();
    uint64_t digest = walk(&f, NULL, &first, one, sizeof one);
    assert_int_equal(walk(&f, &fifo, &second, two, sizeof two), digest);
    assert_string_equal(one, "s1:");
    assert_string_equal(two, "s1:");
    assert_string_equal(first.text, "a0b0c0a0b0c0a0b0c0a0b0c0a0b0c0a0b0c0");
    assert_string_equal(second.text, first.text);
}

TEST(world, a_schedule_of_another_run_is_refused)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {{"s1:(3000)", "option 3000 was recorded"}, {"s1:ZZZZ1", "the run had only"}};
    for (size_t i = 0; i < 2; i++) {
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
        trail t = {{0}, 0};
        cd_replay_chooser replayer;
        f.data = &t;
        f.config.world_size = 3;
        f.config.chooser = &f.chooser;
        assert_ok(cd_chooser_replay(&replayer, cases[i].text, &f.chooser, &f.err), &f.err);
        fixture_create(&f);
        assert_fails(cd_sim_ops()->launch(f.sim, walker, &f, f.results, &f.err), CDDP_E_MISMATCH,
                     &f.err, cases[i].words);
        fixture_destroy(&f);
    }
}

TEST(world, any_wellformed_schedule_is_run_or_refused)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    uint32_t ran = 0, refused = 0;
    for (int round = 0; round < 400; round++) {
        char text[64] = "s1:";
        size_t length = 3, deviations = (size_t)cd_prng_below(&prng, 6);
        for (size_t i = 0; i < deviations; i++) {
            if (cd_prng_chance(&prng, 1, 2)) text[length++] = (char)('B' + cd_prng_below(&prng, 8));
            text[length++] =
                (char)('1' + cd_prng_below(&prng, cd_prng_chance(&prng, 1, 3) ? 3 : 1));
        }
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
        trail t = {{0}, 0};
        char again[256];
        cd_replay_chooser replayer;
        f.data = &t;
        f.config.world_size = 3;
        f.config.chooser = &f.chooser;
        assert_ok(cd_chooser_replay(&replayer, text, &f.chooser, &f.err), &f.err);
        fixture_create(&f);
        cddp_status status = cd_sim_ops()->launch(f.sim, walker, &f, f.results, &f.err);
        cd_schedule_print(cd_sim_schedule(f.sim), again, sizeof again);
        assert_true(status == CDDP_OK || status == CDDP_E_MISMATCH);
        if (status == CDDP_OK) assert_string_equal(again, text);
        ran += status == CDDP_OK;
        refused += status != CDDP_OK;
        /* whatever the schedule, every rank ends */
        assert_int_equal(t.length, 3 * 6 * 2);
        fixture_destroy(&f);
    }
    assert_true(ran > 50 && refused > 10);
}

/* ---- hangs ---- */

static cddp_status rank_two_stays_away(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    cddp_group *g = NULL;
    int64_t *value = rank->allocator->allocate(rank->allocator->context, 8);
    int64_t one = 1;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), value, 0, CDDP_I64, &one, 1);
    for (int k = 0; status == CDDP_OK && k < 3; k++) {
        cddp_work *work = NULL;
        if (rank->rank == 2 && k == 2) break;
        *value = 1;
        status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        if (status == CDDP_OK) assert_int_equal(*value, 4);
    }
    cddp_group_destroy(g);
    rank->allocator->release(rank->allocator->context, value, 8);
    return status;
}

static void note_end(void *context) { (*(int *)context)++; }

TEST(world, a_hang_names_who_waits_for_whom)
{
    (void)state;
    for (int transport = 0; transport <= CD_SIM_MESSAGES; transport++) {
        int ended = 0;
        cd_memory_sink sink;
        cd_memory_sink_init(&sink, NULL);
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
        f.config.world_size = 4;
        f.config.transport = (cd_sim_transport)transport;
        f.config.algorithm = CD_ALGORITHM_flat;
        f.config.sink = &sink.sink;
        f.config.ended = note_end;
        f.config.ended_context = &ended;
        fixture_create(&f);
        fixture_launch(&f, rank_two_stays_away);
        assert_int_equal(f.results[2].end, CDDP_RANK_RETURNED);
        assert_int_equal(f.results[0].end, CDDP_RANK_HUNG);
        assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error,
                     "rank 0 waits in allreduce #2 of group 'world' for rank 2, which has ended");
        assert_int_equal(ended, 1);
        uint32_t edges = 0;
        for (size_t i = 0; i < sink.count; i++) {
            cddp_event e = cd_memory_sink_get(&sink, i);
            if (e.kind == CDDP_EV_waiting_for && e.as.waiting_for.who == 0 &&
                e.as.waiting_for.peer == 2)
                edges++;
        }
        assert_int_equal(edges, 1);
        fixture_destroy(&f);
        cd_memory_sink_fini(&sink);
    }
}

/* Of argument's ranks the upper ones return before the second barrier. */
static cddp_status upper_ranks_stay_away(cddp_rank *rank, void *argument, cddp_error *err)
{
    const sim_fixture *f = argument;
    const uint32_t world = f->config.world_size, away = world > 2 ? world - 30 : 1;
    cddp_group *g = NULL;
    cddp_status status = fixture_group(argument, rank, "world", &g, err);
    if (status == CDDP_OK) status = cddp_group_barrier(g, err);
    if (status == CDDP_OK && rank->rank < away) status = cddp_group_barrier(g, err);
    cddp_group_destroy(g);
    return status;
}

TEST(world, a_hang_names_many_ranks_as_ranges)
{
    (void)state;
    static const struct {
        uint32_t world;
        const char *words;
    } rows[] = {{2, "for rank 1, which has ended"}, {74, "for ranks 44-73, which have ended"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
        f.config.world_size = rows[i].world;
        fixture_create(&f);
        fixture_launch(&f, upper_ranks_stay_away);
        assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error, rows[i].words);
        fixture_destroy(&f);
    }
}

/* Rank 0 is alone in the world; rank 1 has ended, and rank 2 waits for it elsewhere. */
static cddp_status each_does_something_else(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_group *g = NULL, *other = NULL;
    cddp_status status = fixture_group(argument, rank, "world", &g, err);
    if (status == CDDP_OK) status = fixture_group(argument, rank, "other", &other, err);
    if (status == CDDP_OK && rank->rank != 1)
        status = cddp_group_barrier(rank->rank == 0 ? g : other, err);
    cddp_group_destroy(other);
    cddp_group_destroy(g);
    return status;
}

TEST(world, a_hang_says_of_the_first_rank_alone_what_not_all_do)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 3;
    fixture_create(&f);
    fixture_launch(&f, each_does_something_else);
    assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error,
                 "for ranks 1 and 2, of which rank 1 has ended");
    fixture_destroy(&f);
}

TEST(world, a_time_out_under_the_virtual_clock_is_an_error_of_the_operation)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 4;
    f.config.timeout_ns = UINT64_C(1800000000000);
    fixture_create(&f);
    fixture_launch(&f, rank_two_stays_away);
    assert_int_equal(f.results[0].end, CDDP_RANK_RETURNED);
    assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error, "it waits for rank 2");
    cd_sim_stats stats;
    cd_sim_get_stats(f.sim, &stats);
    assert_int_equal(stats.time_ns, UINT64_C(1800000000000));
    fixture_destroy(&f);
}

static cddp_status forever(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    while (rank->ops->sleep_ns(rank, 1000, err) == CDDP_OK) {
    }
    return CDDP_E_ABORTED;
}

TEST(world, virtual_time_is_bounded)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 2;
    f.config.time_limit_ns = 1000000;
    fixture_create(&f);
    fixture_launch(&f, forever);
    assert_int_equal(f.results[0].end, CDDP_RANK_HUNG);
    assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error,
                 "the virtual time is over: rank 0 sleeps");
    fixture_destroy(&f);
}

/* Rank 0 asks for its sum and does nothing else; who is not first comes late, or never. */
static cddp_status asks(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    cddp_group *g = NULL;
    cddp_work *work = NULL;
    int64_t value = 1, one = 1;
    const bool comes = f->data != NULL;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), &value, 0, CDDP_I64, &one, 1);
    if (status == CDDP_OK && rank->rank > 0) status = rank->ops->sleep_ns(rank, 1000, err);
    if (status == CDDP_OK && (rank->rank == 0 || comes))
        status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
    for (bool done = work == NULL; status == CDDP_OK && !done;)
        status = cddp_work_test(work, &done, err);
    cddp_work_release(work);
    cddp_group_destroy(g);
    if (status == CDDP_OK && comes && value != rank->world_size)
        return cddp_error_set(err, CDDP_E_CORRUPT, "the sum is %lld", (long long)value);
    return status;
}

TEST(world, a_rank_that_asks_without_end_sees_time_pass_and_hangs_where_none_is_left)
{
    (void)state;
    static const cd_sim_transport transports[] = {CD_SIM_DIRECT, CD_SIM_MODEL, CD_SIM_MESSAGES};
    for (size_t i = 0; i < 3; i++) {
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &f};
        f.config.world_size = 2;
        f.config.transport = transports[i];
        f.config.network.inter = f.config.network.intra = *cd_link_get(CD_LINK_ethernet_10g);
        fixture_run(&f, asks);
        fixture_destroy(&f);
        f.data = NULL;
        fixture_create(&f);
        fixture_launch(&f, asks);
        assert_int_equal(f.results[0].end, CDDP_RANK_HUNG);
        assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error,
                     "hung: rank 0 waits in allreduce #0 of group 'world' for rank 1");
        fixture_destroy(&f);
    }
}

/* Ranks 1 and 3 never open the group. */
static cddp_status opens(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_group *g = NULL;
    if (rank->rank % 2 == 1) return CDDP_OK;
    cddp_status status = fixture_group(argument, rank, "world", &g, err);
    cddp_group_destroy(g);
    return status;
}

TEST(world, who_waits_to_open_a_group_names_the_members_that_did_not)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 4;
    fixture_create(&f);
    fixture_launch(&f, opens);
    assert_fails(f.results[2].status, CDDP_E_TIMEOUT, &f.results[2].error,
                 "hung: rank 2 waits to open group 'world' for ranks 1 and 3");
    fixture_destroy(&f);
}

/* Posts, and waits for nobody: no other rank has a turn. */
static cddp_status posts_for_ever(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    cddp_group *g = NULL;
    bool *is_endless = f->data;
    int64_t value = 1, one = 1;
    const cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), &value, 0, CDDP_I64, &one, 1);
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    for (int i = 0; status == CDDP_OK && rank->rank == 0; i++) {
        cddp_work *work = NULL;
        if (i == 20) *is_endless = true;
        status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
        cddp_work_release(work);
    }
    cddp_group_destroy(g);
    return status;
}

TEST(world, ends_when_it_is_said_that_ranks_go_on_without_end)
{
    (void)state;
    bool is_endless = false;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &is_endless};
    f.config.world_size = 2;
    f.config.is_endless = &is_endless;
    fixture_create(&f);
    fixture_launch(&f, posts_for_ever);
    assert_int_equal(f.results[0].end, CDDP_RANK_HUNG);
    assert_fails(f.results[0].status, CDDP_E_TIMEOUT, &f.results[0].error,
                 "hung: rank 0 goes on without end");
    fixture_destroy(&f);
}

/* ---- slots: ZOO-05 ---- */

static cddp_status two_groups(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    cddp_group *g[2] = {NULL, NULL};
    int64_t values[2] = {1, 1}, one = 1;
    cddp_work *works[2] = {NULL, NULL};
    cddp_status status = fixture_group(f, rank, "a", &g[0], err);
    if (status == CDDP_OK) status = fixture_group(f, rank, "b", &g[1], err);
    for (int i = 0; status == CDDP_OK && i < 2; i++) {
        int which = rank->rank == 0 ? i : 1 - i; /* opposite orders */
        cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), &values[which], 0, CDDP_I64, &one, 1);
        status = cddp_group_allreduce(g[which], &t, CDDP_RED_SUM, &works[which], err);
    }
    for (int i = 0; i < 2; i++)
        if (works[i] != NULL) {
            if (status == CDDP_OK)
                status = cddp_work_wait(works[i], 0, err);
            else
                cddp_work_release(works[i]);
        }
    for (int i = 0; i < 2; i++) cddp_group_destroy(g[i]);
    return status;
}

TEST(world, opposite_orders_on_two_groups_hang_only_when_slots_are_bounded)
{
    (void)state;
    for (int transport = 0; transport <= CD_SIM_MESSAGES; transport++)
        for (uint32_t slots = 0; slots <= 2; slots++) {
            sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
            f.config.world_size = 2;
            f.config.slots_per_rank = slots;
            f.config.transport = (cd_sim_transport)transport;
            fixture_create(&f);
            fixture_launch(&f, two_groups);
            cd_test_row("transport %d, %u slots", transport, slots);
            assert_int_equal(f.results[0].end, slots == 1 ? CDDP_RANK_HUNG : CDDP_RANK_RETURNED);
            if (slots == 1) {
                /* Rank 0 runs a and queues b; it waits for rank 1, which runs b and queues a. */
                char waits[1024];
                cd_sim_print_waits(f.sim, waits, sizeof waits);
                assert_non_null(strstr(f.results[0].error.message, "for rank 1"));
                assert_non_null(strstr(f.results[1].error.message, "for rank 0"));
            } else {
                assert_ok(f.results[0].status, &f.results[0].error);
            }
            fixture_destroy(&f);
        }
}

/* ---- limits ---- */

static cddp_status deep(cddp_rank *rank, void *argument, cddp_error *err)
{
    (void)argument;
    volatile char local[800];
    local[0] = 1;
    if (rank->rank != 1) return CDDP_OK;
    cddp_status status = rank->ops->sleep_ns(rank, 1, err);
    /* Used after the call, so that no compiler turns the recursion into a loop. */
    if (status == CDDP_OK && local[0] == 1) status = deep(rank, argument, err);
    return local[0] == 1 ? status : CDDP_E_STATE;
}

TEST(world, a_stack_overflow_is_an_error_that_names_the_rank)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 3;
    f.config.stack_bytes = 65536;
    fixture_create(&f);
    fixture_launch(&f, deep);
    assert_int_equal(f.results[1].end, CDDP_RANK_CRASHED);
    assert_fails(f.results[1].status, CDDP_E_LIMIT, &f.results[1].error,
                 "rank 1 overflowed its stack of 65536 bytes");
    assert_ok(f.results[0].status, &f.results[0].error);
    fixture_destroy(&f);
}

static cddp_status create_body(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    uint32_t slow[3] = {1000, 1000, 1000};
    cd_fault faults[1] = {{.kind = CDDP_FAULT_KILL, .when = CDDP_FAULT_TIME, .rank = 1}};
    cd_sim_config config = CD_SIM_CONFIG_INIT;
    config.world_size = 3;
    config.allocator = allocator;
    config.network.slow_permille = slow;
    config.faults = faults;
    config.fault_count = 1;
    cd_sim *sim = NULL;
    cddp_status status = cd_sim_create(&config, &sim, err);
    if (status == CDDP_OK) cd_sim_destroy(sim);
    return status;
}

TEST(world, creation_survives_every_failed_allocation)
{
    (void)state;
    assert_int_equal(cd_test_oom_loop(create_body, NULL), 3);
}

TEST(world, too_little_memory_is_reported_by_launch)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 4;
    f.config.heap_bytes = 4096;
    fixture_create(&f);
    cddp_status status = cd_sim_ops()->launch(f.sim, rank_two_stays_away, &f, f.results, &f.err);
    assert_true(status == CDDP_E_NOMEM || f.results[0].status == CDDP_E_NOMEM);
    fixture_destroy(&f);
}

/* The world's memory, a page at a time: wherever it ends, ranks or launch report it, and nothing
** else happens. */
TEST(world, running_out_of_memory_anywhere_is_an_error)
{
    (void)state;
    for (int transport = 0; transport <= CD_SIM_MESSAGES; transport++) {
        uint32_t failed = 0, fine = 0;
        for (size_t bytes = 4096; fine < 3; bytes += 4096) {
            sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
            f.config.world_size = 4;
            f.config.timeout_ns = 1000000000;
            f.config.deviations_max = 1;
            f.config.transport = (cd_sim_transport)transport;
            f.config.heap_bytes = bytes;
            fixture_create(&f);
            cddp_status status =
                cd_sim_ops()->launch(f.sim, rank_two_stays_away, &f, f.results, &f.err);
            bool none = status == CDDP_E_NOMEM;
            for (int r = 0; status == CDDP_OK && r < 4; r++)
                none |= f.results[r].status == CDDP_E_NOMEM;
            assert_true(status == CDDP_OK || status == CDDP_E_NOMEM);
            failed += none;
            fine += !none;
            fixture_destroy(&f);
        }
        cd_test_row("transport %d", transport);
        assert_true(failed > 0);
    }
}

TEST(world, nonsense_configurations_are_refused_with_a_reason)
{
    (void)state;
    cd_fault link = {.kind = CDDP_FAULT_LINK_CUT, .rank = 0, .peer = 1},
             far = {.kind = CDDP_FAULT_KILL, .rank = 9};
    const struct {
        cd_sim_config config;
        const char *words;
    } cases[] = {
        /* clang-format off */
        {{.world_size = 0}, "1 to 65536 ranks, not 0"},
        {{.world_size = 2, .algorithm = CD_ALGORITHM_COUNT}, "no all-reduce algorithm"},
        {{.world_size = 2, .stack_bytes = 100}, "too small"},
        {{.world_size = 2, .faults = &link, .fault_count = 1}, "needs transport messages"},
        {{.world_size = 2, .faults = &far, .fault_count = 1}, "strikes rank 9 of a world of 2"},
        {{.world_size = 2, .network = {.nics_per_node = 1}}, "no ranks_per_node"},
        {{.world_size = 2, .network = {.host_bytes_per_second = UINT64_MAX}}, "more than 10^15 bytes"},
        {{.world_size = 2, .network = {.bus = {.latency_ns = UINT64_MAX}}}, "is not a network"},
        {{.world_size = 2, .launch_ns = UINT64_MAX}, "a launch of more than"},
        {{.world_size = 2, .algorithm = CD_ALGORITHM_any_order, .transport = CD_SIM_MODEL}, "no static graph"},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_sim *sim = NULL;
        cddp_error err = CDDP_ERROR_INIT;
        assert_fails(cd_sim_create(&cases[i].config, &sim, &err), CDDP_E_CONFIG, &err,
                     cases[i].words);
        assert_null(sim);
    }
}

/* ---- snapshots ---- */

TEST(world, a_restored_snapshot_continues_as_if_nothing_had_happened)
{
    (void)state;
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    trail t = {{0}, 0}, saved;
    char first[4096], schedule[2][256];
    cd_snapshot *snapshot = NULL;
    f.data = &t;
    f.config.world_size = 3;
    fixture_create(&f);
    assert_ok(cd_sim_begin(f.sim, walker, &f, &f.err), &f.err);
    for (int i = 0; i < 11; i++) {
        const cddp_choice *c = cd_sim_advance(f.sim);
        assert_non_null(c);
        cd_sim_decide(f.sim, (uint32_t)i % c->option_count);
    }
    assert_non_null(cd_sim_advance(f.sim));
    cddp_status status = cd_sim_snapshot(f.sim, &snapshot, &f.err);
    if (cd_fiber_has_shadow()) {
        assert_fails(status, CDDP_E_UNSUPPORTED, &f.err, "sanitizer");
        while (cd_sim_advance(f.sim) != NULL) cd_sim_decide(f.sim, 0);
    } else {
        assert_ok(status, &f.err);
        saved = t;
        for (int round = 0; round < 2; round++) {
            uint32_t k = 0;
            for (const cddp_choice *c; (c = cd_sim_advance(f.sim)) != NULL; k++)
                cd_sim_decide(f.sim, k % c->option_count);
            cd_schedule_print(cd_sim_schedule(f.sim), schedule[round], sizeof schedule[round]);
            if (round == 0) {
                memcpy(first, t.text, sizeof first);
                cd_sim_restore(f.sim, snapshot);
                t = saved; /* the trail lies outside the world */
            }
        }
        assert_memory_equal(first, t.text, sizeof first);
        assert_string_equal(schedule[0], schedule[1]);
    }
    cd_snapshot_destroy(snapshot);
    assert_ok(cd_sim_end(f.sim, f.results, &f.err), &f.err);
    fixture_destroy(&f);
}

/* ---- ranks that go up to their choices ---- */

typedef struct climb {
    trail trails[3]; /* of the ranks, each by itself */
    bool sleeps;     /* the second rank sleeps on its way */
} climb;

static cddp_status climber(cddp_rank *rank, void *argument, cddp_error *err)
{
    climb *c = ((sim_fixture *)argument)->data;
    trail *t = &c->trails[rank->rank];
    t->text[t->length++] = 's';
    if (c->sleeps && rank->rank == 1) CD_TRY(rank->ops->sleep_ns(rank, 5, err));
    for (uint32_t left = 4; left > 1; left--) {
        const cddp_choice choice = {.size = sizeof choice,
                                    .kind = CDDP_CHOICE_READY,
                                    .rank = rank->rank,
                                    .option_count = left,
                                    .name = "ready"};
        t->text[t->length++] = (char)('0' + rank->ops->choose(rank, &choice));
    }
    CD_TRY(rank->ops->sleep_ns(rank, 10, err));
    t->text[t->length++] = 'e';
    return CDDP_OK;
}

/* To the end, with answers by number. asked: every choice, as it was put. */
static void go_on_with(sim_fixture *f, trail *asked)
{
    for (const cddp_choice *c; (c = cd_sim_advance(f->sim)) != NULL;) {
        const uint32_t number = (uint32_t)cd_sim_schedule(f->sim)->choice_count;
        asked->length +=
            (size_t)snprintf(asked->text + asked->length, sizeof asked->text - asked->length,
                             "%u:%u/%u/%u ", (unsigned)number, (unsigned)c->kind,
                             c->rank < 3 ? (unsigned)c->rank : 9u, (unsigned)c->option_count);
        cd_sim_decide(f->sim, c->kind == CDDP_CHOICE_READY ? number % c->option_count : 0);
    }
}

/* Up to the first choice of a rank. */
static void begin_climb(sim_fixture *f, climb *c, trail *asked)
{
    f->config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f->config.world_size = 3;
    f->data = c;
    fixture_create(f);
    assert_ok(cd_sim_begin(f->sim, climber, f, &f->err), &f->err);
    for (const cddp_choice *p; (p = cd_sim_advance(f->sim))->kind != CDDP_CHOICE_READY;)
        cd_sim_decide(f->sim, 0);
    *asked = (trail){{0}, 0};
}

static void end_climb(sim_fixture *f, char *schedule, size_t schedule_bytes)
{
    cd_schedule_print(cd_sim_schedule(f->sim), schedule, schedule_bytes);
    assert_ok(cd_sim_end(f->sim, f->results, &f->err), &f->err);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(f->results[i].status, CDDP_OK);
    fixture_destroy(f);
}

TEST(world, gathered_ranks_are_asked_the_same_and_do_the_same)
{
    (void)state;
    static climb plain, gathered;
    static trail asked[2];
    char schedule[2][256];
    sim_fixture f;
    memset(&f, 0, sizeof f);
    begin_climb(&f, &plain, &asked[0]);
    go_on_with(&f, &asked[0]);
    end_climb(&f, schedule[0], sizeof schedule[0]);
    memset(&f, 0, sizeof f);
    begin_climb(&f, &gathered, &asked[1]);
    assert_int_equal(gathered.trails[2].length, 0);
    assert_true(cd_sim_gather(f.sim));
    cd_sim_audit(f.sim);
    for (uint32_t i = 0; i < 3; i++) assert_string_equal(gathered.trails[i].text, "s");
    assert_true(cd_sim_gather(f.sim)); /* they are there already */
    go_on_with(&f, &asked[1]);
    end_climb(&f, schedule[1], sizeof schedule[1]);
    assert_string_equal(asked[0].text, asked[1].text);
    assert_string_equal(schedule[0], schedule[1]);
    for (uint32_t i = 0; i < 3; i++)
        assert_string_equal(plain.trails[i].text, gathered.trails[i].text);
}

TEST(world, a_rank_that_waits_on_its_way_is_not_gathered)
{
    (void)state;
    static climb plain = {.sleeps = true}, tried = {.sleeps = true}, kept;
    static trail asked[2];
    char schedule[2][256];
    cd_snapshot *snapshot = NULL;
    sim_fixture f;
    if (cd_fiber_has_shadow()) skip();
    memset(&f, 0, sizeof f);
    begin_climb(&f, &plain, &asked[0]);
    go_on_with(&f, &asked[0]);
    end_climb(&f, schedule[0], sizeof schedule[0]);
    memset(&f, 0, sizeof f);
    begin_climb(&f, &tried, &asked[1]);
    kept = tried;
    assert_ok(cd_sim_snapshot(f.sim, &snapshot, &f.err), &f.err);
    assert_false(cd_sim_gather(f.sim));
    cd_sim_restore(f.sim, snapshot);
    tried = kept; /* the trails lie outside the world */
    go_on_with(&f, &asked[1]);
    cd_snapshot_destroy(snapshot);
    end_climb(&f, schedule[1], sizeof schedule[1]);
    assert_string_equal(asked[0].text, asked[1].text);
    assert_string_equal(schedule[0], schedule[1]);
    for (uint32_t i = 0; i < 3; i++)
        assert_string_equal(plain.trails[i].text, tried.trails[i].text);
}

TEST_MAIN()
