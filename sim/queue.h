/* SPDX-License-Identifier: Apache-2.0 */
/* The event queue: a total order by (time, sequence), fast because most events are queued in the
** order of their times.
**
** An event whose time is not before the last one of a lane is appended to that lane; what fits no
** lane goes into a heap. Lanes are sorted, so the next event is the least of a few heads. Under
** constant latencies the heap stays empty.
**
** Lifetime   storage comes from the world's memory and grows by doubling.
** Errors     push fails when memory is exhausted.
*/
#pragma once
#include "core/base/heap.h"
#include "sim/memory.h"

#define CD_QUEUE_LANES 4

typedef struct cd_queue_lane {
    cd_heap_entry *entries;        /* (capacity) ring */
    size_t capacity, first, count; /* capacity is a power of two */
    uint64_t last_time;
} cd_queue_lane;

typedef struct cd_queue {
    cd_memory *memory;
    cd_queue_lane lanes[CD_QUEUE_LANES];
    cd_heap heap;
    uint64_t sequence; /* of the next event: never used twice */
    size_t count;
    int source; /* of what was popped last */
} cd_queue;

bool cd_queue_init(cd_queue *queue, cd_memory *memory);
bool cd_queue_push(cd_queue *queue, uint64_t time, void *item);  /* false: out of memory */
const cd_heap_entry *cd_queue_find_first(const cd_queue *queue); /* NULL when empty */
bool cd_queue_pop(cd_queue *queue, cd_heap_entry *entry);        /* false when empty */
/* A guess, or NULL: the event that is popped after `ahead` others. It assumes that nothing is
** queued meanwhile and that the last popped event shares its lane. Used to prefetch memory. */
void *cd_queue_guess(const cd_queue *queue, size_t ahead);
