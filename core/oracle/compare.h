/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of tensors: bitwise, or against an exact sum within a derived bound; the worst element
** is named.
**
** See docs/oracle.md for the derivations.
**
** Threads    no state.
** Errors     none; a comparison is a value.
*/
#pragma once
#include "core/oracle/wide_sum.h"
#include "core/trace/codes.h"

typedef struct cd_comparison {
    size_t numel, bad;
    int64_t element; /* the worst one; -1 when equal within the bound everywhere */
    /* of the worst element; when all is well, bound is the largest one allowed */
    double expected, actual, bound;
    uint64_t ulps;
    bool exact; /* no rounding was possible: every element was compared bit for bit */
    /* of what is not finite: no order of additions can have left the range of the dtypes on the
    ** way */
    bool in_range;
    cd_shape shape;
    double ratio; /* of CD_SHAPE_RATIO, else 0 */
    /* + 1, whose contribution explains the error; 0: nobody's, or no single one's */
    uint32_t source_rank, source_micro;
    char words[160]; /* the explanation; "" when equal */
} cd_comparison;

/* Bit for bit, as doubles: NaN equals NaN, +0 equals -0. */
cd_comparison cd_compare_bits(cddp_dtype dtype, const double *expected, const double *actual,
                              size_t numel);

/* How far actual may lie from sum / divisor. */
typedef struct cd_sum_rule {
    cddp_dtype dtype; /* the narrowest dtype on the way; its roundoff counts */
    uint64_t divisor;
    uint64_t roundings; /* n of γ_n: additions on the longest path, divisions, casts */
    uint64_t addends;   /* results that may underflow, each by η */
    /* to nearest, ties to even, instead of the other rules: within half a unit in the last place */
    bool rounded_once;
    /* the division does not round: it is already done (divisor 1) or by a power of two */
    bool division_is_exact;
    /* binary places below the last addend's that exact divisions between the additions need */
    int places_between;
    /* of one operation, where some step has a narrower range than dtype; 0: dtype's */
    double underflow;
    /* the result is cast to `cast` in the end, which lacks numbers of the wire's dtype */
    bool is_cast;
    cddp_dtype cast;
} cd_sum_rule;
/* Has the dtype every number of the other? */
bool cd_dtype_has_all(cddp_dtype dtype, cddp_dtype other);
/* What the last cast may add to a result within a bound of this value. */
double cd_sum_cast_error(const cd_sum_rule *rule, double value, double bound);
cd_comparison cd_compare_sum(const cd_wide_sum *sum, const double *actual, const cd_sum_rule *rule);
