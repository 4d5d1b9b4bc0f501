/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a step: judge the gradients, unscale, clip, step every optimizer that is due, judge
** the update, average. */
#include "core/train/trainer.h"

#include "core/base/error.h"

#include <math.h>
#include <stdio.h>

/* ---- what the oracle is told ---- */

static uint64_t count_backwards(const cd_trainer *t, const cddp_plan_settings *settings,
                                uint32_t rank, uint32_t step)
{
    uint64_t count = 0;
    for (uint32_t m = t->window_first; m < settings->train.micro_steps; m++) {
        cd_micro micro;
        cd_micro_resolve(t->plan, settings, (cd_micro_place){rank, step, m}, &micro);
        const uint64_t rounds =
            (uint64_t)micro.backwards * (micro.backward_each ? micro.forwards : 1u);
        count += cd_micro_contributes(&micro) ? rounds : 0;
        if (micro.sync) {
            break;
        }
    }
    return count;
}

/* All backwards of a window, over all ranks. */
static cddp_status count_contributions(const cd_trainer *t, uint32_t step, uint64_t *count,
                                       cddp_error *err)
{
    *count = 0;
    for (uint32_t rank = 0; rank < t->plan->world.size; rank++) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(t->plan, rank, &settings, err));
        *count += cd_rank_has_step(t->plan, &settings, rank, step)
                      ? count_backwards(t, &settings, rank, step)
                      : 0;
    }
    return CDDP_OK;
}

/* The divisor that the plan declares: the world, the ranks that still have inputs (JON-11), or all
** backwards. */
static cddp_status declared_divisor(const cd_trainer *t, uint32_t step, uint64_t *divisor,
                                    cddp_error *err)
{
    if (t->settings.ddp.average_contributions) {
        return CD_PASS(count_contributions(t, step, divisor, err));
    }
    *divisor = t->plan->world.size;
    if (!t->settings.join.enable || t->settings.join.divide_by_initial_world_size ||
        t->hook != NULL || t->divides_after) {
        return CDDP_OK; /* hooks ignore the effective world size (JON-13) */
    }
    *divisor = 0;
    for (uint32_t rank = 0; rank < t->plan->world.size; rank++) {
        cddp_plan_settings settings;
        CD_TRY(cddp_plan_rank_settings(t->plan, rank, &settings, err));
        *divisor += cd_rank_has_step(t->plan, &settings, rank, step);
    }
    return CDDP_OK;
}

/* GRD-17: where and how the division happens. */
static cd_oracle_division declared_division(const cd_trainer *t)
{
    const cddp_plan_ddp *ddp = &t->settings.ddp;
    if (t->divides_after || t->inner_hook != NULL) {
        return CD_ORACLE_DIVISION_ANY;
    }
    if (cd_trainer_is_before_start(t)) {
        return CD_ORACLE_DIVISION_TRUE;
    }
    if (t->hook != NULL) {
        return (t->hook->flags & CDDP_HOOK_CASTS_FIRST) != 0 ? CD_ORACLE_DIVISION_CAST
               : (t->hook->flags & CDDP_HOOK_EXACT) != 0     ? CD_ORACLE_DIVISION_TRUE
                                                             : CD_ORACLE_DIVISION_ANY;
    }
    if (ddp->batched_grad_copy) {
        return CD_ORACLE_DIVISION_TRUE;
    }
    /* In view mode a fresh gradient takes the copy path, a kept one is divided in place (GRD-06):
    ** all of them after the first step of a model that uses every parameter. */
    const cddp_plan_train *train = &t->settings.train;
    const bool is_fresh =
        t->window_first == 0 && (train->zero_grad == CDDP_ZERO_GRAD_NONE || t->step == 0);
    const bool is_kept = train->zero_grad != CDDP_ZERO_GRAD_NONE && t->step > 0 && !train->resume &&
                         !ddp->find_unused_parameters && !ddp->static_graph;
    if (!ddp->gradient_as_bucket_view || is_fresh) {
        return CD_ORACLE_DIVISION_RECIPROCAL;
    }
    return is_kept ? CD_ORACLE_DIVISION_TRUE : CD_ORACLE_DIVISION_ANY;
}

