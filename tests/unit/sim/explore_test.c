/* SPDX-License-Identifier: Apache-2.0 */
/* The explorers, on programs so small that the truth is known: exhaustive search tries everything
** once, PCT keeps its promise. */
#include "tests/support/test.h"

#include "core/base/error.h"
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
        cddp_choice choice = {.size = sizeof choice,
                              .kind = CDDP_CHOICE_USER,
                              .option_count = 2 + (uint32_t)(path % 2)};
        uint32_t answer =
            chooser->choose(chooser->self, &choice, (cd_place){.number = (*choices)++});
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
    assert_int_equal(e.outcomes.count, count);
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
        cddp_choice choice = {.size = sizeof choice,
                              .kind = CDDP_CHOICE_RUN,
                              .rank = UINT32_MAX,
                              .option_count = count,
                              .options = options};
        if (count > 1)
            taken = chooser->choose(chooser->self, &choice, (cd_place){.number = number++});
        uint32_t t = (uint32_t)options[taken];
        at[t][done[t]++] = time++;
    }
}

/* Bugs that need d steps in one order and no other. */
static bool strikes(uint32_t depth, uint32_t at[THREADS][STEPS])
{
    bool one = at[2][0] < at[0][0]; /* a thread before another */
    /* between two steps of another */
    bool two = at[0][4] < at[1][0] && at[1][0] < at[0][5];
    /* and a third between two of that one */
    bool three = two && at[1][3] < at[2][0] && at[2][0] < at[1][4];
    return depth == 1 ? one : depth == 2 ? two : three;
}

TEST(pct, meets_bugs_of_its_depth_at_least_as_often_as_it_promises)
{
    for (uint32_t depth = 1; depth <= 3; depth++) {
        cd_explorer e;
        cddp_error err = CDDP_ERROR_INIT;
        uint64_t runs = depth == 3 ? 60000 : 6000, hits = 0;
        cd_explore_options options = {.strategy = CD_STRATEGY_PCT,
                                      .depth = depth,
                                      .seed = cd_test_seed(),
                                      .runs_max = runs};
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
        cd_test_row("depth %u: %llu hits in %llu runs, promised %.1f", depth,
                    (unsigned long long)hits, (unsigned long long)runs, promised);
        print_message("depth %u: %llu hits in %llu runs, promised at least %.1f\n", depth,
                      (unsigned long long)hits, (unsigned long long)runs, promised);
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
    cd_explore_options options = {.strategy = CD_STRATEGY_PCT,
                                  .depth = 1,
                                  .seed = cd_test_seed(),
                                  .runs_max = 2000};
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
            cd_explore_options options = {.strategy = (cd_strategy)strategy,
                                          .depth = 3,
                                          .seed = 11,
                                          .runs_max = 50};
            assert_ok(cd_explorer_init(&e, &options, &err), &err);
            digests[round] = 0;
            for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
                uint32_t at[THREADS][STEPS];
                interleave(chooser, at);
                for (uint32_t t = 0; t < THREADS; t++)
                    for (uint32_t s = 0; s < STEPS; s++)
                        digests[round] = digests[round] * 31 + at[t][s];
                assert_ok(cd_explorer_done(&e, 1, &err), &err);
            }
            cd_explorer_fini(&e);
        }
        assert_true(digests[0] == digests[1] && digests[0] != 0);
    }
}

/* ---- what is left out ---- */

static uint32_t ask(const cd_chooser *chooser, uint32_t kind, uint32_t rank, uint64_t *number,
                    uint64_t races)
{
    cddp_choice choice = {.size = sizeof choice,
                          .kind = (cddp_choice_kind)kind,
                          .rank = rank,
                          .option_count = 2};
    return chooser->choose(chooser->self, &choice,
                           (cd_place){.number = (*number)++, .races = races});
}

typedef enum dependence {
    NONE,  /* the outcome follows from the gradient alone */
    RACE,  /* the world sees a race after the answer 1 */
    HIDDEN /* the outcome depends on turns, and the world does not see why */
} dependence;

/* Two turns and one gradient. */
static uint32_t run_turns(cd_explorer *e, dependence on)
{
    cddp_error err = CDDP_ERROR_INIT;
    uint32_t runs = 0;
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(e)) != NULL; runs++) {
        uint64_t number = 0;
        uint32_t first = ask(chooser, CDDP_CHOICE_RUN, UINT32_MAX, &number, 0);
        uint32_t gradient = ask(chooser, CDDP_CHOICE_READY, 0, &number, 0);
        uint32_t second = ask(chooser, CDDP_CHOICE_RUN, UINT32_MAX, &number, 0);
        assert_ok(chooser->finish(chooser->self,
                                  (cd_place){.number = number,
                                             .races = on == RACE && gradient == 1},
                                  &err),
                  &err);
        const uint32_t turns = on == NONE ? 0 : first * 4 + second;
        assert_ok(cd_explorer_done(e, 1 + gradient * 2 + turns, &err), &err);
    }
    return runs;
}

