/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of one unit: from the slots of its parameters to the slot of its shard.
**
**   slots → gradient (param_dtype) → given (reduce_dtype) ÷ before → reduce-scatter
**         → taken ÷ after → (÷ before → all-reduce over the replicas → ÷ after)
**         → + gradient of the shard (dtype), or a copy of it on the host
**
** Parameters of the unit that took no part contribute zeros (FPM-07), and so does padding.
**
** Note [One rounding] `before` is a power of two, so dividing by it is exact. The rest is
** after/times with a power of two below: x ÷ after rounds once, and × times is exact. So of an
** exact sum the result is RN(Σ/W), for every W.
**
** Limitations: frozen parameters of a unit travel as zeros.
*/
#include "core/fsdp/unit.h"

#include "core/base/error.h"
#include "core/fsdp/move.h"
#include "core/tensor/view.h"

cd_fsdp_divisor cd_fsdp_divisor_of(uint32_t factor)
{
    cd_fsdp_divisor d = {.before = 1, .after = (int64_t)factor, .times = 1};
    while ((int64_t)factor % d.before == 0 && (int64_t)factor / d.before > d.before) d.before *= 2;
    d.times = d.before;
    while (d.times > 1 && d.after % 2 == 0) {
        d.times /= 2;
        d.after /= 2;
    }
    return d;
}

static cddp_status divide_before(const cd_fsdp_divisor *d, const cddp_tensor *t, cddp_error *err)
{
    if (d->before == 1) return CDDP_OK;
    return CD_PASS(t->device->divide(t, t, d->before, NULL, err));
}

/* to: may be the same. */
static cddp_status divide_after(const cd_fsdp_divisor *d, const cddp_tensor *to,
                                const cddp_tensor *sum, cddp_error *err)
{
    const cddp_tensor *from = sum;
    if (d->after != 1) {
        CD_TRY(to->device->divide(to, from, d->after, NULL, err));
        from = to;
    }
    if (d->times != 1) return CD_PASS(to->device->scale(to, from, (double)d->times, NULL, err));
    if (from->storage == to->storage && from->offset == to->offset) return CDDP_OK;
    return CD_PASS(to->device->copy(to, from, NULL, err));
}

static cddp_status take(cd_fsdp_unit *u, cddp_dtype dtype, int64_t numel, cd_fsdp_buffer *buffer,
                        cddp_error *err)
{
    const cd_fsdp_wish wish = {.device = u->device, .dtype = dtype, .numel = numel};
    return CD_PASS(cd_fsdp_memory_take(u->memory, &wish, buffer, err));
}

static cddp_status take_slice(cd_fsdp_unit *u, cddp_dtype dtype, cd_fsdp_buffer *buffer,
                              cddp_error *err)
{
    const cd_fsdp_wish wish = {.device = u->device,
                               .dtype = dtype,
                               .numel = u->layout.share,
                               .is_slice = cd_fsdp_unit_is_sharded(u)};
    return CD_PASS(cd_fsdp_memory_take(u->memory, &wish, buffer, err));
}

/* ---- slots ---- */

cddp_status cd_fsdp_unit_prepare_gradients(cd_fsdp_unit *u, cddp_error *err)
{
    if (!u->requires_grad || u->gradient.tensor.device != NULL) return CDDP_OK;
    for (size_t i = 0; i < u->layout.member_count; i++)
        if (u->layout.members[i].requires_grad &&
            u->layout.members[i].grad->kind != CDDP_GRAD_UNDEFINED)
            return cd_fail(err, CDDP_E_STATE,
                           "'%s' has a gradient before the backward of its unit '%s' begins, which "
                           "would be lost: call cddp_fsdp_pre_backward first, or drop it",
                           u->layout.members[i].name, u->index == 0 ? "(root)" : u->name);
    CD_TRY(take(u, u->param_dtype, u->layout.full_numel, &u->gradient, err));
    for (size_t i = 0; i < u->layout.member_count; i++) {
        const cd_fsdp_member *m = &u->layout.members[i];
        if (!m->requires_grad) continue;
        const cddp_tensor place = cd_fsdp_layout_view(&u->layout, i, &u->gradient.tensor);
        cddp_grad_fini(m->grad);
        m->grad->backing = cddp_backing_of(&place);
        m->grad->backing_is_borrowed = true;
    }
    return CDDP_OK;
}

