/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of attention.c for one REAL: one (sample, head) at a time; every sum runs over its index
** in order. */

static REAL K(dot)(const REAL *a, const REAL *b, int64_t n)
{
    REAL sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* share (positions, positions): softmax over the keys of every query, computed again in
** backward. */
static void K(attention_shares)(const attention_sizes *z, const REAL *qkv, REAL *share)
{
    const REAL scale = 1 / ROOT((REAL)z->head);
    for (int64_t q = 0; q < z->positions; q++) {
        REAL *row = share + q * z->positions, top = 0, total = 0;
        int64_t seen = z->causal ? q + 1 : z->positions;
        for (int64_t k = 0; k < seen; k++) {
            row[k] = K(dot)(qkv + q * z->stride, qkv + k * z->stride + z->width, z->head) * scale;
            if (k == 0 || row[k] > top) top = row[k];
        }
        for (int64_t k = 0; k < seen; k++) total += row[k] = M(exp)(row[k] - top);
        for (int64_t k = 0; k < seen; k++) row[k] /= total;
        for (int64_t k = seen; k < z->positions; k++) row[k] = 0;
    }
}

static cddp_status K(attention_forward)(const cd_op_call *c, cddp_error *err)
{
    attention_sizes z = sizes_of(c);
    const REAL *qkv = cd_tensor_data(&c->inputs[0]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    void *share = NULL;
    CD_TRY(
        cd_graph_push(c->graph, (size_t)(z.positions * z.positions) * sizeof(REAL), &share, err));
    for (int64_t s = 0; s < z.samples; s++)
        for (int64_t h = 0; h < z.heads; h++) {
            const REAL *from = qkv + s * z.positions * z.stride + h * z.head;
            K(attention_shares)(&z, from, share);
            for (int64_t q = 0; q < z.positions; q++)
                for (int64_t i = 0; i < z.head; i++) {
                    REAL sum = 0;
                    for (int64_t k = 0; k < z.positions; k++)
                        sum += ((const REAL *)share)[q * z.positions + k] *
                               from[k * z.stride + 2 * z.width + i];
                    y[(s * z.positions + q) * z.width + h * z.head + i] = sum;
                }
        }
    return CDDP_OK;
}

/* One head: dv_k += share·dy, dshare = dy·v, dscore = share·(dshare - Σ share·dshare), dq and dk
** from dscore. */
static void K(attention_head_backward)(const attention_sizes *z, const REAL *from,
                                       const REAL *share, const REAL *dy, REAL *to)
{
    const REAL scale = 1 / ROOT((REAL)z->head);
    for (int64_t q = 0; q < z->positions; q++) {
        const REAL *row = share + q * z->positions, *dyq = dy + q * z->width;
        REAL mixed = 0;
        for (int64_t k = 0; k < z->positions; k++)
            mixed += row[k] * K(dot)(dyq, from + k * z->stride + 2 * z->width, z->head);
        for (int64_t k = 0; k < z->positions; k++) {
            const REAL *key = from + k * z->stride + z->width, *value = key + z->width;
            REAL dscore = row[k] * (K(dot)(dyq, value, z->head) - mixed) * scale;
            for (int64_t i = 0; i < z->head; i++) {
                to[q * z->stride + i] += dscore * key[i];
                to[k * z->stride + z->width + i] += dscore * from[q * z->stride + i];
                to[k * z->stride + 2 * z->width + i] += row[k] * dyq[i];
            }
        }
    }
}

static cddp_status K(attention_backward)(const cd_op_call *c, cddp_error *err)
{
    attention_sizes z = sizes_of(c);
    const REAL *qkv = cd_tensor_data(&c->inputs[0]), *dy = cd_tensor_data(&c->out_grads[0].value);
    REAL *dqkv = cd_tensor_data(&c->in_grads[0].value);
    void *share = NULL;
    CD_TRY(
        cd_graph_push(c->graph, (size_t)(z.positions * z.positions) * sizeof(REAL), &share, err));
    for (int64_t s = 0; s < z.samples; s++)
        for (int64_t h = 0; h < z.heads; h++) {
            int64_t start = s * z.positions * z.stride + h * z.head;
            K(attention_shares)(&z, qkv + start, share);
            K(attention_head_backward)
            (&z, qkv + start, share, dy + s * z.positions * z.width + h * z.head, dqkv + start);
        }
    return CDDP_OK;
}
