/* SPDX-License-Identifier: Apache-2.0 */
/* Sequence covering arrays: few orders of n events, such that every t of them occur in every order
** relative to each other in at least one (Kuhn and others, 2012). A bug that needs t gradients in a
** certain order is then met for certain.
**
** Orders are made greedily. Events are inserted one by one where they cover most of the uncovered
** tuples. The best of several attempts is taken, then its reverse. Coverage is counted, not
** assumed. A certificate is the array as text; tests/cover checks it without this code.
**
** In run i rank r plays order (i + r * shift) modulo the number of orders, so every rank plays all
** of them, and ranks play different ones at a time.
**
** Lifetime   a zeroed cd_cover is empty; make fills it, fini empties it.
*/
#pragma once
#include "cddp/alloc.h"
#include "sim/chooser.h"

#define CD_COVER_STRENGTH_MAX 4
#define CD_COVER_EVENTS_MAX 128  /* with strength 2 and 3 */
#define CD_COVER_EVENTS_MAX_4 48 /* with strength 4 */

typedef struct cd_cover {
    const cddp_allocator *allocator;
    uint32_t strength, event_count, order_count, order_capacity;
    uint8_t *orders; /* (order_count * event_count) positions: orders[i * event_count + event] */
} cd_cover;

cddp_status cd_cover_make(uint32_t strength, uint32_t event_count, uint64_t seed, cd_cover *cover,
                          cddp_error *err) CDDP_MUST_CHECK;
void cd_cover_fini(cd_cover *cover); /* keeps the allocator */
uint32_t cd_cover_shift(const cd_cover *cover, uint32_t world_size);

/* Plays one order per rank at choices of gradients; fifo elsewhere. An option is known by its place
** among the events, which are the options of the largest choice of the first run. */
typedef struct cd_cover_chooser {
    const cd_cover *cover; /* empty: fifo, to learn the events */
    uint64_t run;
    uint32_t shift;
    uint64_t events[CD_COVER_EVENTS_MAX]; /* (event_count) ascending */
    uint32_t event_count;
    bool too_many; /* a choice with more than CD_COVER_EVENTS_MAX options */
    /* an order could not be played: a gradient came when a later one was already ready */
    bool deviated;
    /* of the run: where each rank is in its order */
    struct {
        uint32_t options, position;
    } * lanes; /* (lane_count) */
    uint32_t lane_count;
} cd_cover_chooser;

void cd_cover_chooser_begin(cd_cover_chooser *chooser, const cd_cover *cover, uint64_t run);
uint32_t cd_cover_choose(cd_cover_chooser *chooser, const cddp_choice *choice);
