/* SPDX-License-Identifier: Apache-2.0 */
/* Link 15, derivative: gradients of the model engine against the slope of the loss, found by a
** second form of the model (core/oracle/second).
**
** The engine's gradients of every micro-step are judged, on every rank. Link 3 has shown that the
** rank has the same bits. Every element is compared: bit for bit where nothing rounds, and within
** a derived bound elsewhere. That bound takes every rounding at its worst. So a direction through
** all parameters is judged too, whose bound is smaller; in drawn steps one of each parameter.
**
** Gradients of a half type say little: a few parts in a hundred lie within their rounding. So the
** engine does the same micro-step in f32 too, where a layer's mistake has no such room. The half
** gradients must be the rounded ones of f32.
**
** The second form knows no casts between units. What is judged here is the engine without them:
** its layers. Link 3 compares with the engine that casts.
*/
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/oracle/exact_inputs.h"

#include <math.h>
#include <string.h>

/* Operations of all directions of one step together; a larger model has drawn parameters judged. */
#define OPERATIONS_MAX ((size_t)1 << 22)
#define STEP_MAX 15

static const char not_finite[] = "the second form or its bound is not finite";

typedef struct scene {
    const cd_second_program *program;
    const cd_second_result *result;
    uint32_t step;
    bool is_exact; /* neither form rounded forward, nor the engine backward */
    bool has_exact_adjoints;
    bool judges_each;   /* parameter, by a direction through it alone */
    bool has_direction; /* false: nothing rounds, and elements say it all */
    double *steps;      /* (all leaves) */
    cd_scalar *leaves;
} scene;

/* Odd whole numbers: exchanged elements and opposite signs do not cancel. */
static void draw_steps(const cd_oracle *o, const scene *s, size_t parameter, double *steps,
                       size_t count)
{
    const cd_prng prng = cd_prng_seed(o->options.seed);
    const uint64_t place = (uint64_t)s->step * o->options.parameter_count + parameter;
    cd_prng drawn = cd_prng_split_index(&prng, "direction", place);
    for (size_t i = 0; i < count; i++)
        steps[i] = (double)(2 * cd_prng_between(&drawn, -(STEP_MAX + 1) / 2, STEP_MAX / 2) + 1);
}

typedef struct judged_slope {
    size_t parameter;
    const double *gradient; /* (numel) of the engine */
    double found, size;     /* Σ g·v and Σ |g·v| */
    double steps;           /* Σ |v|, over what may underflow */
} judged_slope;

/* The element that is farthest from the derivative by it. */
static void name_element(const cd_oracle *o, const scene *s, const judged_slope *j,
                         const cd_scalar_slope *slope, cd_comparison *c)
{
    const cd_second_leaves *own = &s->result->parameters[j->parameter];
    double worst = -1;
    for (size_t i = 0; i < own->count; i++) {
        const double wanted = o->scalars.nodes[own->leaves[i]].adjoint;
        const double found = j->gradient[own->elements[i]];
        if (fabs(found - wanted) <= worst) continue;
        worst = fabs(found - wanted);
        c->element = (int64_t)own->elements[i];
        c->expected = wanted;
        c->actual = found;
    }
    const double ulp = cd_dtype_ulp(o->parameters[j->parameter].dtype, c->expected);
    const double distance = worst / ulp;
    c->ulps = distance < 0x1p62 ? (uint64_t)(distance + 0.5) : UINT64_C(1) << 62;
    c->shape = CD_SHAPE_UNEXPLAINED;
    cd_text_format(c->words, sizeof c->words,
                   "its slope along a drawn direction is %.12g, and the model says %.12g",
                   slope->value, j->found);
}

static void judge_slope(cd_oracle *o, const scene *s, const judged_slope *j)
{
    const cd_second_leaves *own = &s->result->parameters[j->parameter];
    const cd_second_parameter *p = &s->program->parameters[j->parameter];
    const cd_scalar_direction direction = {own->leaves, s->steps, own->count, p->roundoff};
    cd_scalar_slope slope = {0, true};
    if (own->is_used) slope = cd_scalars_differentiate(&o->scalars, s->result->loss, &direction);
    cd_comparison c = {.numel = own->count, .element = -1, .exact = true};
    /* a cast down rounds without a flag */
    if (!s->is_exact || !slope.is_exact || p->roundoff > s->program->roundoff) {
        const double bound =
            own->is_used ? cd_scalars_bound_slope(&o->scalars, s->result->loss, &direction) : 0;
        c.exact = false;
        c.bound = bound + (double)(own->count + 2) * 0x1p-52 * j->size +
                  j->steps * (p->underflow + 0x1p-1000) * (1 + fabs(s->program->scale));
    }
    const double distance = fabs(j->found - slope.value);
    /* where nothing is known, or a number left its range, other links judge */
    if (!isfinite(slope.value) || !(c.bound < INFINITY) || !isfinite(j->found)) {
        cd_oracle_give_up(o, CD_LINK_DERIVATIVE, 1, not_finite);
        return;
    }
    if (distance > c.bound) {
        c.bad = 1;
        name_element(o, s, j, &slope, &c);
    }
    cd_oracle_report(o, CD_LINK_DERIVATIVE, j->parameter, &c);
}

