/* SPDX-License-Identifier: Apache-2.0 */
/* The `cuda` device: the device table over one GPU.
**
** An operation checks its operands as the cpu device does, translates its views and enqueues one
** kernel. Only read, norm, find_nonfinite, digest and stream_synchronize wait for the GPU, and
** count it (cd_cuda.host_waits). write waits only for data that is too large for the staging ring.
**
** Orders
**   norm    element i is squared in f64 and added to lane i mod 8192 in order; the lanes are added
**           pairwise, lane l to lane l + 4096, then + 2048, …
**   matmul  cuBLAS's own order for operands that it supports, else k = 0, 1, 2, … as on cpu.
**
** Not here: what a kernel computes (kernels.cu), memory and streams (cuda.c).
*/
#include "backends/nccl/cuda.h"
#include "backends/nccl/layers.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/tensor/kernels.h"
#include "core/tensor/linalg.h"
#include "core/tensor/view.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define STAGED_BYTES_MAX ((size_t)1 << 20) /* larger writes do not pay for a copy */
#define CHUNK_NUMEL 4096u                  /* of f32 one round of four wide loads per thread */

static cd_cuda *state_of(const cddp_device *device) { return device->self; }

/* The first caller opens the GPU; a rank that chose a GPU did so before. */
static cddp_status need(const cddp_device *device, cd_cuda **cuda, cddp_error *err)
{
    cd_cuda *c = state_of(device);
    if (!c->is_open) CD_TRY(cd_cuda_open(c, 0, err));
    *cuda = c;
    return CDDP_OK;
}

