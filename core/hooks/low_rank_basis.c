/* SPDX-License-Identifier: Apache-2.0 */
/* Random factors and Gram-Schmidt, on the host in f64, so that the dtype of the bucket costs one rounding. */
#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/hooks/low_rank_parts.h"
#include "core/tensor/math.h"

#include <math.h>

/* Below this part of its old length a column is what rounding left of the ones before it. */
#define DEPENDENT 1e-10

static cddp_status basis_reserve(cd_low_rank *s, int64_t numel, cddp_error *err)
{
    if ((size_t)numel <= s->basis_capacity) return CDDP_OK;
    cd_release(s->allocator, s->basis, s->basis_capacity * sizeof *s->basis);
    s->basis_capacity = 0;
    s->basis = cd_allocate(s->allocator, (size_t)numel * sizeof *s->basis);
    if (s->basis == NULL) return cd_fail(err, CDDP_E_NOMEM, "%s: no memory for a basis of %lld numbers", s->name, (long long)numel);
    s->basis_capacity = (size_t)numel;
    return CDDP_OK;
}

static cddp_tensor basis_view(const cd_low_rank *s, const cddp_tensor *matrix)
{
    return cddp_tensor_of(cddp_device_cpu(), s->basis, 0, CDDP_F64, matrix->sizes, matrix->dim_count);
}

/* Box and Muller: two uniforms to one normal. The first is in (0, 1], so its logarithm is finite. */
static double normal(cd_prng *prng)
{
    double u = ((double)(cd_prng_next(prng) >> 11) + 1.0) * 0x1p-53, v = (double)(cd_prng_next(prng) >> 11) * 0x1p-53;
    return sqrt(-2.0 * cd_log(u)) * cd_cospi(2.0 * v);
}

cddp_status cd_low_rank_fill_normal(cd_low_rank *s, const cddp_tensor *q, cd_prng *prng, cddp_error *err)
{
    int64_t numel = cddp_tensor_numel(q);
    CD_TRY(basis_reserve(s, numel, err));
    for (int64_t i = 0; i < numel; i++) s->basis[i] = normal(prng);
    cddp_tensor from = basis_view(s, q);
    CD_TRY(q->device->copy(q, &from, NULL, err));
    return CDDP_OK;
}

/* Four running sums over rows i mod 4, then (0 + 1) + (2 + 3); a and b are columns of one row-major matrix. */
static double dot(const double *a, const double *b, int64_t rows, int64_t stride)
{
    double sum[4] = {0, 0, 0, 0};
    for (int64_t i = 0; i < rows; i++) sum[i % 4] += a[i * stride] * b[i * stride];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

cddp_status cd_low_rank_orthogonalize(cd_low_rank *s, const cddp_tensor *matrix, cddp_error *err)
{
    int64_t rows = matrix->sizes[0], rank = matrix->sizes[1];
    CD_TRY(basis_reserve(s, rows * rank, err));
    cddp_tensor f64 = basis_view(s, matrix);
    CD_TRY(matrix->device->copy(&f64, matrix, NULL, err));
    double *b = s->basis;
    for (int64_t j = 0; j < rank; j++) {
        double before = sqrt(dot(b + j, b + j, rows, rank));
        /* Twice, because one pass leaves what cancellation lost (Kahan: "twice is enough"). */
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t k = 0; k < j; k++) {
                double along = dot(b + k, b + j, rows, rank);
                for (int64_t i = 0; i < rows; i++) b[i * rank + j] -= along * b[i * rank + k];
            }
        }
        double length = sqrt(dot(b + j, b + j, rows, rank));
        bool depends = length <= before * DEPENDENT; /* false for NaN, which must stay visible */
        double scale = depends ? 0.0 : 1.0 / (length + s->settings.epsilon);
        for (int64_t i = 0; i < rows; i++) b[i * rank + j] = depends ? 0.0 : b[i * rank + j] * scale;
    }
    CD_TRY(matrix->device->copy(matrix, &f64, NULL, err));
    return CDDP_OK;
}