bool cd_fsdp_unit_has_gradient(const cd_fsdp_unit *u)
{
    for (size_t i = 0; i < u->layout.member_count; i++)
        if (u->layout.members[i].requires_grad &&
            u->layout.members[i].grad->kind != CDDP_GRAD_UNDEFINED)
            return true;
    return u->accumulated.tensor.device != NULL;
}

void cd_fsdp_unit_drop_gradients(cd_fsdp_unit *u)
{
    for (size_t i = 0; i < u->layout.member_count; i++) {
        cddp_grad *grad = u->layout.members[i].grad;
        if (!u->layout.members[i].requires_grad) continue;
        if (grad->backing_is_borrowed)
            *grad = (cddp_grad){.kind = CDDP_GRAD_UNDEFINED};
        else
            cddp_grad_drop(grad); /* a value that the program keeps elsewhere */
    }
    cd_fsdp_memory_give(u->memory, &u->gradient);
}

/* A vector of as many elements is taken for the parameter's, row by row. */
static bool has_shape_of(const cddp_tensor *t, const cddp_tensor *place)
{
    bool is_same = t->dim_count == place->dim_count;
    for (uint32_t d = 0; is_same && d < t->dim_count; d++) is_same = t->sizes[d] == place->sizes[d];
    return is_same || (t->dim_count == 1 && t->sizes[0] == cddp_tensor_numel(place));
}

/* Makes `gradient` complete: zeros where a member took no part, and in between. A value that the
** program keeps elsewhere is copied. */
static cddp_status complete_gradient(cd_fsdp_unit *u, cddp_error *err)
{
    CD_TRY(cd_fsdp_unit_prepare_gradients(u, err)); /* only `accumulated` has some */
    if (u->layout.kind == CDDP_FSDP_FLAT)
        CD_TRY(cd_fsdp_layout_fill_gaps(&u->layout, &u->gradient.tensor, err));
    for (size_t i = 0; i < u->layout.member_count; i++) {
        const cd_fsdp_member *m = &u->layout.members[i];
        const cddp_tensor place = cd_fsdp_layout_view(&u->layout, i, &u->gradient.tensor);
        if (m->numel == 0) continue;
        if (!m->requires_grad || m->grad->kind == CDDP_GRAD_UNDEFINED) {
            CD_TRY(u->device->fill(&place, 0.0, NULL, err));
            continue;
        }
        const cddp_tensor *value = &m->grad->value;
        const bool is_dense = m->grad->kind == CDDP_GRAD_DENSE;
        char left[96], right[96];
        if (!is_dense || value->dtype != u->param_dtype || !has_shape_of(value, &place))
            return cd_fail(err, CDDP_E_ARG,
                           "the gradient of '%s' is %s [%s]; unit '%s' takes dense %s [%s]",
                           m->name, is_dense ? cddp_dtype_name(value->dtype) : "sparse",
                           is_dense
                               ? cd_sizes_print(value->sizes, value->dim_count, left, sizeof left)
                               : "",
                           u->name, cddp_dtype_name(u->param_dtype),
                           cd_sizes_print(place.sizes, place.dim_count, right, sizeof right));
        if (value->storage != place.storage || value->offset != place.offset)
            CD_TRY(u->device->copy(&place, value, NULL, err));
    }
    return CDDP_OK;
}

/* ---- no_sync ---- */

