/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as text, in the "C" locale and in one with a decimal comma. */
#include "core/base/real.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "tests/support/test.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *text;
    double number;
    size_t read;
} rows[] = {
    {"2.5", 2.5, 3},     {"-0.125e-3x", -0.125e-3, 9},
    {"1e3", 1000.0, 3},  {"7", 7.0, 1},
    {".5,1.5", 0.5, 2},  {"1.2.3", 1.2, 3},
    {"2,5", 2.0, 1},     {"x", 0.0, 0},
    {"0x1.8p1", 3.0, 7}, {"inf", INFINITY, 3},
    {"3.", 3.0, 2},      {"", 0.0, 0},
    {"12 5.5", 12.0, 2},
};

static void check_numbers(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *end, text[40];
        cd_test_row("\"%s\"", rows[i].text);
        assert_true(cd_real_parse(rows[i].text, &end) == rows[i].number);
        assert_int_equal(end - rows[i].text, rows[i].read);
        cd_real_print(rows[i].number, 17, text, sizeof text);
        assert_null(strchr(text, ','));
        assert_true(cd_real_parse(text, NULL) == rows[i].number);
    }
}

/* Whatever makes text of numbers: errors, growing texts, and the function below them. */
static void check_texts(void)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text = {0};
    char short_text[4];
    (void)cd_fail(&err, CDDP_E_ARG, "%g is not above %.2f", -2.5, 0.25);
    assert_string_equal(err.message, "-2.5 is not above 0.25");
    assert_int_equal(cddp_error_set(&err, CDDP_E_ARG, "%s, %g", "a, b", 1e-7), CDDP_E_ARG);
    assert_string_equal(err.message, "a, b, 1e-07");
    (void)cd_fail_memory(&err, "%.1f GB", 1.5);
    assert_string_equal(err.message, "no memory for 1.5 GB");
    cd_text_printf(&text, "%g, %g", 0.5, 1234567.25);
    assert_string_equal(cd_text_get(&text), "0.5, 1.23457e+06");
    cd_text_fini(&text);
    assert_int_equal(cd_real_format(short_text, sizeof short_text, "%g", 2.125), 5);
    assert_string_equal(short_text, "2.1");
    char duration[CD_DURATION_BYTES];
    cd_duration_print(1500000000, duration, sizeof duration);
    assert_string_equal(duration, "1.5 s");
}

TEST(real, numbers_have_a_point)
{
    (void)state;
    check_numbers();
    check_texts();
}

/* The build makes a de_DE with localedef where the machine has none (LOCPATH). */
TEST(real, numbers_have_a_point_where_the_locale_has_a_comma)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8",
                                        "nl_NL.UTF-8"};
    const char *found = NULL;
    char plain[16];
    for (size_t i = 0; i < sizeof names / sizeof names[0] && found == NULL; i++)
        found = setlocale(LC_ALL, names[i]);
    if (found == NULL) skip(); /* this machine has no locale with a decimal comma */
    check_numbers();
    check_texts();
    snprintf(plain, sizeof plain, "%g", -2.5); /* and the host's own numbers stay as they were */
    assert_string_equal(plain, "-2,5");
    assert_non_null(setlocale(LC_ALL, "C"));
}

TEST_MAIN()
