/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cuda device. kernels.h says what they compute.
**
** Two compilers build this file. nvcc makes GPU code of it. Unit tests compile it as C++ with their
** own header (CD_CUDA_ON_HOST names it), where a launch is a loop over all threads. So any machine
** tests the work, the elements and the rounding of a thread; tests/gpu tests the rest.
**
** Compiled with --fmad=false: a product is rounded before it is added (docs/determinism.md).
*/
#ifdef CD_CUDA_ON_HOST
#include CD_CUDA_ON_HOST
#else
#include <cuda_runtime.h>
#define CD_ARGUMENT const __grid_constant__ /* read where it lies, at any index */
#define CD_LAUNCH(kernel, blocks, threads, stream, argument) \
    kernel<<<(unsigned)(blocks), (unsigned)(threads), 0, (cudaStream_t)(stream)>>>(argument)
#endif

#include "backends/nccl/kernels.h"
#include "core/tensor/linalg.h"
#include "core/tensor/quantizer.h"

namespace
{

constexpr unsigned THREADS = 256;
constexpr int64_t BLOCKS_MAX = 1 << 16; /* threads stride over what is left */

/* ---- dtypes: how an element is held while one operation runs ---- */

/* Floats compute in Wide and are rounded to the stored form after every operation. */
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
__device__ void apply_float(cd_cuda_op op, typename D::Stored *d, typename D::Stored s,
                            const cd_cuda_scalar &k)
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
    /* A NaN on either side gives NaN, the destination's first; of equal operands the destination
    ** stays. */
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

/* True division with one rounding; core/tensor/kernels.c says which width suffices. */
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

template <typename T, typename U>
__device__ void apply_integer(cd_cuda_op op, T *d, T s, const cd_cuda_scalar &k)
{
    const uint64_t x = (uint64_t)s,
                   y = op == CD_CUDA_SCALE || op == CD_CUDA_DIVIDE ? 0 : (uint64_t)*d;
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

/* Element types of both operands: dispatch once per kernel, outside its loop. Body has operator()(T
** *d, T s). */
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
    __device__ void operator()(Complex *d, Complex s, Complex) const
    {
        apply_complex(op, d, s, scalar);
    }
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

__device__ inline bool is_integer(uint32_t dtype)
{
    return dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8;
}

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

__device__ inline int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* A number on its way to an element. Floats to integers saturate, integers to narrower ones wrap,
** and an integer reaches 16 bits through an f64 that is rounded to odd. */
struct FromF64 {
    double x;
    __device__ double f64() const { return x; }
    __device__ float f32() const { return (float)x; }
    __device__ double odd() const { return x; }
    __device__ int64_t i64() const { return cd_f64_to_i64(x); }
    __device__ int32_t i32() const { return (int32_t)clamp(i64(), INT32_MIN, INT32_MAX); }
    __device__ uint8_t u8() const { return (uint8_t)clamp(i64(), 0, 255); }
};
struct FromI64 {
    int64_t x;
    __device__ double f64() const { return (double)x; }
    __device__ float f32() const { return (float)x; }
    __device__ double odd() const { return cd_i64_to_f64_odd(x); }
    __device__ int64_t i64() const { return x; }
    __device__ int32_t i32() const { return (int32_t)(uint32_t)(uint64_t)x; }
    __device__ uint8_t u8() const { return (uint8_t)(uint64_t)x; }
};

template <typename From> __device__ void store(uint32_t dtype, void *p, From from)
{
    switch (dtype) {
    case CDDP_F64:
        *(double *)p = from.f64();
        break;
    case CDDP_F32:
        *(float *)p = from.f32();
        break;
    case CDDP_F16:
        *(uint16_t *)p = cd_f64_to_f16(from.odd());
        break;
    case CDDP_BF16:
        *(uint16_t *)p = cd_f64_to_bf16(from.odd());
        break;
    case CDDP_C64:
        store_complex(p, from.f32());
        break;
    case CDDP_I64:
        *(int64_t *)p = from.i64();
        break;
    case CDDP_I32:
        *(int32_t *)p = from.i32();
        break;
    default:
        *(uint8_t *)p = from.u8();
        break;
    }
}

__device__ inline void store_f64(uint32_t dtype, void *p, double x) { store(dtype, p, FromF64{x}); }

/* The conversions of gradients have their own path, which keeps the payload of a NaN like the
** cpu's. */
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
        store(to, d, FromI64{load_i64(from, s)});
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
    for (int64_t i = thread_index(); i < c.numel; i += thread_count())
        ((T *)c.dst.data)[place(c.dst, i)] = value;
}

/* Bits are moved, not numbers: a signalling NaN does not change. */
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
struct alignas(16) Four {
    float at[4];
};

constexpr int FLIGHT = 4; /* loads of a thread that are under way before its first store */

/* Words [0, count), each through `f`. All loads of a round come before its stores. */
template <typename W, typename F>
__device__ inline void stream_words(W *d, const W *s, int64_t count, const F &f)
{
    const int64_t step = blockDim.x;
    int64_t i = threadIdx.x;
    for (; i + (FLIGHT - 1) * step < count; i += FLIGHT * step) {
        W words[FLIGHT];
        for (int k = 0; k < FLIGHT; k++) words[k] = s[i + k * step];
        for (int k = 0; k < FLIGHT; k++) d[i + k * step] = f(words[k]);
    }
    for (; i < count; i += step) d[i] = f(s[i]);
}

/* How many of `count` bytes come before the first boundary of 16, where both sides share their
** misalignment; -1 where they do not. */
__device__ inline int64_t bytes_before_wide(const void *d, const void *s, int64_t count)
{
    const uint64_t d_at = (uint64_t)(uintptr_t)d, s_at = (uint64_t)(uintptr_t)s;
    if (((d_at ^ s_at) & 15u) != 0) return -1;
    const int64_t head = (int64_t)((16u - (d_at & 15u)) & 15u);
    return head < count ? head : count;
}

template <typename W> struct Same {
    __device__ W operator()(W word) const { return word; }
};

__device__ inline void move_bytes(char *d, const char *s, int64_t count)
{
    const uint64_t d_at = (uint64_t)(uintptr_t)d, s_at = (uint64_t)(uintptr_t)s;
    const int64_t head = bytes_before_wide(d, s, count), wide = head < 0 ? 0 : (count - head) / 16;
    if (wide > 0) {
        stream_words((Sixteen *)(void *)(d + head), (const Sixteen *)(const void *)(s + head), wide,
                     Same<Sixteen>());
        for (int64_t i = threadIdx.x; i < head; i += blockDim.x) d[i] = s[i];
        for (int64_t i = head + wide * 16 + threadIdx.x; i < count; i += blockDim.x) d[i] = s[i];
    } else if (((d_at | s_at | (uint64_t)count) & 3u) == 0) {
        stream_words((uint32_t *)(void *)d, (const uint32_t *)(const void *)s, count / 4,
                     Same<uint32_t>());
    } else {
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x) d[i] = s[i];
    }
}

