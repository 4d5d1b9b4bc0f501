/* SPDX-License-Identifier: Apache-2.0 */
/* Of several tables that give a field the last one counts. So tables are read backwards, and a
** field that is known already stays. */
#include "core/reference/planned.h"

#include "core/base/pattern.h"

#include <string.h>

static bool is_meant(const cddp_plan_when *table, const cd_micro_place *place)
{
    return cddp_selector_has(&table->steps, place->step) &&
           cddp_selector_has(&table->ranks, place->rank) &&
           cddp_selector_has(&table->micro_steps, place->micro_step);
}

/* ---- one micro-step ---- */

static void learn(int64_t *known, int64_t given)
{
    if (*known == CDDP_PLAN_UNSET) *known = given;
}

static void learn_list(cddp_text_list *known, const cddp_text_list *given)
{
    if (known->count == 0) *known = *given;
}

static void learn_table(cddp_plan_when *all, const cddp_plan_when *table)
{
    /* in one table the special flag goes before the general one */
    learn(&all->sync_backward, table->sync_backward);
    learn(&all->sync_backward, table->sync);
    learn(&all->sync, table->sync);
    learn(&all->no_sync_depth, table->no_sync_depth);
    learn(&all->forwards, table->forwards);
    learn(&all->backwards, table->backwards);
    learn(&all->backward_each, table->backward_each);
    learn(&all->loss_each, table->loss_each);
    learn(&all->evaluate, table->evaluate);
    learn(&all->grad_mode, table->grad_mode);
    learn(&all->bypass, table->bypass);
    learn(&all->samples, table->samples);
    learn(&all->branch, table->branch);
    learn(&all->ready, table->ready);
    learn(&all->skip, table->skip);
    learn(&all->stop, table->stop);
    learn(&all->poison, table->poison);
    learn(&all->abort_after, table->abort_after);
    learn(&all->early_step, table->early_step);
    learn(&all->touch_buffers, table->touch_buffers);
    learn(&all->touch_parameters, table->touch_parameters);
    learn(&all->replace_buffers, table->replace_buffers);
    learn(&all->create_graph, table->create_graph);
    learn(&all->await_producers, table->await_producers);
    learn(&all->statistics, table->statistics);
    learn(&all->compute_us, table->compute_us);
    learn_list(&all->outputs, &table->outputs);
    learn_list(&all->uses, &table->uses);
    learn_list(&all->ready_order, &table->ready_order);
    if (all->poison_parameter == NULL) all->poison_parameter = table->poison_parameter;
}

static void forget_all(cddp_plan_when *all)
{
    const int64_t unset = CDDP_PLAN_UNSET;
    *all = (cddp_plan_when){.sync = unset,
                            .sync_backward = unset,
                            .no_sync_depth = unset,
                            .forwards = unset,
                            .backwards = unset,
                            .backward_each = unset,
                            .loss_each = unset,
                            .evaluate = unset,
                            .grad_mode = unset,
                            .bypass = unset,
                            .samples = unset,
                            .branch = unset,
                            .ready = unset,
                            .skip = unset,
                            .stop = unset,
                            .poison = unset,
                            .abort_after = unset,
                            .early_step = unset,
                            .touch_buffers = unset,
                            .touch_parameters = unset,
                            .replace_buffers = unset,
                            .create_graph = unset,
                            .await_producers = unset,
                            .statistics = unset,
                            .compute_us = unset};
}

static int64_t or_else(int64_t said, int64_t otherwise)
{
    return said == CDDP_PLAN_UNSET ? otherwise : said;
}

