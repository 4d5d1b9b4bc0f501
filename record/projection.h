/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor times fixed weights: sums of projections over ranks show whether a reduction made the
** mean of what entered, without its content.
**
** Errors     a tensor that is not in host memory, not contiguous, or of an integer dtype has none.
*/
#pragma once
#include "cddp/device.h"

typedef struct cd_projection {
    double sum;       /* Σ w·x */
    double magnitude; /* Σ |w·x| */
} cd_projection;

/* The weight of element i is that of its place in its block times that of its block, both in
** [1, √2): of many bits, so that values cannot cancel by luck. */
#define CD_PROJECTION_BLOCK_ELEMENTS 1024
#define CD_PROJECTION_WEIGHT(i) \
    (1.0 + (double)(int32_t)(((uint32_t)(i)*UINT32_C(2654435769)) >> 9) * (0x1p-23 * 0.41421356))
static inline double cd_projection_weight(uint32_t i) { return CD_PROJECTION_WEIGHT(i); }

/* Of contiguous elements in memory. */
bool cd_projection_of(const void *elements, int64_t count, int32_t dtype,
                      cd_projection *projection);
bool cd_projection_take(const cddp_tensor *tensor, cd_projection *projection);

/* What a hook that rounds coarsely was given, beside its result m, which all ranks share: with the
** signs of m nothing cancels in Σ|m|, so a wrong divisor shows in any number of elements. */
typedef struct cd_pair {
    double given;     /* Σ sign(m)·g */
    double got;       /* Σ |m| */
    double magnitude; /* Σ |g| */
    int64_t numel;
} cd_pair;
bool cd_projection_pair(const cddp_tensor *local, const cddp_tensor *result, cd_pair *pair);

/* Of at most one block. The second one exists where CMake can compile it (CD_PROJECTION_AVX2). */
void cd_projection_block(const void *x, bool is_single, const double *weights, int64_t count,
                         cd_projection *projection);
void cd_projection_block_avx2(const void *x, bool is_single, const double *weights, int64_t count,
                              cd_projection *projection);
