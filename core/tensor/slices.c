/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges, padding and owners: whole numbers only, the same on every rank without communication. */
#include "core/tensor/slices.h"

int64_t cd_slice_length(int64_t numel, uint32_t world)
{
    return (numel + (int64_t)world - 1) / (int64_t)world;
}

cd_range cd_range_clipped(int64_t first, int64_t count, int64_t numel)
{
    const int64_t from = first < numel ? first : numel,
                  end = first + count < numel ? first + count : numel;
    return (cd_range){from, end};
}

cd_range cd_slice_of(int64_t numel, int64_t length, uint32_t rank)
{
    return cd_range_clipped(length * (int64_t)rank, length, numel);
}

cd_range cd_range_within(cd_range range, int64_t first, int64_t end)
{
    const int64_t from = range.first > first ? range.first : first;
    const int64_t to = range.end < end ? range.end : end;
    return from < to ? (cd_range){from - first, to - first} : (cd_range){0, 0};
}

void cd_owners_order_by_size(const int64_t *numels, size_t count, uint32_t *order)
{
    for (size_t i = 0; i < count; i++) {
        size_t at = i;
        for (; at > 0 && numels[order[at - 1]] < numels[i]; at--) order[at] = order[at - 1];
        order[at] = (uint32_t)i;
    }
}

uint32_t cd_owners_least(const int64_t *loads, const bool *excluded, uint32_t world)
{
    uint32_t least = world;
    for (uint32_t r = 0; r < world; r++) {
        if (excluded != NULL && excluded[r]) continue;
        if (least == world || loads[r] < loads[least]) least = r;
    }
    return least;
}

void cd_owners_assign(const int64_t *numels, const uint32_t *order, size_t count, int64_t *loads,
                      uint32_t world, uint32_t *owners)
{
    for (size_t i = 0; i < count; i++) {
        const uint32_t owner = cd_owners_least(loads, NULL, world);
        owners[order[i]] = owner;
        loads[owner] += numels[order[i]];
    }
}
