/* SPDX-License-Identifier: Apache-2.0 */
/* resnet: the parameters and buffers of torchvision's ResNet-18, -50, -101 and -152 in their order
** and with their names, and the cost of each on a 224 × 224 image. A list: no convolution is
** computed.
*/
#include "core/model/zoo/list.h"
#include "core/base/error.h"
#include "core/model/zoo/parts.h"

typedef struct resnet {
    int64_t depth, classes;
} resnet;

static const cd_option options[] = {
    {"depth", CD_OPTION_CHOICE, offsetof(resnet, depth), "50", "18|50|101|152", 0, 0,
     "18, 50, 101 or 152 layers"},
    {"classes", CD_OPTION_INTEGER, offsetof(resnet, classes), "1000", NULL, 1, 1 << 20,
     "outputs of the classifier"},
};

/* depth, and how many blocks each of the four stages has */
static const struct {
    bool bottleneck;
    int64_t blocks[4];
} shapes[] = {{false, {2, 2, 2, 2}},
              {true, {3, 4, 6, 3}},
              {true, {3, 4, 23, 3}},
              {true, {3, 8, 36, 3}}};

/* A convolution and the batch norm after it. */
typedef struct conv_norm {
    const char *conv, *norm;
    int64_t out, in, kernel, side; /* side: height and width of the output */
} conv_norm;

static cddp_status add_conv_norm(cd_model *model, const conv_norm *c, cddp_error *err)
{
    cd_batch_norm norm;
    CD_TRY(cd_module_push(model->module, err, "%s", c->conv));
    CD_TRY(cd_list_add(
        model,
        &(cd_list_item){"weight", 4, {c->out, c->in, c->kernel, c->kernel}, c->side * c->side},
        err));
    cd_module_pop(model->module);
    CD_TRY(cd_module_push(model->module, err, "%s", c->norm));
    CD_TRY(cd_batch_norm_register(model->module, c->out, model->dtype, &norm, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

typedef struct block {
    int64_t in, width, side; /* side of its output */
    bool bottleneck, shortcut;
} block;

static cddp_status add_block(cd_model *model, const block *b, cddp_error *err)
{
    int64_t out = b->bottleneck ? 4 * b->width : b->width, w = b->width;
    if (b->bottleneck) {
        /* torchvision strides in the 3 × 3 convolution: the first one still sees the larger
        ** image. */
        int64_t before = b->shortcut && b->in != 64 ? 2 * b->side : b->side;
        CD_TRY(add_conv_norm(model, &(conv_norm){"conv1", "bn1", w, b->in, 1, before}, err));
        CD_TRY(add_conv_norm(model, &(conv_norm){"conv2", "bn2", w, w, 3, b->side}, err));
        CD_TRY(add_conv_norm(model, &(conv_norm){"conv3", "bn3", out, w, 1, b->side}, err));
    } else {
        CD_TRY(add_conv_norm(model, &(conv_norm){"conv1", "bn1", w, b->in, 3, b->side}, err));
        CD_TRY(add_conv_norm(model, &(conv_norm){"conv2", "bn2", w, w, 3, b->side}, err));
    }
    if (!b->shortcut) return CDDP_OK;
    CD_TRY(cd_module_push(model->module, err, "downsample"));
    CD_TRY(add_conv_norm(model, &(conv_norm){"0", "1", out, b->in, 1, b->side}, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    const resnet *m = model->state;
    bool bottleneck = shapes[m->depth].bottleneck;
    int64_t in = 64, expansion = bottleneck ? 4 : 1;
    CD_TRY(add_conv_norm(model, &(conv_norm){"conv1", "bn1", 64, 3, 7, 112}, err));
    for (int stage = 0; stage < 4; stage++) {
        int64_t width = INT64_C(64) << stage, side = INT64_C(56) >> stage;
        CD_TRY(cd_module_push(model->module, err, "layer%d", stage + 1));
        for (int64_t i = 0; i < shapes[m->depth].blocks[stage]; i++) {
            CD_TRY(cd_module_push(model->module, err, "%d", (int)i));
            bool shortcut = i == 0 && (stage > 0 || in != width * expansion);
            CD_TRY(add_block(model, &(block){in, width, side, bottleneck, shortcut}, err));
            in = width * expansion;
            cd_module_pop(model->module);
        }
        cd_module_pop(model->module);
    }
    CD_TRY(cd_module_push(model->module, err, "fc"));
    CD_TRY(cd_list_add(model, &(cd_list_item){"weight", 2, {m->classes, in}, 1}, err));
    CD_TRY(cd_list_add(model, &(cd_list_item){"bias", 1, {m->classes}, 1}, err));
    cd_module_pop(model->module);
    return CD_PASS(cd_list_finish(model, err));
}

const cd_model_type cd_model_resnet = {
    .name = "resnet",
    .summary = "list: ResNet-18, -50, -101, -152 (torchvision), with batch norm buffers",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(resnet),
    .build = build,
    .forward = cd_list_forward,
    .losses = cd_list_losses,
};