/* A cast is bounded by the rounding of its wire (HK-03), unless what it wraps is lossy itself;
** other lossy hooks state laws of their own. */
static bool hook_is_judged_by_its_law(const cd_trainer *t)
{
    const uint32_t lawful = CDDP_HOOK_LOSSY | CDDP_HOOK_NO_COMM;
    const bool is_cast = t->wire != CDDP_DTYPE_COUNT;
    if (cd_trainer_is_before_start(t)) {
        return false;
    }
    return (t->hook != NULL && !is_cast && (t->hook->flags & lawful) != 0) ||
           (t->inner_hook != NULL && (t->inner_hook->flags & lawful) != 0);
}

/* See Note [What a sample weighs] */
static const char *print_normalisation(const cd_trainer *t, char *text, size_t text_bytes)
{
    static const char *const losses[] = {"given weights",
                                         "its own samples",
                                         "nothing",
                                         "its own tokens",
                                         "the average number of samples",
                                         "the average number of tokens"};
    static const char *const objectives[] = {NULL, "the average number of samples",
                                             "the average number of tokens"};
    const cddp_plan_train *train = &t->settings.train;
    if (train->objective == CDDP_OBJECTIVE_AS_WRITTEN) {
        return NULL;
    }
    snprintf(text, text_bytes, "divided by %s, not by %s", losses[train->loss],
             objectives[train->objective]);
    return text;
}

/* The last micro-step of any rank: a batch that does not divide gives some of them one more. */
static uint32_t last_micro_step(const cd_trainer *t, uint32_t own)
{
    const uint64_t batch = t->plan->world.batch;
    return batch > 0 ? (uint32_t)((batch + t->plan->world.size - 1) / t->plan->world.size) - 1
                     : own;
}

static cddp_status judge_gradients(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    uint64_t divisor;
    char normalisation[160];
    const cddp_dtype low = cd_mixed_dtype(t->settings.mixed_precision.param_dtype);
    if (t->oracle == NULL) {
        return CDDP_OK;
    }
    CD_TRY(cd_trainer_show(t, err));
    CD_TRY(declared_divisor(t, last->place.step, &divisor, err));
    cd_oracle_reduction reduction = {.step = last->place.step,
                                     .micro_step = last->place.micro_step,
                                     .division = declared_division(t),
                                     .wire = t->wire,
                                     .normalisation = print_normalisation(t, normalisation,
                                                                          sizeof normalisation),
                                     .accumulates_low = low != CDDP_DTYPE_COUNT,
                                     .local = low,
                                     .lossy = hook_is_judged_by_its_law(t),
                                     .last_step = last_micro_step(t, last->place.micro_step),
                                     .separate = t->settings.ddp.accumulate_in_hook,
                                     .rounded_once = t->hook != NULL &&
                                                     (t->hook->flags & CDDP_HOOK_ROUNDED_ONCE) != 0,
                                     .loss_scale = t->loss_scale,
                                     .divisor = divisor,
                                     .micro_first = t->window_first,
                                     .gradients = t->grad_views};
    uint32_t first, ranks;
    if (cd_trainer_has_block(t, &first, &ranks)) { /* LSG-02: the true mean over the block */
        reduction.lossy = false;
        reduction.division = CD_ORACLE_DIVISION_TRUE;
        reduction.divisor = ranks;
        reduction.rank_first = first;
        reduction.rank_count = ranks < t->plan->world.size ? ranks : 0;
    }
    CD_TRY(cd_oracle_judge_gradients(t->oracle, &reduction, t->buffer_views, err));
    return CDDP_OK;
}

cddp_status cd_trainer_close_window(cd_trainer *t, const cd_micro *micro, cddp_error *err)
{
    CD_TRY(judge_gradients(t, micro, err));
    t->reductions++;
    t->window_first = micro->place.micro_step + 1;
    if (t->oracle != NULL) {
        CD_TRY(cd_oracle_begin_step(t->oracle, micro->place.step, t->views, t->grad_views, err));
    }
    return CDDP_OK;
}

/* ---- the update ---- */

