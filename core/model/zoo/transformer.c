/* SPDX-License-Identifier: Apache-2.0 */
/* transformer: a decoder as GPT-2's: token and position embeddings, blocks of layer norm, attention
** and an MLP with residual connections, a final norm and a separate vocabulary head. Its loss sums
** over tokens.
*/
#include "core/model/checkpoint.h"
#include "core/base/error.h"
#include "core/model/layers/activation.h"
#include "core/model/layers/attention.h"
#include "core/model/layers/dropout.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/shapes.h"
#include "core/model/zoo/parts.h"

#include <stdio.h>

#define BLOCKS_MAX 24

typedef struct block {
    cd_layer_norm_part norm1, norm2;
    cd_linear_part qkv, projection, up, down;
} block;

typedef struct transformer {
    int64_t vocabulary, positions, width, heads, layers, causal, checkpoint, sparse, ragged;
    double dropout;
    uint32_t tokens, places;
    block blocks[BLOCKS_MAX];
    cd_layer_norm_part last_norm;
    cd_linear_part head;
} transformer;

static const cd_option options[] = {
    {"vocabulary", CD_OPTION_INTEGER, offsetof(transformer, vocabulary), "16", NULL, 2, 1 << 17,
     "tokens"},
    {"positions", CD_OPTION_INTEGER, offsetof(transformer, positions), "6", NULL, 1, 4096,
     "of every sample"},
    {"width", CD_OPTION_INTEGER, offsetof(transformer, width), "8", NULL, 1, 8192,
     "of the residual stream; a multiple of heads"},
    {"heads", CD_OPTION_INTEGER, offsetof(transformer, heads), "2", NULL, 1, 128,
     "of every attention"},
    {"layers", CD_OPTION_INTEGER, offsetof(transformer, layers), "2", NULL, 1, BLOCKS_MAX,
     "blocks"},
    {"causal", CD_OPTION_INTEGER, offsetof(transformer, causal), "1", NULL, 0, 1,
     "a position sees only earlier ones"},
    {"dropout", CD_OPTION_REAL, offsetof(transformer, dropout), "0", NULL, 0, 0.99,
     "probability of zeroing an element before it joins the residual stream"},
    {"checkpoint", CD_OPTION_CHOICE, offsetof(transformer, checkpoint), "none",
     "none|reentrant|non_reentrant", 0, 0, "activation checkpointing of every block"},
    {"sparse", CD_OPTION_INTEGER, offsetof(transformer, sparse), "0", NULL, 0, 1,
     "the token table has sparse gradients"},
    {"ragged", CD_OPTION_INTEGER, offsetof(transformer, ragged), "0", NULL, 0, 1,
     "samples have 1 to positions tokens that count"},
};

static cddp_status build_block(cd_model *model, transformer *m, uint32_t i, cddp_error *err)
{
    block *b = &m->blocks[i];
    int64_t w = m->width, p = m->positions;
    CD_TRY(cd_module_push(model->module, err, "blocks"));
    CD_TRY(cd_module_push(model->module, err, "%u", (unsigned)i));
    CD_TRY(cd_layer_norm_register(model, "norm1", w, &b->norm1, err));
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"qkv", w, 3 * w, true, p}, &b->qkv, err));
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"projection", w, w, true, p}, &b->projection,
                              err));
    CD_TRY(cd_layer_norm_register(model, "norm2", w, &b->norm2, err));
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"up", w, 4 * w, true, p}, &b->up, err));
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"down", 4 * w, w, true, p}, &b->down, err));
    cd_module_pop(model->module);
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    transformer *m = model->state;
    if (m->width % m->heads != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model transformer: width=%lld is not a multiple of heads=%lld",
                       (long long)m->width, (long long)m->heads);
    CD_TRY(cd_table_register(model, "tokens", m->vocabulary, m->width, m->sparse != 0, &m->tokens,
                             err));
    CD_TRY(cd_table_register(model, "places", m->positions, m->width, false, &m->places, err));
    for (uint32_t i = 0; i < m->layers; i++) CD_TRY(build_block(model, m, i, err));
    CD_TRY(cd_layer_norm_register(model, "norm", m->width, &m->last_norm, err));
    CD_TRY(
        cd_linear_register(model,
                           &(cd_linear_spec){"head", m->width, m->vocabulary, false, m->positions},
                           &m->head, err));
    cd_field input = {.name = "tokens",
                      .kind = CD_FIELD_CLASS,
                      .dim_count = 1,
                      .sizes = {m->positions},
                      .class_count = m->vocabulary};
    CD_TRY(cd_model_add_input(model, &input, err));
    input.name = "out";
    input.ragged = m->ragged != 0;
    return CD_PASS(cd_model_add_output(model, &input, err));
}

