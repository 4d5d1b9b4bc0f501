/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a run that has none: a sink in front of a run's own, which says to the world through
** its relay when a rank goes on without end. I-LIVE then reports what repeats.
**
** A rank does so when it posts twice as many collectives between two passes of the model as
** any program does (core/check/circle.h), shadows passes that nobody begins, begins so many passes
** itself in one micro-step, is far behind the last step of the plan, or emits events and does none
** of these. A rank that does nothing at all is seen by no sink.
**
** Ownership  a value in caller's storage; the next sink, the plan and the relay are borrowed.
** Memory     of the run's allocator, so that it is a part of a run that is put back.
*/
#pragma once
#include "cddp/run.h"
#include "core/check/circle.h"

typedef struct cd_bound {
    cddp_trace_sink sink;
    const cddp_trace_sink *next;
    cddp_relay_sink *relay;
    const cddp_plan *plan;
    cd_circles circles;
    uint64_t least;      /* what every plan is allowed at least */
    uint64_t steps_most; /* of any rank, and as many again; 0: not asked yet */
    bool is_over;
    uint32_t rank; /* that was the first to go too far */
} cd_bound;

/* Without a relay nobody could end the world, and `sink` is not to be used. */
void cd_bound_init(cd_bound *bound, const cddp_run_options *options, const cddp_trace_sink *next);
void cd_bound_fini(cd_bound *bound); /* accepts a zeroed bound */
