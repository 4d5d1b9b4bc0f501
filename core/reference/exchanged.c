/* SPDX-License-Identifier: Apache-2.0 */
/* The order of the program's collectives in a step: by place, and there by position in the plan. */
#include "core/reference/exchanged.h"

#include "core/plan/plan.h"
#include "core/plan/plan_check.h"
#include "core/reference/planned.h"

bool cd_exchanged_find_member(const cddp_plan *plan, const cddp_plan_collective *planned,
                              uint32_t rank, uint32_t *member, uint32_t *members)
{
    const cddp_plan_group *group =
        planned->group != NULL ? cd_plan_find_group(plan, planned->group) : NULL;
    *member = rank;
    *members = (uint32_t)plan->world.size;
    if (group == NULL || group->members.count == 0) return true;
    *members = (uint32_t)group->members.count;
    for (uint32_t i = 0; i < *members; i++) {
        *member = i;
        if (group->members.items[i] == rank) return true;
    }
    return false;
}

static bool leaves_result(const cd_exchanged_place *at, const cddp_plan_collective *c)
{
    uint32_t member, members;
    if (c->numel == 0 || c->op == CDDP_COLLECTIVE_BARRIER || c->op == CDDP_COLLECTIVE_SEND ||
        !cddp_selector_has(&c->ranks, at->rank) || !cddp_selector_has(&c->steps, at->step) ||
        !cd_exchanged_find_member(at->plan, c, at->rank, &member, &members))
        return false;
    const bool is_of_root = c->op == CDDP_COLLECTIVE_GATHER || c->op == CDDP_COLLECTIVE_REDUCE;
    return !is_of_root || member == c->root;
}

/* The last micro-step is not run at all: its places are not reached. */
static bool reaches(const cd_micro *last, int64_t place)
{
    return place == CDDP_PLACE_AFTER_STEP || last->skip != CDDP_SKIP_ALL;
}

static bool leaves_early(const cd_exchanged_place *at, cd_micro *last)
{
    bool leaves = false;
    for (uint32_t m = 0; m < at->settings->train.micro_steps; m++) {
        cd_planned_micro(at->plan, at->settings, (cd_micro_place){at->rank, at->step, m}, last);
        leaves |= last->abort_after > 0;
    }
    return leaves;
}

size_t cd_exchanged_next(cd_exchanged_turn *turn, const cd_exchanged_place *at, size_t shown)
{
    cd_micro last = {.skip = CDDP_SKIP_ALL};
    const bool is_first = turn->step != at->step + 1;
    const cd_exchanged_turn before = *turn;
    if (leaves_early(at, &last)) return shown < at->plan->collective_count ? shown : SIZE_MAX;
    for (int64_t place = is_first ? 0 : before.place; place <= CDDP_PLACE_AFTER_STEP; place++) {
        const bool is_same = !is_first && place == before.place;
        for (size_t i = is_same ? before.position + 1 : 0; i < at->plan->collective_count; i++) {
            const cddp_plan_collective *c = &at->plan->collectives[i];
            if (c->place != place || !reaches(&last, place) || !leaves_result(at, c)) continue;
            *turn = (cd_exchanged_turn){at->step + 1, place, i};
            return i;
        }
    }
    return SIZE_MAX;
}
