/* SPDX-License-Identifier: Apache-2.0 */
/* See Note [Who may write to a bucket] in untouched.h. */
#include "core/ddp/reducer/untouched.h"

#include "core/base/hash.h"
#include "core/comm/operands.h"
#include "core/hooks/hook.h"
#include "core/trace/tracer.h"

static bool is_watched(const cd_reducer *r, const cd_bucket *bucket)
{
    return r->tracer != NULL && r->tracer->watch != NULL && !r->config->accumulate_in_hook &&
           cd_tracer_wants_digest(r->tracer) && !bucket->is_sparse &&
           (bucket->flat.device->flags & CDDP_DEVICE_ASYNC) == 0;
}

bool cd_untouched_is_watched(const cd_reducer *r, const cd_bucket *bucket)
{
    return is_watched(r, bucket) && r->config->gradient_as_bucket_view;
}

/* ---- gradients beside their buckets ---- */

#define GRADIENT_TURNS 16u

/* 0: it has no memory that could be looked at. */
static int64_t look_at_gradient(const cd_reducer *r, size_t variable)
{
    const cddp_grad *grad = cd_wrapped_variable(r->module, variable)->grad;
    return grad->kind == CDDP_GRAD_DENSE ? cd_tracer_digest(r->tracer, &grad->value) : 0;
}

void cd_untouched_keep_gradient(cd_reducer *r, size_t variable)
{
    if (r->tracer->watch == NULL) return;
    /* drawn, so that no mistake with a period falls between the turns for ever */
    const bool is_its_turn =
        r->iteration <= 1 || cd_hash_mix(r->iteration, variable) % GRADIENT_TURNS == 0;
    const cd_bucket *bucket = &r->buckets.buckets[r->buckets.bucket_of[variable]];
    r->kept_gradients[variable] = 0;
    if (is_its_turn && is_watched(r, bucket) && !r->config->gradient_as_bucket_view)
        r->kept_gradients[variable] = look_at_gradient(r, variable);
}

void cd_untouched_compare_gradients(cd_reducer *r, const cd_bucket *bucket)
{
    if (r->tracer->watch == NULL) return;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t variable = r->buckets.layout.indices[bucket->first_slot + i];
        int64_t *kept = &r->kept_gradients[variable];
        if (*kept != 0 && *kept != look_at_gradient(r, variable))
            CD_EMIT(r->tracer, mark, CD_TRACER_READY_WRITTEN, .value = (int64_t)variable);
        *kept = 0;
    }
}

/* ---- slices ---- */

void cd_untouched_keep_ready(cd_reducer *r, size_t variable, int64_t digest)
{
    if (cd_untouched_is_watched(r, &r->buckets.buckets[r->buckets.bucket_of[variable]]))
        r->kept_digests[variable] = digest;
}

void cd_untouched_compare_ready(const cd_reducer *r, size_t variable, int64_t digest)
{
    if (r->kept_digests[variable] != 0 && r->kept_digests[variable] != digest)
        CD_EMIT(r->tracer, mark, CD_TRACER_READY_WRITTEN, .value = (int64_t)variable);
}

static bool is_written_by_works(const cd_bucket *bucket, const cddp_tensor *slice)
{
    for (uint32_t i = 0; i < bucket->future.work_count; i++)
        if (cd_work_writes(bucket->future.works[i], slice)) return true;
    return false;
}

/* A registry has copies of the tables of compiled-in hooks. */
static bool is_of_library(const cddp_hook *hook)
{
    const cddp_hook *row = hook != NULL ? cd_hook_find(hook->name) : NULL;
    return row != NULL && row->run == hook->run;
}

void cd_untouched_keep(cd_reducer *r, const cd_bucket *bucket)
{
    if (!cd_untouched_is_watched(r, bucket)) return;
    const bool is_known = is_of_library(cd_reducer_hook_of(r, bucket));
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t variable = r->buckets.layout.indices[bucket->first_slot + i];
        const cddp_tensor slice = cd_bucket_set_view(&r->buckets, variable);
        const bool is_kept = is_known && !is_written_by_works(bucket, &slice);
        r->kept_digests[variable] = is_kept ? cd_tracer_digest(r->tracer, &slice) : 0;
    }
}

void cd_untouched_compare(cd_reducer *r, const cd_bucket *bucket)
{
    if (!cd_untouched_is_watched(r, bucket)) return;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        const uint32_t variable = r->buckets.layout.indices[bucket->first_slot + i];
        const cddp_tensor slice = cd_bucket_set_view(&r->buckets, variable);
        int64_t *kept = &r->kept_digests[variable];
        if (*kept != 0 && *kept != cd_tracer_digest(r->tracer, &slice))
            CD_EMIT(r->tracer, mark, CD_TRACER_HOOKED_WRITTEN, .value = (int64_t)variable);
        *kept = 0;
    }
}
