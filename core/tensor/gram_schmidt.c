/* SPDX-License-Identifier: Apache-2.0 */
/* Modified Gram-Schmidt on the columns of a matrix, with the sums of linalg.h. Not here: QR by reflections, which
** PyTorch prefers for f32 where LAPACK is present; its bits depend on the library. */
#include "core/tensor/linalg.h"

#include "core/base/error.h"

#include <math.h>

static double element(const cddp_tensor *m, int64_t row, int64_t column)
{
    int64_t at = m->offset + row * m->strides[0] + column * m->strides[1];
    return m->dtype == CDDP_F64 ? ((const double *)m->storage)[at] : (double)((const float *)m->storage)[at];
}

static void set_element(const cddp_tensor *m, int64_t row, int64_t column, double value)
{
    int64_t at = m->offset + row * m->strides[0] + column * m->strides[1];
    if (m->dtype == CDDP_F64)
        ((double *)m->storage)[at] = value;
    else
        ((float *)m->storage)[at] = (float)value;
}

/* Rows 0, 1, 2, … in order. */
static double product(const cddp_tensor *m, int64_t left, int64_t right)
{
    double sum = 0;
    for (int64_t row = 0; row < m->sizes[0]; row++) sum += element(m, row, left) * element(m, row, right);
    return sum;
}

static void normalize(const cddp_tensor *m, int64_t column, double epsilon)
{
    const double norm = sqrt(product(m, column, column)) + epsilon;
    for (int64_t row = 0; row < m->sizes[0]; row++)
        set_element(m, row, column, norm == 0 ? 0 : element(m, row, column) / norm);
}

static void subtract_projection(const cddp_tensor *m, int64_t column, int64_t from)
{
    const double size = product(m, column, from);
    for (int64_t row = 0; row < m->sizes[0]; row++)
        set_element(m, row, from, element(m, row, from) - size * element(m, row, column));
}

cddp_status cd_gram_schmidt(const cddp_tensor *matrix, double epsilon, cddp_error *err)
{
    CD_TRY(cd_view_check(matrix, "gram_schmidt", "matrix", err));
    if ((matrix->device->flags & CDDP_DEVICE_HOST) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "gram_schmidt: device %s has no host storage", matrix->device->name);
    if (matrix->dim_count != 2 || (matrix->dtype != CDDP_F32 && matrix->dtype != CDDP_F64))
        return cd_fail(err, CDDP_E_ARG, "gram_schmidt: a %s tensor with %u dimensions, not an f32 or f64 matrix",
                       cddp_dtype_name(matrix->dtype), matrix->dim_count);
    for (int64_t column = 0; column < matrix->sizes[1]; column++) {
        normalize(matrix, column, epsilon);
        for (int64_t later = column + 1; later < matrix->sizes[1]; later++) subtract_projection(matrix, column, later);
    }
    return CDDP_OK;
}
