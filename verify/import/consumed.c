/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/consumed.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/tracer.h"
#include "verify/import/means.h"

#include <math.h>
#include <string.h>

/* Beyond this an index is damage. */
#define VARIABLES_MAX (INT64_C(1) << 24)

static cd_consumed_variable *find(cd_consumed *c, cd_consumed_rank *r, int64_t variable)
{
    if (variable < 0 || variable >= VARIABLES_MAX) return NULL;
    const size_t needed = (size_t)variable + 1;
    if (!cd_vec_grow(c->allocator, (void **)&r->variables, &r->capacity, needed,
                     sizeof *r->variables)) {
        c->is_out_of_memory = true;
        return NULL;
    }
    while (r->count < needed) r->variables[r->count++] = (cd_consumed_variable){.digest = 0};
    return &r->variables[variable];
}

/* ---- one gradient ---- */

/* See Note [Projections of what is consumed]. */
static double relative_bound(const cd_consumed_variable *v, double *tiny)
{
    double roundoff = 0;
    *tiny = 0;
    cd_means_coarsen(v->dtype, &roundoff, tiny);
    cd_means_coarsen(v->consumed_dtype, &roundoff, tiny);
    return 7 * roundoff / (1 - 7 * roundoff) + 8 * (double)v->numel * 0x1p-53;
}

/* more: the relative error of the factor itself, where it is known from projections alone */
static double bound_of(const cd_consumed_variable *v, double factor, double more, double amplified)
{
    double tiny;
    const double relative = (relative_bound(v, &tiny) + more) / (1 - more);
    return relative * fabs(factor) * v->reduced_magnitude +
           2 * (double)v->numel * tiny * (1 + amplified);
}

static bool is_near(const cd_consumed_variable *v, double factor, double bound)
{
    return fabs(v->consumed - factor * v->reduced) <= bound &&
           fabs(v->consumed_magnitude - fabs(factor) * v->reduced_magnitude) <= bound;
}

static bool is_comparable(const cd_consumed_variable *v)
{
    return v->has_reduced && v->is_shown && isfinite(v->reduced_magnitude) &&
           isfinite(v->consumed_magnitude);
}

static void note(cd_consumed_place *place, uint32_t rank, uint32_t step, int64_t variable,
                 const cd_consumed_place *what)
{
    const uint64_t count = place->count + 1;
    const bool is_first =
        count == 1 || step < place->step ||
        (step == place->step &&
         (rank < place->rank || (rank == place->rank && variable < place->variable)));
    if (is_first) *place = *what;
    if (is_first) {
        place->rank = rank;
        place->step = step;
        place->variable = variable;
    }
    place->count = count;
}

/* ---- a step ---- */

/* What an unexplained step has in common; NaN: nothing. */
static double find_scale(const cd_consumed_rank *r)
{
    double reduced = 0, consumed = 0, worst = 0, sign = 0, clearest = 0;
    size_t count = 0;
    for (size_t i = 0; i < r->count; i++) {
        const cd_consumed_variable *v = &r->variables[i];
        double tiny;
        if (!v->is_taken) continue;
        if (!is_comparable(v)) return (double)NAN;
        if (v->reduced_magnitude == 0) continue;
        const double clear = fabs(v->reduced) / v->reduced_magnitude;
        count++;
        reduced += v->reduced_magnitude;
        consumed += v->consumed_magnitude;
        worst = fmax(worst, relative_bound(v, &tiny));
        if (clear > clearest) sign = v->reduced * v->consumed < 0 ? -1 : 1;
        clearest = fmax(clear, clearest);
    }
    const double scale = sign * consumed / reduced;
    /* nobody scales by a negative factor */
    if (count < 2 || !isfinite(scale) || scale <= 0) return (double)NAN;
    for (size_t i = 0; i < r->count; i++) {
        const cd_consumed_variable *v = &r->variables[i];
        if (v->is_taken && !is_near(v, scale, bound_of(v, scale, worst, fmax(1, fabs(scale)))))
            return (double)NAN;
    }
    return scale;
}

/* A mistake, not what an optimizer adds: dropped, turned round, divided again or multiplied by the
** number of ranks. */
static bool is_mistaken(const cd_consumed *c, const cd_consumed_variable *v)
{
    const double n = c->rank_count;
    const double factors[] = {0, -1, 1 / n, n};
    bool is = false;
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++)
        is |= is_near(v, factors[i], bound_of(v, factors[i], 0, fmax(1, fabs(factors[i]))));
    return is;
}

/* So is a factor that all gradients have, unless rounding hides what else it may be: close to 1 a
** little weight decay looks alike. */
static bool is_scaled(const cd_consumed_variable *v, double scale)
{
    double tiny;
    return isfinite(scale) && fabs(scale - 1) > 0x1p-6 && relative_bound(v, &tiny) < 0x1p-12;
}

