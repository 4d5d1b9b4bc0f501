/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a step: unscale, clip, step every optimizer that is due, average. The watcher sees the
** gradients before and the parameters after. */
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/train/points.h"
#include "core/train/schedule.h"

#include <math.h>
#include <stdio.h>

/* ---- what the watcher sees ---- */

/* When what was queued on the default stream has taken effect. */
static cddp_status show_reduction(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    if (t->view.watcher == NULL && !cd_tracer_wants_digest(t->tracer)) return CDDP_OK;
    CD_TRY(cd_streams_look(&t->streams, err));
    if (t->sharding != NULL) CD_TRY(cd_sharding_collect(t, err));
    cd_watched_reduction reduction = {.micro = last,
                                      .hook = t->reduction.hook,
                                      .inner_hook = t->reduction.inner_hook,
                                      .divides_after = t->reduction.divides_after,
                                      .wire = t->reduction.wire,
                                      .values = cd_trainer_refresh_views(t)};
    reduction.block_count = cd_trainer_get_block(t);
    if (t->view.watcher != NULL && !CD_POINT_SKIPS("shown.reduction", t))
        CD_TRY(t->view.watcher->ops->reduced(t->view.watcher->self, &reduction, err));
    return CD_PASS(cd_trainer_show(t, CDDP_MOMENT_AFTER_BACKWARD, err));
}

cddp_status cd_trainer_close_window(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    t->now.begins_window = true;
    const cddp_status status = show_reduction(t, micro, err);
    t->now.begins_window = false;
    return CD_PASS(status);
}

static cddp_status show_update(cd_trainer *t, cddp_error *err)
{
    bool has_stepped = false;
    for (size_t i = 0; i < t->replica->optimizer_count; i++)
        has_stepped |= t->optimizers[i].is_due && !t->optimizers[i].has_overflowed;
    if (t->sharding != NULL && has_stepped && cd_tracer_wants_digest(t->tracer))
        CD_TRY(cd_sharding_collect(t, err));
    if (t->view.watcher == NULL || !has_stepped) return CDDP_OK;
    if (CD_POINT_SKIPS("shown.update", t)) return CDDP_OK;
    if (t->sharding != NULL && !cd_tracer_wants_digest(t->tracer))
        CD_TRY(cd_sharding_collect(t, err));
    const cd_watched_update update = {.step = t->now.step,
                                      .replica = t->replica,
                                      .values = cd_trainer_refresh_views(t)};
    CD_TRY(t->view.watcher->ops->updated(t->view.watcher->self, &update, err));
    return CDDP_OK;
}

/* ---- the update ---- */

/* The mark's number: bit per optimizer, those beyond 62 in the last one. */
static cddp_status unscale(cd_trainer *t, cd_trainer_decision *decision, cddp_error *err)
{
    int64_t overflowed = 0;
    decision->is_unscaled = true;
    if (t->program.settings.amp.enable)
        decision->loss_scale = cd_loss_scaler_get_scale(&t->scaling.scaler);
    for (size_t i = 0; t->program.settings.amp.enable && i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        cd_trainer_optimizer *own = &t->optimizers[i];
        if (own->is_due) {
            CD_TRY(cd_loss_scaler_unscale(&t->scaling.scaler, &own->scaled, o->grads, o->count,
                                          &own->has_overflowed, err));
        }
        CD_POINT_FLAG("step.overflowed", t, own->has_overflowed);
        if (own->has_overflowed) overflowed |= INT64_C(1) << (i < 62 ? i : 62);
    }
    if (overflowed != 0) cd_trainer_emit_mark(t, "overflow", overflowed);
    return CDDP_OK;
}

static cddp_status prepare_gradients(cd_trainer *t, cd_trainer_decision *decision, cddp_error *err)
{
    const bool clips = t->clipping != NULL;
    bool is_first = t->program.settings.clip.place == CDDP_CLIP_BEFORE_UNSCALE;
    if (clips && t->program.settings.amp.enable) CD_POINT_FLAG("step.clips_first", t, is_first);
    if (clips && is_first) CD_TRY(cd_trainer_clip(t, decision, err));
    CD_TRY(unscale(t, decision, err));
    if (clips && !is_first) CD_TRY(cd_trainer_clip(t, decision, err));
    return CDDP_OK;
}

