/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from the plan alone, as events. */
#include "core/reference/decisions.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/pattern.h"
#include "core/plan/plan.h"
#include "core/reference/decided_groups.h"
#include "core/reference/planned.h"
#include "core/reference/rates.h"
#include "core/reference/unit_law.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <string.h>

#define STEPS_AHEAD 256

/* A decision about everything of its kind has no step, micro-step or id. */
#define OF_ALL .id = -1, .at_step = -1, .at_micro = -1

void cd_decisions_give_up(struct cddp_tracer *tracer, uint64_t count, const char *why)
{
    CD_EMIT(tracer, unjudged, why, .link = CDDP_LINK_NONE, .count = (int64_t)count);
}

/* ---- seeds, parameters, hook ---- */

static void emit_seeds(const cd_decisions *d, struct cddp_tracer *tracer)
{
    const cd_prng root = cd_prng_seed(d->plan->world.seed);
    const uint64_t own = d->settings.model.init == CDDP_MODEL_INIT_DISTINCT ? d->rank + 1u : 0;
    const cd_prng streams[] = {cd_prng_split_index(&root, "model", own),
                               cd_prng_split_index(&root, "data", 0)};
    static const char *const labels[] = {"model", "data"};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
        CD_EMIT(tracer, decision, labels[i], .decision = CDDP_DECISION_SEED, .id = (int64_t)i,
                .at_step = -1, .at_micro = -1,
                .digest = (int64_t)cd_hash64(streams[i].state, sizeof streams[i].state, 0));
    }
}

static bool is_named(const cddp_text_list *patterns, const char *name)
{
    bool found = false;
    for (size_t i = 0; i < patterns->count && !found; i++)
        found = cd_pattern_matches(patterns->items[i], name);
    return found;
}

/* value: the reducer takes it; detail: it requires gradients when it is wrapped. */
static void emit_parameters(const cd_decisions *d, struct cddp_tracer *tracer)
{
    const cd_module *module = d->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const char *name = module->parameters[i].name;
        const bool requires_grad =
            d->replica->parameters[i].requires_grad && !is_named(&d->settings.model.freeze, name);
        const bool is_left_out = is_named(&d->settings.model.ignore, name) ||
                                 is_named(&d->settings.ddp.delay_all_reduce_named_params, name);
        CD_EMIT(tracer, decision, name, .decision = CDDP_DECISION_PARAMETER, .id = (int64_t)i,
                .at_step = -1, .at_micro = -1, .value = requires_grad && !is_left_out,
                .detail = requires_grad);
    }
}

bool cd_decisions_has_free_slot(const cd_decisions *d)
{
    bool is_free = d->settings.mixed_precision.param_dtype == CDDP_PARAM_DTYPE_NONE &&
                   d->settings.mixed_precision.reduce_dtype == CDDP_REDUCE_DTYPE_NONE;
    for (size_t i = 0; i < d->plan->optimizer_count; i++) {
        is_free = is_free && !d->plan->optimizers[i].in_backward &&
                  d->plan->optimizers[i].overlap == CDDP_PLAN_OVERLAP_NONE;
    }
    return is_free;
}

static void emit_hook(const cd_decisions *d, struct cddp_tracer *tracer)
{
    const char *cursor = NULL;
    cd_decided_option option;
    double number;
    if (cd_decisions_has_free_slot(d)) {
        CD_EMIT(tracer, decision, d->hook.name, .decision = CDDP_DECISION_HOOK, .id = 0,
                .at_step = -1, .at_micro = -1);
        if (d->hook.inner != NULL) {
            CD_EMIT(tracer, decision, d->hook.inner, .decision = CDDP_DECISION_HOOK, .id = 1,
                    .at_step = -1, .at_micro = -1);
        }
    }
    for (int64_t i = 0; cd_decided_hook_next(&d->hook, &cursor, &option); i++) {
        if (!cd_decided_option_read(&option, &number)) {
            cd_decisions_give_up(tracer, 1, "an option of the comm hook that is a text");
            continue;
        }
        CD_EMIT(tracer, decision, option.key, .decision = CDDP_DECISION_HOOK_OPTION, .id = i,
                .at_step = -1, .at_micro = -1, .real = cd_f64_bits(number));
    }
}

