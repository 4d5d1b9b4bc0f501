/* SPDX-License-Identifier: Apache-2.0 */
/* Affine 8-bit codes of f32 numbers, as the hooks of both quantisations use them: a number is scale
** · (code - zero point).
**
** The scale comes from a min-max observer whose range is forced to include 0. A range that is not
** finite gives scale NaN: the row then decodes to NaN on every rank, where an overflow belongs.
** Bits are the same on host and GPU: only + - × ÷ and rounding to nearest even.
*/
#pragma once
#include "core/tensor/dtype.h"

#include <float.h>
#include <math.h>

typedef struct cd_quantizer {
    float scale, zero_point;
} cd_quantizer;

/* The range that an observer has seen; it depends on no order and no thread. */
typedef struct cd_quantizer_range {
    float least, most; /* least NaN: something was not finite */
} cd_quantizer_range;

CD_EVERYWHERE cd_quantizer_range cd_quantizer_see(cd_quantizer_range r, float value)
{
    if (!(value - value == 0.0f)) r.least = value - value;
    if (value < r.least) r.least = value;
    if (value > r.most) r.most = value;
    return r;
}

CD_EVERYWHERE cd_quantizer_range cd_quantizer_join(cd_quantizer_range a, cd_quantizer_range b)
{
    if (b.least != b.least || b.least < a.least) a.least = b.least;
    if (b.most > a.most) a.most = b.most;
    return a;
}

CD_EVERYWHERE cd_quantizer cd_quantizer_of(cd_quantizer_range r)
{
    cd_quantizer q = {cd_f32_of_bits(0x7fc00000u), 0.0f};
    const float width = r.most - r.least;
    if (!(width - width == 0.0f)) return q;
    q.scale = width / 255.0f;
    if (q.scale < FLT_EPSILON) q.scale = FLT_EPSILON; /* the observer's own floor */
    q.zero_point = -nearbyintf(r.least / q.scale);
    q.zero_point = q.zero_point < 0.0f ? 0.0f : q.zero_point > 255.0f ? 255.0f : q.zero_point;
    return q;
}

CD_EVERYWHERE uint8_t cd_quantizer_encode(cd_quantizer q, float value)
{
    if (q.scale != q.scale) return 0;
    const float code = nearbyintf(value * (1.0f / q.scale)) + q.zero_point;
    return code < 0.0f ? 0 : code > 255.0f ? 255 : (uint8_t)code;
}

CD_EVERYWHERE float cd_quantizer_decode(cd_quantizer q, uint8_t code)
{
    return q.scale * ((float)code - q.zero_point);
}
