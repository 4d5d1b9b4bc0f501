/* SPDX-License-Identifier: Apache-2.0 */
/* Faults: each strikes when and where it was planted, is in the trace, and ends in a bounded time
** with a reason. */
#include "tests/unit/sim/fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS 4
#define LENGTH 12

/* Every rank's vectors and how far it came, outside the world: a killed rank frees nothing. */
typedef struct record {
    float data[8][LENGTH];
    uint32_t rounds[8];
    cddp_status status[8];
} record;

static cddp_status rounds(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    record *r = f->data;
    cddp_group *g = NULL;
    int64_t n = LENGTH;
    float *data = r->data[rank->rank];
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    for (uint32_t k = 0; status == CDDP_OK && k < ROUNDS; k++) {
        cddp_work *work = NULL;
        for (int i = 0; i < LENGTH; i++) data[i] = (float)(i + 1);
        status = rank->ops->compute(rank, 1000, "backward", err);
        if (status == CDDP_OK) status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        if (status == CDDP_OK) r->rounds[rank->rank]++;
    }
    r->status[rank->rank] = status;
    cddp_group_destroy(g);
    return status;
}

typedef struct outcome {
    record record;
    cddp_rank_result results[8];
    cd_sim_stats stats;
    uint32_t fault_events;
    char last_words[128]; /* of the last of them */
} outcome;

static outcome run_with(cd_sim_config config, const cd_fault *faults, size_t count)
{
    outcome o = {.fault_events = 0};
    cd_memory_sink sink;
    cd_memory_sink_init(&sink, NULL);
    sim_fixture f = {.config = config, .data = &o.record};
    f.config.world_size = 4;
    f.config.faults = faults;
    f.config.fault_count = count;
    f.config.sink = &sink.sink;
    fixture_create(&f);
    fixture_launch(&f, rounds);
    memcpy(o.results, f.results, sizeof o.results);
    cd_sim_get_stats(f.sim, &o.stats);
    for (size_t i = 0; i < sink.count; i++) {
        const cddp_event e = cd_memory_sink_get(&sink, i);
        if (e.kind != CDDP_EV_fault) continue;
        o.fault_events++;
        snprintf(o.last_words, sizeof o.last_words, "%s", e.text != NULL ? e.text : "");
    }
    assert_int_equal(o.stats.messages_sent, o.stats.messages + o.stats.messages_lost);
    cd_memory_sink_fini(&sink);
    fixture_destroy(&f);
    return o;
}

static cd_sim_config messages(void)
{
    cd_sim_config c = CD_SIM_CONFIG_INIT;
    c.transport = CD_SIM_MESSAGES;
    c.network.inter = *cd_link_get(CD_LINK_ethernet_25g);
    return c;
}

TEST(fault, every_kind_has_a_word_and_a_row)
{
    for (int32_t i = 0; i < CD_FAULT_KIND_COUNT; i++) {
        const cddp_event_enum_fault_kind kind = (cddp_event_enum_fault_kind)i;
        assert_non_null(cd_fault_summary(kind));
        assert_int_equal(cd_fault_find(cd_fault_name(kind)), i);
    }
    assert_null(cddp_event_word(CDDP_FIELD_fault_kind, CD_FAULT_KIND_COUNT));
}

TEST(fault, a_killed_rank_leaves_the_others_hanging_for_it)
{
    (void)state;
    static const cddp_plan_fault_when whens[] = {CDDP_FAULT_BEFORE, CDDP_FAULT_INSIDE,
                                                 CDDP_FAULT_AFTER};
    for (int transport = 0; transport <= CD_SIM_MESSAGES; transport++)
        for (int w = 0; w < 3; w++) {
            cd_sim_config c = messages();
            c.transport = (cd_sim_transport)transport;
            cd_fault fault = {.kind = CDDP_FAULT_KILL, .when = whens[w], .rank = 2, .at = 1};
            outcome o = run_with(c, &fault, 1);
            cd_test_row("transport %d, when %d", transport, w);
            assert_int_equal(o.fault_events, 1);
            assert_int_equal(o.results[2].end, CDDP_RANK_KILLED);
            assert_int_equal(o.record.rounds[2], 1);
            uint32_t hung = 0;
            for (int r = 0; r < 4; r++) {
                if (r == 2) continue;
                assert_int_equal(o.results[r].end, CDDP_RANK_HUNG);
                assert_in_range(o.record.rounds[r], 1, 2);
                hung += strstr(o.results[r].error.message, "rank 2") != NULL;
                if (whens[w] == CDDP_FAULT_AFTER) assert_int_equal(o.record.rounds[r], 2);
            }
            /* in a ring only the neighbour waits for the dead rank itself */
            assert_true(hung >= 1);
        }
}

