/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan has a rank do with the units of a sharded model: which collectives it posts in
** which order, and how much of the model is full meanwhile. It judges core/fsdp and core/train, and
** shares nothing with them.
**
** The order in which units are used comes from a pass of the judge's own, on a device without
** numbers. The forward of a unit lasts from the first use of one of its parameters to that of
** another unit's, the root's is around all. Backward begins a unit before the first node that reads
** one of its parameters, and ends it when its gradients are complete.
**
** Lifetime   create → emit, for the rank's micro-steps in their order → destroy. Borrows the plan
**            and the samples.
** Threads    the rank's.
** Errors     memory.
*/
#pragma once
#include "cddp/backend.h"
#include "core/oracle/partition.h"
#include "core/plan/micro.h"
#include "core/reference/samples.h"

struct cddp_tracer;

typedef struct cd_unit_law cd_unit_law;
typedef struct cd_unit_law_options {
    const cddp_plan *plan;
    uint32_t rank;
    cd_samples *samples;
    const cddp_allocator *allocator;
} cd_unit_law_options;

cddp_status cd_unit_law_create(const cd_unit_law_options *options, cd_unit_law **law,
                               cddp_error *err) CDDP_MUST_CHECK;
void cd_unit_law_destroy(cd_unit_law *law); /* accepts NULL */

/* The training is resumed: other shards, and everything begins anew. Once. */
cddp_status cd_unit_law_resume(cd_unit_law *law, cddp_error *err) CDDP_MUST_CHECK;
/* This rank's part of each parameter. */
void cd_unit_law_emit_parts(const cd_unit_law *law, struct cddp_tracer *tracer);
/* A micro-step of the rank; after the one before it. */
cddp_status cd_unit_law_emit(cd_unit_law *law, const cd_micro *micro, struct cddp_tracer *tracer,
                             cddp_error *err) CDDP_MUST_CHECK;
/* The dtype in which forward computes with a parameter. */
cddp_dtype cd_unit_law_get_dtype(const cd_unit_law *law, size_t parameter);

/* A reduction of a unit that the plan has a rank post. */
typedef struct cd_unit_reduction {
    uint32_t step, micro_step, unit;
    cddp_op op;
    cddp_dtype dtype;
    int64_t numel; /* of the input */
    bool replicas; /* of shares, over the ranks that have the same one */
} cd_unit_reduction;
/* The next one of this kind in the micro-step, which it must be like in everything but the unit. It
** is taken once. False: another one is due. */
bool cd_unit_law_take(cd_unit_law *law, const cd_unit_reduction *like, cd_unit_reduction *taken);
/* Of a micro-step: those that nobody took. */
size_t cd_unit_law_count_left(const cd_unit_law *law, uint32_t step, uint32_t micro_step);

/* Where a parameter lies in its unit. */
typedef struct cd_unit_place {
    uint32_t unit;
    const char *name; /* of the unit; borrowed until destroy */
    int64_t start;    /* in the vector of its unit, flat or by rows */
    int64_t share;    /* of one rank in the unit; 0: it is not cut */
    cd_part part;
    cddp_dtype dtype, wire; /* of forward and of reductions */
    cddp_dtype kept;        /* of the shard's gradient, as its optimizer reads it */
} cd_unit_place;
cd_unit_place cd_unit_law_get_place(const cd_unit_law *law, size_t parameter);
