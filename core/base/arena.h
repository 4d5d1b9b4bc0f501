/* SPDX-License-Identifier: Apache-2.0 */
/* An arena: memory that is given back all at once, or back to a mark.
**
** Lifetime   init → allocate/mark/rewind → fini. Blocks come from an allocator and are kept until
**            fini, so a steady user that rewinds to the same mark allocates nothing.
** Threads    one thread.
** Errors     NULL when memory is exhausted.
*/
#pragma once
#include "cddp/alloc.h"

typedef struct cd_arena_block cd_arena_block;

typedef struct cd_arena {
    const cddp_allocator *allocator;
    cd_arena_block *first, *current;
    size_t used; /* bytes of current */
    size_t block_bytes;
} cd_arena;

typedef struct cd_arena_mark {
    cd_arena_block *block;
    size_t used;
} cd_arena_mark;

void cd_arena_init(cd_arena *arena, const cddp_allocator *allocator, size_t block_bytes);
void cd_arena_fini(cd_arena *arena); /* accepts a zeroed arena */
/* Zeroed, aligned to 64. */
void *cd_arena_push(cd_arena *arena, size_t bytes);
/* The next pushes of `bytes` in all (each rounded up: CD_ARENA_BYTES) succeed, and lie in one block:
** an object that knows its size reserves it once, and has one place that can fail. */
bool cd_arena_reserve(cd_arena *arena, size_t bytes);
#define CD_ARENA_BYTES(bytes) (((bytes) > 0 ? (bytes) + 63 : 64) / 64 * 64)
char *cd_arena_strdup(cd_arena *arena, const char *text);
char *cd_arena_printf(cd_arena *arena, const char *format, ...) CDDP_PRINTF(2, 3);
cd_arena_mark cd_arena_get_mark(const cd_arena *arena);
void cd_arena_rewind(cd_arena *arena, cd_arena_mark mark);
