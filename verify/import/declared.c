/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/declared.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/models.h"
#include "core/trace/tracer.h"
#include "verify/import/declared_rows.h"

#include <stdio.h>
#include <string.h>

/* A parameter index beyond this is damage, no parameter. */
#define VARIABLES_MAX (INT64_C(1) << 24)

/* Ranks come as they were merged; the first place is the first by step, and then by rank. */
void cd_declared_note(cd_declared *d, cd_declared_gap gap, const cddp_event *at, int64_t variable)
{
    cd_declared_place *place = &d->gaps[gap];
    const bool is_first = place->count++ == 0 || at->step < place->step ||
                          (at->step == place->step && at->rank < place->rank);
    if (is_first)
        *place = (cd_declared_place){.count = place->count,
                                     .rank = at->rank,
                                     .step = at->step,
                                     .variable = variable};
}

static void count(cd_declared_place *place, const cddp_event *at, int64_t variable)
{
    const bool is_first = place->count++ == 0 || at->step < place->step;
    if (is_first) *place = (cd_declared_place){place->count, at->rank, at->step, variable};
}

static cd_declared_variable *find(cd_declared *d, cd_declared_rank *rank, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    const size_t needed = (size_t)variable + 1;
    if (!cd_vec_grow(d->allocator, (void **)&rank->variables, &rank->variable_capacity, needed,
                     sizeof *rank->variables)) {
        d->is_out_of_memory = true;
        return NULL;
    }
    for (; rank->variable_count < needed; rank->variable_count++)
        rank->variables[rank->variable_count] = (cd_declared_variable){.is_declared = false};
    return &rank->variables[variable];
}

/* A step that is over said what it did, or never will. Of every parameter that its optimizer had
** before it says something: that it took it, or that there was no gradient. */
void cd_declared_end_step(cd_declared *d, cd_declared_rank *rank, uint32_t number)
{
    const cddp_event at = {.rank = number, .step = rank->step};
    if (rank->is_stepping && rank->touches == 0) cd_declared_note(d, CD_DECLARED_TOUCH, &at, -1);
    for (size_t i = 0; rank->is_stepping && rank->touches > 0 && i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        if (v->is_seen && v->optimizer == rank->optimizer && v->at != rank->updates)
            cd_declared_note(d, CD_DECLARED_TOUCH, &at, (int64_t)i);
    }
    rank->is_stepping = rank->is_skipping = false;
}

static void take_step(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_optimizer_step *s = &e->as.optimizer_step;
    cd_declared_end_step(d, rank, e->rank);
    rank->optimizer = s->optimizer;
    rank->is_skipping = s->skipped;
    if (s->skipped) return;
    rank->rate = cd_f64_of(s->lr);
    rank->updates++;
    rank->is_stepping = true;
    rank->touches = 0;
    if (rank->steps == 0 || rank->step != e->step) rank->steps++; /* of several optimizers, one */
    rank->step = e->step;
}

/* What an optimizer consumes was local once, and was reduced since. */
static void take_touch(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    cd_declared_variable *v = find(d, rank, t->param);
    rank->touches++;
    /* on the ignore list, or without gradients: no wrapper keeps it equal */
    if (t->param < 0 && t->touched && d->rank_count > 1 && !d->is_of_torch)
        cd_declared_note(d, CD_DECLARED_OUTSIDE, e, -1);
    if (v == NULL) return;
    if (!rank->is_stepping || t->optimizer != rank->optimizer)
        cd_declared_note(d, CD_DECLARED_STEP, e,
                         t->param); /* of another optimizer than the one that steps */
    /* nothing came in between: another optimizer has it too, or the same one steps again */
    const bool is_again = t->touched && v->touches > 0 && v->taken_locals == rank->locals &&
                          v->taken_zeros == rank->zero_grads;
    v->is_seen = true;
    v->optimizer = t->optimizer;
    v->at = rank->updates;
    rank->is_served |= !t->touched && v->has_local;
    if (!t->touched) return;
    rank->taken += cd_hash_mix(cd_hash_mix(0, e->step), (uint64_t)t->param);
    if (v->touches > 0 && !v->is_held && !v->is_empty)
        cd_declared_note(d, CD_DECLARED_HELD, e, t->param);
    v->is_held = false;
    if (!v->has_local && !is_again) cd_declared_note(d, CD_DECLARED_LOCAL, e, t->param);
    if (!v->has_reduced && !is_again && !rank->averages)
        cd_declared_note(d, CD_DECLARED_REDUCED, e, t->param);
    rank->is_apart |= !v->has_reduced && !is_again;
    d->again += is_again && e->rank == 0;
    v->taken_locals = rank->locals;
    v->taken_zeros = rank->zero_grads;
    v->must_move = v->has_slope && rank->rate != 0;
    if (t->gradient == 0 && !v->is_empty) cd_declared_note(d, CD_DECLARED_CONTENT, e, t->param);
    v->has_local = v->has_reduced = v->has_value = false;
    v->touches++;
}

