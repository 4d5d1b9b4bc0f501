/* SPDX-License-Identifier: Apache-2.0 */
/* What a sharded model writes into a trace: its cut, and what it is about to compute with.
**
** Nothing here decides anything, and without a tracer that asks for content nothing is computed.
*/
#include "core/fsdp/fsdp.h"

#include "core/base/error.h"
#include "core/trace/tracer.h"

#include <math.h>

void cd_fsdp_report_cut(const cddp_fsdp *f)
{
    for (uint32_t k = 0; f->tracer != NULL && k < f->unit_count; k++) {
        const cd_fsdp_unit *u = &f->units[k];
        if (cd_fsdp_unit_is_empty(u)) continue;
        CD_EMIT(f->tracer, unit, cd_fsdp_unit_words(f, k), .unit = k, .numel = u->layout.numel,
                .share = u->layout.share, .shards = u->layout.world, .shard = u->shard_rank,
                .group = cd_fsdp_unit_is_sharded(u) ? (int64_t)cddp_group_id(u->shards) : -1,
                .dtype = u->dtype, .on_host = (u->shard.device->flags & CDDP_DEVICE_ASYNC) == 0);
        for (size_t i = 0; i < u->layout.member_count; i++) {
            const cd_fsdp_member *m = &u->layout.members[i];
            int64_t offset = 0;
            const cd_range part = cd_fsdp_layout_part(&u->layout, i, u->shard_rank, &offset);
            CD_EMIT(f->tracer, unit_part, m->name, .ordinal = (int64_t)m->ordinal, .unit = k,
                    .first = part.first, .count = cd_range_numel(part), .numel = m->numel);
        }
    }
}

/* See I-SHARD: what belongs to no parameter stays zero (FPM-05). */
static cddp_status report_gaps(const cddp_fsdp *f, const cd_fsdp_unit *u, bool of_gradient,
                               cddp_error *err)
{
    const bool has_gradient = u->grad.kind == CDDP_GRAD_DENSE && u->grad.value.dtype == u->dtype;
    const cddp_tensor *vector = of_gradient ? &u->grad.value : &u->shard;
    double squares = 0;
    int64_t count = 0;
    if (of_gradient && !has_gradient) return CDDP_OK;
    for (cd_fsdp_gap gap = {.index = 0};
         cd_fsdp_layout_next_gap(&u->layout, u->shard_rank, &gap);) {
        const cddp_tensor slice = cddp_tensor_slice(vector, gap.offset, gap.numel);
        double norm = 0;
        CD_TRY(slice.device->norm(&slice, &norm, err));
        squares += norm * norm;
        count += gap.numel;
    }
    if (count == 0) return CDDP_OK;
    CD_EMIT(f->tracer, unit_gap, NULL, .unit = u->index,
            .what = of_gradient ? CDDP_WHAT_GRADIENT : CDDP_WHAT_PARAMETER, .count = count,
            .norm = cd_f64_bits(sqrt(squares)));
    return CDDP_OK;
}

cddp_status cd_fsdp_report_gaps(const cddp_fsdp *f, bool of_gradients, cddp_error *err)
{
    for (uint32_t k = 0; cd_tracer_wants_digest(f->tracer) && k < f->unit_count; k++) {
        const cd_fsdp_unit *u = &f->units[k];
        if (cd_fsdp_unit_is_empty(u) || (u->device->flags & CDDP_DEVICE_VALUES) == 0) continue;
        CD_TRY(report_gaps(f, u, of_gradients, err));
    }
    return CDDP_OK;
}

/* To look at what was gathered is to wait for it, so a gather that failed shows itself here. */
cddp_status cd_fsdp_report_read(const cddp_fsdp *f, const cd_fsdp_unit *u,
                                cddp_event_enum_unit_pass pass, cddp_error *err)
{
    for (size_t i = 0; cd_tracer_wants_digest(f->tracer) && i < u->layout.member_count; i++) {
        const cd_fsdp_member *m = &u->layout.members[i];
        uint64_t digest = 0;
        if (m->full.device == NULL) continue;
        CD_TRY(m->full.device->digest(&m->full, &digest, err));
        CD_EMIT(f->tracer, unit_read, NULL, .ordinal = (int64_t)m->ordinal, .unit = u->index,
                .pass = pass, .dtype = m->full.dtype, .digest = (int64_t)digest);
    }
    return CDDP_OK;
}
