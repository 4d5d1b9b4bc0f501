/* SPDX-License-Identifier: Apache-2.0 */
#include "record/projection.h"

#include "core/tensor/dtype.h"
#include "record/projection_kernel.h"

#include <math.h>

CD_PROJECTION_BLOCK(block_f32, float)
CD_PROJECTION_BLOCK(block_f64, double)

void cd_projection_block(const void *x, bool is_single, const double *weights, int64_t count,
                         cd_projection *p)
{
    if (is_single)
        block_f32(x, weights, count, p);
    else
        block_f64(x, weights, count, p);
}

typedef void (*block_fn)(const void *x, bool is_single, const double *weights, int64_t count,
                         cd_projection *p);

static block_fn choose_block(void)
{
#if defined(CD_PROJECTION_AVX2)
    if (__builtin_cpu_supports("avx2")) return cd_projection_block_avx2;
#endif
    return cd_projection_block;
}

/* Of 16-bit numbers, by way of f32, which has all of them. */
static const void *widen(const void *x, int32_t dtype, int64_t count, float *wide)
{
    const uint16_t *narrow = x;
    if (dtype != CDDP_F16 && dtype != CDDP_BF16) return x;
    for (int64_t i = 0; i < count; i++)
        wide[i] = dtype == CDDP_F16 ? cd_f16_to_f32(narrow[i]) : cd_bf16_to_f32(narrow[i]);
    return wide;
}

/* The weights of a block's places, the same in every block. */
#define WEIGHTS_4(i) WEIGHT(i), WEIGHT((i) + 1), WEIGHT((i) + 2), WEIGHT((i) + 3)
#define WEIGHTS_16(i) WEIGHTS_4(i), WEIGHTS_4((i) + 4), WEIGHTS_4((i) + 8), WEIGHTS_4((i) + 12)
#define WEIGHTS_64(i) \
    WEIGHTS_16(i), WEIGHTS_16((i) + 16), WEIGHTS_16((i) + 32), WEIGHTS_16((i) + 48)
#define WEIGHTS_256(i) \
    WEIGHTS_64(i), WEIGHTS_64((i) + 64), WEIGHTS_64((i) + 128), WEIGHTS_64((i) + 192)
#define WEIGHT CD_PROJECTION_WEIGHT
static const double weights[CD_PROJECTION_BLOCK_ELEMENTS] = {WEIGHTS_256(0), WEIGHTS_256(256),
                                                             WEIGHTS_256(512), WEIGHTS_256(768)};

/* The error of any order of these sums is bounded in verify/import/means.h. */
static void project(const char *x, int32_t dtype, int64_t count, cd_projection *p)
{
    float wide[CD_PROJECTION_BLOCK_ELEMENTS];
    const block_fn take = choose_block();
    const bool is_single = dtype != CDDP_F64;
    const size_t bytes = dtype == CDDP_C64 ? sizeof(float) : cddp_dtype_bytes((cddp_dtype)dtype);
    const int64_t block_elements = CD_PROJECTION_BLOCK_ELEMENTS;
    *p = (cd_projection){0};
    for (int64_t at = 0; at < count; at += block_elements) {
        const double weight = cd_projection_weight((uint32_t)(at / block_elements) + 7);
        const int64_t left = count - at < block_elements ? count - at : block_elements;
        const void *elements = widen(x + (size_t)at * bytes, dtype, left, wide);
        cd_projection block;
        take(elements, is_single, weights, left, &block);
        p->sum += weight * block.sum;
        p->magnitude += weight * block.magnitude;
    }
}

bool cd_projection_of(const void *elements, int64_t count, int32_t dtype, cd_projection *projection)
{
    if (dtype < 0 || dtype > CDDP_C64) return false;
    project(elements, dtype, dtype == CDDP_C64 ? 2 * count : count, projection);
    return true;
}

static bool is_possible(const cddp_tensor *t)
{
    return t != NULL && t->device != NULL && (t->device->flags & CDDP_DEVICE_HOST) != 0 &&
           (t->device->flags & CDDP_DEVICE_VALUES) != 0 && cddp_tensor_is_contiguous(t);
}

/* Only under a comm hook that casts. */
bool cd_projection_pair(const cddp_tensor *local, const cddp_tensor *result, cd_pair *pair)
{
    if (!is_possible(local) || !is_possible(result) ||
        cddp_tensor_numel(local) != cddp_tensor_numel(result) || local->dtype != result->dtype ||
        local->dtype == CDDP_C64)
        return false;
    const size_t bytes = cddp_dtype_bytes(local->dtype);
    const char *x = (const char *)local->storage + (size_t)local->offset * bytes;
    const char *y = (const char *)result->storage + (size_t)result->offset * bytes;
    const int64_t count = cddp_tensor_numel(local);
    float wide[2];
    *pair = (cd_pair){.numel = count};
    for (int64_t i = 0; i < count; i++) {
        double g, m;
        if (local->dtype == CDDP_F64) {
            g = ((const double *)x)[i];
            m = ((const double *)y)[i];
        } else {
            const size_t at = (size_t)i * bytes;
            g = (double)*(const float *)widen(x + at, (int32_t)local->dtype, 1, &wide[0]);
            m = (double)*(const float *)widen(y + at, (int32_t)local->dtype, 1, &wide[1]);
        }
        pair->given += m < 0 ? -g : m > 0 ? g : 0;
        pair->got += fabs(m);
        pair->magnitude += fabs(g);
    }
    return true;
}

bool cd_projection_take(const cddp_tensor *t, cd_projection *projection)
{
    if (!is_possible(t)) return false;
    const size_t begin = (size_t)t->offset * cddp_dtype_bytes(t->dtype);
    return cd_projection_of((const char *)t->storage + begin, cddp_tensor_numel(t),
                            (int32_t)t->dtype, projection);
}
