/* SPDX-License-Identifier: Apache-2.0 */
/* The report card of hooks: every compiled-in hook keeps every law, and each planted mistake breaks
** the law it is named for. */
#include "verify/conformance/hook_battery.h"

#include "core/hooks/hook.h"
#include "tests/plants/card_hooks.h"
#include "tests/support/test.h"

#include <string.h>

static cd_hook_card judged(const cddp_hook *hook, const cddp_hook *inner, const char *options)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_hook_subject subject = {.hook = hook, .inner = inner, .options = options};
    cd_hook_card card;
    assert_ok(cd_hook_battery_run(&subject, &card, &err), &err);
    return card;
}

TEST(hook_battery, hooks_that_compress_keep_every_law)
{
    static const struct {
        const cddp_hook *hook, *inner;
        const char *options;
        bool is_exact, owes, states; /* sends later what it kept back; states its own laws */
        /* -1: less than the plain all-reduce; 1: more, as exact bins do and a topk that leaves
        ** nothing; 0: as much */
        int sends;
    } cases[] = {
        /* clang-format off */
        {&cd_hook_allreduce, NULL, NULL, true, false, false, 0},
        {&cd_hook_fp16_compress, NULL, NULL, false, false, false, -1},
        {&cd_hook_bf16_compress, NULL, NULL, false, false, false, -1},
        {&cd_hook_fp16_compress_wrapper, &cd_hook_allreduce, NULL, false, false, true, -1},
        {&cd_hook_powersgd, NULL, "start_powerSGD_iter=2,min_compression_rate=1", false, true, true, -1},
        {&cd_hook_powersgd, NULL, "start_powerSGD_iter=2,min_compression_rate=1,feedback_every_n_iters=3", false, true, true, -1},
        {&cd_hook_powersgd, NULL, "start_powerSGD_iter=2,min_compression_rate=1,feedback_every_n_iters=5", false, true, true, -1},
        {&cd_hook_fp16_compress_wrapper, &cd_hook_powersgd, "start_powerSGD_iter=2,min_compression_rate=1", false, true, true, -1},
        {&cd_hook_bf16_compress_wrapper, &cd_hook_topk, "k=2", false, true, true, -1},
        {&cd_hook_batched_powersgd, NULL, "start_powerSGD_iter=2", false, true, true, -1},
        {&cd_hook_topk, NULL, "k=2", false, true, true, -1},
        {&cd_hook_topk, NULL, "ratio=1", false, false, true, 1},
        {&cd_hook_reproducible, NULL, NULL, false, false, false, 1},
        {&cd_hook_quantize_per_tensor, NULL, NULL, false, false, true, -1},
        {&cd_hook_quantize_per_channel, NULL, "bucket_size=16", false, false, true, -1},
        {&cd_hook_post_local_sgd, NULL, "start_localSGD_iter=2,subgroup_size=1", false, false, false, -1},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_hook_card card = judged(cases[i].hook, cases[i].inner, cases[i].options);
        for (int law = 0; law < CD_LAW_COUNT; law++) {
            cd_test_row("%s: %s: %s", cases[i].hook->name, cd_hook_law_name((cd_hook_law)law),
                        card.lines[law].first);
            assert_int_equal(card.lines[law].failed_count, 0);
        }
        assert_true(card.lines[CD_LAW_JUDGED].case_count > 160);
        assert_true(card.judged_count > 5000);
        assert_int_equal(card.is_exact, cases[i].is_exact);
        assert_int_equal(card.refused, 0);
        assert_int_equal((card.bytes_factor < 1) - (card.bytes_factor > 1), cases[i].sends);
        assert_int_equal(card.goes_apart, cases[i].hook == &cd_hook_post_local_sgd);
        cd_test_row("%s", cases[i].hook->name);
        assert_int_equal(card.lines[CD_LAW_KEPT].case_count, cases[i].owes);
        assert_int_equal(card.stated_count > 0, cases[i].states);
        assert_int_equal(card.lines[CD_LAW_VISIBLE].case_count, 2);
        assert_true(card.lines[CD_LAW_FOREIGN].case_count == 5 || !cases[i].owes);
        assert_int_equal(card.lines[CD_LAW_STATED].case_count > 40, cases[i].states);
        /* with few elements, too, whoever owes */
        assert_int_equal(card.lines[CD_LAW_LARGE].case_count, cases[i].owes ? 17 : 14);
        assert_int_equal(card.too_large, 0);
        /* all backwards together, and of ten each in two buckets */
        assert_true(card.lines[CD_LAW_ARRIVES].case_count == 21);
        assert_true(card.lines[CD_LAW_RUNS].case_count >= 40);
        assert_true(card.lines[CD_LAW_BYTES].case_count >= 41); /* every world and the long run */
        assert_true(card.lines[CD_LAW_JOIN].case_count == 8 &&
                    card.lines[CD_LAW_UNUSED].case_count == 16);
        assert_int_equal(card.lines[CD_LAW_NO_SYNC].case_count,
                         cases[i].hook->accumulate != NULL ? 16 : 8);
    }
}

