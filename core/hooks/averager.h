/* SPDX-License-Identifier: Apache-2.0 */
/* Model averaging for local SGD: every so many steps the parameters of a group are averaged
** (AVG-01…05).
**
** Periodic: one level, counted from the end of the warm-up. Hierarchical: several levels; at a step
** the level with the largest period that divides the step itself averages (not the steps since the
** warm-up: the two differ in phase when the warm-up is no multiple of the period, AVG-04).
**
** Lifetime   created on every rank of the group, which is borrowed; collective, because it makes
**            the groups of blocks.
** Threads    the rank's thread.
** Errors     refused settings are named.
*/
#pragma once
#include "cddp/comm.h"

typedef struct cd_averager cd_averager;

typedef struct cd_averager_level {
    uint64_t period;
    uint32_t group_size; /* consecutive ranks; the last level's is the whole group */
} cd_averager_level;

#define CD_AVERAGER_LEVELS_MAX 8

typedef struct cd_averager_options {
    cddp_group *group;
    const cd_averager_level *levels; /* (level_count) periods and sizes strictly ascending */
    uint32_t level_count;
    uint64_t warmup_steps;
    bool hierarchical; /* else level_count is 1 */
    /* (parameter_count) each parameter's own, 0: that of the level; copied. Periodic only; NULL:
    ** none */
    const uint64_t *periods;
    size_t parameter_count;
} cd_averager_options;

cddp_status cd_averager_create(const cd_averager_options *options, cd_averager **averager,
                               cddp_error *err);
void cd_averager_destroy(cd_averager *averager); /* accepts NULL */

/* The size of the group that would average now; 0: nobody does. Without periods of their own: those
** parameters. */
uint32_t cd_averager_get_due(const cd_averager *averager);

/* One call after every optimizer step. Averages the parameters whose gradient is defined (all ranks
** must agree on which those are) and whose period is over: one flat copy in the widest of their
** dtypes, divided, then summed, then copied back (AVG-02). Momentum is not averaged. Blocks. */
cddp_status cd_averager_step(cd_averager *averager, const cddp_tensor *parameters,
                             cddp_grad *const *gradients, size_t count, cddp_error *err);

/* LSG-04: the one number that a checkpoint keeps. */
uint64_t cd_averager_get_step(const cd_averager *averager);
void cd_averager_set_step(cd_averager *averager, uint64_t step);
