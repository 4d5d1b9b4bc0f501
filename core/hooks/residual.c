/* SPDX-License-Identifier: Apache-2.0 */
/* Error feedback per parameter. A slot is made with its parameter's first bucket and never changes
** its size. */
#include "core/hooks/residual.h"

#include "core/base/error.h"

#include <stdio.h>

#define MAGIC UINT64_C(0x3245554449534552) /* "RESIDUE2" */
#define MEMORY_BLOCK_BYTES ((size_t)1 << 16)
#define SLOTS_MAX (UINT64_C(1) << 24)
#define NUMEL_MAX (INT64_C(1) << 40)

typedef struct saved_head {
    uint64_t magic;
    cd_state_model model;
    uint64_t slot_count;
} saved_head;

void cd_residual_init(cd_residual *r, const cddp_allocator *allocator, const cd_state_model *model,
                      const char *name)
{
    *r = (cd_residual){.name = name, .model = *model};
    cd_arena_init(&r->memory, allocator, MEMORY_BLOCK_BYTES);
}

void cd_residual_fini(cd_residual *r)
{
    for (size_t i = 0; i < r->slot_count; i++) cd_flat_release(&r->slots[i].owed);
    cd_arena_fini(&r->memory);
    cd_residual_init(r, r->memory.allocator, &r->model, r->name);
}

static cddp_status reserve(cd_residual *r, size_t count, cddp_error *err)
{
    if (count <= r->slot_count) return CDDP_OK;
    if (!cd_arena_grow(&r->memory, (void **)&r->slots, &r->slot_capacity, count, sizeof *r->slots))
        return cd_fail_memory(err, "%zu parameters of comm hook %s", count, r->name);
    for (; r->slot_count < count; r->slot_count++)
        r->slots[r->slot_count] = (cd_residual_slot){.numel = -1};
    return CDDP_OK;
}

static cddp_status slot_move(cd_residual_slot *slot, const cddp_device *d, cddp_error *err)
{
    cd_flat moved = {.capacity = 0};
    CD_TRY(cd_flat_reserve(&moved, d, slot->dtype, slot->numel, err));
    cddp_status status = d->write(&moved.tensor, slot->owed.tensor.storage,
                                  (size_t)slot->numel * cddp_dtype_bytes(slot->dtype), err);
    cd_flat_release(status == CDDP_OK ? &slot->owed : &moved);
    if (status == CDDP_OK) slot->owed = moved;
    return status;
}

static cddp_status find(cd_residual *r, const cddp_grad_bucket *bucket, uint32_t k,
                        cd_residual_slot **found, cddp_error *err)
{
    uint32_t parameter = bucket->parameter_ids[k];
    int64_t numel = bucket->lengths[k];
    cddp_dtype dtype = bucket->buffer.dtype;
    CD_TRY(reserve(r, (size_t)parameter + 1, err));
    cd_residual_slot *slot = &r->slots[parameter];
    if (slot->numel < 0) {
        CD_TRY(cd_flat_reserve(&slot->owed, bucket->buffer.device, dtype, numel, err));
        CD_TRY(bucket->buffer.device->fill(&slot->owed.tensor, 0.0, NULL, err));
        slot->numel = numel;
        slot->dtype = dtype;
    }
    if (slot->numel != numel || slot->dtype != dtype)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "comm hook %s: its state of parameter %u is for %lld elements of %s, the "
                       "gradient has %lld of %s",
                       r->name, parameter, (long long)slot->numel, cddp_dtype_name(slot->dtype),
                       (long long)numel, cddp_dtype_name(dtype));
    if (slot->owed.tensor.device != bucket->buffer.device && cd_host_is_away(bucket->buffer.device))
        CD_TRY(slot_move(slot, bucket->buffer.device, err));
    *found = slot;
    return CDDP_OK;
}

cddp_status cd_residual_add(cd_residual *r, const cddp_grad_bucket *bucket, cddp_error *err)
{
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        cd_residual_slot *slot = NULL;
        CD_TRY(find(r, bucket, k, &slot, err));
        cddp_tensor g = cddp_tensor_slice(&bucket->buffer, bucket->offsets[k], bucket->lengths[k]);
        CD_TRY(g.device->reduce(CDDP_RED_SUM, &g, &slot->owed.tensor, NULL, err));
    }
    return CDDP_OK;
}

cddp_status cd_residual_keep(cd_residual *r, const cddp_grad_bucket *bucket, cddp_error *err)
{
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        cd_residual_slot *slot = NULL;
        CD_TRY(find(r, bucket, k, &slot, err));
        cddp_tensor g = cddp_tensor_slice(&bucket->buffer, bucket->offsets[k], bucket->lengths[k]);
        CD_TRY(g.device->copy(&slot->owed.tensor, &g, NULL, err));
    }
    return CDDP_OK;
}

