/* SPDX-License-Identifier: Apache-2.0 */
/* A dynamic loss scaler, as torch.cuda.amp.GradScaler: scale the loss, unscale the gradients, skip
** the step when one of them is not finite, back off then, grow after a number of good steps.
**
**     cd_loss_scaler_get_scale → loss × scale → backward → cd_loss_scaler_unscale (once per optimizer)
**     → step only when its *found_inf is false → cd_loss_scaler_update (once, after all optimizers)
**
** Lifetime   a plain value; init, then use.   Threads  one.   Errors  CDDP_E_STATE for calls out of order.
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
#define CD_LOSS_SCALER_OPTIMIZERS_MAX 32

typedef struct cd_loss_scaler {
    cd_loss_scaler_options options;
    float scale;             /* f32, as PyTorch keeps it */
    uint64_t growth_tracker; /* good updates since the last change */
    uint32_t unscaled;       /* bit per optimizer: unscaled since the last update */
    bool found_inf;          /* by any of them */
} cd_loss_scaler;

cddp_status cd_loss_scaler_init(cd_loss_scaler *scaler, const cd_loss_scaler_options *options,
                                cddp_error *err) CDDP_MUST_CHECK;
double cd_loss_scaler_get_scale(const cd_loss_scaler *scaler);
/* Multiplies every defined gradient by fl32(1/scale). `optimizer` (its number) may be unscaled once
** per update. *found_inf: a gradient held an infinity or NaN before. */
cddp_status cd_loss_scaler_unscale(cd_loss_scaler *scaler, uint32_t optimizer,
                                   cddp_grad *const *grads, size_t count, bool *found_inf,
                                   cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_loss_scaler_update(cd_loss_scaler *scaler, cddp_error *err) CDDP_MUST_CHECK;

cddp_status cd_loss_scaler_save(const cd_loss_scaler *scaler, const cddp_state_writer *writer,
                                cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_loss_scaler_load(cd_loss_scaler *scaler, const cddp_state_reader *reader,
                                cddp_error *err) CDDP_MUST_CHECK;
