/* SPDX-License-Identifier: Apache-2.0 */
/* branchy: a trunk, one of several branches, a head. The batch selects the branch (branch mod
** branches), so ranks and steps may differ. Parameters of the other branches are unused.
*/
#include "core/model/layers/activation.h"
#include "core/base/error.h"
#include "core/model/zoo/parts.h"

#include <stdio.h>

#define BRANCHES_MAX 16

typedef struct branchy {
    int64_t in, width, out, branches, loss;
    cd_linear_part trunk, branch[BRANCHES_MAX], head;
} branchy;

static const cd_option options[] = {
    {"in", CD_OPTION_INTEGER, offsetof(branchy, in), "4", NULL, 1, 4096, "numbers of a sample"},
    {"width", CD_OPTION_INTEGER, offsetof(branchy, width), "5", NULL, 1, 4096,
     "of trunk and branches"},
    {"out", CD_OPTION_INTEGER, offsetof(branchy, out), "2", NULL, 1, 4096, "outputs"},
    {"branches", CD_OPTION_INTEGER, offsetof(branchy, branches), "2", NULL, 1, BRANCHES_MAX,
     "of which a forward takes one"},
    {"loss", CD_OPTION_CHOICE, offsetof(branchy, loss), "dot", CD_LOSSES, 0, 0,
     "squared error, inner product with the target, binary or softmax cross-entropy"},
};

static cddp_status build(cd_model *model, cddp_error *err)
{
    branchy *m = model->state;
    model->leaves_parts_out = m->branches > 1;
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"trunk", m->in, m->width, true, 1},
                              &m->trunk, err));
    for (int64_t i = 0; i < m->branches; i++) {
        char name[32];
        snprintf(name, sizeof name, "branches.%d", (int)i);
        CD_TRY(cd_linear_register(model, &(cd_linear_spec){name, m->width, m->width, true, 1},
                                  &m->branch[i], err));
    }
    CD_TRY(cd_linear_register(model, &(cd_linear_spec){"head", m->width, m->out, true, 1}, &m->head,
                              err));
    CD_TRY(cd_model_add_input(
        model, &(cd_field){.name = "x", .kind = CD_FIELD_REAL, .dim_count = 1, .sizes = {m->in}},
        err));
    cd_field target = cd_loss_target(m->loss, "out", &m->out, 1);
    return CD_PASS(cd_model_add_output(model, &target, err));
}

static cddp_status forward(cd_model *model, cd_graph *graph, const cd_batch *batch,
                           cd_outputs *outputs, cddp_error *err)
{
    const branchy *m = model->state;
    cd_value *x = NULL;
    CD_TRY(cd_graph_input(graph, &batch->inputs[0], &x, err));
    CD_TRY(cd_linear_run(graph, &m->trunk, x, &x, err));
    CD_TRY(cd_relu(graph, x, &x, err));
    CD_TRY(cd_linear_run(graph, &m->branch[batch->branch % (uint32_t)m->branches], x, &x, err));
    CD_TRY(cd_relu(graph, x, &x, err));
    return CD_PASS(cd_linear_run(graph, &m->head, x, &outputs->values[0], err));
}

static cddp_status losses(cd_model *model, cd_graph *graph, uint32_t output, cd_value *value,
                          const cddp_tensor *target, cd_value **result, cddp_error *err)
{
    (void)output;
    return CD_PASS(
        cd_loss_run(graph, ((const branchy *)model->state)->loss, value, target, result, err));
}

const cd_model_type cd_model_branchy = {
    .name = "branchy",
    .summary = "control flow: the batch says which of several branches runs",
    .options = options,
    .option_count = CD_COUNT_OF(options),
    .state_bytes = sizeof(branchy),
    .build = build,
    .forward = forward,
    .losses = losses,
};
