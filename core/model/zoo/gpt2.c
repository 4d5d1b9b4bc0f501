/* SPDX-License-Identifier: Apache-2.0 */
/* gpt2: the parameters of GPT-2 in its four sizes (Hugging Face's GPT2LMHeadModel, head tied to the
** token table) in their order and with their names. A list.
*/
#include "core/base/error.h"
#include "core/model/zoo/list.h"

#define POSITIONS 1024
#define VOCABULARY 50257

typedef struct gpt2 {
    int64_t which;
} gpt2;

static const cd_option options[] = {
    {"parameters", CD_OPTION_CHOICE, offsetof(gpt2, which), "124M", "124M|355M|774M|1.5B", 0, 0,
     "124M, 355M, 774M or 1.5B"},
};

static const struct {
    int64_t width, layers;
} shapes[] = {{768, 12}, {1024, 24}, {1280, 36}, {1600, 48}};

/* GPT-2's Conv1D stores (in, out). in 0: a norm. */
static cddp_status add_pair(cd_model *model, const char *scope, int64_t in, int64_t out,
                            cddp_error *err)
{
    cd_list_item weight = {"weight", 2, {in, out}, POSITIONS};
    if (in == 0) weight = (cd_list_item){"weight", 1, {out}, POSITIONS};
    CD_TRY(cd_module_push(model->module, err, "%s", scope));
    CD_TRY(cd_list_add(model, &weight, err));
    CD_TRY(cd_list_add(model, &(cd_list_item){"bias", 1, {out}, POSITIONS}, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status add_block(cd_model *model, int64_t w, cddp_error *err)
{
    CD_TRY(add_pair(model, "ln_1", 0, w, err));
    CD_TRY(add_pair(model, "attn.c_attn", w, 3 * w, err));
    CD_TRY(add_pair(model, "attn.c_proj", w, w, err));
    CD_TRY(add_pair(model, "ln_2", 0, w, err));
    CD_TRY(add_pair(model, "mlp.c_fc", w, 4 * w, err));
    return CD_PASS(add_pair(model, "mlp.c_proj", 4 * w, w, err));
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    int64_t which = ((const gpt2 *)model->state)->which, w = shapes[which].width;
    CD_TRY(cd_module_push(model->module, err, "transformer"));
    /* The tied head multiplies by the table at every position. */
    CD_TRY(cd_list_add(model, &(cd_list_item){"wte.weight", 2, {VOCABULARY, w}, POSITIONS}, err));
    CD_TRY(cd_list_add(model, &(cd_list_item){"wpe.weight", 2, {POSITIONS, w}, 0}, err));
    CD_TRY(cd_module_push(model->module, err, "h"));
    for (int64_t i = 0; i < shapes[which].layers; i++) {
        CD_TRY(cd_module_push(model->module, err, "%d", (int)i));
        CD_TRY(add_block(model, w, err));
        cd_module_pop(model->module);
    }
    cd_module_pop(model->module);
    CD_TRY(add_pair(model, "ln_f", 0, w, err));
    cd_module_pop(model->module);
    CD_TRY(cd_module_add_alias(model->module, "lm_head.weight", 0, err));
    return CD_PASS(cd_list_finish(model, err));
}

const cd_model_type cd_model_gpt2 = {
    .name = "gpt2",
    .summary = "list: GPT-2 with 124M, 355M, 774M or 1.5B parameters",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(gpt2),
    .build = build,
    .forward = cd_list_forward,
    .losses = cd_list_losses,
};
