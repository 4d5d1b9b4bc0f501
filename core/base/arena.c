/* SPDX-License-Identifier: Apache-2.0 */
/* A chain of blocks, filled in order; rewinding keeps the blocks for reuse. */
#include "core/base/arena.h"

#include "core/base/alloc.h"
#include "core/base/format.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Behind each allocation lies memory that the address sanitizer knows to be nobody's. Only
** tests/mutation asks for it: what an arena takes in all is another number then. */
#if defined(CD_ARENA_GUARDS)
#include <sanitizer/asan_interface.h>
#define GUARD_BYTES ((size_t)16)
static void hide(void *memory, size_t bytes) { __asan_poison_memory_region(memory, bytes); }
static void show(void *memory, size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
#define GUARD_BYTES ((size_t)0)
static void hide(void *memory, size_t bytes) { (void)memory, (void)bytes; }
static void show(void *memory, size_t bytes) { (void)memory, (void)bytes; }
#endif

#define ARENA_ALIGN ((size_t)64)
/* With its head: an allocator that rounds to parts of powers of two wastes nothing. */
#define FIRST_BLOCK_BYTES ((size_t)1024)

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
    const cddp_allocator *allocator = arena->allocator;
    cd_arena_block *b = arena->first;
    arena->first = arena->current = NULL;
    arena->used = 0;
    arena->exhausted = false;
    /* The arena may lie in one of these blocks, so it is not read from here on. */
    for (cd_arena_block *next; b != NULL; b = next) {
        next = b->next;
        show(b->data, b->bytes);
        cd_release(allocator, b, b->total_bytes);
    }
}

#define HEAD_BYTES (sizeof(cd_arena_block) + ARENA_ALIGN)

static cd_arena_block *block_make(cd_arena *arena, size_t bytes)
{
    size_t total = HEAD_BYTES + bytes;
    cd_arena_block *b = cd_allocate(arena->allocator, total);
    if (b == NULL) return NULL;
    uintptr_t start = (uintptr_t)(b + 1);
    start = (start + ARENA_ALIGN - 1) & ~(uintptr_t)(ARENA_ALIGN - 1);
    *b = (cd_arena_block){.bytes = bytes, .total_bytes = total, .data = (unsigned char *)start};
    hide(b->data, bytes);
    return b;
}

/* The first block is small and each later one is twice as large: a small arena stays cheap, also to
** copy. */
static size_t next_block_bytes(const cd_arena *arena)
{
    const size_t next =
                     arena->current != NULL ? 2 * arena->current->total_bytes : FIRST_BLOCK_BYTES,
                 total = next < arena->block_bytes ? next : arena->block_bytes;
    return total > HEAD_BYTES ? total - HEAD_BYTES : total;
}

static size_t rounded_up(size_t bytes, size_t align) { return (bytes + align - 1) & ~(align - 1); }

/* Enters the next block; one that is too small stays in the chain behind a new, larger one. */
static bool enter_next_block(cd_arena *arena, size_t bytes)
{
    cd_arena_block **link = arena->current != NULL ? &arena->current->next : &arena->first;
    if (*link == NULL || (*link)->bytes < bytes) {
        const size_t usual = next_block_bytes(arena);
        cd_arena_block *made = block_make(arena, bytes > usual ? bytes : usual);
        if (made == NULL) return false;
        made->next = *link;
        *link = made;
    }
    arena->current = *link;
    arena->used = 0;
    return true;
}

/* Not zeroed. */
static void *push_aligned(cd_arena *arena, size_t bytes, size_t align)
{
    if (bytes == 0) bytes = 1;
    size_t start = rounded_up(arena->used, align);
    const bool fits = arena->current != NULL && start <= arena->current->bytes &&
                      bytes <= arena->current->bytes - start;
    if (!fits) {
        if (bytes > SIZE_MAX / 2 || !enter_next_block(arena, bytes)) {
            arena->exhausted = true;
            return NULL;
        }
        start = 0;
    }
    arena->used = start + bytes + GUARD_BYTES;
    show(arena->current->data + start, bytes);
    return arena->current->data + start;
}

void *cd_arena_push(cd_arena *arena, size_t bytes)
{
    void *result = push_aligned(arena, bytes, ARENA_ALIGN);
    return result != NULL ? memset(result, 0, bytes) : NULL;
}

void *cd_arena_array(cd_arena *arena, size_t count, size_t item_bytes)
{
    const bool overflows = item_bytes != 0 && count > SIZE_MAX / item_bytes;
    const size_t bytes = overflows ? SIZE_MAX : count * item_bytes;
    void *result = push_aligned(arena, bytes, alignof(max_align_t));
    return result != NULL ? memset(result, 0, bytes) : NULL;
}

bool cd_arena_grow(cd_arena *arena, void **items, size_t *capacity, size_t needed,
                   size_t item_bytes)
{
    if (needed <= *capacity) return true;
    size_t grown = *capacity < 8 ? 8 : *capacity * 2;
    if (grown < needed) grown = needed;
    void *larger = cd_arena_array(arena, grown, item_bytes);
    if (larger == NULL) return false;
    if (*capacity > 0) memcpy(larger, *items, *capacity * item_bytes);
    *items = larger;
    *capacity = grown;
    return true;
}

bool cd_arena_reserve(cd_arena *arena, size_t bytes)
{
    const cd_arena_mark mark = cd_arena_get_mark(arena);
    const size_t guards =
        GUARD_BYTES > 0 ? bytes : 0; /* no more than one of 64 bytes for each 64 */
    if (push_aligned(arena, bytes + guards, ARENA_ALIGN) == NULL) return false;
    cd_arena_rewind(arena, mark);
    return true;
}

char *cd_arena_strdup(cd_arena *arena, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = push_aligned(arena, bytes, 1);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

char *cd_arena_printf(cd_arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = cd_vformat(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return NULL;
    char *text = push_aligned(arena, (size_t)n + 1, 1);
    if (text == NULL) return NULL;
    va_start(args, format);
    cd_vformat(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

cd_arena_mark cd_arena_get_mark(const cd_arena *arena)
{
    return (cd_arena_mark){arena->current, arena->used};
}

static void hide_behind(const cd_arena *arena, cd_arena_mark mark)
{
    cd_arena_block *b = mark.block != NULL ? mark.block : arena->first;
    for (size_t used = mark.block != NULL ? mark.used : 0; b != NULL; b = b->next, used = 0)
        if (used < b->bytes) hide(b->data + used, b->bytes - used);
}

void cd_arena_rewind(cd_arena *arena, cd_arena_mark mark)
{
    if (GUARD_BYTES > 0) hide_behind(arena, mark);
    arena->current = mark.block;
    arena->used = mark.used;
    arena->exhausted = false;
}
