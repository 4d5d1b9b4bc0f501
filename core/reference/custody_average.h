/* SPDX-License-Identifier: Apache-2.0 */
/* What a model averager must do to parameters, by the plan alone: which it averages at a step, and
** what an average keeps.
**
** Lifetime   read → take before and after an average. The plan is borrowed.
** Threads    the rank's.
*/
#pragma once
#include "cddp/plan.h"
#include "cddp/trace.h"
#include "core/plan/plan.h"
#include "core/reference/observed.h"
#include "core/tensor/numbers.h"

typedef struct cd_custody_averager {
    const cddp_plan_averager *plan;
    uint64_t seed;
    uint32_t rank, world_size;
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    uint32_t level_count;
} cd_custody_averager;
/* False: there is none. */
bool cd_custody_averager_read(cd_custody_averager *averager, const cddp_plan *plan,
                              const cddp_plan_settings *settings, uint32_t rank);

/* The ranks of the block over which this parameter is averaged in this step; 0: it stays. */
uint32_t cd_custody_averager_due(const cd_custody_averager *averager, uint32_t step,
                                 const char *parameter);

/* Weighted sums over what is averaged, which an average over a block keeps in total. */
#define CD_FUNCTIONALS 4
typedef struct cd_functional_sums {
    double sums[CD_FUNCTIONALS];
    double bounds[CD_FUNCTIONALS]; /* what rounding may do to each */
    size_t tensors;
    int64_t added; /* elements */
} cd_functional_sums;
/* Of half types and of others apart: what may round away in one would hide a mistake in the
** other. */
#define CD_FUNCTIONAL_WIDTHS 2
typedef struct cd_functionals {
    cd_functional_sums of[CD_FUNCTIONAL_WIDTHS];
} cd_functionals;

/* What is averaged now: a parameter, by its ordinal, over blocks of so many ranks. */
typedef struct cd_averaged {
    uint32_t step, block;
    size_t ordinal;
    const cddp_tensor *tensor;
} cd_averaged;
cddp_status cd_functionals_add(cd_functionals *functionals, const cd_custody_averager *averager,
                               const cd_averaged *averaged, cd_numbers *numbers,
                               cddp_error *err) CDDP_MUST_CHECK;
/* Over all ranks, what was before is what is after. */
void cd_functionals_state(const cd_functionals *before, const cd_functionals *after,
                          struct cddp_tracer *tracer);

/* An average of which every bit follows once the sum over the ranks is seen: what a rank gives to
** it is each parameter ÷ the ranks, in the order of the model and the widest of their dtypes (two
** half types that differ meet in f32); what came back is what each parameter becomes. */
typedef struct cd_awaited_average {
    const cddp_allocator *allocator;
    double *before; /* (count) */
    size_t count, room;
    uint32_t ranks;
    cddp_dtype dtype;
    bool is_open, is_mixed; /* is_mixed: blocks differ */
} cd_awaited_average;
void cd_awaited_average_fini(cd_awaited_average *awaited);
void cd_awaited_average_begin(cd_awaited_average *awaited);
/* What is averaged next; numbers: its elements before. */
cddp_status cd_awaited_average_add(cd_awaited_average *awaited, const cd_averaged *averaged,
                                   const cd_numbers *numbers, cddp_error *err) CDDP_MUST_CHECK;
/* Is this that sum? It is awaited once. One of as many elements in another dtype or over other
** ranks is none, which cd_awaited_average_state says. */
bool cd_awaited_average_takes(cd_awaited_average *awaited, const cd_observed_summed *summed);
/* States that this rank gave what it has to. False: no bits follow, since dtype or ranks are
** others. */
bool cd_awaited_average_state(const cd_awaited_average *awaited, const cd_observed_summed *summed,
                              struct cddp_tracer *tracer);
