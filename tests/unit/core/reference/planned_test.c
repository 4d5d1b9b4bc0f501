/* SPDX-License-Identifier: Apache-2.0 */
/* The judge's reading of a plan and the run's, which share no code, agree on right plans. Tables
** that overlap are drawn, and every field of every micro-step is compared. */
#include "core/reference/planned.h"

#include "core/base/prng.h"
#include "core/plan/plan.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

#define PLANS 60
#define TABLES_MAX 5
#define RANKS 3

/* A key of [[when]] and values of it. */
typedef struct field {
    const char *key, *values[4];
} field;

static const field fields[] = {
    {"steps", {"0", "1", "1%2", "0-2"}},
    {"ranks", {"0", "1", "0-1", "2"}},
    {"micro_steps", {"0", "1", "2", "0%2"}},
    {"sync", {"true", "false", "true", "false"}},
    {"sync_backward", {"true", "false", "true", "false"}},
    {"forwards", {"1", "2", "3", "1"}},
    {"backwards", {"0", "1", "2", "1"}},
    {"backward_each", {"true", "false", "true", "false"}},
    {"grad_mode", {"true", "false", "true", "true"}},
    {"bypass", {"true", "false", "false", "false"}},
    {"samples", {"1", "2", "5", "3"}},
    {"branch", {"0", "1", "2", "3"}},
    {"skip", {"nothing", "backward", "step", "all"}},
    {"stop", {"true", "false", "false", "false"}},
    {"poison", {"nothing", "nan", "inf", "large"}},
    {"abort_after", {"1", "2", "3", "4"}},
    {"early_step", {"true", "false", "false", "false"}},
    {"touch_buffers", {"true", "false", "true", "false"}},
    {"create_graph", {"true", "false", "true", "false"}},
    {"ready", {"engine", "reversed", "shuffled", "chosen"}},
    {"no_sync_depth", {"2", "3", "4", "2"}},
    {"await_producers", {"true", "false", "true", "false"}},
    {"compute_us", {"0", "5", "7", "9"}},
    {"group", {"all", "pair", "world", "pair"}},
};

static void set(cddp_plan *plan, const char *key, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
}

static cddp_plan *draw_plan(cd_prng *prng)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    set(plan, "world.size", "3");
    set(plan, "train.steps", "4");
    set(plan, "train.micro_steps", "3");
    static const char *const epochs[] = {"1", "1", "2", "4"}, *const inputs[] = {"9", "3", "1",
                                                                                 "0"};
    set(plan, "join.epochs", epochs[cd_prng_below(prng, 4)]);
    set(plan, "data.inputs@1", inputs[cd_prng_below(prng, 4)]);
    set(plan, "group.0.name", "all");
    set(plan, "group.1.name", "pair");
    set(plan, "group.1.members", "0,2");
    const uint64_t tables = cd_prng_below(prng, TABLES_MAX + 1);
    for (uint64_t t = 0; t < tables; t++) {
        char key[64];
        snprintf(key, sizeof key, "when.%u.branch", (unsigned)t);
        set(plan, key, "1");
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
            if (!cd_prng_chance(prng, 1, 3)) continue;
            snprintf(key, sizeof key, "when.%u.%s", (unsigned)t, fields[f].key);
            set(plan, key, fields[f].values[cd_prng_below(prng, 4)]);
        }
    }
    return plan;
}

static void compare_micro(const cd_micro *run, const cd_micro *judge)
{
#define SAME(name) assert_int_equal(run->name, judge->name)
    SAME(sync);
    SAME(sync_backward);
    SAME(no_sync_depth);
    SAME(forwards);
    SAME(backwards);
    SAME(backward_each);
    SAME(grad_mode);
    SAME(bypass);
    SAME(samples);
    SAME(branch);
    SAME(outputs.count);
    SAME(uses.count);
    SAME(ready);
    SAME(skip);
    SAME(stop);
    SAME(poison);
    SAME(abort_after);
    SAME(early_step);
    SAME(touch_buffers);
    SAME(touch_parameters);
    SAME(replace_buffers);
    SAME(create_graph);
    SAME(await_producers);
    SAME(statistics);
    SAME(compute_us);
#undef SAME
    assert_int_equal(cd_micro_contributes(run), cd_planned_contributes(judge));
}

static void compare_step(const cddp_plan *plan, const cddp_plan_settings *settings,
                         cd_micro_place place)
{
    assert_int_equal(cd_rank_has_step(plan, settings, place.rank, place.step),
                     cd_planned_has_step(plan, settings, place.rank, place.step));
    const char *group = cd_plan_group_at(plan, place.rank, place.step);
    assert_string_equal(group != NULL ? group : "world",
                        cd_planned_group_name(plan, place.rank, place.step));
    assert_int_equal(cd_plan_is_member(plan, group, place.rank),
                     cd_planned_group_size(plan, place.rank, place.step) > 0);
    for (uint32_t m = 0; m < settings->train.micro_steps; m++) {
        cd_micro run, judge;
        place.micro_step = m;
        cd_micro_resolve(plan, settings, place, &run);
        cd_planned_micro(plan, settings, place, &judge);
        compare_micro(&run, &judge);
        const uint32_t position = cd_micro_find_window(plan, settings, place);
        assert_int_equal(position, cd_planned_find_window(plan, settings, place));
        const cd_micro_span a = cd_micro_get_window(plan, settings, place, position);
        const cd_micro_span b = cd_planned_get_window(plan, settings, place, position);
        assert_int_equal(a.first, b.first);
        assert_int_equal(a.end, b.end);
    }
}

TEST(planned, run_and_judge_read_the_same_of_drawn_plans)
{
    const cd_prng root = cd_prng_seed(20260101);
    for (uint32_t p = 0; p < PLANS; p++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_prng prng = cd_prng_split_index(&root, "plan", p);
        cddp_plan *plan = draw_plan(&prng);
        cd_test_row("plan %u", p);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            cddp_plan_settings settings;
            assert_ok(cddp_plan_rank_settings(plan, rank, &settings, &err), &err);
            for (uint32_t step = 0; step < settings.train.steps; step++)
                compare_step(plan, &settings, (cd_micro_place){rank, step, 0});
        }
        assert_int_equal(cd_plan_windows_differ(plan), cd_planned_windows_differ(plan));
        cddp_plan_destroy(plan);
    }
}

TEST(planned, the_latest_table_says_whether_a_parameter_is_trained)
{
    static const struct {
        uint32_t step;
        const char *name;
        bool before, expected;
    } rows[] = {{0, "a.weight", true, true},
                {1, "a.weight", true, false},
                {3, "a.weight", true, true},
                {3, "b.bias", false, false},
                {2, "b.bias", true, true}};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    set(plan, "train.steps", "4");
    set(plan, "when.0.steps", "1");
    set(plan, "when.0.freeze", "a.*");
    set(plan, "when.1.steps", "3");
    set(plan, "when.1.unfreeze", "a.*");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cd_micro_place place = {0, rows[i].step, 0};
        cd_parameter_fate fate = {.requires_grad = rows[i].before};
        cd_test_row("%s in step %u", rows[i].name, rows[i].step);
        cd_micro_resolve_parameter(plan, place, rows[i].name, &fate);
        assert_int_equal(cd_planned_requires_grad(plan, place, rows[i].name, rows[i].before),
                         rows[i].expected);
        assert_int_equal(fate.requires_grad, rows[i].expected);
    }
    cddp_plan_destroy(plan);
}

TEST_MAIN()
