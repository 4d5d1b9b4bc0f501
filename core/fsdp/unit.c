/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers and frees of one unit, and its shard.
**
** Not here: gradients (gradient.c), which unit is gathered when (fsdp.c).
*/
#include "core/fsdp/unit.h"

#include "core/base/assert.h"
#include "core/base/error.h"

static int64_t storage_of(int64_t numel) { return numel > 0 ? numel : 1; }

bool cd_fsdp_unit_keeps(const cd_fsdp_unit *u)
{
    return u->strategy == CDDP_FSDP_SHARD_GRAD_OP || u->strategy == CDDP_FSDP_NO_SHARD ||
           u->strategy == CDDP_FSDP_HYBRID_SHARD_ZERO2;
}

/* ---- life ---- */

cddp_status cd_fsdp_unit_make_shard(cd_fsdp_unit *u, const cddp_tensor *shards, cddp_error *err)
{
    void *storage = NULL;
    const int64_t share = u->layout.share;
    CD_TRY(u->device->allocate(u->device, u->dtype, storage_of(share), &storage, err));
    u->shard = cddp_tensor_of(u->device, storage, 0, u->dtype, &share, 1);
    if (share == 0) return CDDP_OK;
    const cddp_tensor own = cddp_tensor_slice(shards, (int64_t)u->shard_rank * share, share);
    return CD_PASS(u->device->copy(&u->shard, &own, NULL, err));
}

static void release(cddp_tensor *t)
{
    if (t->device == NULL) return;
    t->device->release(t->device, t->dtype, storage_of(cddp_tensor_numel(t)), t->storage);
    t->device = NULL;
}

void cd_fsdp_unit_fini(cd_fsdp_unit *u)
{
    cddp_work_release(u->gather);
    cddp_work_release(u->reduction);
    u->gather = u->reduction = NULL;
    if (u->layout.members != NULL) cd_fsdp_unit_drop_gradients(u);
    cd_fsdp_buffer *buffers[] = {&u->cast,        &u->packed, &u->full, &u->gradient,
                                 &u->accumulated, &u->given,  &u->taken};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        cd_fsdp_memory_give(u->memory, buffers[i]);
    cddp_grad_fini(&u->grad);
    release(&u->low);
    release(&u->shard);
}

/* ---- full parameters ---- */

static cddp_status take(cd_fsdp_unit *u, cddp_dtype dtype, int64_t numel, cd_fsdp_buffer *buffer,
                        cddp_error *err)
{
    const cd_fsdp_wish wish = {
        .device = u->device, .dtype = dtype, .numel = numel, .is_full = true, .unit = u->index};
    return CD_PASS(cd_fsdp_memory_take(u->memory, &wish, buffer, err));
}

static void show_members(cd_fsdp_unit *u, const cddp_tensor *whole)
{
    for (size_t i = 0; i < u->layout.member_count; i++) {
        u->layout.members[i].full = (cddp_tensor){.device = NULL};
        if (whole != NULL) u->layout.members[i].full = cd_fsdp_layout_view(&u->layout, i, whole);
    }
}

cddp_status cd_fsdp_unit_gather(cd_fsdp_unit *u, cddp_error *err)
{
    const int64_t share = u->layout.share;
    const cddp_tensor *part = &u->shard;
    if (u->state != CD_FSDP_SHARDED) return CDDP_OK;
    if (u->param_dtype != u->dtype) {
        const cd_fsdp_wish wish = {.device = u->device,
                                   .dtype = u->param_dtype,
                                   .numel = share,
                                   .is_slice = cd_fsdp_unit_is_sharded(u)};
        CD_TRY(cd_fsdp_memory_take(u->memory, &wish, &u->cast, err));
        CD_TRY(u->device->copy(&u->cast.tensor, &u->shard, NULL, err));
        part = &u->cast.tensor;
    }
    u->state = CD_FSDP_GATHERING;
    if (!cd_fsdp_unit_is_sharded(u)) return CDDP_OK;
    CD_TRY(take(u, u->param_dtype, share * (int64_t)u->layout.world, &u->packed, err));
    if (share == 0) return CDDP_OK;
    return CD_PASS(cddp_group_allgather(u->shards, part, &u->packed.tensor, &u->gather, err));
}

cddp_status cd_fsdp_unit_await(cd_fsdp_unit *u, cddp_error *err)
{
    cddp_work *work = u->gather;
    const cddp_tensor *whole = &u->packed.tensor;
    if (u->state != CD_FSDP_GATHERING) return CDDP_OK;
    u->gather = NULL;
    if (work != NULL) CD_TRY(cddp_work_wait(work, 0, err));
    if (!cd_fsdp_unit_is_sharded(u)) {
        /* The one shard is the full copy, in its own dtype or cast. */
        whole = u->cast.tensor.device != NULL ? &u->cast.tensor : &u->shard;
    } else {
        cd_fsdp_memory_give(u->memory, &u->cast);
    }
    if (u->layout.kind == CDDP_FSDP_ROWS && cd_fsdp_unit_is_sharded(u)) {
        CD_TRY(take(u, u->param_dtype, u->layout.full_numel, &u->full, err));
        CD_TRY(cd_fsdp_layout_unpack(&u->layout, whole, &u->full.tensor, err));
        cd_fsdp_memory_give(u->memory, &u->packed);
        whole = &u->full.tensor;
    }
    show_members(u, whole);
    u->state = CD_FSDP_FULL;
    return CDDP_OK;
}