static cd_declared_still *find_still(cd_declared *d, cd_declared_rank *rank, int64_t id)
{
    if (id < 0 || id >= VARIABLES_MAX) return NULL;
    const size_t needed = (size_t)id + 1;
    if (!cd_vec_grow(d->allocator, (void **)&rank->stills, &rank->still_capacity, needed,
                     sizeof *rank->stills)) {
        d->is_out_of_memory = true;
        return NULL;
    }
    for (; rank->still_count < needed; rank->still_count++)
        rank->stills[rank->still_count] = (cd_declared_still){.last = 0};
    return &rank->stills[id];
}

static void take_parameter(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    cd_declared_still *ignored = p->ignored ? find_still(d, rank, p->ordinal) : NULL;
    if (ignored != NULL) ignored->is_ignored = true;
    d->ignored += p->ignored && e->rank == 0;
    cd_declared_variable *v = p->requires_grad && !p->ignored ? find(d, rank, p->param) : NULL;
    if (v == NULL) return;
    if (v->is_declared && v->name != p->name) cd_declared_note(d, CD_DECLARED_MODELS, e, p->param);
    v->is_declared = true;
    v->is_empty = p->numel == 0;
    v->name = p->name;
    snprintf(v->words, sizeof v->words, "%s", e->text != NULL ? e->text : "");
}

/* What is shown at the begin of a step I-CHAIN holds against what was shown last. */
static void take_begin(cd_declared *d, cd_declared_rank *rank, const cddp_event_value *v)
{
    const bool is_gradient = v->what == CDDP_WHAT_GRADIENT;
    if (v->moment != CDDP_MOMENT_BEGIN || !(is_gradient || v->what == CDDP_WHAT_PARAMETER)) return;
    cd_declared_variable *variable = find(d, rank, v->param);
    if (variable == NULL) return;
    if (is_gradient) {
        variable->cleared_by = rank->zero_grads;
        return;
    }
    variable->begins += v->digest != 0;
    variable->is_held |= variable->shown_in == rank->updates && v->digest != 0;
}

static bool is_kept(int64_t moment)
{
    return moment == CDDP_MOMENT_AFTER_INIT || moment == CDDP_MOMENT_AFTER_STEP ||
           moment == CDDP_MOMENT_END || moment == CDDP_MOMENT_EXIT;
}

/* Ranks that differ in one are I-PARAMEQ's. What changes it alike on all ranks is their affair: a
** momentum encoder, say. */
static void take_still(cd_declared *d, cd_declared_rank *rank, const cddp_event_value *v)
{
    cd_declared_still *still = v->digest != 0 ? find_still(d, rank, v->id) : NULL;
    if (still == NULL) return;
    if (v->moment == CDDP_MOMENT_EXIT) {
        if (still->exit == 0) still->exit = v->digest;
        return;
    }
    still->has_moved |= still->last != 0 && still->last != v->digest;
    still->last = v->digest;
}

