/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/rates.h"

/* optimizer.lr and the others of keys.def; an optimizer that nobody lists owns all parameters. */
static const cddp_plan_optimizer unlisted = {.name = "sgd", .lr = 0.125};

size_t cd_rates_optimizer_count(const cddp_plan *plan)
{
    return plan->optimizer_count > 0 ? plan->optimizer_count : 1;
}

const cddp_plan_optimizer *cd_rates_optimizer(const cddp_plan *plan, size_t optimizer)
{
    return plan->optimizer_count > 0 ? &plan->optimizers[optimizer] : &unlisted;
}

uint32_t cd_rates_first_step(const cddp_plan *plan, const cddp_plan_settings *settings,
                             size_t optimizer)
{
    switch (cd_rates_optimizer(plan, optimizer)->overlap) {
    case CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP:
    case CDDP_PLAN_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED:
        return settings->ddp.static_graph ? 3 : 2;
    default:
        return 0;
    }
}

bool cd_rates_is_due(const cddp_plan *plan, const cddp_plan_settings *settings, size_t optimizer,
                     uint32_t step)
{
    return cddp_selector_has(&cd_rates_optimizer(plan, optimizer)->steps, step) &&
           step >= cd_rates_first_step(plan, settings, optimizer);
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
