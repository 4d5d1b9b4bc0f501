/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of embedding.c for one REAL.
**
** Orders: a bag adds its positions in order. In the table's gradient the positions of one sample
** that hit the same row are summed first, in order, and each sample's sum is then added in sample
** order.
*/

static cddp_status K(embedding_forward)(const cd_op_call *c, cddp_error *err)
{
    const embedding_state *e = c->state;
    const REAL *table = cd_tensor_data(&c->inputs[0]);
    REAL *y = cd_tensor_data(&c->outputs[0]);
    const int64_t *index = e->indices;
    for (int64_t s = 0; s < e->samples; s++)
        for (int64_t t = 0; t < e->positions; t++, index++) {
            CD_TRY(check_index(e, *index, s, err));
            REAL *to = y + (e->bag ? s : s * e->positions + t) * e->width;
            for (int64_t i = 0; i < e->width; i++) {
                if (e->bag)
                    to[i] += table[*index * e->width + i];
                else
                    to[i] = table[*index * e->width + i];
            }
        }
    return CDDP_OK;
}

/* Adds sample s's gradient of the row that its position t hits, unless an earlier position had it
** already. sample (width) is scratch. */
static void K(embedding_add_row)(const embedding_state *e, const REAL *dy, int64_t s, int64_t t,
                                 REAL *sample, REAL *row)
{
    const int64_t *index = e->indices + s * e->positions;
    for (int64_t earlier = 0; earlier < t; earlier++)
        if (index[earlier] == index[t]) return;
    for (int64_t i = 0; i < e->width; i++) sample[i] = 0;
    for (int64_t later = t; later < e->positions; later++) {
        const REAL *from = dy + (e->bag ? s : s * e->positions + later) * e->width;
        for (int64_t i = 0; index[later] == index[t] && i < e->width; i++) sample[i] += from[i];
    }
    for (int64_t i = 0; i < e->width; i++) row[i] += sample[i];
}

static cddp_status K(embedding_backward)(const cd_op_call *c, cddp_error *err)
{
    const embedding_state *e = c->state;
    const REAL *dy = cd_tensor_data(&c->out_grads[0].value);
    int64_t *place = NULL;
    void *sample = NULL;
    CD_TRY(make_gradient(c, &place, err));
    CD_TRY(cd_graph_push(c->graph, (size_t)e->width * sizeof(REAL), &sample, err));
    REAL *rows = cd_tensor_data(&c->in_grads[0].value);
    for (int64_t s = 0; s < e->samples; s++)
        for (int64_t t = 0; t < e->positions; t++) {
            int64_t row = e->indices[s * e->positions + t];
            K(embedding_add_row)
            (e, dy, s, t, sample, rows + (place != NULL ? place[row] : row) * e->width);
        }
    return CDDP_OK;
}