cddp_status cd_fsdp_unit_free(cd_fsdp_unit *u, cddp_error *err)
{
    cddp_work *work = u->gather;
    /* NO_SHARD without a cast: the shard is what forward computes with. */
    if (u->state == CD_FSDP_FULL && !cd_fsdp_unit_is_sharded(u) && u->param_dtype == u->dtype)
        return CDDP_OK;
    u->gather = NULL;
    u->state = CD_FSDP_SHARDED;
    show_members(u, NULL);
    const cddp_status status = work != NULL ? cddp_work_wait(work, 0, err) : CDDP_OK;
    cd_fsdp_memory_give(u->memory, &u->cast);
    cd_fsdp_memory_give(u->memory, &u->packed);
    cd_fsdp_memory_give(u->memory, &u->full);
    return CD_PASS(status);
}

/* This rank's rows of a full copy, back in one vector. */
static cddp_status collect_own(cd_fsdp_unit *u, const cddp_tensor *own, cddp_error *err)
{
    CD_TRY(u->device->fill(own, 0.0, NULL, err));
    for (size_t i = 0; i < u->layout.member_count; i++) {
        int64_t offset = 0;
        const cd_range part = cd_fsdp_layout_part(&u->layout, i, u->shard_rank, &offset);
        const int64_t numel = cd_range_numel(part);
        if (numel == 0) continue;
        const cddp_tensor from =
            cddp_tensor_slice(&u->full.tensor, u->layout.members[i].full_offset + part.first,
                              numel);
        const cddp_tensor to = cddp_tensor_slice(own, offset, numel);
        CD_TRY(u->device->copy(&to, &from, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_fsdp_unit_check_fresh(cd_fsdp_unit *u, bool *fresh, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_fsdp_buffer now = {.capacity = 0}, own = {.capacity = 0};
    uint64_t digests[2] = {0, 0};
    const int64_t share = u->layout.share;
    const cd_fsdp_wish wish = {.device = u->device, .dtype = u->param_dtype, .numel = share};
    *fresh = true;
    if (u->state != CD_FSDP_FULL || share == 0 ||
        (!cd_fsdp_unit_is_sharded(u) && u->cast.tensor.device == NULL))
        return CDDP_OK;
    CD_TRY_OUT(cd_fsdp_memory_take(u->memory, &wish, &now, err));
    CD_TRY_OUT(u->device->copy(&now.tensor, &u->shard, NULL, err));
    CD_TRY_OUT(u->device->digest(&now.tensor, &digests[0], err));
    if (!cd_fsdp_unit_is_sharded(u)) {
        CD_TRY_OUT(u->device->digest(&u->cast.tensor, &digests[1], err));
    } else if (u->layout.kind == CDDP_FSDP_FLAT) {
        const cddp_tensor slice =
            cddp_tensor_slice(&u->packed.tensor, (int64_t)u->shard_rank * share, share);
        CD_TRY_OUT(u->device->digest(&slice, &digests[1], err));
    } else {
        CD_TRY_OUT(cd_fsdp_memory_take(u->memory, &wish, &own, err));
        CD_TRY_OUT(collect_own(u, &own.tensor, err));
        CD_TRY_OUT(u->device->digest(&own.tensor, &digests[1], err));
    }
    *fresh = digests[0] == digests[1];
out:
    cd_fsdp_memory_give(u->memory, &now);
    cd_fsdp_memory_give(u->memory, &own);
    return status;
}

cddp_status cd_fsdp_unit_gather_whole(cd_fsdp_unit *u, const cddp_tensor *part,
                                      cd_fsdp_buffer *whole, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cddp_work *work = NULL;
    cd_fsdp_buffer shards = {.capacity = 0}, members = {.capacity = 0};
    const int64_t share = u->layout.share, world = (int64_t)u->layout.world;
    CD_TRY_OUT(take(u, part->dtype, share * world, &shards, err));
    if (share > 0 && cd_fsdp_unit_is_sharded(u)) {
        CD_TRY_OUT(cddp_group_allgather(u->shards, part, &shards.tensor, &work, err));
        CD_TRY_OUT(cddp_work_wait(work, 0, err));
    } else if (share > 0) {
        CD_TRY_OUT(u->device->copy(&shards.tensor, part, NULL, err));
    }
    if (u->layout.kind == CDDP_FSDP_ROWS) {
        CD_TRY_OUT(take(u, part->dtype, u->layout.full_numel, &members, err));
        CD_TRY_OUT(cd_fsdp_layout_unpack(&u->layout, &shards.tensor, &members.tensor, err));
        *whole = members;
        members = (cd_fsdp_buffer){.capacity = 0};
    } else {
        *whole = shards;
        shards = (cd_fsdp_buffer){.capacity = 0};
    }
out:
    cd_fsdp_memory_give(u->memory, &shards);
    cd_fsdp_memory_give(u->memory, &members);
    return status;
}
