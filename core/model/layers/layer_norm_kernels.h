/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of layer_norm.c for one REAL. A row is one position; sums over a row run in index order.
** Weight and bias gradients sum over the rows of a sample, then over samples.
*/

/* mean and 1/√(var + eps) of one row. */
static void K(row_moments)(const REAL *x, int64_t width, REAL *mean, REAL *inverse)
{
    REAL sum = 0, squares = 0;
    for (int64_t i = 0; i < width; i++) sum += x[i];
    *mean = sum / (REAL)width;
    for (int64_t i = 0; i < width; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *inverse = 1 / ROOT(squares / (REAL)width + (REAL)LAYER_NORM_EPS);
}

static cddp_status K(layer_norm_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    norm_sizes z = sizes_of(c);
    const REAL *x = cd_tensor_data(&c->inputs[0]), *w = cd_tensor_data(&c->inputs[1]),
               *b = cd_tensor_data(&c->inputs[2]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    for (int64_t r = 0; r < z.rows; r++, x += z.width, y += z.width) {
        REAL mean, inverse;
        K(row_moments)(x, z.width, &mean, &inverse);
        for (int64_t i = 0; i < z.width; i++) y[i] = (x[i] - mean) * inverse * w[i] + b[i];
    }
    return CDDP_OK;
}

/* dx = inverse · (g - mean(g) - xhat·mean(g·xhat)), g = dy·weight. */
static void K(layer_norm_input)(const cd_op_call *c, const norm_sizes *z)
{
    const REAL *x = cd_tensor_data(&c->inputs[0]), *w = cd_tensor_data(&c->inputs[1]);
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dx = cd_tensor_data(&c->in_grads[0].value);
    for (int64_t r = 0; r < z->rows; r++, x += z->width, dy += z->width, dx += z->width) {
        REAL mean, inverse, sum = 0, dot = 0;
        K(row_moments)(x, z->width, &mean, &inverse);
        for (int64_t i = 0; i < z->width; i++) {
            sum += dy[i] * w[i];
            dot += dy[i] * w[i] * ((x[i] - mean) * inverse);
        }
        sum /= (REAL)z->width;
        dot /= (REAL)z->width;
        for (int64_t i = 0; i < z->width; i++)
            dx[i] = inverse * (dy[i] * w[i] - sum - (x[i] - mean) * inverse * dot);
    }
}

static cddp_status K(layer_norm_parameters)(const cd_op_call *c, const norm_sizes *z,
                                            cddp_error *err)
{
    const REAL *x = cd_tensor_data(&c->inputs[0]), *dy = cd_tensor_data(&c->out_grads[0].value);
    bool for_weight = c->in_grads[1].kind == CDDP_GRAD_DENSE,
         for_bias = c->in_grads[2].kind == CDDP_GRAD_DENSE;
    REAL *dw = for_weight ? cd_tensor_data(&c->in_grads[1].value) : NULL;
    REAL *db = for_bias ? cd_tensor_data(&c->in_grads[2].value) : NULL;
    void *memory = NULL;
    CD_TRY(cd_graph_push(c->graph, 2 * (size_t)z->width * sizeof(REAL), &memory, err));
    REAL *sample_w = memory, *sample_b = sample_w + z->width;
    for (int64_t r = 0; r < z->rows; r++, x += z->width, dy += z->width) {
        REAL mean, inverse;
        K(row_moments)(x, z->width, &mean, &inverse);
        bool begins = r % z->inner == 0, ends = r % z->inner == z->inner - 1;
        for (int64_t i = 0; i < z->width; i++) {
            sample_w[i] = (begins ? 0 : sample_w[i]) + dy[i] * ((x[i] - mean) * inverse);
            sample_b[i] = (begins ? 0 : sample_b[i]) + dy[i];
            if (ends && for_weight) dw[i] += sample_w[i];
            if (ends && for_bias) db[i] += sample_b[i];
        }
    }
    return CDDP_OK;
}

static cddp_status K(layer_norm_backward)(const cd_op_call *c, cddp_error *err)
{
    norm_sizes z = sizes_of(c);
    if (c->in_grads[0].kind == CDDP_GRAD_DENSE) K(layer_norm_input)(c, &z);
    return K(layer_norm_parameters)(c, &z, err);
}
