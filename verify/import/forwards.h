/* SPDX-License-Identifier: Apache-2.0 */
/* Do ranks run their forwards on equal parameters? A mean of gradients that were taken at other
** points is the gradient of no point.
**
** What a forward has otherwise than the last step left is shown at CDDP_MOMENT_FORWARD, by the
** program or by its recorder (record/pass.h). Ranks are compared pass by pass, by step and
** micro-step, where both showed gradients. What the program shows at CDDP_MOMENT_ADAPTED each rank
** has for itself by right.
** One rank against all others, which agree, is wrong where all of them exchanged something. Where
** each has its own (SAM with another radius, or MAML), nobody knows whether that is meant.
** A program without a wrapper shows no forwards. Where it drops a reduced gradient and runs another
** backward in the same step, it perturbs weights in between: it shows on what that backward ran.
**
** Lifetime   init → push every event → compare → fini.
** Errors     without memory nothing is shown.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

typedef struct cd_forwards_pass {
    uint32_t step, micro_step;
    uint64_t content; /* of all that was exchanged: a sum, so that order does not matter */
    uint32_t values;  /* that it is of; 0: the forward ran on what the step left */
    int64_t variable; /* the first of them; -1: no gradient changes it */
    bool has_gradients;
} cd_forwards_pass;

typedef struct cd_forwards_rank {
    cd_forwards_pass *passes; /* (pass_count) in the order in which they came */
    size_t pass_count, pass_capacity;
    int64_t group;           /* of its wrapper */
    bool has_forwards;       /* of a wrapper */
    uint32_t reduced_in;     /* + 1: the step of a gradient that no optimizer took; 0: none */
    uint32_t dropped_in;     /* + 1: the step in which zero_grad dropped it; 0: none */
    bool has_wrap, averages; /* averages: parameters, so that they may differ */
} cd_forwards_rank;

typedef struct cd_forwards_place {
    uint64_t count; /* 0: none */
    uint32_t rank, step;
    int64_t variable;
} cd_forwards_place;

typedef struct cd_forwards {
    const cddp_allocator *allocator;
    cd_forwards_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    uint64_t adapted;          /* parameters of rank 0 that it has for itself, as it says */
    cd_forwards_place unshown; /* backwards of which nobody showed on what they ran */
    bool is_out_of_memory;
} cd_forwards;

/* Passes on which ranks differ. */
typedef struct cd_forwards_split {
    cd_forwards_place any; /* all of them */
    cd_forwards_place one; /* those in which one rank is to blame */
    bool is_out_of_memory;
} cd_forwards_split;

cddp_status cd_forwards_init(cd_forwards *forwards, uint32_t rank_count,
                             const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_forwards_fini(cd_forwards *forwards); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_forwards_push(cd_forwards *forwards, const cddp_event *event);
/* After the last event. */
cd_forwards_split cd_forwards_compare(const cd_forwards *forwards);
