/* SPDX-License-Identifier: Apache-2.0 */
/* Finalisation: awaits every bucket, decides what is globally unused, writes the averages back
** (FIN-01…08).
**
** Futures advance in rounds. In each round every incomplete bucket, in index order, awaits its
** works and runs its next stage. A plain all-reduce completes in the first round, so its write-back
** overlaps the buckets behind it; a hook with several stages posts its second collectives for all
** buckets in index order, on every rank alike (Note [Bucket order is a contract between ranks]).
** With a chooser of continuations stages run in its order instead, as PyTorch's callbacks do.
*/
#include "core/ddp/reducer/untouched.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/hooks/hook.h"
#include "core/tensor/digest.h"
#include "core/tensor/view.h"
#include "core/trace/points.h"
#include "core/trace/tracer.h"

/* HOOK-12: without a sparse result the gradient would stay local. */
static cddp_status check_sparse_result(const cd_reducer *r, const cd_bucket *bucket,
                                       cddp_error *err)
{
    const cddp_hook *hook = cd_reducer_hook_of(r, bucket);
    if (hook == NULL) return CDDP_OK;
    const cd_variable *v =
        cd_wrapped_variable(r->module, r->buckets.layout.indices[bucket->first_slot]);
    const cddp_grad *result = bucket->future.sparse_result;
    if (result == NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s completed bucket %u without a sparse_result, so that the "
                       "sparse gradient of '%s' would stay local",
                       hook->name, bucket->index, v->name);
    const cddp_tensor *like = &v->tensor.form->like, *value = &result->value;
    bool fits =
        result->kind == CDDP_GRAD_SPARSE && value->device != NULL && value->dtype == like->dtype &&
        value->dim_count == like->dim_count && result->rows.count >= 0 && value->dim_count > 0 &&
        value->sizes[0] == result->rows.count &&
        (result->rows.count == 0 ||
         (value->storage != NULL && result->rows.device != NULL && result->rows.storage != NULL));
    for (uint32_t i = 1; fits && i < like->dim_count; i++) fits = value->sizes[i] == like->sizes[i];
    if (!fits)
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s: the sparse_result of bucket %u is no sparse gradient of '%s'",
                       hook->name, bucket->index, v->name);
    return CDDP_OK;
}

/* HOOK-07: the result has as many elements as the bucket; its dtype is the hook's business. */
static cddp_status check_result(const cd_reducer *r, const cd_bucket *bucket, cddp_error *err)
{
    const cddp_tensor *result = &bucket->future.result;
    const char *hook = r->hook != NULL ? r->hook->name : "all-reduce";
    if (bucket->is_sparse) return CD_PASS(check_sparse_result(r, bucket, err));
    if (result->device == NULL)
        return cd_fail(err, CDDP_E_STATE, "comm hook %s completed bucket %u without a result", hook,
                       bucket->index);
    if (result->dim_count > CDDP_DIMS_MAX || (unsigned)result->dtype >= CDDP_DTYPE_COUNT)
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s returned no tensor for bucket %u: %u dimensions, dtype %d",
                       hook, bucket->index, result->dim_count, (int)result->dtype);
    if (!cd_device_is_same(result->device, bucket->flat.device))
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s returned a tensor on %s for bucket %u, which is on %s", hook,
                       result->device->name, bucket->index, bucket->flat.device->name);
    if (cddp_tensor_numel(result) != cddp_tensor_numel(&bucket->flat) ||
        !cddp_tensor_is_contiguous(result))
        return cd_fail(err, CDDP_E_STATE,
                       "comm hook %s returned %lld elements for bucket %u, which has %lld", hook,
                       (long long)cddp_tensor_numel(result), bucket->index,
                       (long long)cddp_tensor_numel(&bucket->flat));
    return CDDP_OK;
}

static bool asks_unused(const cd_reducer *r)
{
    return r->used_map.count > 0 && (cd_reducer_is_dynamic(r) || r->static_graph);
}