/* The program says that it did nothing. What some ranks alone did is I-CHAIN's. */
static void judge_unsaid(cd_consumed *c, const cd_consumed_rank *r)
{
    const double scale = find_scale(r);
    for (size_t i = 0; i < r->count; i++) {
        const cd_consumed_variable *v = &r->variables[i];
        if (!v->is_taken || !v->is_changed) continue;
        const cd_consumed_place wrong = {.clip = 1,
                                         .loss_scale = 1,
                                         .expected = v->reduced,
                                         .actual = v->consumed,
                                         .bound = bound_of(v, 1, 0, 1),
                                         .ratio = v->consumed_magnitude / v->reduced_magnitude};
        const bool is_wrong = is_comparable(v) && !is_near(v, 1, wrong.bound) &&
                              (is_scaled(v, scale) || is_mistaken(c, v));
        note(is_wrong ? &c->wrong : &c->unexplained, (uint32_t)(r - c->ranks), r->step, (int64_t)i,
             &wrong);
    }
}

/* A program of cddp/record.h says with each step what it did since the reduction. */
static void judge_said(cd_consumed *c, const cd_consumed_rank *r)
{
    const double factor = r->clip / r->loss_scale;
    const double amplified = fmax(1, fmax(fabs(r->clip), fabs(1 / r->loss_scale)));
    for (size_t i = 0; i < r->count; i++) {
        const cd_consumed_variable *v = &r->variables[i];
        if (!v->is_taken) continue;
        if (!is_comparable(v) || !isfinite(factor) || !isfinite(amplified)) {
            c->unjudged++;
            continue;
        }
        const double bound = bound_of(v, factor, 0, amplified);
        const cd_consumed_place wrong = {.clip = r->clip,
                                         .loss_scale = r->loss_scale,
                                         .expected = factor * v->reduced,
                                         .actual = v->consumed,
                                         .bound = bound,
                                         .ratio = v->consumed_magnitude / v->reduced_magnitude};
        if (is_near(v, factor, bound))
            c->held++;
        else
            note(&c->wrong, (uint32_t)(r - c->ranks), r->step, (int64_t)i, &wrong);
    }
}

static void note_unexplained(cd_consumed *c, const cd_consumed_rank *r)
{
    const double scale = find_scale(r);
    if (isfinite(scale)) {
        if (scale > 1 + 0x1p-10)
            note(&c->enlarged, (uint32_t)(r - c->ranks), r->step, -1,
                 &(cd_consumed_place){.count = 0});
        c->has_scales |= c->scalings > 0 && fabs(c->scale - scale) > 0.01 * fabs(scale);
        if (c->scalings++ == 0) c->scale = scale;
        return;
    }
    for (size_t i = 0; i < r->count; i++)
        if (r->variables[i].is_taken && r->variables[i].is_changed)
            note(&c->unexplained, (uint32_t)(r - c->ranks), r->step, (int64_t)i,
                 &(cd_consumed_place){.count = 0});
}

/* One of the factors that were seen explains it. */
static bool is_explained(const cd_consumed_rank *r, const cd_consumed_variable *v)
{
    bool is = false;
    for (uint32_t k = 0; k < r->factor_count; k++) {
        const double factor = r->factors[k];
        is |= is_near(v, factor, bound_of(v, factor, 0, fmax(1, fabs(factor))));
    }
    return is;
}

static int64_t elements_of(const cd_consumed_rank *r)
{
    int64_t numel = 0;
    for (size_t i = 0; i < r->count; i++)
        if (r->variables[i].is_taken) numel += r->variables[i].numel;
    return numel;
}

/* By the size of the group, beside a factor that was seen. */
static bool is_twice(const cd_consumed_rank *r, const cd_consumed_variable *v, int64_t elements)
{
    const int64_t n = v->again > 0                                 ? v->again
                      : r->again_numel >= elements && elements > 0 ? r->again
                                                                   : 0;
    bool is = false;
    for (uint32_t k = 0; n > 1 && k < (r->factor_count > 0 ? r->factor_count : 1); k++) {
        const double factor = (double)n * (r->factor_count > 0 ? r->factors[k] : 1);
        is |= is_near(v, factor, bound_of(v, factor, 0, fmax(1, fabs(factor))));
    }
    return is;
}

