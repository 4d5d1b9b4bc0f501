/* SPDX-License-Identifier: Apache-2.0 */
/* Who has which element of a sharded model, as the plan declares it. It judges core/fsdp, and
** shares nothing with it.
**
** Errors     no memory.
*/
#pragma once
#include "core/base/arena.h"
#include "core/oracle/partition.h"
#include "core/plan/replica/replica.h"

/* (parameter_count) each */
typedef struct cd_planned_units {
    cd_part *parts;  /* in elements; share 0: every rank has all of it */
    uint32_t *units; /* the same number, from 1 on, for the parameters of one unit */
    /* Of its unit, each NULL where nobody asks: the length of the unit's name, with which the
    ** parameter's begins (the root's is 0), and its elements: alignment included, without
    ** padding. */
    size_t *lengths;
    int64_t *numels;
    int64_t *starts; /* where it begins in the vector of its unit */
} cd_planned_units;
/* Ranks among which a unit is cut, and how many copies there are of each shard. */
typedef struct cd_planned_mesh {
    uint32_t shards, replicas;
} cd_planned_mesh;
/* FST-09: as a training that was resumed is cut. */
void cd_planned_resume(cddp_plan_settings *settings);
/* Whether this step comes after the resume. */
bool cd_planned_is_resumed(const cddp_plan_settings *settings, uint32_t step);
cd_planned_mesh cd_planned_get_mesh(const cddp_plan *plan, const cddp_plan_settings *settings);

/* What the gradients and the forward of a parameter are cast to; CDDP_DTYPE_COUNT: nothing. */
typedef struct cd_planned_precision {
    cddp_dtype param, reduce; /* reduce: of the sums over ranks */
    cddp_dtype kept;          /* of the gradient that optimizers read (FMP-08) */
} cd_planned_precision;

/* To what the unit with this name casts what enters and leaves its forward. name: its first
** `length` bytes; 0: the root's. */
typedef struct cd_planned_casts {
    cddp_dtype input, output; /* CDDP_DTYPE_COUNT: to nothing */
} cd_planned_casts;
cd_planned_casts cd_planned_get_casts(const cddp_plan_settings *settings, const char *name,
                                      size_t length);
/* found: (parameter_count) of each parameter's unit (FMP-01). Of a wrapped model: as
** [mixed_precision] has it for all. */
cddp_status cd_planned_find_precision(const cddp_plan *plan, const cddp_plan_settings *settings,
                                      const cd_module *module, cd_arena *memory,
                                      cd_planned_precision *found, cddp_error *err) CDDP_MUST_CHECK;

/* FMP-04: by rows, micro-steps without a reduction are added up in reduce_dtype, each begun without
** a gradient. */
bool cd_planned_adds_up_apart(const cddp_plan_settings *settings);

cddp_status cd_planned_find_units(const cddp_plan *plan, const cddp_plan_settings *settings,
                                  const cd_module *module, cd_arena *memory,
                                  const cd_planned_units *found, cddp_error *err) CDDP_MUST_CHECK;
