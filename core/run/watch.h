/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher of one rank: passes what the trainer reports to the oracle, with the reference.
**
** Lifetime   create → (a trainer with its watcher) → destroy, after the trainer. Borrows the plan,
**            the tracer and the shares.
** Threads    the rank's.
*/
#pragma once
#include "core/oracle/oracle.h"
#include "core/reference/decisions.h"
#include "core/reference/reference.h"
#include "core/train/watcher.h"

typedef struct cd_watch_options {
    const cddp_plan *plan;
    const cddp_rank *rank;
    struct cddp_tracer *tracer;          /* may be NULL */
    cd_oracle_share *share;              /* ranks of one thread; else NULL */
    cd_reference_share *reference_share; /* likewise */
} cd_watch_options;

typedef struct cd_watch cd_watch;

cddp_status cd_watch_create(const cd_watch_options *options, cd_watch **watch,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_watch_destroy(cd_watch *watch); /* accepts NULL */
/* Borrowed until destroy. */
const cd_watcher *cd_watch_get_watcher(const cd_watch *watch);

/* declared.c: what the plan declares of a reduction that has ended. */
typedef struct cd_declaration {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    cd_decisions *decisions;
    uint32_t rank;
    double loss_scale;
    char normalisation[160]; /* which .normalisation of the result points into */
} cd_declaration;
cddp_status cd_declare_reduction(cd_declaration *declaration, const cd_watched_reduction *watched,
                                 cd_oracle_reduction *reduction, cddp_error *err) CDDP_MUST_CHECK;
