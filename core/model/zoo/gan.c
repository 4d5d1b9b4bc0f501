/* SPDX-License-Identifier: Apache-2.0 */
/* gan: a DCGAN-like generator and discriminator in one module, with a loss each.
**
** branch 0 trains the discriminator on a real and a generated image; the generated one carries no
** history, so the generator's parameters are unused. branch 1 trains the generator through the
** discriminator as a constant, whose parameters are then unused. So each forward uses only one half
** of the module.
*/
#include "core/model/layers/activation.h"
#include "core/base/error.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/shapes.h"
#include "core/model/op.h"
#include "core/model/zoo/parts.h"

enum { DISCRIMINATOR, GENERATOR };

typedef struct gan {
    int64_t noise, channels, size, norm;
    cd_linear_part project;
    cd_batch_norm project_norm;
    cd_conv_part paint, look1, look2;
    cd_linear_part judge;
} gan;

static const cd_option options[] = {
    /* clang-format off */
    {"noise", CD_OPTION_INTEGER, offsetof(gan, noise), "6", NULL, 1, 1024, "numbers that an image is made from"},
    {"channels", CD_OPTION_INTEGER, offsetof(gan, channels), "4", NULL, 1, 256, "inside generator and discriminator"},
    {"size", CD_OPTION_INTEGER, offsetof(gan, size), "8", NULL, 4, 64, "height and width of an image; a multiple of 4"},
    {"norm", CD_OPTION_CHOICE, offsetof(gan, norm), "none", "none|batch", 0, 0, "batch norm in the generator"},
    /* clang-format on */
};

