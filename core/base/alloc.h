/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers over allocator tables: zeroed memory, arrays with an overflow check, strings.
**
** Ownership  returns owned; release with cd_release and the same size.
** Errors     NULL when memory is exhausted or the size overflows. Callers answer with
**            cd_fail_memory.
*/
#pragma once
#include "cddp/alloc.h"

/* NULL stands for the process heap everywhere below. bytes 0 is treated as 1. */
void *cd_allocate(const cddp_allocator *a, size_t bytes);
void *cd_allocate_zero(const cddp_allocator *a, size_t bytes);
void *cd_allocate_array(const cddp_allocator *a, size_t count, size_t bytes); /* zeroed */
void cd_release(const cddp_allocator *a, void *block, size_t bytes);          /* accepts NULL */
char *cd_strdup(const cddp_allocator *a, const char *text);
void cd_strfree(const cddp_allocator *a, char *text); /* accepts NULL */

/* Grows the array at *items (NULL at first) to hold at least `needed`; doubles. *capacity in
** items. */
bool cd_vec_grow(const cddp_allocator *a, void **items, size_t *capacity, size_t needed,
                 size_t item_bytes);

/* An allocator for tests, in front of another. While it is frozen, it counts allocations as growth,
** and aborts with `abort_on_growth`: this shows that a steady iteration allocates nothing. It can
** fail the n-th allocation: this shows that a failure leaves nothing behind. */
typedef struct cd_watch_allocator {
    cddp_allocator table; /* give &watch->table to create functions */
    const cddp_allocator *inner;
    bool frozen;
    bool abort_on_growth;
    uint64_t growth_count;
    uint64_t allocation_count;
    uint64_t fail_at; /* 1-based allocation that fails; 0: none */
    uint64_t live_count;
    uint64_t live_bytes;
    uint64_t peak_bytes;
} cd_watch_allocator;
void cd_watch_allocator_init(cd_watch_allocator *watch, const cddp_allocator *inner);
