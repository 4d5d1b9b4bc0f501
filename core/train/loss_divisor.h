/* SPDX-License-Identifier: Apache-2.0 */
/* By what a loss is divided. See Note [What a sample weighs]
**
** Lifetime   init → find* → fini. Borrows the replica.
** Threads    the rank's.
*/
#pragma once
#include "core/plan/replica/replica.h"
#include "core/train/sampler.h"

typedef struct cd_loss_divisor {
    const cd_replica *replica;
    cd_samplers samplers; /* used when a loss or objective counts over all ranks */
    uint32_t step;        /* + 1; of the two below */
    /* on average over all ranks and micro-steps of a step */
    double samples_per_forward, tokens_per_forward;
    /* losses are normalised as train.objective says, not as train.loss does */
    bool computes_objective;
} cd_loss_divisor;

void cd_loss_divisor_init(cd_loss_divisor *divisor, const cd_replica *replica);
void cd_loss_divisor_fini(cd_loss_divisor *divisor); /* accepts a zeroed one */
/* The divisor of the weighted sum of losses of the forward to which sample `first` of a micro-batch
** belongs; 0: none. */
cddp_status cd_loss_divisor_find(cd_loss_divisor *divisor, const cd_micro *micro,
                                 const cd_micro_batch *samples, uint32_t first, double *found,
                                 cddp_error *err) CDDP_MUST_CHECK;
