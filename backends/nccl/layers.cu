/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the layers and of the optimizers' rules. layers.h gives the order of sums.
**
** Two compilers build this file, like kernels.cu. A kernel is a functor: operator()(i) computes
** element i of the result and writes nothing else, so launches need no barrier and no atomics. R is
** float or double.
*/
#ifdef CD_CUDA_ON_HOST
#include CD_CUDA_ON_HOST
#else
#include <cuda_runtime.h>
#define CD_LAUNCH(kernel, blocks, threads, stream, argument) \
    kernel<<<(unsigned)(blocks), (unsigned)(threads), 0, (cudaStream_t)(stream)>>>(argument)
#endif

#include "backends/nccl/layers.h"
#include "core/tensor/constants_code.h"
#include "core/tensor/math_code.h"
#include "core/tensor/update_code.h"

namespace
{

constexpr unsigned THREADS = 128;
constexpr int64_t BLOCKS_MAX = 1 << 16;
constexpr int64_t IGNORED = -100;

template <typename F> struct Each {
    int64_t count;
    F element;
};

template <typename F> __global__ void each_kernel(Each<F> e)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < e.count;
         i += (int64_t)gridDim.x * blockDim.x)
        e.element(i);
}

template <typename F> int each(int64_t count, const F &element, void *stream)
{
    if (count <= 0) return 0;
    const Each<F> e = {count, element};
    const int64_t blocks = (count + THREADS - 1) / THREADS;
    CD_LAUNCH(each_kernel<F>, blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX, THREADS, stream, e);
    return (int)cudaGetLastError();
}

/* ---- the functions of each element type, as core/model/layers/each_real.h names them ---- */

__device__ inline double root(double x) { return sqrt(x); }
__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double fexp(double x) { return cd_math_exp(x); }
__device__ inline float fexp(float x) { return (float)cd_math_exp((double)x); }
__device__ inline double flog(double x) { return cd_math_log(x); }
__device__ inline float flog(float x) { return (float)cd_math_log((double)x); }
__device__ inline double flog1p(double x) { return cd_math_log1p(x); }
__device__ inline float flog1p(float x) { return (float)cd_math_log1p((double)x); }
__device__ inline double ftanh(double x) { return cd_math_tanh(x); }
__device__ inline float ftanh(float x) { return (float)cd_math_tanh((double)x); }
__device__ inline double fsigmoid(double x) { return cd_math_sigmoid(x); }
__device__ inline float fsigmoid(float x) { return (float)cd_math_sigmoid((double)x); }
__device__ inline double ferf(double x) { return cd_math_erf(x); }
__device__ inline float ferf(float x) { return (float)cd_math_erf((double)x); }

/* ---- the state of a call ---- */

template <typename T> T *data(const cddp_tensor *t)
{
    return t->device != nullptr ? (T *)t->storage + t->offset : nullptr;
}

template <typename R> struct Call {
    const cddp_layer_call *c;
    void *stream;
    int code; /* the error of the first failed step; later steps are skipped */
    template <typename F> void step(int64_t count, const F &element)
    {
        if (code == 0) code = each(count, element, stream);
    }
    const R *in(uint32_t i) const { return data<const R>(&c->inputs[i]); }
    R *out(uint32_t i = 0) const { return data<R>(&c->outputs[i]); }
    const R *dout(uint32_t i = 0) const { return data<const R>(&c->out_grads[i]); }
    R *din(uint32_t i) const { return data<R>(&c->in_grads[i]); }
    template <typename T> T *given(uint32_t i) const { return data<T>(&c->given[i]); }
    int64_t size(uint32_t input, uint32_t d) const { return c->inputs[input].sizes[d]; }
    int64_t last(uint32_t input) const
    {
        return c->inputs[input].sizes[c->inputs[input].dim_count - 1];
    }
    int64_t numel(uint32_t input) const { return cddp_tensor_numel(&c->inputs[input]); }
    int64_t samples() const { return c->inputs[0].sizes[0]; }
    /* Elements per sample of the first input. */
    int64_t width() const
    {
        int64_t n = 1;
        for (uint32_t d = 1; d < c->inputs[0].dim_count; d++) n *= c->inputs[0].sizes[d];
        return n;
    }
};

/* ---- linear: everything except its products ---- */

template <typename R> struct AddBias {
    R *y;
    const R *bias;
    int64_t out;
    __device__ void operator()(int64_t i) const { y[i] += bias[i % out]; }
};

/* Rows of one sample first, then samples. */
template <typename R> struct LinearBias {
    const R *dy;
    R *db;
    int64_t samples, inner, out;
    __device__ void operator()(int64_t o) const
    {
        R total = 0;
        for (int64_t s = 0; s < samples; s++) {
            R sample = 0;
            for (int64_t r = 0; r < inner; r++) sample += dy[(s * inner + r) * out + o];
            total += sample;
        }
        db[o] = total;
    }
};

/* For several rows per sample; with one it is a plain product. */
template <typename R> struct LinearWeight {
    const R *x, *dy;
    R *dw;
    int64_t samples, inner, in, out;
    __device__ void operator()(int64_t i) const
    {
        const int64_t o = i / in, column = i % in;
        R total = 0;
        for (int64_t s = 0; s < samples; s++) {
            R sample = 0;
            for (int64_t r = s * inner; r < (s + 1) * inner; r++)
                sample += dy[r * out + o] * x[r * in + column];
            total += sample;
        }
        dw[i] = total;
    }
};

template <typename R> void run_linear(Call<R> &k)
{
    const int64_t in = k.size(2, 1), out = k.size(2, 0), samples = k.size(1, 0);
    const int64_t rows = in > 0 ? k.numel(1) / in : 0, inner = samples > 0 ? rows / samples : 0;
    if (!k.c->is_backward) {
        if (k.in(0) != nullptr) k.step(rows * out, AddBias<R>{k.out(), k.in(0), out});
        return;
    }
    if (k.din(0) != nullptr) k.step(out, LinearBias<R>{k.dout(), k.din(0), samples, inner, out});
    if (k.din(2) != nullptr && inner != 1)
        k.step(out * in, LinearWeight<R>{k.in(1), k.dout(), k.din(2), samples, inner, in, out});
}

/* ---- functions of one value ---- */

struct Relu {
    template <typename R> static __device__ R value(R x) { return x <= 0 ? (R)0 : x; }
    template <typename R> static __device__ R slope(R, R y, R dy) { return y <= 0 ? (R)0 : dy; }
};
struct Tanh {
    template <typename R> static __device__ R value(R x) { return ftanh(x); }
    template <typename R> static __device__ R slope(R, R y, R dy) { return dy * (1 - y * y); }
};
struct Sigmoid {
    template <typename R> static __device__ R value(R x) { return fsigmoid(x); }
    template <typename R> static __device__ R slope(R, R y, R dy) { return dy * ((1 - y) * y); }
};
/* Φ(x) is computed again in backward. */
struct Gelu {
    template <typename R> static __device__ R share(R x)
    {
        return (R)0.5 * (1 + ferf(x * (R)0.70710678118654752440));
    }
    template <typename R> static __device__ R value(R x) { return x * share(x); }
    template <typename R> static __device__ R slope(R x, R, R dy)
    {
        return dy * (share(x) + x * ((R)0.39894228040143267794 * fexp((R)-0.5 * x * x)));
    }
};

