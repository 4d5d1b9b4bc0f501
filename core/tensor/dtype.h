/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between dtypes: to nearest, ties to even, with the same bits on every machine.
**
**   float → float    correctly rounded in one step (f64 → f16 does not pass through a rounded f32);
**                    overflow gives infinity; NaN stays NaN, quiet, with the upper payload bits
**                    kept.
**   float → integer  truncates toward zero, saturates at the ends, NaN gives 0.
**   integer → float  correctly rounded.
**   integer → integer  wraps (the low bits are kept).
**   c64 → real takes the real part; real → c64 has imaginary part 0.
**
** The 16-bit conversions have no branches, so that compilers can vectorise the array forms. Where
** the processor converts f16 itself, the array forms use it with the same bits.
** See Note [Conversions of f16 in hardware].
*/
#pragma once
#include "cddp/tensor.h"
#include "core/base/everywhere.h"

#include <string.h>

CD_EVERYWHERE uint32_t cd_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CD_EVERYWHERE float cd_f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

CD_EVERYWHERE uint64_t cd_f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CD_EVERYWHERE double cd_f64_of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

CD_EVERYWHERE float cd_bf16_to_f32(uint16_t h)
{
    uint32_t quiet = (uint32_t)((h & 0x7fffu) > 0x7f80u) << 22;
    return cd_f32_of_bits((uint32_t)h << 16 | quiet);
}

CD_EVERYWHERE uint16_t cd_f32_to_bf16(float x)
{
    uint32_t bits = cd_f32_bits(x);
    uint32_t is_nan = (uint32_t) - (int32_t)((bits & 0x7fffffffu) > 0x7f800000u);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((rounded & ~is_nan) | (quiet & is_nan));
}

CD_EVERYWHERE float cd_f16_to_f32(uint16_t h)
{
    uint32_t magnitude = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    /* Normal numbers: the exponent's bias grows by 112. Infinity and NaN: by 112 once more, to
    ** 255. */
    uint32_t special = (uint32_t) - (int32_t)(magnitude >= 0x7c00u);
    uint32_t quiet = (uint32_t)(magnitude > 0x7c00u) << 22;
    uint32_t normal = ((magnitude << 13) + (112u << 23) + (special & 112u << 23)) | quiet;
    /* Subnormal numbers: m × 2^-24 exactly, through an integer conversion. */
    uint32_t subnormal = cd_f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t is_subnormal = (uint32_t) - (int32_t)(magnitude < 0x400u);
    return cd_f32_of_bits(sign | (subnormal & is_subnormal) | (normal & ~is_subnormal));
}

CD_EVERYWHERE uint16_t cd_f32_to_f16(float x)
{
    uint32_t bits = cd_f32_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* Normal results: round the 13 dropped bits to even, then lower the bias by 112. */
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    /* Subnormal results: adding 0.5 puts the last kept bit (2^-24) at the end of the significand,
    ** and the addition itself rounds to even. Larger operands are replaced, so that nothing
    ** overflows. */
    uint32_t is_small = (uint32_t) - (int32_t)(magnitude < 113u << 23);
    uint32_t subnormal =
        cd_f32_bits(cd_f32_of_bits(magnitude & is_small) + 0.5f) - cd_f32_bits(0.5f);
    uint32_t is_over = (uint32_t) - (int32_t)(magnitude >= 0x477ff000u); /* 65520 and above */
    uint32_t is_nan = (uint32_t) - (int32_t)(magnitude > 0x7f800000u);
    uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    uint32_t h = (subnormal & is_small) | (normal & ~is_small);
    h = (h & ~is_over) | (0x7c00u & is_over);
    h = (h & ~is_nan) | (nan & is_nan);
    return (uint16_t)(sign | h);
}

/* Rounds to f32 with the last bit made odd when inexact: a second rounding to a narrower type is
** then correct. */
CD_EVERYWHERE float cd_f64_to_f32_odd(double x)
{
    float nearest = (float)x;
    double back = (double)nearest;
    if (back == x || x != x || (x - x) != 0) return nearest; /* exact, NaN or infinite */
    /* Inexact: of the two neighbours, the one with an odd last bit. An overflow comes back to the
    ** largest finite number, whose last bit is odd. */
    uint32_t bits = cd_f32_bits(nearest);
    bool rounded_away = (back < 0 ? -back : back) > (x < 0 ? -x : x);
    if ((bits & 1u) == 0) bits = rounded_away ? bits - 1 : bits + 1;
    return cd_f32_of_bits(bits);
}

CD_EVERYWHERE double cd_i64_to_f64_odd(int64_t x)
{
    uint64_t magnitude = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    /* below the 53 bits of the largest operand */
    uint64_t sticky = (magnitude & 0x7ffu) != 0 ? 0x800u : 0;
    if (magnitude >> 53 != 0) magnitude = (magnitude & ~UINT64_C(0x7ff)) | sticky;
    double result = (double)magnitude;
    return x < 0 ? -result : result;
}

CD_EVERYWHERE uint16_t cd_f64_to_f16(double x) { return cd_f32_to_f16(cd_f64_to_f32_odd(x)); }
CD_EVERYWHERE uint16_t cd_f64_to_bf16(double x) { return cd_f32_to_bf16(cd_f64_to_f32_odd(x)); }

/* Truncates, saturates, NaN gives 0. */
CD_EVERYWHERE int64_t cd_f64_to_i64(double x)
{
    if (x != x) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    if (x < -0x1p63) return INT64_MIN;
    return (int64_t)x;
}

/* Arrays. Source and destination must not overlap unless they are the same array of the same
** dtype. */
void cd_convert_f16_to_f32(float *dst, const uint16_t *src, size_t count);
void cd_convert_f32_to_f16(uint16_t *dst, const float *src, size_t count);
void cd_convert_bf16_to_f32(float *dst, const uint16_t *src, size_t count);
void cd_convert_f32_to_bf16(uint16_t *dst, const float *src, size_t count);
void cd_convert(cddp_dtype dst_dtype, void *dst, cddp_dtype src_dtype, const void *src,
                size_t count);

/* One element as f64 (i64 rounded, c64 its real part), and back. */
double cd_element_get(cddp_dtype dtype, const void *element);
void cd_element_set(cddp_dtype dtype, void *element, double value);
