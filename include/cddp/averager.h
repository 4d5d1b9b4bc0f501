/* SPDX-License-Identifier: Apache-2.0 */
/* Model averaging for local SGD: every so many steps the parameters of a group are averaged
** (AVG-01…05).
**
** Periodic: one level, counted from the end of the warm-up. Hierarchical: several levels. The level
** that averages at a step is the one with the largest period that divides the step number. The step
** number is not counted from the warm-up, so the phases differ when the warm-up is no multiple of
** the period (AVG-04).
**
**     cddp_averager_create → (the optimizer steps → cddp_averager_step)* → cddp_averager_destroy
**
** Not here: gradients that stay local until then, which the hook `post_local_sgd` sees to.
**
** Lifetime   created on every rank of the group, which is borrowed. Creation is collective: it
**            makes the groups of the blocks.
** Threads    the rank's thread.
** Errors     settings that contradict each other are refused by name, and so is what is no floating
**            point. A step whose all-reduce fails leaves the parameters as they were.
*/
#pragma once
#include "cddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cddp_averager cddp_averager;

typedef struct cddp_averager_level {
    uint64_t period;
    uint32_t group_size; /* consecutive ranks; the last level's is the whole group */
} cddp_averager_level;

#define CDDP_AVERAGER_LEVELS_MAX 8

typedef struct cddp_averager_options {
    uint32_t size; /* sizeof(cddp_averager_options) known to the writer */
    cddp_group *group;
    /* (level_count) periods grow; sizes do not shrink, and divide the group's. Copied */
    const cddp_averager_level *levels;
    uint32_t level_count;
    bool hierarchical; /* else level_count is 1 */
    uint64_t warmup_steps;
    /* (parameter_count) each parameter's own, 0: that of the level; copied. Periodic only; NULL:
    ** none */
    const uint64_t *periods;
    size_t parameter_count;
    /* (parameter_count) borrowed, or NULL; each step sets over how many ranks a parameter was
    ** averaged, 0: not at all */
    uint32_t *averaged;
} cddp_averager_options;

/* Zeros, and its own size. Fill in group and levels afterwards. */
CDDP_API cddp_averager_options cddp_averager_options_default(void);

CDDP_API cddp_status cddp_averager_create(const cddp_averager_options *options,
                                          cddp_averager **averager,
                                          cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_averager_destroy(cddp_averager *averager); /* accepts NULL */

/* The size of the group that would average now; 0: none. For parameters without their own
** period. */
CDDP_API uint32_t cddp_averager_get_due(const cddp_averager *averager);

/* Called once after every optimizer step. Averages each parameter whose gradient is defined and
** whose period is over; all ranks must agree on which have gradients. It makes one flat copy in the
** widest dtype, divides, sums and copies back (AVG-02). Momentum is not averaged. Blocks. */
CDDP_API cddp_status cddp_averager_step(cddp_averager *averager, const cddp_tensor *parameters,
                                        cddp_grad *const *gradients, size_t count,
                                        cddp_error *err) CDDP_MUST_CHECK;

/* LSG-04: the one number that a checkpoint keeps. */
CDDP_API uint64_t cddp_averager_get_step(const cddp_averager *averager);
CDDP_API void cddp_averager_set_step(cddp_averager *averager, uint64_t step);

#ifdef __cplusplus
}
#endif
