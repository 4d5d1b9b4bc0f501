/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of buckets.
**
**     slab of one dtype:   |bucket 0 ......|red|pad|bucket 2 ....|red|pad| …
**                          every | at a 64-byte boundary
**
** Inside a bucket variables lie without gaps: the offset of a variable is the number of elements
** before it in the bucket (BKT-18). The red zone behind a bucket holds a fixed pattern; a
** collective or a hook that writes past the end is an error at the next check, where the host can
** read the device.
**
** Complex variables: the flat tensor is real and twice as long, so that any backend can sum it; the
** views are the same memory as c64 (SPA-05). Offsets and lengths count elements of the flat tensor.
**
** Not here: who goes where (bucket_plan.c), what is written into a bucket (reducer.c).
*/
#include "core/ddp/parts/bucket.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <string.h>

#define ALIGN_BYTES 64u
#define RED_BYTES 64u
#define RED_PATTERN 0xa5

struct cd_slab {
    const cddp_device *device;
    cddp_dtype dtype;
    int64_t numel;
    void *storage;
};

static cddp_dtype storage_dtype(const cd_bucket_set_spec *spec, cddp_dtype dtype)
{
    if (dtype == CDDP_C64) return CDDP_F32;
    return spec->dtype != CDDP_DTYPE_COUNT && cddp_dtype_is_float(dtype) ? spec->dtype : dtype;
}

/* Elements of the flat tensor per element of the variable. */
static int64_t flat_per_element(cddp_dtype dtype) { return dtype == CDDP_C64 ? 2 : 1; }

/* A form is one element, whatever its dtype: there a complex variable lies in the first half of its
** slice. */
static int64_t view_unit(const cddp_device *device, cddp_dtype dtype)
{
    return (device->flags & CDDP_DEVICE_EXACT) != 0 ? 1 : flat_per_element(dtype);
}

static int64_t align_elements(int64_t numel, cddp_dtype dtype)
{
    int64_t unit = (int64_t)(ALIGN_BYTES / cddp_dtype_bytes(dtype));
    return (numel + unit - 1) / unit * unit;
}

static cd_slab *slab_of(cd_bucket_set *set, const cddp_device *device, cddp_dtype dtype)
{
    for (size_t i = 0; i < set->slab_count; i++)
        if (set->slabs[i].device == device && set->slabs[i].dtype == dtype) return &set->slabs[i];
    cd_slab *slab = &set->slabs[set->slab_count++];
    *slab = (cd_slab){.device = device, .dtype = dtype};
    return slab;
}

/* BKT-17: one dtype and one device per bucket, and a sparse variable alone. */
static cddp_status check_bucket(const cd_bucket_set *set, const cd_wrapped *m, uint32_t b,
                                cddp_error *err)
{
    const cd_bucket_layout *l = &set->layout;
    const cd_variable *first = cd_wrapped_variable(m, l->indices[l->starts[b]]);
    const cddp_tensor *one = &first->tensor.form->like;
    for (uint32_t i = l->starts[b] + 1; i < l->starts[b + 1]; i++) {
        const cd_variable *v = cd_wrapped_variable(m, l->indices[i]);
        const cddp_tensor *other = &v->tensor.form->like;
        if (other->dtype != one->dtype)
            return cd_fail(err, CDDP_E_ARG, "bucket %u mixes dtypes: '%s' is %s, '%s' is %s", b,
                           first->name, cddp_dtype_name(one->dtype), v->name,
                           cddp_dtype_name(other->dtype));
        if (other->device != one->device)
            return cd_fail(err, CDDP_E_ARG, "bucket %u mixes devices: '%s' is on %s, '%s' is on %s",
                           b, first->name, one->device->name, v->name, other->device->name);
        if (v->expect_sparse || first->expect_sparse)
            return cd_fail(err, CDDP_E_ARG,
                           "bucket %u holds '%s' besides '%s', which expects a sparse gradient and "
                           "must be alone",
                           b, v->expect_sparse ? first->name : v->name,
                           v->expect_sparse ? v->name : first->name);
    }
    return CDDP_OK;
}

