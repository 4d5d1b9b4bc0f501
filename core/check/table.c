/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing over positions of a dense array; nothing is ever removed. */
#include "core/check/table.h"

#include "core/base/hash.h"

#define MEMORY_BLOCK_BYTES ((size_t)1 << 16)

void cd_table_init(cd_table *table, const cddp_allocator *allocator, size_t value_bytes)
{
    *table = (cd_table){.value_bytes = value_bytes};
    cd_arena_init(&table->memory, allocator, MEMORY_BLOCK_BYTES);
}

void cd_table_fini(cd_table *table)
{
    cd_arena_fini(&table->memory);
    cd_table_init(table, table->memory.allocator, table->value_bytes);
}

/* One multiplication per part, none waiting for another, and one mix at the end: keys are small
** integers and digests. */
static uint64_t hash_key(const cd_key *key)
{
    uint64_t h = (uint64_t)key->part[0] * UINT64_C(0x9e3779b97f4a7c15);
    h += ((uint64_t)key->part[1] + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    h += ((uint64_t)key->part[2] + 2) * UINT64_C(0x94d049bb133111eb);
    h += ((uint64_t)key->part[3] + 3) * UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ (h >> 32);
}

static bool is_key(const cd_key *a, const cd_key *b)
{
    return ((a->part[0] ^ b->part[0]) | (a->part[1] ^ b->part[1]) | (a->part[2] ^ b->part[2]) |
            (a->part[3] ^ b->part[3])) == 0;
}

/* The slot that holds the key, or the free one where it belongs. */
static size_t slot_of(const cd_table *table, const cd_key *key)
{
    size_t mask = table->index_count - 1;
    size_t slot = (size_t)hash_key(key) & mask;
    while (table->index[slot] != 0 && !is_key(&table->keys[table->index[slot] - 1], key))
        slot = (slot + 1) & mask;
    return slot;
}

static bool grow_index(cd_table *table)
{
    size_t wanted = table->index_count == 0 ? 16 : table->index_count * 2;
    uint32_t *index = cd_arena_array(&table->memory, wanted, sizeof *index);
    if (index == NULL) return false;
    table->index = index;
    table->index_count = wanted;
    for (size_t i = 0; i < table->count; i++)
        table->index[slot_of(table, &table->keys[i])] = (uint32_t)i + 1;
    return true;
}

void *cd_table_find(const cd_table *table, const cd_key *key)
{
    if (table->count == 0) return NULL;
    uint32_t found = table->index[slot_of(table, key)];
    return found != 0 ? cd_table_value(table, found - 1) : NULL;
}

void *cd_table_add(cd_table *table, const cd_key *key)
{
    size_t slot = table->index_count > 0 ? slot_of(table, key) : 0;
    if (table->index_count > 0 && table->index[slot] != 0)
        return cd_table_value(table, table->index[slot] - 1);
    if (table->count * 2 >= table->index_count) {
        if (!grow_index(table)) return NULL;
        slot = slot_of(table, key);
    }
    const size_t needed = table->count + 1;
    if (!cd_arena_grow(&table->memory, (void **)&table->keys, &table->key_capacity, needed,
                       sizeof *table->keys) ||
        !cd_arena_grow(&table->memory, (void **)&table->values, &table->value_capacity, needed,
                       table->value_bytes))
        return NULL;
    table->keys[table->count] = *key;
    table->index[slot] = (uint32_t)table->count + 1;
    return cd_table_value(table, table->count++);
}

void cd_ranks_init(cd_ranks *ranks, const cddp_allocator *allocator, size_t item_bytes)
{
    *ranks = (cd_ranks){.item_bytes = item_bytes};
    cd_arena_init(&ranks->memory, allocator, MEMORY_BLOCK_BYTES);
}

void cd_ranks_fini(cd_ranks *ranks)
{
    cd_arena_fini(&ranks->memory);
    cd_ranks_init(ranks, ranks->memory.allocator, ranks->item_bytes);
}

void *cd_ranks_add(cd_ranks *ranks, uint32_t rank)
{
    if (rank >= CD_RANKS_MAX) return NULL;
    size_t needed = (size_t)rank + 1;
    if (needed > ranks->count) {
        if (!cd_arena_grow(&ranks->memory, (void **)&ranks->items, &ranks->capacity, needed,
                           ranks->item_bytes))
            return NULL;
        ranks->count = needed;
    }
    return ranks->items + rank * ranks->item_bytes;
}

void *cd_ranks_find(const cd_ranks *ranks, uint32_t rank)
{
    return rank < ranks->count ? ranks->items + rank * ranks->item_bytes : NULL;
}
