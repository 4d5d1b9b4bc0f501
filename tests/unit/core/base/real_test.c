/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as text, in the "C" locale and in one with a decimal comma. */
#include "core/base/real.h"
#include "tests/support/test.h"

#include <locale.h>
#include <math.h>
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

TEST(real, numbers_have_a_point)
{
    (void)state;
    check_numbers();
}

TEST(real, numbers_have_a_point_where_the_locale_has_a_comma)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8",
                                        "nl_NL.UTF-8"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && found == NULL; i++)
        found = setlocale(LC_NUMERIC, names[i]);
    if (found == NULL) skip(); /* this machine has no locale with a decimal comma */
    check_numbers();
    assert_non_null(setlocale(LC_NUMERIC, "C"));
}

TEST_MAIN()
