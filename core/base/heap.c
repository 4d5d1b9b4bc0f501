/* SPDX-License-Identifier: Apache-2.0 */
/* Sift up, sift down; parent of i is (i-1)/2. */
#include "core/base/heap.h"

#include "core/base/assert.h"

static bool before(const cd_heap_entry *a, const cd_heap_entry *b)
{
    if (a->time != b->time) return a->time < b->time;
    CD_ASSERT(a->sequence != b->sequence); /* D4: equal keys are a bug */
    return a->sequence < b->sequence;
}

void cd_heap_init(cd_heap *heap, cd_heap_entry *storage, size_t capacity)
{
    *heap = (cd_heap){storage, 0, capacity};
}

bool cd_heap_push(cd_heap *heap, cd_heap_entry entry)
{
    if (heap->count == heap->capacity) return false;
    size_t i = heap->count++;
    while (i > 0 && before(&entry, &heap->entries[(i - 1) / 2])) {
        heap->entries[i] = heap->entries[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->entries[i] = entry;
    return true;
}

bool cd_heap_pop(cd_heap *heap, cd_heap_entry *entry)
{
    if (heap->count == 0) return false;
    *entry = heap->entries[0];
    cd_heap_entry last = heap->entries[--heap->count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && before(&heap->entries[child + 1], &heap->entries[child]))
            child++;
        if (!before(&heap->entries[child], &last)) break;
        heap->entries[i] = heap->entries[child];
        i = child;
    }
    if (heap->count > 0) heap->entries[i] = last;
    return true;
}

const cd_heap_entry *cd_heap_find_first(const cd_heap *heap)
{
    return heap->count > 0 ? &heap->entries[0] : NULL;
}
