/* SPDX-License-Identifier: Apache-2.0 */
/* Array conversions between dtypes. The rules are in the header; a pair without its own loop goes
** through chunks of f64 (from floats, exact) or i64 (from integers, exact). */
#include "core/tensor/dtype.h"

#include "core/base/assert.h"

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

#define CHUNK 256

/* Note [Conversions of f16 in hardware]: F16C's instructions, with rounding to nearest even, give
** the same bits as the portable functions of dtype.h, NaNs included. dtype_test.c compares them
** over all patterns. Every processor with AVX2 has them. */
#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2,f16c"))) static size_t f16_to_f32_f16c(float *dst, const uint16_t *src,
                                                                   size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(
                                      _mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    return i;
}

__attribute__((target("avx2,f16c"))) static size_t f32_to_f16_f16c(uint16_t *dst, const float *src,
                                                                   size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return i;
}

/* bf16 is the upper half of an f32; the same integer operations as in dtype.h, eight at a time. */
__attribute__((target("avx2"))) static size_t bf16_to_f32_avx2(float *dst, const uint16_t *src,
                                                               size_t count)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff),
                  infinity = _mm256_set1_epi32(0x7f800000);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m128i narrow = _mm_loadu_si128((const __m128i *)(const void *)(src + i));
        __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
        __m256i is_nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, magnitude), infinity);
        /* quiet */
        bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, _mm256_set1_epi32(0x400000)));
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), bits);
    }
    return i;
}

__attribute__((target("avx2"))) static __m256i bf16_of_f32_avx2(const float *src)
{
    __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)src),
            upper = _mm256_srli_epi32(bits, 16);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i half =
        _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), is_nan);
}

__attribute__((target("avx2"))) static size_t f32_to_bf16_avx2(uint16_t *dst, const float *src,
                                                               size_t count)
{
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        /* by halves of 128 bits */
        __m256i packed =
            _mm256_packus_epi32(bf16_of_f32_avx2(src + i), bf16_of_f32_avx2(src + i + 8));
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
    return i;
}

static bool has_avx2(void) { return __builtin_cpu_supports("avx2") != 0; }
#else
static size_t f16_to_f32_f16c(float *dst, const uint16_t *src, size_t count)
{
    return (void)dst, (void)src, count * 0;
}
static size_t f32_to_f16_f16c(uint16_t *dst, const float *src, size_t count)
{
    return (void)dst, (void)src, count * 0;
}
static size_t bf16_to_f32_avx2(float *dst, const uint16_t *src, size_t count)
{
    return (void)dst, (void)src, count * 0;
}
static size_t f32_to_bf16_avx2(uint16_t *dst, const float *src, size_t count)
{
    return (void)dst, (void)src, count * 0;
}
static bool has_avx2(void) { return false; }
#endif

void cd_convert_f16_to_f32(float *dst, const uint16_t *src, size_t count)
{
    for (size_t i = has_avx2() ? f16_to_f32_f16c(dst, src, count) : 0; i < count; i++)
        dst[i] = cd_f16_to_f32(src[i]);
}

void cd_convert_f32_to_f16(uint16_t *dst, const float *src, size_t count)
{
    for (size_t i = has_avx2() ? f32_to_f16_f16c(dst, src, count) : 0; i < count; i++)
        dst[i] = cd_f32_to_f16(src[i]);
}

void cd_convert_bf16_to_f32(float *dst, const uint16_t *src, size_t count)
{
    for (size_t i = has_avx2() ? bf16_to_f32_avx2(dst, src, count) : 0; i < count; i++)
        dst[i] = cd_bf16_to_f32(src[i]);
}

void cd_convert_f32_to_bf16(uint16_t *dst, const float *src, size_t count)
{
    for (size_t i = has_avx2() ? f32_to_bf16_avx2(dst, src, count) : 0; i < count; i++)
        dst[i] = cd_f32_to_bf16(src[i]);
}

static int64_t saturate(double x, int64_t low, int64_t high)
{
    int64_t v = cd_f64_to_i64(x);
    return v < low ? low : v > high ? high : v;
}

static void f64_from(cddp_dtype dtype, double *dst, const void *src, size_t count)
{
    const float *f = src;
    const uint16_t *h = src;
    switch (dtype) {
    case CDDP_F64:
        memcpy(dst, src, count * sizeof *dst);
        break;
    case CDDP_F32:
        for (size_t i = 0; i < count; i++) dst[i] = (double)f[i];
        break;
    case CDDP_C64:
        for (size_t i = 0; i < count; i++) dst[i] = (double)f[2 * i];
        break;
    case CDDP_F16:
        for (size_t i = 0; i < count; i++) dst[i] = (double)cd_f16_to_f32(h[i]);
        break;
    case CDDP_BF16:
        for (size_t i = 0; i < count; i++) dst[i] = (double)cd_bf16_to_f32(h[i]);
        break;
    default:
        CD_UNREACHABLE("a float dtype");
    }
}

