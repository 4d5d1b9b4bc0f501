/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/optimizer_bytes.h"

#include "core/base/error.h"

typedef struct entry_head {
    uint64_t is_present, step;
} entry_head;

static cddp_status push_entry(const cd_optimizer *optimizer, size_t parameter, cd_blob *blob,
                              cddp_error *err)
{
    const cddp_state_writer writer = cd_blob_writer(blob);
    cd_optimizer_state state;
    cd_optimizer_get_state(optimizer, parameter, &state);
    const entry_head head = {state.is_present, state.step};
    if (!writer.write(writer.context, &head, sizeof head))
        return CD_PASS(cd_blob_end(blob, CDDP_E_NOMEM, err));
    for (uint32_t s = 0; state.is_present && s < state.slot_count; s++)
        CD_TRY(cd_blob_push_tensor(blob, &state.slots[s], err));
    return CDDP_OK;
}

cddp_status cd_optimizer_bytes_push(const cd_replica *replica, cd_blob *blob, cddp_error *err)
{
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        const cd_optimizer *optimizer = replica->optimizers[i].optimizer;
        for (size_t k = 0; k < cd_optimizer_parameter_count(optimizer); k++)
            CD_TRY(push_entry(optimizer, k, blob, err));
    }
    return CDDP_OK;
}

static cddp_status pop_entry(cd_optimizer *optimizer, size_t parameter,
                             const cddp_state_reader *reader, cd_blob *blob, cddp_error *err)
{
    entry_head head;
    cd_optimizer_state state;
    if (!reader->read(reader->context, &head, sizeof head))
        return cd_fail(err, CDDP_E_STATE, "the copy of an optimizer's state ends too early");
    CD_TRY(cd_optimizer_state_set(optimizer, parameter, head.is_present != 0, head.step, err));
    cd_optimizer_get_state(optimizer, parameter, &state);
    for (uint32_t s = 0; state.is_present && s < state.slot_count; s++)
        CD_TRY(cd_blob_pop_tensor(blob, &state.slots[s], err));
    return CDDP_OK;
}

cddp_status cd_optimizer_bytes_pop(cd_replica *replica, cd_blob *blob, cddp_error *err)
{
    const cddp_state_reader reader = cd_blob_reader(blob);
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        cd_optimizer *optimizer = replica->optimizers[i].optimizer;
        for (size_t k = 0; k < cd_optimizer_parameter_count(optimizer); k++)
            CD_TRY(pop_entry(optimizer, k, &reader, blob, err));
    }
    return CDDP_OK;
}
