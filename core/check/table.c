/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing over positions of a dense array. */
#include "core/check/table.h"

#include "core/base/hash.h"
#include "core/check/horizon.h"

#include <string.h>

/* A small table is not searched for what is past. */
#define FORGETS_FROM 512u
#define FORGOTTEN UINT32_MAX
#define MEMORY_BLOCK_BYTES ((size_t)1 << 16)

void cd_table_init(cd_table *table, const cddp_allocator *allocator, size_t value_bytes)
{
    *table = (cd_table){.value_bytes = value_bytes};
    cd_arena_init(&table->memory, allocator, MEMORY_BLOCK_BYTES);
}

void cd_table_fini(cd_table *table)
{
    const cd_table_window window = table->window;
    cd_arena_fini(&table->memory);
    cd_table_init(table, table->memory.allocator, table->value_bytes);
    table->window = window;
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

#define POSITION UINT64_C(0xffffffff)

static uint64_t make_entry(uint64_t hash, size_t position)
{
    return (hash & ~POSITION) | (uint64_t)((uint32_t)position + 1);
}

static size_t position_in(uint64_t entry) { return (size_t)(entry & POSITION) - 1; }

/* The slot that holds the key, or the free one where it belongs. */
static size_t slot_of(const cd_table *table, const cd_key *key, uint64_t hash)
{
    const size_t mask = table->index_count - 1;
    size_t slot = (size_t)hash & mask;
    for (;; slot = (slot + 1) & mask) {
        const uint64_t entry = table->index[slot];
        const bool is_alike = ((entry ^ hash) & ~POSITION) == 0;
        if (entry == 0 || (is_alike && is_key(&table->keys[position_in(entry)], key))) return slot;
    }
}

/* No two keys are equal: none is compared. */
static void fill_index(cd_table *table)
{
    const size_t mask = table->index_count - 1;
    for (size_t i = 0; i < table->count; i++) {
        const uint64_t hash = hash_key(&table->keys[i]);
        size_t slot = (size_t)hash & mask;
        while (table->index[slot] != 0) slot = (slot + 1) & mask;
        table->index[slot] = make_entry(hash, i);
    }
}

static bool grow_index(cd_table *table)
{
    size_t wanted = table->index_count == 0 ? 16 : table->index_count * 2;
    uint64_t *index = cd_arena_array(&table->memory, wanted, sizeof *index);
    if (index == NULL) return false;
    table->index = index;
    table->index_count = wanted;
    fill_index(table);
    return true;
}

void cd_table_set_window(cd_table *table, const cd_table_window *window)
{
    table->window = *window;
}

void cd_table_forget(cd_table *table)
{
    const cd_table_window *w = &table->window;
    const uint32_t first = w->horizon != NULL ? cd_horizon_get(w->horizon) : 0;
    size_t kept = 0;
    if (first == 0 || table->count == 0) return;
    if (w->before != NULL) w->before(w->self);
    /* all is decided before anything moves: keeps may look into this table */
    for (size_t i = 0; i < table->count; i++) {
        const bool is_past =
            table->steps[i] < first &&
            (w->keeps == NULL || !w->keeps(w->self, &table->keys[i], cd_table_value(table, i)));
        if (is_past) table->steps[i] = FORGOTTEN;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (table->steps[i] == FORGOTTEN) continue;
        if (kept != i) {
            table->keys[kept] = table->keys[i];
            table->steps[kept] = table->steps[i];
            memcpy(cd_table_value(table, kept), cd_table_value(table, i), table->value_bytes);
        }
        kept++;
    }
    if (kept == table->count) return;
    table->count = kept;
    memset(table->index, 0, table->index_count * sizeof *table->index);
    fill_index(table);
}

/* A table that would grow forgets first. Where less than half of it goes it grows as well, so that
** entries are looked at a few times in all. True: entries have moved. */
static bool forget_when_full(cd_table *table)
{
    const size_t before = table->count;
    const bool is_full = before * 2 >= table->index_count;
    if (table->window.horizon == NULL || !is_full || before < FORGETS_FROM) return false;
    cd_table_forget(table);
    if (table->count * 2 > before && table->count != before) (void)grow_index(table);
    return table->count != before;
}

static bool note_step(cd_table *table, size_t position)
{
    if (table->window.horizon == NULL) return true;
    if (!cd_arena_grow(&table->memory, (void **)&table->steps, &table->step_capacity, position + 1,
                       sizeof *table->steps))
        return false;
    table->steps[position] = table->window.horizon->now;
    return true;
}

void *cd_table_find(const cd_table *table, const cd_key *key)
{
    if (table->count == 0) return NULL;
    const uint64_t found = table->index[slot_of(table, key, hash_key(key))];
    return found != 0 ? cd_table_value(table, position_in(found)) : NULL;
}

void *cd_table_add(cd_table *table, const cd_key *key)
{
    const uint64_t hash = hash_key(key);
    size_t slot = table->index_count > 0 ? slot_of(table, key, hash) : 0;
    if (table->index_count > 0 && table->index[slot] != 0) {
        const size_t position = position_in(table->index[slot]);
        (void)note_step(table, position);
        return cd_table_value(table, position);
    }
    if (forget_when_full(table)) slot = slot_of(table, key, hash);
    if (table->count * 2 >= table->index_count) {
        if (!grow_index(table)) return NULL;
        slot = slot_of(table, key, hash);
    }
    const size_t needed = table->count + 1;
    if (!cd_arena_grow(&table->memory, (void **)&table->keys, &table->key_capacity, needed,
                       sizeof *table->keys) ||
        !cd_arena_grow(&table->memory, (void **)&table->values, &table->value_capacity, needed,
                       table->value_bytes) ||
        !note_step(table, table->count))
        return NULL;
    table->keys[table->count] = *key;
    table->index[slot] = make_entry(hash, table->count);
    /* the place of one that was forgotten is not zero */
    return memset(cd_table_value(table, table->count++), 0, table->value_bytes);
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
