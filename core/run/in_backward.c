/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers in backward: each parameter is stepped when its bucket is averaged, and its gradient is gone afterwards
** (OIB-01). What the oracle and the checks want to see of it is kept here.
**
** Note [A step before the step]
** The oracle judges a step from the parameters before it, the averaged gradients and the parameters after it. With an
** optimizer in backward the update is spread over the backward, so the parameters are copied when the step begins and
** every averaged gradient when its bucket hands it over; cd_trainer_refresh_views shows these copies until the
** gradients are dropped.
*/
#include "core/run/trainer.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <math.h>

bool cd_trainer_steps_in_backward(const cd_trainer *t)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        if (t->replica->optimizers[i].in_backward) {
            return true;
        }
    }
    return false;
}

/* The optimizer that owns a parameter, and the parameter's position in it. */
static cd_replica_optimizer *find_owner(const cd_trainer *t, uint32_t parameter, size_t *optimizer, size_t *position)
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

static cddp_status keep_gradient(cd_trainer *t, uint32_t parameter, const cddp_grad *grad, cddp_error *err)
{
    cddp_grad *kept = &t->averaged[parameter];
    if (kept->kind != CDDP_GRAD_UNDEFINED) {
        return cd_fail(
            err, CDDP_E_CONFIG,
            "'%s' was averaged twice in step %u: an optimizer in backward would step twice, which is not one "
            "optimizer step of a scenario",
            cd_trainer_module(t)->parameters[parameter].name, t->step);
    }
    CD_TRY(cddp_grad_define(kept, &grad->value, err));
    CD_TRY(kept->value.device->copy(&kept->value, &grad->value, NULL, err));
    return CDDP_OK;
}

static cddp_status step_parameter(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    cd_trainer *t = context;
    size_t optimizer = 0, position = 0;
    uint32_t parameter = 0;
    while (t->variables[parameter] != (int32_t)variable) {
        parameter++;
    }
    cd_replica_optimizer *o = find_owner(t, parameter, &optimizer, &position);
    CD_TRY(cd_streams_settle(&t->streams, err));
    grad->value = cd_streams_plain(&t->streams, &grad->value);
    CD_TRY(keep_gradient(t, parameter, grad, err));
    if (!o->has_stepped) {
        o->has_stepped = true;
        cd_trainer_tell_step(t, optimizer,
                             &(cd_trainer_decision){.clip = 1.0, .norm = NAN, .loss_scale = t->loss_scale});
    }
    cd_optimizer_set_lr(o->optimizer, cd_replica_lr(t->replica, optimizer, t->step));
    CD_TRY(cd_optimizer_step_parameter(o->optimizer, position, err));
    CD_TRY(cd_trainer_tell_touch(t, optimizer, position, err));
    return CDDP_OK;
}

cddp_status cd_trainer_attach_optimizers(cd_trainer *t, cddp_error *err)
{
    const cd_module *module = cd_trainer_module(t);
    const size_t variable_count = cddp_ddp_variable_count(t->ddp);
    cddp_status status = CDDP_OK;
    if (!cd_trainer_steps_in_backward(t)) {
        return CDDP_OK;
    }
    bool *managed = cd_allocate_array(t->allocator, variable_count + 1, sizeof *managed);
    if (managed == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for %zu optimizers in backward", variable_count);
    }
    for (uint32_t i = 0; i < module->parameter_count; i++) {
        size_t optimizer, position;
        const cd_replica_optimizer *o = find_owner(t, i, &optimizer, &position);
        if (o != NULL && t->variables[i] == CD_NO_VARIABLE) {
            status =
                cd_fail(err, CDDP_E_CONFIG, "optimizer '%s' steps in backward, but the wrapper does not reduce '%s'",
                        o->name, module->parameters[i].name);
            goto out;
        }
        if (o != NULL) {
            managed[t->variables[i]] = true;
        }
    }
    const cddp_optimizer_in_backward optimizer = {
        .size = sizeof optimizer, .step = step_parameter, .context = t, .managed = managed};
    CD_TRY_OUT(cddp_ddp_set_optimizer_in_backward(t->ddp, &optimizer, err));
out:
    cd_release(t->allocator, managed, (variable_count + 1) * sizeof *managed);
    return status;
}

cddp_status cd_trainer_end_step_in_backward(cd_trainer *t, cddp_error *err)
{
    for (size_t i = 0; i < t->replica->optimizer_count; i++) {
        cd_replica_optimizer *o = &t->replica->optimizers[i];
        if (!o->in_backward) {
            continue;
        }
        if (!o->has_stepped) {
            cd_trainer_tell_step(t, i, &(cd_trainer_decision){.clip = 1.0, .norm = NAN, .loss_scale = t->loss_scale});
        }
        o->has_stepped = false;
        for (size_t k = 0; k < o->count; k++) {
            if (t->averaged[o->ordinals[k]].kind == CDDP_GRAD_UNDEFINED) {
                CD_TRY(cd_trainer_tell_touch(t, i, k, err));
            }
        }
    }
    return CDDP_OK;
}
