/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the plan of one rank and counts what must be compared. A step that the plan itself leaves
** in the middle of a backward owes nothing: what was judged of it depends on where it was left.
*/
#include "core/reference/owed.h"

#include "core/plan/plan_check.h"
#include "core/reference/evaluation.h"
#include "core/reference/planned.h"
#include "core/reference/rates.h"
#include "core/reference/samples.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

static const char *const names[CD_OWED_KINDS] = {[CD_OWED_SAMPLES] = "samples",
                                                 [CD_OWED_LOSSES] = "losses",
                                                 [CD_OWED_STEPS] = "optimizer steps",
                                                 [CD_OWED_VALUES] = "parameters around a step",
                                                 [CD_OWED_SHOWN] = "copies of parameters",
                                                 [CD_OWED_UNITS] = "iterations of units",
                                                 [CD_OWED_LAWS] = CD_STATED_LAWS,
                                                 [CD_OWED_BATCHES] = "micro-batches",
                                                 [CD_OWED_STREAMS] = "random streams",
                                                 [CD_OWED_ENTRIES] = "gradients before a backward",
                                                 [CD_OWED_DTYPES] = "declared dtypes of gradients",
                                                 [CD_OWED_READS] = "parameters that layers read",
                                                 [CD_OWED_BUFFERS] = "buffers of the wrapper",
                                                 [CD_OWED_FORWARD_ENDS] = "ends of forwards",
                                                 [CD_OWED_FORWARD_BEGINS] = "begins of forwards",
                                                 [CD_OWED_BACKWARD_BEGINS] = "begins of backwards",
                                                 [CD_OWED_GROUP_CLOSES] = "groups closed",
                                                 [CD_OWED_RESULTS] = "results of collectives",
                                                 [CD_OWED_NO_SYNC_ENDS] = "ends of no_sync"};

const char *cd_owed_name(cd_owed_kind kind) { return names[kind]; }

/* What one step of a rank adds up to. */
typedef struct step_count {
    uint64_t reductions, with_forward, updates;
    uint64_t windows;       /* to which the rank contributes gradients for sure */
    uint64_t derived;       /* micro-steps of these */
    uint64_t whole_updates; /* by all optimizers: one of them has what got a gradient */
    uint64_t backwards;     /* micro-steps that run one */
    uint64_t entries;       /* 1: it has a backward */
    uint64_t clips, samples, batches, losses, optimizer_steps, forwards, evaluations;
    bool is_left; /* in the middle of a backward */
} step_count;

static uint64_t count_due(const cd_owing_rank *r, uint32_t step)
{
    uint64_t count = 0;
    for (size_t i = 0; i < cd_rates_optimizer_count(r->plan); i++)
        count += cd_rates_is_due(r->plan, r->settings, &(cd_rates_place){r->rank, step, i});
    return count;
}

/* An overflow makes a step skip, which the gradients decide and not the plan. */
static bool updates_depend_on_values(const cd_owing_rank *r) { return r->settings->amp.enable; }

static bool clips(const cd_owing_rank *r)
{
    return r->has_numbers && r->settings->clip.max_norm > 0 &&
           r->settings->clip.place != CDDP_CLIP_BEFORE_REDUCTION;
}

/* With the whole model: which parameters a part of it uses, the plan does not say. */
static bool gives_gradients(const cd_micro *micro)
{
    return cd_planned_contributes(micro) && !micro->bypass && micro->outputs.count == 0 &&
           micro->uses.count == 0 && micro->branch == 0;
}

static void add_update(const cd_owing_rank *r, const cd_micro *micro, uint32_t step,
                       step_count *found)
{
    const uint64_t due = count_due(r, step);
    const bool skips = micro->skip == CDDP_SKIP_STEP;
    found->optimizer_steps += skips ? cd_rates_optimizer_count(r->plan) : due;
    if (skips) return;
    found->updates += due > 0 && !updates_depend_on_values(r);
    found->whole_updates +=
        due == cd_rates_optimizer_count(r->plan) && !updates_depend_on_values(r);
    found->clips += clips(r);
}

static void close_window(step_count *found, uint64_t *gives)
{
    found->windows += *gives > 0;
    found->derived += *gives;
    *gives = 0;
}

static step_count count_step(const cd_owing_rank *r, uint32_t step)
{
    step_count found = {0};
    bool has_stepped = false;
    uint64_t gives = 0; /* micro-steps of the window */
    cd_micro micro = {.skip = CDDP_SKIP_ALL};
    for (uint32_t m = 0; m < r->settings->train.micro_steps; m++) {
        cd_planned_micro(r->plan, r->settings, (cd_micro_place){r->rank, step, m}, &micro);
        const bool contributes = cd_planned_contributes(&micro);
        const bool is_last = m + 1 == r->settings->train.micro_steps;
        if (contributes && micro.abort_after > 0) return (step_count){.is_left = true};
        gives += gives_gradients(&micro);
        found.samples += cd_samples_count(&micro);
        found.evaluations += cd_evaluation_is_planned(&micro);
        if (micro.skip != CDDP_SKIP_ALL && micro.grad_mode) {
            found.losses += micro.forwards * (1 + r->plan->output_count);
            found.batches += micro.forwards;
        }
        if (contributes) found.forwards += micro.forwards;
        found.backwards += contributes;
        if (contributes) found.entries = 1;
        if (contributes && micro.early_step) {
            add_update(r, &micro, step, &found);
            has_stepped = true;
        }
        if (contributes && micro.sync && !is_last) {
            found.reductions++;
            found.with_forward++;
            close_window(&found, &gives);
        }
    }
    if (!has_stepped) {
        found.reductions++;
        found.with_forward += cd_planned_contributes(&micro);
        close_window(&found, &gives);
        add_update(r, &micro, step, &found);
    }
    return found;
}

