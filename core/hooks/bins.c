/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums in absolute bins.
**
** Note [Absolute bins] Every finite number of a format is an integer times the format's smallest
** subnormal, so a sum of any of them is one, too, and addition of integers is associative. Bin j
** weighs 2^(24·j), whatever the data: a bin that depended on the largest number of a bucket or of a
** rank would make bits depend on the bucket layout or on the world. A sum is kept
** as a row of balanced digits, |digit| ≤ 2^23, so that 255 rows can be added digit by digit in i32.
** Nothing is ever dropped: what a span leaves out is zero on every rank, so the span changes bytes
** and never bits.
**
** Locally a double is a window of 53 bits that almost always suffices: an addition of a 24-bit
** number is exact unless sum and addend lie more than 29 binades apart. Where it is not, the sum
** moves on and Knuth's error term goes into separate bins, so the pair is exact again. f64 has no
** such window: it always goes into bins. Whether additions were exact is found by undoing them,
** from the processor's own flag, or by rounding both ways: whatever takes least.
**
** Note [Sums move over]: whether a block of additions was exact is known when all of it has been
** done, and then the old sums have to be there still. Setting them aside would store as much again.
** Instead new sums go one block further than the old ones lie, and overwrite those of the block
** before, which are settled: the array moves over by a block with every addition, from its
** beginning to its end on the way down, back from its end on the way up. So every second addition
** begins with the sums that the one before left in the caches, too. Elements do not meet: their
** order is of no consequence to bits.
**
** Note [One rounding] The digits of a sum are not unique, their value is. It is evaluated in f64
** together with a bound of the error; if every number within the bound rounds to the same result,
** this is the correctly rounded quotient. Where that is not certain (a tie, heavy cancellation)
** integers decide. Both ways give the same bits.
*/
#include "core/hooks/bins.h"

#include "core/base/arena.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/tensor/dtype.h"

#include <math.h>
#include <string.h>
#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>
#endif

#define BLOCK 256
#define LINE 8 /* doubles in a cache line */
#define BITS CD_BINS_DIGIT_BITS
#define BINS_MAX 96 /* of f64: bins -45 … 43, and room for a quotient below and carries above */
#define POSITIVE 1
#define NEGATIVE (1 << 10)
#define NOT_A_NUMBER (1 << 20)
#define INFINITE 0x7f800000u

/* ---- formats ---- */

typedef struct format {
    /* significant bits; exponents of the smallest subnormal and of 2^most, which overflows */
    int precision, least, most;
} format;

static format format_of(cddp_dtype dtype)
{
    return dtype == CDDP_F64    ? (format){53, -1074, 1024}
           : dtype == CDDP_F16  ? (format){11, -24, 16}
           : dtype == CDDP_BF16 ? (format){8, -133, 128}
                                : (format){24, -149, 128};
}

static int floor_bin(int exponent)
{
    return exponent >= 0 ? exponent / BITS : -((-exponent + BITS - 1) / BITS);
}

/* The lowest bin of a number whose lowest bit weighs 2^exponent, and the highest of one below
** 2^exponent: its digit is then at most 2^23. */
static int bin_of_low(int exponent) { return floor_bin(exponent); }
static int bin_of_high(int exponent) { return floor_bin(exponent + 1); }

static int first_bin(cddp_dtype dtype) { return bin_of_low(format_of(dtype).least); }

/* Sums of 2^31 numbers, and a carry out of the highest digit. */
static size_t bin_count(cddp_dtype dtype)
{
    return (size_t)(bin_of_high(format_of(dtype).most + 31) - first_bin(dtype) + 2);
}

int64_t cd_bins_rows_most(cddp_dtype dtype)
{
    return (int64_t)bin_count(dtype) + 1; /* of special codes */
}

/* ---- blocks ---- */

/* The order of groups in a block, and whether the array is long enough to be fetched ahead. A short
** array is in the nearest cache already. */
typedef struct way {
    bool is_back, is_long;
} way;
#define LONG 16384 /* elements: 128 KiB of sums */
/* Where the processor's flag takes least, in elements. With AVX2 undoing additions takes longer,
** but not than clearing the flag. With AVX-512 rounding both ways takes no longer, except where
** memory decides: then whatever else a line takes keeps the next one waiting. */
#define WATCHED_FROM_avx2 385
#define WATCHED_FROM_avx512 (256 * 1024 + 1)

static size_t block_of(size_t count) { return count < BLOCK ? count : BLOCK; }

#if defined(__GNUC__) && defined(__x86_64__)
#define VECTOR_KERNELS 1
#define TARGET(isa) __attribute__((target(isa)))
#else
#define VECTOR_KERNELS 0
#endif

/* The first numbers of a window are their own sums; false: not all are finite. */
#define BEGIN_BLOCK(name, attributes)                                                       \
    attributes static bool name(double *restrict to, const float *restrict x, size_t count) \
    {                                                                                       \
        uint32_t high = 0;                                                                  \
        for (size_t i = 0; i < count; i++) {                                                \
            uint32_t bits, m;                                                               \
            memcpy(&bits, x + i, sizeof bits);                                              \
            m = bits & 0x7fffffffu;                                                         \
            high = m > high ? m : high;                                                     \
            to[i] = (double)x[i];                                                           \
        }                                                                                   \
        return high < INFINITE;                                                             \
    }

