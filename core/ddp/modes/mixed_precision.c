/* SPDX-License-Identifier: Apache-2.0 */
/* DDP's own mixed precision.
**
** Before forward every floating parameter is cast into a copy. The gradient slot borrows storage of
** the same dtype, so that backward accumulates in param_dtype. A gradient that exists is cast down
** with it. When backward is over, or before averages are written back, slots get their
** full-precision storage again and local values are cast up.
**
** Copies are allocated once, at construction. PyTorch frees them between iterations to save memory;
** we keep them, so that a steady iteration allocates nothing.
*/
#include "core/ddp/modes/mixed_precision.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"

#include <string.h>

static bool is_cast(const cd_mixed *m, const cd_wrapped_parameter *p)
{
    return m->param_dtype != CDDP_DTYPE_COUNT && !p->is_ignored &&
           cddp_dtype_is_float(p->tensor.form->like.dtype) &&
           p->tensor.form->like.dtype != m->param_dtype;
}

static int64_t at_least_one(int64_t numel) { return numel > 0 ? numel : 1; }

/* Storage laid out like `like`, in another dtype. */
static cddp_status make_like(const cddp_tensor *like, cddp_dtype dtype, cddp_tensor *made,
                             cddp_error *err)
{
    void *storage = NULL;
    CD_TRY(like->device->allocate(like->device, dtype, at_least_one(cddp_tensor_numel(like)),
                                  &storage, err));
    *made = cddp_tensor_of(like->device, storage, 0, dtype, like->sizes, like->dim_count);
    if (cddp_tensor_is_dense(like)) memcpy(made->strides, like->strides, sizeof made->strides);
    return CDDP_OK;
}

static void release_made(cddp_tensor *t)
{
    if (t->device != NULL)
        t->device->release(t->device, t->dtype, at_least_one(cddp_tensor_numel(t)), t->storage);
    t->device = NULL;
}

cddp_status cd_mixed_init(cd_mixed *mixed, cd_wrapped *module, const cd_ddp_config *config,
                          cd_arena *arena, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_mixed m = {.allocator = arena->allocator,
                  .module = module,
                  .param_dtype = config->param_dtype,
                  .reduce_dtype = config->reduce_dtype != CDDP_DTYPE_COUNT ? config->reduce_dtype
                                                                           : config->param_dtype,
                  .is_active = config->mixed_precision};
    if (!m.is_active) {
        *mixed = m;
        return CDDP_OK;
    }
    m.parameters = cd_arena_array(arena, module->parameter_count, sizeof *m.parameters);
    if (m.parameters == NULL)
        return cd_fail_memory(err, "low-precision copies of %zu parameters",
                              module->parameter_count);
    for (size_t i = 0; i < module->parameter_count; i++) {
        const cd_wrapped_parameter *p = &module->parameters[i];
        if (!is_cast(&m, p)) continue;
        CD_TRY_OUT(make_like(&p->tensor.form->like, m.param_dtype, &m.parameters[i].low, err));
        if (p->grad != NULL && p->requires_grad)
            CD_TRY_OUT(
                make_like(&p->tensor.form->like, m.param_dtype, &m.parameters[i].low_backing, err));
    }
    *mixed = m;
    return CDDP_OK;
out:
    cd_mixed_fini(&m);
    return status;
}

void cd_mixed_fini(cd_mixed *m)
{
    /* slots must not keep borrowed homes; values may be lost */
    if (m->is_low) (void)!cd_mixed_end(m, NULL);
    for (size_t i = 0; m->parameters != NULL && i < m->module->parameter_count; i++) {
        release_made(&m->parameters[i].low);
        release_made(&m->parameters[i].low_backing);
    }
    for (size_t i = 0; i < m->wire_count; i++) release_made(&m->wires[i]);
    cd_release(m->allocator, m->wires, m->wire_capacity * sizeof *m->wires);
    memset(m, 0, sizeof *m);
}

static cddp_status lend_low_backing(const cd_mixed *m, size_t i, cddp_error *err)
{
    cd_mixed_parameter *mp = &m->parameters[i];
    cddp_grad *grad = m->module->parameters[i].grad;
    if (mp->low_backing.device == NULL ||
        (grad->backing_is_borrowed && grad->backing.storage == mp->low_backing.storage))
        return CDDP_OK;
    /* A gradient that does not fit stays; it is refused by name when it is marked ready. */
    if (cd_wrapped_takes(&m->module->parameters[i], grad, grad->value.dtype)) {
        CD_TRY(mp->low_backing.device->copy(&mp->low_backing, &grad->value, NULL, err));
        grad->value = mp->low_backing;
    }
    mp->full_backing = grad->backing;
    mp->full_backing_is_borrowed = grad->backing_is_borrowed;
    grad->backing = cddp_backing_of(&mp->low_backing);
    grad->backing_is_borrowed = true;
    return CDDP_OK;
}

