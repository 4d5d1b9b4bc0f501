/* SPDX-License-Identifier: Apache-2.0 */
/* llama: the parameters of Llama-7B (Hugging Face's LlamaForCausalLM) in their order and with their
** names. A list. */
#include "core/base/error.h"
#include "core/model/zoo/list.h"

typedef struct llama {
    int64_t layers, positions;
} llama;

enum { WIDTH = 4096, HIDDEN = 11008, VOCABULARY = 32000 };

static const cd_option options[] = {
    {"layers", CD_OPTION_INTEGER, offsetof(llama, layers), "32", NULL, 1, 128, "decoder layers"},
    {"positions", CD_OPTION_INTEGER, offsetof(llama, positions), "2048", NULL, 1, 1 << 20,
     "tokens of a sample, for the costs"},
};

static cddp_status add(cd_model *model, const char *name, int64_t out, int64_t in, cddp_error *err)
{
    int64_t positions = ((const llama *)model->state)->positions;
    return CD_PASS(
        cd_list_add(model, &(cd_list_item){name, in > 0 ? 2 : 1, {out, in}, positions}, err));
}

static cddp_status add_layer(cd_model *model, cddp_error *err)
{
    CD_TRY(add(model, "self_attn.q_proj.weight", WIDTH, WIDTH, err));
    CD_TRY(add(model, "self_attn.k_proj.weight", WIDTH, WIDTH, err));
    CD_TRY(add(model, "self_attn.v_proj.weight", WIDTH, WIDTH, err));
    CD_TRY(add(model, "self_attn.o_proj.weight", WIDTH, WIDTH, err));
    CD_TRY(add(model, "mlp.gate_proj.weight", HIDDEN, WIDTH, err));
    CD_TRY(add(model, "mlp.up_proj.weight", HIDDEN, WIDTH, err));
    CD_TRY(add(model, "mlp.down_proj.weight", WIDTH, HIDDEN, err));
    CD_TRY(add(model, "input_layernorm.weight", WIDTH, 0, err));
    return CD_PASS(add(model, "post_attention_layernorm.weight", WIDTH, 0, err));
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    const llama *m = model->state;
    CD_TRY(cd_module_push(model->module, err, "model"));
    CD_TRY(
        cd_list_add(model, &(cd_list_item){"embed_tokens.weight", 2, {VOCABULARY, WIDTH}, 0}, err));
    CD_TRY(cd_module_push(model->module, err, "layers"));
    for (int64_t i = 0; i < m->layers; i++) {
        CD_TRY(cd_module_push(model->module, err, "%d", (int)i));
        CD_TRY(add_layer(model, err));
        cd_module_pop(model->module);
    }
    cd_module_pop(model->module);
    CD_TRY(add(model, "norm.weight", WIDTH, 0, err));
    cd_module_pop(model->module);
    CD_TRY(add(model, "lm_head.weight", VOCABULARY, WIDTH, err));
    return CD_PASS(cd_list_finish(model, err));
}

const cd_model_type cd_model_llama = {
    .name = "llama",
    .summary = "list: Llama-7B",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(llama),
    .build = build,
    .forward = cd_list_forward,
    .losses = cd_list_losses,
};
