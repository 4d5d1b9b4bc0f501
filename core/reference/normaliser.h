/* SPDX-License-Identifier: Apache-2.0 */
/* By what the plan divides a loss, found by the reference's own code.
**
** A loss is a weighted sum, divided by nothing, by what its own forward has, or by what an average
** forward of the step has: of samples, or of tokens (train.loss, train.objective).
**
** Lifetime   init → find*; there is nothing to give back. Borrows everything it is given.
** Threads    one thread.
*/
#pragma once
#include "core/plan/replica/replica.h"
#include "core/reference/samples.h"

typedef struct cd_normaliser {
    const cd_replica *replica; /* counts tokens */
    cd_samples *samples;
    /* of one step, over all ranks and micro-steps */
    uint64_t step; /* + 1; 0: of none yet */
    int64_t forwards, sample_count, token_count;
    bool computes_objective; /* losses are divided as train.objective says, not train.loss */
} cd_normaliser;

void cd_normaliser_init(cd_normaliser *normaliser, const cd_replica *replica, cd_samples *samples);
typedef struct cd_forward_place {
    const cd_micro *micro;
    uint32_t forward;
} cd_forward_place;
/* The divisor of one forward of a micro-step; 0: none. settings: of the rank. */
cddp_status cd_normaliser_find(cd_normaliser *normaliser, const cddp_plan_settings *settings,
                               const cd_forward_place *place, double *divisor,
                               cddp_error *err) CDDP_MUST_CHECK;
/* The same of an [[output]]. */
cddp_status cd_normaliser_find_output(cd_normaliser *normaliser, const cddp_plan_settings *settings,
                                      const cd_forward_place *place, size_t table, double *divisor,
                                      cddp_error *err) CDDP_MUST_CHECK;
/* All that a pass needs of them. */
cddp_status cd_normaliser_fill(cd_normaliser *normaliser, const cddp_plan_settings *settings,
                               const cd_forward_place *place, cd_pass *pass,
                               cddp_error *err) CDDP_MUST_CHECK;
