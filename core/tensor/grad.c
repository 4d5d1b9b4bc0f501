/* SPDX-License-Identifier: Apache-2.0 */
/* The `.grad` slot: undefined, then dense in its own storage, then undefined again, without a
** second allocation.
**
** Not here: accumulating into a gradient (the engine), averaging it (core/ddp), consuming it
** (optimizers).
*/
#include "cddp/device.h"

#include "core/base/error.h"

/* The layout of a gradient of `like`: like's own strides when its elements fill their range exactly
** once (channels-last stays channels-last), contiguous otherwise (BKT-19). */
static cddp_tensor layout_of(const cddp_tensor *like, const cddp_backing *backing)
{
    cddp_tensor t = cddp_tensor_of(backing->device, backing->storage, backing->offset,
                                   backing->dtype, like->sizes, like->dim_count);
    if (cddp_tensor_is_dense(like))
        for (uint32_t i = 0; i < like->dim_count; i++) t.strides[i] = like->strides[i];
    return t;
}

static int64_t at_least_one(int64_t numel) { return numel > 0 ? numel : 1; }

cddp_backing cddp_backing_of(const cddp_tensor *t)
{
    return (cddp_backing){t->device, t->storage, t->offset, cddp_tensor_numel(t), t->dtype};
}

cddp_rows cddp_rows_of(const cddp_tensor *t)
{
    return (cddp_rows){t->device, t->storage, t->offset, cddp_tensor_numel(t)};
}

cddp_tensor cddp_rows_tensor(const cddp_rows *rows)
{
    return cddp_tensor_of(rows->device, rows->storage, rows->offset, CDDP_I64, &rows->count, 1);
}

static cddp_status refuse(const cddp_grad *grad, const cddp_tensor *like, cddp_error *err)
{
    return cd_fail(err, CDDP_E_ARG, "cddp_grad_define: the %s",
                   grad == NULL   ? "gradient is NULL"
                   : like == NULL ? "tensor that the gradient is to be like is NULL"
                                  : "tensor that the gradient is to be like has no device");
}

cddp_status cddp_grad_define(cddp_grad *grad, const cddp_tensor *like, cddp_error *err)
{
    if (grad == NULL) return CD_PASS(refuse(grad, like, err));
    if (grad->kind == CDDP_GRAD_DENSE) return CDDP_OK;
    if (grad->backing.device == NULL) {
        if (like == NULL || like->device == NULL) return CD_PASS(refuse(grad, like, err));
        cddp_backing backing = {.device = like->device,
                                .numel = at_least_one(cddp_tensor_numel(like)),
                                .dtype = like->dtype};
        CD_TRY(like->device->allocate(like->device, like->dtype, backing.numel, &backing.storage,
                                      err));
        grad->backing = backing;
        grad->backing_is_borrowed = false;
    }
    if (like == NULL) return CD_PASS(refuse(grad, like, err));
    grad->kind = CDDP_GRAD_DENSE;
    grad->value = layout_of(like, &grad->backing);
    grad->is_fresh = true;
    return CDDP_OK;
}

void cddp_grad_drop(cddp_grad *grad)
{
    if (grad == NULL) return;
    grad->kind = CDDP_GRAD_UNDEFINED;
    grad->requires_grad = false;
    grad->value.device = NULL;
    grad->rows.device = NULL;
}

void cddp_grad_fini(cddp_grad *grad)
{
    if (grad == NULL) return;
    cddp_grad_drop(grad);
    if (grad->backing.device != NULL && !grad->backing_is_borrowed)
        grad->backing.device->release(grad->backing.device, grad->backing.dtype,
                                      at_least_one(grad->backing.numel), grad->backing.storage);
    *grad = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
}
