/* SPDX-License-Identifier: Apache-2.0 */
/* An arena: memory that is given back all at once, or back to a mark.
**
** Lifetime   init → allocate/mark/rewind → fini. Blocks come from an allocator and are kept until
**            fini, so a steady user that rewinds to the same mark allocates nothing.
** Objects    An object that makes many allocations takes them all from its own arena. It may live
**            in that arena itself: destroy is `cd_arena_fini(&object->arena)`.
** Threads    one thread. An arena may be copied (moved) as a struct; use only one of the copies.
** Errors     NULL when memory is exhausted, and `exhausted` is set. A creator pushes everything,
**            asks once with cd_arena_check, and only then uses what it pushed.
*/
#pragma once
#include "cddp/alloc.h"
#include "core/base/error.h"

typedef struct cd_arena_block cd_arena_block;

typedef struct cd_arena {
    const cddp_allocator *allocator;
    cd_arena_block *first, *current;
    size_t used; /* bytes of current */
    size_t block_bytes;
    bool exhausted; /* a push failed since init, or since the last rewind */
} cd_arena;

typedef struct cd_arena_mark {
    cd_arena_block *block;
    size_t used;
} cd_arena_mark;

void cd_arena_init(cd_arena *arena, const cddp_allocator *allocator, size_t block_bytes);
void cd_arena_fini(cd_arena *arena); /* accepts a zeroed arena, and one that lies in itself */
/* Zeroed, aligned to 64. */
void *cd_arena_push(cd_arena *arena, size_t bytes);
/* Zeroed, aligned for every C type; NULL also when the size overflows. */
void *cd_arena_array(cd_arena *arena, size_t count, size_t item_bytes);
/* CDDP_OK, or CDDP_E_NOMEM with "no memory for …" when a push failed:
** `CD_TRY(cd_arena_check(&arena, err, "the oracle of rank %u", rank));` */
#define cd_arena_check(arena, err, ...) \
    ((arena)->exhausted ? cd_fail_memory((err), __VA_ARGS__) : CDDP_OK)
/* The next pushes of `bytes` in all (each rounded up: CD_ARENA_BYTES) succeed, and lie in one
** block: an object that knows its size reserves it once, and has one place that can fail. */
bool cd_arena_reserve(cd_arena *arena, size_t bytes);
#define CD_ARENA_BYTES(bytes) (((bytes) > 0 ? (bytes) + 63 : 64) / 64 * 64)
/* Grows the array at *items (NULL at first) to hold at least `needed`; doubles. *capacity in items.
** What is new is zeroed. The old array stays where it was, unused, until fini: in all less memory
** than the array has. */
bool cd_arena_grow(cd_arena *arena, void **items, size_t *capacity, size_t needed,
                   size_t item_bytes);
/* Text needs no alignment. */
char *cd_arena_strdup(cd_arena *arena, const char *text);
char *cd_arena_printf(cd_arena *arena, const char *format, ...) CDDP_PRINTF(2, 3);
cd_arena_mark cd_arena_get_mark(const cd_arena *arena);
void cd_arena_rewind(cd_arena *arena, cd_arena_mark mark);
