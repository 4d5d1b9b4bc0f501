/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/declared.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/hash.h"
#include "core/trace/models.h"
#include "core/trace/tracer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A parameter index beyond this is damage, no parameter. */
#define VARIABLES_MAX (INT64_C(1) << 24)

/* Ranks come as they were merged; the first place is the first by step, and then by rank. */
static void note(cd_declared *d, cd_declared_gap gap, const cddp_event *at, int64_t variable)
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
static void end_step(cd_declared *d, cd_declared_rank *rank, uint32_t number)
{
    const cddp_event at = {.rank = number, .step = rank->step};
    if (rank->is_stepping && rank->touches == 0) note(d, CD_DECLARED_TOUCH, &at, -1);
    for (size_t i = 0; rank->is_stepping && rank->touches > 0 && i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        if (v->is_seen && v->optimizer == rank->optimizer && v->at != rank->updates)
            note(d, CD_DECLARED_TOUCH, &at, (int64_t)i);
    }
    rank->is_stepping = rank->is_skipping = false;
}

static void take_step(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    const cddp_event_optimizer_step *s = &e->as.optimizer_step;
    end_step(d, rank, e->rank);
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
        note(d, CD_DECLARED_OUTSIDE, e, -1);
    if (v == NULL) return;
    if (!rank->is_stepping || t->optimizer != rank->optimizer)
        note(d, CD_DECLARED_STEP, e, t->param); /* of another optimizer than the one that steps */
    /* nothing came in between: another optimizer has it too, or the same one steps again */
    const bool is_again = t->touched && v->touches > 0 && v->taken_locals == rank->locals &&
                          v->taken_zeros == rank->zero_grads;
    v->is_seen = true;
    v->optimizer = t->optimizer;
    v->at = rank->updates;
    rank->is_served |= !t->touched && v->has_local;
    if (!t->touched) return;
    rank->taken += cd_hash_mix(cd_hash_mix(0, e->step), (uint64_t)t->param);
    if (v->touches > 0 && !v->is_held && !v->is_empty) note(d, CD_DECLARED_HELD, e, t->param);
    v->is_held = false;
    if (!v->has_local && !is_again) note(d, CD_DECLARED_LOCAL, e, t->param);
    if (!v->has_reduced && !is_again && !rank->averages) note(d, CD_DECLARED_REDUCED, e, t->param);
    rank->is_apart |= !v->has_reduced && !is_again;
    d->again += is_again && e->rank == 0;
    v->taken_locals = rank->locals;
    v->taken_zeros = rank->zero_grads;
    v->must_move = v->has_slope && rank->rate != 0;
    if (t->gradient == 0 && !v->is_empty) note(d, CD_DECLARED_CONTENT, e, t->param);
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
    if (v->is_declared && v->name != p->name) note(d, CD_DECLARED_MODELS, e, p->param);
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

/* What a backward adds to was cleared, where the program said so. */
static void take_local(cd_declared *d, cd_declared_rank *rank, const cddp_event *e)
{
    cd_declared_variable *v = find(d, rank, e->as.grad_local.param);
    if (v == NULL || e->as.grad_local.presence == CDDP_PRESENCE_ABSENT) return;
    const bool is_shown = !rank->owes_clear || v->cleared_by == rank->zero_grads;
    if (v->has_gradient && !is_shown && !v->is_empty)
        note(d, CD_DECLARED_CLEARED, e, e->as.grad_local.param);
    v->cleared_by = rank->zero_grads; /* once */
    v->has_gradient = true;
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
        note(d, CD_DECLARED_CHANGED, e, value);
        rank->has_moved = true;
        hold(d, rank, value); /* said once */
    } else if (strcmp(words, CD_TRACER_CHANGED_LAST) == 0) {
        note(d, CD_DECLARED_LATE, e, value);
        hold(d, rank, value);
    } else if (strcmp(words, CD_TRACER_GRADIENT_CHANGED) == 0) {
        note(d, CD_DECLARED_ACCUMULATED, e, value);
    } else if (strcmp(words, CD_TRACER_GIVEN_CHANGED) == 0) {
        note(d, CD_DECLARED_GIVEN, e, value);
    } else if (strcmp(words, CD_TRACER_ELSEWHERE) == 0) {
        note(d, CD_DECLARED_TAKEN, e, value);
    } else if (strcmp(words, CD_TRACER_CLEARED) == 0) {
        rank->owes_clear = false;
    } else if (strcmp(words, CD_TRACER_OWN_REDUCTION) == 0) {
        if (rank->is_apart && !d->is_of_torch) note(d, CD_DECLARED_APART, e, -1);
        rank->is_apart = false;
    } else if (strcmp(words, CD_TRACER_AVERAGES) == 0) {
        rank->averages = true;
        note(d, CD_DECLARED_APART, e, -1);
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
            note(d, CD_DECLARED_CONTENT, e, e->as.grad_local.param);
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
        if (cd_models_is_mark(e) && e->as.mark.value < 0) note(d, CD_DECLARED_MODELS, e, -1);
        if (strcmp(e->text != NULL ? e->text : "", "sharded_units") == 0)
            note(d, CD_DECLARED_SHARDED, e, -1);
        if (strcmp(e->text != NULL ? e->text : "", "outside_parameters") == 0)
            note(d, CD_DECLARED_OUTSIDE, e, -1);
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
        end_step(d, rank, e->rank);
        /* of one that was ended its recording says no end */
        rank->has_ended = e->as.rank_end.end != CDDP_RANK_INTERRUPTED;
        break;
    default:
        break;
    }
}

void cd_declared_note_models(cd_declared *d)
{
    note(d, CD_DECLARED_MODELS, &(cddp_event){.rank = 0}, -1);
}

/* ---- at the end ---- */

/* Others train in a group that it is no member of. */
static bool is_outsider(const cd_declared *d, const cd_declared_rank *rank)
{
    return d->split < d->rank_count && !rank->has_wrapper && rank->variable_count == 0 &&
           rank->steps == 0;
}

/* Ranks whose parameter was the same after the last step must leave with the same. What all of
** them did alike afterwards is their affair: loading the best weights, an average. */
static void note_exits(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number, .step = rank->step};
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        bool is_alone = false;
        if (v->exit == 0 || v->last == 0 || v->exit == v->last) continue;
        for (uint32_t r = 0; !is_alone && r < d->rank_count; r++) {
            const cd_declared_rank *other = &d->ranks[r];
            const cd_declared_variable *w = i < other->variable_count ? &other->variables[i] : NULL;
            is_alone = w != NULL && w->name == v->name && w->last == v->last && w->exit != 0 &&
                       w->exit != v->exit;
        }
        if (is_alone)
            note(d, CD_DECLARED_EXIT, &at, (int64_t)i);
        else
            d->late++;
    }
}

