/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a whole world: what every rank issued and received, and how the run ended.
**
** Lifetime   a zeroed run, its chooser set by the caller → record → fini. Sequences and results
**            stay until fini.
** Threads    one.
*/
#pragma once
#include "verify/prove/prove.h"
#include "verify/prove/calls.h"
#include "core/base/prng.h"
#include "sim/chooser.h"

/* A chooser that knows windows. */
typedef struct cd_window_chooser {
    cd_chooser chooser;
    const cd_window_choice *choice; /* NULL: the engine's order everywhere */
    uint32_t rank;
    cd_prng *random;   /* a probe: every option equally likely; else NULL */
    double leaves;     /* product of the options met: one probe's estimate */
    double states;     /* sets of ready gradients, over all windows met */
    uint32_t *windows; /* (rank_count) by rank: of those begun */
    /* (rank_count) options of the last choice of the rank; 2: its window is over */
    uint32_t *left;
    uint32_t rank_count;
} cd_window_chooser;

typedef struct cd_world_failure {
    char culprit[CD_PROVE_CULPRIT_BYTES];
    char schedule[CD_PROVE_SCHEDULE_BYTES];
} cd_world_failure;

typedef enum cd_world_end { CD_WORLD_VERIFIED, CD_WORLD_FAILED, CD_WORLD_UNJUDGED } cd_world_end;

typedef struct cd_world_run {
    cd_call_tap tap;
    cd_world_end end;
    cd_world_failure failed; /* unless it was verified; the schedule in any case */
    cd_window_chooser chooser;
} cd_world_run;

/* The plan is that of the proof, or the same one for another number of ranks. */
cddp_status cd_world_run_record(const cd_prove_options *options, const cddp_plan *plan,
                                cd_world_run *run, cddp_error *err) CDDP_MUST_CHECK;
void cd_world_run_fini(cd_world_run *run); /* accepts a zeroed run */
