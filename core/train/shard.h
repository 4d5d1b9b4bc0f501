/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of a sharded optimizer (ZeRO stage 1): which elements it steps, and how all ranks
** come by the rest.
**
**   parameters   each parameter has an owner, found by greedy load (ZRO-01); after the step every
**                owner broadcasts its parameters, rank by rank, in the order in which they were
**                assigned (ZRO-02)
**   flat         all parameters form one vector, padded to a multiple of the ranks; each rank steps
**                its slice, and the slices are all-gathered. An element-wise optimizer gives the
**                same bits as one that has everything
**
** A part is a list of pieces, at most one of each parameter. The optimizer of a rank is an ordinary
** one over these pieces, so its state, its checkpoint and what a missing gradient means are those
** of any other.
**
** Lifetime   create → (take_gradients → step of the optimizer → exchange)* → destroy. Borrows the
**            parameters' storage and gradient slots. Allocates at create only.
** Threads    the rank's.
** Errors     what cannot be cut is refused at create, by name (ZRO-08).
*/
#pragma once
#include "cddp/comm.h"
#include "cddp/keys.h"
#include "core/model/optim/optimizer.h"
#include "core/plan/plan.h"

typedef struct cd_shard_options {
    const char *optimizer; /* its name, borrowed until destroy */
    cddp_plan_optimizer_shard kind;
    cddp_plan_shard_order order;
    cddp_plan_shard_padding padding;
    uint32_t rank, world;
    const cd_optimizer_parameter *parameters; /* (parameter_count) of the whole optimizer; copied */
    size_t parameter_count;
    const cddp_allocator *allocator;
} cd_shard_options;

typedef struct cd_shard cd_shard;

cddp_status cd_shard_create(const cd_shard_options *options, cd_shard **shard,
                            cddp_error *err) CDDP_MUST_CHECK;
void cd_shard_destroy(cd_shard *shard); /* accepts NULL */

/* The pieces of this rank, in the order of the parameters; borrowed until destroy. */
const cd_optimizer_parameter *cd_shard_get_pieces(const cd_shard *shard, size_t *count);
/* The piece of a parameter of the whole optimizer; -1: this rank has none. */
int64_t cd_shard_find(const cd_shard *shard, size_t parameter);
/* Makes the gradients of the pieces those that the parameters have now. */
cddp_status cd_shard_take_gradients(cd_shard *shard, cddp_error *err) CDDP_MUST_CHECK;
/* After the step: all ranks of the group call it, and each parameter becomes what its ranks made of
** it. */
cddp_status cd_shard_exchange(cd_shard *shard, cddp_group *group, cddp_error *err) CDDP_MUST_CHECK;
