/* SPDX-License-Identifier: Apache-2.0 */
/* Note [Carried elements] The run takes θ' = f(θ, g), where g may differ from the single-process
** gradient by link 1's bound, and f is rounded. With a ball around θ and one around the gradient,
** the formula's balls (second/formula.c) give one around θ'. The gradients are those of the batch
** at the parameters that the run has, which lie within the balls. So nothing need be known of the
** loss: what is carried is the sum of all steps, from the plan's initial values on.
**
** An element whose ball has grown too wide starts again from what the run has. */
#include "core/oracle/carried.h"

#include "core/base/error.h"
#include "core/base/prng.h"
#include "core/oracle/power_sum.h"
#include "core/tensor/math.h"

#include <math.h>

/* Elements of one parameter, and of one rank. */
#define PARAMETER_MAX 32
#define RANK_MAX 1024
/* A ball wider than this part of its value says too little. */
#define WIDEST 0x1p-8
/* As clip_grad_norm_ of PyTorch has it. */
#define CLIP_EPSILON 1e-6

typedef struct carried_element {
    size_t at;
    bool is_known;
    cd_ball parameter, gradient, slots[CD_FORMULA_SLOTS_MAX];
} carried_element;

typedef struct carried_parameter {
    carried_element *elements; /* (count) */
    size_t count;
    bool has_gradient, has_slots;
    uint64_t steps;
    uint32_t optimizer, times; /* in this step: which one steps it, and how many do */
    const cd_oracle_optimized *entry;
} carried_parameter;

struct cd_carried {
    carried_parameter *parameters; /* (parameter_count) */
    bool has_begun, is_off_the_grid;
    bool is_behind;        /* an update was judged, and its formulas not yet */
    double powers, spread; /* of the gradients' norm and of its radius */
    double largest;        /* |ln x| in it */
    uint64_t normed;       /* elements in it */
    bool has_restarted;    /* in this step */
    uint64_t differing;    /* comparisons that had failed when the step began */
};

static size_t elements_of(const cd_oracle *o, size_t i)
{
    const size_t share = RANK_MAX / o->options.parameter_count;
    const size_t most = share < 1 ? 1 : share < PARAMETER_MAX ? share : PARAMETER_MAX;
    const size_t numel = (size_t)o->parameters[i].numel;
    return numel < most ? numel : most;
}

/* Averagers change parameters after the step. */
static bool can_carry(const cd_oracle *o)
{
    return o->carried != NULL && o->options.free_gap != CD_FREE_AVERAGED && !o->has_free_parted;
}

cddp_status cd_carried_create(cd_oracle *o, cddp_error *err)
{
    const size_t n = o->options.parameter_count;
    if (o->options.free_engine == NULL || n == 0) return CDDP_OK;
    struct cd_carried *c = cd_arena_array(&o->arena, 1, sizeof *c);
    CD_TRY(cd_arena_check(&o->arena, err, "what is carried of %zu parameters", n));
    c->parameters = cd_arena_array(&o->arena, n, sizeof *c->parameters);
    CD_TRY(cd_arena_check(&o->arena, err, "what is carried of %zu parameters", n));
    for (size_t i = 0; i < n; i++) {
        carried_parameter *p = &c->parameters[i];
        const cd_prng prng = cd_prng_seed(o->options.seed);
        /* the same on every rank, so that a finding names all that are wrong */
        cd_prng drawn = cd_prng_split_index(&prng, "carried elements", i);
        p->count = elements_of(o, i);
        p->elements = cd_arena_array(&o->arena, p->count + 1, sizeof *p->elements);
        CD_TRY(
            cd_arena_check(&o->arena, err, "%zu elements of %s", p->count, o->parameters[i].name));
        for (size_t k = 0; k < p->count; k++) {
            const size_t numel = (size_t)o->parameters[i].numel;
            p->elements[k].at = numel == p->count ? k : (size_t)cd_prng_below(&drawn, numel);
        }
    }
    o->carried = c;
    return CDDP_OK;
}

/* ---- the beginning of a step ---- */

static void lose(carried_parameter *p)
{
    for (size_t k = 0; k < p->count; k++) p->elements[k].is_known = false;
}

