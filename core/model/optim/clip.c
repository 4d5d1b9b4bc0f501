/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient clipping by global norm. */
#include "core/model/optim/clip.h"

#include "core/base/error.h"

#include <math.h>

cddp_status cd_clip_add_squares(const cddp_grad *const *grads, size_t count, double *squares,
                                cddp_error *err)
{
    for (size_t i = 0; i < count; i++) { /* in the order of the slots */
        const cddp_tensor *value = &grads[i]->value;
        double norm;
        if (grads[i]->kind == CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(value->device->norm(value, &norm, err));
        *squares += norm * norm;
    }
    return CDDP_OK;
}

cddp_status cd_clip_add_norm(const cddp_grad *const *grads, size_t count, cd_p_norm *norm,
                             cddp_error *err)
{
    for (size_t i = 0; i < count; i++) /* in the order of the slots */
        if (grads[i]->kind != CDDP_GRAD_UNDEFINED)
            CD_TRY(cd_p_norm_add_tensor(norm, &grads[i]->value, err));
    return CDDP_OK;
}

double cd_clip_factor(double max_norm, double total)
{
    const double ratio = max_norm / (total + 1e-6);
    return ratio > 1 ? 1 : ratio; /* NaN stays */
}

cddp_status cd_clip_scale(cddp_grad *const *grads, size_t count, double factor, cddp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const cddp_tensor *value = &grads[i]->value;
        if (grads[i]->kind == CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(value->device->scale(value, value, factor, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_clip_grad_norm(cddp_grad *const *grads, size_t count, double max_norm, double *total,
                              cddp_error *err)
{
    double squares = 0;
    if (!(max_norm >= 0))
        return cd_fail(err, CDDP_E_ARG, "clip_grad_norm: max_norm is %g", max_norm);
    CD_TRY(cd_clip_add_squares((const cddp_grad *const *)grads, count, &squares, err));
    CD_TRY(cd_clip_scale(grads, count, cd_clip_factor(max_norm, sqrt(squares)), err));
    if (total != NULL) *total = sqrt(squares);
    return CDDP_OK;
}