/* Adds one block and moves its sums. False: not all are known to be exact, and the old sums are
** unchanged. With s = fl(a + b) the subtraction of the larger operand from s is exact (Dekker) and
** gives the other one exactly when a + b was: then both rests are +0. What is not finite leaves a
** NaN. */
#define ADD_BLOCK(name, attributes)                                                            \
    attributes static bool name(double *restrict to, const double *restrict from,              \
                                const float *restrict x, size_t count, way w)                  \
    {                                                                                          \
        uint64_t wrong = 0;                                                                    \
        (void)w;                                                                               \
        for (size_t i = 0; i < count; i++) {                                                   \
            double a = from[i], b = (double)x[i], s = a + b, p = (s - a) - b, q = (s - b) - a; \
            uint64_t p_bits, q_bits;                                                           \
            memcpy(&p_bits, &p, sizeof p_bits);                                                \
            memcpy(&q_bits, &q, sizeof q_bits);                                                \
            wrong |= p_bits | q_bits;                                                          \
            to[i] = s;                                                                         \
        }                                                                                      \
        return wrong == 0;                                                                     \
    }

/* Bits of magnitudes: the largest, and one less than the least that is not zero (zero itself wraps
** to the top). */
#define SCAN_BLOCK(name, attributes)                                                       \
    attributes static void name(const uint32_t *restrict x, size_t count, uint32_t *least, \
                                uint32_t *largest)                                         \
    {                                                                                      \
        uint32_t low = *least - 1u, high = *largest;                                       \
        for (size_t i = 0; i < count; i++) {                                               \
            uint32_t m = x[i] & 0x7fffffffu, n = m - 1u;                                   \
            high = m > high ? m : high;                                                    \
            low = n < low ? n : low;                                                       \
        }                                                                                  \
        *least = low + 1u;                                                                 \
        *largest = high;                                                                   \
    }

/* The same of sums. */
#define ENDS_BLOCK(name, attributes)                                                   \
    attributes static void name(const double *restrict x, size_t count, double *least, \
                                double *largest)                                       \
    {                                                                                  \
        double low = *least, high = *largest;                                          \
        for (size_t i = 0; i < count; i++) {                                           \
            double m = fabs(x[i]), n = m == 0 ? INFINITY : m;                          \
            high = m > high ? m : high;                                                \
            low = n < low ? n : low;                                                   \
        }                                                                              \
        *least = low;                                                                  \
        *largest = high;                                                               \
    }

/* Whether all are multiples of the weight. */
#define FITS_BLOCK(name, attributes)                                                   \
    attributes static bool name(const double *restrict x, size_t count, double weight) \
    {                                                                                  \
        const double inverse = 1.0 / weight;                                           \
        int64_t wrong = 0;                                                             \
        for (size_t i = 0; i < count; i++)                                             \
            wrong |= -(int64_t)(rint(x[i] * inverse) != x[i] * inverse);               \
        return wrong == 0;                                                             \
    }

/* One row takes the part of x that is a multiple of 2^weight. Adding and subtracting
** 1.5·2^(weight+52) rounds to such multiples. The rest is at most half of one, which bounds the
** next digit. */
#define CUT_BLOCK(name, attributes)                                              \
    attributes static void name(double *restrict x, size_t count, double weight, \
                                int32_t *restrict row)                           \
    {                                                                            \
        const double magic = weight * 0x1.8p52, inverse = 1.0 / weight;          \
        for (size_t i = 0; i < count; i++) {                                     \
            double q = (x[i] + magic) - magic;                                   \
            row[i] = (int32_t)(q * inverse);                                     \
            x[i] -= q;                                                           \
        }                                                                        \
    }

/* value and bound of the error grow by one row. */
#define JOIN_BLOCK(name, attributes)                                                              \
    attributes static void name(double *restrict value, double *restrict magnitude, size_t count, \
                                double weight, const int32_t *restrict row)                       \
    {                                                                                             \
        for (size_t i = 0; i < count; i++) {                                                      \
            double term = (double)row[i] * weight;                                                \
            value[i] += term;                                                                     \
            magnitude[i] += fabs(term);                                                           \
        }                                                                                         \
    }

/* Quotients as f32; false when some rounding is not certain. */
#define ROUND_BLOCK(name, attributes)                                                           \
    attributes static bool name(const double *restrict value, const double *restrict magnitude, \
                                size_t count, double divisor, float *restrict out)              \
    {                                                                                           \
        const double bound = 0x1p-47 / divisor;                                                 \
        uint32_t differ = 0;                                                                    \
        for (size_t i = 0; i < count; i++) {                                                    \
            double q = value[i] / divisor, e = magnitude[i] * bound;                            \
            float low = (float)(q - e), high = (float)(q + e);                                  \
            uint32_t a, b;                                                                      \
            memcpy(&a, &low, sizeof a);                                                         \
            memcpy(&b, &high, sizeof b);                                                        \
            differ |= a ^ b;                                                                    \
            out[i] = high;                                                                      \
        }                                                                                       \
        return differ == 0;                                                                     \
    }

