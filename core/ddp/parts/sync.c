/* SPDX-License-Identifier: Apache-2.0 */
/* Coalesced broadcast, and coalesced all-reduce, in which every rank gives and takes.
**
** A bucket of one contiguous tensor is broadcast where it lies; others are flattened by the root
** and copied out by the receivers. Bucket k is posted once bucket k-2 has been copied out, so at
** most two flat copies exist when storage is not kept.
*/
#include "core/ddp/parts/sync.h"

#include "cddp/device.h"
#include "core/base/error.h"

#include <string.h>

struct cd_broadcast_bucket {
    cddp_tensor flat; /* what is broadcast */
    bool is_direct;   /* flat is the one tensor itself */
    cddp_work *work;
};

static cddp_tensor tensor_of(const cd_broadcast_plan *p, size_t i)
{
    return p->tensors.get(p->tensors.context, i);
}

static uint64_t key_of(const cd_broadcast_plan *p, const cddp_tensor *t)
{
    /* The first tensor on the same device names it: device tables have no number. */
    uint64_t key = 0;
    while (tensor_of(p, key).device != t->device) key++;
    return key * CDDP_DTYPE_COUNT + t->dtype;
}

static cddp_status plan_layout(cd_broadcast_plan *p, const cd_broadcast_spec *spec, cddp_error *err)
{
    size_t n = spec->tensor_count;
    cd_arena scratch;
    cd_arena_init(&scratch, spec->allocator, 0);
    cd_bucket_input *inputs = cd_arena_array(&scratch, n, sizeof *inputs);
    if (inputs == NULL) return cd_fail_memory(err, "a broadcast of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const cddp_tensor t = tensor_of(p, i);
        inputs[i] =
            (cd_bucket_input){.bytes = (uint64_t)cddp_tensor_numel(&t) * cddp_dtype_bytes(t.dtype),
                              .key = key_of(p, &t)};
    }
    cd_bucket_request request = {.inputs = inputs,
                                 .input_count = n,
                                 .limits = &spec->limit_bytes,
                                 .limit_count = 1};
    cddp_status status = cd_bucket_assignment_by_size(&request, &p->layout, err);
    cd_arena_fini(&scratch);
    return CD_PASS(status);
}

static void describe_bucket(cd_broadcast_plan *p, size_t b)
{
    const cd_bucket_layout *l = &p->layout;
    const cddp_tensor first = tensor_of(p, l->indices[l->starts[b]]);
    const size_t count = l->starts[b + 1] - l->starts[b];
    int64_t numel = 0;
    for (uint32_t i = l->starts[b]; i < l->starts[b + 1]; i++) {
        const cddp_tensor t = tensor_of(p, l->indices[i]);
        numel += cddp_tensor_numel(&t);
    }
    cd_broadcast_bucket *bucket = &p->buckets[b];
    bucket->is_direct = count == 1 && cddp_tensor_is_contiguous(&first);
    bucket->flat =
        bucket->is_direct
            ? cddp_tensor_of(first.device, first.storage, first.offset, first.dtype, &numel, 1)
            : cddp_tensor_of(first.device, NULL, 0, first.dtype, &numel, 1);
}

cddp_status cd_broadcast_plan_init(cd_broadcast_plan *plan, const cd_broadcast_spec *spec,
                                   cddp_error *err)
{
    cddp_status status = CDDP_OK;
    size_t n = spec->tensor_count;
    cd_broadcast_plan p = {.tensors = spec->tensors,
                           .tensor_count = n,
                           .keep_storage = spec->keep_storage,
                           .reduces = spec->reduces,
                           .reduce_op = spec->reduce_op};
    if (n == 0) {
        *plan = p;
        return CDDP_OK;
    }
    cd_arena_init(&p.arena, spec->allocator, 0);
    CD_TRY_OUT(cd_bucket_layout_init(&p.layout, n, spec->allocator, err));
    CD_TRY_OUT(plan_layout(&p, spec, err));
    for (size_t b = 0; b < p.layout.bucket_count; b++) {
        const size_t count = p.layout.starts[b + 1] - p.layout.starts[b];
        if (count > p.largest_count) p.largest_count = count;
    }
    p.buckets = cd_arena_array(&p.arena, p.layout.bucket_count, sizeof *p.buckets);
    p.pairs = cd_arena_array(&p.arena, p.largest_count, sizeof *p.pairs);
    CD_TRY_OUT(cd_arena_check(&p.arena, err, "a broadcast of %zu tensors", n));
    for (size_t b = 0; b < p.layout.bucket_count; b++) describe_bucket(&p, b);
    *plan = p;
    return CDDP_OK;
out:
    cd_broadcast_plan_fini(&p);
    return status;
}

