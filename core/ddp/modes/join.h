/* SPDX-License-Identifier: Apache-2.0 */
/* Uneven inputs: what ranks ask one another, so that a rank without inputs can shadow the others
** (JON-01…19). core/ddp/wrap/shadow.c has the protocol.
**
** Lifetime   configured by join_begin; the configuration stays in force after join_end (JON-14).
** Ownership  borrows the group and the tracer; owns its control vectors until fini.
** Threads    the rank's.
** Errors     a number that no sum of the ranks can be is CDDP_E_CORRUPT.
*/
#pragma once
#include "cddp/ddp.h"
#include "core/comm/control.h"

typedef struct cd_join {
    cddp_group *group;   /* whose members are asked; set when it is configured */
    cddp_tracer *tracer; /* may be NULL */
    bool is_enabled;     /* notifications and votes are being sent */
    bool divide_by_initial_world_size, throw_on_early_termination;
    /* Several that joined together (JON-01): the first one notifies, and the others divide by what
    ** it heard. */
    bool is_follower;
    struct cd_join *first;   /* of a follower; NULL: it is gone */
    uint64_t begun;          /* forwards of this rank since join_begin */
    cd_control notify, vote; /* f32, one element each, in flight across a forward */
    cd_control one;          /* i32: blocking questions */
    cddp_work *notify_work, *vote_work;
} cd_join;

typedef struct cd_join_spec {
    const cddp_allocator *allocator;
    cddp_group *group;
    cddp_tracer *tracer;
    const cddp_device *device; /* of the parameters */
    const cddp_join_options *options;
    cd_join *first; /* NULL: it notifies itself */
} cd_join_spec;

void cd_join_fini(cd_join *join); /* accepts a zeroed join */
cddp_status cd_join_configure(cd_join *join, const cd_join_spec *spec, cddp_error *err);
/* After a failure: gives both works back. */
void cd_join_abandon(cd_join *join);

/* ---- an active rank ---- */

/* JON-03, at the start of an active rank's forward. A follower has been notified of already. */
cddp_status cd_join_notify(cd_join *join, cddp_error *err);
/* JON-09, at the end of an active rank's forward_begin. */
cddp_status cd_join_vote(cd_join *join, bool will_sync, cddp_error *err);
/* JON-07: who broadcasts buffers; rank 0 outside of join. A joined rank proposes nobody. */
cddp_status cd_join_find_authority(cd_join *join, bool proposes, uint32_t *rank, cddp_error *err);
/* GRD-01: how many ranks are active; *count is left alone where that does not matter. */
cddp_status cd_join_active_ranks(cd_join *join, uint64_t *count, cddp_error *err);

/* ---- a joined rank ---- */

cddp_status cd_join_await(cd_join *join, cddp_error *err);
/* JON-04: how many ranks still have inputs; 0: all have joined. */
cddp_status cd_join_count_active(cd_join *join, uint64_t *active, cddp_error *err);
/* JON-09: how many active ranks synchronise in this iteration. */
cddp_status cd_join_count_votes(cd_join *join, uint64_t *votes, cddp_error *err);
/* With throw_on_early_termination: lets the active ranks know, and fails. */
cddp_status cd_join_stop_early(cd_join *join, uint64_t active, cddp_error *err);