static char *address(const cddp_tensor *t)
{
    return (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

static size_t size_of(const cddp_tensor *t)
{
    return (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
}

/* ---- storage ---- */

static cddp_status cuda_allocate(const cddp_device *device, cddp_dtype dtype, int64_t numel,
                                 void **storage, cddp_error *err)
{
    cd_cuda *cuda;
    void *made = NULL;
    if (numel < 0 || (unsigned)dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_ARG, "allocate: %" PRId64 " elements of dtype %d", numel,
                       (int)dtype);
    CD_TRY(need(device, &cuda, err));
    if ((uint64_t)numel > SIZE_MAX / cddp_dtype_bytes(dtype))
        return cd_fail_memory(err, "%" PRId64 " elements of %s", numel, cddp_dtype_name(dtype));
    size_t bytes = (size_t)numel * cddp_dtype_bytes(dtype);
    CD_TRY(cd_cuda_take(cuda, bytes, &made, err));
    /* Filled on purpose with NaN and -1, so that stale data shows. */
    cddp_status status = bytes > 0 ? cd_cuda_check(cudaMemsetAsync(made, 0xff, bytes, cuda->stream),
                                                   "cudaMemsetAsync", err)
                                   : CDDP_OK;
    if (status != CDDP_OK) {
        cd_cuda_give(cuda, bytes, made);
        return status;
    }
    const cddp_tensor whole = cddp_tensor_of(device, made, 0, dtype, &numel, 1);
    cd_observe_memory(&cuda->observer, made, bytes, false);
    cd_observe_touch(&cuda->observer, cuda->stream, &whole, true, "allocate");
    *storage = made;
    return CDDP_OK;
}

static void cuda_release(const cddp_device *device, cddp_dtype dtype, int64_t numel, void *storage)
{
    cd_cuda *cuda = state_of(device);
    size_t bytes = (size_t)numel * cddp_dtype_bytes(dtype);
    cd_observe_memory(&cuda->observer, storage, bytes, true);
    cd_cuda_give(cuda, bytes, storage);
}

/* ---- calls ---- */

/* A view for the kernels. cd_walk merges the dimensions that continue each other. */
static cd_cuda_view view_of(const cddp_tensor *t)
{
    cd_walk walk;
    cd_walk_begin(&walk, t);
    cd_cuda_view v = {.data = address(t), .dtype = (uint32_t)t->dtype, .dim_count = walk.dim_count};
    for (uint32_t i = 0; i < walk.dim_count; i++) {
        v.sizes[i] = walk.sizes[i];
        v.strides[i] = walk.strides[i];
    }
    return v;
}

static cd_cuda_view flat_view_of(const cddp_tensor *t)
{
    return (cd_cuda_view){.data = address(t),
                          .dtype = (uint32_t)t->dtype,
                          .dim_count = 1,
                          .sizes = {cddp_tensor_numel(t)},
                          .strides = {1}};
}

/* Scalars of f16 and bf16 are rounded first. */
static cd_cuda_scalar scalar_of(cddp_dtype dtype, double value, int64_t count)
{
    cd_cuda_scalar s = {.value = value, .count = count};
    if (dtype == CDDP_F16 || dtype == CDDP_BF16) {
        uint16_t bits;
        cd_element_set(dtype, &bits, value);
        s.value = cd_element_get(dtype, &bits);
    }
    return s;
}

static const char *const op_names[] = {
    [CD_CUDA_COPY] = "copy",       [CD_CUDA_FILL] = "fill", [CD_CUDA_SCALE] = "scale",
    [CD_CUDA_DIVIDE] = "divide",   [CD_CUDA_AXPY] = "axpy", [CD_CUDA_SUM] = "sum",
    [CD_CUDA_PRODUCT] = "product", [CD_CUDA_MIN] = "min",   [CD_CUDA_MAX] = "max",
    [CD_CUDA_BAND] = "and",        [CD_CUDA_BOR] = "or",    [CD_CUDA_BXOR] = "xor"};

static void touch_two(cd_cuda *cuda, cudaStream_t stream, const cddp_tensor *dst,
                      const cddp_tensor *src, const char *who)
{
    if (src != dst) cd_observe_touch(&cuda->observer, stream, src, false, who);
    cd_observe_touch(&cuda->observer, stream, dst, true, who);
}

static cddp_status enqueue(cd_cuda_op op, const cddp_tensor *dst, const cddp_tensor *src,
                           const cd_cuda_scalar *scalar, cddp_stream *stream, cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(need(dst->device, &cuda, err));
    bool parallel = cd_view_is_parallel(dst, src);
    cd_cuda_call call = {.dst = parallel ? flat_view_of(dst) : view_of(dst),
                         .src = parallel ? flat_view_of(src) : view_of(src),
                         .numel = cddp_tensor_numel(dst),
                         .op = op,
                         .scalar = *scalar};
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(cd_cuda_check((cudaError_t)cd_cuda_launch_call(&call, on), "starting a kernel", err));
    touch_two(cuda, on, dst, src, op_names[op]);
    return CDDP_OK;
}

static cddp_status check_count(int64_t n, const char *operation, cddp_error *err)
{
    if (n < 1)
        return cd_fail(err, CDDP_E_ARG, "%s: n is %" PRId64 ", it must be at least 1", operation,
                       n);
    return CDDP_OK;
}

static cddp_status check_factor(cddp_dtype dtype, double factor, const char *operation,
                                cddp_error *err)
{
    if (cd_dtype_is_integer(dtype) && (double)cd_f64_to_i64(factor) != factor)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s: %s elements times %.17g", operation,
                       cddp_dtype_name(dtype), factor);
    return CDDP_OK;
}

static cddp_status cuda_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                             cddp_error *err)
{
    CD_TRY(cd_view_check_pair(dst, src, "copy", err));
    CD_TRY(enqueue(CD_CUDA_COPY, dst, src, &(cd_cuda_scalar){0}, stream, err));
    return CDDP_OK;
}

static cddp_status cuda_fill(const cddp_tensor *dst, double value, cddp_stream *stream,
                             cddp_error *err)
{
    CD_TRY(cd_view_check(dst, "fill", "destination", err));
    cd_cuda_scalar scalar = {0};
    cd_element_set(dst->dtype, &scalar.bits, value);
    CD_TRY(enqueue(CD_CUDA_FILL, dst, dst, &scalar, stream, err));
    return CDDP_OK;
}

static cddp_status cuda_reduce(cddp_red_op op, const cddp_tensor *dst, const cddp_tensor *src,
                               cddp_stream *stream, cddp_error *err)
{
    static const cd_cuda_op ops[CDDP_RED_COUNT] = {
        [CDDP_RED_SUM] = CD_CUDA_SUM,   [CDDP_RED_PRODUCT] = CD_CUDA_PRODUCT,
        [CDDP_RED_MIN] = CD_CUDA_MIN,   [CDDP_RED_MAX] = CD_CUDA_MAX,
        [CDDP_RED_BAND] = CD_CUDA_BAND, [CDDP_RED_BOR] = CD_CUDA_BOR,
        [CDDP_RED_BXOR] = CD_CUDA_BXOR};
    CD_TRY(cd_view_check_same(dst, src, "reduce", err));
    if (cd_kernel_reduce(op, dst->dtype) == NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "reduce: %s is not defined between two elements of %s", cddp_red_op_name(op),
                       cddp_dtype_name(dst->dtype));
    CD_TRY(enqueue(ops[op], dst, src, &(cd_cuda_scalar){0}, stream, err));
    return CDDP_OK;
}

static cddp_status cuda_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                               cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_count(n, "divide", err));
    CD_TRY(cd_view_check_same(dst, src, "divide", err));
    cd_cuda_scalar scalar = {.count = n};
    CD_TRY(enqueue(CD_CUDA_DIVIDE, dst, src, &scalar, stream, err));
    return CDDP_OK;
}

static cddp_status cuda_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                              cddp_stream *stream, cddp_error *err)
{
    CD_TRY(cd_view_check_same(dst, src, "scale", err));
    CD_TRY(check_factor(dst->dtype, factor, "scale", err));
    cd_cuda_scalar scalar = scalar_of(dst->dtype, factor, 1);
    CD_TRY(enqueue(CD_CUDA_SCALE, dst, src, &scalar, stream, err));
    return CDDP_OK;
}

