/* SPDX-License-Identifier: Apache-2.0 */
/* embedding_bag: rows of a table summed per sample, then a linear layer; the table's gradient is
** sparse. */
#include "core/model/layers/embedding.h"
#include "core/base/error.h"
#include "core/model/zoo/parts.h"

typedef struct embedding_bag {
    int64_t rows, width, bag, out, sparse, loss;
    uint32_t table;
    cd_linear_part head;
} embedding_bag;

static const cd_option options[] = {
    /* clang-format off */
    {"rows", CD_OPTION_INTEGER, offsetof(embedding_bag, rows), "10", NULL, 1, 1 << 24, "of the table"},
    {"width", CD_OPTION_INTEGER, offsetof(embedding_bag, width), "4", NULL, 1, 4096, "of a row"},
    {"bag", CD_OPTION_INTEGER, offsetof(embedding_bag, bag), "3", NULL, 1, 4096, "indices of a sample"},
    {"out", CD_OPTION_INTEGER, offsetof(embedding_bag, out), "2", NULL, 1, 4096, "outputs"},
    {"sparse", CD_OPTION_INTEGER, offsetof(embedding_bag, sparse), "1", NULL, 0, 1, "the table has sparse gradients"},
    /* clang-format on */
    {"loss", CD_OPTION_CHOICE, offsetof(embedding_bag, loss), "dot", CD_LOSSES, 0, 0,
     "squared error, inner product with the target, binary or softmax cross-entropy"},
};

static cddp_status build(cd_model *model, cddp_error *err)
{
    embedding_bag *m = model->state;
    CD_TRY(cd_table_register(model, "table", m->rows, m->width, m->sparse != 0, &m->table, err));
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"head", m->width, m->out, true, 1}, &m->head,
                              err));
    cd_field input = {.name = "indices",
                      .kind = CD_FIELD_CLASS,
                      .dim_count = 1,
                      .sizes = {m->bag},
                      .class_count = m->rows};
    CD_TRY(cd_model_add_input(model, &input, err));
    cd_field target = cd_loss_target(m->loss, "out", &m->out, 1);
    return CD_PASS(cd_model_add_output(model, &target, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const embedding_bag *m = model->state;
    cd_value *table = NULL, *x = NULL;
    CD_TRY(cd_graph_parameter(graph, m->table, &table, err));
    CD_TRY(cd_embedding_layer(graph, table,
                              &(cd_embedding){&batch->inputs[0], true, m->sparse != 0}, &x, err));
    return CD_PASS(cd_linear_run(graph, &m->head, x, &outputs->values[0], err));
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)output;
    return CD_PASS(cd_loss_run(graph, ((const embedding_bag *)model->state)->loss, value, target,
                               result, err));
}

const cd_model_type cd_model_embedding_bag = {
    .name = "embedding_bag",
    .summary = "a table with sparse gradients, summed per sample, and a linear head",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(embedding_bag),
    .build = build,
    .forward = forward,
    .losses = losses,
};