cddp_status cd_trainer_keep_before(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; t->oracle != NULL && i < module->parameter_count; i++) {
        CD_TRY(module->device->copy(&t->before[i], &module->parameters[i].tensor, NULL, err));
    }
    if (t->oracle != NULL) {
        cd_blob_clear(&t->optimizer_state);
        CD_TRY(cd_replica_save_optimizers(t->replica, &t->optimizer_state, err));
    }
    return CDDP_OK;
}

static cddp_status judge_update(cd_trainer *t, uint32_t step, uint32_t stepped, cddp_error *err)
{
    if (t->oracle == NULL || stepped == 0) {
        return CDDP_OK;
    }
    cd_trainer_refresh_views(t);
    cd_replica_get_slots(t->replica, t->slots, t->slot_parameters);
    const cd_oracle_update before = {.step = step,
                                     .parameters = t->before,
                                     .gradients = t->grad_views};
    const cd_oracle_update after = {.step = step,
                                    .parameters = t->views,
                                    .gradients = t->grad_views,
                                    .state = {t->slots, t->slot_parameters, t->slot_count}};
    t->reference->due = t->free_reference->due = stepped;
    CD_TRY(cd_oracle_judge_update(t->oracle, &before, &after, err));
    return CDDP_OK;
}

typedef struct update {
    uint32_t due, overflowed; /* bit per optimizer */
    cd_trainer_decision decision;
} update;

static cddp_status unscale(cd_trainer *t, update *u, cddp_error *err)
{
    for (size_t i = 0; t->settings.amp.enable && i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        bool found_inf = false;
        if ((u->due >> i & 1u) != 0) {
            CD_TRY(cd_loss_scaler_unscale(&t->scaler, (uint32_t)i, o->grads, o->count, &found_inf,
                                          err));
        }
        u->overflowed |= found_inf ? 1u << i : 0u;
    }
    if (u->overflowed != 0) {
        cd_trainer_emit_mark(t, "overflow", (int64_t)u->overflowed);
    }
    return CDDP_OK;
}

static cddp_status prepare_gradients(cd_trainer *t, update *u, cddp_error *err)
{
    const bool clips = t->clipping != NULL;
    if (clips && t->settings.clip.place == CDDP_CLIP_BEFORE_UNSCALE) {
        CD_TRY(cd_trainer_clip(t, &u->decision, err));
    }
    CD_TRY(unscale(t, u, err));
    if (clips && t->settings.clip.place == CDDP_CLIP_AFTER_REDUCTION) {
        CD_TRY(cd_trainer_clip(t, &u->decision, err));
    }
    return CDDP_OK;
}

void cd_trainer_emit_step(cd_trainer *t, size_t optimizer, const cd_trainer_decision *decision)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[optimizer];
    CD_EMIT(t->tracer, optimizer_step, o->name, .optimizer = (int64_t)optimizer,
            .skipped = decision->skipped,
            .lr = cd_f64_bits(cd_replica_lr(t->replica, optimizer, t->step)),
            .loss_scale = cd_f64_bits(decision->loss_scale), .clip = cd_f64_bits(decision->clip),
            .norm = cd_f64_bits(decision->norm),
            .unscaled_before_clip = t->settings.clip.place != CDDP_CLIP_BEFORE_UNSCALE);
}

cddp_status cd_trainer_emit_touch(cd_trainer *t, size_t optimizer, size_t position, bool touched,
                                  cddp_error *err)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[optimizer];
    uint64_t digest = 0;
    const int64_t held = o->shard != NULL ? cd_shard_find(o->shard, position) : (int64_t)position;
    if (t->tracer == NULL || held < 0) {
        return CDDP_OK;
    }
    CD_TRY(cd_optimizer_state_digest(o->optimizer, (size_t)held, &digest, err));
    CD_EMIT(t->tracer, optimizer_touch, NULL, .optimizer = (int64_t)optimizer,
            .param = t->variables[o->ordinals[position]], .touched = touched,
            .state = (int64_t)digest);
    return CDDP_OK;
}

