/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Bound of a slope] Let D = ⟨∇L, v⟩ be found from scalars x_i, with adjoints x̄_i = ∂L/∂x_i
** and tangents ẋ_i along v. The engine rounds twice: forward, where scalar y = Σ a·b of n terms is
** off by at most (n + 2)·u·Σ|a·b|, and backward, where the contribution x̄_y·b of y to x̄_a is off
** by a few u of itself, and adding the contributions by as many u as there are. To first order an
** error δ of the value x_i changes D by δ·∂D/∂x_i, and an error δ of the adjoint x̄_i changes it
** by δ·ẋ_i. So
**
**     |error of D| ≤ u · Σ_y |∂D/∂y|·(n_y + 2)·Σ|a·b|  +  u · Σ_edges (K + uses_a)·|x̄_y·b·ẋ_a|
**
** and twice that pays for the higher orders and for the roundings of f64 here. ∂D/∂x_i is found by
** one run backward over the program of tangents. docs/oracle.md says it with words. */
#include "core/oracle/second/scalars.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/oracle/exact_inputs.h"
#include "core/tensor/math.h"

#include <math.h>

/* Roundings of an elementary function, and of one step backward. */
#define FUNCTION_ROUNDINGS 6
#define BACKWARD_ROUNDINGS 8
#define HIGHER_ORDERS 2

void cd_scalars_init(cd_scalars *s, const cddp_allocator *allocator)
{
    *s = (cd_scalars){.allocator = allocator};
}

void cd_scalars_fini(cd_scalars *s)
{
    cd_release(s->allocator, s->nodes, s->node_capacity * sizeof *s->nodes);
    cd_release(s->allocator, s->terms, s->term_capacity * sizeof *s->terms);
    cd_release(s->allocator, s->curves, s->curve_capacity * sizeof *s->curves);
    cd_scalars_init(s, s->allocator);
}

void cd_scalars_clear(cd_scalars *s, double roundoff)
{
    s->node_count = s->term_count = s->curve_count = 0;
    s->has_failed = s->has_rounded = s->is_ambiguous = false;
    s->roundoff = roundoff;
    s->zero = cd_scalars_leaf(s, 0);
    s->one = cd_scalars_leaf(s, 1);
    s->minus_one = cd_scalars_leaf(s, -1);
}

cddp_status cd_scalars_check(const cd_scalars *s, cddp_error *err)
{
    return s->has_failed
               ? cd_fail_memory(err, "%zu operations of a model's second form", s->term_count)
               : CDDP_OK;
}

static cd_scalar push(cd_scalars *s, const cd_scalar_node *node)
{
    if (s->has_failed || !cd_vec_grow(s->allocator, (void **)&s->nodes, &s->node_capacity,
                                      s->node_count + 1, sizeof *s->nodes)) {
        s->has_failed = true;
        return 0;
    }
    s->nodes[s->node_count] = *node;
    return (cd_scalar)s->node_count++;
}

cd_scalar cd_scalars_leaf(cd_scalars *s, double value)
{
    return push(s, &(cd_scalar_node){.value = value, .kind = CD_SCALAR_LEAF});
}

cd_scalar cd_scalars_parameter(cd_scalars *s, double value)
{
    return push(s, &(cd_scalar_node){.value = value, .kind = CD_SCALAR_LEAF, .is_parameter = true});
}

/* ---- forward ---- */

void cd_scalars_begin_dot(cd_scalars *s)
{
    (void)push(s, &(cd_scalar_node){.first = (uint32_t)s->term_count, .kind = CD_SCALAR_DOT});
}

void cd_scalars_add_term(cd_scalars *s, cd_scalar a, cd_scalar b)
{
    if (s->has_failed || !cd_vec_grow(s->allocator, (void **)&s->terms, &s->term_capacity,
                                      s->term_count + 1, sizeof *s->terms)) {
        s->has_failed = true;
        return;
    }
    s->terms[s->term_count++] = (cd_scalar_term){a, b};
    s->nodes[a].uses++;
    s->nodes[b].uses++;
}