/* Sparse parameters are used everywhere or fail (ERR-12). */
cddp_status cd_reducer_ask_unused(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    if (bucket->is_answered || bucket->is_sparse) return CDDP_OK;
    bucket->is_answered = true;
    if (!asks_unused(r)) return CDDP_OK;
    bucket->reading.has_slices = false; /* this may wait for other ranks */
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        bool is_unused = false;
        CD_TRY(cd_unused_map_is_globally_unused(&r->used_map, v, r->tracer, &is_unused, err));
        if (is_unused) cd_bitset_add(r->globally_unused, v);
    }
    return CDDP_OK;
}

static bool is_same_view(const cddp_tensor *a, const cddp_tensor *b)
{
    return cd_bucket_is_alias(a, b) && a->dtype == b->dtype &&
           cddp_tensor_numel(a) == cddp_tensor_numel(b) && cd_view_is_parallel(a, b);
}

/* Of what the bucket delivered for it, where that has the gradient's own dtype. A gradient that is
** this slice has been hashed in this moment. See Note [One reading for two events]. */
static int64_t digest_slice(const cd_reducer *r, size_t variable, const cddp_grad *grad,
                            int64_t hashed)
{
    const cd_bucket *bucket = &r->buckets.buckets[r->buckets.bucket_of[variable]];
    const cddp_tensor *result = bucket->is_complete ? &bucket->future.result : NULL;
    if (result == NULL || bucket->is_sparse || grad->kind != CDDP_GRAD_DENSE ||
        result->device == NULL || result->dtype != bucket->flat.dtype ||
        result->dtype != grad->value.dtype)
        return 0;
    const cddp_tensor slice = cd_bucket_set_view_of(&r->buckets, variable, result);
    if (is_same_view(&slice, &grad->value)) return hashed;
    if (bucket->reading.has_slices) return r->buckets.slice_digests[r->buckets.slot_of[variable]];
    return cd_tracer_digest(r->tracer, &slice);
}

/* Was the gradient read together with the result, or behind its copy? Then *written is what was
** found. */
static bool is_read(const cd_reducer *r, size_t variable, const cddp_tensor *value,
                    cd_digest_written *written)
{
    const cd_bucket *bucket = &r->buckets.buckets[r->buckets.bucket_of[variable]];
    if (!bucket->reading.has_written || cd_reducer_is_unused(r, variable)) return false;
    const cddp_tensor slice = cd_bucket_set_view(&r->buckets, variable);
    if (r->config->gradient_as_bucket_view && !is_same_view(&slice, value)) return false;
    *written = r->buckets.written[r->buckets.slot_of[variable] - bucket->first_slot];
    return true;
}

/* The digest of a gradient, and whether it has an element that is no number. */
static int64_t digest_final(const cd_reducer *r, size_t variable, const cddp_tensor *value,
                            int64_t *nonfinite)
{
    cd_digest_written written;
    if (!is_read(r, variable, value, &written))
        return (int64_t)cd_digest_and_find_nonfinite(value, nonfinite);
    *nonfinite = written.nonfinite;
    return (int64_t)written.digest;
}

void cd_reducer_emit_final(const cd_reducer *r, size_t variable, bool is_unused)
{
    if (r->tracer == NULL) return;
    const cddp_grad *grad = cd_wrapped_variable(r->module, variable)->grad;
    uint32_t s = r->buckets.slot_of[variable];
    bool dense = grad->kind == CDDP_GRAD_DENSE;
    bool is_view = dense && cd_bucket_set_holds(&r->buckets, variable, grad->value.storage,
                                                grad->value.offset);
    int64_t bad = -1;
    const cddp_tensor *value = &grad->value;
    const bool digests = grad->kind != CDDP_GRAD_UNDEFINED && cd_tracer_wants_digest(r->tracer);
    const int64_t digest = digests ? digest_final(r, variable, value, &bad) : 0;
    CD_EMIT(r->tracer, grad_final, NULL, .param = (int64_t)variable,
            .presence = grad->kind == CDDP_GRAD_UNDEFINED ? CDDP_PRESENCE_ABSENT
                        : dense                           ? CDDP_PRESENCE_VALUE
                                                          : CDDP_PRESENCE_SPARSE,
            .globally_unused = is_unused, .digest = digest,
            .bucket = r->buckets.bucket_of[variable], .generation = r->buckets.generation,
            .is_view = is_view, .address = is_view ? r->buckets.offsets[s] : -1,
            .dtype = grad->kind == CDDP_GRAD_UNDEFINED ? -1 : (int64_t)value->dtype,
            .nonfinite = bad >= 0,
            .slice = is_unused ? 0 : digest_slice(r, variable, grad, digest));
    if (is_unused) CD_EMIT(r->tracer, mark, "globally_unused", .value = (int64_t)variable);
    if (r->tracer->watch != NULL && dense && !is_unused)
        r->tracer->watch->written(r->tracer, (int64_t)variable, value);
}

