/* SPDX-License-Identifier: Apache-2.0 */
/* The referee of one rank: judges what the rank is observed to do. It feeds the oracle, and derives
** from the plan what the oracle needs besides.
**
** All that it takes from the run are the structs of observed.def.
**
** Lifetime   create → open → … → finish → destroy. Borrows the plan, the tracer and the shares. The
**            copies in a struct are borrowed until the same moment comes again.
** Threads    the rank's.
** Errors     a mismatch is an event, not an error.
*/
#pragma once
#include "core/oracle/oracle.h"
#include "core/reference/observed.h"
#include "core/reference/reference.h"
#include "core/reference/summed.h"

typedef struct cd_referee_options {
    const cddp_plan *plan;
    const cddp_plan *whole; /* where the plan is one of several wrappers: all of it; else NULL */
    size_t wrapper;         /* which of them */
    uint32_t rank;
    const cddp_device
        *device; /* of the references' tensors: the rank's, so that both compute alike */
    const cddp_allocator *allocator;
    struct cddp_tracer *tracer;          /* may be NULL */
    cd_sum_promise sums;                 /* of the order of additions */
    cd_oracle_share *share;              /* ranks of one thread; else NULL */
    cd_reference_share *reference_share; /* likewise */
} cd_referee_options;

typedef struct cd_referee cd_referee;

cddp_status cd_referee_create(const cd_referee_options *options, cd_referee **referee,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_referee_destroy(cd_referee *referee); /* accepts NULL */

/* A function per row of observed.def. */
#define CD_OBSERVED(name, doc, fields)                                                     \
    cddp_status cd_referee_##name(cd_referee *referee, const cd_observed_##name *observed, \
                                  cddp_error *err) CDDP_MUST_CHECK;
#include "core/reference/observed.def"
