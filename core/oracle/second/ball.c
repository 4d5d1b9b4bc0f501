/* SPDX-License-Identifier: Apache-2.0 */
/* Balls. The values are f64; a factor above 1 in each radius pays for the roundings of f64 itself.
** */
#include "core/oracle/second/ball.h"

#include "core/oracle/numbers.h"

#include <math.h>

/* Above what a few roundings of f64 may add to a radius. */
#define ROUND_UP (1 + 0x1p-40)

cd_ball_rule cd_ball_rule_of(cddp_dtype dtype, double slack)
{
    return (cd_ball_rule){slack * (cd_dtype_roundoff(dtype) + 0x1p-52),
                          slack * cd_dtype_underflow(dtype)};
}

cd_ball cd_ball_of(double value) { return (cd_ball){value, 0}; }

/* radius: what the operands' radii make of the result, before it is rounded. */
static cd_ball rounded(const cd_ball_rule *rule, double value, double radius)
{
    const double size = fabs(value) + radius;
    return (cd_ball){value, (radius + rule->roundoff * size + rule->underflow) * ROUND_UP};
}

cd_ball cd_ball_rounded(const cd_ball_rule *rule, double value) { return rounded(rule, value, 0); }

cd_ball cd_ball_add(const cd_ball_rule *rule, cd_ball a, cd_ball b)
{
    return rounded(rule, a.value + b.value, a.radius + b.radius);
}

cd_ball cd_ball_subtract(const cd_ball_rule *rule, cd_ball a, cd_ball b)
{
    return rounded(rule, a.value - b.value, a.radius + b.radius);
}

cd_ball cd_ball_multiply(const cd_ball_rule *rule, cd_ball a, cd_ball b)
{
    return rounded(rule, a.value * b.value,
                   fabs(a.value) * b.radius + fabs(b.value) * a.radius + a.radius * b.radius);
}

cd_ball cd_ball_divide(const cd_ball_rule *rule, cd_ball a, cd_ball b)
{
    const double least = fabs(b.value) - b.radius;
    if (!(least > 0)) return (cd_ball){a.value / b.value, INFINITY};
    const double quotient = a.value / b.value;
    return rounded(rule, quotient, (a.radius + fabs(quotient) * b.radius) / least);
}

/* |√x − √y| = |x − y| / (√x + √y), and at most √|x − y|. */
cd_ball cd_ball_root(const cd_ball_rule *rule, cd_ball a)
{
    const double value = a.value > 0 ? a.value : 0, root = sqrt(value);
    const double least = value > a.radius ? sqrt(value - a.radius) : 0;
    const double radius = a.radius == 0 ? 0 : fmin(sqrt(a.radius), a.radius / (root + least));
    return rounded(rule, root, radius);
}

bool cd_ball_has(const cd_ball *ball, double value)
{
    if (!(ball->radius < INFINITY)) return true; /* nothing is claimed */
    if (isnan(ball->value) || isnan(value)) return isnan(ball->value) && isnan(value);
    if (isinf(ball->value)) return ball->value == value;
    return fabs(value - ball->value) <= ball->radius;
}