/* FIN-04: the gradient becomes its slice; one that was replaced since it was marked ready is
** refused (ERR-09). */
static cddp_status point_at_view(cd_reducer *r, size_t variable, cddp_error *err)
{
    const cd_variable *v = cd_wrapped_variable(r->module, variable);
    const cddp_tensor *value = &v->grad->value;
    if (v->grad->kind == CDDP_GRAD_DENSE &&
        !cd_bucket_set_holds(&r->buckets, variable, value->storage, value->offset))
        return cd_fail(err, CDDP_E_STATE,
                       "gradient_as_bucket_view: the gradient of '%s' is no longer the bucket "
                       "slice that DDP installed; "
                       "do not replace gradients between backward and its end",
                       v->name);
    if (v->grad->kind != CDDP_GRAD_DENSE)
        v->grad->value = cd_bucket_set_view(&r->buckets, variable);
    v->grad->kind = CDDP_GRAD_DENSE;
    v->grad->is_fresh = false;
    return CDDP_OK;
}

/* FIN-03: the reduced value replaces the gradient's; an undefined gradient is made, laid out as
** the parameter. */
static cddp_status prepare_copy(cd_reducer *r, size_t variable, const cddp_tensor *result,
                                cddp_copy_pair *pair, cddp_error *err)
{
    const cd_variable *v = cd_wrapped_variable(r->module, variable);
    CD_TRY(cddp_grad_define(v->grad, &v->tensor.form->like, err));
    v->grad->is_fresh = false;
    *pair = (cddp_copy_pair){.dst = v->grad->value,
                             .src = cd_bucket_set_view_of(&r->buckets, variable, result)};
    return CDDP_OK;
}

static cddp_status write_back_sparse(cd_reducer *r, const cd_bucket *bucket)
{
    uint32_t v = r->buckets.layout.indices[bucket->first_slot];
    cddp_grad *grad = cd_wrapped_variable(r->module, v)->grad;
    if (cd_reducer_hook_of(r, bucket) == NULL) {
        cd_sparse_write_back(&r->sparse, v, grad);
    } else {
        grad->kind = CDDP_GRAD_SPARSE;
        grad->value = bucket->future.sparse_result->value;
        grad->rows = bucket->future.sparse_result->rows;
        grad->is_fresh = false;
    }
    cd_reducer_emit_final(r, v, false);
    return CDDP_OK;
}

static bool is_consumed(const cd_reducer *r, size_t variable)
{
    return !r->writes_back && r->optimizer_managed[variable];
}

static void emit_final_of(const cd_reducer *r, uint32_t variable)
{
    const bool is_unused = cd_reducer_is_unused(r, variable);
    if (is_unused || !is_consumed(r, variable)) cd_reducer_emit_final(r, variable, is_unused);
}

static void emit_finals(const cd_reducer *r, const cd_bucket *bucket)
{
    for (uint32_t i = 0; r->tracer != NULL && i < bucket->variable_count; i++)
        emit_final_of(r, r->buckets.layout.indices[bucket->first_slot + i]);
}

