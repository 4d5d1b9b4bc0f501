/* SPDX-License-Identifier: Apache-2.0 */
/* The wrappers of a run: for each its plan, and what ranks of one thread share in judging it.
**
** Lifetime   open → the ranks of one run → close. Plans are borrowed until close.
*/
#pragma once
#include "cddp/run.h"
#include "core/oracle/oracle.h"
#include "core/reference/reference.h"
#include "core/run/reductions.h"

typedef struct cd_run_wrapper {
    const cddp_plan *plan;               /* of this wrapper alone */
    cd_oracle_share *share;              /* NULL where ranks are processes */
    cd_reference_share *reference_share; /* likewise */
    cd_reductions *reductions;           /* likewise, and where no order of sums is known */
} cd_run_wrapper;

typedef struct cd_run_wrappers {
    const cddp_allocator *allocator;
    const cddp_plan *plan; /* the whole one */
    cd_run_wrapper *items; /* (count) */
    size_t count;
    bool has_order; /* ranks are of one thread, and the plan of their network orders additions */
} cd_run_wrappers;

cddp_status cd_run_wrappers_open(cd_run_wrappers *wrappers, const cddp_run_options *options,
                                 cddp_error *err) CDDP_MUST_CHECK;
void cd_run_wrappers_close(cd_run_wrappers *wrappers); /* accepts a zeroed one */