static cddp_status judge_parameter(cd_oracle *o, const scene *s, size_t i,
                                   const cddp_grad *gradient, cddp_error *err)
{
    const cd_second_leaves *own = &s->result->parameters[i];
    judged_slope j = {.parameter = i};
    if (gradient->kind == CDDP_GRAD_UNDEFINED) {
        /* presence is judged by links 3 and 7; a dependence that the engine lost only here */
        bool depends = false;
        for (size_t k = 0; own->is_used && k < own->count; k++)
            depends = depends || o->scalars.nodes[own->leaves[k]].adjoint != 0;
        if (!depends || !s->program->parameters[i].wants_gradient) return CDDP_OK;
        cd_comparison c = {.bad = 1, .element = 0, .expected = 1, .shape = CD_SHAPE_UNEXPLAINED};
        cd_text_format(c.words, sizeof c.words,
                       "the model gives no gradient, and the loss depends on the parameter");
        cd_oracle_report(o, CD_LINK_DERIVATIVE, i, &c);
        return CDDP_OK;
    }
    CD_TRY(cd_numbers_read_gradient(&o->numbers, gradient, (size_t)o->parameters[i].numel, err));
    j.gradient = o->numbers.values;
    draw_steps(o, s, i, s->steps, own->is_used ? own->count : 0);
    for (size_t k = 0; k < own->count; k++) {
        const double part = o->numbers.values[own->elements[k]] * s->steps[k];
        j.found += part;
        j.size += fabs(part);
        j.steps += fabs(s->steps[k]);
    }
    for (size_t k = 0; !own->is_used && k < o->numbers.count; k++)
        j.found += fabs(o->numbers.values[k]); /* zeros, if anything */
    judge_slope(o, s, &j);
    return CDDP_OK;
}

/* Every element of a gradient has a bound, and where neither form rounds there is none. Of a cast
** gradient only the sum over a direction is bounded. */
static bool has_elements(const scene *s, size_t i)
{
    return s->result->parameters[i].is_used &&
           s->program->parameters[i].roundoff <= s->program->roundoff;
}

static double element_bound(const cd_oracle *o, const scene *s, size_t i, size_t k)
{
    if (s->is_exact && s->has_exact_adjoints) return 0;
    return cd_scalars_get_adjoint_error(&o->scalars, s->result->parameters[i].leaves[k]) +
           (s->program->parameters[i].underflow + 0x1p-1000) * (1 + fabs(s->program->scale));
}

static void note_element(const cd_oracle *o, size_t i, double wanted, double found,
                         cd_comparison *c)
{
    const double ulps = fabs(found - wanted) / cd_dtype_ulp(o->parameters[i].dtype, wanted);
    c->expected = wanted;
    c->actual = found;
    c->ulps = ulps < 0x1p62 ? (uint64_t)(ulps + 0.5) : UINT64_C(1) << 62;
}

static void judge_elements(cd_oracle *o, const scene *s, size_t i)
{
    const cd_second_leaves *own = &s->result->parameters[i];
    const bool is_exact = s->is_exact && s->has_exact_adjoints;
    cd_comparison c = {.numel = own->count, .element = -1, .exact = is_exact};
    for (size_t k = 0; k < own->count; k++) {
        const double wanted = o->scalars.nodes[own->leaves[k]].adjoint;
        const double found = o->numbers.values[own->elements[k]];
        const double bound = element_bound(o, s, i, k);
        if (!isfinite(wanted) || !isfinite(found) || !(bound < INFINITY)) {
            cd_oracle_give_up(o, CD_LINK_DERIVATIVE, 1, not_finite);
            return;
        }
        if (c.bad == 0 && bound > c.bound) c.bound = bound;
        if (fabs(found - wanted) <= bound || c.bad++ > 0) continue;
        c.element = (int64_t)own->elements[k];
        c.bound = bound;
        note_element(o, i, wanted, found, &c);
    }
    if (c.bad > 0) {
        c.shape = CD_SHAPE_UNEXPLAINED;
        cd_text_format(c.words, sizeof c.words,
                       "%zu of %zu elements are not the derivative of the loss", c.bad, c.numel);
    }
    cd_oracle_report(o, CD_LINK_DERIVATIVE, i, &c);
}