/* Large gradients are hashed on their way out, where nobody writes to them before grad_final says
** so. */
static bool hashes_on_the_way(const cd_reducer *r, const cd_bucket *bucket, size_t pair_count)
{
    const cddp_copy_pair *pairs = r->buckets.pairs;
    /* what does not pay for the whole bucket pays for none of its gradients */
    bool may = !CD_POINTS_STRIKE && cd_tracer_wants_digest(r->tracer) &&
               cd_digest_may_follow(&bucket->flat, &bucket->flat);
    bool has_large = false;
    for (size_t i = 0; may && i < pair_count; i++) {
        may = pairs[i].dst.device->copy_many == cddp_device_cpu()->copy_many;
        has_large |= cd_digest_may_follow(&pairs[i].dst, &pairs[i].src);
    }
    return may && has_large;
}

/* An optimizer that consumes its gradients has none written back (FIN-07). */
static bool is_written_back(const cd_reducer *r, size_t variable)
{
    return !cd_reducer_is_unused(r, variable) && !is_consumed(r, variable);
}

static cddp_status copy_one(cd_reducer *r, cd_bucket *bucket, uint32_t i,
                            const cddp_copy_pair *pair, cddp_error *err)
{
    bucket->reading.has_written = cd_digest_may_follow(&pair->dst, &pair->src);
    if (bucket->reading.has_written)
        return CD_PASS(cd_digest_copy(pair, &r->buckets.written[i], err));
    return CD_PASS(pair->dst.device->copy(&pair->dst, &pair->src, NULL, err));
}

/* One pair for each variable that is written back, in the order of the bucket. Each gradient is
** reported while it is in the cache: whoever looks at it then reads it there. */
static cddp_status copy_and_report(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    const cddp_copy_pair *pair = r->buckets.pairs;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        if (is_written_back(r, v)) CD_TRY(copy_one(r, bucket, i, pair++, err));
        emit_final_of(r, v);
    }
    bucket->reading.has_written = false;
    return CDDP_OK;
}

/* The pairs that write_back would copy, where nothing can keep it from doing so once the result is
** there: then the reading of the result copies them. See Note [One reading for two events]. */
static const cddp_copy_pair *find_copies(const cd_reducer *r, const cd_bucket *bucket)
{
    cddp_copy_pair *pairs = r->buckets.pairs;
    if (r->config->gradient_as_bucket_view || r->consumers.count > 1 || asks_unused(r)) return NULL;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        const cddp_grad *grad = cd_wrapped_variable(r->module, v)->grad;
        if (grad->kind != CDDP_GRAD_DENSE || !is_written_back(r, v)) return NULL;
        pairs[i] = (cddp_copy_pair){.dst = grad->value, .src = cd_bucket_set_view(&r->buckets, v)};
        if (!cd_digest_may_copy(&pairs[i].dst, &pairs[i].src)) return NULL;
    }
    return hashes_on_the_way(r, bucket, bucket->variable_count) ? pairs : NULL;
}

/* Of gradients that were read together with the result: as copies of it, or as its slices. */
static void report_read(const cd_reducer *r, cd_bucket *bucket)
{
    cd_reading *reading = &bucket->reading;
    reading->has_written &= reading->has_slices;
    emit_finals(r, bucket);
    reading->has_written = reading->is_copied = false;
}

static cddp_status write_back(cd_reducer *r, cd_bucket *bucket, const cddp_tensor *result,
                              cddp_error *err)
{
    if (bucket->is_sparse) return write_back_sparse(r, bucket);
    bool views = r->config->gradient_as_bucket_view;
    size_t pair_count = 0;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        if (!is_written_back(r, v)) continue;
        if (views)
            CD_TRY(point_at_view(r, v, err));
        else
            CD_TRY(prepare_copy(r, v, result, &r->buckets.pairs[pair_count++], err));
    }
    const bool copies = pair_count > 0 && !bucket->reading.is_copied;
    if (copies && hashes_on_the_way(r, bucket, pair_count))
        return CD_PASS(copy_and_report(r, bucket, err));
    if (copies)
        CD_TRY(bucket->flat.device->copy_many(bucket->flat.device, r->buckets.pairs, pair_count,
                                              CDDP_COPY_PLAIN, 1, NULL, err));
    CD_POINT_WRITTEN(r, bucket);
    report_read(r, bucket);
    return CDDP_OK;
}