/* Sums without special instructions. */
#define SUMS(suffix, attributes)            \
    BEGIN_BLOCK(begin_##suffix, attributes) \
    ADD_BLOCK(add_##suffix, attributes)

#define KERNELS(suffix, attributes)       \
    SCAN_BLOCK(scan_##suffix, attributes) \
    ENDS_BLOCK(ends_##suffix, attributes) \
    FITS_BLOCK(fits_##suffix, attributes) \
    CUT_BLOCK(cut_##suffix, attributes)   \
    JOIN_BLOCK(join_##suffix, attributes) \
    ROUND_BLOCK(round_##suffix, attributes)

typedef bool (*add_fn)(double *to, const double *from, const float *x, size_t count, way w);
typedef struct kernels {
    bool (*begin)(double *to, const float *x, size_t count);
    add_fn add;
    /* the same between watch_begin and watch_end, for arrays of at least so many elements; NULL:
    ** never */
    add_fn add_watched;
    int64_t watched_from;
    void (*scan)(const uint32_t *x, size_t count, uint32_t *least, uint32_t *largest);
    void (*ends)(const double *x, size_t count, double *least, double *largest);
    bool (*fits)(const double *x, size_t count, double weight);
    void (*cut)(double *x, size_t count, double weight, int32_t *row);
    void (*join)(double *value, double *magnitude, size_t count, double weight, const int32_t *row);
    bool (*round)(const double *value, const double *magnitude, size_t count, double divisor,
                  float *out);
} kernels;
#define TABLE(suffix, watched, from)                                                              \
    {                                                                                             \
        begin_##suffix, add_##suffix, watched, from, scan_##suffix, ends_##suffix, fits_##suffix, \
            cut_##suffix, join_##suffix, round_##suffix                                           \
    }

KERNELS(plain, )
SUMS(plain, )
static const kernels plain_kernels = TABLE(plain, NULL, 0);
#if VECTOR_KERNELS
KERNELS(avx2, TARGET("avx2"))
SUMS(avx2, TARGET("avx2"))
KERNELS(avx512, TARGET("avx512f"))

/* Note [One flag for a block]: an exact addition raises nothing and an inexact one always raises
** INEXACT, which stays until somebody clears it. Cleared before a block and still clear after it
** means that every addition was exact. Infinities and NaN raise nothing either, so they are looked
** for. The barriers keep additions on their side: what is stored before one has been computed. */
#define INEXACT ((uint32_t)_MM_EXCEPT_INEXACT)
#define FENCE() __asm__ volatile("" : : : "memory")

static uint32_t watch_begin(void)
{
    const uint32_t flags = _mm_getcsr();
    if ((flags & INEXACT) != 0) _mm_setcsr(flags & ~INEXACT);
    return flags;
}

/* An addition that rounds raises the flag again, without the wait that writing flags costs. */
static void watch_end(uint32_t flags)
{
    volatile double one = 1.0;
    if ((flags & INEXACT) != 0) one = one + 0x1p-60;
}

/* Sums of a long array are fetched one page before their addition: processors fetch ahead by
** themselves, but not across the end of a page. Fetching beyond the array is useless and
** harmless. */
#define AHEAD 512
#define GROUP (2 * (size_t)LINE) /* elements: a line of addends, two of sums */
#define FETCH_AHEAD(array, i, is_back)                                                             \
    _mm_prefetch((const char *)((is_back) ? (uintptr_t)((array) + (i)) - AHEAD * sizeof *(array)   \
                                          : (uintptr_t)((array) + (i)) + AHEAD * sizeof *(array)), \
                 _MM_HINT_T0)

/* The bits of the largest magnitude that was added. */
TARGET("avx2")
static inline __attribute__((always_inline)) __m256i watch_groups_avx2(double *restrict to,
                                                                       const double *restrict from,
                                                                       const float *restrict x,
                                                                       size_t whole, way w)
{
    const __m256i sign = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    /* memory is asked line by line, in the order of the lines */
    const size_t step = w.is_long ? LINE : GROUP;
    for (size_t done = 0; done < whole; done += step) {
        const size_t first = w.is_back ? whole - step - done : done;
        if (w.is_long) FETCH_AHEAD(from, first, w.is_back);
        if (w.is_long && first % GROUP == 0) FETCH_AHEAD(x, first, w.is_back);
        for (size_t i = first; i < first + step; i += LINE) {
            largest = _mm256_max_epi32(
                largest,
                _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(x + i)), sign));
            _mm256_storeu_pd(to + i, _mm256_add_pd(_mm256_loadu_pd(from + i),
                                                   _mm256_cvtps_pd(_mm_loadu_ps(x + i))));
            _mm256_storeu_pd(to + i + 4, _mm256_add_pd(_mm256_loadu_pd(from + i + 4),
                                                       _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4))));
        }
    }
    return largest;
}

#define WATCH(suffix, is_back, is_long) \
    watch_groups_##suffix(to, from, x, whole, (way){is_back, is_long})
#define ADD_WATCHED(suffix, attributes)                                                           \
    attributes static bool add_watched_##suffix(double *restrict to, const double *restrict from, \
                                                const float *restrict x, size_t count, way w)     \
    {                                                                                             \
        const size_t whole = count - count % GROUP;                                               \
        FENCE();                                                                                  \
        const __m256i largest =                                                                   \
            w.is_long   ? w.is_back ? WATCH(suffix, true, true) : WATCH(suffix, false, true)      \
              : w.is_back ? WATCH(suffix, true, false)                                            \
                        : WATCH(suffix, false, false);                                            \
        FENCE();                                                                                  \
        const __m256i special = _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(0x7f7fffff));       \
        const bool exact =                                                                        \
            (_mm_getcsr() & INEXACT) == 0 && _mm256_testz_si256(special, special) != 0;           \
        if (exact && (whole == count ||                                                           \
                      add_##suffix(to + whole, from + whole, x + whole, count - whole, w)))       \
            return true;                                                                          \
        FENCE();                                                                                  \
        _mm_setcsr(_mm_getcsr() & ~INEXACT);                                                      \
        return false;                                                                             \
    }
ADD_WATCHED(avx2, TARGET("avx2"))

/* Note [Rounded both ways]: a sum that is a double is the same rounded up and rounded down, and any
** other is not. With AVX-512 each addition has its own rounding mode and raises no flag. So the
** processor's flags are not used; clearing and reading them takes 60 ns. Rounded up an exact sum is
** what rounding to nearest makes of it, x - x = +0 included. The difference of both is +0, or NaN
** where they are not finite. */
#define UP (_MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)
#define DOWN (_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define DIFFER(a, b, up) \
    _mm512_castpd_si512( \
        _mm512_maskz_sub_round_pd(ALL, up, _mm512_maskz_add_round_pd(ALL, a, b, DOWN), NEAREST))
#define EITHER_OF_THREE 0xfe
/* which the compilers leave out; without optimisation GCC warns of what its own unmasked forms
** convert */
#define ALL ((__mmask8)0xff)

static __mmask8 part_of_line(size_t count)
{
    return (__mmask8)(count < LINE ? (1u << count) - 1 : 0xff);
}

TARGET("avx512f")
static bool begin_avx512(double *restrict to, const float *restrict x, size_t count)
{
    const __m512i sign = _mm512_set1_epi32(0x7fffffff);
    const size_t whole = count - count % GROUP;
    __m512i largest = _mm512_setzero_si512();
    for (size_t i = 0; i < whole; i += GROUP) {
        largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_loadu_si512(x + i), sign));
        _mm512_storeu_pd(to + i, _mm512_cvtps_pd(_mm256_loadu_ps(x + i)));
        _mm512_storeu_pd(to + i + LINE, _mm512_cvtps_pd(_mm256_loadu_ps(x + i + LINE)));
    }
    for (size_t i = whole; i < count; i += LINE) {
        const __mmask8 there = part_of_line(count - i);
        const __m512 rest = _mm512_maskz_loadu_ps(there, x + i);
        largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(rest), sign));
        _mm512_mask_storeu_pd(to + i, there, _mm512_cvtps_pd(_mm512_castps512_ps256(rest)));
    }
    return _mm512_cmpgt_epi32_mask(largest, _mm512_set1_epi32(0x7f7fffff)) == 0;
}

