/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix product and Gram-Schmidt, with their orders of summation stated.
**
** Matmul: every element of the result is one sum over k = 0, 1, 2, … strictly in this order, each product
** rounded, then added to a register that starts at 0. f16 and bf16 sum in f32 and round once at the end;
** accumulate adds the finished sum to the old value, with one rounding. Nothing depends on m or n: a row has
** the same bits whatever stands around it (batch invariance), and on every compiler and instruction set.
*/
#pragma once
#include "cddp/alloc.h"
#include "core/tensor/view.h"

/* Strides are in elements and arbitrary; data points at the first element of the view. */
typedef struct cd_matmul_args {
    cd_matmul_shape shape;
    cddp_dtype dtype; /* f64 f32 f16 bf16 */
    void *dst;
    const void *a, *b;
    bool accumulate;
} cd_matmul_args;

/* Which version of the inner loop runs; all give the same bits. */
typedef enum cd_isa { CD_ISA_PORTABLE, CD_ISA_AVX2, CD_ISA_AVX512, CD_ISA_COUNT } cd_isa;
bool cd_isa_is_available(cd_isa isa); /* this processor runs it */
cd_isa cd_isa_best(void);             /* the fastest that it runs */

/* allocator: for packing buffers; NULL is the heap. Fails only with CDDP_E_NOMEM. */
cddp_status cd_matmul(const cd_matmul_args *args, cd_isa isa, const cddp_allocator *allocator, cddp_error *err);

/* Makes the columns of a host matrix (rows, columns), f32 or f64, orthonormal in place, as PowerSGD does: column by
** column, divide by its norm (+ epsilon), then subtract from every later column its projection. Norms and
** products are summed in f64 over the rows in order; every stored number is rounded to the dtype. A column whose
** norm is 0 becomes 0 when epsilon is 0. */
cddp_status cd_gram_schmidt(const cddp_tensor *matrix, double epsilon, cddp_error *err);