static cddp_status cuda_multiply_reciprocal(const cddp_tensor *dst, const cddp_tensor *src,
                                            int64_t n, cddp_stream *stream, cddp_error *err)
{
    CD_TRY(check_count(n, "multiply_reciprocal", err));
    CD_TRY(cuda_scale(dst, src, 1.0 / (double)n, stream, err));
    return CDDP_OK;
}

static cddp_status cuda_axpy(const cddp_tensor *dst, double alpha, const cddp_tensor *x,
                             cddp_stream *stream, cddp_error *err)
{
    CD_TRY(cd_view_check_same(dst, x, "axpy", err));
    CD_TRY(check_factor(dst->dtype, alpha, "axpy", err));
    cd_cuda_scalar scalar = scalar_of(dst->dtype, alpha, 1);
    CD_TRY(enqueue(CD_CUDA_AXPY, dst, x, &scalar, stream, err));
    return CDDP_OK;
}

/* ---- many tensors in one launch ---- */

static cddp_status check_pairs(const cddp_copy_pair *pairs, size_t pair_count,
                               cddp_copy_scale scale, int64_t n, cddp_error *err)
{
    if (scale != CDDP_COPY_PLAIN) CD_TRY(check_count(n, "copy_many", err));
    for (size_t i = 0; i < pair_count; i++) {
        const cddp_copy_pair *p = &pairs[i];
        if (scale == CDDP_COPY_PLAIN)
            CD_TRY(cd_view_check_pair(&p->dst, &p->src, "copy_many", err));
        else
            CD_TRY(cd_view_check_same(&p->dst, &p->src, "copy_many", err));
        if (scale == CDDP_COPY_MULTIPLY)
            CD_TRY(check_factor(p->dst.dtype, 1.0 / (double)n, "copy_many", err));
    }
    return CDDP_OK;
}

static const cd_cuda_op batch_ops[] = {[CDDP_COPY_PLAIN] = CD_CUDA_COPY,
                                       [CDDP_COPY_MULTIPLY] = CD_CUDA_SCALE,
                                       [CDDP_COPY_DIVIDE] = CD_CUDA_DIVIDE};

/* A batch has one scalar, so pairs of a scaled batch share a dtype. Other pairs, and strided ones,
** get their own launch. */
static bool fits_batch(const cddp_copy_pair *pair, const cddp_copy_pair *first,
                       cddp_copy_scale scale)
{
    return cd_view_is_parallel(&pair->dst, &pair->src) &&
           (scale == CDDP_COPY_PLAIN || pair->dst.dtype == first->dst.dtype);
}

/* Takes pairs from *next on until the table is full, and numbers their chunks consecutively. */
static void batch_fill(cd_cuda_batch *batch, const cddp_copy_pair *pairs, size_t pair_count,
                       cddp_copy_scale scale, size_t *next)
{
    batch->pair_count = 0;
    batch->chunk_count = 0;
    batch->moves = scale == CDDP_COPY_PLAIN;
    batch->is_scaled = scale != CDDP_COPY_PLAIN;
    for (; *next < pair_count && batch->pair_count < CD_CUDA_BATCH_PAIRS; (*next)++) {
        const cddp_copy_pair *p = &pairs[*next];
        int64_t numel = cddp_tensor_numel(&p->dst);
        if (numel == 0 || !fits_batch(p, &pairs[0], scale)) continue;
        batch->pairs[batch->pair_count++] = (cd_cuda_pair){.dst = address(&p->dst),
                                                           .src = address(&p->src),
                                                           .numel = numel,
                                                           .first_chunk = batch->chunk_count,
                                                           .dst_dtype = (uint32_t)p->dst.dtype,
                                                           .src_dtype = (uint32_t)p->src.dtype};
        batch->chunk_count += (numel + batch->chunk_numel - 1) / batch->chunk_numel;
        if (p->dst.dtype != p->src.dtype) batch->moves = 0;
        if (p->dst.dtype != CDDP_F32 || p->src.dtype != CDDP_F32) batch->is_scaled = 0;
    }
}

static cddp_status batch_run(cd_cuda *cuda, const cddp_copy_pair *pairs, size_t pair_count,
                             cddp_copy_scale scale, int64_t n, cudaStream_t stream, cddp_error *err)
{
    cd_cuda_batch batch = {.chunk_numel = CHUNK_NUMEL,
                           .op = batch_ops[scale],
                           .scalar =
                               scalar_of(pairs[0].dst.dtype,
                                         scale == CDDP_COPY_MULTIPLY ? 1.0 / (double)n : 0, n)};
    for (size_t next = 0; next < pair_count;) {
        batch_fill(&batch, pairs, pair_count, scale, &next);
        if (batch.pair_count == 0) break;
        CD_TRY(cd_cuda_check((cudaError_t)cd_cuda_launch_batch(&batch, stream),
                             "starting a batch of copies", err));
    }
    for (size_t i = 0; i < pair_count && cuda->observer.tracer != NULL; i++)
        if (fits_batch(&pairs[i], &pairs[0], scale))
            touch_two(cuda, stream, &pairs[i].dst, &pairs[i].src, "copy_many");
    return CDDP_OK;
}