void cd_trainer_rescale(cd_trainer *t)
{
    t->scaling.scale = cd_loss_scaler_get_scale(&t->scaling.scaler);
    CD_POINT_NUMBER("step.loss_scale", t, t->scaling.scale);
}

void cd_trainer_emit_step(cd_trainer *t, size_t optimizer, const cd_trainer_decision *decision)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[optimizer];
    CD_EMIT(t->tracer, optimizer_step, o->name, .optimizer = (int64_t)optimizer,
            .skipped = decision->skipped, .lr = cd_f64_bits(cd_optimizer_get_lr(o->optimizer)),
            .loss_scale = cd_f64_bits(decision->loss_scale), .clip = cd_f64_bits(decision->clip),
            .norm = cd_f64_bits(decision->norm),
            .unscaled_before_clip = !decision->is_clipped_first);
}

cddp_status cd_trainer_emit_touch(cd_trainer *t, size_t optimizer, size_t position, bool touched,
                                  cddp_error *err)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[optimizer];
    uint64_t digest = 0, gradient = 0;
    const int64_t held = cd_replica_find_piece(o, position);
    if (t->tracer == NULL || held < 0) return CDDP_OK;
    CD_TRY(cd_optimizer_state_digest(o->optimizer, (size_t)held, &digest, err));
    const cddp_tensor *whole = &cd_trainer_module(t)->parameters[o->ordinals[position]].tensor;
    const cddp_grad *consumed = o->grads[position];
    /* a piece is no parameter's gradient */
    const bool is_whole = t->sharding == NULL || consumed->kind == CDDP_GRAD_UNDEFINED ||
                          cddp_tensor_numel(&consumed->value) == cddp_tensor_numel(whole);
    if (cd_tracer_wants_digest(t->tracer) && is_whole)
        CD_TRY(cd_gradient_digest(consumed, &gradient, err));
    CD_EMIT(t->tracer, optimizer_touch, NULL, .optimizer = (int64_t)optimizer,
            .param = t->parameters[o->ordinals[position]].variable, .touched = touched,
            .state = (int64_t)digest, .gradient = (int64_t)gradient);
    return CDDP_OK;
}

/* One optimizer after the backward. */
static cddp_status step_optimizer(cd_trainer *t, size_t index, const cd_trainer_decision *all,
                                  cddp_error *err)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[index];
    cd_shard *shard = t->optimizers[index].shard;
    cd_trainer_decision decision = *all;
    decision.skipped = true;
    if (!t->optimizers[index].has_overflowed) {
        if (shard != NULL) CD_TRY(cd_shard_take_gradients(shard, err));
        CD_POINT_OPTIMIZER(t, o->optimizer);
        if (!CD_POINT_SKIPS("step.optimizer", t)) CD_TRY(cd_optimizer_step(o->optimizer, err));
        decision.skipped = false;
    }
    cd_trainer_emit_step(t, index, &decision);
    if (decision.skipped) return CDDP_OK;
    for (size_t k = 0; k < o->count; k++)
        CD_TRY(cd_trainer_emit_touch(t, index, k, o->grads[k]->kind != CDDP_GRAD_UNDEFINED, err));
    if (shard != NULL) CD_TRY(cd_shard_exchange(shard, t->groups.world, err));
    return CDDP_OK;
}