/* ---- steps ---- */

/* Parameters whose gradient an optimizer in backward drops when it has stepped them (OIB-01). */
static int64_t count_dropped(const cd_decisions *d)
{
    int64_t count = 0;
    for (size_t i = 0; i < d->replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &d->replica->optimizers[i];
        const bool drops = o->in_backward && o->overlap == CDDP_OVERLAP_APPLY_IN_BACKWARD;
        if (drops) count += (int64_t)o->count;
    }
    return count;
}

/* Delayed parameters share one buffer, so their gradients are never absent: they are zeroed. Where
** gradients are kept, the second number is of those that are dropped all the same. */
static void emit_step_rules(const cd_decisions *d, struct cddp_tracer *tracer)
{
    static const int64_t presences[] = {[CDDP_ZERO_GRAD_NONE] = CDDP_PRESENCE_ABSENT,
                                        [CDDP_ZERO_GRAD_ZERO] = CDDP_PRESENCE_ZERO,
                                        [CDDP_ZERO_GRAD_KEEP] = CDDP_PRESENCE_VALUE};
    const cd_module *module = d->replica->model->module;
    CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_STEPS, OF_ALL,
            .value = cd_decisions_count_steps(d));
    CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_ORDER, OF_ALL,
            .value = d->settings.clip.place != CDDP_CLIP_BEFORE_UNSCALE);
    int64_t delayed = 0;
    for (size_t i = 0; i < module->parameter_count; i++) {
        delayed +=
            is_named(&d->settings.ddp.delay_all_reduce_named_params, module->parameters[i].name);
    }
    CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_ZERO_GRAD, OF_ALL,
            .value = presences[d->settings.train.zero_grad],
            .detail =
                d->settings.train.zero_grad == CDDP_ZERO_GRAD_KEEP ? count_dropped(d) : delayed);
}

/* Where the wrapper's process group becomes another one. value: its ranks; 0: this rank leaves. */
static void emit_groups(const cd_decisions *d, struct cddp_tracer *tracer)
{
    const char *before = d->group;
    bool has_swaps = false, has_left = false;
    for (size_t i = 0; i < d->plan->when_count; i++) has_swaps |= d->plan->whens[i].group != NULL;
    for (uint32_t step = 0; has_swaps && !has_left && step < d->settings.train.steps; step++) {
        const char *name = cd_planned_group_name(d->plan, d->rank, step);
        const uint32_t size = cd_planned_group_size(d->plan, d->rank, step);
        if (strcmp(name, before) == 0) continue;
        CD_EMIT(tracer, decision, name, .decision = CDDP_DECISION_GROUP, .id = CD_GROUP_TAKEN,
                .at_step = step, .at_micro = -1, .value = size);
        before = name;
        has_left = size == 0;
    }
}

/* Without clipping after the reduction the factor is 1. */
static void emit_no_clip(const cd_decisions *d, struct cddp_tracer *tracer)
{
    if (d->settings.clip.max_norm > 0 && d->settings.clip.place != CDDP_CLIP_BEFORE_REDUCTION)
        return;
    CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_CLIP, OF_ALL,
            .real = cd_f64_bits(1.0));
}

static void emit_updates(const cd_decisions *d, uint32_t step, struct cddp_tracer *tracer)
{
    for (size_t i = 0; i < cd_rates_optimizer_count(d->plan); i++) {
        const double rate =
            cd_rates_closed(cd_rates_first(d->plan, d->rank, i), d->settings.train.lr_decay, step);
        const double bound = d->settings.train.lr_decay == 1 ? 0 : cd_rates_bound(step) * rate;
        const cd_decided_update update = cd_decisions_get_update(d, step, i);
        if (update == CD_UPDATE_UNKNOWN)
            cd_decisions_give_up(tracer, 1,
                                 "whether an optimizer steps: its backward is left "
                                 "early, or stepped in");
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_UPDATE, .id = (int64_t)i,
                .at_step = step, .at_micro = -1, .value = update,
                .detail = cd_decisions_get_leaving(d, step, i), .real = cd_f64_bits(rate),
                .bound = cd_f64_bits(bound));
    }
}

/* ---- micro-steps ---- */