template <typename R, typename F> struct Forward {
    const R *x;
    R *y;
    __device__ void operator()(int64_t i) const { y[i] = F::value(x[i]); }
};
template <typename R, typename F> struct Backward {
    const R *x, *y, *dy;
    R *dx;
    __device__ void operator()(int64_t i) const { dx[i] = F::slope(x[i], y[i], dy[i]); }
};

template <typename R, typename F> void run_function(Call<R> &k)
{
    if (!k.c->is_backward)
        k.step(k.numel(0), Forward<R, F>{k.in(0), k.out()});
    else
        k.step(k.numel(0), Backward<R, F>{k.in(0), k.out(), k.dout(), k.din(0)});
}

/* ---- convolution ---- */

struct ConvSizes {
    int64_t samples, channels, height, width, kernel_height, kernel_width, stride, padding, out,
        out_width, positions;
    __device__ int64_t patch() const { return channels * kernel_height * kernel_width; }
    __device__ int64_t sample() const { return channels * height * width; }
    /* The element of the sample under patch element k at position p; -1 in the padding. */
    __device__ int64_t source(int64_t k, int64_t p) const
    {
        const int64_t window = kernel_height * kernel_width, channel = k / window;
        const int64_t row = p / out_width * stride + k % window / kernel_width - padding;
        const int64_t column = p % out_width * stride + k % kernel_width - padding;
        if (row < 0 || row >= height || column < 0 || column >= width) return -1;
        return (channel * height + row) * width + column;
    }
};

/* The padding's zeros are multiplied too: an infinite weight makes NaN of them, as on the cpu. */
template <typename R> struct ConvForward {
    ConvSizes z;
    const R *x, *weight, *bias;
    R *y;
    __device__ void operator()(int64_t i) const
    {
        const int64_t s = i / (z.out * z.positions), o = i / z.positions % z.out,
                      p = i % z.positions;
        const R *sample = x + s * z.sample();
        R sum = 0;
        for (int64_t k = 0; k < z.patch(); k++) {
            const int64_t at = z.source(k, p);
            sum += weight[o * z.patch() + k] * (at >= 0 ? sample[at] : (R)0);
        }
        y[i] = bias != nullptr ? sum + bias[o] : sum;
    }
};

/* Contributions of (ky, kx) in order, each a sum over outputs. */
template <typename R> struct ConvInput {
    ConvSizes z;
    const R *weight, *dy;
    R *dx;
    __device__ void operator()(int64_t i) const
    {
        const int64_t s = i / z.sample(), at = i % z.sample();
        const int64_t channel = at / (z.height * z.width), row = at / z.width % z.height,
                      column = at % z.width;
        const R *from = dy + s * z.out * z.positions;
        R total = 0;
        for (int64_t ky = 0; ky < z.kernel_height; ky++)
            for (int64_t kx = 0; kx < z.kernel_width; kx++) {
                const int64_t top = row + z.padding - ky, left = column + z.padding - kx;
                if (top < 0 || left < 0 || top % z.stride != 0 || left % z.stride != 0) continue;
                const int64_t y = top / z.stride, x = left / z.stride;
                if (x >= z.out_width || y >= z.positions / z.out_width) continue;
                const int64_t k = (channel * z.kernel_height + ky) * z.kernel_width + kx,
                              p = y * z.out_width + x;
                R sum = 0;
                for (int64_t o = 0; o < z.out; o++)
                    sum += weight[o * z.patch() + k] * from[o * z.positions + p];
                total += sum;
            }
        dx[i] = total;
    }
};

template <typename R> struct ConvWeight {
    ConvSizes z;
    const R *x, *dy;
    R *dw;
    __device__ void operator()(int64_t i) const
    {
        const int64_t o = i / z.patch(), k = i % z.patch();
        R total = 0;
        for (int64_t s = 0; s < z.samples; s++) {
            R sum = 0;
            for (int64_t p = 0; p < z.positions; p++) {
                const int64_t at = z.source(k, p);
                sum += dy[(s * z.out + o) * z.positions + p] *
                       (at >= 0 ? x[s * z.sample() + at] : (R)0);
            }
            total += sum;
        }
        dw[i] = total;
    }
};

template <typename R> struct ConvBias {
    const R *dy;
    R *db;
    int64_t samples, out, positions;
    __device__ void operator()(int64_t o) const
    {
        R total = 0;
        for (int64_t s = 0; s < samples; s++) {
            R sum = 0;
            for (int64_t p = 0; p < positions; p++) sum += dy[(s * out + o) * positions + p];
            total += sum;
        }
        db[o] = total;
    }
};

template <typename R> void run_conv(Call<R> &k)
{
    const cddp_tensor *y = &k.c->outputs[0];
    const ConvSizes z = {k.size(0, 0),
                         k.size(0, 1),
                         k.size(0, 2),
                         k.size(0, 3),
                         k.size(1, 2),
                         k.size(1, 3),
                         k.c->integers[0],
                         k.c->integers[1],
                         k.size(1, 0),
                         y->sizes[3],
                         y->sizes[2] * y->sizes[3]};
    if (!k.c->is_backward) {
        k.step(cddp_tensor_numel(y), ConvForward<R>{z, k.in(0), k.in(1), k.in(2), k.out()});
        return;
    }
    if (k.din(0) != nullptr) k.step(k.numel(0), ConvInput<R>{z, k.in(1), k.dout(), k.din(0)});
    if (k.din(1) != nullptr) k.step(k.numel(1), ConvWeight<R>{z, k.in(0), k.dout(), k.din(1)});
    if (k.din(2) != nullptr)
        k.step(z.out, ConvBias<R>{k.dout(), k.din(2), z.samples, z.out, z.positions});
}

/* Sums of size × size blocks of the large side, row by row, divided by `divisor` where that is not
** 0. */
template <typename R> struct Blocks {
    const R *large;
    R *small;
    int64_t height, width, size; /* of the small side */
    R divisor;
    __device__ void operator()(int64_t i) const
    {
        const int64_t plane = i / (height * width), row = i / width % height, column = i % width;
        R sum = 0;
        for (int64_t b = 0; b < size * size; b++)
            sum += large[((plane * height + row) * size + b / size) * width * size + column * size +
                         b % size];
        small[i] = divisor != 0 ? sum / divisor : sum;
    }
};

/* Every element of the small side spread over its block. */
template <typename R> struct Spread {
    const R *small;
    R *large;
    int64_t height, width, size; /* of the small side */
    R divisor;
    __device__ void operator()(int64_t i) const
    {
        const int64_t wide = width * size, plane = i / (height * size * wide),
                      row = i / wide % (height * size) / size;
        const R value = small[(plane * height + row) * width + i % wide / size];
        large[i] = divisor != 0 ? value / divisor : value;
    }
};