/* FLAT accumulates in param_dtype, in the slots themselves; ROWS in reduce_dtype (FMP-04). */
cddp_status cd_fsdp_unit_accumulate(cd_fsdp_unit *u, cddp_error *err)
{
    if (u->layout.kind == CDDP_FSDP_FLAT || u->reduce_dtype == u->param_dtype) return CDDP_OK;
    CD_TRY(complete_gradient(u, err));
    const bool is_first = u->accumulated.tensor.device == NULL;
    if (is_first) {
        CD_TRY(take(u, u->reduce_dtype, u->layout.full_numel, &u->accumulated, err));
        CD_TRY(u->device->copy(&u->accumulated.tensor, &u->gradient.tensor, NULL, err));
    } else {
        cd_fsdp_buffer cast = {.capacity = 0};
        CD_TRY(take(u, u->reduce_dtype, u->layout.full_numel, &cast, err));
        cddp_status status = u->device->copy(&cast.tensor, &u->gradient.tensor, NULL, err);
        if (status == CDDP_OK)
            status =
                u->device->reduce(CDDP_RED_SUM, &u->accumulated.tensor, &cast.tensor, NULL, err);
        cd_fsdp_memory_give(u->memory, &cast);
        CD_TRY(status);
    }
    cd_fsdp_unit_drop_gradients(u);
    return CDDP_OK;
}

/* ---- the reduction ---- */

/* What is reduced, in reduce_dtype, as whole members. */
static cddp_status take_whole(cd_fsdp_unit *u, cd_fsdp_buffer *whole, cddp_error *err)
{
    if (u->accumulated.tensor.device != NULL) {
        CD_TRY(cd_fsdp_unit_accumulate(u, err));
        *whole = u->accumulated;
        u->accumulated = (cd_fsdp_buffer){.capacity = 0};
        return CDDP_OK;
    }
    CD_TRY(complete_gradient(u, err));
    if (u->reduce_dtype == u->param_dtype) {
        *whole = u->gradient;
        u->gradient = (cd_fsdp_buffer){.capacity = 0};
        return CDDP_OK;
    }
    CD_TRY(take(u, u->reduce_dtype, u->layout.full_numel, whole, err));
    return CD_PASS(u->device->copy(&whole->tensor, &u->gradient.tensor, NULL, err));
}

static cddp_status post_scatter(cd_fsdp_unit *u, cddp_error *err)
{
    cddp_collective c = {.op = CDDP_OP_REDUCE_SCATTER,
                         .reduce_op = CDDP_RED_SUM,
                         .input = u->given.tensor,
                         .output = u->sum};
    CD_TRY(divide_before(&u->of_shards, &u->given.tensor, err));
    u->reducing = CD_FSDP_SCATTERING;
    return CD_PASS(cddp_group_post(u->shards, &c, &u->reduction, err));
}

static cddp_status post_replicate(cd_fsdp_unit *u, cddp_error *err)
{
    CD_TRY(divide_before(&u->of_replicas, &u->sum, err));
    u->reducing = CD_FSDP_REPLICATING;
    return CD_PASS(cddp_group_allreduce(u->replicas, &u->sum, CDDP_RED_SUM, &u->reduction, err));
}

/* Where the shard's sum goes. If it needs no cast, is added to nothing and goes no further, that is
** the place of its gradient; else it is memory that is given back. */
static cddp_status take_sum(cd_fsdp_unit *u, cddp_error *err)
{
    if (u->grad.kind == CDDP_GRAD_UNDEFINED && u->reduce_dtype == u->dtype && u->replicas == NULL &&
        !cd_fsdp_unit_is_offloaded(u)) {
        cddp_tensor like = u->shard;
        CD_TRY(cddp_grad_define(&u->grad, &like, err));
        u->sum = u->grad.value;
        cddp_grad_drop(&u->grad); /* until the sum is there */
        return CDDP_OK;
    }
    CD_TRY(take_slice(u, u->reduce_dtype, &u->taken, err));
    u->sum = u->taken.tensor;
    return CDDP_OK;
}