/* One optimizer after the backward. */
static cddp_status step_optimizer(cd_trainer *t, size_t index, const update *u, cddp_error *err)
{
    const cd_replica_optimizer *o = &t->replica->optimizers[index];
    cd_trainer_decision decision = u->decision;
    decision.skipped = (u->overflowed >> index & 1u) != 0;
    cd_trainer_emit_step(t, index, &decision);
    if (decision.skipped) {
        return CDDP_OK;
    }
    cd_optimizer_set_lr(o->optimizer, cd_replica_lr(t->replica, index, t->step));
    if (o->shard != NULL) {
        CD_TRY(cd_shard_take_gradients(o->shard, err));
    }
    CD_TRY(cd_optimizer_step(o->optimizer, err));
    for (size_t k = 0; k < o->count; k++) {
        CD_TRY(cd_trainer_emit_touch(t, index, k, o->grads[k]->kind != CDDP_GRAD_UNDEFINED, err));
    }
    if (o->shard != NULL) {
        CD_TRY(cd_shard_exchange(o->shard, t->group, err));
    }
    return CDDP_OK;
}

static cddp_status run_update(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    update u = {.decision = {.norm = NAN, .clip = 1.0, .loss_scale = t->loss_scale}};
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        u.due |= cd_replica_is_due(t->replica, i, t->step) ? 1u << i : 0u;
    }
    if (last->skip == CD_SKIP_STEP) {
        u.decision.skipped = true;
        for (size_t i = 0; i < t->replica->optimizer_count; i++) {
            cd_trainer_emit_step(t, i, &u.decision);
        }
        return CDDP_OK;
    }
    CD_TRY(prepare_gradients(t, &u, err));
    if (!cd_trainer_steps_in_backward(t)) {
        CD_TRY(cd_trainer_keep_before(t, err));
    }
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        if ((u.due >> i & 1u) != 0 && !t->replica->optimizers[i].in_backward) {
            CD_TRY(step_optimizer(t, i, &u, err));
        }
    }
    CD_TRY(cd_trainer_end_step_in_backward(t, u.due, err));
    CD_TRY(judge_update(t, t->step, u.due & ~u.overflowed, err));
    if (t->settings.amp.enable) {
        CD_TRY(cd_loss_scaler_update(&t->scaler, err));
        t->loss_scale = cd_loss_scaler_get_scale(&t->scaler);
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
    if (t->settings.train.zero_grad == CDDP_ZERO_GRAD_KEEP) {
        return CDDP_OK;
    }
    const bool to_none = t->settings.train.zero_grad == CDDP_ZERO_GRAD_NONE;
    CD_TRY(cd_module_zero_grad(module, to_none ? CD_ZERO_GRAD_TO_NONE : CD_ZERO_GRAD_TO_ZERO, err));
    for (size_t i = 0; i < module->parameter_count; i++) {
        t->contributions[i] = 0;
    }
    CD_EMIT(t->tracer, zero_grad, NULL, .optimizer = -1, .to_none = to_none);
    return CDDP_OK;
}

static cddp_status touch_parameters(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (size_t i = 0; i < module->parameter_count; i++) {
        CD_TRY(cd_tensor_add_number(&module->parameters[i].tensor, t->rank->rank + 1.0, err));
    }
    return CDDP_OK;
}

cddp_status cd_trainer_step(cd_trainer *t, const cd_micro *last, cddp_error *err)
{
    if (!t->has_stepped) {
        CD_TRY(judge_gradients(t, last, err));
        t->reductions++;
        CD_TRY(cd_trainer_update(t, last, err));
    }
    CD_TRY(cd_trainer_average(t, err));
    t->has_stepped = false;
    if (last->touch_parameters) {
        CD_TRY(touch_parameters(t, err));
    }
    CD_TRY(cd_trainer_emit_parameters(t, CD_MOMENT_AFTER_STEP, err));
    CD_TRY(cd_trainer_emit_optimizers(t, CD_MOMENT_AFTER_STEP, err));
    /* after the values were told: the grid would hide a small difference */
    CD_TRY(cd_replica_regrid(t->replica, err));
    CD_TRY(cd_trainer_zero_grad(t, err));
    CD_TRY(cd_trainer_run_collectives(t, CD_PLACE_AFTER_STEP, err));
    return CDDP_OK;
}
