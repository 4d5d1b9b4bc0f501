/* SPDX-License-Identifier: Apache-2.0 */
/* bert: the parameters of BERT-base (Hugging Face's BertModel) in their order and with their names.
** A list. */
#include "core/base/error.h"
#include "core/model/zoo/list.h"

typedef struct bert {
    int64_t layers, width, vocabulary, positions;
} bert;

static const cd_option options[] = {
    {"layers", CD_OPTION_INTEGER, offsetof(bert, layers), "12", NULL, 1, 128, "encoder layers"},
    {"width", CD_OPTION_INTEGER, offsetof(bert, width), "768", NULL, 1, 1 << 16,
     "of the residual stream"},
    {"vocabulary", CD_OPTION_INTEGER, offsetof(bert, vocabulary), "30522", NULL, 1, 1 << 24,
     "tokens"},
    {"positions", CD_OPTION_INTEGER, offsetof(bert, positions), "512", NULL, 1, 1 << 20,
     "rows of the position table, and tokens of a sample for the costs"},
};

/* "<scope>.weight" (out, in) and "<scope>.bias" (out); in 0: a norm with two vectors. */
static cddp_status add_pair(cd_model *model, const char *scope, int64_t out, int64_t in,
                            cddp_error *err)
{
    int64_t positions = ((const bert *)model->state)->positions;
    CD_TRY(cd_module_push(model->module, err, "%s", scope));
    CD_TRY(
        cd_list_add(model, &(cd_list_item){"weight", in > 0 ? 2 : 1, {out, in}, positions}, err));
    CD_TRY(cd_list_add(model, &(cd_list_item){"bias", 1, {out}, positions}, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status add_embeddings(cd_model *model, const bert *m, cddp_error *err)
{
    CD_TRY(cd_module_push(model->module, err, "embeddings"));
    CD_TRY(cd_list_add(model,
                       &(cd_list_item){"word_embeddings.weight", 2, {m->vocabulary, m->width}, 0},
                       err));
    CD_TRY(cd_list_add(
        model, &(cd_list_item){"position_embeddings.weight", 2, {m->positions, m->width}, 0}, err));
    CD_TRY(cd_list_add(model, &(cd_list_item){"token_type_embeddings.weight", 2, {2, m->width}, 0},
                       err));
    CD_TRY(add_pair(model, "LayerNorm", m->width, 0, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status add_layer(cd_model *model, const bert *m, cddp_error *err)
{
    int64_t w = m->width;
    CD_TRY(add_pair(model, "attention.self.query", w, w, err));
    CD_TRY(add_pair(model, "attention.self.key", w, w, err));
    CD_TRY(add_pair(model, "attention.self.value", w, w, err));
    CD_TRY(add_pair(model, "attention.output.dense", w, w, err));
    CD_TRY(add_pair(model, "attention.output.LayerNorm", w, 0, err));
    CD_TRY(add_pair(model, "intermediate.dense", 4 * w, w, err));
    CD_TRY(add_pair(model, "output.dense", w, 4 * w, err));
    return CD_PASS(add_pair(model, "output.LayerNorm", w, 0, err));
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    const bert *m = model->state;
    CD_TRY(add_embeddings(model, m, err));
    CD_TRY(cd_module_push(model->module, err, "encoder"));
    CD_TRY(cd_module_push(model->module, err, "layer"));
    for (int64_t i = 0; i < m->layers; i++) {
        CD_TRY(cd_module_push(model->module, err, "%d", (int)i));
        CD_TRY(add_layer(model, m, err));
        cd_module_pop(model->module);
    }
    cd_module_pop(model->module);
    cd_module_pop(model->module);
    CD_TRY(add_pair(model, "pooler.dense", m->width, m->width, err));
    return CD_PASS(cd_list_finish(model, err));
}

const cd_model_type cd_model_bert = {
    .name = "bert",
    .summary = "list: BERT-base",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(bert),
    .build = build,
    .forward = cd_list_forward,
    .losses = cd_list_losses,
};
