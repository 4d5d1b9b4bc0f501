/* SPDX-License-Identifier: Apache-2.0 */
/* moe: a residual mixture of experts with top-1 routing between two linear layers. Experts that no
** sample chose are unused in that forward, differently on every rank.
*/
#include "core/model/layers/activation.h"
#include "core/base/error.h"
#include "core/model/layers/experts.h"
#include "core/model/layers/shapes.h"
#include "core/model/zoo/parts.h"

typedef struct expert {
    cd_linear_part up, down;
} expert;

typedef struct moe {
    int64_t in, width, hidden, experts, out, loss;
    cd_linear_part entry, gate, exit;
    expert expert[CD_EXPERTS_MAX];
} moe;

static const cd_option options[] = {
    {"in", CD_OPTION_INTEGER, offsetof(moe, in), "4", NULL, 1, 4096, "numbers of a sample"},
    {"width", CD_OPTION_INTEGER, offsetof(moe, width), "6", NULL, 1, 4096, "around the experts"},
    {"hidden", CD_OPTION_INTEGER, offsetof(moe, hidden), "8", NULL, 1, 4096, "inside an expert"},
    {"experts", CD_OPTION_INTEGER, offsetof(moe, experts), "4", NULL, 1, CD_EXPERTS_MAX,
     "of which every sample uses one"},
    {"out", CD_OPTION_INTEGER, offsetof(moe, out), "3", NULL, 1, 4096, "outputs"},
    {"loss", CD_OPTION_CHOICE, offsetof(moe, loss), "mse", CD_LOSSES, 0, 0,
     "squared error, inner product with the target, binary or softmax cross-entropy"},
};

static cddp_status build(cd_model *model, cddp_error *err)
{
    moe *m = model->state;
    model->leaves_parts_out = model->routes_by_values = m->experts > 1;
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"entry", m->in, m->width, true, 1},
                              &m->entry, err));
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"gate", m->width, m->experts, false, 1},
                              &m->gate, err));
    CD_TRY(cd_module_push(model->module, err, "experts"));
    for (int64_t e = 0; e < m->experts; e++) {
        CD_TRY(cd_module_push(model->module, err, "%d", (int)e));
        CD_TRY(cd_linear_register(model, &(cd_linear_spec){"up", m->width, m->hidden, true, 1},
                                  &m->expert[e].up, err));
        CD_TRY(cd_linear_register(model, &(cd_linear_spec){"down", m->hidden, m->width, true, 1},
                                  &m->expert[e].down, err));
        cd_module_pop(model->module);
    }
    cd_module_pop(model->module);
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"exit", m->width, m->out, true, 1}, &m->exit,
                              err));
    CD_TRY(cd_model_add_input(
        model, &(cd_field){.name = "x", .kind = CD_FIELD_REAL, .dim_count = 1, .sizes = {m->in}},
        err));
    cd_field target = cd_loss_target(m->loss, "out", &m->out, 1);
    return CD_PASS(cd_model_add_output(model, &target, err));
}

static cddp_status run_expert(const expert *e, cd_graph *graph, cd_value *x, cd_value **y,
                              cddp_error *err)
{
    CD_TRY(cd_linear_run(graph, &e->up, x, &x, err));
    CD_TRY(cd_relu(graph, x, &x, err));
    return CD_PASS(cd_linear_run(graph, &e->down, x, y, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const moe *m = model->state;
    cd_value *x = NULL, *logits = NULL, *mixed = NULL, *results[CD_EXPERTS_MAX] = {NULL};
    cd_routing routing;
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &x, err));
    CD_TRY(cd_linear_run(graph, &m->entry, x, &x, err));
    CD_TRY(cd_linear_run(graph, &m->gate, x, &logits, err));
    CD_TRY(cd_route_top1(graph, logits, batch->sample_ids, &routing, err));
    for (int64_t e = 0; e < m->experts; e++) {
        if (routing.count[e] == 0) continue;
        CD_TRY(cd_expert_take(graph, x, &routing, e, &results[e], err));
        CD_TRY(run_expert(&m->expert[e], graph, results[e], &results[e], err));
    }
    CD_TRY(cd_expert_combine(graph, results, &routing, &mixed, err));
    CD_TRY(cd_add(graph, x, mixed, &x, err));
    return CD_PASS(cd_linear_run(graph, &m->exit, x, &outputs->values[0], err));
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)output;
    return CD_PASS(
        cd_loss_run(graph, ((const moe *)model->state)->loss, value, target, result, err));
}

const cd_model_type cd_model_moe = {
    .name = "moe",
    .summary = "mixture of experts, top-1: experts that nobody chose are unused",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(moe),
    .build = build,
    .forward = forward,
    .losses = losses,
};
