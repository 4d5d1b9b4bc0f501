/* SPDX-License-Identifier: Apache-2.0 */
/* Every sequence of collectives that one rank can issue. The real training program and the real
** reducer of one rank run alone, in every order in which its gradients can become ready. Their
** collectives return the results of a recorded run.
**
** A window is a backward with at least two gradients. Inside it the search visits sets of ready
** gradients (2^n), not orders of them (n!). Two orders of one set that leave the same state
** (core/ddp/wrap/state_key.h) have one future. Every step from every state is made once, by the
** real code. The search goes back in one of two ways:
**
**   again       a new rank is led to the state by the same firings: any device, any build
**   snapshot    the rank lives in one block of memory, whose changed pieces are put back: device
**               shape, where no content lies elsewhere, and builds without sanitizer
**
** Limitations: a window of more than CD_PROVE_EVENTS_AGAIN (CD_PROVE_EVENTS_SNAPSHOT) gradients is
** sampled, and the proof is then bounded. Gradients of nested backwards (re-entrant checkpoints)
** may come in any order, which is more than an engine does.
*/
#pragma once
#include "cddp/plan.h"
#include "cddp/registry.h"
#include "verify/prove/projection.h"
#include "verify/prove/calls.h"

#define CD_PROVE_EVENTS_MAX 64 /* of one window */
#define CD_PROVE_EVENTS_AGAIN 12
#define CD_PROVE_EVENTS_SNAPSHOT 24
#define CD_PROVE_WINDOWS_MAX 256

/* What is chosen in one window: which of the gradients left goes next, 0: the engine's choice. */
typedef struct cd_window_choice {
    uint32_t window;
    uint32_t digit_count;
    uint32_t digits[CD_PROVE_EVENTS_MAX];
} cd_window_choice;

typedef struct cd_prove_rank_options {
    const cddp_plan *plan;
    const cddp_registry *registry;
    uint32_t rank;
    const cd_results *results; /* of the recorded run */
    const cd_calls *calls;     /* what it issued there; NULL: the sequence of the engine's order */
    /* this window has this order, and only later ones are searched; NULL: all are */
    const cd_window_choice *chosen;
    bool snapshots; /* where possible */
    const cd_projection *
        /* makes results for the plan, which has another number of ranks than the record; contents
        ** and roots may then differ from the recorded ones. NULL: the numbers are equal */
        projection;
    bool (*stop)(void *context); /* asked now and then; true ends the search */
    void *context;
} cd_prove_rank_options;

typedef struct cd_rank_proof {
    bool is_complete; /* false: stopped, or a window was sampled */
    bool was_stopped;
    bool is_refuted;
    cd_window_choice counterexample; /* the shortest: fewest choices other than the engine's */
    bool is_shortest;                /* false: the search for a shorter one was cut off */
    size_t call;                     /* where the sequences differ first */
    cd_call said, expected;
    bool has_said, has_expected; /* false: the sequence ends there */
    /* of the error that this order ends in; empty: the sequences differ */
    char message[CDDP_ERROR_MESSAGE_BYTES];
    uint32_t window_count;
    uint32_t windows[CD_PROVE_WINDOWS_MAX];    /* gradients of each */
    size_t window_calls[CD_PROVE_WINDOWS_MAX]; /* issued when all of its gradients had fired */
    /* the window whose order decides what this rank proposes for the rebuild; -1: none */
    int32_t proposing;
    size_t call_count;
    uint64_t states, events, runs; /* visited, firings tried, ranks made anew */
    uint64_t roots;                /* states in which windows began */
    cd_calls calls;                /* the sequence; owned */
} cd_rank_proof;

cddp_status cd_prove_rank(const cd_prove_rank_options *options, cd_rank_proof *proof,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Does this rank issue this sequence of collectives, in the engine's order and given those results?
** *repeats is false where it issues another one, or cannot go on; how is then appended to. */
cddp_status cd_prove_rank_repeats(const cd_prove_rank_options *options, bool *repeats, cd_text *how,
                                  cddp_error *err) CDDP_MUST_CHECK;
void cd_rank_proof_fini(cd_rank_proof *proof); /* accepts a zeroed proof */
