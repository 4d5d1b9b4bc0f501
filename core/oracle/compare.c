/* SPDX-License-Identifier: Apache-2.0 */
/* The two comparisons. Elements are visited in order; the first of equally bad ones is named. */
#include "core/oracle/compare.h"

#include "core/oracle/numbers.h"

#include <float.h>
#include <math.h>

static uint64_t ulps_between(cddp_dtype dtype, double expected, double actual)
{
    double distance = fabs(actual - expected) / cd_dtype_ulp(dtype, expected);
    return distance < 0x1p62 ? (uint64_t)(distance + 0.5) : UINT64_C(1) << 62;
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

cd_comparison cd_compare_bits(cddp_dtype dtype, const double *expected, const double *actual,
                              size_t numel)
{
    cd_comparison c = {.numel = numel, .element = -1, .exact = true};
    for (size_t i = 0; i < numel; i++) {
        if (same(expected[i], actual[i])) continue;
        uint64_t ulps = ulps_between(dtype, expected[i], actual[i]);
        if (c.bad++ != 0 && ulps <= c.ulps) continue;
        c.element = (int64_t)i;
        c.expected = expected[i];
        c.actual = actual[i];
        c.ulps = ulps;
    }
    if (c.bad > 0) c.shape = CD_SHAPE_UNEXPLAINED;
    return c;
}

typedef struct verdict {
    double bound, excess; /* excess > 1: beyond the bound */
    bool exact;
} verdict;

/* True when dividing the lowest bit leaves the format. Then even a division by a power of two may
** round. */
static double underflow_of(const cd_sum_rule *rule)
{
    return rule->underflow > 0 ? rule->underflow : cd_dtype_underflow(rule->dtype);
}

static bool underflows(const cd_wide_sum *sum, const cd_sum_rule *rule, size_t i)
{
    return sum->low[i] != INT32_MAX &&
           cd_two_to(sum->low[i]) < (double)rule->divisor * 2 * underflow_of(rule);
}

/* Whether rounding the residual to a double lost nothing: it is a multiple of the lowest bit of the
** values, and of `actual`. */
static bool is_residual_exact(const cd_wide_sum *sum, size_t i, double ulp, double residual)
{
    const int lowest = sum->low[i] < ilogb(ulp) ? sum->low[i] : ilogb(ulp);
    return fabs(residual) < cd_two_to(lowest + 53);
}

/* Half the distance to the neighbour on the side of the exact quotient; at a power of two the inner
** neighbour is nearer. The residual is rounded once, which matters only within 2^-53 of a
** midpoint. A quotient that is known to lie half way has one result: the even one. */
static verdict judge_rounding(const cd_wide_sum *sum, const cd_sum_rule *rule, size_t i,
                              double actual, double residual)
{
    const bool lies_outside = (residual > 0) == (actual > 0);
    const double ulp = cd_dtype_ulp(rule->dtype, actual),
                 side = lies_outside ? actual : actual * (1 - 0x1p-53),
                 bound = cd_dtype_ulp(rule->dtype, side) / 2,
                 error = fabs(residual) / (double)rule->divisor;
    const bool is_half_way = residual != 0 && fabs(residual) == bound * (double)rule->divisor &&
                             is_residual_exact(sum, i, ulp, residual);
    if (is_half_way && fmod(actual / ulp, 2) != 0) return (verdict){bound, error / bound, false};
    return (verdict){bound, error <= bound * (1 + 0x1p-51) ? 0 : error / bound, residual == 0};
}

/* Rounded once to the wire's dtype, and cast once more. The quotient is known within 2^-52 of
** itself, which matters only beside a midpoint: there both neighbours are allowed. */
static verdict judge_rounding_and_cast(const cd_sum_rule *rule, double actual, double value)
{
    const double ends[] = {value * (1 - 0x1p-50), value * (1 + 0x1p-50)};
    const double a = cd_dtype_round(rule->cast, cd_dtype_round(rule->dtype, ends[0])),
                 b = cd_dtype_round(rule->cast, cd_dtype_round(rule->dtype, ends[1]));
    const bool fits = fmin(a, b) <= actual && actual <= fmax(a, b);
    return (verdict){fabs(b - a), fits ? 0 : INFINITY, false};
}

/* A partial sum is at most the sum of magnitudes. Half of the range is left to roundings. */
static bool stays_in_range(const cd_wide_sum *sum, const cd_sum_rule *rule, size_t i)
{
    const bool is_narrow =
        rule->dtype == CDDP_F16 || underflow_of(rule) >= cd_dtype_underflow(CDDP_F16);
    const double largest = is_narrow ? 65504 : rule->dtype == CDDP_F64 ? DBL_MAX : (double)FLT_MAX;
    return sum->magnitude[i] < largest / 2;
}

bool cd_dtype_has_all(cddp_dtype dtype, cddp_dtype other)
{
    return dtype == other || dtype == CDDP_F64 ||
           ((dtype == CDDP_F32 || dtype == CDDP_C64) && other != CDDP_F64);
}

double cd_sum_cast_error(const cd_sum_rule *rule, double value, double bound)
{
    if (!rule->is_cast) return 0;
    return cd_dtype_roundoff(rule->cast) * (fabs(value) + bound) + cd_dtype_underflow(rule->cast);
}

/* A cast that left the range of its dtype. */
static bool may_overflow(const cd_sum_rule *rule, double value, double bound, double actual)
{
    return rule->is_cast && isinf(actual) && (actual > 0) == (value > 0) &&
           isinf(cd_dtype_round(rule->cast, fabs(value) + bound));
}

static verdict judge_element(const cd_wide_sum *sum, const cd_sum_rule *rule, size_t i,
                             double actual)
{
    double magnitude = sum->magnitude[i];
    if (!cd_wide_sum_is_finite(sum, i)) return (verdict){0, isfinite(actual) ? INFINITY : 0, false};
    const double value = cd_wide_sum_get(sum, i) / (double)rule->divisor;
    if (!isfinite(actual) && !may_overflow(rule, value, 0, actual))
        return (verdict){0, INFINITY, false};
    if (!isfinite(actual)) return (verdict){0, 0, false};
    double residual = cd_wide_sum_residual(sum, i, actual, rule->divisor);
    double error = fabs(residual) / (double)rule->divisor;
    if (rule->rounded_once)
        return rule->is_cast ? judge_rounding_and_cast(rule, actual, value)
                             : judge_rounding(sum, rule, i, actual, residual);
    const int precision = cd_dtype_precision(rule->dtype) - rule->places_between;
    if (rule->division_is_exact && cd_wide_sum_is_exact(sum, i, precision) &&
        !underflows(sum, rule, i))
        return rule->is_cast
                   ? (verdict){0, actual == cd_dtype_round(rule->cast, value) ? 0 : INFINITY, true}
                   : (verdict){0, error == 0 ? 0 : INFINITY, true};
    double bound = cd_gamma(rule->dtype, rule->roundings) * (magnitude / (double)rule->divisor) *
                       (1 + 0x1p-40) +
                   (double)rule->addends * underflow_of(rule);
    bound += cd_sum_cast_error(rule, value, bound);
    return (verdict){bound, error <= bound ? 0 : bound > 0 ? error / bound : INFINITY, false};
}

cd_comparison cd_compare_sum(const cd_wide_sum *sum, const double *actual, const cd_sum_rule *rule)
{
    cd_comparison c = {.numel = sum->numel, .element = -1, .exact = true};
    double worst = 0;
    for (size_t i = 0; i < sum->numel; i++) {
        verdict v = judge_element(sum, rule, i, actual[i]);
        if (v.excess != 0 && !isfinite(actual[i]) && stays_in_range(sum, rule, i))
            c.in_range = true;
        c.exact = c.exact && v.exact;
        if (c.bad == 0 && v.bound > c.bound) c.bound = v.bound;
        if (v.excess == 0) continue;
        if (c.bad++ != 0 && v.excess <= worst) continue;
        worst = v.excess;
        c.element = (int64_t)i;
        c.expected = cd_wide_sum_get(sum, i) / (double)rule->divisor;
        c.actual = actual[i];
        c.bound = v.bound;
        c.ulps = ulps_between(rule->dtype, c.expected, c.actual);
    }
    if (c.bad > 0) c.shape = CD_SHAPE_UNEXPLAINED;
    return c;
}
