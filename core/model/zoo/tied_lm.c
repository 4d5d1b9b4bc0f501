/* SPDX-License-Identifier: Apache-2.0 */
/* tied_lm: a language model whose vocabulary head is its token table: one parameter under two
** names, used twice. */
#include "core/model/layers/activation.h"
#include "core/base/error.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/linear.h"
#include "core/model/zoo/parts.h"

typedef struct tied_lm {
    int64_t vocabulary, positions, width, ragged;
    uint32_t tokens;
    cd_linear_part hidden;
} tied_lm;

static const cd_option options[] = {
    {"vocabulary", CD_OPTION_INTEGER, offsetof(tied_lm, vocabulary), "12", NULL, 2, 1 << 17,
     "tokens"},
    {"positions", CD_OPTION_INTEGER, offsetof(tied_lm, positions), "4", NULL, 1, 4096,
     "of every sample"},
    {"width", CD_OPTION_INTEGER, offsetof(tied_lm, width), "6", NULL, 1, 8192,
     "of the hidden layer"},
    {"ragged", CD_OPTION_INTEGER, offsetof(tied_lm, ragged), "0", NULL, 0, 1,
     "samples have 1 to positions tokens that count"},
};

static cddp_status build(cd_model *model, cddp_error *err)
{
    tied_lm *m = model->state;
    CD_TRY(cd_table_register(model, "tokens", m->vocabulary, m->width, false, &m->tokens, err));
    CD_TRY(cd_linear_register(model,
                              &(cd_linear_spec){"hidden", m->width, m->width, true, m->positions},
                              &m->hidden, err));
    CD_TRY(cd_module_add_alias(model->module, "head.weight", m->tokens, err));
    cd_field field = {.name = "tokens",
                      .kind = CD_FIELD_CLASS,
                      .dim_count = 1,
                      .sizes = {m->positions},
                      .class_count = m->vocabulary};
    CD_TRY(cd_model_add_input(model, &field, err));
    field.name = "out";
    field.ragged = m->ragged != 0;
    return CD_PASS(cd_model_add_output(model, &field, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const tied_lm *m = model->state;
    cd_value *table = NULL, *head = NULL, *x = NULL;
    CD_TRY(cd_graph_parameter(graph, m->tokens, &table, err));
    CD_TRY(cd_embedding_layer(graph, table, &(cd_embedding){&batch->inputs[0], false, false}, &x,
                              err));
    CD_TRY(cd_linear_run(graph, &m->hidden, x, &x, err));
    CD_TRY(cd_tanh_layer(graph, x, &x, err));
    CD_TRY(cd_graph_parameter(graph, m->tokens, &head, err));
    return CD_PASS(cd_linear(graph, x, head, NULL, &outputs->values[0], err));
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)model;
    (void)output;
    return CD_PASS(cd_loss_run(graph, CD_LOSS_CE, value, target, result, err));
}

const cd_model_type cd_model_tied_lm = {
    .name = "tied_lm",
    .summary = "a language model whose head is its token table (a parameter used twice)",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(tied_lm),
    .build = build,
    .forward = forward,
    .losses = losses,
};
