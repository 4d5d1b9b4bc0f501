/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of floating-point formats. */
#include "core/oracle/numbers.h"

#include "core/tensor/dtype.h"

#include <math.h>

double cd_two_to(int exponent)
{
    if (exponent > 1023) return INFINITY;
    if (exponent >= -1022) return cd_f64_of_bits((uint64_t)(exponent + 1023) << 52);
    return exponent >= -1074 ? cd_f64_of_bits(UINT64_C(1) << (exponent + 1074)) : 0;
}

typedef struct float_format {
    int precision, exponent_min; /* of the smallest subnormal */
} float_format;

static float_format format_of(cddp_dtype dtype)
{
    switch (dtype) {
    case CDDP_F64:
        return (float_format){53, -1074};
    case CDDP_F16:
        return (float_format){11, -24};
    case CDDP_BF16:
        return (float_format){8, -133};
    case CDDP_F32:
    case CDDP_C64:
        return (float_format){24, -149};
    default:
        return (float_format){53, 0}; /* integers: every operation is exact */
    }
}

int cd_dtype_precision(cddp_dtype dtype) { return format_of(dtype).precision; }

double cd_dtype_roundoff(cddp_dtype dtype) { return cd_two_to(-format_of(dtype).precision); }

double cd_dtype_underflow(cddp_dtype dtype)
{
    /* Half of f64's smallest subnormal is no double; the whole is an upper bound. */
    return dtype == CDDP_F64 ? 0x1p-1074 : cd_two_to(format_of(dtype).exponent_min - 1);
}

/* Its place in a float of f64: |value| lies below two to it, and not below half of that. A
** subnormal's lies lower, and so does zero's: below the last place of every dtype. */
static int exponent_of(double value) { return (int)(cd_f64_bits(value) >> 52 & 0x7ff) - 1022; }

double cd_dtype_ulp(cddp_dtype dtype, double value)
{
    const float_format f = format_of(dtype);
    if (!isfinite(value)) return INFINITY;
    const int ulp = exponent_of(value) - f.precision;
    return cd_two_to(value == 0 || ulp < f.exponent_min ? f.exponent_min : ulp);
}

double cd_gamma(cddp_dtype dtype, uint64_t n)
{
    double nu = (double)n * cd_dtype_roundoff(dtype);
    return nu < 1 ? nu / (1 - nu) * (1 + 0x1p-50) : INFINITY;
}

/* By definition, and not as a device does it: the judge does not share its arithmetic. */
static double round_to(float_format f, double largest, double value)
{
    if (!isfinite(value) || value == 0) return value;
    const int exponent = ilogb(value) + 1 - f.precision,
              unit = exponent < f.exponent_min ? f.exponent_min : exponent;
    const double rounded = ldexp(nearbyint(ldexp(value, -unit)), unit);
    return fabs(rounded) > largest ? copysign(INFINITY, value) : rounded;
}

double cd_dtype_round(cddp_dtype dtype, double value)
{
    switch (dtype) {
    case CDDP_F32:
    case CDDP_C64:
        return (double)(float)value;
    case CDDP_F16:
        return round_to(format_of(dtype), 65504, value);
    case CDDP_BF16:
        return round_to(format_of(dtype), 0x1.fep127, value);
    default:
        return value;
    }
}

static double round_once(cddp_dtype dtype, double value)
{
    return dtype == CDDP_F64                        ? value
           : dtype == CDDP_F32 || dtype == CDDP_C64 ? (double)(float)value
                                                    : cd_dtype_round(dtype, (double)(float)value);
}

/* Twice the precision and two bits more: rounding the quotient of f64 again is harmless. */
void cd_dtype_divide(cddp_dtype dtype, double *values, size_t count, int64_t n)
{
    for (size_t i = 0; i < count; i++) values[i] = round_once(dtype, values[i] / (double)n);
}

void cd_dtype_multiply_reciprocal(cddp_dtype dtype, double *values, size_t count, int64_t n)
{
    const double factor = cd_dtype_round(dtype, 1.0 / (double)n);
    for (size_t i = 0; i < count; i++) values[i] = round_once(dtype, values[i] * factor);
}
