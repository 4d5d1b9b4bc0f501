/* SPDX-License-Identifier: Apache-2.0 */
/* Random factors and Gram-Schmidt, in f64, so that the dtype of the bucket costs one rounding.
** Factors are drawn on the host; a device whose memory is its own orthonormalises there. */
#include "cddp/device.h"
#include "core/base/error.h"
#include "core/hooks/host.h"
#include "core/hooks/low_rank_parts.h"
#include "core/tensor/linalg.h"
#include "core/tensor/math.h"

#include <math.h>

static cddp_status basis_reserve(cd_low_rank *s, int64_t numel, cddp_error *err)
{
    return CD_PASS(
        cd_host_memory_reserve(s->arena.allocator, &s->basis, (size_t)numel * sizeof(double), err));
}

static cddp_tensor basis_view(const cd_low_rank *s, const cddp_tensor *matrix)
{
    return cddp_tensor_of(cddp_device_cpu(), s->basis.block, 0, CDDP_F64, matrix->sizes,
                          matrix->dim_count);
}

/* To another device the numbers go in its dtype, rounded as a copy rounds them. */
cddp_status cd_low_rank_bring(cd_low_rank *s, const cddp_tensor *to, const cddp_tensor *from,
                              cddp_error *err)
{
    if (from->device == to->device || !cd_host_is_away(to->device))
        return CD_PASS(to->device->copy(to, from, NULL, err));
    int64_t numel = cddp_tensor_numel(to);
    size_t bytes = (size_t)numel * cddp_dtype_bytes(to->dtype);
    CD_TRY(cd_host_memory_reserve(s->arena.allocator, &s->staging, bytes, err));
    cddp_tensor staged = cd_host_memory_tensor(&s->staging, to->dtype, numel),
                flat = cddp_tensor_of(from->device, from->storage, from->offset, from->dtype,
                                      &numel, 1);
    CD_TRY(flat.device->copy(&staged, &flat, NULL, err));
    return CD_PASS(to->device->write(to, s->staging.block, bytes, err));
}

/* Box and Muller: two uniforms to one normal. The first is in (0, 1], so its logarithm is
** finite. */
static double normal(cd_prng *prng)
{
    double u = ((double)(cd_prng_next(prng) >> 11) + 1.0) * 0x1p-53,
           v = (double)(cd_prng_next(prng) >> 11) * 0x1p-53;
    return sqrt(-2.0 * cd_log(u)) * cd_cospi(2.0 * v);
}

cddp_status cd_low_rank_fill_normal(cd_low_rank *s, const cddp_tensor *q, cd_prng *prng,
                                    cddp_error *err)
{
    int64_t numel = cddp_tensor_numel(q);
    CD_TRY(basis_reserve(s, numel, err));
    for (int64_t i = 0; i < numel; i++) ((double *)s->basis.block)[i] = normal(prng);
    cddp_tensor from = basis_view(s, q);
    return CD_PASS(cd_low_rank_bring(s, q, &from, err));
}

cddp_status cd_low_rank_orthogonalize(cd_low_rank *s, const cddp_tensor *matrix, cddp_error *err)
{
    int64_t rows = matrix->sizes[0], rank = matrix->sizes[1];
    if (cd_host_is_away(matrix->device))
        return CD_PASS(matrix->device->orthonormalize(matrix, s->settings.epsilon, NULL, err));
    CD_TRY(basis_reserve(s, rows * rank, err));
    cddp_tensor f64 = basis_view(s, matrix);
    CD_TRY(matrix->device->copy(&f64, matrix, NULL, err));
    cd_orthonormalize(s->basis.block, rows, rank, s->settings.epsilon);
    CD_TRY(matrix->device->copy(matrix, &f64, NULL, err));
    return CDDP_OK;
}
