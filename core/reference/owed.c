/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the plan of one rank and counts what must be compared. A step that the plan itself leaves
** in the middle of a backward owes nothing: what was judged of it depends on where it was left.
*/
#include "core/reference/owed.h"

#include "core/plan/micro.h"
#include "core/reference/rates.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

/* What one step of a rank adds up to. */
typedef struct step_count {
    uint64_t reductions, with_forward, updates;
} step_count;

static bool is_any_due(const cd_owing_rank *r, uint32_t step)
{
    for (size_t i = 0; i < cd_rates_optimizer_count(r->plan); i++)
        if (cd_rates_is_due(r->plan, r->settings, i, step)) return true;
    return false;
}

/* An overflow makes a step skip, which the gradients decide and not the plan. */
static bool updates_depend_on_values(const cd_owing_rank *r) { return r->settings->amp.enable; }

static step_count count_step(const cd_owing_rank *r, uint32_t step)
{
    step_count found = {0};
    bool has_stepped = false, is_due = is_any_due(r, step) && !updates_depend_on_values(r);
    cd_micro micro = {.skip = CDDP_SKIP_ALL};
    for (uint32_t m = 0; m < r->settings->train.micro_steps; m++) {
        cd_micro_resolve(r->plan, r->settings, (cd_micro_place){r->rank, step, m}, &micro);
        const bool contributes = cd_micro_contributes(&micro);
        const bool is_last = m + 1 == r->settings->train.micro_steps;
        if (contributes && micro.abort_after > 0) return (step_count){0};
        if (contributes && micro.early_step) {
            found.updates += is_due && micro.skip != CDDP_SKIP_STEP;
            has_stepped = true;
        }
        if (contributes && micro.sync && !is_last) {
            found.reductions++;
            found.with_forward++;
        }
    }
    if (!has_stepped) {
        found.reductions++;
        found.with_forward += cd_micro_contributes(&micro);
        found.updates += is_due && micro.skip != CDDP_SKIP_STEP;
    }
    return found;
}

cd_owed cd_owed_count(const cd_owing_rank *rank)
{
    cd_owed owed = {0};
    for (uint32_t step = 0; step < rank->settings->train.steps; step++) {
        if (!cd_rank_has_step(rank->plan, rank->settings, rank->rank, step)) break;
        const step_count found = count_step(rank, step);
        owed.presence += found.reductions * rank->parameter_count;
        owed.buffers += found.with_forward * rank->buffer_count;
        owed.updates += found.updates * rank->updated_count;
    }
    return owed;
}

void cd_owed_emit(const cd_owing_rank *rank, struct cddp_tracer *tracer)
{
    const cd_owed owed = cd_owed_count(rank);
    CD_EMIT(tracer, owed, NULL, .link = CD_LINK_PRESENCE, .count = (int64_t)owed.presence);
    CD_EMIT(tracer, owed, NULL, .link = CD_LINK_BUFFER, .count = (int64_t)owed.buffers);
    CD_EMIT(tracer, owed, NULL, .link = CD_LINK_UPDATE, .count = (int64_t)owed.updates);
}