static void f64_to(cddp_dtype dtype, void *dst, const double *src, size_t count)
{
    float *f = dst;
    uint16_t *h = dst;
    switch (dtype) {
    case CDDP_F64:
        memcpy(dst, src, count * sizeof *src);
        break;
    case CDDP_F32:
        for (size_t i = 0; i < count; i++) f[i] = (float)src[i];
        break;
    case CDDP_C64:
        for (size_t i = 0; i < count; i++) {
            f[2 * i] = (float)src[i];
            f[2 * i + 1] = 0;
        }
        break;
    case CDDP_F16:
        for (size_t i = 0; i < count; i++) h[i] = cd_f64_to_f16(src[i]);
        break;
    case CDDP_BF16:
        for (size_t i = 0; i < count; i++) h[i] = cd_f64_to_bf16(src[i]);
        break;
    case CDDP_I64:
        for (size_t i = 0; i < count; i++) ((int64_t *)dst)[i] = cd_f64_to_i64(src[i]);
        break;
    case CDDP_I32:
        for (size_t i = 0; i < count; i++)
            ((int32_t *)dst)[i] = (int32_t)saturate(src[i], INT32_MIN, INT32_MAX);
        break;
    case CDDP_U8:
        for (size_t i = 0; i < count; i++) ((uint8_t *)dst)[i] = (uint8_t)saturate(src[i], 0, 255);
        break;
    case CDDP_DTYPE_COUNT:
        CD_UNREACHABLE("a dtype");
    }
}

static void i64_from(cddp_dtype dtype, int64_t *dst, const void *src, size_t count)
{
    switch (dtype) {
    case CDDP_I64:
        memcpy(dst, src, count * sizeof *dst);
        break;
    case CDDP_I32:
        for (size_t i = 0; i < count; i++) dst[i] = ((const int32_t *)src)[i];
        break;
    case CDDP_U8:
        for (size_t i = 0; i < count; i++) dst[i] = ((const uint8_t *)src)[i];
        break;
    default:
        CD_UNREACHABLE("an integer dtype");
    }
}

static void i64_to(cddp_dtype dtype, void *dst, const int64_t *src, size_t count)
{
    float *f = dst;
    switch (dtype) {
    case CDDP_I64:
        memcpy(dst, src, count * sizeof *src);
        break;
    case CDDP_I32:
        for (size_t i = 0; i < count; i++)
            ((int32_t *)dst)[i] = (int32_t)(uint32_t)(uint64_t)src[i];
        break;
    case CDDP_U8:
        for (size_t i = 0; i < count; i++) ((uint8_t *)dst)[i] = (uint8_t)(uint64_t)src[i];
        break;
    case CDDP_F64:
        for (size_t i = 0; i < count; i++) ((double *)dst)[i] = (double)src[i];
        break;
    case CDDP_F32:
        for (size_t i = 0; i < count; i++) f[i] = (float)src[i];
        break;
    case CDDP_C64:
        for (size_t i = 0; i < count; i++) {
            f[2 * i] = (float)src[i];
            f[2 * i + 1] = 0;
        }
        break;
    case CDDP_F16:
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)dst)[i] = cd_f64_to_f16(cd_i64_to_f64_odd(src[i]));
        break;
    case CDDP_BF16:
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)dst)[i] = cd_f64_to_bf16(cd_i64_to_f64_odd(src[i]));
        break;
    case CDDP_DTYPE_COUNT:
        CD_UNREACHABLE("a dtype");
    }
}

static bool is_integer(cddp_dtype dtype)
{
    return dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8;
}

/* Pairs that matter for speed have their own loop. */
static bool convert_directly(cddp_dtype dst_dtype, void *dst, cddp_dtype src_dtype, const void *src,
                             size_t count)
{
    if (dst_dtype == src_dtype)
        memmove(dst, src, count * cddp_dtype_bytes(dst_dtype));
    else if (dst_dtype == CDDP_F16 && src_dtype == CDDP_F32)
        cd_convert_f32_to_f16(dst, src, count);
    else if (dst_dtype == CDDP_BF16 && src_dtype == CDDP_F32)
        cd_convert_f32_to_bf16(dst, src, count);
    else if (dst_dtype == CDDP_F32 && src_dtype == CDDP_F16)
        cd_convert_f16_to_f32(dst, src, count);
    else if (dst_dtype == CDDP_F32 && src_dtype == CDDP_BF16)
        cd_convert_bf16_to_f32(dst, src, count);
    else if (dst_dtype == CDDP_F64 && src_dtype == CDDP_F32)
        f64_from(src_dtype, dst, src, count);
    else if (dst_dtype == CDDP_F32 && src_dtype == CDDP_F64)
        f64_to(dst_dtype, dst, src, count);
    else
        return false;
    return true;
}

void cd_convert(cddp_dtype dst_dtype, void *dst, cddp_dtype src_dtype, const void *src,
                size_t count)
{
    if (count == 0 || convert_directly(dst_dtype, dst, src_dtype, src, count)) return;
    unsigned char *to = dst;
    const unsigned char *from = src;
    while (count > 0) {
        size_t n = count < CHUNK ? count : CHUNK;
        if (is_integer(src_dtype)) {
            int64_t wide[CHUNK];
            i64_from(src_dtype, wide, from, n);
            i64_to(dst_dtype, to, wide, n);
        } else {
            double wide[CHUNK];
            f64_from(src_dtype, wide, from, n);
            f64_to(dst_dtype, to, wide, n);
        }
        from += n * cddp_dtype_bytes(src_dtype);
        to += n * cddp_dtype_bytes(dst_dtype);
        count -= n;
    }
}

double cd_element_get(cddp_dtype dtype, const void *element)
{
    double value = 0;
    cd_convert(CDDP_F64, &value, dtype, element, 1);
    return value;
}

void cd_element_set(cddp_dtype dtype, void *element, double value)
{
    cd_convert(dtype, element, CDDP_F64, &value, 1);
}
