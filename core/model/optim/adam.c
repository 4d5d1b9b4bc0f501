/* SPDX-License-Identifier: Apache-2.0 */
/* Adam and AdamW, element by element, in PyTorch's order (single-tensor form):
**
**     Adam:  g += weight_decay × p             AdamW:  p *= 1 - lr × weight_decay
**     m = beta1 × m + (1 - beta1) × g
**     v = beta2 × v + ((1 - beta2) × g) × g
**     amsgrad: vmax = max(vmax, v), and vmax stands for v below
**     p += ((-lr / c1) × m) / (sqrt(v) / sqrt(c2) + eps),   c = 1 - beta^step, in f64
**
** Every operation is rounded to the parameter's dtype; every scalar is computed in f64 and rounded
** to it once. */
#include "core/model/optim/rule.h"

#include "core/base/error.h"
#include "core/base/inject.h"
#include "core/tensor/math.h"
#include "core/tensor/update_code.h"

#include <math.h>

static uint32_t slot_count(const cd_optimizer_options *options) { return options->amsgrad ? 3 : 2; }

static cddp_status check(const cd_optimizer_options *options, cddp_error *err)
{
    CD_TRY(cd_optimizer_check_range("beta1", options->beta1, 0, 0x1.fffffffffffffp-1, err));
    CD_TRY(cd_optimizer_check_range("beta2", options->beta2, 0, 0x1.fffffffffffffp-1, err));
    return CD_PASS(cd_optimizer_check_range("eps", options->eps, 0, 1e300, err));
}

static cddp_adam_scalars scalars_of(const cd_optimizer_options *o, uint64_t step)
{
    bool is_decoupled = o->kind == CD_OPTIMIZER_adamw;
    return (cddp_adam_scalars){.decay = is_decoupled ? 0 : o->weight_decay,
                               .shrink = 1 - o->lr * o->weight_decay,
                               .beta1 = o->beta1,
                               .beta1_rest = 1 - o->beta1,
                               .beta2 = o->beta2,
                               .beta2_rest = 1 - o->beta2,
                               .correction2_root = sqrt(1 - cd_powi(o->beta2, step)),
                               .eps = o->eps,
                               .step_size_negative = -(o->lr / (1 - cd_powi(o->beta1, step))),
                               .sign = o->maximize ? -1 : 1,
                               .is_decoupled = is_decoupled,
                               .has_maximum = o->amsgrad};
}

static cddp_status step(cd_optimizer *o, cd_optimizer_entry *entry, cddp_error *err)
{
    const cddp_tensor *p = &entry->parameter.tensor;
    if (entry->parameter.grad->kind == CDDP_GRAD_SPARSE)
        return CD_PASS(
            cd_optimizer_refuse(o, entry, "Adam does not support sparse gradients", err));
    CD_TRY(cd_optimizer_make_slots(o, entry, err));
    cddp_adam_scalars scalars = scalars_of(&o->options, entry->step + 1);
    CD_INJECT_NUMBER("formula.adam.eps", CD_INJECT_EVERYONE, CD_INJECT_EVERYONE, scalars.eps);
    CD_INJECT_NUMBER("formula.adam.beta2", CD_INJECT_EVERYONE, CD_INJECT_EVERYONE, scalars.beta2);
    CD_INJECT_NUMBER("formula.adam.correction", CD_INJECT_EVERYONE, CD_INJECT_EVERYONE,
                     scalars.correction2_root);
    cd_update update = {.tensors = {p, &entry->parameter.grad->value, &entry->slots[0],
                                    &entry->slots[1], o->options.amsgrad ? &entry->slots[2] : NULL},
                        .written = 1u << 0 | 1u << 2 | 1u << 3 | (o->options.amsgrad ? 1u << 4 : 0),
                        .functions = {[CDDP_F64] = cd_adam_f64,
                                      [CDDP_F32] = cd_adam_f32,
                                      [CDDP_F16] = cd_adam_f16,
                                      [CDDP_BF16] = cd_adam_bf16},
                        .context = &scalars,
                        .there = &(cddp_update_call){.rule = CDDP_UPDATE_ADAM, .adam = &scalars}};
    if ((p->device->flags & CDDP_DEVICE_VALUES) != 0) CD_TRY(cd_update_run(&update, err));
    entry->step++;
    return CDDP_OK;
}

#define ADAM_RULE(decay_by_default)                                                             \
    {                                                                                           \
        .slot_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},                              \
        .defaults = {.lr = 1e-3,                                                                \
                     .beta1 = 0.9,                                                              \
                     .beta2 = 0.999,                                                            \
                     .eps = 1e-8,                                                               \
                     .weight_decay = (decay_by_default)},                                       \
        .needs_host = true, .rule = CDDP_UPDATE_ADAM, .slot_count = slot_count, .check = check, \
        .step = step                                                                            \
    }
const cd_optimizer_rule cd_rule_adam = ADAM_RULE(0);
const cd_optimizer_rule cd_rule_adamw = ADAM_RULE(1e-2);