static bool divides_losses(const cd_decisions *d)
{
    return d->settings.train.loss != CDDP_LOSS_DYADIC && d->settings.train.loss != CDDP_LOSS_SUM;
}

static cddp_status emit_samples(cd_decisions *d, const cd_micro *micro, struct cddp_tracer *tracer,
                                cddp_error *err)
{
    for (uint32_t i = 0; i < cd_samples_count(micro); i++) {
        cd_sample sample;
        CD_TRY(cd_samples_find(d->samples, &d->settings, micro->place, i, &sample, err));
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_SAMPLE, .id = i,
                .at_step = micro->place.step, .at_micro = micro->place.micro_step,
                .value = sample.id, .detail = (int64_t)sample.epoch,
                .real = cd_f64_bits(sample.weight));
    }
    return CDDP_OK;
}

static cddp_status emit_divisors(cd_decisions *d, const cd_micro *micro, struct cddp_tracer *tracer,
                                 cddp_error *err)
{
    for (uint32_t f = 0; f < micro->forwards; f++) {
        double divisor;
        const cd_forward_place place = {micro, f};
        CD_TRY(cd_normaliser_find(&d->normaliser, &d->settings, &place, &divisor, err));
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_DIVISOR, .id = f,
                .at_step = micro->place.step, .at_micro = micro->place.micro_step,
                .real = cd_f64_bits(divisor));
    }
    return CDDP_OK;
}

static cddp_status emit_outputs(cd_decisions *d, const cd_micro *micro, struct cddp_tracer *tracer,
                                cddp_error *err)
{
    for (size_t i = 0; i < micro->forwards * d->plan->output_count; i++) {
        const size_t table = i / micro->forwards;
        const cd_forward_place place = {micro, (uint32_t)(i % micro->forwards)};
        double divisor;
        CD_TRY(
            cd_normaliser_find_output(&d->normaliser, &d->settings, &place, table, &divisor, err));
        const struct {
            int64_t id;
            double number;
        } rows[] = {{CD_OUTPUT_DIVISOR_ID(place.forward, table + 1), divisor},
                    {CD_OUTPUT_WEIGHT_ID(place.forward, table + 1),
                     d->plan->outputs[table].weight}};
        for (size_t k = 0; k < 2; k++) {
            CD_EMIT(tracer, decision, d->plan->outputs[table].name,
                    .decision = CDDP_DECISION_OUTPUT, .id = rows[k].id,
                    .at_step = micro->place.step, .at_micro = micro->place.micro_step,
                    .real = cd_f64_bits(rows[k].number));
        }
    }
    return CDDP_OK;
}

static double count_backwards(const cd_decisions *d, const cd_micro *micro)
{
    const uint32_t outputs =
        micro->outputs.count > 0 ? (uint32_t)micro->outputs.count : d->replica->model->output_count;
    const uint32_t each = micro->loss_each ? outputs : micro->backward_each ? micro->forwards : 1;
    return cd_planned_contributes(micro) ? (double)(micro->backwards * each) : 0;
}

static cddp_status emit_micro(cd_decisions *d, cd_micro_place place, struct cddp_tracer *tracer,
                              cddp_error *err)
{
    cd_micro micro;
    cd_planned_micro(d->plan, &d->settings, place, &micro);
    CD_TRY(emit_samples(d, &micro, tracer, err));
    if (divides_losses(d) && micro.skip != CDDP_SKIP_ALL && micro.grad_mode)
        CD_TRY(emit_divisors(d, &micro, tracer, err));
    if (micro.skip != CDDP_SKIP_ALL && micro.grad_mode)
        CD_TRY(emit_outputs(d, &micro, tracer, err));
    if (micro.abort_after == 0) {
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_WINDOW, .id = -1,
                .at_step = place.step, .at_micro = place.micro_step,
                .value = cd_decisions_closes(d, place),
                .detail = cd_decisions_get_window_first(d, place),
                .real = cd_f64_bits(count_backwards(d, &micro)));
    } else {
        cd_decisions_give_up(tracer, 1, "a window whose backward the plan leaves early");
        if (cd_planned_contributes(&micro)) {
            CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_LEAVE, .id = -1,
                    .at_step = place.step, .at_micro = place.micro_step,
                    .value = micro.abort_after);
        }
    }
    cd_decided_groups_emit_place(d, &micro, tracer);
    if (d->units != NULL) CD_TRY(cd_unit_law_emit(d->units, &micro, tracer, err));
    return CDDP_OK;
}

