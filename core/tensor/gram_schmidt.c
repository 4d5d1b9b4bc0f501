/* SPDX-License-Identifier: Apache-2.0 */
/* Modified Gram-Schmidt on the columns of a matrix, with the sums of linalg.h. Not here: QR by
** reflections, which PyTorch prefers for f32 where LAPACK is present; its bits depend on the
** library. */
#include "core/tensor/linalg.h"

#include <math.h>

/* a and b are columns of one row-major matrix. */
static double dot(const double *a, const double *b, int64_t rows, int64_t stride)
{
    double sum[4] = {0, 0, 0, 0}, lane[CD_ORTHONORMAL_LANES] = {0};
    if (rows <= CD_ORTHONORMAL_LANES) {
        for (int64_t i = 0; i < rows; i++) sum[i % 4] += a[i * stride] * b[i * stride];
    } else {
        for (int64_t i = 0; i < rows; i++)
            lane[i % CD_ORTHONORMAL_LANES] += a[i * stride] * b[i * stride];
        for (int64_t l = 0; l < CD_ORTHONORMAL_LANES; l++) sum[l % 4] += lane[l];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void cd_orthonormalize(double *b, int64_t rows, int64_t columns, double epsilon)
{
    for (int64_t j = 0; j < columns; j++) {
        double before = sqrt(dot(b + j, b + j, rows, columns));
        /* Twice, because one pass leaves what cancellation lost (Kahan: "twice is enough"). */
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t k = 0; k < j; k++) {
                double along = dot(b + k, b + j, rows, columns);
                for (int64_t i = 0; i < rows; i++) b[i * columns + j] -= along * b[i * columns + k];
            }
        }
        double length = sqrt(dot(b + j, b + j, rows, columns));
        /* false for NaN and infinities, which must stay visible: they are scaled to NaN */
        bool depends = isfinite(before) && length <= before * CD_ORTHONORMAL_DEPENDENT;
        double scale = depends ? 0.0 : 1.0 / (length + epsilon);
        for (int64_t i = 0; i < rows; i++)
            b[i * columns + j] = depends ? 0.0 : b[i * columns + j] * scale;
    }
}
