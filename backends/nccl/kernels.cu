/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cuda device. What they compute is said in kernels.h.
**
** Written once for two compilers: nvcc makes GPU code of it, and the unit tests compile the same file as C++ with a
** header of theirs (CD_CUDA_ON_HOST names it), where a launch is a loop over all threads. So what a thread does, which
** elements it takes and how it rounds is tested on any machine; what only a GPU can show is left to tests/gpu.
**
** Compiled with --fmad=false: a product is rounded before it is added (docs/determinism.md).
*/
#ifdef CD_CUDA_ON_HOST
#include CD_CUDA_ON_HOST
#else
#include <cuda_runtime.h>
#define CD_LAUNCH(kernel, blocks, threads, stream, argument)                                                           \
    kernel<<<(unsigned)(blocks), (unsigned)(threads), 0, (cudaStream_t)(stream)>>>(argument)
#endif

#include "backends/nccl/kernels.h"
#include "core/tensor/dtype.h"

namespace
{

constexpr unsigned THREADS = 256;
constexpr int64_t BLOCKS_MAX = 1 << 16; /* threads stride over what is left */

/* ---- dtypes: how an element is held while one operation runs ---- */

/* Floats compute in Wide and round to the stored form after every operation. */
struct F64 {
    typedef double Stored;
    typedef double Wide;
    static __device__ Wide widen(Stored x) { return x; }
    static __device__ Stored narrow(Wide x) { return x; }
};
struct F32 {
    typedef float Stored;
    typedef float Wide;
    static __device__ Wide widen(Stored x) { return x; }
    static __device__ Stored narrow(Wide x) { return x; }
};
struct F16 {
    typedef uint16_t Stored;
    typedef float Wide;
    static __device__ Wide widen(Stored x) { return cd_f16_to_f32(x); }
    static __device__ Stored narrow(Wide x) { return cd_f32_to_f16(x); }
    static __device__ Stored narrow_f64(double x) { return cd_f64_to_f16(x); }
};
struct BF16 {
    typedef uint16_t Stored;
    typedef float Wide;
    static __device__ Wide widen(Stored x) { return cd_bf16_to_f32(x); }
    static __device__ Stored narrow(Wide x) { return cd_f32_to_bf16(x); }
    static __device__ Stored narrow_f64(double x) { return cd_f64_to_bf16(x); }
};

struct Complex {
    float re, im;
};

/* ---- one element ---- */

template <typename D>
__device__ void apply_float(cd_cuda_op op, typename D::Stored *d, typename D::Stored s, const cd_cuda_scalar &k)
{
    typedef typename D::Wide Wide;
    const Wide x = D::widen(s);
    if (op == CD_CUDA_SCALE) {
        *d = D::narrow(x * (Wide)k.value);
        return;
    }
    const Wide y = D::widen(*d);
    switch (op) {
    case CD_CUDA_AXPY:
        *d = D::narrow(y + D::widen(D::narrow((Wide)k.value * x)));
        break;
    case CD_CUDA_SUM:
        *d = D::narrow(y + x);
        break;
    case CD_CUDA_PRODUCT:
        *d = D::narrow(y * x);
        break;
    /* A NaN on either side gives NaN, the destination's first; of equal operands the destination stays. */
    case CD_CUDA_MIN:
        *d = D::narrow(y != y || y <= x ? y : x);
        break;
    case CD_CUDA_MAX:
        *d = D::narrow(y != y || y >= x ? y : x);
        break;
    default:
        break;
    }
}

/* True division with one rounding; which width suffices is said in core/tensor/kernels.c. */
__device__ inline void divide(double *d, double s, int64_t n) { *d = s / (double)n; }
__device__ inline void divide(float *d, float s, int64_t n)
{
    *d = n <= 1 << 24 ? s / (float)n : (float)((double)s / (double)n);
}
template <typename D> __device__ void divide_16(uint16_t *d, uint16_t s, int64_t n)
{
    const float x = D::widen(s);
    *d = n <= 1 << 11 ? D::narrow(x / (float)n) : D::narrow_f64((double)x / (double)n);
}

template <typename T, typename U> __device__ void apply_integer(cd_cuda_op op, T *d, T s, const cd_cuda_scalar &k)
{
    const uint64_t x = (uint64_t)s, y = op == CD_CUDA_SCALE || op == CD_CUDA_DIVIDE ? 0 : (uint64_t)*d;
    switch (op) {
    case CD_CUDA_SCALE:
        *d = (T)(U)(x * (uint64_t)cd_f64_to_i64(k.value));
        break;
    case CD_CUDA_DIVIDE:
        *d = (T)((int64_t)s / k.count);
        break;
    case CD_CUDA_AXPY:
        *d = (T)(U)(y + (uint64_t)cd_f64_to_i64(k.value) * x);
        break;
    case CD_CUDA_SUM:
        *d = (T)(U)(y + x);
        break;
    case CD_CUDA_PRODUCT:
        *d = (T)(U)(y * x);
        break;
    case CD_CUDA_MIN:
        *d = *d <= s ? *d : s;
        break;
    case CD_CUDA_MAX:
        *d = *d >= s ? *d : s;
        break;
    case CD_CUDA_BAND:
        *d = (T)(U)(y & x);
        break;
    case CD_CUDA_BOR:
        *d = (T)(U)(y | x);
        break;
    case CD_CUDA_BXOR:
        *d = (T)(U)(y ^ x);
        break;
    default:
        break;
    }
}

__device__ inline void apply_complex(cd_cuda_op op, Complex *d, Complex s, const cd_cuda_scalar &k)
{
    if (op == CD_CUDA_DIVIDE) {
        divide(&d->re, s.re, k.count);
        divide(&d->im, s.im, k.count);
    } else if (op == CD_CUDA_PRODUCT) {
        const float ac = d->re * s.re, bd = d->im * s.im, ad = d->re * s.im, bc = d->im * s.re;
        d->re = ac - bd;
        d->im = ad + bc;
    } else {
        apply_float<F32>(op, &d->re, s.re, k);
        apply_float<F32>(op, &d->im, s.im, k);
    }
}

/* What overlays which element: dispatch once per kernel, outside its loop. Body has operator()(T *d, T s). */
struct Apply {
    cd_cuda_op op;
    cd_cuda_scalar scalar;
    __device__ void operator()(double *d, double s, F64) const
    {
        if (op == CD_CUDA_DIVIDE)
            divide(d, s, scalar.count);
        else
            apply_float<F64>(op, d, s, scalar);
    }
    __device__ void operator()(float *d, float s, F32) const
    {
        if (op == CD_CUDA_DIVIDE)
            divide(d, s, scalar.count);
        else
            apply_float<F32>(op, d, s, scalar);
    }
    __device__ void operator()(uint16_t *d, uint16_t s, F16) const
    {
        if (op == CD_CUDA_DIVIDE)
            divide_16<F16>(d, s, scalar.count);
        else
            apply_float<F16>(op, d, s, scalar);
    }
    __device__ void operator()(uint16_t *d, uint16_t s, BF16) const
    {
        if (op == CD_CUDA_DIVIDE)
            divide_16<BF16>(d, s, scalar.count);
        else
            apply_float<BF16>(op, d, s, scalar);
    }
    __device__ void operator()(Complex *d, Complex s, Complex) const { apply_complex(op, d, s, scalar); }
    __device__ void operator()(int64_t *d, int64_t s, int64_t) const
    {
        apply_integer<int64_t, uint64_t>(op, d, s, scalar);
    }
    __device__ void operator()(int32_t *d, int32_t s, int32_t) const
    {
        apply_integer<int32_t, uint32_t>(op, d, s, scalar);
    }
    __device__ void operator()(uint8_t *d, uint8_t s, uint8_t) const
    {
        apply_integer<uint8_t, uint8_t>(op, d, s, scalar);
    }
};

/* ---- conversions, by the rules of core/tensor/dtype.h ---- */

__device__ inline bool is_integer(uint32_t dtype) { return dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8; }

__device__ inline double load_f64(uint32_t dtype, const void *p)
{
    switch (dtype) {
    case CDDP_F64:
        return *(const double *)p;
    case CDDP_F16:
        return (double)cd_f16_to_f32(*(const uint16_t *)p);
    case CDDP_BF16:
        return (double)cd_bf16_to_f32(*(const uint16_t *)p);
    default:
        return (double)*(const float *)p; /* F32, and the real part of C64 */
    }
}

__device__ inline int64_t load_i64(uint32_t dtype, const void *p)
{
    switch (dtype) {
    case CDDP_I32:
        return *(const int32_t *)p;
    case CDDP_U8:
        return *(const uint8_t *)p;
    default:
        return *(const int64_t *)p;
    }
}

__device__ inline void store_complex(void *p, float re)
{
    ((float *)p)[0] = re;
    ((float *)p)[1] = 0;
}

__device__ inline int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

__device__ inline void store_f64(uint32_t dtype, void *p, double x)
{
    switch (dtype) {
    case CDDP_F64:
        *(double *)p = x;
        break;
    case CDDP_F32:
        *(float *)p = (float)x;
        break;
    case CDDP_F16:
        *(uint16_t *)p = cd_f64_to_f16(x);
        break;
    case CDDP_BF16:
        *(uint16_t *)p = cd_f64_to_bf16(x);
        break;
    case CDDP_C64:
        store_complex(p, (float)x);
        break;
    case CDDP_I64:
        *(int64_t *)p = cd_f64_to_i64(x);
        break;
    case CDDP_I32:
        *(int32_t *)p = (int32_t)clamp(cd_f64_to_i64(x), INT32_MIN, INT32_MAX);
        break;
    default:
        *(uint8_t *)p = (uint8_t)clamp(cd_f64_to_i64(x), 0, 255);
        break;
    }
}

__device__ inline void store_i64(uint32_t dtype, void *p, int64_t x)
{
    switch (dtype) {
    case CDDP_F64:
        *(double *)p = (double)x;
        break;
    case CDDP_F32:
        *(float *)p = (float)x;
        break;
    case CDDP_F16:
        *(uint16_t *)p = cd_f64_to_f16(cd_i64_to_f64_odd(x));
        break;
    case CDDP_BF16:
        *(uint16_t *)p = cd_f64_to_bf16(cd_i64_to_f64_odd(x));
        break;
    case CDDP_C64:
        store_complex(p, (float)x);
        break;
    case CDDP_I64:
        *(int64_t *)p = x;
        break;
    case CDDP_I32:
        *(int32_t *)p = (int32_t)(uint32_t)(uint64_t)x;
        break;
    default:
        *(uint8_t *)p = (uint8_t)(uint64_t)x;
        break;
    }
}

/* The pairs that gradients go through have a way of their own, which keeps the payload of a NaN as the cpu's does. */
__device__ inline void convert(uint32_t to, void *d, uint32_t from, const void *s)
{
    if (from == CDDP_F32 && to == CDDP_F16)
        *(uint16_t *)d = cd_f32_to_f16(*(const float *)s);
    else if (from == CDDP_F32 && to == CDDP_BF16)
        *(uint16_t *)d = cd_f32_to_bf16(*(const float *)s);
    else if (from == CDDP_F16 && to == CDDP_F32)
        *(float *)d = cd_f16_to_f32(*(const uint16_t *)s);
    else if (from == CDDP_BF16 && to == CDDP_F32)
        *(float *)d = cd_bf16_to_f32(*(const uint16_t *)s);
    else if (is_integer(from))
        store_i64(to, d, load_i64(from, s));
    else
        store_f64(to, d, load_f64(from, s));
}

__device__ inline uint32_t bytes_of(uint32_t dtype)
{
    switch (dtype) {
    case CDDP_F64:
    case CDDP_C64:
    case CDDP_I64:
        return 8;
    case CDDP_F32:
    case CDDP_I32:
        return 4;
    case CDDP_F16:
    case CDDP_BF16:
        return 2;
    default:
        return 1;
    }
}

/* ---- one operation over two views ---- */

/* Distance of logical element i from the first one, in elements. */
__device__ inline int64_t place(const cd_cuda_view &v, int64_t i)
{
    int64_t at = 0;
    for (uint32_t d = v.dim_count - 1; d > 0; d--) {
        at += i % v.sizes[d] * v.strides[d];
        i /= v.sizes[d];
    }
    return at + i * v.strides[0];
}

__device__ inline int64_t thread_index() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64_t thread_count() { return (int64_t)gridDim.x * blockDim.x; }

template <typename T, typename Tag> __device__ void run_elements(const cd_cuda_call &c, Tag tag)
{
    T *d = (T *)c.dst.data;
    const T *s = (const T *)c.src.data;
    const Apply apply = {c.op, c.scalar};
    for (int64_t i = thread_index(); i < c.numel; i += thread_count())
        apply(d + place(c.dst, i), s[place(c.src, i)], tag);
}

template <typename T> __device__ void run_fill(const cd_cuda_call &c)
{
    T value;
    memcpy(&value, &c.scalar.bits, sizeof value);
    for (int64_t i = thread_index(); i < c.numel; i += thread_count()) ((T *)c.dst.data)[place(c.dst, i)] = value;
}

/* Bits are moved, not numbers: a signalling NaN stays what it is. */
template <typename T> __device__ void run_move(const cd_cuda_call &c)
{
    for (int64_t i = thread_index(); i < c.numel; i += thread_count())
        ((T *)c.dst.data)[place(c.dst, i)] = ((const T *)c.src.data)[place(c.src, i)];
}

__global__ void call_kernel(cd_cuda_call c)
{
    const uint32_t bytes = bytes_of(c.dst.dtype);
    if (c.op == CD_CUDA_FILL) {
        if (bytes == 8)
            run_fill<uint64_t>(c);
        else if (bytes == 4)
            run_fill<uint32_t>(c);
        else if (bytes == 2)
            run_fill<uint16_t>(c);
        else
            run_fill<uint8_t>(c);
    } else if (c.op == CD_CUDA_COPY && c.dst.dtype == c.src.dtype) {
        if (bytes == 8)
            run_move<uint64_t>(c);
        else if (bytes == 4)
            run_move<uint32_t>(c);
        else if (bytes == 2)
            run_move<uint16_t>(c);
        else
            run_move<uint8_t>(c);
    } else if (c.op == CD_CUDA_COPY) {
        const uint32_t src_bytes = bytes_of(c.src.dtype);
        for (int64_t i = thread_index(); i < c.numel; i += thread_count())
            convert(c.dst.dtype, (char *)c.dst.data + place(c.dst, i) * (int64_t)bytes, c.src.dtype,
                    (const char *)c.src.data + place(c.src, i) * (int64_t)src_bytes);
    } else {
        switch (c.dst.dtype) {
        case CDDP_F64:
            run_elements<double>(c, F64());
            break;
        case CDDP_F32:
            run_elements<float>(c, F32());
            break;
        case CDDP_F16:
            run_elements<uint16_t>(c, F16());
            break;
        case CDDP_BF16:
            run_elements<uint16_t>(c, BF16());
            break;
        case CDDP_C64:
            run_elements<Complex>(c, Complex());
            break;
        case CDDP_I64:
            run_elements<int64_t>(c, (int64_t)0);
            break;
        case CDDP_I32:
            run_elements<int32_t>(c, (int32_t)0);
            break;
        default:
            run_elements<uint8_t>(c, (uint8_t)0);
            break;
        }
    }
}

/* ---- many tensors in one launch ---- */

struct alignas(16) Sixteen {
    uint64_t low, high;
};

/* Bytes [0, count): 16 at a time between the first and the last boundary when both sides share their misalignment. */
__device__ inline void move_bytes(char *d, const char *s, int64_t count)
{
    const uint64_t d_at = (uint64_t)(uintptr_t)d, s_at = (uint64_t)(uintptr_t)s;
    int64_t head = 0, wide = 0;
    if (((d_at ^ s_at) & 15u) == 0) {
        head = (int64_t)((16u - (d_at & 15u)) & 15u);
        if (head > count) head = count;
        wide = (count - head) / 16;
    }
    if (wide > 0) {
        Sixteen *dw = (Sixteen *)(void *)(d + head);
        const Sixteen *sw = (const Sixteen *)(const void *)(s + head);
        for (int64_t i = threadIdx.x; i < wide; i += blockDim.x) dw[i] = sw[i];
        for (int64_t i = threadIdx.x; i < head; i += blockDim.x) d[i] = s[i];
        for (int64_t i = head + wide * 16 + threadIdx.x; i < count; i += blockDim.x) d[i] = s[i];
    } else if (((d_at | s_at | (uint64_t)count) & 3u) == 0) {
        for (int64_t i = threadIdx.x; i < count / 4; i += blockDim.x)
            ((uint32_t *)(void *)d)[i] = ((const uint32_t *)(const void *)s)[i];
    } else {
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x) d[i] = s[i];
    }
}

