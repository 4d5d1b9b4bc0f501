/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers in backward: each parameter is stepped when its bucket is reduced, on every rank
** (OIB-01, OIB-03) or by the rank to which it was assigned (ZRO-12). The values that watcher and
** checks need of it are kept here.
**
** Note [A step before the step] The watcher sees a step from the parameters before it, the
** averaged gradients and the parameters after it. With an optimizer in backward the update is
** spread over the backward, so the parameters are copied when the step begins and, where gradients
** are gone afterwards (OIB-01), every averaged gradient when its bucket hands it over;
** cd_trainer_refresh_views shows these copies until the gradients are dropped.
*/
#include "core/train/trainer.h"

#include "core/base/error.h"
#include "core/train/points.h"
#include "core/train/schedule.h"

#include <math.h>

bool cd_trainer_steps_in_backward(const cd_trainer *t)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        if (t->replica->optimizers[i].in_backward) return true;
    }
    return false;
}

cddp_optimizer_overlap cd_trainer_overlap(const cd_trainer *t)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        if (t->replica->optimizers[i].in_backward) return t->replica->optimizers[i].overlap;
    }
    return CDDP_OVERLAP_APPLY_IN_BACKWARD;
}

/* The optimizer that owns a parameter, and the parameter's position in it. */
static cd_replica_optimizer *find_owner(const cd_trainer *t, uint32_t parameter, size_t *optimizer,
                                        size_t *position)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        cd_replica_optimizer *o = &t->replica->optimizers[i];
        for (size_t k = 0; o->in_backward && k < o->count; k++) {
            if (o->ordinals[k] == parameter) {
                *optimizer = i;
                *position = k;
                return o;
            }
        }
    }
    return NULL;
}

/* OIB-01: the gradient will be gone when the oracle wants to see it. */
static cddp_status keep_gradient(cd_trainer *t, uint32_t parameter, const cddp_grad *grad,
                                 cddp_error *err)
{
    cddp_grad *kept = &t->parameters[parameter].averaged;
    CD_TRY(cddp_grad_define(kept, &grad->value, err));
    CD_TRY(kept->value.device->copy(&kept->value, &grad->value, NULL, err));
    return CDDP_OK;
}

static uint32_t find_parameter(const cd_trainer *t, size_t variable)
{
    uint32_t parameter = 0;
    while (t->parameters[parameter].variable != (int32_t)variable) parameter++;
    return parameter;
}

static void begin_optimizer(cd_trainer *t, size_t optimizer)
{
    cd_trainer_optimizer *o = &t->optimizers[optimizer];
    if (!o->has_stepped) {
        o->has_stepped = true;
        cd_optimizer_set_lr(t->replica->optimizers[optimizer].optimizer,
                            cd_schedule_lr(t->replica, optimizer, t->now.step));
        cd_trainer_emit_step(t, optimizer,
                             &(cd_trainer_decision){.clip = 1.0,
                                                    .norm = NAN,
                                                    .loss_scale = t->scaling.scale});
    }
}

static cddp_status step_parameter(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    cd_trainer *t = context;
    size_t optimizer = 0, position = 0;
    const uint32_t parameter = find_parameter(t, variable);
    cd_replica_optimizer *o = find_owner(t, parameter, &optimizer, &position);
    CD_TRY(cd_streams_settle(&t->streams, err));
    bool *has_touched = &t->optimizers[optimizer].has_touched[position];
    if (*has_touched) {
        return cd_fail(err, CDDP_E_CONFIG,
                       "'%s' was averaged twice in step %u: an optimizer in backward would step "
                       "twice, which is not one "
                       "optimizer step of a scenario",
                       cd_trainer_module(t)->parameters[parameter].name, t->now.step);
    }
    *has_touched = true;
    const cddp_tensor queued = grad->value;
    grad->value = cd_streams_plain(&t->streams, &queued);
    if (o->overlap == CDDP_OVERLAP_APPLY_IN_BACKWARD)
        CD_TRY(keep_gradient(t, parameter, grad, err));
    begin_optimizer(t, optimizer);
    double lr = cd_schedule_lr(t->replica, optimizer, t->now.step);
    CD_POINT_NUMBER("in_backward.lr", t, lr);
    cd_optimizer_set_lr(o->optimizer, lr);
    CD_TRY(cd_optimizer_step_parameter(o->optimizer, position, err));
    CD_TRY(cd_trainer_emit_touch(t, optimizer, position, true, err));
    grad->value = queued;
    return CDDP_OK;
}