/* First pass: places of variables, sizes of buckets, sizes of slabs. Buckets get their first
** element as offset. */
static cddp_status place(cd_bucket_set *set, const cd_bucket_set_spec *spec, cddp_error *err)
{
    const cd_wrapped *m = spec->module;
    const cd_bucket_layout *l = &set->layout;
    for (uint32_t b = 0; b < l->bucket_count; b++) {
        CD_TRY(check_bucket(set, m, b, err));
        cd_bucket *bucket = &set->buckets[b];
        const cd_variable *first = cd_wrapped_variable(m, l->indices[l->starts[b]]);
        const cddp_tensor *like = &first->tensor.form->like;
        *bucket = (cd_bucket){.index = b,
                              .first_slot = l->starts[b],
                              .limit_bytes = l->limits[b],
                              .variable_count = l->starts[b + 1] - l->starts[b],
                              .pending = l->starts[b + 1] - l->starts[b],
                              .flat_per_element = (uint32_t)flat_per_element(like->dtype),
                              .view_unit = (uint32_t)view_unit(like->device, like->dtype),
                              .is_sparse = first->expect_sparse};
        int64_t numel = 0;
        for (uint32_t s = l->starts[b]; s < l->starts[b + 1]; s++) {
            uint32_t v = l->indices[s];
            const cd_tensor_form *form = cd_wrapped_variable(m, v)->tensor.form;
            set->slot_of[v] = s;
            set->bucket_of[v] = b;
            set->offsets[s] = numel;
            set->lengths[s] = form->numel * bucket->flat_per_element;
            numel += set->lengths[s];
            bucket->content_digest = cd_hash_mix(bucket->content_digest, v);
            bucket->content_digest = cd_hash_mix(bucket->content_digest, (uint64_t)set->offsets[s]);
            bucket->content_digest = cd_hash_mix(bucket->content_digest, (uint64_t)set->lengths[s]);
        }
        cddp_dtype dtype = storage_dtype(spec, like->dtype);
        cd_slab *slab = slab_of(set, like->device, dtype);
        bucket->flat = cddp_tensor_of(slab->device, NULL, slab->numel, dtype, &numel, 1);
        /* A sparse bucket has no dense storage: its gradient travels as rows (SPA-01). */
        if (!bucket->is_sparse)
            slab->numel +=
                align_elements(numel + (int64_t)(RED_BYTES / cddp_dtype_bytes(dtype)), dtype);
    }
    return CDDP_OK;
}

static cddp_status allocate_slabs(cd_bucket_set *set, cddp_error *err)
{
    for (size_t i = 0; i < set->slab_count; i++) {
        cd_slab *slab = &set->slabs[i];
        if (slab->numel == 0) continue;
        void *storage = NULL;
        CD_TRY(slab->device->allocate(slab->device, slab->dtype, slab->numel, &storage, err));
        slab->storage = storage;
    }
    return CDDP_OK;
}

/* At once: looking at a device whose operations are queued would wait for them, and order what
** nobody ordered. */
static bool host_can_look(const cddp_device *device)
{
    const uint32_t wanted = CDDP_DEVICE_HOST | CDDP_DEVICE_VALUES;
    return (device->flags & (wanted | CDDP_DEVICE_ASYNC)) == wanted;
}

static cddp_tensor red_zone_of(const cd_bucket *bucket)
{
    const cddp_tensor *flat = &bucket->flat;
    const int64_t red = RED_BYTES / (int64_t)cddp_dtype_bytes(flat->dtype);
    return cddp_tensor_of(flat->device, flat->storage, flat->offset + flat->sizes[0], flat->dtype,
                          &red, 1);
}

static cddp_status paint_red_zone(const cd_bucket *bucket, cddp_error *err)
{
    if (bucket->is_sparse || !host_can_look(bucket->flat.device)) return CDDP_OK;
    unsigned char pattern[RED_BYTES];
    memset(pattern, RED_PATTERN, sizeof pattern);
    const cddp_tensor zone = red_zone_of(bucket);
    return CD_PASS(zone.device->write(&zone, pattern, sizeof pattern, err));
}

