/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/compare/traced.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <string.h>

/* A variable beyond this is damage, no parameter. */
#define VARIABLES_MAX (INT64_C(1) << 20)

static bool grow(cd_traced *f, void **items, size_t *capacity, size_t needed, size_t bytes)
{
    const bool has = cd_vec_grow(f->allocator, items, capacity, needed, bytes);
    f->is_out_of_memory |= !has;
    return has;
}

/* Where the step is, or would be. */
static size_t locate(const cd_traced *f, uint32_t number)
{
    size_t low = 0, high = f->step_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (f->steps[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const cd_traced_step *cd_traced_find(const cd_traced *f, uint32_t number)
{
    const size_t at = locate(f, number);
    return at < f->step_count && f->steps[at].number == number ? &f->steps[at] : NULL;
}

static cd_traced_step *find_step(cd_traced *f, uint32_t number)
{
    const size_t at = locate(f, number);
    if (at < f->step_count && f->steps[at].number == number) return &f->steps[at];
    if (!grow(f, (void **)&f->steps, &f->step_capacity, f->step_count + 1, sizeof *f->steps))
        return NULL;
    for (size_t i = f->step_count; i > at; i--) f->steps[i] = f->steps[i - 1];
    f->steps[at] = (cd_traced_step){.number = number};
    f->step_count++;
    return &f->steps[at];
}

static cd_traced_tensor *find_tensor(cd_traced *f, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    const size_t needed = (size_t)variable + 1;
    if (!grow(f, (void **)&f->tensors, &f->tensor_capacity, needed, sizeof *f->tensors))
        return NULL;
    while (f->tensor_count < needed)
        f->tensors[f->tensor_count++] = (cd_traced_tensor){.name = NULL};
    return &f->tensors[variable];
}

static cd_traced_cell *find_cell(cd_traced *f, uint32_t number, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    cd_traced_step *s = find_step(f, number);
    const size_t needed = (size_t)variable + 1;
    if (s == NULL || !grow(f, (void **)&s->cells, &s->cell_capacity, needed, sizeof *s->cells))
        return NULL;
    while (s->cell_count < needed) s->cells[s->cell_count++] = (cd_traced_cell){.numel = 0};
    return &s->cells[variable];
}

static cd_traced_local *find_local(cd_traced *f, uint32_t rank, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    cd_traced_rank *r = &f->ranks[rank];
    const size_t needed = (size_t)variable + 1;
    if (!grow(f, (void **)&r->locals, &r->capacity, needed, sizeof *r->locals)) return NULL;
    while (r->count < needed) r->locals[r->count++] = (cd_traced_local){.step = 0};
    return &r->locals[variable];
}

/* ---- events ---- */

static void take_parameter(cd_traced *f, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    cd_traced_tensor *t = p->requires_grad && !p->ignored ? find_tensor(f, p->param) : NULL;
    if (t == NULL) return;
    const char *name = e->text != NULL ? e->text : "";
    f->has_models |= t->name != NULL && strcmp(t->name, name) != 0;
    if (t->name != NULL) return;
    t->name = cd_strdup(f->allocator, name);
    f->is_out_of_memory |= t->name == NULL;
    t->numel = p->numel;
    t->dtype = p->dtype;
    t->shape = p->shape;
}

/* See Note [The last one is used]. */
static void note(cd_traced_last *last, cd_traced_round *round, uint32_t step, int64_t digest)
{
    if (digest == 0) return;
    if (round->step != step) *round = (cd_traced_round){.step = step};
    last->all += ++round->count == 1;
    if (round->count < last->round) return; /* other ranks are further */
    if (round->count > last->round)
        *last = (cd_traced_last){.digest = digest, .round = round->count, .all = last->all};
    last->is_split |= last->digest != digest;
    last->ranks++;
}

static void take_value(cd_traced *f, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    const cd_traced_rank *r = &f->ranks[e->rank];
    const bool is_loaded = v->moment == CDDP_MOMENT_AFTER_INIT || v->moment == CDDP_MOMENT_RESUME;
    cd_traced_local *l = v->what == CDDP_WHAT_PARAMETER ? find_local(f, e->rank, v->param) : NULL;
    if (l == NULL) return;
    if (is_loaded && !r->has_stepped) {
        cd_traced_tensor *t = find_tensor(f, v->param);
        if (t != NULL) note(&t->initial, &l->initial, 0, v->digest);
    } else if (is_loaded || v->moment == CDDP_MOMENT_AFTER_STEP) {
        /* What is loaded in the middle replaces what the step before left. */
        const uint32_t step = is_loaded ? r->last_step : e->step;
        cd_traced_cell *c = find_cell(f, step, v->param);
        if (c != NULL) note(&c->after, &l->after, step, v->digest);
    }
}

/* A projection of what was accumulated so far replaces the one before it in the same step. */
static void take_local(cd_traced *f, const cddp_event *e)
{
    const cddp_event_projection *p = &e->as.projection;
    cd_traced_local *l = find_local(f, e->rank, p->param);
    cd_traced_cell *c = find_cell(f, e->step, p->param);
    if (l == NULL || c == NULL) return;
    if (l->is_pending && l->step == e->step) {
        c->local -= l->sum;
        c->magnitude -= l->magnitude;
        c->locals--;
        c->shown -= l->is_counted;
    }
    l->sum = cd_f64_of(p->sum);
    l->magnitude = cd_f64_of(p->magnitude);
    l->step = e->step;
    l->is_pending = l->is_result_pending = true;
    l->is_counted = false;
    c->local += l->sum;
    c->magnitude += l->magnitude;
    c->locals++;
    c->numel = p->numel;
    c->dtype = p->dtype;
}

/* The first one after a backward; those that follow may be clipped. */
static void take_result(cd_traced *f, const cddp_event *e)
{
    const cddp_event_projection *p = &e->as.projection;
    cd_traced_local *l = find_local(f, e->rank, p->param);
    cd_traced_cell *c = find_cell(f, e->step, p->param);
    if (l == NULL || c == NULL || !l->is_result_pending) return;
    l->is_result_pending = false;
    c->reduced = cd_f64_of(p->sum);
    c->reduced_magnitude = cd_f64_of(p->magnitude);
    c->shown++;
    l->is_counted = true;
}

static void take_step(cd_traced *f, const cddp_event *e)
{
    cd_traced_step *s = find_step(f, e->step);
    if (s == NULL) return;
    s->has_stepped = true;
    s->is_skipped = e->as.optimizer_step.skipped != 0;
    s->rate = cd_f64_of(e->as.optimizer_step.lr);
    f->ranks[e->rank].has_stepped = true;
    f->ranks[e->rank].last_step = e->step;
}

static void take_samples(cd_traced *f, const cddp_event *e)
{
    cd_traced_step *s = find_step(f, e->step);
    if (s == NULL) return;
    s->has_samples = true;
    s->samples += (uint64_t)e->as.samples.count;
    s->ids += (uint64_t)e->as.samples.ids;
    if (e->as.samples.count > 0) s->forwards += cd_hash_mix(0, (uint64_t)e->as.samples.ids);
}

static void take_gradient(cd_traced *f, const cddp_event *e, int64_t variable, int64_t digest)
{
    cd_traced_local *l = find_local(f, e->rank, variable);
    cd_traced_cell *c = find_cell(f, e->step, variable);
    if (l != NULL && c != NULL) note(&c->gradient, &l->gradient, e->step, digest);
}

void cd_traced_push(cd_traced *f, const cddp_event *e)
{
    if (e->kind == CDDP_EV_run_end) f->is_complete = e->as.run_end.complete != 0;
    if (e->rank >= f->rank_count || f->is_out_of_memory) return;
    if (e->kind != CDDP_EV_rank_end) { /* which others say of it */
        cd_traced_rank *r = &f->ranks[e->rank];
        r->has_events = true;
        if (e->step > r->reached) r->reached = e->step;
    }
    switch (e->kind) {
    case CDDP_EV_param:
        take_parameter(f, e);
        break;
    case CDDP_EV_value:
        take_value(f, e);
        break;
    case CDDP_EV_samples:
        take_samples(f, e);
        break;
    case CDDP_EV_hook_in_force:
        if (e->as.hook_in_force.level == 0)
            snprintf(f->hook, sizeof f->hook, "%s", e->text != NULL ? e->text : "?");
        break;
    case CDDP_EV_option:
        f->accumulates |= cd_setting_find(e->as.option.key) == CDDP_KEY_ddp_accumulate_in_hook &&
                          e->as.option.value != 0;
        break;
    case CDDP_EV_join_notify:
        f->has_join = true;
        break;
    case CDDP_EV_mark:
        f->has_models |= strcmp(e->text != NULL ? e->text : "", CD_TRACER_WRAPPED) == 0;
        break;
    case CDDP_EV_grad_final:
        take_gradient(f, e, e->as.grad_final.param, e->as.grad_final.digest);
        break;
    case CDDP_EV_projection:
        if (e->as.projection.reduced)
            take_result(f, e);
        else
            take_local(f, e);
        break;
    case CDDP_EV_optimizer_step:
        take_step(f, e);
        break;
    default:
        break;
    }
}

/* ---- life ---- */

cddp_status cd_traced_init(cd_traced *f, uint32_t rank_count, const cddp_allocator *allocator,
                           cddp_error *err)
{
    *f = (cd_traced){.allocator = allocator, .rank_count = rank_count};
    f->ranks = cd_allocate_array(allocator, rank_count, sizeof *f->ranks);
    return f->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_traced_fini(cd_traced *f)
{
    for (size_t i = 0; i < f->tensor_count; i++) cd_strfree(f->allocator, f->tensors[i].name);
    for (size_t i = 0; i < f->step_count; i++)
        cd_release(f->allocator, f->steps[i].cells,
                   f->steps[i].cell_capacity * sizeof *f->steps[i].cells);
    for (uint32_t i = 0; f->ranks != NULL && i < f->rank_count; i++)
        cd_release(f->allocator, f->ranks[i].locals,
                   f->ranks[i].capacity * sizeof *f->ranks[i].locals);
    cd_release(f->allocator, f->tensors, f->tensor_capacity * sizeof *f->tensors);
    cd_release(f->allocator, f->steps, f->step_capacity * sizeof *f->steps);
    cd_release(f->allocator, f->ranks, f->rank_count * sizeof *f->ranks);
    *f = (cd_traced){.allocator = f->allocator};
}
