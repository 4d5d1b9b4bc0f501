/* SPDX-License-Identifier: Apache-2.0 */
/* Several wrappers in a plan: the plan of each, their turns, and drafts that are joined. */
#include "core/plan/draft_join.h"
#include "scenarios/reader/reader.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char pair[] =
    "schema = 1\n"
    "title = \"a pair\"\n"
    "[world]\nsize = 3\nseed = 7\n"
    "[train]\nsteps = 4\nmicro_steps = 2\n"
    "[[wrapper]]\nname = \"a\"\nddp.bucket_cap_mb = 2\n"
    "[[wrapper]]\nname = \"b\"\nown_group = true\ntrain.micro_steps = 3\n"
    "[[rank]]\nranks = 1\nddp.static_graph = true\nwrapper.1.ddp.bucket_cap_mb = 5\n"
    "optimizer.1.lr = 0.5\noptimizer.2.lr = 0.75\n"
    "[[optimizer]]\nwrapper = \"a\"\n"
    "[[optimizer]]\nwrapper = \"b\"\nkind = \"adam\"\n"
    "[[optimizer]]\nwrapper = \"a\"\n"
    "[[when]]\nwrapper = \"b\"\nsteps = 1\nskip = \"all\"\n"
    "[[when]]\nsteps = 2\nranks = 2\nwrappers = [\"b\", \"a\"]\n"
    "[[when]]\nwrapper = \"a\"\nsteps = 3\nskip = \"step\"\n";

static cddp_plan *read_plan(const char *text)
{
    const cd_reader_options options = {.allocator = NULL};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cd_reader_read_text(&options, "pair", text, &plan, &err), &err);
    return plan;
}

static cddp_plan *plan_of(const cddp_plan *plan, size_t wrapper)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *own = NULL;
    assert_ok(cddp_plan_of_wrapper(plan, wrapper, NULL, &own, &err), &err);
    return own;
}

TEST(wrappers, each_has_its_own_plan)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = read_plan(pair);
    cddp_plan *a = plan_of(plan, 0), *b = plan_of(plan, 1);
    cddp_plan_settings settings;
    assert_int_equal(cddp_plan_wrapper_count(plan), 2);
    assert_int_equal(a->wrapper_count, 0);
    assert_true(a->world.seed == 7 && b->world.seed == 8);
    assert_true(a->settings.ddp.bucket_cap_mb == 2 && b->settings.ddp.bucket_cap_mb != 2);
    assert_true(a->settings.train.micro_steps == 2 && b->settings.train.micro_steps == 3);
    /* what a rank alone has counts more, and is one wrapper's or of both */
    assert_ok(cddp_plan_rank_settings(a, 1, &settings, &err), &err);
    assert_true(settings.ddp.static_graph && settings.ddp.bucket_cap_mb == 2);
    assert_ok(cddp_plan_rank_settings(b, 1, &settings, &err), &err);
    assert_true(settings.ddp.static_graph && settings.ddp.bucket_cap_mb == 5);
    assert_ok(cddp_plan_rank_settings(b, 0, &settings, &err), &err);
    assert_true(!settings.ddp.static_graph && settings.ddp.bucket_cap_mb != 5);
    cddp_plan_destroy(a);
    cddp_plan_destroy(b);
    cddp_plan_destroy(plan);
}

TEST(wrappers, tables_that_repeat_are_shared_out)
{
    cddp_plan *plan = read_plan(pair);
    cddp_plan *a = plan_of(plan, 0), *b = plan_of(plan, 1);
    assert_true(a->optimizer_count == 2 && b->optimizer_count == 1);
    assert_int_equal(b->optimizers[0].kind, CDDP_OPTIMIZER_ADAM);
    /* the plan's optimizer 2 is a's second one, and its optimizer 1 is b's only one */
    assert_true(cd_plan_optimizer_of(a, 1, 1).lr == 0.75);
    assert_true(cd_plan_optimizer_of(a, 1, 0).lr == 0.125);
    assert_true(cd_plan_optimizer_of(b, 1, 0).lr == 0.5);
    assert_true(cd_plan_optimizer_of(b, 0, 0).lr == 0.125);
    assert_true(a->when_count == 2 && b->when_count == 2);
    assert_int_equal(a->whens[1].skip, CDDP_SKIP_STEP);
    assert_int_equal(b->whens[0].skip, CDDP_SKIP_ALL);
    assert_int_equal(cd_plan_place_of(plan, 0, CD_SCOPE_when, 1), 2);
    assert_int_equal(cd_plan_place_of(plan, 1, CD_SCOPE_when, 1), 1);
    cddp_plan_destroy(a);
    cddp_plan_destroy(b);
    cddp_plan_destroy(plan);
}

