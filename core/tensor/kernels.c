/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise loops, written so that compilers vectorise them without changing a bit.
**
** f32, f64 and integers have one loop per operation, made by a macro per family. f16 and bf16 run
** the f32 loop over chunks that are widened before and rounded after each single operation. c64 is
** two f32 per element, except where its parts mix (product). Not here: conversions (dtype.c), the
** matrix product (linalg.c), strides (cpu.c). */
#include "core/tensor/kernels.h"

#include "core/base/assert.h"

#define CHUNK 256
#define UNUSED(x) (void)(x)

/* ---- f32 and f64 ---- */

#define FLOAT_KERNELS(T, name)                                                                \
    static void scale_##name(void *dst, const void *src, size_t count,                        \
                             const cd_kernel_scalar *scalar)                                  \
    {                                                                                         \
        T *d = dst;                                                                           \
        const T *s = src;                                                                     \
        const T factor = (T)scalar->value;                                                    \
        for (size_t i = 0; i < count; i++) d[i] = s[i] * factor;                              \
    }                                                                                         \
    static void axpy_##name(void *dst, const void *src, size_t count,                         \
                            const cd_kernel_scalar *scalar)                                   \
    {                                                                                         \
        T *d = dst;                                                                           \
        const T *s = src;                                                                     \
        const T alpha = (T)scalar->value;                                                     \
        for (size_t i = 0; i < count; i++) d[i] = d[i] + alpha * s[i];                        \
    }                                                                                         \
    static void sum_##name(void *dst, const void *src, size_t count,                          \
                           const cd_kernel_scalar *scalar)                                    \
    {                                                                                         \
        T *d = dst;                                                                           \
        const T *s = src;                                                                     \
        UNUSED(scalar);                                                                       \
        for (size_t i = 0; i < count; i++) d[i] = d[i] + s[i];                                \
    }                                                                                         \
    static void product_##name(void *dst, const void *src, size_t count,                      \
                               const cd_kernel_scalar *scalar)                                \
    {                                                                                         \
        T *d = dst;                                                                           \
        const T *s = src;                                                                     \
        UNUSED(scalar);                                                                       \
        for (size_t i = 0; i < count; i++) d[i] = d[i] * s[i];                                \
    }                                                                                         \
    /* A NaN on either side gives NaN, the destination's first. */                            \
    /* Of equal operands (+0, -0) the destination stays. */                                   \
    static void min_##name(void *dst, const void *src, size_t count,                          \
                           const cd_kernel_scalar *scalar)                                    \
    {                                                                                         \
        T *d = dst;                                                                           \
        const T *s = src;                                                                     \
        UNUSED(scalar);                                                                       \
        for (size_t i = 0; i < count; i++) d[i] = d[i] != d[i] || d[i] <= s[i] ? d[i] : s[i]; \
    }                                                                                         \
    static void max_##name(void *dst, const void *src, size_t count,                          \
                           const cd_kernel_scalar *scalar)                                    \
    {                                                                                         \
        T *d = dst;                                                                           \
        const T *s = src;                                                                     \
        UNUSED(scalar);                                                                       \
        for (size_t i = 0; i < count; i++) d[i] = d[i] != d[i] || d[i] >= s[i] ? d[i] : s[i]; \
    }

FLOAT_KERNELS(float, f32)
FLOAT_KERNELS(double, f64)

/* x / 2^k is x · 2^-k, bit for bit: 2^-k is exact, and both round the same number once. A product
** takes a fraction of the time, and most worlds are powers of two. */
static bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

static void divide_f32(void *dst, const void *src, size_t count, const cd_kernel_scalar *scalar)
{
    float *d = dst;
    const float *s = src;
    if (is_power_of_two(scalar->count)) {
        const float reciprocal = (float)(1.0 / (double)scalar->count);
        for (size_t i = 0; i < count; i++) d[i] = s[i] * reciprocal;
    } else if (scalar->count <= 1 << 24) { /* n is an f32: one division, one rounding */
        const float n = (float)scalar->count;
        for (size_t i = 0; i < count; i++) d[i] = s[i] / n;
    } else { /* correct too: the f64 quotient cannot lie on an f32 midpoint unless it is exact */
        const double n = (double)scalar->count;
        for (size_t i = 0; i < count; i++) d[i] = (float)((double)s[i] / n);
    }
}