/* ---- averages ---- */

static uint32_t least_of(uint32_t a, uint32_t b) { return a < b ? a : b; }
static uint32_t most_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* How a model averager is planned, and who agrees on what so far. */
typedef struct cd_decided_averaging {
    const cddp_plan_averager *planned;
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    uint32_t level_count, world;
    uint32_t parameters, state; /* ranks that agree */
    uint32_t gradients, due;    /* of the step at hand */
    uint32_t *agreed;           /* (parameter_count) ranks that agree on each parameter */
} averaging;

/* AVG-01 counts from the end of the warm-up, AVG-03 from the beginning: the level with the longest
** period that is over decides. */
static uint32_t find_due(const averaging *a, uint32_t step)
{
    const uint64_t warmup = a->planned->warmup_steps;
    if (step < warmup) return 0;
    const uint64_t since = a->planned->kind == CDDP_AVERAGER_PERIODIC ? step - warmup : step;
    for (uint32_t i = a->level_count; i > 0; i--) {
        if (since % a->levels[i - 1].period == 0)
            return a->levels[i - 1].ranks != 0 ? a->levels[i - 1].ranks : a->world;
    }
    return 0;
}

/* The period of a parameter that has its own; else 0. */
static uint64_t find_period(const averaging *a, const char *name)
{
    for (size_t k = a->planned->periods.count; k > 0; k--) {
        char pattern[CD_PLAN_PATTERN_BYTES];
        uint64_t period = 0;
        if (cd_plan_read_period(a->planned->periods.items[k - 1], pattern, &period) &&
            cd_pattern_matches(pattern, name))
            return period;
    }
    return 0;
}

static uint32_t find_due_of(const averaging *a, const char *name, uint32_t step)
{
    const uint64_t period = find_period(a, name), warmup = a->planned->warmup_steps;
    if (period == 0) return a->due;
    return step >= warmup && (step - warmup) % period == 0 ? a->world : 0;
}

/* AVG-02: a step that makes none, and begins without any, leaves all parameters out. */
static bool has_gradients(const cd_decisions *d, uint32_t step)
{
    bool has = d->settings.train.zero_grad != CDDP_ZERO_GRAD_NONE;
    for (uint32_t m = 0; !has && m < d->settings.train.micro_steps; m++) {
        cd_micro micro;
        cd_planned_micro(d->plan, &d->settings, (cd_micro_place){d->rank, step, m}, &micro);
        has = cd_planned_contributes(&micro);
    }
    return has;
}

static void emit_parameter_averages(const cd_decisions *d, averaging *a, uint32_t step,
                                    struct cddp_tracer *tracer)
{
    const bool averages = has_gradients(d, step);
    const cd_module *module = d->replica->model->module;
    for (size_t i = 0; i < module->parameter_count; i++) {
        const uint32_t due = find_due_of(a, module->parameters[i].name, step);
        a->agreed[i] = most_of(due, least_of(a->agreed[i], a->state));
        CD_EMIT(tracer, decision, module->parameters[i].name, .decision = CDDP_DECISION_AVERAGE,
                .id = (int64_t)i, .at_step = step, .at_micro = -1, .value = averages ? due : 0);
        if (a->agreed[i] == a->parameters) continue;
        CD_EMIT(tracer, decision, module->parameters[i].name, .decision = CDDP_DECISION_AGREEMENT,
                .id = (int64_t)i, .at_step = step, .at_micro = -1, .value = a->gradients,
                .detail = a->agreed[i], .real = cd_f64_bits(a->state));
    }
}

