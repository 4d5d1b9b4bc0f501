/* SPDX-License-Identifier: Apache-2.0 */
/* The code of those functions of math.h that layers need: C, C++ and GPU code, so that every device
** with its own kernels has the same bits. Others call math.h.
**
** Every function has the same structure: an exact range reduction, a Taylor series with terms from
** their formula (no fitted coefficients), and a last, large addition. That addition is kept as a
** pair high + low until the result is rounded once. Constants with more digits than a formula shows
** come from tests/golden/math/tables.py.
**
** Note [Pairs]: in a pair, |low| is at most about an ulp of high, and the value is their exact sum.
** `sum2` and `product2` give the exact sum and product of two doubles as a pair (Knuth's and
** Dekker's algorithms), provided that nothing overflows; they need no fused multiply-add, so every
** machine agrees. */
#pragma once
#include "core/tensor/dtype.h"

#include <math.h>

#define CD_LN2_HIGH 0x1.62e42feep-1 /* 32 bits, so that k × CD_LN2_HIGH is exact */
#define CD_LN2_LOW 0x1.a39ef35793c76p-33
#define CD_INVERSE_LN2 0x1.71547652b82fep+0

/* See Note [Pairs]. */
typedef struct cd_pair {
    double high, low;
} cd_pair;

/* |a| ≥ |b|. */
CD_EVERYWHERE cd_pair cd_quick2(double a, double b)
{
    double s = a + b;
    cd_pair p = {s, b - (s - a)};
    return p;
}

CD_EVERYWHERE cd_pair cd_sum2(double a, double b)
{
    double s = a + b, bb = s - a;
    cd_pair p = {s, (a - (s - bb)) + (b - bb)};
    return p;
}