/* Are all partial sums of the terms values of the engine's dtype, in any order? They are multiples
** of the last place of the whole sum of magnitudes then. */
static bool is_exact(const cd_scalars *s, const cd_scalar_node *y, double size)
{
    int exponent = 0;
    (void)frexp(size, &exponent);
    const double place = ldexp(s->roundoff, exponent);
    for (uint32_t i = y->first; i < s->term_count; i++) {
        const double t = s->nodes[s->terms[i].a].value * s->nodes[s->terms[i].b].value / place;
        if (t != rint(t)) return false;
    }
    return true;
}

cd_scalar cd_scalars_end_dot(cd_scalars *s)
{
    if (s->has_failed) return 0;
    cd_scalar_node *y = &s->nodes[s->node_count - 1];
    double size = 0;
    y->count = (uint32_t)s->term_count - y->first;
    for (uint32_t i = y->first; i < s->term_count; i++) {
        const cd_scalar_node *a = &s->nodes[s->terms[i].a], *b = &s->nodes[s->terms[i].b];
        y->value += a->value * b->value;
        size += fabs(a->value * b->value);
        y->error += fabs(a->value) * b->error + fabs(b->value) * a->error;
    }
    if (y->error > 0 || !is_exact(s, y, size)) y->error += (y->count + 2) * s->roundoff * size;
    s->has_rounded = s->has_rounded || y->error > 0;
    return (cd_scalar)(s->node_count - 1);
}

static cd_scalar_curve curve_at(cd_scalar_kind kind, double x)
{
    double y = 0, e = 0, phi = 0;
    switch (kind) {
    case CD_SCALAR_TANH:
        y = cd_tanh(x), e = 1 - y * y;
        return (cd_scalar_curve){y, e, -2 * y * e};
    case CD_SCALAR_SIGMOID:
        y = 1 / (1 + cd_exp(-x)), e = y * (1 - y);
        return (cd_scalar_curve){y, e, e * (1 - 2 * y)};
    case CD_SCALAR_GELU:
        phi = cd_exp(-x * x / 2) * 0.39894228040143267794;
        y = (1 + cd_erf(x * 0.70710678118654752440)) / 2;
        return (cd_scalar_curve){x * y, y + x * phi, (2 - x * x) * phi};
    case CD_SCALAR_EXP:
        y = cd_exp(x);
        return (cd_scalar_curve){y, y, y};
    case CD_SCALAR_LOG:
        return (cd_scalar_curve){cd_log(x), 1 / x, -1 / (x * x)};
    case CD_SCALAR_SOFTPLUS:
        y = 1 / (1 + cd_exp(-x));
        return (cd_scalar_curve){(x > 0 ? x : 0) + cd_log1p(cd_exp(-fabs(x))), y, y * (1 - y)};
    case CD_SCALAR_RECIPROCAL:
        return (cd_scalar_curve){1 / x, -1 / (x * x), 2 / (x * x * x)};
    case CD_SCALAR_INVERSE_ROOT:
        y = 1 / sqrt(x);
        return (cd_scalar_curve){y, -y / (2 * x), 3 * y / (4 * x * x)};
    default: /* the decision of a ReLU is in the kind: see apply */
        return (cd_scalar_curve){0, 0, 0};
    }
}

static const cd_scalar_curve *curve_of(const cd_scalars *s, const cd_scalar_node *function)
{
    return &s->curves[function->count - 1];
}

