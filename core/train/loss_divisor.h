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
} cd_loss_divisor;

void cd_loss_divisor_init(cd_loss_divisor *divisor, const cd_replica *replica);
void cd_loss_divisor_fini(cd_loss_divisor *divisor); /* accepts a zeroed one */
/* By what the losses of a forward are divided: pass->divisor, and pass->terms where outputs have
** losses apart; 0: by nothing. pass: with its micro-step and samples. */
cddp_status cd_loss_divisor_find(cd_loss_divisor *divisor, cd_pass *pass,
                                 cddp_error *err) CDDP_MUST_CHECK;