TEST(wrappers, turns_are_those_of_the_tables_unless_a_step_says_otherwise)
{
    cddp_plan *plan = read_plan(pair);
    size_t order[2];
    cd_plan_order_wrappers(plan, 2, 1, order);
    assert_true(order[0] == 0 && order[1] == 1);
    cd_plan_order_wrappers(plan, 2, 2, order);
    assert_true(order[0] == 1 && order[1] == 0);
    cd_plan_order_wrappers(plan, 1, 2, order);
    assert_true(order[0] == 0 && order[1] == 1);
    cddp_plan_destroy(plan);
}

/* Digests of plans are in stored traces. A new key changes this number, wrappers do not. */
TEST(wrappers, a_plan_without_them_has_the_digest_of_its_keys)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL, *again = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_int_equal(cddp_plan_digest(plan), UINT64_C(0xe52297cf8b7852cd));
    cddp_plan_destroy(plan);
    plan = read_plan(pair);
    again = read_plan(pair);
    assert_true(cddp_plan_digest(plan) == cddp_plan_digest(again));
    assert_ok(cddp_plan_set(again, "wrapper.1.ddp.static_graph", "true", &err), &err);
    assert_true(cddp_plan_digest(plan) != cddp_plan_digest(again));
    cddp_plan_destroy(again);
    cddp_plan_destroy(plan);
}

typedef struct page {
    char bytes[8192];
    size_t length;
} page;

static void write_page(void *context, const char *text)
{
    page *p = context;
    p->length += (size_t)snprintf(p->bytes + p->length, sizeof p->bytes - p->length, "%s", text);
    assert_true(p->length < sizeof p->bytes);
}

TEST(wrappers, a_draft_is_read_back)
{
    static page text;
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = read_plan(pair);
    cd_draft draft;
    cd_draft_init(&draft);
    assert_ok(cd_draft_take(&draft, plan, &err), &err);
    text.length = 0;
    cd_draft_print(&draft, write_page, &text);
    cddp_plan *again = read_plan(text.bytes);
    assert_true(cddp_plan_digest(plan) == cddp_plan_digest(again));
    cddp_plan_destroy(again);
    /* one that goes takes its settings with it, and those behind it are renumbered */
    cd_draft_remove_element(&draft, CD_SCOPE_wrapper, 0);
    assert_ok(cd_draft_make(&draft, &again, &err), &err);
    cddp_plan *left = plan_of(again, 0);
    assert_true(left->settings.train.micro_steps == 3 && left->settings.ddp.bucket_cap_mb != 2);
    cddp_plan_destroy(left);
    cddp_plan_destroy(again);
    cd_draft_fini(&draft);
    cddp_plan_destroy(plan);
}

/* ---- what is refused ---- */

typedef struct heard {
    char key[96], words[320];
    size_t count;
} heard;

static void hear(void *context, const char *key, const char *message)
{
    heard *h = context;
    if (h->count++ > 0) return;
    snprintf(h->key, sizeof h->key, "%s", key);
    snprintf(h->words, sizeof h->words, "%s", message);
}

static heard refuse(const char *key, const char *value)
{
    heard h = {.count = 0};
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = read_plan(pair);
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
    const size_t count = cd_plan_find_contradictions(plan, hear, &h);
    assert_true(count > 0 && count == h.count);
    assert_int_equal(cddp_plan_check(plan, &err), CDDP_E_CONFIG);
    cddp_plan_destroy(plan);
    return h;
}

