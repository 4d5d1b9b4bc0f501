/* SPDX-License-Identifier: Apache-2.0 */
/* The intake: the watcher of a rank's trainer. It copies what the trainer shows, and passes the
** copies on to the referee, as the structs of core/reference/observed.def.
**
** Lifetime   create → (a trainer with its watcher) → destroy, after the trainer.
** Threads    the rank's.
*/
#pragma once
#include "core/run/recall.h"
#include "core/train/watcher.h"

typedef struct cd_intake_options {
    const cddp_plan *plan;
    const cddp_plan *whole; /* where the plan is one of several wrappers: all of it; else NULL */
    const cddp_rank *rank;
    uint32_t wrapper;                    /* which of the rank's */
    struct cddp_tracer *tracer;          /* may be NULL */
    cd_oracle_share *share;              /* ranks of one thread; else NULL */
    cd_reference_share *reference_share; /* likewise */
    struct cd_reductions *reductions;    /* NULL: nothing is known of what others post */
    cd_sum_promise sums;
    cd_recall *recall; /* NULL: every judgement is made */
} cd_intake_options;

typedef struct cd_intake cd_intake;

cddp_status cd_intake_create(const cd_intake_options *options, cd_intake **intake,
                             cddp_error *err) CDDP_MUST_CHECK;
void cd_intake_destroy(cd_intake *intake); /* accepts NULL */
/* Borrowed until destroy. */
const cd_watcher *cd_intake_get_watcher(const cd_intake *intake);
