/* SPDX-License-Identifier: Apache-2.0 */
/* Inside a wide bound: are all elements off by one and the same ratio? docs/oracle.md derives when
** an estimate of it is significant.
**
** Threads    no state.
** Errors     memory.
*/
#pragma once
#include "core/oracle/compare.h"

/* Weighted sums over elements; those of several tensors are added. */
typedef struct cd_ratio_evidence {
    double agreement; /* Σ w·expected */
    double excess;    /* Σ w·(actual − expected) */
    double variance;  /* of the excess, at most, with all roundings */
    double common;    /* ratio less 1 that a rounded reciprocal may give all elements */
    size_t distinct;  /* elements whose roundings have nothing to do with each other */
} cd_ratio_evidence;

/* Adds the elements of a tensor that was compared by this rule. Elements that cannot round, or
** whose range is too narrow, add nothing. */
cddp_status cd_common_ratio_add(cd_ratio_evidence *evidence, const cd_wide_sum *sum,
                                const double *actual, const cd_sum_rule *rule,
                                const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
/* True where roundings do not explain that the ratio is not 1. */
bool cd_common_ratio_is_significant(const cd_ratio_evidence *evidence, double *ratio);