cddp_tensor cd_bucket_set_view_of(const cd_bucket_set *set, size_t variable,
                                  const cddp_tensor *flat)
{
    cddp_tensor view = cd_wrapped_variable(set->module, variable)->tensor.form->gradient;
    if (view.dtype != CDDP_C64) view.dtype = flat->dtype;
    view.device = flat->device;
    view.storage = flat->storage;
    view.offset = (flat->offset + set->offsets[set->slot_of[variable]]) /
                  set->buckets[set->bucket_of[variable]].view_unit;
    return view;
}

static void show_bucket(cd_bucket_set *set, const cd_bucket *bucket)
{
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        uint32_t s = bucket->first_slot + i, v = set->layout.indices[s];
        set->parameters[s] = cd_packed_tensor_get(&cd_wrapped_variable(set->module, v)->tensor);
        if (bucket->is_sparse) continue;
        const cddp_tensor view = cd_bucket_set_view(set, v);
        set->slices[s] = cddp_tensor_of(view.device, view.storage, view.offset, view.dtype,
                                        view.sizes, view.dim_count);
    }
    uint32_t s = bucket->first_slot;
    set->hook_buckets[bucket->index] =
        (cddp_grad_bucket){.size = sizeof(cddp_grad_bucket),
                           .index = bucket->index,
                           .bucket_count = (uint32_t)set->bucket_count,
                           .is_last = bucket->index + 1 == set->bucket_count,
                           .generation = set->generation,
                           .buffer = bucket->flat,
                           .parameter_count = bucket->variable_count,
                           .parameter_ids = set->layout.indices + s,
                           .offsets = set->offsets + s,
                           .lengths = set->lengths + s,
                           .gradients = set->slices + s,
                           .parameters = set->parameters + s,
                           .sparse =
                               bucket->is_sparse
                                   ? cd_wrapped_variable(set->module, set->layout.indices[s])->grad
                                   : NULL};
}

cddp_status cd_bucket_set_show_to_hook(cd_bucket_set *set, cddp_error *err)
{
    const size_t b = set->bucket_count, n = set->variable_count;
    if (set->hook_buckets != NULL) return CDDP_OK;
    if (!cd_arena_reserve(&set->arena, CD_ARENA_BYTES(b * sizeof *set->hook_buckets) +
                                           CD_ARENA_BYTES(n * sizeof *set->slices) +
                                           CD_ARENA_BYTES(n * sizeof *set->parameters)))
        return cd_fail_memory(err, "a comm hook's view of %zu buckets", b);
    set->hook_buckets = cd_arena_push(&set->arena, b * sizeof *set->hook_buckets);
    set->slices = cd_arena_push(&set->arena, n * sizeof *set->slices);
    set->parameters = cd_arena_push(&set->arena, n * sizeof *set->parameters);
    for (size_t i = 0; i < b; i++) show_bucket(set, &set->buckets[i]);
    return CDDP_OK;
}

bool cd_bucket_set_report(cd_bucket_set *set, const cd_bucket *bucket, uint32_t index)
{
    bool is_last = index + 1 == set->bucket_count;
    if (set->hook_buckets != NULL) {
        set->hook_buckets[bucket->index].index = index;
        set->hook_buckets[bucket->index].is_last = is_last;
    }
    return is_last;
}

cddp_grad_bucket *cd_bucket_set_reported(const cd_bucket_set *set, const cd_bucket *bucket,
                                         cddp_grad_bucket *plain)
{
    if (set->hook_buckets != NULL) return &set->hook_buckets[bucket->index];
    *plain =
        (cddp_grad_bucket){.size = sizeof *plain, .index = bucket->index, .buffer = bucket->flat};
    return plain;
}

/* Second pass: buckets know their slab's storage. */
static cddp_status attach(cd_bucket_set *set, cddp_error *err)
{
    for (size_t b = 0; b < set->bucket_count; b++) {
        cd_bucket *bucket = &set->buckets[b];
        cd_slab *slab = slab_of(set, bucket->flat.device, bucket->flat.dtype);
        bucket->flat.storage = slab->storage;
        CD_TRY(paint_red_zone(bucket, err));
    }
    return CDDP_OK;
}

