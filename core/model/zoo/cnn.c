/* SPDX-License-Identifier: Apache-2.0 */
/* cnn: convolution, normalisation, relu and pooling, twice or more, then a linear classifier. */
#include "core/model/layers/activation.h"
#include "core/base/error.h"
#include "core/model/layers/shapes.h"
#include "core/model/zoo/parts.h"

#include <stdio.h>

#define STAGES_MAX 6

enum { NORM_NONE, NORM_BATCH, NORM_SYNC };

typedef struct cnn {
    cd_integers channels;
    int64_t size, classes, norm, loss;
    cd_conv_part convs[STAGES_MAX];
    cd_batch_norm norms[STAGES_MAX];
    cd_linear_part classifier;
    uint32_t stages;
} cnn;

static const cd_option options[] = {
    {"channels", CD_OPTION_INTEGERS, offsetof(cnn, channels), "1:4:8", NULL, 1, 512,
     "of the image, then after every convolution"},
    {"size", CD_OPTION_INTEGER, offsetof(cnn, size), "8", NULL, 2, 64,
     "height and width of the image; halved by every stage"},
    {"classes", CD_OPTION_INTEGER, offsetof(cnn, classes), "4", NULL, 1, 1000, "outputs"},
    {"norm", CD_OPTION_CHOICE, offsetof(cnn, norm), "none", "none|batch|sync", 0, 0,
     "after every convolution: none, batch norm, synchronised batch norm"},
    {"loss", CD_OPTION_CHOICE, offsetof(cnn, loss), "ce", CD_LOSSES, 0, 0,
     "squared error, inner product with the target, binary or softmax cross-entropy"},
};

static cddp_status build_stage(cd_model *model, cnn *m, uint32_t i, cddp_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "conv%u", (unsigned)i + 1);
    int64_t side = m->size >> i;
    cd_conv_spec spec = {.name = name,
                         .in = m->channels.items[i],
                         .out = m->channels.items[i + 1],
                         .kernel = 3,
                         .stride = 1,
                         .padding = 1,
                         .positions = side * side};
    CD_TRY(cd_conv_register(model, &spec, &m->convs[i], err));
    if (m->norm == NORM_NONE) return CDDP_OK;
    CD_TRY(cd_module_push(model->module, err, "bn%u", (unsigned)i + 1));
    CD_TRY(cd_batch_norm_register(model->module, spec.out, model->dtype, &m->norms[i], err));
    m->norms[i].synchronised = m->norm == NORM_SYNC;
    model->exchanges_statistics = m->norm == NORM_SYNC;
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    cnn *m = model->state;
    m->stages = m->channels.count - 1;
    if (m->channels.count < 2 || m->stages > STAGES_MAX || m->size % (1 << m->stages) != 0)
        return cd_fail(err, CDDP_E_CONFIG,
                       "model cnn: size=%lld cannot be halved by %u stages (1 to %d are possible)",
                       (long long)m->size, (unsigned)m->stages, STAGES_MAX);
    for (uint32_t i = 0; i < m->stages; i++) CD_TRY(build_stage(model, m, i, err));
    int64_t side = m->size >> m->stages;
    cd_linear_spec spec = {.name = "fc",
                           .in = m->channels.items[m->stages] * side * side,
                           .out = m->classes,
                           .bias = true};
    CD_TRY(cd_linear_register(model, &spec, &m->classifier, err));
    cd_field input = {.name = "image",
                      .kind = CD_FIELD_REAL,
                      .dim_count = 3,
                      .sizes = {m->channels.items[0], m->size, m->size}};
    CD_TRY(cd_model_add_input(model, &input, err));
    cd_field target = cd_loss_target(m->loss, "out", &m->classes, 1);
    return CD_PASS(cd_model_add_output(model, &target, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const cnn *m = model->state;
    cd_value *x = NULL;
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &x, err));
    for (uint32_t i = 0; i < m->stages; i++) {
        CD_TRY(cd_conv_run(graph, &m->convs[i], x, false, &x, err));
        if (m->norm != NORM_NONE) CD_TRY(cd_batch_norm_layer(graph, x, &m->norms[i], &x, err));
        CD_TRY(cd_relu(graph, x, &x, err));
        CD_TRY(cd_average_pool2d(graph, x, 2, &x, err));
    }
    int64_t side = m->size >> m->stages,
            sizes[2] = {batch->sample_count, m->channels.items[m->stages] * side * side};
    CD_TRY(cd_reshape(graph, x, sizes, 2, &x, err));
    return CD_PASS(cd_linear_run(graph, &m->classifier, x, &outputs->values[0], err));
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)output;
    return CD_PASS(
        cd_loss_run(graph, ((const cnn *)model->state)->loss, value, target, result, err));
}

const cd_model_type cd_model_cnn = {
    .name = "cnn",
    .summary = "convolutions with optional batch norm, pooling, a classifier",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(cnn),
    .build = build,
    .forward = forward,
    .losses = losses,
};
