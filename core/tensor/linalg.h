/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix product and Gram-Schmidt, with their orders of summation stated.
**
** Matmul: every element of the result is one sum over k = 0, 1, 2, … strictly in this order, each
** product rounded, then added to a register that starts at 0. f16 and bf16 sum in f32 and round
** once at the end. accumulate adds the finished sum to the old value, with one rounding. Nothing
** depends on m or n: a row has the same bits in every batch, compiler and instruction set (batch
** invariance).
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

/* The versions of the inner loop; all give the same bits. */
typedef enum cd_isa { CD_ISA_PORTABLE, CD_ISA_AVX2, CD_ISA_AVX512, CD_ISA_COUNT } cd_isa;
bool cd_isa_is_available(cd_isa isa); /* this processor runs it */
cd_isa cd_isa_best(void);             /* the fastest that it runs */

/* allocator: for packing buffers; NULL is the heap. Fails only with CDDP_E_NOMEM. */
cddp_status cd_matmul(const cd_matmul_args *args, cd_isa isa, const cddp_allocator *allocator,
                      cddp_error *err);

/* Makes the columns of a row-major matrix orthonormal, as cddp_device.orthonormalize does. Order of
** its sums: row i is added to running sum i mod 256, in order; then running sum l to sum l mod 4,
** in order; then (0 + 1) + (2 + 3). Up to 256 rows that is row i to sum i mod 4. */
#define CD_ORTHONORMAL_LANES 256
/* A column that is shorter than this part of its old length is only rounding of the columns before
** it. */
#define CD_ORTHONORMAL_DEPENDENT 1e-10
void cd_orthonormalize(double *matrix, int64_t rows, int64_t columns, double epsilon);