const cd_bucket_consumer cd_write_back = {.complete = write_back};

static bool hash_bytes(void *context, const void *bytes, size_t byte_count)
{
    uint64_t *digest = context;
    *digest = cd_hash_mix(*digest, cd_hash64(bytes, byte_count, 0));
    return true;
}

/* Of everything a checkpoint would keep; once per backward, with the last bucket. */
static int64_t digest_hook_state(const cd_reducer *r, const cd_bucket *bucket)
{
    bool is_last = bucket->index + 1 == r->buckets.bucket_count;
    if (!is_last || (r->hook->flags & CDDP_HOOK_STATEFUL) == 0 ||
        !cd_tracer_wants_digest(r->tracer))
        return 0;
    uint64_t digest = 0;
    const cddp_state_writer writer = {.context = &digest, .write = hash_bytes};
    cd_tracer_call(r->tracer, r->hook->name, "save");
    const cddp_status status = r->hook->save(r->hook_self, &writer, NULL);
    cd_tracer_call(r->tracer, NULL, NULL);
    return status == CDDP_OK ? (int64_t)digest : 0;
}

/* The digest of the result, and *slices: those of its slices, folded, as grad_final has them. */
static int64_t digest_result(const cd_reducer *r, cd_bucket *bucket, int64_t *slices)
{
    *slices = 0;
    if (bucket->is_sparse || !cd_tracer_wants_digest(r->tracer) ||
        bucket->future.result.device == NULL)
        return 0;
    const int64_t whole = cd_reading_take_result(&r->buckets, bucket);
    *slices = bucket->reading.slices;
    /* write_back comes next, and nobody else sees the result before it */
    bucket->reading.has_slices = cd_reading_may_be_shared(r->tracer, bucket) &&
                                 bucket->future.result.dtype == bucket->flat.dtype &&
                                 cd_reducer_hook_of(r, bucket) == NULL && r->consumers.count == 1;
    return whole;
}

/* A recorder compares what a hook delivered with what entered. */
static void watch_result(const cd_reducer *r, const cd_bucket *bucket)
{
    const cd_tracer_watch *watch = r->tracer->watch;
    const cddp_tensor *result = &bucket->future.result;
    if (watch == NULL || cd_reducer_hook_of(r, bucket) == NULL || bucket->is_sparse) return;
    cd_tracer_share share = {.bucket = bucket->index, .ranks = cddp_group_size(r->group)};
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t variable = r->buckets.layout.indices[bucket->first_slot + i];
        const cddp_grad *grad = cd_wrapped_variable(r->module, variable)->grad;
        const bool is_there = grad->kind == CDDP_GRAD_DENSE && !r->config->gradient_as_bucket_view;
        const cddp_tensor slice = cd_bucket_set_view_of(&r->buckets, variable, result);
        share.variable = variable;
        share.local = is_there ? &grad->value : NULL;
        share.is_zero = grad->kind == CDDP_GRAD_UNDEFINED;
        share.slice = &slice;
        watch->returned(r->tracer, &share);
    }
    share.variable = -1;
    watch->returned(r->tracer, &share);
}

