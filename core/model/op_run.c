/* SPDX-License-Identifier: Apache-2.0 */
/* Where an op's kernel runs: on the host over the tape, on the device that holds the tape, or on
** the host over copies.
*/
#include "core/base/error.h"
#include "core/model/op.h"

static cddp_status run_kernel(const cd_op *op, const cd_op_call *call, bool is_backward,
                              cddp_error *err)
{
    /* The element type is that of the first output. */
    const unsigned type = call->outputs[0].dtype == CDDP_F64 ? 1 : 0;
    return CD_PASS((is_backward ? op->backward : op->forward)[type](call, err));
}

static cddp_status push_tensors(cd_graph *graph, uint32_t count, cddp_tensor **tensors,
                                cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, count * sizeof(cddp_tensor), &memory, err));
    *tensors = memory;
    return CDDP_OK;
}

/* ---- on the device ---- */

/* The tensors of gradients; those that nobody wants stay undefined. */
static cddp_status list_gradients(cd_graph *graph, const cd_gradient *gradients, uint32_t count,
                                  const cddp_tensor **listed, cddp_error *err)
{
    cddp_tensor *tensors = NULL;
    CD_TRY(push_tensors(graph, count, &tensors, err));
    for (uint32_t i = 0; i < count; i++)
        if (gradients[i].kind == CDDP_GRAD_DENSE) tensors[i] = gradients[i].value;
    *listed = tensors;
    return CDDP_OK;
}

/* The engine's default for ops without their own function. */
static cddp_status make_gradients(const cd_op_call *call, cddp_error *err)
{
    for (uint32_t i = 0; i < call->input_count; i++) {
        const cddp_tensor *t = &call->inputs[i];
        if (call->in_grads[i].kind == CDDP_GRAD_DENSE)
            CD_TRY(cd_graph_tensor(call->graph, t->dtype, t->sizes, t->dim_count,
                                   &call->in_grads[i].value, err));
    }
    return CDDP_OK;
}

/* *taken false: the layer wants the host this time. */
static cddp_status run_layer(const cd_op *op, const cd_op_call *call, bool is_backward, bool *taken,
                             cddp_error *err)
{
    cd_graph *graph = call->graph;
    cddp_layer_call layer = {.size = sizeof layer,
                             .layer = op->layer,
                             .is_backward = is_backward,
                             .input_count = call->input_count,
                             .output_count = call->output_count,
                             .inputs = call->inputs,
                             .outputs = call->outputs};
    if (op->describe != NULL) CD_TRY(op->describe(call, &layer, err));
    *taken = layer.layer != CDDP_LAYER_NONE &&
             (graph->layers->layers & CDDP_LAYER_BIT(layer.layer)) != 0;
    if (!*taken) return CDDP_OK;
    if (is_backward) {
        if (op->makes_gradients) CD_TRY(make_gradients(call, err));
        CD_TRY(list_gradients(graph, call->out_grads, call->output_count, &layer.out_grads, err));
        CD_TRY(list_gradients(graph, call->in_grads, call->input_count, &layer.in_grads, err));
    }
    return CD_PASS(op->run_parts != NULL ? op->run_parts(call, &layer, err)
                                         : graph->layers->run(graph->device, &layer, err));
}

/* ---- on the host, over copies ---- */

static size_t bytes_of(const cddp_tensor *t)
{
    return (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
}

/* A tensor of the host like one of the device, with its values where they are needed. */
static cddp_status fetch(cd_graph *graph, const cddp_tensor *there, bool values, cddp_tensor *here,
                         cddp_error *err)
{
    *here = *there;
    if (there->device == NULL || cd_device_is_direct(there->device)) return CDDP_OK;
    CD_TRY(cd_graph_host_tensor(graph, there->dtype, there->sizes, there->dim_count, here, err));
    if (!values || bytes_of(there) == 0) return CDDP_OK;
    return CD_PASS(there->device->read(there, cd_tensor_data(here), bytes_of(there), err));
}

static cddp_status fetch_all(cd_graph *graph, const cddp_tensor *there, uint32_t count, bool values,
                             const cddp_tensor **here, cddp_error *err)
{
    cddp_tensor *tensors = NULL;
    CD_TRY(push_tensors(graph, count, &tensors, err));
    for (uint32_t i = 0; i < count; i++) CD_TRY(fetch(graph, &there[i], values, &tensors[i], err));
    *here = tensors;
    return CDDP_OK;
}

static cddp_status fetch_gradients(cd_graph *graph, const cd_gradient *there, uint32_t count,
                                   bool values, cd_gradient **here, cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, count * sizeof(cd_gradient), &memory, err));
    *here = memory;
    for (uint32_t i = 0; i < count; i++) {
        (*here)[i] = there[i];
        if (there[i].kind == CDDP_GRAD_DENSE)
            CD_TRY(fetch(graph, &there[i].value, values, &(*here)[i].value, err));
    }
    return CDDP_OK;
}