/* Adds a parameter to the direction through all of them. */
static void add_to_direction(const cd_oracle *o, const scene *s, size_t i, cd_scalar_direction *d,
                             judged_slope *j)
{
    const cd_second_leaves *own = &s->result->parameters[i];
    const cd_second_parameter *p = &s->program->parameters[i];
    draw_steps(o, s, i, s->steps + d->count, own->count);
    for (size_t k = 0; k < own->count; k++, d->count++) {
        const double part = o->numbers.values[own->elements[k]] * s->steps[d->count];
        s->leaves[d->count] = own->leaves[k];
        j->found += part;
        j->size += fabs(part);
        j->steps += fabs(s->steps[d->count]) * (p->underflow + 0x1p-1000);
    }
    d->roundoff = fmax(d->roundoff, p->roundoff);
    j->parameter = i;
}

/* One direction through all parameters: as dear as that of a single one. */
static cddp_status judge_together(cd_oracle *o, const scene *s, const cddp_grad *gradients,
                                  cddp_error *err)
{
    const size_t n = o->options.parameter_count;
    cd_scalar_direction direction = {s->leaves, s->steps, 0, s->program->roundoff};
    judged_slope j = {.parameter = n};
    for (size_t i = 0; i < n; i++) {
        const size_t numel = (size_t)o->parameters[i].numel;
        if (gradients[i].kind == CDDP_GRAD_UNDEFINED || !s->result->parameters[i].is_used) {
            CD_TRY(judge_parameter(o, s, i, &gradients[i], err));
            continue;
        }
        CD_TRY(cd_numbers_read_gradient(&o->numbers, &gradients[i], numel, err));
        if (has_elements(s, i)) judge_elements(o, s, i);
        if (!has_elements(s, i) || s->has_direction) add_to_direction(o, s, i, &direction, &j);
    }
    if (direction.count == 0) return CDDP_OK;
    const cd_scalar_slope slope =
        cd_scalars_differentiate(&o->scalars, s->result->loss, &direction);
    cd_comparison c = {.numel = direction.count, .element = -1};
    c.bound = cd_scalars_bound_slope(&o->scalars, s->result->loss, &direction) +
              (double)(direction.count + 2) * 0x1p-52 * j.size +
              j.steps * (1 + fabs(s->program->scale));
    if (!isfinite(slope.value) || !(c.bound < INFINITY) || !isfinite(j.found)) {
        cd_oracle_give_up(o, CD_LINK_DERIVATIVE, 1, not_finite);
        return CDDP_OK;
    }
    if (fabs(j.found - slope.value) > c.bound) {
        const uint64_t differing = o->summary.differing;
        for (size_t i = 0; i < n; i++) CD_TRY(judge_parameter(o, s, i, &gradients[i], err));
        if (o->summary.differing > differing) return CDDP_OK;
        c.bad = 1;
        c.element = 0;
        c.expected = slope.value;
        c.actual = j.found;
        c.shape = CD_SHAPE_UNEXPLAINED;
        cd_text_format(c.words, sizeof c.words,
                       "its slope through all parameters is %.12g, and the model says %.12g",
                       slope.value, j.found);
    }
    cd_oracle_report(o, CD_LINK_DERIVATIVE, j.parameter, &c);
    return CDDP_OK;
}

