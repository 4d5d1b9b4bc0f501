/* SPDX-License-Identifier: Apache-2.0 */
/* Building a verdict: the findings, compared with what the plan expects. */
#pragma once
#include "cddp/run.h"
#include "core/base/arena.h"
#include "core/run/judges.h"
#include "core/run/tap.h"

/* The results of a run; everything is copied into the verdict. */
typedef struct cd_verdict_input {
    const cddp_plan *plan;
    uint64_t plan_digest;
    const cddp_allocator *allocator;
    const cd_judges *judges;         /* NULL, or none: not judged */
    const cd_tap *tap;               /* NULL: a recorded trace */
    const cddp_rank_result *results; /* (world size), or NULL: as rank_end events reported */
    const char *refusal;             /* why the plan was not run at all, or NULL */
    bool is_observed;                /* every rank has a referee, that says what the rank owes */
} cd_verdict_input;

cddp_status cd_verdict_create(const cd_verdict_input *input, cddp_verdict **verdict,
                              cddp_error *err) CDDP_MUST_CHECK;

/* A bit for each of the plan's first 64 faults that did not strike though it had to. */
uint64_t cd_verdict_get_missing_faults(const cddp_verdict *verdict);
/* Nothing else is wrong with the run. */
bool cd_verdict_lacks_faults_only(const cddp_verdict *verdict);

/* expect.c: outcome, as_expected, summary and reason from the rest of the verdict. Texts go into
** the arena. */
cddp_status cd_verdict_measure(const cd_verdict_input *input, cd_arena *arena,
                               cddp_verdict *verdict, cddp_error *err) CDDP_MUST_CHECK;
