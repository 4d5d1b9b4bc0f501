/* SPDX-License-Identifier: Apache-2.0 */
/* Circles: ranks that post more collectives between two passes of the model than any program does,
** or begin more passes in one micro-step. Whether that is a livelock or a long loop, only how the
** rank ends can tell.
**
** A joined rank shadows one pass for each that another rank begins itself. What it shadows beyond
** that is no pass: when all ranks have joined, nobody makes one.
**
** Lifetime   init → push… → fini. What find returns is borrowed until the next push.
** Memory     grows with ranks, groups and kinds of operations, not with steps.
*/
#pragma once
#include "cddp/trace.h"
#include "core/check/table.h"

/* The most collectives of a rank between two passes of the model, and the most passes in one
** micro-step, whatever the program. */
uint64_t cd_circle_bound(int64_t parameters, int64_t buffers, uint64_t ranks);

/* Passes that a joined rank may shadow while nobody is heard to begin one: of processes the events
** of one rank may come some time before another's. */
#define CD_CIRCLE_SHADOWS_MAX 512u

/* A rank, since its last forward or backward began. */
typedef struct cd_circle {
    uint64_t span, posts;
    uint64_t begin_ns, post_ns; /* of the first post, of the last one */
    uint32_t step, micro_step;
    uint64_t place;  /* changes with the micro-step */
    uint64_t passes; /* that it began in this micro-step */
    /* Passes as a joined rank since its last own one; those that ranks had begun themselves by
    ** then; its own ones in all. */
    uint64_t shadowed, begun_before, begun;
    uint64_t not_counted;  /* of the shadowed ones: no pass, since nobody began one */
    uint64_t events;       /* since its last post or pass */
    bool is_over;          /* it has posted more than any program does, or shadowed nobody */
    bool has_passed_often; /* it has begun more passes than any program does */
    cddp_event too_many;   /* the first event of those; without its text */
} cd_circle;

/* How often a rank posted one operation since then, and in this micro-step. */
typedef struct cd_repeats {
    int64_t data[5]; /* as cd_operation_print takes it */
    int64_t bucket, group;
    uint64_t span, count;
    uint64_t place, count_in_place;
} cd_repeats;

typedef struct cd_circles {
    cd_ranks ranks;              /* of cd_circle */
    cd_table repeated;           /* (rank, operation) → cd_repeats */
    int64_t parameters, buffers; /* of the model */
    uint64_t begun, begun_most;  /* own passes: of all ranks; of the rank with most of them */
    bool without_operations;     /* how often each was posted is not counted */
} cd_circles;

void cd_circles_init(cd_circles *circles, const cddp_allocator *allocator);
void cd_circles_fini(cd_circles *circles);
/* In the order of each rank. Ranks that emit anything count. Returns that of the rank, borrowed
** until the next push; NULL: no memory. */
const cd_circle *cd_circles_push(cd_circles *circles, const cddp_event *event);
/* The rank is past what any program posts between two passes; NULL: it is not. */
const cd_circle *cd_circles_find(const cd_circles *circles, uint32_t rank);
/* The same where events came in the order in which they happened, and past how often any program
** begins a pass in one micro-step. */
const cd_circle *cd_circles_find_now(const cd_circles *circles, uint32_t rank);
/* What it posted most since its last pass, or in its micro-step; NULL: nothing, or there was no
** memory. */
const cd_repeats *cd_circles_most(const cd_circles *circles, uint32_t rank, bool in_micro_step);
/* cd_circle_bound of what was seen. */
uint64_t cd_circles_allowed(const cd_circles *circles);
