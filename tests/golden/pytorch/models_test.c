/* SPDX-License-Identifier: Apache-2.0 */
/* Loss, gradients and order of arrival of whole models against PyTorch's (models.txt, made by
** models.py). The file is the first argument, so that the same executable judges freshly made
** numbers.
*/
#include "tests/golden/pytorch/golden.h"

#include "core/base/prng.h"
#include "core/model/engine.h"
#include "core/model/model.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLES = 3 };

static const char *path;

static const struct {
    const char *golden, *name, *options;
    uint32_t branch;
} cases[] = {
    {"mlp", "mlp", "widths=4:6:5:3", 0},
    {"cnn", "cnn", "norm=batch", 0},
    {"transformer", "transformer", NULL, 0},
    {"tied_lm", "tied_lm", NULL, 0},
    {"gan0", "gan", NULL, 0},
    {"gan1", "gan", NULL, 1},
    {"moe", "moe", NULL, 0},
};

typedef struct arrivals {
    const cd_module *module;
    char text[4096];
} arrivals;

static cddp_status note(void *context, uint32_t parameter, cddp_grad *grad, cddp_error *err)
{
    arrivals *a = context;
    (void)grad;
    (void)err;
    size_t used = strlen(a->text);
    snprintf(a->text + used, sizeof a->text - used, "%s%s", used > 0 ? " " : "",
             a->module->parameters[parameter].name);
    return CDDP_OK;
}

static void fill_fields(const cd_model *model, cd_batch *batch)
{
    for (uint32_t i = 0; i < model->input_count; i++) {
        if (model->inputs[i].kind == CD_FIELD_REAL)
            fill_pattern(&batch->inputs[i], 90 + i, 1);
        else
            fill_classes(&batch->inputs[i], model->inputs[i].class_count, 7, 3);
    }
    for (uint32_t i = 0; i < model->output_count; i++) {
        if (model->targets[i].kind == CD_FIELD_REAL) fill_pattern(&batch->targets[i], 80, 1);
        if (model->targets[i].kind == CD_FIELD_CLASS)
            fill_classes(&batch->targets[i], model->targets[i].class_count, 5, 1);
    }
}

static cd_value *run(cd_model *model, cd_graph *graph, uint32_t branch, cddp_error *err)
{
    cd_batch batch;
    cd_outputs outputs;
    cd_value *loss = NULL;
    cd_prng prng = cd_prng_seed(1);
    cd_batch_request request = {.sample_ids = (const int64_t[SAMPLES]){0, 1, 2},
                                .sample_count = SAMPLES,
                                .prng = &prng};
    for (uint32_t p = 0; p < model->module->parameter_count; p++)
        fill_pattern(&model->module->parameters[p].tensor, p, 8);
    assert_ok(cd_batch_make(graph, model, &request, &batch, err), err);
    fill_fields(model, &batch);
    batch.branch = branch;
    assert_ok(cd_model_forward(model, graph, &batch, &outputs, err), err);
    assert_ok(cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, &loss, err), err);
    cd_backward_options options = {.roots = &loss, .root_count = 1};
    assert_ok(cd_graph_backward(graph, &options, err), err);
    return loss;
}

TEST(models, agree_with_pytorch_in_gradients_and_in_order_of_arrival)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        cddp_error err;
        char key[CD_NAME_BYTES_MAX + 32];
        cd_model *model = NULL;
        cd_graph *graph = NULL;
        cd_prng prng = cd_prng_seed(1);
        cd_model_options options = {.name = cases[k].name,
                                    .options = cases[k].options,
                                    .dtype = CDDP_F64,
                                    .device = cddp_device_cpu(),
                                    .prng = &prng};
        cd_test_row("%s", cases[k].golden);
        assert_ok(cd_model_create(&options, &model, &err), &err);
        assert_ok(cd_graph_create(model->module, NULL, &graph, &err), &err);
        arrivals a = {.module = model->module};
        cd_graph_callbacks callbacks = {.context = &a, .ready = note};
        cd_graph_set_callbacks(graph, &callbacks);
        cd_value *loss = run(model, graph, cases[k].branch, &err);
        snprintf(key, sizeof key, "%s.loss", cases[k].golden);
        assert_golden(path, key, &loss->tensor);
        snprintf(key, sizeof key, "%s.order", cases[k].golden);
        assert_non_null(golden_text(path, key));
        assert_string_equal(a.text, golden_text(path, key));
        for (size_t p = 0; p < model->module->parameter_count; p++) {
            const cd_parameter *parameter = &model->module->parameters[p];
            snprintf(key, sizeof key, "%s.%s", cases[k].golden, parameter->name);
            if (parameter->grad.kind == CDDP_GRAD_DENSE)
                assert_golden(path, key, &parameter->grad.value);
            else
                assert_null(golden_text(path, key));
        }
        cd_graph_destroy(graph);
        cd_model_destroy(model);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s models.txt\n", argv[0]);
        return 2;
    }
    path = argv[1];
    argv[1] = argv[0];
    return cd_test_main(argc - 1, argv + 1, __FILE__);
}
