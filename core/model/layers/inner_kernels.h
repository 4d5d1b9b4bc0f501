/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of inner.c for one REAL. ⟨c, p⟩ sums over elements in order; the gradient sums over
** samples in order. */

static cddp_status K(inner_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *acc = c->inputs[ACC].device != NULL ? cd_tensor_data(&c->inputs[ACC]) : NULL;
    const REAL *p = cd_tensor_data(&c->inputs[P]), *x = cd_tensor_data(&c->inputs[X]);
    REAL *y = cd_tensor_data(&c->outputs[0]), product = 0;
    uint64_t key = *(const uint64_t *)c->state;
    for (int64_t i = 0, n = scalar_count(&c->inputs[P]); i < n; i++)
        product += (REAL)cd_inner_constant(key, i) * p[i];
    for (int64_t s = 0; s < c->outputs[0].sizes[0]; s++)
        y[s] = (acc != NULL ? acc[s] : 0) + x[s] * product;
    return CDDP_OK;
}

static cddp_status K(inner_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value), *x = cd_tensor_data(&c->inputs[X]);
    int64_t samples = c->outputs[0].sizes[0];
    if (c->in_grads[ACC].kind == CDDP_GRAD_DENSE) {
        REAL *dacc = cd_tensor_data(&c->in_grads[ACC].value);
        for (int64_t s = 0; s < samples; s++) dacc[s] = dy[s];
    }
    if (c->in_grads[P].kind != CDDP_GRAD_DENSE) return CDDP_OK;
    REAL *dp = cd_tensor_data(&c->in_grads[P].value);
    uint64_t key = *(const uint64_t *)c->state;
    for (int64_t i = 0, n = scalar_count(&c->inputs[P]); i < n; i++) {
        REAL constant = (REAL)cd_inner_constant(key, i);
        for (int64_t s = 0; s < samples; s++) dp[i] += dy[s] * x[s] * constant;
    }
    return CDDP_OK;
}
