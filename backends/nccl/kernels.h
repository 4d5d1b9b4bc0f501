/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the cuda device as C functions: each enqueues on a stream and returns at once.
**
** Arithmetic is that of core/tensor/kernels.h, operation by operation and rounding by rounding, so that the bits are
** the cpu device's. The one exception is the payload of a NaN that arithmetic makes or passes on: a GPU answers with
** its
** canonical NaN. Conversions between f32 and the 16-bit dtypes keep the payload: they are the cpu's integer arithmetic.
**
** Every kernel is a loop over elements that knows nothing of other threads: no shared memory, no barrier, no atomic.
** What is summed is summed by stated threads in a stated order, so results do not depend on the GPU or the launch.
*/
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CD_CUDA_DIMS 6
#define CD_CUDA_PARTIALS 8192 /* lanes of norm and find_nonfinite: element i belongs to lane i mod 8192 */

/* A view as the kernels see it: logical index → address. Sizes are those of the view with dimensions merged that
** continue each other; the last one is innermost. */
typedef struct cd_cuda_view {
    void *data;         /* the element with index 0 */
    uint32_t dtype;     /* cddp_dtype */
    uint32_t dim_count; /* at least 1 */
    int64_t sizes[CD_CUDA_DIMS];
    int64_t strides[CD_CUDA_DIMS]; /* elements */
} cd_cuda_view;

typedef enum cd_cuda_op {
    CD_CUDA_COPY, /* the only one that takes different dtypes */
    CD_CUDA_FILL, /* dst = scalar.bits, whatever src */
    CD_CUDA_SCALE,
    CD_CUDA_DIVIDE,
    CD_CUDA_AXPY,
    CD_CUDA_SUM,
    CD_CUDA_PRODUCT,
    CD_CUDA_MIN,
    CD_CUDA_MAX,
    CD_CUDA_BAND,
    CD_CUDA_BOR,
    CD_CUDA_BXOR
} cd_cuda_op;

typedef struct cd_cuda_scalar {
    double value;  /* rounded to the dtype already when that is f16 or bf16 */
    int64_t count; /* divisor */
    uint64_t bits; /* one element, for FILL */
} cd_cuda_scalar;

typedef struct cd_cuda_call {
    cd_cuda_view dst, src;
    int64_t numel;
    cd_cuda_op op;
    cd_cuda_scalar scalar;
} cd_cuda_call;

/* One tensor of a batch, both sides contiguous. Chunks of all tensors are numbered through; a block takes one chunk
** and finds its tensor by bisection of first_chunk. */
typedef struct cd_cuda_pair {
    void *dst;
    const void *src;
    int64_t numel;
    int64_t first_chunk;
    uint32_t dst_dtype, src_dtype;
} cd_cuda_pair;

typedef struct cd_cuda_batch {
    const cd_cuda_pair *pairs; /* (pair_count) in device memory */
    uint32_t pair_count;
    uint32_t chunk_numel; /* elements per chunk, a multiple of 16 */
    int64_t chunk_count;
    cd_cuda_op op; /* COPY SCALE DIVIDE */
    cd_cuda_scalar scalar;
} cd_cuda_batch;

typedef struct cd_cuda_product {
    const void *a, *b;
    void *dst;
    uint32_t dtype; /* f64 f32 f16 bf16 */
    uint32_t accumulate;
    int64_t m, n, k;
    int64_t a_row, a_k, b_k, b_col, dst_row, dst_col; /* element strides */
} cd_cuda_product;

typedef struct cd_cuda_basis {
    void *data;
    uint32_t dtype; /* f64 f32 */
    int64_t rows, columns, row_stride, column_stride;
    double epsilon;
    double *partials; /* (columns × CD_CUDA_BASIS_PARTIALS) device memory */
} cd_cuda_basis;
#define CD_CUDA_BASIS_PARTIALS 256

/* Each returns a cudaError_t as an int: 0 is success. stream is a cudaStream_t. */
int cd_cuda_launch_call(const cd_cuda_call *call, void *stream);
int cd_cuda_launch_batch(const cd_cuda_batch *batch, void *stream);
/* dst[row][col] = sum over k = 0, 1, 2, … of products, each rounded: the cpu's order and bits. */
int cd_cuda_launch_product(const cd_cuda_product *product, void *stream);
/* Modified Gram-Schmidt on the columns, as core/tensor/linalg.h says, with sums over rows in 256 lanes. */
int cd_cuda_launch_basis(const cd_cuda_basis *basis, void *stream);
/* partials: (CD_CUDA_PARTIALS) f64, the sum of squares of each lane, in order. */
int cd_cuda_launch_squares(const cd_cuda_view *src, int64_t numel, double *partials, void *stream);
/* partials: (CD_CUDA_PARTIALS) i64, the first index of each lane that is NaN or infinite, or INT64_MAX. */
int cd_cuda_launch_nonfinite(const cd_cuda_view *src, int64_t numel, int64_t *partials, void *stream);

#ifdef __cplusplus
}
#endif
