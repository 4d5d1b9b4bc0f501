/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm: every position is normalised by itself. Moments are computed again in backward. */
#include "core/model/layers/norm.h"
#include "core/base/error.h"
#include "core/model/op.h"

#define LAYER_NORM_EPS 1e-5

typedef struct norm_sizes {
    int64_t rows, inner, width; /* rows = samples × inner */
} norm_sizes;

static norm_sizes sizes_of(const cd_op_call *c)
{
    const cddp_tensor *x = &c->inputs[0];
    norm_sizes z = {.inner = 1, .width = x->sizes[x->dim_count - 1]};
    for (uint32_t i = 1; i + 1 < x->dim_count; i++) z.inner *= x->sizes[i];
    z.rows = z.inner * x->sizes[0];
    return z;
}

static cddp_status describe(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    (void)c;
    (void)err;
    layer->reals[0] = LAYER_NORM_EPS;
    return CDDP_OK;
}

#define KERNELS "core/model/layers/layer_norm_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op layer_norm_op = CD_OP("LayerNorm", layer_norm, CDDP_LAYER_LAYER_NORM, describe);

cddp_status cd_layer_norm(cd_graph *graph, cd_value *x, cd_value *weight, cd_value *bias,
                          cd_value **y, cddp_error *err)
{
    cd_value *inputs[3] = {x, weight, bias};
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes("layer norm", inputs, 3, err));
    if (x->tensor.dim_count < 2 || !cd_tensor_same_sizes(&weight->tensor, &bias->tensor) ||
        weight->tensor.dim_count != 1 ||
        weight->tensor.sizes[0] != x->tensor.sizes[x->tensor.dim_count - 1])
        return cd_fail(err, CDDP_E_ARG, "layer norm: x %s does not fit weight %s",
                       cd_tensor_print_sizes(&x->tensor, left, sizeof left),
                       cd_tensor_print_sizes(&weight->tensor, right, sizeof right));
    cd_apply apply = {.op = &layer_norm_op,
                      .inputs = inputs,
                      .input_count = 3,
                      .shapes = &x->tensor,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
