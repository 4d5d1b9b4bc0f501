/* SPDX-License-Identifier: Apache-2.0 */
/* What an evaluation ought to find: the loss of a forward that trains nothing, computed again from
** the plan's samples and the values that the rank had.
**
** Of a sharded model the forward casts what the plan has units cast: parameters, and what enters
** and leaves them.
**
** Lifetime   zero-initialise → find* → fini. Borrows the plan; makes its replica when first asked.
** Threads    the rank's.
** Errors     memory, and whatever the model refuses.
*/
#pragma once
#include "core/plan/replica/replica.h"
#include "core/reference/crossed.h"
#include "core/reference/samples.h"
#include "core/reference/units.h"
#include "core/tensor/numbers.h"

typedef struct cd_evaluation {
    cd_replica *replica;              /* NULL: nothing was evaluated yet */
    cd_arena memory;                  /* of what follows, of a sharded model */
    cd_planned_precision *precisions; /* (parameter_count) NULL: nothing is cast */
    cd_crossed crossed;
} cd_evaluation;

typedef struct cd_evaluation_request {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    const cddp_device *device;
    const cddp_allocator *allocator;
    cd_micro_place place; /* whose samples */
    const cddp_tensor *parameters, *buffers;
    cd_samples *samples;
    cd_numbers *numbers; /* room */
} cd_evaluation_request;

/* The micro-step before which this rank evaluates. */
bool cd_evaluation_is_planned(const cd_micro *micro);
cddp_status cd_evaluation_find(cd_evaluation *evaluation, const cd_evaluation_request *request,
                               double *loss, cddp_error *err) CDDP_MUST_CHECK;
void cd_evaluation_fini(cd_evaluation *evaluation); /* accepts a zeroed one */