static cddp_status judge_all(cd_oracle *o, scene *s, const cddp_grad *gradients, cddp_error *err)
{
    const size_t n = o->options.parameter_count;
    const size_t each = o->scalars.term_count + 1, room = OPERATIONS_MAX / each + 1;
    const cd_prng prng = cd_prng_seed(o->options.seed);
    cd_prng drawn = cd_prng_split_index(&prng, "judged parameters", s->step);
    const size_t first = (size_t)cd_prng_below(&drawn, n);
    size_t leaves = 0;
    for (size_t i = 0; i < n; i++) {
        const cd_second_leaves *own = &s->result->parameters[i];
        leaves += own->count;
        if (own->is_used) o->undrawn_derivatives += (uint64_t)o->parameters[i].numel - own->count;
    }
    s->steps = cd_arena_array(&o->second, leaves + 1, sizeof *s->steps);
    s->leaves = cd_arena_array(&o->second, leaves + 1, sizeof *s->leaves);
    CD_TRY(cd_arena_check(&o->second, err, "the directions of %zu parameters", n));
    bool rounded = true;
    const bool has_flags = cd_exact_flags_begin();
    cd_scalars_find_adjoints(&o->scalars, s->result->loss);
    if (!has_flags || !cd_exact_flags_end(&rounded)) rounded = true;
    s->has_exact_adjoints = !rounded;
    s->has_direction = s->has_direction && !(s->is_exact && s->has_exact_adjoints);
    if (!s->is_exact || rounded) cd_scalars_find_adjoint_errors(&o->scalars, s->result->loss);
    for (size_t i = 0; s->judges_each && i < n && i < room; i++) {
        const size_t at = (first + i) % n;
        CD_TRY(judge_parameter(o, s, at, &gradients[at], err));
    }
    return CD_PASS(judge_together(o, s, gradients, err));
}

static uint64_t count_present(const cd_oracle *o, const cddp_grad *gradients)
{
    uint64_t count = 0;
    for (size_t i = 0; i < o->options.parameter_count; i++)
        count += gradients[i].kind != CDDP_GRAD_UNDEFINED;
    return count;
}

/* ---- a gradient of a half type is the rounded one of f32 ---- */

/* The gradients of a pass, in the arena. */
typedef struct kept_pass {
    double **values; /* (parameter_count) NULL: there is none */
    bool is_usable;
} kept_pass;

static cddp_status keep_pass(cd_oracle *o, const cddp_grad *gradients, const uint32_t *uses,
                             kept_pass *kept, cddp_error *err)
{
    const size_t n = o->options.parameter_count;
    kept->values = cd_arena_array(&o->second, n, sizeof *kept->values);
    CD_TRY(cd_arena_check(&o->second, err, "the gradients of a pass"));
    for (size_t i = 0; i < n; i++) {
        const size_t numel = (size_t)o->parameters[i].numel;
        if (gradients[i].kind != CDDP_GRAD_DENSE || uses[i] != 1) continue;
        kept->values[i] = cd_arena_array(&o->second, numel + 1, sizeof(double));
        CD_TRY(cd_arena_check(&o->second, err, "the gradients of a pass"));
        CD_TRY(cd_numbers_read_gradient(&o->numbers, &gradients[i], numel, err));
        memcpy(kept->values[i], o->numbers.values, numel * sizeof(double));
    }
    kept->is_usable = true;
    return CDDP_OK;
}

/* Note [What a cast makes of a gradient] A parameter of a half type is widened where it is used,
** and its gradient is rounded on the way back. Both passes compute in f32 from the same numbers,
** so the half gradient is the rounded one of f32, bit for bit. With several uses each is rounded
** before they are added: those are judged by the bound alone. */
static cddp_status judge_casts(cd_oracle *o, const kept_pass *low, const cddp_dtype *dtypes,
                               const cddp_grad *full, cddp_error *err)
{
    for (size_t i = 0; low->is_usable && i < o->options.parameter_count; i++) {
        const size_t numel = (size_t)o->parameters[i].numel;
        if (low->values[i] == NULL || full[i].kind != CDDP_GRAD_DENSE) continue;
        CD_TRY(cd_numbers_read_gradient(&o->numbers, &full[i], numel, err));
        for (size_t k = 0; k < numel; k++)
            o->numbers.values[k] = cd_dtype_round(dtypes[i], o->numbers.values[k]);
        cd_comparison c = cd_compare_bits(dtypes[i], o->numbers.values, low->values[i], numel);
        if (c.bad > 0)
            cd_text_format(c.words, sizeof c.words,
                           "%zu of %zu elements are not the gradient in f32, rounded to %s", c.bad,
                           numel, cddp_dtype_name(dtypes[i]));
        cd_oracle_report(o, CD_LINK_DERIVATIVE, i, &c);
    }
    return CDDP_OK;
}

/* One micro-step, in the rank's precision and, where that is a half type, in f32. */
typedef struct judged_part {
    cd_oracle_part part;
    kept_pass low;
    cddp_dtype *dtypes; /* (parameter_count) of the half gradients */
    bool was_exact;     /* the last pass: no number was rounded */
} judged_part;

