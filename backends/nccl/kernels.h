/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the cuda device as C functions: each enqueues on a stream and returns at once.
**
** Every operation and rounding is that of core/tensor/kernels.h, so that the bits equal the cpu
** device's. The one exception is the payload of a NaN from arithmetic: a GPU returns its canonical
** NaN. Conversions between f32 and the 16-bit dtypes keep the payload: they use the cpu's integer
** arithmetic.
**
** Every kernel is a loop over elements without any communication between threads: no shared
** memory, no barrier, no atomic. Each sum has fixed threads and a fixed order, so results do not
** depend on the GPU or the launch.
*/
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CD_CUDA_DIMS 6
/* lanes of norm and find_nonfinite: element i belongs to lane i mod 8192 */
#define CD_CUDA_PARTIALS 8192

/* A view for the kernels: logical index → address. Adjacent dimensions are merged; the last one is
** innermost. */
typedef struct cd_cuda_view {
    void *data;         /* the element with index 0 */
    uint32_t dtype;     /* cddp_dtype */
    uint32_t dim_count; /* at least 1 */
    int64_t sizes[CD_CUDA_DIMS];
    int64_t strides[CD_CUDA_DIMS]; /* elements */
} cd_cuda_view;

typedef enum cd_cuda_op {
    CD_CUDA_COPY, /* the only operation with different dtypes */
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
    double value;  /* already rounded when the dtype is f16 or bf16 */
    int64_t count; /* divisor */
    uint64_t bits; /* one element, for FILL */
} cd_cuda_scalar;

typedef struct cd_cuda_call {
    cd_cuda_view dst, src;
    int64_t numel;
    cd_cuda_op op;
    cd_cuda_scalar scalar;
} cd_cuda_call;

/* One tensor of a batch, both sides contiguous. Chunks of all tensors are numbered consecutively.
** A block takes one chunk and finds its tensor by bisection of first_chunk. */
typedef struct cd_cuda_pair {
    void *dst;
    const void *src;
    int64_t numel;
    int64_t first_chunk;
    uint32_t dst_dtype, src_dtype;
} cd_cuda_pair;

/* The table travels as the kernel's argument, of which every GPU takes 4 KiB: no copy goes before
** the launch, and no memory is held until it has run. */
#define CD_CUDA_BATCH_PAIRS 96
typedef struct cd_cuda_batch {
    uint32_t pair_count;
    uint32_t chunk_numel; /* elements per chunk, a multiple of 16 */
    int64_t chunk_count;
    cd_cuda_op op;      /* COPY SCALE DIVIDE */
    uint32_t moves;     /* 1: every pair is a COPY between equal dtypes */
    uint32_t is_scaled; /* 1: SCALE or DIVIDE of f32 */
    cd_cuda_scalar scalar;
    cd_cuda_pair pairs[CD_CUDA_BATCH_PAIRS];
} cd_cuda_batch;

typedef struct cd_cuda_product {
    const void *a, *b;
    void *dst;
    uint32_t dtype; /* f64 f32 f16 bf16 */
    uint32_t accumulate;
    int64_t m, n, k;
    int64_t a_row, a_k, b_k, b_col, dst_row, dst_col; /* element strides */
} cd_cuda_product;

/* The matrix and its copy in f64, (rows × columns) by rows; all steps use the copy. */
typedef struct cd_cuda_basis {
    void *data;
    uint32_t dtype; /* f64 f32 f16 bf16 */
    int64_t rows, columns, row_stride, column_stride;
    double epsilon;
    double *work;     /* (rows × columns) device memory */
    double *partials; /* (CD_CUDA_BASIS_SLOTS × CD_ORTHONORMAL_LANES) device memory */
} cd_cuda_basis;
#define CD_CUDA_BASIS_SLOTS 3

/* Rows of numbers and their codes. An observer joins the lanes of a row in two steps. */
#define CD_CUDA_RANGE_JOINS 64
typedef struct cd_cuda_rows {
    const float *values; /* (rows × length) */
    uint8_t *codes;      /* (rows × length) */
    float *quantizers;   /* (rows × 2) */
    int64_t rows, length;
    int64_t lanes;   /* observers of a row: lane l sees elements l, l + lanes, … */
    float *partials; /* (rows × (lanes + CD_CUDA_RANGE_JOINS) × 2) device memory */
} cd_cuda_rows;
int64_t cd_cuda_range_lanes(int64_t length);

typedef struct cd_cuda_decode {
    float *dst; /* (numel) */
    int64_t numel;
    const uint8_t *codes;    /* (parts × rows × length) */
    const float *quantizers; /* (parts × rows × 2) */
    int64_t parts, rows, length;
} cd_cuda_decode;

/* The k largest by magnitude. Digits of four bits of the k-th largest are found from the top, each
** by a histogram of the elements that agree so far. Then a prefix sum gives the places of each
** lane's chosen elements. */
#define CD_CUDA_LARGEST_LANES 8192
#define CD_CUDA_LARGEST_JOINS 64
typedef struct cd_cuda_largest {
    void *data; /* (numel) */
    uint32_t dtype;
    int64_t numel, k;
    int32_t *indices; /* (k) */
    void *values;     /* (k) */
    void *work;       /* CD_CUDA_LARGEST_BYTES of device memory */
} cd_cuda_largest;
#define CD_CUDA_LARGEST_BYTES \
    ((size_t)(16 + 16 * 4 * (CD_CUDA_LARGEST_LANES + CD_CUDA_LARGEST_JOINS)))

typedef struct cd_cuda_add_at {
    void *data; /* (numel) */
    uint32_t dtype;
    int64_t numel, count;
    const int32_t *indices; /* (count) */
    const void *values;     /* (count) */
} cd_cuda_add_at;

/* Each returns a cudaError_t as an int: 0 is success. stream is a cudaStream_t. */
int cd_cuda_launch_call(const cd_cuda_call *call, void *stream);
int cd_cuda_launch_batch(const cd_cuda_batch *batch, void *stream);
/* dst[row][col] = sum over k = 0, 1, 2, … of products, each rounded: the cpu's order and bits. */
int cd_cuda_launch_product(const cd_cuda_product *product, void *stream);
/* As cd_orthonormalize of core/tensor/linalg.h, bit for bit; (columns)² + columns + 2 launches. */
int cd_cuda_launch_basis(const cd_cuda_basis *basis, void *stream);
/* partials: (CD_CUDA_PARTIALS) f64, the sum of squares of each lane, in order. */
int cd_cuda_launch_squares(const cd_cuda_view *src, int64_t numel, double *partials, void *stream);
/* partials: (CD_CUDA_PARTIALS) i64, the first index of each lane that is NaN or infinite, or
** INT64_MAX. */
int cd_cuda_launch_nonfinite(const cd_cuda_view *src, int64_t numel, int64_t *partials,
                             void *stream);

int cd_cuda_launch_quantize(const cd_cuda_rows *rows, void *stream);
int cd_cuda_launch_decode(const cd_cuda_decode *decode, void *stream);
int cd_cuda_launch_largest(const cd_cuda_largest *largest, void *stream);
int cd_cuda_launch_add_at(const cd_cuda_add_at *add, void *stream);

#ifdef __cplusplus
}
#endif
