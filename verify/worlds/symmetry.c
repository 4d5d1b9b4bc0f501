/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks of a plan are interchangeable. */
#include "verify/worlds/symmetry.h"

#include "core/comm/operands.h"
#include "core/plan/plan.h"

#define DEVICE_SHAPE 2 /* of model.device */

const char *cd_world_find_asymmetry(const cddp_plan *plan)
{
    if (plan->settings.model.device != DEVICE_SHAPE)
        return "they hold different values (device shape holds none)";
    if (plan->override_count > 0) return "keys differ by rank";
    if (plan->group_count > 0) return "groups name ranks";
    if (plan->fault_count > 0) return "faults strike a rank";
    if (plan->rendezvous.enable) return "one rank serves the rendezvous";
    if (plan->settings.data.inputs < plan->settings.train.steps || plan->settings.join.enable)
        return "inputs end at different times";
    for (size_t i = 0; i < plan->when_count; i++)
        if (plan->whens[i].ranks.term_count > 0) return "a [[when]] names ranks";
    for (size_t i = 0; i < plan->collective_count; i++)
        if (plan->collectives[i].ranks.term_count > 0 ||
            cd_op_is_rooted(cd_plan_op(&plan->collectives[i])))
            return "a [[collective]] names ranks";
    return NULL;
}
