/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/entered.h"

#include "core/base/error.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

static bool is_of(const cd_entered *e, size_t i, cddp_dtype dtype)
{
    return e->buffers[i].dtype == dtype && !e->is_ignored[i];
}

static bool has_changed(const cd_entered *e, cddp_dtype dtype)
{
    bool has_changed = false;
    for (size_t i = 0; i < e->count; i++)
        has_changed |= is_of(e, i, dtype) && e->was[i] != e->is[i];
    return has_changed;
}

static cddp_status copy_flat(const cd_entered *e, cddp_dtype dtype, cd_kept *room, cddp_error *err)
{
    int64_t numel = 0, offset = 0;
    const cddp_device *device = e->buffers[0].device;
    for (size_t i = 0; i < e->count; i++)
        if (is_of(e, i, dtype)) numel += cddp_tensor_numel(&e->buffers[i]);
    const cddp_tensor like = cddp_tensor_of(device, NULL, 0, dtype, &numel, 1);
    CD_TRY(cd_kept_make(room, &like, err));
    for (size_t i = 0; i < e->count; i++) {
        const cddp_tensor *b = &e->buffers[i];
        if (!is_of(e, i, dtype)) continue;
        const cddp_tensor part =
            cddp_tensor_of(device, room->tensor.storage, room->tensor.offset + offset, dtype,
                           b->sizes, b->dim_count);
        CD_TRY(device->copy(&part, b, NULL, err));
        offset += cddp_tensor_numel(b);
    }
    return CDDP_OK;
}

cddp_status cd_entered_emit(const cd_entered *entered, cd_kept *room, struct cddp_tracer *tracer,
                            cddp_error *err)
{
    uint64_t digest = 0;
    for (int dtype = 0; dtype < CDDP_DTYPE_COUNT; dtype++) {
        if (!has_changed(entered, (cddp_dtype)dtype)) continue;
        CD_TRY(copy_flat(entered, (cddp_dtype)dtype, room, err));
        CD_TRY(room->tensor.device->digest(&room->tensor, &digest, err));
        CD_EMIT(tracer, mark, CD_TRACER_ENTERED, .value = (int64_t)(digest & CD_SUM_SIGHT_BITS));
    }
    return CDDP_OK;
}