static cddp_status allocate_tables(cd_bucket_set *set, bool for_copies, cddp_error *err)
{
    const size_t n = set->variable_count, b = set->bucket_count;
    const size_t pairs = for_copies ? set->largest_count : 0;
    const size_t bytes =
        CD_ARENA_BYTES(b * sizeof *set->buckets) + CD_ARENA_BYTES(b * sizeof *set->slabs) +
        3 * CD_ARENA_BYTES(n * sizeof *set->offsets) +
        2 * CD_ARENA_BYTES(n * sizeof *set->slot_of) + CD_ARENA_BYTES(pairs * sizeof *set->pairs) +
        CD_ARENA_BYTES(set->largest_count * sizeof *set->written);
    cd_arena_init(&set->arena, set->allocator, 0);
    if (!cd_arena_reserve(&set->arena, bytes))
        return cd_fail_memory(err, "%zu buckets of %zu variables", b, n);
    set->buckets = cd_arena_push(&set->arena, b * sizeof *set->buckets);
    set->slabs = cd_arena_push(&set->arena, b * sizeof *set->slabs);
    set->offsets = cd_arena_push(&set->arena, n * sizeof *set->offsets);
    set->lengths = cd_arena_push(&set->arena, n * sizeof *set->lengths);
    set->slice_digests = cd_arena_push(&set->arena, n * sizeof *set->slice_digests);
    set->slot_of = cd_arena_push(&set->arena, n * sizeof *set->slot_of);
    set->bucket_of = cd_arena_push(&set->arena, n * sizeof *set->bucket_of);
    set->written = cd_arena_push(&set->arena, set->largest_count * sizeof *set->written);
    if (pairs > 0) set->pairs = cd_arena_push(&set->arena, pairs * sizeof *set->pairs);
    return CDDP_OK;
}

cddp_status cd_bucket_set_init(cd_bucket_set *set, const cd_bucket_set_spec *spec,
                               const cddp_allocator *allocator, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_bucket_set s = {.allocator = allocator,
                       .module = spec->module,
                       .generation = spec->generation,
                       .layout = *spec->layout,
                       .bucket_count = spec->layout->bucket_count,
                       .variable_count = spec->layout->variable_count};
    for (size_t b = 0; b < s.bucket_count; b++) {
        size_t count = s.layout.starts[b + 1] - s.layout.starts[b];
        if (count > s.largest_count) s.largest_count = count;
    }
    CD_TRY_OUT(allocate_tables(&s, spec->for_copies, err));
    CD_TRY_OUT(place(&s, spec, err));
    CD_TRY_OUT(allocate_slabs(&s, err));
    CD_TRY_OUT(attach(&s, err));
    if (spec->for_hook) CD_TRY_OUT(cd_bucket_set_show_to_hook(&s, err));
    *set = s;
    return CDDP_OK;
out:
    memset(&s.layout, 0, sizeof s.layout); /* still the caller's */
    cd_bucket_set_fini(&s);
    return status;
}

void cd_bucket_set_fini(cd_bucket_set *set)
{
    for (size_t i = 0; set->slabs != NULL && i < set->slab_count; i++)
        if (set->slabs[i].storage != NULL)
            set->slabs[i].device->release(set->slabs[i].device, set->slabs[i].dtype,
                                          set->slabs[i].numel, set->slabs[i].storage);
    cd_arena_fini(&set->arena);
    cd_bucket_layout_fini(&set->layout);
    memset(set, 0, sizeof *set);
}

bool cd_bucket_is_alias(const cddp_tensor *value, const cddp_tensor *view)
{
    return value->device != NULL && value->storage == view->storage &&
           value->offset == view->offset;
}