CD_EVERYWHERE cd_pair cd_product2(double a, double b)
{
    const double splitter = 0x1p27 + 1;
    double p = a * b;
    double ta = splitter * a, tb = splitter * b;
    double ah = ta - (ta - a), bh = tb - (tb - b);
    double al = a - ah, bl = b - bh;
    cd_pair exact = {p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
    return exact;
}

/* The quotient of two pairs, rounded: one correction step after the quotient of their high
** parts. */
CD_EVERYWHERE double cd_divide2(cd_pair a, cd_pair b)
{
    double q = a.high / b.high;
    cd_pair p = cd_product2(q, b.high);
    double rest = ((a.high - p.high) - p.low) + a.low - q * b.low;
    return q + rest / b.high;
}

CD_EVERYWHERE double cd_power_of_two(int k)
{
    return cd_f64_of_bits((uint64_t)(k + 1023) << 52);
} /* -1022 ≤ k ≤ 1023 */

/* x × 2^k, rounded once; overflows and underflows as arithmetic does. */
CD_EVERYWHERE double cd_scale_by(double x, int k)
{
    if (k > 1023) return x * 0x1p1023 * cd_power_of_two(k - 1023);
    if (k < -1022) return x * 0x1p-1000 * cd_power_of_two(k + 1000);
    return x * cd_power_of_two(k);
}

/* ---- the exponential family ---- */

/* exp(x) = 2^k (1 + p) with |x - k ln 2| ≤ ln2 / 2; p as a pair. |x| < 800. */
CD_EVERYWHERE cd_pair cd_exp_reduced(double x, int *k)
{
    double quotient = rint(x * CD_INVERSE_LN2);
    double high = x - quotient * CD_LN2_HIGH, low = quotient * CD_LN2_LOW;
    double r = high - low, r_low = (high - r) - low;
    /* (exp(r) - 1 - r) / r² = 1/2! + r/3! + … + r^12/14!, the next term is below 2^-65 of the
    ** sum. */
    static const double inverse_factorial[] = {1.0 / 2.0,          1.0 / 6.0,
                                               1.0 / 24.0,         1.0 / 120.0,
                                               1.0 / 720.0,        1.0 / 5040.0,
                                               1.0 / 40320.0,      1.0 / 362880.0,
                                               1.0 / 3628800.0,    1.0 / 39916800.0,
                                               1.0 / 479001600.0,  1.0 / 6227020800.0,
                                               1.0 / 87178291200.0};
    double series = inverse_factorial[12];
    for (int i = 11; i >= 0; i--) series = series * r + inverse_factorial[i];
    cd_pair p = cd_quick2(r, r * r * series);
    p.low += r_low + r_low * r;
    *k = (int)quotient;
    return p;
}

CD_EVERYWHERE double cd_math_exp(double x)
{
    if (x != x) return x;
    if (x > 710) return INFINITY;
    if (x < -746) return 0;
    int k;
    cd_pair p = cd_exp_reduced(x, &k), e = cd_quick2(1, p.high);
    return cd_scale_by(e.high + (e.low + p.low), k);
}

/* exp(x) as a pair; -700 < x < 700. */
CD_EVERYWHERE cd_pair cd_exp2_pair(double x)
{
    int k;
    cd_pair p = cd_exp_reduced(x, &k), e = cd_quick2(1, p.high);
    double scale = cd_power_of_two(k);
    return cd_quick2(e.high * scale, (e.low + p.low) * scale);
}

/* exp(x) - 1 as a pair; |x| < 100. */
CD_EVERYWHERE cd_pair cd_expm1_pair(double x)
{
    int k;
    cd_pair p = cd_exp_reduced(x, &k);
    if (k == 0) return p;
    double scale = cd_power_of_two(k);
    /* 2^k - 1 is rounded only where it no longer matters: beyond k = 53 its error is below 2^-106
    ** relative. */
    cd_pair shift = cd_sum2(scale, -1), sum = cd_sum2(shift.high, p.high * scale);
    return cd_quick2(sum.high, sum.low + shift.low + p.low * scale);
}

CD_EVERYWHERE double cd_math_expm1(double x)
{
    if (x != x || x == 0) return x;
    if (x > 60) return cd_math_exp(x);
    if (x < -60) return -1;
    if (fabs(x) < 0x1p-54) return x;
    cd_pair e = cd_expm1_pair(x);
    return e.high + e.low;
}

CD_EVERYWHERE double cd_math_tanh(double x)
{
    double size = fabs(x);
    if (x != x || size < 0x1p-28) return x; /* the cubic term is below 2^-57 */
    if (size > 22) return x < 0 ? -1 : 1;
    cd_pair e = cd_expm1_pair(2 * size), below = cd_sum2(2, e.high);
    below.low += e.low;
    double t = cd_divide2(e, below);
    return x < 0 ? -t : t;
}

CD_EVERYWHERE double cd_math_sigmoid(double x)
{
    if (x != x) return x;
    if (x > 40) return 1;
    if (x < -690) return cd_math_exp(x); /* 1 + exp(x) is 1 */
    cd_pair e = cd_exp2_pair(x < 0 ? x : -x), below = cd_sum2(1, e.high), one = {1, 0};
    below.low += e.low;
    return cd_divide2(x < 0 ? e : one, below);
}

/* ---- logarithms ---- */

/* k ln 2 + log(1 + f) + correction, with 1 + f in [√½, √2]:
**     log(1 + f) = 2 artanh(s) = f - (f²/2 - s (f²/2 + R))
**     s = f / (2 + f),  R = 2 s² (1/3 + s²/5 + …) */
CD_EVERYWHERE double cd_log_assemble(double f, int k, double correction)
{
    double s = f / (2 + f), z = s * s, series = 2.0 / 25.0;
    for (int n = 23; n >= 3; n -= 2) series = series * z + 2.0 / (double)n; /* |z| ≤ 0.0295 */
    double half_square = 0.5 * f * f, rest = s * (half_square + z * series) + correction;
    if (k == 0) return f - (half_square - rest);
    double scale = k;
    return scale * CD_LN2_HIGH - ((half_square - (rest + scale * CD_LN2_LOW)) - f);
}

/* x = 2^k (1 + f), x positive and normal. */
CD_EVERYWHERE double cd_log_reduce(double x, int *k)
{
    uint64_t bits = cd_f64_bits(x);
    /* Exponent of x / √½, so that 1 + f lands between √½ and √2. */
    uint64_t shifted = bits - UINT64_C(0x3fe6a09e667f3bcd);
    int exponent = (int)((int64_t)shifted >> 52);
    *k = exponent;
    return cd_f64_of_bits(bits - ((uint64_t)exponent << 52)) - 1;
}

CD_EVERYWHERE double cd_math_log(double x)
{
    if (x != x || x == INFINITY) return x;
    if (x < 0) return NAN;
    if (x == 0) return -INFINITY;
    int shift = 0, k;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        shift = 54;
    }
    double f = cd_log_reduce(x, &k);
    return cd_log_assemble(f, k - shift, 0);
}

CD_EVERYWHERE double cd_math_log1p(double x)
{
    if (x != x || x == INFINITY || fabs(x) < 0x1p-54) return x;
    if (x < -1) return NAN;
    if (x == -1) return -INFINITY;
    if (x > -0.29 && x < 0.41) return cd_log_assemble(x, 0, 0);
    cd_pair u = cd_sum2(1, x);
    int k;
    double f = cd_log_reduce(u.high, &k);
    return cd_log_assemble(f, k, u.low / u.high);
}

/* ---- erf ---- */

