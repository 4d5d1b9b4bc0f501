/* SPDX-License-Identifier: Apache-2.0 */
/* Wrap policies, against what PyTorch 1.13.1 wraps. */
#include "cddp/fsdp.h"

#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

/* Layers of 110 elements as `A, Seq(B, C), List(D, E), MHA(330 + 110)`. */
static const uint32_t of_a[] = {0}, of_b[] = {1}, of_c[] = {2}, of_d[] = {3}, of_e[] = {4},
                      of_mha[] = {5}, of_out[] = {6};
static const int64_t numels[] = {110, 110, 110, 110, 110, 330, 110};
static const cddp_fsdp_module modules[] = {
    {"", "Model", -1, NULL, 0},
    {"a", "Linear", 0, of_a, 1},
    {"seq", "Sequential", 0, NULL, 0},
    {"seq.0", "Linear", 2, of_b, 1},
    {"seq.1", "Linear", 2, of_c, 1},
    {"list", "ModuleList", 0, NULL, 0},
    {"list.0", "Linear", 5, of_d, 1},
    {"list.1", "Linear", 5, of_e, 1},
    {"mha", "MultiheadAttention", 0, of_mha, 1},
    {"mha.out_proj", "Linear", 8, of_out, 1},
};
#define MODULES (sizeof modules / sizeof modules[0])
#define PARAMETERS (sizeof numels / sizeof numels[0])

static cddp_status try_units(const cddp_fsdp_wrap_policy *policy, char *text, cddp_error *err)
{
    bool is_unit[MODULES];
    const cddp_status status =
        cddp_fsdp_wrap(modules, MODULES, numels, PARAMETERS, policy, NULL, is_unit, err);
    text[0] = '\0';
    for (size_t m = 0; m < MODULES && status == CDDP_OK; m++)
        if (is_unit[m]) {
            strncat(text, text[0] != '\0' ? " " : "", 255 - strlen(text));
            strncat(text, m == 0 ? "root" : modules[m].name, 255 - strlen(text));
        }
    return status;
}

static void assert_units(const cddp_fsdp_wrap_policy *policy, const char *wanted)
{
    char text[256];
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(try_units(policy, text, &err), &err);
    assert_string_equal(text, wanted);
}

