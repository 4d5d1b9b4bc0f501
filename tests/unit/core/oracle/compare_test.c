/* SPDX-License-Identifier: Apache-2.0 */
/* A sum that is cast in the end: to a dtype with fewer numbers than the wire's. */
#include "core/oracle/compare.h"

#include "core/oracle/numbers.h"
#include "tests/support/test.h"

#include <math.h>

typedef struct row {
    const char *name;
    double addends[2], actual;
    cddp_dtype wire, cast;
    bool is_cast, is_good;
} row;

static const row rows[] = {
    /* clang-format off */
    {"the sum itself, which bfloat16 lacks", {2.0, 0.427734375}, 2.427734375, CDDP_F16, CDDP_BF16, true, false},
    {"the nearest number of bfloat16", {2.0, 0.427734375}, 2.421875, CDDP_F16, CDDP_BF16, true, true},
    {"its neighbour", {2.0, 0.427734375}, 2.4375, CDDP_F16, CDDP_BF16, true, false},
    {"no cast", {2.0, 0.427734375}, 2.427734375, CDDP_F16, CDDP_BF16, false, true},
    {"no cast, and rounded all the same", {2.0, 0.427734375}, 2.421875, CDDP_F16, CDDP_BF16, false, false},
    {"beyond the range of f16", {60000.0, 60000.0}, (double)INFINITY, CDDP_BF16, CDDP_F16, true, true},
    {"an infinity of the other sign", {60000.0, 60000.0}, -(double)INFINITY, CDDP_BF16, CDDP_F16, true, false},
    {"an infinity within the range of f16", {2.0, 0.5}, (double)INFINITY, CDDP_BF16, CDDP_F16, true, false},
    /* clang-format on */
};

TEST(compare, a_sum_is_compared_after_its_last_cast)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const row *r = &rows[i];
        cddp_error err = CDDP_ERROR_INIT;
        cd_wide_sum sum = {.limbs = NULL};
        const cd_sum_rule rule = {.dtype = r->wire,
                                  .divisor = 1,
                                  .roundings = 1,
                                  .addends = 3,
                                  .is_cast = r->is_cast,
                                  .cast = r->cast,
                                  .division_is_exact = true};
        cd_test_row("%s", r->name);
        assert_ok(cd_wide_sum_init(&sum, NULL, CDDP_F32, 1, &err), &err);
        cd_wide_sum_push(&sum, &r->addends[0]);
        cd_wide_sum_push(&sum, &r->addends[1]);
        assert_int_equal(cd_compare_sum(&sum, &r->actual, &rule).bad == 0, r->is_good);
        cd_wide_sum_fini(&sum);
    }
}

/* The mean of two numbers, rounded once. */
static const struct {
    const char *name;
    double addends[2], actual;
    cddp_dtype dtype;
    bool is_good;
} means[] = {
    {"half way, the even one below", {1.0, 1.0078125}, 1.0, CDDP_BF16, true},
    {"half way, the odd one above", {1.0, 1.0078125}, 1.0078125, CDDP_BF16, false},
    {"half way, the odd one below", {1.0078125, 1.015625}, 1.0078125, CDDP_BF16, false},
    {"half way, the even one above", {1.0078125, 1.015625}, 1.015625, CDDP_BF16, true},
    {"half way, negative and odd", {-1.0, -1.0078125}, -1.0078125, CDDP_BF16, false},
    {"half way below a power of two, which is even", {1.9921875, 2.0}, 2.0, CDDP_BF16, true},
    {"half way below a power of two, the odd one", {1.9921875, 2.0}, 1.9921875, CDDP_BF16, false},
    {"half way, between nothing and the smallest number", {0x1p-149, 0}, 0, CDDP_F32, true},
    {"half way, the smallest number is odd", {0x1p-149, 0}, 0x1p-149, CDDP_F32, false},
    {"no tie, the nearest, which is odd", {1.0078125, 1.0078125}, 1.0078125, CDDP_BF16, true},
    {"nearly half way, the nearest", {1.0, 1.0078125 + 0x1p-23}, 1.0078125, CDDP_BF16, true},
    {"nearly half way, and the even one is farther", {1, 1.0078125 + 0x1p-23}, 1, CDDP_BF16, false},
};

TEST(compare, a_mean_that_lies_half_way_is_rounded_to_even)
{
    for (size_t i = 0; i < sizeof means / sizeof *means; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_wide_sum sum = {.limbs = NULL};
        const cd_sum_rule rule = {.dtype = means[i].dtype, .divisor = 2, .rounded_once = true};
        cd_test_row("%s", means[i].name);
        assert_ok(cd_wide_sum_init(&sum, NULL, CDDP_F32, 1, &err), &err);
        cd_wide_sum_push(&sum, &means[i].addends[0]);
        cd_wide_sum_push(&sum, &means[i].addends[1]);
        assert_int_equal(cd_compare_sum(&sum, &means[i].actual, &rule).bad == 0, means[i].is_good);
        cd_wide_sum_fini(&sum);
    }
}

TEST_MAIN()