static void note_stills(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number, .step = rank->step};
    uint64_t moved = 0;
    for (size_t i = 0; i < rank->still_count; i++) {
        const cd_declared_still *x = &rank->stills[i];
        const bool is_late = x->exit != 0 && x->last != 0 && x->exit != x->last;
        bool is_alone = false;
        for (uint32_t r = 0; is_late && !is_alone && r < d->rank_count; r++) {
            const cd_declared_rank *other = &d->ranks[r];
            const cd_declared_still *y = i < other->still_count ? &other->stills[i] : NULL;
            is_alone = y != NULL && other->group == rank->group && y->last == x->last &&
                       y->exit != 0 && y->exit != x->exit;
        }
        if (is_alone) note(d, CD_DECLARED_EXIT, &at, -1);
        moved += !x->is_ignored && (x->has_moved || (is_late && !is_alone));
    }
    if (moved > d->moved) d->moved = moved;
}

/* Where ranks join, those that are done early evaluate less often. */
static void note_buffers(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    bool is_alone = false;
    if (rank->evaluations == 0) return;
    for (uint32_t r = 0; r < d->rank_count; r++) {
        const cd_declared_rank *other = &d->ranks[r];
        const int64_t wanted = rank->has_join || other->has_join ? 1 : rank->evaluations;
        is_alone |=
            other->has_wrapper && other->group == rank->group && other->evaluations < wanted;
    }
    if (is_alone)
        note(d, CD_DECLARED_BUFFERS, &(cddp_event){.rank = number, .step = rank->step}, -1);
}

static void note_frozen(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    for (uint32_t r = 0; rank->frozen != 0 && !rank->has_join && r < d->rank_count; r++) {
        const cd_declared_rank *other = &d->ranks[r];
        if (!other->has_wrapper || other->group != rank->group || other->frozen == rank->frozen)
            continue;
        note(d, CD_DECLARED_FROZEN, &(cddp_event){.rank = number, .step = rank->step}, -1);
        return;
    }
}

/* No check found anything, so it has what ranks have that stepped (core/check/own_average.h). */
static void note_served(cd_declared *d, uint32_t number)
{
    const cd_declared_rank *rank = &d->ranks[number];
    bool differs = false;
    for (uint32_t r = 0; r < d->rank_count; r++)
        differs |= d->ranks[r].has_wrapper && d->ranks[r].group == rank->group &&
                   d->ranks[r].taken != rank->taken;
    if (differs && rank->is_served && !rank->has_join)
        note(d, CD_DECLARED_SERVED, &(cddp_event){.rank = number, .step = rank->step}, -1);
}

/* All ranks came to their end, and so often they waited in groups of ours on the way. */
static bool have_ended(const cd_declared *d, uint64_t *waits)
{
    bool have = true;
    *waits = 0;
    for (uint32_t i = 0; i < d->rank_count; i++) {
        have &= d->ranks[i].has_ended;
        *waits += d->ranks[i].waits;
    }
    return have;
}

/* A program of cddp/record.h that communicates by itself: its collectives are not seen. */
static bool has_own_means(const cd_declared *d)
{
    uint64_t waits;
    return d->rank_count > 1 && have_ended(d, &waits) && waits == 0 && !d->is_of_torch;
}

/* Nothing was found, and no rank showed a reduction: steps on gradients that nobody reduced were
** those of local SGD (core/check/own_average.h). */
static void note_apart(cd_declared *d)
{
    cd_declared_place *reduced = &d->gaps[CD_DECLARED_REDUCED];
    if (reduced->count == 0 || d->reduced > 0 || !has_own_means(d)) return;
    d->gaps[CD_DECLARED_APART] = *reduced;
    reduced->count = 0;
}

static void end_rank(cd_declared *d, uint32_t number)
{
    cd_declared_rank *rank = &d->ranks[number];
    const cddp_event at = {.rank = number};
    end_step(d, rank, number);
    if (rank->events == 0) {
        note(d, CD_DECLARED_BEGIN, &at, -1);
        return;
    }
    if (!rank->has_ended) note(d, CD_DECLARED_END, &at, -1);
    bool has_parameters = false;
    if (is_outsider(d, rank)) return;
    note_exits(d, number);
    note_stills(d, number);
    note_buffers(d, number);
    note_frozen(d, number);
    note_served(d, number);
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        has_parameters |= v->is_declared;
        if (v->touches > 0 && !v->has_value) note(d, CD_DECLARED_VALUE, &at, (int64_t)i);
        if (v->touches > 0 && v->has_value && !v->is_held && !v->is_empty)
            note(d, CD_DECLARED_HELD, &(cddp_event){.rank = number, .step = rank->step},
                 (int64_t)i);
        if (v->is_declared && !v->is_seen && rank->steps > 0)
            note(d, CD_DECLARED_TOUCH, &at, (int64_t)i);
    }
    if (!rank->has_wrapper || !has_parameters) note(d, CD_DECLARED_PARAMETERS, &at, -1);
    if (rank->steps == 0) note(d, CD_DECLARED_STEP, &at, -1);
}