static void take_value(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    take_begin(d, rank, v);
    d->has_buffers_shown |= v->what == CDDP_WHAT_BUFFER && v->digest != 0;
    if (v->what != CDDP_WHAT_PARAMETER) return;
    if (v->param < 0 && is_kept(v->moment)) take_still(d, rank, v);
    cd_declared_variable *variable = find(d, rank, v->param);
    if (variable == NULL) return;
    d->exchanged += v->moment == CDDP_MOMENT_FORWARD && v->digest != variable->last && e->rank == 0;
    if (!is_kept(v->moment)) return;
    if (v->moment == CDDP_MOMENT_AFTER_STEP && variable->must_move) {
        if (v->digest != 0 && v->digest == variable->last) count(&d->unmoved, e, v->param);
        variable->must_move = false;
    }
    if (v->moment == CDDP_MOMENT_AFTER_INIT) variable->start = v->digest;
    if (v->moment == CDDP_MOMENT_EXIT && variable->exit == 0) variable->exit = v->digest;
    if (v->moment != CDDP_MOMENT_EXIT) variable->last = v->digest;
    if (v->moment == CDDP_MOMENT_EXIT || v->moment == CDDP_MOMENT_AFTER_INIT) return;
    variable->has_value = v->digest != 0 || variable->is_empty;
    if (v->moment == CDDP_MOMENT_END) variable->is_held = variable->has_value;
    if (v->moment != CDDP_MOMENT_AFTER_STEP) return;
    variable->shown_in = rank->updates;
    const bool is_skipped = rank->is_skipping && variable->optimizer == rank->optimizer;
    if (is_skipped && variable->is_seen && variable->digest != 0 && variable->digest != v->digest &&
        d->unskipped.count++ == 0)
        d->unskipped = (cd_declared_place){1, e->rank, e->step, v->param};
    variable->digest = v->digest;
}

/* Nothing has a digest of 0. */
static bool is_empty(const cd_declared_rank *rank, int64_t variable)
{
    return variable >= 0 && (size_t)variable < rank->variable_count &&
           rank->variables[variable].is_empty;
}

/* A group that does not have all ranks. */
static bool is_part(const cd_declared *d, int64_t group)
{
    for (size_t i = 0; i < d->means.group_count; i++)
        if (d->means.groups[i].id == group) return d->means.groups[i].members < d->rank_count;
    return false;
}

static void mark(cd_declared *d, cd_declared_rank *rank, int64_t variable, bool is_reduced)
{
    cd_declared_variable *v = find(d, rank, variable);
    if (v == NULL) return;
    if (is_reduced)
        v->has_reduced = true;
    else
        v->has_local = true;
}

/* The gradient that zero_grad left as it was; where the recorder saw none, the one at hand. */
static int64_t find_left(const cd_declared_rank *rank, int64_t variable)
{
    const cd_declared_variable *all = rank->variables;
    if (all[variable].left_by == rank->zero_grads) return variable;
    for (size_t i = 0; i < rank->variable_count; i++)
        if (all[i].left_by == rank->zero_grads && all[i].cleared_by != rank->zero_grads)
            return (int64_t)i;
    return variable;
}

/* What a backward adds to was cleared, where the program said so. */
static void take_local(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    cd_declared_variable *v = find(d, rank, e->as.grad_local.param);
    if (v == NULL || e->as.grad_local.presence == CDDP_PRESENCE_ABSENT) return;
    const bool is_shown = !rank->owes_clear || v->cleared_by == rank->zero_grads;
    if (v->has_gradient && !is_shown && !v->is_empty)
        cd_declared_note(d, CD_DECLARED_CLEARED, e, find_left(rank, e->as.grad_local.param));
    v->cleared_by = rank->zero_grads; /* once */
    v->has_gradient = true;
}

static void leave(cd_declared *d, cd_declared_rank *rank, int64_t variable)
{
    cd_declared_variable *v = find(d, rank, variable);
    if (v != NULL) v->left_by = rank->zero_grads;
}

static void hold(cd_declared *d, cd_declared_rank *rank, int64_t variable)
{
    cd_declared_variable *v = find(d, rank, variable);
    if (v != NULL) v->is_held = true;
}

static void take_projection(cd_declared *d, cd_declared_rank *rank, const cddp_event_projection *p)
{
    cd_declared_variable *v = p->reduced ? find(d, rank, p->param) : NULL;
    if (v != NULL) v->has_slope = cd_f64_of(p->magnitude) > 0;
}

