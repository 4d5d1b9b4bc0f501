/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention, softmax(q·kᵀ/√d)·v, head by head. Projections are linear layers
** outside. */
#include "core/model/layers/attention.h"

#include "core/base/error.h"
#include "core/model/op.h"

typedef struct attention_sizes {
    /* head = width / heads, stride = 3·width */
    int64_t samples, positions, width, heads, head, stride;
    bool causal;
} attention_sizes;

static attention_sizes sizes_of(const cd_op_call *c)
{
    const cddp_tensor *x = &c->inputs[0];
    const cd_attention *a = c->state;
    int64_t width = x->sizes[2] / 3;
    return (attention_sizes){.samples = x->sizes[0],
                             .positions = x->sizes[1],
                             .width = width,
                             .heads = a->heads,
                             .head = width / a->heads,
                             .stride = 3 * width,
                             .causal = a->causal};
}

static cddp_status describe(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    (void)err;
    const cd_attention *a = c->state;
    layer->integers[0] = a->heads;
    layer->integers[1] = a->causal;
    return CDDP_OK;
}

#define KERNELS "core/model/layers/attention_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op attention_op = CD_OP("Attention", attention, CDDP_LAYER_ATTENTION, describe);

cddp_status cd_attention_layer(cd_graph *graph, cd_value *qkv, const cd_attention *attention,
                               cd_value **y, cddp_error *err)
{
    const cddp_tensor *t = &qkv->tensor;
    char text[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes("attention", &qkv, 1, err));
    if (t->dim_count != 3 || attention->heads < 1 || t->sizes[2] % (3 * attention->heads) != 0)
        return cd_fail(err, CDDP_E_ARG,
                       "attention: %lld heads do not fit queries, keys and values %s",
                       (long long)attention->heads, cd_tensor_print_sizes(t, text, sizeof text));
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof *attention, &state, err));
    *(cd_attention *)state = *attention;
    cddp_tensor shape =
        cd_shape_of(t->dtype, (const int64_t[3]){t->sizes[0], t->sizes[1], t->sizes[2] / 3}, 3);
    cd_apply apply = {.op = &attention_op,
                      .inputs = &qkv,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