cd_scalar cd_scalars_apply(cd_scalars *s, cd_scalar_kind function, cd_scalar x)
{
    if (s->has_failed) return 0;
    if (function == CD_SCALAR_RELU)
        return cd_scalars_is_larger(s, x, s->zero) ? cd_scalars_multiply(s, x, s->one) : s->zero;
    const uint32_t first = (uint32_t)s->term_count;
    cd_scalars_add_term(s, x, s->one);
    s->has_failed =
        s->has_failed || !cd_vec_grow(s->allocator, (void **)&s->curves, &s->curve_capacity,
                                      s->curve_count + 1, sizeof *s->curves);
    if (s->has_failed) return 0;
    const cd_scalar_curve f = curve_at(function, s->nodes[x].value);
    s->curves[s->curve_count++] = f;
    s->has_rounded = true;
    return push(s, &(cd_scalar_node){.value = f.value,
                                     .error = fabs(f.slope) * s->nodes[x].error +
                                              FUNCTION_ROUNDINGS * s->roundoff * fabs(f.value),
                                     .first = first,
                                     .count = (uint32_t)s->curve_count,
                                     .kind = (uint8_t)function});
}

static cd_scalar combine(cd_scalars *s, cd_scalar a, cd_scalar factor, cd_scalar b)
{
    cd_scalars_begin_dot(s);
    cd_scalars_add_term(s, a, s->one);
    cd_scalars_add_term(s, b, factor);
    return cd_scalars_end_dot(s);
}

cd_scalar cd_scalars_add(cd_scalars *s, cd_scalar a, cd_scalar b)
{
    return combine(s, a, s->one, b);
}

cd_scalar cd_scalars_subtract(cd_scalars *s, cd_scalar a, cd_scalar b)
{
    return combine(s, a, s->minus_one, b);
}

cd_scalar cd_scalars_multiply(cd_scalars *s, cd_scalar a, cd_scalar b)
{
    cd_scalars_begin_dot(s);
    cd_scalars_add_term(s, a, b);
    return cd_scalars_end_dot(s);
}

double cd_scalars_get(const cd_scalars *s, cd_scalar x)
{
    return s->has_failed ? 0 : s->nodes[x].value;
}

double cd_scalars_get_error(const cd_scalars *s, cd_scalar x)
{
    return s->has_failed ? INFINITY : HIGHER_ORDERS * s->nodes[x].error;
}

bool cd_scalars_is_larger(cd_scalars *s, cd_scalar a, cd_scalar b)
{
    if (s->has_failed) return false;
    const cd_scalar_node *x = &s->nodes[a], *y = &s->nodes[b];
    const double distance = fabs(x->value - y->value);
    /* equal without any error is equal in every dtype */
    if (distance < HIGHER_ORDERS * (x->error + y->error)) s->is_ambiguous = true;
    return x->value > y->value;
}

/* ---- backward and along a direction ---- */

void cd_scalars_find_adjoints(cd_scalars *s, cd_scalar result)
{
    if (s->has_failed) return;
    for (size_t i = 0; i < s->node_count; i++) s->nodes[i].adjoint = 0;
    s->nodes[result].adjoint = 1;
    for (size_t i = (size_t)result + 1; i-- > 0;) {
        const cd_scalar_node *y = &s->nodes[i];
        if (y->adjoint == 0 || y->count == 0) continue;
        if (y->kind != CD_SCALAR_DOT) {
            cd_scalar_node *x = &s->nodes[s->terms[y->first].a];
            x->adjoint += y->adjoint * curve_of(s, y)->slope;
            continue;
        }
        for (uint32_t k = y->first; k < y->first + y->count; k++) {
            cd_scalar_node *a = &s->nodes[s->terms[k].a], *b = &s->nodes[s->terms[k].b];
            const double at_a = a->value;
            a->adjoint += y->adjoint * b->value;
            b->adjoint += y->adjoint * at_a;
        }
    }
}

/* Note [Bound of an adjoint] Backward, y = Σ a·b passes p = ȳ·b to a. The engine's p is off by
**
**     |δp| ≤ |δȳ|·|b| + |ȳ|·|δb| + (K + uses_a)·u·|p|
**
** where δb is the error of the value forward, and uses_a pays for adding up what is passed to a.
** A function passes p = ȳ·f'(x), with |ȳ·f''(x)|·|δx| for the value. Its slope may be formed from
** its value, as in 1 − y², so that it is off by a few u of 1, not of itself. Twice the sum pays for
** the higher orders and for the roundings of f64 here. No drawn direction is needed: every element
** has its bound. A direction's bound is smaller than the sum of these, and stays where a narrow
** dtype needs it. */
static double passed_error(const cd_scalars *s, double passed, const cd_scalar_node *to)
{
    return fabs(passed) * (BACKWARD_ROUNDINGS + (double)to->uses) * s->roundoff;
}