/* What the recorder saw of parameters and gradients where they lie (record/storage.h). */
static void take_storage(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const char *words = e->text != NULL ? e->text : "";
    const int64_t value = e->as.mark.value;
    if (strcmp(words, CD_TRACER_HELD) == 0) {
        for (size_t i = 0; i < rank->variable_count; i++) rank->variables[i].is_held = true;
    } else if (strcmp(words, CD_TRACER_ONE_HELD) == 0) {
        hold(d, rank, value);
    } else if (strcmp(words, CD_TRACER_CHANGED) == 0) {
        cd_declared_note(d, CD_DECLARED_CHANGED, e, value);
        rank->has_moved = true;
        hold(d, rank, value); /* said once */
    } else if (strcmp(words, CD_TRACER_CHANGED_LAST) == 0) {
        cd_declared_note(d, CD_DECLARED_LATE, e, value);
        hold(d, rank, value);
    } else if (strcmp(words, CD_TRACER_GRADIENT_CHANGED) == 0) {
        cd_declared_note(d, CD_DECLARED_ACCUMULATED, e, value);
    } else if (strcmp(words, CD_TRACER_GIVEN_CHANGED) == 0) {
        cd_declared_note(d, CD_DECLARED_GIVEN, e, value);
    } else if (strcmp(words, CD_TRACER_ELSEWHERE) == 0) {
        cd_declared_note(d, CD_DECLARED_TAKEN, e, value);
    } else if (strcmp(words, CD_TRACER_CLEARED) == 0) {
        rank->owes_clear = false;
    } else if (strcmp(words, CD_TRACER_NOT_CLEARED) == 0) {
        leave(d, rank, value);
    } else if (strcmp(words, CD_TRACER_OWN_REDUCTION) == 0) {
        if (rank->is_apart && !d->is_of_torch) cd_declared_note(d, CD_DECLARED_APART, e, -1);
        rank->is_apart = false;
    } else if (strcmp(words, CD_TRACER_AVERAGES) == 0) {
        rank->averages = true;
        cd_declared_note(d, CD_DECLARED_APART, e, -1);
    } else if (strcmp(words, CD_TRACER_LEFT_BY_EXIT) == 0) {
        rank->has_exited = true;
    }
}

void cd_declared_push(cd_declared *d, const cddp_event *e)
{
    if (e->rank >= d->rank_count) return;
    cd_declared_rank *rank = &d->ranks[e->rank];
    rank->events++;
    cd_feedback_push(&d->feedback, e);
    cd_forwards_push(&d->forwards, e);
    cd_means_push(&d->means, e);
    cd_consumed_push(&d->consumed, e);
    cd_own_samples_push(&d->samples, e);
    cd_windows_push(&d->windows, e);
    switch (e->kind) {
    case CDDP_EV_param:
        take_parameter(d, rank, e);
        break;
    case CDDP_EV_wrap:
        rank->has_wrapper = true;
        rank->group = e->as.wrap.group;
        if (e->as.wrap.buffers > 0) d->buffers = (uint64_t)e->as.wrap.buffers;
        if (is_part(d, e->as.wrap.group) && e->rank < d->split) d->split = e->rank;
        break;
    case CDDP_EV_grad_local:
        rank->locals++;
        rank->is_apart = false;
        mark(d, rank, e->as.grad_local.param, false);
        take_local(d, rank, e);
        if (e->as.grad_local.digest == 0 && e->as.grad_local.presence != CDDP_PRESENCE_ABSENT &&
            !is_empty(rank, e->as.grad_local.param))
            cd_declared_note(d, CD_DECLARED_CONTENT, e, e->as.grad_local.param);
        break;
    case CDDP_EV_grad_final:
        mark(d, rank, e->as.grad_final.param, true);
        d->reduced++;
        break;
    case CDDP_EV_collective_wait:
        rank->waits++;
        break;
    case CDDP_EV_mark:
        take_storage(d, rank, e);
        d->is_of_torch |= strncmp(e->text != NULL ? e->text : "", "torch ", 6) == 0;
        if (strcmp(e->text != NULL ? e->text : "", "tensor hooks") == 0 &&
            e->as.mark.value > d->hooked)
            d->hooked = e->as.mark.value;
        if (cd_models_is_mark(e) && e->as.mark.value < 0)
            cd_declared_note(d, CD_DECLARED_MODELS, e, -1);
        if (strcmp(e->text != NULL ? e->text : "", "sharded_units") == 0)
            cd_declared_note(d, CD_DECLARED_SHARDED, e, -1);
        if (strcmp(e->text != NULL ? e->text : "", "outside_parameters") == 0)
            cd_declared_note(d, CD_DECLARED_OUTSIDE, e, -1);
        if (strcmp(e->text != NULL ? e->text : "", "batch not used") == 0)
            d->unused_samples += e->as.mark.value > 0 ? (uint64_t)e->as.mark.value : 0;
        if (strcmp(e->text != NULL ? e->text : "", "buffers outside training") == 0)
            rank->evaluations = e->as.mark.value;
        if (strcmp(e->text != NULL ? e->text : "", "frozen parameters") == 0)
            rank->frozen =
                cd_hash_mix(cd_hash_mix(rank->frozen, e->step), (uint64_t)e->as.mark.value);
        break;
    case CDDP_EV_join_notify:
        rank->has_join = true;
        break;
    case CDDP_EV_projection:
        take_projection(d, rank, &e->as.projection);
        break;
    case CDDP_EV_samples:
        rank->samples += e->as.samples.count > 0;
        break;
    case CDDP_EV_zero_grad:
        rank->zero_grads++;
        rank->owes_clear = true;
        break;
    case CDDP_EV_optimizer_step:
        take_step(d, rank, e);
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(d, rank, e);
        break;
    case CDDP_EV_value:
        take_value(d, rank, e);
        break;
    case CDDP_EV_rank_end:
        cd_declared_end_step(d, rank, e->rank);
        /* of one that was ended its recording says no end */
        rank->has_ended = e->as.rank_end.end != CDDP_RANK_INTERRUPTED;
        break;
    default:
        break;
    }
}

