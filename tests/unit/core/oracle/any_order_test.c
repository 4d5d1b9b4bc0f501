/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of few numbers against random trees of additions, each rounded as a backend may do it. */
#include "core/oracle/any_order.h"

#include "core/base/prng.h"
#include "core/oracle/numbers.h"
#include "tests/support/test.h"

#include <math.h>

static const cddp_dtype dtypes[] = {CDDP_BF16, CDDP_F16, CDDP_F32};

static double draw_number(cd_prng *prng, cddp_dtype dtype)
{
    return cd_dtype_round(dtype, ldexp((double)cd_prng_between(prng, -(1 << 26), 1 << 26),
                                       (int)cd_prng_between(prng, -32, -22)));
}

/* In any order; before the last one, a sum may stay in f32, or in f64 where numbers are f32. */
static double add_at_random(cd_prng *prng, cddp_dtype dtype, const double *x, uint32_t count)
{
    double left[CD_ANY_ORDER_ADDENDS_MAX];
    for (uint32_t i = 0; i < count; i++) left[i] = x[i];
    while (count > 1) {
        const uint32_t a = (uint32_t)cd_prng_below(prng, count);
        const double first = left[a];
        left[a] = left[--count];
        const uint32_t b = (uint32_t)cd_prng_below(prng, count);
        const bool is_wide = count > 1 && cd_prng_chance(prng, 1, 3);
        left[b] += first;
        if (dtype != CDDP_F32 && is_wide) left[b] = (double)(float)left[b];
        if (!is_wide) left[b] = cd_dtype_round(dtype, left[b]);
    }
    return left[0];
}

typedef struct sums {
    double addends[CD_ANY_ORDER_ADDENDS_MAX];
    uint32_t count;
    cd_any_order_rule rule;
} sums;

static cd_any_order_range range_of(const sums *s, cd_any_order *a)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_any_order_init(a, NULL, 1, s->count, &err), &err);
    for (uint32_t i = 0; i < s->count; i++) cd_any_order_push(a, &s->addends[i], &s->addends[i]);
    assert_true(cd_any_order_find(a, &s->rule));
    return a->ranges[0];
}

static void try_trees(cd_prng *prng, cddp_dtype dtype, uint32_t count, uint64_t divisor)
{
    sums s = {.count = count, .rule = {dtype, CDDP_F32, divisor}};
    cd_any_order a;
    bool reaches_low = false, reaches_high = false;
    for (uint32_t i = 0; i < count; i++) s.addends[i] = draw_number(prng, dtype);
    const cd_any_order_range range = range_of(&s, &a);
    for (int tree = 0; tree < 200; tree++) {
        double sum = add_at_random(prng, dtype, s.addends, count);
        if (divisor > 1) sum = cd_dtype_round(dtype, sum / (double)divisor);
        assert_true(range.low <= sum && sum <= range.high);
        assert_true(cd_any_order_has(&a, &s.rule, 0, sum));
        reaches_low |= sum == range.low;
        reaches_high |= sum == range.high;
    }
    /* of two and three addends, 200 trees are all of them */
    if (count <= 3 && dtype != CDDP_F32) assert_true(reaches_low && reaches_high);
    cd_any_order_fini(&a);
}

TEST(any_order, every_tree_lies_between_the_ends)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 200; round++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (uint32_t count = 1; count <= 6; count++)
                try_trees(&prng, dtypes[d], count, round % 2 == 0 ? 1 : count);
}

/* Two addends have one order: nothing but the rounded sum is right. */
TEST(any_order, two_addends_have_one_sum)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 500; round++) {
        const cddp_dtype dtype = dtypes[round % 3];
        sums s = {.count = 2, .rule = {dtype, dtype, 1}};
        cd_any_order a;
        for (uint32_t i = 0; i < 2; i++) s.addends[i] = draw_number(&prng, dtype);
        const double sum = cd_dtype_round(dtype, s.addends[0] + s.addends[1]);
        const cd_any_order_range range = range_of(&s, &a);
        assert_true(range.low == sum && range.high == sum);
        cd_any_order_fini(&a);
    }
}

