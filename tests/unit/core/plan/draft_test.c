/* SPDX-License-Identifier: Apache-2.0 */
/* A plan taken apart, written, and read back: for every key of the table. */
#include "core/plan/draft.h"
#include "scenarios/reader/reader.h"
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value that is not the default. */
static void other_value(const cd_key_row *row, char *text, size_t bytes)
{
    switch (row->type) {
    case CDDP_KEY_FLAG:
        snprintf(text, bytes, "%s", strcmp(row->initial, "true") == 0 ? "false" : "true");
        break;
    case CDDP_KEY_INTEGER:
    case CDDP_KEY_UNSIGNED:
        snprintf(text, bytes, "%.0f", row->high);
        if (row->initial != NULL && strcmp(text, row->initial) == 0) /* the most is the default */
            snprintf(text, bytes, "%.0f", row->high - 1);
        break;
    case CDDP_KEY_NUMBER:
        snprintf(text, bytes, "%.17g", row->low + (row->high - row->low) * 0.1);
        break;
    case CDDP_KEY_CHOICE:
        snprintf(text, bytes, "%s", strrchr(row->choices, '|') + 1);
        break;
    case CDDP_KEY_SELECTOR:
        /* as long as a selection can be */
        snprintf(text, bytes,
                 "1,3-4,1%%2,1000000000-4294967291,1000000000-4294967292,1000000000-4294967293,"
                 "1000000000-4294967294,1000000000-4294967295");
        break;
    case CDDP_KEY_TEXT:
        snprintf(text, bytes, "say \"a\\b\"\nµ\x01=");
        break;
    case CDDP_KEY_TEXTS:
        snprintf(text, bytes, "a.*,\"b\"");
        break;
    case CDDP_KEY_NUMBERS:
        snprintf(text, bytes, "0.1,1e-05,3");
        break;
    case CDDP_KEY_UNSIGNEDS:
        snprintf(text, bytes, "0,7");
        break;
    }
}

/* "when[].sync" is set as "when.1.sync", so that an element without settings stands in front. */
static void set_row(cddp_plan *plan, const cd_key_row *row, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    char key[128];
    const char *dot = row->table[0] != '\0' ? "." : "";
    snprintf(key, sizeof key, "%s%s%s%s", row->table,
             cd_item_table_get(row->scope) != NULL ? ".1" : "", dot, row->field);
    if (cd_item_table_get(row->scope) != NULL)
        while (cd_plan_item_count(plan, row->scope) < 2)
            assert_ok(cd_plan_add_item(plan, row->scope, &err), &err);
    assert_ok(cddp_plan_set(plan, key, value, &err), &err);
}

typedef struct page {
    char bytes[65536];
    size_t used;
} page;

static void push(void *context, const char *text)
{
    page *p = context;
    const size_t length = strlen(text);
    assert_true(p->used + length < sizeof p->bytes);
    memcpy(p->bytes + p->used, text, length + 1);
    p->used += length;
}

static void print_plan(const cddp_plan *plan, page *p)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_draft draft;
    cd_draft_init(&draft);
    p->used = 0;
    assert_ok(cd_draft_take(&draft, plan, &err), &err);
    cd_draft_print(&draft, push, p);
    cd_draft_fini(&draft);
}

static cddp_plan *read_page(const page *p)
{
    cddp_error err = CDDP_ERROR_INIT;
    const cd_reader_options options = {.allocator = NULL};
    cddp_plan *plan = NULL;
    cddp_status status = cd_reader_read_text(&options, "draft.toml", p->bytes, &plan, &err);
    if (status != CDDP_OK) print_message("%s", p->bytes);
    assert_ok(status, &err);
    return plan;
}

static page first, second;

/* Written, read and written again it is the same text, and the plan means the same. */
static void assert_survives(const cddp_plan *plan, const char *name)
{
    print_plan(plan, &first);
    cddp_plan *again = read_page(&first);
    print_plan(again, &second);
    if (cddp_plan_digest(again) != cddp_plan_digest(plan))
        print_message("%s:\n%s", name, first.bytes);
    assert_true(cddp_plan_digest(again) == cddp_plan_digest(plan));
    assert_string_equal(first.bytes, second.bytes);
    cddp_plan_destroy(again);
}

static cddp_plan *make_plan(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "title", "a test", &err), &err);
    return plan;
}

