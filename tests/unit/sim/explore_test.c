/* SPDX-License-Identifier: Apache-2.0 */
/* The explorers, on programs so small that the truth is known: exhaustive search tries everything once, PCT keeps its
** promise. */
#include "tests/support/test.h"

#include "sim/explore.h"

#include <stdio.h>
#include <string.h>

/* ---- exhaustive ---- */

/* A program whose later choices depend on earlier answers: after an even answer there are more. */
static uint64_t irregular(const cd_chooser *chooser, uint32_t *choices)
{
    uint64_t path = 1;
    *choices = 0;
    for (uint32_t depth = 0; depth < 4; depth++) {
        cddp_choice choice = {.size = sizeof choice, .kind = CDDP_CHOICE_USER, .option_count = 2 + (uint32_t)(path % 2)};
        uint32_t answer = chooser->choose(chooser->self, &choice, (cd_place){.number = (*choices)++});
        assert_true(answer < choice.option_count);
        path = path * 4 + answer + 1;
        if (answer == 1 && depth == 1) break; /* some runs are shorter */
    }
    return path;
}

/* How many different runs there are, by recursion over answers. */
static uint32_t count_runs(uint64_t path, uint32_t depth)
{
    if (depth == 4) return 1;
    uint32_t total = 0, options = 2 + (uint32_t)(path % 2);
    for (uint32_t answer = 0; answer < options; answer++)
        total += answer == 1 && depth == 1 ? 1 : count_runs(path * 4 + answer + 1, depth + 1);
    return total;
}

TEST(exhaustive, tries_every_run_exactly_once)
{
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    uint64_t seen[256];
    uint32_t count = 0, choices;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    double before = -1.0;
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
        assert_true(cd_explorer_progress(&e) >= before); /* the part behind us never shrinks */
        before = cd_explorer_progress(&e);
        uint64_t path = irregular(chooser, &choices);
        for (uint32_t i = 0; i < count; i++) assert_true(seen[i] != path);
        assert_true(count < 256);
        seen[count++] = path;
        assert_ok(cd_explorer_done(&e, path, &err), &err);
    }
    assert_int_equal(count, count_runs(1, 0));
    assert_int_equal(e.outcome_count, count);
    assert_true(e.exhausted && !e.bounded);
    assert_true(cd_explorer_progress(&e) == 1.0);
    cd_explorer_fini(&e);
}

TEST(exhaustive, says_when_it_was_bounded)
{
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    uint32_t count = 0, choices;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE, .choices_max = 1};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL; count++) {
        uint64_t path = irregular(chooser, &choices);
        assert_ok(cd_explorer_done(&e, path, &err), &err);
    }
    assert_int_equal(count, 3);
    assert_true(e.exhausted && e.bounded);
    cd_explorer_fini(&e);
}

TEST(exhaustive, stops_at_its_budget_without_claiming_the_rest)
{
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    uint32_t choices;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE, .runs_max = 5};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
        uint64_t path = irregular(chooser, &choices);
        assert_ok(cd_explorer_done(&e, path, &err), &err);
    }
    assert_int_equal(e.runs, 5);
    assert_false(e.exhausted);
    assert_true(cd_explorer_progress(&e) < 1.0);
    cd_explorer_fini(&e);
}

/* ---- PCT ---- */

#define THREADS 3
#define STEPS 8 /* of each: 24 choices in all, the last of them without an alternative */

/* Threads take steps in the order of the chooser; at[t][s] is when thread t took step s. */
static void interleave(const cd_chooser *chooser, uint32_t at[THREADS][STEPS])
{
    uint32_t done[THREADS] = {0}, time = 0;
    uint64_t number = 0;
    while (time < THREADS * STEPS) {
        uint64_t options[THREADS];
        uint32_t count = 0, taken = 0;
        for (uint32_t t = 0; t < THREADS; t++)
            if (done[t] < STEPS) options[count++] = t;
        cddp_choice choice = {.size = sizeof choice, .kind = CDDP_CHOICE_RUN, .rank = UINT32_MAX, .option_count = count, .options = options};
        if (count > 1) taken = chooser->choose(chooser->self, &choice, (cd_place){.number = number++});
        uint32_t t = (uint32_t)options[taken];
        at[t][done[t]++] = time++;
    }
}

