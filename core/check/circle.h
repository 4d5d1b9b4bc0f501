/* SPDX-License-Identifier: Apache-2.0 */
/* Circles: ranks that post more collectives between two passes of the model than any program does.
** Whether that is a livelock or a long loop, only how the rank ends can tell.
**
** Lifetime   init → push… → fini. What find returns is borrowed until the next push.
** Memory     grows with ranks, groups and kinds of operations, not with steps.
*/
#pragma once
#include "cddp/trace.h"
#include "core/check/table.h"

/* A rank, since its last forward or backward began. */
typedef struct cd_circle {
    uint64_t span, posts;
    uint64_t begin_ns, post_ns; /* of the first post, of the last one */
    uint32_t step, micro_step;
    bool is_over;        /* it has posted more than any program does */
    cddp_event too_many; /* the first post of those; without its text */
} cd_circle;

/* How often a rank posted one operation since then. */
typedef struct cd_repeats {
    int64_t data[5]; /* as cd_operation_print takes it */
    int64_t bucket, group;
    uint64_t span, count;
} cd_repeats;

typedef struct cd_circles {
    cd_ranks ranks;              /* of cd_circle */
    cd_table repeated;           /* (rank, operation) → cd_repeats */
    int64_t parameters, buffers; /* of the model */
} cd_circles;

void cd_circles_init(cd_circles *circles, const cddp_allocator *allocator);
void cd_circles_fini(cd_circles *circles);
/* In the order of each rank. Ranks that emit anything count. */
void cd_circles_push(cd_circles *circles, const cddp_event *event);
/* The rank is past what any program posts between two passes; NULL: it is not. */
const cd_circle *cd_circles_find(const cd_circles *circles, uint32_t rank);
/* What it posted most since then; NULL: nothing, or there was no memory. */
const cd_repeats *cd_circles_most(const cd_circles *circles, uint32_t rank);
/* The most that a rank may post between two forwards or backwards, whatever the program. */
uint64_t cd_circles_allowed(const cd_circles *circles);