/* PyTorch's recorder sees who changes gradients, and what the program does beside them. */
static void judge_seen(cd_consumed *c, const cd_consumed_rank *r)
{
    uint64_t held = 0, unjudged = 0, others = 0;
    const int64_t elements = r->again > 0 ? elements_of(r) : 0;
    const bool is_seen = r->factor_count > 0 || r->is_unknown;
    for (size_t i = 0; i < r->count; i++) {
        const cd_consumed_variable *v = &r->variables[i];
        if (!v->is_taken || !(is_seen || (v->is_changed && r->is_by_itself))) continue;
        if (r->is_unknown || (is_seen && !is_comparable(v)))
            unjudged++;
        else if (is_comparable(v) && is_explained(r, v))
            held++;
        else if (is_comparable(v) && v->reduced_magnitude > 0 && is_twice(r, v, elements))
            note(&c->twice, (uint32_t)(r - c->ranks), r->step, (int64_t)i,
                 &(cd_consumed_place){.expected = v->reduced,
                                      .actual = v->consumed,
                                      .ratio = v->consumed_magnitude / v->reduced_magnitude});
        else
            others++;
    }
    c->unjudged += unjudged;
    c->held += others == 0 ? held : 0;
    if (others > 0) note_unexplained(c, r);
}

static void settle(cd_consumed *c, cd_consumed_rank *r)
{
    if (r->taken == 0) return;
    c->steps++;
    for (size_t i = 0; i < r->count; i++) {
        cd_consumed_variable *v = &r->variables[i];
        if (!v->is_taken || v->is_changed) continue;
        v->is_shown = true;
        v->consumed = v->reduced;
        v->consumed_magnitude = v->reduced_magnitude;
        v->consumed_dtype = v->dtype;
    }
    if (c->is_of_torch)
        judge_seen(c, r);
    else if (r->clip == 1 && r->loss_scale == 1)
        judge_unsaid(c, r);
    else
        judge_said(c, r);
    r->taken = 0;
    r->is_by_itself = false;
    for (size_t i = 0; i < r->count; i++)
        r->variables[i].is_taken = r->variables[i].is_changed = r->variables[i].is_shown = false;
}

/* ---- what ranks show ---- */

/* Who clips over some parameters alone leaves the others as they are. */
static void take_factor(cd_consumed_rank *r, double factor, bool is_of_all)
{
    const uint32_t before = r->factor_count > 0 ? r->factor_count : 1;
    if (r->factor_count == 0) r->factors[0] = 1;
    r->factor_count = before;
    if (!isfinite(factor) || (!is_of_all && 2 * before > CD_CONSUMED_FACTORS_MAX)) {
        r->is_unknown = true;
        return;
    }
    for (uint32_t i = 0; i < before; i++) {
        const double product = r->factors[i] * factor;
        if (is_of_all)
            r->factors[i] = product;
        else
            r->factors[r->factor_count++] = product;
    }
}

static void take_rewrite(cd_consumed *c, cd_consumed_rank *r, const cddp_event *e)
{
    const cddp_event_rewrite *w = &e->as.rewrite;
    /* said in front of the first gradient that shows it, when others may be taken already */
    if (strcmp(e->text != NULL ? e->text : "", "the program itself") == 0) {
        r->is_by_itself = true;
        return;
    }
    settle(c, r);
    take_factor(r, cd_f64_of(w->factor), w->params >= 0 && (uint64_t)w->params >= r->parameters);
}

static void take_final(cd_consumed *c, cd_consumed_rank *r, const cddp_event_grad_final *f)
{
    cd_consumed_variable *v;
    settle(c, r);
    r->factor_count = 0;
    r->is_unknown = false;
    r->again = r->again_numel = 0;
    v = find(c, r, f->param);
    if (v == NULL) return;
    v->again = 0;
    v->digest = f->digest;
    v->is_reducing = !f->globally_unused;
    v->is_due = v->is_reducing && f->presence != CDDP_PRESENCE_ABSENT;
    v->has_reduced = false;
}

static void take_projection(cd_consumed *c, cd_consumed_rank *r, const cddp_event_projection *p)
{
    cd_consumed_variable *v = p->reduced ? find(c, r, p->param) : NULL;
    const int64_t numel = p->dtype == CDDP_C64 ? 2 * p->numel : p->numel;
    if (v == NULL) return;
    if (v->is_reducing) {
        v->reduced = cd_f64_of(p->sum);
        v->reduced_magnitude = cd_f64_of(p->magnitude);
        v->numel = numel;
        v->dtype = p->dtype;
        v->has_reduced = true;
        v->is_reducing = false;
    } else if (v->is_taken) {
        v->consumed = cd_f64_of(p->sum);
        v->consumed_magnitude = cd_f64_of(p->magnitude);
        v->consumed_dtype = p->dtype;
        v->is_shown = numel == v->numel;
    }
}