/* The bits of all differences. */
TARGET("avx512f")
static inline __attribute__((always_inline)) __m512i add_groups_avx512(double *restrict to,
                                                                       const double *restrict from,
                                                                       const float *restrict x,
                                                                       size_t whole, way w)
{
    __m512i wrong = _mm512_setzero_si512();
    for (size_t done = 0; done < whole; done += GROUP) {
        const size_t i = w.is_back ? whole - GROUP - done : done;
        if (w.is_long) FETCH_AHEAD(from, i, w.is_back);
        if (w.is_long) FETCH_AHEAD(from + LINE, i, w.is_back);
        if (w.is_long) FETCH_AHEAD(x, i, w.is_back);
        const __m512d a = _mm512_loadu_pd(from + i), b = _mm512_cvtps_pd(_mm256_loadu_ps(x + i));
        const __m512d c = _mm512_loadu_pd(from + i + LINE),
                      d = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + LINE));
        const __m512d s = _mm512_maskz_add_round_pd(ALL, a, b, UP),
                      t = _mm512_maskz_add_round_pd(ALL, c, d, UP);
        wrong = _mm512_ternarylogic_epi64(wrong, DIFFER(a, b, s), DIFFER(c, d, t), EITHER_OF_THREE);
        _mm512_storeu_pd(to + i, s);
        _mm512_storeu_pd(to + i + LINE, t);
    }
    return wrong;
}

/* The end of an array: less than a group, lines and a part of one. */
TARGET("avx512f")
static __m512i add_rest_avx512(double *restrict to, const double *restrict from,
                               const float *restrict x, size_t count)
{
    __m512i wrong = _mm512_setzero_si512();
    for (size_t i = 0; i < count; i += LINE) {
        const __mmask8 there = part_of_line(count - i);
        const __m512d a = _mm512_maskz_loadu_pd(there, from + i),
                      b = _mm512_cvtps_pd(
                          _mm512_castps512_ps256(_mm512_maskz_loadu_ps(there, x + i)));
        const __m512d s = _mm512_maskz_add_round_pd(ALL, a, b, UP);
        wrong = _mm512_or_si512(wrong, DIFFER(a, b, s));
        _mm512_mask_storeu_pd(to + i, there, s);
    }
    return wrong;
}

TARGET("avx512f")
static bool add_avx512(double *restrict to, const double *restrict from, const float *restrict x,
                       size_t count, way w)
{
    const size_t whole = count - count % GROUP;
    __m512i wrong = w.is_long   ? w.is_back
                                      ? add_groups_avx512(to, from, x, whole, (way){true, true})
                                      : add_groups_avx512(to, from, x, whole, (way){false, true})
                      : w.is_back ? add_groups_avx512(to, from, x, whole, (way){true, false})
                                : add_groups_avx512(to, from, x, whole, (way){false, false});
    if (whole != count)
        wrong = _mm512_or_si512(wrong, add_rest_avx512(to + whole, from + whole, x + whole,
                                                       count - whole));
    return _mm512_test_epi64_mask(wrong, wrong) == 0;
}

TARGET("avx512f")
static inline __attribute__((always_inline)) __m256i
watch_groups_avx512(double *restrict to, const double *restrict from, const float *restrict x,
                    size_t whole, way w)
{
    const __m256i sign = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (size_t done = 0; done < whole; done += LINE) {
        const size_t i = w.is_back ? whole - LINE - done : done;
        if (w.is_long) FETCH_AHEAD(from, i, w.is_back);
        if (w.is_long && i % GROUP == 0) FETCH_AHEAD(x, i, w.is_back);
        const __m256 addends = _mm256_loadu_ps(x + i);
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(addends), sign));
        _mm512_storeu_pd(to + i,
                         _mm512_add_pd(_mm512_loadu_pd(from + i), _mm512_cvtps_pd(addends)));
    }
    return largest;
}
ADD_WATCHED(avx512, TARGET("avx512f"))

static const kernels avx2_kernels = TABLE(avx2, add_watched_avx2, WATCHED_FROM_avx2);
static const kernels avx512_kernels = TABLE(avx512, add_watched_avx512, WATCHED_FROM_avx512);
#else
static uint32_t watch_begin(void) { return 0; }
static void watch_end(uint32_t flags) { (void)flags; }
#endif

static const kernels *get_kernels_of(cd_isa isa)
{
#if VECTOR_KERNELS
    if (isa == CD_ISA_AVX512) return &avx512_kernels;
    if (isa == CD_ISA_AVX2) return &avx2_kernels;
#endif
    (void)isa;
    return &plain_kernels;
}

static const kernels *get_kernels(void) { return get_kernels_of(cd_isa_best()); }

