/* SPDX-License-Identifier: Apache-2.0 */
/* Link 14 on exact devices: an update as forms, from the formula of SGD. The device's arithmetic is
** exact there, so the whole tensor is compared and there is no bound. */
#include "core/oracle/form_update.h"

#include "core/base/error.h"
#include "core/oracle/form_scratch.h"

typedef struct made {
    cddp_tensor direction, momentum, parameter;
} made;

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
    CD_TRY_OUT(cd_form_scratch_make(update->before, &m.direction, err));
    CD_TRY_OUT(cd_form_scratch_make(update->before, &m.momentum, err));
    CD_TRY_OUT(cd_form_scratch_make(update->before, &m.parameter, err));
    CD_TRY_OUT(apply(update, &m, err));
    CD_TRY_OUT(cd_oracle_compare_forms(o, &m.parameter, update->after, &c, err));
    cd_oracle_report(o, CD_LINK_FORMULA, update->parameter, &c);
out:
    cd_form_scratch_release(&m.direction);
    cd_form_scratch_release(&m.momentum);
    cd_form_scratch_release(&m.parameter);
    return status;
}
