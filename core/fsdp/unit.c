/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers and frees of one unit, and its shard.
**
** Not here: gradients (gradient.c), which unit is gathered when (fsdp.c).
*/
#include "core/fsdp/unit.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/fsdp/move.h"

static int64_t storage_of(int64_t numel) { return numel > 0 ? numel : 1; }

bool cd_fsdp_unit_keeps(const cd_fsdp_unit *u)
{
    return u->strategy == CDDP_FSDP_SHARD_GRAD_OP || u->strategy == CDDP_FSDP_NO_SHARD ||
           u->strategy == CDDP_FSDP_HYBRID_SHARD_ZERO2;
}

/* ---- life ---- */

/* This rank's rows of whole members, in one vector. */
static cddp_status copy_rows(const cd_fsdp_unit *u, const cddp_tensor *own,
                             const cddp_tensor *whole, cddp_error *err)
{
    CD_TRY(own->device->fill(own, 0.0, NULL, err));
    for (size_t i = 0; i < u->layout.member_count; i++) {
        int64_t offset = 0;
        const cd_range part = cd_fsdp_layout_part(&u->layout, i, u->shard_rank, &offset);
        const int64_t numel = cd_range_numel(part);
        if (numel == 0) continue;
        const cddp_tensor from =
            cddp_tensor_slice(whole, u->layout.members[i].full_offset + part.first, numel);
        const cddp_tensor to = cddp_tensor_slice(own, offset, numel);
        CD_TRY(cd_fsdp_move(&to, &from, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_fsdp_unit_make_shard(cd_fsdp_unit *u, const cddp_device *device,
                                    const cddp_tensor *whole, cddp_error *err)
{
    void *storage = NULL;
    const int64_t share = u->layout.share;
    CD_TRY(device->allocate(device, u->dtype, storage_of(share), &storage, err));
    u->shard = cddp_tensor_of(device, storage, 0, u->dtype, &share, 1);
    if (share == 0) return CDDP_OK;
    if (u->layout.kind == CDDP_FSDP_ROWS) return CD_PASS(copy_rows(u, &u->shard, whole, err));
    const cddp_tensor own = cddp_tensor_slice(whole, (int64_t)u->shard_rank * share, share);
    return CD_PASS(cd_fsdp_move(&u->shard, &own, NULL, err));
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
    cd_fsdp_buffer *buffers[] = {&u->moved,    &u->cast,        &u->packed, &u->full,
                                 &u->gradient, &u->accumulated, &u->given,  &u->taken};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        cd_fsdp_memory_give(u->memory, buffers[i]);
    cddp_grad_fini(&u->grad);
    release(&u->low);
    release(&u->shard);
}

/* ---- full parameters ---- */

static cd_fsdp_wish wish_full(const cd_fsdp_unit *u, cddp_dtype dtype, int64_t numel)
{
    return (cd_fsdp_wish){
        .device = u->device, .dtype = dtype, .numel = numel, .is_full = true, .unit = u->index};
}

static cddp_status take(cd_fsdp_unit *u, cddp_dtype dtype, int64_t numel, cd_fsdp_buffer *buffer,
                        cddp_error *err)
{
    const cd_fsdp_wish wish = wish_full(u, dtype, numel);
    return CD_PASS(cd_fsdp_memory_take(u->memory, &wish, buffer, err));
}

static void show_members(cd_fsdp_unit *u, const cddp_tensor *whole)
{
    for (size_t i = 0; i < u->layout.member_count; i++) {
        u->layout.members[i].full = (cddp_tensor){.device = NULL};
        if (whole != NULL) u->layout.members[i].full = cd_fsdp_layout_view(&u->layout, i, whole);
    }
}

/* What is gathered: the shard, on the unit's device, in param_dtype. */
static cddp_status take_part(cd_fsdp_unit *u, cddp_stream *stream, cddp_tensor *part,
                             cddp_error *err)
{
    cd_fsdp_wish wish = {.device = u->device,
                         .dtype = u->dtype,
                         .numel = u->layout.share,
                         .is_slice = cd_fsdp_unit_is_sharded(u),
                         .is_ahead = stream != NULL};
    *part = u->shard;
    if (cd_fsdp_unit_is_offloaded(u)) {
        CD_TRY(cd_fsdp_memory_take(u->memory, &wish, &u->moved, err));
        CD_TRY(cd_fsdp_move(&u->moved.tensor, &u->shard, stream, err));
        *part = u->moved.tensor;
    }
    if (u->param_dtype != u->dtype) {
        wish.dtype = u->param_dtype;
        CD_TRY(cd_fsdp_memory_take(u->memory, &wish, &u->cast, err));
        CD_TRY(u->device->copy(&u->cast.tensor, part, stream, err));
        *part = u->cast.tensor;
    }
    return CDDP_OK;
}

cddp_status cd_fsdp_unit_gather(cd_fsdp_unit *u, cddp_error *err)
{
    const int64_t share = u->layout.share;
    cddp_collective c = {.op = CDDP_OP_ALLGATHER};
    if (u->state != CD_FSDP_SHARDED) return CDDP_OK;
    if (cd_fsdp_unit_is_sharded(u)) c.stream = cd_fsdp_ahead_get_stream(u->ahead);
    CD_TRY(take_part(u, c.stream, &c.input, err));
    u->state = CD_FSDP_GATHERING;
    if (!cd_fsdp_unit_is_sharded(u)) return CDDP_OK;
    cd_fsdp_wish wish = wish_full(u, u->param_dtype, share * (int64_t)u->layout.world);
    wish.is_ahead = c.stream != NULL;
    CD_TRY(cd_fsdp_memory_take(u->memory, &wish, &u->packed, err));
    if (share == 0) return CDDP_OK;
    c.output = u->packed.tensor;
    return CD_PASS(cddp_group_post(u->shards, &c, &u->gather, err));
}

/* What was queued for the gather ends, and whoever uses it comes behind that. */
static cddp_status end_gather(cd_fsdp_unit *u, cddp_error *err)
{
    cddp_work *work = u->gather;
    u->gather = NULL;
    if (work != NULL) CD_TRY(cddp_work_wait(work, 0, err));
    return cd_fsdp_unit_is_sharded(u) ? CD_PASS(cd_fsdp_ahead_join(u->ahead, err)) : CDDP_OK;
}

cddp_status cd_fsdp_unit_await(cd_fsdp_unit *u, cddp_error *err)
{
    const cddp_tensor *whole = &u->packed.tensor;
    if (u->state != CD_FSDP_GATHERING) return CDDP_OK;
    CD_TRY(end_gather(u, err));
    if (!cd_fsdp_unit_is_sharded(u)) {
        /* The one shard is the full copy, or what it was moved and cast to. */
        whole = u->cast.tensor.device != NULL    ? &u->cast.tensor
                : u->moved.tensor.device != NULL ? &u->moved.tensor
                                                 : &u->shard;
    } else {
        cd_fsdp_memory_give(u->memory, &u->moved);
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

/* Casts of whole units and rows that were put in order are work of the default stream. */
cddp_status cd_fsdp_unit_let(const cd_fsdp_unit *u, cddp_stream *stream, cddp_error *err)
{
    const cddp_device *d = u->device;
    const bool is_as_gathered = cd_fsdp_unit_is_sharded(u) && u->layout.kind == CDDP_FSDP_FLAT;
    cddp_mark *mark = NULL;
    if (stream == NULL || d == NULL || (d->flags & CDDP_DEVICE_ASYNC) == 0) return CDDP_OK;
    if (u->ahead->device == d)
        return CD_PASS(cd_fsdp_ahead_let(u->ahead, is_as_gathered, stream, err));
    CD_TRY(d->mark_create(d, &mark, err));
    cddp_status status = d->mark_record(d, mark, NULL, err);
    if (status == CDDP_OK) status = d->mark_wait(d, mark, stream, err);
    d->mark_destroy(d, mark);
    return CD_PASS(status);
}

cddp_status cd_fsdp_unit_free(cd_fsdp_unit *u, cddp_error *err)
{
    const bool is_gathering = u->state == CD_FSDP_GATHERING;
    const bool has_storage =
        u->layout.share > 0 && (u->packed.tensor.device != NULL || u->full.tensor.device != NULL);
    /* NO_SHARD without a copy: the shard is what forward computes with. */
    if (u->state == CD_FSDP_FULL && !cd_fsdp_unit_is_sharded(u) && u->param_dtype == u->dtype &&
        !cd_fsdp_unit_is_offloaded(u))
        return CDDP_OK;
    u->state = CD_FSDP_SHARDED;
    show_members(u, NULL);
    const cddp_status status = is_gathering ? end_gather(u, err) : CDDP_OK;
    cd_fsdp_memory_give(u->memory, &u->moved);
    cd_fsdp_memory_give(u->memory, &u->cast);
    cd_fsdp_memory_give(u->memory, &u->packed);
    cd_fsdp_memory_give(u->memory, &u->full);
    if (status != CDDP_OK || !has_storage) return status;
    return CD_PASS(cd_fsdp_ahead_note_free(u->ahead, u->index, err));
}

cddp_status cd_fsdp_unit_check_fresh(cd_fsdp_unit *u, bool *fresh, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_fsdp_buffer now = {.capacity = 0}, own = {.capacity = 0};
    uint64_t digests[2] = {0, 0};
    const int64_t share = u->layout.share;
    const cddp_device *home = u->shard.device;
    cd_fsdp_wish wish = {.device = home, .dtype = u->param_dtype, .numel = share};
    const cd_fsdp_buffer *copy = u->cast.tensor.device != NULL ? &u->cast : &u->moved;
    *fresh = true;
    if (u->state != CD_FSDP_FULL || share == 0 ||
        (!cd_fsdp_unit_is_sharded(u) && copy->tensor.device == NULL))
        return CDDP_OK;
    CD_TRY_OUT(cd_fsdp_memory_take(u->memory, &wish, &now, err));
    CD_TRY_OUT(home->copy(&now.tensor, &u->shard, NULL, err));
    CD_TRY_OUT(home->digest(&now.tensor, &digests[0], err));
    wish.device = u->device;
    if (!cd_fsdp_unit_is_sharded(u)) {
        CD_TRY_OUT(u->device->digest(&copy->tensor, &digests[1], err));
    } else if (u->layout.kind == CDDP_FSDP_FLAT) {
        const cddp_tensor slice =
            cddp_tensor_slice(&u->packed.tensor, (int64_t)u->shard_rank * share, share);
        CD_TRY_OUT(u->device->digest(&slice, &digests[1], err));
    } else {
        CD_TRY_OUT(cd_fsdp_memory_take(u->memory, &wish, &own, err));
        CD_TRY_OUT(copy_rows(u, &own.tensor, &u->full.tensor, err));
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
    cd_fsdp_buffer moved = {.capacity = 0}, shards = {.capacity = 0}, members = {.capacity = 0};
    const bool comes_from_host = part->device != u->device;
    const int64_t share = u->layout.share, world = (int64_t)u->layout.world;
    if (comes_from_host && cd_fsdp_unit_is_sharded(u)) {
        const cd_fsdp_wish wish = {.device = u->device,
                                   .dtype = part->dtype,
                                   .numel = share,
                                   .is_slice = true};
        CD_TRY_OUT(cd_fsdp_memory_take(u->memory, &wish, &moved, err));
        CD_TRY_OUT(cd_fsdp_move(&moved.tensor, part, NULL, err));
        part = &moved.tensor;
    }
    CD_TRY_OUT(take(u, part->dtype, share * world, &shards, err));
    if (share > 0 && cd_fsdp_unit_is_sharded(u)) {
        CD_TRY_OUT(cddp_group_allgather(u->shards, part, &shards.tensor, &work, err));
        CD_TRY_OUT(cddp_work_wait(work, 0, err));
    } else if (share > 0) {
        CD_TRY_OUT(cd_fsdp_move(&shards.tensor, part, NULL, err));
    }
    /* The program may change what was copied from it. */
    if (comes_from_host) CD_TRY_OUT(cd_fsdp_ahead_settle(u->ahead, err));
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
    cd_fsdp_memory_give(u->memory, &moved);
    cd_fsdp_memory_give(u->memory, &shards);
    cd_fsdp_memory_give(u->memory, &members);
    return status;
}
