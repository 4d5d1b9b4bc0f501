/* SPDX-License-Identifier: Apache-2.0 */
/* One case: an injection in a world, and what came of it.
**
** Struck: something was different after the injection, and the training ended with other values, or
** the point is a decision of the plan, which was then disobeyed.
** Caught: the run is not verified. Inconclusive counts only where coverage was struck.
** Blamed right: the first finding names the struck ranks and no other, the step, and what was
** struck; it accuses no backend, and a hook only where a hook was struck.
*/
#pragma once
#include "tests/selftest/world.h"

typedef struct st_case {
    size_t world, point;
    st_operator op;
    bool is_one_rank, is_every_step, everything;
} st_case;

typedef enum st_end {
    ST_END_SILENT, /* not struck */
    ST_END_MISSED,
    ST_END_CAUGHT, /* with the wrong blame */
    ST_END_BLAMED,
    ST_END_CRASHED,
    ST_ENDS
} st_end;

typedef struct st_outcome {
    st_end end;
    int32_t exit_code; /* as cddp-verify's */
    uint32_t struck_step;
    uint64_t struck_ranks;
    char struck[ST_NAME_BYTES];
    char said[640];  /* the first finding, or why the run ended */
    char wrong[160]; /* what the blame lacks; "" */
} st_outcome;

/* "exact4 begin.parameter nudge one once", with every word an argument of the program. */
void st_case_print(const st_case *c, char *text, size_t text_bytes);
cddp_status st_case_run(const st_world *world, const st_case *c, uint64_t seed, st_outcome *outcome,
                        cddp_error *err) CDDP_MUST_CHECK;
