/* SPDX-License-Identifier: Apache-2.0 */
/* Adam and AdamW, element by element, in PyTorch's order (single-tensor form):
**
**     Adam:  g += weight_decay × p             AdamW:  p *= 1 - lr × weight_decay
**     m = beta1 × m + (1 - beta1) × g
**     v = beta2 × v + ((1 - beta2) × g) × g
**     amsgrad: vmax = max(vmax, v), and vmax stands for v below
**     p += ((-lr / c1) × m) / (sqrt(v) / sqrt(c2) + eps),   c = 1 - beta^step, in f64
**
** Every operation is rounded to the parameter's dtype; every scalar is computed in f64 and rounded to it once. */
#include "core/model/optim/rule.h"

#include "core/base/error.h"
#include "core/tensor/dtype.h"
#include "core/tensor/math.h"

#include <math.h>

/* Scalars of one step. */
typedef struct adam_scalars {
    double decay;  /* Adam: added to the gradient; 0: none */
    double shrink; /* AdamW: factor on the parameter; 1: none */
    double beta1, beta1_rest, beta2, beta2_rest, correction2_root, eps, step_size_negative, sign;
    bool is_decoupled, has_maximum;
} adam_scalars;

#define ADAM_UPDATE(name, T, ROUND)                                                                                    \
    static void name(void *const *x, size_t n, const void *context)                                                    \
    {                                                                                                                  \
        const adam_scalars *s = context;                                                                               \
        T *p = x[0], *m = x[2], *v = x[3], *maximum = x[4];                                                            \
        const T *g = x[1];                                                                                             \
        const T decay = ROUND((T)s->decay), shrink = ROUND((T)s->shrink), eps = ROUND((T)s->eps);                      \
        const T beta1 = ROUND((T)s->beta1), beta1_rest = ROUND((T)s->beta1_rest);                                      \
        const T beta2 = ROUND((T)s->beta2), beta2_rest = ROUND((T)s->beta2_rest);                                      \
        const T root2 = ROUND((T)s->correction2_root), size = ROUND((T)s->step_size_negative), sign = (T)s->sign;      \
        for (size_t i = 0; i < n; i++) {                                                                               \
            T gi = sign * g[i], pi = p[i], vi;                                                                         \
            if (s->decay != 0) gi = ROUND(gi + ROUND(decay * pi));                                                     \
            if (s->is_decoupled) pi = ROUND(pi * shrink);                                                              \
            m[i] = ROUND(ROUND(m[i] * beta1) + ROUND(beta1_rest * gi));                                                \
            v[i] = ROUND(ROUND(v[i] * beta2) + ROUND(ROUND(beta2_rest * gi) * gi));                                    \
            vi = v[i];                                                                                                 \
            if (s->has_maximum) vi = maximum[i] = maximum[i] != maximum[i] || maximum[i] >= vi ? maximum[i] : vi;      \
            const T below = ROUND(ROUND(ROUND((T)sqrt((double)vi)) / root2) + eps);                                    \
            p[i] = ROUND(pi + ROUND(ROUND(size * m[i]) / below));                                                      \
        }                                                                                                              \
    }
/* sqrt in f64 and one rounding is sqrt in f32: 53 ≥ 2 × 24 + 2. */
ADAM_UPDATE(update_f64, double, CD_ROUND_NONE)
ADAM_UPDATE(update_f32, float, CD_ROUND_NONE)
ADAM_UPDATE(update_f16, float, CD_ROUND_F16)
ADAM_UPDATE(update_bf16, float, CD_ROUND_BF16)

static uint32_t slot_count(const cd_optimizer_options *options) { return options->amsgrad ? 3 : 2; }

static cddp_status check(const cd_optimizer_options *options, cddp_error *err)
{
    CD_TRY(cd_optimizer_check_range("beta1", options->beta1, 0, 0x1.fffffffffffffp-1, err));
    CD_TRY(cd_optimizer_check_range("beta2", options->beta2, 0, 0x1.fffffffffffffp-1, err));
    return cd_optimizer_check_range("eps", options->eps, 0, 1e300, err);
}

static adam_scalars scalars_of(const cd_optimizer_options *o, uint64_t step)
{
    bool is_decoupled = o->kind == CD_OPTIMIZER_adamw;
    return (adam_scalars){.decay = is_decoupled ? 0 : o->weight_decay,
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
        return cd_optimizer_refuse(o, entry, "Adam does not support sparse gradients", err);
    CD_TRY(cd_optimizer_make_slots(o, entry, err));
    adam_scalars scalars = scalars_of(&o->options, entry->step + 1);
    cd_update update = {
        .tensors = {p, &entry->parameter.grad->value, &entry->slots[0], &entry->slots[1],
                    o->options.amsgrad ? &entry->slots[2] : NULL},
        .written = 1u << 0 | 1u << 2 | 1u << 3 | (o->options.amsgrad ? 1u << 4 : 0),
        .functions =
            {[CDDP_F64] = update_f64, [CDDP_F32] = update_f32, [CDDP_F16] = update_f16, [CDDP_BF16] = update_bf16},
        .context = &scalars};
    if ((p->device->flags & CDDP_DEVICE_VALUES) != 0) CD_TRY(cd_update_run(&update, err));
    entry->step++;
    return CDDP_OK;
}

#define ADAM_RULE(decay_by_default)                                                                                    \
    {                                                                                                                  \
        .slot_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},                                                     \
        .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = (decay_by_default)},       \
        .needs_host = true, .slot_count = slot_count, .check = check, .step = step                                     \
    }
const cd_optimizer_rule cd_rule_adam = ADAM_RULE(0);
const cd_optimizer_rule cd_rule_adamw = ADAM_RULE(1e-2);
