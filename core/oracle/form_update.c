/* SPDX-License-Identifier: Apache-2.0 */
/* Link 14 on exact devices: an update as forms, from the formula of SGD. The device's arithmetic is
** exact there, so the whole tensor is compared and there is no bound. */
#include "core/oracle/form_update.h"

#include "core/base/error.h"

typedef struct made {
    cddp_tensor direction, momentum, parameter;
} made;

static cddp_status make_like(const cddp_tensor *like, cddp_tensor *tensor, cddp_error *err)
{
    void *storage = NULL;
    CD_TRY(like->device->allocate(like->device, like->dtype, cddp_tensor_numel(like) + 1, &storage,
                                  err));
    *tensor = cddp_tensor_of(like->device, storage, 0, like->dtype, like->sizes, like->dim_count);
    return CDDP_OK;
}

static void release(const cddp_tensor *t)
{
    if (t->device != NULL)
        t->device->release(t->device, t->dtype, cddp_tensor_numel(t) + 1, t->storage);
}

/* d = g + λp; b = d at first, then μb + (1−τ)d; p −= η(d + μb) with Nesterov, else ηb. */
static cddp_status apply(const cd_form_update *u, made *m, cddp_error *err)
{
    const cd_formula *f = u->formula;
    const cddp_device *device = u->before->device;
    const cddp_tensor *direction = &m->direction;
    CD_TRY(device->copy(&m->direction, u->gradient, NULL, err));
    if (f->weight_decay != 0)
        CD_TRY(device->axpy(&m->direction, f->weight_decay, u->before, NULL, err));
    if (f->momentum != 0) {
        CD_TRY(device->fill(&m->momentum, 0, NULL, err));
        if (u->momentum != NULL)
            CD_TRY(device->axpy(&m->momentum, f->momentum, u->momentum, NULL, err));
        CD_TRY(device->axpy(&m->momentum, u->momentum != NULL ? 1 - f->dampening : 1, &m->direction,
                            NULL, err));
        if (f->nesterov)
            CD_TRY(device->axpy(&m->direction, f->momentum, &m->momentum, NULL, err));
        else
            direction = &m->momentum;
    }
    CD_TRY(device->copy(&m->parameter, u->before, NULL, err));
    CD_TRY(device->axpy(&m->parameter, -f->rate.value, direction, NULL, err));
    return CDDP_OK;
}

cddp_status cd_form_update_judge(cd_oracle *o, const cd_form_update *update, cddp_error *err)
{
    made m = {.direction = {.device = NULL}};
    cddp_status status = CDDP_OK;
    cd_comparison c = {.element = -1};
    CD_TRY_OUT(make_like(update->before, &m.direction, err));
    CD_TRY_OUT(make_like(update->before, &m.momentum, err));
    CD_TRY_OUT(make_like(update->before, &m.parameter, err));
    CD_TRY_OUT(apply(update, &m, err));
    CD_TRY_OUT(cd_oracle_compare_forms(o, &m.parameter, update->after, &c, err));
    cd_oracle_report(o, CD_LINK_FORMULA, update->parameter, &c);
out:
    release(&m.direction);
    release(&m.momentum);
    release(&m.parameter);
    return status;
}