static cddp_status start(cd_oracle *o, cddp_error *err)
{
    const cd_oracle_engine *e = o->options.free_engine;
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        carried_parameter *p = &o->carried->parameters[i];
        CD_TRY(cd_numbers_read(&o->numbers, &e->parameters(e->self)[i], err));
        for (size_t k = 0; k < p->count; k++) {
            carried_element *x = &p->elements[k];
            x->parameter = cd_ball_of(o->numbers.values[x->at]);
            x->is_known = o->options.free_gap == CD_FREE_NO_GAP;
        }
    }
    return CDDP_OK;
}

static void lose_if(cd_oracle *o, bool condition)
{
    for (size_t i = 0; condition && i < o->options.parameter_count; i++)
        lose(&o->carried->parameters[i]);
}

/* The grid k/8, -8 ≤ k ≤ 8: the nearest multiple, ties up, around modulo 17. Both ends of the ball
** must lead to the same one. */
static bool put_on_the_grid(cd_ball *x)
{
    const double low = floor(8 * (x->value - x->radius) + 0.5);
    const double high = floor(8 * (x->value + x->radius) + 0.5);
    if (!(fabs(low) < 1e15) || low != high) return false;
    const double turns = floor((low + 8) / 17);
    *x = cd_ball_of((low - 17 * turns) / 8);
    return true;
}

/* The elements of a parameter against their balls. */
static cddp_status compare(cd_oracle *o, size_t i, const cddp_tensor *actual, cd_comparison *c,
                           cddp_error *err)
{
    const carried_parameter *p = &o->carried->parameters[i];
    double worst = 0;
    *c = (cd_comparison){.element = -1};
    CD_TRY(cd_numbers_read(&o->numbers, actual, err));
    for (size_t k = 0; k < p->count; k++) {
        const carried_element *x = &p->elements[k];
        const double found = o->numbers.values[x->at];
        /* what left the range shows elsewhere */
        if (!x->is_known || !isfinite(found)) continue;
        c->numel++;
        if (c->bad == 0) c->bound = fmax(c->bound, x->parameter.radius);
        if (cd_ball_has(&x->parameter, found)) continue;
        const double excess = fabs(found - x->parameter.value) / (x->parameter.radius + 0x1p-1000);
        if (c->bad++ != 0 && !(excess > worst)) continue;
        worst = excess;
        c->element = (int64_t)x->at;
        c->expected = x->parameter.value;
        c->actual = found;
        c->bound = x->parameter.radius;
        const double ulps = fabs(found - c->expected) / cd_dtype_ulp(actual->dtype, c->expected);
        c->ulps = ulps < 0x1p62 ? (uint64_t)(ulps + 0.5) : UINT64_C(1) << 62;
    }
    return CDDP_OK;
}

/* o->numbers has the run's parameter. */
static void leave_grid(cd_oracle *o, carried_parameter *p)
{
    for (size_t k = 0; k < p->count; k++) {
        carried_element *x = &p->elements[k];
        if (!x->is_known || put_on_the_grid(&x->parameter)) continue;
        x->parameter = cd_ball_of(o->numbers.values[x->at]);
        o->carried->has_restarted = true;
    }
}

void cd_carried_receive(cd_oracle *o)
{
    if (o->carried == NULL) return;
    lose_if(o, true);
    o->carried->has_begun = true;
    o->carried->is_off_the_grid = o->carried->is_behind = false;
}

cddp_status cd_carried_begin(cd_oracle *o, cddp_error *err)
{
    struct cd_carried *c = o->carried;
    if (!can_carry(o) || !cd_oracle_has_values(o)) return CDDP_OK;
    c->powers = c->spread = c->largest = 0;
    c->normed = 0;
    c->has_restarted = false;
    /* what other links have named is not named again */
    lose_if(o, c->differing != o->summary.differing || c->is_behind);
    c->differing = o->summary.differing;
    c->is_behind = false;
    if (!c->has_begun) CD_TRY(start(o, err));
    c->has_begun = true;
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        carried_parameter *p = &c->parameters[i];
        cd_comparison found;
        p->has_gradient = false;
        const bool has_grid = cddp_dtype_is_float(o->parameters[i].dtype);
        if (c->is_off_the_grid && o->options.on_grid && has_grid) {
            CD_TRY(cd_numbers_read(&o->numbers, &o->values[i], err));
            leave_grid(o, p);
        }
        CD_TRY(compare(o, i, &o->values[i], &found, err));
        if (found.bad == 0) continue;
        cd_oracle_report_parting(o, i, &found);
    }
    c->is_off_the_grid = false;
    return CDDP_OK;
}