void cd_declared_note_models(cd_declared *d)
{
    cd_declared_note(d, CD_DECLARED_MODELS, &(cddp_event){.rank = 0}, -1);
}

uint64_t cd_declared_get_start(const cd_declared *d)
{
    const cd_declared_rank *rank = NULL;
    uint64_t digest = 0;
    for (uint32_t i = 0; rank == NULL && i < d->rank_count; i++)
        if (d->ranks[i].variable_count > 0) rank = &d->ranks[i];
    for (size_t i = 0; rank != NULL && i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        if (v->start == 0 && !v->is_empty) return 0;
        digest = cd_hash_mix(cd_hash_mix(digest, (uint64_t)v->name), (uint64_t)v->start);
    }
    return digest;
}

bool cd_declared_has_models(const cd_declared *d) { return d->gaps[CD_DECLARED_MODELS].count > 0; }

uint64_t cd_declared_steps(const cd_declared *d)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < d->rank_count; i++)
        most = d->ranks[i].steps > most ? d->ranks[i].steps : most;
    return most;
}

/* ---- life ---- */

cddp_status cd_declared_init(cd_declared *d, uint32_t rank_count, const cddp_allocator *allocator,
                             cddp_error *err)
{
    *d = (cd_declared){.allocator = allocator,
                       .rank_count = rank_count,
                       .split = rank_count,
                       .model_count = 1};
    d->ranks = cd_allocate_array(allocator, rank_count, sizeof *d->ranks);
    if (d->ranks == NULL) return cd_fail_memory(err, "%u ranks", rank_count);
    cddp_status status = cd_feedback_init(&d->feedback, rank_count, allocator, err);
    if (status == CDDP_OK) status = cd_forwards_init(&d->forwards, rank_count, allocator, err);
    if (status == CDDP_OK) status = cd_means_init(&d->means, rank_count, allocator, err);
    if (status == CDDP_OK) status = cd_consumed_init(&d->consumed, rank_count, allocator, err);
    if (status == CDDP_OK) status = cd_own_samples_init(&d->samples, rank_count, allocator, err);
    if (status == CDDP_OK) status = cd_windows_init(&d->windows, rank_count, allocator, err);
    if (status != CDDP_OK) cd_declared_fini(d);
    return CD_PASS(status);
}

void cd_declared_fini(cd_declared *d)
{
    for (uint32_t i = 0; d->ranks != NULL && i < d->rank_count; i++) {
        cd_release(d->allocator, d->ranks[i].variables,
                   d->ranks[i].variable_capacity * sizeof *d->ranks[i].variables);
        cd_release(d->allocator, d->ranks[i].stills,
                   d->ranks[i].still_capacity * sizeof *d->ranks[i].stills);
    }
    cd_feedback_fini(&d->feedback);
    cd_forwards_fini(&d->forwards);
    cd_means_fini(&d->means);
    cd_consumed_fini(&d->consumed);
    cd_own_samples_fini(&d->samples);
    cd_windows_fini(&d->windows);
    cd_release(d->allocator, d->ranks, d->rank_count * sizeof *d->ranks);
    d->ranks = NULL;
}