/* Elements first … first + count - 1 as f32; scratch where they are not. */
static const float *widen(cddp_dtype dtype, const void *values, int64_t first, size_t count,
                          float *scratch)
{
    if (dtype == CDDP_F32) return (const float *)values + first;
    if (dtype == CDDP_F16)
        cd_convert_f16_to_f32(scratch, (const uint16_t *)values + first, count);
    else
        cd_convert_bf16_to_f32(scratch, (const uint16_t *)values + first, count);
    return scratch;
}

static size_t block_at(int64_t first, int64_t numel) { return block_of((size_t)(numel - first)); }

/* ---- one element, in integers ---- */

/* Adds a finite x to bins of which bins[0] is number `first`. */
static void add_to_bins(int64_t *bins, int first, double x)
{
    int exponent = 0;
    double fraction = frexp(x, &exponent);
    if (x == 0) return;
    /* x = m · 2^(exponent - 53), and m ends in zeros where x is subnormal */
    int64_t m = (int64_t)ldexp(fraction, 53);
    int low = exponent - 53, bin = floor_bin(low), shift = low - bin * BITS;
    if (bin < first) { /* below the format's last bit there are only zeros */
        int cut = (first - bin) * BITS - shift;
        m /= INT64_C(1) << (cut < 62 ? cut : 62);
        bin = first;
        shift = 0;
    }
    uint64_t magnitude = m < 0 ? (uint64_t)-m : (uint64_t)m;
    int64_t sign = m < 0 ? -1 : 1;
    uint64_t mask = (UINT64_C(1) << BITS) - 1;
    bins[bin - first] += sign * (int64_t)((magnitude << shift) & mask);
    magnitude >>= BITS - shift;
    for (int i = 1; magnitude != 0; i++, magnitude >>= BITS)
        bins[bin - first + i] += sign * (int64_t)(magnitude & mask);
}

/* Balanced digits, -2^23 ≤ digit < 2^23; what leaves the top must be nothing. */
static void balance(int64_t *bins, size_t count)
{
    int64_t carry = 0, half = INT64_C(1) << (BITS - 1);
    for (size_t i = 0; i < count; i++) {
        int64_t all = bins[i] + carry + half;
        int64_t up = all >= 0 ? all >> BITS : -((-all + (INT64_C(1) << BITS) - 1) >> BITS);
        bins[i] = all - up * (INT64_C(1) << BITS) - half;
        carry = up;
    }
    CD_ASSERT(carry == 0);
}

/* Balanced digits as sign (true: negative) and digits 0 … 2^24 - 1. */
static bool make_positive(int64_t *bins, size_t count)
{
    size_t top = count;
    while (top > 0 && bins[top - 1] == 0) top--;
    bool negative = top > 0 && bins[top - 1] < 0;
    int64_t carry = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t all = (negative ? -bins[i] : bins[i]) + carry;
        carry = all >= 0 ? all >> BITS : -((-all + (INT64_C(1) << BITS) - 1) >> BITS);
        bins[i] = all - carry * (INT64_C(1) << BITS);
    }
    CD_ASSERT(carry == 0);
    return negative;
}

/* Σ bins[i]·2^(24·(first+i)) plus less than one unit of bins[0] if `rest`, rounded to the
** format. */
static double round_bins(const int64_t *bins, size_t count, int first, bool rest, format f)
{
    size_t top = count;
    while (top > 0 && bins[top - 1] == 0) top--;
    if (top == 0) return 0.0;
    int highest = 0;
    while (bins[top - 1] >> (highest + 1) != 0) highest++;
    int exponent = ((int)top - 1 + first) * BITS + highest; /* of the leading bit */
    int unit = exponent - f.precision + 1;
    if (unit < f.least) unit = f.least;
    /* Bits at and above `unit` make an integer of at most 53 bits; the bit below and everything
    ** under it round. */
    uint64_t kept = 0;
    bool half = false, below = rest;
    for (size_t i = 0; i < top; i++) {
        int weight = ((int)i + first) * BITS;
        uint64_t digit = (uint64_t)bins[i];
        if (weight >= unit) {
            if (digit != 0) kept += digit << (weight - unit);
            continue;
        }
        int drop = unit - weight; /* bits of this digit below the unit */
        if (drop > BITS) {
            below |= digit != 0;
            continue;
        }
        kept += digit >> drop;
        half = (digit >> (drop - 1) & 1u) != 0;
        below |= (digit & ((UINT64_C(1) << (drop - 1)) - 1)) != 0;
    }
    if (half && (below || (kept & 1u) != 0)) kept++;
    double value = ldexp((double)kept, unit);
    return value >= ldexp(1.0, f.most - 1) * 2 ? INFINITY : value;
}

/* The rows of one element ÷ divisor, exactly, then rounded. */
static double decode_exactly(cddp_dtype dtype, const int32_t *rows, int64_t stride,
                             const cd_bins_span *span, uint32_t divisor)
{
    /* 96 bits under the lowest digit: 32 for the divisor, 53 for the result, and some to round
    ** with */
    enum { BELOW = 4 };
    int64_t bins[BINS_MAX + BELOW + 4] = {0};
    size_t count = span->first <= span->last ? (size_t)(span->last - span->first) + 1 : 0;
    for (size_t r = 0; r < count; r++) bins[BELOW + r] = rows[(int64_t)r * stride];
    size_t all = BELOW + count + 2;
    balance(bins, all);
    bool negative = make_positive(bins, all);
    uint64_t rest = 0;
    for (size_t i = all; i-- > 0;) {
        uint64_t part = rest << BITS | (uint64_t)bins[i];
        bins[i] = (int64_t)(part / divisor);
        rest = part % divisor;
    }
    double value = round_bins(bins, all, span->first - BELOW, rest != 0, format_of(dtype));
    return negative ? -value : value;
}

