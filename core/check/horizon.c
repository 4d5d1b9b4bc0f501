/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/horizon.h"

#include "cddp/status.h"

/* A rank that shadows the others takes no steps: it stands where they are. */
typedef struct progress {
    int64_t step; /* + 1; 0: unknown */
    bool is_shadow;
} progress;

void cd_horizon_init(cd_horizon *h, const cddp_allocator *allocator)
{
    *h = (cd_horizon){.world = 0};
    cd_ranks_init(&h->steps, allocator, sizeof(progress));
}

void cd_horizon_fini(cd_horizon *h) { cd_ranks_fini(&h->steps); }

/* What a run without any mistake does not show. Checks freeze it by what they find themselves. */
static bool is_sign(const cddp_event *e)
{
    switch (e->kind) {
    case CDDP_EV_compare:
        return e->as.compare.bad != 0;
    case CDDP_EV_collective_done:
        return e->as.collective_done.status != CDDP_OK;
    case CDDP_EV_misshown:
    case CDDP_EV_contribution:
    case CDDP_EV_uncompared:
    case CDDP_EV_group_abort:
    case CDDP_EV_waiting_for:
        return true;
    default:
        return false;
    }
}

/* The world reports these of a rank, at no step. */
static bool is_of_world(const cddp_event *e)
{
    return e->kind == CDDP_EV_rank_end || e->kind == CDDP_EV_fault ||
           e->kind == CDDP_EV_waiting_for || e->rank >= CD_RANKS_MAX;
}

void cd_horizon_learn(cd_horizon *h, const cddp_event *e)
{
    if (is_sign(e)) h->is_frozen = true;
    if (is_of_world(e)) return;
    h->now = e->step;
    if (e->kind == CDDP_EV_group && e->as.group.members > (int64_t)h->world &&
        e->as.group.members <= (int64_t)CD_RANKS_MAX)
        h->world = (uint32_t)e->as.group.members;
    progress *p = cd_ranks_add(&h->steps, e->rank);
    if (p == NULL) return;
    if (e->kind == CDDP_EV_join_notify && p->is_shadow == (e->as.join_notify.active != 0)) {
        p->is_shadow = !p->is_shadow;
        h->is_stale = true;
    }
    if (p->is_shadow && h->least > e->step) h->now = h->least;
    if (p->step == (int64_t)e->step + 1) return;
    h->known += p->step == 0;
    p->step = (int64_t)e->step + 1;
    h->is_stale = true;
}

void cd_horizon_freeze(cd_horizon *h)
{
    if (h != NULL) h->is_frozen = true;
}

static uint32_t find_least(const cd_horizon *h)
{
    int64_t least = INT64_MAX;
    for (uint32_t r = 0; r < h->steps.count; r++) {
        const progress *p = cd_ranks_find(&h->steps, r);
        if (p->step != 0 && !p->is_shadow && p->step < least) least = p->step;
    }
    if (least == INT64_MAX) return h->least; /* all shadow: the last inputs are used up */
    return h->known > 0 && h->known >= h->world ? (uint32_t)(least - 1) : 0;
}

uint32_t cd_horizon_get(cd_horizon *h)
{
    if (h->is_frozen || h->world == 0) return 0;
    if (h->is_stale) h->least = find_least(h);
    h->is_stale = false;
    return h->least > CD_HORIZON_STEPS ? h->least - CD_HORIZON_STEPS : 0;
}
