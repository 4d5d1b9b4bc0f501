/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic loss scaler. */
#include "core/model/optim/loss_scaler.h"

#include "core/base/error.h"
#include "core/tensor/saved.h"

#include <float.h>

#include <inttypes.h>

cddp_status cd_loss_scaler_init(cd_loss_scaler *scaler, const cd_loss_scaler_options *options,
                                cddp_error *err)
{
    if (!(options->init_scale > 0) || !(options->growth_factor > 1) ||
        !(options->backoff_factor > 0) || !(options->backoff_factor < 1) ||
        options->growth_interval == 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "loss scaler: scale %g (> 0), growth %g (> 1) every %" PRIu64
                       " (> 0) updates, backoff %g (0…1)",
                       options->init_scale, options->growth_factor, options->growth_interval,
                       options->backoff_factor);
    *scaler = (cd_loss_scaler){.options = *options, .scale = (float)options->init_scale};
    return CDDP_OK;
}

double cd_loss_scaler_get_scale(const cd_loss_scaler *scaler) { return (double)scaler->scale; }

cddp_status cd_loss_scaler_unscale(cd_loss_scaler *scaler, cd_scaled_optimizer *optimizer,
                                   cddp_grad *const *grads, size_t count, bool *found_inf,
                                   cddp_error *err)
{
    if (optimizer->unscaled == scaler->updates + 1)
        return cd_fail(err, CDDP_E_STATE,
                       "loss scaler: optimizer %u has already been unscaled since the last update",
                       optimizer->number);
    const double inverse = (double)(float)(1.0 / (double)scaler->scale);
    bool found = false;
    for (size_t i = 0; i < count; i++) {
        const cddp_tensor *value = &grads[i]->value;
        int64_t index;
        if (grads[i]->kind == CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(value->device->find_nonfinite(value, &index, err));
        CD_TRY(value->device->scale(value, value, inverse, NULL, err));
        found = found || index >= 0;
    }
    optimizer->unscaled = scaler->updates + 1;
    scaler->has_unscaled = true;
    scaler->found_inf = scaler->found_inf || found;
    *found_inf = found;
    return CDDP_OK;
}

cddp_status cd_loss_scaler_update(cd_loss_scaler *scaler, cddp_error *err)
{
    const cd_loss_scaler_options *o = &scaler->options;
    if (!scaler->has_unscaled)
        return cd_fail(err, CDDP_E_STATE,
                       "loss scaler: update without an unscaled optimizer since the last update");
    if (scaler->found_inf) {
        scaler->scale = (float)((double)scaler->scale * o->backoff_factor);
        scaler->growth_tracker = 0;
    } else if (++scaler->growth_tracker >= o->growth_interval) {
        const float grown = (float)((double)scaler->scale * o->growth_factor);
        if (grown - grown == 0) scaler->scale = grown; /* an infinite scale is not taken */
        scaler->growth_tracker = 0;
    }
    scaler->has_unscaled = false;
    scaler->updates++;
    scaler->found_inf = false;
    return CDDP_OK;
}

/* Between updates only: what is unscaled belongs to a step that is not finished. */
cddp_status cd_loss_scaler_save(const cd_loss_scaler *scaler, const cddp_state_writer *writer,
                                cddp_error *err)
{
    const double scale = (double)scaler->scale;
    cd_state_out out = {.writer = writer, .who = "loss scaler"};
    CD_TRY(cd_state_put(&out, &scale, sizeof scale, err));
    CD_TRY(cd_state_put(&out, &scaler->growth_tracker, sizeof scaler->growth_tracker, err));
    return CD_PASS(cd_state_put_seal(&out, err));
}

cddp_status cd_loss_scaler_load(cd_loss_scaler *scaler, const cddp_state_reader *reader,
                                cddp_error *err)
{
    double saved;
    uint64_t tracker;
    cd_state_in in = {.reader = reader, .who = "loss scaler"};
    CD_TRY(cd_state_get(&in, &saved, sizeof saved, err));
    CD_TRY(cd_state_get(&in, &tracker, sizeof tracker, err));
    CD_TRY(cd_state_check_seal(&in, err));
    const float scale = saved > 0 && saved <= (double)FLT_MAX ? (float)saved : 0;
    if (!(scale > 0) || (double)scale != saved) /* an f32 was saved */
        return cd_fail(err, CDDP_E_CORRUPT, "loss scaler: the saved scale is %g", saved);
    scaler->scale = scale;
    scaler->growth_tracker = tracker;
    scaler->has_unscaled = false;
    scaler->updates++;
    scaler->found_inf = false;
    return CDDP_OK;
}
