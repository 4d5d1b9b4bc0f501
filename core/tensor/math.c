/* SPDX-License-Identifier: Apache-2.0 */
/* Transcendental functions from + - × ÷ alone. math_code.h explains their construction, and has
** those that also run on GPUs. */
#include "core/tensor/math.h"

#include "core/tensor/math_code.h"

double cd_exp(double x) { return cd_math_exp(x); }
double cd_expm1(double x) { return cd_math_expm1(x); }
double cd_log(double x) { return cd_math_log(x); }
double cd_log1p(double x) { return cd_math_log1p(x); }
double cd_tanh(double x) { return cd_math_tanh(x); }
double cd_sigmoid(double x) { return cd_math_sigmoid(x); }
double cd_erf(double x) { return cd_math_erf(x); }

/* ---- sine and cosine of π x ---- */

/* sin(π t), |t| ≤ 1/4. */
static double sine_kernel(double t)
{
    static const double c[] = {
        -0x1.4abbce625be53p+2,  0x1.466bc6775aae2p+1,  -0x1.32d2cce62bd86p-1,
        0x1.50783487ee782p-4,   -0x1.e3074fde8871fp-8, 0x1.e8f434d018d63p-12,
        -0x1.6fadb9f155744p-16, 0x1.aaec32af93359p-21, -0x1.8a404211f9547p-26,
        0x1.2877020d52cf0p-31}; /* (-1)^k π^(2k+1) / (2k+1)!, k = 1 … 10 */
    double z = t * t, series = c[9];
    for (int i = 8; i >= 0; i--) series = series * z + c[i];
    if (fabs(t) < 0x1p-500) return t * 0x1.921fb54442d18p+1;
    cd_pair p = cd_product2(t, 0x1.921fb54442d18p+1);
    return p.high + (p.low + t * (0x1.1a62633145c07p-53 + z * series));
}

/* cos(π t), |t| ≤ 1/4. */
static double cosine_kernel(double t)
{
    static const double c[] = {-0x1.3bd3cc9be45dep+2,  0x1.03c1f081b5ac4p+2,
                               -0x1.55d3c7e3cbffap+0,  0x1.e1f506891babbp-3,
                               -0x1.a6d1f2a204a8cp-6,  0x1.f9d38a3763cc3p-10,
                               -0x1.b6e24f44b128fp-14, 0x1.20c62c2f2d7f5p-18,
                               -0x1.2a0c591af8314p-23, 0x1.ef6e308d6d1c4p-29,
                               -0x1.52ae4120fde27p-34}; /* (-1)^k π^(2k) / (2k)!, k = 1 … 11 */
    double z = t * t, series = c[10];
    for (int i = 9; i >= 0; i--) series = series * z + c[i];
    return 1 + z * series;
}

/* x = n/2 + t with |t| ≤ 1/4, exactly; returns n mod 4. */
static int reduce_half_turns(double x, double *t)
{
    double rest = fmod(x, 2), n = rint(2 * rest);
    *t = rest - 0.5 * n;
    return ((int)n + 8) % 4;
}

double cd_sinpi(double x)
{
    double t;
    if (x - x != 0) return NAN;
    if (x == 0) return x;
    int quarter = reduce_half_turns(x, &t);
    double value = quarter % 2 == 0 ? sine_kernel(t) : cosine_kernel(t);
    return quarter >= 2 ? -value : value;
}

double cd_cospi(double x)
{
    double t;
    if (x - x != 0) return NAN;
    int quarter = reduce_half_turns(fabs(x), &t);
    double value = quarter % 2 == 0 ? cosine_kernel(t) : sine_kernel(t);
    return quarter == 1 || quarter == 2 ? -value : value;
}

/* ---- integer powers ---- */

/* (high + low) × 2^exponent, high in [½, 1): no product of two can leave the range of doubles. */
typedef struct scaled {
    cd_pair value;
    int64_t exponent;
} scaled;

static scaled scaled_product(scaled a, scaled b)
{
    cd_pair p = cd_product2(a.value.high, b.value.high);
    p = cd_quick2(p.high, p.low + (a.value.high * b.value.low + a.value.low * b.value.high));
    int shift = 0;
    double high = frexp(p.high, &shift);
    return (scaled){{high, cd_scale_by(p.low, -shift)}, a.exponent + b.exponent + shift};
}

/* Squaring and multiplying in pairs: 2^-100 relative error per step leaves the last rounding as the
** only one. */
double cd_powi(double x, uint64_t n)
{
    if (n == 0) return 1;
    if (x == 0 || x - x != 0) return n % 2 == 0 ? x * x : x; /* 0, infinities, NaN */
    int shift;
    double high = frexp(x, &shift);
    scaled base = {{high, 0}, shift}, power = {{0.5, 0}, 1};
    for (;; base = scaled_product(base, base)) {
        if (n & 1) power = scaled_product(power, base);
        n >>= 1;
        if (n == 0) break;
    }
    double value = power.value.high + power.value.low;
    if (power.exponent > 1100) return value < 0 ? -INFINITY : INFINITY;
    if (power.exponent < -1200) return value < 0 ? -0.0 : 0.0;
    return cd_scale_by(value, (int)power.exponent);
}

/* ---- f32: the f64 result rounded once ---- */

float cd_exp_f32(float x) { return (float)cd_exp((double)x); }
float cd_expm1_f32(float x) { return (float)cd_expm1((double)x); }
float cd_log_f32(float x) { return (float)cd_log((double)x); }
float cd_log1p_f32(float x) { return (float)cd_log1p((double)x); }
float cd_tanh_f32(float x) { return (float)cd_tanh((double)x); }
float cd_sigmoid_f32(float x) { return (float)cd_sigmoid((double)x); }
float cd_erf_f32(float x) { return (float)cd_erf((double)x); }
float cd_sinpi_f32(float x) { return (float)cd_sinpi((double)x); }
float cd_cospi_f32(float x) { return (float)cd_cospi((double)x); }
