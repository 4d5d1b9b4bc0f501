/* SPDX-License-Identifier: Apache-2.0 */
/* The heap allocator, helpers over any allocator, and the watch allocator of tests. */
#include "core/base/alloc.h"

#include "core/base/assert.h"

#include <stdlib.h>
#include <string.h>

static void *heap_allocate(void *context, size_t bytes)
{
    (void)context;
    return malloc(bytes);
}

static void *heap_resize(void *context, void *block, size_t bytes_old, size_t bytes_new)
{
    (void)context;
    (void)bytes_old;
    return realloc(block, bytes_new);
}

static void heap_release(void *context, void *block, size_t bytes)
{
    (void)context;
    (void)bytes;
    free(block);
}

static const cddp_allocator heap = {sizeof heap, NULL, heap_allocate, heap_resize, heap_release};

const cddp_allocator *cddp_allocator_default(void) { return &heap; }

static const cddp_allocator *or_heap(const cddp_allocator *a) { return a != NULL ? a : &heap; }

void *cd_allocate(const cddp_allocator *a, size_t bytes)
{
    a = or_heap(a);
    return a->allocate(a->context, bytes != 0 ? bytes : 1);
}

void *cd_allocate_zero(const cddp_allocator *a, size_t bytes)
{
    void *block = cd_allocate(a, bytes);
    if (block != NULL) memset(block, 0, bytes != 0 ? bytes : 1);
    return block;
}

void *cd_allocate_array(const cddp_allocator *a, size_t count, size_t bytes)
{
    if (bytes != 0 && count > SIZE_MAX / bytes) return NULL;
    return cd_allocate_zero(a, count * bytes);
}

void cd_release(const cddp_allocator *a, void *block, size_t bytes)
{
    if (block == NULL) return;
    a = or_heap(a);
    a->release(a->context, block, bytes != 0 ? bytes : 1);
}

char *cd_strdup(const cddp_allocator *a, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = cd_allocate(a, bytes);
    if (copy != NULL) memcpy(copy, text, bytes);
    return copy;
}

void cd_strfree(const cddp_allocator *a, char *text)
{
    if (text != NULL) cd_release(a, text, strlen(text) + 1);
}

bool cd_vec_grow(const cddp_allocator *a, void **items, size_t *capacity, size_t needed,
                 size_t item_bytes)
{
    if (needed <= *capacity) return true;
    a = or_heap(a);
    size_t grown = *capacity < 8 ? 8 : *capacity * 2;
    if (grown < needed) grown = needed;
    if (grown > SIZE_MAX / item_bytes) return false;
    void *block = *items == NULL
                      ? a->allocate(a->context, grown * item_bytes)
                      : a->resize(a->context, *items, *capacity * item_bytes, grown * item_bytes);
    if (block == NULL) return false;
    *items = block;
    *capacity = grown;
    return true;
}

/* Decides whether the next allocation may happen, and counts it. */
static bool watch_admit(cd_watch_allocator *w, size_t bytes)
{
    w->allocation_count++;
    if (w->fail_at != 0 && w->allocation_count == w->fail_at) return false;
    if (w->frozen) {
        w->growth_count++;
        CD_ASSERT(!w->abort_on_growth);
    }
    w->live_bytes += bytes;
    if (w->live_bytes > w->peak_bytes) w->peak_bytes = w->live_bytes;
    return true;
}

static void *watch_allocate(void *context, size_t bytes)
{
    cd_watch_allocator *w = context;
    if (!watch_admit(w, bytes)) return NULL;
    void *block = w->inner->allocate(w->inner->context, bytes);
    if (block == NULL)
        w->live_bytes -= bytes;
    else
        w->live_count++;
    return block;
}

static void *watch_resize(void *context, void *block, size_t bytes_old, size_t bytes_new)
{
    cd_watch_allocator *w = context;
    if (!watch_admit(w, bytes_new)) return NULL;
    void *moved = w->inner->resize(w->inner->context, block, bytes_old, bytes_new);
    w->live_bytes -= moved != NULL ? bytes_old : bytes_new;
    return moved;
}

static void watch_release(void *context, void *block, size_t bytes)
{
    cd_watch_allocator *w = context;
    if (block == NULL) return;
    CD_ASSERT(w->live_count > 0 && w->live_bytes >= bytes);
    w->live_count--;
    w->live_bytes -= bytes;
    w->inner->release(w->inner->context, block, bytes);
}

void cd_watch_allocator_init(cd_watch_allocator *watch, const cddp_allocator *inner)
{
    *watch = (cd_watch_allocator){
        .table = {sizeof(cddp_allocator), watch, watch_allocate, watch_resize, watch_release},
        .inner = or_heap(inner),
    };
}