/* What is refused when it stands alone, also for single ranks: parts of optimizers that are not
** sharded, and norms of nobody. */
static void give_optimizer(cddp_plan *plan, const cd_key_row *row, const char *value)
{
    cddp_error err = CDDP_ERROR_INIT;
    if (strcmp(row->table, "when") == 0 && strcmp(row->field, "group") == 0)
        assert_ok(cddp_plan_set(plan, "group.0.name", value, &err), &err);
    if (strcmp(row->table, "shard") == 0) {
        const char *kind = strcmp(row->field, "order") == 0 ? "parameters" : "flat";
        assert_ok(cddp_plan_set(plan, "optimizer.0.shard", kind, &err), &err);
    }
    if (strcmp(row->table, "clip") == 0 && strcmp(row->field, "group") == 0) {
        assert_ok(cddp_plan_set(plan, "clip.max_norm", "1", &err), &err);
        assert_ok(cddp_plan_set(plan, "group.0.name", value, &err), &err);
    }
}

/* Keys, and whole tables, that mean nothing without another key. */
static const struct {
    const char *table, *field, *but, *key, *value; /* field NULL: all of the table but one */
} companies[] = {
    {"agent", NULL, "", "rendezvous.enable", "true"},
    {"rendezvous", NULL, "enable", "rendezvous.enable", "true"},
    {"join", NULL, "enable", "join.enable", "true"},
    {"fsdp", NULL, "enable", "fsdp.enable", "true"},
    {"fsdp", "wrap_modules", "", "fsdp.auto_wrap_policy", "modules"},
    {"fsdp", "min_num_params", "", "fsdp.auto_wrap_policy", "size_based"},
    {"fsdp", "cast_forward_inputs", "", "mixed_precision.param_dtype", "bf16"},
    {"fsdp", "cast_root_forward_inputs", "", "mixed_precision.param_dtype", "bf16"},
    {"fsdp", "keep_low_precision_grads", "", "mixed_precision.param_dtype", "bf16"},
    {"fsdp", "state_dict_type", "", "train.checkpoint_step", "1"},
    {"fsdp", "rank0_only", "", "train.checkpoint_step", "1"},
    {"fsdp", "resume_strategy", "", "train.checkpoint_step", "1"},
    {"fsdp", "resume_strategy", "", "train.resume", "true"},
    {"fsdp", "resume_layout", "", "train.checkpoint_step", "1"},
    {"fsdp", "resume_layout", "", "train.resume", "true"},
    {"fsdp", "limit_all_gathers", "", "streams.producers", "2"},
    {"fsdp", "device_id", "", "streams.producers", "2"},
    {"zero", NULL, "stage", "zero.stage", "3"},
    {"zero", "reduce_bucket_size", "", "zero.stage", "1"},
    {"streams", "operation_us", "", "streams.producers", "2"},
    {"output", NULL, "name", "output.0.name", "a"},
    {"when", "ready_order", "", "when.0.ready", "listed"},
    {"network", NULL, "transport", "network.transport", "messages"},
    {"averager", NULL, "kind", "averager.kind", "periodic"},
    {"hook", "continuations", "", "hook.name", "allreduce"},
    {"clip", "place", "", "clip.max_norm", "1"},
    {"clip", "norm_type", "", "clip.max_norm", "1"},
    {"ddp", "average_contributions", "", "ddp.accumulate_in_hook", "true"},
    {"ddp", "skip_all_reduce_unused_params", "", "ddp.find_unused_parameters", "true"},
    {"expect", "error", "", "expect.verdict", "error"},
    {"optimizer", "nesterov", "", "optimizer.0.momentum", "0.5"},
    {"train", "resume", "", "train.checkpoint_step", "1"},
    {"schedule", "turns", "", "wrapper.0.name", "a"},
    {"wrapper", NULL, "", "wrapper.0.name", "a"},
    {"wrapper", "own_group", "", "wrapper.1.name", "b"},
};

static void give_company(cddp_plan *plan, const cd_key_row *row)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t i = 0; i < sizeof companies / sizeof companies[0]; i++)
        if (strcmp(row->table, companies[i].table) == 0 &&
            (companies[i].field == NULL ? strcmp(row->field, companies[i].but) != 0
                                        : strcmp(row->field, companies[i].field) == 0))
            assert_ok(cddp_plan_set(plan, companies[i].key, companies[i].value, &err), &err);
    if (strcmp(row->table, "averager") == 0 && strcmp(row->field, "levels") != 0)
        assert_ok(cddp_plan_set(plan, "averager.levels", "4", &err), &err);
    if (strcmp(row->field, "wrapper") == 0) {
        char name[256];
        other_value(row, name, sizeof name);
        assert_ok(cddp_plan_set(plan, "wrapper.0.name", name, &err), &err);
    }
}

