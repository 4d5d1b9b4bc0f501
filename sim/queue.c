/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes in front of a heap. */
#include "sim/queue.h"

#include "core/base/assert.h"

#include <string.h>

#define FIRST_CAPACITY ((size_t)64)

bool cd_queue_init(cd_queue *queue, cd_memory *memory)
{
    *queue = (cd_queue){.memory = memory};
    for (int i = 0; i < CD_QUEUE_LANES; i++) {
        queue->lanes[i].entries =
            cd_memory_allocate(memory, FIRST_CAPACITY * sizeof(cd_heap_entry));
        queue->lanes[i].capacity = FIRST_CAPACITY;
        if (queue->lanes[i].entries == NULL) return false;
    }
    cd_heap_entry *entries = cd_memory_allocate(memory, FIRST_CAPACITY * sizeof *entries);
    if (entries != NULL) cd_heap_init(&queue->heap, entries, FIRST_CAPACITY);
    return entries != NULL;
}

static bool grow_lane(cd_queue *queue, cd_queue_lane *lane)
{
    size_t capacity = lane->capacity * 2;
    cd_heap_entry *entries = cd_memory_allocate(queue->memory, capacity * sizeof *entries);
    if (entries == NULL) return false;
    for (size_t i = 0; i < lane->count; i++)
        entries[i] = lane->entries[(lane->first + i) & (lane->capacity - 1)];
    cd_memory_release(queue->memory, lane->entries, lane->capacity * sizeof *entries);
    lane->entries = entries;
    lane->capacity = capacity;
    lane->first = 0;
    return true;
}

static bool push_heap(cd_queue *queue, cd_heap_entry entry)
{
    cd_heap *heap = &queue->heap;
    if (heap->count == heap->capacity) {
        cd_heap_entry *entries =
            cd_memory_allocate(queue->memory, 2 * heap->capacity * sizeof *entries);
        if (entries == NULL) return false;
        memcpy(entries, heap->entries, heap->count * sizeof *entries);
        cd_memory_release(queue->memory, heap->entries, heap->capacity * sizeof *entries);
        heap->entries = entries;
        heap->capacity *= 2;
    }
    return cd_heap_push(heap, entry);
}

bool cd_queue_push(cd_queue *queue, uint64_t time, void *item)
{
    cd_heap_entry entry = {time, queue->sequence++, item};
    for (int i = 0; i < CD_QUEUE_LANES; i++) {
        cd_queue_lane *lane = &queue->lanes[i];
        if (lane->count > 0 && lane->last_time > time) continue;
        if (lane->count == lane->capacity && !grow_lane(queue, lane)) return false;
        lane->entries[(lane->first + lane->count++) & (lane->capacity - 1)] = entry;
        lane->last_time = time;
        queue->count++;
        return true;
    }
    if (!push_heap(queue, entry)) return false;
    queue->count++;
    return true;
}

static bool before(const cd_heap_entry *a, const cd_heap_entry *b)
{
    return a->time != b->time ? a->time < b->time : a->sequence < b->sequence;
}

/* Which source holds the next event: a lane, or CD_QUEUE_LANES for the heap. */
static const cd_heap_entry *find(const cd_queue *queue, int *source)
{
    const cd_heap_entry *first = cd_heap_find_first(&queue->heap);
    *source = CD_QUEUE_LANES;
    for (int i = 0; i < CD_QUEUE_LANES; i++) {
        const cd_queue_lane *lane = &queue->lanes[i];
        const cd_heap_entry *head = &lane->entries[lane->first];
        if (lane->count == 0 || (first != NULL && !before(head, first))) continue;
        first = head;
        *source = i;
    }
    return first;
}

const cd_heap_entry *cd_queue_find_first(const cd_queue *queue)
{
    int source = 0;
    return find(queue, &source);
}

bool cd_queue_pop(cd_queue *queue, cd_heap_entry *entry)
{
    int source = 0;
    const cd_heap_entry *first = find(queue, &source);
    if (first == NULL) return false;
    queue->count--;
    queue->source = source;
    if (source == CD_QUEUE_LANES) return cd_heap_pop(&queue->heap, entry);
    cd_queue_lane *lane = &queue->lanes[source];
    *entry = *first;
    lane->first = (lane->first + 1) & (lane->capacity - 1);
    lane->count--;
    return true;
}

void *cd_queue_guess(const cd_queue *queue, size_t ahead)
{
    if (queue->source == CD_QUEUE_LANES) return NULL;
    const cd_queue_lane *lane = &queue->lanes[queue->source];
    return ahead < lane->count ? lane->entries[(lane->first + ahead) & (lane->capacity - 1)].item
                               : NULL;
}