/* ---- attaching ---- */

static cddp_status find_managed(const cd_trainer *t, bool *managed, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    for (uint32_t i = 0; i < module->parameter_count; i++) {
        size_t optimizer, position;
        const cd_replica_optimizer *o = find_owner(t, i, &optimizer, &position);
        if (o != NULL && t->parameters[i].variable == CD_NO_VARIABLE) {
            return cd_fail(err, CDDP_E_CONFIG,
                           "optimizer '%s' steps in backward, but the wrapper does not reduce '%s'",
                           o->name, module->parameters[i].name);
        }
        if (o != NULL) managed[t->parameters[i].variable] = true;
    }
    return CDDP_OK;
}

cddp_status cd_trainer_attach_optimizers(cd_trainer *t, cddp_error *err)
{
    const size_t variable_count = cddp_ddp_variable_count(t->ddp);
    if (!cd_trainer_steps_in_backward(t)) return CDDP_OK;
    const cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    bool *managed = cd_arena_array(&t->memory, variable_count + 1, sizeof *managed);
    CD_TRY(cd_arena_check(&t->memory, err, "%zu optimizers in backward", variable_count));
    CD_TRY(find_managed(t, managed, err));
    const cddp_optimizer_in_backward optimizer = {.size = sizeof optimizer,
                                                  .step = step_parameter,
                                                  .context = t,
                                                  .managed = managed,
                                                  .overlap = cd_trainer_overlap(t),
                                                  .shard_buckets =
                                                      t->program.plan->optimizer_count > 0 &&
                                                      t->program.plan->optimizers[0].shard_buckets};
    CD_TRY(cddp_ddp_set_optimizer_in_backward(t->ddp, &optimizer, err));
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

/* ---- the end of a step ---- */

/* Which parameters lie in which bucket: who steps them follows from that. */
static cddp_status show_buckets(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const uint32_t count = cddp_ddp_bucket_count(t->ddp);
    const cd_arena_mark mark = cd_arena_get_mark(&t->memory);
    cd_watched_bucket *buckets = cd_arena_array(&t->memory, count + 1, sizeof *buckets);
    uint32_t *parameters =
        cd_arena_array(&t->memory, module->parameter_count + 1, sizeof *parameters);
    CD_TRY(cd_arena_check(&t->memory, err, "the owners of %u buckets", count));
    for (uint32_t b = 0, at = 0; b < count; b++) {
        cddp_bucket_info info = {.size = sizeof info};
        CD_TRY(cddp_ddp_bucket(t->ddp, b, &info, err));
        buckets[b] = (cd_watched_bucket){parameters + at, info.variable_count};
        for (uint32_t i = 0; i < info.variable_count; i++)
            parameters[at++] = find_parameter(t, info.variables[i]);
    }
    CD_TRY(t->view.watcher->ops->assigned(t->view.watcher->self, buckets, count, err));
    t->view.knows_owners = true;
    cd_arena_rewind(&t->memory, mark);
    return CDDP_OK;
}

/* Does another rank report the touch? */
static bool is_elsewhere(const cd_trainer *t, const cd_replica_optimizer *o, size_t position)
{
    return o->overlap >= CDDP_OVERLAP_HOOK_WITH_ZERO_STEP &&
           cddp_ddp_optimizer_owner(t->ddp,
                                    (size_t)t->parameters[o->ordinals[position]].variable) !=
               (int64_t)t->rank->rank;
}

cddp_status cd_trainer_end_step_in_backward(cd_trainer *t, cddp_error *err)
{
    bool is_any_due = false;
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &t->replica->optimizers[i];
        cd_trainer_optimizer *own = &t->optimizers[i];
        is_any_due |= own->is_due;
        if (!o->in_backward) continue;
        if (own->is_due) begin_optimizer(t, i);
        for (size_t k = 0; k < o->count; k++) {
            if (own->has_stepped && !own->has_touched[k] && !is_elsewhere(t, o, k)) {
                CD_TRY(cd_optimizer_state_begin(o->optimizer, k, err));
                /* its bucket was not averaged */
                CD_TRY(cd_trainer_emit_touch(t, i, k, false, err));
            }
            own->has_touched[k] = false;
        }
        own->has_stepped = false;
    }
    if (t->view.watcher != NULL && !t->view.knows_owners && is_any_due &&
        cd_trainer_overlap(t) >= CDDP_OVERLAP_HOOK_WITH_ZERO_STEP)
        CD_TRY(show_buckets(t, err));
    return CDDP_OK;
}
