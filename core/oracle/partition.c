/* SPDX-License-Identifier: Apache-2.0 */
/* The declared partition. It shares nothing with core/run/shard.c, which is judged by it. */
#include "core/oracle/partition.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

cd_part_range cd_part_get(const cd_part *part, int64_t numel, uint32_t rank)
{
    if (part->share == 0) return (cd_part_range){0, numel};
    int64_t first = (int64_t)rank * part->share - part->start, end = first + part->share;
    if (first < 0) first = 0;
    if (end > numel) end = numel;
    return first < end ? (cd_part_range){first, end} : (cd_part_range){0, 0};
}

/* The next one to be dealt: the largest, of equally large ones the first. */
static size_t next_of(const cd_partition *p, bool by_size, const cd_part *parts)
{
    size_t next = p->count;
    for (size_t i = 0; i < p->count; i++) {
        if (parts[i].share != 0) continue;
        if (next == p->count || (by_size && p->numels[i] > p->numels[next])) next = i;
    }
    return next;
}

cddp_status cd_partition_whole(const cd_partition *p, bool by_size, cd_part *parts, cddp_error *err)
{
    int64_t *loads = cd_allocate_array(p->allocator, p->world, sizeof *loads);
    if (loads == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for the partition over %u ranks", p->world);
    for (size_t i = 0; i < p->count; i++) parts[i] = (cd_part){0, 0};
    for (size_t dealt = 0; dealt < p->count; dealt++) {
        size_t i = next_of(p, by_size, parts);
        uint32_t least = p->world - 1;
        for (uint32_t r = p->world; r-- > 0;)
            if (loads[r] <= loads[least]) least = r;
        loads[least] += p->numels[i];
        int64_t share = p->numels[i] > 0 ? p->numels[i] : 1;
        parts[i] = (cd_part){(int64_t)least * share, share};
    }
    cd_release(p->allocator, loads, p->world * sizeof *loads);
    return CDDP_OK;
}

void cd_partition_flat(const cd_partition *p, cd_part *parts)
{
    int64_t numel = 0, start = 0;
    for (size_t i = 0; i < p->count; i++) numel += p->numels[i];
    int64_t share = numel / p->world + (numel % p->world != 0);
    for (size_t i = 0; i < p->count; start += p->numels[i++]) parts[i] = (cd_part){start, share > 0 ? share : 1};
}