void cd_planned_micro(const cddp_plan *plan, const cddp_plan_settings *settings,
                      cd_micro_place place, cd_micro *micro)
{
    const bool ends_step = (uint64_t)place.micro_step + 1 == settings->train.micro_steps;
    cddp_plan_when all;
    forget_all(&all);
    for (size_t left = plan->when_count; left > 0; left--)
        if (is_meant(&plan->whens[left - 1], &place)) learn_table(&all, &plan->whens[left - 1]);
    *micro =
        (cd_micro){.place = place,
                   .number = settings->train.micro_steps * place.step + place.micro_step,
                   .sync = or_else(all.sync, ends_step) != 0,
                   .sync_backward = or_else(all.sync_backward, ends_step) != 0,
                   .no_sync_depth = (uint32_t)or_else(all.no_sync_depth, 1),
                   .forwards = (uint32_t)or_else(all.forwards, 1),
                   .backwards = (uint32_t)or_else(all.backwards, 1),
                   .backward_each = or_else(all.backward_each, 0) != 0,
                   .loss_each = or_else(all.loss_each, 0) != 0,
                   .evaluate = (cddp_plan_when_evaluate)or_else(all.evaluate, 0),
                   .grad_mode = or_else(all.grad_mode, 1) != 0,
                   .bypass = or_else(all.bypass, 0) != 0,
                   .samples = (uint32_t)or_else(all.samples, (int64_t)settings->data.samples),
                   .branch = (uint32_t)or_else(all.branch, 0),
                   .outputs = all.outputs,
                   .uses = all.uses,
                   .ready = (cddp_plan_when_ready)or_else(all.ready, (int64_t)plan->schedule.ready),
                   .ready_order = all.ready_order,
                   .skip = (cddp_plan_when_skip)or_else(all.skip, CDDP_SKIP_NOTHING),
                   .stop = or_else(all.stop, 0) != 0,
                   .poison = (cddp_plan_when_poison)or_else(all.poison, CDDP_POISON_NOTHING),
                   .poison_parameter = all.poison_parameter,
                   .abort_after = (uint32_t)or_else(all.abort_after, 0),
                   .early_step = or_else(all.early_step, 0) != 0,
                   .touch_buffers = or_else(all.touch_buffers, 0) != 0,
                   .touch_parameters = or_else(all.touch_parameters, 0) != 0,
                   .replace_buffers = or_else(all.replace_buffers, 0) != 0,
                   .create_graph = or_else(all.create_graph, 0) != 0,
                   .await_producers = or_else(all.await_producers, 1) != 0,
                   .statistics = (cddp_plan_when_statistics)or_else(all.statistics, 0),
                   .compute_us = (uint64_t)or_else(all.compute_us, 0)};
}

bool cd_planned_contributes(const cd_micro *micro)
{
    const bool runs = micro->skip == CDDP_SKIP_NOTHING || micro->skip == CDDP_SKIP_STEP;
    return runs && micro->samples != 0 && micro->backwards != 0 && micro->grad_mode;
}

/* ---- steps ---- */

/* NULL: all ranks. */
static const cddp_plan_group *find_group(const cddp_plan *plan, uint32_t rank, uint32_t step)
{
    const char *name = "world";
    uint64_t since = 0; /* the step + 1 in which it was taken */
    for (size_t i = 0; i < plan->when_count; i++) {
        const cddp_plan_when *table = &plan->whens[i];
        if (table->group == NULL || !cddp_selector_has(&table->ranks, rank)) continue;
        uint64_t latest = (uint64_t)step + 1;
        while (latest > 0 && !cddp_selector_has(&table->steps, (uint32_t)latest - 1)) latest--;
        if (latest == 0 || latest < since) continue;
        since = latest;
        name = table->group;
    }
    for (size_t i = 0; i < plan->group_count; i++) {
        const char *other = plan->groups[i].name;
        if (other != NULL && strcmp(other, name) == 0) return &plan->groups[i];
    }
    return NULL;
}

const char *cd_planned_group_name(const cddp_plan *plan, uint32_t rank, uint32_t step)
{
    const cddp_plan_group *group = find_group(plan, rank, step);
    return group != NULL ? group->name : "world";
}

uint32_t cd_planned_group_size(const cddp_plan *plan, uint32_t rank, uint32_t step)
{
    const cddp_plan_group *group = find_group(plan, rank, step);
    if (group == NULL || group->members.count == 0) return (uint32_t)plan->world.size;
    for (size_t i = 0; i < group->members.count; i++)
        if (group->members.items[i] == rank) return (uint32_t)group->members.count;
    return 0;
}

/* The first step of which the rank's group has it no more; steps: as many as there are. */
static uint64_t find_leaving(const cddp_plan *plan, uint32_t rank, uint64_t steps)
{
    uint64_t step = 0;
    if (plan->group_count == 0) return steps;
    while (step < steps && cd_planned_group_size(plan, rank, (uint32_t)step) > 0) step++;
    return step;
}

/* The k-th epoch's first step; k may be the number of epochs. */
static uint64_t epoch_start(const cddp_plan_settings *settings, uint64_t k)
{
    return settings->train.steps * k / settings->join.epochs;
}

uint32_t cd_planned_find_epoch(const cddp_plan_settings *settings, uint32_t step)
{
    return (uint32_t)((uint64_t)step * settings->join.epochs / settings->train.steps);
}

uint32_t cd_planned_get_epoch_end(const cddp_plan_settings *settings, uint32_t epoch)
{
    return (uint32_t)epoch_start(settings, (uint64_t)epoch + 1);
}

/* Steps that the rank makes in one epoch: the first ones of it. */
static uint64_t count_in_epoch(const cddp_plan *plan, const cddp_plan_settings *settings,
                               uint32_t rank, uint64_t epoch)
{
    const uint64_t start = epoch_start(settings, epoch);
    uint64_t count = epoch_start(settings, epoch + 1) - start;
    const uint64_t leaving = find_leaving(plan, rank, start + count);
    if (leaving < start + count) count = leaving > start ? leaving - start : 0;
    if (settings->data.inputs < count) count = settings->data.inputs;
    for (uint64_t step = 0; step < count; step++) {
        for (size_t i = 0; i < plan->when_count; i++) {
            const cddp_plan_when *table = &plan->whens[i];
            if (table->stop == 1 && cddp_selector_has(&table->ranks, rank) &&
                cddp_selector_has(&table->steps, (uint32_t)(start + step)))
                return step;
        }
    }
    return count;
}

