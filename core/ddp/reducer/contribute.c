/* SPDX-License-Identifier: Apache-2.0 */
/* How a gradient gets into its bucket, and with which rounding (GRD-01…09, GRD-15).
**
**     gradient is …                          without a hook                      with a hook
**     elsewhere (copy, path A)               slice = grad × fl(1/div)            slice = grad
**     in its slice since last time (B)       slice = slice ÷ div                 nothing
**     in its slice, newly born (A in place)  slice = slice × fl(1/div)           nothing
**     undefined (C)                          slice = 0                           slice = 0
**     sparse                                 values = values ÷ div               nothing
**
** PyTorch gives a newly made gradient separate storage and copies it, scaled by the rounded
** reciprocal. Our engine makes it in the slice; the pass over it is then in place, and the
** reciprocal keeps the bits (GRD-06). The two forms differ in the last bit for world sizes that are
** not powers of two (GRD-05).
*/
#include "core/ddp/reducer/reducer.h"

#include "cddp/device.h"
#include "core/base/bitset.h"
#include "core/base/error.h"
#include "core/tensor/digest.h"
#include "core/trace/points.h"
#include "core/trace/tracer.h"

cddp_status cd_reducer_compute_divide_factor(cd_reducer *r, cddp_error *err)
{
    uint64_t factor = cddp_group_size(r->group);
    if (r->join != NULL) CD_TRY(cd_join_active_ranks(r->join, &factor, err));
    if (!r->scales_in_hook) CD_POINT_TRACED(COUNT, "reducer.divisor", r->tracer, factor);
    r->divide_factor = factor;
    return CDDP_OK;
}

/* The caller owns the slot and may put anything there; a wrong tensor must not reach a device. */
static cddp_status refuse_value(const cd_variable *v, cddp_error *err)
{
    const cddp_tensor *value = &v->grad->value, *like = &v->tensor.form->like;
    if (value->device == NULL || value->dim_count > CDDP_DIMS_MAX ||
        (unsigned)value->dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_STATE,
                       "the gradient of '%s' is no tensor: it has %s, %u dimensions, dtype %d",
                       v->name, value->device == NULL ? "no device" : value->device->name,
                       value->dim_count, (int)value->dtype);
    if (!cd_device_is_same(value->device, like->device))
        return cd_fail(err, CDDP_E_STATE, "the gradient of '%s' is on %s, the parameter on %s",
                       v->name, value->device->name, like->device->name);
    if ((value->storage == NULL || value->offset < 0) && cddp_tensor_numel(value) > 0)
        return cd_fail(err, CDDP_E_STATE, "the gradient of '%s' has %s", v->name,
                       value->storage == NULL ? "no storage" : "a negative offset");
    return CDDP_OK;
}

static inline cddp_status check_value(const cd_variable *v, cddp_error *err)
{
    const cddp_tensor *value = &v->grad->value;
    bool is_plain = value->device == v->tensor.form->like.device && value->storage != NULL &&
                    value->offset >= 0 && value->dim_count <= CDDP_DIMS_MAX &&
                    (unsigned)value->dtype < CDDP_DTYPE_COUNT;
    return CD_PASS(is_plain ? CDDP_OK : refuse_value(v, err));
}

/* SPA-01: as many rows of values as row numbers. */
static cddp_status check_rows(const cd_variable *v, cddp_error *err)
{
    const cddp_grad *grad = v->grad;
    const cddp_tensor *like = &v->tensor.form->like;
    CD_TRY(check_value(v, err));
    if (grad->value.dtype != like->dtype) /* ERR-08 */
        return cd_fail(err, CDDP_E_STATE, "the gradient of '%s' is %s, the parameter is %s",
                       v->name, cddp_dtype_name(grad->value.dtype), cddp_dtype_name(like->dtype));
    int64_t columns = 1;
    for (uint32_t i = 1; i < like->dim_count; i++) columns *= like->sizes[i];
    if (grad->rows.count < 0 || (grad->rows.count > 0 && grad->rows.device == NULL) ||
        cddp_tensor_numel(&grad->value) != grad->rows.count * columns)
        return cd_fail(err, CDDP_E_STATE,
                       "the sparse gradient of '%s' names %lld rows of %lld elements, but has "
                       "%lld values",
                       v->name, (long long)grad->rows.count, (long long)columns,
                       (long long)cddp_tensor_numel(&grad->value));
    return CDDP_OK;
}

