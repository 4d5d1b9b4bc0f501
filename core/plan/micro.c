/* SPDX-License-Identifier: Apache-2.0 */
/* Resolving [[when]] tables: defaults first, then every table that applies, field by field. */
#include "core/plan/micro.h"

#include "core/base/pattern.h"

#include <string.h>

static int64_t given(int64_t value, int64_t otherwise)
{
    return value != CDDP_PLAN_UNSET ? value : otherwise;
}

static bool applies(const cddp_plan_when *when, cd_micro_place place)
{
    return cddp_selector_has(&when->ranks, place.rank) &&
           cddp_selector_has(&when->steps, place.step) &&
           cddp_selector_has(&when->micro_steps, place.micro_step);
}

static void apply(const cddp_plan_when *when, cd_micro *m)
{
    if (when->sync != CDDP_PLAN_UNSET) m->sync = m->sync_backward = when->sync != 0;
    m->sync_backward = given(when->sync_backward, m->sync_backward) != 0;
    m->no_sync_depth = (uint32_t)given(when->no_sync_depth, m->no_sync_depth);
    m->forwards = (uint32_t)given(when->forwards, m->forwards);
    m->backwards = (uint32_t)given(when->backwards, m->backwards);
    m->backward_each = given(when->backward_each, m->backward_each) != 0;
    m->loss_each = given(when->loss_each, m->loss_each) != 0;
    m->grad_mode = given(when->grad_mode, m->grad_mode) != 0;
    m->bypass = given(when->bypass, m->bypass) != 0;
    m->evaluate = (cddp_plan_when_evaluate)given(when->evaluate, (int64_t)m->evaluate);
    m->samples = (uint32_t)given(when->samples, m->samples);
    m->branch = (uint32_t)given(when->branch, m->branch);
    m->outputs = when->outputs.count > 0 ? when->outputs : m->outputs;
    m->uses = when->uses.count > 0 ? when->uses : m->uses;
    m->ready = (cddp_plan_when_ready)given(when->ready, (int64_t)m->ready);
    m->ready_order = when->ready_order.count > 0 ? when->ready_order : m->ready_order;
    m->skip = (cddp_plan_when_skip)given(when->skip, (int64_t)m->skip);
    m->stop = given(when->stop, m->stop) != 0;
    m->poison = (cddp_plan_when_poison)given(when->poison, (int64_t)m->poison);
    m->poison_parameter =
        when->poison_parameter != NULL ? when->poison_parameter : m->poison_parameter;
    m->abort_after = (uint32_t)given(when->abort_after, m->abort_after);
    m->early_step = given(when->early_step, m->early_step) != 0;
    m->touch_buffers = given(when->touch_buffers, m->touch_buffers) != 0;
    m->touch_parameters = given(when->touch_parameters, m->touch_parameters) != 0;
    m->replace_buffers = given(when->replace_buffers, m->replace_buffers) != 0;
    m->create_graph = given(when->create_graph, m->create_graph) != 0;
    m->await_producers = given(when->await_producers, m->await_producers) != 0;
    m->statistics = (cddp_plan_when_statistics)given(when->statistics, (int64_t)m->statistics);
    m->compute_us = (uint64_t)given(when->compute_us, (int64_t)m->compute_us);
}

void cd_micro_resolve(const cddp_plan *plan, const cddp_plan_settings *settings,
                      cd_micro_place place, cd_micro *micro)
{
    const bool is_last = place.micro_step + 1 == settings->train.micro_steps;
    *micro = (cd_micro){.place = place,
                        .number = place.step * settings->train.micro_steps + place.micro_step,
                        .sync = is_last,
                        .sync_backward = is_last,
                        .no_sync_depth = 1,
                        .forwards = 1,
                        .backwards = 1,
                        .grad_mode = true,
                        .await_producers = true,
                        .samples = (uint32_t)settings->data.samples,
                        .ready = (cddp_plan_when_ready)plan->schedule.ready};
    for (size_t i = 0; i < plan->when_count; i++) {
        if (applies(&plan->whens[i], place)) apply(&plan->whens[i], micro);
    }
}

static bool changes_parameters(const cddp_plan_when *when)
{
    return when->freeze.count + when->unfreeze.count + when->replace_parameters.count > 0;
}

static bool plan_changes_parameters(const cddp_plan *plan)
{
    for (size_t i = 0; i < plan->when_count; i++) {
        if (changes_parameters(&plan->whens[i])) return true;
    }
    return false;
}

void cd_micro_resolve_parameter(const cddp_plan *plan, cd_micro_place place, const char *name,
                                cd_parameter_fate *fate)
{
    const uint32_t last = place.step;
    if (!plan_changes_parameters(plan)) return;
    for (place.step = 0; place.step <= last; place.step++) {
        for (size_t i = 0; i < plan->when_count; i++) {
            const cddp_plan_when *when = &plan->whens[i];
            if (!changes_parameters(when) || !applies(when, place)) continue;
            fate->requires_grad = cd_patterns_match(&when->unfreeze, name) ||
                                  (fate->requires_grad && !cd_patterns_match(&when->freeze, name));
            fate->is_replaced =
                fate->is_replaced || cd_patterns_match(&when->replace_parameters, name);
        }
    }
}

