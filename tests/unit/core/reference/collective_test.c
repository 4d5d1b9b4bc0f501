/* SPDX-License-Identifier: Apache-2.0 */
/* What a collective of the program must give: accepted exactly, and one wrong element found. */
#include "core/reference/collective.h"

#include "core/plan/plan.h"
#include "core/tensor/cpu.h"
#include "tests/support/test.h"

#include <string.h>

#define SIZE 3

/* The first (and only) [[collective]] of a plan. */
static cddp_plan *make_plan(const char *op, const char *reduction)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    assert_ok(cddp_plan_set(plan, "world.size", "3", &err), &err);
    assert_ok(cddp_plan_set(plan, "collective.0.op", op, &err), &err);
    assert_ok(cddp_plan_set(plan, "collective.0.reduction", reduction, &err), &err);
    assert_ok(cddp_plan_set(plan, "collective.0.numel", "4", &err), &err);
    return plan;
}

static cd_comparison compare(const cddp_plan *plan, uint32_t me, float *got, int64_t numel)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_numbers numbers = {0};
    cd_comparison found;
    const cd_expected_collective expected = {plan->collectives, NULL, SIZE, me};
    const cddp_tensor output = cddp_tensor_of(cddp_device_cpu(), got, 0, CDDP_F32, &numel, 1);
    assert_ok(cd_collective_compare(&expected, &numbers, &output, &found, &err), &err);
    cd_numbers_fini(&numbers);
    return found;
}

/* Rank r gives r + 1 + i mod 3. */
TEST(collective, results_are_those_of_the_declared_values)
{
    static const struct {
        const char *op, *reduction;
        uint32_t me;
        int64_t numel;
        float got[12];
    } cases[] = {{"allreduce", "sum", 1, 4, {6, 9, 12, 6}},
                 {"allreduce", "avg", 2, 4, {2, 3, 4, 2}},
                 {"allreduce", "max", 0, 4, {3, 4, 5, 3}},
                 {"broadcast", "sum", 2, 4, {1, 2, 3, 1}},
                 {"allgather", "sum", 0, 12, {1, 2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3}},
                 {"reduce_scatter", "sum", 1, 4, {9, 12, 6, 9}},
                 {"alltoall", "sum", 1, 12, {2, 3, 1, 2, 3, 4, 2, 3, 4, 5, 3, 4}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float got[12];
        cddp_plan *plan = make_plan(cases[i].op, cases[i].reduction);
        cd_test_row("%s %s", cases[i].op, cases[i].reduction);
        memcpy(got, cases[i].got, sizeof got);
        cd_comparison found = compare(plan, cases[i].me, got, cases[i].numel);
        assert_int_equal(found.bad, 0);
        got[2] += 1;
        found = compare(plan, cases[i].me, got, cases[i].numel);
        assert_int_equal(found.bad, 1);
        assert_int_equal(found.element, 2);
        assert_true(found.actual == (double)got[2] && found.expected == (double)cases[i].got[2]);
        cddp_plan_destroy(plan);
    }
}

TEST_MAIN()