/* What is missing, and what shows it: in a program of cddp/record.h, and in one of PyTorch where
** that is something else. */
static const struct {
    const char *what, *how, *python;
} gap_words[CD_DECLARED_COUNT] = {
    [CD_DECLARED_BEGIN] = {"the recording of a rank", "check run.db.* with the shards of all ranks",
                           "record every rank into the same folder"},
    [CD_DECLARED_END] = {"the end of the program", "cddp_record_close",
                         "start it by `python -m cddp_torch run`, which sees how each rank ends"},
    [CD_DECLARED_PARAMETERS] = {"the parameters", "cddp_ddp_create, or cddp_record_parameter",
                                "wrap the model in DistributedDataParallel once the recording has "
                                "begun, or cddp_torch.attach"},
    [CD_DECLARED_MODELS] = {"which of several wrappers a call is about",
                            "cddp_record_wrapper, before the calls about each of them",
                            "wrap each module once the recording has begun"},
    [CD_DECLARED_STEP] = {"an optimizer's step", "cddp_record_optimizer_step",
                          "an optimizer of torch.optim, made of the wrapped parameters"},
    [CD_DECLARED_TOUCH] = {"what a step did to a parameter", "cddp_record_optimizer_touch",
                           "an optimizer of torch.optim that has every trained parameter"},
    [CD_DECLARED_LOCAL] = {"a gradient before its reduction", "cddp_record_gradient",
                           "wrap the module once the recording has begun, and run backward on "
                           "what it returns"},
    [CD_DECLARED_REDUCED] = {"a gradient after its reduction", "cddp_ddp, or cddp_record_reduced",
                             "let DistributedDataParallel reduce it: what a program all-reduces "
                             "itself is not judged"},
    [CD_DECLARED_MEAN] = {"that a reduction made the mean of what the ranks recorded",
                          "cddp_record_gradient after the last change before the reduction, and "
                          "cddp_record_reduced before any after it",
                          "change no gradient between its backward and its reduction"},
    [CD_DECLARED_HOOK] = {"that the comm hook makes the mean, or which law it keeps",
                          "declare what it promises: CDDP_HOOK_EXACT or CDDP_HOOK_CASTS_FIRST in "
                          "its table; or state a law for every bucket with cddp_tracer_law",
                          "say what it promises, by cddp_law of a Python function: \"mean\", "
                          "\"sum\", \"fp16\", \"bf16\" or \"lossy\""},
    [CD_DECLARED_APART] = {"what ranks get that reduce in blocks and go on by themselves",
                           "local SGD is not judged", NULL},
    [CD_DECLARED_SIDES] = {"both sides of a reduction",
                           "gradients in f32, f64, f16 or bf16, dense and in the memory of the "
                           "host; cddp_record_gradient, cddp_record_reduced",
                           "level digests, and gradients in f32, f64, f16 or bf16, dense and on "
                           "the CPU"},
    [CD_DECLARED_DIVISOR] = {"by what a reduction in low precision divides: its rounding hides it",
                             "record without gradient_as_bucket_view", NULL},
    [CD_DECLARED_VALUE] = {"a parameter after its last update", "cddp_record_value",
                           "level digests, and parameters on the CPU"},
    [CD_DECLARED_HELD] = {"that a parameter stays as a step left it, to the next step or the end",
                          "cddp_record_value at CDDP_MOMENT_AFTER_STEP behind each step; "
                          "destroy the wrapper before cddp_record_close. Without cddp_ddp: "
                          "cddp_record_storage, cddp_record_storage_end",
                          NULL},
    [CD_DECLARED_CHANGED] = {"what changed a parameter outside of the steps",
                             "cddp_record_optimizer_step before the update, cddp_record_value at "
                             "CDDP_MOMENT_AFTER_STEP behind it and behind any other change",
                             NULL},
    [CD_DECLARED_LATE] = {"what changed a parameter behind the last step",
                          "cddp_record_value at CDDP_MOMENT_AFTER_STEP behind that change", NULL},
    [CD_DECLARED_CLEARED] = {"that zero_grad did what was said of it",
                             "cddp_record_zero_grad behind the clearing, before the backward. "
                             "Without cddp_ddp: cddp_record_storage. A backward that "
                             "overwrites gradients has no zero_grad to say",
                             NULL},
    [CD_DECLARED_CONTENT] = {"the content of tensors", "level digest",
                             "level digests, which needs libcddp_trace.so, and tensors on the CPU"},
    [CD_DECLARED_SHARDED] = {"what the units of a sharded model must be",
                             "cddp_fsdp is not judged yet, docs/fsdp.md", NULL},
    [CD_DECLARED_REWRITE] = {"what the program itself made of gradients between their reduction "
                             "and the optimizer",
                             "a clip and a loss scale: cddp_record_optimizer_step. What the "
                             "optimizer adds, as weight decay: behind cddp_record_optimizer_touch",
                             "clip with clip_grad_norm_ or clip_grad_value_; change anything else "
                             "before the backward ends"},
    [CD_DECLARED_OUTSIDE] = {"how the ranks keep parameters equal that an optimizer has and no "
                             "wrapper reduces",
                             "take them off the ignore list, or wrap them in another cddp_ddp",
                             "wrap their module in DistributedDataParallel as well"},
    [CD_DECLARED_EXIT] = {"why parameters changed after the last step, and not alike on all ranks",
                          "destroy_process_group before one rank alone loads or changes weights",
                          NULL},
    [CD_DECLARED_BUFFERS] = {"why buffers changed outside of training steps, on some ranks alone",
                             "evaluate in eval(), or on all ranks", NULL},
    [CD_DECLARED_ACCUMULATED] = {"what changed a gradient between two backwards that add up",
                                 "change it after the last of them, behind the reduction, and say "
                                 "by what in cddp_record_optimizer_step",
                                 NULL},
    [CD_DECLARED_GIVEN] = {"what changed a gradient between cddp_record_gradient and the comm hook",
                           "show it as it is marked ready, and leave it alone from there on", NULL},
    [CD_DECLARED_TAKEN] = {"which gradient a step took: what the program showed is not what lies "
                           "in the gradient's place",
                           "cddp_record_optimizer_touch with the tensor that the optimizer reads",
                           NULL},
    [CD_DECLARED_UNEVEN] = {"why ranks add up other numbers of backwards before one reduction: a "
                            "mean of such sums is no mean over the samples",
                            "equally many backwards on each rank, or join for uneven inputs", NULL},
    [CD_DECLARED_UNANNOUNCED] = {"what became of gradients between two backwards that add up: "
                                 "nothing says where the second one begins",
                                 "cddp_record_micro_step with its number, or cddp_record_samples, "
                                 "in front of each forward",
                                 NULL},
    [CD_DECLARED_DROPPED] = {"why gradients that a backward inside no_sync had left were dropped "
                             "before any reduction",
                             "zero_grad behind the optimizer's step, and the last backward of each "
                             "window outside of no_sync",
                             NULL},
    [CD_DECLARED_FORWARD] = {"why ranks run a forward on parameters that differ",
                             "exchange them alike on all ranks: of SAM the radius, and the norm. "
                             "Where each rank has its own by right, as in MAML: cddp_record_value "
                             "at CDDP_MOMENT_ADAPTED, in front of the forward",
                             NULL},
    [CD_DECLARED_SERVED] = {"how a rank gets a parameter that the optimizer of another rank steps",
                            "on every rank cddp_record_reduced with the mean of the ranks, and "
                            "cddp_record_optimizer_touch with what the step took: it does not "
                            "matter which rank computes it",
                            "let the optimizer of every rank step every parameter"},
    [CD_DECLARED_SECOND] = {"on which parameters a further backward of a step ran, whose first "
                            "gradients were dropped",
                            "cddp_record_value at CDDP_MOMENT_FORWARD in front of it, or at "
                            "CDDP_MOMENT_ADAPTED",
                            NULL},
    [CD_DECLARED_NUMBER] = {"where a step begins: an optimizer steps on another reduction under "
                            "the number of the step before",
                            "cddp_record_step_begin, with a new number for each step", NULL},
    [CD_DECLARED_FROZEN] = {"why parameters are frozen on some ranks alone, or in other steps",
                            "set requires_grad on all ranks alike", NULL},
    [CD_DECLARED_SAMPLES] = {"which samples are whose: a DataLoader without a DistributedSampler "
                             "gives several ranks the same ones",
                             "DataLoader(data, sampler=DistributedSampler(data))", NULL},
};