cddp_status cd_mixed_begin(cd_mixed *m, cddp_error *err)
{
    if (!m->is_active) return CDDP_OK;
    m->is_low = true;
    for (size_t i = 0; i < m->module->parameter_count; i++) {
        const cddp_tensor *low = &m->parameters[i].low;
        if (low->device == NULL) continue;
        const cddp_tensor full = cd_packed_tensor_get(&m->module->parameters[i].tensor);
        if (cddp_tensor_numel(&full) > 0) CD_TRY(low->device->copy(low, &full, NULL, err));
        if (m->module->parameters[i].grad != NULL) CD_TRY(lend_low_backing(m, i, err));
    }
    return CDDP_OK;
}

static cddp_status restore_backing(const cd_mixed *m, size_t i, cddp_error *err)
{
    cd_mixed_parameter *mp = &m->parameters[i];
    const cd_wrapped_parameter *p = &m->module->parameters[i];
    cddp_grad *grad = p->grad;
    if (mp->low_backing.device == NULL || !grad->backing_is_borrowed ||
        grad->backing.storage != mp->low_backing.storage)
        return CDDP_OK;
    bool is_low = grad->kind == CDDP_GRAD_DENSE && grad->value.storage == mp->low_backing.storage;
    grad->backing = mp->full_backing;
    grad->backing_is_borrowed = mp->full_backing_is_borrowed;
    if (!is_low) return CDDP_OK;
    grad->kind = CDDP_GRAD_UNDEFINED;
    CD_TRY(cddp_grad_define(grad, &p->tensor.form->like, err));
    return CD_PASS(grad->value.device->copy(&grad->value, &mp->low_backing, NULL, err));
}

cddp_status cd_mixed_end(cd_mixed *m, cddp_error *err)
{
    if (!m->is_low) return CDDP_OK;
    m->is_low = false;
    cddp_status status = CDDP_OK;
    /* All of them, whatever becomes of one: a slot must not outlive what it borrows. */
    for (size_t i = 0; i < m->module->parameter_count; i++) {
        if (m->module->parameters[i].grad == NULL) continue;
        cddp_status restored = restore_backing(m, i, status == CDDP_OK ? err : NULL);
        if (status == CDDP_OK) status = restored;
    }
    CD_TRY(status);
    return CDDP_OK;
}

const cddp_tensor *cd_mixed_get_copy(const cd_mixed *m, size_t ordinal)
{
    return m->is_low && m->parameters[ordinal].low.device != NULL ? &m->parameters[ordinal].low
                                                                  : NULL;
}

/* ---- the hook ---- */

static cddp_status find_wire(cd_mixed *m, const cddp_grad_bucket *bucket, cddp_tensor **wire,
                             cddp_error *err)
{
    size_t key = bucket->parameter_ids[0];
    if (key >= m->wire_count) {
        if (!cd_vec_grow(m->allocator, (void **)&m->wires, &m->wire_capacity, key + 1,
                         sizeof *m->wires))
            return cd_fail_memory(err, "bucket %u in %s", bucket->index,
                                  cddp_dtype_name(m->reduce_dtype));
        memset(m->wires + m->wire_count, 0, (key + 1 - m->wire_count) * sizeof *m->wires);
        m->wire_count = key + 1;
    }
    cddp_tensor *t = &m->wires[key];
    if (t->device == NULL || cddp_tensor_numel(t) != cddp_tensor_numel(&bucket->buffer)) {
        release_made(t);
        CD_TRY(make_like(&bucket->buffer, m->reduce_dtype, t, err));
        m->growth_count++;
    }
    *wire = t;
    return CDDP_OK;
}

static cddp_status divide_result(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                 cddp_error *err)
{
    (void)self, (void)bucket;
    const cddp_tensor *result = &future->result;
    return CD_PASS(result->device->divide(result, result, (int64_t)future->scratch[0], NULL, err));
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
{
    cd_mixed *m = self;
    CD_TRY(cd_hook_refuse_sparse(bucket, cd_mixed_hook.name, err));
    future->result = bucket->buffer;
    bool casts = m->reduce_dtype != CDDP_DTYPE_COUNT && bucket->buffer.dtype != m->reduce_dtype &&
                 cddp_dtype_is_float(bucket->buffer.dtype);
    if (casts) {
        cddp_tensor *wire = NULL;
        CD_TRY(find_wire(m, bucket, &wire, err));
        CD_TRY(wire->device->copy(wire, &bucket->buffer, NULL, err));
        future->result = *wire;
    }
    CD_TRY(cd_future_add_allreduce(future, bucket, &future->result, group, err));
    future->scratch[0] = cddp_group_size(group);
    future->next = divide_result;
    return CDDP_OK;
}

const cddp_hook cd_mixed_hook = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "mixed_precision",
    .flags = CDDP_HOOK_LOSSY,
    .run = run,
};