static double slope_size(cd_scalar_kind kind, double slope)
{
    const bool is_formed_from_value =
        kind == CD_SCALAR_TANH || kind == CD_SCALAR_SIGMOID || kind == CD_SCALAR_GELU;
    return fabs(slope) + (is_formed_from_value ? 1 : 0);
}

void cd_scalars_find_adjoint_errors(cd_scalars *s, cd_scalar result)
{
    if (s->has_failed) return;
    for (size_t i = 0; i < s->node_count; i++) s->nodes[i].adjoint_error = 0;
    for (size_t i = (size_t)result + 1; i-- > 0;) {
        const cd_scalar_node *y = &s->nodes[i];
        const double size = fabs(y->adjoint), error = y->adjoint_error;
        if ((size == 0 && error == 0) || y->count == 0) continue;
        if (y->kind != CD_SCALAR_DOT) {
            cd_scalar_node *x = &s->nodes[s->terms[y->first].a];
            const cd_scalar_kind kind = (cd_scalar_kind)y->kind;
            const cd_scalar_curve f = *curve_of(s, y);
            x->adjoint_error +=
                error * fabs(f.slope) + size * fabs(f.bend) * x->error +
                FUNCTION_ROUNDINGS * s->roundoff * size * slope_size(kind, f.slope) +
                passed_error(s, y->adjoint * f.slope, x);
            continue;
        }
        for (uint32_t k = y->first; k < y->first + y->count; k++) {
            cd_scalar_node *a = &s->nodes[s->terms[k].a], *b = &s->nodes[s->terms[k].b];
            const double to_a = error * fabs(b->value) + size * b->error +
                                passed_error(s, y->adjoint * b->value, a);
            b->adjoint_error += error * fabs(a->value) + size * a->error +
                                passed_error(s, y->adjoint * a->value, b);
            a->adjoint_error += to_a;
        }
    }
}

double cd_scalars_get_adjoint_error(const cd_scalars *s, cd_scalar x)
{
    return s->has_failed ? INFINITY : HIGHER_ORDERS * s->nodes[x].adjoint_error;
}

/* What was written before the first leaf of the direction does not move along it. */
static void run_tangents(cd_scalars *s, cd_scalar result, const cd_scalar_direction *d)
{
    cd_scalar first = result;
    for (size_t i = 0; i < s->node_count; i++) s->nodes[i].tangent = 0;
    for (size_t i = 0; i < d->count; i++) {
        s->nodes[d->leaves[i]].tangent = d->steps[i];
        if (d->leaves[i] < first) first = d->leaves[i];
    }
    for (size_t i = first; i <= result; i++) {
        cd_scalar_node *y = &s->nodes[i];
        if (y->count == 0) continue;
        if (y->kind != CD_SCALAR_DOT) {
            const cd_scalar_node *x = &s->nodes[s->terms[y->first].a];
            if (x->tangent != 0) y->tangent = x->tangent * curve_of(s, y)->slope;
            continue;
        }
        double tangent = 0;
        for (uint32_t k = y->first; k < y->first + y->count; k++) {
            const cd_scalar_node *a = &s->nodes[s->terms[k].a], *b = &s->nodes[s->terms[k].b];
            tangent += a->tangent * b->value + a->value * b->tangent;
        }
        y->tangent = tangent;
    }
}

/* What the roundings on one edge backward may change. */
static double edge_error(const cd_scalars *s, const cd_scalar_direction *d, double passed,
                         const cd_scalar_node *to)
{
    if (to->tangent == 0) return 0;
    const double own = to->is_parameter && d->roundoff > s->roundoff ? d->roundoff : 0;
    return fabs(passed * to->tangent) *
           ((BACKWARD_ROUNDINGS + (double)to->uses) * s->roundoff + BACKWARD_ROUNDINGS * own);
}