static void take_touch(cd_consumed *c, cd_consumed_rank *r, const cddp_event_optimizer_touch *t)
{
    cd_consumed_variable *v = find(c, r, t->param);
    if (v == NULL) return;
    c->dropped += v->is_due && !t->touched;
    v->is_due = false;
    if (!t->touched) return;
    r->taken += !v->is_taken;
    v->is_taken = true;
    v->is_changed = v->digest != 0 && t->gradient != 0 && v->digest != t->gradient;
    v->is_shown = false;
}

static void take_group(cd_consumed *c, const cddp_event_group *g)
{
    for (size_t i = 0; i < c->group_count; i++)
        if (c->groups[i].id == g->group) return;
    if (!cd_vec_grow(c->allocator, (void **)&c->groups, &c->group_capacity, c->group_count + 1,
                     sizeof *c->groups)) {
        c->is_out_of_memory = true;
        return;
    }
    c->groups[c->group_count++] = (cd_consumed_group){g->group, g->members};
}

/* An all-reduce of the program's own. Most programs go through gradients in order. */
static void take_own(cd_consumed *c, cd_consumed_rank *r, const cddp_event_collective_post *p)
{
    int64_t members = 0;
    const bool is_own = r->is_own && p->op == CDDP_OP_ALLREDUCE;
    r->is_own = false; /* the mark is about this operation, whichever it is */
    if (!is_own) return;
    if (p->reduce_op != CDDP_RED_SUM) return;
    for (size_t i = 0; i < c->group_count; i++)
        if (c->groups[i].id == p->group) members = c->groups[i].members;
    r->again = members;
    r->again_numel += p->numel;
    for (size_t i = 0; p->digest != 0 && i < r->count; i++) {
        const size_t at = (r->found + 1 + i) % r->count;
        if (r->variables[at].digest != p->digest || !r->variables[at].is_due) continue;
        r->variables[at].again = members;
        r->found = at;
        return;
    }
}

void cd_consumed_push(cd_consumed *c, const cddp_event *e)
{
    cd_consumed_rank *r = &c->ranks[e->rank];
    switch (e->kind) {
    case CDDP_EV_mark:
        c->is_of_torch |= strncmp(e->text != NULL ? e->text : "", "torch ", 6) == 0;
        r->is_own |= strcmp(e->text != NULL ? e->text : "", CD_TRACER_OWN_REDUCTION) == 0;
        break;
    case CDDP_EV_group:
        take_group(c, &e->as.group);
        break;
    case CDDP_EV_collective_post:
        take_own(c, r, &e->as.collective_post);
        break;
    case CDDP_EV_param:
        r->parameters += e->as.param.requires_grad && !e->as.param.ignored;
        break;
    case CDDP_EV_grad_final:
        take_final(c, r, &e->as.grad_final);
        break;
    case CDDP_EV_projection:
        take_projection(c, r, &e->as.projection);
        break;
    case CDDP_EV_rewrite:
        take_rewrite(c, r, e);
        break;
    case CDDP_EV_optimizer_step:
        settle(c, r);
        r->step = e->step;
        r->clip = cd_f64_of(e->as.optimizer_step.clip);
        r->loss_scale = cd_f64_of(e->as.optimizer_step.loss_scale);
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(c, r, &e->as.optimizer_touch);
        break;
    case CDDP_EV_rank_end:
        settle(c, r);
        break;
    default:
        break;
    }
}

void cd_consumed_end(cd_consumed *c)
{
    for (uint32_t i = 0; i < c->rank_count; i++) settle(c, &c->ranks[i]);
    /* A clip makes gradients smaller, in some steps. */
    if (c->enlarged.count == 0 || c->scalings == c->steps) return;
    const uint64_t others = c->unexplained.count;
    if (others == 0 || c->enlarged.step < c->unexplained.step) c->unexplained = c->enlarged;
    c->unexplained.count = others + c->enlarged.count;
}

/* ---- life ---- */

cddp_status cd_consumed_init(cd_consumed *c, uint32_t rank_count, const cddp_allocator *allocator,
                             cddp_error *err)
{
    *c = (cd_consumed){.allocator = allocator, .rank_count = rank_count};
    c->ranks = cd_allocate_array(allocator, rank_count, sizeof *c->ranks);
    return c->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_consumed_fini(cd_consumed *c)
{
    for (uint32_t i = 0; c->ranks != NULL && i < c->rank_count; i++)
        cd_release(c->allocator, c->ranks[i].variables,
                   c->ranks[i].capacity * sizeof *c->ranks[i].variables);
    cd_release(c->allocator, c->ranks, c->rank_count * sizeof *c->ranks);
    cd_release(c->allocator, c->groups, c->group_capacity * sizeof *c->groups);
    c->ranks = NULL;
    c->groups = NULL;
}
