/* SPDX-License-Identifier: Apache-2.0 */
#include "core/oracle/wide_sum.h"

#include "core/base/prng.h"
#include "core/oracle/exact_inputs.h"
#include "tests/support/test.h"

#include <float.h>
#include <math.h>

static double sum_of(cddp_dtype dtype, const double *values, size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_wide_sum sum;
    assert_ok(cd_wide_sum_init(&sum, NULL, dtype, 1, &err), &err);
    for (size_t i = 0; i < count; i++) cd_wide_sum_push(&sum, &values[i]);
    double result = cd_wide_sum_get(&sum, 0);
    cd_wide_sum_fini(&sum);
    return result;
}

TEST(wide_sum, sums_what_doubles_lose)
{
    (void)state;
    static const struct {
        const char *name;
        cddp_dtype dtype;
        double values[4];
        double expected;
    } cases[] = {
        {"cancellation", CDDP_F64, {1e300, 1, -1e300, 1}, 2},
        /* clang-format off */
                 {"smallest and largest of f64", CDDP_F64, {DBL_MAX, 0x1p-1074, -DBL_MAX, 0}, 0x1p-1074},
                 {"smallest and largest of f32", CDDP_F32, {FLT_MAX, 0x1p-149, -FLT_MAX, 0x1p-149}, 0x1p-148},
                 {"beyond f64's precision", CDDP_F64, {0x1p53, 1, -0x1p53, 0}, 1},
                 {"tie to even", CDDP_F64, {0x1p53, 1, 0, 0}, 0x1p53},
                 {"above the tie", CDDP_F64, {0x1p53, 1, 0x1p-1000, 0}, 0x1p53 + 2},
                 {"negative", CDDP_F64, {-0x1p53, -1, -1, 0}, -0x1p53 - 2},
        /* clang-format on */
        {"nothing", CDDP_F16, {0, 0, 0, 0}, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].name);
        double actual = sum_of(cases[i].dtype, cases[i].values, 4);
        if (actual != cases[i].expected)
            print_error("%s: %a, expected %a\n", cases[i].name, actual, cases[i].expected);
        assert_true(actual == cases[i].expected);
    }
}

/* The order of pushes never matters, and the sum of a set with its negatives is zero. */
TEST(wide_sum, does_not_depend_on_the_order)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 50; round++) {
        double values[64];
        uint32_t order[64];
        for (uint32_t i = 0; i < 64; i++) {
            values[i] = (double)(float)ldexp((double)cd_prng_between(&prng, -(1 << 24), 1 << 24),
                                             (int)cd_prng_between(&prng, -140, 90));
            order[i] = i;
        }
        double straight = sum_of(CDDP_F32, values, 64), shuffled[64];
        cd_prng_shuffle(&prng, order, 64);
        for (uint32_t i = 0; i < 64; i++) shuffled[i] = values[order[i]];
        assert_true(sum_of(CDDP_F32, shuffled, 64) == straight);
        for (uint32_t i = 0; i < 32; i++) shuffled[i + 32] = -shuffled[i];
        assert_true(sum_of(CDDP_F32, shuffled, 64) == 0);
    }
}

__extension__ typedef __int128 wide;

/* Whole numbers times a power of two, all over the range: carries and signs meet the borders of
** limbs everywhere. The sum of the numbers, and what is taken away from it, are known exactly. */
TEST(wide_sum, reads_what_whole_numbers_sum_up_to)
{
    (void)state;
    static const struct {
        cddp_dtype dtype;
        int lowest, highest;
    } ranges[] = {{CDDP_F32, -149, 40}, {CDDP_F64, -1022, 900}};
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 4000; round++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_wide_sum sum;
        const size_t r = (size_t)round % 2;
        const int place = (int)cd_prng_between(&prng, ranges[r].lowest, ranges[r].highest);
        const int count = (int)cd_prng_between(&prng, 0, 12);
        wide whole = 0;
        assert_ok(cd_wide_sum_init(&sum, NULL, ranges[r].dtype, 1, &err), &err);
        for (int i = 0; i < count; i++) {
            const int64_t number = cd_prng_between(&prng, -(1 << 23), 1 << 23);
            const int shift = (int)cd_prng_between(&prng, 0, 40);
            const double value = ldexp((double)number, place + shift);
            whole += (wide)number * ((wide)1 << shift);
            cd_wide_sum_push(&sum, &value);
        }
        const int64_t taken = cd_prng_between(&prng, -(1 << 23), 1 << 23);
        const uint64_t factor = (uint64_t)cd_prng_between(&prng, 1, INT64_C(1) << 31);
        assert_true(cd_wide_sum_get(&sum, 0) == ldexp((double)whole, place));
        const double left = cd_wide_sum_residual(&sum, 0, ldexp((double)taken, place), factor);
        assert_true(left == ldexp((double)(whole - (wide)taken * (wide)factor), place));
        cd_wide_sum_fini(&sum);
    }
}

