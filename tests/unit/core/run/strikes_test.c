/* SPDX-License-Identifier: Apache-2.0 */
/* Fault events, matched with the faults of a plan; and what is said of those that are missing. */
#include "core/run/strikes.h"

#include "tests/support/test.h"

#include <stdio.h>

typedef struct subject {
    cddp_plan plan;
    cd_strikes strikes;
    cd_arena arena;
} subject;

static void subject_init(subject *s, const cddp_plan_fault *faults, size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    *s = (subject){.plan = {.faults = faults, .fault_count = count}};
    cd_arena_init(&s->arena, NULL, 256);
    assert_ok(cd_strikes_init(&s->strikes, &s->plan, NULL, &err), &err);
}

static void subject_fini(subject *s)
{
    cd_strikes_fini(&s->strikes);
    cd_arena_fini(&s->arena);
}

static const char *missing(subject *s)
{
    bool is_exhausted = false;
    const char *words = cd_strikes_find_missing(&s->strikes, 5000000, &s->arena, &is_exhausted);
    assert_false(is_exhausted);
    return words;
}

static void strike(subject *s, cddp_event_fault fault, uint64_t time_ns, const char *text)
{
    cddp_event e = {.kind = CDDP_EV_fault, .time_ns = time_ns, .text = text};
    e.as.fault = fault;
    cd_strikes_push(&s->strikes, &e);
}

static void post(subject *s, uint32_t rank, int count)
{
    const cddp_event e = {.kind = CDDP_EV_collective_post, .rank = rank};
    for (int i = 0; i < count; i++) cd_strikes_push(&s->strikes, &e);
}

#define FAULT(word, ...)                                                              \
    {                                                                                 \
        .kind = word, .peer = CDDP_PLAN_UNSET, .joiner = CDDP_PLAN_UNSET, __VA_ARGS__ \
    }

TEST(strikes, every_fault_that_struck_is_not_missing)
{
    const cddp_plan_fault faults[] = {
        FAULT("kill", .rank = 1, .when = CDDP_FAULT_BEFORE, .at = 4),
        FAULT("slow_rank", .rank = 2, .when = CDDP_FAULT_TIME, .at = 700, .duration_ns = 9),
        {.kind = "link_cut", .rank = 0, .peer = 2, .joiner = CDDP_PLAN_UNSET},
        FAULT("partition", .rank = CDDP_PLAN_UNSET, .at = 80,
              .side = {.terms = {{.last = 1}}, .term_count = 1}),
        {.kind = "hang",
         .peer = CDDP_PLAN_UNSET,
         .when = CDDP_FAULT_INSIDE_JOIN,
         .joiner = 2,
         .at = 1}};
    subject s;
    subject_init(&s, faults, 5);
    assert_int_equal(cd_strikes_get_missing(&s.strikes), 31);
    strike(&s, (cddp_event_fault){CDDP_FAULT_KILL, 1, -1, 0}, 10,
           "rank 1 dies before its collective 4");
    strike(&s, (cddp_event_fault){CDDP_FAULT_SLOW_RANK, 2, -1, 9}, 700,
           "rank 2 becomes slow after 700 ns");
    strike(&s, (cddp_event_fault){CDDP_FAULT_LINK_CUT, 0, 2, 0}, 0, "rank 0 loses its link");
    strike(&s, (cddp_event_fault){CDDP_FAULT_PARTITION, -1, -1, 0}, 80, "the network parts");
    assert_int_equal(cd_strikes_get_missing(&s.strikes), 16);
    assert_string_equal(missing(&s),
                        "fault 5, hang of rank 0 inside join 1 of rank 2: the rank did "
                        "not try to join so often");
    strike(&s, (cddp_event_fault){CDDP_FAULT_HANG, 0, -1, 0}, 90,
           "rank 0 hangs inside join 1 of rank 2");
    assert_null(missing(&s));
    subject_fini(&s);
}