static bool was_exercised(const cddp_verdict *verdict, const char *check)
{
    bool was = false;
    for (size_t i = 0; i < verdict->exercise_count; i++)
        was |= strcmp(verdict->exercises[i].check, check) == 0;
    return was;
}

/* What several ranks must have put to the test before their training is called verified. */
static const char *const needed[] = {"I-ORDER", "I-LIVE", "I-ONCE", "I-GRADEQ", "I-PARAMEQ"};

/* Of ranks that all ended, and found nothing to wait for but once, nothing more is to be known. */
static bool is_known_anyway(const cd_declared *d, const char *check)
{
    uint64_t waits;
    if (strcmp(check, "I-ORDER") == 0) return has_own_means(d);
    return strcmp(check, "I-LIVE") == 0 && have_ended(d, &waits) &&
           waits < 2; /* I-LIVE judges from two on */
}

static const char *add_place(const cd_declared *d, const char *words, cd_declared_gap gap,
                             cd_arena *arena)
{
    const cd_declared_place *p = &d->gaps[gap];
    const bool has_python = d->is_of_torch && gap_words[gap].python != NULL;
    const char *how = has_python ? gap_words[gap].python : gap_words[gap].how;
    const char *variable =
        p->variable >= 0 ? cd_arena_printf(arena, ", parameter %" PRId64, p->variable) : "";
    if (words == NULL || variable == NULL) return NULL;
    return cd_arena_printf(arena,
                           "%snot shown: %s (%s), first on rank %" PRIu32 ", step %" PRIu32
                           "%s; %" PRIu64 " in all\n",
                           words, gap_words[gap].what, how, p->rank, p->step, variable, p->count);
}

/* Where laws and explanations are certain, what is not the mean is a finding. What a program says
** that it gave to an accumulating hook may be said too early. */
static bool is_certain(const cd_means *m)
{
    const bool is_known = m->is_promised || m->explanation_count > 0;
    return m->others > 0 && m->is_hooked && is_known && !m->is_accumulated;
}

static bool lacks_rank(const cd_declared *d)
{
    bool lacks = false;
    for (uint32_t i = 0; i < d->rank_count; i++) lacks |= d->ranks[i].events == 0;
    return lacks;
}

static void note_means(cd_declared *d)
{
    cd_means *m = &d->means;
    const cddp_event at = {.rank = 0, .step = m->wrong.step}, nowhere = {.rank = 0};
    const cd_declared_gap other = m->is_hooked ? CD_DECLARED_HOOK : CD_DECLARED_MEAN;
    cd_means_end(m);
    d->is_out_of_memory |= m->is_out_of_memory;
    if (m->others > 0) {
        note(d, other, &at, m->wrong.variable);
        d->gaps[other].count = m->others;
    } else if (m->sums > 0 && m->means > 0) {
        note(d, CD_DECLARED_MEAN, &at, -1);
    }
    if (m->apart > 0) {
        note(d, CD_DECLARED_APART, &nowhere, -1);
        d->gaps[CD_DECLARED_APART].count = m->apart;
    }
    /* of a rank that recorded nothing no reduction is shown: that is no news */
    if (m->unshown > 0 && !lacks_rank(d)) {
        note(d, CD_DECLARED_SIDES, &nowhere, -1);
        d->gaps[CD_DECLARED_SIDES].count = m->unshown;
    }
    if (m->blind > 0) {
        note(d, CD_DECLARED_DIVISOR, &nowhere, -1);
        d->gaps[CD_DECLARED_DIVISOR].count = m->blind;
    }
}

/* A change that nobody explains may be anything. */
static void note_consumed(cd_declared *d)
{
    const cd_consumed_place *p = &d->consumed.unexplained;
    cd_consumed_end(&d->consumed);
    d->is_out_of_memory |= d->consumed.is_out_of_memory;
    if (p->count == 0) return;
    note(d, CD_DECLARED_REWRITE, &(cddp_event){.rank = p->rank, .step = p->step}, p->variable);
    d->gaps[CD_DECLARED_REWRITE].count = p->count;
}

static void note_samples(cd_declared *d)
{
    const uint64_t shared = cd_own_samples_count_shared(&d->samples);
    d->is_out_of_memory |= d->samples.is_out_of_memory;
    if (shared == 0) return;
    note(d, CD_DECLARED_SAMPLES, &(cddp_event){.rank = 0}, -1);
    d->gaps[CD_DECLARED_SAMPLES].count = shared;
}

/* A generator's backward leaves gradients in a discriminator, which drops them. */
static void note_windows(cd_declared *d)
{
    const cd_windows_place *uneven = &d->windows.uneven, *dropped = &d->windows.dropped,
                           *unannounced = &d->windows.unannounced;
    cd_windows_end(&d->windows);
    d->is_out_of_memory |= d->windows.is_out_of_memory;
    if (uneven->count > 0) {
        note(d, CD_DECLARED_UNEVEN, &(cddp_event){.rank = uneven->rank, .step = uneven->step}, -1);
        d->gaps[CD_DECLARED_UNEVEN].count = uneven->count;
    }
    if (unannounced->count > 0) {
        note(d, CD_DECLARED_UNANNOUNCED,
             &(cddp_event){.rank = unannounced->rank, .step = unannounced->step}, -1);
        d->gaps[CD_DECLARED_UNANNOUNCED].count = unannounced->count;
    }
    if (d->windows.unnumbered.count > 0 && !d->is_of_torch) {
        const cd_windows_place *p = &d->windows.unnumbered;
        note(d, CD_DECLARED_NUMBER, &(cddp_event){.rank = p->rank, .step = p->step}, -1);
        d->gaps[CD_DECLARED_NUMBER].count = p->count;
    }
    if (dropped->count > 0 && d->model_count == 1) {
        note(d, CD_DECLARED_DROPPED, &(cddp_event){.rank = dropped->rank, .step = dropped->step},
             -1);
        d->gaps[CD_DECLARED_DROPPED].count = dropped->count;
    }
}

