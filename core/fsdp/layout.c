/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets, views and copies of both layouts.
**
** See Note [Slices of a vector]
**
** Not here: which parameters a unit has (units.c), when something is gathered (unit.c).
*/
#include "core/fsdp/layout.h"

#include "cddp/device.h"
#include "core/base/hash.h"

void cd_fsdp_layout_place(cd_fsdp_layout *l, int64_t alignment)
{
    int64_t offset = 0, whole = 0;
    for (size_t i = 0; i < l->member_count; i++) {
        cd_fsdp_member *m = &l->members[i];
        m->rows = m->like.dim_count > 0 ? m->like.sizes[0] : 1;
        m->numel = cddp_tensor_numel(&m->like);
        m->row_numel = m->rows > 0 ? m->numel / m->rows : 0;
        m->share_rows = cd_slice_length(m->rows, l->world);
        if (l->kind == CDDP_FSDP_FLAT) {
            offset = (offset + alignment - 1) / alignment * alignment;
            m->offset = m->full_offset = offset;
            offset += m->numel;
        } else {
            m->offset = offset;
            m->full_offset = whole;
            offset += m->share_rows * m->row_numel;
            whole += m->numel;
        }
    }
    l->share = l->kind == CDDP_FSDP_FLAT ? cd_slice_length(offset, l->world) : offset;
    l->numel = l->kind == CDDP_FSDP_FLAT ? offset : whole;
    l->full_numel = l->kind == CDDP_FSDP_FLAT ? l->share * (int64_t)l->world : whole;
}

cd_range cd_fsdp_layout_part(const cd_fsdp_layout *l, size_t i, uint32_t rank, int64_t *offset)
{
    const cd_fsdp_member *m = &l->members[i];
    if (l->kind == CDDP_FSDP_FLAT) {
        const cd_range own = cd_slice_of(l->numel, l->share, rank);
        const cd_range part = cd_range_within(own, m->offset, m->offset + m->numel);
        *offset = cd_range_numel(part) > 0 ? m->offset + part.first - own.first : 0;
        return part;
    }
    const cd_range rows = cd_slice_of(m->rows, m->share_rows, rank);
    *offset = m->offset;
    return (cd_range){rows.first * m->row_numel, rows.end * m->row_numel};
}

cddp_tensor cd_fsdp_layout_view(const cd_fsdp_layout *l, size_t i, const cddp_tensor *whole)
{
    const cd_fsdp_member *m = &l->members[i];
    return cddp_tensor_of(whole->device, whole->storage, whole->offset + m->full_offset,
                          whole->dtype, m->like.sizes, m->like.dim_count);
}

static cddp_status copy_rows(const cd_fsdp_layout *l, const cddp_tensor *shards,
                             const cddp_tensor *whole, bool packs, cddp_error *err)
{
    if (l->kind == CDDP_FSDP_FLAT) return CDDP_OK;
    for (uint32_t r = 0; r < l->world; r++) {
        for (size_t i = 0; i < l->member_count; i++) {
            int64_t offset = 0;
            const cd_range part = cd_fsdp_layout_part(l, i, r, &offset);
            const int64_t numel = cd_range_numel(part);
            if (numel == 0) continue;
            const cddp_tensor in_shard =
                cddp_tensor_slice(shards, (int64_t)r * l->share + offset, numel);
            const cddp_tensor in_whole =
                cddp_tensor_slice(whole, l->members[i].full_offset + part.first, numel);
            CD_TRY(whole->device->copy(packs ? &in_shard : &in_whole, packs ? &in_whole : &in_shard,
                                       NULL, err));
        }
    }
    return CDDP_OK;
}

cddp_status cd_fsdp_layout_unpack(const cd_fsdp_layout *l, const cddp_tensor *shards,
                                  const cddp_tensor *whole, cddp_error *err)
{
    return CD_PASS(copy_rows(l, shards, whole, false, err));
}

cddp_status cd_fsdp_layout_pack(const cd_fsdp_layout *l, const cddp_tensor *shards,
                                const cddp_tensor *whole, cddp_error *err)
{
    return CD_PASS(copy_rows(l, shards, whole, true, err));
}

static cddp_status fill(const cddp_tensor *t, int64_t first, int64_t end, cddp_error *err)
{
    if (first >= end) return CDDP_OK;
    const cddp_tensor gap = cddp_tensor_slice(t, first, end - first);
    return CD_PASS(t->device->fill(&gap, 0.0, NULL, err));
}

cddp_status cd_fsdp_layout_fill_gaps(const cd_fsdp_layout *l, const cddp_tensor *shards,
                                     cddp_error *err)
{
    if (l->kind == CDDP_FSDP_FLAT) {
        int64_t at = 0;
        for (size_t i = 0; i < l->member_count; i++) {
            CD_TRY(fill(shards, at, l->members[i].offset, err));
            at = l->members[i].offset + l->members[i].numel;
        }
        return CD_PASS(fill(shards, at, l->share * (int64_t)l->world, err));
    }
    for (uint32_t r = 0; r < l->world; r++) {
        for (size_t i = 0; i < l->member_count; i++) {
            const cd_fsdp_member *m = &l->members[i];
            int64_t offset = 0;
            const cd_range part = cd_fsdp_layout_part(l, i, r, &offset);
            const int64_t first = (int64_t)r * l->share + offset;
            CD_TRY(fill(shards, first + cd_range_numel(part), first + m->share_rows * m->row_numel,
                        err));
        }
    }
    return CDDP_OK;
}

/* Run i of a vector lies in front of member i, the last one behind all of them. */
static cd_range flat_gap(const cd_fsdp_layout *l, size_t i)
{
    const cd_fsdp_member *before = i > 0 ? &l->members[i - 1] : NULL;
    return (cd_range){before != NULL ? before->offset + before->numel : 0,
                      i < l->member_count ? l->members[i].offset : l->share * (int64_t)l->world};
}

bool cd_fsdp_layout_next_gap(const cd_fsdp_layout *l, uint32_t rank, cd_fsdp_gap *gap)
{
    const bool is_flat = l->kind == CDDP_FSDP_FLAT;
    const int64_t start = (int64_t)rank * l->share;
    const cd_range all = {start, start + l->share};
    const size_t runs = l->member_count + is_flat;
    while (gap->index < runs) {
        const size_t i = gap->index++;
        if (is_flat) {
            const cd_range run = flat_gap(l, i), own = cd_range_within(all, run.first, run.end);
            gap->offset = run.first + own.first - start;
            gap->numel = cd_range_numel(own);
        } else {
            const cd_fsdp_member *m = &l->members[i];
            const int64_t used = cd_range_numel(cd_fsdp_layout_part(l, i, rank, &gap->offset));
            gap->offset += used;
            gap->numel = m->share_rows * m->row_numel - used;
        }
        if (gap->numel > 0) return true;
    }
    return false;
}

uint64_t cd_fsdp_layout_digest(const cd_fsdp_layout *l)
{
    uint64_t h = cd_hash_mix(cd_hash_mix((uint64_t)l->kind, l->world), (uint64_t)l->share);
    for (size_t i = 0; i < l->member_count; i++) {
        const cd_fsdp_member *m = &l->members[i];
        h = cd_hash_mix(h, cd_hash_text(m->name));
        h = cd_hash_mix(cd_hash_mix(h, (uint64_t)m->like.dtype), m->like.dim_count);
        for (uint32_t d = 0; d < m->like.dim_count; d++)
            h = cd_hash_mix(h, (uint64_t)m->like.sizes[d]);
        h = cd_hash_mix(h, (uint64_t)m->offset);
    }
    return h;
}
