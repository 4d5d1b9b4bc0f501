/* SPDX-License-Identifier: Apache-2.0 */
/* Uneven inputs: a rank that ran out of them shadows the collectives of those that have not
** (JON-01…19).
**
** Lifetime   configured by join_begin; the configuration stays in force after join_end (JON-14).
*/
#pragma once
#include "core/ddp/parts/bucket.h"
#include "core/ddp/parts/control.h"

#define CD_JOIN_SHADOW_WARNING 1000 /* iterations (JON-04) */

typedef struct cd_join {
    cddp_group *group;   /* whose members are asked; set when it is configured */
    cddp_tracer *tracer; /* may be NULL */
    bool is_enabled;     /* notifications and votes are being sent */
    bool in_context;
    bool divide_by_initial_world_size, throw_on_early_termination;
    /* (optimizer_state_count) borrowed until join_end returned */
    const cddp_tensor *optimizer_state;
    size_t optimizer_state_count;
    cd_control notify, vote; /* f32, one element each, in flight across a forward */
    cd_control one;          /* i32: blocking questions */
    cddp_work *notify_work, *vote_work;
    /* zeros in the reducer's layout; made on first need, again after a rebuild */
    cd_bucket_set shadow;
    bool has_shadow, shadowed_first_static;
    uint64_t growth_count;
} cd_join;

void cd_join_fini(cd_join *join); /* accepts a zeroed join */
cddp_status cd_join_configure(cddp_ddp *ddp, const cddp_join_options *options, cddp_error *err);
/* JON-03, at the start of an active rank's forward. */
cddp_status cd_join_notify(cd_join *join, cddp_error *err);
/* JON-09, at the end of an active rank's forward_begin. */
cddp_status cd_join_vote(cd_join *join, bool will_sync, cddp_error *err);
/* JON-07: who broadcasts buffers; rank 0 outside of join. */
cddp_status cd_join_find_authority(cd_join *join, bool proposes, uint32_t *rank, cddp_error *err);
/* GRD-01: how many ranks are active; *count is left alone where that does not matter. */
cddp_status cd_join_active_ranks(cd_join *join, uint64_t *count, cddp_error *err);
/* JON-04…12. */
cddp_status cd_join_leave(cddp_ddp *ddp, cddp_error *err);