static void note_forwards(cd_declared *d)
{
    const cd_forwards_split split = cd_forwards_compare(&d->forwards);
    const cd_forwards_place *places[] = {&split.any, &d->forwards.unshown};
    const cd_declared_gap gaps[] = {CD_DECLARED_FORWARD, CD_DECLARED_SECOND};
    d->is_out_of_memory |= d->forwards.is_out_of_memory || split.is_out_of_memory;
    for (size_t i = 0; i < 2; i++) {
        const cd_forwards_place *p = places[i];
        if (p->count == 0 || d->is_of_torch) continue;
        note(d, gaps[i], &(cddp_event){.rank = p->rank, .step = p->step}, p->variable);
        d->gaps[gaps[i]].count = p->count;
    }
}

/* ---- a hook that is wrong ---- */

static void say_cause(const cd_means *m, char *words, size_t bytes)
{
    const cd_means_explanation unknown = {.cause = CD_MEANS_UNEXPLAINED};
    const cd_means_explanation *x = m->explanation_count > 0 ? m->explanations : &unknown;
    const long long number = (long long)x->number, divisor = (long long)m->wrong.divisor;
    switch (x->cause) {
    case CD_MEANS_DIVISOR:
        if (number == 1)
            snprintf(words, bytes, "the sum of what the ranks gave: nobody divides by %lld",
                     divisor);
        else
            snprintf(words, bytes, "the sum of what the ranks gave divided by %lld, not by %lld",
                     number, divisor);
        break;
    case CD_MEANS_MISSING:
        snprintf(words, bytes, "the mean without what rank %lld gave", number);
        break;
    case CD_MEANS_TWICE:
        snprintf(words, bytes, "a sum in which rank %lld is twice", number);
        break;
    case CD_MEANS_NEGATED:
        snprintf(words, bytes, "minus the %s of what the ranks gave",
                 divisor == 1 ? "sum" : "mean");
        break;
    case CD_MEANS_STALE:
        snprintf(words, bytes, "the mean of the backward before");
        break;
    case CD_MEANS_UNEXPLAINED:
    default:
        snprintf(words, bytes, "something else than the %s of what the ranks gave",
                 divisor == 1 ? "sum" : "mean");
    }
}

static void name_parameter(const cd_declared *d, uint32_t number, int64_t variable, cddp_finding *f)
{
    const cd_declared_rank *rank = &d->ranks[number];
    if (variable >= 0 && (size_t)variable < rank->variable_count)
        snprintf(f->parameter, sizeof f->parameter, "%s", rank->variables[variable].words);
}

/* The accusation of a rank, and of a parameter or -1; what it is about follows. */
static cddp_finding accuse_rank(const cd_declared *d, const char *check, uint32_t number,
                                uint32_t step, int64_t variable)
{
    cddp_finding f = {.size = sizeof f,
                      .check = check,
                      .step = step,
                      .rank = (int32_t)number,
                      .peer = -1,
                      .bucket = -1,
                      .param = (int32_t)variable};
    name_parameter(d, number, variable, &f);
    return f;
}

static bool accuse_skipped(const cd_declared *d, cddp_finding *finding)
{
    const cd_declared_place *p = &d->unskipped;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-STEP", p->rank, p->step, p->variable);
    snprintf(f.title, sizeof f.title, "rank %" PRIu32 " changes %.80s in a step that it skips",
             p->rank, f.parameter[0] != '\0' ? f.parameter : "a parameter");
    snprintf(f.expected, sizeof f.expected, "a skipped step leaves every parameter as it was");
    snprintf(f.actual, sizeof f.actual, "after it the content is another; %" PRIu64 " in all",
             p->count);
    snprintf(f.advice, sizeof f.advice,
             "look whether what skips the step guards the whole update, or say is_skipped = false");
    *finding = f;
    return true;
}

/* A change on all ranks may be meant: weights are clamped, or exchanged. One on some is not. */
static bool accuse_changed(const cd_declared *d, cddp_finding *finding)
{
    const cd_declared_place *p = &d->gaps[CD_DECLARED_CHANGED];
    uint32_t moved = 0, trained = 0;
    for (uint32_t i = 0; i < d->rank_count; i++) {
        moved += d->ranks[i].has_moved;
        trained += d->ranks[i].steps > 0;
    }
    if (p->count == 0 || moved == trained) return false;
    cddp_finding f = accuse_rank(d, "I-CHAIN", p->rank, p->step, p->variable);
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 ": parameter %.60s changed outside of the steps", p->rank,
             f.parameter);
    snprintf(f.expected, sizeof f.expected,
             "the content that its last step left, as on ranks that did not change it");
    snprintf(f.actual, sizeof f.actual,
             "another one before the optimizer of step %" PRIu32 "; on %" PRIu32 " of %" PRIu32
             " ranks",
             p->step, moved, trained);
    snprintf(f.advice, sizeof f.advice,
             "look at what this rank writes between its steps; show a change that is meant with "
             "cddp_record_value");
    *finding = f;
    return true;
}

/* Each of them runs on something else than its step left; all but one on the same. */
static bool accuse_forward(const cd_declared *d, cddp_finding *finding)
{
    const cd_forwards_split split = cd_forwards_compare(&d->forwards);
    const cd_forwards_place *p = &split.one;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-PARAMEQ", p->rank, p->step, p->variable);
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 " runs a forward on another %.60s than the other ranks", p->rank,
             f.parameter[0] != '\0' ? f.parameter : "parameter");
    snprintf(f.expected, sizeof f.expected,
             "all ranks exchange the parameters of that forward alike: their gradients are "
             "averaged");
    snprintf(f.actual, sizeof f.actual,
             "the others agree, and this rank differs; %" PRIu64 " forwards in all", p->count);
    snprintf(f.advice, sizeof f.advice,
             "look at what this rank does to its parameters between its step and the forward: its "
             "radius (SAM), its seed, its scale. Where each rank has its own by right, say so with "
             "cddp_record_value at CDDP_MOMENT_ADAPTED");
    *finding = f;
    return true;
}