bool cd_plan_unfreezes(const cddp_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->when_count; i++) {
        if (cd_patterns_match(&plan->whens[i].unfreeze, name)) return true;
    }
    return false;
}

uint32_t cd_epoch_length(const cddp_plan_settings *settings)
{
    const uint64_t length = settings->train.steps / settings->join.epochs;
    return length > 0 ? (uint32_t)length : 1;
}

static bool plan_swaps(const cddp_plan *plan)
{
    bool swaps = false;
    for (size_t i = 0; i < plan->when_count; i++) swaps |= plan->whens[i].group != NULL;
    return swaps;
}

const char *cd_plan_group_at(const cddp_plan *plan, uint32_t rank, uint32_t step)
{
    const char *group = NULL;
    const bool has_swaps = plan_swaps(plan);
    for (uint32_t s = 0; has_swaps && s <= step; s++) {
        for (size_t i = 0; i < plan->when_count; i++) {
            const cddp_plan_when *when = &plan->whens[i];
            if (when->group == NULL || !cddp_selector_has(&when->ranks, rank) ||
                !cddp_selector_has(&when->steps, s))
                continue;
            group = strcmp(when->group, "world") == 0 ? NULL : when->group;
        }
    }
    return group;
}

bool cd_plan_is_member(const cddp_plan *plan, const char *group, uint32_t rank)
{
    for (size_t i = 0; group != NULL && i < plan->group_count; i++) {
        const cddp_plan_group *g = &plan->groups[i];
        if (g->name == NULL || strcmp(g->name, group) != 0) continue;
        bool is_member = g->members.count == 0;
        for (size_t k = 0; k < g->members.count; k++) is_member |= g->members.items[k] == rank;
        return is_member;
    }
    return true;
}

bool cd_rank_has_step(const cddp_plan *plan, const cddp_plan_settings *settings, uint32_t rank,
                      uint32_t step)
{
    const uint32_t first = step - step % cd_epoch_length(settings);
    if (step >= settings->train.steps || step - first >= settings->data.inputs) return false;
    /* who left does not come back */
    for (uint32_t s = 0; plan_swaps(plan) && s <= step; s++)
        if (!cd_plan_is_member(plan, cd_plan_group_at(plan, rank, s), rank)) return false;
    for (size_t i = 0; i < plan->when_count; i++) {
        const cddp_plan_when *when = &plan->whens[i];
        for (uint32_t s = first; when->stop == 1 && s <= step; s++) {
            if (cddp_selector_has(&when->ranks, rank) && cddp_selector_has(&when->steps, s))
                return false;
        }
    }
    return true;
}

bool cd_micro_contributes(const cd_micro *micro)
{
    return micro->skip != CDDP_SKIP_ALL && micro->skip != CDDP_SKIP_BACKWARD && micro->grad_mode &&
           micro->backwards > 0 && micro->samples > 0;
}

static bool closes_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                          cd_micro_place place)
{
    cd_micro micro;
    cd_micro_resolve(plan, settings, place, &micro);
    return place.micro_step + 1 == settings->train.micro_steps ||
           (micro.sync && cd_micro_contributes(&micro));
}

static bool shapes_windows(const cddp_plan_when *when)
{
    return when->ranks.term_count > 0 &&
           (when->sync != CDDP_PLAN_UNSET || when->skip != CDDP_PLAN_UNSET ||
            when->grad_mode != CDDP_PLAN_UNSET || when->backwards != CDDP_PLAN_UNSET ||
            when->samples != CDDP_PLAN_UNSET);
}

bool cd_plan_windows_differ(const cddp_plan *plan)
{
    bool differ = plan->world.batch > 0;
    for (size_t i = 0; i < plan->override_count; i++)
        differ = differ || strcmp(plan->overrides[i].key, "train.micro_steps") == 0 ||
                 strcmp(plan->overrides[i].key, "data.samples") == 0;
    for (size_t i = 0; i < plan->when_count; i++)
        differ = differ || shapes_windows(&plan->whens[i]);
    return differ;
}

uint32_t cd_micro_find_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                              cd_micro_place place)
{
    const uint32_t end = place.micro_step;
    uint32_t position = 0;
    for (place.micro_step = 0; place.micro_step < end; place.micro_step++)
        position += closes_window(plan, settings, place);
    return position;
}

cd_micro_span cd_micro_get_window(const cddp_plan *plan, const cddp_plan_settings *settings,
                                  cd_micro_place place, uint32_t position)
{
    cd_micro_span span = {0, 0};
    if (!cd_rank_has_step(plan, settings, place.rank, place.step)) return span;
    for (uint32_t m = 0; m < settings->train.micro_steps; m++) {
        place.micro_step = m;
        if (!closes_window(plan, settings, place)) continue;
        span.end = m + 1;
        if (position-- == 0) return span;
        span.first = m + 1;
    }
    return (cd_micro_span){0, 0};
}

bool cd_patterns_match(const cddp_text_list *patterns, const char *name)
{
    for (size_t i = 0; i < patterns->count; i++) {
        if (cd_pattern_matches(patterns->items[i], name)) return true;
    }
    return false;
}

cddp_dtype cd_mixed_dtype(int64_t choice)
{
    static const cddp_dtype dtypes[] = {CDDP_DTYPE_COUNT, CDDP_F16, CDDP_BF16, CDDP_F32};
    return dtypes[choice];
}
