/* SPDX-License-Identifier: Apache-2.0 */
/* A set of digests, by open addressing; never more than half full. */
#include "sim/digest_set.h"

#include "core/base/alloc.h"

#define CAPACITY_MIN 1024u

/* 0 marks a free place. */
static uint64_t as_item(uint64_t digest) { return digest != 0 ? digest : 1; }

static size_t place_of(const uint64_t *items, size_t capacity, uint64_t item)
{
    size_t i = (size_t)(item ^ (item >> 32)) & (capacity - 1);
    while (items[i] != 0 && items[i] != item) i = (i + 1) & (capacity - 1);
    return i;
}

static bool grow(cd_digest_set *set)
{
    size_t capacity = set->capacity == 0 ? CAPACITY_MIN : 2 * set->capacity;
    uint64_t *items = cd_allocate_array(set->allocator, capacity, sizeof *items);
    if (items == NULL) return false;
    for (size_t i = 0; i < set->capacity; i++)
        if (set->items[i] != 0) items[place_of(items, capacity, set->items[i])] = set->items[i];
    cd_release(set->allocator, set->items, set->capacity * sizeof *items);
    set->items = items;
    set->capacity = capacity;
    return true;
}

cd_digest_added cd_digest_set_add(cd_digest_set *set, uint64_t digest)
{
    if (2 * (set->count + 1) > set->capacity && !grow(set)) return CD_DIGEST_NO_MEMORY;
    uint64_t item = as_item(digest);
    size_t i = place_of(set->items, set->capacity, item);
    if (set->items[i] == item) return CD_DIGEST_KNOWN;
    set->items[i] = item;
    set->count++;
    return CD_DIGEST_NEW;
}

bool cd_digest_set_has(const cd_digest_set *set, uint64_t digest)
{
    if (set->capacity == 0) return false;
    uint64_t item = as_item(digest);
    return set->items[place_of(set->items, set->capacity, item)] == item;
}

void cd_digest_set_fini(cd_digest_set *set)
{
    cd_release(set->allocator, set->items, set->capacity * sizeof *set->items);
    *set = (cd_digest_set){.allocator = set->allocator};
}
