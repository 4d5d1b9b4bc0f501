/* SPDX-License-Identifier: Apache-2.0 */
/* Which collective of the program has ended, as the plan has it: the next one in the step at hand
** that leaves this rank a result.
**
** Threads    the rank's.
** Limits     where the plan leaves a backward early, the next one is not known.
*/
#pragma once
#include "cddp/plan.h"

/* Of one rank. Zeroed: nothing has ended. */
typedef struct cd_exchanged_turn {
    uint32_t step;   /* + 1: of the collective that ended last; 0: none has */
    int64_t place;   /* where in the iteration */
    size_t position; /* among the plan's */
} cd_exchanged_turn;

typedef struct cd_exchanged_place {
    const cddp_plan *plan;
    const cddp_plan_settings *settings; /* of the rank */
    uint32_t rank, step;
} cd_exchanged_place;

/* The rank's place in the group of a collective, and how many members that has. False: it is not a
** member. */
bool cd_exchanged_find_member(const cddp_plan *plan, const cddp_plan_collective *planned,
                              uint32_t rank, uint32_t *member, uint32_t *members);
/* Takes the turn to the collective that must end now: its position among the plan's; SIZE_MAX: none
** is left in this step. shown: what the run says, which is believed where the plan cannot say. */
size_t cd_exchanged_next(cd_exchanged_turn *turn, const cd_exchanged_place *at, size_t shown);
