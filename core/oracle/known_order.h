/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of an all-reduce or a reduce-scatter, addition by addition, in the order that an
** algorithm has: of the simulated network, or of a library that a backend names.
**
** In a half type the bound of a sum of many ranks is percents of its value. Where the order is
** known no bound is needed: the result is one number, and every bit of it is compared. The orders
** are written here from their definitions (`cddp-verify list algorithms`, docs/backends.md), apart
** from the simulator and the backends.
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
    CD_ORDER_NODES, /* inside the nodes in rank order, across them a double tree */
    /* Members at distance 1, 2, 4 … exchange their sums; of more than a power of two the first
    ** ones add in pairs before. Reducing halves of the vector on the way is the same tree. */
    CD_ORDER_DOUBLING,
    CD_ORDER_BACKWARDS,    /* from the last member to the first */
    CD_ORDER_UPWARD_RING,  /* a chunk starts at its owner and goes up; the first ones are longer */
    CD_ORDER_SHIFTED_RING, /* likewise, but from the member before */
    CD_ORDER_COUNT
} cd_order_kind;

typedef struct cd_orders {
    cd_order_kind kinds[CD_ORDER_COUNT];
    uint32_t count; /* 0: the order is not known */
} cd_orders;
/* By the names of algorithms, with a bar between two: each operation has one of these orders. One
** that is not listed here, or NULL, makes the order unknown. */
void cd_orders_read(cd_orders *orders, const char *algorithms);
/* Every order that is listed here and needs no plan. */
void cd_orders_get_all(cd_orders *orders);

typedef struct cd_ordered_sum {
    cd_order_kind order;
    cddp_dtype dtype; /* not f64: every addition is one of f32, rounded to the dtype */
    uint32_t members, ranks_per_node;
    int64_t numel;          /* of an operand */
    bool scatters;          /* every member has its share of the sum only, all of one length */
    bool averages;          /* the sum is divided by the members in the end */
    int64_t stride;         /* operands have every stride-th element only; 0: all */
    const double *operands; /* (members · elements that they have) */
} cd_ordered_sum;

/* Element `element` of the sum over all members, which operands have. The order must be known. */
double cd_ordered_sum_get(const cd_ordered_sum *sum, int64_t element);
