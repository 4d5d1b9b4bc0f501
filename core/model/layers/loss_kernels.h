/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of loss.c for one REAL. Sums run in element order within a sample and in sample order
** over samples. */

#define PAIR_LOSS(name, term, slope)                                                         \
    static cddp_status K(name##_forward)(const cd_op_call *c, cddp_error *err)               \
    {                                                                                        \
        (void)err;                                                                           \
        const REAL *ys = cd_tensor_data(&c->inputs[0]), *ts = cd_tensor_data(&c->inputs[1]); \
        REAL *losses = cd_tensor_data(&c->outputs[0]);                                       \
        int64_t samples = c->inputs[0].sizes[0], width = cd_tensor_row_numel(&c->inputs[0]); \
        for (int64_t s = 0; s < samples; s++) {                                              \
            REAL sum = 0;                                                                    \
            for (int64_t i = s * width; i < (s + 1) * width; i++) {                          \
                REAL y = ys[i], t = ts[i];                                                   \
                sum += (term);                                                               \
            }                                                                                \
            losses[s] = sum;                                                                 \
        }                                                                                    \
        return CDDP_OK;                                                                      \
    }                                                                                        \
    static cddp_status K(name##_backward)(const cd_op_call *c, cddp_error *err)              \
    {                                                                                        \
        (void)err;                                                                           \
        const REAL *ys = cd_tensor_data(&c->inputs[0]), *ts = cd_tensor_data(&c->inputs[1]); \
        const REAL *dls = cd_tensor_data(&c->out_grads[0].value);                            \
        REAL *dys = cd_tensor_data(&c->in_grads[0].value);                                   \
        int64_t samples = c->inputs[0].sizes[0], width = cd_tensor_row_numel(&c->inputs[0]); \
        for (int64_t s = 0; s < samples; s++)                                                \
            for (int64_t i = s * width; i < (s + 1) * width; i++) {                          \
                REAL y = ys[i], t = ts[i];                                                   \
                (void)y;                                                                     \
                dys[i] = dls[s] * (slope);                                                   \
            }                                                                                \
        return CDDP_OK;                                                                      \
    }

PAIR_LOSS(squared_error, (y - t) * (y - t), 2 * (y - t))
PAIR_LOSS(inner_product, (y * t), t)
PAIR_LOSS(bce, (y > 0 ? y : 0) - y * t + M(log1p)(M(exp)(y > 0 ? -y : y)), M(sigmoid)(y) - t)
#undef PAIR_LOSS

/* log Σ exp(y - max) + max over one position. */
static REAL K(log_sum_exp)(const REAL *y, int64_t classes)
{
    REAL top = y[0], sum = 0;
    for (int64_t k = 1; k < classes; k++)
        if (y[k] > top) top = y[k];
    for (int64_t k = 0; k < classes; k++) sum += M(exp)(y[k] - top);
    return top + M(log)(sum);
}

static cddp_status K(cross_entropy_forward)(const cd_op_call *c, cddp_error *err)
{
    const REAL *y = cd_tensor_data(&c->inputs[0]);
    const int64_t *target = cd_tensor_data(&((const cross_entropy_state *)c->state)->classes);
    REAL *losses = cd_tensor_data(&c->outputs[0]);
    int64_t samples = c->inputs[0].sizes[0],
            classes = c->inputs[0].sizes[c->inputs[0].dim_count - 1];
    int64_t positions = cd_tensor_row_numel(&c->inputs[0]) / classes;
    for (int64_t s = 0; s < samples; s++) {
        REAL sum = 0;
        for (int64_t p = 0; p < positions; p++, y += classes, target++) {
            if (*target == CD_IGNORE_CLASS) continue;
            if (*target < 0 || *target >= classes) return refuse_class(*target, s, classes, err);
            sum += K(log_sum_exp)(y, classes) - y[*target];
        }
        losses[s] = sum;
    }
    return CDDP_OK;
}

static cddp_status K(cross_entropy_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *y = cd_tensor_data(&c->inputs[0]), *dl = cd_tensor_data(&c->out_grads[0].value);
    const int64_t *target = cd_tensor_data(&((const cross_entropy_state *)c->state)->classes);
    REAL *dy = cd_tensor_data(&c->in_grads[0].value);
    int64_t samples = c->inputs[0].sizes[0],
            classes = c->inputs[0].sizes[c->inputs[0].dim_count - 1];
    int64_t positions = cd_tensor_row_numel(&c->inputs[0]) / classes;
    for (int64_t s = 0; s < samples; s++)
        for (int64_t p = 0; p < positions; p++, y += classes, dy += classes, target++) {
            if (*target == CD_IGNORE_CLASS) continue;
            REAL total = K(log_sum_exp)(y, classes);
            for (int64_t k = 0; k < classes; k++)
                dy[k] = dl[s] * (M(exp)(y[k] - total) - (k == *target ? 1 : 0));
        }
    return CDDP_OK;
}

static cddp_status K(weighted_sum_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const weighted_sum *w = c->state;
    const REAL *losses = cd_tensor_data(&c->inputs[0]);
    REAL sum = 0;
    for (int64_t s = 0, n = c->inputs[0].sizes[0]; s < n; s++)
        sum += w->weights != NULL ? losses[s] * (REAL)w->weights[s] : losses[s];
    *(REAL *)cd_tensor_data(&c->outputs[0]) = w->divisor != 0 ? sum / (REAL)w->divisor : sum;
    return CDDP_OK;
}

static cddp_status K(weighted_sum_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const weighted_sum *w = c->state;
    REAL dl = *(const REAL *)cd_tensor_data(&c->out_grads[0].value);
    REAL *dy = cd_tensor_data(&c->in_grads[0].value);
    if (w->divisor != 0) dl /= (REAL)w->divisor;
    for (int64_t s = 0, n = c->inputs[0].sizes[0]; s < n; s++)
        dy[s] = w->weights != NULL ? dl * (REAL)w->weights[s] : dl;
    return CDDP_OK;
}
