/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading optimizer state.
**
** Layout, in the machine's byte order: "cddpopt2" · kind, slot count, parameter count (u64 each) ·
** lr (f64) · for each parameter: dtype, numel, present, step (u64 each) · its slots' bytes in
** logical order, when present; a seal. A damaged state is refused, and may be loaded in part
** then. */
#include "core/model/optim/rule.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/tensor/saved.h"

#include <inttypes.h>
#include <string.h>

static const char magic[8] = {'c', 'd', 'd', 'p', 'o', 'p', 't', '2'};

typedef struct file_head {
    char magic[8];
    uint64_t kind, slot_count, parameter_count;
    double lr;
} file_head;

typedef struct entry_head {
    uint64_t dtype, numel, is_present, step;
} entry_head;

#define WHO "optimizer state"

static entry_head head_of(const cd_optimizer_entry *entry)
{
    const cddp_tensor *t = &entry->parameter.tensor;
    return (entry_head){(uint64_t)t->dtype, (uint64_t)cddp_tensor_numel(t), entry->is_present,
                        entry->step};
}

/* A host buffer as large as one slot. */
static cddp_status make_buffer(const cd_optimizer *o, const cd_optimizer_entry *entry,
                               void **buffer, size_t *bytes, cddp_error *err)
{
    const cddp_tensor *t = &entry->parameter.tensor;
    *bytes = (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
    *buffer = cd_allocate(o->allocator, *bytes);
    if (*buffer == NULL) return cd_fail_memory(err, "%zu bytes of optimizer state", *bytes);
    return CDDP_OK;
}

static cddp_status save_entry(const cd_optimizer *o, const cd_optimizer_entry *entry,
                              cd_state_out *out, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    entry_head head = head_of(entry);
    void *buffer = NULL;
    size_t bytes = 0;
    CD_TRY(cd_state_put(out, &head, sizeof head, err));
    if (!entry->is_present) return CDDP_OK;
    CD_TRY(make_buffer(o, entry, &buffer, &bytes, err));
    for (uint32_t s = 0; s < o->rule->slot_count(&o->options); s++) {
        const cddp_tensor *slot = &entry->slots[s];
        CD_TRY_OUT(slot->device->read(slot, buffer, bytes, err));
        CD_TRY_OUT(cd_state_put(out, buffer, bytes, err));
    }
out:
    cd_release(o->allocator, buffer, bytes);
    return status;
}

cddp_status cd_optimizer_save(const cd_optimizer *optimizer, const cddp_state_writer *writer,
                              cddp_error *err)
{
    file_head head = {.kind = (uint64_t)optimizer->options.kind,
                      .slot_count = optimizer->rule->slot_count(&optimizer->options),
                      .parameter_count = optimizer->entry_count,
                      .lr = optimizer->options.lr};
    memcpy(head.magic, magic, sizeof magic);
    cd_state_out out = {.writer = writer, .who = WHO};
    CD_TRY(cd_state_put(&out, &head, sizeof head, err));
    for (size_t i = 0; i < optimizer->entry_count; i++)
        CD_TRY(save_entry(optimizer, &optimizer->entries[i], &out, err));
    return CD_PASS(cd_state_put_seal(&out, err));
}

static cddp_status check_head(const cd_optimizer *o, const file_head *head, cddp_error *err)
{
    if (memcmp(head->magic, magic, sizeof magic) != 0)
        return cd_fail(err, CDDP_E_CORRUPT, "optimizer state: this is not saved optimizer state");
    if (head->kind != (uint64_t)o->options.kind)
        return cd_fail(err, CDDP_E_MISMATCH, "optimizer state: saved by %s, loaded into %s",
                       cd_optimizer_name((cd_optimizer_kind)head->kind),
                       cd_optimizer_name(o->options.kind));
    if (head->slot_count != o->rule->slot_count(&o->options) ||
        head->parameter_count != o->entry_count)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "optimizer state: %" PRIu64 " parameters with %" PRIu64
                       " tensors each were saved, %zu with %u are here",
                       head->parameter_count, head->slot_count, o->entry_count,
                       o->rule->slot_count(&o->options));
    return CDDP_OK;
}

/* A slot that was saved as absent becomes absent. */
static void forget(cd_optimizer_entry *entry)
{
    for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++) {
        cddp_tensor *slot = &entry->slots[s];
        int64_t numel = slot->device != NULL ? cddp_tensor_numel(slot) : 0;
        if (slot->device != NULL)
            slot->device->release(slot->device, slot->dtype, numel > 0 ? numel : 1, slot->storage);
        slot->device = NULL;
    }
    entry->is_present = false;
}

cddp_status cd_optimizer_state_set(cd_optimizer *optimizer, size_t parameter, bool is_present,
                                   uint64_t step, cddp_error *err)
{
    cd_optimizer_entry *entry = &optimizer->entries[parameter];
    if (is_present)
        CD_TRY(cd_optimizer_make_slots(optimizer, entry, err));
    else
        forget(entry);
    entry->step = step;
    return CDDP_OK;
}

static cddp_status load_entry(cd_optimizer *o, cd_optimizer_entry *entry, cd_state_in *in,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    entry_head head, own = head_of(entry);
    void *buffer = NULL;
    size_t bytes = 0;
    CD_TRY(cd_state_get(in, &head, sizeof head, err));
    if (head.dtype != own.dtype || head.numel != own.numel)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "optimizer state: parameter %s has %" PRIu64
                       " elements of %s, saved were %" PRIu64 " of %s",
                       entry->parameter.name, own.numel, cddp_dtype_name((cddp_dtype)own.dtype),
                       head.numel, cddp_dtype_name((cddp_dtype)head.dtype));
    if (head.is_present > 1)
        return cd_fail(err, CDDP_E_CORRUPT, "optimizer state: presence is %" PRIu64,
                       head.is_present);
    entry->step = head.step;
    if (head.is_present == 0) {
        forget(entry);
        return CDDP_OK;
    }
    CD_TRY(cd_optimizer_make_slots(o, entry, err));
    CD_TRY(make_buffer(o, entry, &buffer, &bytes, err));
    for (uint32_t s = 0; s < o->rule->slot_count(&o->options); s++) {
        const cddp_tensor *slot = &entry->slots[s];
        CD_TRY_OUT(cd_state_get(in, buffer, bytes, err));
        CD_TRY_OUT(slot->device->write(slot, buffer, bytes, err));
    }
out:
    cd_release(o->allocator, buffer, bytes);
    return status;
}

cddp_status cd_optimizer_load(cd_optimizer *optimizer, const cddp_state_reader *reader,
                              cddp_error *err)
{
    file_head head;
    cd_state_in in = {.reader = reader, .who = WHO};
    CD_TRY(cd_state_get(&in, &head, sizeof head, err));
    CD_TRY(check_head(optimizer, &head, err));
    for (size_t i = 0; i < optimizer->entry_count; i++)
        CD_TRY(load_entry(optimizer, &optimizer->entries[i], &in, err));
    CD_TRY(cd_state_check_seal(&in, err));
    optimizer->options.lr = head.lr;
    return CDDP_OK;
}