/* ---- gradients ---- */

/* By how much the run's gradient may differ from the sum over the divisor. */
static double bound_sum(const cd_carried_sum *from, size_t at)
{
    const cd_sum_rule *rule = from->rule;
    const double least = fmax(rule->underflow, cd_dtype_underflow(rule->dtype));
    const double size = from->sum->magnitude[at] / (double)rule->divisor;
    const bool is_exact =
        rule->division_is_exact &&
        cd_wide_sum_is_exact(from->sum, at,
                             cd_dtype_precision(rule->dtype) - rule->places_between) &&
        (from->sum->low[at] == INT32_MAX ||
         cd_two_to(from->sum->low[at]) >= (double)rule->divisor * 2 * least);
    const double bound = is_exact ? 0
                                  : cd_gamma(rule->dtype, rule->roundings) * size * (1 + 0x1p-40) +
                                        (double)rule->addends * least;
    return bound + cd_sum_cast_error(rule, size, bound);
}

/* The gradient of the whole batch, before the loss scale is taken back. Where every addend of the
** reduction is known, it is what some order of the additions gives. */
static cd_ball batch_gradient(const cd_carried_sum *from, size_t at)
{
    const cd_any_order *a = from->addends;
    const double value = cd_wide_sum_get(from->sum, at) / (double)from->rule->divisor;
    const cd_ball bounded = {value,
                             bound_sum(from, at) +
                                 (from->rule->division_is_exact ? 0 : 0x1p-50 * fabs(value))};
    if (!a->is_found || a->is_given_up || a->stride != 1 || bounded.radius == 0) return bounded;
    const cd_any_order_range *r = &a->ranges[at];
    const cd_ball ordered = {(r->low + r->high) / 2, (r->high - r->low) / 2 * (1 + 0x1p-50)};
    return ordered.radius < bounded.radius ? ordered : bounded;
}

/* A gradient is multiplied by the inverse of the scale, which a scaler rounds to f32 whatever the
** gradient's dtype is. The product rounds, unless the scale is a power of two. */
static cd_ball unscale(cd_ball g, cddp_dtype dtype, double loss_scale)
{
    int exponent;
    if (loss_scale == 1) return g;
    const double inverse = (double)(float)(1.0 / loss_scale);
    g.value *= inverse;
    g.radius *= inverse;
    const bool is_power = frexp(loss_scale, &exponent) == 0.5;
    const double rounded = is_power ? 0 : 3 * cd_dtype_roundoff(dtype) * (fabs(g.value) + g.radius);
    g.radius = (g.radius + rounded) * (1 + 0x1p-40);
    if (fabs(g.value) < cd_dtype_underflow(dtype) / cd_dtype_roundoff(dtype))
        g.radius += 2 * cd_dtype_underflow(dtype);
    return g;
}

void cd_carried_take_gradient(cd_oracle *o, size_t i, const cd_carried_sum *from)
{
    const cddp_dtype dtype = o->parameters[i].dtype;
    if (!can_carry(o) || !(o->loss_scale > 0)) return;
    struct cd_carried *c = o->carried;
    carried_parameter *p = &c->parameters[i];
    p->has_gradient = true;
    for (size_t k = 0; k < p->count; k++) {
        carried_element *x = &p->elements[k];
        x->gradient = unscale(batch_gradient(from, x->at), dtype, o->loss_scale);
    }
    for (size_t k = 0; o->options.clip_max_norm > 0 && k < from->sum->numel; k++) {
        const cd_ball g = unscale(batch_gradient(from, k), dtype, o->loss_scale);
        const double power = o->options.clip_norm_type;
        cd_power_add(power, &c->powers, cd_power_term(power, g.value));
        cd_power_add(power, &c->spread, cd_power_term(power, g.radius));
        if (g.value != 0 && isfinite(g.value))
            c->largest = fmax(c->largest, fabs(cd_log(fabs(g.value))));
        c->normed++;
    }
}

static double clip_factor(double max_norm, double norm)
{
    return fmin(1, max_norm / (fmax(norm, 0) + CLIP_EPSILON));
}