cddp_status cd_fsdp_unit_reduce(cd_fsdp_unit *u, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_fsdp_buffer whole = {.capacity = 0};
    const cd_fsdp_layout *l = &u->layout;
    CD_TRY_OUT(take_whole(u, &whole, err));
    if (cd_fsdp_unit_is_sharded(u) && l->kind == CDDP_FSDP_ROWS) {
        CD_TRY_OUT(take(u, u->reduce_dtype, l->share * (int64_t)l->world, &u->given, err));
        CD_TRY_OUT(cd_fsdp_layout_fill_gaps(l, &u->given.tensor, err));
        CD_TRY_OUT(cd_fsdp_layout_pack(l, &u->given.tensor, &whole.tensor, err));
    } else {
        cd_fsdp_buffer *first = cd_fsdp_unit_is_sharded(u) ? &u->given : &u->taken;
        *first = whole;
        whole = (cd_fsdp_buffer){.capacity = 0};
    }
    cd_fsdp_unit_drop_gradients(u);
    if (l->share == 0) {
        cd_fsdp_memory_give(u->memory, &u->given);
        cd_fsdp_memory_give(u->memory, &u->taken);
        const cddp_tensor like = u->shard; /* a gradient of no elements is one, too */
        if (u->grad.kind == CDDP_GRAD_UNDEFINED) CD_TRY_OUT(cddp_grad_define(&u->grad, &like, err));
    } else if (cd_fsdp_unit_is_sharded(u)) {
        CD_TRY_OUT(take_sum(u, err));
        CD_TRY_OUT(post_scatter(u, err));
    } else {
        u->sum = u->taken.tensor;
        CD_TRY_OUT(post_replicate(u, err));
    }
out:
    cd_fsdp_memory_give(u->memory, &whole);
    return status;
}

/* The first reduction since the gradient was dropped is it, and is divided into its place; later
** ones are added, in dtype. */
static cddp_status add_to_shard(cd_fsdp_unit *u, const cd_fsdp_divisor *d, cddp_error *err)
{
    cd_fsdp_buffer cast = {.capacity = 0};
    cddp_tensor like = u->shard;
    const cddp_tensor *result = &u->sum;
    cddp_status status = CDDP_OK;
    const bool is_first = u->grad.kind == CDDP_GRAD_UNDEFINED;
    if (!is_first && u->taken.tensor.device == NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "the gradient of the shard of '%s' was set while it is being reduced",
                       u->name);
    if (is_first) CD_TRY(cddp_grad_define(&u->grad, &like, err));
    if (is_first && result->dtype == u->dtype)
        return CD_PASS(divide_after(d, &u->grad.value, result, err));
    CD_TRY(divide_after(d, result, result, err));
    if (is_first) return CD_PASS(u->device->copy(&u->grad.value, result, NULL, err));
    if (result->dtype != u->dtype) {
        CD_TRY(take_slice(u, u->dtype, &cast, err));
        CD_TRY_OUT(u->device->copy(&cast.tensor, result, NULL, err));
        result = &cast.tensor;
    }
    CD_TRY_OUT(u->device->reduce(CDDP_RED_SUM, &u->grad.value, result, NULL, err));
out:
    cd_fsdp_memory_give(u->memory, &cast);
    return status;
}

/* Offloaded: the mean is copied to the host, in dtype. The first one since the gradient was dropped
** is waited for at the end of backward; before one is added, the host waits (FS2-15). */
static cddp_status add_on_host(cd_fsdp_unit *u, const cd_fsdp_divisor *d, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_fsdp_buffer cast = {.capacity = 0}, landed = {.capacity = 0};
    const cddp_tensor *result = &u->sum;
    const cddp_device *host = u->shard.device;
    cddp_tensor like = u->shard;
    CD_TRY_OUT(divide_after(d, result, result, err));
    if (result->dtype != u->dtype) {
        CD_TRY_OUT(take_slice(u, u->dtype, &cast, err));
        CD_TRY_OUT(u->device->copy(&cast.tensor, result, NULL, err));
        result = &cast.tensor;
    }
    if (u->grad.kind == CDDP_GRAD_UNDEFINED) {
        CD_TRY_OUT(cddp_grad_define(&u->grad, &like, err));
        CD_TRY_OUT(cd_fsdp_move(&u->grad.value, result, NULL, err));
    } else {
        const cd_fsdp_wish wish = {.device = host, .dtype = u->dtype, .numel = u->layout.share};
        CD_TRY_OUT(cd_fsdp_memory_take(u->memory, &wish, &landed, err));
        CD_TRY_OUT(cd_fsdp_move(&landed.tensor, result, NULL, err));
        CD_TRY_OUT(cd_fsdp_ahead_settle(u->ahead, err));
        CD_TRY_OUT(host->reduce(CDDP_RED_SUM, &u->grad.value, &landed.tensor, NULL, err));
    }
out:
    cd_fsdp_memory_give(u->memory, &cast);
    cd_fsdp_memory_give(u->memory, &landed);
    return status;
}