/* SCALE and DIVIDE of f32, one number and four at a time. */
struct Scale {
    Apply apply;
    __device__ float operator()(float x) const
    {
        float y = 0;
        apply(&y, x, F32());
        return y;
    }
    __device__ Four operator()(Four x) const
    {
        Four y;
        for (int k = 0; k < 4; k++) y.at[k] = (*this)(x.at[k]);
        return y;
    }
};

__device__ inline void scale_floats(const cd_cuda_batch &b, float *d, const float *s, int64_t count)
{
    const Scale scale = {{b.op, b.scalar}};
    const int64_t before = bytes_before_wide(d, s, count * 4);
    const int64_t head = before < 0 ? 0 : before / 4, wide = before < 0 ? 0 : (count - head) / 4;
    if (wide == 0) {
        stream_words(d, s, count, scale);
        return;
    }
    stream_words((Four *)(void *)(d + head), (const Four *)(const void *)(s + head), wide, scale);
    for (int64_t i = threadIdx.x; i < head; i += blockDim.x) d[i] = scale(s[i]);
    for (int64_t i = head + wide * 4 + threadIdx.x; i < count; i += blockDim.x) d[i] = scale(s[i]);
}

template <typename T, typename Tag>
__device__ void run_chunk(const cd_cuda_batch &b, void *dst, const void *src, int64_t count,
                          Tag tag)
{
    const Apply apply = {b.op, b.scalar};
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
        apply((T *)dst + i, ((const T *)src)[i], tag);
}