/* What the program said of a gradient is not what it did. */
static bool accuse_consumed(const cd_declared *d, cddp_finding *finding)
{
    const cd_consumed_place *p = &d->consumed.wrong;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-CHAIN", p->rank, p->step, p->variable);
    const char *name = f.parameter[0] != '\0' ? f.parameter : "a parameter";
    if (p->clip == 1 && p->loss_scale == 1)
        cd_real_format(f.title, sizeof f.title,
                       "the optimizer takes another gradient of %.60s than was reduced, %.6g times "
                       "as large",
                       name, p->ratio);
    else
        cd_real_format(f.title, sizeof f.title,
                       "the optimizer takes a gradient of %.60s that is not the reduced one times "
                       "%.6g / %.6g",
                       name, p->clip, p->loss_scale);
    cd_real_format(
        f.expected, sizeof f.expected,
        "%.9g, within %.3g: the reduced gradient times fixed weights, times clip / loss scale "
        "as cddp_record_optimizer_step got them",
        p->expected, p->bound);
    cd_real_format(f.actual, sizeof f.actual,
                   "%.9g; the sizes have the ratio %.9g; %" PRIu64 " gradients in all", p->actual,
                   p->ratio, p->count);
    snprintf(f.advice, sizeof f.advice,
             "look at what the program does between the reduction and the step, or say the clip "
             "and the loss scale that it used");
    *finding = f;
    return true;
}

/* The program sums what the wrapper has averaged. */
static bool accuse_twice(const cd_declared *d, cddp_finding *finding)
{
    const cd_consumed_place *p = &d->consumed.twice;
    if (p->count == 0) return false;
    cddp_finding f = accuse_rank(d, "I-ONCE", p->rank, p->step, p->variable);
    f.rank = -1;
    snprintf(f.title, sizeof f.title, "all ranks: the gradient of %.80s is reduced twice",
             f.parameter[0] != '\0' ? f.parameter : "a parameter");
    cd_real_format(f.expected, sizeof f.expected,
                   "%.9g: the gradient that the wrapper's backward left, times fixed weights",
                   p->expected);
    cd_real_format(f.actual, sizeof f.actual,
                   "%.9g: %.4g times as large, after an all-reduce of the program itself; %" PRIu64
                   " gradients in all",
                   p->actual, p->ratio, p->count);
    snprintf(f.advice, sizeof f.advice,
             "leave the all-reduce out: backward has averaged the gradients already. Or run every "
             "backward inside no_sync, and divide by the number of ranks");
    *finding = f;
    return true;
}

/* Without a hook nobody may mean that one rank's gradients are missing, or are there twice. What
** else a reduction of the program makes, it may mean. */
static bool accuse_reduction(const cd_declared *d, cddp_finding *finding)
{
    const cd_means *m = &d->means;
    const cd_means_wrong *w = &m->wrong;
    const cd_means_explanation *x = m->explanations;
    const bool is_clear = fabs(w->expected - w->actual) > 8 * w->bound; /* no rounding */
    const bool is_known = m->others > 0 && m->explanation_count == 1 && !m->is_accumulated;
    if (!is_known || !is_clear || (x->cause != CD_MEANS_MISSING && x->cause != CD_MEANS_TWICE))
        return false;
    cddp_finding f = accuse_rank(d, "I-ONCE", (uint32_t)x->number, w->step, w->variable);
    snprintf(f.title, sizeof f.title,
             "rank %" PRId64 ": its gradient of %.60s is %s what the ranks reduced", x->number,
             f.parameter[0] != '\0' ? f.parameter : "a parameter",
             x->cause == CD_MEANS_MISSING ? "missing in" : "twice in");
    cd_real_format(f.expected, sizeof f.expected,
                   "%.9g, within %.3g: the mean of what all ranks recorded, times fixed weights",
                   w->expected, w->bound);
    cd_real_format(f.actual, sizeof f.actual, "%.9g: that mean %s; %" PRIu64 " reductions in all",
                   w->actual,
                   x->cause == CD_MEANS_MISSING ? "without it" : "with twice as much of it",
                   m->others);
    snprintf(f.advice, sizeof f.advice,
             "look at what this rank does with its gradient between cddp_record_gradient and the "
             "reduction, and whether it takes part with the right buffer");
    *finding = f;
    return true;
}

static bool accuse_twins(const cd_declared *d, cddp_finding *finding)
{
    cd_own_samples_twins twins;
    char who[64] = "all ranks";
    if (!cd_own_samples_find_twins(&d->samples, &twins)) return false;
    if (!twins.are_all)
        snprintf(who, sizeof who, "ranks %" PRIu32 " and %" PRIu32, twins.first, twins.second);
    cddp_finding f = {.size = sizeof f,
                      .check = "I-DATA",
                      .rank = twins.are_all ? -1 : (int32_t)twins.second,
                      .peer = twins.are_all ? -1 : (int32_t)twins.first,
                      .bucket = -1,
                      .param = -1};
    snprintf(f.title, sizeof f.title, "%s train on the same samples, in the same order", who);
    snprintf(f.expected, sizeof f.expected, "other samples on each rank");
    snprintf(f.actual, sizeof f.actual,
             "the first %zu samples, of at least %" PRIu64 " batches, are the same", twins.count,
             twins.batches);
    snprintf(f.advice, sizeof f.advice,
             "the DataLoader has no DistributedSampler, and its order comes from the same seed: "
             "DataLoader(data, sampler=DistributedSampler(data)), and set_epoch before each epoch");
    if (twins.are_batches) {
        snprintf(f.actual, sizeof f.actual, "what the first %zu forwards get is the same",
                 twins.count);
        snprintf(f.advice, sizeof f.advice,
                 "no sampler shares the data out among ranks. Use DistributedSampler; let an "
                 "IterableDataset take each world_size-th sample. Or draw from another seed on "
                 "each rank");
    }
    *finding = f;
    return true;
}

/* Of ranks that trained to their end: one that ended early may have been about to take its part. */
static bool accuse_missing(const cd_declared *d, cddp_finding *finding)
{
    cd_own_samples_missing m;
    bool have_ended = true;
    for (uint32_t i = 0; i < d->rank_count; i++) have_ended &= d->ranks[i].has_ended;
    if (!have_ended || !cd_own_samples_find_missing(&d->samples, &m)) return false;
    cddp_finding f = {
        .size = sizeof f, .check = "I-DATA", .rank = -1, .peer = -1, .bucket = -1, .param = -1};
    snprintf(f.title, sizeof f.title,
             "nobody trains on the samples that a DistributedSampler has for rank %" PRId64
             " of %" PRId64,
             m.rank, m.replicas);
    snprintf(f.expected, sizeof f.expected, "each of the %" PRId64 " parts is taken by some rank",
             m.replicas);
    snprintf(f.actual, sizeof f.actual, "%" PRId64 " of them by none of the %" PRIu32 " ranks",
             m.count, d->rank_count);
    snprintf(f.advice, sizeof f.advice,
             "num_replicas is the number of ranks that train: DistributedSampler(data) takes it, "
             "and the rank, from the process group");
    *finding = f;
    return true;
}