static cddp_status bring(const cddp_tensor *there, const cddp_tensor *here, cddp_error *err)
{
    if (there->storage == here->storage || bytes_of(here) == 0) return CDDP_OK;
    return CD_PASS(there->device->write(there, cd_tensor_data(here), bytes_of(here), err));
}

static cddp_status run_forward_here(const cd_op *op, const cd_op_call *call, cddp_error *err)
{
    cd_op_call host = *call;
    CD_TRY(fetch_all(call->graph, call->inputs, call->input_count, true, &host.inputs, err));
    CD_TRY(fetch_all(call->graph, call->outputs, call->output_count, false, &host.outputs, err));
    CD_TRY(run_kernel(op, &host, false, err));
    for (uint32_t i = 0; i < call->output_count; i++)
        CD_TRY(bring(&call->outputs[i], &host.outputs[i], err));
    return CDDP_OK;
}

static cddp_status run_backward_here(const cd_op *op, const cd_op_call *call, cddp_error *err)
{
    cd_op_call host = *call;
    cd_gradient *out_grads = NULL;
    CD_TRY(fetch_all(call->graph, call->inputs, call->input_count, true, &host.inputs, err));
    CD_TRY(fetch_all(call->graph, call->outputs, call->output_count, true, &host.outputs, err));
    CD_TRY(
        fetch_gradients(call->graph, call->out_grads, call->output_count, true, &out_grads, err));
    CD_TRY(fetch_gradients(call->graph, call->in_grads, call->input_count, false, &host.in_grads,
                           err));
    host.out_grads = out_grads;
    CD_TRY(run_kernel(op, &host, true, err));
    for (uint32_t i = 0; i < call->input_count; i++) {
        cd_gradient *to = &call->in_grads[i];
        const cddp_tensor *made = &host.in_grads[i].value;
        if (to->kind != CDDP_GRAD_DENSE) continue;
        if (op->makes_gradients)
            CD_TRY(cd_graph_give(call->graph, made->dtype, made->sizes, made->dim_count,
                                 cd_tensor_data(made), &to->value, err));
        else
            CD_TRY(bring(&to->value, made, err));
    }
    return CDDP_OK;
}

static cddp_status run_here(const cd_op *op, const cd_op_call *call, bool is_backward,
                            cddp_error *err)
{
    cd_graph *graph = call->graph;
    bool outer = graph->on_host;
    graph->on_host = true; /* what the kernel makes is the host's */
    cddp_status status =
        is_backward ? run_backward_here(op, call, err) : run_forward_here(op, call, err);
    graph->on_host = outer;
    if (status != CDDP_OK) cd_error_frame(err, __FILE__, __func__, __LINE__);
    return status;
}

cddp_status cd_op_run(const cd_op *op, const cd_op_call *call, bool is_backward, cddp_error *err)
{
    const cddp_layers *layers = call->graph->layers;
    bool taken = false;
    if (layers == NULL || op->through_device)
        return CD_PASS(run_kernel(op, call, is_backward, err));
    if (op->layer != CDDP_LAYER_NONE && (layers->layers & CDDP_LAYER_BIT(op->layer)) != 0)
        CD_TRY(run_layer(op, call, is_backward, &taken, err));
    return CD_PASS(taken ? CDDP_OK : run_here(op, call, is_backward, err));
}