static cddp_status pair_run(const cddp_copy_pair *p, cddp_copy_scale scale, int64_t n,
                            cddp_stream *stream, cddp_error *err)
{
    if (scale == CDDP_COPY_PLAIN) return CD_PASS(cuda_copy(&p->dst, &p->src, stream, err));
    if (scale == CDDP_COPY_MULTIPLY)
        return CD_PASS(cuda_multiply_reciprocal(&p->dst, &p->src, n, stream, err));
    return CD_PASS(cuda_divide(&p->dst, &p->src, n, stream, err));
}

static cddp_status cuda_copy_many(const cddp_device *device, const cddp_copy_pair *pairs,
                                  size_t pair_count, cddp_copy_scale scale, int64_t n,
                                  cddp_stream *stream, cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(check_pairs(pairs, pair_count, scale, n, err));
    if (pair_count == 0) return CDDP_OK;
    CD_TRY(need(device, &cuda, err));
    pthread_mutex_lock(&cuda->lock);
    cddp_status status =
        batch_run(cuda, pairs, pair_count, scale, n, cd_cuda_stream(cuda, stream), err);
    pthread_mutex_unlock(&cuda->lock);
    for (size_t i = 0; i < pair_count && status == CDDP_OK; i++)
        if (cddp_tensor_numel(&pairs[i].dst) > 0 && !fits_batch(&pairs[i], &pairs[0], scale))
            status = pair_run(&pairs[i], scale, n, stream, err);
    return status;
}

/* ---- matrices ---- */

static cddp_status cuda_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                               cddp_stream *stream, cddp_error *err)
{
    cd_cuda *cuda;
    cd_matmul_shape s;
    bool done = false;
    CD_TRY(cd_view_check_matmul(dst, operands, &s, err));
    CD_TRY(need(dst->device, &cuda, err));
    cd_cuda_product product = {.a = address(operands->a),
                               .b = address(operands->b),
                               .dst = address(dst),
                               .dtype = (uint32_t)dst->dtype,
                               .accumulate = operands->accumulate,
                               .m = s.m,
                               .n = s.n,
                               .k = s.k,
                               .a_row = s.a_row,
                               .a_k = s.a_k,
                               .b_k = s.b_k,
                               .b_col = s.b_col,
                               .dst_row = s.dst_row,
                               .dst_col = s.dst_col};
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(cd_cublas_product(cuda, &product, on, &done, err));
    if (!done)
        CD_TRY(cd_cuda_check((cudaError_t)cd_cuda_launch_product(&product, on),
                             "starting a product", err));
    cd_observe_touch(&cuda->observer, on, operands->b, false, "matmul");
    touch_two(cuda, on, dst, operands->a, "matmul");
    return CDDP_OK;
}

/* ---- for hooks that look at numbers ---- */

/* Work memory belongs to the default stream before and after the call; for another stream the host
** waits. */
static cddp_status work_begin(cd_cuda *cuda, cudaStream_t on, size_t bytes, void **work,
                              cddp_error *err)
{
    if (on != cuda->stream) CD_TRY(cd_cuda_synchronize(cuda, cuda->stream, "work memory", err));
    CD_TRY(cd_cuda_take(cuda, bytes, work, err));
    return CDDP_OK;
}

static cddp_status work_end(cd_cuda *cuda, cudaStream_t on, size_t bytes, void *work, int launched,
                            cddp_error *err)
{
    cddp_status status = cd_cuda_check((cudaError_t)launched, "starting a kernel", err);
    if (status == CDDP_OK && on != cuda->stream)
        status = cd_cuda_synchronize(cuda, on, "work memory", err);
    cd_cuda_give(cuda, bytes, work);
    return status;
}

static cddp_status check_operand(const cddp_tensor *t, const char *operation, const char *operand,
                                 uint32_t dtypes, cddp_error *err)
{
    CD_TRY(cd_view_check(t, operation, operand, err));
    if ((dtypes & CDDP_DTYPE_BIT(t->dtype)) == 0)
        return cd_fail(err, CDDP_E_ARG, "%s: %s is of %s", operation, operand,
                       cddp_dtype_name(t->dtype));
    if (!cddp_tensor_is_contiguous(t))
        return cd_fail(err, CDDP_E_ARG, "%s: %s is not contiguous", operation, operand);
    return CDDP_OK;
}

#define FLOATS                                                                        \
    (CDDP_DTYPE_BIT(CDDP_F64) | CDDP_DTYPE_BIT(CDDP_F32) | CDDP_DTYPE_BIT(CDDP_F16) | \
     CDDP_DTYPE_BIT(CDDP_BF16))

