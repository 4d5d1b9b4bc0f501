/* SPDX-License-Identifier: Apache-2.0 */
/* Moving and combining values. Sink, add and reshape pass gradients on as they are, undefined ones
** included; the others have kernels that are the same for every element type.
*/
#include "core/model/layers/shapes.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/model/op.h"

/* ---- sink: every output separately ---- */

static cddp_status sink_route(const cd_op_call *call, cddp_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < call->input_count; i++) call->in_grads[i] = call->out_grads[i];
    return CDDP_OK;
}

static const cd_op sink_op = {.name = "DDPSink", .keeps_nothing = true, .route = sink_route};

cddp_status cd_sink(cd_graph *graph, cd_value **values, uint32_t count, cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, 2 * count * sizeof(cd_value *), &memory, err));
    cd_value **inputs = memory, **outputs = inputs + count;
    uint32_t sunk = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] == NULL || values[i]->node == NULL) continue;
        inputs[sunk] = values[i];
        CD_TRY(cd_graph_detach(graph, values[i], &outputs[sunk], err));
        values[i] = outputs[sunk++];
    }
    cd_record record = {.op = &sink_op,
                        .inputs = inputs,
                        .input_count = sunk,
                        .outputs = outputs,
                        .output_count = sunk};
    return CD_PASS(cd_graph_record(graph, &record, err));
}

/* ---- add ---- */

static cddp_status add_forward(const cd_op_call *call, cddp_error *err)
{
    const cddp_tensor *y = &call->outputs[0];
    CD_TRY(y->device->copy(y, &call->inputs[0], NULL, err));
    return CD_PASS(y->device->reduce(CDDP_RED_SUM, y, &call->inputs[1], NULL, err));
}

static cddp_status add_route(const cd_op_call *call, cddp_error *err)
{
    (void)err;
    call->in_grads[0] = call->in_grads[1] = call->out_grads[0];
    return CDDP_OK;
}

static const cd_op add_op = {.name = "Add",
                             .keeps_nothing = true,
                             .through_device = true,
                             .forward = {add_forward, add_forward},
                             .route = add_route};

cddp_status cd_add(cd_graph *graph, cd_value *a, cd_value *b, cd_value **sum, cddp_error *err)
{
    cd_value *inputs[2] = {a, b};
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    if (!cd_tensor_same_sizes(&a->tensor, &b->tensor))
        return cd_fail(err, CDDP_E_ARG, "add: sizes %s and %s differ",
                       cd_tensor_print_sizes(&a->tensor, left, sizeof left),
                       cd_tensor_print_sizes(&b->tensor, right, sizeof right));
    CD_TRY(cd_op_check_dtypes("add", inputs, 2, err));
    cd_apply apply = {
        .op = &add_op, .inputs = inputs, .input_count = 2, .shapes = &a->tensor, .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, sum, err));
}

/* ---- scale ---- */

static cddp_status scale_forward(const cd_op_call *call, cddp_error *err)
{
    const cddp_tensor *y = &call->outputs[0];
    return CD_PASS(y->device->scale(y, &call->inputs[0], *(const double *)call->state, NULL, err));
}

static cddp_status scale_backward(const cd_op_call *call, cddp_error *err)
{
    const cddp_tensor *dx = &call->in_grads[0].value;
    return CD_PASS(
        dx->device->scale(dx, &call->out_grads[0].value, *(const double *)call->state, NULL, err));
}

static const cd_op scale_op = {.name = "Scale",
                               .through_device = true,
                               .forward = {scale_forward, scale_forward},
                               .backward = {scale_backward, scale_backward}};

