/* SPDX-License-Identifier: Apache-2.0 */
/* A superaccumulator per element: the exact sum of any number of floating-point values, in fixed
** point.
**
** Idea. A value is an integer times a power of two. Each element owns a row of limbs, 32 bits of
** significance in 64 bits of storage; a value is cut into three pieces and added to three limbs. No
** carry moves until the sum is read, so 2^31 values may be added. The sum is exact, whatever the
** order; only reading it as a double rounds, once.
**
** Beside the sum, each element keeps Σ|x| and the lowest bit of any x. Together they prove exact
** arithmetic: when Σ|x| < 2^p · lowest bit, every partial sum in every order fits p bits.
**
** Lifetime   init → push … → read → (clear →) fini.
** Errors     memory only, in init. NaN and infinities make the magnitude infinite or NaN and leave
**            the limbs alone.
** Cost       three additions per value; 96 bytes per element for f32, f16 and bf16, 560 for f64.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/tensor.h"
#include "core/base/arena.h"

typedef struct cd_wide_sum {
    cd_arena arena; /* the three arrays */
    size_t numel, limb_count;
    int32_t exponent_min; /* weight of the lowest limb's lowest bit */
    int64_t *limbs;       /* (numel · limb_count) */
    double *magnitude;    /* (numel) Σ|x|, each addition rounded up by at most one part in 2^52 */
    /* (numel) exponent of the lowest bit of any x. INT32_MAX: all were zero; INT32_MIN: one was not
    ** finite. */
    int32_t *low;
    uint64_t push_count;
} cd_wide_sum;

cddp_status cd_wide_sum_init(cd_wide_sum *sum, const cddp_allocator *allocator, cddp_dtype dtype,
                             size_t numel, cddp_error *err);
void cd_wide_sum_fini(cd_wide_sum *sum); /* accepts a zeroed sum */
void cd_wide_sum_clear(cd_wide_sum *sum);

/* Of a zeroed or finished sum: what another one is now. */
cddp_status cd_wide_sum_copy(cd_wide_sum *sum, const cd_wide_sum *from,
                             const cddp_allocator *allocator, cddp_error *err);
/* Adds one value to every element; values are of the dtype given to init. */
void cd_wide_sum_push(cd_wide_sum *sum, const double *values);
/* The sum of element i, correctly rounded to a double. */
double cd_wide_sum_get(const cd_wide_sum *sum, size_t element);
/* sum − factor · actual, computed exactly, then rounded to a double once. factor ≤ 2^31; actual of
** the dtype. */
double cd_wide_sum_residual(const cd_wide_sum *sum, size_t element, double actual, uint64_t factor);
/* Whether all values were finite. */
bool cd_wide_sum_is_finite(const cd_wide_sum *sum, size_t element);
/* Whether every partial sum of element i, in any order, fits `precision` bits. */
bool cd_wide_sum_is_exact(const cd_wide_sum *sum, size_t element, int precision);