/* |‖g‖ − ‖g'‖| ≤ ‖g − g'‖, and the factor falls with the norm. */
static cd_ball find_factor(const cd_oracle *o, double loss_scale)
{
    const struct cd_carried *c = o->carried;
    const double max_norm = o->options.clip_max_norm;
    const double scale = o->options.clips_scaled ? loss_scale : 1;
    if (max_norm == 0) return cd_ball_of(1);
    const double p = o->options.clip_norm_type;
    const double norm = cd_power_root(p, c->powers) * scale;
    const double roundings = (double)(c->normed + 16) + cd_power_roundings(p, c->largest);
    const double radius = cd_power_root(p, c->spread) * scale * (1 + 0x1p-50 * roundings) +
                          norm * 0x1p-50 * roundings +
                          2 * cd_power_underflow(p, (double)c->normed) * scale;
    const double low = clip_factor(max_norm, norm + radius);
    const double high = clip_factor(max_norm, norm - radius);
    return (cd_ball){(low + high) / 2, (high - low) / 2 + 0x1p-50};
}

/* ---- the update ---- */

/* Which optimizers step which parameters. */
static void find_entries(cd_oracle *o, const cd_oracle_formulas *f)
{
    struct cd_carried *c = o->carried;
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        c->parameters[i].times = 0;
        c->parameters[i].entry = NULL;
    }
    for (size_t k = 0; k < f->count; k++) {
        const cd_oracle_optimized *entry = &f->after[k];
        carried_parameter *p = &c->parameters[entry->parameter];
        if (!f->due[entry->optimizer]) continue;
        p->entry = entry;
        p->optimizer = entry->optimizer;
        p->times++;
    }
}

static bool is_too_wide(const cd_ball *x)
{
    return !(x->radius <= WIDEST * (fabs(x->value) + WIDEST));
}

/* The element starts again from what the run has, where this rank has its state. */
static cddp_status restart(cd_oracle *o, const cd_oracle_formulas *f, size_t i, cddp_error *err)
{
    carried_parameter *p = &o->carried->parameters[i];
    const cd_oracle_optimized *entry = p->entry;
    bool is_any = false;
    for (size_t k = 0; k < p->count; k++) is_any = is_any || !p->elements[k].is_known;
    if (!is_any || o->is_sharded || entry == NULL || p->times != 1) return CDDP_OK;
    CD_TRY(cd_numbers_read(&o->numbers, &f->parameters[i], err));
    for (size_t k = 0; k < p->count; k++)
        if (!p->elements[k].is_known)
            p->elements[k].parameter = cd_ball_of(o->numbers.values[p->elements[k].at]);
    for (uint32_t s = 0; s < CD_FORMULA_SLOTS_MAX; s++) {
        if (!entry->is_present || entry->slots[s].device == NULL) continue;
        CD_TRY(cd_numbers_read(&o->numbers, &entry->slots[s], err));
        for (size_t k = 0; k < p->count; k++)
            if (!p->elements[k].is_known)
                p->elements[k].slots[s] = cd_ball_of(o->numbers.values[p->elements[k].at]);
    }
    for (size_t k = 0; k < p->count; k++) p->elements[k].is_known = true;
    p->steps = entry->steps;
    p->has_slots = entry->is_present;
    return CDDP_OK;
}

static void step_elements(cd_oracle *o, const cd_formula *formula, size_t i, cd_ball factor,
                          uint64_t rows)
{
    carried_parameter *p = &o->carried->parameters[i];
    const cddp_dtype dtype = o->parameters[i].dtype;
    const cd_ball_rule rule = cd_ball_rule_of(dtype, 2);
    for (size_t k = 0; k < p->count; k++) {
        carried_element *x = &p->elements[k];
        if (!x->is_known) continue;
        cd_formula_state before = {.dtype = dtype,
                                   .parameter = x->parameter,
                                   .gradient = x->gradient,
                                   .slots = {x->slots[0], x->slots[1]},
                                   .has_slots = p->has_slots,
                                   .steps = p->steps,
                                   .addends = rows};
        if (factor.value != 1 || factor.radius != 0)
            before.gradient = cd_ball_multiply(&rule, factor, before.gradient);
        const cd_formula_result made = cd_formula_carry(formula, &before);
        x->parameter = made.parameter;
        for (uint32_t s = 0; s < made.slot_count; s++) x->slots[s] = made.slots[s];
    }
    p->steps++;
    p->has_slots = true;
}

