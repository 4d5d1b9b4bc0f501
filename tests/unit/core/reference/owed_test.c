/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan owes, against numbers made by hand. */
#include "core/reference/owed.h"

#include "core/plan/plan.h"
#include "tests/support/test.h"

#define SETS_MAX 14

typedef struct row {
    const char *name;
    const char *sets[SETS_MAX]; /* key, value …; NULL ends them */
    cd_owed expected; /* of rank 0: 5 parameters, 4 of which have elements, and 2 buffers */
} row;

static const row rows[] = {
    /* clang-format off */
    {"three steps", {"train.steps", "3"}, {15, 6, 12}},
    {"a reduction in the middle of each step", {"train.steps", "2", "train.micro_steps", "3", "when.0.micro_steps", "1", "when.0.sync", "true"}, {20, 8, 8}},
    {"two inputs of four", {"train.steps", "4", "data.inputs", "2", "join.enable", "true"}, {10, 4, 8}},
    {"an optimizer that is due in every second step", {"train.steps", "4", "optimizer.0.steps", "0,2"}, {20, 8, 8}},
    {"a step that the plan skips", {"train.steps", "3", "when.0.steps", "1", "when.0.skip", "step"}, {15, 6, 8}},
    {"a step that is left in its backward", {"train.steps", "3", "when.0.steps", "1", "when.0.abort_after", "1"}, {10, 4, 8}},
    {"an overflow may skip any step", {"train.steps", "3", "amp.enable", "true"}, {15, 6, 0}},
    {"a rank that stops", {"train.steps", "3", "when.0.steps", "1", "when.0.ranks", "0", "when.0.stop", "true"}, {5, 2, 4}},
    /* clang-format on */
};

static cd_owed count(const row *r)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    cddp_plan_settings settings;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "world.size", "2", &err), &err);
    for (size_t i = 0; i < SETS_MAX && r->sets[i] != NULL; i += 2)
        assert_ok(cddp_plan_set(plan, r->sets[i], r->sets[i + 1], &err), &err);
    assert_ok(cddp_plan_rank_settings(plan, 0, &settings, &err), &err);
    const cd_owing_rank rank = {.plan = plan,
                                .settings = &settings,
                                .parameter_count = 5,
                                .buffer_count = 2,
                                .updated_count = 4};
    const cd_owed owed = cd_owed_count(&rank);
    cddp_plan_destroy(plan);
    return owed;
}

TEST(owed, a_plan_owes_what_its_steps_and_reductions_leave_to_compare)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%s", rows[i].name);
        const cd_owed owed = count(&rows[i]);
        assert_int_equal(owed.presence, rows[i].expected.presence);
        assert_int_equal(owed.buffers, rows[i].expected.buffers);
        assert_int_equal(owed.updates, rows[i].expected.updates);
    }
}

TEST_MAIN()