static cddp_status cuda_orthonormalize(const cddp_tensor *matrix, double epsilon,
                                       cddp_stream *stream, cddp_error *err)
{
    cd_cuda *cuda;
    void *work = NULL;
    CD_TRY(cd_view_check(matrix, "orthonormalize", "matrix", err));
    if (matrix->dim_count != 2 || (FLOATS & CDDP_DTYPE_BIT(matrix->dtype)) == 0)
        return cd_fail(err, CDDP_E_ARG,
                       "orthonormalize: a %s tensor with %u dimensions, not a floating matrix",
                       cddp_dtype_name(matrix->dtype), matrix->dim_count);
    CD_TRY(need(matrix->device, &cuda, err));
    const int64_t numel = cddp_tensor_numel(matrix);
    const size_t bytes =
        ((size_t)numel + CD_CUDA_BASIS_SLOTS * CD_ORTHONORMAL_LANES) * sizeof(double);
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(work_begin(cuda, on, bytes, &work, err));
    cd_cuda_basis basis = {.data = address(matrix),
                           .dtype = (uint32_t)matrix->dtype,
                           .rows = matrix->sizes[0],
                           .columns = matrix->sizes[1],
                           .row_stride = matrix->strides[0],
                           .column_stride = matrix->strides[1],
                           .epsilon = epsilon,
                           .work = (double *)work + CD_CUDA_BASIS_SLOTS * CD_ORTHONORMAL_LANES,
                           .partials = work};
    CD_TRY(work_end(cuda, on, bytes, work, cd_cuda_launch_basis(&basis, on), err));
    cd_observe_touch(&cuda->observer, on, matrix, true, "orthonormalize");
    return CDDP_OK;
}

static bool has_sizes(const cddp_tensor *t, uint32_t dim_count, const int64_t *sizes)
{
    bool same = t->dim_count == dim_count;
    for (uint32_t i = 0; i < dim_count && same; i++) same = t->sizes[i] == sizes[i];
    return same;
}

static cddp_status cuda_quantize(const cddp_tensor *codes, const cddp_tensor *rows,
                                 const cddp_tensor *values, cddp_stream *stream, cddp_error *err)
{
    cd_cuda *cuda;
    void *work = NULL;
    CD_TRY(check_operand(codes, "quantize", "codes", CDDP_DTYPE_BIT(CDDP_U8), err));
    CD_TRY(check_operand(rows, "quantize", "rows", CDDP_DTYPE_BIT(CDDP_F32), err));
    CD_TRY(check_operand(values, "quantize", "values", CDDP_DTYPE_BIT(CDDP_F32), err));
    const int64_t of_rows[] = {values->sizes[0], 2};
    if (values->dim_count != 2 || !has_sizes(codes, 2, values->sizes) ||
        !has_sizes(rows, 2, of_rows))
        return cd_fail(
            err, CDDP_E_ARG,
            "quantize: values (rows, length), codes (rows, length) and rows (rows, 2) do not fit");
    CD_TRY(need(values->device, &cuda, err));
    cd_cuda_rows q = {.values = (const float *)(const void *)address(values),
                      .codes = (uint8_t *)address(codes),
                      .quantizers = (float *)(void *)address(rows),
                      .rows = values->sizes[0],
                      .length = values->sizes[1],
                      .lanes = cd_cuda_range_lanes(values->sizes[1])};
    const size_t bytes =
        (size_t)q.rows * (size_t)(q.lanes + CD_CUDA_RANGE_JOINS) * 2 * sizeof(float);
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(work_begin(cuda, on, bytes, &work, err));
    q.partials = work;
    CD_TRY(work_end(cuda, on, bytes, work, cd_cuda_launch_quantize(&q, on), err));
    touch_two(cuda, on, codes, values, "quantize");
    cd_observe_touch(&cuda->observer, on, rows, true, "quantize");
    return CDDP_OK;
}

static cddp_status cuda_dequantize_sum(const cddp_tensor *dst, const cddp_tensor *codes,
                                       const cddp_tensor *rows, cddp_stream *stream,
                                       cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(check_operand(dst, "dequantize_sum", "destination", CDDP_DTYPE_BIT(CDDP_F32), err));
    CD_TRY(check_operand(codes, "dequantize_sum", "codes", CDDP_DTYPE_BIT(CDDP_U8), err));
    CD_TRY(check_operand(rows, "dequantize_sum", "rows", CDDP_DTYPE_BIT(CDDP_F32), err));
    const int64_t of_rows[] = {codes->sizes[0], codes->sizes[1], 2};
    if (codes->dim_count != 3 || !has_sizes(rows, 3, of_rows) ||
        cddp_tensor_numel(dst) > codes->sizes[1] * codes->sizes[2])
        return cd_fail(
            err, CDDP_E_ARG,
            "dequantize_sum: codes (parts, rows, length), rows (parts, rows, 2) and %" PRId64
            " elements do not fit",
            cddp_tensor_numel(dst));
    CD_TRY(need(dst->device, &cuda, err));
    cd_cuda_decode d = {.dst = (float *)(void *)address(dst),
                        .numel = cddp_tensor_numel(dst),
                        .codes = (const uint8_t *)address(codes),
                        .quantizers = (const float *)(const void *)address(rows),
                        .parts = codes->sizes[0],
                        .rows = codes->sizes[1],
                        .length = codes->sizes[2]};
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(cd_cuda_check((cudaError_t)cd_cuda_launch_decode(&d, on), "starting a kernel", err));
    touch_two(cuda, on, dst, codes, "dequantize_sum");
    cd_observe_touch(&cuda->observer, on, rows, false, "dequantize_sum");
    return CDDP_OK;
}