typedef struct block_part {
    const cd_model *model;
    const cd_batch *batch;
    uint32_t index;
} block_part;

/* x + dropout(y) */
static cddp_status join(cd_graph *graph, const block_part *part, uint64_t layer,
                        cd_value *const pair[2], cd_value **sum, cddp_error *err)
{
    const transformer *m = part->model->state;
    cd_dropout dropout = {m->dropout, part->model->seed, layer, part->batch->iteration,
                          part->batch->sample_ids};
    cd_value *dropped = NULL;
    CD_TRY(cd_dropout_layer(graph, pair[1], &dropout, &dropped, err));
    return CD_PASS(cd_add(graph, pair[0], dropped, sum, err));
}

static cddp_status run_block(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                             cddp_error *err)
{
    const block_part *part = context;
    const transformer *m = part->model->state;
    const block *b = &m->blocks[part->index];
    cd_attention attention = {.heads = m->heads, .causal = m->causal != 0};
    cd_value *v = NULL, *middle = NULL;
    CD_TRY(cd_layer_norm_run(graph, &b->norm1, x, &v, err));
    CD_TRY(cd_linear_run(graph, &b->qkv, v, &v, err));
    CD_TRY(cd_attention_layer(graph, v, &attention, &v, err));
    CD_TRY(cd_linear_run(graph, &b->projection, v, &v, err));
    CD_TRY(join(graph, part, 2 * part->index, (cd_value *const[2]){x, v}, &middle, err));
    CD_TRY(cd_layer_norm_run(graph, &b->norm2, middle, &v, err));
    CD_TRY(cd_linear_run(graph, &b->up, v, &v, err));
    CD_TRY(cd_gelu_layer(graph, v, &v, err));
    CD_TRY(cd_linear_run(graph, &b->down, v, &v, err));
    return CD_PASS(join(graph, part, 2 * part->index + 1, (cd_value *const[2]){middle, v}, y, err));
}

/* Token rows plus position rows. */
static cddp_status embed(cd_model *model, cd_graph *graph, const cd_batch *batch, cd_value **x,
                         cddp_error *err)
{
    const transformer *m = model->state;
    cd_value *tokens = NULL, *places = NULL, *rows = NULL, *at = NULL;
    cddp_tensor index;
    CD_TRY(cd_graph_tensor(graph, CDDP_I64, (const int64_t[2]){batch->sample_count, m->positions},
                           2, &index, err));
    for (int64_t i = 0; i < batch->sample_count * m->positions; i++)
        ((int64_t *)index.storage)[i] = i % m->positions;
    CD_TRY(cd_graph_parameter(graph, m->tokens, &tokens, err));
    CD_TRY(cd_embedding_layer(graph, tokens,
                              &(cd_embedding){&batch->inputs[0], false, m->sparse != 0}, &rows,
                              err));
    CD_TRY(cd_graph_parameter(graph, m->places, &places, err));
    CD_TRY(cd_embedding_layer(graph, places, &(cd_embedding){&index, false, false}, &at, err));
    return CD_PASS(cd_add(graph, rows, at, x, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const transformer *m = model->state;
    cd_value *x = NULL;
    void *memory = NULL;
    CD_TRY(embed(model, graph, batch, &x, err));
    CD_TRY(
        cd_graph_push(graph, (size_t)m->layers * sizeof(block_part) + sizeof *batch, &memory, err));
    cd_batch *kept = memory; /* a checkpoint reads it in backward */
    block_part *parts = (block_part *)(void *)(kept + 1);
    *kept = *batch;
    for (uint32_t i = 0; i < m->layers; i++) {
        parts[i] = (block_part){model, kept, i};
        cd_checkpoint checkpoint = {(cd_checkpoint_kind)m->checkpoint, run_block, &parts[i]};
        CD_TRY(cd_checkpoint_run(graph, &checkpoint, x, &x, err));
    }
    CD_TRY(cd_layer_norm_run(graph, &m->last_norm, x, &x, err));
    return CD_PASS(cd_linear_run(graph, &m->head, x, &outputs->values[0], err));
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)model;
    (void)output;
    return CD_PASS(cd_loss_run(graph, CD_LOSS_CE, value, target, result, err));
}

const cd_model_type cd_model_transformer = {
    .name = "transformer",
    .summary =
        "a small decoder: embeddings, attention blocks, a vocabulary head; loss summed over tokens",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(transformer),
    .build = build,
    .forward = forward,
    .losses = losses,
};
