/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor times fixed weights: sums of projections over ranks show whether a reduction made the
** mean of what entered, without its content.
**
** Errors     a tensor that is not in host memory, not contiguous, or of another dtype than f32 and
**            f64 has none.
*/
#pragma once
#include "cddp/device.h"

typedef struct cd_projection {
    double sum;       /* Σ w·x */
    double magnitude; /* Σ |w·x| */
} cd_projection;

/* The weight of element i, in [1, 2): of many bits, so that values cannot cancel by luck. */
static inline double cd_projection_weight(uint32_t i)
{
    return 1.0 + (double)(int32_t)((i * UINT32_C(2654435769)) >> 9) * 0x1p-23;
}

bool cd_projection_take(const cddp_tensor *tensor, cd_projection *projection);
