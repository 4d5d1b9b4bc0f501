/* SPDX-License-Identifier: Apache-2.0 */
/* Activation checkpointing: run a part of the model again in backward instead of keeping its
** activations.
**
** Re-entrant: forward records nothing inside, so its parameters are not reachable from the outputs
** (UNU-10). Backward runs the part with gradients enabled and calls backward inside backward, where
** the hooks of its parameters fire. As in PyTorch, there is no backward when no input wants a
** gradient. Non-reentrant: the nodes are recorded as usual without their saved tensors; the first
** of them that goes back has the part run again and takes the saved tensors from that.
*/
#pragma once
#include "core/model/graph.h"

typedef enum cd_checkpoint_kind {
    CD_CHECKPOINT_NONE,
    CD_CHECKPOINT_REENTRANT,
    CD_CHECKPOINT_NON_REENTRANT
} cd_checkpoint_kind;

/* The part: called in forward and again in backward, with the same context, which lives until the
** next begin. */
typedef cddp_status (*cd_part_fn)(cd_graph *graph, void *context, cd_value *input,
                                  cd_value **output, cddp_error *err);

typedef struct cd_checkpoint {
    cd_checkpoint_kind kind;
    cd_part_fn part;
    void *context;
} cd_checkpoint;

cddp_status cd_checkpoint_run(cd_graph *graph, const cd_checkpoint *checkpoint, cd_value *input,
                              cd_value **output, cddp_error *err) CDDP_MUST_CHECK;

/* Before a node of a non-reentrant segment goes back: its saved tensors are there again. */
cddp_status cd_segment_restore(cd_graph *graph, cd_node *node, cddp_error *err) CDDP_MUST_CHECK;
