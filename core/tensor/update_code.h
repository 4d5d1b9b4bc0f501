/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise update rules as C, C++ and GPU code, so that every device has the same bits: update
** n elements, x[i] being the arrays of tensor i (f64, or f32 for all other dtypes), context the
** scalars of cddp/layers.h. The order of operations is PyTorch's. The rules define the order of
** tensors (core/model/optim).
*/
#pragma once
#include "cddp/layers.h"
#include "core/tensor/dtype.h"

#include <math.h>

/* Rounds to the dtype after every single operation, as PyTorch's kernels do. */
#define CD_ROUND_NONE(x) (x)
#define CD_ROUND_F16(x) cd_f16_to_f32(cd_f32_to_f16(x))
#define CD_ROUND_BF16(x) cd_bf16_to_f32(cd_f32_to_bf16(x))

#define ADAM_UPDATE(name, T, ROUND)                                                               \
    CD_EVERYWHERE void name(void *const *x, size_t n, const void *context)                        \
    {                                                                                             \
        const cddp_adam_scalars *s = (const cddp_adam_scalars *)context;                          \
        T *p = (T *)x[0], *m = (T *)x[2], *v = (T *)x[3], *maximum = (T *)x[4];                   \
        const T *g = (const T *)x[1];                                                             \
        const T decay = ROUND((T)s->decay), shrink = ROUND((T)s->shrink), eps = ROUND((T)s->eps); \
        const T beta1 = ROUND((T)s->beta1), beta1_rest = ROUND((T)s->beta1_rest);                 \
        const T beta2 = ROUND((T)s->beta2), beta2_rest = ROUND((T)s->beta2_rest);                 \
        const T root2 = ROUND((T)s->correction2_root), size = ROUND((T)s->step_size_negative),    \
                sign = (T)s->sign;                                                                \
        for (size_t i = 0; i < n; i++) {                                                          \
            T gi = sign * g[i], pi = p[i], vi;                                                    \
            if (s->decay != 0) gi = ROUND(gi + ROUND(decay * pi));                                \
            if (s->is_decoupled) pi = ROUND(pi * shrink);                                         \
            m[i] = ROUND(ROUND(m[i] * beta1) + ROUND(beta1_rest * gi));                           \
            v[i] = ROUND(ROUND(v[i] * beta2) + ROUND(ROUND(beta2_rest * gi) * gi));               \
            vi = v[i];                                                                            \
            if (s->has_maximum)                                                                   \
                vi = maximum[i] = maximum[i] != maximum[i] || maximum[i] >= vi ? maximum[i] : vi; \
            const T below = ROUND(ROUND(ROUND((T)sqrt((double)vi)) / root2) + eps);               \
            p[i] = ROUND(pi + ROUND(ROUND(size * m[i]) / below));                                 \
        }                                                                                         \
    }
/* sqrt in f64 and one rounding is sqrt in f32: 53 ≥ 2 × 24 + 2. */
ADAM_UPDATE(cd_adam_f64, double, CD_ROUND_NONE)
ADAM_UPDATE(cd_adam_f32, float, CD_ROUND_NONE)
ADAM_UPDATE(cd_adam_f16, float, CD_ROUND_F16)
ADAM_UPDATE(cd_adam_bf16, float, CD_ROUND_BF16)
#undef ADAM_UPDATE

#define ADAGRAD_DENSE(name, T, ROUND)                                          \
    CD_EVERYWHERE void name(void *const *x, size_t n, const void *context)     \
    {                                                                          \
        const cddp_adagrad_scalars *s = (const cddp_adagrad_scalars *)context; \
        T *p = (T *)x[0], *sum = (T *)x[2];                                    \
        const T *g = (const T *)x[1];                                          \
        const T decay = ROUND((T)s->decay), eps = ROUND((T)s->eps),            \
                rate = ROUND((T)s->rate_negative);                             \
        for (size_t i = 0; i < n; i++) {                                       \
            T gi = (T)s->sign * g[i];                                          \
            if (s->decay != 0) gi = ROUND(gi + ROUND(decay * p[i]));           \
            sum[i] = ROUND(sum[i] + ROUND(gi * gi));                           \
            const T below = ROUND(ROUND((T)sqrt((double)sum[i])) + eps);       \
            p[i] = ROUND(p[i] + ROUND(ROUND(rate * gi) / below));              \
        }                                                                      \
    }
ADAGRAD_DENSE(cd_adagrad_f64, double, CD_ROUND_NONE)
ADAGRAD_DENSE(cd_adagrad_f32, float, CD_ROUND_NONE)
ADAGRAD_DENSE(cd_adagrad_f16, float, CD_ROUND_F16)
ADAGRAD_DENSE(cd_adagrad_bf16, float, CD_ROUND_BF16)

#define ADAGRAD_SPARSE(name, T, ROUND)                                         \
    CD_EVERYWHERE void name(void *const *x, size_t n, const void *context)     \
    {                                                                          \
        const cddp_adagrad_scalars *s = (const cddp_adagrad_scalars *)context; \
        T *p = (T *)x[0], *sum = (T *)x[2];                                    \
        const T *g = (const T *)x[1];                                          \
        const T eps = ROUND((T)s->eps), rate = ROUND((T)s->rate_negative);     \
        for (size_t i = 0; i < n; i++) {                                       \
            const T gi = (T)s->sign * g[i];                                    \
            sum[i] = ROUND(sum[i] + ROUND(gi * gi));                           \
            const T below = ROUND(ROUND((T)sqrt((double)sum[i])) + eps);       \
            p[i] = ROUND(p[i] + ROUND(rate * ROUND(gi / below)));              \
        }                                                                      \
    }
ADAGRAD_SPARSE(cd_adagrad_sparse_f64, double, CD_ROUND_NONE)
ADAGRAD_SPARSE(cd_adagrad_sparse_f32, float, CD_ROUND_NONE)
ADAGRAD_SPARSE(cd_adagrad_sparse_f16, float, CD_ROUND_F16)
ADAGRAD_SPARSE(cd_adagrad_sparse_bf16, float, CD_ROUND_BF16)
#undef ADAGRAD_DENSE
#undef ADAGRAD_SPARSE