template <typename T, typename Tag>
__device__ void run_chunk(const cd_cuda_batch &b, void *dst, const void *src, int64_t count, Tag tag)
{
    const Apply apply = {b.op, b.scalar};
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) apply((T *)dst + i, ((const T *)src)[i], tag);
}

/* The last pair whose first chunk is not behind `chunk`. Pairs without elements have no chunk and are passed over:
** their successor begins at the same number. */
__device__ inline uint32_t pair_of(const cd_cuda_batch &b, int64_t chunk)
{
    uint32_t low = 0, high = b.pair_count;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (b.pairs[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return low;
}

__device__ inline void batch_chunk(const cd_cuda_batch &b, int64_t chunk)
{
    const cd_cuda_pair p = b.pairs[pair_of(b, chunk)];
    const int64_t start = (chunk - p.first_chunk) * (int64_t)b.chunk_numel;
    const int64_t count = p.numel - start < (int64_t)b.chunk_numel ? p.numel - start : (int64_t)b.chunk_numel;
    const uint32_t dst_bytes = bytes_of(p.dst_dtype), src_bytes = bytes_of(p.src_dtype);
    char *d = (char *)p.dst + start * (int64_t)dst_bytes;
    const char *s = (const char *)p.src + start * (int64_t)src_bytes;
    if (b.op == CD_CUDA_COPY && p.dst_dtype == p.src_dtype) {
        move_bytes(d, s, count * (int64_t)dst_bytes);
    } else if (b.op == CD_CUDA_COPY) {
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
            convert(p.dst_dtype, d + i * (int64_t)dst_bytes, p.src_dtype, s + i * (int64_t)src_bytes);
    } else {
        switch (p.dst_dtype) {
        case CDDP_F64:
            run_chunk<double>(b, d, s, count, F64());
            break;
        case CDDP_F32:
            run_chunk<float>(b, d, s, count, F32());
            break;
        case CDDP_F16:
            run_chunk<uint16_t>(b, d, s, count, F16());
            break;
        case CDDP_BF16:
            run_chunk<uint16_t>(b, d, s, count, BF16());
            break;
        case CDDP_C64:
            run_chunk<Complex>(b, d, s, count, Complex());
            break;
        case CDDP_I64:
            run_chunk<int64_t>(b, d, s, count, (int64_t)0);
            break;
        case CDDP_I32:
            run_chunk<int32_t>(b, d, s, count, (int32_t)0);
            break;
        default:
            run_chunk<uint8_t>(b, d, s, count, (uint8_t)0);
            break;
        }
    }
}

__global__ void batch_kernel(cd_cuda_batch b)
{
    for (int64_t chunk = blockIdx.x; chunk < b.chunk_count; chunk += gridDim.x) batch_chunk(b, chunk);
}

/* ---- products ---- */

template <typename D> __device__ void run_product(const cd_cuda_product &p)
{
    typedef typename D::Stored Stored;
    const Stored *a = (const Stored *)p.a, *b = (const Stored *)p.b;
    for (int64_t i = thread_index(); i < p.m * p.n; i += thread_count()) {
        const int64_t row = i / p.n, column = i % p.n;
        typename D::Wide sum = 0;
        for (int64_t k = 0; k < p.k; k++)
            sum = sum + D::widen(a[row * p.a_row + k * p.a_k]) * D::widen(b[k * p.b_k + column * p.b_col]);
        Stored *d = (Stored *)p.dst + row * p.dst_row + column * p.dst_col;
        /* 16-bit dtypes sum in f32 and round once; accumulation is one more operation. */
        const Stored rounded = D::narrow(sum);
        *d = p.accumulate ? D::narrow(D::widen(*d) + D::widen(rounded)) : rounded;
    }
}

__global__ void product_kernel(cd_cuda_product p)
{
    switch (p.dtype) {
    case CDDP_F64:
        run_product<F64>(p);
        break;
    case CDDP_F32:
        run_product<F32>(p);
        break;
    case CDDP_F16:
        run_product<F16>(p);
        break;
    default:
        run_product<BF16>(p);
        break;
    }
}

/* ---- orthogonalisation ---- */

struct BasisStep {
    cd_cuda_basis basis;
    int64_t column;
};

__device__ inline double basis_get(const cd_cuda_basis &b, int64_t row, int64_t column)
{
    const int64_t at = row * b.row_stride + column * b.column_stride;
    return b.dtype == CDDP_F64 ? ((const double *)b.data)[at] : (double)((const float *)b.data)[at];
}

__device__ inline void basis_set(const cd_cuda_basis &b, int64_t row, int64_t column, double value)
{
    const int64_t at = row * b.row_stride + column * b.column_stride;
    if (b.dtype == CDDP_F64)
        ((double *)b.data)[at] = value;
    else
        ((float *)b.data)[at] = (float)value;
}

__device__ inline double basis_total(const cd_cuda_basis &b, int64_t slot)
{
    double sum = 0;
    for (int64_t lane = 0; lane < CD_CUDA_BASIS_PARTIALS; lane++)
        sum += b.partials[slot * CD_CUDA_BASIS_PARTIALS + lane];
    return sum;
}

/* Lane l of slot s: the sum over rows l, l + 256, … of column × (column + s). Slot 0 is the squared norm. */
__device__ inline void basis_lane(const BasisStep &step, int64_t slot, int64_t lane)
{
    const cd_cuda_basis &b = step.basis;
    double sum = 0;
    for (int64_t row = lane; row < b.rows; row += CD_CUDA_BASIS_PARTIALS)
        sum += basis_get(b, row, step.column) * basis_get(b, row, step.column + slot);
    b.partials[slot * CD_CUDA_BASIS_PARTIALS + lane] = sum;
}

__global__ void basis_norm_kernel(BasisStep step)
{
    if (thread_index() < CD_CUDA_BASIS_PARTIALS) basis_lane(step, 0, thread_index());
}

__global__ void basis_normalize_kernel(BasisStep step)
{
    const cd_cuda_basis &b = step.basis;
    const double norm = sqrt(basis_total(b, 0)) + b.epsilon;
    for (int64_t row = thread_index(); row < b.rows; row += thread_count())
        basis_set(b, row, step.column, norm == 0 ? 0 : basis_get(b, row, step.column) / norm);
}

/* One slot per later column. */
__global__ void basis_project_kernel(BasisStep step)
{
    const int64_t later = step.basis.columns - step.column - 1;
    for (int64_t i = thread_index(); i < later * CD_CUDA_BASIS_PARTIALS; i += thread_count())
        basis_lane(step, 1 + i / CD_CUDA_BASIS_PARTIALS, i % CD_CUDA_BASIS_PARTIALS);
}

__global__ void basis_subtract_kernel(BasisStep step)
{
    const cd_cuda_basis &b = step.basis;
    for (int64_t slot = 1; slot < b.columns - step.column; slot++) {
        const double size = basis_total(b, slot);
        for (int64_t row = thread_index(); row < b.rows; row += thread_count()) {
            const int64_t from = step.column + slot;
            basis_set(b, row, from, basis_get(b, row, from) - size * basis_get(b, row, step.column));
        }
    }
}

/* ---- whole-tensor results ---- */

struct Scan {
    cd_cuda_view src;
    int64_t numel;
    double *squares;
    int64_t *first;
};

__global__ void squares_kernel(Scan scan)
{
    const int64_t lane = thread_index();
    const uint32_t bytes = bytes_of(scan.src.dtype);
    if (lane >= CD_CUDA_PARTIALS) return;
    double sum = 0;
    for (int64_t i = lane; i < scan.numel; i += CD_CUDA_PARTIALS) {
        const char *p = (const char *)scan.src.data + place(scan.src, i) * (int64_t)bytes;
        const double x = is_integer(scan.src.dtype) ? (double)load_i64(scan.src.dtype, p) : load_f64(scan.src.dtype, p);
        sum += x * x;
        if (scan.src.dtype == CDDP_C64) {
            const double y = (double)((const float *)(const void *)p)[1];
            sum += y * y;
        }
    }
    scan.squares[lane] = sum;
}

__device__ inline bool is_nonfinite(double x) { return !(x - x == 0); }

__global__ void nonfinite_kernel(Scan scan)
{
    const int64_t lane = thread_index();
    const uint32_t bytes = bytes_of(scan.src.dtype);
    if (lane >= CD_CUDA_PARTIALS) return;
    int64_t first = INT64_MAX;
    for (int64_t i = lane; i < scan.numel && first == INT64_MAX; i += CD_CUDA_PARTIALS) {
        const char *p = (const char *)scan.src.data + place(scan.src, i) * (int64_t)bytes;
        bool found = is_nonfinite(load_f64(scan.src.dtype, p));
        if (scan.src.dtype == CDDP_C64) found = found || is_nonfinite((double)((const float *)(const void *)p)[1]);
        if (found) first = i;
    }
    scan.first[lane] = first;
}

int64_t blocks_for(int64_t thread_total)
{
    const int64_t blocks = (thread_total + THREADS - 1) / THREADS;
    return blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX;
}

} // namespace

/* ---- launches ---- */

extern "C" int cd_cuda_launch_call(const cd_cuda_call *call, void *stream)
{
    if (call->numel == 0) return 0;
    CD_LAUNCH(call_kernel, blocks_for(call->numel), THREADS, stream, *call);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_batch(const cd_cuda_batch *batch, void *stream)
{
    if (batch->chunk_count == 0) return 0;
    const int64_t blocks = batch->chunk_count < BLOCKS_MAX ? batch->chunk_count : BLOCKS_MAX;
    CD_LAUNCH(batch_kernel, blocks, THREADS, stream, *batch);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_product(const cd_cuda_product *product, void *stream)
{
    if (product->m == 0 || product->n == 0) return 0;
    CD_LAUNCH(product_kernel, blocks_for(product->m * product->n), THREADS, stream, *product);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_basis(const cd_cuda_basis *basis, void *stream)
{
    if (basis->rows == 0) return 0;
    for (int64_t column = 0; column < basis->columns; column++) {
        const BasisStep step = {*basis, column};
        const int64_t later = basis->columns - column - 1;
        CD_LAUNCH(basis_norm_kernel, 1, CD_CUDA_BASIS_PARTIALS, stream, step);
        CD_LAUNCH(basis_normalize_kernel, blocks_for(basis->rows), THREADS, stream, step);
        if (later == 0) continue;
        CD_LAUNCH(basis_project_kernel, blocks_for(later * CD_CUDA_BASIS_PARTIALS), THREADS, stream, step);
        CD_LAUNCH(basis_subtract_kernel, blocks_for(basis->rows), THREADS, stream, step);
    }
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_squares(const cd_cuda_view *src, int64_t numel, double *partials, void *stream)
{
    const Scan scan = {*src, numel, partials, nullptr};
    CD_LAUNCH(squares_kernel, CD_CUDA_PARTIALS / THREADS, THREADS, stream, scan);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_nonfinite(const cd_cuda_view *src, int64_t numel, int64_t *partials, void *stream)
{
    const Scan scan = {*src, numel, nullptr, partials};
    CD_LAUNCH(nonfinite_kernel, CD_CUDA_PARTIALS / THREADS, THREADS, stream, scan);
    return (int)cudaGetLastError();
}