/* The last pair whose first chunk is not behind `chunk`. Pairs without elements have no chunk and
** are passed over: their successor begins at the same number. */
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

/* The elements [start, start + count) of a pair that a chunk has. */
__device__ inline int64_t chunk_start(const cd_cuda_batch &b, const cd_cuda_pair &p, int64_t chunk)
{
    return (chunk - p.first_chunk) * (int64_t)b.chunk_numel;
}

__device__ inline int64_t chunk_count(const cd_cuda_batch &b, const cd_cuda_pair &p, int64_t start)
{
    return p.numel - start < (int64_t)b.chunk_numel ? p.numel - start : (int64_t)b.chunk_numel;
}

__device__ inline void batch_chunk(const cd_cuda_batch &b, int64_t chunk)
{
    const cd_cuda_pair &p = b.pairs[pair_of(b, chunk)];
    const int64_t start = chunk_start(b, p, chunk), count = chunk_count(b, p, start);
    const uint32_t dst_bytes = bytes_of(p.dst_dtype), src_bytes = bytes_of(p.src_dtype);
    char *d = (char *)p.dst + start * (int64_t)dst_bytes;
    const char *s = (const char *)p.src + start * (int64_t)src_bytes;
    if (b.op == CD_CUDA_COPY && p.dst_dtype == p.src_dtype) {
        move_bytes(d, s, count * (int64_t)dst_bytes);
    } else if (b.op == CD_CUDA_COPY) {
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x)
            convert(p.dst_dtype, d + i * (int64_t)dst_bytes, p.src_dtype,
                    s + i * (int64_t)src_bytes);
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

__global__ void batch_kernel(CD_ARGUMENT cd_cuda_batch b)
{
    for (int64_t chunk = blockIdx.x; chunk < b.chunk_count; chunk += gridDim.x)
        batch_chunk(b, chunk);
}

/* The two batches of every iteration have kernels of few registers, so that many blocks run at
** once. */
__global__ void move_kernel(CD_ARGUMENT cd_cuda_batch b)
{
    for (int64_t chunk = blockIdx.x; chunk < b.chunk_count; chunk += gridDim.x) {
        const cd_cuda_pair &p = b.pairs[pair_of(b, chunk)];
        const int64_t start = chunk_start(b, p, chunk), bytes = bytes_of(p.dst_dtype);
        move_bytes((char *)p.dst + start * bytes, (const char *)p.src + start * bytes,
                   chunk_count(b, p, start) * bytes);
    }
}

__global__ void scale_kernel(CD_ARGUMENT cd_cuda_batch b)
{
    for (int64_t chunk = blockIdx.x; chunk < b.chunk_count; chunk += gridDim.x) {
        const cd_cuda_pair &p = b.pairs[pair_of(b, chunk)];
        const int64_t start = chunk_start(b, p, chunk);
        scale_floats(b, (float *)p.dst + start, (const float *)p.src + start,
                     chunk_count(b, p, start));
    }
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
            sum = sum + D::widen(a[row * p.a_row + k * p.a_k]) *
                            D::widen(b[k * p.b_k + column * p.b_col]);
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

__device__ inline char *basis_at(const cd_cuda_basis &b, int64_t i)
{
    const int64_t at = i / b.columns * b.row_stride + i % b.columns * b.column_stride;
    return (char *)b.data + at * (int64_t)bytes_of(b.dtype);
}

__global__ void basis_load_kernel(cd_cuda_basis b)
{
    for (int64_t i = thread_index(); i < b.rows * b.columns; i += thread_count())
        b.work[i] = load_f64(b.dtype, basis_at(b, i));
}

__global__ void basis_store_kernel(cd_cuda_basis b)
{
    for (int64_t i = thread_index(); i < b.rows * b.columns; i += thread_count())
        store_f64(b.dtype, basis_at(b, i), b.work[i]);
}

/* One launch on a column: takes off its projection on `taken` (-1: on none), whose size
** is in slot `from`; then sums its product with `next` into slot `to`. A lane has its own rows, so
** that both fit into one launch. */
struct BasisStep {
    cd_cuda_basis basis;
    int64_t column, taken, next;
    int from, to;
};
/* the slot of the squared length that a column came with; 0 and 1 take turns */
constexpr int BASIS_BEFORE = 2;

__device__ inline double basis_total(const cd_cuda_basis &b, int slot)
{
    const double *lane = b.partials + slot * CD_ORTHONORMAL_LANES;
    double sum[4] = {0, 0, 0, 0};
    for (int l = 0; l < CD_ORTHONORMAL_LANES; l++) sum[l % 4] += lane[l];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

__global__ void basis_step_kernel(BasisStep s)
{
    const cd_cuda_basis &b = s.basis;
    const int64_t lane = thread_index();
    if (lane >= CD_ORTHONORMAL_LANES) return;
    const double along = s.taken < 0 ? 0 : basis_total(b, s.from);
    double sum = 0;
    for (int64_t row = lane; row < b.rows; row += CD_ORTHONORMAL_LANES) {
        double *of = b.work + row * b.columns;
        if (s.taken >= 0) of[s.column] -= along * of[s.taken];
        sum += of[s.next] * of[s.column];
    }
    b.partials[s.to * CD_ORTHONORMAL_LANES + lane] = sum;
}

__global__ void basis_scale_kernel(BasisStep s)
{
    const cd_cuda_basis &b = s.basis;
    const double before = sqrt(basis_total(b, BASIS_BEFORE)), length = sqrt(basis_total(b, s.from));
    const bool depends = isfinite(before) && length <= before * CD_ORTHONORMAL_DEPENDENT;
    const double scale = depends ? 0.0 : 1.0 / (length + b.epsilon);
    for (int64_t row = thread_index(); row < b.rows; row += thread_count()) {
        double *x = b.work + row * b.columns + s.column;
        *x = depends ? 0.0 : *x * scale;
    }
}

/* ---- 8-bit codes ---- */

__device__ inline cd_quantizer_range range_get(const float *p, int64_t i)
{
    return {p[2 * i], p[2 * i + 1]};
}
__device__ inline void range_set(float *p, int64_t i, cd_quantizer_range r)
{
    p[2 * i] = r.least;
    p[2 * i + 1] = r.most;
}

__global__ void range_kernel(cd_cuda_rows q)
{
    for (int64_t i = thread_index(); i < q.rows * q.lanes; i += thread_count()) {
        const float *row = q.values + i / q.lanes * q.length;
        cd_quantizer_range r = {0, 0};
        for (int64_t k = i % q.lanes; k < q.length; k += q.lanes) r = cd_quantizer_see(r, row[k]);
        range_set(q.partials, i, r);
    }
}

/* Lanes i mod JOINS of each row, behind the partials of all lanes. */
__global__ void range_join_kernel(cd_cuda_rows q)
{
    for (int64_t i = thread_index(); i < q.rows * CD_CUDA_RANGE_JOINS; i += thread_count()) {
        const int64_t row = i / CD_CUDA_RANGE_JOINS;
        cd_quantizer_range r = {0, 0};
        for (int64_t lane = i % CD_CUDA_RANGE_JOINS; lane < q.lanes; lane += CD_CUDA_RANGE_JOINS)
            r = cd_quantizer_join(r, range_get(q.partials, row * q.lanes + lane));
        range_set(q.partials, q.rows * q.lanes + i, r);
    }
}

__global__ void quantizer_kernel(cd_cuda_rows q)
{
    for (int64_t row = thread_index(); row < q.rows; row += thread_count()) {
        cd_quantizer_range r = {0, 0};
        for (int64_t i = 0; i < CD_CUDA_RANGE_JOINS; i++)
            r = cd_quantizer_join(r, range_get(q.partials,
                                               q.rows * q.lanes + row * CD_CUDA_RANGE_JOINS + i));
        const cd_quantizer made = cd_quantizer_of(r);
        q.quantizers[2 * row] = made.scale;
        q.quantizers[2 * row + 1] = made.zero_point;
    }
}

__global__ void encode_kernel(cd_cuda_rows q)
{
    for (int64_t i = thread_index(); i < q.rows * q.length; i += thread_count()) {
        const float *of = q.quantizers + 2 * (i / q.length);
        const cd_quantizer made = {of[0], of[1]};
        q.codes[i] = cd_quantizer_encode(made, q.values[i]);
    }
}

__global__ void decode_kernel(cd_cuda_decode d)
{
    for (int64_t i = thread_index(); i < d.numel; i += thread_count()) {
        float sum = 0;
        for (int64_t part = 0; part < d.parts; part++) {
            const float *of = d.quantizers + 2 * (part * d.rows + i / d.length);
            const cd_quantizer made = {of[0], of[1]};
            sum += cd_quantizer_decode(made, d.codes[part * d.rows * d.length + i]);
        }
        d.dst[i] = sum;
    }
}

/* ---- the largest elements ---- */

/* The work memory: what is known of the k-th largest, and counts per lane. For the search there are
** 16 counts of each lane; afterwards two. Behind the lanes' stand the joined ones. */
struct Largest {
    cd_cuda_largest of;
    uint64_t *key;           /* the digits found so far */
    int64_t *remaining;      /* how many of the equal ones are wanted */
    uint32_t *lanes, *joins; /* [count][lane], [count][join] */
    uint32_t shift, key_bits;
    int counts;
};
constexpr int64_t PER_JOIN = CD_CUDA_LARGEST_LANES / CD_CUDA_LARGEST_JOINS;

/* Magnitudes as integers that compare as they do; every NaN is the largest. */
__device__ inline uint64_t magnitude_key(const cd_cuda_largest &l, int64_t i)
{
    switch (l.dtype) {
    case CDDP_F64: {
        const uint64_t m = ((const uint64_t *)l.data)[i] & 0x7fffffffffffffffu;
        return m > 0x7ff0000000000000u ? 0x7fffffffffffffffu : m;
    }
    case CDDP_F32: {
        const uint32_t m = ((const uint32_t *)l.data)[i] & 0x7fffffffu;
        return m > 0x7f800000u ? 0x7fffffffu : m;
    }
    default: {
        const uint32_t m = ((const uint16_t *)l.data)[i] & 0x7fffu,
                       infinite = l.dtype == CDDP_F16 ? 0x7c00u : 0x7f80u;
        return m > infinite ? 0x7fffu : m;
    }
    }
}

__global__ void largest_begin_kernel(Largest l)
{
    if (thread_index() != 0) return;
    *l.key = 0;
    *l.remaining = l.of.k;
}

__device__ inline bool agrees(const Largest &l, uint64_t key)
{
    return l.shift + 4 >= l.key_bits || (key ^ *l.key) >> (l.shift + 4) == 0;
}

__global__ void largest_digits_kernel(Largest l)
{
    const int64_t lane = thread_index();
    if (lane >= CD_CUDA_LARGEST_LANES) return;
    uint32_t count[16] = {0};
    for (int64_t i = lane; i < l.of.numel; i += CD_CUDA_LARGEST_LANES) {
        const uint64_t key = magnitude_key(l.of, i);
        if (agrees(l, key)) count[key >> l.shift & 15u]++;
    }
    for (int d = 0; d < 16; d++) l.lanes[d * CD_CUDA_LARGEST_LANES + lane] = count[d];
}

__global__ void largest_join_kernel(Largest l)
{
    for (int64_t i = thread_index(); i < l.counts * CD_CUDA_LARGEST_JOINS; i += thread_count()) {
        uint32_t sum = 0;
        for (int64_t k = 0; k < PER_JOIN; k++) sum += l.lanes[i * PER_JOIN + k];
        l.joins[i] = sum;
    }
}

__global__ void largest_digit_kernel(Largest l)
{
    if (thread_index() != 0) return;
    int64_t wanted = *l.remaining;
    for (int d = 15; d >= 0; d--) {
        int64_t here = 0;
        for (int64_t j = 0; j < CD_CUDA_LARGEST_JOINS; j++)
            here += l.joins[d * CD_CUDA_LARGEST_JOINS + j];
        if (here >= wanted) {
            *l.key |= (uint64_t)d << l.shift;
            break;
        }
        wanted -= here;
    }
    *l.remaining = wanted;
}

/* From here on a lane has neighbours: elements [begin, end). */
__device__ inline void chunk_of(const Largest &l, int64_t lane, int64_t *begin, int64_t *end)
{
    const int64_t each = (l.of.numel + CD_CUDA_LARGEST_LANES - 1) / CD_CUDA_LARGEST_LANES;
    *begin = lane * each < l.of.numel ? lane * each : l.of.numel;
    *end = *begin + each < l.of.numel ? *begin + each : l.of.numel;
}

/* Count 0: larger than the k-th; count 1: equal to it. */
__global__ void largest_count_kernel(Largest l)
{
    const int64_t lane = thread_index();
    int64_t begin, end;
    if (lane >= CD_CUDA_LARGEST_LANES) return;
    chunk_of(l, lane, &begin, &end);
    uint32_t larger = 0, equal = 0;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t key = magnitude_key(l.of, i);
        larger += key > *l.key;
        equal += key == *l.key;
    }
    l.lanes[lane] = larger;
    l.lanes[CD_CUDA_LARGEST_LANES + lane] = equal;
}

__device__ inline int64_t before_lane(const Largest &l, int count, int64_t lane)
{
    int64_t sum = 0;
    for (int64_t j = 0; j < lane / PER_JOIN; j++) sum += l.joins[count * CD_CUDA_LARGEST_JOINS + j];
    for (int64_t i = lane / PER_JOIN * PER_JOIN; i < lane; i++)
        sum += l.lanes[count * CD_CUDA_LARGEST_LANES + i];
    return sum;
}

template <typename T>
__device__ void largest_move(const cd_cuda_largest &l, int64_t from, int64_t to)
{
    ((T *)l.values)[to] = ((const T *)l.data)[from];
    ((T *)l.data)[from] = 0;
}

__global__ void largest_take_kernel(Largest l)
{
    const int64_t lane = thread_index();
    int64_t begin, end;
    if (lane >= CD_CUDA_LARGEST_LANES) return;
    chunk_of(l, lane, &begin, &end);
    int64_t larger = before_lane(l, 0, lane), equal = before_lane(l, 1, lane);
    for (int64_t i = begin; i < end; i++) {
        const uint64_t key = magnitude_key(l.of, i);
        const int64_t at = larger + (equal < *l.remaining ? equal : *l.remaining);
        const bool is_taken = key > *l.key || (key == *l.key && equal < *l.remaining);
        larger += key > *l.key;
        equal += key == *l.key;
        if (!is_taken) continue;
        l.of.indices[at] = (int32_t)i;
        if (l.key_bits == 64)
            largest_move<uint64_t>(l.of, i, at);
        else if (l.key_bits == 32)
            largest_move<uint32_t>(l.of, i, at);
        else
            largest_move<uint16_t>(l.of, i, at);
    }
}

__device__ inline bool is_index(const cd_cuda_add_at &a, int64_t i)
{
    return a.indices[i] >= 0 && a.indices[i] < a.numel;
}

__global__ void add_at_kernel(cd_cuda_add_at a)
{
    const int64_t bytes = bytes_of(a.dtype);
    for (int64_t i = thread_index(); i < a.count; i += thread_count()) {
        if (!is_index(a, i)) continue;
        char *d = (char *)a.data + a.indices[i] * bytes;
        store_f64(a.dtype, d,
                  load_f64(a.dtype, d) + load_f64(a.dtype, (const char *)a.values + i * bytes));
    }
}

/* It runs last, so that no thread adds to its result. */
__global__ void add_at_check_kernel(cd_cuda_add_at a)
{
    for (int64_t i = thread_index(); i < a.count; i += thread_count())
        if (!is_index(a, i)) store_f64(a.dtype, a.data, cd_f64_of_bits(0x7ff8000000000000u));
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
        const double x = is_integer(scan.src.dtype) ? (double)load_i64(scan.src.dtype, p)
                                                    : load_f64(scan.src.dtype, p);
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
        if (scan.src.dtype == CDDP_C64)
            found = found || is_nonfinite((double)((const float *)(const void *)p)[1]);
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
    if (batch->moves)
        CD_LAUNCH(move_kernel, blocks, THREADS, stream, *batch);
    else if (batch->is_scaled)
        CD_LAUNCH(scale_kernel, blocks, THREADS, stream, *batch);
    else
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
    if (basis->rows == 0 || basis->columns == 0) return 0;
    const int64_t blocks = blocks_for(basis->rows * basis->columns);
    CD_LAUNCH(basis_load_kernel, blocks, THREADS, stream, *basis);
    for (int64_t column = 0; column < basis->columns; column++) {
        const int64_t steps = 2 * column; /* every column before it, twice */
        BasisStep step = {*basis, column, -1, column, 0, BASIS_BEFORE};
        CD_LAUNCH(basis_step_kernel, 1, CD_ORTHONORMAL_LANES, stream, step);
        for (int64_t t = 0; t <= steps && column > 0; t++) {
            step.taken = t == 0 ? -1 : (t - 1) % column;
            step.next = t == steps ? column : t % column;
            step.from = (int)((t + 1) % 2);
            step.to = (int)(t % 2);
            CD_LAUNCH(basis_step_kernel, 1, CD_ORTHONORMAL_LANES, stream, step);
        }
        step.from = column == 0 ? BASIS_BEFORE : (int)(steps % 2);
        CD_LAUNCH(basis_scale_kernel, blocks_for(basis->rows), THREADS, stream, step);
    }
    CD_LAUNCH(basis_store_kernel, blocks, THREADS, stream, *basis);
    return (int)cudaGetLastError();
}

extern "C" int64_t cd_cuda_range_lanes(int64_t length)
{
    const int64_t lanes = (length + 31) / 32;
    return lanes < 1 ? 1 : lanes < 8192 ? lanes : 8192;
}

extern "C" int cd_cuda_launch_quantize(const cd_cuda_rows *rows, void *stream)
{
    if (rows->rows == 0) return 0;
    CD_LAUNCH(range_kernel, blocks_for(rows->rows * rows->lanes), THREADS, stream, *rows);
    CD_LAUNCH(range_join_kernel, blocks_for(rows->rows * CD_CUDA_RANGE_JOINS), THREADS, stream,
              *rows);
    CD_LAUNCH(quantizer_kernel, blocks_for(rows->rows), THREADS, stream, *rows);
    if (rows->length > 0)
        CD_LAUNCH(encode_kernel, blocks_for(rows->rows * rows->length), THREADS, stream, *rows);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_decode(const cd_cuda_decode *decode, void *stream)
{
    if (decode->numel == 0) return 0;
    CD_LAUNCH(decode_kernel, blocks_for(decode->numel), THREADS, stream, *decode);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_largest(const cd_cuda_largest *largest, void *stream)
{
    const int64_t blocks = CD_CUDA_LARGEST_LANES / THREADS;
    if (largest->k == 0) return 0;
    uint64_t *key = (uint64_t *)largest->work;
    uint32_t *counts = (uint32_t *)(key + 2);
    Largest l = {
        *largest, key, (int64_t *)(key + 1), counts, counts + 16 * CD_CUDA_LARGEST_LANES, 0, 0, 16};
    l.key_bits = largest->dtype == CDDP_F64 ? 64 : largest->dtype == CDDP_F32 ? 32 : 16;
    CD_LAUNCH(largest_begin_kernel, 1, 1, stream, l);
    for (uint32_t known = 4; known <= l.key_bits; known += 4) {
        l.shift = l.key_bits - known;
        CD_LAUNCH(largest_digits_kernel, blocks, THREADS, stream, l);
        CD_LAUNCH(largest_join_kernel, blocks_for(16 * CD_CUDA_LARGEST_JOINS), THREADS, stream, l);
        CD_LAUNCH(largest_digit_kernel, 1, 1, stream, l);
    }
    l.counts = 2;
    CD_LAUNCH(largest_count_kernel, blocks, THREADS, stream, l);
    CD_LAUNCH(largest_join_kernel, 1, 2 * CD_CUDA_LARGEST_JOINS, stream, l);
    CD_LAUNCH(largest_take_kernel, blocks, THREADS, stream, l);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_add_at(const cd_cuda_add_at *add, void *stream)
{
    if (add->count == 0) return 0;
    CD_LAUNCH(add_at_kernel, blocks_for(add->count), THREADS, stream, *add);
    CD_LAUNCH(add_at_check_kernel, blocks_for(add->count), THREADS, stream, *add);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_squares(const cd_cuda_view *src, int64_t numel, double *partials,
                                      void *stream)
{
    const Scan scan = {*src, numel, partials, nullptr};
    CD_LAUNCH(squares_kernel, CD_CUDA_PARTIALS / THREADS, THREADS, stream, scan);
    return (int)cudaGetLastError();
}

extern "C" int cd_cuda_launch_nonfinite(const cd_cuda_view *src, int64_t numel, int64_t *partials,
                                        void *stream)
{
    const Scan scan = {*src, numel, nullptr, partials};
    CD_LAUNCH(nonfinite_kernel, CD_CUDA_PARTIALS / THREADS, THREADS, stream, scan);
    return (int)cudaGetLastError();
}