cddp_status cd_fsdp_unit_check_gradient(const cd_fsdp_unit *u, cddp_error *err)
{
    const cddp_grad *g = &u->grad;
    const cddp_tensor *t = &g->value;
    const bool is_low = u->low.device != NULL && t->storage == u->low.storage;
    if (g->kind == CDDP_GRAD_UNDEFINED) return CDDP_OK;
    if (g->kind == CDDP_GRAD_DENSE && t->device != NULL && t->storage != NULL &&
        cddp_tensor_numel(t) == u->layout.share && cddp_tensor_is_contiguous(t) &&
        (t->dtype == u->dtype || is_low))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG,
                   "the gradient of the shard of '%s' was replaced by %s with %lld elements: its "
                   "shard is dense %s with %lld",
                   u->index == 0 ? "(root)" : u->name,
                   g->kind == CDDP_GRAD_DENSE && t->device != NULL ? cddp_dtype_name(t->dtype)
                                                                   : "none that is dense",
                   g->kind == CDDP_GRAD_DENSE ? (long long)cddp_tensor_numel(t) : 0,
                   cddp_dtype_name(u->dtype), (long long)u->layout.share);
}

/* A gradient that the slot shows in low precision is what the program may have changed. */
static cddp_status take_back_shown(cd_fsdp_unit *u, cddp_error *err)
{
    if (u->low.device == NULL || u->grad.kind == CDDP_GRAD_UNDEFINED ||
        u->grad.value.storage != u->low.storage)
        return CDDP_OK;
    const int64_t share = u->layout.share;
    u->grad.value = cddp_tensor_of(u->low.device, u->grad.backing.storage, u->grad.backing.offset,
                                   u->dtype, &share, 1);
    return CD_PASS(u->low.device->copy(&u->grad.value, &u->low, NULL, err));
}

cddp_status cd_fsdp_unit_advance(cd_fsdp_unit *u, cddp_error *err)
{
    cddp_work *work = u->reduction;
    const bool scattered = u->reducing == CD_FSDP_SCATTERING;
    if (u->reducing == CD_FSDP_REDUCED) return CDDP_OK;
    u->reduction = NULL;
    CD_TRY(cddp_work_wait(work, 0, err));
    cd_fsdp_memory_give(u->memory, &u->given);
    if (scattered && u->replicas != NULL) {
        CD_TRY(divide_after(&u->of_shards, &u->sum, &u->sum, err));
        return CD_PASS(post_replicate(u, err));
    }
    u->reducing = CD_FSDP_REDUCED;
    CD_TRY(cd_fsdp_unit_check_gradient(u, err));
    CD_TRY(take_back_shown(u, err));
    const cd_fsdp_divisor *d = scattered ? &u->of_shards : &u->of_replicas;
    CD_TRY(cd_fsdp_unit_is_offloaded(u) ? add_on_host(u, d, err) : add_to_shard(u, d, err));
    cd_fsdp_memory_give(u->memory, &u->taken);
    return CDDP_OK;
}

cddp_status cd_fsdp_unit_show_gradient(cd_fsdp_unit *u, cddp_error *err)
{
    const cddp_device *home = u->shard.device;
    const int64_t share = u->layout.share;
    void *storage = NULL;
    if (!u->keeps_low_precision_grads || u->param_dtype == u->dtype || share == 0 ||
        u->grad.kind == CDDP_GRAD_UNDEFINED || u->grad.value.dtype != u->dtype)
        return CDDP_OK;
    if (u->low.device == NULL) {
        CD_TRY(home->allocate(home, u->param_dtype, share, &storage, err));
        u->low = cddp_tensor_of(home, storage, 0, u->param_dtype, &share, 1);
    }
    CD_TRY(home->copy(&u->low, &u->grad.value, NULL, err));
    u->grad.value = u->low;
    return CDDP_OK;
}
