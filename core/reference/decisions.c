/* SPDX-License-Identifier: Apache-2.0 */
/* Not here: which events say so (decisions_emit.c), what follows from gradients
** (decisions_judge.c). */
#include "core/reference/decisions.h"

#include "core/base/error.h"
#include "core/reference/planned.h"
#include "core/reference/rates.h"

cddp_status cd_decisions_init(cd_decisions *d, const cd_decisions_options *options, cddp_error *err)
{
    *d = (cd_decisions){.plan = options->plan,
                        .group = options->group,
                        .rank = options->rank,
                        .replica = options->replica,
                        .samples = options->samples,
                        .parts = options->parts,
                        .units = options->units,
                        .memory = options->memory,
                        .knows_scale = true};
    CD_TRY(cddp_plan_rank_settings(d->plan, d->rank, &d->settings, err));
    d->overflows = cd_arena_array(options->memory, cd_rates_optimizer_count(d->plan), sizeof(bool));
    CD_TRY(cd_arena_check(options->memory, err, "the decisions of rank %u", d->rank));
    cd_normaliser_init(&d->normaliser, d->replica, d->samples);
    cd_decided_hook_read(&d->hook, &d->settings);
    cd_scaling_init(&d->scaling, &d->settings.amp);
    return CDDP_OK;
}

/* ---- steps ---- */

uint32_t cd_decisions_count_steps(const cd_decisions *d)
{
    return cd_planned_count_steps(d->plan, &d->settings, d->rank);
}

static void resolve(const cd_decisions *d, cd_micro_place place, cd_micro *micro)
{
    place.rank = d->rank;
    cd_planned_micro(d->plan, &d->settings, place, micro);
}

cd_decided_update cd_decisions_get_update(const cd_decisions *d, uint32_t step, size_t optimizer)
{
    const uint32_t last = (uint32_t)d->settings.train.micro_steps - 1;
    bool skips = false;
    for (uint32_t m = 0; m <= last; m++) {
        cd_micro micro;
        resolve(d, (cd_micro_place){0, step, m}, &micro);
        if (micro.abort_after > 0 || micro.early_step) return CD_UPDATE_UNKNOWN;
        skips = micro.skip == CDDP_SKIP_STEP && m == last;
    }
    if (skips) return CD_UPDATE_SKIP;
    return cd_rates_is_due(d->plan, &d->settings, &(cd_rates_place){d->rank, step, optimizer})
               ? CD_UPDATE_STEP
               : CD_UPDATE_NONE;
}

cd_decided_leaving cd_decisions_get_leaving(const cd_decisions *d, uint32_t step, size_t optimizer)
{
    const cd_rates_place place = {d->rank, step, optimizer};
    bool leaves = false, is_stepped_in = false, skips = false;
    for (uint32_t m = 0; m < d->settings.train.micro_steps; m++) {
        cd_micro micro;
        resolve(d, (cd_micro_place){0, step, m}, &micro);
        leaves |= micro.abort_after > 0;
        is_stepped_in |= micro.early_step;
        skips = micro.skip == CDDP_SKIP_STEP;
    }
    if (!leaves || is_stepped_in) return CD_LEAVING_NONE;
    return !skips && cd_rates_is_due(d->plan, &d->settings, &place) ? CD_LEAVING_ELSE_STEPS
                                                                    : CD_LEAVING_NO_STEP;
}

bool cd_decisions_has_step(const cd_decisions *d, uint32_t step, size_t optimizer)
{
    return cd_decisions_get_update(d, step, optimizer) != CD_UPDATE_SKIP &&
           cd_rates_is_due(d->plan, &d->settings, &(cd_rates_place){d->rank, step, optimizer}) &&
           !d->overflows[optimizer];
}

/* ---- reductions ---- */

static bool synchronises(const cd_micro *micro)
{
    return micro->sync && !micro->bypass && cd_planned_contributes(micro);
}

bool cd_decisions_closes(const cd_decisions *d, cd_micro_place place)
{
    cd_micro micro;
    resolve(d, place, &micro);
    return synchronises(&micro);
}

uint32_t cd_decisions_get_window_first(const cd_decisions *d, cd_micro_place place)
{
    uint32_t first = place.micro_step;
    while (first > 0) {
        cd_micro before;
        resolve(d, (cd_micro_place){0, place.step, first - 1}, &before);
        if (before.sync && cd_planned_contributes(&before)) break;
        first--;
    }
    return first;
}

/* Reductions that the rank closed before a place. */
static const cd_reduction_walk *count_reductions(cd_decisions *d, cd_micro_place place)
{
    cd_reduction_walk *w = &d->walk;
    if (w->step > place.step || (w->step == place.step && w->micro_step > place.micro_step))
        *w = (cd_reduction_walk){0};
    while (w->step < place.step || (w->step == place.step && w->micro_step < place.micro_step)) {
        cd_micro micro;
        resolve(d, (cd_micro_place){0, w->step, w->micro_step}, &micro);
        const bool is_left = micro.abort_after > 0;
        w->closed += synchronises(&micro) && !is_left;
        w->left += synchronises(&micro) && is_left;
        if (++w->micro_step >= d->settings.train.micro_steps) {
            w->micro_step = 0;
            w->step++;
        }
    }
    return w;
}

/* A rank that joined early has counted reductions that it did not close. */
bool cd_decisions_is_before_start(cd_decisions *d, cd_micro_place place)
{
    const cd_reduction_walk *w = count_reductions(d, place);
    return !d->settings.join.enable && w->closed + w->left < cd_decided_hook_start(&d->hook);
}

bool cd_decisions_may_be_before_start(cd_decisions *d, cd_micro_place place)
{
    return !d->settings.join.enable &&
           count_reductions(d, place)->closed < cd_decided_hook_start(&d->hook);
}

uint32_t cd_decisions_get_block(cd_decisions *d, cd_micro_place place)
{
    const uint32_t world = (uint32_t)d->plan->world.size;
    const cd_decided_average average = cd_decided_hook_average(&d->hook);
    const bool has_start = cd_decided_hook_start(&d->hook) > 0;
    if (average == CD_AVERAGE_UNKNOWN) return 0;
    if (average == CD_AVERAGE_ALL || (has_start && cd_decisions_is_before_start(d, place)))
        return world;
    if (has_start && cd_decisions_may_be_before_start(d, place)) return 0;
    const double block = cd_decided_hook_get(&d->hook, "subgroup_size", 0);
    return average == CD_AVERAGE_NONE ? 1 : block > 0 ? (uint32_t)block : world;
}
