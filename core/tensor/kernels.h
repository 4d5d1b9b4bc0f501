/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on contiguous arrays of one dtype. cpu.c handles views and strides.
**
** One rounding rule for all of them: a scalar operand is rounded to the arrays' dtype, and every
** single operation rounds its result to that dtype. So f16 and bf16 compute each operation in f32
** and round it at once, exactly as PyTorch 1.13 and Gloo do (GRD-03: seven times fl16(1/3), not
** seven times fl32(1/3)). Double rounding through f32 is innocuous there: 24 ≥ 2 × 11 + 2. Integers
** wrap. Complex numbers scale, divide and add part by part. dst and src may be the same array;
** otherwise they do not overlap.
**
** Same bits everywhere: no reassociation, no contraction; where a kernel sums, its order is stated.
** When two NaNs meet, the processor chooses the payload; everything else is determined.
*/
#pragma once
#include "core/tensor/dtype.h"

typedef struct cd_kernel_scalar {
    double value;  /* factor or alpha */
    int64_t count; /* divisor n ≥ 1 */
} cd_kernel_scalar;

typedef void (*cd_kernel_fn)(void *dst, const void *src, size_t count,
                             const cd_kernel_scalar *scalar);

/* Each returns NULL where the operation is not defined for the dtype. */
/* dst = src × fl(value); integers: value must be integral */
cd_kernel_fn cd_kernel_scale(cddp_dtype dtype);
/* dst = src ÷ count, one rounding; integers truncate */
cd_kernel_fn cd_kernel_divide(cddp_dtype dtype);
cd_kernel_fn cd_kernel_axpy(cddp_dtype dtype); /* dst = fl(dst + fl(fl(value) × src)) */
cd_kernel_fn cd_kernel_reduce(cddp_red_op op, cddp_dtype dtype); /* dst = fl(dst op src) */

/* Sum of squares in f64, in eight lanes: element i of the whole sequence (first = its index there)
** is added to lane i mod 8, in order. cd_kernel_squares_total adds the lanes as ((0+4)+(2+6)) +
** ((1+5)+(3+7)). Complex numbers count as two elements each. */
typedef struct cd_squares {
    double lanes[8];
    uint64_t count;
} cd_squares;
void cd_kernel_squares(cd_squares *squares, cddp_dtype dtype, const void *src, size_t count);
double cd_kernel_squares_total(const cd_squares *squares);

/* Index of the first element that is NaN or infinite, or count. */
size_t cd_kernel_find_nonfinite(cddp_dtype dtype, const void *src, size_t count);
