/* SPDX-License-Identifier: Apache-2.0 */
/* The op of parameter lists: the cheapest layer whose gradient identifies its parameter exactly. */
#include "core/model/layers/inner.h"

#include "core/base/error.h"
#include "core/model/op.h"

#include <string.h>

enum { ACC, P, X };

static int64_t scalar_count(const cddp_tensor *t)
{
    return cddp_tensor_numel(t) * (t->dtype == CDDP_C64 ? 2 : 1);
}

#define KERNELS "core/model/layers/inner_kernels.h"
#include "core/model/layers/each_real.h"

static cddp_status describe(const cd_op_call *call, cddp_layer_call *layer, cddp_error *err)
{
    (void)err;
    memcpy(&layer->integers[0], call->state, sizeof layer->integers[0]); /* the key's bits */
    return CDDP_OK;
}

static const cd_op inner_op = CD_OP("Inner", inner, CDDP_LAYER_ADD_INNER, describe);

cddp_status cd_inner_layer(cd_graph *graph, const cd_inner *inner, cd_value **y, cddp_error *err)
{
    cd_value *inputs[3] = {inner->acc, inner->p, inner->x}, *real[2] = {inner->x, inner->acc};
    cddp_dtype p = inner->p->tensor.dtype, x = inner->x->tensor.dtype;
    CD_TRY(cd_op_check_dtypes("inner product", real, 2, err));
    if (p != x && !(p == CDDP_C64 && x == CDDP_F32))
        return cd_fail(err, CDDP_E_ARG, "inner product: parameter is %s, x is %s",
                       cddp_dtype_name(p), cddp_dtype_name(x));
    if (inner->x->tensor.dim_count != 1 ||
        (inner->acc != NULL && !cd_tensor_same_sizes(&inner->acc->tensor, &inner->x->tensor)))
        return cd_fail(err, CDDP_E_ARG,
                       "inner product: x and the sum so far want one number per sample");
    if (inner->x->node != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "inner product: x wants a gradient");
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof inner->key, &state, err));
    *(uint64_t *)state = inner->key;
    cd_apply apply = {.op = &inner_op,
                      .inputs = inputs,
                      .input_count = 3,
                      .state = state,
                      .shapes = &inner->x->tensor,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
