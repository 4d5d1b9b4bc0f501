/* SPDX-License-Identifier: Apache-2.0 */
/* A dynamic loss scaler, as torch.cuda.amp.GradScaler: scale the loss, unscale the gradients, skip
** the step when one of them is not finite, back off then, grow after a number of good steps.
**
**     cd_loss_scaler_get_scale → loss × scale → backward
**     → cd_loss_scaler_unscale (once per optimizer)
**     → step only when its *found_inf is false → cd_loss_scaler_update (once, after all optimizers)
**
** Lifetime   a plain value; init, then use.
** Threads    one.
** Errors     CDDP_E_STATE for calls out of order.
*/
#pragma once
#include "cddp/device.h"
#include "cddp/hook.h"

typedef struct cd_loss_scaler_options {
    double init_scale;        /* 65536 */
    double growth_factor;     /* 2, > 1 */
    double backoff_factor;    /* 0.5, < 1 */
    uint64_t growth_interval; /* 2000 */
} cd_loss_scaler_options;

#define CD_LOSS_SCALER_OPTIONS_INIT \
    {                               \
        65536.0, 2.0, 0.5, 2000     \
    }

typedef struct cd_loss_scaler {
    cd_loss_scaler_options options;
    float scale;             /* f32, as PyTorch keeps it */
    uint64_t growth_tracker; /* good updates since the last change */
    uint64_t updates;        /* so far, loading included */
    bool has_unscaled;       /* an optimizer's gradients, since the last update */
    bool found_inf;          /* by any of them */
} cd_loss_scaler;

/* What a scaler remembers of one optimizer. The caller keeps one for each. */
typedef struct cd_scaled_optimizer {
    uint32_t number;   /* for messages */
    uint64_t unscaled; /* updates + 1 of the scaler when it was last unscaled; 0: never */
} cd_scaled_optimizer;

cddp_status cd_loss_scaler_init(cd_loss_scaler *scaler, const cd_loss_scaler_options *options,
                                cddp_error *err) CDDP_MUST_CHECK;
double cd_loss_scaler_get_scale(const cd_loss_scaler *scaler);
/* Multiplies every defined gradient by fl32(1/scale). An optimizer may be unscaled once per update.
** *found_inf: a gradient held an infinity or NaN before. */
cddp_status cd_loss_scaler_unscale(cd_loss_scaler *scaler, cd_scaled_optimizer *optimizer,
                                   cddp_grad *const *grads, size_t count, bool *found_inf,
                                   cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_loss_scaler_update(cd_loss_scaler *scaler, cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_loss_scaler_save(const cd_loss_scaler *scaler, const cddp_state_writer *writer,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_loss_scaler_load(cd_loss_scaler *scaler, const cddp_state_reader *reader,
                                cddp_error *err) CDDP_MUST_CHECK;