/* A factor of 1 − 10⁻⁶ after the sum was cast up leaves no number of bf16. */
TEST(any_order, a_factor_behind_a_narrow_sum_is_noticed)
{
    (void)state;
    const sums s = {.addends = {1, 0x1p-3, 3}, .count = 3, .rule = {CDDP_BF16, CDDP_F32, 3}};
    cd_any_order a;
    const cd_any_order_range range = range_of(&s, &a);
    assert_true(range.low == cd_dtype_round(CDDP_BF16, 4.125 / 3) && range.high == range.low);
    assert_true(cd_any_order_has(&a, &s.rule, 0, range.low));
    assert_false(cd_any_order_has(&a, &s.rule, 0, (double)(float)(range.low * (1 - 1e-6))));
    assert_false(cd_any_order_has(&a, &s.rule, 0, range.low * (1 - 0x1p-7)));
    cd_any_order_fini(&a);
}

/* Where a contribution is one of two numbers, both count. */
TEST(any_order, an_addend_may_be_one_of_two)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    const cd_any_order_rule rule = {CDDP_F32, CDDP_F32, 1, 1};
    const double one = 1, low = 2, high = 2 + 0x1p-22;
    cd_any_order a;
    assert_ok(cd_any_order_init(&a, NULL, 1, 2, &err), &err);
    cd_any_order_push(&a, &one, &one);
    cd_any_order_push(&a, &high, &low);
    assert_true(cd_any_order_find(&a, &rule));
    assert_true(a.ranges[0].low == 3 && a.ranges[0].high == 3 + 0x1p-22);
    cd_any_order_fini(&a);
}

TEST(any_order, more_addends_than_expected_or_known_say_nothing)
{
    (void)state;
    cddp_error err = CDDP_ERROR_INIT;
    const cd_any_order_rule rule = {CDDP_F32, CDDP_F32, 1, 1};
    const double one = 1;
    cd_any_order a;
    assert_ok(cd_any_order_init(&a, NULL, 1, 2, &err), &err);
    assert_false(cd_any_order_find(&a, &rule));
    for (int i = 0; i < 3; i++) cd_any_order_push(&a, &one, &one);
    assert_false(cd_any_order_find(&a, &rule));
    cd_any_order_clear(&a);
    cd_any_order_push(&a, &one, &one);
    assert_true(cd_any_order_find(&a, &rule));
    cd_any_order_give_up(&a);
    assert_false(cd_any_order_find(&a, &rule));
    cd_any_order_fini(&a);
    assert_ok(cd_any_order_init(&a, NULL, 1, CD_ANY_ORDER_ADDENDS_MAX + 1, &err), &err);
    cd_any_order_push(&a, &one, &one);
    assert_false(cd_any_order_find(&a, &rule));
    cd_any_order_fini(&a);
}

/* An order in which f16 overflows is the range's business, and no accusation. */
TEST(any_order, what_leaves_the_range_is_not_judged)
{
    (void)state;
    const sums s = {.addends = {60000, 60000, -60000}, .count = 3, .rule = {CDDP_F16, CDDP_F32, 1}};
    cd_any_order a;
    (void)range_of(&s, &a);
    assert_true(cd_any_order_has(&a, &s.rule, 0, 60000));
    assert_true(cd_any_order_has(&a, &s.rule, 0, INFINITY));
    cd_any_order_fini(&a);
}

static cddp_status make_orders(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    (void)argument;
    cd_any_order a;
    cddp_status status = cd_any_order_init(&a, allocator, 1000, 4, err);
    if (status == CDDP_OK) cd_any_order_fini(&a);
    return status;
}

TEST(any_order, survives_every_failing_allocation)
{
    (void)state;
    assert_true(cd_test_oom_loop(make_orders, NULL) > 0);
}

TEST_MAIN()
