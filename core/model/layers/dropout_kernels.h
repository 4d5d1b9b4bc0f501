/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of dropout.c for one REAL: to = from × (0 or scale), the mask drawn again in backward. */

static cddp_status K(dropout_apply)(const cd_op_call *c, const REAL *from, REAL *to)
{
    const cd_dropout *d = &((const dropout_state *)c->state)->dropout;
    int64_t samples = c->inputs[0].sizes[0], width = cd_tensor_row_numel(&c->inputs[0]);
    REAL scale = (REAL)(1 / (1 - d->probability));
    for (int64_t s = 0; s < samples; s++) {
        cd_prng prng = sample_prng(d, s);
        for (int64_t i = s * width; i < (s + 1) * width; i++)
            to[i] = is_kept(d, &prng) ? from[i] * scale : 0;
    }
    return CDDP_OK;
}

static cddp_status K(dropout_forward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    return K(dropout_apply)(c, cd_tensor_data(&c->inputs[0]), cd_tensor_data(&c->outputs[0]));
}

static cddp_status K(dropout_backward)(const cd_op_call *c, cddp_error *err)
{
    (void)err;
    return K(dropout_apply)(c, cd_tensor_data(&c->out_grads[0].value),
                            cd_tensor_data(&c->in_grads[0].value));
}
