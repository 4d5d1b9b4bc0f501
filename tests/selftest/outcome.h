/* SPDX-License-Identifier: Apache-2.0 */
/* One case: an injection in a world, and what came of it.
**
** Struck: something was different after the injection, and one of three things is true. They are
** counted apart (st_class): only a training that is verified though it is wrong deceives a user.
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
    bool is_most; /* in place of one rank all others: the one that is right stands alone */
} st_case;

typedef enum st_end {
    ST_END_SILENT, /* not struck */
    ST_END_MISSED,
    ST_END_CAUGHT, /* with the wrong blame */
    ST_END_BLAMED,
    ST_END_CRASHED,
    ST_ENDS
} st_end;

typedef enum st_class {
    ST_TRAINING,  /* a rank ended with other values than in the clean run, or did not end */
    ST_DISOBEYED, /* the same values, but a decision of the plan was disobeyed on the way */
    ST_COPY,      /* the training was right; the judge was shown something else */
    ST_CLASSES
} st_class;
extern const char *const st_class_names[ST_CLASSES];

typedef struct st_outcome {
    st_end end;
    st_class kind;
    int32_t exit_code; /* as cddp-verify's */
    uint32_t struck_step;
    uint64_t struck_ranks;
    char struck[ST_NAME_BYTES];
    char said[640];  /* the first finding, or why the run ended */
    char wrong[160]; /* what the blame lacks; "" */
    /* what the checks said of the run's trace, read again; "": the same as live, or not asked */
    char stored[320];
} st_outcome;

/* "exact4 begin.parameter nudge one once", with every word an argument of the program. */
void st_case_print(const st_case *c, char *text, size_t text_bytes);
/* Whether it strikes what the plan decides, and no value alone and nothing that the judge is
** shown. */
bool st_case_decides(const st_case *c);
/* reads_again: the run's events are kept, and judged once more as a stored trace is. */
typedef struct st_case_options {
    uint64_t seed;
    bool reads_again;
} st_case_options;
cddp_status st_case_run(const st_world *world, const st_case *c, const st_case_options *options,
                        st_outcome *outcome, cddp_error *err) CDDP_MUST_CHECK;