/* flat, indices and values of take_largest and add_at. */
static cddp_status check_selection(const cddp_tensor *flat, const cddp_tensor *indices,
                                   const cddp_tensor *values, const char *operation,
                                   cddp_error *err)
{
    CD_TRY(check_operand(flat, operation, "flat", FLOATS, err));
    CD_TRY(check_operand(indices, operation, "indices", CDDP_DTYPE_BIT(CDDP_I32), err));
    CD_TRY(check_operand(values, operation, "values", CDDP_DTYPE_BIT(flat->dtype), err));
    const int64_t numel = cddp_tensor_numel(flat), count = cddp_tensor_numel(indices);
    if (count != cddp_tensor_numel(values) || count > numel || numel > INT32_MAX)
        return cd_fail(err, CDDP_E_ARG,
                       "%s: %" PRId64 " indices and %" PRId64 " values of %" PRId64 " elements",
                       operation, count, cddp_tensor_numel(values), numel);
    return CDDP_OK;
}

static cddp_status cuda_take_largest(const cddp_tensor *flat, const cddp_tensor *indices,
                                     const cddp_tensor *values, cddp_stream *stream,
                                     cddp_error *err)
{
    cd_cuda *cuda;
    void *work = NULL;
    CD_TRY(check_selection(flat, indices, values, "take_largest", err));
    CD_TRY(need(flat->device, &cuda, err));
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(work_begin(cuda, on, CD_CUDA_LARGEST_BYTES, &work, err));
    cd_cuda_largest largest = {.data = address(flat),
                               .dtype = (uint32_t)flat->dtype,
                               .numel = cddp_tensor_numel(flat),
                               .k = cddp_tensor_numel(indices),
                               .indices = (int32_t *)(void *)address(indices),
                               .values = address(values),
                               .work = work};
    CD_TRY(
        work_end(cuda, on, CD_CUDA_LARGEST_BYTES, work, cd_cuda_launch_largest(&largest, on), err));
    cd_observe_touch(&cuda->observer, on, flat, true, "take_largest");
    cd_observe_touch(&cuda->observer, on, indices, true, "take_largest");
    cd_observe_touch(&cuda->observer, on, values, true, "take_largest");
    return CDDP_OK;
}

static cddp_status cuda_add_at(const cddp_tensor *flat, const cddp_tensor *indices,
                               const cddp_tensor *values, cddp_stream *stream, cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(check_selection(flat, indices, values, "add_at", err));
    CD_TRY(need(flat->device, &cuda, err));
    cd_cuda_add_at add = {.data = address(flat),
                          .dtype = (uint32_t)flat->dtype,
                          .numel = cddp_tensor_numel(flat),
                          .count = cddp_tensor_numel(indices),
                          .indices = (const int32_t *)(const void *)address(indices),
                          .values = address(values)};
    cudaStream_t on = cd_cuda_stream(cuda, stream);
    CD_TRY(cd_cuda_check((cudaError_t)cd_cuda_launch_add_at(&add, on), "starting a kernel", err));
    touch_two(cuda, on, flat, values, "add_at");
    cd_observe_touch(&cuda->observer, on, indices, false, "add_at");
    return CDDP_OK;
}

/* ---- to and from the host ---- */

/* Makes a contiguous copy on the device; *block is NULL when the view itself is contiguous. */
static cddp_status pack(cd_cuda *cuda, const cddp_tensor *src, cddp_tensor *packed, void **block,
                        cddp_error *err)
{
    *packed = *src;
    *block = NULL;
    if (cddp_tensor_is_contiguous(src)) return CDDP_OK;
    CD_TRY(cd_cuda_take(cuda, size_of(src), block, err));
    *packed = cddp_tensor_of(src->device, *block, 0, src->dtype, src->sizes, src->dim_count);
    return CDDP_OK;
}

static cddp_status cuda_read(const cddp_tensor *src, void *host, size_t host_bytes, cddp_error *err)
{
    cd_cuda *cuda;
    cddp_tensor packed;
    void *block = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_view_check_host(src, host, host_bytes, "read", err));
    if (host_bytes == 0) return CDDP_OK;
    CD_TRY(need(src->device, &cuda, err));
    CD_TRY(pack(cuda, src, &packed, &block, err));
    cd_observe_touch(&cuda->observer, cuda->stream, src, false, "read");
    if (block != NULL) CD_TRY_OUT(cuda_copy(&packed, src, NULL, err));
    CD_TRY_OUT(cd_cuda_check(cudaMemcpyAsync(host, address(&packed), host_bytes,
                                             cudaMemcpyDeviceToHost, cuda->stream),
                             "cudaMemcpyAsync", err));
    CD_TRY_OUT(cd_cuda_synchronize(cuda, cuda->stream, "read", err));
