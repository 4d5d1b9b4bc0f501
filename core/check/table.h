/* SPDX-License-Identifier: Apache-2.0 */
/* A table from four integers to a fixed-size value, and an array that is indexed by rank: what
** checks remember.
**
** Entries lie in order of insertion, so walking a table is deterministic; an index hashes into
** them. A key, its step and its value lie side by side: they are looked at together. A table with a
** window forgets what no later event can refer to, when it would grow.
**
** Lifetime   init → use → fini. A value stays where it is until the next add.
** Errors     NULL when memory is exhausted; the judge learns of it from its own allocator.
*/
#pragma once
#include "cddp/alloc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cd_key {
    int64_t part[4];
} cd_key;

#define CD_KEY(...) (&(cd_key){{__VA_ARGS__}})

typedef struct cd_horizon cd_horizon; /* core/check/horizon.h */

/* What a table may forget. */
typedef struct cd_table_window {
    cd_horizon *horizon; /* NULL: nothing */
    /* An entry that is past is kept where this says so; NULL: none is. Adds nothing to the
    ** table. */
    bool (*keeps)(void *self, const cd_key *key, const void *value);
    /* Before entries are dropped; may be NULL. */
    void (*before)(void *self);
    void *self;
} cd_table_window;

/* What stands before each value. */
typedef struct cd_table_entry {
    cd_key key;
    uint32_t step; /* with a window: at which step it was last added to */
} cd_table_entry;

typedef struct cd_table {
    const cddp_allocator *allocator;
    size_t value_bytes, entry_bytes;
    char *entries; /* (count · entry_bytes) */
    size_t count, capacity;
    /* (index_count) a power of two: position + 1 below, the upper half of the key's hash above, so
    ** that few keys of others are looked at */
    uint64_t *index;
    size_t index_count;
    cd_table_window window;
} cd_table;

void cd_table_init(cd_table *table, const cddp_allocator *allocator, size_t value_bytes);
void cd_table_fini(cd_table *table);
/* Of an empty table: entries that were last added to long before the horizon are dropped, the rest
** stay in their order. */
void cd_table_set_window(cd_table *table, const cd_table_window *window);
/* Drops them now; without a window nothing. */
void cd_table_forget(cd_table *table);
/* The value of a key, zeroed when it is new. */
void *cd_table_add(cd_table *table, const cd_key *key);
void *cd_table_find(const cd_table *table, const cd_key *key); /* NULL when there is none */
static inline void *cd_table_value(const cd_table *table, size_t position)
{
    return table->entries + position * table->entry_bytes + sizeof(cd_table_entry);
}
static inline const cd_key *cd_table_key(const cd_table *table, size_t position)
{
    return &((const cd_table_entry *)(const void *)(table->entries + position * table->entry_bytes))
                ->key;
}

typedef struct cd_ranks {
    const cddp_allocator *allocator;
    size_t item_bytes;
    char *items; /* (count · item_bytes) */
    size_t count, capacity;
} cd_ranks;

#define CD_RANKS_MAX (1u << 16) /* beyond it an event's rank is taken for garbage */
#define CD_IDS_MAX (1 << 20)    /* beyond it a parameter or bucket is */

void cd_ranks_init(cd_ranks *ranks, const cddp_allocator *allocator, size_t item_bytes);
void cd_ranks_fini(cd_ranks *ranks);
/* NULL when the rank was never added */
static inline void *cd_ranks_find(const cd_ranks *ranks, uint32_t rank)
{
    return rank < ranks->count ? ranks->items + rank * ranks->item_bytes : NULL;
}
void *cd_ranks_extend(cd_ranks *ranks, uint32_t rank); /* add, of a rank that is new */
/* The item of a rank, zeroed when it is new; NULL for the world itself and when memory is
** exhausted. */
static inline void *cd_ranks_add(cd_ranks *ranks, uint32_t rank)
{
    return rank < ranks->count ? cd_ranks_find(ranks, rank) : cd_ranks_extend(ranks, rank);
}
