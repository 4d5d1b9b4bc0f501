/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of activation.c for one REAL: each element by itself. */

#define EACH_FORWARD(name, value)                                               \
    static cddp_status K(name##_forward)(const cd_op_call *c, cddp_error *err)  \
    {                                                                           \
        (void)err;                                                              \
        const REAL *xs = cd_tensor_data(&c->inputs[0]);                         \
        REAL *ys = cd_tensor_data(&c->outputs[0]);                              \
        for (int64_t i = 0, n = cddp_tensor_numel(&c->inputs[0]); i < n; i++) { \
            REAL x = xs[i];                                                     \
            ys[i] = (value);                                                    \
        }                                                                       \
        return CDDP_OK;                                                         \
    }

#define EACH_BACKWARD(name, derivative)                                                       \
    static cddp_status K(name##_backward)(const cd_op_call *c, cddp_error *err)               \
    {                                                                                         \
        (void)err;                                                                            \
        const REAL *xs = cd_tensor_data(&c->inputs[0]), *ys = cd_tensor_data(&c->outputs[0]); \
        const REAL *dys = cd_tensor_data(&c->out_grads[0].value);                             \
        REAL *dxs = cd_tensor_data(&c->in_grads[0].value);                                    \
        for (int64_t i = 0, n = cddp_tensor_numel(&c->inputs[0]); i < n; i++) {               \
            REAL x = xs[i], y = ys[i], dy = dys[i];                                           \
            (void)x;                                                                          \
            (void)y;                                                                          \
            dxs[i] = (derivative);                                                            \
        }                                                                                     \
        return CDDP_OK;                                                                       \
    }

/* A NaN passes: only x <= 0 is cut. */
EACH_FORWARD(relu, x <= 0 ? 0 : x)
EACH_BACKWARD(relu, y <= 0 ? 0 : dy)

EACH_FORWARD(tanh, M(tanh)(x))
EACH_BACKWARD(tanh, (dy * (1 - y * y)))

EACH_FORWARD(sigmoid, M(sigmoid)(x))
EACH_BACKWARD(sigmoid, (dy * ((1 - y) * y)))

#undef EACH_FORWARD
#undef EACH_BACKWARD

/* x·Φ(x), Φ(x) = (1 + erf(x/√2)) / 2; its derivative is Φ(x) + x·φ(x), φ(x) = exp(-x²/2) / √(2π). Φ
** is kept: erf is by far the dearest part. */
static cddp_status K(gelu_forward)(const cd_op_call *c, cddp_error *err)
{
    const REAL *x = cd_tensor_data(&c->inputs[0]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    int64_t n = cddp_tensor_numel(&c->inputs[0]);
    void **kept = c->state;
    CD_TRY(cd_graph_push(c->graph, (size_t)n * sizeof(REAL), kept, err));
    REAL *share = *kept;
    for (int64_t i = 0; i < n; i++) {
        share[i] = (REAL)0.5 * (1 + M(erf)(x[i] * (REAL)0.70710678118654752440));
        y[i] = x[i] * share[i];
    }
    return CDDP_OK;
}

static cddp_status K(gelu_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *x = cd_tensor_data(&c->inputs[0]), *dy = cd_tensor_data(&c->out_grads[0].value);
    const REAL *share = *(void *const *)c->state;
    REAL *dx = cd_tensor_data(&c->in_grads[0].value);
    for (int64_t i = 0, n = cddp_tensor_numel(&c->inputs[0]); i < n; i++)
        dx[i] = dy[i] * (share[i] +
                         x[i] * ((REAL)0.39894228040143267794 * M(exp)((REAL)-0.5 * x[i] * x[i])));
    return CDDP_OK;
}