cddp_status cd_scale(cd_graph *graph, cd_value *x, double factor, cd_value **y, cddp_error *err)
{
    void *state = NULL;
    CD_TRY(cd_op_check_dtypes("scale", &x, 1, err));
    CD_TRY(cd_graph_push(graph, sizeof(double), &state, err));
    *(double *)state = factor;
    cd_apply apply = {.op = &scale_op,
                      .inputs = &x,
                      .input_count = 1,
                      .state = state,
                      .shapes = &x->tensor,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}

/* ---- cast: rounds to nearest on the way and on the way back ---- */

static cddp_status cast_forward(const cd_op_call *call, cddp_error *err)
{
    const cddp_tensor *y = &call->outputs[0];
    return CD_PASS(y->device->copy(y, &call->inputs[0], NULL, err));
}

static cddp_status cast_backward(const cd_op_call *call, cddp_error *err)
{
    const cddp_tensor *dx = &call->in_grads[0].value;
    return CD_PASS(dx->device->copy(dx, &call->out_grads[0].value, NULL, err));
}

static const cd_op cast_op = {.name = "Cast",
                              .keeps_nothing = true,
                              .through_device = true,
                              .forward = {cast_forward, cast_forward},
                              .backward = {cast_backward, cast_backward}};

cddp_status cd_cast(cd_graph *graph, cd_value *x, cddp_dtype dtype, cd_value **y, cddp_error *err)
{
    cddp_tensor shape = cd_shape_of(dtype, x->tensor.sizes, x->tensor.dim_count);
    cd_apply apply = {
        .op = &cast_op, .inputs = &x, .input_count = 1, .shapes = &shape, .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}

/* ---- reshape: a view ---- */

static cddp_status reshape_route(const cd_op_call *call, cddp_error *err)
{
    (void)err;
    call->in_grads[0] = call->out_grads[0];
    cddp_tensor *dx = &call->in_grads[0].value;
    if (call->in_grads[0].kind == CDDP_GRAD_UNDEFINED || dx->storage == NULL) return CDDP_OK;
    const cddp_tensor *x = &call->inputs[0];
    *dx = cddp_tensor_of(dx->device, dx->storage, dx->offset, dx->dtype, x->sizes, x->dim_count);
    return CDDP_OK;
}

static const cd_op reshape_op = {.name = "Reshape", .route = reshape_route};

cddp_status cd_reshape(cd_graph *graph, cd_value *x, const int64_t *sizes, uint32_t dim_count,
                       cd_value **y, cddp_error *err)
{
    const cddp_tensor *t = &x->tensor;
    cddp_tensor view = cddp_tensor_of(t->device, t->storage, t->offset, t->dtype, sizes, dim_count);
    char from[CD_SIZES_BYTES], to[CD_SIZES_BYTES];
    if (cddp_tensor_numel(&view) != cddp_tensor_numel(t))
        return cd_fail(err, CDDP_E_ARG, "reshape: sizes %s do not hold the elements of %s",
                       cd_tensor_print_sizes(&view, to, sizeof to),
                       cd_tensor_print_sizes(t, from, sizeof from));
    CD_ASSERT(cddp_tensor_is_contiguous(t));
    CD_TRY(cd_graph_read(graph, x, &x, err));
    view.storage = x->tensor.storage;
    view.offset = x->tensor.offset;
    CD_TRY(cd_graph_input(graph, &view, y, err));
    cd_record record = {
        .op = &reshape_op, .inputs = &x, .input_count = 1, .outputs = y, .output_count = 1};
    return CD_PASS(cd_graph_record(graph, &record, err));
}

/* ---- concat and split along the last dimension ---- */

static int64_t last_size(const cddp_tensor *t) { return t->sizes[t->dim_count - 1]; }

/* Copies the last dimension of `part` to or from its place `start` in the last dimension of
** `whole`. */
static cddp_status copy_columns(const cddp_tensor *whole, int64_t start, const cddp_tensor *part,
                                bool into_whole, cddp_error *err)
{
    cddp_tensor columns = *whole;
    columns.offset += start;
    columns.sizes[columns.dim_count - 1] = last_size(part);
    return CD_PASS(into_whole ? whole->device->copy(&columns, part, NULL, err)
                              : whole->device->copy(part, &columns, NULL, err));
}

static cddp_status concat_forward(const cd_op_call *call, cddp_error *err)
{
    int64_t start = 0;
    for (uint32_t i = 0; i < call->input_count; start += last_size(&call->inputs[i]), i++)
        CD_TRY(copy_columns(&call->outputs[0], start, &call->inputs[i], true, err));
    return CDDP_OK;
}

static cddp_status concat_backward(const cd_op_call *call, cddp_error *err)
{
    int64_t start = 0;
    for (uint32_t i = 0; i < call->input_count; start += last_size(&call->inputs[i]), i++)
        if (call->in_grads[i].kind == CDDP_GRAD_DENSE)
            CD_TRY(copy_columns(&call->out_grads[0].value, start, &call->in_grads[i].value, false,
                                err));
    return CDDP_OK;
}

static const cd_op concat_op = {.name = "Concat",
                                .through_device = true,
                                .forward = {concat_forward, concat_forward},
                                .backward = {concat_backward, concat_backward}};

cddp_status cd_concat(cd_graph *graph, cd_value *const *parts, uint32_t count, cd_value **whole,
                      cddp_error *err)
{
    CD_ASSERT(count > 0);
    CD_TRY(cd_op_check_dtypes("concat", parts, count, err));
    cddp_tensor shape = parts[0]->tensor;
    for (uint32_t i = 1; i < count; i++) {
        cddp_tensor aligned = parts[i]->tensor;
        aligned.sizes[aligned.dim_count - 1] = last_size(&parts[0]->tensor);
        if (!cd_tensor_same_sizes(&aligned, &parts[0]->tensor))
            return cd_fail(err, CDDP_E_ARG,
                           "concat: part %u differs from part 0 in more than the last size",
                           (unsigned)i);
        shape.sizes[shape.dim_count - 1] += last_size(&parts[i]->tensor);
    }
    cd_apply apply = {.op = &concat_op,
                      .inputs = parts,
                      .input_count = count,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, whole, err));
}

static cddp_status split_forward(const cd_op_call *call, cddp_error *err)
{
    int64_t start = 0;
    for (uint32_t i = 0; i < call->output_count; start += last_size(&call->outputs[i]), i++)
        CD_TRY(copy_columns(&call->inputs[0], start, &call->outputs[i], false, err));
    return CDDP_OK;
}

static cddp_status split_backward(const cd_op_call *call, cddp_error *err)
{
    int64_t start = 0;
    for (uint32_t i = 0; i < call->output_count; start += last_size(&call->outputs[i]), i++)
        CD_TRY(copy_columns(&call->in_grads[0].value, start, &call->out_grads[i].value, true, err));
    return CDDP_OK;
}

static const cd_op split_op = {.name = "Split",
                               .keeps_nothing = true,
                               .through_device = true,
                               .forward = {split_forward, split_forward},
                               .backward = {split_backward, split_backward}};

cddp_status cd_split(cd_graph *graph, cd_value *whole, const int64_t *sizes, uint32_t count,
                     cd_value **parts, cddp_error *err)
{
    CD_ASSERT(count > 0);
    CD_TRY(cd_op_check_dtypes("split", &whole, 1, err));
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, count * sizeof(cddp_tensor), &memory, err));
    cddp_tensor *shapes = memory;
    int64_t total = 0;
    for (uint32_t i = 0; i < count; total += sizes[i], i++) {
        shapes[i] = whole->tensor;
        shapes[i].sizes[shapes[i].dim_count - 1] = sizes[i];
    }
    if (total != last_size(&whole->tensor))
        return cd_fail(err, CDDP_E_ARG, "split: parts add up to %lld, the last size is %lld",
                       (long long)total, (long long)last_size(&whole->tensor));
    cd_apply apply = {.op = &split_op,
                      .inputs = &whole,
                      .input_count = 1,
                      .shapes = shapes,
                      .output_count = count};
    return CD_PASS(cd_op_apply(graph, &apply, parts, err));
}