/* Is everything known that this step needs? */
static bool knows_step(const cd_oracle *o, const cd_oracle_formulas *f)
{
    const struct cd_carried *c = o->carried;
    bool all = true;
    for (size_t i = 0; all && i < o->options.parameter_count; i++) {
        const carried_parameter *p = &c->parameters[i];
        const bool is_stepped = p->times > 0 && f->gradients[i].kind != CDDP_GRAD_UNDEFINED;
        bool is_known = p->times <= 1 && p->has_gradient;
        for (size_t k = 0; is_stepped && k < p->count; k++)
            is_known = is_known && p->elements[k].is_known;
        all = !is_stepped || is_known;
        /* the norm is of all gradients, stepped or not */
        if (o->options.clip_max_norm > 0 && f->gradients[i].kind != CDDP_GRAD_UNDEFINED)
            all = all && p->has_gradient;
    }
    return all && o->options.clip_max_norm >= 0;
}

static cddp_status step_parameter(cd_oracle *o, const cd_oracle_formulas *f, size_t i,
                                  const cd_ball *factor, cddp_error *err)
{
    carried_parameter *p = &o->carried->parameters[i];
    const cddp_grad *g = &f->gradients[i];
    /* of a frozen parameter, which is stepped and stays off its grid */
    const bool is_kept = p->times > 0 && g->kind != CDDP_GRAD_UNDEFINED && !p->has_gradient;
    if (p->times > 0 && g->kind != CDDP_GRAD_UNDEFINED) {
        const uint64_t rows = g->kind == CDDP_GRAD_SPARSE ? (uint64_t)g->rows.count : 0;
        if (factor == NULL || p->times > 1 || !p->has_gradient)
            lose(p);
        else
            step_elements(o, &f->formulas[p->optimizer], i, *factor, rows);
    }
    for (size_t k = 0; k < p->count; k++) {
        carried_element *x = &p->elements[k];
        if (!x->is_known || !is_too_wide(&x->parameter)) continue;
        x->is_known = false;
        o->carried->has_restarted = true;
    }
    p->has_gradient = false;
    if (is_kept) return CDDP_OK;
    return CD_PASS(restart(o, f, i, err));
}

void cd_carried_expect_step(cd_oracle *o)
{
    if (o->carried != NULL) o->carried->is_behind = true;
}

cddp_status cd_carried_step(cd_oracle *o, const cd_oracle_formulas *f, cddp_error *err)
{
    const cd_free_gap gap = o->free_ended;
    o->free_ended = CD_FREE_NO_GAP;
    if (!can_carry(o) || !cd_oracle_has_values(o) || !o->carried->has_begun) return CDDP_OK;
    find_entries(o, f);
    o->carried->is_off_the_grid = true;
    /* a run that resumes starts with a state */
    lose_if(o, o->starts_with_state);
    o->starts_with_state = o->carried->is_behind = false;
    const bool is_known = knows_step(o, f);
    const cd_ball factor = find_factor(o, o->loss_scale);
    /* one unknown gradient makes the norm unknown, and with it every gradient */
    const bool has_factor = o->options.clip_max_norm == 0 || is_known;
    for (size_t i = 0; i < o->options.parameter_count; i++)
        CD_TRY(step_parameter(o, f, i, has_factor ? &factor : NULL, err));
    o->carried->powers = o->carried->spread = o->carried->largest = 0;
    /* the reference itself gave the step up, and the balls did not */
    if (gap != CD_FREE_NO_GAP && is_known) {
        o->free_gaps[gap]--;
        o->free_gaps[CD_FREE_WIDE] += o->carried->has_restarted;
    }
    return CDDP_OK;
}

cddp_status cd_carried_finish(cd_oracle *o, const cddp_tensor *parameters, cddp_error *err)
{
    if (!can_carry(o) || !o->carried->has_begun || o->carried->is_behind) return CDDP_OK;
    if (o->carried->differing != o->summary.differing) return CDDP_OK;
    for (size_t i = 0; i < o->options.parameter_count; i++) {
        carried_parameter *p = &o->carried->parameters[i];
        cd_comparison c;
        const bool has_grid = cddp_dtype_is_float(o->parameters[i].dtype);
        for (size_t k = 0; o->options.on_grid && has_grid && k < p->count; k++)
            p->elements[k].is_known =
                p->elements[k].is_known && put_on_the_grid(&p->elements[k].parameter);
        CD_TRY(compare(o, i, &parameters[i], &c, err));
        if (c.numel == 0) continue;
        if (c.bad > 0)
            cd_oracle_report_parting(o, i, &c);
        else
            cd_oracle_report(o, CD_LINK_FREE, i, &c);
    }
    return CDDP_OK;
}
