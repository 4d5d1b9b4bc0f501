/* SPDX-License-Identifier: Apache-2.0 */
/* mlp: linear layers with an activation between them, optional normalisation, dropout,
** checkpointing and several heads. With relu or no activation, dyadic parameters and inputs,
** everything it computes is exact.
*/
#include "core/model/checkpoint.h"
#include "core/base/error.h"
#include "core/model/layers/dropout.h"
#include "core/model/zoo/parts.h"

#include <stdio.h>

#define LAYERS_MAX (CD_INTEGERS_MAX - 1)

enum { NORM_NONE, NORM_BATCH, NORM_SYNC, NORM_LAYER };

typedef struct mlp {
    cd_integers widths;
    int64_t bias, activation, norm, loss, heads, checkpoint;
    double dropout;
    cd_linear_part layers[LAYERS_MAX];
    cd_batch_norm batch_norms[LAYERS_MAX];
    cd_layer_norm_part layer_norms[LAYERS_MAX];
    cd_linear_part head[CD_MODEL_OUTPUTS_MAX];
    uint32_t hidden; /* layers before the heads */
} mlp;

static const cd_option options[] = {
    {"widths", CD_OPTION_INTEGERS, offsetof(mlp, widths), "8:16:4", NULL, 1, 1 << 20,
     "sizes of the layers, input first"},
    {"bias", CD_OPTION_INTEGER, offsetof(mlp, bias), "1", NULL, 0, 1, "layers have a bias"},
    {"activation", CD_OPTION_CHOICE, offsetof(mlp, activation), "relu", CD_ACTIVATIONS, 0, 0,
     "after every hidden layer: " CD_ACTIVATIONS},
    {"norm", CD_OPTION_CHOICE, offsetof(mlp, norm), "none", "none|batch|sync|layer", 0, 0,
     "before every activation: none, batch norm, synchronised batch norm, layer norm"},
    {"dropout", CD_OPTION_REAL, offsetof(mlp, dropout), "0", NULL, 0, 0.99,
     "probability of zeroing a hidden element"},
    {"heads", CD_OPTION_INTEGER, offsetof(mlp, heads), "1", NULL, 1, CD_MODEL_OUTPUTS_MAX,
     "outputs, each a separate linear layer on the last hidden layer"},
    {"checkpoint", CD_OPTION_CHOICE, offsetof(mlp, checkpoint), "none",
     "none|reentrant|non_reentrant", 0, 0, "activation checkpointing of every hidden layer"},
    {"loss", CD_OPTION_CHOICE, offsetof(mlp, loss), "mse", CD_LOSSES, 0, 0,
     "of every output: squared error, inner product with the target, binary or softmax "
     "cross-entropy"},
};

static const char *const head_names[CD_MODEL_OUTPUTS_MAX] = {
    "head0", "head1", "head2",  "head3",  "head4",  "head5",  "head6",  "head7",
    "head8", "head9", "head10", "head11", "head12", "head13", "head14", "head15"};

static cddp_status build_norm(cd_model *model, mlp *m, uint32_t layer, cddp_error *err)
{
    int64_t width = m->widths.items[layer + 1];
    char name[32];
    snprintf(name, sizeof name, "norms.%u", (unsigned)layer);
    if (m->norm == NORM_NONE) return CDDP_OK;
    if (m->norm == NORM_LAYER)
        return CD_PASS(cd_layer_norm_register(model, name, width, &m->layer_norms[layer], err));
    CD_TRY(cd_module_push(model->module, err, "norms"));
    CD_TRY(cd_module_push(model->module, err, "%u", (unsigned)layer));
    CD_TRY(cd_batch_norm_register(model->module, width, model->dtype, &m->batch_norms[layer], err));
    m->batch_norms[layer].synchronised = m->norm == NORM_SYNC;
    model->exchanges_statistics = m->norm == NORM_SYNC;
    cd_module_pop(model->module);
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    mlp *m = model->state;
    const int64_t *w = m->widths.items;
    if (m->widths.count < 2)
        return cd_fail(err, CDDP_E_CONFIG, "model mlp: widths needs an input and an output size");
    m->hidden = m->widths.count - 2;
    for (uint32_t i = 0; i < m->hidden; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%u", (unsigned)i);
        cd_linear_spec spec = {.name = name, .in = w[i], .out = w[i + 1], .bias = m->bias != 0};
        CD_TRY(cd_linear_register(model, &spec, &m->layers[i], err));
        CD_TRY(build_norm(model, m, i, err));
        CD_TRY(cd_model_add_unit(model, name, 1, err));
    }
    cd_field input = {.name = "x", .kind = CD_FIELD_REAL, .dim_count = 1, .sizes = {w[0]}};
    CD_TRY(cd_model_add_input(model, &input, err));
    for (uint32_t h = 0; h < m->heads; h++) {
        const char *name = m->heads == 1 ? "out" : head_names[h];
        cd_linear_spec spec = {.name = name,
                               .in = w[m->hidden],
                               .out = w[m->hidden + 1],
                               .bias = m->bias != 0};
        CD_TRY(cd_linear_register(model, &spec, &m->head[h], err));
        cd_field target = cd_loss_target(m->loss, name, &w[m->hidden + 1], 1);
        CD_TRY(cd_model_add_output(model, &target, err));
    }
    return CDDP_OK;
}