void cd_residual_sum(const cd_residual *r, const cddp_grad_bucket *bucket, cd_host_sums *sums)
{
    for (uint32_t k = 0; k < bucket->parameter_count; k++) {
        uint32_t parameter = bucket->parameter_ids[k];
        if (parameter >= r->slot_count || r->slots[parameter].numel < 0) continue;
        cd_host_add_all(sums, bucket->offsets[k], &r->slots[parameter].owed.tensor);
    }
}

#define WHO_BYTES 64
static const char *print_who(const cd_residual *r, char who[WHO_BYTES])
{
    snprintf(who, WHO_BYTES, "comm hook %s", r->name);
    return who;
}

/* Copies through the host, for every device. */
static cddp_status save_slot(const cd_residual *r, const cd_residual_slot *slot, cd_state_out *out,
                             cddp_error *err)
{
    cd_host_memory host = {NULL, 0};
    size_t bytes = (size_t)slot->numel * cddp_dtype_bytes(slot->dtype);
    CD_TRY(cd_host_memory_reserve(r->memory.allocator, &host, bytes, err));
    cddp_status status = slot->owed.tensor.device->read(&slot->owed.tensor, host.block, bytes, err);
    if (status == CDDP_OK) status = cd_state_put(out, host.block, bytes, err);
    cd_host_memory_release(r->memory.allocator, &host);
    return status;
}

cddp_status cd_residual_save(const cd_residual *r, const cddp_state_writer *writer, cddp_error *err)
{
    const saved_head h = {.magic = MAGIC, .model = r->model, .slot_count = r->slot_count};
    char who[WHO_BYTES];
    cd_state_out out = {.writer = writer, .who = print_who(r, who)};
    CD_TRY(cd_state_put(&out, &h, sizeof h, err));
    for (size_t i = 0; i < r->slot_count; i++) {
        const cd_residual_slot *slot = &r->slots[i];
        int64_t head[2] = {slot->numel, (int64_t)slot->dtype};
        CD_TRY(cd_state_put(&out, head, sizeof head, err));
        if (slot->numel > 0) CD_TRY(save_slot(r, slot, &out, err));
    }
    return CD_PASS(cd_state_put_seal(&out, err));
}

static cddp_status load_slot(cd_residual *r, cd_state_in *in, cddp_error *err)
{
    int64_t head[2];
    CD_TRY(cd_state_get(in, head, sizeof head, err));
    CD_TRY(reserve(r, r->slot_count + 1, err));
    cd_residual_slot *slot = &r->slots[r->slot_count - 1];
    if (head[0] == -1) return CDDP_OK;
    if (head[0] < 0 || head[0] > NUMEL_MAX || head[1] < 0 || head[1] >= CDDP_DTYPE_COUNT ||
        !cddp_dtype_is_float((cddp_dtype)head[1]))
        return cd_fail(err, CDDP_E_CORRUPT, "%s: the saved state is damaged", in->who);
    const cd_state_flat owed = {r->memory.allocator, (cddp_dtype)head[1], head[0]};
    if (head[0] > 0)
        CD_TRY(cd_state_get_flat(in, &owed, &slot->owed, err));
    else
        CD_TRY(cd_flat_reserve(&slot->owed, cddp_device_cpu(), owed.dtype, 0, err));
    slot->numel = head[0];
    slot->dtype = (cddp_dtype)head[1];
    return CDDP_OK;
}

cddp_status cd_residual_load(cd_residual *r, const cddp_state_reader *reader, cddp_error *err)
{
    cd_residual fresh;
    saved_head h;
    char who[WHO_BYTES];
    cddp_status status = CDDP_OK;
    cd_state_in in = {.reader = reader, .who = print_who(r, who)};
    cd_residual_init(&fresh, r->memory.allocator, &r->model, r->name);
    CD_TRY(cd_state_get(&in, &h, sizeof h, err));
    if (h.magic != MAGIC)
        return cd_fail(err, CDDP_E_CORRUPT, "%s: this is no saved state of it", who);
    CD_TRY(cd_state_model_check(&r->model, &h.model, who, err));
    if (h.slot_count > SLOTS_MAX)
        return cd_fail(err, CDDP_E_CORRUPT, "%s: the saved state is damaged", who);
    for (uint64_t i = 0; i < h.slot_count; i++) CD_TRY_OUT(load_slot(&fresh, &in, err));
    CD_TRY_OUT(cd_state_check_seal(&in, err));
    cd_residual old = *r;
    *r = fresh;
    fresh = old;
out:
    cd_residual_fini(&fresh);
    return status;
}
