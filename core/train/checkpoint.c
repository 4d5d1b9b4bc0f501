/* SPDX-License-Identifier: Apache-2.0 */
/* Saving a trainer, throwing it away and loading it: everything that the rest of the training
** depends on.
**
** Saved, in this order: parameters, buffers, optimizers, the hook's state, the loss scaler, the
** averager's step. The sampler and the learning rates are functions of the step and need no state;
** the reducer starts again with its first layout.
**
** The states of hook, scaler and averager cannot be looked into. They are reported by the bytes
** that they would save at that moment: a part that loads less than it saved has other bytes
** afterwards.
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/train/points.h"

static cddp_status save_hook(cd_trainer *t, cd_blob *to, cddp_error *err)
{
    const cddp_state_writer writer = cd_blob_writer(to);
    if (t->reduction.hook != NULL && t->reduction.hook->save != NULL) {
        cd_tracer_call(t->tracer, t->reduction.hook->name, "save");
        const cddp_status status =
            t->reduction.hook->save(cddp_ddp_comm_hook_state(t->ddp), &writer, err);
        cd_tracer_call(t->tracer, NULL, NULL);
        CD_TRY(cd_blob_end(to, status, err));
    }
    return CDDP_OK;
}

static cddp_status save_scaler(cd_trainer *t, cd_blob *to, cddp_error *err)
{
    const cddp_state_writer writer = cd_blob_writer(to);
    if (t->program.settings.amp.enable)
        CD_TRY(cd_blob_end(to, cd_loss_scaler_save(&t->scaling.scaler, &writer, err), err));
    return CDDP_OK;
}

static cddp_status save_averager(cd_trainer *t, cd_blob *to, cddp_error *err)
{
    const cddp_state_writer writer = cd_blob_writer(to);
    CD_TRY(cd_blob_end(to, cd_trainer_save_averager(t, &writer, err), err));
    return CDDP_OK;
}

static cddp_status save(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    cd_blob_clear(&t->saved.all);
    for (size_t i = 0; i < module->parameter_count; i++)
        CD_TRY(cd_blob_push_tensor(&t->saved.all, &module->parameters[i].tensor, err));
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(cd_blob_push_tensor(&t->saved.all, &module->buffers[i].tensor, err));
    CD_TRY(cd_replica_save_optimizers(t->replica, &t->saved.all, err));
    CD_TRY(save_hook(t, &t->saved.all, err));
    CD_TRY(save_scaler(t, &t->saved.all, err));
    CD_TRY(save_averager(t, &t->saved.all, err));
    return CDDP_OK;
}

static cddp_status load(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const cddp_state_reader reader = cd_blob_reader(&t->saved.all);
    for (size_t i = 0; i < module->parameter_count; i++)
        CD_TRY(cd_blob_pop_tensor(&t->saved.all, &module->parameters[i].tensor, err));
    for (size_t i = 0; i < module->buffer_count; i++)
        CD_TRY(cd_blob_pop_tensor(&t->saved.all, &module->buffers[i].tensor, err));
    CD_TRY(cd_replica_load_optimizers(t->replica, &reader, err));
    if (t->reduction.hook != NULL && t->reduction.hook->load != NULL) {
        cd_tracer_call(t->tracer, t->reduction.hook->name, "load");
        const cddp_status status =
            t->reduction.hook->load(cddp_ddp_comm_hook_state(t->ddp), &reader, err);
        cd_tracer_call(t->tracer, NULL, NULL);
        CD_TRY(status);
    }
    if (t->program.settings.amp.enable)
        CD_TRY(cd_loss_scaler_load(&t->scaling.scaler, &reader, err));
    CD_TRY(cd_trainer_load_averager(t, &reader, err));
    return CDDP_OK;
}

static cddp_status report_state(cd_trainer *t, int64_t moment, int64_t what,
                                cddp_status (*save_part)(cd_trainer *, cd_blob *, cddp_error *),
                                cddp_error *err)
{
    if (!cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    cd_blob_clear(&t->saved.part);
    CD_TRY(save_part(t, &t->saved.part, err));
    if (t->saved.part.used > 0) {
        CD_EMIT(t->tracer, value, "", .what = what, .moment = moment,
                .presence = CDDP_PRESENCE_VALUE, .digest = (int64_t)cd_blob_digest(&t->saved.part),
                .param = -1, .nonfinite = -1);
    }
    return CDDP_OK;
}

cddp_status cd_trainer_emit_states(cd_trainer *t, int64_t moment, cddp_error *err)
{
    CD_TRY(report_state(t, moment, CDDP_WHAT_HOOK, save_hook, err));
    CD_TRY(report_state(t, moment, CDDP_WHAT_SCALER, save_scaler, err));
    CD_TRY(report_state(t, moment, CDDP_WHAT_AVERAGER, save_averager, err));
    return CDDP_OK;
}

/* own: what of a sharded model is not in the bytes of all; NULL: nothing */
static void report_bytes(cd_trainer *t, bool loaded, uint32_t steps_done, const cd_blob *own)
{
    const uint64_t all = cd_blob_digest(&t->saved.all);
    const bool has_own = own != NULL && own->used > 0;
    const uint64_t digest = has_own ? cd_hash_mix(all, cd_blob_digest(own)) : all;
    CD_EMIT(t->tracer, checkpoint, "parameters, buffers, optimizers, hook, scaler, averager",
            .loaded = loaded, .digest = (int64_t)digest, .step = steps_done);
}

