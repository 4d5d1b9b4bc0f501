/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of an all-reduce or a reduce-scatter, addition by addition, in the order that an
** algorithm of the simulated network has.
**
** In a half type the bound of a sum of many ranks is percents of its value. Where the order is
** known no bound is needed: the result is one number, and every bit of it is compared. The orders
** are written here from their definitions (`cddp-verify list algorithms`), apart from the
** simulator.
**
** Threads    no state.
** Errors     none.
*/
#pragma once
#include "cddp/backend.h"

typedef enum cd_order_kind {
    CD_ORDER_UNKNOWN, /* a choice of the schedule, or an algorithm that is not listed here */
    CD_ORDER_IN_RANK_ORDER,
    CD_ORDER_RING,
    CD_ORDER_SEGMENTED_RING,
    CD_ORDER_HALVING,
    CD_ORDER_BINOMIAL,
    CD_ORDER_DOUBLE_TREE,
    CD_ORDER_NODES /* inside the nodes in rank order, across them a double tree */
} cd_order_kind;
/* By the name of an algorithm. */
cd_order_kind cd_order_find(const char *algorithm);

typedef struct cd_ordered_sum {
    cd_order_kind order;
    cddp_dtype dtype; /* not f64: every addition is one of f32, rounded to the dtype */
    uint32_t members, ranks_per_node;
    int64_t numel;          /* of an operand */
    bool scatters;          /* every member has its share of the sum only, all of one length */
    bool averages;          /* the sum is divided by the members in the end */
    const double *operands; /* (members · numel) */
} cd_ordered_sum;

/* Element `element` of the sum over all members. The order must be known. */
double cd_ordered_sum_get(const cd_ordered_sum *sum, int64_t element);
