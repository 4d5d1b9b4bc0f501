/* SPDX-License-Identifier: Apache-2.0 */
/* The op of recorded gradients. */
#include "core/model/layers/given.h"

#include "core/base/error.h"
#include "core/model/op.h"

enum { ACC, P };

#define KERNELS "core/model/layers/given_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op given_op = CD_OP("Given", given, CDDP_LAYER_NONE, NULL);

cddp_status cd_given_layer(cd_graph *graph, const cd_given *given, cd_value **y, cddp_error *err)
{
    cd_value *inputs[2] = {given->acc, given->p};
    const cddp_tensor sums = cd_shape_of(given->p->tensor.dtype, &given->sample_count, 1);
    if (given->acc != NULL && (given->acc->tensor.dtype != sums.dtype ||
                               !cd_tensor_same_sizes(&given->acc->tensor, &sums)))
        return cd_fail(err, CDDP_E_ARG,
                       "given gradients: the sum so far wants one %s per sample, of %lld",
                       cddp_dtype_name(sums.dtype), (long long)given->sample_count);
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof given->constants, &state, err));
    *(const double **)state = given->constants;
    const cd_apply apply = {.op = &given_op,
                            .inputs = inputs,
                            .input_count = 2,
                            .state = state,
                            .shapes = &sums,
                            .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
