/* SPDX-License-Identifier: Apache-2.0 */
/* One rank alone: its training in pieces, on a backend that compares what it issues with the record
** and returns the recorded results.
**
** Lifetime   init → begin → (fire … → next_window)* → fini. Everything that changes lies in memory
**            of the allocator that the walk was given, and in the walk itself.
** Errors     CDDP_E_MISMATCH when a collective differs from the expected one; the walk has the
**            place.
*/
#pragma once
#include "verify/prove/rank.h"
#include "core/train/trainer.h"

typedef struct cd_rank_walk {
    cddp_rank port;
    cddp_backend table;
    const cd_prove_rank_options *options;
    cd_calls *expected; /* borrowed; grows in the first walk when there is none */
    bool grows;         /* this walk writes the expected sequence */
    cd_trainer *trainer;
    /* Of a sharded model, whose ranks gather what they show: it shows as in the record, to nobody.
    ** Of a hook from outside: it knows the hook's call. Else NULL. */
    cddp_tracer *tracer;
    cd_micro micro;
    uint32_t step, micro_index, window; /* window: of those with at least two gradients */
    cd_firing firings[CD_PROVE_EVENTS_MAX];
    uint32_t firing_count;
    uint64_t left;                  /* bit per firing that has not taken place */
    size_t call_count, fired_calls; /* now; when the last window's gradients had all fired */
    bool has_ended;
    bool has_parted;
    cd_call said; /* the first that differs */
    bool has_said;
    const char *hook, *function; /* that the rank called last */
    char guest[160];             /* "c, in run of rank 1 alone in a world of 7 ranks," */
} cd_rank_walk;

/* Between begin and end a hook from outside that does not return from one call ends the program,
** which says its name. Options borrowed until end. */
cddp_status cd_rank_watch_begin(const cd_prove_rank_options *options,
                                cddp_error *err) CDDP_MUST_CHECK;
void cd_rank_watch_end(void);

/* Allocator borrowed until fini. */
void cd_rank_walk_init(cd_rank_walk *walk, const cd_prove_rank_options *options,
                       const cddp_allocator *allocator, cd_calls *expected);
void cd_rank_walk_fini(cd_rank_walk *walk);
/* Everything up to the first window. */
cddp_status cd_rank_walk_begin(cd_rank_walk *walk, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_rank_walk_fire(cd_rank_walk *walk, uint32_t index, cddp_error *err) CDDP_MUST_CHECK;
/* Makes what a first gradient and a second one take from the device, so that nothing is taken while
** they become ready. At the beginning of a window, on devices without content. */
cddp_status cd_rank_walk_warm(cd_rank_walk *walk, cddp_error *err) CDDP_MUST_CHECK;
/* All have fired: up to the next window, or to the end. */
cddp_status cd_rank_walk_next_window(cd_rank_walk *walk, cddp_error *err) CDDP_MUST_CHECK;
/* The state, and the place in the program and in its collectives. */
uint64_t cd_rank_walk_key(const cd_rank_walk *walk);
uint64_t cd_rank_walk_proposal(const cd_rank_walk *walk);
/* Walks the rest in the engine's order. */
cddp_status cd_rank_walk_to_the_end(cd_rank_walk *walk, cddp_error *err) CDDP_MUST_CHECK;
/* The window that is open, by digits, and on to the next. */
cddp_status cd_rank_walk_choose(cd_rank_walk *walk, const cd_window_choice *choice,
                                cddp_error *err) CDDP_MUST_CHECK;
