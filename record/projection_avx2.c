/* SPDX-License-Identifier: Apache-2.0 */
/* CMake compiles this file with -mavx2, where the compiler can. */
#include "record/projection_kernel.h"

CD_PROJECTION_BLOCK(block_f32, float)
CD_PROJECTION_BLOCK(block_f64, double)

void cd_projection_block_avx2(const void *x, bool is_single, const double *weights, int64_t count,
                              cd_projection *p)
{
    if (is_single)
        block_f32(x, weights, count, p);
    else
        block_f64(x, weights, count, p);
}
