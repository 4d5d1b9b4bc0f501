/* SPDX-License-Identifier: Apache-2.0 */
/* Applying an op: outputs, forward kernel, node. The one path by which every layer enters the
** tape. */
#include "core/model/op.h"

#include "core/base/assert.h"
#include "core/base/error.h"

#include <stdio.h>

cddp_tensor cd_shape_of(cddp_dtype dtype, const int64_t *sizes, uint32_t dim_count)
{
    return cddp_tensor_of(NULL, NULL, 0, dtype, sizes, dim_count);
}

int64_t cd_tensor_row_numel(const cddp_tensor *t)
{
    int64_t numel = 1;
    for (uint32_t i = 1; i < t->dim_count; i++) numel *= t->sizes[i];
    return numel;
}

bool cd_tensor_same_sizes(const cddp_tensor *a, const cddp_tensor *b)
{
    if (a->dim_count != b->dim_count) return false;
    for (uint32_t i = 0; i < a->dim_count; i++)
        if (a->sizes[i] != b->sizes[i]) return false;
    return true;
}

const char *cd_tensor_print_sizes(const cddp_tensor *t, char *text, size_t text_bytes)
{
    size_t used = 0;
    int n = snprintf(text, text_bytes, "(");
    for (uint32_t i = 0; i < t->dim_count && n >= 0; i++) {
        used += (size_t)n;
        if (used >= text_bytes) return text;
        n = snprintf(text + used, text_bytes - used, "%s%lld", i > 0 ? ", " : "",
                     (long long)t->sizes[i]);
    }
    if (n >= 0 && used + (size_t)n < text_bytes)
        snprintf(text + used + (size_t)n, text_bytes - used - (size_t)n, ")");
    return text;
}

cddp_status cd_op_check_dtypes(const char *layer, cd_value *const *inputs, uint32_t input_count,
                               cddp_error *err)
{
    cddp_dtype first = inputs[0]->tensor.dtype;
    if (first != CDDP_F32 && first != CDDP_F64)
        return cd_fail(err, CDDP_E_ARG, "%s computes in f32 and f64, not in %s", layer,
                       cddp_dtype_name(first));
    for (uint32_t i = 1; i < input_count; i++)
        if (inputs[i] != NULL && inputs[i]->tensor.dtype != first)
            return cd_fail(err, CDDP_E_ARG, "%s: operand 0 is %s, operand %u is %s", layer,
                           cddp_dtype_name(first), (unsigned)i,
                           cddp_dtype_name(inputs[i]->tensor.dtype));
    return CDDP_OK;
}

static cddp_status run_forward(cd_graph *graph, const cd_apply *apply, cd_value *const *outputs,
                               cddp_error *err)
{
    if (!cd_graph_computes(graph) || apply->op->forward[0] == NULL) return CDDP_OK;
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, (apply->input_count + apply->output_count) * sizeof(cddp_tensor),
                         &memory, err));
    cddp_tensor *inputs = memory, *made = inputs + apply->input_count;
    for (uint32_t i = 0; i < apply->input_count; i++)
        if (apply->inputs[i] != NULL) inputs[i] = apply->inputs[i]->tensor;
    for (uint32_t i = 0; i < apply->output_count; i++) made[i] = outputs[i]->tensor;
    cd_op_call call = {.graph = graph,
                       .state = apply->state,
                       .input_count = apply->input_count,
                       .output_count = apply->output_count,
                       .inputs = inputs,
                       .outputs = made};
    return CD_PASS(cd_op_run(apply->op, &call, false, err));
}

/* Values in whose place others are read. */
static cddp_status read_inputs(cd_graph *graph, const cd_apply *given, cd_apply *apply,
                               cddp_error *err)
{
    void *memory = NULL;
    *apply = *given;
    if (graph->callbacks.cross == NULL) return CDDP_OK;
    CD_TRY(cd_graph_push(graph, given->input_count * sizeof(cd_value *), &memory, err));
    cd_value **inputs = memory;
    for (uint32_t i = 0; i < given->input_count; i++)
        CD_TRY(cd_graph_read(graph, given->inputs[i], &inputs[i], err));
    apply->inputs = inputs;
    return CDDP_OK;
}

cddp_status cd_op_apply(cd_graph *graph, const cd_apply *given, cd_value **outputs, cddp_error *err)
{
    CD_ASSERT(given->output_count > 0);
    cd_apply read;
    const cd_apply *const apply = &read;
    CD_TRY(read_inputs(graph, given, &read, err));
    graph->op_count++;
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, apply->output_count * sizeof(cd_value *), &memory, err));
    cd_value **made = memory;
    for (uint32_t i = 0; i < apply->output_count; i++) {
        const cddp_tensor *shape = &apply->shapes[i];
        cddp_tensor t;
        CD_TRY(cd_graph_tensor(graph, shape->dtype, shape->sizes, shape->dim_count, &t, err));
        CD_TRY(cd_graph_input(graph, &t, &made[i], err));
    }
    CD_TRY(run_forward(graph, apply, made, err));
    cd_record record = {.op = apply->op,
                        .inputs = apply->inputs,
                        .input_count = apply->input_count,
                        .outputs = made,
                        .output_count = apply->output_count,
                        .state = apply->state};
    CD_TRY(cd_graph_record(graph, &record, err));
    for (uint32_t i = 0; i < apply->output_count; i++) outputs[i] = made[i];
    return CDDP_OK;
}