/* Once: an optimizer that steps in between reports it before its result is written back. */
static cddp_status report_result(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    if (r->tracer == NULL || bucket->is_reported) return CDDP_OK;
    bucket->is_reported = true;
    const cddp_tensor *result = &bucket->future.result;
    int64_t slices = 0;
    const int64_t digest = digest_result(r, bucket, &slices);
    int64_t dtype = bucket->is_sparse ? (int64_t)bucket->flat.dtype : (int64_t)result->dtype;
    watch_result(r, bucket);
    if (cd_reducer_hook_of(r, bucket) != NULL)
        CD_EMIT(r->tracer, hook_done, r->hook->name, .bucket = bucket->index, .dtype = dtype,
                .digest = digest, .wire_bytes = (int64_t)bucket->wire_bytes,
                .state = digest_hook_state(r, bucket));
    CD_EMIT(r->tracer, bucket_done, NULL, .bucket = bucket->index,
            .generation = r->buckets.generation, .digest = digest, .dtype = dtype,
            .slices = slices);
    return CD_PASS(cd_reducer_show(r, &r->buckets, bucket, true, err));
}

/* With views the result is in the bucket before anybody looks at it (FIN-04). */
static cddp_status settle_result(cd_reducer *r, cd_bucket *bucket, const cddp_tensor **result,
                                 cddp_error *err)
{
    *result = &bucket->future.result;
    if (bucket->is_sparse) return CDDP_OK;
    if (!r->config->gradient_as_bucket_view || cd_bucket_is_alias(*result, &bucket->flat))
        return CDDP_OK;
    CD_TRY(bucket->flat.device->copy(&bucket->flat, *result, NULL, err));
    *result = &bucket->flat;
    return CDDP_OK;
}

static cddp_status complete_bucket(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    const cddp_tensor *result = NULL;
    bucket->is_complete = true;
    r->incomplete_count--;
    CD_TRY(cd_bucket_check_red_zone(bucket, err));
    CD_POINT_TRACED(TENSOR, "bucket.result", r->tracer, bucket->index, &bucket->future.result);
    CD_TRY(check_result(r, bucket, err));
    CD_TRY(report_result(r, bucket, err));
    CD_POINT_TRACED(TENSOR, "bucket.settled", r->tracer, bucket->index, &bucket->future.result);
    CD_TRY(settle_result(r, bucket, &result, err));
    CD_TRY(cd_reducer_ask_unused(r, bucket, err));
    const cd_consumers *c = &r->consumers;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->items[i]->complete != NULL) CD_TRY(c->items[i]->complete(r, bucket, result, err));
    return CDDP_OK;
}

static void begin_wait(cd_reducer *r, cd_bucket *bucket)
{
    const cd_reader reader = {.bucket = bucket,
                              .set = &r->buckets,
                              .pairs = find_copies(r, bucket),
                              .has_views = r->config->gradient_as_bucket_view};
    cd_reader_begin_wait(&r->reader, &reader, r->tracer);
}

static cddp_status advance(cd_reducer *r, cd_bucket *bucket, bool *complete, cddp_error *err)
{
    cddp_group *group = r->hook != NULL ? r->hook_group : r->group;
    const bool has_hook = cd_reducer_hook_of(r, bucket) != NULL;
    void *self = has_hook ? r->hook_self : bucket->future_self;
    uint64_t bytes = cddp_group_bytes(group);
    cddp_grad_bucket plain;
    const bool is_shared = !has_hook && cd_reading_may_be_shared(r->tracer, bucket);
    if (r->tracer != NULL) {
        cd_untouched_compare_gradients(r, bucket);
        cd_untouched_compare(r, bucket);
    }
    if (has_hook) cd_tracer_call(r->tracer, r->hook->name, "a stage");
    if (is_shared) begin_wait(r, bucket);
    const cddp_status status =
        cd_future_advance(&bucket->future, self,
                          cd_bucket_set_reported(&r->buckets, bucket, &plain), complete, err);
    if (is_shared) cd_reader_end(&r->reader, r->tracer);
    if (has_hook) cd_tracer_call(r->tracer, NULL, NULL);
    CD_TRY(status);
    bucket->wire_bytes += cddp_group_bytes(group) - bytes;
    CD_TRY(cd_reducer_check_future(r, bucket, err));
    if (r->tracer != NULL && !*complete) cd_untouched_keep(r, bucket);
    return CDDP_OK;
}