uint32_t cd_planned_count_steps(const cddp_plan *plan, const cddp_plan_settings *settings,
                                uint32_t rank)
{
    uint64_t count = 0;
    for (uint64_t epoch = 0; epoch < settings->join.epochs; epoch++)
        count += count_in_epoch(plan, settings, rank, epoch);
    return (uint32_t)count;
}

static bool has_stops(const cddp_plan *plan)
{
    bool found = false;
    for (size_t i = 0; i < plan->when_count; i++)
        found |= plan->whens[i].stop == 1 || plan->whens[i].group != NULL;
    return found;
}

bool cd_planned_has_step(const cddp_plan *plan, const cddp_plan_settings *settings, uint32_t rank,
                         uint32_t step)
{
    if (step >= settings->train.steps) return false;
    const uint32_t epoch = cd_planned_find_epoch(settings, step);
    const uint64_t place = step - epoch_start(settings, epoch);
    if (!has_stops(plan)) return place < settings->data.inputs;
    return place < count_in_epoch(plan, settings, rank, epoch);
}

/* ---- parameters ---- */

bool cd_planned_lists(const cddp_text_list *patterns, const char *name)
{
    bool found = false;
    for (size_t i = 0; !found && i < patterns->count; i++)
        found = cd_pattern_matches(patterns->items[i], name);
    return found;
}

/* The latest step counts, and in it the latest table; a table that gives both unfreezes. */
bool cd_planned_requires_grad(const cddp_plan *plan, cd_micro_place place, const char *name,
                              bool before)
{
    for (size_t steps = (size_t)place.step + 1; plan->when_count > 0 && steps > 0; steps--) {
        const cd_micro_place at = {place.rank, (uint32_t)steps - 1, place.micro_step};
        for (size_t left = plan->when_count; left > 0; left--) {
            const cddp_plan_when *table = &plan->whens[left - 1];
            if (table->freeze.count + table->unfreeze.count == 0 || !is_meant(table, &at)) continue;
            if (cd_planned_lists(&table->unfreeze, name)) return true;
            if (cd_planned_lists(&table->freeze, name)) return false;
        }
    }
    return before;
}

bool cd_planned_unfreezes(const cddp_plan *plan, const char *name)
{
    bool found = false;
    for (size_t i = 0; !found && i < plan->when_count; i++)
        found = cd_planned_lists(&plan->whens[i].unfreeze, name);
    return found;
}

cddp_dtype cd_planned_dtype(int64_t key)
{
    switch (key) {
    case 1:
        return CDDP_F16;
    case 2:
        return CDDP_BF16;
    case 3:
        return CDDP_F32;
    default:
        return CDDP_DTYPE_COUNT;
    }
}

/* ---- windows ---- */

bool cd_planned_windows_differ(const cddp_plan *plan)
{
    static const char *const keys[] = {"train.micro_steps", "data.samples"};
    if (plan->world.batch > 0) return true;
    for (size_t i = 0; i < plan->override_count; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (strcmp(plan->overrides[i].key, keys[k]) == 0) return true;
    for (size_t i = 0; i < plan->when_count; i++) {
        const cddp_plan_when *t = &plan->whens[i];
        const int64_t given[] = {t->sync, t->skip, t->grad_mode, t->backwards, t->samples};
        for (size_t k = 0; t->ranks.term_count > 0 && k < sizeof given / sizeof *given; k++)
            if (given[k] != CDDP_PLAN_UNSET) return true;
    }
    return false;
}

static bool ends_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                        cd_micro_place place)
{
    cd_micro micro;
    if ((uint64_t)place.micro_step + 1 == settings->train.micro_steps) return true;
    cd_planned_micro(plan, settings, place, &micro);
    return micro.sync && cd_planned_contributes(&micro);
}

uint32_t cd_planned_find_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                                cd_micro_place place)
{
    uint32_t ended = 0;
    for (uint32_t left = place.micro_step; left > 0; left--)
        ended += ends_window(plan, settings, (cd_micro_place){place.rank, place.step, left - 1});
    return ended;
}

cd_micro_span cd_planned_get_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                                    cd_micro_place place, uint32_t position)
{
    const cd_micro_span none = {0, 0};
    uint32_t first = 0, ended = 0;
    if (!cd_planned_has_step(plan, settings, place.rank, place.step)) return none;
    for (place.micro_step = 0; place.micro_step < settings->train.micro_steps; place.micro_step++) {
        if (!ends_window(plan, settings, place)) continue;
        if (ended++ == position) return (cd_micro_span){first, place.micro_step + 1};
        first = place.micro_step + 1;
    }
    return none;
}
