/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of linear.c for one REAL. A sample is `inner` rows of x.
**
** Orders: y sums over inputs 0, 1, 2, …, then adds the bias. dx sums over outputs. Weight and bias
** gradients sum over the rows of one sample first, then over samples; with one row per sample that
** is one product over samples.
*/

static cddp_status K(linear_forward)(const cd_op_call *c, cddp_error *err)
{
    linear_sizes z = sizes_of(c);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    cd_product p = {.dst = y,
                    .a = cd_tensor_data(&c->inputs[X]),
                    .b = cd_tensor_data(&c->inputs[WEIGHT]),
                    .m = z.rows,
                    .n = z.out,
                    .k = z.in,
                    .b_transposed = true};
    CD_TRY(cd_product_run(c->graph, c->outputs[0].dtype, &p, err));
    if (c->inputs[BIAS].device == NULL) return CDDP_OK;
    const REAL *bias = cd_tensor_data(&c->inputs[BIAS]);
    for (int64_t r = 0; r < z.rows; r++)
        for (int64_t o = 0; o < z.out; o++) y[r * z.out + o] += bias[o];
    return CDDP_OK;
}

/* One sample's rows at a time into scratch, then added: the fold over samples. */
static cddp_status K(linear_weight_gradient)(const cd_op_call *c, const linear_sizes *z,
                                             cddp_error *err)
{
    const REAL *x = cd_tensor_data(&c->inputs[X]), *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dw = cd_tensor_data(&c->in_grads[WEIGHT].value);
    cddp_dtype dtype = c->outputs[0].dtype;
    cd_product p = {.m = z->out, .n = z->in, .a_transposed = true};
    if (z->inner == 1) {
        p.dst = dw, p.a = dy, p.b = x, p.k = z->rows;
        return cd_product_run(c->graph, dtype, &p, err);
    }
    p.dst = dw, p.k = z->inner, p.accumulate = true;
    for (int64_t s = 0; s * z->inner < z->rows; s++) {
        p.a = dy + s * z->inner * z->out;
        p.b = x + s * z->inner * z->in;
        CD_TRY(cd_product_run(c->graph, dtype, &p, err));
    }
    return CDDP_OK;
}

static void K(linear_bias_gradient)(const cd_op_call *c, const linear_sizes *z)
{
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *db = cd_tensor_data(&c->in_grads[BIAS].value);
    for (int64_t s = 0; s * z->inner < z->rows; s++, dy += z->inner * z->out)
        for (int64_t o = 0; o < z->out; o++) {
            REAL sample = 0;
            for (int64_t r = 0; r < z->inner; r++) sample += dy[r * z->out + o];
            db[o] += sample;
        }
}

static cddp_status K(linear_backward)(const cd_op_call *c, cddp_error *err)
{
    linear_sizes z = sizes_of(c);
    if (c->in_grads[X].kind == CDDP_GRAD_DENSE) {
        cd_product p = {.dst = cd_tensor_data(&c->in_grads[X].value),
                        .a = cd_tensor_data(&c->out_grads[0].value),
                        .b = cd_tensor_data(&c->inputs[WEIGHT]),
                        .m = z.rows,
                        .n = z.in,
                        .k = z.out};
        CD_TRY(cd_product_run(c->graph, c->outputs[0].dtype, &p, err));
    }
    if (c->in_grads[WEIGHT].kind == CDDP_GRAD_DENSE) CD_TRY(K(linear_weight_gradient)(c, &z, err));
    if (c->in_grads[BIAS].kind == CDDP_GRAD_DENSE) K(linear_bias_gradient)(c, &z);
    return CDDP_OK;
}
