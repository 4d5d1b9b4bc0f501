/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient clipping by global norm. */
#include "core/model/optim/clip.h"

#include "core/base/error.h"

#include <math.h>

cddp_status cd_clip_grad_norm(cddp_grad *const *grads, size_t count, double max_norm, double *total, cddp_error *err)
{
    double squares = 0;
    if (!(max_norm >= 0)) return cd_fail(err, CDDP_E_ARG, "clip_grad_norm: max_norm is %g", max_norm);
    for (size_t i = 0; i < count; i++) { /* in the order of the slots */
        const cddp_tensor *value = &grads[i]->value;
        double norm;
        if (grads[i]->kind == CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(value->device->norm(value, &norm, err));
        squares += norm * norm;
    }
    const double norm = sqrt(squares), ratio = max_norm / (norm + 1e-6);
    const double factor = ratio > 1 ? 1 : ratio; /* NaN stays */
    for (size_t i = 0; i < count; i++) {
        const cddp_tensor *value = &grads[i]->value;
        if (grads[i]->kind == CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(value->device->scale(value, value, factor, NULL, err));
    }
    if (total != NULL) *total = norm;
    return CDDP_OK;
}
