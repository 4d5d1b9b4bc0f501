/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of conv.c for one REAL: sample by sample, as a product with the unfolded sample.
**
** Orders: y sums over (channel, ky, kx), then adds the bias. The weight's gradient sums over the
** positions of one sample in row-major order, the bias's too, then over samples. dx adds (channel,
** ky, kx) contributions in order.
*/

/* column (channels·kh·kw, positions): the patch under every position of one sample; zeros
** outside. */
static void K(unfold)(const conv_sizes *z, const REAL *x, REAL *column)
{
    for (int64_t k = 0; k < z->patch; k++)
        for (int64_t p = 0; p < z->positions; p++) {
            int64_t at = source_of(z, k, p);
            column[k * z->positions + p] = at >= 0 ? x[at] : 0;
        }
}

static void K(fold)(const conv_sizes *z, const REAL *column, REAL *dx)
{
    for (int64_t k = 0; k < z->patch; k++)
        for (int64_t p = 0; p < z->positions; p++) {
            int64_t at = source_of(z, k, p);
            if (at >= 0) dx[at] += column[k * z->positions + p];
        }
}

static cddp_status K(conv_forward)(const cd_op_call *c, cddp_error *err)
{
    conv_sizes z = conv_sizes_of(c);
    const REAL *x = cd_tensor_data(&c->inputs[X]);
    const REAL *bias = c->inputs[BIAS].device != NULL ? cd_tensor_data(&c->inputs[BIAS]) : NULL;
    REAL *y = cd_tensor_data(&c->outputs[0]);
    void *memory = NULL;
    CD_TRY(cd_graph_push(c->graph, (size_t)(z.patch * z.positions) * sizeof(REAL), &memory, err));
    cd_product p = {.a = cd_tensor_data(&c->inputs[WEIGHT]),
                    .b = memory,
                    .m = z.out,
                    .n = z.positions,
                    .k = z.patch};
    for (int64_t s = 0; s < z.samples; s++, x += z.sample, y += z.out * z.positions) {
        K(unfold)(&z, x, memory);
        p.dst = y;
        CD_TRY(cd_product_run(c->graph, c->outputs[0].dtype, &p, err));
        for (int64_t i = 0; bias != NULL && i < z.out * z.positions; i++)
            y[i] += bias[i / z.positions];
    }
    return CDDP_OK;
}

static void K(conv_bias)(const cd_op_call *c, const conv_sizes *z)
{
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *db = cd_tensor_data(&c->in_grads[BIAS].value);
    for (int64_t s = 0; s < z->samples; s++)
        for (int64_t o = 0; o < z->out; o++, dy += z->positions) {
            REAL sample = 0;
            for (int64_t p = 0; p < z->positions; p++) sample += dy[p];
            db[o] += sample;
        }
}

static cddp_status K(conv_backward)(const cd_op_call *c, cddp_error *err)
{
    conv_sizes z = conv_sizes_of(c);
    cddp_dtype dtype = c->outputs[0].dtype;
    const REAL *x = cd_tensor_data(&c->inputs[X]), *dy = cd_tensor_data(&c->out_grads[0].value);
    bool for_x = c->in_grads[X].kind == CDDP_GRAD_DENSE,
         for_w = c->in_grads[WEIGHT].kind == CDDP_GRAD_DENSE;
    REAL *dx = for_x ? cd_tensor_data(&c->in_grads[X].value) : NULL;
    void *memory = NULL;
    CD_TRY(cd_graph_push(c->graph, (size_t)(z.patch * z.positions) * sizeof(REAL), &memory, err));
    cd_product weight = {.m = z.out,
                         .n = z.patch,
                         .k = z.positions,
                         .b = memory,
                         .b_transposed = true,
                         .accumulate = true};
    cd_product input = {.dst = memory,
                        .a = cd_tensor_data(&c->inputs[WEIGHT]),
                        .a_transposed = true,
                        .m = z.patch,
                        .n = z.positions,
                        .k = z.out};
    if (for_w) weight.dst = cd_tensor_data(&c->in_grads[WEIGHT].value);
    for (int64_t s = 0; s < z.samples; s++, x += z.sample, dy += z.out * z.positions) {
        if (for_w) {
            K(unfold)(&z, x, memory);
            weight.a = dy;
            CD_TRY(cd_product_run(c->graph, dtype, &weight, err));
        }
        if (for_x) {
            input.b = dy;
            CD_TRY(cd_product_run(c->graph, dtype, &input, err));
            K(fold)(&z, memory, dx + s * z.sample);
        }
    }
    if (c->in_grads[BIAS].kind == CDDP_GRAD_DENSE) K(conv_bias)(c, &z);
    return CDDP_OK;
}

/* Windows are summed in row-major order and divided once. */
static cddp_status K(pool_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    pool_sizes z = pool_sizes_of(&c->inputs[0], c->state);
    const REAL *x = cd_tensor_data(&c->inputs[0]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    for (int64_t plane = 0; plane < z.planes; plane++)
        for (int64_t i = 0; i < z.height / z.size; i++)
            for (int64_t j = 0; j < z.width / z.size; j++) {
                REAL sum = 0;
                for (int64_t k = 0; k < z.size * z.size; k++)
                    sum += x[(plane * z.height + i * z.size + k / z.size) * z.width + j * z.size +
                             k % z.size];
                *y++ = sum / (REAL)(z.size * z.size);
            }
    return CDDP_OK;
}

static cddp_status K(pool_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    pool_sizes z = pool_sizes_of(&c->inputs[0], c->state);
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dx = cd_tensor_data(&c->in_grads[0].value);
    for (int64_t i = 0; i < z.planes * z.height; i++)
        for (int64_t j = 0; j < z.width; j++) {
            int64_t plane = i / z.height, row = i % z.height / z.size;
            dx[i * z.width + j] =
                dy[(plane * (z.height / z.size) + row) * (z.width / z.size) + j / z.size] /
                (REAL)(z.size * z.size);
        }
    return CDDP_OK;
}

static cddp_status K(upsample_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    pool_sizes z = pool_sizes_of(&c->outputs[0], c->state);
    const REAL *x = cd_tensor_data(&c->inputs[0]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    for (int64_t i = 0; i < z.planes * z.height; i++)
        for (int64_t j = 0; j < z.width; j++) {
            int64_t plane = i / z.height, row = i % z.height / z.size;
            y[i * z.width + j] =
                x[(plane * (z.height / z.size) + row) * (z.width / z.size) + j / z.size];
        }
    return CDDP_OK;
}

/* Blocks are summed in row-major order. */
static cddp_status K(upsample_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    pool_sizes z = pool_sizes_of(&c->outputs[0], c->state);
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dx = cd_tensor_data(&c->in_grads[0].value);
    for (int64_t i = 0; i < z.planes * z.height; i++)
        for (int64_t j = 0; j < z.width; j++) {
            int64_t plane = i / z.height, row = i % z.height / z.size;
            dx[(plane * (z.height / z.size) + row) * (z.width / z.size) + j / z.size] +=
                dy[i * z.width + j];
        }
    return CDDP_OK;
}
