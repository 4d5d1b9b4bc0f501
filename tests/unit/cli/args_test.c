/* SPDX-License-Identifier: Apache-2.0 */
/* The command line as a table. */
#include "cli/args.h"

#include "core/base/suggest.h"
#include "tests/support/test.h"

#include <string.h>

#define PARSE(args, err, ...)                                                            \
    cd_args_parse((args), (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), \
                  (char **)(const char *[]){__VA_ARGS__}, (err))

TEST(args, every_spelling_of_an_option_means_the_same)
{
    static const char *const spellings[][3] = {{"a.toml", "--world-size", "4"},
                                               {"--world-size=4", "a.toml", NULL},
                                               {"-n", "4", "a.toml"},
                                               {"-n4", "a.toml", NULL}};
    for (size_t i = 0; i < 4; i++) {
        cd_args args;
        cddp_error err = CDDP_ERROR_INIT;
        uint64_t ranks = 0;
        cd_test_row("%s", spellings[i][0]);
        assert_ok(cd_args_parse(&args, spellings[i][2] != NULL ? 3 : 2, (char **)spellings[i],
                                &err),
                  &err);
        assert_int_equal(args.command, CD_COMMAND_run);
        assert_ok(cd_args_number(&args, CD_OPTION_world_size, &ranks, &err), &err);
        assert_int_equal(ranks, 4);
        assert_int_equal(args.operand_count, 1);
        assert_string_equal(args.operands[0], "a.toml");
        cd_args_fini(&args);
    }
}

TEST(args, a_time_is_a_number_with_a_unit_and_seconds_without)
{
    static const struct {
        const char *text;
        uint64_t ns; /* 0: refused */
    } rows[] = {{"1", 1000000000},
                {"0.2", 200000000},
                {"0.2s", 200000000},
                {"200ms", 200000000},
                {"5m", 300000000000},
                {"0", 0},
                {"-1s", 0},
                {"", 0},
                {"1h", 0},
                {"nan", 0},
                {"1e30", 0},
                {"1e-12", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_args args;
        cddp_error err = CDDP_ERROR_INIT;
        uint64_t ns = 7;
        cd_test_row("%s", rows[i].text);
        assert_ok(PARSE(&args, &err, "watch", "--interval", rows[i].text, "run.db"), &err);
        const cddp_status status = cd_args_time(&args, CD_OPTION_interval, &ns, &err);
        assert_int_equal(status, rows[i].ns != 0 ? CDDP_OK : CDDP_E_ARG);
        assert_int_equal(ns, rows[i].ns != 0 ? rows[i].ns : 7);
        cd_args_fini(&args);
    }
}

TEST(args, flags_bundle_and_the_last_of_them_may_take_a_value)
{
    cd_args args;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(PARSE(&args, &err, "run", "-kvj3", "x"), &err);
    assert_true(cd_args_has(&args, CD_OPTION_keep_going));
    assert_true(cd_args_has(&args, CD_OPTION_verbose));
    assert_string_equal(cd_args_text(&args, CD_OPTION_jobs, ""), "3");
    cd_args_fini(&args);
}

TEST(args, repeated_options_keep_their_order_and_single_ones_their_last_value)
{
    cd_args args;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(PARSE(&args, &err, "run", "--set", "a=1", "x", "-sb=2", "--seed", "1", "--set=c=3",
                    "--seed=2"),
              &err);
    assert_string_equal(cd_args_value(&args, CD_OPTION_set, 0), "a=1");
    assert_string_equal(cd_args_value(&args, CD_OPTION_set, 1), "b=2");
    assert_string_equal(cd_args_value(&args, CD_OPTION_set, 2), "c=3");
    assert_null(cd_args_value(&args, CD_OPTION_set, 3));
    assert_string_equal(cd_args_text(&args, CD_OPTION_seed, ""), "2");
    cd_args_fini(&args);
}

TEST(args, what_new_makes_is_a_word_or_an_option)
{
    static const char *const words[] = {"--hang", "hang", "--backend", "backend"};
    for (size_t i = 0; i < 4; i++) {
        cd_args args;
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", words[i]);
        assert_ok(PARSE(&args, &err, "new", words[i], "-o", "x"), &err);
        assert_int_equal(args.command, CD_COMMAND_new);
        assert_int_equal(args.operand_count, 1);
        assert_string_equal(args.operands[0], words[i / 2 * 2 + 1]);
        cd_args_fini(&args);
    }
}

TEST(args, two_hyphens_end_the_options)
{
    cd_args args;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(PARSE(&args, &err, "run", "--", "--seed", "-"), &err);
    assert_int_equal(args.operand_count, 2);
    assert_string_equal(args.operands[0], "--seed");
    assert_string_equal(args.operands[1], "-");
    cd_args_fini(&args);
}

TEST(args, numbers_are_decimal_or_hexadecimal_and_nothing_else)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t value;
    } cases[] = {{"17", true, 17},
                 {"0x10", true, 16},
                 {"010", true, 10},
                 {"0x", false, 0},
                 {"0x-1", false, 0},
                 {"--1", false, 0},
                 {"18446744073709551615", true, UINT64_MAX},
                 {"18446744073709551616", false, 0},
                 {"", false, 0},
                 {" 1", false, 0},
                 {"1 ", false, 0},
                 {"+1", false, 0},
                 {"-1", false, 0},
                 {"1e3", false, 0},
                 {"seven", false, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_args args;
        cddp_error err = CDDP_ERROR_INIT;
        uint64_t value = 99;
        cd_test_row("'%s'", cases[i].text);
        assert_ok(PARSE(&args, &err, "run", "x", "--seed", cases[i].text), &err);
        cddp_status status = cd_args_number(&args, CD_OPTION_seed, &value, &err);
        assert_int_equal(status, cases[i].good ? CDDP_OK : CDDP_E_ARG);
        assert_int_equal(value, cases[i].good ? cases[i].value : 99);
        cd_args_fini(&args);
    }
}

/* The tables themselves: names that would make the parser ambiguous. */
TEST(args, no_two_options_share_a_name_or_a_letter)
{
    for (int i = 0; i < CD_OPTION_COUNT; i++)
        for (int k = 0; k < i; k++) {
            cd_test_row("%s and %s", cd_options[i].name, cd_options[k].name);
            assert_string_not_equal(cd_options[i].name, cd_options[k].name);
            assert_true(cd_options[i].letter == 0 || cd_options[i].letter != cd_options[k].letter);
        }
}

TEST(suggest, near_names_are_found_and_far_ones_are_not)
{
    static const struct {
        const char *wanted, *best;
    } cases[] = {{"rnu", "run"},  {"chek", "check"}, {"reprot", "report"}, {"explian", "explain"},
                 {"lst", "list"}, {"zzz", NULL},     {"frobnicate", NULL}, {"x", NULL}};
    static const char *const names[] = {"run", "check", "report", "list", "explain"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_suggestion s;
        cd_test_row("%s", cases[i].wanted);
        cd_suggest_begin(&s, cases[i].wanted);
        for (size_t k = 0; k < 5; k++) cd_suggest_offer(&s, names[k]);
        if (cases[i].best == NULL)
            assert_null(s.best);
        else
            assert_string_equal(s.best, cases[i].best);
    }
}

TEST_MAIN()