static cddp_status take_casts(cd_oracle *o, judged_part *j, const cddp_grad *gradients,
                              cddp_error *err)
{
    const cd_oracle_engine *e = o->options.engine;
    const size_t n = o->options.parameter_count;
    if (!e->has_full || e->uses == NULL) return CDDP_OK;
    if (j->part.precision == CD_ORACLE_IN_F64) return CDDP_OK;
    if (j->part.precision == CD_ORACLE_IN_F32)
        return CD_PASS(judge_casts(o, &j->low, j->dtypes, gradients, err));
    j->dtypes = cd_arena_array(&o->second, n, sizeof *j->dtypes);
    CD_TRY(cd_arena_check(&o->second, err, "the dtypes of a pass"));
    for (size_t i = 0; i < n; i++)
        j->dtypes[i] = gradients[i].kind == CDDP_GRAD_DENSE ? gradients[i].value.dtype : CDDP_F64;
    return CD_PASS(keep_pass(o, gradients, e->uses(e->self), &j->low, err));
}

static cddp_status judge_pass(cd_oracle *o, const cd_start *start, judged_part *j, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    const cd_oracle_part *part = &j->part;
    cd_second_program program = {.model = NULL};
    cd_second_result result;
    const char *why = NULL;
    bool rounded = true;
    j->was_exact = false;
    CD_TRY(e->load(e->self, start->values, start->buffers, err));
    const bool has_flags = cd_exact_flags_begin();
    CD_TRY(e->run(e->self, part, err));
    if (!has_flags || !cd_exact_flags_end(&rounded)) rounded = true;
    CD_TRY(e->example(e->self, part, &program, &why, err));
    const cddp_grad *gradients = e->gradients(e->self);
    const uint64_t present = count_present(o, gradients);
    if (why == NULL) {
        CD_TRY(take_casts(o, j, gradients, err));
        CD_TRY(cd_second_write(&program, &o->scalars, &o->second, &result, err));
        why = result.refusal;
    }
    const bool is_exact = !rounded && !o->scalars.has_rounded;
    if (why == NULL && o->scalars.is_ambiguous && !is_exact)
        why = "a decision of the model lies within rounding of its threshold";
    if (why != NULL) {
        cd_oracle_give_up(o, CD_LINK_DERIVATIVE, present, why);
        return CDDP_OK;
    }
    /* the rank's statistics are of what was cast: link 10 has compared them with the engine's */
    if (part->precision == CD_ORACLE_AS_PLANNED && !e->casts_values)
        cd_oracle_compare_norms(o, &result, part->micro_step);
    if (part->precision == CD_ORACLE_AS_PLANNED)
        CD_TRY(cd_oracle_judge_running(o, start, &program, &result, err));
    j->was_exact = is_exact;
    scene s = {.program = &program,
               .result = &result,
               .step = part->step,
               .is_exact = is_exact,
               .has_direction = true,
               .judges_each =
                   part->precision != CD_ORACLE_IN_F64 && cd_oracle_draws_step(o, part->step)};
    return CD_PASS(judge_all(o, &s, gradients, err));
}

/* In f32 a mistake of one part in a thousand may lie within the bound. In f64 the bound is 2^-29 of
** that: the same layers compute there. */
static cddp_status judge_part(cd_oracle *o, const cd_start *start, judged_part *j, cddp_error *err)
{
    CD_TRY(judge_pass(o, start, j, err));
    if (start->engine->has_full) {
        j->part.precision = CD_ORACLE_IN_F32;
        CD_TRY(judge_pass(o, start, j, err));
    }
    if (!start->engine->has_wide || j->was_exact) return CDDP_OK;
    j->part.precision = CD_ORACLE_IN_F64;
    return CD_PASS(judge_pass(o, start, j, err));
}

cddp_status cd_oracle_judge_derivatives(cd_oracle *o, const cd_start *start,
                                        const cd_oracle_reduction *r, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    cddp_status status = CDDP_OK;
    if (e->example == NULL || !cd_oracle_has_values(o)) return CDDP_OK;
    for (uint32_t m = r->micro_first; status == CDDP_OK && m <= r->micro_step; m++) {
        judged_part j = {.part = {.rank = o->options.rank,
                                  .step = r->step,
                                  .micro_step = m,
                                  .sample = CD_ORACLE_ALL,
                                  .is_plain = true}};
        if (e->sample_count(e->self, &j.part) == 0) continue;
        const cd_arena_mark mark = cd_arena_get_mark(&o->second);
        status = judge_part(o, start, &j, err);
        cd_arena_rewind(&o->second, mark);
    }
    return status;
}
