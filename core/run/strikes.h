/* SPDX-License-Identifier: Apache-2.0 */
/* Which faults of the plan struck, by the fault events of the run.
**
** A fault that did not strike shows nothing: a run in which one is missing is not verified. One
** whose strike is a choice (optional) need not.
**
** Matching   an event has what is struck, and not which fault of the plan it is. Faults that only
**            differ in when they strike are distinguished by the event's time, or by its words.
**
** Ownership  borrows the plan.
** Threads    one thread.
*/
#pragma once
#include "cddp/plan.h"
#include "cddp/trace.h"
#include "core/base/arena.h"

#define CD_STRIKES_MASK_MAX 64 /* of more faults than these the mask says that they struck */

typedef struct cd_strike cd_strike;

typedef struct cd_strikes {
    const cddp_plan *plan;
    const cddp_allocator *allocator;
    cd_strike *faults; /* (plan->fault_count) */
} cd_strikes;

cddp_status cd_strikes_init(cd_strikes *strikes, const cddp_plan *plan,
                            const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_strikes_fini(cd_strikes *strikes); /* accepts a zeroed one */
void cd_strikes_push(cd_strikes *strikes, const cddp_event *event);
/* NULL, or which faults did not strike, and what kept them from it. time_ns: when the run ended.
** *is_exhausted: there was no memory for the words. */
const char *cd_strikes_find_missing(const cd_strikes *strikes, uint64_t time_ns, cd_arena *arena,
                                    bool *is_exhausted);
/* A bit for each fault that did not strike though it had to. */
uint64_t cd_strikes_get_missing(const cd_strikes *strikes);