TEST(wrappers, what_they_cannot_have_together_is_refused)
{
    static const struct {
        const char *key, *value, *words;
    } rows[] = {{"join.enable", "true", "wrapper.own_group with join.enable"},
                {"when.0.group", "world", "when.group with [[wrapper]]"},
                {"collective.0.op", "barrier", "collective.wrapper says in whose iteration"},
                {"wrapper.1.name", "a", "two wrappers have that name"},
                {"optimizer.0.wrapper", "c", "no [[wrapper]] has that name"},
                {"when.1.wrappers", "a", "the order of all wrappers"},
                {"when.1.wrappers", "a,a", "the order of all wrappers"},
                {"when.1.wrapper", "a", "drop one"},
                {"wrapper.2.ddp.static_graph", "true", "there are 2 wrappers"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_non_null(strstr(refuse(rows[i].key, rows[i].value).words, rows[i].words));
}

TEST(wrappers, a_contradiction_of_one_names_it_and_its_place)
{
    heard h = refuse("wrapper.1.ddp.skip_all_reduce_unused_params", "true");
    assert_true(h.count == 1);
    assert_non_null(strstr(h.words, "wrapper 'b': "));
    /* of both: once */
    h = refuse("ddp.average_contributions", "true");
    assert_int_equal(h.count, 1);
}

TEST(wrappers, what_they_share_is_not_one_wrappers)
{
    static const char *const keys[] = {"train.steps", "join.enable", "data.inputs", "model.device"};
    cddp_plan *plan = read_plan(pair);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        char key[64];
        snprintf(key, sizeof key, "wrapper.1.%s", keys[i]);
        assert_int_equal(cddp_plan_set(plan, key, i % 2 == 0 ? "3" : "true", &err), CDDP_E_CONFIG);
        assert_non_null(strstr(err.message, "the same for all wrappers"));
    }
    cddp_plan_destroy(plan);
}

/* ---- joining ---- */

TEST(wrappers, drafts_of_single_wrappers_are_joined)
{
    static page text;
    static const char *const alone[] = {
        "schema = 1\ntitle = \"x\"\nworld.size = 3\ntrain.steps = 4\nddp.static_graph = true\n"
        "ddp.bucket_cap_mb = 2\n[[optimizer]]\nlr = 1\n[[group]]\nname = \"g\"\n",
        "schema = 1\ntitle = \"x\"\nworld.size = 3\ntrain.steps = 4\nddp.static_graph = true\n"
        "[[optimizer]]\nlr = 2\n[[group]]\nname = \"g\"\n[[rank]]\nranks = 1\ndata.samples = 7\n"};
    cddp_error err = CDDP_ERROR_INIT;
    cd_draft drafts[2], joined, differing;
    for (size_t i = 0; i < 2; i++) {
        cddp_plan *plan = read_plan(alone[i]);
        cd_draft_init(&drafts[i]);
        assert_ok(cd_draft_take(&drafts[i], plan, &err), &err);
        cddp_plan_destroy(plan);
    }
    const cd_draft_part parts[] = {{&drafts[0], "a", false}, {&drafts[1], "b", true}};
    cd_draft_init(&joined);
    assert_ok(cd_draft_join(&joined, parts, 2, &err), &err);
    text.length = 0;
    cd_draft_print(&joined, write_page, &text);
    cddp_plan *plan = read_plan(text.bytes);
    cddp_plan *a = plan_of(plan, 0), *b = plan_of(plan, 1);
    cddp_plan_settings settings;
    assert_true(plan->wrappers[1].own_group && plan->group_count == 1);
    assert_true(plan->settings.ddp.static_graph);
    assert_true(a->settings.ddp.bucket_cap_mb == 2 && b->settings.ddp.bucket_cap_mb != 2);
    assert_true(a->optimizers[0].lr == 1 && b->optimizers[0].lr == 2);
    assert_ok(cddp_plan_rank_settings(b, 1, &settings, &err), &err);
    assert_int_equal(settings.data.samples, 7);
    assert_ok(cddp_plan_rank_settings(a, 1, &settings, &err), &err);
    assert_true(settings.data.samples != 7);
    cddp_plan_destroy(a);
    cddp_plan_destroy(b);
    cddp_plan_destroy(plan);
    assert_ok(cd_draft_set(&drafts[1], "train.steps", "5", &err), &err);
    cd_draft_init(&differing);
    assert_int_equal(cd_draft_join(&differing, parts, 2, &err), CDDP_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "they differ in train.steps"));
    cd_draft_fini(&differing);
    cd_draft_fini(&joined);
    for (size_t i = 0; i < 2; i++) cd_draft_fini(&drafts[i]);
}

TEST_MAIN()
