/* SPDX-License-Identifier: Apache-2.0 */
/* Cast first, then divide in the low type, then sum (HK-02); or let another hook work on the low
** copy (HK-05).
**
** The order is observable: f16(2049) ÷ 3 is 682.5 while f16(2049 ÷ 3) is 683, and 65520 overflows
** before it is divided (HK-03). The plain hooks cast the sum back into the bucket; the wrappers
** hand the low tensor on, and the reducer casts while it writes gradients back (HOOK-07).
**
** Not here: PowerSGD and the other lossy hooks.
*/
#include "core/hooks/cast.h"

#include "cddp/device.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"
#include "core/hooks/host.h"

#include <math.h>
#include <string.h>

/* The low-precision twin of one bucket. */
typedef struct copy {
    cddp_tensor flat;
    int64_t capacity;       /* elements allocated */
    cddp_tensor *gradients; /* (gradient_count) slices of flat, as the inner hook sees them */
    size_t gradient_count, gradient_capacity;
    cddp_grad_bucket bucket; /* the inner hook's bucket */
    cddp_stage_fn inner_next;
} copy;

struct cd_cast {
    cd_arena arena; /* this struct, its copies and their lists of gradients */
    cddp_tracer *tracer;
    cd_cast_spec spec;
    const cddp_hook *inner;
    void *inner_self;
    copy *copies; /* (copy_count) by bucket index */
    size_t copy_count, copy_capacity;
};

static cddp_status check_context(const cddp_hook_context *context, const cd_cast_spec *spec,
                                 cddp_error *err)
{
    const cddp_capabilities *k = cddp_group_capabilities(context->group);
    if (!spec->wraps && (k->dtypes & CDDP_DTYPE_BIT(spec->dtype)) == 0)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook %s sums %s, which the backend of group '%s' cannot", spec->name,
                       cddp_dtype_name(spec->dtype), cddp_group_name(context->group));
    if (spec->wraps && context->inner == NULL)
        return cd_fail(err, CDDP_E_CONFIG, "comm hook %s wraps another hook; none was given",
                       spec->name);
    return CD_PASS(spec->wraps ? CDDP_OK : cd_hook_refuse_options(context, spec->name, err));
}

cddp_status cd_cast_create(const cddp_hook_context *context, const cd_cast_spec *spec, void **self,
                           cddp_error *err)
{
    CD_TRY(check_context(context, spec, err));
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, context->allocator, CD_HOOK_BLOCK_BYTES);
    cd_cast *c = cd_arena_push(&arena, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "comm hook %s", spec->name);
    c->arena = arena;
    c->tracer = context->tracer;
    c->spec = *spec;
    c->inner = context->inner;
    if (c->inner != NULL && c->inner->create != NULL) {
        /* the options belong to the inner hook; a wrapper has none */
        cddp_hook_context inside = *context;
        inside.inner = NULL;
        CD_TRY_OUT(c->inner->create(&inside, &c->inner_self, err));
    }
    *self = c;
    return CDDP_OK;
out:
    cd_arena_fini(&c->arena);
    return status;
}

/* The list of gradients is kept for the next one. */
static void release_copy(const cd_cast *c, copy *k)
{
    if (k->capacity > 0)
        k->flat.device->release(k->flat.device, c->spec.dtype, k->capacity, k->flat.storage);
    *k = (copy){.gradients = k->gradients, .gradient_capacity = k->gradient_capacity};
}

void cd_cast_destroy(void *self)
{
    cd_cast *c = self;
    if (c == NULL) return;
    for (size_t i = 0; i < c->copy_count; i++) release_copy(c, &c->copies[i]);
    if (c->inner != NULL && c->inner->destroy != NULL) c->inner->destroy(c->inner_self);
    cd_arena_fini(&c->arena);
}

cddp_status cd_cast_rebuilt(void *self, uint32_t bucket_count, cddp_error *err)
{
    cd_cast *c = self;
    for (size_t i = 0; i < c->copy_count; i++) release_copy(c, &c->copies[i]);
    if (c->inner != NULL && c->inner->rebuilt != NULL)
        CD_TRY(c->inner->rebuilt(c->inner_self, bucket_count, err));
    return CDDP_OK;
}

static cddp_status make_copy(cd_cast *c, copy *k, const cddp_grad_bucket *bucket, cddp_error *err)
{
    release_copy(c, k);
    const cddp_device *device = bucket->buffer.device;
    int64_t numel = cddp_tensor_numel(&bucket->buffer);
    if (!cd_arena_grow(&c->arena, (void **)&k->gradients, &k->gradient_capacity,
                       bucket->parameter_count, sizeof *k->gradients))
        return cd_fail_memory(err, "the %s copy of bucket %u", cddp_dtype_name(c->spec.dtype),
                              bucket->index);
    k->gradient_count = bucket->parameter_count;
    void *storage = NULL;
    CD_TRY(device->allocate(device, c->spec.dtype, numel > 0 ? numel : 1, &storage, err));
    k->capacity = numel > 0 ? numel : 1;
    k->flat = cddp_tensor_of(device, storage, 0, c->spec.dtype, &numel, 1);
    for (uint32_t i = 0; i < bucket->parameter_count; i++) {
        const cddp_tensor *g = &bucket->gradients[i];
        k->gradients[i] = cddp_tensor_of(device, storage, bucket->offsets[i], c->spec.dtype,
                                         g->sizes, g->dim_count);
    }
    return CDDP_OK;
}

