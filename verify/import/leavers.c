/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/leavers.h"

#include "cddp/world.h"
#include "core/trace/tracer.h"

#include <string.h>

static void note_step(cd_leaver *l, uint32_t step)
{
    if (step <= l->step || step == UINT32_MAX) return; /* outside of steps */
    l->step = step;
    l->begins[1] = l->begins[0];
    l->begins[0] = l->work;
}

void cd_leaver_push(cd_leaver *l, const cddp_event *e)
{
    note_step(l, e->step);
    switch (e->kind) {
    case CDDP_EV_grad_local:
    case CDDP_EV_grad_final:
    case CDDP_EV_collective_post:
    case CDDP_EV_optimizer_step:
        l->work++;
        break;
    case CDDP_EV_join_notify:
        l->joins = true;
        break;
    case CDDP_EV_mark:
        l->has_exited |= e->text != NULL && strcmp(e->text, CD_TRACER_LEFT_BY_EXIT) == 0;
        break;
    case CDDP_EV_rank_end:
        l->has_ended = e->as.rank_end.end == CDDP_RANK_RETURNED && e->as.rank_end.status == CDDP_OK;
        l->has_failed = e->as.rank_end.end == CDDP_RANK_CRASHED && e->as.rank_end.detail != 0;
        break;
    default:
        break;
    }
}

void cd_leavers_settle(cd_leaver *all, size_t count)
{
    size_t open = 0, ended = 0;
    uint64_t most = 0, least = UINT64_MAX;
    bool has_left = false;
    for (size_t i = 0; i < count; i++) {
        if (all[i].joins) return;
        open += all[i].is_open;
        ended += all[i].has_ended;
        if (all[i].is_open && all[i].work > most) most = all[i].work;
    }
    for (size_t i = 0; i < count && open > 0; i++) {
        cd_leaver *l = &all[i];
        const bool is_odd = open > ended;
        const bool may_leave = l->has_ended && (l->has_exited || is_odd);
        l->has_left_early =
            may_leave && (l->work < most || (l->work == most && l->has_exited && is_odd));
        if (!l->has_left_early && !l->has_failed) continue;
        has_left = true;
        if (l->begins[1] < least) least = l->begins[1];
    }
    for (size_t i = 0; i < count && has_left; i++)
        all[i].was_ended = all[i].is_open && all[i].work >= least;
}