TEST(fault, survivors_learn_of_a_death_when_connections_close)
{
    (void)state;
    cd_sim_config c = messages();
    c.death_notice_ns = 1000000;
    cd_fault fault = {.kind = CDDP_FAULT_KILL, .when = CDDP_FAULT_TIME, .rank = 1, .at = 2500};
    outcome o = run_with(c, &fault, 1);
    assert_int_equal(o.results[1].end, CDDP_RANK_KILLED);
    assert_int_equal(o.results[0].end, CDDP_RANK_RETURNED);
    assert_fails(o.results[0].status, CDDP_E_BACKEND, &o.results[0].error,
                 "rank 1 closed its connections");
    assert_int_equal(o.stats.time_ns, 1002500);
}

TEST(fault, a_rank_that_hangs_for_a_while_only_delays)
{
    (void)state;
    static const cddp_plan_fault_when whens[] = {CDDP_FAULT_TIME, CDDP_FAULT_BEFORE,
                                                 CDDP_FAULT_INSIDE, CDDP_FAULT_AFTER};
    for (int w = 0; w < 4; w++) {
        cd_fault fault = {
            .kind = CDDP_FAULT_HANG, .when = whens[w], .rank = 3, .at = 1, .duration_ns = 50000000};
        outcome o = run_with(messages(), &fault, 1);
        cd_test_row("when %d", w);
        for (int r = 0; r < 4; r++) assert_ok(o.results[r].status, &o.results[r].error);
        for (int i = 0; i < LENGTH; i++) assert_true(o.record.data[3][i] == (float)(4 * (i + 1)));
        assert_true(o.stats.time_ns > 50000000 && o.stats.time_ns < 60000000);
    }
    cd_fault for_good = {.kind = CDDP_FAULT_HANG, .when = CDDP_FAULT_BEFORE, .rank = 3, .at = 1};
    outcome o = run_with(messages(), &for_good, 1);
    assert_fails(o.results[3].status, CDDP_E_TIMEOUT, &o.results[3].error,
                 "rank 3 hangs (a planted fault)");
}

TEST(fault, a_slow_rank_delays_everybody)
{
    (void)state;
    cd_fault fault = {.kind = CDDP_FAULT_SLOW_RANK,
                      .when = CDDP_FAULT_TIME,
                      .rank = 0,
                      .amount = 100000};
    cd_sim_config direct = CD_SIM_CONFIG_INIT;
    outcome slow = run_with(direct, &fault, 1), plain = run_with(direct, NULL, 0);
    assert_int_equal(slow.stats.time_ns - plain.stats.time_ns, ROUNDS * 99000);
}

TEST(fault, a_cut_link_heals_and_everybody_finishes)
{
    (void)state;
    assert_int_equal(CDDP_FAULT_LINK_CUT, 3); /* traces that exist say so, and I-LIVE reads it */
    cd_fault fault = {.kind = CDDP_FAULT_LINK_CUT,
                      .when = CDDP_FAULT_TIME,
                      .rank = 1,
                      .peer = 0,
                      .at = 1500,
                      .duration_ns = 900000000};
    outcome o = run_with(messages(), &fault, 1);
    for (int r = 0; r < 4; r++) assert_ok(o.results[r].status, &o.results[r].error);
    assert_true(o.stats.time_ns > 900000000);
    assert_int_equal(o.stats.messages_lost, 0);
    fault.duration_ns = 0;
    o = run_with(messages(), &fault, 1);
    assert_int_equal(o.results[0].end, CDDP_RANK_HUNG);
    assert_non_null(strstr(o.results[0].error.message, "for rank 1"));
    assert_true(o.stats.messages_lost > 0);
}

