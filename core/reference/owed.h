/* SPDX-License-Identifier: Apache-2.0 */
/* How many comparisons of each link a rank owes, counted from the plan before the rank trains.
**
** A run in which fewer are made is not verified, whatever they say: coverage that is lost silently
** would let a run that shows less look like one that does right.
*/
#pragma once
#include "cddp/plan.h"

struct cddp_tracer;

typedef struct cd_owing_rank {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    uint32_t rank;
    size_t parameter_count, buffer_count;
    /* of the parameters, those whose update is compared: a sharded one without elements has no
    ** owner */
    size_t updated_count;
} cd_owing_rank;

/* At least these; a number that depends on values is in neither. */
typedef struct cd_owed {
    uint64_t presence; /* a parameter's gradient after each reduction (link 7) */
    uint64_t buffers;  /* a buffer after each reduction whose micro-step ran forwards (link 6) */
    uint64_t updates;  /* a parameter after each step in which an optimizer is due (links 4, 12) */
} cd_owed;

cd_owed cd_owed_count(const cd_owing_rank *rank);
/* An `owed` event per link. */
void cd_owed_emit(const cd_owing_rank *rank, struct cddp_tracer *tracer);