static void release_flat(cd_broadcast_bucket *bucket)
{
    if (bucket->is_direct || bucket->flat.storage == NULL) return;
    int64_t numel = cddp_tensor_numel(&bucket->flat);
    bucket->flat.device->release(bucket->flat.device, bucket->flat.dtype, numel > 0 ? numel : 1,
                                 bucket->flat.storage);
    bucket->flat.storage = NULL;
}

void cd_broadcast_plan_fini(cd_broadcast_plan *p)
{
    for (size_t b = 0; p->buckets != NULL && b < p->layout.bucket_count; b++) {
        cddp_work_release(p->buckets[b].work);
        release_flat(&p->buckets[b]);
    }
    cd_arena_fini(&p->arena);
    cd_bucket_layout_fini(&p->layout);
    memset(p, 0, sizeof *p);
}

/* Copies every tensor into (gather) or out of its place in the flat copy; tensors without elements
** are left out. */
static cddp_status copy_bucket(cd_broadcast_plan *p, size_t b, bool gather, cddp_error *err)
{
    const cd_bucket_layout *l = &p->layout;
    cd_broadcast_bucket *bucket = &p->buckets[b];
    if (bucket->is_direct) return CDDP_OK;
    int64_t offset = 0;
    size_t pair_count = 0;
    for (uint32_t i = l->starts[b]; i < l->starts[b + 1]; i++) {
        const cddp_tensor tensor = tensor_of(p, l->indices[i]), *t = &tensor;
        int64_t numel = cddp_tensor_numel(t);
        if (numel == 0) continue;
        cddp_tensor place = cddp_tensor_of(t->device, bucket->flat.storage, offset, t->dtype,
                                           t->sizes, t->dim_count);
        /* Dense tensors keep their own order of elements, as in buckets (BKT-19): it is one
        ** straight copy. */
        if (cddp_tensor_is_dense(t)) memcpy(place.strides, t->strides, sizeof place.strides);
        p->pairs[pair_count++] = gather ? (cddp_copy_pair){.dst = place, .src = *t}
                                        : (cddp_copy_pair){.dst = *t, .src = place};
        offset += numel;
    }
    if (pair_count == 0) return CDDP_OK;
    return CD_PASS(bucket->flat.device->copy_many(bucket->flat.device, p->pairs, pair_count,
                                                  CDDP_COPY_PLAIN, 1, NULL, err));
}

static cddp_status begin_bucket(cd_broadcast_plan *p, size_t b, cddp_group *group, uint32_t root,
                                cddp_error *err)
{
    cd_broadcast_bucket *bucket = &p->buckets[b];
    if (!bucket->is_direct && bucket->flat.storage == NULL) {
        int64_t numel = cddp_tensor_numel(&bucket->flat);
        void *storage = NULL;
        CD_TRY(bucket->flat.device->allocate(bucket->flat.device, bucket->flat.dtype,
                                             numel > 0 ? numel : 1, &storage, err));
        bucket->flat.storage = storage;
    }
    if (p->reduces || cddp_group_rank(group) == root) CD_TRY(copy_bucket(p, b, true, err));
    if (p->reduces)
        CD_TRY(cddp_group_allreduce(group, &bucket->flat, p->reduce_op, &bucket->work, err));
    else
        CD_TRY(cddp_group_broadcast(group, &bucket->flat, root, &bucket->work, err));
    return CDDP_OK;
}

static cddp_status end_bucket(cd_broadcast_plan *p, size_t b, bool is_root, cddp_error *err)
{
    cd_broadcast_bucket *bucket = &p->buckets[b];
    cddp_work *work = bucket->work;
    bucket->work = NULL;
    CD_TRY(cddp_work_wait(work, 0, err));
    if (!is_root) CD_TRY(copy_bucket(p, b, false, err));
    if (!p->keep_storage) release_flat(bucket);
    return CDDP_OK;
}

cddp_status cd_broadcast_plan_run(cd_broadcast_plan *p, cddp_group *group, uint32_t root,
                                  cddp_error *err)
{
    size_t n = p->layout.bucket_count, ended = 0;
    bool is_root = !p->reduces && cddp_group_rank(group) == root;
    for (size_t b = 0; b < n; b++) {
        if (b - ended == CD_BROADCASTS_IN_FLIGHT) CD_TRY(end_bucket(p, ended++, is_root, err));
        CD_TRY(begin_bucket(p, b, group, root, err));
    }
    while (ended < n) CD_TRY(end_bucket(p, ended++, is_root, err));
    return CDDP_OK;
}

cddp_status cd_broadcast_coalesced(const cd_broadcast_spec *spec, cddp_group *group, uint32_t root,
                                   cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_broadcast_plan plan = {0};
    CD_TRY_OUT(cd_broadcast_plan_init(&plan, spec, err));
    CD_TRY_OUT(cd_broadcast_plan_run(&plan, group, root, err));
out:
    cd_broadcast_plan_fini(&plan);
    return status;
}