/* Another rank, link, duration, time, collective or kind is another fault. */
TEST(strikes, a_fault_like_it_is_another_one)
{
    const cddp_plan_fault kill = FAULT("kill", .rank = 1, .when = CDDP_FAULT_AFTER, .at = 40),
                          cut = {.kind = "link_cut",
                                 .rank = 0,
                                 .peer = 2,
                                 .joiner = CDDP_PLAN_UNSET,
                                 .at = 7,
                                 .duration_ns = 5};
    const struct {
        const char *name;
        const cddp_plan_fault *fault;
        cddp_event_fault event;
        uint64_t time_ns;
        const char *text;
        bool fits;
    } cases[] = {
        {"kill",
         &kill,
         {CDDP_FAULT_KILL, 1, -1, 0},
         3,
         "rank 1 dies after its collective 40",
         true},
        {"other rank", &kill, {CDDP_FAULT_KILL, 2, -1, 0}, 3, "after its collective 40", false},
        {"other kind", &kill, {CDDP_FAULT_HANG, 1, -1, 0}, 3, "after its collective 40", false},
        {"other number", &kill, {CDDP_FAULT_KILL, 1, -1, 0}, 3, "after its collective 4", false},
        {"longer number", &kill, {CDDP_FAULT_KILL, 1, -1, 0}, 3, "after its collective 401", false},
        {"cut", &cut, {CDDP_FAULT_LINK_CUT, 0, 2, 5}, 7, "", true},
        {"other link", &cut, {CDDP_FAULT_LINK_CUT, 0, 1, 5}, 7, "", false},
        {"other duration", &cut, {CDDP_FAULT_LINK_CUT, 0, 2, 6}, 7, "", false},
        {"other time", &cut, {CDDP_FAULT_LINK_CUT, 0, 2, 5}, 8, "", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        subject s;
        cd_test_row("%s", cases[i].name);
        subject_init(&s, cases[i].fault, 1);
        strike(&s, cases[i].event, cases[i].time_ns, cases[i].text);
        assert_int_equal(cd_strikes_get_missing(&s.strikes), !cases[i].fits);
        subject_fini(&s);
    }
}

TEST(strikes, of_two_alike_the_one_that_struck_is_known_by_its_moment)
{
    const cddp_plan_fault faults[] = {FAULT("nan", .rank = 1, .when = CDDP_FAULT_BEFORE, .at = 2),
                                      FAULT("nan", .rank = 1, .when = CDDP_FAULT_BEFORE, .at = 20),
                                      FAULT("slow_rank", .rank = 1, .when = CDDP_FAULT_TIME,
                                            .at = 100),
                                      FAULT("slow_rank", .rank = 1, .when = CDDP_FAULT_TIME,
                                            .at = 6000000)};
    subject s;
    subject_init(&s, faults, 4);
    strike(&s, (cddp_event_fault){CDDP_FAULT_NAN, 1, -1, 0}, 100,
           "rank 1 contributes a NaN before its collective 20");
    strike(&s, (cddp_event_fault){CDDP_FAULT_SLOW_RANK, 1, -1, 0}, 6000000, "rank 1 becomes slow");
    assert_int_equal(cd_strikes_get_missing(&s.strikes), 5);
    post(&s, 1, 3);
    post(&s, 2, 9);
    assert_string_equal(missing(&s),
                        "fault 1, nan of rank 1 before its collective 2: rank 1 posted "
                        "3 collectives; fault 3, slow_rank of rank 1 after 100 ns: "
                        "what it was to strike had ended before");
    subject_fini(&s);
}

TEST(strikes, a_choice_is_not_missing_and_a_strike_without_effect_is)
{
    const cddp_plan_fault faults[] = {
        FAULT("kill", .rank = 1, .when = CDDP_FAULT_BEFORE, .at = 2, .optional = true),
        FAULT("bit_flip", .rank = 1, .when = CDDP_FAULT_BEFORE, .at = 2),
        FAULT("hang", .rank = 0, .when = CDDP_FAULT_TIME, .at = 9000000)};
    subject s;
    subject_init(&s, faults, 3);
    strike(&s, (cddp_event_fault){CDDP_FAULT_BIT_FLIP, 1, -1, 0}, 100,
           "no effect: the operation carries no values to spoil");
    assert_int_equal(cd_strikes_get_missing(&s.strikes), 6);
    assert_string_equal(missing(&s), "fault 2, bit_flip of rank 1 before its collective 2: there "
                                     "was nothing that it could change; fault 3, hang of rank 0 "
                                     "after 9 ms: the run ended after 5 ms");
    subject_fini(&s);
}

static cddp_status make(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cd_strikes strikes;
    const cddp_status status = cd_strikes_init(&strikes, argument, allocator, err);
    cd_strikes_fini(&strikes);
    return status;
}

TEST(strikes, running_out_of_memory_leaves_nothing_behind)
{
    const cddp_plan_fault faults[] = {FAULT("kill", .rank = 1), FAULT("hang", .rank = 0)};
    cddp_plan plan = {.faults = faults, .fault_count = 2};
    assert_int_equal(cd_test_oom_loop(make, &plan), 1);
}

TEST(strikes, without_faults_nothing_is_missing)
{
    subject s;
    subject_init(&s, NULL, 0);
    strike(&s, (cddp_event_fault){CDDP_FAULT_KILL, 1, -1, 0}, 10, NULL);
    post(&s, 1, 3);
    assert_null(missing(&s));
    assert_int_equal(cd_strikes_get_missing(&s.strikes), 0);
    subject_fini(&s);
}

/* The simulator says it when all has ended, of faults whose strike it has reported before. */
TEST(strikes, what_met_nothing_is_missing_after_all)
{
    const cddp_plan_fault faults[] = {
        {.kind = "link_cut", .rank = 0, .peer = 2, .joiner = CDDP_PLAN_UNSET, .at = 80},
        {.kind = "link_cut", .rank = 0, .peer = 2, .joiner = CDDP_PLAN_UNSET, .at = 8000},
        {.kind = "link_cut",
         .rank = 0,
         .peer = 2,
         .joiner = CDDP_PLAN_UNSET,
         .when = CDDP_FAULT_BEFORE,
         .at = 3}};
    const cddp_event_fault cut = {CDDP_FAULT_LINK_CUT, 0, 2, 0};
    static const char met[] = "no effect: no message met it, rank 0 loses its link to rank 2 ";
    const char *whens[] = {"after 80 ns", "after 8 us", "before its collective 3"};
    const uint64_t times[] = {80, 8000, 100};
    for (size_t i = 0; i < 3; i++) {
        subject s;
        char words[128];
        cd_test_row("%s", whens[i]);
        subject_init(&s, faults, 3);
        for (size_t k = 0; k < 3; k++) strike(&s, cut, times[k], whens[k]);
        assert_int_equal(cd_strikes_get_missing(&s.strikes), 0);
        snprintf(words, sizeof words, "%s%s", met, whens[i]);
        strike(&s, cut, 9000, words);
        assert_int_equal(cd_strikes_get_missing(&s.strikes), 1 << i);
        subject_fini(&s);
    }
}

TEST_MAIN()
