/* SPDX-License-Identifier: Apache-2.0 */
/* chain: only square linear layers, one after the other. Every layer can run 0, 1 or 2 times, and
** every number is exact for dyadic parameters and inputs. An order may name a layer again, with
** others in between. The layers may share one weight, and all but the one that runs first may be
** checkpointed. Its input wants no gradient, so a re-entrant checkpoint around it would have none.
*/
#include "core/model/checkpoint.h"
#include "core/base/error.h"
#include "core/model/zoo/parts.h"

#include <stdio.h>

#define DEPTH_MAX 64

typedef struct chain {
    int64_t depth, width, bias, tied, checkpoint, loss;
    cd_integers order;
    cd_linear_part layers[DEPTH_MAX];
} chain;

static const cd_option options[] = {
    /* clang-format off */
    {"depth", CD_OPTION_INTEGER, offsetof(chain, depth), "3", NULL, 1, DEPTH_MAX, "layers"},
    {"width", CD_OPTION_INTEGER, offsetof(chain, width), "4", NULL, 1, 1 << 16, "numbers between layers"},
    {"bias", CD_OPTION_INTEGER, offsetof(chain, bias), "1", NULL, 0, 1, "layers have a bias"},
    {"tied", CD_OPTION_INTEGER, offsetof(chain, tied), "0", NULL, 0, 1, "all layers share the weight of the first"},
    /* clang-format on */
    {"checkpoint", CD_OPTION_CHOICE, offsetof(chain, checkpoint), "none",
     "none|reentrant|non_reentrant", 0, 0,
     "activation checkpointing of every layer but the one that runs first"},
    {"order", CD_OPTION_INTEGERS, offsetof(chain, order), "-1", NULL, -1, DEPTH_MAX - 1,
     "in which order layers run, some of them again perhaps; -1: each once"},
    {"loss", CD_OPTION_CHOICE, offsetof(chain, loss), "dot", CD_LOSSES, 0, 0,
     "squared error, inner product with the target, binary or softmax cross-entropy"},
};

static cddp_status check_order(const chain *m, cddp_error *err)
{
    if (m->order.count == 1 && m->order.items[0] < 0) return CDDP_OK;
    for (uint32_t i = 0; i < m->order.count; i++)
        if (m->order.items[i] < 0 || m->order.items[i] >= m->depth)
            return cd_fail(err, CDDP_E_CONFIG, "model chain: order names layer %lld of %lld",
                           (long long)m->order.items[i], (long long)m->depth);
    return CDDP_OK;
}

static cddp_status build(cd_model *model, cddp_error *err)
{
    chain *m = model->state;
    CD_TRY(check_order(m, err));
    for (int64_t i = 0; i < m->depth; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", (int)i);
        cd_linear_spec spec = {.name = name, .in = m->width, .out = m->width, .bias = m->bias != 0};
        if (m->tied && i > 0)
            CD_TRY(cd_linear_register_tied(model, &spec, m->layers[0].weight, &m->layers[i], err));
        else
            CD_TRY(cd_linear_register(model, &spec, &m->layers[i], err));
        CD_TRY(cd_model_add_unit(model, name, 1, err));
    }
    cd_field input = {.name = "x", .kind = CD_FIELD_REAL, .dim_count = 1, .sizes = {m->width}};
    CD_TRY(cd_model_add_input(model, &input, err));
    cd_field target = cd_loss_target(m->loss, "out", &m->width, 1);
    return CD_PASS(cd_model_add_output(model, &target, err));
}

static cddp_status run_layer(cd_graph *graph, void *context, cd_value *x, cd_value **y,
                             cddp_error *err)
{
    return CD_PASS(cd_linear_run(graph, context, x, y, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    chain *m = model->state;
    cd_value *x = NULL;
    const bool is_listed = m->order.items[0] < 0;
    const size_t count = is_listed ? model->unit_count : m->order.count,
                 first = is_listed ? 0 : (size_t)m->order.items[0];
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &x, err));
    for (size_t at = 0; at < count; at++) {
        const size_t i = is_listed ? at : (size_t)m->order.items[at];
        cd_checkpoint_kind kind =
            i != first ? (cd_checkpoint_kind)m->checkpoint : CD_CHECKPOINT_NONE;
        cd_checkpoint checkpoint = {kind, run_layer, &m->layers[i]};
        for (uint8_t use = 0; use < cd_model_unit_uses(model, batch, i); use++)
            CD_TRY(cd_checkpoint_run(graph, &checkpoint, x, &x, err));
    }
    outputs->values[0] = x;
    return CDDP_OK;
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)output;
    return CD_PASS(
        cd_loss_run(graph, ((const chain *)model->state)->loss, value, target, result, err));
}

const cd_model_type cd_model_chain = {
    .name = "chain",
    .summary =
        "square linear layers; each may run 0, 1 or 2 times; one weight for all, checkpointing",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(chain),
    .build = build,
    .forward = forward,
    .losses = losses,
};
