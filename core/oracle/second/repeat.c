/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of optimizers, operation by operation. Scalars are computed in f64 and rounded to the dtype
** once; those of Adam and Adagrad pass through f32 on their way to a 16-bit dtype. */
#include "core/oracle/second/repeat.h"

#include "core/oracle/numbers.h"
#include "core/tensor/math.h"

#include <math.h>

/* Above the roundings of f64 in a scalar. */
#define SCALAR_ROUNDOFF 0x1p-50

/* A scalar of f64 that is known within a radius, as the dtype has it: one number, or two. */
typedef struct scalar {
    double ways[2];
    uint32_t count;
} scalar;

typedef struct scene {
    const cd_formula *formula;
    const cd_formula_element *before;
    cd_repeat *repeat;
} scene;

static double rounded(const scene *s, double value)
{
    return cd_dtype_round(s->before->dtype, value);
}

/* A scalar of a fused kernel. */
static double fused(const scene *s, double value) { return rounded(s, (double)(float)value); }

static scalar scalar_between(const scene *s, double low, double high, bool is_fused)
{
    const double a = is_fused ? fused(s, low) : rounded(s, low);
    const double b = is_fused ? fused(s, high) : rounded(s, high);
    return (scalar){{a, b}, a == b ? 1 : 2};
}

static cd_ball widened(cd_ball x)
{
    x.radius += fabs(x.value) * SCALAR_ROUNDOFF;
    return x;
}

static scalar scalar_of(const scene *s, cd_ball x, bool is_fused)
{
    return scalar_between(s, x.value - x.radius, x.value + x.radius, is_fused);
}

/* 1 − βᵗ in f64. */
static cd_ball correction(double beta, uint64_t step)
{
    if (!(beta > 0)) return cd_ball_of(1);
    return (cd_ball){-cd_expm1((double)step * cd_log(beta)), ((double)step + 1) * 0x1p-52};
}

static void add_way(const scene *s, const cd_formula_result *result)
{
    if (s->repeat->count < CD_REPEAT_WAYS_MAX) s->repeat->ways[s->repeat->count++] = *result;
}

/* sum + factor · x: the product is rounded, then the sum. */
static double add_product(const scene *s, double sum, double factor, double x)
{
    return rounded(s, sum + rounded(s, factor * x));
}

static void repeat_sgd(const scene *s)
{
    const cd_formula *f = s->formula;
    const cd_formula_element *e = s->before;
    const scalar rate = scalar_of(s, f->rate, false);
    cd_formula_result made = {.slot_count = f->momentum != 0};
    double d = e->gradient;
    if (f->weight_decay != 0) d = add_product(s, d, rounded(s, f->weight_decay), e->parameter);
    if (f->momentum != 0) {
        const double momentum = rounded(s, f->momentum);
        double b = d;
        if (e->has_slots)
            b = add_product(s, rounded(s, momentum * e->slots[0]), rounded(s, 1 - f->dampening), d);
        d = f->nesterov ? add_product(s, d, momentum, b) : b;
        made.slots[0] = cd_ball_of(b);
    }
    for (uint32_t i = 0; i < rate.count; i++) {
        made.parameter = cd_ball_of(add_product(s, e->parameter, -rate.ways[i], d));
        add_way(s, &made);
    }
}

typedef struct adam_scalars {
    scalar shrink, root, size; /* 1 − ηλ, √(1 − β₂ᵗ), −η / (1 − β₁ᵗ) */
} adam_scalars;