TEST(exhaustive, varies_turns_only_once_something_depends_on_them)
{
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE, .reduce = true};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    const uint32_t runs = run_turns(&e, NONE);
    assert_int_equal(runs, 2 + e.probes);
    assert_int_equal(e.outcomes.count, 2);
    assert_true(e.probes >= 8 && !e.races && e.exhausted);
    cd_explorer_fini(&e);
    for (dependence on = RACE; on <= HIDDEN; on++) {
        assert_ok(cd_explorer_init(&e, &options, &err), &err);
        /* some run showed it, and the search began again */
        assert_true(run_turns(&e, on) >= 1 + 8);
        assert_int_equal(e.outcomes.count, 8);
        assert_true(e.races && e.exhausted);
        cd_explorer_fini(&e);
    }
}

TEST(random, is_uniform_only_while_runs_have_the_same_alternatives)
{
    for (int uneven = 0; uneven < 2; uneven++) {
        cd_explorer e;
        cddp_error err = CDDP_ERROR_INIT;
        cd_explore_options options = {.strategy = CD_STRATEGY_RANDOM, .runs_max = 20};
        assert_ok(cd_explorer_init(&e, &options, &err), &err);
        for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
            uint64_t number = 0;
            uint32_t first = ask(chooser, CDDP_CHOICE_READY, 0, &number, 0);
            if (!uneven || first == 1) (void)ask(chooser, CDDP_CHOICE_READY, 1, &number, 0);
            assert_ok(cd_explorer_done(&e, 1, &err), &err);
        }
        assert_true(e.uneven == (uneven == 1));
        cd_explorer_fini(&e);
    }
}

static void report(cd_past *past, uint32_t rank, uint16_t kind, int64_t first, int64_t second)
{
    cddp_event event = {.rank = rank, .kind = kind};
    event.as.field[0] = first;
    event.as.field[1] = second;
    past->sink.event(past->sink.self, &event);
}

typedef struct step {
    uint32_t rank;
    uint16_t kind;
    int64_t first, second; /* mark_ready: parameter, bucket; bucket_launch: bucket */
} step;

static uint64_t digest_after(const cd_past_options *options, const step *steps, size_t count)
{
    cd_past past;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_choice choice = {.size = sizeof choice,
                          .kind = CDDP_CHOICE_READY,
                          .rank = 0,
                          .option_count = 2};
    assert_ok(cd_past_init(&past, options, &err), &err);
    cd_past_begin(&past);
    for (size_t i = 0; i < count; i++)
        report(&past, steps[i].rank, steps[i].kind, steps[i].first, steps[i].second);
    uint64_t digest = cd_past_get(&past, &choice);
    cd_past_fini(&past);
    return digest;
}

#define READY CDDP_EV_mark_ready
#define LAUNCH CDDP_EV_bucket_launch

TEST(past, forgets_the_order_of_gradients_and_nothing_else)
{
    const cd_past_options options = {.world_size = 3, .without_rebuild = true},
                          rebuild = {.world_size = 3},
                          alike = {.world_size = 3,
                                   .interchangeable = true,
                                   .without_rebuild = true};
    const step ab[] = {{1, READY, 0, 0}, {1, READY, 1, 1}},
               ba[] = {{1, READY, 1, 1}, {1, READY, 0, 0}};
    assert_true(digest_after(&options, ab, 2) == digest_after(&options, ba, 2));
    assert_true(digest_after(&options, ab, 2) != digest_after(&options, ab, 1));
    /* buckets will follow that order */
    assert_true(digest_after(&rebuild, ab, 2) != digest_after(&rebuild, ba, 2));
    const step early[] = {{1, READY, 0, 0}, {1, LAUNCH, 0, 0}, {1, READY, 1, 0}},
               late[] = {{1, READY, 0, 0}, {1, READY, 1, 0}, {1, LAUNCH, 0, 0}};
    /* of that bucket */
    assert_true(digest_after(&options, early, 3) != digest_after(&options, late, 3));
    const step other[] = {{1, READY, 0, 0}, {1, LAUNCH, 0, 0}, {1, READY, 1, 1}},
               after[] = {{1, READY, 0, 0}, {1, READY, 1, 1}, {1, LAUNCH, 0, 0}};
    assert_true(digest_after(&options, other, 3) == digest_after(&options, after, 3));
    const step order[] = {{1, LAUNCH, 0, 0}, {1, LAUNCH, 1, 0}},
               turned[] = {{1, LAUNCH, 1, 0}, {1, LAUNCH, 0, 0}};
    assert_true(digest_after(&options, order, 2) != digest_after(&options, turned, 2));
    const step one[] = {{1, READY, 0, 0}}, two[] = {{2, READY, 0, 0}}, zero[] = {{0, READY, 0, 0}};
    assert_true(digest_after(&options, one, 1) != digest_after(&options, two, 1));
    assert_true(digest_after(&alike, one, 1) == digest_after(&alike, two, 1));
    /* rank 0 is not like the others */
    assert_true(digest_after(&alike, one, 1) != digest_after(&alike, zero, 1));
}

