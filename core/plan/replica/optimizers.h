/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers of a replica: which parameters the plan gives to each, and their state.
**
** Not here: when one steps and at which rate, and how an optimizer is cut into the ranks' pieces.
**
** Lifetime   made and dropped with their replica.
*/
#pragma once
#include "cddp/ddp.h"
#include "cddp/plan.h"
#include "core/model/optim/optimizer.h"
#include "core/tensor/blob.h"

typedef struct cd_replica cd_replica;

typedef struct cd_replica_optimizer {
    cd_optimizer *optimizer;
    const char *name;
    cddp_selector steps;
    double lr;
    uint32_t *ordinals; /* (count) module parameters that it owns */
    cddp_grad **grads;  /* (count) their slots */
    size_t count;
    /* (count) which of the optimizer's pieces belongs to the parameter, -1: none; NULL: the
    ** optimizer is over whole parameters */
    int64_t *pieces;
    bool in_backward;               /* DDP has each parameter stepped when its bucket is reduced */
    cddp_optimizer_overlap overlap; /* with it: how */
} cd_replica_optimizer;

typedef struct cd_optimizer_pieces {
    const cd_optimizer_parameter *items; /* (count) */
    size_t count;
} cd_optimizer_pieces;

/* Cuts an optimizer that the plan shards into the pieces that one rank steps. */
typedef struct cd_optimizer_cutter {
    void *context;
    /* does: fills .pieces of the optimizer, and finds the pieces (borrowed as long as the optimizer
    ** lives); called for sharded optimizers only. whole: (.count) */
    cddp_status (*cut)(void *context, size_t index, cd_replica_optimizer *optimizer,
                       const cd_optimizer_parameter *whole, cd_optimizer_pieces *pieces,
                       cddp_error *err);
} cd_optimizer_cutter;

/* Slots of all optimizers of a replica: per optimizer and parameter CD_OPTIMIZER_SLOTS_MAX entries,
** undefined where there is none. Arrays have cd_replica_slot_count entries; parameters may be
** NULL. */
size_t cd_replica_slot_count(const cd_replica *replica);
void cd_replica_get_slots(const cd_replica *replica, cddp_tensor *tensors, int32_t *parameters);
/* The state of all optimizers, and back. */
cddp_status cd_replica_save_optimizers(const cd_replica *replica, cd_blob *blob,
                                       cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_replica_load_optimizers(cd_replica *replica, const cddp_state_reader *reader,
                                       cddp_error *err) CDDP_MUST_CHECK;

/* Are buckets assigned to the ranks, each of which steps its own (ZRO-12)? */
bool cd_replica_assigns_buckets(const cd_replica *replica, size_t optimizer);
/* Does the plan cut an optimizer into the ranks' parts? */
bool cd_replica_is_sharded(const cd_replica *replica);
/* The optimizer's own number of its k-th parameter; -1: another rank steps it. */
int64_t cd_replica_find_piece(const cd_replica_optimizer *optimizer, size_t k);

/* ---- between the files of a replica ---- */
/* cutter: NULL: every optimizer is whole. */
cddp_status cd_replica_make_optimizers(cd_replica *replica, const cd_optimizer_cutter *cutter,
                                       cddp_error *err) CDDP_MUST_CHECK;
void cd_replica_drop_optimizers(cd_replica *replica);
