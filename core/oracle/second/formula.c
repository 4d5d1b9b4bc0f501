/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers from their papers, each in the paper's order of operations:
**
**     SGD (Sutskever 2013, as torch.optim.SGD)   d = g + λp; b = d at first, then μb + (1−τ)d;
**                                                p −= η(d + μb) with Nesterov, else ηb
**     Adam (Kingma, Ba 2015)                     g += λp; m = β₁m + (1−β₁)g; v = β₂v + (1−β₂)g²;
**                                                p −= η · m̂ / (√v̂ + ε), m̂ = m/(1−β₁ᵗ), v̂ =
** v/(1−β₂ᵗ)
**     AdamW (Loshchilov, Hutter 2019)            the same without g += λp, and p −= ηλp
**     Adagrad (Duchi 2011)                       s += g²; p −= η g / (√s + ε)
*/
#include "core/oracle/second/formula.h"

#include "core/tensor/math.h"

/* The engine's order has no more than twice the operations of the paper's on any path from a number
** that enters to one that leaves. */
#define OPERATION_SLACK 2

typedef struct scene {
    const cd_formula *formula;
    const cd_formula_state *before;
    cd_ball_rule rule;
    cd_ball gradient, parameter;
} scene;

static cd_ball scaled(const scene *s, double factor, cd_ball x)
{
    return cd_ball_multiply(&s->rule, cd_ball_rounded(&s->rule, factor), x);
}

static cd_ball mixed(const scene *s, cd_ball old, double keep, cd_ball fresh, double share)
{
    return cd_ball_add(&s->rule, scaled(s, keep, old), scaled(s, share, fresh));
}

static cd_ball decayed(const scene *s)
{
    const double decay = s->formula->weight_decay;
    if (decay == 0) return s->gradient;
    return cd_ball_add(&s->rule, s->gradient, scaled(s, decay, s->parameter));
}

static cd_ball moved(const scene *s, cd_ball direction)
{
    return cd_ball_subtract(&s->rule, s->parameter,
                            cd_ball_multiply(&s->rule, s->formula->rate, direction));
}

static cd_formula_result apply_sgd(const scene *s)
{
    const cd_formula *f = s->formula;
    cd_ball d = decayed(s), b = d;
    if (f->momentum == 0) return (cd_formula_result){.parameter = moved(s, d)};
    if (s->before->has_slots) b = mixed(s, s->before->slots[0], f->momentum, d, 1 - f->dampening);
    if (f->nesterov)
        d = cd_ball_add(&s->rule, d, scaled(s, f->momentum, b));
    else
        d = b;
    return (cd_formula_result){.parameter = moved(s, d), .slots = {b}, .slot_count = 1};
}

/* 1 − βᵗ without cancellation. The engine multiplies t factors of f64, each product below 1, and
** subtracts. */
static cd_ball correction(const scene *s, double beta, uint64_t step)
{
    cd_ball made = cd_ball_of(beta > 0 ? -cd_expm1((double)step * cd_log(beta)) : 1);
    made.radius = (double)step * 0x1p-52;
    return cd_ball_multiply(&s->rule, made, cd_ball_of(1));
}

static cd_formula_result apply_adam(const scene *s)
{
    const cd_formula *f = s->formula;
    const uint64_t t = s->before->steps + 1;
    const bool is_decoupled = f->kind == CD_FORMULA_ADAMW;
    const cd_ball g = is_decoupled ? s->gradient : decayed(s);
    const cd_ball m = mixed(s, s->before->slots[0], f->beta1, g, 1 - f->beta1);
    const cd_ball v =
        mixed(s, s->before->slots[1], f->beta2, cd_ball_multiply(&s->rule, g, g), 1 - f->beta2);
    const cd_ball one1 = correction(s, f->beta1, t);
    const cd_ball one2 = correction(s, f->beta2, t);
    const cd_ball root = cd_ball_root(&s->rule, cd_ball_divide(&s->rule, v, one2));
    const cd_ball below = cd_ball_add(&s->rule, root, cd_ball_rounded(&s->rule, f->eps));
    const cd_ball direction = cd_ball_divide(&s->rule, cd_ball_divide(&s->rule, m, one1), below);
    scene rest = *s;
    if (is_decoupled)
        rest.parameter =
            cd_ball_subtract(&s->rule, s->parameter,
                             cd_ball_multiply(&s->rule, f->rate,
                                              scaled(s, f->weight_decay, s->parameter)));
    return (
        cd_formula_result){.parameter = moved(&rest, direction), .slots = {m, v}, .slot_count = 2};
}

static cd_formula_result apply_adagrad(const scene *s)
{
    const cd_ball g = decayed(s);
    const cd_ball sum =
        cd_ball_add(&s->rule, s->before->slots[0], cd_ball_multiply(&s->rule, g, g));
    const cd_ball below = cd_ball_add(&s->rule, cd_ball_root(&s->rule, sum),
                                      cd_ball_rounded(&s->rule, s->formula->eps));
    return (cd_formula_result){.parameter = moved(s, cd_ball_divide(&s->rule, g, below)),
                               .slots = {sum},
                               .slot_count = 1};
}

cd_formula_result cd_formula_apply(const cd_formula *formula, const cd_formula_element *before)
{
    cd_formula_state state = {.dtype = before->dtype,
                              .parameter = cd_ball_of(before->parameter),
                              .gradient = cd_ball_of(before->gradient),
                              .has_slots = before->has_slots,
                              .steps = before->steps,
                              .addends = before->addends};
    for (uint32_t i = 0; i < CD_FORMULA_SLOTS_MAX; i++)
        state.slots[i] = cd_ball_of(before->slots[i]);
    return cd_formula_carry(formula, &state);
}

cd_formula_result cd_formula_carry(const cd_formula *formula, const cd_formula_state *before)
{
    const scene s = {.formula = formula,
                     .before = before,
                     .rule = cd_ball_rule_of(before->dtype,
                                             OPERATION_SLACK * (1 + (double)before->addends)),
                     .gradient = before->gradient,
                     .parameter = before->parameter};
    switch (formula->kind) {
    case CD_FORMULA_ADAM:
    case CD_FORMULA_ADAMW:
        return apply_adam(&s);
    case CD_FORMULA_ADAGRAD:
        return apply_adagrad(&s);
    case CD_FORMULA_SGD:
        break;
    }
    return apply_sgd(&s);
}

const char *cd_formula_slot_name(cd_formula_kind kind, uint32_t slot)
{
    static const char *const names[][CD_FORMULA_SLOTS_MAX] = {
        [CD_FORMULA_SGD] = {"momentum_buffer"},
        [CD_FORMULA_ADAM] = {"exp_avg", "exp_avg_sq"},
        [CD_FORMULA_ADAMW] = {"exp_avg", "exp_avg_sq"},
        [CD_FORMULA_ADAGRAD] = {"sum"}};
    return slot < CD_FORMULA_SLOTS_MAX && names[kind][slot] != NULL ? names[kind][slot] : "?";
}