static cddp_status run_update(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    cd_trainer_decision decision = {.norm = NAN, .clip = 1.0, .loss_scale = t->scaling.scale};
    const size_t count = t->replica->optimizer_count;
    for (size_t i = 0; i < count; i++) {
        t->optimizers[i].is_due = cd_schedule_is_due(t->replica, i, t->now.step);
        CD_POINT_FLAG("step.due", t, t->optimizers[i].is_due);
        t->optimizers[i].has_overflowed = false;
        double lr = cd_schedule_lr(t->replica, i, t->now.step);
        if (!t->replica->optimizers[i].in_backward) CD_POINT_NUMBER("step.lr", t, lr);
        cd_optimizer_set_lr(t->replica->optimizers[i].optimizer, lr);
    }
    bool is_skipped = last->skip == CDDP_SKIP_STEP;
    CD_POINT_FLAG("step.skipped", t, is_skipped);
    if (is_skipped) {
        decision.skipped = true;
        for (size_t i = 0; i < count; i++) cd_trainer_emit_step(t, i, &decision);
        return CDDP_OK;
    }
    CD_TRY(prepare_gradients(t, &decision, err));
    CD_POINT_GRADIENTS("prepared.gradient", t);
    CD_POINT_PARAMETERS("before_update.parameter", t);
    CD_POINT_SLOTS("before_update.slot", t);
    if (!cd_trainer_steps_in_backward(t)) CD_TRY(cd_trainer_show(t, CDDP_MOMENT_BEFORE_STEP, err));
    CD_POINT_GRADIENTS("before_update.gradient", t);
    for (size_t i = 0; i < count; i++) {
        if (t->optimizers[i].is_due && !t->replica->optimizers[i].in_backward)
            CD_TRY(step_optimizer(t, i, &decision, err));
    }
    CD_TRY(cd_trainer_end_step_in_backward(t, err));
    CD_POINT_PARAMETERS("updated.parameter", t);
    CD_TRY(show_update(t, err));
    CD_POINT_PARAMETERS("after_update.parameter", t);
    CD_POINT_SLOTS("after_update.slot", t);
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_AFTER_UPDATE, err));
    if (t->program.settings.amp.enable) {
        CD_TRY(cd_loss_scaler_update(&t->scaling.scaler, err));
        if (last->early_step) cd_trainer_rescale(t); /* else when the next step begins */
    }
    return CDDP_OK;
}

/* On the host, and so must be the gradients. */
cddp_status cd_trainer_update(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    CD_TRY(cd_streams_lend(&t->streams, cd_trainer_module(t), err));
    const cddp_status status = run_update(t, last, err);
    cd_streams_take_back(&t->streams, cd_trainer_module(t));
    return status;
}

/* ---- the step ---- */

cddp_status cd_trainer_zero_grad(cd_trainer *t, cddp_error *err)
{
    cd_module *module = cd_trainer_module(t);
    if (t->program.settings.train.zero_grad == CDDP_ZERO_GRAD_KEEP) return CDDP_OK;
    if (CD_POINT_SKIPS("step.zero_grad", t)) return CDDP_OK;
    const bool to_none = t->program.settings.train.zero_grad == CDDP_ZERO_GRAD_NONE;
    CD_TRY(cd_module_zero_grad(module, to_none ? CD_ZERO_GRAD_TO_NONE : CD_ZERO_GRAD_TO_ZERO, err));
    if (t->sharding != NULL) CD_TRY(cd_sharding_zero_grad(t, to_none, err));
    for (size_t i = 0; i < module->parameter_count; i++) t->parameters[i].contributions = 0;
    CD_EMIT(t->tracer, zero_grad, NULL, .optimizer = -1, .to_none = to_none);
    return CDDP_OK;
}

static cddp_status touch_parameters(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++)
        CD_TRY(cd_tensor_add_number(&module->parameters[i].tensor, t->rank->rank + 1.0, err));
    return CDDP_OK;
}

cddp_status cd_trainer_step(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    if (!t->now.has_stepped) {
        CD_POINT_GRADIENTS("reduced.gradient", t);
        CD_TRY(show_reduction(t, last, err));
        CD_POINT_GRADIENTS("consumed.gradient", t);
        CD_TRY(cd_trainer_update(t, last, err));
    }
    if (t->averaging == NULL || !CD_POINT_SKIPS("step.average", t))
        CD_TRY(cd_trainer_average(t, err));
    CD_POINT_PARAMETERS("after_average.parameter", t);
    t->now.has_stepped = false;
    if (last->touch_parameters) CD_TRY(touch_parameters(t, err));
    CD_TRY(cd_trainer_show(t, CDDP_MOMENT_AFTER_STEP, err));
    CD_POINT_PARAMETERS("after_step.parameter", t);
    CD_POINT_SLOTS("after_step.slot", t);
    /* after the values were reported: the grid would hide a small difference */
    CD_TRY(t->sharding != NULL ? cd_sharding_regrid(t, err) : cd_replica_regrid(t->replica, err));
    CD_TRY(cd_trainer_zero_grad(t, err));
    CD_TRY(cd_trainer_run_collectives(t, CDDP_PLACE_AFTER_STEP, err));
    return CDDP_OK;
}
