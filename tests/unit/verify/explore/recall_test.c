/* SPDX-License-Identifier: Apache-2.0 */
/* Judgements that are recalled: one wrong number in one schedule of ten thousand is found, and a
** run that cannot be repeated is no verified one. See Note [Recalled judgements]. */
#include "verify/explore/run.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "tests/support/test.h"

#include <string.h>

#ifndef RECALL_RUNS
#define RECALL_RUNS 600
#endif

/* The hook of the tree, but for one number on the way to the network while it strikes. */
static cddp_hook planted;
static const cddp_hook *clean;
static int strikes; /* calls that are struck */

static cddp_status run_planted(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                               cddp_future *future, cddp_error *err)
{
    const cddp_tensor first = cddp_tensor_slice(&bucket->buffer, 0, 1);
    const float added = 0.125f;
    float value = 0;
    if (strikes > 0) {
        strikes--;
        CD_TRY(first.device->read(&first, &value, sizeof value, err));
        value += added;
        CD_TRY(first.device->write(&first, &value, sizeof value, err));
    }
    return CD_PASS(clean->run(self, bucket, group, future, err));
}

typedef struct search {
    cddp_registry *registry;
    cd_explorer explorer;
    cd_explore_subject subject;
    cd_explored now;
} search;

static void set(cddp_plan *plan, const char *key, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
}

/* has_one_order: gradients come in the engine's, so that only probes vary anything. */
static void search_init(search *s, bool has_one_order)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text overrides;
    memset(s, 0, sizeof *s);
    assert_ok(cddp_registry_create(NULL, &s->registry, &err), &err);
    clean = cddp_registry_find_hook(s->registry, "allreduce");
    planted = *clean;
    planted.name = "planted";
    planted.run = run_planted;
    assert_ok(cddp_registry_add_hook(s->registry, &planted, &err), &err);
    s->subject.registry = s->registry;
    assert_ok(cddp_plan_create(NULL, &s->subject.plan, &err), &err);
    set(s->subject.plan, "title", "a search");
    set(s->subject.plan, "world.size", "3");
    set(s->subject.plan, "model.name", "params");
    set(s->subject.plan, "model.options", "count=4,numel=1");
    set(s->subject.plan, "model.device", "cpu");
    set(s->subject.plan, "hook.name", "planted");
    set(s->subject.plan, "ddp.bucket_cap_mb", "0.000001");
    set(s->subject.plan, "ddp.first_bucket_bytes", "1");
    set(s->subject.plan, "train.steps", "1");
    cd_text_init(&overrides, false);
    if (!has_one_order)
        assert_ok(cd_explore_prepare(s->subject.plan, false, &overrides, &err), &err);
    cd_text_fini(&overrides);
    const cd_explore_options options = {.strategy = CD_STRATEGY_RANDOM,
                                        .seed = 7,
                                        .reduce = true,
                                        .without_coverage = true,
                                        .world_size = 3};
    assert_ok(cd_explorer_init(&s->explorer, &options, &err), &err);
    strikes = 0;
}

static void search_fini(search *s)
{
    cd_explorer_fini(&s->explorer);
    cd_explore_fini(&s->subject);
    cddp_plan_destroy(s->subject.plan);
    cddp_registry_destroy(s->registry);
}

/* struck: so many calls of the hook in this run and, where it is run again, in that one. */
static void run_once(search *s, int struck)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cd_chooser *chooser = cd_explorer_next(&s->explorer);
    strikes = struck;
    assert_non_null(chooser);
    assert_ok(cd_explore_run(&s->subject, &s->explorer, chooser, &s->now, &err), &err);
    assert_ok(cd_explorer_done(&s->explorer, s->now.outcome, &err), &err);
}

TEST(recall, one_wrong_number_is_found)
{
    static search s;
    const int at = RECALL_RUNS * 2 / 3;
    search_init(&s, false);
    for (int i = 0; i < RECALL_RUNS; i++) {
        run_once(&s, i == at ? 1 << 20 : 0);
        if (i == at)
            assert_false(s.now.is_verified);
        else
            assert_true(s.now.is_verified);
    }
    /* Nearly all runs were judged without a referee, where runs share their beginning at all. */
    if (s.subject.recall != NULL) assert_true(s.subject.recalled > RECALL_RUNS * 3 / 4);
    search_fini(&s);
}

/* The run that recalls meets the wrong number, and the one that judges does not. */
TEST(recall, what_happens_once_is_not_verified)
{
    static search s;
    search_init(&s, false);
    for (int i = 0; i < 40; i++) run_once(&s, 0);
    const bool shares = s.subject.recalled > 0;
    run_once(&s, 1);
    assert_false(s.now.is_verified);
    if (shares) assert_non_null(strstr(s.now.culprit, "other values or events"));
    run_once(&s, 0);
    assert_true(s.now.is_verified);
    search_fini(&s);
}

/* A scenario that is never clean is judged every time. */
TEST(recall, findings_are_not_recalled)
{
    static search s;
    search_init(&s, false);
    for (int i = 0; i < 40; i++) {
        run_once(&s, 1 << 20);
        assert_false(s.now.is_verified);
    }
    assert_int_equal(s.subject.recalled, 0);
    search_fini(&s);
}

/* Runs without a moment to begin at are recalled from their beginning. */
TEST(recall, one_wrong_number_is_found_where_nothing_varies)
{
    static search s;
    const int runs = 60, at = 45; /* no probe */
    search_init(&s, true);
    for (int i = 0; i < runs; i++) {
        run_once(&s, i == at ? 1 << 20 : 0);
        assert_int_equal(s.now.is_verified, i != at);
    }
    if (s.subject.recall != NULL) assert_true(s.subject.recalled > (uint64_t)runs * 3 / 4);
    run_once(&s, 1);
    assert_false(s.now.is_verified);
    if (s.subject.recall != NULL) assert_non_null(strstr(s.now.culprit, "other values or events"));
    search_fini(&s);
}

/* Five gradients have 120 orders, and the bucket of the second step has that of the first step: the
** first runs all differ. */
TEST(recall, what_was_given_up_is_tried_again)
{
    static search s;
    const int runs = 1200, at = 1100;
    bool was_over = false;
    uint64_t given_up_at = 0;
    search_init(&s, false);
    set(s.subject.plan, "model.options", "count=5,numel=1");
    set(s.subject.plan, "train.steps", "2");
    set(s.subject.plan, "ddp.bucket_cap_mb", "1");
    set(s.subject.plan, "ddp.first_bucket_bytes", "1048576");
    for (int i = 0; i < runs; i++) {
        run_once(&s, i == at ? 1 << 20 : 0);
        assert_int_equal(s.now.is_verified, i != at);
        if (!was_over && s.subject.trial.is_over) given_up_at = s.subject.recalled;
        was_over = was_over || s.subject.trial.is_over;
    }
    if (s.subject.recall != NULL) {
        assert_true(was_over);
        assert_false(s.subject.trial.is_over);
        assert_true(s.subject.recalled > given_up_at + (uint64_t)runs / 3);
    }
    search_fini(&s);
}

TEST_MAIN()
