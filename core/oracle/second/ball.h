/* SPDX-License-Identifier: Apache-2.0 */
/* A number that is known within a radius: what exact arithmetic gives, and how far the arithmetic
** of a narrower dtype may be from it.
**
** Each operation adds what one rounding of the dtype may add: u·|result| + η, and the growth of the
** operands' radii. So the radius needs no derivation for each formula. docs/oracle.md has the rule.
**
** Threads    no state.
*/
#pragma once
#include "cddp/tensor.h"

typedef struct cd_ball {
    double value, radius;
} cd_ball;

typedef struct cd_ball_rule {
    double roundoff, underflow; /* charged for each operation */
} cd_ball_rule;

/* slack: how many roundings of the dtype each operation is charged with. */
cd_ball_rule cd_ball_rule_of(cddp_dtype dtype, double slack);
/* A value of the dtype: exact. */
cd_ball cd_ball_of(double value);
/* A number of f64 that the dtype's arithmetic rounds first. */
cd_ball cd_ball_rounded(const cd_ball_rule *rule, double value);
cd_ball cd_ball_add(const cd_ball_rule *rule, cd_ball a, cd_ball b);
cd_ball cd_ball_subtract(const cd_ball_rule *rule, cd_ball a, cd_ball b);
cd_ball cd_ball_multiply(const cd_ball_rule *rule, cd_ball a, cd_ball b);
/* The radius is infinite where b may be zero. */
cd_ball cd_ball_divide(const cd_ball_rule *rule, cd_ball a, cd_ball b);
/* Of a number that is not negative; a ball that reaches below zero counts from zero. */
cd_ball cd_ball_root(const cd_ball_rule *rule, cd_ball a);
bool cd_ball_has(const cd_ball *ball, double value);
