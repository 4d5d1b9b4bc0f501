/* SPDX-License-Identifier: Apache-2.0 */
/* The plan's optimizers as formulas, and the state of a replica's optimizers as a list. */
#include "core/reference/optimized.h"

#include "core/plan/plan.h"
#include "core/tensor/math.h"

#include <math.h>
#include <string.h>

static cd_formula formula_of(const cddp_plan_optimizer *o)
{
    static const cd_formula_kind kinds[] = {[CDDP_OPTIMIZER_SGD] = CD_FORMULA_SGD,
                                            [CDDP_OPTIMIZER_ADAM] = CD_FORMULA_ADAM,
                                            [CDDP_OPTIMIZER_ADAMW] = CD_FORMULA_ADAMW,
                                            [CDDP_OPTIMIZER_ADAGRAD] = CD_FORMULA_ADAGRAD};
    return (cd_formula){.kind = kinds[o->kind],
                        .weight_decay = o->weight_decay,
                        .momentum = o->momentum,
                        .dampening = o->dampening,
                        .beta1 = o->beta1,
                        .beta2 = o->beta2,
                        .eps = o->eps,
                        .nesterov = o->nesterov};
}

/* lr · decayᵗ. A run that multiplies t times rounds as often, and so may this power. */
static cd_ball rate_of(double rate, double decay, uint32_t step)
{
    cd_ball made = {rate * cd_powi(decay, step), 0};
    if (decay != 1 && step > 0) made.radius = fabs(made.value) * ((double)step + 2) * 0x1p-52;
    return made;
}

void cd_optimized_plan(const cddp_plan *plan, const cddp_plan_settings *settings,
                       const cd_optimized_place *at, cd_formula *formulas)
{
    const double decay = settings->train.lr_decay;
    for (size_t i = 0; i < cd_plan_optimizer_count(plan); i++) {
        const cddp_plan_optimizer own = cd_plan_optimizer_of(plan, at->rank, i);
        formulas[i] = formula_of(&own);
        formulas[i].rate = rate_of(own.lr, decay, at->step);
    }
}

size_t cd_optimized_count(const cd_replica *replica)
{
    size_t count = 0;
    for (size_t i = 0; i < replica->optimizer_count; i++) count += replica->optimizers[i].count;
    return count;
}

void cd_optimized_settings(const cd_formula *f, double settings[CD_ORACLE_SETTINGS])
{
    const bool is_sgd = f->kind == CD_FORMULA_SGD,
               is_adam = f->kind == CD_FORMULA_ADAM || f->kind == CD_FORMULA_ADAMW;
    const double made[CD_ORACLE_SETTINGS] = {[CD_ORACLE_WEIGHT_DECAY] = f->weight_decay,
                                             [CD_ORACLE_MOMENTUM] = is_sgd ? f->momentum : 0,
                                             [CD_ORACLE_DAMPENING] = is_sgd ? f->dampening : 0,
                                             [CD_ORACLE_NESTEROV] = is_sgd && f->nesterov,
                                             [CD_ORACLE_BETA1] = is_adam ? f->beta1 : 0,
                                             [CD_ORACLE_BETA2] = is_adam ? f->beta2 : 0,
                                             [CD_ORACLE_EPS] = is_sgd ? 0 : f->eps};
    memcpy(settings, made, sizeof made);
}

/* Those that an optimizer has now. */
static void collect_settings(const cd_optimizer *optimizer, double settings[CD_ORACLE_SETTINGS])
{
    const cd_optimizer_options *o = cd_optimizer_get_options(optimizer);
    const cd_formula now = {.kind = o->kind == CD_OPTIMIZER_sgd     ? CD_FORMULA_SGD
                                    : o->kind == CD_OPTIMIZER_adam  ? CD_FORMULA_ADAM
                                    : o->kind == CD_OPTIMIZER_adamw ? CD_FORMULA_ADAMW
                                                                    : CD_FORMULA_ADAGRAD,
                            .weight_decay = o->weight_decay,
                            .momentum = o->momentum,
                            .dampening = o->dampening,
                            .beta1 = o->beta1,
                            .beta2 = o->beta2,
                            .eps = o->eps,
                            .nesterov = o->nesterov};
    cd_optimized_settings(&now, settings);
}

void cd_optimized_collect(const cd_replica *replica, cd_oracle_optimized *entries)
{
    size_t at = 0;
    for (size_t i = 0; i < replica->optimizer_count; i++) {
        const cd_replica_optimizer *o = &replica->optimizers[i];
        double settings[CD_ORACLE_SETTINGS];
        collect_settings(o->optimizer, settings);
        for (size_t k = 0; k < o->count; k++, at++) {
            const int64_t piece = cd_replica_find_piece(o, k);
            cd_optimizer_state state;
            if (piece >= 0)
                cd_optimizer_get_state(o->optimizer, (size_t)piece, &state);
            else
                state = (cd_optimizer_state){.is_present = false};
            entries[at] = (cd_oracle_optimized){.parameter = o->ordinals[k],
                                                .optimizer = (uint32_t)i,
                                                .is_held = piece >= 0,
                                                .is_present = state.is_present,
                                                .steps = state.step};
            memcpy(entries[at].settings, settings, sizeof settings);
            for (uint32_t s = 0; s < CD_FORMULA_SLOTS_MAX && s < state.slot_count; s++)
                if (state.is_present) entries[at].slots[s] = state.slots[s];
        }
    }
}