static double decode_special(int32_t code)
{
    int32_t positive = code & (NEGATIVE - 1), negative = code / NEGATIVE & (NEGATIVE - 1);
    if (code >= NOT_A_NUMBER || (positive > 0 && negative > 0)) return NAN;
    return positive > 0 ? INFINITY : -INFINITY;
}

static int32_t special_code(double x)
{
    return isfinite(x) ? 0 : isnan(x) ? NOT_A_NUMBER : x > 0 ? POSITIVE : NEGATIVE;
}

/* ---- spans ---- */

/* Of numbers whose magnitudes have these bits as f32. */
static cd_bins_span span_of_bits(uint32_t least, uint32_t largest, format f)
{
    cd_bins_span span = {.first = 1, .last = 0, .special = largest >= INFINITE};
    if (largest == 0 || least >= INFINITE) return span;
    uint32_t finite = largest >= INFINITE
                          ? INFINITE - 1
                          : largest; /* then the elements in between count as the largest */
    int low = (int)(least >> 23) - 126 - f.precision, high = (int)(finite >> 23) - 126;
    if (low < f.least) low = f.least;
    if (high < -125) high = -125;
    span.first = bin_of_low(low);
    span.last = bin_of_high(high);
    return span;
}

static bool all_fit(const cd_bins *bins, int bin)
{
    for (int64_t first = 0; first < bins->numel; first += BLOCK)
        if (!get_kernels()->fits(bins->high + first, block_at(first, bins->numel),
                                 ldexp(1.0, bin * BITS)))
            return false;
    return true;
}

/* For finite sums that are all doubles. A double shows only where its last bit may be, so the code
** tries. */
static cd_bins_span span_of_sums(const cd_bins *bins)
{
    cd_bins_span span = {.first = 1, .last = 0};
    double least = INFINITY, largest = 0;
    for (int64_t first = 0; first < bins->numel; first += BLOCK)
        get_kernels()->ends(bins->high + first, block_at(first, bins->numel), &least, &largest);
    if (largest == 0) return span;
    int low = ilogb(least) - 52, lowest = format_of(bins->dtype).least;
    span.first = bin_of_low(low < lowest ? lowest : low);
    span.last = bin_of_high(ilogb(largest) + 1);
    while (span.first < span.last && all_fit(bins, span.first + 1)) span.first++;
    return span;
}

static void join_element(cd_bins_span *span, int64_t *bins, size_t count, int first)
{
    balance(bins, count);
    for (size_t i = 0; i < count; i++) {
        if (bins[i] == 0) continue;
        int bin = first + (int)i;
        if (span->first > span->last) span->first = span->last = bin;
        if (bin < span->first) span->first = bin;
        if (bin > span->last) span->last = bin;
    }
}

/* ---- adding up ---- */

/* The first element at the beginning of a cache line: a vector across two lines takes twice as long
** to store. */
static double *line_of(double *sums)
{
    return sums != NULL ? sums + (LINE - (uintptr_t)sums / sizeof *sums % LINE) % LINE : NULL;
}

/* How far sums move: a block, or all of a short array; whole cache lines. */
static int64_t shift_of(int64_t numel)
{
    return ((int64_t)block_of((size_t)numel) + LINE - 1) / LINE * LINE;
}

static size_t sums_capacity(int64_t numel) { return (size_t)(numel + shift_of(numel)) + LINE; }

cddp_status cd_bins_init(cd_bins *bins, const cddp_allocator *allocator, cddp_dtype dtype,
                         int64_t numel, cddp_error *err)
{
    cd_bins b = {.dtype = dtype, .isa = cd_isa_best(), .numel = numel};
    cd_arena_init(&b.memory, allocator, 0);
    b.sums = cd_arena_array(&b.memory, sums_capacity(numel), sizeof *b.sums);
    b.scratch = cd_arena_array(&b.memory, BLOCK, sizeof *b.scratch);
    cddp_status status =
        cd_arena_check(&b.memory, err, "the bins of %lld elements", (long long)numel);
    if (status != CDDP_OK) {
        cd_arena_fini(&b.memory);
        return status;
    }
    b.high = line_of(b.sums);
    *bins = b;
    cd_bins_clear(bins);
    return CDDP_OK;
}

void cd_bins_fini(cd_bins *bins)
{
    cd_arena_fini(&bins->memory);
    *bins = (cd_bins){.dtype = CDDP_DTYPE_COUNT};
}

/* Sums are not written: the first addition does not read them. It goes forwards, and the one after
** it back. */
void cd_bins_clear(cd_bins *bins)
{
    bins->high = line_of(bins->sums);
    if (bins->dtype == CDDP_F64) memset(bins->high, 0, (size_t)bins->numel * sizeof *bins->high);
    if (bins->spilled)
        memset(bins->spill, 0, (size_t)bins->numel * bins->spill_bins * sizeof *bins->spill);
    bins->spilled = false;
    bins->count = 0;
    bins->special = false;
}

static cddp_status make_spill(cd_bins *bins, cddp_error *err)
{
    bins->spilled = true;
    if (bins->spill != NULL) return CDDP_OK;
    size_t count = bin_count(bins->dtype);
    bins->spill = cd_arena_array(&bins->memory, (size_t)bins->numel * count, sizeof *bins->spill);
    bins->spilled = bins->spill != NULL;
    if (bins->spill == NULL)
        return cd_fail_memory(err, "%zu bins of %lld elements", count, (long long)bins->numel);
    bins->spill_bins = count;
    return CDDP_OK;
}

static int64_t *spill_at(const cd_bins *bins, int64_t i)
{
    return bins->spill + (size_t)i * bins->spill_bins;
}

