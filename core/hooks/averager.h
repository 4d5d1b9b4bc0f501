/* SPDX-License-Identifier: Apache-2.0 */
/* Model averaging for local SGD: every so many steps the parameters of a group are averaged
** (AVG-01…05).
**
** Periodic: one level, counted from the end of the warm-up. Hierarchical: several levels. The level
** that averages at a step is the one with the largest period that divides the step number. The step
** number is not counted from the warm-up, so the phases differ when the warm-up is no multiple of
** the period (AVG-04).
**
** Lifetime   created on every rank of the group, which is borrowed. Creation is collective: it
**            makes the groups of the blocks.
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
    /* (parameter_count) borrowed, or NULL; each step sets over how many ranks a parameter was
    ** averaged, 0: not at all */
    uint32_t *averaged;
} cd_averager_options;

cddp_status cd_averager_create(const cd_averager_options *options, cd_averager **averager,
                               cddp_error *err);
void cd_averager_destroy(cd_averager *averager); /* accepts NULL */

/* The size of the group that would average now; 0: none. For parameters without their own
** period. */
uint32_t cd_averager_get_due(const cd_averager *averager);

/* Called once after every optimizer step. Averages each parameter whose gradient is defined and
** whose period is over; all ranks must agree on which have gradients. It makes one flat copy in the
** widest dtype, divides, sums and copies back (AVG-02). Momentum is not averaged. Blocks. */
cddp_status cd_averager_step(cd_averager *averager, const cddp_tensor *parameters,
                             cddp_grad *const *gradients, size_t count, cddp_error *err);

/* LSG-04: the one number that a checkpoint keeps. */
uint64_t cd_averager_get_step(const cd_averager *averager);
void cd_averager_set_step(cd_averager *averager, uint64_t step);