TEST(wide_sum, a_copy_goes_on_by_itself)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    cd_wide_sum sum, copy = {.numel = 0};
    const double values[] = {0x1p53, 3}, more[] = {1, -3};
    assert_ok(cd_wide_sum_init(&sum, NULL, CDDP_F64, 2, &err), &err);
    cd_wide_sum_push(&sum, values);
    assert_ok(cd_wide_sum_copy(&copy, &sum, NULL, &err), &err);
    for (int i = 0; i < 2; i++) cd_wide_sum_push(&copy, more);
    assert_true(cd_wide_sum_get(&copy, 0) == 0x1p53 + 2 && cd_wide_sum_get(&copy, 1) == -3);
    assert_true(copy.magnitude[1] == 9 && copy.push_count == 3);
    assert_true(cd_wide_sum_get(&sum, 0) == 0x1p53 && cd_wide_sum_get(&sum, 1) == 3);
    assert_true(sum.magnitude[1] == 3 && sum.push_count == 1);
    cd_wide_sum_fini(&copy);
    cd_wide_sum_fini(&sum);
}

TEST(wide_sum, residual_is_exact_where_the_product_is_not_a_double)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    cd_wide_sum sum;
    assert_ok(cd_wide_sum_init(&sum, NULL, CDDP_F64, 1, &err), &err);
    double third = 1.0 / 3.0, one = 1;
    cd_wide_sum_push(&sum, &one);
    /* 1 - 3 · fl(1/3) = 2^-54. */
    assert_true(cd_wide_sum_residual(&sum, 0, third, 3) == 0x1p-54);
    assert_true(cd_wide_sum_residual(&sum, 0, 0.5, 2) == 0);
    assert_true(cd_wide_sum_residual(&sum, 0, 0, 7) == 1);
    assert_true(isinf(cd_wide_sum_residual(&sum, 0, NAN, 1)));
    cd_wide_sum_fini(&sum);
}

TEST(wide_sum, witness_holds_exactly_while_every_order_is_exact)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    cd_wide_sum sum;
    assert_ok(cd_wide_sum_init(&sum, NULL, CDDP_F32, 1, &err), &err);
    double quarter = 0.25, large = 0x1p21, larger = 0x1p22;
    assert_true(cd_wide_sum_is_exact(&sum, 0, 24));
    cd_wide_sum_push(&sum, &quarter);
    cd_wide_sum_push(&sum, &large);
    assert_true(cd_wide_sum_is_exact(&sum, 0, 24));
    cd_wide_sum_push(&sum, &larger);
    assert_false(cd_wide_sum_is_exact(&sum, 0, 24)); /* 2^22 + 1/4 needs 25 bits */
    cd_wide_sum_clear(&sum);
    assert_true(cd_wide_sum_is_exact(&sum, 0, 1));
    cd_wide_sum_fini(&sum);
}

TEST(exact_inputs, sums_of_drawn_values_do_not_round)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16};
    for (size_t d = 0; d < 4; d++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_test_row("%s", cddp_dtype_name(dtypes[d]));
        cd_exact_range range = cd_exact_range_of(dtypes[d], 60, 1);
        cd_wide_sum sum;
        double values[17];
        assert_true(range.magnitude > 0);
        assert_ok(cd_wide_sum_init(&sum, NULL, dtypes[d], 17, &err), &err);
        for (int k = 0; k < 60; k++) {
            cd_exact_fill(&prng, range, values, 17);
            for (size_t i = 1; i < 17; i++) assert_true(values[i] != values[i - 1]);
            cd_wide_sum_push(&sum, values);
        }
        int precision = dtypes[d] == CDDP_F64   ? 53
                        : dtypes[d] == CDDP_F32 ? 24
                        : dtypes[d] == CDDP_F16 ? 11
                                                : 8;
        for (size_t i = 0; i < 17; i++) assert_true(cd_wide_sum_is_exact(&sum, i, precision));
        cd_wide_sum_fini(&sum);
    }
    assert_int_equal(cd_exact_range_of(CDDP_BF16, 1000, 1).magnitude, 0);
}

TEST(exact_inputs, flags_report_rounding_from_none)
{
    (void)state;
    volatile float a = 1.0f, b = 3.0f, c = 0.5f;
    bool rounded = true;
    if (!cd_exact_flags_work()) skip();
    assert_true(cd_exact_flags_begin());
    volatile float exact = a * c + b;
    assert_true(cd_exact_flags_end(&rounded) && !rounded);
    assert_true(cd_exact_flags_begin());
    volatile float inexact = a / b;
    assert_true(cd_exact_flags_end(&rounded) && rounded);
    (void)exact;
    (void)inexact;
}

static cddp_status make_sum(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cd_wide_sum sum;
    cddp_status status = cd_wide_sum_init(&sum, allocator, CDDP_F32, 100, err);
    if (status == CDDP_OK) cd_wide_sum_fini(&sum);
    return status;
}

TEST(wide_sum, survives_every_failing_allocation)
{
    (void)state;
    assert_int_equal(cd_test_oom_loop(make_sum, NULL), 3);
}

TEST_MAIN()
