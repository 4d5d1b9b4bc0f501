/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise functions of one value. */
#include "core/model/layers/activation.h"

#include "core/base/error.h"
#include "core/model/op.h"

#define KERNELS "core/model/layers/activation_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op relu_op = CD_OP("Relu", relu, CDDP_LAYER_RELU, NULL);
static const cd_op gelu_op = CD_OP("Gelu", gelu, CDDP_LAYER_GELU, NULL);
static const cd_op tanh_op = CD_OP("Tanh", tanh, CDDP_LAYER_TANH, NULL);
static const cd_op sigmoid_op = CD_OP("Sigmoid", sigmoid, CDDP_LAYER_SIGMOID, NULL);

static cddp_status apply_to(cd_graph *graph, const cd_op *op, cd_value *x, cd_value **y,
                            cddp_error *err)
{
    void *state = NULL; /* one pointer, for what gelu keeps */
    CD_TRY(cd_op_check_dtypes(op->name, &x, 1, err));
    CD_TRY(cd_graph_push(graph, sizeof state, &state, err));
    cd_apply apply = {.op = op,
                      .inputs = &x,
                      .input_count = 1,
                      .state = state,
                      .shapes = &x->tensor,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}

cddp_status cd_relu(cd_graph *graph, cd_value *x, cd_value **y, cddp_error *err)
{
    return CD_PASS(apply_to(graph, &relu_op, x, y, err));
}

cddp_status cd_gelu_layer(cd_graph *graph, cd_value *x, cd_value **y, cddp_error *err)
{
    return CD_PASS(apply_to(graph, &gelu_op, x, y, err));
}

cddp_status cd_tanh_layer(cd_graph *graph, cd_value *x, cd_value **y, cddp_error *err)
{
    return CD_PASS(apply_to(graph, &tanh_op, x, y, err));
}

cddp_status cd_sigmoid_layer(cd_graph *graph, cd_value *x, cd_value **y, cddp_error *err)
{
    return CD_PASS(apply_to(graph, &sigmoid_op, x, y, err));
}
