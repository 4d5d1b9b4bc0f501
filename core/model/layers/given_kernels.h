/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of given.c for one REAL. ⟨c, p⟩ sums over elements in order; the gradient sums over
** samples in order. */

static cddp_status K(given_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *acc = c->inputs[ACC].device != NULL ? cd_tensor_data(&c->inputs[ACC]) : NULL;
    const REAL *p = cd_tensor_data(&c->inputs[P]);
    const double *constants = *(const double *const *)c->state;
    const int64_t numel = cddp_tensor_numel(&c->inputs[P]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    for (int64_t s = 0; s < c->outputs[0].sizes[0]; s++) {
        REAL product = 0;
        for (int64_t i = 0; i < numel; i++) product += (REAL)constants[s * numel + i] * p[i];
        y[s] = (acc != NULL ? acc[s] : 0) + product;
    }
    return CDDP_OK;
}

static cddp_status K(given_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    const double *constants = *(const double *const *)c->state;
    const int64_t samples = c->outputs[0].sizes[0], numel = cddp_tensor_numel(&c->inputs[P]);
    if (c->in_grads[ACC].kind == CDDP_GRAD_DENSE) {
        REAL *dacc = cd_tensor_data(&c->in_grads[ACC].value);
        for (int64_t s = 0; s < samples; s++) dacc[s] = dy[s];
    }
    if (c->in_grads[P].kind != CDDP_GRAD_DENSE) return CDDP_OK;
    REAL *dp = cd_tensor_data(&c->in_grads[P].value);
    for (int64_t i = 0; i < numel; i++)
        for (int64_t s = 0; s < samples; s++) {
            const REAL given = dy[s] * (REAL)constants[s * numel + i];
            /* 0 + -0 is +0: the first one is taken as it is */
            dp[i] = dp[i] == 0 ? given : dp[i] + given;
        }
    return CDDP_OK;
}