/* A plugin's hook, which names its law: as a copy of one of this build is. */
static cddp_hook stranger(const cddp_hook *like, uint32_t law)
{
    cddp_hook hook = *like;
    hook.name = "stranger";
    hook.flags |= law;
    return hook;
}

static cddp_status create_with_another_k(const cddp_hook_context *context, void **self,
                                         cddp_error *err)
{
    cddp_hook_context other = *context;
    other.options = "k=3";
    return cd_hook_topk.create(&other, self, err);
}

TEST(hook_battery, a_plugin_is_judged_by_the_law_that_it_names)
{
    static const struct {
        const cddp_hook *like;
        uint32_t law;
        const char *options;
    } cases[] = {
        {&cd_hook_topk, CDDP_HOOK_LAW_TOPK, "k=2"},
        {&cd_hook_powersgd, CDDP_HOOK_LAW_POWERSGD, "start_powerSGD_iter=2,min_compression_rate=1"},
        {&cd_hook_quantize_per_tensor, CDDP_HOOK_LAW_QUANTIZE_PER_TENSOR, NULL},
        {&cd_hook_quantize_per_channel, CDDP_HOOK_LAW_QUANTIZE_PER_CHANNEL, "bucket_size=16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const cddp_hook hook = stranger(cases[i].like, cases[i].law);
        cd_hook_card card = judged(&hook, NULL, cases[i].options);
        cd_test_row("%s: %s", cases[i].like->name, card.lines[CD_LAW_JUDGED].first);
        assert_int_equal(card.lines[CD_LAW_JUDGED].failed_count, 0);
        assert_true(card.judged_count > 5000);
    }
    cddp_hook hook = stranger(&cd_hook_topk, CDDP_HOOK_LAW_TOPK);
    hook.create = create_with_another_k;
    cd_hook_card card = judged(&hook, NULL, "k=2");
    assert_true(card.lines[CD_LAW_JUDGED].failed_count > 0);
    /* which names no law */
    hook = stranger(&cd_hook_topk, 0);
    card = judged(&hook, NULL, "k=2");
    assert_int_equal(card.lines[CD_LAW_JUDGED].case_count, 0);
}

/* Blocks of two ranks are for worlds of 2 and 8. */
TEST(hook_battery, options_are_judged_where_they_apply)
{
    cd_hook_card card =
        judged(&cd_hook_post_local_sgd, NULL, "start_localSGD_iter=2,subgroup_size=2");
    for (int law = 0; law < CD_LAW_COUNT; law++) {
        cd_test_row("%s: %s", cd_hook_law_name((cd_hook_law)law), card.lines[law].first);
        assert_int_equal(card.lines[law].failed_count, 0);
        assert_true(card.lines[law].case_count > 0 || law == CD_LAW_ROUNDED || law == CD_LAW_KEPT ||
                    law == CD_LAW_STATED || law == CD_LAW_DRAWS);
    }
    assert_int_equal(card.skipped, 1u << 1 | 1u << 3 | 1u << 5);
    assert_non_null(strstr(card.skipped_because, "blocks of 2 ranks do not divide the 1 of group"));
    assert_int_equal(card.lines[CD_LAW_RUNS].case_count, 16);
}

/* Nor is anything said about options that fit no world of several ranks. */
TEST(hook_battery, options_for_no_world_are_wrong)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_hook_subject subject = {.hook = &cd_hook_post_local_sgd,
                               .options = "start_localSGD_iter=2,subgroup_size=7"};
    cd_hook_card card;
    assert_int_equal(cd_hook_battery_run(&subject, &card, &err), CDDP_E_CONFIG);
    assert_non_null(strstr(err.message, "blocks of 7 ranks do not divide"));
}