/* ---- cover ---- */

/* Counted here without the code that made it. */
static bool covers(const cd_cover *c, uint32_t a, uint32_t b, uint32_t d)
{
    for (uint32_t i = 0; i < c->order_count; i++) {
        const uint8_t *at = c->orders + (size_t)i * c->event_count;
        if (at[a] < at[b] && at[b] < at[d]) return true;
    }
    return false;
}

TEST(cover, every_ordered_triple_is_in_some_order)
{
    for (uint32_t n = 3; n <= 24; n += 7) {
        cd_cover c = {0};
        cddp_error err = CDDP_ERROR_INIT;
        assert_ok(cd_cover_make(3, n, 1, &c, &err), &err);
        for (uint32_t a = 0; a < n; a++)
            for (uint32_t b = 0; b < n; b++)
                for (uint32_t d = 0; d < n; d++)
                    if (a != b && b != d && a != d) assert_true(covers(&c, a, b, d));
        cd_cover_fini(&c);
    }
}

/* Published sizes of greedy arrays: 64 events need about 42 orders. */
TEST(cover, sixty_four_gradients_take_few_orders)
{
    cd_cover c = {0};
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_cover_make(3, 64, 1, &c, &err), &err);
    print_message("strength 3, 64 gradients: %u orders\n", c.order_count);
    assert_true(c.order_count <= 44);
    cd_cover_fini(&c);
    assert_ok(cd_cover_make(2, 64, 1, &c, &err), &err);
    assert_int_equal(c.order_count, 2);
    cd_cover_fini(&c);
    assert_int_equal(cd_cover_make(4, CD_COVER_EVENTS_MAX_4 + 1, 1, &c, &err), CDDP_E_LIMIT);
}

/* Every rank becomes ready in every order of the array, over all runs, and the explorer stops
** behind the last. */
TEST(cover, every_rank_plays_every_order)
{
    enum { RANKS = 2, GRADIENTS = 4 };
    cd_explorer e;
    cddp_error err = CDDP_ERROR_INIT;
    bool seen[RANKS][GRADIENTS][GRADIENTS][GRADIENTS] = {0};
    cd_explore_options options = {.strategy = CD_STRATEGY_COVER, .depth = 3, .world_size = RANKS};
    assert_ok(cd_explorer_init(&e, &options, &err), &err);
    for (const cd_chooser *chooser; (chooser = cd_explorer_next(&e)) != NULL;) {
        uint64_t number = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
            /* ids as the engine gives them */
            uint64_t held[GRADIENTS] = {7, 3, 5, 1}, order[GRADIENTS];
            for (uint32_t count = GRADIENTS; count > 0; count--) {
                cddp_choice choice = {.size = sizeof choice,
                                      .kind = CDDP_CHOICE_READY,
                                      .rank = r,
                                      .option_count = count,
                                      .options = held};
                uint32_t at = count > 1 ? chooser->choose(chooser->self, &choice,
                                                          (cd_place){.number = number++})
                                        : 0;
                order[GRADIENTS - count] = held[at];
                memmove(held + at, held + at + 1, (count - 1 - at) * sizeof *held);
            }
            for (int i = 0; i < GRADIENTS; i++)
                for (int k = i + 1; k < GRADIENTS; k++)
                    for (int l = k + 1; l < GRADIENTS; l++)
                        seen[r][order[i] / 2][order[k] / 2][order[l] / 2] = true;
        }
        assert_ok(cd_explorer_done(&e, 1, &err), &err);
    }
    assert_int_equal(e.runs, 1 + e.cover.order_count); /* the first run learns the gradients */
    assert_false(e.covering.deviated);
    for (uint32_t r = 0; r < RANKS; r++)
        for (int i = 0; i < GRADIENTS; i++)
            for (int k = 0; k < GRADIENTS; k++)
                for (int l = 0; l < GRADIENTS; l++)
                    assert_true(seen[r][i][k][l] == (i != k && k != l && i != l));
    cd_explorer_fini(&e);
}

static cddp_status make(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cd_explorer e;
    cd_cover cover = {.allocator = allocator};
    (void)argument;
    cd_explore_options options = {.strategy = CD_STRATEGY_EXHAUSTIVE,
                                  .reduce = true,
                                  .merge = true,
                                  .world_size = 2,
                                  .allocator = allocator};
    CD_TRY(cd_cover_make(3, 4, 1, &cover, err));
    cd_cover_fini(&cover);
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

TEST_MAIN()