cddp_status cd_reducer_complete_future(cd_reducer *r, cd_bucket *bucket, cddp_error *err)
{
    bool complete = false;
    while (!complete) CD_TRY(advance(r, bucket, &complete, err));
    CD_TRY(check_result(r, bucket, err));
    CD_TRY(report_result(r, bucket, err));
    CD_TRY(cd_reducer_ask_unused(r, bucket, err));
    return CDDP_OK;
}

static cddp_status run_round(cd_reducer *r, cddp_error *err)
{
    for (size_t b = 0; b < r->buckets.bucket_count; b++) {
        cd_bucket *bucket = &r->buckets.buckets[b];
        if (!bucket->is_launched || bucket->is_complete) continue;
        bool complete = false;
        CD_TRY(advance(r, bucket, &complete, err));
        if (complete) CD_TRY(complete_bucket(r, bucket, err));
    }
    return CDDP_OK;
}

static bool has_stage(const cd_reducer *r, const cd_bucket *bucket)
{
    return bucket->is_launched && !bucket->is_complete && bucket->future.next != NULL &&
           cd_reducer_hook_of(r, bucket) != NULL;
}

/* The options: to go on, unless it is the end; then the buckets, from the one behind the last. */
static uint32_t list_continuations(const cd_reducer *r, size_t first, bool is_end,
                                   uint64_t *options)
{
    uint32_t count = 0;
    if (!is_end) options[count++] = UINT32_MAX;
    for (size_t i = 0; i < r->buckets.bucket_count; i++) {
        const size_t b = (first + i) % r->buckets.bucket_count;
        if (has_stage(r, &r->buckets.buckets[b])) options[count++] = b;
    }
    return count;
}

cddp_status cd_reducer_continue(cd_reducer *r, bool is_end, cddp_error *err)
{
    const cd_continuation_chooser *chooser = r->continuations;
    uint64_t *options = r->continuable;
    for (size_t first = 0; chooser != NULL;) {
        const uint32_t count = list_continuations(r, first, is_end, options);
        if (count == 0) break;
        const uint32_t index = count > 1 ? chooser->choose(chooser->self, options, count) : 0;
        if (options[index] == UINT32_MAX) break;
        bool complete = false;
        first = (size_t)options[index];
        CD_TRY(advance(r, &r->buckets.buckets[first++], &complete, err));
    }
    return CDDP_OK;
}

/* UNU-14: nobody heard of these buckets, so their gradients are as they were. */
static void finish_skipped(cd_reducer *r)
{
    for (size_t b = 0; r->tracer != NULL && b < r->buckets.bucket_count; b++) {
        const cd_bucket *bucket = &r->buckets.buckets[b];
        for (uint32_t i = 0; bucket->is_skipped && i < bucket->variable_count; i++)
            cd_reducer_emit_final(r, r->buckets.layout.indices[bucket->first_slot + i], true);
    }
}

cddp_status cd_reducer_finalize_backward(cd_reducer *r, cddp_error *err)
{
    r->phase = CD_REDUCER_FINALIZING;
    CD_TRY(cd_mixed_end(r->mixed, err));
    CD_TRY(cd_reducer_continue(r, true, err));
    while (r->incomplete_count > 0) CD_TRY(run_round(r, err));
    const cd_consumers *c = &r->consumers;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->items[i]->end != NULL) CD_TRY(c->items[i]->end(r, err));
    if (r->logger->is_sampling) {
        r->logger->comm_end_ns = cd_reducer_now(r);
        cd_logger_end_iteration(r->logger);
    }
    finish_skipped(r);
    if (cd_reducer_is_dynamic(r)) {
        CD_TRY(cd_unused_map_await(&r->used_map, r->tracer, false, err));
        cd_unused_map_close_window(&r->used_map);
    } else if (cd_reducer_is_first_static(r)) {
        /* The answer of the first window serves all later ones (STA-06). */
        CD_TRY(cd_unused_map_await(&r->used_map, r->tracer, false, err));
        r->static_graph_recorded = true;
    }
    cd_sparse_drop_metadata(&r->sparse);
    return CDDP_OK;
}
