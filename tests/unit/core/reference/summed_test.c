/* SPDX-License-Identifier: Apache-2.0 */
/* A sum of twelve ranks in bf16: held to what is promised of its order, and to the orders that are
** known where nothing is. */
#include "core/reference/summed.h"

#include "core/base/prng.h"
#include "core/oracle/known_order.h"
#include "core/oracle/numbers.h"
#include "tests/support/test.h"

#include <math.h>

enum { RANKS = 12, NUMEL = 40 };

static double operands[RANKS * NUMEL], result[NUMEL];

static void add_up(cd_order_kind kind, double factor)
{
    cd_prng prng = cd_prng_seed(11);
    for (size_t i = 0; i < RANKS * NUMEL; i++)
        operands[i] =
            cd_dtype_round(CDDP_BF16, ldexp((double)cd_prng_between(&prng, 64, 4096), -9));
    const cd_ordered_sum sum = {
        .order = kind, .dtype = CDDP_BF16, .members = RANKS, .numel = NUMEL, .operands = operands};
    for (int64_t i = 0; i < NUMEL; i++)
        result[i] = cd_dtype_round(CDDP_BF16, factor * cd_ordered_sum_get(&sum, i));
}

static cd_comparison compare(const char *algorithm)
{
    const cd_sum_promise promise = {algorithm, 0};
    const cd_observed_summed summed = {.members = RANKS,
                                       .dtype = CDDP_BF16,
                                       .stride = 1,
                                       .operands = {operands, RANKS * NUMEL},
                                       .result = {result, NUMEL}};
    cd_comparison found;
    cddp_error err = CDDP_ERROR_INIT;
    assert_ok(cd_summed_compare(&promise, &summed, NULL, &found, &err), &err);
    return found;
}

static const char of_mpi[] =
    "binomial_tree|recursive_doubling|upward_ring|shifted_ring|linear|flat";

TEST(summed, has_one_of_the_orders_that_are_promised)
{
    (void)state;
    static const cd_order_kind legal[] = {CD_ORDER_BINOMIAL,    CD_ORDER_DOUBLING,
                                          CD_ORDER_UPWARD_RING, CD_ORDER_SHIFTED_RING,
                                          CD_ORDER_BACKWARDS,   CD_ORDER_IN_RANK_ORDER};
    for (size_t k = 0; k < sizeof legal / sizeof legal[0]; k++) {
        cd_test_row("order %d", (int)legal[k]);
        add_up(legal[k], 1);
        const cd_comparison clean = compare(of_mpi), unknown = compare(NULL);
        assert_int_equal(clean.bad, 0);
        assert_int_equal(clean.numel, NUMEL);
        assert_true(clean.exact);
        /* recognised */
        assert_int_equal(unknown.bad, 0);
        assert_int_equal(unknown.numel, NUMEL);
        add_up(legal[k], (double)RANKS / (RANKS + 1));
        assert_true(compare(of_mpi).bad > 0);
    }
}

/* What is longer than the memory that processes share: every third element of each operand. */
TEST(summed, is_judged_on_the_elements_that_are_there)
{
    (void)state;
    enum { STRIDE = 3, KEPT = (NUMEL + STRIDE - 1) / STRIDE };
    static double kept[RANKS * KEPT];
    const cd_sum_promise promise = {of_mpi, 0};
    for (int planted = 0; planted < 2; planted++) {
        cd_observed_summed summed = {.members = RANKS,
                                     .dtype = CDDP_BF16,
                                     .stride = STRIDE,
                                     .operands = {kept, RANKS * KEPT},
                                     .result = {result, NUMEL}};
        cd_comparison found;
        cddp_error err = CDDP_ERROR_INIT;
        add_up(CD_ORDER_UPWARD_RING, planted ? (double)RANKS / (RANKS + 1) : 1);
        for (size_t m = 0; m < RANKS; m++)
            for (size_t i = 0; i < KEPT; i++) kept[m * KEPT + i] = operands[m * NUMEL + i * STRIDE];
        assert_ok(cd_summed_compare(&promise, &summed, NULL, &found, &err), &err);
        assert_int_equal(found.numel, KEPT);
        assert_int_equal(found.bad > 0, planted);
        summed.stride = 1; /* fewer operands than that has */
        assert_ok(cd_summed_compare(&promise, &summed, NULL, &found, &err), &err);
        assert_true(found.bad > 0);
    }
}

TEST(summed, in_an_order_that_nobody_promised_breaks_a_promise)
{
    (void)state;
    add_up(CD_ORDER_SEGMENTED_RING, 1);
    assert_int_equal(compare("gloo_ring").bad, 0);
    assert_true(compare("upward_ring|linear").bad > 0);
    assert_true(compare("flat").bad > 0);
}

TEST(summed, without_a_promise_and_in_no_known_order_is_not_judged)
{
    (void)state;
    add_up(CD_ORDER_BINOMIAL, (double)RANKS / (RANKS + 1));
    const cd_comparison found = compare("an order that is not listed");
    assert_int_equal(found.bad, 0);
    assert_int_equal(found.numel, 0);
    assert_false(found.exact);
}

TEST_MAIN()
