/* SPDX-License-Identifier: Apache-2.0 */
/* Which optimizer steps when, and at which rate, read from the plan by the reference's own code.
**
** Note [Two forms of a rate] A rate falls by a factor per step. The closed form, lr·decay^step, is
** what a run is judged by: repeated multiplication is off by at most one rounding per step. The
** reference itself steps at the rate of the step before, times the factor: the rounding that the
** plan declares, so that its updates have the bits of a right run.
*/
#pragma once
#include "cddp/plan.h"

/* The optimizers of a plan; where it lists none, the default of keys.def. */
size_t cd_rates_optimizer_count(const cddp_plan *plan);
/* The rank's own rate in the first step. */
double cd_rates_first(const cddp_plan *plan, uint32_t rank, size_t optimizer);
/* ZRO-11: the first step at which it can step. */
uint32_t cd_rates_first_step(const cddp_plan *plan, const cddp_plan_settings *settings,
                             size_t optimizer);
typedef struct cd_rates_place {
    uint32_t rank, step;
    size_t optimizer;
} cd_rates_place;
bool cd_rates_is_due(const cddp_plan *plan, const cddp_plan_settings *settings,
                     const cd_rates_place *place);
/* See Note [Two forms of a rate] */
double cd_rates_closed(double lr, double decay, uint32_t step);
double cd_rates_next(double rate, double decay);
/* How far the closed form and repeated multiplication can be apart, relative to the rate. */
double cd_rates_bound(uint32_t step);
