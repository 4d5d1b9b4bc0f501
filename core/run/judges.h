/* SPDX-License-Identifier: Apache-2.0 */
/* The judges of a run: one for each wrapper, which sees what is said of that wrapper and of all.
**
** Note [One judge for each wrapper] Parameters, buckets and iterations are numbered by wrapper, so
** no check may see two of them. Groups and what goes through them is shown to every judge. What two
** judges find in the same events is one finding.
**
** Lifetime   open → events through the sink → end → read → close.
** Errors     cd_judges_end reports memory that ran out while judging.
*/
#pragma once
#include "cddp/registry.h"
#include "cddp/plan.h"
#include "core/check/check.h"
#include "core/run/coverage.h"
#include "core/trace/models.h"

typedef struct cd_judges_one {
    cd_judge *judge;
    const char *wrapper;  /* its name; NULL: the plan has one without a name */
    cd_coverage coverage; /* of several: what was compared of this one */
    cd_models models;
    cddp_trace_sink sink; /* behind the models */
} cd_judges_one;

typedef struct cd_judges {
    const cddp_allocator *allocator;
    cd_judges_one *items; /* (count) */
    size_t count;
    cddp_trace_sink sink; /* of several */
    /* of several: where which wrapper goes on, rank by rank, so that a finding about a group knows
    ** which of them posted what */
    struct cd_judges_turn {
        uint64_t sequence; /* of the rank's event that says so */
        uint32_t rank, wrapper;
    } * turns; /* (turn_count) in the order of each rank */
    size_t turn_count, turn_capacity;
    bool is_exhausted;     /* there was no memory for one */
    const cddp_plan *plan; /* the whole one; borrowed */
    /* (world size) of several: the forward that came last on the rank */
    struct cd_judges_place {
        uint32_t step, micro_step;
        size_t position; /* of its wrapper, in the order of the step's turns */
        bool is_known;
    } * places;
    size_t *order;        /* (count) of the turns of the step at hand */
    cddp_finding misturn; /* the first turn that is not the plan's; check NULL: none */
} cd_judges;

cddp_status cd_judges_open(cd_judges *judges, const cddp_plan *plan, const cddp_registry *registry,
                           const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_judges_close(cd_judges *judges); /* accepts a zeroed one */
/* NULL: there is no judge. The judges may not move after this. */
const cddp_trace_sink *cd_judges_get_sink(cd_judges *judges);
cddp_status cd_judges_end(cd_judges *judges, cddp_error *err) CDDP_MUST_CHECK;

/* Copies into the arena: the findings of all judges by step, then causal order, each with its
** wrapper. NULL: no memory. */
cddp_finding *cd_judges_take_findings(const cd_judges *judges, cd_arena *arena, size_t *count);