template <typename R> void run_resize(Call<R> &k, bool shrinks)
{
    const cddp_tensor *small = shrinks ? &k.c->outputs[0] : &k.c->inputs[0];
    const int64_t size = k.c->integers[0], height = small->sizes[2], width = small->sizes[3];
    const int64_t small_numel = cddp_tensor_numel(small), large_numel = small_numel * size * size;
    const R divisor = shrinks ? (R)(size * size) : (R)0;
    const R *from = k.c->is_backward ? k.dout() : k.in(0);
    R *to = k.c->is_backward ? k.din(0) : k.out();
    if (shrinks != k.c->is_backward)
        k.step(small_numel, Blocks<R>{from, to, height, width, size, divisor});
    else
        k.step(large_numel, Spread<R>{from, to, height, width, size, divisor});
}

/* ---- dropout ---- */

/* One thread draws for one sample: xoshiro256** (core/base/prng.c) can only be started from its
** beginning. */
template <typename R> struct Dropout {
    const R *from;
    R *to;
    const int64_t *generators; /* (samples, 4) */
    int64_t width;
    double probability;
    static __device__ uint64_t turned(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
    static __device__ uint64_t draw(uint64_t *s)
    {
        const uint64_t result = turned(s[1] * 5, 7) * 9, t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = turned(s[3], 45);
        return result;
    }
    __device__ void operator()(int64_t sample) const
    {
        const R scale = (R)(1 / (1 - probability));
        uint64_t state[4];
        for (int w = 0; w < 4; w++) state[w] = (uint64_t)generators[sample * 4 + w];
        for (int64_t i = sample * width; i < (sample + 1) * width; i++) {
            const bool is_kept = (double)(draw(state) >> 11) >= probability * 0x1p53;
            to[i] = is_kept ? from[i] * scale : (R)0;
        }
    }
};

template <typename R> void run_dropout(Call<R> &k)
{
    const R *from = k.c->is_backward ? k.dout() : k.in(0);
    R *to = k.c->is_backward ? k.din(0) : k.out();
    k.step(k.samples(),
           Dropout<R>{from, to, k.template given<const int64_t>(0), k.width(), k.c->reals[0]});
}

/* ---- embedding ---- */

template <typename R> struct EmbeddingRows {
    const R *table;
    R *y;
    const int64_t *indices;
    int64_t width;
    __device__ void operator()(int64_t i) const
    {
        y[i] = table[indices[i / width] * width + i % width];
    }
};

template <typename R> struct EmbeddingBags {
    const R *table;
    R *y;
    const int64_t *indices;
    int64_t positions, width;
    __device__ void operator()(int64_t i) const
    {
        const int64_t *index = indices + i / width * positions;
        R sum = 0;
        for (int64_t t = 0; t < positions; t++) sum += table[index[t] * width + i % width];
        y[i] = sum;
    }
};

/* Row `hit` of the gradient from the places that are its own: those of one sample first, then
** samples. */
template <typename R> struct EmbeddingTable {
    const R *dy;
    R *table;
    const int64_t *rows, *start, *places;
    int64_t positions, width;
    bool bag;
    __device__ void operator()(int64_t i) const
    {
        const int64_t hit = i / width, column = i % width;
        R total = 0;
        for (int64_t at = start[hit]; at < start[hit + 1];) {
            const int64_t sample = places[at] / positions;
            R sum = 0;
            for (; at < start[hit + 1] && places[at] / positions == sample; at++)
                sum += dy[(bag ? sample : places[at]) * width + column];
            total += sum;
        }
        table[rows[hit] * width + column] = total;
    }
};

template <typename R> void run_embedding(Call<R> &k)
{
    const cddp_tensor *index = &k.c->given[0];
    const int64_t width = k.size(0, 1), positions = index->sizes[1];
    const bool bag = k.c->integers[0] != 0;
    const int64_t *indices = k.template given<const int64_t>(0);
    if (k.c->is_backward) {
        k.step(k.c->given[1].sizes[0] * width,
               EmbeddingTable<R>{k.dout(), k.din(0), k.template given<const int64_t>(1),
                                 k.template given<const int64_t>(2),
                                 k.template given<const int64_t>(3), positions, width, bag});
        return;
    }
    const int64_t count = cddp_tensor_numel(&k.c->outputs[0]);
    if (bag)
        k.step(count, EmbeddingBags<R>{k.in(0), k.out(), indices, positions, width});
    else
        k.step(count, EmbeddingRows<R>{k.in(0), k.out(), indices, width});
}

/* ---- layer norm ---- */

template <typename R>
__device__ void row_moments(const R *x, int64_t width, double eps, R *mean, R *inverse)
{
    R sum = 0, squares = 0;
    for (int64_t i = 0; i < width; i++) sum += x[i];
    *mean = sum / (R)width;
    for (int64_t i = 0; i < width; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *inverse = 1 / root(squares / (R)width + (R)eps);
}

template <typename R> struct NormRow {
    const R *x, *weight, *bias;
    R *y;
    int64_t width;
    double eps;
    __device__ void operator()(int64_t r) const
    {
        R mean, inverse;
        row_moments(x + r * width, width, eps, &mean, &inverse);
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = (x[r * width + i] - mean) * inverse * weight[i] + bias[i];
    }
};

/* Moments for the columns, and dx when requested. moments: (rows, 2). */
template <typename R> struct NormRowBack {
    const R *x, *weight, *dy;
    R *dx, *moments;
    int64_t width;
    double eps;
    __device__ void operator()(int64_t r) const
    {
        const R *xr = x + r * width, *dyr = dy + r * width;
        R mean, inverse, sum = 0, dot = 0;
        row_moments(xr, width, eps, &mean, &inverse);
        moments[2 * r] = mean;
        moments[2 * r + 1] = inverse;
        if (dx == nullptr) return;
        for (int64_t i = 0; i < width; i++) {
            sum += dyr[i] * weight[i];
            dot += dyr[i] * weight[i] * ((xr[i] - mean) * inverse);
        }
        sum /= (R)width;
        dot /= (R)width;
        for (int64_t i = 0; i < width; i++)
            dx[r * width + i] =
                inverse * (dyr[i] * weight[i] - sum - (xr[i] - mean) * inverse * dot);
    }
};

template <typename R> struct NormColumn {
    const R *x, *dy, *moments;
    R *dw, *db;
    int64_t samples, inner, width;
    __device__ void operator()(int64_t i) const
    {
        R total_w = 0, total_b = 0;
        for (int64_t s = 0; s < samples; s++) {
            R sample_w = 0, sample_b = 0;
            for (int64_t r = s * inner; r < (s + 1) * inner; r++) {
                const R d = dy[r * width + i];
                sample_w =
                    sample_w + d * ((x[r * width + i] - moments[2 * r]) * moments[2 * r + 1]);
                sample_b = sample_b + d;
            }
            total_w += sample_w;
            total_b += sample_b;
        }
        if (dw != nullptr) dw[i] = total_w;
        if (db != nullptr) db[i] = total_b;
    }
};

template <typename R> void run_layer_norm(Call<R> &k, void *scratch)
{
    const int64_t width = k.last(0), rows = width > 0 ? k.numel(0) / width : 0;
    const int64_t inner = k.samples() > 0 ? rows / k.samples() : 0;
    const double eps = k.c->reals[0];
    if (!k.c->is_backward) {
        k.step(rows, NormRow<R>{k.in(0), k.in(1), k.in(2), k.out(), width, eps});
        return;
    }
    R *moments = (R *)scratch;
    k.step(rows, NormRowBack<R>{k.in(0), k.in(1), k.dout(), k.din(0), moments, width, eps});
    if (k.din(1) != nullptr || k.din(2) != nullptr)
        k.step(width, NormColumn<R>{k.in(0), k.dout(), moments, k.din(1), k.din(2), k.samples(),
                                    inner, width});
}

/* ---- batch norm ---- */

struct Planes {
    int64_t samples, channels, area;
    __device__ int64_t values() const { return samples * area; } /* per channel */
    __device__ int64_t at(int64_t n, int64_t channel, int64_t p) const
    {
        return (n * channels + channel) * area + p;
    }
};

struct Moments {
    double mean, spread; /* spread: Σ(x-mean)² */
};

template <typename R> __device__ Moments moments_of(const Planes &z, const R *x, int64_t c)
{
    const double count = (double)z.values();
    double sum = 0, spread = 0;
    for (int64_t n = 0; n < z.samples; n++)
        for (int64_t p = 0; p < z.area; p++) sum += (double)x[z.at(n, c, p)];
    const double mean = count > 0 ? sum / count : 0;
    for (int64_t n = 0; n < z.samples; n++)
        for (int64_t p = 0; p < z.area; p++) {
            const double d = (double)x[z.at(n, c, p)] - mean;
            spread += d * d;
        }
    return Moments{mean, spread};
}

/* Where moments go. kept: (3, channels) mean, spread, inverse. */
template <typename R> struct BatchKeep {
    int64_t channels;
    double *kept;
    R *running_mean, *running_var;
    int64_t *batches;
    double eps, momentum;
    __device__ void keep(int64_t c, const Moments &m, double count) const
    {
        const double rest = 1 - momentum;
        kept[c] = m.mean;
        kept[channels + c] = m.spread;
        kept[2 * channels + c] = 1 / sqrt(m.spread / count + eps);
        running_mean[c] = (R)(rest * (double)running_mean[c] + momentum * m.mean);
        running_var[c] = (R)(rest * (double)running_var[c] + momentum * (m.spread / (count - 1)));
        if (c == 0) ++*batches;
    }
};

template <typename R> struct BatchMoments {
    Planes z;
    const R *x;
    BatchKeep<R> to;
    __device__ void operator()(int64_t c) const
    {
        to.keep(c, moments_of(z, x, c), (double)z.values());
    }
};

/* own: (2 · channels + 1) mean, spread, count. */
template <typename R> struct BatchOwn {
    Planes z;
    const R *x;
    double *own;
    __device__ void operator()(int64_t c) const
    {
        const Moments m = moments_of(z, x, c);
        own[c] = m.mean;
        own[z.channels + c] = m.spread;
        if (c == 0) own[2 * z.channels] = (double)z.values();
    }
};

/* all: (ranks, 2 · channels + 1). Chan's parallel formula, in rank order; total: the count of all
** ranks, written too. */
template <typename R> struct BatchCombine {
    const double *all;
    int64_t ranks;
    double *total;
    BatchKeep<R> to;
    __device__ void operator()(int64_t c) const
    {
        const int64_t width = 2 * to.channels + 1;
        double count = 0, sum = 0;
        Moments m = {0, 0};
        for (int64_t r = 0; r < ranks; r++) count += all[r * width + width - 1];
        for (int64_t r = 0; r < ranks; r++) sum += all[r * width + width - 1] * all[r * width + c];
        m.mean = sum / count;
        for (int64_t r = 0; r < ranks; r++) {
            const double distance = all[r * width + c] - m.mean;
            m.spread +=
                all[r * width + to.channels + c] + all[r * width + width - 1] * distance * distance;
        }
        if (c == 0) *total = count;
        to.keep(c, m, count);
    }
};

template <typename R> struct BatchRunning {
    int64_t channels;
    double *kept;
    const R *running_mean, *running_var;
    double eps;
    __device__ void operator()(int64_t c) const
    {
        kept[c] = (double)running_mean[c];
        kept[2 * channels + c] = 1 / sqrt((double)running_var[c] + eps);
    }
};

template <typename R> struct BatchValue {
    Planes z;
    const R *x, *weight, *bias;
    const double *kept;
    R *y;
    __device__ void operator()(int64_t i) const
    {
        const int64_t c = i / z.area % z.channels;
        y[i] = (R)(((double)x[i] - kept[c]) * kept[2 * z.channels + c] * (double)weight[c] +
                   (double)bias[c]);
    }
};

/* sums: (2, channels) of dy and of dy · xhat. */
template <typename R> struct BatchSums {
    Planes z;
    const R *x, *dy;
    const double *kept;
    double *sums;
    R *dw, *db;
    __device__ void operator()(int64_t c) const
    {
        double plain = 0, scaled = 0;
        for (int64_t n = 0; n < z.samples; n++)
            for (int64_t p = 0; p < z.area; p++) {
                const int64_t i = z.at(n, c, p);
                plain += (double)dy[i];
                scaled += (double)dy[i] * (((double)x[i] - kept[c]) * kept[2 * z.channels + c]);
            }
        sums[c] = plain;
        sums[z.channels + c] = scaled;
        if (dw != nullptr) dw[c] = (R)scaled;
        if (db != nullptr) db[c] = (R)plain;
    }
};

/* total: the count of all ranks' values, or null: this rank's count. */
template <typename R> struct BatchInput {
    Planes z;
    const R *x, *weight, *dy;
    const double *kept, *sums, *total;
    R *dx;
    bool training;
    __device__ void operator()(int64_t i) const
    {
        const int64_t c = i / z.area % z.channels;
        const double count = total != nullptr ? *total : (double)z.values(),
                     inverse = kept[2 * z.channels + c];
        const double xhat = ((double)x[i] - kept[c]) * inverse;
        double centred = (double)dy[i];
        if (training) centred -= sums[c] / count + xhat * (sums[z.channels + c] / count);
        dx[i] = (R)((double)weight[c] * inverse * centred);
    }
};

Planes planes_of(const cddp_tensor *x)
{
    return Planes{x->sizes[0], x->sizes[1], x->dim_count == 4 ? x->sizes[2] * x->sizes[3] : 1};
}

template <typename R> BatchKeep<R> keep_of(const Call<R> &k, const Planes &z)
{
    return BatchKeep<R>{z.channels,
                        k.template given<double>(3),
                        k.template given<R>(0),
                        k.template given<R>(1),
                        k.template given<int64_t>(2),
                        k.c->reals[0],
                        k.c->reals[1]};
}

template <typename R> void run_batch_norm(Call<R> &k, void *scratch)
{
    const Planes z = planes_of(&k.c->inputs[0]);
    double *kept = k.template given<double>(3), *sums = (double *)scratch;
    R *mean = k.template given<R>(0), *var = k.template given<R>(1);
    const bool training = k.c->integers[0] != 0;
    if (k.c->is_backward) {
        k.step(z.channels, BatchSums<R>{z, k.in(0), k.dout(), kept, sums, k.din(1), k.din(2)});
        if (k.din(0) != nullptr)
            k.step(k.numel(0), BatchInput<R>{z, k.in(0), k.in(1), k.dout(), kept, sums, nullptr,
                                             k.din(0), training});
        return;
    }
    if (training)
        k.step(z.channels, BatchMoments<R>{z, k.in(0), keep_of(k, z)});
    else
        k.step(z.channels, BatchRunning<R>{z.channels, kept, mean, var, k.c->reals[0]});
    k.step(k.numel(0), BatchValue<R>{z, k.in(0), k.in(1), k.in(2), kept, k.out()});
}

template <typename R> void run_batch_norm_shared(Call<R> &k)
{
    const Planes z = planes_of(&k.c->inputs[0]);
    double *kept = k.template given<double>(3), *total = kept + 3 * z.channels, *own = total + 1;
    const double *all = own + 2 * z.channels + 1;
    const int64_t ranks = (cddp_tensor_numel(&k.c->given[3]) - (all - kept)) / (2 * z.channels + 1);
    const bool is_first = k.c->integers[1] == 1;
    if (!k.c->is_backward && is_first) {
        k.step(z.channels, BatchOwn<R>{z, k.in(0), own});
    } else if (!k.c->is_backward) {
        k.step(z.channels, BatchCombine<R>{all, ranks, total, keep_of(k, z)});
        k.step(k.numel(0), BatchValue<R>{z, k.in(0), k.in(1), k.in(2), kept, k.out()});
    } else if (is_first) {
        k.step(z.channels, BatchSums<R>{z, k.in(0), k.dout(), kept, own, k.din(1), k.din(2)});
    } else if (k.din(0) != nullptr) {
        k.step(k.numel(0),
               BatchInput<R>{z, k.in(0), k.in(1), k.dout(), kept, own, total, k.din(0), true});
    }
}

/* ---- attention ---- */

struct AttentionSizes {
    int64_t samples, positions, width, heads, head;
    bool causal;
    __device__ int64_t stride() const { return 3 * width; }
    /* The start of the queries of head h of sample s; keys and values follow `width` later. */
    __device__ int64_t start(int64_t s, int64_t h) const
    {
        return s * positions * stride() + h * head;
    }
    int64_t queries() const { return samples * heads * positions; }
};

template <typename R> __device__ R dot(const R *a, const R *b, int64_t n)
{
    R sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* shares: (samples, heads, positions, positions); one thread computes the row of one query. */
template <typename R> struct AttentionShares {
    AttentionSizes z;
    const R *qkv;
    R *shares;
    __device__ void operator()(int64_t i) const
    {
        const int64_t q = i % z.positions, h = i / z.positions % z.heads,
                      s = i / z.positions / z.heads;
        const R *from = qkv + z.start(s, h), scale = 1 / root((R)z.head);
        R *row = shares + i * z.positions, top = 0, total = 0;
        const int64_t seen = z.causal ? q + 1 : z.positions;
        for (int64_t k = 0; k < seen; k++) {
            row[k] = dot(from + q * z.stride(), from + k * z.stride() + z.width, z.head) * scale;
            if (k == 0 || row[k] > top) top = row[k];
        }
        for (int64_t k = 0; k < seen; k++) total += row[k] = fexp(row[k] - top);
        for (int64_t k = 0; k < seen; k++) row[k] /= total;
        for (int64_t k = seen; k < z.positions; k++) row[k] = 0;
    }
};

template <typename R> struct AttentionMix {
    AttentionSizes z;
    const R *qkv, *shares;
    R *y;
    __device__ void operator()(int64_t at) const
    {
        const int64_t i = at % z.head, h = at / z.head % z.heads, q = at / z.width % z.positions;
        const int64_t s = at / z.width / z.positions;
        const R *from = qkv + z.start(s, h),
                *row = shares + ((s * z.heads + h) * z.positions + q) * z.positions;
        R sum = 0;
        for (int64_t k = 0; k < z.positions; k++)
            sum += row[k] * from[k * z.stride() + 2 * z.width + i];
        y[at] = sum;
    }
};

/* scores: gradients of the scaled products, laid out as shares. */
template <typename R> struct AttentionScores {
    AttentionSizes z;
    const R *qkv, *shares, *dy;
    R *scores;
    __device__ void operator()(int64_t i) const
    {
        const int64_t q = i % z.positions, h = i / z.positions % z.heads,
                      s = i / z.positions / z.heads;
        const R *value = qkv + z.start(s, h) + 2 * z.width, scale = 1 / root((R)z.head);
        const R *dyq = dy + (s * z.positions + q) * z.width + h * z.head,
                *row = shares + i * z.positions;
        R *score = scores + i * z.positions, mixed = 0;
        for (int64_t k = 0; k < z.positions; k++) {
            score[k] = dot(dyq, value + k * z.stride(), z.head);
            mixed += row[k] * score[k];
        }
        for (int64_t k = 0; k < z.positions; k++) score[k] = row[k] * (score[k] - mixed) * scale;
    }
};

/* One element of dq, dk or dv. */
template <typename R> struct AttentionInput {
    AttentionSizes z;
    const R *qkv, *shares, *scores, *dy;
    R *dqkv;
    __device__ void operator()(int64_t at) const
    {
        const int64_t i = at % z.head, h = at / z.head % z.heads, part = at / z.width % 3;
        const int64_t t = at / z.stride() % z.positions, s = at / z.stride() / z.positions;
        const int64_t square = (s * z.heads + h) * z.positions * z.positions;
        const R *from = qkv + z.start(s, h), *dys = dy + s * z.positions * z.width + h * z.head;
        R sum = 0;
        for (int64_t other = 0; other < z.positions; other++) {
            if (part == 0)
                sum += scores[square + t * z.positions + other] *
                       from[other * z.stride() + z.width + i];
            else if (part == 1)
                sum += scores[square + other * z.positions + t] * from[other * z.stride() + i];
            else
                sum += shares[square + other * z.positions + t] * dys[other * z.width + i];
        }
        dqkv[at] = sum;
    }
};

template <typename R> void run_attention(Call<R> &k, void *scratch)
{
    const int64_t width = k.size(0, 2) / 3, heads = k.c->integers[0];
    const AttentionSizes z = {k.size(0, 0), k.size(0, 1),  width,
                              heads,        width / heads, k.c->integers[1] != 0};
    R *shares = (R *)scratch, *scores = shares + z.queries() * z.positions;
    k.step(z.queries(), AttentionShares<R>{z, k.in(0), shares});
    if (!k.c->is_backward) {
        k.step(cddp_tensor_numel(&k.c->outputs[0]), AttentionMix<R>{z, k.in(0), shares, k.out()});
        return;
    }
    k.step(z.queries(), AttentionScores<R>{z, k.in(0), shares, k.dout(), scores});
    k.step(k.numel(0), AttentionInput<R>{z, k.in(0), shares, scores, k.dout(), k.din(0)});
}

/* ---- losses ---- */

struct SquaredError {
    template <typename R> static __device__ R term(R y, R t) { return (y - t) * (y - t); }
    template <typename R> static __device__ R slope(R y, R t) { return 2 * (y - t); }
};
struct InnerProduct {
    template <typename R> static __device__ R term(R y, R t) { return y * t; }
    template <typename R> static __device__ R slope(R, R t) { return t; }
};
struct Bce {
    template <typename R> static __device__ R term(R y, R t)
    {
        return (y > 0 ? y : (R)0) - y * t + flog1p(fexp(y > 0 ? -y : y));
    }
    template <typename R> static __device__ R slope(R y, R t) { return fsigmoid(y) - t; }
};

template <typename R, typename F> struct PairLoss {
    const R *y, *target;
    R *losses;
    int64_t width;
    __device__ void operator()(int64_t s) const
    {
        R sum = 0;
        for (int64_t i = s * width; i < (s + 1) * width; i++) sum += F::term(y[i], target[i]);
        losses[s] = sum;
    }
};
template <typename R, typename F> struct PairSlope {
    const R *y, *target, *dlosses;
    R *dy;
    int64_t width;
    __device__ void operator()(int64_t i) const
    {
        dy[i] = dlosses[i / width] * F::slope(y[i], target[i]);
    }
};

template <typename R, typename F> void run_pair_loss(Call<R> &k)
{
    if (!k.c->is_backward)
        k.step(k.samples(), PairLoss<R, F>{k.in(0), k.in(1), k.out(), k.width()});
    else
        k.step(k.numel(0), PairSlope<R, F>{k.in(0), k.in(1), k.dout(), k.din(0), k.width()});
}

template <typename R> __device__ R log_sum_exp(const R *y, int64_t classes)
{
    R top = y[0], sum = 0;
    for (int64_t c = 1; c < classes; c++)
        if (y[c] > top) top = y[c];
    for (int64_t c = 0; c < classes; c++) sum += fexp(y[c] - top);
    return top + flog(sum);
}

/* totals: (positions of all samples). */
template <typename R> struct EntropyTotal {
    const R *y;
    const int64_t *target;
    R *totals;
    int64_t classes;
    __device__ void operator()(int64_t at) const
    {
        totals[at] = target[at] == IGNORED ? (R)0 : log_sum_exp(y + at * classes, classes);
    }
};
template <typename R> struct EntropyLoss {
    const R *y, *totals;
    const int64_t *target;
    R *losses;
    int64_t positions, classes;
    __device__ void operator()(int64_t s) const
    {
        R sum = 0;
        for (int64_t at = s * positions; at < (s + 1) * positions; at++)
            if (target[at] != IGNORED) sum += totals[at] - y[at * classes + target[at]];
        losses[s] = sum;
    }
};
template <typename R> struct EntropySlope {
    const R *y, *totals, *dlosses;
    const int64_t *target;
    R *dy;
    int64_t positions, classes;
    __device__ void operator()(int64_t i) const
    {
        const int64_t at = i / classes;
        if (target[at] != IGNORED)
            dy[i] = dlosses[at / positions] *
                    (fexp(y[i] - totals[at]) - (i % classes == target[at] ? 1 : 0));
    }
};

template <typename R> void run_cross_entropy(Call<R> &k, void *scratch)
{
    const int64_t classes = k.last(0), positions = k.width() / classes, all = k.numel(0) / classes;
    const int64_t *target = k.template given<const int64_t>(0);
    R *totals = (R *)scratch;
    k.step(all, EntropyTotal<R>{k.in(0), target, totals, classes});
    if (!k.c->is_backward)
        k.step(k.samples(), EntropyLoss<R>{k.in(0), totals, target, k.out(), positions, classes});
    else
        k.step(k.numel(0),
               EntropySlope<R>{k.in(0), totals, k.dout(), target, k.din(0), positions, classes});
}

template <typename R> struct WeightedSum {
    const R *losses;
    const double *weights;
    R *loss;
    int64_t samples;
    double divisor;
    __device__ void operator()(int64_t) const
    {
        R sum = 0;
        for (int64_t s = 0; s < samples; s++)
            sum += weights != nullptr ? losses[s] * (R)weights[s] : losses[s];
        *loss = divisor != 0 ? sum / (R)divisor : sum;
    }
};
template <typename R> struct WeightedSlope {
    const R *dloss;
    const double *weights;
    R *dlosses;
    double divisor;
    __device__ void operator()(int64_t s) const
    {
        R dl = *dloss;
        if (divisor != 0) dl /= (R)divisor;
        dlosses[s] = weights != nullptr ? dl * (R)weights[s] : dl;
    }
};

template <typename R> void run_weighted_sum(Call<R> &k)
{
    const double *weights = k.template given<const double>(0), divisor = k.c->reals[0];
    if (!k.c->is_backward)
        k.step(1, WeightedSum<R>{k.in(0), weights, k.out(), k.samples(), divisor});
    else
        k.step(k.samples(), WeightedSlope<R>{k.dout(), weights, k.din(0), divisor});
}

/* ---- a parameter that only receives a gradient ---- */

template <typename R> struct InnerTerm {
    const R *p;
    R *terms;
    uint64_t key;
    __device__ void operator()(int64_t i) const { terms[i] = (R)cd_inner_constant(key, i) * p[i]; }
};
template <typename R> struct InnerTotal {
    const R *terms;
    R *total;
    int64_t count;
    __device__ void operator()(int64_t) const
    {
        R sum = 0;
        for (int64_t i = 0; i < count; i++) sum += terms[i];
        *total = sum;
    }
};
template <typename R> struct InnerValue {
    const R *acc, *x, *total;
    R *y;
    __device__ void operator()(int64_t s) const
    {
        y[s] = (acc != nullptr ? acc[s] : 0) + x[s] * *total;
    }
};
template <typename R> struct InnerSlope {
    const R *dy, *x;
    R *dp;
    int64_t samples;
    uint64_t key;
    __device__ void operator()(int64_t i) const
    {
        const R constant = (R)cd_inner_constant(key, i);
        R sum = 0;
        for (int64_t s = 0; s < samples; s++) sum += dy[s] * x[s] * constant;
        dp[i] = sum;
    }
};
template <typename R> struct Copy {
    const R *from;
    R *to;
    __device__ void operator()(int64_t i) const { to[i] = from[i]; }
};

/* The reals of a parameter and their start: c64 has two in each element. */
int64_t real_count(const cddp_tensor *p)
{
    return cddp_tensor_numel(p) * (p->dtype == CDDP_C64 ? 2 : 1);
}
template <typename R> R *reals_of(const cddp_tensor *p)
{
    return p->device != nullptr ? (R *)p->storage + p->offset * (p->dtype == CDDP_C64 ? 2 : 1)
                                : nullptr;
}

template <typename R> void run_add_inner(Call<R> &k, void *scratch)
{
    const cddp_tensor *p = &k.c->inputs[1];
    const int64_t count = real_count(p), samples = k.c->outputs[0].sizes[0];
    const uint64_t key = (uint64_t)k.c->integers[0];
    R *terms = (R *)scratch, *total = terms + count;
    if (!k.c->is_backward) {
        k.step(count, InnerTerm<R>{reals_of<const R>(p), terms, key});
        k.step(1, InnerTotal<R>{terms, total, count});
        k.step(samples, InnerValue<R>{k.in(0), k.in(2), total, k.out()});
        return;
    }
    if (k.din(0) != nullptr) k.step(samples, Copy<R>{k.dout(), k.din(0)});
    R *dp = reals_of<R>(&k.c->in_grads[1]);
    if (dp != nullptr) k.step(count, InnerSlope<R>{k.dout(), k.in(2), dp, samples, key});
}

/* ---- experts ---- */

template <typename R> __device__ R share_of(const R *row, int64_t n, int64_t at, R top)
{
    R total = 0;
    for (int64_t i = 0; i < n; i++) total += fexp(row[i] - top);
    return fexp(row[at] - top) / total;
}

template <typename R> struct Gate {
    const R *logits;
    R *gates;
    int64_t *expert;
    int64_t n;
    __device__ void operator()(int64_t s) const
    {
        const R *row = logits + s * n;
        int64_t best = 0;
        for (int64_t i = 1; i < n; i++)
            if (row[i] > row[best]) best = i;
        expert[s] = best;
        gates[s] = share_of(row, n, best, row[best]);
    }
};
template <typename R> struct GateSlope {
    const R *logits, *gates, *dgates;
    const int64_t *expert;
    R *dlogits;
    int64_t n;
    __device__ void operator()(int64_t at) const
    {
        const int64_t s = at / n, i = at % n;
        const R *row = logits + s * n;
        dlogits[at] =
            dgates[s] * gates[s] * ((i == expert[s] ? 1 : 0) - share_of(row, n, i, row[expert[s]]));
    }
};

template <typename R> void run_gate(Call<R> &k)
{
    int64_t *expert = k.template given<int64_t>(0);
    if (!k.c->is_backward)
        k.step(k.samples(), Gate<R>{k.in(0), k.out(), expert, k.size(0, 1)});
    else
        k.step(k.numel(0),
               GateSlope<R>{k.in(0), k.out(), k.dout(), expert, k.din(0), k.size(0, 1)});
}

/* Rows of one expert: taken from their samples, or brought back to them. */
template <typename R> struct Take {
    const R *from;
    R *to;
    const int64_t *expert, *position;
    int64_t which, width;
    bool back;
    __device__ void operator()(int64_t i) const
    {
        const int64_t s = i / width, row = position[s] * width + i % width;
        if (expert[s] == which) to[back ? i : row] = from[back ? row : i];
    }
};

template <typename R> void run_take(Call<R> &k)
{
    const bool back = k.c->is_backward;
    k.step(k.numel(0),
           Take<R>{back ? k.dout() : k.in(0), back ? k.din(0) : k.out(),
                   k.template given<const int64_t>(0), k.template given<const int64_t>(1),
                   k.c->integers[0], k.size(0, 1), back});
}

template <typename R> struct Combine {
    const R *results[CD_CUDA_EXPERTS_MAX];
    const R *gates;
    R *y;
    const int64_t *expert, *position;
    int64_t width;
    __device__ void operator()(int64_t i) const
    {
        const int64_t s = i / width;
        y[i] = gates[s] * results[expert[s]][position[s] * width + i % width];
    }
};
template <typename R> struct CombineGate {
    const R *results[CD_CUDA_EXPERTS_MAX];
    const R *dy;
    R *dgates;
    const int64_t *expert, *position;
    int64_t width;
    __device__ void operator()(int64_t s) const
    {
        const R *result = results[expert[s]] + position[s] * width;
        R sum = 0;
        for (int64_t i = 0; i < width; i++) sum += dy[s * width + i] * result[i];
        dgates[s] = sum;
    }
};
template <typename R> struct CombineResult {
    R *dresults[CD_CUDA_EXPERTS_MAX];
    const R *gates, *dy;
    const int64_t *expert, *position;
    int64_t width;
    __device__ void operator()(int64_t i) const
    {
        const int64_t s = i / width;
        R *to = dresults[expert[s]];
        if (to != nullptr) to[position[s] * width + i % width] = gates[s] * dy[i];
    }
};

template <typename R> void run_combine(Call<R> &k)
{
    const int64_t *expert = k.template given<const int64_t>(0),
                  *position = k.template given<const int64_t>(1);
    const int64_t width = k.c->outputs[0].sizes[1], numel = cddp_tensor_numel(&k.c->outputs[0]);
    const uint32_t experts = k.c->input_count - 1;
    Combine<R> value = {{}, k.in(0), k.out(), expert, position, width};
    for (uint32_t e = 0; e < experts; e++) value.results[e] = k.in(1 + e);
    if (!k.c->is_backward) {
        k.step(numel, value);
        return;
    }
    if (k.din(0) != nullptr) {
        CombineGate<R> gate = {{}, k.dout(), k.din(0), expert, position, width};
        for (uint32_t e = 0; e < experts; e++) gate.results[e] = value.results[e];
        k.step(k.samples(), gate);
    }
    CombineResult<R> result = {{}, k.in(0), k.dout(), expert, position, width};
    for (uint32_t e = 0; e < experts; e++) result.dresults[e] = k.din(1 + e);
    k.step(numel, result);
}

/* ---- all layers ---- */

template <typename R> int run(const cddp_layer_call *call, void *scratch, void *stream)
{
    Call<R> k = {call, stream, 0};
    switch (call->layer) {
    case CDDP_LAYER_LINEAR:
        run_linear(k);
        break;
    case CDDP_LAYER_RELU:
        run_function<R, Relu>(k);
        break;
    case CDDP_LAYER_GELU:
        run_function<R, Gelu>(k);
        break;
    case CDDP_LAYER_TANH:
        run_function<R, Tanh>(k);
        break;
    case CDDP_LAYER_SIGMOID:
        run_function<R, Sigmoid>(k);
        break;
    case CDDP_LAYER_CONV2D:
        run_conv(k);
        break;
    case CDDP_LAYER_AVERAGE_POOL:
        run_resize(k, true);
        break;
    case CDDP_LAYER_UPSAMPLE:
        run_resize(k, false);
        break;
    case CDDP_LAYER_DROPOUT:
        run_dropout(k);
        break;
    case CDDP_LAYER_EMBEDDING:
        run_embedding(k);
        break;
    case CDDP_LAYER_LAYER_NORM:
        run_layer_norm(k, scratch);
        break;
    case CDDP_LAYER_BATCH_NORM:
        run_batch_norm(k, scratch);
        break;
    case CDDP_LAYER_BATCH_NORM_SHARED:
        run_batch_norm_shared(k);
        break;
    case CDDP_LAYER_ADD_INNER:
        run_add_inner(k, scratch);
        break;
    case CDDP_LAYER_ATTENTION:
        run_attention(k, scratch);
        break;
    case CDDP_LAYER_SQUARED_ERROR:
        run_pair_loss<R, SquaredError>(k);
        break;
    case CDDP_LAYER_BCE:
        run_pair_loss<R, Bce>(k);
        break;
    case CDDP_LAYER_INNER_PRODUCT:
        run_pair_loss<R, InnerProduct>(k);
        break;
    case CDDP_LAYER_CROSS_ENTROPY:
        run_cross_entropy(k, scratch);
        break;
    case CDDP_LAYER_WEIGHTED_SUM:
        run_weighted_sum(k);
        break;
    case CDDP_LAYER_GATE:
        run_gate(k);
        break;
    case CDDP_LAYER_TAKE:
        run_take(k);
        break;
    case CDDP_LAYER_COMBINE:
        run_combine(k);
        break;
    case CDDP_LAYER_NONE:
    case CDDP_LAYER_COUNT:
        k.code = (int)cudaErrorInvalidValue;
        break;
    }
    return k.code;
}

/* ---- update rules ---- */

constexpr int DIMS = CDDP_DIMS_MAX + 1;

/* Where logical element i of a tensor is. c64 tensors have a last dimension of two f32. */
struct Place {
    void *data;
    uint32_t dim_count;
    int64_t sizes[DIMS], strides[DIMS];
    __device__ int64_t at(int64_t i) const
    {
        int64_t offset = 0;
        for (uint32_t d = dim_count; d-- > 0;) {
            offset += i % sizes[d] * strides[d];
            i /= sizes[d];
        }
        return offset;
    }
};

Place place_of(const cddp_tensor *t)
{
    const bool is_complex = t->dtype == CDDP_C64;
    const int64_t step = is_complex ? 2 : 1;
    Place p = {};
    p.data = (char *)t->storage + t->offset * (int64_t)cddp_dtype_bytes(t->dtype);
    for (uint32_t d = 0; d < t->dim_count; d++) {
        p.sizes[d] = t->sizes[d];
        p.strides[d] = t->strides[d] * step;
    }
    p.dim_count = t->dim_count;
    if (is_complex) {
        p.sizes[p.dim_count] = 2;
        p.strides[p.dim_count++] = 1;
    }
    return p;
}

struct F64 {
    typedef double Stored;
    typedef double Wide;
    static __device__ Wide widen(Stored x) { return x; }
    static __device__ Stored narrow(Wide x) { return x; }
    static __device__ void update(void *const *x, const cddp_adam_scalars *s)
    {
        cd_adam_f64(x, 1, s);
    }
    static __device__ void update(void *const *x, const cddp_adagrad_scalars *s)
    {
        cd_adagrad_f64(x, 1, s);
    }
};
struct F32 {
    typedef float Stored;
    typedef float Wide;
    static __device__ Wide widen(Stored x) { return x; }
    static __device__ Stored narrow(Wide x) { return x; }
    static __device__ void update(void *const *x, const cddp_adam_scalars *s)
    {
        cd_adam_f32(x, 1, s);
    }
    static __device__ void update(void *const *x, const cddp_adagrad_scalars *s)
    {
        cd_adagrad_f32(x, 1, s);
    }
};
struct F16 {
    typedef uint16_t Stored;
    typedef float Wide;
    static __device__ Wide widen(Stored x) { return cd_f16_to_f32(x); }
    static __device__ Stored narrow(Wide x) { return cd_f32_to_f16(x); }
    static __device__ void update(void *const *x, const cddp_adam_scalars *s)
    {
        cd_adam_f16(x, 1, s);
    }
    static __device__ void update(void *const *x, const cddp_adagrad_scalars *s)
    {
        cd_adagrad_f16(x, 1, s);
    }
};
struct BF16 {
    typedef uint16_t Stored;
    typedef float Wide;
    static __device__ Wide widen(Stored x) { return cd_bf16_to_f32(x); }
    static __device__ Stored narrow(Wide x) { return cd_f32_to_bf16(x); }
    static __device__ void update(void *const *x, const cddp_adam_scalars *s)
    {
        cd_adam_bf16(x, 1, s);
    }
    static __device__ void update(void *const *x, const cddp_adagrad_scalars *s)
    {
        cd_adagrad_bf16(x, 1, s);
    }
};

/* One element of every tensor is widened, updated by the cpu's own code, and stored; the gradient
** (1) is not. */
template <typename D, typename S> struct Update {
    Place places[CDDP_UPDATE_TENSORS];
    int tensor_count;
    S scalars;
    __device__ void operator()(int64_t i) const
    {
        typename D::Wide values[CDDP_UPDATE_TENSORS] = {};
        void *x[CDDP_UPDATE_TENSORS];
        for (int t = 0; t < CDDP_UPDATE_TENSORS; t++) {
            x[t] = &values[t];
            if (t < tensor_count)
                values[t] = D::widen(((const typename D::Stored *)places[t].data)[places[t].at(i)]);
        }
        D::update(x, &scalars);
        for (int t = 0; t < tensor_count; t++)
            if (t != 1)
                ((typename D::Stored *)places[t].data)[places[t].at(i)] = D::narrow(values[t]);
    }
};

template <typename D, typename S>
int run_update(const cddp_update_call *call, const S *scalars, void *stream)
{
    Update<D, S> u = {};
    u.scalars = *scalars;
    while (u.tensor_count < CDDP_UPDATE_TENSORS && call->tensors[u.tensor_count] != nullptr) {
        u.places[u.tensor_count] = place_of(call->tensors[u.tensor_count]);
        u.tensor_count++;
    }
    const cddp_tensor *p = call->tensors[0];
    return each(cddp_tensor_numel(p) * (p->dtype == CDDP_C64 ? 2 : 1), u, stream);
}

template <typename S> int run_rule(const cddp_update_call *call, const S *scalars, void *stream)
{
    switch (call->tensors[0]->dtype) {
    case CDDP_F64:
        return run_update<F64>(call, scalars, stream);
    case CDDP_F16:
        return run_update<F16>(call, scalars, stream);
    case CDDP_BF16:
        return run_update<BF16>(call, scalars, stream);
    default:
        return run_update<F32>(call, scalars, stream); /* f32 and c64 */
    }
}

} // namespace

extern "C" size_t cd_cuda_layer_scratch(const cddp_layer_call *call)
{
    const cddp_tensor *x = &call->inputs[0];
    const size_t element = cddp_dtype_bytes(call->outputs[0].dtype);
    const int64_t numel = cddp_tensor_numel(x),
                  last = x->dim_count > 0 ? x->sizes[x->dim_count - 1] : 1;
    switch (call->layer) {
    case CDDP_LAYER_LAYER_NORM:
        return call->is_backward && last > 0 ? (size_t)(numel / last) * 2 * element : 0;
    case CDDP_LAYER_BATCH_NORM:
        return call->is_backward ? (size_t)x->sizes[1] * 2 * sizeof(double) : 0;
    case CDDP_LAYER_ADD_INNER:
        return call->is_backward ? 0 : ((size_t)real_count(&call->inputs[1]) + 1) * element;
    case CDDP_LAYER_ATTENTION:
        return (size_t)(x->sizes[0] * call->integers[0] * x->sizes[1] * x->sizes[1]) * element *
               (call->is_backward ? 2 : 1);
    case CDDP_LAYER_CROSS_ENTROPY:
        return (size_t)(numel / last) * element;
    default:
        return 0;
    }
}

extern "C" int cd_cuda_launch_layer(const cddp_layer_call *call, void *scratch, void *stream)
{
    return call->outputs[0].dtype == CDDP_F64 ? run<double>(call, scratch, stream)
                                              : run<float>(call, scratch, stream);
}

extern "C" int cd_cuda_launch_update(const cddp_update_call *call, void *stream)
{
    return call->rule == CDDP_UPDATE_ADAM ? run_rule(call, call->adam, stream)
                                          : run_rule(call, call->adagrad, stream);
}
