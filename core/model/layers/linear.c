/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs have the order of PyTorch's addmm, bias first. Leaves that become ready together fire in
** the order of their edges, so the bias arrives before the weight (REB-05).
*/
#include "core/model/layers/linear.h"

#include "core/base/error.h"
#include "core/model/layers/product.h"
#include "core/model/op.h"

enum { BIAS, X, WEIGHT };

typedef struct linear_sizes {
    int64_t rows, inner, in, out; /* rows = samples × inner */
} linear_sizes;

static linear_sizes sizes_of(const cd_op_call *c)
{
    const cddp_tensor *x = &c->inputs[X], *w = &c->inputs[WEIGHT];
    linear_sizes z = {.rows = 1, .inner = 1, .in = w->sizes[1], .out = w->sizes[0]};
    for (uint32_t i = 0; i + 1 < x->dim_count; i++) z.rows *= x->sizes[i];
    for (uint32_t i = 1; i + 1 < x->dim_count; i++) z.inner *= x->sizes[i];
    return z;
}

#define KERNELS "core/model/layers/linear_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op linear_op = CD_OP("Linear", linear, CDDP_LAYER_LINEAR, NULL);

cddp_status cd_linear(cd_graph *graph, cd_value *x, cd_value *weight, cd_value *bias, cd_value **y,
                      cddp_error *err)
{
    cd_value *inputs[3] = {bias, x, weight}, *real[3] = {x, weight, bias};
    const cddp_tensor *xt = &x->tensor, *w = &weight->tensor;
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes("linear", real, 3, err));
    if (xt->dim_count < 2 || w->dim_count != 2 || xt->sizes[xt->dim_count - 1] != w->sizes[1])
        return cd_fail(err, CDDP_E_ARG, "linear: x %s does not fit weight %s",
                       cd_tensor_print_sizes(xt, left, sizeof left),
                       cd_tensor_print_sizes(w, right, sizeof right));
    if (bias != NULL && (bias->tensor.dim_count != 1 || bias->tensor.sizes[0] != w->sizes[0]))
        return cd_fail(err, CDDP_E_ARG, "linear: bias %s does not fit weight %s",
                       cd_tensor_print_sizes(&bias->tensor, left, sizeof left),
                       cd_tensor_print_sizes(w, right, sizeof right));
    cddp_tensor shape = *xt;
    shape.sizes[shape.dim_count - 1] = w->sizes[0];
    cd_apply apply = {
        .op = &linear_op, .inputs = inputs, .input_count = 3, .shapes = &shape, .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
