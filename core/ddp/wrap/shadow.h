/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that ran out of inputs shadows the collectives of those that have not (JON-04…12).
** core/ddp/modes/join.h has the questions that the ranks ask one another.
**
** Lifetime   a join context: begin_join → end_join; the buckets stay for the next one.
*/
#pragma once
#include "core/ddp/parts/bucket.h"
#include "core/trace/tracer.h"

typedef struct cd_shadow {
    bool in_context;
    /* Those that joined together: a chain from the first one, in the order of their join_begin. It
    ** stays until the first one joins again, or one of them goes. */
    struct cddp_ddp *first, *next;      /* first: of the others */
    const cd_tracer_operands *operands; /* who looked at reductions when the join began */
    /* (optimizer_state_count) borrowed until join_end returned */
    const cddp_tensor *optimizer_state;
    size_t optimizer_state_count;
    /* zeros in the reducer's layout; made on first need, again after a rebuild */
    cd_bucket_set buckets;
    bool is_made, passed_first_static;
    uint64_t growth_count;
} cd_shadow;

void cd_shadow_fini(cd_shadow *shadow); /* accepts a zeroed one; leave the chain before */
void cd_shadow_leave(cddp_ddp *ddp);    /* the wrapper goes, or joins anew */
cddp_status cd_shadow_begin_join(cddp_ddp *ddp, const cddp_join_options *options, cddp_error *err);
/* A forward in a context of several: each wrapper has one per iteration, the first one first. */
cddp_status cd_shadow_check_turn(const cddp_ddp *ddp, cddp_error *err);
/* Returns when every rank has joined. */
cddp_status cd_shadow_end_join(cddp_ddp *ddp, cddp_error *err);