static cddp_status contribute_sparse(cd_reducer *r, const cd_variable *v, cddp_error *err)
{
    cddp_grad *grad = v->grad;
    if (grad->kind == CDDP_GRAD_UNDEFINED) /* ERR-12 */
        return cd_fail(
            err, CDDP_E_STATE,
            "'%s' expects a sparse gradient but received none; a sparse parameter must be "
            "used on every rank in every iteration",
            v->name);
    if (grad->kind != CDDP_GRAD_SPARSE)
        return cd_fail(err, CDDP_E_STATE, "'%s' expects a sparse gradient but received a dense one",
                       v->name);
    CD_TRY(check_rows(v, err));
    const bool is_plain = r->hook != NULL && (r->hook->flags & CDDP_HOOK_SPARSE_PLAIN) != 0;
    /* a hook divides by the world, whoever has joined (HK-01) */
    const uint64_t divisor = r->scales_in_hook ? cddp_group_size(r->hook_group) : r->divide_factor;
    if (!r->scales_in_hook || is_plain)
        CD_TRY(grad->value.device->divide(&grad->value, &grad->value, (int64_t)divisor, NULL, err));
    return CDDP_OK;
}

/* GRD-07: an undefined gradient is zeros on the wire. A variable that was used in this window
** cannot be undefined, unless somebody dropped what no_sync micro-steps had accumulated. */
static cddp_status contribute_zero(const cd_reducer *r, size_t variable, const cddp_tensor *view,
                                   cddp_error *err)
{
    bool has_map = cd_reducer_is_dynamic(r) || cd_reducer_is_first_static(r);
    if (has_map && !r->config->accumulate_in_hook && r->used_map.local[variable] != 0) {
        /* Whether the map is right is for a judge to say: it goes to the trace before the error. */
        CD_EMIT(r->tracer, mark, CD_TRACER_TAKEN_FOR_USED, .value = (int64_t)variable);
        return cd_fail(err, CDDP_E_STATE,
                       "'%s' was used since the last synchronisation, but its gradient is "
                       "undefined: was it set to "
                       "none between the micro-steps of one window?",
                       cd_wrapped_variable(r->module, variable)->name);
    }
    return CD_PASS(view->device->fill(view, 0.0, NULL, err));
}

static cddp_status check_gradient(const cd_reducer *r, const cd_variable *v,
                                  const cddp_tensor *view, cddp_error *err)
{
    const cddp_grad *grad = v->grad;
    if (grad->kind == CDDP_GRAD_SPARSE)
        return cd_fail(err, CDDP_E_STATE,
                       "'%s' received a sparse gradient but was wrapped without expect_sparse",
                       v->name);
    CD_TRY(check_value(v, err));
    if (grad->value.dtype != view->dtype) /* ERR-08 */
        return cd_fail(err, CDDP_E_STATE, "the gradient of '%s' is %s, but its bucket holds %s",
                       v->name, cddp_dtype_name(grad->value.dtype), cddp_dtype_name(view->dtype));
    if (cddp_tensor_numel(&grad->value) != cddp_tensor_numel(view))
        return cd_fail(err, CDDP_E_STATE,
                       "the gradient of '%s' has %lld elements, the parameter has %lld", v->name,
                       (long long)cddp_tensor_numel(&grad->value),
                       (long long)cddp_tensor_numel(view));
    if (!r->config->gradient_as_bucket_view && cd_bucket_is_alias(&grad->value, view) &&
        cddp_tensor_numel(view) > 0)
        return cd_fail(err, CDDP_E_STATE,
                       "the gradient of '%s' lies in its bucket without gradient_as_bucket_view",
                       v->name);
    const int64_t behind = grad->value.offset - view->offset;
    if (r->config->gradient_as_bucket_view && grad->value.storage == view->storage && behind != 0 &&
        cddp_tensor_numel(view) > 0)
        return cd_fail(err, CDDP_E_STATE,
                       "gradient_as_bucket_view: the gradient of '%s' lies %lld element%s %s its "
                       "slice of the bucket",
                       v->name, (long long)(behind > 0 ? behind : -behind),
                       behind == 1 || behind == -1 ? "" : "s", behind > 0 ? "behind" : "before");
    if (r->config->strict && r->config->gradient_as_bucket_view &&
        !cd_bucket_is_alias(&grad->value, view) && cddp_tensor_numel(view) > 0 &&
        grad->value.storage != grad->backing.storage)
        return cd_fail(err, CDDP_E_STATE,
                       "gradient_as_bucket_view: the gradient of '%s' lies in the caller's "
                       "storage, which would not be averaged: make it with cddp_grad_define",
                       v->name);
    return CDDP_OK;
}

static bool is_view_mode(const cd_reducer *r) { return r->config->gradient_as_bucket_view; }

/* A device with streams takes longer to start a copy than to carry it out. There the copies of a
** bucket start together, with the bits of one at a time (GRD-03). A slice that is looked at earlier
** is copied at once: by a hook that adds gradients up, or for the digest of a trace. */
static bool packs_together(const cd_reducer *r, const cddp_tensor *view)
{
    return (view->device->flags & CDDP_DEVICE_ASYNC) != 0 && !is_view_mode(r) &&
           !r->config->accumulate_in_hook && !cd_tracer_wants_digest(r->tracer);
}