/* Bugs that need d steps in one order and no other. */
static bool strikes(uint32_t depth, uint32_t at[THREADS][STEPS])
{
    bool one = at[2][0] < at[0][0];                              /* a thread before another */
    bool two = at[0][4] < at[1][0] && at[1][0] < at[0][5];       /* between two steps of another */
    bool three = two && at[1][3] < at[2][0] && at[2][0] < at[1][4]; /* and a third between two of that one */
    return depth == 1 ? one : depth == 2 ? two : three;
}

TEST(pct, meets_bugs_of_its_depth_at_least_as_often_as_it_promises)
{
    for (uint32_t depth = 1; depth <= 3; depth++) {
        cd_explorer e;
        cddp_error err = CDDP_ERROR_INIT;
        uint64_t runs = depth == 3 ? 60000 : 6000, hits = 0;
        cd_explore_options options = {.strategy = CD_STRATEGY_PCT, .depth = depth, .seed = cd_test_seed(), .runs_max = runs};
        assert_ok(cd_explorer_init(&e, &options, &err), &err);
        for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
            uint32_t at[THREADS][STEPS];
            interleave(chooser, at);
            hits += strikes(depth, at);
            assert_ok(cd_explorer_done(&e, strikes(depth, at), &err), &err);
        }
        double inverse = 0.0;
        assert_true(cd_explorer_miss_chance(&e, &inverse) < 1.0);
        double promised = (double)runs / inverse;
        cd_test_row("depth %u: %llu hits in %llu runs, promised %.1f", depth, (unsigned long long)hits, (unsigned long long)runs, promised);
        print_message("depth %u: %llu hits in %llu runs, promised at least %.1f\n", depth, (unsigned long long)hits,
                      (unsigned long long)runs, promised);
        assert_int_equal(e.contenders_max, THREADS);
        assert_true((double)hits >= promised);
        cd_explorer_fini(&e);
    }
}

/* Without change points a bug of depth 2 cannot be met: the priorities of a run never change. */
TEST(pct, of_depth_one_never_meets_a_bug_of_depth_two)
{
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    cd_explore_options options = {.strategy = CD_STRATEGY_PCT, .depth = 1, .seed = cd_test_seed(), .runs_max = 2000};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
        uint32_t at[THREADS][STEPS];
        interleave(chooser, at);
        assert_false(strikes(2, at));
        assert_ok(cd_explorer_done(&e, 0, &err), &err);
    }
    cd_explorer_fini(&e);
}

TEST(explore, a_seed_gives_the_same_search_again)
{
    uint64_t digests[2] = {0, 0};
    for (uint32_t strategy = 0; strategy < 2; strategy++) {
        for (int round = 0; round < 2; round++) {
            cd_explorer e;
            cddp_error err = CDDP_ERROR_INIT;
            cd_explore_options options = {.strategy = (cd_strategy)strategy, .depth = 3, .seed = 11, .runs_max = 50};
            assert_ok(cd_explorer_init(&e, &options, &err), &err);
            digests[round] = 0;
            for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
                uint32_t at[THREADS][STEPS];
                interleave(chooser, at);
                for (uint32_t t = 0; t < THREADS; t++)
                    for (uint32_t s = 0; s < STEPS; s++) digests[round] = digests[round] * 31 + at[t][s];
                assert_ok(cd_explorer_done(&e, 1, &err), &err);
            }
            cd_explorer_fini(&e);
        }
        assert_true(digests[0] == digests[1] && digests[0] != 0);
    }
}

static cddp_status make(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cd_explorer e;
    (void)argument;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE, .allocator = allocator};
    cddp_status status = cd_explorer_init(&e, &options, err);
    while (status == CDDP_OK) {
        uint32_t choices;
        const cd_chooser *chooser = cd_explorer_next(&e);
        if (chooser == NULL) break;
        uint64_t path = irregular(chooser, &choices);
        status = cd_explorer_done(&e, path, err);
    }
    cd_explorer_fini(&e);
    return status;
}

TEST(explore, leaves_nothing_behind_when_memory_runs_out)
{
    assert_true(cd_test_oom_loop(make, NULL) >= 2);
}

TEST_MAIN(ROW(exhaustive, tries_every_run_exactly_once), ROW(exhaustive, says_when_it_was_bounded),
          ROW(exhaustive, stops_at_its_budget_without_claiming_the_rest),
          ROW(pct, meets_bugs_of_its_depth_at_least_as_often_as_it_promises), ROW(pct, of_depth_one_never_meets_a_bug_of_depth_two),
          ROW(explore, a_seed_gives_the_same_search_again), ROW(explore, leaves_nothing_behind_when_memory_runs_out))
