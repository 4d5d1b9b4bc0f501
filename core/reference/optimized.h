/* SPDX-License-Identifier: Apache-2.0 */
/* What link 14 needs of a plan and of a replica: the formula of each optimizer, and the state of
** its parameters.
**
** Threads    no state.
*/
#pragma once
#include "core/oracle/oracle.h"
#include "core/plan/replica/replica.h"

typedef struct cd_optimized_place {
    uint32_t rank, step;
} cd_optimized_place;
/* Of a step of a rank, from the plan alone. formulas: (optimizer_count of the plan, at least 1) */
void cd_optimized_plan(const cddp_plan *plan, const cddp_plan_settings *settings,
                       const cd_optimized_place *place, cd_formula *formulas);
size_t cd_optimized_count(const cd_replica *replica);
/* Views of the state as it is now. entries: (cd_optimized_count) */
void cd_optimized_collect(const cd_replica *replica, cd_oracle_optimized *entries);
/* The settings of an optimizer, as the plan has them. */
void cd_optimized_settings(const cd_formula *formula, double settings[CD_ORACLE_SETTINGS]);
