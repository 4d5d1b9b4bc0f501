/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a gradient from a unit's local one to its shard, stage by stage and bit for bit.
**
**   local gradients → cast, laid out, divided → posted   what a rank gives to the sum of a unit
**   the sum                                              link 17
**   sum → divided, cast → shard's gradient               what a rank makes of it
**
** Only what the plan has the rank sum is looked at: a sum that the unit law does not expect is
** I-COUNT's. Shares nothing with core/fsdp.
**
** A step may reduce several times: what comes later is added (FSY-05).
**
** Lifetime   init → (begin_step → (accumulated… → summed… → reduced)…)… → fini. Borrows the law.
** Threads    the rank's.
** Errors     memory.
*/
#pragma once
#include "core/base/arena.h"
#include "core/reference/observed.h"
#include "core/reference/unit_law.h"
#include "core/reference/units.h"
#include "core/tensor/numbers.h"

typedef struct cd_unit_sums_options {
    cd_unit_law *law;
    const cddp_allocator *allocator;
    const cd_module *module;
    const int32_t *variables; /* (parameter_count) */
    cd_planned_mesh mesh;
    uint32_t rank;
    bool by_rows;
    struct cddp_tracer *tracer;
} cd_unit_sums_options;

typedef struct cd_unit_sums {
    cd_unit_sums_options options;
    cd_arena memory;
    size_t *offsets;   /* (parameter_count + 1) */
    double *local;     /* (offsets[parameter_count]) as the slots have them now */
    double *expected;  /* likewise, what this rank's part of the last reduction must be */
    double *added;     /* likewise, the shard's gradient behind the step's earlier reductions */
    bool *has_local;   /* (parameter_count) */
    bool *is_expected; /* (parameter_count) */
    bool *has_added;   /* (parameter_count) */
    double *passed;    /* (passed_numel) the share that goes on to the replicas */
    size_t passed_numel, passed_capacity;
    uint32_t passed_unit;
    double *result; /* (result_capacity) of a sum, divided */
    size_t result_capacity;
    bool *is_named; /* (named_capacity) elements of an operand that belong to a parameter */
    size_t named_capacity;
    uint32_t step, micro_step; /* of the backward at hand */
    bool is_in_backward, has_unknown;
} cd_unit_sums;

cddp_status cd_unit_sums_init(cd_unit_sums *sums, const cd_unit_sums_options *options,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_unit_sums_fini(cd_unit_sums *sums); /* accepts a zeroed struct */
/* The same step again: another window of it. */
void cd_unit_sums_begin_step(cd_unit_sums *sums, uint32_t step);
/* values: (numel of the parameter) its slot after the accumulation. */
void cd_unit_sums_accumulated(cd_unit_sums *sums, size_t parameter, const double *values,
                              uint32_t micro_step);
cddp_status cd_unit_sums_summed(cd_unit_sums *sums, const cd_observed_summed *summed,
                                cddp_error *err) CDDP_MUST_CHECK;
/* The gradients of the shards are there. is_followed: every sum of the window was looked at. */
cddp_status cd_unit_sums_reduced(cd_unit_sums *sums, const cddp_grad *gradients,
                                 cd_numbers *numbers, bool *is_followed,
                                 cddp_error *err) CDDP_MUST_CHECK;