/* One gradient moves into its slice and is from then on an alias, not a fresh one (GRD-04). Its old
** home, when it was private, is given back: with views the buckets are the only memory of
** gradients. What does not fit stays where the program put it, to be refused by name when it is
** marked ready; where it lay in the old home it is gone with that. */
static cddp_status move_in(const cddp_tensor *view, const cd_variable *v, cddp_error *err)
{
    cddp_grad *grad = v->grad;
    const cddp_grad old = *grad;
    const bool fits = cd_wrapped_takes(v, grad, view->dtype);
    const bool is_gone = old.kind == CDDP_GRAD_UNDEFINED ||
                         (old.backing.device != NULL && old.value.storage == old.backing.storage);
    if (fits && !cd_bucket_is_alias(&old.value, view))
        CD_TRY(view->device->copy(view, &old.value, NULL, err));
    cddp_grad_fini(grad);
    if (!fits && !is_gone) *grad = old;
    grad->backing = cddp_backing_of(view);
    grad->backing_is_borrowed = true;
    grad->requires_grad = old.requires_grad;
    if (!fits) return CDDP_OK;
    grad->kind = CDDP_GRAD_DENSE;
    grad->value = *view;
    return CDDP_OK;
}

cddp_status cd_bucket_set_lend_backing(cd_bucket_set *set, cddp_error *err)
{
    for (size_t v = 0; v < set->variable_count; v++) {
        const cd_variable *variable = cd_wrapped_variable(set->module, v);
        if (variable->expect_sparse) continue;
        const cddp_tensor view = cd_bucket_set_view(set, v);
        CD_TRY(move_in(&view, variable, err));
    }
    return CDDP_OK;
}

void cd_bucket_set_release_grads(cd_bucket_set *set)
{
    for (size_t v = 0; v < set->variable_count; v++) {
        const cd_variable *variable = cd_wrapped_variable(set->module, v);
        cddp_grad *grad = variable->grad;
        if (variable->expect_sparse) continue;
        if (grad->kind == CDDP_GRAD_DENSE &&
            cd_bucket_set_holds(set, v, grad->value.storage, grad->value.offset))
            cddp_grad_drop(grad);
        if (grad->backing_is_borrowed &&
            cd_bucket_set_holds(set, v, grad->backing.storage, grad->backing.offset)) {
            grad->backing = (cddp_backing){.device = NULL};
            grad->backing_is_borrowed = false;
        }
    }
}

/* *first: the first byte of the zone that was overwritten, or RED_BYTES. */
static cddp_status read_red_zone(const cd_bucket *bucket, size_t *first, cddp_error *err)
{
    *first = RED_BYTES;
    if (bucket->is_sparse || !host_can_look(bucket->flat.device)) return CDDP_OK;
    unsigned char found[RED_BYTES] = {0};
    const cddp_tensor zone = red_zone_of(bucket);
    CD_TRY(zone.device->read(&zone, found, sizeof found, err));
    /* each byte as the one before it */
    if (found[0] == RED_PATTERN && memcmp(found, found + 1, sizeof found - 1) == 0) return CDDP_OK;
    *first = 0;
    while (found[*first] == RED_PATTERN) ++*first;
    return CDDP_OK;
}

bool cd_bucket_is_overwritten(const cd_bucket *bucket)
{
    size_t first = 0;
    return read_red_zone(bucket, &first, NULL) != CDDP_OK || first < RED_BYTES;
}

cddp_status cd_bucket_check_red_zone(const cd_bucket *bucket, cddp_error *err)
{
    size_t first = 0;
    CD_TRY(read_red_zone(bucket, &first, err));
    if (first == RED_BYTES) return CDDP_OK;
    CD_TRY(paint_red_zone(bucket, err));
    return cd_fail(err, CDDP_E_CORRUPT,
                   "byte %zu behind the end of bucket %u was overwritten: the backend, a comm "
                   "hook or a view writes more than its %lld elements",
                   first, bucket->index, (long long)cddp_tensor_numel(&bucket->flat));
}

void cd_bucket_set_audit(const cd_bucket_set *set)
{
    cd_bucket_layout_audit(&set->layout);
    for (size_t b = 0; b < set->bucket_count; b++) {
        const cd_bucket *bucket = &set->buckets[b];
        int64_t numel = 0;
        for (uint32_t i = 0; i < bucket->variable_count; i++) {
            uint32_t s = bucket->first_slot + i, v = set->layout.indices[s];
            CD_ASSERT(set->slot_of[v] == s && set->bucket_of[v] == b);
            CD_ASSERT(set->offsets[s] == numel);
            numel += set->lengths[s];
        }
        CD_ASSERT(numel == cddp_tensor_numel(&bucket->flat));
    }
}
