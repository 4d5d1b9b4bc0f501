/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing over positions of a dense array. */
#include "core/check/table.h"

#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/check/horizon.h"

#include <string.h>

/* A small table is not searched for what is past. */
#define FORGETS_FROM 512u
#define FORGOTTEN UINT32_MAX
#define VALUE_ALIGN sizeof(int64_t)

void cd_table_init(cd_table *table, const cddp_allocator *allocator, size_t value_bytes)
{
    const size_t padded = (value_bytes + VALUE_ALIGN - 1) / VALUE_ALIGN * VALUE_ALIGN;
    *table = (cd_table){.allocator = allocator,
                        .value_bytes = value_bytes,
                        .entry_bytes = sizeof(cd_table_entry) + padded};
}

void cd_table_fini(cd_table *table)
{
    const cd_table_window window = table->window;
    cd_release(table->allocator, table->entries, table->capacity * table->entry_bytes);
    cd_release(table->allocator, table->index, table->index_count * sizeof *table->index);
    cd_table_init(table, table->allocator, table->value_bytes);
    table->window = window;
}

static cd_table_entry *entry_at(const cd_table *table, size_t position)
{
    return (cd_table_entry *)(void *)(table->entries + position * table->entry_bytes);
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
        if (entry == 0 || (is_alike && is_key(cd_table_key(table, position_in(entry)), key)))
            return slot;
    }
}

/* No two keys are equal: none is compared. */
static void fill_index(cd_table *table)
{
    const size_t mask = table->index_count - 1;
    for (size_t i = 0; i < table->count; i++) {
        const uint64_t hash = hash_key(cd_table_key(table, i));
        size_t slot = (size_t)hash & mask;
        while (table->index[slot] != 0) slot = (slot + 1) & mask;
        table->index[slot] = make_entry(hash, i);
    }
}

static bool grow_index(cd_table *table)
{
    size_t wanted = table->index_count == 0 ? 16 : table->index_count * 2;
    uint64_t *index = cd_allocate_array(table->allocator, wanted, sizeof *index);
    if (index == NULL) return false;
    cd_release(table->allocator, table->index, table->index_count * sizeof *index);
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
        cd_table_entry *entry = entry_at(table, i);
        const bool is_past =
            entry->step < first &&
            (w->keeps == NULL || !w->keeps(w->self, &entry->key, cd_table_value(table, i)));
        if (is_past) entry->step = FORGOTTEN;
    }
    for (size_t i = 0; i < table->count; i++) {
        if (entry_at(table, i)->step == FORGOTTEN) continue;
        if (kept != i) memcpy(entry_at(table, kept), entry_at(table, i), table->entry_bytes);
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

static void note_step(const cd_table *table, size_t position)
{
    if (table->window.horizon == NULL) return;
    entry_at(table, position)->step = table->window.horizon->now;
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
        note_step(table, position);
        return cd_table_value(table, position);
    }
    if (forget_when_full(table)) slot = slot_of(table, key, hash);
    if (table->count * 2 >= table->index_count) {
        if (!grow_index(table)) return NULL;
        slot = slot_of(table, key, hash);
    }
    if (!cd_vec_grow(table->allocator, (void **)&table->entries, &table->capacity, table->count + 1,
                     table->entry_bytes))
        return NULL;
    const size_t position = table->count++;
    memset(entry_at(table, position), 0, table->entry_bytes);
    entry_at(table, position)->key = *key;
    note_step(table, position);
    table->index[slot] = make_entry(hash, position);
    return cd_table_value(table, position);
}

void cd_ranks_init(cd_ranks *ranks, const cddp_allocator *allocator, size_t item_bytes)
{
    *ranks = (cd_ranks){.allocator = allocator, .item_bytes = item_bytes};
}

void cd_ranks_fini(cd_ranks *ranks)
{
    cd_release(ranks->allocator, ranks->items, ranks->capacity * ranks->item_bytes);
    cd_ranks_init(ranks, ranks->allocator, ranks->item_bytes);
}

void *cd_ranks_extend(cd_ranks *ranks, uint32_t rank)
{
    if (rank >= CD_RANKS_MAX) return NULL;
    const size_t needed = (size_t)rank + 1;
    if (!cd_vec_grow(ranks->allocator, (void **)&ranks->items, &ranks->capacity, needed,
                     ranks->item_bytes))
        return NULL;
    memset(ranks->items + ranks->count * ranks->item_bytes, 0,
           (needed - ranks->count) * ranks->item_bytes);
    ranks->count = needed;
    return cd_ranks_find(ranks, rank);
}
