/* SPDX-License-Identifier: Apache-2.0 */
/* The declared partition. It judges core/train/shard.c and core/ddp/optimizers/zero_step.c, and
** shares nothing with them. */
#include "core/oracle/partition.h"

#include "core/base/alloc.h"
#include "core/base/arena.h"

#define PARTITION_BLOCK_BYTES ((size_t)4096)

cd_part_range cd_part_get(const cd_part *part, int64_t numel, uint32_t rank)
{
    if (part->share == 0) return (cd_part_range){0, numel};
    const int64_t place = part->period > 0 ? (int64_t)rank % part->period : (int64_t)rank;
    int64_t first = place * part->share - part->start, end = first + part->share;
    if (first < 0) first = 0;
    if (end > numel) end = numel;
    return first < end ? (cd_part_range){first, end} : (cd_part_range){0, 0};
}

/* The next one to assign: the largest; the first of equally large ones. */
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
    if (loads == NULL) return cd_fail_memory(err, "the partition over %u ranks", p->world);
    for (size_t i = 0; i < p->count; i++) parts[i] = (cd_part){0, 0, 0};
    for (size_t assigned = 0; assigned < p->count; assigned++) {
        size_t i = next_of(p, by_size, parts);
        uint32_t least = p->world - 1;
        for (uint32_t r = p->world; r-- > 0;)
            if (loads[r] <= loads[least]) least = r;
        loads[least] += p->numels[i];
        int64_t share = p->numels[i] > 0 ? p->numels[i] : 1;
        parts[i] = (cd_part){(int64_t)least * share, share, 0};
    }
    cd_release(p->allocator, loads, p->world * sizeof *loads);
    return CDDP_OK;
}

static int64_t numel_of(const cd_partition *p, const cd_partition_bucket *b)
{
    int64_t numel = 0;
    for (size_t i = 0; i < b->count; i++) numel += p->numels[b->parameters[i]];
    return numel;
}

static void give_whole(const cd_partition *p, size_t parameter, uint32_t rank, cd_part *parts)
{
    int64_t share = p->numels[parameter] > 0 ? p->numels[parameter] : 1;
    parts[parameter] = (cd_part){(int64_t)rank * share, share, 0};
}

/* The rank with the least load among those without a piece; the first of equal ones. */
static uint32_t next_rank(const cd_partition *p, const int64_t *loads, const bool *served)
{
    uint32_t rank = 0;
    while (served[rank]) rank++;
    for (uint32_t r = rank + 1; r < p->world; r++)
        if (!served[r] && loads[r] < loads[rank]) rank = r;
    return rank;
}

/* The end of the piece that begins at `from`, and its elements. */
static size_t end_of_piece(const cd_partition *p, const cd_partition_bucket *b, size_t from,
                           int64_t total, int64_t *numel)
{
    size_t end = from;
    *numel = 0;
    do *numel += p->numels[b->parameters[end++]];
    while (end < b->count && (*numel + p->numels[b->parameters[end]]) * (int64_t)p->world < total);
    return end;
}

static void cut_bucket(const cd_partition *p, const cd_partition_bucket *b, int64_t total,
                       int64_t *loads, bool *served, cd_part *parts)
{
    int64_t rest = numel_of(p, b), numel;
    for (uint32_t r = 0; r < p->world; r++) served[r] = false;
    for (size_t from = 0, pieces = 1, end; from < b->count; from = end, pieces++, rest -= numel) {
        end = end_of_piece(p, b, from, total, &numel);
        if (pieces == p->world) {
            end = b->count;
            numel = rest;
        }
        uint32_t rank = next_rank(p, loads, served);
        served[rank] = true;
        loads[rank] += numel;
        for (size_t i = from; i < end; i++) give_whole(p, b->parameters[i], rank, parts);
    }
}

cddp_status cd_partition_buckets(const cd_partition *p, const cd_partition_bucket *buckets,
                                 size_t bucket_count, bool cut, cd_part *parts, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, p->allocator, PARTITION_BLOCK_BYTES);
    int64_t total = 0, *loads = cd_arena_array(&arena, p->world, sizeof *loads);
    bool *served = cd_arena_array(&arena, p->world, sizeof *served);
    bool *assigned = cd_arena_array(&arena, bucket_count, sizeof *assigned);
    CD_TRY_OUT(cd_arena_check(&arena, err, "the assignment of %zu buckets to %u ranks",
                              bucket_count, p->world));
    for (size_t b = 0; b < bucket_count; b++) total += numel_of(p, &buckets[b]);
    for (size_t turn = 0; turn < bucket_count; turn++) {
        size_t b = 0;
        while (assigned[b]) b++;
        for (size_t other = b + 1; cut && other < bucket_count; other++)
            if (!assigned[other] && numel_of(p, &buckets[other]) < numel_of(p, &buckets[b]))
                b = other;
        assigned[b] = true;
        for (size_t i = 0; !cut && i < buckets[b].count; i++)
            give_whole(p, buckets[b].parameters[i], (uint32_t)(b % p->world), parts);
        if (cut) cut_bucket(p, &buckets[b], total, loads, served, parts);
    }
out:
    cd_arena_fini(&arena);
    return status;
}

void cd_partition_flat(const cd_partition *p, cd_part *parts)
{
    int64_t numel = 0, start = 0;
    for (size_t i = 0; i < p->count; i++) numel += p->numels[i];
    int64_t share = numel / p->world + (numel % p->world != 0);
    for (size_t i = 0; i < p->count; start += p->numels[i++])
        parts[i] = (cd_part){start, share > 0 ? share : 1, 0};
}