static cddp_status build_generator(cd_model *model, gan *m, cddp_error *err)
{
    int64_t half = m->size / 2;
    CD_TRY(cd_module_push(model->module, err, "generator"));
    cd_linear_spec project = {"project", m->noise, m->channels * half * half, true, 1};
    CD_TRY(cd_linear_register(model, &project, &m->project, err));
    if (m->norm) {
        CD_TRY(cd_module_push(model->module, err, "norm"));
        CD_TRY(cd_batch_norm_register(model->module, m->channels, model->dtype, &m->project_norm,
                                      err));
        cd_module_pop(model->module);
    }
    cd_conv_spec paint = {"paint", m->channels, 1, 3, 1, 1, m->size * m->size};
    CD_TRY(cd_conv_register(model, &paint, &m->paint, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status build_discriminator(cd_model *model, gan *m, cddp_error *err)
{
    int64_t half = m->size / 2, quarter = m->size / 4;
    CD_TRY(cd_module_push(model->module, err, "discriminator"));
    cd_conv_spec look = {"look1", 1, m->channels, 4, 2, 1, half * half};
    CD_TRY(cd_conv_register(model, &look, &m->look1, err));
    look = (cd_conv_spec){"look2", m->channels, 2 * m->channels, 4, 2, 1, quarter * quarter};
    CD_TRY(cd_conv_register(model, &look, &m->look2, err));
    cd_linear_spec judge = {"judge", 2 * m->channels * quarter * quarter, 1, true, 1};
    CD_TRY(cd_linear_register(model, &judge, &m->judge, err));
    cd_module_pop(model->module);
    return CDDP_OK;
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    gan *m = model->state;
    if (m->size % 4 != 0)
        return cd_fail(err, CDDP_E_CONFIG, "model gan: size=%lld is not a multiple of 4",
                       (long long)m->size);
    CD_TRY(build_generator(model, m, err));
    CD_TRY(build_discriminator(model, m, err));
    CD_TRY(cd_model_add_input(model,
                              &(cd_field){.name = "image",
                                          .kind = CD_FIELD_REAL,
                                          .dim_count = 3,
                                          .sizes = {1, m->size, m->size}},
                              err));
    CD_TRY(cd_model_add_input(
        model,
        &(cd_field){.name = "noise", .kind = CD_FIELD_REAL, .dim_count = 1, .sizes = {m->noise}},
        err));
    CD_TRY(cd_model_add_output(model, &(cd_field){.name = "discriminator", .kind = CD_FIELD_NONE},
                               err));
    return CD_PASS(
        cd_model_add_output(model, &(cd_field){.name = "generator", .kind = CD_FIELD_NONE}, err));
}

static cddp_status generate(const gan *m, cd_graph *graph, const cd_batch *batch, cd_value **image,
                            cddp_error *err)
{
    cd_value *x = NULL;
    CD_TRY(cd_graph_input(graph, &batch->inputs[1], &x, err));
    CD_TRY(cd_linear_run(graph, &m->project, x, &x, err));
    int64_t sizes[4] = {batch->sample_count, m->channels, m->size / 2, m->size / 2};
    CD_TRY(cd_reshape(graph, x, sizes, 4, &x, err));
    if (m->norm) CD_TRY(cd_batch_norm_layer(graph, x, &m->project_norm, &x, err));
    CD_TRY(cd_relu(graph, x, &x, err));
    CD_TRY(cd_upsample2d(graph, x, 2, &x, err));
    CD_TRY(cd_conv_run(graph, &m->paint, x, false, &x, err));
    return CD_PASS(cd_tanh_layer(graph, x, image, err));
}

static cddp_status discriminate(const gan *m, cd_graph *graph, cd_value *image, bool frozen,
                                cd_value **logit, cddp_error *err)
{
    cd_value *x = NULL;
    CD_TRY(cd_conv_run(graph, &m->look1, image, frozen, &x, err));
    CD_TRY(cd_relu(graph, x, &x, err));
    CD_TRY(cd_conv_run(graph, &m->look2, x, frozen, &x, err));
    CD_TRY(cd_relu(graph, x, &x, err));
    int64_t sizes[2] = {x->tensor.sizes[0], cd_tensor_row_numel(&x->tensor)};
    CD_TRY(cd_reshape(graph, x, sizes, 2, &x, err));
    return CD_PASS(frozen ? cd_linear_run_frozen(graph, &m->judge, x, logit, err)
                          : cd_linear_run(graph, &m->judge, x, logit, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const gan *m = model->state;
    cd_value *fake = NULL, *real = NULL, *logits[2];
    if (batch->branch > GENERATOR)
        return cd_fail(err, CDDP_E_ARG,
                       "model gan: branch %u; 0 trains the discriminator, 1 the generator",
                       (unsigned)batch->branch);
    if (batch->branch == GENERATOR) {
        CD_TRY(generate(m, graph, batch, &fake, err));
        return CD_PASS(discriminate(m, graph, fake, true, &outputs->values[GENERATOR], err));
    }
    bool enabled = graph->grad_enabled;
    graph->grad_enabled = false; /* fake.detach() */
    cddp_status status = generate(m, graph, batch, &fake, err);
    graph->grad_enabled = enabled;
    if (status != CDDP_OK) {
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &real, err));
    CD_TRY(discriminate(m, graph, real, false, &logits[0], err));
    CD_TRY(discriminate(m, graph, fake, false, &logits[1], err));
    return CD_PASS(cd_concat(graph, logits, 2, &outputs->values[DISCRIMINATOR], err));
}

/* Real images should be called 1 and generated ones 0; the generator wants its own called 1. */
static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)model;
    (void)target;
    cddp_tensor labels;
    const cddp_tensor *t = &value->tensor;
    CD_TRY(cd_graph_tensor(graph, t->dtype, t->sizes, t->dim_count, &labels, err));
    if (cd_graph_computes(graph)) {
        cddp_tensor real = labels; /* the first column; for the generator all there is */
        real.sizes[1] = 1;
        CD_TRY(real.device->fill(&real, 1.0, NULL, err));
    }
    (void)output;
    return CD_PASS(cd_loss_run(graph, CD_LOSS_BCE, value, &labels, result, err));
}

const cd_model_type cd_model_gan = {
    .name = "gan",
    .summary = "generator and discriminator in one module; branch says which of the two trains",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(gan),
    .build = build,
    .forward = forward,
    .losses = losses,
};
