/* SPDX-License-Identifier: Apache-2.0 */
/* Link 15, derivative: gradients of the model engine against the slope of the loss, found by a
** second form of the model (core/oracle/second). Of each parameter one drawn direction is judged.
**
** The engine's gradients of one micro-step are judged. Link 3 has shown that the rank has the same
** bits. Gradients of a half type say little: a few parts in a hundred lie within their rounding. So
** the engine does the same micro-step in f32 too, where a layer's mistake has no such room.
*/
#include "core/oracle/state.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/oracle/exact_inputs.h"

#include <math.h>

/* Operations of all directions of one step together; a larger model has drawn parameters judged. */
#define OPERATIONS_MAX ((size_t)1 << 22)
#define STEP_MAX 15

typedef struct scene {
    const cd_second_program *program;
    const cd_second_result *result;
    uint32_t step;
    bool is_exact; /* neither form rounded forward, nor the engine backward */
    double *steps; /* (largest parameter) */
} scene;

/* Odd whole numbers: exchanged elements and opposite signs do not cancel. */
static void draw_steps(const cd_oracle *o, const scene *s, size_t parameter, size_t count)
{
    const cd_prng prng = cd_prng_seed(o->options.seed);
    const uint64_t place = (uint64_t)s->step * o->options.parameter_count + parameter;
    cd_prng drawn = cd_prng_split_index(&prng, "direction", place);
    for (size_t i = 0; i < count; i++)
        s->steps[i] = (double)(2 * cd_prng_between(&drawn, -(STEP_MAX + 1) / 2, STEP_MAX / 2) + 1);
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
                   "along a drawn direction the loss has slope %.9g, and the model's gradient says "
                   "%.9g",
                   slope->value, j->found);
}

static void judge_slope(cd_oracle *o, const scene *s, const judged_slope *j)
{
    const cd_second_leaves *own = &s->result->parameters[j->parameter];
    const cd_second_parameter *p = &s->program->parameters[j->parameter];
    const cd_scalar_direction direction = {own->leaves, s->steps, own->count, p->roundoff};
    cd_scalar_slope slope = {0, 0, true};
    if (own->is_used) slope = cd_scalars_differentiate(&o->scalars, s->result->loss, &direction);
    cd_comparison c = {.numel = own->count, .element = -1, .exact = true};
    /* a cast down rounds without a flag */
    if (!s->is_exact || !slope.is_exact || p->roundoff > s->program->roundoff) {
        c.exact = false;
        c.bound = slope.bound + (double)(own->count + 2) * 0x1p-52 * j->size +
                  j->steps * (p->underflow + 0x1p-1000) * (1 + fabs(s->program->scale));
    }
    const double distance = fabs(j->found - slope.value);
    /* where nothing is known, or a number left its range, other links judge */
    if (!isfinite(slope.value) || !(c.bound < INFINITY) || !isfinite(j->found)) {
        cd_oracle_give_up(o, CD_LINK_DERIVATIVE, 1, "the second form or its bound is not finite");
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
    draw_steps(o, s, i, own->is_used ? own->count : 0);
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

static cddp_status judge_all(cd_oracle *o, scene *s, const cddp_grad *gradients, cddp_error *err)
{
    const size_t n = o->options.parameter_count;
    const size_t each = o->scalars.term_count + 1, room = OPERATIONS_MAX / each;
    const cd_prng prng = cd_prng_seed(o->options.seed);
    cd_prng drawn = cd_prng_split_index(&prng, "judged parameters", s->step);
    const size_t first = (size_t)cd_prng_below(&drawn, n);
    size_t largest = 0;
    for (size_t i = 0; i < n; i++)
        if (s->result->parameters[i].count > largest) largest = s->result->parameters[i].count;
    s->steps = cd_arena_array(&o->second, largest + 1, sizeof *s->steps);
    CD_TRY(cd_arena_check(&o->second, err, "the directions of %zu parameters", n));
    cd_scalars_find_adjoints(&o->scalars, s->result->loss);
    /* of the other steps one parameter: what is wrong with the whole loss of a step shows in it */
    const size_t judged = cd_oracle_draws_step(o, s->step) ? room + 1 : 1;
    for (size_t i = 0; i < n && i < judged; i++) {
        const size_t at = (first + i) % n;
        CD_TRY(judge_parameter(o, s, at, &gradients[at], err));
    }
    return CDDP_OK;
}

static uint64_t count_present(const cd_oracle *o, const cddp_grad *gradients)
{
    uint64_t count = 0;
    for (size_t i = 0; i < o->options.parameter_count; i++)
        count += gradients[i].kind != CDDP_GRAD_UNDEFINED;
    return count;
}

static cddp_status judge_in_arena(cd_oracle *o, const cd_start *start, const cd_oracle_part *part,
                                  cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    cd_second_program program = {.model = NULL};
    cd_second_result result;
    const char *why = NULL;
    bool rounded = true;
    CD_TRY(e->load(e->self, start->values, start->buffers, err));
    const bool has_flags = cd_exact_flags_begin();
    CD_TRY(e->run(e->self, part, err));
    if (!has_flags || !cd_exact_flags_end(&rounded)) rounded = true;
    CD_TRY(e->example(e->self, part, &program, &why, err));
    const cddp_grad *gradients = e->gradients(e->self);
    const uint64_t present = count_present(o, gradients);
    if (why == NULL) {
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
    cd_oracle_compare_norms(o, &result, part->micro_step);
    if (!part->in_full) CD_TRY(cd_oracle_judge_running(o, start, &program, &result, err));
    scene s = {.program = &program, .result = &result, .step = part->step, .is_exact = is_exact};
    CD_TRY(judge_all(o, &s, gradients, err));
    return CDDP_OK;
}

static cddp_status judge_part(cd_oracle *o, const cd_start *start, const cd_oracle_part *part,
                              cddp_error *err)
{
    const cd_arena_mark mark = cd_arena_get_mark(&o->second);
    const cddp_status status = judge_in_arena(o, start, part, err);
    cd_arena_rewind(&o->second, mark);
    return status;
}

cddp_status cd_oracle_judge_derivatives(cd_oracle *o, const cd_start *start,
                                        const cd_oracle_reduction *r, cddp_error *err)
{
    const cd_oracle_engine *e = start->engine;
    const bool is_due = cd_oracle_draws_rank(o, r->step);
    if (e->example == NULL || !is_due || !cd_oracle_has_values(o)) return CDDP_OK;
    /* the last micro-step of the window that this rank runs */
    for (uint32_t m = r->micro_step + 1; m-- > r->micro_first;) {
        const cd_oracle_part part = {.rank = o->options.rank,
                                     .step = r->step,
                                     .micro_step = m,
                                     .sample = CD_ORACLE_ALL,
                                     .reenters = false};
        cd_oracle_part full = part;
        full.in_full = true;
        if (e->sample_count(e->self, &part) == 0) continue;
        CD_TRY(judge_part(o, start, &part, err));
        return e->has_full ? CD_PASS(judge_part(o, start, &full, err)) : CDDP_OK;
    }
    return CDDP_OK;
}