TEST(hook_battery, every_hook_of_the_table_promises_its_bytes)
{
    for (size_t i = 0; cd_hook_get_row(i) != NULL; i++) {
        cd_test_row("%s", cd_hook_get_row(i)->hook->name);
        assert_non_null(cd_hook_get_row(i)->hook->promise);
    }
}

TEST(hook_battery, each_planted_mistake_breaks_the_law_it_is_about)
{
    static const struct {
        cd_hook_law law;
        const char *words;
    } expected[] = {
        /* clang-format off */
        {CD_LAW_RANGE, "such ranks do not"},          {CD_LAW_DIVISOR, "one rank gets"},
        {CD_LAW_BYTES, "bytes travelled"},            {CD_LAW_ARRIVES, "is 0 in all"},
        {CD_LAW_REBUILD, "keep state by parameter"},  {CD_LAW_RESUME, "resumed before step"},
        {CD_LAW_PHASE, "count backwards on the last"}, {CD_LAW_UNTOUCHED, "wrote before its bucket"},
        {CD_LAW_UNTOUCHED, "after its future"},       {CD_LAW_RUNS, "rank"},
        {CD_LAW_BYTES, "were promised"},              {CD_LAW_JOIN, "zeros on one rank only"},
        {CD_LAW_UNUSED, "with zeros in a whole backward"}, {CD_LAW_NO_SYNC, "with zeros in a whole backward"},
        {CD_LAW_ARRIVES, "alone brought into bucket 1"}, {CD_LAW_ARRIVES, "as much came out"},
        {CD_LAW_KEPT, "sends no more"},               {CD_LAW_STATED, "gradient = sent"},
        {CD_LAW_FOREIGN, "compare model_digest"},     {CD_LAW_VISIBLE, "nothing but finite numbers"},
        {CD_LAW_LARGE, "a bucket of 1025 elements: of element 1024"}, {CD_LAW_LARGE, "a bucket of 65537 elements: of element 0 "},
        {CD_LAW_JUDGED, "the result is the mean of what the ranks send"}, {CD_LAW_DRAWS, "does not advance"},
        {CD_LAW_DRAWS, "declared to be shared, and differs"},
        /* clang-format on */
    };
    for (size_t i = 0; card_hooks[i] != NULL; i++) {
        if (!cd_test_draws(i)) continue;
        cd_hook_card card = judged(card_hooks[i], NULL, NULL);
        const cd_hook_line *line = &card.lines[expected[i].law];
        cd_test_row("%s: %s: %s", card_hooks[i]->name, cd_hook_law_name(expected[i].law),
                    line->first);
        assert_true(line->failed_count > 0);
        assert_non_null(strstr(line->first, expected[i].words));
        for (int law = 0; law < CD_LAW_COUNT; law++) {
            /* A bucket of nothing but zeros on one rank comes of both; of an element that is never
            ** sent nobody sees a NaN, either. */
            bool is_both = (expected[i].law == CD_LAW_JOIN && law == CD_LAW_UNUSED) ||
                           (expected[i].law == CD_LAW_ARRIVES && law == CD_LAW_VISIBLE);
            if (law == (int)expected[i].law || is_both) continue;
            cd_test_row("%s also breaks %s: %s", card_hooks[i]->name,
                        cd_hook_law_name((cd_hook_law)law), card.lines[law].first);
            assert_int_equal(card.lines[law].failed_count, 0);
        }
    }
}

TEST_MAIN()