out:
    cd_cuda_give(cuda, size_of(src), block);
    return status;
}

/* Copies host bytes into contiguous device memory. Small ones pass through the ring, so that the
** host does not wait. */
static cddp_status upload(cd_cuda *cuda, void *to, const void *host, size_t bytes, cddp_error *err)
{
    cd_ring_slot *slot = NULL;
    cddp_status status = CDDP_OK;
    if (bytes > STAGED_BYTES_MAX) {
        CD_TRY(cd_cuda_check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, cuda->stream),
                             "cudaMemcpyAsync", err));
        CD_TRY(cd_cuda_synchronize(cuda, cuda->stream, "write", err));
        return CDDP_OK;
    }
    pthread_mutex_lock(&cuda->lock);
    CD_TRY_OUT(cd_ring_begin(cuda, bytes, &slot, err));
    memcpy(slot->host, host, bytes);
    CD_TRY_OUT(
        cd_cuda_check(cudaMemcpyAsync(to, slot->host, bytes, cudaMemcpyHostToDevice, cuda->stream),
                      "cudaMemcpyAsync", err));
    CD_TRY_OUT(cd_ring_end(slot, cuda->stream, err));
out:
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

static cddp_status cuda_write(const cddp_tensor *dst, const void *host, size_t host_bytes,
                              cddp_error *err)
{
    cd_cuda *cuda;
    cddp_tensor packed;
    void *block = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_view_check_host(dst, host, host_bytes, "write", err));
    if (host_bytes == 0) return CDDP_OK;
    CD_TRY(need(dst->device, &cuda, err));
    CD_TRY(pack(cuda, dst, &packed, &block, err));
    CD_TRY_OUT(upload(cuda, address(&packed), host, host_bytes, err));
    cd_observe_touch(&cuda->observer, cuda->stream, dst, true, "write");
    if (block != NULL) CD_TRY_OUT(cuda_copy(dst, &packed, NULL, err));
out:
    cd_cuda_give(cuda, size_of(dst), block);
    return status;
}

/* ---- whole-tensor results ---- */

/* Runs one of the scans and copies its lanes to the host. lanes: (CD_CUDA_PARTIALS) of 8 bytes
** each. */
static cddp_status scan(const cddp_tensor *src, bool squares, void *lanes, cddp_error *err)
{
    cd_cuda *cuda;
    void *partials = NULL;
    const size_t bytes = CD_CUDA_PARTIALS * 8u;
    cddp_status status = CDDP_OK;
    CD_TRY(need(src->device, &cuda, err));
    CD_TRY(cd_cuda_take(cuda, bytes, &partials, err));
    cd_cuda_view view = view_of(src);
    int64_t numel = cddp_tensor_numel(src);
    int code = squares ? cd_cuda_launch_squares(&view, numel, partials, cuda->stream)
                       : cd_cuda_launch_nonfinite(&view, numel, partials, cuda->stream);
    CD_TRY_OUT(cd_cuda_check((cudaError_t)code, "starting a scan", err));
    cd_observe_touch(&cuda->observer, cuda->stream, src, false,
                     squares ? "norm" : "find_nonfinite");
    CD_TRY_OUT(
        cd_cuda_check(cudaMemcpyAsync(lanes, partials, bytes, cudaMemcpyDeviceToHost, cuda->stream),
                      "cudaMemcpyAsync", err));
    CD_TRY_OUT(cd_cuda_synchronize(cuda, cuda->stream, squares ? "norm" : "find_nonfinite", err));
out:
    cd_cuda_give(cuda, bytes, partials);
    return status;
}

static cddp_status cuda_norm(const cddp_tensor *src, double *norm, cddp_error *err)
{
    double lanes[CD_CUDA_PARTIALS];
    CD_TRY(cd_view_check(src, "norm", "source", err));
    CD_TRY(scan(src, true, lanes, err));
    for (size_t half = CD_CUDA_PARTIALS / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
    *norm = sqrt(lanes[0]);
    return CDDP_OK;
}

static cddp_status cuda_find_nonfinite(const cddp_tensor *src, int64_t *index, cddp_error *err)
{
    int64_t lanes[CD_CUDA_PARTIALS];
    CD_TRY(cd_view_check(src, "find_nonfinite", "source", err));
    if (cd_dtype_is_integer(src->dtype)) {
        *index = -1;
        return CDDP_OK;
    }
    CD_TRY(scan(src, false, lanes, err));
    int64_t first = INT64_MAX;
    for (size_t l = 0; l < CD_CUDA_PARTIALS; l++)
        if (lanes[l] < first) first = lanes[l];
    *index = first == INT64_MAX ? -1 : first;
    return CDDP_OK;
}

/* The cpu computes the digest from a copy: it must be equal on every machine, and only the judge
** uses it.
*/
static cddp_status cuda_digest(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    cd_cuda *cuda;
    void *host = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_view_check(src, "digest", "source", err));
    CD_TRY(need(src->device, &cuda, err));
    CD_TRY(cd_cuda_take_pinned(cuda, size_of(src), &host, err));
    CD_TRY_OUT(cuda_read(src, host, size_of(src), err));
    const cddp_tensor copy =
        cddp_tensor_of(cddp_device_cpu(), host, 0, src->dtype, src->sizes, src->dim_count);
    CD_TRY_OUT(cddp_device_cpu()->digest(&copy, digest, err));
out:
    cd_cuda_give_pinned(cuda, size_of(src), host);
    return status;
}

