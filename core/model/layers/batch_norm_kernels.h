/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of batch_norm.c for one REAL. Every sum runs in f64 over samples, then positions, in
** order. */

static void K(local_moments)(const cd_op_call *c, batch_norm_state *s)
{
    const REAL *x = cd_tensor_data(&c->inputs[0]);
    double count = (double)(s->samples * s->area);
    for (int64_t k = 0; k < s->channels; k++) {
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < s->samples; n++)
            for (int64_t p = 0; p < s->area; p++)
                sum += (double)x[(n * s->channels + k) * s->area + p];
        double mean = count > 0 ? sum / count : 0;
        for (int64_t n = 0; n < s->samples; n++)
            for (int64_t p = 0; p < s->area; p++) {
                double d = (double)x[(n * s->channels + k) * s->area + p] - mean;
                squares += d * d;
            }
        s->mean[k] = mean;
        s->spread[k] = squares;
    }
    s->count = count;
}

/* running = (1 - momentum)·running + momentum·batch; the variance is the unbiased one. */
static cddp_status K(move_running)(const cd_op_call *c, const batch_norm_state *s, cddp_error *err)
{
    REAL *mean = NULL, *var = NULL;
    int64_t *batches = NULL;
    const double keep = 1 - s->norm.momentum;
    CD_TRY(open_buffer(c, s, s->norm.running_mean, &mean, err));
    CD_TRY(open_buffer(c, s, s->norm.running_var, &var, err));
    CD_TRY(open_buffer(c, s, s->norm.num_batches_tracked, &batches, err));
    for (int64_t k = 0; k < s->channels; k++) {
        mean[k] = (REAL)(keep * (double)mean[k] + s->norm.momentum * s->mean[k]);
        var[k] = (REAL)(keep * (double)var[k] + s->norm.momentum * (s->spread[k] / (s->count - 1)));
    }
    ++*batches;
    CD_TRY(close_buffer(s, s->norm.running_mean, mean, err));
    CD_TRY(close_buffer(s, s->norm.running_var, var, err));
    return close_buffer(s, s->norm.num_batches_tracked, batches, err);
}

static cddp_status K(take_running)(const cd_op_call *c, batch_norm_state *s, cddp_error *err)
{
    REAL *mean = NULL, *var = NULL;
    CD_TRY(open_buffer(c, s, s->norm.running_mean, &mean, err));
    CD_TRY(open_buffer(c, s, s->norm.running_var, &var, err));
    for (int64_t k = 0; k < s->channels; k++) {
        s->mean[k] = (double)mean[k];
        s->inverse[k] = 1 / sqrt((double)var[k] + s->norm.eps);
    }
    return CDDP_OK;
}

static cddp_status K(batch_norm_forward)(const cd_op_call *c, cddp_error *err)
{
    batch_norm_state *s = c->state;
    if (s->training) {
        K(local_moments)(c, s);
        CD_TRY(combine_moments(c, s, err));
        CD_TRY(K(move_running)(c, s, err));
    } else {
        CD_TRY(K(take_running)(c, s, err));
    }
    const REAL *x = cd_tensor_data(&c->inputs[0]), *w = cd_tensor_data(&c->inputs[1]),
               *b = cd_tensor_data(&c->inputs[2]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    for (int64_t n = 0, i = 0; n < s->samples; n++)
        for (int64_t k = 0; k < s->channels; k++)
            for (int64_t p = 0; p < s->area; p++, i++)
                y[i] = (REAL)(((double)x[i] - s->mean[k]) * s->inverse[k] * (double)w[k] +
                              (double)b[k]);
    return CDDP_OK;
}

/* Σ dy and Σ dy·xhat per channel, into sums (2, channels). */
static void K(gradient_sums)(const cd_op_call *c, const batch_norm_state *s, double *sums)
{
    const REAL *x = cd_tensor_data(&c->inputs[0]), *dy = cd_tensor_data(&c->out_grads[0].value);
    for (int64_t n = 0, i = 0; n < s->samples; n++)
        for (int64_t k = 0; k < s->channels; k++)
            for (int64_t p = 0; p < s->area; p++, i++) {
                sums[k] += (double)dy[i];
                sums[s->channels + k] +=
                    (double)dy[i] * (((double)x[i] - s->mean[k]) * s->inverse[k]);
            }
}

static void K(batch_norm_input)(const cd_op_call *c, const batch_norm_state *s, const double *sums)
{
    const REAL *x = cd_tensor_data(&c->inputs[0]), *w = cd_tensor_data(&c->inputs[1]);
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dx = cd_tensor_data(&c->in_grads[0].value);
    for (int64_t n = 0, i = 0; n < s->samples; n++)
        for (int64_t k = 0; k < s->channels; k++)
            for (int64_t p = 0; p < s->area; p++, i++) {
                double centred = (double)dy[i], xhat = ((double)x[i] - s->mean[k]) * s->inverse[k];
                if (s->training)
                    centred -= sums[k] / s->count + xhat * (sums[s->channels + k] / s->count);
                dx[i] = (REAL)((double)w[k] * s->inverse[k] * centred);
            }
}

static cddp_status K(batch_norm_backward)(const cd_op_call *c, cddp_error *err)
{
    const batch_norm_state *s = c->state;
    cddp_tensor sums_tensor;
    CD_TRY(cd_graph_tensor(c->graph, CDDP_F64, &(int64_t){2 * s->channels}, 1, &sums_tensor, err));
    double *sums = cd_tensor_data(&sums_tensor);
    K(gradient_sums)(c, s, sums);
    /* The parameters' gradients stay local: averaging them is the reducer's business. */
    if (c->in_grads[1].kind == CDDP_GRAD_DENSE) {
        REAL *dw = cd_tensor_data(&c->in_grads[1].value);
        for (int64_t k = 0; k < s->channels; k++) dw[k] = (REAL)sums[s->channels + k];
    }
    if (c->in_grads[2].kind == CDDP_GRAD_DENSE) {
        REAL *db = cd_tensor_data(&c->in_grads[2].value);
        for (int64_t k = 0; k < s->channels; k++) db[k] = (REAL)sums[k];
    }
    if (s->training && is_shared(c->graph, s))
        CD_TRY(c->graph->callbacks.allreduce(c->graph->callbacks.context, &sums_tensor, err));
    if (c->in_grads[0].kind == CDDP_GRAD_DENSE) K(batch_norm_input)(c, s, sums);
    return CDDP_OK;
}