TEST(fault, delay_and_reordering_change_time_and_nothing_else)
{
    (void)state;
    static const cddp_event_enum_fault_kind kinds[] = {CDDP_FAULT_LINK_DELAY,
                                                       CDDP_FAULT_LINK_REORDER};
    outcome plain = run_with(messages(), NULL, 0);
    for (int k = 0; k < 2; k++) {
        cd_fault fault = {.kind = kinds[k],
                          .when = CDDP_FAULT_TIME,
                          .rank = 1,
                          .peer = UINT32_MAX,
                          .amount = 3000000};
        outcome o = run_with(messages(), &fault, 1);
        assert_true(o.stats.time_ns > plain.stats.time_ns + 2000000);
        assert_memory_equal(o.record.data, plain.record.data, sizeof plain.record.data);
    }
}

TEST(fault, corruption_reaches_the_results)
{
    (void)state;
    static const cddp_event_enum_fault_kind kinds[] = {CDDP_FAULT_CHUNK_CORRUPT,
                                                       CDDP_FAULT_BIT_FLIP, CDDP_FAULT_NAN};
    for (int k = 0; k < 3; k++) {
        cd_fault fault = {.kind = kinds[k],
                          .when = CDDP_FAULT_BEFORE,
                          .rank = 1,
                          .peer = UINT32_MAX,
                          .at = ROUNDS - 1,
                          .amount = 22};
        outcome o = run_with(messages(), &fault, 1);
        uint32_t wrong = 0, nan = 0;
        cd_test_row("%s", cd_fault_name(kinds[k]));
        assert_int_equal(o.fault_events, 1);
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < LENGTH; i++) {
                wrong += o.record.data[r][i] != (float)(4 * (i + 1));
                nan += isnan(o.record.data[r][i]) != 0;
            }
        assert_in_range(wrong, 1, 4);
        assert_int_equal(nan, kinds[k] == CDDP_FAULT_NAN ? 4 : 0);
    }
}

/* A link that heals before anything is sent, and its twin that lasts. */
TEST(fault, what_meets_nothing_says_so)
{
    (void)state;
    const struct {
        const char *name;
        cd_fault fault;
        const char *words; /* of the last event; "": it acts */
    } cases[] = {
        {"early cut",
         {.kind = CDDP_FAULT_LINK_CUT,
          .when = CDDP_FAULT_TIME,
          .rank = 1,
          .peer = 0,
          .duration_ns = 1},
         "no effect: no message met it, rank 1 loses its link to rank 0 after 0 ns"},
        {"cut",
         {.kind = CDDP_FAULT_LINK_CUT,
          .when = CDDP_FAULT_TIME,
          .rank = 1,
          .peer = UINT32_MAX,
          .duration_ns = 9000000},
         ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        outcome o = run_with(messages(), &cases[i].fault, 1);
        const bool has_none = cases[i].words[0] != '\0';
        cd_test_row("%s", cases[i].name);
        if (has_none) assert_string_equal(o.last_words, cases[i].words);
        if (!has_none) assert_null(strstr(o.last_words, "no effect"));
    }
}

TEST(fault, a_fault_of_no_amount_is_refused)
{
    (void)state;
    const cd_fault cases[] = {{.kind = CDDP_FAULT_SLOW_RANK, .amount = 1000},
                              {.kind = CDDP_FAULT_SLOW_RANK, .amount = 0},
                              {.kind = CDDP_FAULT_LINK_DELAY, .peer = UINT32_MAX},
                              {.kind = CDDP_FAULT_LINK_REORDER, .peer = UINT32_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_fault less = cases[i];
        cd_test_row("%zu", i);
        assert_int_equal(cd_fault_check(&cases[i], 4, &err), CDDP_E_CONFIG);
        less.amount = 999;
        err = (cddp_error)CDDP_ERROR_INIT;
        assert_ok(cd_fault_check(&less, 4, &err), &err);
    }
}

TEST(fault, an_optional_fault_is_a_choice_and_fifo_declines)
{
    (void)state;
    cd_fault fault = {
        .kind = CDDP_FAULT_KILL, .when = CDDP_FAULT_TIME, .rank = 2, .at = 2500, .optional = true};
    outcome o = run_with(messages(), &fault, 1);
    assert_int_equal(o.fault_events, 0);
    assert_ok(o.results[2].status, &o.results[2].error);
    /* Among random schedules some take it and some do not. */
    uint32_t killed = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        cd_random_chooser random;
        cd_chooser chooser = cd_chooser_random(&random, seed);
        cd_sim_config c = messages();
        c.chooser = &chooser;
        killed += run_with(c, &fault, 1).results[2].end == CDDP_RANK_KILLED;
    }
    assert_in_range(killed, 3, 17);
}

TEST_MAIN()
