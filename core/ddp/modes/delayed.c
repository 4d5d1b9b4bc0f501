/* SPDX-License-Identifier: Apache-2.0 */
/* Delayed all-reduce of named parameters.
**
** The trigger's gradient must be the last one of the delayed set; as in PyTorch that is not checked
** (DEL-05). PyTorch never awaits the sum, because on a GPU the stream orders it; here the end of
** the backward awaits it, so that the optimizer reads finished values.
*/
#include "core/ddp/modes/delayed.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/ddp/parts/sync.h"

#include <string.h>

static cddp_status measure(const cd_wrapped *m, int64_t *numel, const cddp_tensor **like,
                           cddp_error *err)
{
    *numel = 0;
    *like = NULL;
    for (size_t i = 0; i < m->parameter_count; i++) {
        const cd_wrapped_parameter *p = &m->parameters[i];
        if (!p->is_delayed) continue;
        if (p->tensor.form->like.device == NULL)
            return cd_fail(err, CDDP_E_CONFIG, "delayed parameter '%s' is not initialised",
                           p->name);
        if (!p->requires_grad || p->grad == NULL)
            return cd_fail(err, CDDP_E_CONFIG, "delayed parameter '%s' does not require a gradient",
                           p->name);
        if (*like == NULL) *like = &p->tensor.form->like;
        const cddp_tensor *own = &p->tensor.form->like;
        if (own->dtype != (*like)->dtype || own->device != (*like)->device)
            return cd_fail(
                err, CDDP_E_CONFIG,
                "delayed parameters share one buffer, but '%s' is %s on %s, others %s on %s",
                p->name, cddp_dtype_name(own->dtype), own->device->name,
                cddp_dtype_name((*like)->dtype), (*like)->device->name);
        *numel += p->tensor.form->numel;
    }
    return CDDP_OK;
}

/* Every delayed slot borrows its slice, so that a gradient made by the engine lands in the
** buffer. */
static void lend_slices(cd_delayed *d)
{
    int64_t offset = 0;
    for (size_t i = 0; i < d->module->parameter_count; i++) {
        cd_wrapped_parameter *p = &d->module->parameters[i];
        if (!p->is_delayed) continue;
        cddp_grad_fini(p->grad);
        p->grad->backing = (cddp_backing){d->flat.device, d->flat.storage, offset,
                                          p->tensor.form->numel, d->flat.dtype};
        p->grad->backing_is_borrowed = true;
        offset += p->tensor.form->numel;
    }
}

cddp_status cd_delayed_init(cd_delayed *delayed, cd_wrapped *module,
                            const cddp_ddp_options *options, cddp_error *err)
{
    cd_delayed d = {.module = module};
    if (options->delay_all_reduce_count == 0) {
        *delayed = d;
        return CDDP_OK;
    }
    int64_t numel = 0;
    const cddp_tensor *like = NULL;
    void *storage = NULL;
    CD_TRY(measure(module, &numel, &like, err));
    CD_TRY(like->device->allocate(like->device, like->dtype, numel > 0 ? numel : 1, &storage, err));
    d.flat = cddp_tensor_of(like->device, storage, 0, like->dtype, &numel, 1);
    d.is_active = true;
    d.trigger = (uint32_t)cd_wrapped_find_parameter(module, options->param_to_hook_all_reduce);
    lend_slices(&d);
    *delayed = d;
    return CDDP_OK;
}

void cd_delayed_fini(cd_delayed *d)
{
    if (!d->is_active) return;
    cddp_work_release(d->work);
    for (size_t i = 0; i < d->module->parameter_count; i++) {
        cd_wrapped_parameter *p = &d->module->parameters[i];
        if (p->is_delayed && p->grad->backing_is_borrowed) cddp_grad_fini(p->grad);
    }
    int64_t numel = cddp_tensor_numel(&d->flat);
    d->flat.device->release(d->flat.device, d->flat.dtype, numel > 0 ? numel : 1, d->flat.storage);
    memset(d, 0, sizeof *d);
}

typedef struct delayed_list {
    const cd_wrapped *module;
    const uint32_t *ordinals;
} delayed_list;

static cddp_tensor get_delayed(const void *context, size_t i)
{
    const delayed_list *list = context;
    return cd_packed_tensor_get(&list->module->parameters[list->ordinals[i]].tensor);
}

cddp_status cd_delayed_broadcast(cd_delayed *d, cddp_group *group, cddp_error *err)
{
    if (!d->is_active) return CDDP_OK;
    size_t n = d->module->parameter_count, count = 0;
    cd_arena scratch;
    cd_arena_init(&scratch, d->module->allocator, 0);
    uint32_t *ordinals = cd_arena_array(&scratch, n, sizeof *ordinals);
    if (ordinals == NULL) return cd_fail_memory(err, "a broadcast of %zu parameters", n);
    for (size_t i = 0; i < n; i++)
        if (d->module->parameters[i].is_delayed) ordinals[count++] = (uint32_t)i;
    const delayed_list list = {d->module, ordinals};
    cd_broadcast_spec spec = {.allocator = d->module->allocator,
                              .tensor_count = count,
                              .tensors = {&list, get_delayed},
                              .limit_bytes = CD_BROADCAST_BYTES};
    cddp_status status = cd_broadcast_coalesced(&spec, group, 0, err);
    cd_arena_fini(&scratch);
    return CD_PASS(status);
}

cddp_status cd_delayed_point_grads(cd_delayed *d, cddp_error *err)
{
    if (!d->is_active) return CDDP_OK;
    CD_TRY(cd_delayed_await(d, err));
    for (size_t i = 0; i < d->module->parameter_count; i++) {
        cd_wrapped_parameter *p = &d->module->parameters[i];
        if (!p->is_delayed || p->grad->kind != CDDP_GRAD_UNDEFINED) continue;
        CD_TRY(cddp_grad_define(p->grad, &p->tensor.form->like, err));
        p->grad->is_fresh = false;
        CD_TRY(p->grad->value.device->fill(&p->grad->value, 0.0, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_delayed_trigger(cd_delayed *d, cddp_group *group, cddp_error *err)
{
    CD_TRY(cd_delayed_await(d, err));
    CD_TRY(d->flat.device->divide(&d->flat, &d->flat, cddp_group_size(group), NULL, err));
    return CD_PASS(cddp_group_allreduce(group, &d->flat, CDDP_RED_SUM, &d->work, err));
}

void cd_delayed_abandon(cd_delayed *d)
{
    cddp_work_release(d->work);
    d->work = NULL;
}

cddp_status cd_delayed_await(cd_delayed *d, cddp_error *err)
{
    if (d->work == NULL) return CDDP_OK;
    cddp_work *work = d->work;
    d->work = NULL;
    return CD_PASS(cddp_work_wait(work, 0, err));
}
