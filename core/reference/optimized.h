/* SPDX-License-Identifier: Apache-2.0 */
/* What link 14 needs of a plan and of a replica: the formula of each optimizer, and the state of
** its parameters.
**
** Threads    no state.
*/
#pragma once
#include "core/oracle/oracle.h"
#include "core/plan/replica/replica.h"

/* Of a step, from the plan alone. formulas: (optimizer_count of the plan, at least 1) */
void cd_optimized_plan(const cddp_plan *plan, const cddp_plan_settings *settings, uint32_t step,
                       cd_formula *formulas);
size_t cd_optimized_count(const cd_replica *replica);
/* Views of the state as it is now. entries: (cd_optimized_count) */
void cd_optimized_collect(const cd_replica *replica, cd_oracle_optimized *entries);