static bool accuse_copies(const cd_declared *d, cddp_finding *finding)
{
    uint32_t number;
    if (!cd_own_samples_find_copies(&d->samples, &number)) return false;
    const cd_own_samples_rank *rank = &d->samples.ranks[number];
    cddp_finding f = accuse_rank(d, "I-DATA", number, 0, -1);
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 ": each of the %" PRId64 " workers of a DataLoader gives the same "
             "batches",
             number, rank->workers);
    snprintf(f.expected, sizeof f.expected, "workers that share the dataset out among them");
    snprintf(f.actual, sizeof f.actual,
             "all %zu batches come %" PRId64 " times each, one behind the other",
             rank->streamed_count, rank->workers);
    snprintf(f.advice, sizeof f.advice,
             "each worker iterates over the whole IterableDataset: take each num_workers-th sample "
             "there, by torch.utils.data.get_worker_info()");
    *finding = f;
    return true;
}

static bool accuse_feedback(const cd_declared *d, cddp_finding *finding)
{
    uint32_t number;
    if (!cd_feedback_find(&d->feedback, &number)) return false;
    const cd_feedback_rank *rank = &d->feedback.ranks[number];
    cddp_finding f = accuse_rank(d, "I-HOOK", number, rank->step, -1);
    f.bucket = (int32_t)rank->bucket;
    snprintf(f.title, sizeof f.title,
             "rank %" PRIu32 ": the error that the comm hook keeps of bucket %" PRId64
             " changed between two calls",
             number, rank->bucket);
    snprintf(f.expected, sizeof f.expected,
             "each call begins with the error that the one before left, as on ranks that did not "
             "change it");
    snprintf(f.actual, sizeof f.actual, "another one in step %" PRIu32 "; changes in all: %" PRIu64,
             rank->step, rank->count);
    snprintf(f.advice, sizeof f.advice,
             "what a rank alone forgets of its gradients never reaches the others: change or reset "
             "the hook's state on all ranks in the same step, or on none");
    *finding = f;
    return true;
}

bool cd_declared_accuses(const cd_declared *d, cddp_finding *finding)
{
    const cd_means *m = &d->means;
    const cd_means_wrong *w = &m->wrong;
    char cause[120];
    if (!is_certain(m))
        return accuse_twice(d, finding) || accuse_reduction(d, finding) ||
               accuse_consumed(d, finding) || accuse_changed(d, finding) ||
               accuse_forward(d, finding) || accuse_skipped(d, finding) ||
               accuse_feedback(d, finding) || accuse_twins(d, finding) ||
               accuse_missing(d, finding) || accuse_copies(d, finding);
    cddp_finding f = {.size = sizeof f,
                      .check = "I-HOOK",
                      .step = w->step,
                      .rank = -1,
                      .peer = -1,
                      .bucket = -1,
                      .param = (int32_t)w->variable};
    name_parameter(d, 0, w->variable, &f);
    say_cause(m, cause, sizeof cause);
    snprintf(f.title, sizeof f.title, "the comm hook %.40s delivers %.95s", m->hook, cause);
    cd_real_format(f.expected, sizeof f.expected, "%.9g, within %.3g: the %s, times fixed weights",
                   w->expected, w->bound, w->divisor == 1 ? "sum" : "mean");
    cd_real_format(f.actual, sizeof f.actual, "%.9g; %" PRIu64 " reductions in all", w->actual,
                   m->others);
    snprintf(f.advice, sizeof f.advice,
             "a hook has to return the mean over all ranks (HOOK-08); one that sums on purpose, or "
             "compresses, has to declare it%s",
             m->has_views ? ". Gradients are views of their buckets: a write to one while the hook "
                            "is at work gives the same picture"
                          : "");
    *finding = f;
    return true;
}

const char *cd_declared_print_gaps(cd_declared *d, const cddp_verdict *verdict, cd_arena *arena)
{
    const char *words = "";
    note_means(d);
    note_consumed(d);
    note_samples(d);
    note_windows(d);
    note_forwards(d);
    for (uint32_t i = 0; i < d->rank_count; i++) end_rank(d, i);
    note_apart(d);
    /* its recorder looks at neither */
    for (int gap = CD_DECLARED_HELD; gap <= CD_DECLARED_CLEARED && d->is_of_torch; gap++)
        d->gaps[gap].count = 0;
    for (int gap = 0; gap < CD_DECLARED_COUNT; gap++)
        if (d->gaps[gap].count > 0) words = add_place(d, words, (cd_declared_gap)gap, arena);
    for (size_t i = 0; d->rank_count > 1 && words != NULL && i < sizeof needed / sizeof *needed;
         i++)
        if (!was_exercised(verdict, needed[i]) && !is_known_anyway(d, needed[i]))
            words = cd_arena_printf(arena, "%s%s had nothing to judge\n", words, needed[i]);
    return d->is_out_of_memory ? NULL : words;
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

const char *cd_declared_print_proven(const cd_declared *d, cd_arena *arena)
{
    const cd_means *m = &d->means;
    const bool is_sum = m->sums > 0 || m->has_summing;
    const char *law =
        m->stated == 0
            ? ""
            : cd_arena_printf(arena, "%s of the comm hook %s",
                              m->means + m->casts > 0 ? ", or kept the laws" : "kept the laws",
                              m->hook);
    const char *made = m->means + m->casts + m->sums == 0 ? ""
                       : is_sum                           ? "made the sum of the recorded gradients"
                       : m->casts > 0
                           ? "made the mean of the recorded gradients, as a low precision rounds it"
                           : "made the mean of the recorded gradients";
    const char *rescaled = d->consumed.held > 0
                               ? "optimizers took reduced gradients times the clip and loss scale "
                                 "that were said, "
                               : "";
    if (law == NULL) return NULL;
    return cd_arena_printf(arena, "%s%s%s%s%sequal gradients and parameters on all ranks%s%s",
                           made[0] != '\0' || law[0] != '\0' ? "reductions " : "", made, law,
                           made[0] != '\0' || law[0] != '\0' ? ", " : "", rescaled,
                           d->split < d->rank_count ? " of each group" : "",
                           has_own_means(d) ? "" : ", order, liveness");
}

static bool shows_begins(const cd_declared_rank *rank)
{
    for (size_t i = 0; i < rank->variable_count; i++) {
        const cd_declared_variable *v = &rank->variables[i];
        if (v->is_seen && v->begins < rank->steps) return false;
    }
    return true;
}

/* What all ranks did alike, and what is not known of samples. */
static const char *print_rest(const cd_declared *d, bool has_samples, cd_arena *arena)
{
    const uint64_t changes = cd_feedback_count(&d->feedback);
    const char *again =
        d->again == 0 ? ""
                      : cd_arena_printf(arena,
                                        "; nor why optimizers took %" PRIu64
                                        " reduced gradients more than once, alike on all ranks",
                                        d->again);
    const char *samples = has_samples ? ""
                          : d->samples.has_own_order
                              ? "; samples were not judged: a sampler has its own order of them"
                          : d->is_of_torch
                              ? "; samples were not shown (a DistributedSampler shows them)"
                              : "; samples were not shown (cddp_record_samples)";
    const char *unused =
        d->unused_samples == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " sample%s that a loader gave reached no forward",
                              d->unused_samples, d->unused_samples == 1 ? "" : "s");
    const char *errors =
        changes == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why the error that the comm hook keeps changed %" PRIu64
                              " time%s between its calls, alike on all ranks",
                              changes, changes == 1 ? "" : "s");
    const uint64_t uneven = cd_own_samples_count_uneven(&d->samples);
    const char *means =
        uneven == 0 ? ""
                    : cd_arena_printf(
                          arena,
                          "; nor that ranks used other numbers of samples in %" PRIu64
                          " step%s: the mean of their means is no mean over the samples, unless "
                          "the program weighs them",
                          uneven, uneven == 1 ? "" : "s");
    return again != NULL && unused != NULL && errors != NULL && means != NULL
               ? cd_arena_printf(arena, "%s%s%s%s%s", again, unused, errors, means, samples)
               : NULL;
}

