/* SPDX-License-Identifier: Apache-2.0 */
/* Expected elements of a collective, and how far a result may be off. See collective.h. */
#include "core/reference/collective.h"

#include "core/base/error.h"
#include "core/base/operation.h"
#include "core/oracle/numbers.h"
#include "core/plan/plan.h"

#include <math.h>
#include <stdio.h>

#define VALUE_PERIOD 3 /* elements after which what a rank gives comes again */

/* A collective as one member of its group sees it. */
typedef struct expectation {
    const cddp_plan_group *members;
    cddp_op op;
    cddp_red_op reduction;
    cddp_dtype dtype;
    uint32_t size, me, root; /* root: or the other rank of a message */
    int64_t numel;
    /* of a reduction, elements 0, 1, … of its result, which then come again */
    double reduced[VALUE_PERIOD];
} expectation;

static double value_of(const expectation *c, uint32_t member, int64_t i)
{
    const bool named = c->members != NULL && c->members->members.count > 0;
    const uint32_t rank = named ? c->members->members.items[member] : member;
    return (double)(rank % 4 + 1 + (uint32_t)(i % VALUE_PERIOD));
}

static double combine(cddp_red_op op, double a, double b)
{
    switch (op) {
    case CDDP_RED_PRODUCT:
        return a * b;
    case CDDP_RED_MIN:
        return a < b ? a : b;
    case CDDP_RED_MAX:
        return a > b ? a : b;
    case CDDP_RED_BAND:
        return (double)((uint64_t)a & (uint64_t)b);
    case CDDP_RED_BOR:
        return (double)((uint64_t)a | (uint64_t)b);
    case CDDP_RED_BXOR:
        return (double)((uint64_t)a ^ (uint64_t)b);
    default:
        return a + b;
    }
}

static void reduce_values(expectation *c)
{
    for (int64_t i = 0; cd_op_is_reduction(c->op) && i < VALUE_PERIOD; i++) {
        double total = value_of(c, 0, i);
        for (uint32_t r = 1; r < c->size; r++)
            total = combine(c->reduction, total, value_of(c, r, i));
        c->reduced[i] = c->reduction == CDDP_RED_AVG ? total / c->size : total;
    }
}

/* Element i of this rank's result. */
static double expected_of(const expectation *c, int64_t i)
{
    switch (c->op) {
    case CDDP_OP_ALLREDUCE:
    case CDDP_OP_REDUCE:
        return c->reduced[i % VALUE_PERIOD];
    case CDDP_OP_REDUCE_SCATTER:
        return c->reduced[(c->me * c->numel + i) % VALUE_PERIOD];
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_GATHER:
        return value_of(c, (uint32_t)(i / c->numel), i % c->numel);
    case CDDP_OP_ALLTOALL:
        return value_of(c, (uint32_t)(i / c->numel), c->me * c->numel + i % c->numel);
    case CDDP_OP_SCATTER:
        return value_of(c, c->root, c->me * c->numel + i);
    default:
        return value_of(c, c->root, i);
    }
}

/* A number that fits in the dtype; counts are read as doubles. */
static double largest_of(cddp_dtype dtype)
{
    switch (dtype) {
    case CDDP_F16:
        return 65504;
    case CDDP_U8:
        return UINT8_MAX;
    case CDDP_I32:
        return INT32_MAX;
    case CDDP_I64:
        return 0x1p53;
    case CDDP_F64:
        return 0x1p1023;
    default:
        return 0x1p127;
    }
}

/* How far the result may be off, INFINITY where no number of the dtype holds it. Whole numbers that
** fit are exact, in whatever order they are combined. */
static double bound_of(const expectation *c, double largest)
{
    const bool rounds = c->reduction == CDDP_RED_SUM || c->reduction == CDDP_RED_PRODUCT ||
                        c->reduction == CDDP_RED_AVG;
    if (!cd_op_is_reduction(c->op) || !rounds) return 0;
    const bool is_power = (c->size & (c->size - 1)) == 0;
    if (largest > largest_of(c->dtype)) return INFINITY;
    const double whole = c->reduction == CDDP_RED_AVG ? largest * c->size : largest;
    if (whole <= ldexp(1, cd_dtype_precision(c->dtype)) &&
        (is_power || c->reduction != CDDP_RED_AVG))
        return 0;
    return cd_gamma(c->dtype, (uint64_t)c->size + 1) * largest;
}

cddp_status cd_collective_compare(const cd_expected_collective *expected, cd_numbers *numbers,
                                  const cddp_tensor *output, cd_comparison *found, cddp_error *err)
{
    const cddp_plan_collective *planned = expected->planned;
    const size_t numel = (size_t)cddp_tensor_numel(output);
    size_t lanes; /* of a complex number; the imaginary one is 0 */
    expectation c = {.members = expected->members,
                     .op = cd_plan_op(planned),
                     .reduction = cd_plan_reduction(planned),
                     .dtype = (cddp_dtype)planned->dtype,
                     .size = expected->size,
                     .me = expected->me,
                     .root = (uint32_t)planned->root,
                     .numel = (int64_t)planned->numel};
    reduce_values(&c);
    *found = (cd_comparison){.numel = numel, .element = -1, .exact = true, .shape = CD_SHAPE_NONE};
    CD_TRY(cd_numbers_read(numbers, output, err));
    lanes = numel > 0 ? numbers->count / numel : 1;
    for (size_t i = 0; i < numbers->count; i++) {
        const double real = expected_of(&c, (int64_t)(i / lanes)), actual = numbers->values[i];
        const double value = i % lanes == 0 ? real : 0;
        const double bound = bound_of(&c, real), off = fabs(actual - value);
        found->exact = found->exact && bound == 0;
        if (isinf(bound) || off <= bound) continue;
        if (found->bad++ == 0) {
            found->element = (int64_t)(i / lanes);
            found->expected = value;
            found->actual = actual;
            found->bound = bound;
            found->shape = CD_SHAPE_UNEXPLAINED;
        }
    }
    snprintf(found->words, sizeof found->words, "not what its members gave");
    return CDDP_OK;
}