/* One hidden layer, as a part that a checkpoint can run twice. */
typedef struct hidden_part {
    const cd_model *model;
    const cd_batch *batch;
    uint32_t layer;
} hidden_part;

static cddp_status run_hidden(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                              cddp_error *err)
{
    const hidden_part *part = context;
    const mlp *m = part->model->state;
    cd_value *value = NULL;
    CD_TRY(cd_linear_run(graph, &m->layers[part->layer], x, &value, err));
    if (m->norm == NORM_LAYER)
        CD_TRY(cd_layer_norm_run(graph, &m->layer_norms[part->layer], value, &value, err));
    if (m->norm == NORM_BATCH || m->norm == NORM_SYNC)
        CD_TRY(cd_batch_norm_layer(graph, value, &m->batch_norms[part->layer], &value, err));
    CD_TRY(cd_activation_run(graph, m->activation, value, &value, err));
    cd_dropout dropout = {m->dropout, part->model->seed, part->layer, part->batch->iteration,
                          part->batch->sample_ids};
    return CD_PASS(cd_dropout_layer(graph, value, &dropout, y, err));
}

static cddp_status check_uses(const cd_model *model, uint32_t layer, uint8_t uses, cddp_error *err)
{
    const mlp *m = model->state;
    const int64_t *w = m->widths.items;
    if (uses == 1 || w[layer] == w[layer + 1]) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG,
                   "model mlp: %s runs %u times, but turns %lld numbers into %lld",
                   model->units[layer].name, (unsigned)uses, (long long)w[layer],
                   (long long)w[layer + 1]);
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const mlp *m = model->state;
    cd_value *x = NULL;
    void *memory = NULL;
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &x, err));
    CD_TRY(cd_graph_push(graph, m->hidden * sizeof(hidden_part) + sizeof *batch, &memory, err));
    cd_batch *kept = memory; /* a checkpoint reads it in backward */
    hidden_part *parts = (hidden_part *)(void *)(kept + 1);
    *kept = *batch;
    for (uint32_t i = 0; i < m->hidden; i++) {
        uint8_t uses = cd_model_unit_uses(model, batch, i);
        CD_TRY(check_uses(model, i, uses, err));
        parts[i] = (hidden_part){model, kept, i};
        cd_checkpoint checkpoint = {(cd_checkpoint_kind)m->checkpoint, run_hidden, &parts[i]};
        for (uint8_t use = 0; use < uses; use++)
            CD_TRY(cd_checkpoint_run(graph, &checkpoint, x, &x, err));
    }
    for (uint32_t h = 0; h < outputs->count; h++)
        CD_TRY(cd_linear_run(graph, &m->head[h], x, &outputs->values[h], err));
    return CDDP_OK;
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)output;
    return CD_PASS(
        cd_loss_run(graph, ((const mlp *)model->state)->loss, value, target, result, err));
}

const cd_model_type cd_model_mlp = {
    .name = "mlp",
    .summary = "linear layers with activations; heads, norms, dropout, checkpointing",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(mlp),
    .build = build,
    .forward = forward,
    .losses = losses,
};
