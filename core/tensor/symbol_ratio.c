/* SPDX-License-Identifier: Apache-2.0 */
/* Ratios of int64, always reduced. An operation whose result does not fit fails; nothing wraps. */
#include "core/tensor/symbol.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <math.h>

static uint64_t magnitude(int64_t x) { return x < 0 ? 0 - (uint64_t)x : (uint64_t)x; }

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool multiply(int64_t a, int64_t b, int64_t *product)
{
    uint64_t x = magnitude(a), y = magnitude(b);
    if (x != 0 && y > (uint64_t)INT64_MAX / x) return false;
    *product = (a < 0) != (b < 0) ? -(int64_t)(x * y) : (int64_t)(x * y);
    return true;
}

static bool add(int64_t a, int64_t b, int64_t *sum)
{
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return false;
    *sum = a + b;
    return true;
}

cddp_status cd_ratio_make(int64_t numerator, int64_t denominator, cd_ratio *ratio, cddp_error *err)
{
    if (denominator == 0)
        return cd_fail(err, CDDP_E_ARG, "ratio: %" PRId64 " divided by 0", numerator);
    uint64_t n = magnitude(numerator), d = magnitude(denominator),
             common = greatest_common_divisor(n, d);
    n /= common;
    d /= common;
    if (n > INT64_MAX || d > INT64_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "ratio: %" PRId64 "/%" PRId64 " does not fit", numerator,
                       denominator);
    bool negative = (numerator < 0) != (denominator < 0);
    *ratio = (cd_ratio){negative ? -(int64_t)n : (int64_t)n, (int64_t)d};
    return CDDP_OK;
}

cddp_status cd_ratio_add(cd_ratio a, cd_ratio b, cd_ratio *sum, cddp_error *err)
{
    /* a.n/(g·x) + b.n/(g·y) = (a.n·y + b.n·x) / (g·x·y), with g the common divisor of the
    ** denominators. */
    int64_t g = (int64_t)greatest_common_divisor((uint64_t)a.denominator, (uint64_t)b.denominator);
    int64_t x = a.denominator / g, y = b.denominator / g, left, right, numerator, denominator;
    if (!multiply(a.numerator, y, &left) || !multiply(b.numerator, x, &right) ||
        !add(left, right, &numerator) || !multiply(a.denominator, y, &denominator))
        return cd_fail(err, CDDP_E_LIMIT,
                       "ratio: %" PRId64 "/%" PRId64 " + %" PRId64 "/%" PRId64 " does not fit",
                       a.numerator, a.denominator, b.numerator, b.denominator);
    return CD_PASS(cd_ratio_make(numerator, denominator, sum, err));
}

cddp_status cd_ratio_multiply(cd_ratio a, cd_ratio b, cd_ratio *product, cddp_error *err)
{
    /* Crosswise reduction first, so that only results that do not fit are refused. */
    cd_ratio left, right;
    CD_TRY(cd_ratio_make(a.numerator, b.denominator, &left, err));
    CD_TRY(cd_ratio_make(b.numerator, a.denominator, &right, err));
    int64_t numerator, denominator;
    if (!multiply(left.numerator, right.numerator, &numerator) ||
        !multiply(left.denominator, right.denominator, &denominator))
        return cd_fail(err, CDDP_E_LIMIT,
                       "ratio: %" PRId64 "/%" PRId64 " × %" PRId64 "/%" PRId64 " does not fit",
                       a.numerator, a.denominator, b.numerator, b.denominator);
    *product = (cd_ratio){numerator, denominator};
    return CDDP_OK;
}

/* next = quotient × now + before, within the integers that a double can represent. */
static bool convergent(double quotient, int64_t now, int64_t before, int64_t *next)
{
    int64_t product;
    if (quotient > 0x1p53) return false;
    return multiply((int64_t)quotient, now, &product) && add(product, before, next) &&
           *next <= INT64_C(1) << 53;
}

/* The continued fraction of |value| by Euclid's algorithm on doubles: fmod is exact, so every
** remainder is. */
cddp_status cd_ratio_of_double(double value, cd_ratio *ratio, cddp_error *err)
{
    double target = value < 0 ? -value : value;
    if (!(target <= 0x1p53))
        return cd_fail(err, CDDP_E_LIMIT, "ratio: %.17g is not a number of at most 2^53", value);
    int64_t h = 1, h_before = 0, k = 0, k_before = 1; /* convergent h/k */
    double a = target, b = 1;
    while (b != 0) {
        double rest = fmod(a, b), quotient = rint((a - rest) / b);
        int64_t h_next, k_next;
        if (!convergent(quotient, h, h_before, &h_next) ||
            !convergent(quotient, k, k_before, &k_next))
            break;
        h_before = h;
        k_before = k;
        h = h_next;
        k = k_next;
        if ((double)h / (double)k == target)
            return CD_PASS(cd_ratio_make(value < 0 ? -h : h, k, ratio, err));
        a = b;
        b = rest;
    }
    return cd_fail(err, CDDP_E_LIMIT, "ratio: no ratio within 2^53 rounds to %.17g", value);
}