TEST(wrap, by_size_enters_what_is_large_and_wraps_what_is_left) /* FSD-21 */
{
    static const struct {
        int64_t least;
        const char *wanted;
    } cases[] = {{1, "root a seq.0 seq.1 list.0 list.1"},
                 {110, "root a seq.0 seq.1 list.0 list.1"},
                 {111, "root seq"},
                 {220, "root seq"},
                 {221, "root"},
                 {100000000, "root"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        cddp_fsdp_wrap_policy policy = cddp_fsdp_wrap_policy_default();
        assert_int_equal(policy.min_num_params, 100000000);
        policy.kind = CDDP_FSDP_WRAP_SIZE;
        policy.min_num_params = cases[c].least;
        cd_test_row("at least %lld", (long long)cases[c].least);
        assert_units(&policy, cases[c].wanted);
    }
}

TEST(wrap, by_size_counts_a_shared_parameter_once)
{
    static const uint32_t shared[] = {0}, own[] = {1};
    static const int64_t sizes[] = {110, 5};
    static const cddp_fsdp_module tied[] = {{"", "Model", -1, own, 1},
                                            {"seq", "Sequential", 0, NULL, 0},
                                            {"seq.0", "Linear", 1, shared, 1},
                                            {"seq.1", "Linear", 1, shared, 1}};
    for (int64_t least = 110; least <= 111; least++) {
        bool is_unit[4];
        cddp_error err = CDDP_ERROR_INIT;
        cddp_fsdp_wrap_policy policy = cddp_fsdp_wrap_policy_default();
        policy.kind = CDDP_FSDP_WRAP_SIZE;
        policy.min_num_params = least;
        cd_test_row("at least %lld", (long long)least);
        assert_ok(cddp_fsdp_wrap(tied, 4, sizes, 2, &policy, NULL, is_unit, &err), &err);
        assert_true(is_unit[0] && (is_unit[1] || is_unit[2]) == (least == 110));
    }
}

TEST(wrap, by_type_wraps_inside_of_attention_too) /* FSD-22 */
{
    static const char *const linear[] = {"Linear"}, *const attention[] = {"MultiheadAttention"};
    cddp_fsdp_wrap_policy policy = cddp_fsdp_wrap_policy_default();
    policy.kind = CDDP_FSDP_WRAP_TYPES;
    policy.words = linear;
    policy.word_count = 1;
    assert_units(&policy, "root a seq.0 seq.1 list.0 list.1 mha.out_proj");
    policy.words = attention;
    assert_units(&policy, "root mha");
}

TEST(wrap, by_name_and_always)
{
    static const char *const names[] = {"list.1", "seq"};
    cddp_fsdp_wrap_policy policy = cddp_fsdp_wrap_policy_default();
    assert_units(&policy, "root");
    policy.kind = CDDP_FSDP_WRAP_NAMES;
    policy.words = names;
    policy.word_count = 2;
    assert_units(&policy, "root seq list.1");
    policy.kind = CDDP_FSDP_WRAP_ALWAYS;
    assert_units(&policy, "root a seq seq.0 seq.1 list list.0 list.1 mha mha.out_proj");
}

TEST(wrap, refuses_what_does_not_exist)
{
    static const char *const nowhere[] = {"seq.2"}, *const untyped[] = {"Conv2d"};
    char text[256];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_fsdp_wrap_policy policy = cddp_fsdp_wrap_policy_default();
    policy.kind = CDDP_FSDP_WRAP_NAMES;
    assert_fails(try_units(&policy, text, &err), CDDP_E_ARG, &err, "by names has none");
    policy.words = nowhere;
    policy.word_count = 1;
    assert_fails(try_units(&policy, text, &err), CDDP_E_CONFIG, &err,
                 "names module 'seq.2', which no module has");
    policy.kind = CDDP_FSDP_WRAP_TYPES;
    policy.words = untyped;
    assert_fails(try_units(&policy, text, &err), CDDP_E_CONFIG, &err, "type 'Conv2d'");
    policy.kind = CDDP_FSDP_WRAP_SIZE;
    policy.min_num_params = 0;
    assert_fails(try_units(&policy, text, &err), CDDP_E_ARG, &err, "min_num_params is 0");
}

TEST(wrap, refuses_a_list_that_is_no_tree)
{
    cddp_fsdp_module wrong[3] = {modules[0], modules[1], modules[2]};
    bool is_unit[3];
    cddp_error err = CDDP_ERROR_INIT;
    const cddp_fsdp_wrap_policy policy = cddp_fsdp_wrap_policy_default();
    wrong[1].parent = 2;
    assert_fails(cddp_fsdp_wrap(wrong, 3, numels, PARAMETERS, &policy, NULL, is_unit, &err),
                 CDDP_E_ARG, &err, "module 1 'a' has parent 2");
    wrong[1].parent = 0;
    wrong[2].name = "a";
    assert_fails(cddp_fsdp_wrap(wrong, 3, numels, PARAMETERS, &policy, NULL, is_unit, &err),
                 CDDP_E_ARG, &err, "two modules are named 'a': 1 and 2");
    assert_fails(cddp_fsdp_wrap(modules, 3, numels, 0, &policy, NULL, is_unit, &err), CDDP_E_ARG,
                 &err, "module 'a' lists parameter 0 of 0");
    assert_fails(cddp_fsdp_wrap(modules, 0, numels, PARAMETERS, &policy, NULL, is_unit, &err),
                 CDDP_E_ARG, &err, "there are no modules");
    assert_fails(cddp_fsdp_wrap(NULL, 3, numels, PARAMETERS, &policy, NULL, is_unit, &err),
                 CDDP_E_ARG, &err, "there are no modules");
}

TEST_MAIN()