/* ---- streams and marks ---- */

static cddp_status cuda_stream_create(const cddp_device *device, cddp_stream **stream,
                                      cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(need(device, &cuda, err));
    cddp_stream *s = cd_allocate_zero(NULL, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a stream");
    cddp_status status = cd_cuda_check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
                                       "cudaStreamCreateWithFlags", err);
    if (status == CDDP_OK)
        *stream = s;
    else
        cd_release(NULL, s, sizeof *s);
    return status;
}

static void cuda_stream_destroy(const cddp_device *device, cddp_stream *stream)
{
    (void)device;
    if (stream == NULL) return;
    (void)cudaStreamDestroy(stream->stream);
    cd_release(NULL, stream, sizeof *stream);
}

static cddp_status cuda_stream_synchronize(const cddp_device *device, cddp_stream *stream,
                                           cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(need(device, &cuda, err));
    CD_TRY(cd_cuda_synchronize(cuda, cd_cuda_stream(cuda, stream), "stream_synchronize", err));
    return CDDP_OK;
}

static cddp_status cuda_mark_create(const cddp_device *device, cddp_mark **mark, cddp_error *err)
{
    cd_cuda *cuda;
    CD_TRY(need(device, &cuda, err));
    cddp_mark *m = cd_allocate_zero(NULL, sizeof *m);
    if (m == NULL) return cd_fail_memory(err, "a mark");
    cddp_status status = cd_cuda_check(cudaEventCreateWithFlags(&m->event, cudaEventDisableTiming),
                                       "cudaEventCreateWithFlags", err);
    if (status == CDDP_OK)
        *mark = m;
    else
        cd_release(NULL, m, sizeof *m);
    return status;
}

static void cuda_mark_destroy(const cddp_device *device, cddp_mark *mark)
{
    (void)device;
    if (mark == NULL) return;
    (void)cudaEventDestroy(mark->event);
    cd_release(NULL, mark, sizeof *mark);
}

static cddp_status cuda_mark_record(const cddp_device *device, cddp_mark *mark, cddp_stream *stream,
                                    cddp_error *err)
{
    cd_cuda *cuda = state_of(device);
    return CD_PASS(cd_cuda_record(cuda, mark->event, cd_cuda_stream(cuda, stream), err));
}

static cddp_status cuda_mark_wait(const cddp_device *device, cddp_mark *mark, cddp_stream *stream,
                                  cddp_error *err)
{
    cd_cuda *cuda = state_of(device);
    return CD_PASS(cd_cuda_wait(cuda, cd_cuda_stream(cuda, stream), mark->event, err));
}

const cddp_device cd_cuda_device = {.size = sizeof cd_cuda_device,
                                    .abi = CDDP_DEVICE_ABI,
                                    .name = "cuda",
                                    .self = &cd_cuda_here,
                                    .flags = CDDP_DEVICE_VALUES | CDDP_DEVICE_ASYNC,
                                    .dtypes = CDDP_DTYPE_BIT(CDDP_DTYPE_COUNT) - 1,
                                    .allocate = cuda_allocate,
                                    .release = cuda_release,
                                    .read = cuda_read,
                                    .write = cuda_write,
                                    .copy = cuda_copy,
                                    .copy_many = cuda_copy_many,
                                    .fill = cuda_fill,
                                    .reduce = cuda_reduce,
                                    .divide = cuda_divide,
                                    .multiply_reciprocal = cuda_multiply_reciprocal,
                                    .scale = cuda_scale,
                                    .axpy = cuda_axpy,
                                    .matmul = cuda_matmul,
                                    .norm = cuda_norm,
                                    .find_nonfinite = cuda_find_nonfinite,
                                    .digest = cuda_digest,
                                    .stream_create = cuda_stream_create,
                                    .stream_destroy = cuda_stream_destroy,
                                    .stream_synchronize = cuda_stream_synchronize,
                                    .mark_create = cuda_mark_create,
                                    .mark_destroy = cuda_mark_destroy,
                                    .mark_record = cuda_mark_record,
                                    .mark_wait = cuda_mark_wait,
                                    .layers = &cd_cuda_layers,
                                    .orthonormalize = cuda_orthonormalize,
                                    .quantize = cuda_quantize,
                                    .dequantize_sum = cuda_dequantize_sum,
                                    .take_largest = cuda_take_largest,
                                    .add_at = cuda_add_at};
