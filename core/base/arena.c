/* SPDX-License-Identifier: Apache-2.0 */
/* A chain of blocks, filled in order; rewinding keeps the blocks for reuse. */
#include "core/base/arena.h"

#include "core/base/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ARENA_ALIGN ((size_t)64)
#define FIRST_BLOCK_BYTES ((size_t)4096)

struct cd_arena_block {
    cd_arena_block *next;
    size_t bytes; /* usable, behind the aligned header */
    size_t total_bytes;
    unsigned char *data; /* (bytes), aligned */
};

void cd_arena_init(cd_arena *arena, const cddp_allocator *allocator, size_t block_bytes)
{
    *arena = (cd_arena){.allocator = allocator, .block_bytes = block_bytes};
}

void cd_arena_fini(cd_arena *arena)
{
    for (cd_arena_block *b = arena->first, *next; b != NULL; b = next) {
        next = b->next;
        cd_release(arena->allocator, b, b->total_bytes);
    }
    arena->first = arena->current = NULL;
    arena->used = 0;
}

static cd_arena_block *block_make(cd_arena *arena, size_t bytes)
{
    size_t total = sizeof(cd_arena_block) + ARENA_ALIGN + bytes;
    cd_arena_block *b = cd_allocate(arena->allocator, total);
    if (b == NULL) return NULL;
    uintptr_t start = (uintptr_t)(b + 1);
    start = (start + ARENA_ALIGN - 1) & ~(uintptr_t)(ARENA_ALIGN - 1);
    *b = (cd_arena_block){.bytes = bytes, .total_bytes = total, .data = (unsigned char *)start};
    return b;
}

/* A little at first, then twice as much each time: what holds little costs little, to copy as
** well. */
static size_t next_block_bytes(const cd_arena *arena)
{
    const size_t next = arena->current != NULL ? 2 * arena->current->bytes : FIRST_BLOCK_BYTES;
    return next < arena->block_bytes ? next : arena->block_bytes;
}

void *cd_arena_push(cd_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = (bytes + ARENA_ALIGN - 1) & ~(ARENA_ALIGN - 1);
    if (bytes == 0) bytes = ARENA_ALIGN;
    cd_arena_block **link = arena->current != NULL ? &arena->current->next : &arena->first;
    if (arena->current == NULL || arena->used + bytes > arena->current->bytes) {
        /* A kept block that is too small stays in the chain behind a new, larger one. */
        if (*link == NULL || (*link)->bytes < bytes) {
            const size_t usual = next_block_bytes(arena);
            cd_arena_block *made = block_make(arena, bytes > usual ? bytes : usual);
            if (made == NULL) return NULL;
            made->next = *link;
            *link = made;
        }
        arena->current = *link;
        arena->used = 0;
    }
    void *result = arena->current->data + arena->used;
    arena->used += bytes;
    return memset(result, 0, bytes);
}

bool cd_arena_reserve(cd_arena *arena, size_t bytes)
{
    const cd_arena_mark mark = cd_arena_get_mark(arena);
    if (cd_arena_push(arena, bytes) == NULL) return false;
    cd_arena_rewind(arena, mark);
    return true;
}

char *cd_arena_strdup(cd_arena *arena, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = cd_arena_push(arena, bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

char *cd_arena_printf(cd_arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return NULL;
    char *text = cd_arena_push(arena, (size_t)n + 1);
    if (text == NULL) return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

cd_arena_mark cd_arena_get_mark(const cd_arena *arena)
{
    return (cd_arena_mark){arena->current, arena->used};
}

void cd_arena_rewind(cd_arena *arena, cd_arena_mark mark)
{
    arena->current = mark.block;
    arena->used = mark.used;
}
