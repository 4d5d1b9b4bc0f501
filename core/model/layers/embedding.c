/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings with a dense or a sparse gradient. The sparse one is made coalesced: its rows are the
** rows that any sample hit, increasing. (PyTorch delivers it uncoalesced; its reducer coalesces
** before it adds.)
*/
#include "core/model/layers/embedding.h"

#include "core/base/error.h"
#include "core/model/op.h"

typedef struct embedding_state {
    const int64_t *indices; /* (samples, positions) */
    int64_t samples, positions, rows, width;
    bool bag, sparse;
    /* on a device that computes: as CDDP_LAYER_EMBEDDING lists them */
    cddp_tensor there[CDDP_LAYER_GIVEN];
} embedding_state;

static cddp_status check_index(const embedding_state *e, int64_t index, int64_t sample,
                               cddp_error *err)
{
    if (index >= 0 && index < e->rows) return CDDP_OK;
    return cd_fail(err, CDDP_E_ARG, "embedding: index %lld of sample %lld is not in 0 … %lld",
                   (long long)index, (long long)sample, (long long)e->rows - 1);
}

/* The integers of CDDP_LAYER_EMBEDDING, in one transfer: the places of every hit row, in order, row
** by row. So a gradient needs no search. */
static cddp_status sort_places(const cd_op_call *c, embedding_state *e, cddp_error *err)
{
    const int64_t count = e->samples * e->positions, all = 4 * count + 1;
    void *memory = NULL;
    cddp_tensor t;
    CD_TRY(cd_graph_push(c->graph, (size_t)(e->rows + all) * sizeof(int64_t), &memory, err));
    int64_t *index = memory, *places = index + count, *hit = places + count, *start = hit + count,
            hits = 0;
    /* (rows) how often each is hit, then where its next place goes */
    int64_t *next = start + count + 1;
    for (int64_t i = 0; i < count; i++) {
        CD_TRY(check_index(e, e->indices[i], i / e->positions, err));
        index[i] = e->indices[i];
        next[index[i]]++;
    }
    for (int64_t row = 0, at = 0; row < e->rows; row++) {
        const int64_t used = next[row];
        next[row] = at;
        if (used == 0) continue;
        hit[hits] = row;
        start[hits++] = at;
        at += used;
        start[hits] = at;
    }
    for (int64_t i = 0; i < count; i++) places[next[index[i]]++] = i;
    CD_TRY(cd_graph_give(c->graph, CDDP_I64, &all, 1, memory, &t, err));
    const int64_t sizes[2] = {e->samples, e->positions};
    e->there[0] = cddp_tensor_of(t.device, t.storage, t.offset, CDDP_I64, sizes, 2);
    e->there[1] = cddp_tensor_slice(&t, 2 * count, hits);
    e->there[2] = cddp_tensor_slice(&t, 3 * count, hits + 1);
    e->there[3] = cddp_tensor_slice(&t, count, count);
    return CDDP_OK;
}

static cddp_status describe(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    embedding_state *e = c->state;
    if (e->there[0].device == NULL) CD_TRY(sort_places(c, e, err));
    for (int i = 0; i < CDDP_LAYER_GIVEN; i++) layer->given[i] = e->there[i];
    layer->integers[0] = e->bag;
    return CDDP_OK;
}

/* The gradient's storage: a dense table of zeros, or the rows that occur. *place (rows): where each
** row went, or NULL for dense. */
static cddp_status make_gradient(const cd_op_call *c, int64_t **place, cddp_error *err)
{
    const embedding_state *e = c->state;
    const cddp_tensor *table = &c->inputs[0];
    cd_gradient *grad = &c->in_grads[0];
    if (!e->sparse)
        return CD_PASS(cd_graph_tensor(c->graph, table->dtype, table->sizes, 2, &grad->value, err));
    void *memory = NULL;
    CD_TRY(cd_graph_push(c->graph, (size_t)e->rows * sizeof(int64_t), &memory, err));
    int64_t *position = memory, count = 0;
    for (int64_t i = 0; i < e->samples * e->positions; i++) position[e->indices[i]] = 1;
    for (int64_t row = 0; row < e->rows; row++) count += position[row];
    CD_TRY(cd_graph_tensor(c->graph, CDDP_I64, &count, 1, &grad->rows, err));
    CD_TRY(cd_graph_tensor(c->graph, table->dtype, (const int64_t[2]){count, e->width}, 2,
                           &grad->value, err));
    int64_t *rows = cd_tensor_data(&grad->rows), next = 0;
    for (int64_t row = 0; row < e->rows; row++) {
        if (position[row] == 0) continue;
        position[row] = next;
        rows[next++] = row;
    }
    grad->kind = CDDP_GRAD_SPARSE;
    *place = position;
    return CDDP_OK;
}

#define KERNELS "core/model/layers/embedding_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op embedding_op = {.name = "Embedding",
                                   .makes_gradients = true,
                                   .layer = CDDP_LAYER_EMBEDDING,
                                   .describe = describe,
                                   .forward = {embedding_forward_f32, embedding_forward_f64},
                                   .backward = {embedding_backward_f32, embedding_backward_f64}};

cddp_status cd_embedding_layer(cd_graph *graph, cd_value *table, const cd_embedding *embedding,
                               cd_value **y, cddp_error *err)
{
    const cddp_tensor *t = &table->tensor, *ids = embedding->indices;
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes("embedding", &table, 1, err));
    if (t->dim_count != 2 || ids->dim_count != 2 || ids->dtype != CDDP_I64)
        return cd_fail(err, CDDP_E_ARG, "embedding: table %s does not fit %s indices %s",
                       cd_tensor_print_sizes(t, left, sizeof left), cddp_dtype_name(ids->dtype),
                       cd_tensor_print_sizes(ids, right, sizeof right));
    if (embedding->sparse && !cd_device_is_direct(graph->module->device))
        return cd_fail(err, CDDP_E_UNSUPPORTED, "embedding: device %s has no sparse gradients",
                       graph->module->device->name);
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(embedding_state), &state, err));
    *(embedding_state *)state = (embedding_state){.indices = cd_tensor_data(ids),
                                                  .samples = ids->sizes[0],
                                                  .positions = ids->sizes[1],
                                                  .rows = t->sizes[0],
                                                  .width = t->sizes[1],
                                                  .bag = embedding->bag,
                                                  .sparse = embedding->sparse};
    int64_t sizes[3] = {ids->sizes[0], embedding->bag ? t->sizes[1] : ids->sizes[1], t->sizes[1]};
    cddp_tensor shape = cd_shape_of(t->dtype, sizes, embedding->bag ? 2 : 3);
    cd_apply apply = {.op = &embedding_op,
                      .inputs = &table,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