static void divide_f64(void *dst, const void *src, size_t count, const cd_kernel_scalar *scalar)
{
    double *d = dst;
    const double *s = src;
    const double n = (double)scalar->count;
    if (is_power_of_two(scalar->count)) {
        const double reciprocal = 1.0 / n;
        for (size_t i = 0; i < count; i++) d[i] = s[i] * reciprocal;
        return;
    }
    for (size_t i = 0; i < count; i++) d[i] = s[i] / n;
}

/* ---- integers: everything modulo 2^bits ---- */

#define INTEGER_KERNELS(T, U, name)                                                                \
    static void scale_##name(void *dst, const void *src, size_t count,                             \
                             const cd_kernel_scalar *scalar)                                       \
    {                                                                                              \
        T *d = dst;                                                                                \
        const T *s = src;                                                                          \
        const uint64_t factor = (uint64_t)cd_f64_to_i64(scalar->value);                            \
        for (size_t i = 0; i < count; i++) d[i] = (T)(U)((uint64_t)s[i] * factor);                 \
    }                                                                                              \
    static void axpy_##name(void *dst, const void *src, size_t count,                              \
                            const cd_kernel_scalar *scalar)                                        \
    {                                                                                              \
        T *d = dst;                                                                                \
        const T *s = src;                                                                          \
        const uint64_t alpha = (uint64_t)cd_f64_to_i64(scalar->value);                             \
        for (size_t i = 0; i < count; i++) d[i] = (T)(U)((uint64_t)d[i] + alpha * (uint64_t)s[i]); \
    }                                                                                              \
    static void divide_##name(void *dst, const void *src, size_t count,                            \
                              const cd_kernel_scalar *scalar)                                      \
    {                                                                                              \
        T *d = dst;                                                                                \
        const T *s = src;                                                                          \
        for (size_t i = 0; i < count; i++) d[i] = (T)((int64_t)s[i] / scalar->count);              \
    }                                                                                              \
    INTEGER_REDUCE(T, U, sum_##name, (uint64_t)d[i] + (uint64_t)s[i])                              \
    INTEGER_REDUCE(T, U, product_##name, (uint64_t)d[i] * (uint64_t)s[i])                          \
    INTEGER_REDUCE(T, U, min_##name, d[i] <= s[i] ? d[i] : s[i])                                   \
    INTEGER_REDUCE(T, U, max_##name, d[i] >= s[i] ? d[i] : s[i])                                   \
    INTEGER_REDUCE(T, U, band_##name, d[i] & s[i])                                                 \
    INTEGER_REDUCE(T, U, bor_##name, d[i] | s[i])                                                  \
    INTEGER_REDUCE(T, U, bxor_##name, d[i] ^ s[i])

#define INTEGER_REDUCE(T, U, name, expression)                                                 \
    static void name(void *dst, const void *src, size_t count, const cd_kernel_scalar *scalar) \
    {                                                                                          \
        T *d = dst;                                                                            \
        const T *s = src;                                                                      \
        UNUSED(scalar);                                                                        \
        for (size_t i = 0; i < count; i++) d[i] = (T)(U)(expression);                          \
    }

INTEGER_KERNELS(uint8_t, uint8_t, u8)
INTEGER_KERNELS(int32_t, uint32_t, i32)
INTEGER_KERNELS(int64_t, uint64_t, i64)

/* ---- f16 and bf16: widen, one f32 operation, round ---- */

static void through_f32(cd_kernel_fn kernel, cddp_dtype dtype, uint16_t *dst, const uint16_t *src,
                        size_t count, const cd_kernel_scalar *scalar)
{
    float wide_dst[CHUNK], wide_src[CHUNK];
    for (size_t start = 0; start < count; start += CHUNK) {
        size_t n = count - start < CHUNK ? count - start : CHUNK;
        cd_convert(CDDP_F32, wide_dst, dtype, dst + start, n);
        cd_convert(CDDP_F32, wide_src, dtype, src + start, n);
        kernel(wide_dst, wide_src, n, scalar);
        cd_convert(dtype, dst + start, CDDP_F32, wide_dst, n);
    }
}

/* The scalar, rounded to its dtype. */
static cd_kernel_scalar rounded(cddp_dtype dtype, const cd_kernel_scalar *scalar)
{
    cd_kernel_scalar r = *scalar;
    uint16_t bits;
    cd_element_set(dtype, &bits, r.value);
    r.value = cd_element_get(dtype, &bits);
    return r;
}

/* Rounding the quotient twice is harmless while it is either on a midpoint of the dtype or at least
** an ulp of the wider type away. x/n and a midpoint m differ by at least 1/(2^(p+1) n) of their
** size, p ≤ 11. So f32 does for n up to 2^11, f64 for n up to 2^40. */
static void divide_16(cddp_dtype dtype, uint16_t *dst, const uint16_t *src, size_t count, int64_t n)
{
    double wide[CHUNK];
    const cd_kernel_scalar scalar = {.count = n};
    if (n <= 1 << 11) {
        through_f32(divide_f32, dtype, dst, src, count, &scalar);
        return;
    }
    for (size_t start = 0; start < count; start += CHUNK) {
        size_t chunk = count - start < CHUNK ? count - start : CHUNK;
        cd_convert(CDDP_F64, wide, dtype, src + start, chunk);
        for (size_t i = 0; i < chunk; i++) wide[i] = wide[i] / (double)n;
        cd_convert(dtype, dst + start, CDDP_F64, wide, chunk);
    }
}

/* The product is rounded to the dtype before it is added. */
static void axpy_16(cddp_dtype dtype, uint16_t *dst, const uint16_t *src, size_t count,
                    const cd_kernel_scalar *scalar)
{
    const cd_kernel_scalar alpha = rounded(dtype, scalar);
    uint16_t product[CHUNK];
    for (size_t start = 0; start < count; start += CHUNK) {
        size_t n = count - start < CHUNK ? count - start : CHUNK;
        memcpy(product, src + start, n * sizeof product[0]);
        through_f32(scale_f32, dtype, product, product, n, &alpha);
        through_f32(sum_f32, dtype, dst + start, product, n, NULL);
    }
}

#define SIXTEEN_BIT_KERNELS(dtype, name)                                \
    static void scale_##name(void *dst, const void *src, size_t count,  \
                             const cd_kernel_scalar *scalar)            \
    {                                                                   \
        const cd_kernel_scalar factor = rounded(dtype, scalar);         \
        through_f32(scale_f32, dtype, dst, src, count, &factor);        \
    }                                                                   \
    static void axpy_##name(void *dst, const void *src, size_t count,   \
                            const cd_kernel_scalar *scalar)             \
    {                                                                   \
        axpy_16(dtype, dst, src, count, scalar);                        \
    }                                                                   \
    static void divide_##name(void *dst, const void *src, size_t count, \
                              const cd_kernel_scalar *scalar)           \
    {                                                                   \
        divide_16(dtype, dst, src, count, scalar->count);               \
    }                                                                   \
    SIXTEEN_BIT_REDUCE(dtype, sum, name)                                \
    SIXTEEN_BIT_REDUCE(dtype, product, name)                            \
    SIXTEEN_BIT_REDUCE(dtype, min, name)                                \
    SIXTEEN_BIT_REDUCE(dtype, max, name)

#define SIXTEEN_BIT_REDUCE(dtype, operation, name)                           \
    static void operation##_##name(void *dst, const void *src, size_t count, \
                                   const cd_kernel_scalar *scalar)           \
    {                                                                        \
        through_f32(operation##_f32, dtype, dst, src, count, scalar);        \
    }

SIXTEEN_BIT_KERNELS(CDDP_F16, f16)
SIXTEEN_BIT_KERNELS(CDDP_BF16, bf16)

/* ---- c64 ---- */

#define PART_BY_PART(operation)                                           \
    static void operation##_c64(void *dst, const void *src, size_t count, \
                                const cd_kernel_scalar *scalar)           \
    {                                                                     \
        operation##_f32(dst, src, 2 * count, scalar);                     \
    }
PART_BY_PART(scale)
PART_BY_PART(axpy)
PART_BY_PART(divide)
PART_BY_PART(sum)

/* (a + bi)(c + di) = (ac - bd) + (ad + bc)i, each of the four products rounded. The products are
** stored before they are added: in one expression GCC 12 makes them a fused multiply-add-subtract
** where FMA is allowed, with any -ffp-contract (bits_test.c shows it). */
static void product_c64(void *dst, const void *src, size_t count, const cd_kernel_scalar *scalar)
{
    UNUSED(scalar);
    for (size_t start = 0; start < count; start += CHUNK) {
        float *d = (float *)dst + 2 * start, straight[2 * CHUNK], crossed[2 * CHUNK];
        const float *s = (const float *)src + 2 * start;
        const size_t n = 2 * (count - start < CHUNK ? count - start : CHUNK);
        for (size_t i = 0; i < n; i++) straight[i] = d[i] * s[i];     /* ac, bd */
        for (size_t i = 0; i < n; i++) crossed[i] = d[i] * s[i ^ 1u]; /* ad, bc */
        for (size_t i = 0; i < n; i += 2) {
            d[i] = straight[i] - straight[i + 1];
            d[i + 1] = crossed[i] + crossed[i + 1];
        }
    }
}

/* ---- tables by dtype, in the order of cddp_dtype ---- */

#define ALL_DTYPES(operation)                                                                 \
    {                                                                                         \
        operation##_f64, operation##_f32, operation##_f16, operation##_bf16, operation##_c64, \
            operation##_i64, operation##_i32, operation##_u8                                  \
    }
#define ORDERED_DTYPES(operation)                                                  \
    {                                                                              \
        operation##_f64, operation##_f32, operation##_f16, operation##_bf16, NULL, \
            operation##_i64, operation##_i32, operation##_u8                       \
    }
#define INTEGER_DTYPES(operation)                                                      \
    {                                                                                  \
        NULL, NULL, NULL, NULL, NULL, operation##_i64, operation##_i32, operation##_u8 \
    }

cd_kernel_fn cd_kernel_scale(cddp_dtype dtype)
{
    static const cd_kernel_fn table[CDDP_DTYPE_COUNT] = ALL_DTYPES(scale);
    return table[dtype];
}

cd_kernel_fn cd_kernel_divide(cddp_dtype dtype)
{
    static const cd_kernel_fn table[CDDP_DTYPE_COUNT] = ALL_DTYPES(divide);
    return table[dtype];
}

cd_kernel_fn cd_kernel_axpy(cddp_dtype dtype)
{
    static const cd_kernel_fn table[CDDP_DTYPE_COUNT] = ALL_DTYPES(axpy);
    return table[dtype];
}

cd_kernel_fn cd_kernel_reduce(cddp_red_op op, cddp_dtype dtype)
{
    static const cd_kernel_fn table[CDDP_RED_COUNT][CDDP_DTYPE_COUNT] = {
        [CDDP_RED_SUM] = ALL_DTYPES(sum),       [CDDP_RED_PRODUCT] = ALL_DTYPES(product),
        [CDDP_RED_MIN] = ORDERED_DTYPES(min),   [CDDP_RED_MAX] = ORDERED_DTYPES(max),
        [CDDP_RED_BAND] = INTEGER_DTYPES(band), [CDDP_RED_BOR] = INTEGER_DTYPES(bor),
        [CDDP_RED_BXOR] = INTEGER_DTYPES(bxor)};
    return (unsigned)op < CDDP_RED_COUNT ? table[op][dtype] : NULL;
}

/* ---- whole-array results ---- */

static void squares_f64(cd_squares *q, const double *x, size_t count)
{
    size_t i = 0;
    for (; i < count && (q->count & 7u) != 0; i++) q->lanes[q->count++ & 7u] += x[i] * x[i];
    for (; i + 8 <= count; i += 8, q->count += 8)
        for (size_t lane = 0; lane < 8; lane++) q->lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < count; i++) q->lanes[q->count++ & 7u] += x[i] * x[i];
}

void cd_kernel_squares(cd_squares *squares, cddp_dtype dtype, const void *src, size_t count)
{
    double wide[CHUNK];
    const unsigned char *from = src;
    cddp_dtype element = dtype == CDDP_C64 ? CDDP_F32 : dtype;
    if (dtype == CDDP_C64) count *= 2;
    while (count > 0) {
        size_t n = count < CHUNK ? count : CHUNK;
        cd_convert(CDDP_F64, wide, element, from, n);
        squares_f64(squares, wide, n);
        from += n * cddp_dtype_bytes(element);
        count -= n;
    }
}

double cd_kernel_squares_total(const cd_squares *squares)
{
    const double *l = squares->lanes;
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

/* All exponent bits set. The block test has no branch inside, so that it vectorises; the block is
** then searched. */
#define FIND_NONFINITE(T, name, attributes, mask)                                       \
    attributes static size_t name(const void *src, size_t count)                        \
    {                                                                                   \
        const T *bits = src;                                                            \
        for (size_t start = 0; start < count; start += CHUNK) {                         \
            size_t end = count - start < CHUNK ? count : start + CHUNK;                 \
            unsigned found = 0;                                                         \
            for (size_t i = start; i < end; i++) found |= (bits[i] & (mask)) == (mask); \
            for (size_t i = start; found != 0 && i < end; i++)                          \
                if ((bits[i] & (mask)) == (mask)) return i;                             \
        }                                                                               \
        return count;                                                                   \
    }
FIND_NONFINITE(uint64_t, find_f64_any, , UINT64_C(0x7ff0000000000000))
FIND_NONFINITE(uint32_t, find_f32_any, , 0x7f800000u)
FIND_NONFINITE(uint16_t, find_f16_any, , 0x7c00u)
FIND_NONFINITE(uint16_t, find_bf16_any, , 0x7f80u)
#if defined(__GNUC__) && defined(__x86_64__)
/* The same by the greatest exponent of each lane: two instructions for a vector, not six. AVX2 has
** maxima of unsigned integers, but for those of 64 bits. */
#define FIND_BY_GREATEST(T, name, mask)                                                        \
    __attribute__((target("avx2"))) static bool has_##name(const T *bits, size_t count)        \
    {                                                                                          \
        enum { LANES = 128 / sizeof(T) };                                                      \
        T most[LANES] = {0}, greatest = 0;                                                     \
        const size_t whole = count / LANES * LANES;                                            \
        for (size_t i = 0; i < whole; i += LANES)                                              \
            for (size_t k = 0; k < LANES; k++) {                                               \
                const T exponent = bits[i + k] & (mask);                                       \
                most[k] = most[k] > exponent ? most[k] : exponent;                             \
            }                                                                                  \
        for (size_t i = whole; i < count; i++) {                                               \
            const T exponent = bits[i] & (mask);                                               \
            greatest = greatest > exponent ? greatest : exponent;                              \
        }                                                                                      \
        for (size_t k = 0; k < LANES; k++) greatest = greatest > most[k] ? greatest : most[k]; \
        return greatest == (mask);                                                             \
    }                                                                                          \
    static size_t name(const void *src, size_t count)                                          \
    {                                                                                          \
        const T *bits = src;                                                                   \
        const size_t block = 4 * CHUNK;                                                        \
        for (size_t start = 0; start < count; start += block) {                                \
            const size_t n = count - start < block ? count - start : block;                    \
            if (!has_##name(bits + start, n)) continue;                                        \
            for (size_t i = start; i < start + n; i++)                                         \
                if ((bits[i] & (mask)) == (mask)) return i;                                    \
        }                                                                                      \
        return count;                                                                          \
    }
FIND_NONFINITE(uint64_t, find_f64_avx2, __attribute__((target("avx2"))),
               UINT64_C(0x7ff0000000000000))
FIND_BY_GREATEST(uint32_t, find_f32_avx2, 0x7f800000u)
FIND_BY_GREATEST(uint16_t, find_f16_avx2, 0x7c00u)
FIND_BY_GREATEST(uint16_t, find_bf16_avx2, 0x7f80u)
/* A few elements are not worth the question. */
#define FIND(T, src, count)                                                               \
    ((count) >= CHUNK && __builtin_cpu_supports("avx2") ? find_##T##_avx2((src), (count)) \
                                                        : find_##T##_any((src), (count)))
#else
#define FIND(T, src, count) find_##T##_any((src), (count))
#endif

/* Of so few that vectors do not pay. */
static size_t find_f32_in_few(const uint32_t *bits, size_t count)
{
    const uint32_t mask = 0x7f800000u;
    size_t i = 0;
    while (i < count && (bits[i] & mask) != mask) i++;
    return i;
}

size_t cd_kernel_find_nonfinite(cddp_dtype dtype, const void *src, size_t count)
{
    const size_t few = 8;
    if (dtype == CDDP_F32 && count < few) return find_f32_in_few(src, count);
    switch (dtype) {
    case CDDP_F64:
        return FIND(f64, src, count);
    case CDDP_F32:
        return FIND(f32, src, count);
    case CDDP_F16:
        return FIND(f16, src, count);
    case CDDP_BF16:
        return FIND(bf16, src, count);
    case CDDP_C64: {
        size_t part = FIND(f32, src, 2 * count);
        return part == 2 * count ? count : part / 2;
    }
    default:
        return count; /* integers are finite */
    }
}
