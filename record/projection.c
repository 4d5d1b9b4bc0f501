/* SPDX-License-Identifier: Apache-2.0 */
#include "record/projection.h"

#include <math.h>

/* Eight sums at a time, so that the compiler can use vectors; the error of any order is bounded in
** verify/import/means.h. */
#define LANES 8

#define PROJECT(type)                                                                           \
    static void project_##type(const type *x, int64_t count, cd_projection *p)                  \
    {                                                                                           \
        double sums[LANES] = {0}, magnitudes[LANES] = {0};                                      \
        int64_t i = 0;                                                                          \
        for (; i + LANES <= count; i += LANES)                                                  \
            for (int k = 0; k < LANES; k++) {                                                   \
                const double term = (double)x[i + k] * cd_projection_weight((uint32_t)(i + k)); \
                sums[k] += term;                                                                \
                magnitudes[k] += fabs(term);                                                    \
            }                                                                                   \
        for (; i < count; i++) {                                                                \
            const double term = (double)x[i] * cd_projection_weight((uint32_t)i);               \
            sums[0] += term;                                                                    \
            magnitudes[0] += fabs(term);                                                        \
        }                                                                                       \
        *p = (cd_projection){0};                                                                \
        for (int k = 0; k < LANES; k++) {                                                       \
            p->sum += sums[k];                                                                  \
            p->magnitude += magnitudes[k];                                                      \
        }                                                                                       \
    }
PROJECT(float)
PROJECT(double)

bool cd_projection_take(const cddp_tensor *t, cd_projection *projection)
{
    if (t == NULL || t->device == NULL || (t->device->flags & CDDP_DEVICE_HOST) == 0 ||
        (t->device->flags & CDDP_DEVICE_VALUES) == 0 || !cddp_tensor_is_contiguous(t))
        return false;
    const int64_t count = cddp_tensor_numel(t);
    if (t->dtype == CDDP_F32)
        project_float((const float *)t->storage + t->offset, count, projection);
    else if (t->dtype == CDDP_F64)
        project_double((const double *)t->storage + t->offset, count, projection);
    else
        return false;
    return true;
}