/* What is packed is hashed on its way, where nobody writes to the slice before mark_ready. */
static bool hashes_on_the_way(const cd_reducer *r, const cddp_tensor *view,
                              const cddp_tensor *value)
{
    return !CD_POINTS_STRIKE && cd_tracer_wants_digest(r->tracer) &&
           !r->config->accumulate_in_hook && cd_digest_may_follow(view, value);
}

static cddp_status pack_one(const cd_reducer *r, const cddp_tensor *view, const cddp_tensor *value,
                            cd_contribution *contribution, cddp_error *err)
{
    const int64_t div = (int64_t)r->divide_factor;
    if (!hashes_on_the_way(r, view, value))
        return CD_PASS(view->device->multiply_reciprocal(view, value, div, NULL, err));
    uint64_t digest = 0;
    CD_TRY(cd_digest_multiply_reciprocal(&(cddp_copy_pair){*view, *value}, div, &digest, err));
    contribution->digest = (int64_t)digest;
    contribution->is_hashed = true;
    return CDDP_OK;
}

static cddp_status contribute_dense(cd_reducer *r, size_t variable, const cddp_tensor *view,
                                    cd_contribution *contribution, cddp_error *err)
{
    int64_t *path = &contribution->path;
    const cd_variable *v = cd_wrapped_variable(r->module, variable);
    const cddp_tensor *value = &v->grad->value;
    const cddp_device *device = view->device;
    int64_t div = (int64_t)r->divide_factor;
    bool is_alias = cd_bucket_is_alias(value, view);
    bool deferred = r->config->batched_grad_copy && !r->scales_in_hook;
    if (deferred) {
        /* the copy waits for the bucket; see cd_reducer_contribute_deferred */
        *path = CDDP_PATH_DEFERRED;
    } else if (r->scales_in_hook) {
        *path = CDDP_PATH_HOOK;
        if (!is_alias) CD_TRY(device->copy(view, value, NULL, err));
    } else if (is_alias && !v->grad->is_fresh) {
        *path = CDDP_PATH_DIVIDE;
        CD_TRY(device->divide(view, view, div, NULL, err));
    } else {
        *path = CDDP_PATH_RECIPROCAL;
        if (packs_together(r, view))
            cd_bitset_add(r->packed_later, variable);
        else
            CD_TRY(pack_one(r, view, value, contribution, err));
    }
    return CDDP_OK;
}

/* Where gradients are added up by the hook it sees each once, in its slice. */
static cddp_status report_hook(const cd_reducer *r, size_t variable, cddp_error *err)
{
    const cd_bucket_set *set = &r->buckets;
    uint32_t s = set->slot_of[variable];
    cddp_tensor flat = cddp_tensor_slice(&set->buckets[set->bucket_of[variable]].flat,
                                         set->offsets[s], set->lengths[s]);
    cd_tracer_call(r->tracer, r->hook->name, "accumulate");
    const cddp_status status = r->hook->accumulate(r->hook_self, (uint32_t)variable, &flat, err);
    cd_tracer_call(r->tracer, NULL, NULL);
    return CD_PASS(status);
}

/* OIB-03: what is stepped as soon as it is reduced has no place to be accumulated. */
static cddp_status check_accumulation(const cd_reducer *r, const cd_variable *v, cddp_error *err)
{
    if (r->optimizer.step == NULL || r->optimizer.overlap != CDDP_OVERLAP_HOOK_THEN_OPTIMIZER ||
        r->is_after_finalize)
        return CDDP_OK;
    return cd_fail(
        err, CDDP_E_STATE,
        "'%s' received a gradient inside no_sync, but hook_then_optimizer steps every backward and "
        "accumulates nothing",
        v->name);
}

cddp_status cd_reducer_hand_over(cd_reducer *r, size_t variable, cddp_error *err)
{
    const cd_variable *v = cd_wrapped_variable(r->module, variable);
    CD_TRY(check_accumulation(r, v, err));
    if (!r->config->accumulate_in_hook || r->is_after_finalize ||
        v->grad->kind == CDDP_GRAD_UNDEFINED)
        return CDDP_OK;
    if (r->hook == NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "accumulate_in_hook without a comm hook: register one that adds gradients "
                       "up (reproducible)");
    const cddp_tensor slice = cd_bucket_set_view(&r->buckets, variable), *view = &slice;
    CD_TRY(check_gradient(r, v, view, err));
    if (!cd_bucket_is_alias(&v->grad->value, view))
        CD_TRY(view->device->copy(view, &v->grad->value, NULL, err));
    CD_TRY(report_hook(r, variable, err));
    cddp_grad_drop(v->grad);
    return CDDP_OK;
}

