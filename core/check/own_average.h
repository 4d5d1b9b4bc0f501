/* SPDX-License-Identifier: Apache-2.0 */
/* Local SGD by hand: an optimizer steps on gradients that nobody reduced, and the program then
** all-reduces just as many elements in a row as it has stepped on, or as all parameters have,
** before the next backward. That is how an average of parameters looks in a trace. What it makes is
** not known, so it proves nothing; but ranks that do it may differ in between by right. Only a
** recorder says that an all-reduce is the program's own: nothing is kept, and nothing excused, in a
** run of a scenario.
**
** Lifetime   init → push, in the order of a rank's events → fini.
** Threads    one thread.
*/
#pragma once
#include "cddp/trace.h"
#include "core/check/table.h"

typedef struct cd_own_average {
    cd_table params; /* (rank, param) → what is known of it */
    cd_table sizes;  /* (rank, ordinal) → elements */
    cd_ranks ranks;
    bool is_recorded; /* a recorder has spoken */
} cd_own_average;

void cd_own_average_init(cd_own_average *own, const cddp_allocator *allocator);
void cd_own_average_push(cd_own_average *own, const cddp_event *event);
/* The rank has done so at least once. */
bool cd_own_average_has(const cd_own_average *own, uint32_t rank);
void cd_own_average_fini(cd_own_average *own);
