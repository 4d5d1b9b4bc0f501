/* SPDX-License-Identifier: Apache-2.0 */
/* What the ways to drive a trial share: hook_trial.c by hand, hook_ride.c through the reducer,
** hook_large.c one large bucket. And what listens to the laws that a hook states meanwhile:
** hook_statements.c. */
#pragma once
#include "cddp/trace.h"
#include "verify/conformance/hook_trial.h"

/* ranks are at most a step apart: places of older statements are used again */
#define CD_STATEMENTS_OPEN_MAX 64
#define CD_STATEMENTS_PLACES (CD_TRIAL_BUCKETS + 1) /* the last one: of no bucket */

/* A statement over all ranks, so far. */
typedef struct cd_joint_statement {
    double left, right, bound;
    uint32_t count;
} cd_joint_statement;

/* Judges what ranks state, into a result. All ranks of a trial run on one thread. Its sink is for
** as long as it lives. */
typedef struct cd_statements {
    cddp_trace_sink sink;
    const cd_trial *trial;
    cd_trial_result *result;
    uint64_t stated[CD_TRIAL_RANKS_MAX][CD_TRIAL_STATED_MAX][CD_STATEMENTS_PLACES];
    cd_joint_statement joints[CD_TRIAL_STATED_MAX][CD_STATEMENTS_PLACES][CD_STATEMENTS_OPEN_MAX];
} cd_statements;
void cd_statements_init(cd_statements *statements, const cd_trial *trial, cd_trial_result *result);

/* What a rank's backward of a step brings for an element (of all parameters), when nothing is
** lacking. */
double cd_trial_gradient(const cd_trial *trial, uint32_t rank, uint32_t step, int64_t element);
/* How ranks ended: failure, refused, misconfigured. Fails where one lacked memory. */
cddp_status cd_trial_take_ends(const cd_trial *trial, const cddp_rank_result *ends,
                               cd_trial_result *result, cddp_error *err);
/* A rank's whole run under DDP. */
cddp_status cd_trial_ride(const cd_trial *trial, cd_trial_result *result, cddp_group *group,
                          cddp_error *err);
