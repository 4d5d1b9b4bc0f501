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

/* This rank's part of each parameter. */
void cd_unit_law_emit_parts(const cd_unit_law *law, struct cddp_tracer *tracer);
/* A micro-step of the rank; after the one before it. */
cddp_status cd_unit_law_emit(cd_unit_law *law, const cd_micro *micro, struct cddp_tracer *tracer,
                             cddp_error *err) CDDP_MUST_CHECK;
/* The dtype in which forward computes with parameters. */
cddp_dtype cd_unit_law_get_dtype(const cd_unit_law *law);
