/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of projection_kernel.h by AVX2, for a third of its time: compilers make scalars of some
** of its eight sums, and which ones depends on their flags. CMake compiles this file with -mavx2,
** where the compiler can. The sums and their order are the same, so the bits are. */
#include "record/projection_kernel.h"

#include <immintrin.h>

/* The eight sums of each kind, four to a register. */
typedef struct sums {
    __m256d low, high, magnitude_low, magnitude_high;
} sums;

static inline sums add(sums s, __m256d low, __m256d high)
{
    const __m256d sign = _mm256_set1_pd(-0.0);
    s.low = _mm256_add_pd(s.low, low);
    s.high = _mm256_add_pd(s.high, high);
    s.magnitude_low = _mm256_add_pd(s.magnitude_low, _mm256_andnot_pd(sign, low));
    s.magnitude_high = _mm256_add_pd(s.magnitude_high, _mm256_andnot_pd(sign, high));
    return s;
}

/* With the terms that fill no two registers: they belong to the first sum. */
static void end(const sums *s, const double *terms, int64_t count, cd_projection *p)
{
    double all[CD_PROJECTION_LANES], magnitudes[CD_PROJECTION_LANES];
    _mm256_storeu_pd(all, s->low);
    _mm256_storeu_pd(all + 4, s->high);
    _mm256_storeu_pd(magnitudes, s->magnitude_low);
    _mm256_storeu_pd(magnitudes + 4, s->magnitude_high);
    for (int64_t i = 0; i < count; i++) {
        all[0] += terms[i];
        magnitudes[0] += fabs(terms[i]);
    }
    *p = (cd_projection){0};
    for (int k = 0; k < CD_PROJECTION_LANES; k++) {
        p->sum += all[k];
        p->magnitude += magnitudes[k];
    }
}

static void block_f32(const float *x, const double *weights, int64_t count, cd_projection *p)
{
    sums s = {0};
    double rest[CD_PROJECTION_LANES];
    int64_t i = 0, left = 0;
#pragma GCC unroll 4
    for (; i + CD_PROJECTION_LANES <= count; i += CD_PROJECTION_LANES) {
        const __m256d low = _mm256_cvtps_pd(_mm_loadu_ps(x + i));
        const __m256d high = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4));
        s = add(s, _mm256_mul_pd(low, _mm256_loadu_pd(weights + i)),
                _mm256_mul_pd(high, _mm256_loadu_pd(weights + i + 4)));
    }
    for (; i < count; i++) rest[left++] = (double)x[i] * weights[i];
    end(&s, rest, left, p);
}

static void block_f64(const double *x, const double *weights, int64_t count, cd_projection *p)
{
    sums s = {0};
    double rest[CD_PROJECTION_LANES];
    int64_t i = 0, left = 0;
#pragma GCC unroll 4
    for (; i + CD_PROJECTION_LANES <= count; i += CD_PROJECTION_LANES) {
        const __m256d low = _mm256_loadu_pd(x + i), high = _mm256_loadu_pd(x + i + 4);
        s = add(s, _mm256_mul_pd(low, _mm256_loadu_pd(weights + i)),
                _mm256_mul_pd(high, _mm256_loadu_pd(weights + i + 4)));
    }
    for (; i < count; i++) rest[left++] = x[i] * weights[i];
    end(&s, rest, left, p);
}

void cd_projection_block_avx2(const void *x, bool is_single, const double *weights, int64_t count,
                              cd_projection *p)
{
    if (is_single)
        block_f32(x, weights, count, p);
    else
        block_f64(x, weights, count, p);
}
