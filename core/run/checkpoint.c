/* SPDX-License-Identifier: Apache-2.0 */
/* Saving a trainer, throwing it away and loading it: everything that the rest of the training depends on.
**
** Saved, in this order: parameters, buffers, optimizers, the hook's state, the loss scaler, the averager's step. The sampler and the
** learning rates are functions of the step and need no state; the reducer starts again with its first layout.
*/
#include "core/run/trainer.h"

#include "core/base/error.h"

static cddp_status save(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    cd_blob_clear(&t->checkpoint);
    const cddp_state_writer writer = cd_blob_writer(&t->checkpoint);
    for (size_t i = 0; i < module->parameter_count; i++) {
        CD_TRY(cd_blob_push_tensor(&t->checkpoint, &module->parameters[i].tensor, err));
    }
    for (size_t i = 0; i < module->buffer_count; i++) {
        CD_TRY(cd_blob_push_tensor(&t->checkpoint, &module->buffers[i].tensor, err));
    }
    CD_TRY(cd_replica_save_optimizers(t->replica, &t->checkpoint, err));
    if (t->hook != NULL && t->hook->save != NULL) {
        CD_TRY(cd_blob_end(&t->checkpoint, t->hook->save(cddp_ddp_comm_hook_state(t->ddp), &writer, err), err));
    }
    if (t->settings.amp.enable) {
        CD_TRY(cd_blob_end(&t->checkpoint, cd_loss_scaler_save(&t->scaler, &writer, err), err));
    }
    CD_TRY(cd_blob_end(&t->checkpoint, cd_trainer_save_averager(t, &writer, err), err));
    return CDDP_OK;
}

static cddp_status load(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const cddp_state_reader reader = cd_blob_reader(&t->checkpoint);
    for (size_t i = 0; i < module->parameter_count; i++) {
        CD_TRY(cd_blob_pop_tensor(&t->checkpoint, &module->parameters[i].tensor, err));
    }
    for (size_t i = 0; i < module->buffer_count; i++) {
        CD_TRY(cd_blob_pop_tensor(&t->checkpoint, &module->buffers[i].tensor, err));
    }
    CD_TRY(cd_replica_load_optimizers(t->replica, &reader, err));
    if (t->hook != NULL && t->hook->load != NULL) {
        CD_TRY(t->hook->load(cddp_ddp_comm_hook_state(t->ddp), &reader, err));
    }
    if (t->settings.amp.enable) {
        CD_TRY(cd_loss_scaler_load(&t->scaler, &reader, err));
        t->loss_scale = cd_loss_scaler_get_scale(&t->scaler);
    }
    CD_TRY(cd_trainer_load_averager(t, &reader, err));
    return CDDP_OK;
}

static cddp_status tell(cd_trainer *t, bool loaded, uint32_t steps_done, cddp_error *err)
{
    const cd_moment moment = loaded ? CD_MOMENT_RESUME : CD_MOMENT_CHECKPOINT;
    CD_EMIT(t->tracer, checkpoint, "parameters, buffers, optimizers, hook, scaler, averager", .loaded = loaded,
            .digest = (int64_t)cd_blob_digest(&t->checkpoint), .step = steps_done);
    CD_TRY(cd_trainer_tell_parameters(t, moment, err));
    CD_TRY(cd_trainer_tell_buffers(t, moment, err));
    CD_TRY(cd_trainer_tell_optimizers(t, moment, err));
    return CDDP_OK;
}

cddp_status cd_trainer_checkpoint(cd_trainer *t, uint32_t steps_done, cddp_error *err)
{
    if (t->settings.train.checkpoint_step != steps_done) {
        return CDDP_OK;
    }
    CD_TRY(save(t, err));
    CD_TRY(tell(t, false, steps_done, err));
    if (t->settings.train.resume) {
        cd_trainer_drop(t);
        CD_TRY(cd_trainer_build(t, err));
        CD_TRY(load(t, err));
        CD_TRY(tell(t, true, steps_done, err));
        cd_trainer_tell_mark(t, "resumed", steps_done);
    }
    return CDDP_OK;
}
