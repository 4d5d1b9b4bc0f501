/* SPDX-License-Identifier: Apache-2.0 */
/* Shrinking: what is left fails for the same reason, and is the same for every number of jobs. */
#include "verify/shrink/shrink.h"

#include "core/base/error.h"
#include "core/base/text.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

static void set(cddp_plan *plan, const char *key, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
}

/* Five ranks; one of them starts with its own values, and nobody sends it those of rank 0. */
static cddp_plan *broken_plan(bool breaks)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    set(plan, "title", "one rank starts elsewhere");
    set(plan, "world.size", "5");
    set(plan, "model.name", "params");
    set(plan, "model.options", "count=6,numel=7");
    set(plan, "train.steps", "3");
    set(plan, "train.micro_steps", "2");
    if (breaks) {
        set(plan, "model.init@2", "distinct");
        set(plan, "ddp.init_sync", "false");
    }
    return plan;
}

static void append(void *context, const char *text) { cd_text_push(context, text); }

typedef struct outcome {
    cd_text draft;
    uint64_t trials, removed;
} outcome;

static outcome shrink(uint32_t jobs)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    cddp_plan *plan = broken_plan(true);
    cd_shrink s;
    outcome o;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    const cd_shrink_options options = {.registry = registry,
                                       .plan = plan,
                                       .jobs = jobs,
                                       .random_tries = 2};
    assert_ok(cd_shrink_begin(&s, &options, &err), &err);
    assert_ok(cd_shrink_run(&s, &err), &err);
    assert_int_equal(s.end, CD_SHRINK_MINIMAL);
    assert_true(s.best.failed);
    assert_string_equal(s.best.reason.check, "I-INIT");
    cd_text_init(&o.draft, false);
    cd_draft_print(&s.draft, append, &o.draft);
    o.trials = s.trials;
    o.removed = s.removed;
    cd_shrink_fini(&s);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
    return o;
}

TEST(shrink, several_jobs_find_what_one_finds)
{
    outcome one = shrink(1), three = shrink(3);
    assert_string_equal(cd_text_get(&one.draft), cd_text_get(&three.draft));
    assert_int_equal(one.removed, three.removed);
    assert_true(one.removed > 3);
    assert_non_null(strstr(cd_text_get(&one.draft), "init"));
    cd_text_fini(&one.draft);
    cd_text_fini(&three.draft);
}

static bool say_yes(void) { return true; }

static void say(cddp_verdict_rank *rank, const char *message)
{
    snprintf(rank->result.error.message, sizeof rank->result.error.message, "%s", message);
}

/* A hang is the same only as a hang: in the same kind of operation, for a peer that ended alike,
** whose error says the same. */
TEST(shrink, another_nature_is_another_reason)
{
    const cddp_finding found = {.check = "I-ONCE", .title = "rank 2: steps on a local gradient"};
    const uint32_t two[] = {2};
    cddp_wait wait = {.size = sizeof wait,
                      .status = CDDP_E_TIMEOUT,
                      .sequence = 7,
                      .bucket = 0,
                      .name = "world",
                      .peers = two,
                      .peer_count = 1};
    cddp_verdict_rank ranks[3] = {{.size = sizeof ranks[0]}};
    cddp_verdict v = {.outcome = CDDP_OUTCOME_FINDINGS,
                      .findings = &found,
                      .finding_count = 1,
                      .waits = &wait,
                      .wait_count = 1,
                      .ranks = ranks,
                      .rank_count = 3};
    cd_reason hang, other;
    ranks[0].result.status = CDDP_E_TIMEOUT;
    ranks[2].result.status = CDDP_E_STATE;
    say(&ranks[2], "rank 2: 1 of 3 parameters received no gradient");
    assert_true(cd_reason_take(&hang, &v));
    say(&ranks[2], "rank 2: 4 of 9 parameters received no gradient");
    assert_true(cd_reason_take(&other, &v) && cd_reason_is_same(&hang, &other));
    say(&ranks[2], "rank 2: ran out of samples");
    assert_true(cd_reason_take(&other, &v) && !cd_reason_is_same(&hang, &other));
    say(&ranks[2], "rank 2: 1 of 3 parameters received no gradient");
    ranks[2].result.end = CDDP_RANK_CRASHED;
    assert_true(cd_reason_take(&other, &v) && !cd_reason_is_same(&hang, &other));
    ranks[2].result.end = CDDP_RANK_RETURNED;
    v.wait_count = 0;
    assert_true(cd_reason_take(&other, &v) && !cd_reason_is_same(&hang, &other));
}