static bool is_schema(const cd_key_row *row) { return strcmp(row->field, "schema") == 0; }

TEST(draft, every_key_is_written_as_the_reader_reads_it)
{
    size_t survived = 0;
    for (size_t i = 0; i < cd_key_count(); i++) {
        char value[256] = "";
        const cd_key_row *row = cd_key_row_get(i);
        if (is_schema(row)) continue;
        cddp_plan *plan = make_plan();
        other_value(row, value, sizeof value);
        give_company(plan, row);
        give_optimizer(plan, row, value);
        set_row(plan, row, value);
        /* Some keys contradict the rest of a plan when they stand alone, and the reader says so. */
        if (cddp_plan_check(plan, NULL) == CDDP_OK) {
            assert_survives(plan, row->field);
            survived++;
        }
        print_plan(plan, &first);
        /* It is not there by its default: the plan without it means something else, or prints
        ** something else. */
        cddp_plan *bare = make_plan();
        give_company(bare, row);
        give_optimizer(bare, row, value);
        print_plan(bare, &second);
        if (strcmp(first.bytes, second.bytes) == 0)
            fail_msg("%s.%s is not written", row->table, row->field);
        cddp_plan_destroy(bare);
        cddp_plan_destroy(plan);
    }
    assert_true(survived * 4 > cd_key_count() * 3);
}

TEST(draft, what_some_ranks_have_is_written_as_a_rank_table)
{
    cddp_error err = CDDP_ERROR_INIT;
    size_t asked = 0, survived = 0;
    for (size_t i = 0; i < cd_key_count(); i++) {
        char value[256] = "", key[128];
        const cd_key_row *row = cd_key_row_get(i);
        if (row->scope != CD_SCOPE_RANK || !cd_key_is_per_rank(row)) continue;
        cddp_plan *plan = make_plan();
        other_value(row, value, sizeof value);
        snprintf(key, sizeof key, "%s.%s@0,2-3", row->table, row->field);
        give_company(plan, row);
        give_optimizer(plan, row, value);
        assert_ok(cddp_plan_set(plan, key, value, &err), &err);
        print_plan(plan, &first);
        assert_non_null(strstr(first.bytes, "[[rank]]\nranks = \"0,2-3\"\n"));
        asked++;
        /* as above, of single ranks */
        if (cddp_plan_check(plan, NULL) == CDDP_OK) {
            cddp_plan *again = read_page(&first);
            print_plan(again, &second);
            assert_string_equal(first.bytes, second.bytes);
            cddp_plan_destroy(again);
            survived++;
        }
        cddp_plan_destroy(plan);
    }
    assert_true(survived * 4 > asked * 3);
}

TEST(draft, ranks_are_written_however_long_their_selection_is)
{
    static const char ranks[] =
        "0,1000000001-4294967295,1000000002-4294967295,1000000003-4294967295,1000000004-4294967295,"
        "1000000005-4294967295,1000000006-4294967295,1000000007-4294967295";
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan();
    cddp_selector selector;
    char words[CD_SELECTOR_TEXT_BYTES];
    assert_ok(cd_selector_parse(ranks, &selector, &err), &err);
    cd_selector_print(&selector, words, sizeof words);
    assert_string_equal(words, ranks);
    const char *three = "3";
    const cd_key_value value = {&three, 1};
    const cd_plan_owner owner = {.ranks = selector, .element = CD_PLAN_ALL_ELEMENTS};
    assert_ok(cd_plan_add_override(plan, &owner, cd_key_find_path("train.steps"), &value, &err),
              &err);
    print_plan(plan, &first);
    assert_non_null(strstr(first.bytes, ranks));
    assert_survives(plan, "ranks");
    cddp_plan_destroy(plan);
}

