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
    {"three steps", {"train.steps", "3"}, {.presence = 15, .buffers = 6, .updates = 12}},
    {"a reduction in the middle of each step", {"train.steps", "2", "train.micro_steps", "3", "when.0.micro_steps", "1", "when.0.sync", "true"}, {.presence = 20, .buffers = 8, .updates = 8}},
    {"two inputs of four", {"train.steps", "4", "data.inputs", "2", "join.enable", "true"}, {.presence = 10, .buffers = 4, .updates = 8}},
    {"an optimizer that is due in every second step", {"train.steps", "4", "optimizer.0.steps", "0,2"}, {.presence = 20, .buffers = 8, .updates = 8}},
    {"a step that the plan skips", {"train.steps", "3", "when.0.steps", "1", "when.0.skip", "step"}, {.presence = 15, .buffers = 6, .updates = 8}},
    {"a step that is left in its backward", {"train.steps", "3", "when.0.steps", "1", "when.0.abort_after", "1"}, {.presence = 10, .buffers = 4, .updates = 8}},
    {"an overflow may skip any step", {"train.steps", "3", "amp.enable", "true"}, {.presence = 15, .buffers = 6, .updates = 0}},
    {"a rank that stops", {"train.steps", "3", "when.0.steps", "1", "when.0.ranks", "0", "when.0.stop", "true"}, {.presence = 5, .buffers = 2, .updates = 4}},
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
                                .updated_count = 4,
                                .has_numbers = true,
                                .has_digests = true,
                                .has_one_dtype = true,
                                .sums = true,
                                .has_state = true};
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

/* What a reduction owes at least, and the events of the run itself. */
#define OF_A_RANK [CD_OWED_STREAMS] = 2, [CD_OWED_DTYPES] = 1
static const row kinds[] = {
    /* clang-format off */
    {"three steps of two samples", {"train.steps", "3", "data.samples", "2"}, {.locals = 3, .sums = 3, .states = 3, .formulas = 3, .derivatives = 3, .events = {OF_A_RANK, [CD_OWED_BATCHES] = 3, [CD_OWED_ENTRIES] = 3, [CD_OWED_SAMPLES] = 6, [CD_OWED_LOSSES] = 3, [CD_OWED_STEPS] = 3, [CD_OWED_VALUES] = 30, [CD_OWED_SHOWN] = 6}}},
    {"a reduction in the middle", {"train.steps", "1", "data.samples", "1", "train.micro_steps", "3", "when.0.micro_steps", "1", "when.0.sync", "true"}, {.locals = 2, .sums = 2, .states = 1, .formulas = 1, .derivatives = 3, .events = {OF_A_RANK, [CD_OWED_BATCHES] = 3, [CD_OWED_ENTRIES] = 1, [CD_OWED_SAMPLES] = 3, [CD_OWED_LOSSES] = 3, [CD_OWED_STEPS] = 1, [CD_OWED_VALUES] = 10, [CD_OWED_SHOWN] = 2}}},
    {"clipping, but for a step that is skipped", {"train.steps", "3", "data.samples", "1", "clip.max_norm", "1", "when.0.steps", "1", "when.0.skip", "step"}, {.locals = 3, .sums = 3, .states = 2, .formulas = 2, .norms = 2, .derivatives = 3, .events = {OF_A_RANK, [CD_OWED_BATCHES] = 3, [CD_OWED_ENTRIES] = 3, [CD_OWED_SAMPLES] = 3, [CD_OWED_LOSSES] = 3, [CD_OWED_STEPS] = 3, [CD_OWED_VALUES] = 30, [CD_OWED_SHOWN] = 6}}},
    {"two evaluations, one of them before a micro-step that is left out", {"train.steps", "1", "train.micro_steps", "2", "data.samples", "1", "when.0.evaluate", "module", "when.1.micro_steps", "0", "when.1.skip", "all"}, {.locals = 1, .sums = 1, .states = 1, .formulas = 1, .derivatives = 1, .evaluations = 1, .events = {OF_A_RANK, [CD_OWED_BATCHES] = 1, [CD_OWED_ENTRIES] = 1, [CD_OWED_SAMPLES] = 1, [CD_OWED_LOSSES] = 1, [CD_OWED_STEPS] = 1, [CD_OWED_VALUES] = 10, [CD_OWED_SHOWN] = 2}}},
    {"a step that is left in its backward owes nothing", {"train.steps", "1", "when.0.abort_after", "1"}, {.events = {OF_A_RANK}}},
    {"what a part of the model uses is not known", {"train.steps", "1", "data.samples", "1", "when.0.branch", "1"}, {.states = 1, .formulas = 1, .events = {OF_A_RANK, [CD_OWED_BATCHES] = 1, [CD_OWED_ENTRIES] = 1, [CD_OWED_SAMPLES] = 1, [CD_OWED_LOSSES] = 1, [CD_OWED_STEPS] = 1, [CD_OWED_VALUES] = 10, [CD_OWED_SHOWN] = 2}}},
    {"a collective of the program", {"train.steps", "2", "data.samples", "1", "collective.0.op", "allreduce", "collective.0.numel", "3"}, {.locals = 2, .sums = 2, .states = 2, .formulas = 2, .collectives = 2, .derivatives = 2, .events = {OF_A_RANK, [CD_OWED_BATCHES] = 2, [CD_OWED_ENTRIES] = 2, [CD_OWED_SAMPLES] = 2, [CD_OWED_LOSSES] = 2, [CD_OWED_STEPS] = 2, [CD_OWED_VALUES] = 20, [CD_OWED_SHOWN] = 4}}},
    /* clang-format on */
};

TEST(owed, a_plan_owes_what_single_reductions_and_events_show)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        cd_test_row("%s", kinds[i].name);
        cd_owed owed = count(&kinds[i]);
        owed.presence = owed.buffers = owed.updates = 0;
        assert_memory_equal(&owed, &kinds[i].expected, sizeof owed);
    }
}

TEST_MAIN()
