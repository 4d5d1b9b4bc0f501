/* SPDX-License-Identifier: Apache-2.0 */
/* A run in pieces, for a caller that stops its world at a moment and continues from there more than
** once.
**
** Lifetime   begin → launch → end → destroy. Options and what they point to are borrowed until
**            destroy.
** Memory     everything that belongs to the run and lies outside the ranks comes from the options'
**            allocator. With holds_storage also the storage of the ranks' tensors. Then
**            allocator and world together are the whole state of a run, and a run whose memory is
**            simply dropped leaves nothing behind.
** Errors     those of what it calls; a failed begin leaves nothing.
*/
#pragma once
#include "cddp/run.h"
#include "core/trace/tracer.h"

typedef struct cd_run cd_run;

typedef struct cd_run_manner {
    bool holds_storage;
    bool without_digests; /* the verdict has none of the trace */
    bool is_unheard;      /* there will be no verdict: events go to the one sink alone */
    /* with holds_storage: allocator and world are dropped behind the run, so that a rank at its end
    ** gives back only what others see of it */
    bool is_dropped;
    /* of an unheard run: takes the values that ranks show, which are no events; NULL: they are */
    const cd_tracer_values *values;
    /* what ranks of one thread observe is judged once for all runs; NULL: in every run. Outlives
    ** the run. See core/run/recall.h. */
    struct cd_recall *recall;
} cd_run_manner;

/* The plan must have passed cddp_plan_check. */
cddp_status cd_run_begin(const cddp_run_options *options, const cd_run_manner *manner, cd_run **run,
                         cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_run_launch(cd_run *run, cddp_error *err) CDDP_MUST_CHECK;
/* (world size) what launch fills, for who makes the world go on by itself. */
cddp_rank_result *cd_run_get_results(cd_run *run);
/* The world and the memory of the run are what they were at a moment of its launch: events arrive
** again. */
void cd_run_resume(cd_run *run);
/* The world has ended. */
cddp_status cd_run_end(cd_run *run, cddp_verdict **verdict, cddp_error *err) CDDP_MUST_CHECK;
void cd_run_destroy(cd_run *run); /* accepts NULL */