const char *cd_declared_print_unjudged(const cd_declared *d, cd_arena *arena)
{
    const cd_consumed *c = &d->consumed;
    bool has_samples = true, drops = true, begins = true;
    for (uint32_t i = 0; i < d->rank_count; i++) {
        const cd_declared_rank *rank = &d->ranks[i];
        begins &= !d->is_of_torch || shows_begins(rank);
        has_samples &= rank->samples > 0;
        drops &= rank->zero_grads > 0 || rank->steps < 2;
    }
    const char *order =
        has_own_means(d) ? "; nor the order of collectives, which no group of cddp saw" : "";
    const char *dropping = !drops ? "; no zero_grad was shown, so every step adds to the "
                                    "gradients of the one before"
                                  : "";
    const char *scaled =
        c->scalings == 0
            ? ""
            : cd_arena_printf(
                  arena, "; nor that the program itself scaled all reduced gradients by %s%.4g",
                  c->has_scales ? "several factors, the first " : "", c->scale);
    const char *gone =
        c->dropped == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " reduced gradients were gone before a step could take them",
                              c->dropped);
    const char *untaken =
        d->windows.untaken == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why the reduced gradients of %" PRIu64
                              " backward%s were dropped without an optimizer's step",
                              d->windows.untaken, d->windows.untaken == 1 ? "" : "s");
    const char *dropped =
        d->windows.dropped.count == 0 || d->model_count == 1 /* a gap */
            ? ""
            : cd_arena_printf(arena,
                              "; nor why gradients of %" PRIu64
                              " backward%s inside no_sync were dropped before any reduction",
                              d->windows.dropped.count, d->windows.dropped.count == 1 ? "" : "s");
    const char *hooked =
        d->hooked == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor what hooks of tensors made of the gradients of %" PRId64
                              " parameters before their reduction",
                              d->hooked);
    const char *late =
        d->late == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " parameters changed after the last step, alike on all ranks",
                              d->late);
    const char *moved =
        d->moved == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why %" PRIu64
                              " parameter%s without gradients changed, alike on all ranks",
                              d->moved, d->moved == 1 ? "" : "s");
    const char *exchanged =
        d->exchanged == 0 ? ""
                          : cd_arena_printf(arena,
                                            "; nor forwards on other parameters than the steps "
                                            "left, %" PRIu64 " in all",
                                            d->exchanged);
    const char *adapted =
        d->forwards.adapted == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor forwards on parameters that each rank has for itself, as the "
                              "program says, %" PRIu64 " in all",
                              d->forwards.adapted);
    const char *buffers =
        d->buffers == 0 || d->has_buffers_shown || d->is_of_torch
            ? ""
            : cd_arena_printf(arena,
                              "; nor the content of %" PRIu64
                              " buffer%s (cddp_record_value at CDDP_MOMENT_FORWARD, behind "
                              "cddp_ddp_forward_begin)",
                              d->buffers, d->buffers == 1 ? "" : "s");
    const char *unmoved =
        d->unmoved.count == 0
            ? ""
            : cd_arena_printf(arena,
                              "; nor why a step that took a gradient, at a rate that is not 0, "
                              "left a parameter as it was, bit for bit: first parameter %" PRId64
                              " in step %" PRIu32 "; %" PRIu64 " in all",
                              d->unmoved.variable, d->unmoved.step, d->unmoved.count);
    const char *ignored =
        d->ignored == 0 ? ""
                        : cd_arena_printf(arena,
                                          "; nor the %" PRIu64
                                          " parameter%s on the ignore list, where ranks may differ",
                                          d->ignored, d->ignored == 1 ? "" : "s");
    const char *rest = print_rest(d, has_samples, arena);
    if (rest == NULL || scaled == NULL || gone == NULL || hooked == NULL || late == NULL ||
        moved == NULL || exchanged == NULL || adapted == NULL || buffers == NULL ||
        ignored == NULL || untaken == NULL || dropped == NULL || unmoved == NULL)
        return NULL;
    return cd_arena_printf(
        arena,
        "%sthe optimizer's arithmetic was not computed anew%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
        d->is_of_torch ? ""
                       : "how gradients came to be before cddp_record_gradient (compare sees it); ",
        begins ? "" : ", nor what happened to parameters outside of its steps", order, exchanged,
        adapted, buffers,
        c->unjudged > 0 ? "; nor what clipping or a loss scale made of gradients" : "", scaled,
        gone, unmoved, untaken, dropped, hooked, late, moved, ignored, dropping,
        d->split < d->rank_count ? "; groups of fewer ranks were judged each by itself" : "", rest);
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