/* One element, whose sum is there, with an error term; once not finite, always so, as IEEE addition
** has it. */
static void add_slowly(cd_bins *bins, double *sum, int64_t i, double x)
{
    double a = *sum, s = a + x, t = s - a;
    if (!isfinite(a) || !isfinite(x)) {
        bins->special = true;
        *sum = s;
    } else if (bins->dtype == CDDP_F64) {
        add_to_bins(spill_at(bins, i), first_bin(CDDP_F64), x);
    } else {
        *sum = s;
        add_to_bins(spill_at(bins, i), first_bin(bins->dtype), (a - (s - t)) + (x - t));
    }
}

/* Elements first … first + count - 1 move over by `shift`. */
static cddp_status add_block(cd_bins *bins, add_fn add, const void *values, int64_t first,
                             size_t count, int64_t shift, cddp_error *err)
{
    const float *x = widen(bins->dtype, values, first, count, (float *)(void *)bins->scratch);
    double *from = bins->high + first, *to = from + shift;
    if (add(to, from, x, count, (way){.is_back = shift > 0, .is_long = bins->numel > LONG}))
        return CDDP_OK;
    memcpy(to, from, count * sizeof *to);
    CD_TRY(make_spill(bins, err));
    for (size_t i = 0; i < count; i++) add_slowly(bins, to + i, first + (int64_t)i, (double)x[i]);
    return CDDP_OK;
}

/* See Note [Sums move over]. Without memory for the spill every sum moves all the same. */
static cddp_status add_all(cd_bins *bins, const void *values, cddp_error *err)
{
    const kernels *k = get_kernels_of(bins->isa);
    const bool is_back = bins->high == line_of(bins->sums);
    const int64_t shift = is_back ? shift_of(bins->numel) : -shift_of(bins->numel);
    cddp_status status = CDDP_OK;
    const bool is_watched = k->add_watched != NULL && bins->numel >= k->watched_from;
    const uint32_t flags = is_watched ? watch_begin() : 0;
    for (int64_t done = 0, count; done < bins->numel; done += count) {
        count = (int64_t)block_at(done, bins->numel);
        const int64_t first = is_back ? bins->numel - done - count : done;
        if (status == CDDP_OK)
            status = add_block(bins, is_watched ? k->add_watched : k->add, values, first,
                               (size_t)count, shift, err);
        else
            memcpy(bins->high + first + shift, bins->high + first,
                   (size_t)count * sizeof *bins->high);
    }
    if (is_watched) watch_end(flags);
    bins->high += shift;
    return status;
}

/* The first addition since clear: nothing is read, nothing rounds, so nothing has to move. */
static cddp_status begin_all(cd_bins *bins, const void *values)
{
    const kernels *k = get_kernels_of(bins->isa);
    for (int64_t first = 0; first < bins->numel; first += BLOCK) {
        const size_t count = block_at(first, bins->numel);
        const float *x = widen(bins->dtype, values, first, count, (float *)(void *)bins->scratch);
        bins->special |= !k->begin(bins->high + first, x, count);
    }
    return CDDP_OK;
}

cddp_status cd_bins_add(cd_bins *bins, const void *values, cddp_error *err)
{
    const bool is_first = bins->count++ == 0;
    if (bins->dtype != CDDP_F64)
        return CD_PASS(is_first ? begin_all(bins, values) : add_all(bins, values, err));
    CD_TRY(make_spill(bins, err));
    for (int64_t i = 0; i < bins->numel; i++)
        add_slowly(bins, bins->high + i, i, ((const double *)values)[i]);
    return CDDP_OK;
}

/* The finite parts of element i. */
static size_t gather(const cd_bins *bins, int64_t i, int64_t *all)
{
    size_t count = bin_count(bins->dtype);
    memset(all, 0, (count + 2) * sizeof *all);
    if (!isfinite(bins->high[i])) return count;
    if (bins->spilled) memcpy(all, spill_at(bins, i), count * sizeof *all);
    add_to_bins(all, first_bin(bins->dtype), bins->high[i]);
    return count;
}

static bool is_simple(const cd_bins *bins) { return !bins->spilled && !bins->special; }

cd_bins_span cd_bins_get_span(const cd_bins *bins)
{
    if (bins->count == 0) return (cd_bins_span){.first = 1, .last = 0};
    if (is_simple(bins)) return span_of_sums(bins);
    cd_bins_span span = {.first = 1, .last = 0};
    int64_t all[BINS_MAX + 8];
    for (int64_t i = 0; i < bins->numel; i++) {
        span.special |= !isfinite(bins->high[i]);
        size_t count = gather(bins, i, all);
        join_element(&span, all, count, first_bin(bins->dtype));
    }
    return span;
}

/* Cuts a block of doubles into the rows of the span, the highest first. */
static void cut_rows(double *x, size_t count, const cd_bins_span *span, int32_t *rows,
                     int64_t stride)
{
    const kernels *k = get_kernels();
    for (int32_t bin = span->last; bin >= span->first; bin--)
        k->cut(x, count, ldexp(1.0, bin * BITS), rows + (int64_t)(bin - span->first) * stride);
}

/* Where the row of special codes begins; only where the span has one. */
static int64_t special_row(const cd_bins_span *span, int64_t stride)
{
    return (cd_bins_rows(span) - 1) * stride;
}

static void encode_element(int64_t *all, size_t count, int first, const cd_bins_span *span,
                           int32_t *rows, int64_t stride)
{
    balance(all, count);
    for (int32_t bin = span->first; bin <= span->last; bin++) {
        bool is_there = bin >= first && bin < first + (int)count;
        rows[(int64_t)(bin - span->first) * stride] = is_there ? (int32_t)all[bin - first] : 0;
    }
}

