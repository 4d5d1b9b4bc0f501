/* SPDX-License-Identifier: Apache-2.0 */
/* Low-precision copies for the reference. A gradient is cast up after a backward and down again
** before the next forward. That loses nothing where the full dtype has all numbers of the low one.
** Between two half types each cast rounds, so that its moment counts.
*/
#include "core/reference/low_precision.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/reference/planned.h"

static cddp_status make_like(const cddp_tensor *like, cddp_dtype dtype, cddp_tensor *made,
                             cddp_error *err)
{
    void *storage = NULL;
    CD_TRY(like->device->allocate(like->device, dtype, cddp_tensor_numel(like) + 1, &storage, err));
    *made = cddp_tensor_of(like->device, storage, 0, dtype, like->sizes, like->dim_count);
    return CDDP_OK;
}

static void release_made(const cddp_tensor *tensor)
{
    if (tensor->device != NULL) {
        tensor->device->release(tensor->device, tensor->dtype, cddp_tensor_numel(tensor) + 1,
                                tensor->storage);
    }
}

static bool is_half(cddp_dtype dtype) { return dtype == CDDP_F16 || dtype == CDDP_BF16; }

static bool is_cast(const cddp_plan_settings *settings, const cd_parameter *p, cddp_dtype dtype)
{
    return cddp_dtype_is_float(p->tensor.dtype) && p->tensor.dtype != dtype &&
           !cd_planned_lists(&settings->model.ignore, p->name) &&
           !cd_planned_lists(&settings->ddp.delay_all_reduce_named_params, p->name);
}

/* dtypes: (parameter_count) COUNT: not cast. */
static cddp_status make_copies(cd_low_precision *low, const cddp_dtype *dtypes, cddp_error *err)
{
    cd_module *module = low->module;
    cddp_status status = CDDP_OK;
    low->parameters =
        cd_allocate_array(low->allocator, module->parameter_count + 1, sizeof *low->parameters);
    if (low->parameters == NULL)
        return cd_fail_memory(err, "copies of %zu parameters", module->parameter_count);
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_parameter *p = &module->parameters[i];
        if (dtypes[i] == CDDP_DTYPE_COUNT) continue;
        CD_TRY_OUT(make_like(&p->tensor, dtypes[i], &low->parameters[i].value, err));
        CD_TRY_OUT(make_like(&p->tensor, dtypes[i], &low->parameters[i].backing, err));
    }
    return CDDP_OK;
out:
    cd_low_precision_fini(low);
    return status;
}

static cddp_dtype *make_dtypes(const cd_low_precision *low, cddp_error *err)
{
    const size_t n = low->module->parameter_count;
    cddp_dtype *dtypes = cd_allocate_array(low->allocator, n + 1, sizeof *dtypes);
    if (dtypes == NULL) (void)cd_fail_memory(err, "the dtypes of %zu parameters", n);
    for (size_t i = 0; dtypes != NULL && i < n; i++) dtypes[i] = CDDP_DTYPE_COUNT;
    return dtypes;
}

cddp_status cd_low_precision_init(cd_low_precision *low, const cd_low_options *options,
                                  cddp_error *err)
{
    cd_module *module = options->module;
    bool is_needed = false;
    *low = (cd_low_precision){.module = module, .allocator = options->allocator};
    for (size_t i = 0; i < module->parameter_count; i++)
        is_needed |= options->precisions[i].param != CDDP_DTYPE_COUNT;
    if (!is_needed) return CDDP_OK;
    cddp_dtype *dtypes = make_dtypes(low, err);
    if (dtypes == NULL) return CDDP_E_NOMEM;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cddp_dtype dtype = options->precisions[i].param;
        if (dtype != CDDP_DTYPE_COUNT && is_cast(options->settings, &module->parameters[i], dtype))
            dtypes[i] = dtype;
    }
    const cddp_status status = make_copies(low, dtypes, err);
    cd_release(options->allocator, dtypes, (module->parameter_count + 1) * sizeof *dtypes);
    return status;
}

static const cddp_tensor *find_low(const cd_low_precision *low, size_t i)
{
    const bool is_low = low->parameters != NULL && low->parameters[i].value.device != NULL;
    return is_low ? &low->parameters[i].value : &low->module->parameters[i].tensor;
}