static cddp_status report(cd_trainer *t, bool loaded, uint32_t steps_done, const cd_blob *own,
                          cddp_error *err)
{
    const cddp_event_enum_moment moment = loaded ? CDDP_MOMENT_RESUME : CDDP_MOMENT_CHECKPOINT;
    report_bytes(t, loaded, steps_done, own);
    return CD_PASS(cd_trainer_show(t, moment, err));
}

/* FST-09 */
static void change_sharding(cddp_plan_fsdp *p)
{
    if (p->resume_strategy != CDDP_SHARDING_RESUMES_SAME) {
        p->sharding_strategy = p->resume_strategy - 1;
        p->shard_group_size = p->resume_shard_group_size;
    }
    if (p->resume_layout != CDDP_SHARDING_RESUMES_SAME_LAYOUT) p->layout = p->resume_layout - 1;
}

static cddp_status resume_sharded(cd_trainer *t, cd_sharding_saved *saved, uint32_t steps_done,
                                  cddp_error *err)
{
    cd_trainer_drop(t);
    change_sharding(&t->program.settings.fsdp);
    CD_TRY(cd_trainer_build(t, err));
    report_bytes(t, true, steps_done, &saved->buffers); /* what other ranks saved comes into them */
    CD_TRY(cd_sharding_load(t, saved, err));
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_RESUME, err));
    cd_trainer_emit_mark(t, "resumed", steps_done);
    return CDDP_OK;
}

static cddp_status checkpoint_sharded(cd_trainer *t, uint32_t steps_done, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_sharding_saved saved = {.steps = NULL};
    CD_TRY_OUT(cd_sharding_save(t, &saved, err));
    CD_TRY_OUT(report(t, false, steps_done, &saved.buffers, err));
    if (t->program.settings.train.resume) CD_TRY_OUT(resume_sharded(t, &saved, steps_done, err));
out:
    cd_sharding_saved_fini(&saved);
    return status;
}

cddp_status cd_trainer_checkpoint(cd_trainer *t, uint32_t steps_done, cddp_error *err)
{
    if (t->program.settings.train.checkpoint_step != steps_done) return CDDP_OK;
    if (t->sharding != NULL) return CD_PASS(checkpoint_sharded(t, steps_done, err));
    CD_TRY(save(t, err));
    CD_POINT_PARAMETERS("checkpoint.parameter", t);
    CD_TRY(report(t, false, steps_done, NULL, err));
    if (t->program.settings.train.resume) {
        cd_trainer_drop(t);
        CD_TRY(cd_trainer_build(t, err));
        CD_TRY(load(t, err));
        CD_POINT_PARAMETERS("load.parameter", t);
        CD_POINT_BUFFERS("load.buffer", t);
        CD_POINT_SLOTS("load.slot", t);
        CD_TRY(report(t, true, steps_done, NULL, err));
        CD_POINT_PARAMETERS("resume.parameter", t);
        CD_POINT_SLOTS("resume.slot", t);
        cd_trainer_emit_mark(t, "resumed", steps_done);
    }
    return CDDP_OK;
}