void cd_bins_encode(const cd_bins *bins, const cd_bins_span *span, int32_t *rows, int64_t stride)
{
    int32_t *special = span->special ? rows + special_row(span, stride) : NULL;
    if (bins->count == 0) {
        for (int64_t row = 0; row < cd_bins_rows(span); row++)
            memset(rows + row * stride, 0, (size_t)bins->numel * sizeof *rows);
        return;
    }
    if (is_simple(bins)) {
        double x[BLOCK];
        if (special != NULL) memset(special, 0, (size_t)bins->numel * sizeof *special);
        for (int64_t first = 0; first < bins->numel; first += BLOCK) {
            size_t count = block_at(first, bins->numel);
            memcpy(x, bins->high + first, count * sizeof *x);
            cut_rows(x, count, span, rows + first, stride);
        }
        return;
    }
    int64_t all[BINS_MAX + 8];
    for (int64_t i = 0; i < bins->numel; i++) {
        size_t count = gather(bins, i, all);
        encode_element(all, count, first_bin(bins->dtype), span, rows + i, stride);
        if (special != NULL) special[i] = special_code(bins->high[i]);
    }
}

/* ---- numbers that are added once ---- */

cd_bins_span cd_bins_span_of(cddp_dtype dtype, const void *values, int64_t numel)
{
    uint32_t least = UINT32_MAX, largest = 0;
    float scratch[BLOCK];
    if (dtype != CDDP_F64) {
        for (int64_t first = 0; first < numel; first += BLOCK) {
            size_t count = block_at(first, numel);
            const float *x = widen(dtype, values, first, count, scratch);
            get_kernels()->scan((const uint32_t *)(const void *)x, count, &least, &largest);
        }
        return span_of_bits(least, largest, format_of(dtype));
    }
    cd_bins_span span = {.first = 1, .last = 0};
    int64_t all[BINS_MAX + 8];
    size_t count = bin_count(dtype);
    for (int64_t i = 0; i < numel; i++) {
        double x = ((const double *)values)[i];
        memset(all, 0, sizeof all);
        span.special |= !isfinite(x);
        if (isfinite(x)) add_to_bins(all, first_bin(dtype), x);
        join_element(&span, all, count, first_bin(dtype));
    }
    return span;
}

static void encode_one_by_one(cddp_dtype dtype, const void *values, int64_t numel,
                              const cd_bins_span *span, int32_t *rows, int64_t stride)
{
    int32_t *special = span->special ? rows + special_row(span, stride) : NULL;
    int64_t all[BINS_MAX + 8];
    for (int64_t i = 0; i < numel; i++) {
        double x =
            cd_element_get(dtype, (const char *)values + (size_t)i * cddp_dtype_bytes(dtype));
        memset(all, 0, sizeof all);
        if (isfinite(x)) add_to_bins(all, first_bin(dtype), x);
        encode_element(all, bin_count(dtype), first_bin(dtype), span, rows + i, stride);
        if (special != NULL) special[i] = special_code(x);
    }
}

void cd_bins_encode_values(cddp_dtype dtype, const void *values, int64_t numel,
                           const cd_bins_span *span, int32_t *rows, int64_t stride)
{
    if (dtype == CDDP_F64 || span->special) {
        encode_one_by_one(dtype, values, numel, span, rows, stride);
        return;
    }
    float scratch[BLOCK];
    double x[BLOCK];
    for (int64_t first = 0; first < numel; first += BLOCK) {
        size_t count = block_at(first, numel);
        const float *wide = widen(dtype, values, first, count, scratch);
        for (size_t i = 0; i < count; i++) x[i] = (double)wide[i];
        cut_rows(x, count, span, rows + first, stride);
    }
}

/* ---- the quotient ---- */

static void store(cddp_dtype dtype, void *values, int64_t i, double value)
{
    cd_element_set(dtype, (char *)values + (size_t)i * cddp_dtype_bytes(dtype), value);
}

/* Quotients as f16 or bf16; false when some rounding is not certain. */
static bool round_narrow(cddp_dtype dtype, const double *value, const double *magnitude,
                         size_t count, double divisor, uint16_t *out)
{
    bool certain = true;
    for (size_t i = 0; i < count; i++) {
        double q = value[i] / divisor, e = magnitude[i] * 0x1p-47 / divisor;
        uint16_t low = dtype == CDDP_F16 ? cd_f64_to_f16(q - e) : cd_f64_to_bf16(q - e);
        out[i] = dtype == CDDP_F16 ? cd_f64_to_f16(q + e) : cd_f64_to_bf16(q + e);
        certain &= low == out[i];
    }
    return certain;
}

/* A block whose rounding is certain; false: somebody has to look closer. */
static bool decode_block(cddp_dtype dtype, const int32_t *rows, int64_t stride,
                         const cd_bins_span *span, uint32_t divisor, size_t count, void *out)
{
    const kernels *k = get_kernels();
    double value[BLOCK] = {0}, magnitude[BLOCK] = {0};
    if (dtype == CDDP_F64) return false;
    for (int32_t bin = span->first; bin <= span->last; bin++)
        k->join(value, magnitude, count, ldexp(1.0, bin * BITS),
                rows + (int64_t)(bin - span->first) * stride);
    if (dtype != CDDP_F32)
        return round_narrow(dtype, value, magnitude, count, (double)divisor, out);
    return k->round(value, magnitude, count, (double)divisor, out);
}

void cd_bins_decode(cddp_dtype dtype, const int32_t *rows, int64_t stride, const cd_bins_span *span,
                    uint32_t divisor, void *values, int64_t numel)
{
    const int32_t *special = span->special ? rows + special_row(span, stride) : NULL;
    for (int64_t first = 0; first < numel; first += BLOCK) {
        size_t count = block_at(first, numel);
        void *out = (char *)values + (size_t)first * cddp_dtype_bytes(dtype);
        if (special == NULL && decode_block(dtype, rows + first, stride, span, divisor, count, out))
            continue;
        for (int64_t i = first; i < first + (int64_t)count; i++) {
            bool is_special = special != NULL && special[i] != 0;
            store(dtype, values, i,
                  is_special ? decode_special(special[i])
                             : decode_exactly(dtype, rows + i, stride, span, divisor));
        }
    }
}
