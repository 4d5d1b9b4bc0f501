/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of parameters. */
#include "bench/list.h"

#include "core/model/model.h"

#include <stdio.h>
#include <string.h>

/* The real list, from the model's own table; its arithmetic is not used. */
static bool read_resnet50(bench_list *p)
{
    cd_model_options o = {.name = "resnet",
                          .options = "depth=50",
                          .device = cddp_device_shape(),
                          .dtype = CDDP_F32};
    cd_model *model = NULL;
    cddp_error err = CDDP_ERROR_INIT;
    cd_prng prng = cd_prng_seed(1);
    o.prng = &prng;
    if (cd_model_create(&o, &model, &err) != CDDP_OK)
        return fprintf(stderr, "%s\n", err.message), false;
    for (size_t i = 0; i < model->module->parameter_count && p->count < BENCH_PARAMETERS_MAX; i++)
        p->numel[p->count++] = cddp_tensor_numel(&model->module->parameters[i].tensor);
    cd_model_destroy(model);
    return true;
}

/* Of examples/gpt2 with four layers of 128 channels, as cost.sh there has it. */
static void write_gpt2(bench_list *p)
{
    enum { LAYERS = 4, WIDTH = 128, VOCABULARY = 256, CONTEXT = 64, SQUARE = WIDTH * WIDTH };
    static const int64_t of_a_layer[] = {WIDTH, WIDTH, 3 * SQUARE, 3 * WIDTH, SQUARE,     WIDTH,
                                         WIDTH, WIDTH, 4 * SQUARE, 4 * WIDTH, 4 * SQUARE, WIDTH};
    p->count = 0;
    p->numel[p->count++] = VOCABULARY * WIDTH;
    p->numel[p->count++] = CONTEXT * WIDTH;
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < sizeof of_a_layer / sizeof of_a_layer[0]; i++)
            p->numel[p->count++] = of_a_layer[i];
    for (int i = 0; i < 2; i++) p->numel[p->count++] = WIDTH;
}

const bench_list *bench_list_find(const char *name)
{
    static bench_list lists[] = {{.name = "resnet50"},
                                 {.name = "tiny", .count = 1000},
                                 {.name = "mlp", .count = 4, .numel = {1000, 100, 1000, 10}},
                                 {.name = "gpt2"}};
    for (size_t i = 0; i < lists[1].count; i++) lists[1].numel[i] = 64;
    if (lists[0].count == 0 && !read_resnet50(&lists[0])) return NULL;
    write_gpt2(&lists[3]);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (strcmp(name, lists[i].name) == 0) return &lists[i];
    return NULL;
}