static cddp_status find_copy(cd_cast *c, const cddp_grad_bucket *bucket, copy **found,
                             cddp_error *err)
{
    if (bucket->parameter_count > 0 && bucket->gradients[0].dtype == CDDP_C64)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "comm hook %s does not take complex gradients (bucket %u)", c->spec.name,
                       bucket->index);
    /* Static graph's first pass calls every bucket 0 (STA-04), so the bucket is known by its first
    ** parameter. */
    size_t key = bucket->parameter_ids[0];
    if (key >= c->copy_count) {
        if (!cd_arena_grow(&c->arena, (void **)&c->copies, &c->copy_capacity, key + 1,
                           sizeof *c->copies))
            return cd_fail_memory(err, "%zu buckets in comm hook %s", key + 1, c->spec.name);
        c->copy_count = key + 1;
    }
    copy *k = &c->copies[key];
    bool fits = k->capacity > 0 && k->gradient_count == bucket->parameter_count &&
                cddp_tensor_numel(&k->flat) == cddp_tensor_numel(&bucket->buffer);
    if (!fits) CD_TRY(make_copy(c, k, bucket, err));
    *found = k;
    return CDDP_OK;
}

/* The sum is there: back into the bucket's own dtype. */
static cddp_status cast_back(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                             cddp_error *err)
{
    copy *k = NULL;
    CD_TRY(find_copy(self, bucket, &k, err));
    CD_TRY(bucket->buffer.device->copy(&bucket->buffer, &k->flat, NULL, err));
    future->result = bucket->buffer;
    return CDDP_OK;
}

uint64_t cd_cast_promise(const void *self, const cddp_grad_bucket *bucket)
{
    const cd_cast *c = self;
    return (uint64_t)cddp_tensor_numel(&bucket->buffer) * cddp_dtype_bytes(c->spec.dtype);
}

uint64_t cd_cast_promise_wrapped(const void *self, const cddp_grad_bucket *bucket)
{
    const cd_cast *c = self;
    cddp_grad_bucket inside = *bucket;
    inside.buffer.dtype = c->spec.dtype;
    return c->inner->promise != NULL ? c->inner->promise(c->inner_self, &inside)
                                     : CDDP_PROMISE_NOTHING;
}

uint32_t cd_cast_agreement(const void *self)
{
    const cd_cast *c = self;
    return c->inner->agreement != NULL ? c->inner->agreement(c->inner_self) : 0;
}

cddp_status cd_cast_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                        cddp_future *future, cddp_error *err)
{
    cd_cast *c = self;
    copy *k = NULL;
    CD_TRY(cd_hook_refuse_sparse(bucket, c->spec.name, err));
    CD_TRY(find_copy(c, bucket, &k, err));
    const cddp_device *device = bucket->buffer.device;
    CD_TRY(device->copy(&k->flat, &bucket->buffer, NULL, err));
    CD_TRY(device->divide(&k->flat, &k->flat, cddp_group_size(group), NULL, err));
    CD_TRY(cd_future_add_allreduce(future, bucket, &k->flat, group, err));
    future->next = cast_back;
    return CDDP_OK;
}

/* No check predicts what a wrapper passes on. So the wrapper states that every cast rounded to
** nearest: by at most half a unit in the last place, or half the smallest step. */
static void state_cast(const cd_cast *c, const cddp_grad_bucket *bucket, const cddp_tensor *low)
{
    double beyond = 0;
    if (c->tracer == NULL || !cd_host_can_look(low->device)) return;
    const int64_t numel = cddp_tensor_numel(low);
    for (int64_t i = 0; i < numel; i++) {
        const double x = cd_host_get(&bucket->buffer, i), y = cd_host_get(low, i);
        if (!isfinite(x) || !isfinite(y)) continue; /* an overflow is I-RANGE's */
        const double half = x != 0 ? ldexp(cd_host_unit(low->dtype), ilogb(x)) : 0;
        beyond = fmax(beyond, fabs(y - x) - fmax(half, cd_host_least(low->dtype)));
    }
    cddp_law law = {sizeof(cddp_law),
                    "the cast is the nearest number: by how much one is farther than half a unit",
                    (int64_t)bucket->index,
                    beyond,
                    0,
                    0,
                    false};
    cddp_tracer_law(c->tracer, &law);
}

/* Every stage of the inner hook runs on its own bucket, whose buffer is the copy. */
static cddp_status inner_stage(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                               cddp_error *err)
{
    cd_cast *c = self;
    copy *k = NULL;
    CD_TRY(find_copy(c, bucket, &k, err));
    CD_TRY(k->inner_next(c->inner_self, &k->bucket, future, err));
    k->inner_next = future->next;
    if (future->next != NULL) future->next = inner_stage;
    return CDDP_OK;
}

cddp_status cd_cast_run_wrapped(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                                cddp_future *future, cddp_error *err)
{
    cd_cast *c = self;
    copy *k = NULL;
    CD_TRY(cd_hook_refuse_sparse(bucket, c->spec.name, err));
    CD_TRY(find_copy(c, bucket, &k, err));
    CD_TRY(bucket->buffer.device->copy(&k->flat, &bucket->buffer, NULL, err));
    state_cast(c, bucket, &k->flat);
    k->bucket = *bucket;
    k->bucket.buffer = k->flat;
    k->bucket.gradients = k->gradients;
    CD_TRY(c->inner->run(c->inner_self, &k->bucket, group, future, err));
    k->inner_next = future->next;
    if (future->next != NULL) future->next = inner_stage;
    return CDDP_OK;
}

cddp_status cd_cast_save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    cd_cast *c = self;
    if (c->inner->save != NULL) CD_TRY(c->inner->save(c->inner_self, writer, err));
    return CDDP_OK;
}

cddp_status cd_cast_load(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    cd_cast *c = self;
    if (c->inner->load != NULL) CD_TRY(c->inner->load(c->inner_self, reader, err));
    return CDDP_OK;
}
