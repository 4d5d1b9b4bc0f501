/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/pattern.h"
#include "core/plan/micro.h"
#include "core/plan/plan.h"
#include "tests/support/test.h"

static cddp_plan *make_plan(const char *const *sets, size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (size_t i = 0; i < count; i += 2)
        assert_ok(cddp_plan_set(plan, sets[i], sets[i + 1], &err), &err);
    return plan;
}

static cd_micro resolve(const cddp_plan *plan, uint32_t rank, uint32_t step, uint32_t micro_step)
{
    cd_micro micro;
    cd_micro_resolve(plan, &plan->settings, (cd_micro_place){rank, step, micro_step}, &micro);
    return micro;
}

TEST(micro, only_the_last_micro_step_synchronises_by_default)
{
    static const char *const sets[] = {"train.micro_steps", "3"};
    cddp_plan *plan = make_plan(sets, 2);
    assert_false(resolve(plan, 0, 0, 0).sync);
    assert_false(resolve(plan, 0, 0, 1).sync);
    assert_true(resolve(plan, 0, 0, 2).sync);
    assert_true(resolve(plan, 0, 0, 2).sync_backward);
    cddp_plan_destroy(plan);
}

TEST(micro, of_several_tables_the_last_decides_each_key)
{
    static const char *const sets[] = {"when.0.branch", "1",    "when.0.samples", "5",
                                       "when.1.ranks",  "1",    "when.1.branch",  "2",
                                       "when.1.sync",   "false"};
    cddp_plan *plan = make_plan(sets, 10);
    const cd_micro zero = resolve(plan, 0, 0, 0), one = resolve(plan, 1, 0, 0);
    assert_int_equal(zero.branch, 1);
    assert_true(zero.sync);
    assert_int_equal(one.branch, 2);
    assert_int_equal(one.samples, 5);
    assert_false(one.sync);
    assert_false(one.sync_backward);
    cddp_plan_destroy(plan);
}

TEST(micro, backward_may_have_its_own_flag)
{
    static const char *const sets[] = {"when.0.sync", "false", "when.0.sync_backward", "true"};
    cddp_plan *plan = make_plan(sets, 4);
    assert_false(resolve(plan, 0, 0, 0).sync);
    assert_true(resolve(plan, 0, 0, 0).sync_backward);
    cddp_plan_destroy(plan);
}

TEST(micro, windows_of_ranks_meet_by_number)
{
    static const char *const sets[] = {"world.size",         "2",    "train.micro_steps",  "4",
                                       "when.0.ranks",       "0",    "when.0.micro_steps", "0",
                                       "when.0.sync",        "true", "when.1.ranks",       "1",
                                       "when.1.micro_steps", "2",    "when.1.sync",        "true"};
    static const cd_micro_span spans[2][3] = {{{0, 1}, {1, 4}, {0, 0}}, {{0, 3}, {3, 4}, {0, 0}}};
    static const uint32_t windows[2][4] = {{0, 1, 1, 1}, {0, 0, 0, 1}};
    cddp_plan *plan = make_plan(sets, sizeof sets / sizeof sets[0]);
    assert_true(cd_plan_windows_differ(plan));
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t m = 0; m < 4; m++)
            assert_int_equal(cd_micro_find_window(plan, &plan->settings,
                                                  (cd_micro_place){rank, 0, m}),
                             windows[rank][m]);
        for (uint32_t w = 0; w < 3; w++) {
            const cd_micro_span span =
                cd_micro_get_window(plan, &plan->settings, (cd_micro_place){rank, 0, 0}, w);
            assert_int_equal(span.first, spans[rank][w].first);
            assert_int_equal(span.end, spans[rank][w].end);
        }
    }
    cddp_plan_destroy(plan);
}

TEST(micro, windows_differ_only_where_a_table_makes_them)
{
    static const struct {
        const char *sets[4];
        bool differ;
    } cases[] = {
        {{"train.micro_steps", "3", "when.0.sync", "true"}, false},
        {{"when.0.ranks", "1", "when.0.branch", "1"}, false},
        {{"when.0.ranks", "1", "when.0.skip", "backward"}, true},
        {{"train.micro_steps", "3", "train.micro_steps@1", "2"}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_plan *plan = make_plan(cases[i].sets, 4);
        cd_test_row("%zu", i);
        assert_int_equal(cd_plan_windows_differ(plan), cases[i].differ);
        cddp_plan_destroy(plan);
    }
}

TEST(micro, no_sync_may_be_nested)
{
    static const char *const sets[] = {"when.0.steps",         "1", "when.0.sync", "false",
                                       "when.0.no_sync_depth", "3"};
    cddp_plan *plan = make_plan(sets, 6);
    assert_int_equal(resolve(plan, 0, 0, 0).no_sync_depth, 1);
    assert_int_equal(resolve(plan, 0, 1, 0).no_sync_depth, 3);
    cddp_plan_destroy(plan);
}

TEST(micro, inputs_and_stops_count_anew_in_each_epoch)
{
    static const char *const sets[] = {"train.steps",  "6",   "join.epochs",  "2",
                                       "when.0.ranks", "1",   "when.0.steps", "4",
                                       "when.0.stop",  "true"};
    static const bool expected[2][7] = {{true, true, false, true, true, false, false},
                                        {true, true, false, true, false, false, false}};
    cddp_plan *plan = make_plan(sets, 10);
    plan->settings.data.inputs = 2;
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (uint32_t step = 0; step < 7; step++) {
            cd_test_row("rank %u step %u", rank, step);
            assert_int_equal(cd_rank_has_step(plan, &plan->settings, rank, step),
                             expected[rank][step]);
        }
    }
    cddp_plan_destroy(plan);
}

TEST(micro, a_rank_that_stopped_or_ran_out_of_inputs_has_no_more_steps)
{
    static const char *const sets[] = {"train.steps",  "4", "when.0.ranks", "1",
                                       "when.0.steps", "2", "when.0.stop",  "true"};
    cddp_plan *plan = make_plan(sets, 8);
    assert_true(cd_rank_has_step(plan, &plan->settings, 1, 1));
    assert_false(cd_rank_has_step(plan, &plan->settings, 1, 2));
    assert_false(cd_rank_has_step(plan, &plan->settings, 1, 3));
    assert_true(cd_rank_has_step(plan, &plan->settings, 0, 3));
    assert_false(cd_rank_has_step(plan, &plan->settings, 0, 4));
    plan->settings.data.inputs = 1;
    assert_true(cd_rank_has_step(plan, &plan->settings, 0, 0));
    assert_false(cd_rank_has_step(plan, &plan->settings, 0, 1));
    plan->settings.data.inputs = 0;
    assert_false(cd_rank_has_step(plan, &plan->settings, 0, 0));
    cddp_plan_destroy(plan);
}

static const struct {
    const char *pattern, *name;
    bool matches;
} patterns[] = {{"*", "", true},        {"a.*", "a.b", true},
                {"a.*", "ab", false},   {"*.bias", "x.y.bias", true},
                {"*b*d", "abcd", true}, {"*b*d", "abcde", false},
                {"abc", "abc", true},   {"abc", "ab", false},
                {"a*a", "a", false},    {"*aab", "aaab", true}};

TEST(pattern, stars_stand_for_any_text)
{
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        cd_test_row("%s against %s", patterns[i].pattern, patterns[i].name);
        assert_int_equal(cd_pattern_matches(patterns[i].pattern, patterns[i].name),
                         patterns[i].matches);
    }
}

TEST_MAIN()