/* Those whose result every member has. */
static bool has_result(const cddp_plan_collective *c)
{
    return c->numel > 0 &&
           (c->op == CDDP_COLLECTIVE_ALLREDUCE || c->op == CDDP_COLLECTIVE_BROADCAST ||
            c->op == CDDP_COLLECTIVE_ALLGATHER || c->op == CDDP_COLLECTIVE_ALLTOALL);
}

static bool is_member(const cd_owing_rank *r, const char *name)
{
    const cddp_plan_group *group = name != NULL ? cd_plan_find_group(r->plan, name) : NULL;
    bool found = group == NULL || group->members.count == 0;
    for (size_t i = 0; !found && i < group->members.count; i++)
        found = group->members.items[i] == r->rank;
    return found;
}

static uint64_t count_collectives(const cd_owing_rank *r, uint32_t step)
{
    uint64_t count = 0;
    cd_micro micro;
    cd_planned_micro(r->plan, r->settings,
                     (cd_micro_place){r->rank, step, (uint32_t)r->settings->train.micro_steps - 1},
                     &micro);
    if (!r->has_numbers || micro.skip == CDDP_SKIP_ALL || cd_plan_has_streams(r->plan)) return 0;
    for (size_t i = 0; i < r->plan->collective_count; i++) {
        const cddp_plan_collective *c = &r->plan->collectives[i];
        count += has_result(c) && is_member(r, c->group) && cddp_selector_has(&c->ranks, r->rank) &&
                 cddp_selector_has(&c->steps, step);
    }
    return count;
}

static void add_step(const cd_owing_rank *r, uint32_t step, const step_count *found, cd_owed *owed)
{
    owed->presence += found->reductions * r->parameter_count;
    owed->buffers += found->with_forward * r->buffer_count;
    owed->updates += found->updates * r->updated_count;
    owed->locals += found->windows;
    owed->sums += r->sums ? found->windows : 0;
    owed->laws += r->has_law ? found->windows : 0;
    const uint64_t own_updates = r->has_numbers && !r->is_sharded ? found->whole_updates : 0;
    owed->states += r->has_state ? own_updates : 0;
    owed->statistics += r->exchanges ? found->forwards : 0;
    owed->norms += found->clips;
    owed->evaluations += r->has_numbers ? found->evaluations : 0;
    owed->formulas += r->is_sharded ? 0 : found->whole_updates;
    owed->derivatives += r->has_numbers ? found->derived : 0;
    owed->events[CD_OWED_SAMPLES] += found->samples;
    owed->events[CD_OWED_LOSSES] += found->losses;
    owed->events[CD_OWED_BATCHES] += found->batches;
    owed->events[CD_OWED_STEPS] += found->optimizer_steps;
    owed->events[CD_OWED_UNITS] += r->settings->fsdp.enable ? found->backwards : 0;
    if (found->is_left) return;
    owed->collectives += count_collectives(r, step);
    if (!r->has_digests) return;
    owed->events[CD_OWED_ENTRIES] += found->entries;
    const bool has_layers = r->settings->fsdp.enable && cd_plan_has_streams(r->plan);
    const uint64_t reads = /* both passes */
        r->leaves_parts_out ? 2 : r->parameter_count + r->updated_count;
    owed->events[CD_OWED_READS] += has_layers ? found->derived * reads : 0;
    owed->events[CD_OWED_VALUES] += 2 * r->parameter_count;
    owed->events[CD_OWED_SHOWN] += r->parameter_count > 0 ? 2 : 0;
}

cd_owed cd_owed_count(const cd_owing_rank *rank)
{
    cd_owed owed = {
        .events = {
            [CD_OWED_STREAMS] = CD_OWED_STREAM_COUNT, [CD_OWED_DTYPES] = rank->has_one_dtype}};
    for (uint32_t step = 0; step < rank->settings->train.steps; step++) {
        if (!cd_planned_has_step(rank->plan, rank->settings, rank->rank, step)) continue;
        const step_count found = count_step(rank, step);
        add_step(rank, step, &found, &owed);
    }
    return owed;
}

void cd_owed_emit(const cd_owing_rank *rank, struct cddp_tracer *tracer)
{
    const cd_owed owed = cd_owed_count(rank);
    const struct {
        int64_t link;
        uint64_t count;
    } rows[] = {{CD_LINK_PRESENCE, owed.presence},
                {CD_LINK_BUFFER, owed.buffers},
                {CD_LINK_UPDATE, owed.updates},
                {CD_LINK_PRECISION, owed.locals},
                {CD_LINK_MATHEMATICS, owed.sums},
                {CD_LINK_REDUCTION, rank->has_numbers ? owed.sums : 0},
                {CD_LINK_LAW, owed.laws},
                {CD_LINK_OPTIMIZER, owed.states},
                {CD_LINK_STATISTICS, owed.statistics},
                {CD_LINK_COLLECTIVE, owed.collectives},
                {CD_LINK_NORM, owed.norms},
                {CD_LINK_FORMULA, owed.formulas},
                {CD_LINK_DERIVATIVE, owed.derivatives},
                {CD_LINK_EVALUATION, owed.evaluations}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (i > 2 && rows[i].count == 0) continue;
        CD_EMIT(tracer, owed, NULL, .link = rows[i].link, .count = (int64_t)rows[i].count);
    }
    for (size_t i = 0; i < CD_OWED_KINDS; i++) {
        if (owed.events[i] == 0) continue;
        CD_EMIT(tracer, owed, names[i], .link = CDDP_LINK_NONE, .count = (int64_t)owed.events[i]);
    }
}
