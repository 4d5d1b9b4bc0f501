/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of experts.c for one REAL: sample by sample; sums over experts or width in order. */

static int64_t K(argmax)(const REAL *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* softmax(row)[at] */
static REAL K(share_of)(const REAL *row, int64_t n, int64_t at, REAL top)
{
    REAL total = 0;
    for (int64_t i = 0; i < n; i++) total += M(exp)(row[i] - top);
    return M(exp)(row[at] - top) / total;
}

static cddp_status K(gate_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *logits = cd_tensor_data(&c->inputs[0]);
    REAL *gates = cd_tensor_data(&c->outputs[0]);
    int64_t *expert = ((const gate_state *)c->state)->expert, n = c->inputs[0].sizes[1];
    for (int64_t s = 0; s < c->inputs[0].sizes[0]; s++, logits += n) {
        expert[s] = K(argmax)(logits, n);
        gates[s] = K(share_of)(logits, n, expert[s], logits[expert[s]]);
    }
    return CDDP_OK;
}

/* d gate / d logit_i = gate · ((i is chosen) - softmax_i) */
static cddp_status K(gate_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const REAL *logits = cd_tensor_data(&c->inputs[0]), *gates = cd_tensor_data(&c->outputs[0]);
    const REAL *dgates = cd_tensor_data(&c->out_grads[0].value);
    REAL *dlogits = cd_tensor_data(&c->in_grads[0].value);
    const int64_t *expert = ((const gate_state *)c->state)->expert;
    int64_t n = c->inputs[0].sizes[1];
    for (int64_t s = 0; s < c->inputs[0].sizes[0]; s++, logits += n, dlogits += n)
        for (int64_t i = 0; i < n; i++)
            dlogits[i] = dgates[s] * gates[s] *
                         ((i == expert[s] ? 1 : 0) - K(share_of)(logits, n, i, logits[expert[s]]));
    return CDDP_OK;
}

static cddp_status K(take_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const take_state *t = c->state;
    const REAL *x = cd_tensor_data(&c->inputs[0]);
    REAL *rows = cd_tensor_data(&c->outputs[0]);
    int64_t width = c->inputs[0].sizes[1];
    for (int64_t s = 0; s < t->routing.sample_count; s++) {
        if (t->routing.expert[s] != t->expert) continue;
        for (int64_t i = 0; i < width; i++)
            rows[t->routing.position[s] * width + i] = x[s * width + i];
    }
    return CDDP_OK;
}

static cddp_status K(take_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const take_state *t = c->state;
    const REAL *drows = cd_tensor_data(&c->out_grads[0].value);
    REAL *dx = cd_tensor_data(&c->in_grads[0].value);
    int64_t width = c->inputs[0].sizes[1];
    for (int64_t s = 0; s < t->routing.sample_count; s++) {
        if (t->routing.expert[s] != t->expert) continue;
        for (int64_t i = 0; i < width; i++)
            dx[s * width + i] = drows[t->routing.position[s] * width + i];
    }
    return CDDP_OK;
}

/* inputs: gates, then the results of every expert. */
static cddp_status K(combine_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const cd_routing *r = c->state;
    const REAL *gates = cd_tensor_data(&c->inputs[0]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    int64_t width = c->outputs[0].sizes[1];
    for (int64_t s = 0; s < r->sample_count; s++) {
        const REAL *result = cd_tensor_data(&c->inputs[1 + r->expert[s]]);
        for (int64_t i = 0; i < width; i++)
            y[s * width + i] = gates[s] * result[r->position[s] * width + i];
    }
    return CDDP_OK;
}

static cddp_status K(combine_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    const cd_routing *r = c->state;
    const REAL *gates = cd_tensor_data(&c->inputs[0]), *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dgates =
        c->in_grads[0].kind == CDDP_GRAD_DENSE ? cd_tensor_data(&c->in_grads[0].value) : NULL;
    int64_t width = c->outputs[0].sizes[1];
    for (int64_t s = 0; s < r->sample_count; s++, dy += width) {
        int64_t input = 1 + r->expert[s], row = r->position[s] * width;
        const REAL *result = cd_tensor_data(&c->inputs[input]);
        REAL sum = 0;
        for (int64_t i = 0; i < width; i++) sum += dy[i] * result[row + i];
        if (dgates != NULL) dgates[s] = sum;
        if (c->in_grads[input].kind != CDDP_GRAD_DENSE) continue;
        REAL *dresult = cd_tensor_data(&c->in_grads[input].value);
        for (int64_t i = 0; i < width; i++) dresult[row + i] = gates[s] * dy[i];
    }
    return CDDP_OK;
}
