/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/rates.h"

#include "core/plan/plan.h"

size_t cd_rates_optimizer_count(const cddp_plan *plan) { return cd_plan_optimizer_count(plan); }

double cd_rates_first(const cddp_plan *plan, uint32_t rank, size_t optimizer)
{
    return cd_plan_optimizer_of(plan, rank, optimizer).lr;
}

uint32_t cd_rates_first_step(const cddp_plan *plan, const cddp_plan_settings *settings,
                             size_t optimizer)
{
    switch (plan->optimizer_count > 0 ? plan->optimizers[optimizer].overlap
                                      : CDDP_PLAN_OVERLAP_NONE) {
    case CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP:
    case CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED:
        return settings->ddp.static_graph ? 3 : 2;
    default:
        return 0;
    }
}

bool cd_rates_is_due(const cddp_plan *plan, const cddp_plan_settings *settings,
                     const cd_rates_place *at)
{
    const cddp_plan_optimizer own = cd_plan_optimizer_of(plan, at->rank, at->optimizer);
    return cddp_selector_has(&own.steps, at->step) &&
           at->step >= cd_rates_first_step(plan, settings, at->optimizer);
}

/* decay^step by squaring: at most 2·log2(step) roundings. */
double cd_rates_closed(double lr, double decay, uint32_t step)
{
    double power = 1.0, square = decay;
    for (uint32_t bits = step; bits > 0; bits >>= 1) {
        if ((bits & 1u) != 0) power *= square;
        square *= square;
    }
    return lr * power;
}

double cd_rates_next(double rate, double decay) { return rate * decay; }

/* A squaring repeats the error of what is squared, so the closed form is off by no more than step
** roundings either; one more for the product with lr. */
double cd_rates_bound(uint32_t step) { return step == 0 ? 0 : (2.0 * step + 4) * 0x1p-53; }
