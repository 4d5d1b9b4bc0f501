/* SPDX-License-Identifier: Apache-2.0 */
/* Saves and loads the state of PowerSGD: the iteration, and the error and factor of each parameter.
**
** Format: magic, model, batched, iteration, statistics, slot count; per slot: parameter, dtype,
** element counts, then bytes; a seal. The group is not part of it (PSG-13).
*/
#include "cddp/device.h"
#include "core/base/error.h"
#include "core/hooks/low_rank_parts.h"

#include <string.h>

#define MAGIC UINT64_C(0x3344475372776f50) /* "PowrSGD3" */

typedef struct header {
    uint64_t magic;
    cd_state_model model;
    uint64_t batched, iteration, elements_before, elements_after, slot_count;
} header;

typedef struct slot_header {
    int64_t error_numel, q_numel, q_rank; /* error_numel -1: none */
    uint64_t error_dtype, q_dtype;
} slot_header;

/* Copies through the host, for every device. */
static cddp_status put_tensor(const cd_low_rank *s, cd_state_out *out, const cddp_tensor *t,
                              int64_t numel, cddp_error *err)
{
    size_t bytes = (size_t)numel * cddp_dtype_bytes(t->dtype);
    cd_host_memory host = {NULL, 0};
    CD_TRY(cd_host_memory_reserve(s->arena.allocator, &host, bytes, err));
    cddp_tensor flat = cddp_tensor_slice(t, 0, numel);
    cddp_status status = flat.device->read(&flat, host.block, bytes, err);
    if (status == CDDP_OK) status = cd_state_put(out, host.block, bytes, err);
    cd_host_memory_release(s->arena.allocator, &host);
    return status;
}

cddp_status cd_low_rank_save(void *self, const cddp_state_writer *writer, cddp_error *err)
{
    const cd_low_rank *s = self;
    header h = {MAGIC,        s->model,           s->batched,
                s->iteration, s->elements_before, s->elements_after,
                s->slot_count};
    cd_state_out out = {.writer = writer, .who = s->name};
    CD_TRY(cd_state_put(&out, &h, sizeof h, err));
    for (size_t i = 0; i < s->slot_count; i++) {
        const cd_low_rank_slot *slot = &s->slots[i];
        bool has_error = slot->error.device != NULL;
        slot_header sh = {.error_numel = -1}; /* nothing is reported for an absent state */
        if (has_error)
            sh.error_numel = cddp_tensor_numel(&slot->error),
            sh.error_dtype = (uint64_t)slot->error.dtype;
        if (slot->q_numel > 0)
            sh.q_numel = slot->q_numel, sh.q_rank = slot->q_rank,
            sh.q_dtype = (uint64_t)slot->q.dtype;
        CD_TRY(cd_state_put(&out, &sh, sizeof sh, err));
        if (has_error) CD_TRY(put_tensor(s, &out, &slot->error, sh.error_numel, err));
        if (slot->q_numel > 0) CD_TRY(put_tensor(s, &out, &slot->q, slot->q_numel, err));
    }
    return CD_PASS(cd_state_put_seal(&out, err));
}

static cddp_status get_tensor(const cd_low_rank *s, cd_state_in *in, cddp_tensor *t, int64_t numel,
                              uint64_t dtype, cddp_error *err)
{
    if (dtype >= CDDP_DTYPE_COUNT || !cddp_dtype_is_float((cddp_dtype)dtype) ||
        numel > (INT64_C(1) << 40))
        return cd_fail(err, CDDP_E_CORRUPT, "%s: the saved state is damaged", s->name);
    cd_flat flat = {.capacity = 0};
    const cd_state_flat wanted = {s->arena.allocator, (cddp_dtype)dtype, numel};
    CD_TRY(cd_state_get_flat(in, &wanted, &flat, err));
    *t = flat.tensor;
    return CDDP_OK;
}

static cddp_status get_slot(cd_low_rank *s, cd_state_in *in, cd_low_rank_slot *slot,
                            cddp_error *err)
{
    slot_header sh;
    CD_TRY(cd_state_get(in, &sh, sizeof sh, err));
    if (sh.error_numel < -1 || sh.q_numel < 0 || sh.q_rank < 0)
        return cd_fail(err, CDDP_E_CORRUPT, "%s: the saved state is damaged", s->name);
    slot->loaded = true;
    if (sh.error_numel >= 0)
        CD_TRY(get_tensor(s, in, &slot->error, sh.error_numel, sh.error_dtype, err));
    if (sh.q_numel > 0) {
        slot->q_capacity = sh.q_numel;
        cddp_status status = get_tensor(s, in, &slot->q, sh.q_numel, sh.q_dtype, err);
        if (slot->q.device == NULL) slot->q_capacity = 0;
        if (status != CDDP_OK) return status;
        slot->q_numel = sh.q_numel;
        slot->q_rank = sh.q_rank;
    }
    return CDDP_OK;
}

/* Loads into a separate state first, so that a damaged one changes nothing. */
cddp_status cd_low_rank_load(void *self, const cddp_state_reader *reader, cddp_error *err)
{
    cd_low_rank *s = self;
    header h;
    cd_state_in in = {.reader = reader, .who = s->name};
    CD_TRY(cd_state_get(&in, &h, sizeof h, err));
    if (h.magic != MAGIC || h.slot_count > (UINT64_C(1) << 32))
        return cd_fail(err, CDDP_E_CORRUPT, "%s: this is no saved state of it", s->name);
    if (h.batched != s->batched)
        return cd_fail(err, CDDP_E_MISMATCH, "%s: the state was saved by the %s hook", s->name,
                       h.batched ? "batched_powersgd" : "powersgd");
    CD_TRY(cd_state_model_check(&s->model, &h.model, s->name, err));
    cddp_status status = CDDP_OK;
    cd_low_rank *fresh = cd_low_rank_make(s->arena.allocator, s->name);
    if (fresh == NULL) return cd_fail_memory(err, "the loaded state of %s", s->name);
    for (uint64_t i = 0; i < h.slot_count; i++) {
        CD_TRY_OUT(cd_low_rank_slots_reserve(fresh, (size_t)i + 1, err));
        CD_TRY_OUT(get_slot(fresh, &in, &fresh->slots[i], err));
        cd_low_rank_factor_loaded(&fresh->slots[i], (uint32_t)i);
    }
    CD_TRY_OUT(cd_state_check_seal(&in, err));
    cd_low_rank swapped = *fresh;
    fresh->slot_memory = s->slot_memory;
    fresh->slots = s->slots;
    fresh->slot_count = s->slot_count;
    s->slot_memory = swapped.slot_memory;
    s->slots = swapped.slots;
    s->slot_count = swapped.slot_count;
    s->slot_capacity = swapped.slot_capacity;
    s->iteration = h.iteration;
    s->elements_before = h.elements_before;
    s->elements_after = h.elements_after;
out:
    cd_low_rank_destroy(fresh);
    return status;
}
