/* SPDX-License-Identifier: Apache-2.0 */
/* A binary min-heap over (time, sequence) keys in caller's storage. The order is total: sequence
** numbers are unique, so equal times pop in order of insertion.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cd_heap_entry {
    uint64_t time;
    uint64_t sequence;
    void *item;
} cd_heap_entry;

typedef struct cd_heap {
    cd_heap_entry *entries; /* (capacity) caller's */
    size_t count, capacity;
} cd_heap;

void cd_heap_init(cd_heap *heap, cd_heap_entry *storage, size_t capacity);
bool cd_heap_push(cd_heap *heap, cd_heap_entry entry);        /* false when full */
bool cd_heap_pop(cd_heap *heap, cd_heap_entry *entry);        /* false when empty */
const cd_heap_entry *cd_heap_find_first(const cd_heap *heap); /* NULL when empty */