static cd_cast cast_of(uint64_t ranks, uint64_t blamed, uint64_t waits, uint64_t roots)
{
    return (cd_cast){.ranks = ranks, .blamed = {blamed}, .waits = {waits}, .roots = {roots}};
}

/* Ranks 0, 1 and 3 wait for rank 2, which is blamed. */
TEST(shrink, who_waits_for_whom_is_not_turned_round)
{
    const cd_cast before = cast_of(4, 4, 11, 4);
    const struct {
        uint64_t first, count;
        cd_cast after;
        bool is_same;
    } rows[] = {
        {0, 0, cast_of(4, 4, 11, 4), true},
        {0, 0, cast_of(4, 2, 13, 2), false}, /* for rank 1 */
        {0, 0, cast_of(4, 6, 11, 4), false}, /* rank 1 is blamed as well */
        {3, 1, cast_of(3, 4, 3, 4), true},
        {0, 2, cast_of(2, 1, 2, 1), true}, /* ranks 2 and 3 are 0 and 1 now */
        {0, 2, cast_of(2, 3, 2, 1), true}, /* no majority */
        {0, 2, cast_of(2, 2, 2, 1), false},
        {0, 2, cast_of(2, 2, 1, 2), false}, /* and 0 waits for 1 */
        {2, 1, cast_of(3, 2, 5, 2), false}, /* its cause is gone */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%zu", i);
        assert_int_equal(cd_cast_is_same(&before, rows[i].first, rows[i].count, &rows[i].after),
                         rows[i].is_same);
    }
}

/* The job of rank 1 ends a step early. One rank alone does not hang. */
TEST(shrink, a_hang_stays_a_hang)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    cddp_plan *plan = broken_plan(false);
    cd_shrink s;
    set(plan, "train.steps@1", "2");
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    const cd_shrink_options options = {.registry = registry, .plan = plan, .jobs = 1};
    assert_ok(cd_shrink_begin(&s, &options, &err), &err);
    const cd_reason before = s.best.reason;
    assert_true(before.hang != 0);
    assert_ok(cd_shrink_run(&s, &err), &err);
    assert_true(s.removed > 0 && s.best.reason.hang == before.hang);
    assert_int_equal(before.cast.roots[0], 2);
    assert_int_equal(s.best.reason.cast.roots[0], 2);
    assert_int_equal(s.best.reason.cast.waits[0], 1);
    assert_true(strncmp(s.best.hang, "hang: rank ", 11) == 0);
    cd_shrink_fini(&s);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
}

TEST(shrink, what_is_interrupted_before_anything_is_known_says_so)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    cddp_plan *plan = broken_plan(true);
    cd_shrink s;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    const cd_shrink_options options = {.registry = registry,
                                       .plan = plan,
                                       .jobs = 1,
                                       .interrupted = say_yes};
    assert_int_equal(cd_shrink_begin(&s, &options, &err), CDDP_E_ABORTED);
    cd_shrink_fini(&s);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
}

TEST(shrink, a_run_that_does_not_fail_is_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_registry *registry = NULL;
    cddp_plan *plan = broken_plan(false);
    cd_shrink s;
    assert_ok(cddp_registry_create(NULL, &registry, &err), &err);
    const cd_shrink_options options = {.registry = registry, .plan = plan, .jobs = 1};
    assert_int_not_equal(cd_shrink_begin(&s, &options, &err), CDDP_OK);
    assert_true(err.message[0] != '\0');
    cd_shrink_fini(&s);
    cddp_registry_destroy(registry);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