/* Parameters agree where gradients and state did, and after an average in its block. The state of
** optimizers is not averaged (AVG-02). */
static void emit_averages(cd_decisions *d, averaging *a, uint32_t step, struct cddp_tracer *tracer)
{
    a->gradients = cd_decisions_get_block(d, (cd_micro_place){0, step, 0});
    if (a->gradients == 0) {
        cd_decisions_give_up(tracer, 1,
                             "who agrees: the plan does not say over which ranks the hook averages "
                             "(a plugin's, or one whose start a left backward moves)");
        return;
    }
    a->state = least_of(a->state, a->gradients);
    a->due = find_due(a, step);
    a->parameters = most_of(a->due, least_of(a->parameters, a->state));
    CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_AGREEMENT, .id = -1, .at_step = step,
            .at_micro = -1, .value = a->gradients, .detail = a->parameters,
            .real = cd_f64_bits(a->state));
    emit_parameter_averages(d, a, step, tracer);
}

static cddp_status begin_averaging(cd_decisions *d, cddp_error *err)
{
    const size_t count = d->replica->model->module->parameter_count;
    if (d->settings.averager.kind == CDDP_AVERAGER_NONE) return CDDP_OK;
    averaging *a = cd_arena_push(d->memory, sizeof *a);
    CD_TRY(cd_arena_check(d->memory, err, "who agrees on %zu parameters", count));
    *a = (averaging){.planned = &d->settings.averager, .world = (uint32_t)d->plan->world.size};
    a->parameters = a->state = a->world;
    a->level_count = cd_plan_read_levels(a->planned->levels, a->levels);
    a->agreed = cd_arena_array(d->memory, count + 1, sizeof *a->agreed);
    CD_TRY(cd_arena_check(d->memory, err, "who agrees on %zu parameters", count));
    for (size_t i = 0; i < count; i++) a->agreed[i] = a->world;
    d->averaging = a;
    return CDDP_OK;
}

/* ---- all of it ---- */

static cddp_status emit_step(cd_decisions *d, uint32_t step, struct cddp_tracer *tracer,
                             cddp_error *err)
{
    emit_updates(d, step, tracer);
    for (uint32_t m = 0; m < d->settings.train.micro_steps; m++)
        CD_TRY(emit_micro(d, (cd_micro_place){d->rank, step, m}, tracer, err));
    if (d->averaging != NULL) emit_averages(d, d->averaging, step, tracer);
    return CDDP_OK;
}

/* The walks of the emission and those of the judge stand at different steps: each goes on from its
** own place. */
static void exchange_walks(cd_decisions *d)
{
    const cd_reduction_walk walk = d->walk;
    d->walk = d->ahead;
    d->ahead = walk;
    if (d->samples->walks != NULL) {
        const cd_sample_walk samples = d->samples->walks[d->rank];
        d->samples->walks[d->rank] = d->sample_ahead;
        d->sample_ahead = samples;
    }
}

cddp_status cd_decisions_emit_ahead(cd_decisions *d, uint32_t step, struct cddp_tracer *tracer,
                                    cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const bool is_due = d->emitted < d->planned && (int64_t)d->emitted - step < STEPS_AHEAD / 2;
    if (tracer == NULL || !is_due) return CDDP_OK;
    const uint64_t end = (uint64_t)step + STEPS_AHEAD;
    exchange_walks(d);
    while (status == CDDP_OK && d->emitted < d->planned && d->emitted < end) {
        const uint32_t next = d->emitted++;
        if (cd_planned_has_step(d->plan, &d->settings, d->rank, next))
            status = emit_step(d, next, tracer, err);
    }
    exchange_walks(d);
    return status;
}

cddp_status cd_decisions_emit(cd_decisions *d, struct cddp_tracer *tracer, cddp_error *err)
{
    d->planned = (uint32_t)d->settings.train.steps;
    if (tracer == NULL) return CDDP_OK;
    emit_seeds(d, tracer);
    emit_parameters(d, tracer);
    emit_hook(d, tracer);
    emit_step_rules(d, tracer);
    emit_no_clip(d, tracer);
    cd_decided_groups_emit(d, tracer);
    emit_groups(d, tracer);
    if (d->units != NULL) cd_unit_law_emit_parts(d->units, tracer);
    if (!divides_losses(d)) {
        CD_EMIT(tracer, decision, NULL, .decision = CDDP_DECISION_DIVISOR, OF_ALL,
                .real = cd_f64_bits(0.0));
    }
    CD_TRY(begin_averaging(d, err));
    CD_TRY(cd_decisions_emit_ahead(d, 0, tracer, err));
    return CDDP_OK;
}