/* The last word counts, as on the command line after the file. */
TEST(draft, what_some_ranks_have_may_be_said_again)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan_settings settings;
    cddp_plan *plan = make_plan();
    assert_ok(cddp_plan_set(plan, "train.steps@1", "5", &err), &err);
    assert_ok(cddp_plan_set(plan, "data.samples@1", "4", &err), &err);
    assert_ok(cddp_plan_set(plan, "train.steps@1", "7", &err), &err);
    print_plan(plan, &first);
    cddp_plan *again = read_page(&first);
    assert_ok(cddp_plan_rank_settings(again, 1, &settings, &err), &err);
    assert_int_equal(settings.train.steps, 7);
    assert_int_equal(settings.data.samples, 4);
    cddp_plan_destroy(again);
    cddp_plan_destroy(plan);
}

/* Of all optimizers, and of one. What goes with an element that is removed is its own. */
TEST(draft, an_optimizer_of_some_ranks_is_written_as_the_reader_reads_it)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan(), *made = NULL;
    cd_draft draft;
    assert_ok(cddp_plan_set(plan, "optimizer.0.lr", "0.25", &err), &err);
    assert_ok(cddp_plan_set(plan, "optimizer.1.momentum", "0.5", &err), &err);
    assert_ok(cddp_plan_set(plan, "optimizer.2.lr", "1", &err), &err);
    assert_ok(cddp_plan_set(plan, "optimizer.weight_decay@1", "0.125", &err), &err);
    assert_ok(cddp_plan_set(plan, "optimizer.1.lr@1", "2", &err), &err);
    assert_ok(cddp_plan_set(plan, "optimizer.2.steps@1", "1%2", &err), &err);
    print_plan(plan, &first);
    cddp_plan *again = read_page(&first);
    for (uint32_t rank = 0; rank < 2; rank++) {
        for (size_t i = 0; i < 3; i++) {
            const cddp_plan_optimizer a = cd_plan_optimizer_of(plan, rank, i),
                                      b = cd_plan_optimizer_of(again, rank, i);
            assert_true(a.lr == b.lr && a.momentum == b.momentum);
            assert_true(a.weight_decay == b.weight_decay);
            assert_int_equal(a.steps.term_count, b.steps.term_count);
        }
    }
    cddp_plan_destroy(again);
    assert_non_null(strstr(first.bytes, "optimizer.weight_decay = 0.125"));
    assert_non_null(strstr(first.bytes, "optimizer.1.lr = 2"));
    cd_draft_init(&draft);
    assert_ok(cd_draft_take(&draft, plan, &err), &err);
    cd_draft_remove_element(&draft, CD_SCOPE_optimizer, 1);
    assert_ok(cd_draft_make(&draft, &made, &err), &err);
    const cddp_plan_optimizer own = cd_plan_optimizer_of(made, 1, 1),
                              other = cd_plan_optimizer_of(made, 0, 1);
    assert_true(own.lr == 1 && own.weight_decay == 0.125 && !cddp_selector_has(&own.steps, 0));
    assert_true(other.lr == 1 && other.weight_decay == 0 && cddp_selector_has(&other.steps, 0));
    cddp_plan_destroy(made);
    cd_draft_fini(&draft);
    cddp_plan_destroy(plan);
}

TEST(draft, defaults_are_left_out)
{
    cddp_plan *plan = make_plan();
    print_plan(plan, &first);
    assert_string_equal(first.bytes, "schema = 1\ntitle = \"a test\"\n");
    cddp_plan_destroy(plan);
}

TEST(draft, an_element_that_goes_renumbers_those_behind_it)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = make_plan(), *made = NULL;
    cd_draft draft, copy;
    assert_ok(cddp_plan_set(plan, "when.0.skip", "step", &err), &err);
    assert_ok(cddp_plan_set(plan, "when.1.stop", "true", &err), &err);
    assert_ok(cddp_plan_set(plan, "when.2.samples", "5", &err), &err);
    cd_draft_init(&draft);
    cd_draft_init(&copy);
    assert_ok(cd_draft_take(&draft, plan, &err), &err);
    assert_ok(cd_draft_copy(&copy, &draft, &err), &err);
    cd_draft_remove_element(&copy, CD_SCOPE_when, 1);
    assert_ok(cd_draft_make(&copy, &made, &err), &err);
    assert_int_equal(made->when_count, 2);
    assert_int_equal(made->whens[0].skip, 2);
    assert_true(made->whens[1].stop == CDDP_PLAN_UNSET);
    assert_int_equal(made->whens[1].samples, 5);
    assert_int_equal(draft.element_count[CD_SCOPE_when], 3);
    cddp_plan_destroy(made);
    cd_draft_fini(&copy);
    cd_draft_fini(&draft);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