static adam_scalars find_adam_scalars(const scene *s)
{
    const cd_formula *f = s->formula;
    const bool shrinks = f->kind == CD_FORMULA_ADAMW;
    const cd_ball c1 = widened(correction(f->beta1, s->before->steps + 1));
    const cd_ball c2 = widened(correction(f->beta2, s->before->steps + 1));
    const double least = fmax(c2.value - c2.radius, 0);
    const cd_ball rate = widened(f->rate);
    const double low = rate.value - rate.radius, high = rate.value + rate.radius;
    const double decay = shrinks ? f->weight_decay : 0;
    return (adam_scalars){.shrink = scalar_of(s,
                                              widened((cd_ball){1 - f->rate.value * decay,
                                                                f->rate.radius * fabs(decay)}),
                                              true),
                          .root = scalar_between(s, sqrt(least) * (1 - SCALAR_ROUNDOFF),
                                                 sqrt(c2.value + c2.radius) * (1 + SCALAR_ROUNDOFF),
                                                 true),
                          .size = scalar_between(s, -(low / (c1.value + c1.radius)),
                                                 -(high / (c1.value - c1.radius)), true)};
}

static void repeat_adam(const scene *s)
{
    const cd_formula *f = s->formula;
    const cd_formula_element *e = s->before;
    const adam_scalars all = find_adam_scalars(s);
    const double beta1 = fused(s, f->beta1), beta2 = fused(s, f->beta2);
    const double rest1 = fused(s, 1 - f->beta1), rest2 = fused(s, 1 - f->beta2);
    double g = e->gradient;
    if (f->weight_decay != 0 && f->kind == CD_FORMULA_ADAM)
        g = add_product(s, g, fused(s, f->weight_decay), e->parameter);
    const double m = add_product(s, rounded(s, e->slots[0] * beta1), rest1, g);
    const double v = add_product(s, rounded(s, e->slots[1] * beta2), rounded(s, rest2 * g), g);
    const double root = rounded(s, sqrt(v));
    cd_formula_result made = {.slots = {cd_ball_of(m), cd_ball_of(v)}, .slot_count = 2};
    for (uint32_t way = 0; way < CD_REPEAT_WAYS_MAX; way++) {
        const uint32_t i = way & 1, j = way >> 1 & 1, k = way >> 2;
        if (i >= all.shrink.count || j >= all.root.count || k >= all.size.count) continue;
        const double below = rounded(s, rounded(s, root / all.root.ways[j]) + fused(s, f->eps));
        const double p = f->kind == CD_FORMULA_ADAMW ? rounded(s, e->parameter * all.shrink.ways[i])
                                                     : e->parameter;
        const double moved = rounded(s, rounded(s, all.size.ways[k] * m) / below);
        made.parameter = cd_ball_of(rounded(s, p + moved));
        add_way(s, &made);
    }
}

static void repeat_adagrad(const scene *s)
{
    const cd_formula *f = s->formula;
    const cd_formula_element *e = s->before;
    const scalar rate = scalar_of(s, f->rate, true);
    double g = e->gradient;
    if (f->weight_decay != 0) g = add_product(s, g, fused(s, f->weight_decay), e->parameter);
    const double sum = add_product(s, e->slots[0], g, g);
    const double below = rounded(s, rounded(s, sqrt(sum)) + fused(s, f->eps));
    cd_formula_result made = {.slots = {cd_ball_of(sum)}, .slot_count = 1};
    for (uint32_t i = 0; i < rate.count; i++) {
        const double moved = rounded(s, rounded(s, -rate.ways[i] * g) / below);
        made.parameter = cd_ball_of(rounded(s, e->parameter + moved));
        add_way(s, &made);
    }
}

cd_repeat cd_formula_repeat(const cd_formula *formula, const cd_formula_element *before)
{
    cd_repeat repeat = {.count = 0};
    const scene s = {formula, before, &repeat};
    if (before->dtype == CDDP_F64 || before->addends > 0) return repeat;
    switch (formula->kind) {
    case CD_FORMULA_ADAM:
    case CD_FORMULA_ADAMW:
        repeat_adam(&s);
        return repeat;
    case CD_FORMULA_ADAGRAD:
        repeat_adagrad(&s);
        return repeat;
    case CD_FORMULA_SGD:
        break;
    }
    repeat_sgd(&s);
    return repeat;
}