static double run_sensitivities(cd_scalars *s, cd_scalar result, const cd_scalar_direction *d)
{
    double bound = 0;
    for (size_t i = 0; i < s->node_count; i++) s->nodes[i].sensitivity = 0;
    for (size_t i = (size_t)result + 1; i-- > 0;) {
        const cd_scalar_node *y = &s->nodes[i];
        const double adjoint = y->adjoint, sensitivity = y->sensitivity;
        if (y->count == 0 || (adjoint == 0 && sensitivity == 0)) continue;
        if (y->kind != CD_SCALAR_DOT) {
            cd_scalar_node *x = &s->nodes[s->terms[y->first].a];
            const cd_scalar_curve f = *curve_of(s, y);
            bound += fabs(sensitivity * f.value) * FUNCTION_ROUNDINGS * s->roundoff +
                     edge_error(s, d, adjoint * f.slope, x);
            x->sensitivity += sensitivity * f.slope + adjoint * f.bend * x->tangent;
            continue;
        }
        double size = 0;
        const cd_scalar_term *terms = s->terms + y->first;
        for (uint32_t k = 0, count = y->count; k < count; k++) {
            cd_scalar_node *a = &s->nodes[terms[k].a], *b = &s->nodes[terms[k].b];
            const double at_a = a->value, at_b = b->value, moves_a = a->tangent,
                         moves_b = b->tangent;
            size += fabs(at_a * at_b);
            if (moves_a != 0 || moves_b != 0)
                bound += edge_error(s, d, adjoint * at_b, a) + edge_error(s, d, adjoint * at_a, b);
            a->sensitivity += sensitivity * at_b + adjoint * moves_b;
            b->sensitivity += sensitivity * at_a + adjoint * moves_a;
        }
        if (y->error > 0) bound += fabs(sensitivity) * (y->count + 2) * s->roundoff * size;
    }
    return bound;
}

cd_scalar_slope cd_scalars_differentiate(cd_scalars *s, cd_scalar result,
                                         const cd_scalar_direction *direction)
{
    if (s->has_failed) return (cd_scalar_slope){0, false};
    bool rounded = true;
    /* where there is a function, has_rounded says that nothing is exact */
    const bool has_flags = cd_exact_flags_begin();
    run_tangents(s, result, direction);
    if (!has_flags || !cd_exact_flags_end(&rounded)) rounded = true;
    return (cd_scalar_slope){s->nodes[result].tangent, !rounded};
}

double cd_scalars_bound_slope(cd_scalars *s, cd_scalar result, const cd_scalar_direction *direction)
{
    return s->has_failed ? INFINITY : HIGHER_ORDERS * run_sensitivities(s, result, direction);
}

double cd_scalars_evaluate(cd_scalars *s, cd_scalar result, const cd_scalar_direction *direction,
                           double h)
{
    if (s->has_failed) return 0;
    /* tangent holds the moved value meanwhile */
    for (size_t i = 0; i < s->node_count; i++) s->nodes[i].tangent = s->nodes[i].value;
    for (size_t i = 0; i < direction->count; i++)
        s->nodes[direction->leaves[i]].tangent += h * direction->steps[i];
    for (size_t i = 0; i <= result; i++) {
        cd_scalar_node *y = &s->nodes[i];
        if (y->count == 0) continue;
        const cd_scalar_term *terms = &s->terms[y->first];
        if (y->kind != CD_SCALAR_DOT) {
            y->tangent = curve_at((cd_scalar_kind)y->kind, s->nodes[terms[0].a].tangent).value;
            continue;
        }
        y->tangent = 0;
        for (uint32_t k = 0; k < y->count; k++)
            y->tangent += s->nodes[terms[k].a].tangent * s->nodes[terms[k].b].tangent;
    }
    return s->nodes[result].tangent;
}