/* GRD-10: an unused variable contributes what its gradient still held, not zero. */
static void note_stale(const cd_reducer *r, size_t variable)
{
    if (r->tracer == NULL || r->unused_count == 0 || !cd_bitset_has(r->unused_set, variable))
        return;
    CD_EMIT(r->tracer, mark, "stale_gradient_contributed", .value = (int64_t)variable);
}

cddp_status cd_reducer_contribute(cd_reducer *r, size_t variable, cd_contribution *contribution,
                                  cddp_error *err)
{
    const cd_variable *v = cd_wrapped_variable(r->module, variable);
    int64_t *path = &contribution->path;
    *contribution = (cd_contribution){.path = 0};
    if (v->expect_sparse) {
        *path = CDDP_PATH_SPARSE;
        return CD_PASS(contribute_sparse(r, v, err));
    }
    const cddp_tensor slice = cd_bucket_set_view(&r->buckets, variable), *view = &slice;
    if (v->grad->kind == CDDP_GRAD_UNDEFINED) {
        *path = CDDP_PATH_ZERO;
        return CD_PASS(contribute_zero(r, variable, view, err));
    }
    if (r->config->accumulate_in_hook && r->hook == NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "accumulate_in_hook without a comm hook: register one that adds gradients "
                       "up (reproducible)");
    CD_TRY(check_gradient(r, v, view, err));
    note_stale(r, variable);
    if (v->grad->requires_grad)
        CD_EMIT(r->tracer, mark, "create_graph_gradient", .value = (int64_t)variable);
    CD_TRY(contribute_dense(r, variable, view, contribution, err));
    CD_POINT_TRACED(TENSOR, "bucket.contribution", r->tracer, variable, view);
    if (r->config->accumulate_in_hook && !cd_bitset_has(r->unused_set, variable))
        CD_TRY(report_hook(r, variable, err));
    if (*path == CDDP_PATH_DEFERRED) return CDDP_OK;
    if (is_view_mode(r) && !cd_bucket_is_alias(&v->grad->value, view)) v->grad->value = *view;
    v->grad->is_fresh = false;
    return CDDP_OK;
}

/* The copies that packs_together put off. */
static cddp_status pack(cd_reducer *r, const cd_bucket *bucket, cddp_error *err)
{
    const cddp_device *device = bucket->flat.device;
    cddp_copy_pair *pairs = r->buckets.pairs;
    size_t pair_count = 0;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        if (!cd_bitset_has(r->packed_later, v)) continue;
        const cd_variable *variable = cd_wrapped_variable(r->module, v);
        cd_bitset_remove(r->packed_later, v);
        if (variable->grad->kind != CDDP_GRAD_DENSE)
            return cd_fail(err, CDDP_E_STATE,
                           "the gradient of '%s' was dropped after it was ready, before its bucket "
                           "was complete",
                           variable->name);
        pairs[pair_count++] = (cddp_copy_pair){.dst = cd_bucket_set_view(&r->buckets, v),
                                               .src = variable->grad->value};
    }
    if (pair_count == 0) return CDDP_OK;
    return CD_PASS(device->copy_many(device, pairs, pair_count, CDDP_COPY_MULTIPLY,
                                     (int64_t)r->divide_factor, NULL, err));
}

cddp_status cd_reducer_contribute_deferred(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    CD_TRY(pack(r, bucket, err));
    if (!r->config->batched_grad_copy || r->scales_in_hook || bucket->is_sparse) return CDDP_OK;
    cddp_copy_pair *pairs = r->buckets.pairs;
    size_t pair_count = 0;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        uint32_t s = bucket->first_slot + i;
        uint32_t v = r->buckets.layout.indices[s];
        cddp_grad *grad = cd_wrapped_variable(r->module, v)->grad;
        if (grad->kind != CDDP_GRAD_DENSE) continue;
        const cddp_tensor slice = cd_bucket_set_view(&r->buckets, v), *view = &slice;
        CD_TRY(check_gradient(r, cd_wrapped_variable(r->module, v), view, err));
        if (!cd_bucket_is_alias(&grad->value, view))
            pairs[pair_count++] = (cddp_copy_pair){.dst = *view, .src = grad->value};
        if (is_view_mode(r)) grad->value = *view;
        grad->is_fresh = false;
    }
    const cddp_device *device = bucket->flat.device;
    if (pair_count > 0)
        CD_TRY(device->copy_many(device, pairs, pair_count, CDDP_COPY_PLAIN, 1, NULL, err));
    return CD_PASS(
        device->divide(&bucket->flat, &bucket->flat, (int64_t)r->divide_factor, NULL, err));
}