/* erf(c + h) = erf(c) + Σ b_n h^(n+1) / (n+1). As y = erf' obeys y' = -2 x y, its coefficients
** follow from each other: (n+1) b_(n+1) = -2 (c b_n + b_(n-1)). The terms are summed from the
** smallest, n = 21, to the largest. */
CD_EVERYWHERE double cd_math_erf(double x)
{
    enum { TERMS = 22 };
    /* erf at c = 0, 1/4, … 6 (high, low) and its derivative there. */
    static const struct {
        double high, low, slope;
    } erf_table[25] = {
        {0x0.0p+0, 0x0.0p+0, 0x1.20dd750429b6dp+0},
        {0x1.1af54e232d609p-2, -0x1.bee921fa4172bp-56, 0x1.0f5d1602f7e41p+0},
        {0x1.0a7ef5c18edd2p-1, 0x1.5e809f1a31a28p-56, 0x1.c1efca49a5011p-1},
        {0x1.6c1c9759d0e5fp-1, 0x1.b1432f2cbc455p-55, 0x1.492e42d78d2c5p-1},
        {0x1.af767a741088bp-1, -0x1.c97f778122797p-56, 0x1.a911f096fbc26p-2},
        {0x1.d8865d98abe01p-1, -0x1.fcec4afb974d9p-55, 0x1.e4652fadcb6b2p-3},
        {0x1.eea5557137ae0p-1, -0x1.385e445f2c96dp-55, 0x1.e723726b824a9p-4},
        {0x1.f92d077f8d56dp-1, 0x1.8b55ef493fce7p-56, 0x1.b055303221015p-5},
        {0x1.fd9ae142795e3p-1, 0x1.972801904b9a3p-56, 0x1.529b9e8cf9a1ep-6},
        {0x1.ff404760319b4p-1, 0x1.f142071432025p-56, 0x1.d4143a9dfe965p-8},
        {0x1.ffcaa8f4c9beap-1, 0x1.b0cee160116f9p-55, 0x1.1d83170fbf6fbp-9},
        {0x1.fff2cfb0453d9p-1, 0x1.9a913686042a3p-55, 0x1.3360ccd23db3ap-11},
        {0x1.fffd1ac4135f9p-1, 0x1.eeafa1ecd6cefp-55, 0x1.2408e9ba3327fp-13},
        {0x1.ffff6f9f67e55p-1, 0x1.e1e4483ba034bp-55, 0x1.e9b5e8d00ce77p-16},
        {0x1.ffffe710d565ep-1, 0x1.c9ea52d76dc04p-55, 0x1.6a597219a93dap-18},
        {0x1.fffffc2f171e3p-1, 0x1.85edd0395f475p-55, 0x1.d9371e2ff7c35p-21},
        {0x1.ffffff7b91176p-1, 0x1.0b2865615db40p-56, 0x1.10b1488aeb235p-23},
        {0x1.fffffff01a8b6p-1, 0x1.23370eca5ca6ap-60, 0x1.155a09065d4f7p-26},
        {0x1.fffffffe4fa30p-1, 0x1.d166bcb681c7bp-57, 0x1.f1e3523b41d7dp-30},
        {0x1.ffffffffd759dp-1, 0x1.f7bee7eb23420p-55, 0x1.8a61745ec7d1dp-33},
        {0x1.fffffffffc9e8p-1, -0x1.a759f7738935fp-56, 0x1.13af4f04f9998p-36},
        {0x1.ffffffffffc05p-1, 0x1.07ba96a6b2e1ap-55, 0x1.5422ef5d8949dp-40},
        {0x1.fffffffffffbep-1, -0x1.182b326b228dcp-55, 0x1.7258610b3b233p-44},
        {0x1.ffffffffffffcp-1, 0x1.8115fd1b12786p-56, 0x1.63daf8b4b1e0cp-48},
        {0x1.0000000000000p+0, -0x1.8cf81557d20b6p-56, 0x1.2dc119095729fp-52},
    };
    double size = fabs(x);
    if (x != x) return x;
    if (size >= 6) return x < 0 ? -1 : 1;
    int row = size < 0.25 ? 0 : (int)rint(4 * size);
    if (row == 0 && size >= 0.25) row = 1;
    double c = 0.25 * row, h = size - c, b[TERMS], series = 0;
    b[0] = erf_table[row].slope;
    b[1] = -2 * c * b[0];
    for (int n = 1; n + 1 < TERMS; n++) b[n + 1] = -2 * (c * b[n] + b[n - 1]) / (double)(n + 1);
    for (int n = TERMS - 1; n >= 1; n--) series = series * h + b[n] / (double)(n + 1);
    /* The low part of 2/√π matters only where erf(c) itself is 0. */
    const double slope_low = row == 0 ? 0x1.1ae3a914fed80p-56 : 0;
    cd_pair first = {b[0] * h, 0};
    if (size >= 0x1p-500) first = cd_product2(b[0], h);
    double rest = erf_table[row].low + first.low + h * (slope_low + h * series);
    cd_pair sum = cd_sum2(erf_table[row].high, first.high);
    return copysign(sum.high + (sum.low + rest), x);
}
