/* SPDX-License-Identifier: Apache-2.0 */
/* What a sum of few numbers can become in a narrow dtype, whatever the order of its additions.
**
** See docs/oracle.md, "Every order".
**
** Lifetime   init → push … → find → get (→ clear → …) → fini.
** Threads    no state.
** Errors     memory, in init.
*/
#pragma once
#include "cddp/tensor.h"
#include "core/base/arena.h"

/* A sum of more addends has too many orders: it is bounded, see cd_sum_rule. */
#define CD_ANY_ORDER_ADDENDS_MAX 8

/* Both ends are reached by some order. */
typedef struct cd_any_order_range {
    double low, high;
} cd_any_order_range;

typedef struct cd_any_order {
    cd_arena arena;       /* the arrays */
    size_t numel;         /* of the tensor */
    size_t stride, count; /* every stride-th element is followed; count of those */
    uint32_t capacity, addends;
    bool is_given_up;           /* some addend is not known */
    bool is_found;              /* ranges are */
    double *low, *high;         /* (capacity · count) least and largest value of an addend */
    cd_any_order_range *ranges; /* (count) */
} cd_any_order;

/* How the sum becomes the result. */
typedef struct cd_any_order_rule {
    cddp_dtype dtype;  /* of the additions */
    cddp_dtype result; /* of the result, which is cast once more where it is narrower */
    uint64_t divisor;  /* the sum is divided afterwards; 1: not */
    uint64_t times;    /* and multiplied by a power of two; 0 or 1: not */
} cd_any_order_rule;

/* More addends than capacity, or than the largest number, give up. */
cddp_status cd_any_order_init(cd_any_order *a, const cddp_allocator *allocator, size_t numel,
                              uint32_t capacity, cddp_error *err) CDDP_MUST_CHECK;
void cd_any_order_fini(cd_any_order *a); /* accepts a zeroed one */
void cd_any_order_clear(cd_any_order *a);
/* An addend whose value in `dtype` is one of low and high. (numel) each */
void cd_any_order_push(cd_any_order *a, const double *low, const double *high);
/* An addend that is not known. */
void cd_any_order_give_up(cd_any_order *a);
/* False: nothing is known of this sum. */
bool cd_any_order_find(cd_any_order *a, const cd_any_order_rule *rule);
/* Can element k of those that are followed be this? */
bool cd_any_order_has(const cd_any_order *a, const cd_any_order_rule *rule, size_t k,
                      double actual);
