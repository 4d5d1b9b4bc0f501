/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan declares of a reduction that has ended. */
#pragma once
#include "core/base/arena.h"
#include "core/oracle/oracle.h"
#include "core/plan/plan.h"
#include "core/reference/decisions.h"
#include "core/reference/observed.h"

typedef struct cd_declaration {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    cd_decisions *decisions;
    uint32_t rank;
    double loss_scale;
    cd_arena *memory;        /* where .spans of the result are */
    char normalisation[160]; /* which .normalisation of the result points into */
} cd_declaration;

/* How the plan has buckets reduced: what the run shows of it must be the same. */
typedef struct cd_declared_way {
    bool has_hook, has_inner, divides_after;
    bool knows_wire, knows_block; /* false: of a plugin's hook, of which the plan does not say */
    cddp_dtype wire;
    uint32_t block_count;
} cd_declared_way;
/* Whether the rank leaves a backward of the step, or left one since its last whole reduction. */
bool cd_declared_follows_left_backward(const cd_decisions *decisions, uint32_t step);
void cd_declare_way(cd_decisions *decisions, cd_micro_place place, cd_declared_way *way);

cddp_status cd_declare_reduction(cd_declaration *declaration, const cd_observed_reduced *observed,
                                 cd_oracle_reduction *reduction, cddp_error *err) CDDP_MUST_CHECK;