cddp_status cd_full_precision_init(cd_low_precision *full, const cd_low_precision *low,
                                   cddp_error *err)
{
    const size_t n = low->module->parameter_count;
    bool is_needed = false;
    *full = (cd_low_precision){.module = low->module, .allocator = low->allocator};
    for (size_t i = 0; i < n; i++) is_needed |= is_half(find_low(low, i)->dtype);
    if (!is_needed) return CDDP_OK;
    cddp_dtype *dtypes = make_dtypes(full, err);
    if (dtypes == NULL) return CDDP_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (is_half(find_low(low, i)->dtype)) dtypes[i] = CDDP_F32;
    const cddp_status status = make_copies(full, dtypes, err);
    for (size_t i = 0; status == CDDP_OK && low->parameters != NULL && i < n; i++)
        if (low->parameters[i].value.device != NULL && dtypes[i] == CDDP_F32)
            full->parameters[i].rounds = &low->parameters[i].value;
    cd_release(full->allocator, dtypes, (n + 1) * sizeof *dtypes);
    return status;
}

void cd_low_precision_fini(cd_low_precision *low)
{
    if (low->parameters == NULL) return;
    for (size_t i = 0; i < low->module->parameter_count; i++) {
        cddp_grad *grad = &low->module->parameters[i].grad;
        /* Asked slot by slot: begin or end may have failed half-way. */
        const bool is_low = low->parameters[i].backing.device != NULL &&
                            grad->backing.storage == low->parameters[i].backing.storage;
        if (is_low) {
            cddp_grad_drop(grad); /* its value lies in storage that goes now */
            grad->backing = low->parameters[i].full_backing;
            grad->backing_is_borrowed = false;
        }
        release_made(&low->parameters[i].value);
        release_made(&low->parameters[i].backing);
    }
    cd_release(low->allocator, low->parameters,
               (low->module->parameter_count + 1) * sizeof *low->parameters);
    low->parameters = NULL;
}

/* The slot lives in `backing` from now on, with the value that it has. */
static cddp_status move_gradient(cddp_grad *grad, const cddp_tensor *like,
                                 const cddp_backing *backing, bool is_borrowed, cddp_error *err)
{
    const cddp_tensor before = grad->value;
    const bool is_dense = grad->kind == CDDP_GRAD_DENSE;
    grad->backing = *backing;
    grad->backing_is_borrowed = is_borrowed;
    if (!is_dense) return CDDP_OK;
    grad->kind = CDDP_GRAD_UNDEFINED;
    CD_TRY(cddp_grad_define(grad, like, err));
    CD_TRY(grad->value.device->copy(&grad->value, &before, NULL, err));
    return CDDP_OK;
}

cddp_status cd_low_precision_begin(cd_low_precision *low, cddp_error *err)
{
    for (size_t i = 0; low->parameters != NULL && i < low->module->parameter_count; i++) {
        cd_parameter *p = &low->module->parameters[i];
        cd_low_parameter *l = &low->parameters[i];
        if (l->value.device == NULL) continue;
        if (l->rounds != NULL) CD_TRY(l->value.device->copy(l->rounds, &p->tensor, NULL, err));
        const cddp_tensor *from = l->rounds != NULL ? l->rounds : &p->tensor;
        CD_TRY(l->value.device->copy(&l->value, from, NULL, err));
        if (!low->is_low) {
            l->full_backing = p->grad.backing;
            const cddp_backing backing = cddp_backing_of(&l->backing);
            CD_TRY(move_gradient(&p->grad, &l->value, &backing, true, err));
        }
    }
    low->is_low = low->parameters != NULL;
    return CDDP_OK;
}

cddp_status cd_low_precision_end(cd_low_precision *low, cddp_error *err)
{
    for (size_t i = 0; low->is_low && i < low->module->parameter_count; i++) {
        cd_parameter *p = &low->module->parameters[i];
        if (low->parameters[i].value.device != NULL) {
            CD_TRY(
                move_gradient(&p->grad, &p->tensor, &low->parameters[i].full_backing, false, err));
        }
    }
    low->is_low = false;
    return CDDP_OK;
}

const cddp_tensor *cd_low_precision_get(const cd_low_precision *low, uint32_t parameter)
{
    const bool is_cast_now = low->is_low && low->parameters[parameter].value.device != NULL;
    return is_cast_now ? &low->parameters[parameter].value
                       : &low->module->parameters[parameter].tensor;
}
