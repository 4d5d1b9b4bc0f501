/* SPDX-License-Identifier: Apache-2.0 */
/* Both kinds of activation checkpointing.
**
** Re-entrant: the forward records one node whose only edge is the input's. Its route runs the part
** again on a detached input and calls cd_graph_backward on the result. So the part's parameters
** accumulate and fire their hooks in the middle of the outer backward. A leaf node without
** accumulation captures the gradient of the detached input and passes it on.
**
** Non-reentrant: nodes recorded by the part belong to a segment and lose their saved tensors when
** the part returns. The first of them in backward runs the part again with recording on. The i-th
** node of that run has the saved tensors of the i-th node of the segment. A part that records other
** nodes the second time is an error.
**
** Note [A part runs as it ran] Its second run begins at the place of the first one, and finds its
** input as that one did. So whoever crosses casts the same values, and records the same nodes. What
** the part made of its input is the part's own, and nobody behind it reads that.
**
** Not here: freeing memory. Activations stay in the tape until the next iteration; only the order
** of events is reproduced.
*/
#include "core/model/checkpoint.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/model/accumulate.h"
#include "core/model/engine.h"
#include "core/model/op.h"

/* See Note [A part runs as it ran] */
typedef struct part_run {
    cd_part_fn part;
    void *context;
    uint64_t place;
    cd_value before; /* the input */
} part_run;

struct cd_segment {
    part_run run;
    cd_value *input;
    size_t first, count; /* its nodes: graph->nodes[first … first+count-1], leaves skipped */
    bool restored;
};

static part_run find_run(const cd_graph *graph, const cd_checkpoint *checkpoint,
                         const cd_value *input)
{
    return (part_run){checkpoint->part, checkpoint->context, graph->place, *input};
}

static void forget_crossing(cd_value *input, const cd_value *before)
{
    input->left = before->left;
    input->entered = before->entered;
    input->entered_at = before->entered_at;
}

static cddp_status run_first(cd_graph *graph, const part_run *run, cd_value *input,
                             cd_value **output, cddp_error *err)
{
    const cddp_status status = run->part(graph, run->context, input, output, err);
    forget_crossing(input, &run->before);
    return status;
}

static cddp_status run_again(cd_graph *graph, const part_run *run, cd_value *input,
                             cd_value **output, cddp_error *err)
{
    const uint64_t place = graph->place;
    const bool enabled = graph->grad_enabled, recomputes = graph->recomputes;
    const cd_value now = *input;
    graph->grad_enabled = graph->recomputes = true;
    graph->place = run->place;
    input->place = run->before.place;
    forget_crossing(input, &run->before);
    const cddp_status status = run->part(graph, run->context, input, output, err);
    forget_crossing(input, &now);
    graph->place = place;
    graph->recomputes = recomputes;
    graph->grad_enabled = enabled;
    return status;
}

/* ---- re-entrant ---- */

typedef struct reentrant {
    part_run run;
    cd_value *input;
    cd_gradient input_gradient; /* what arrived at the detached input during the nested backward */
} reentrant;

/* The leaf in front of the detached input: keeps what arrives. */
static cddp_status entry_route(const cd_op_call *call, cddp_error *err)
{
    reentrant *state = call->state;
    return CD_PASS(cd_gradient_add(call->graph, &state->input_gradient, &call->out_grads[0], err));
}

static const cd_op entry_op = {.name = "CheckpointInput",
                               .keeps_nothing = true,
                               .route = entry_route};

static cddp_status enter_part(cd_graph *graph, reentrant *state, cd_value **output, cddp_error *err)
{
    cd_value *input = NULL;
    CD_TRY(cd_graph_detach(graph, state->input, &input, err));
    /* An edge to nobody makes the input want a gradient: the node is recorded by hand. */
    cd_value anyone = {.tensor = state->input->tensor,
                       .node = state->input->node,
                       .output = state->input->output};
    cd_value *inputs[1] = {&anyone};
    cd_record record = {.op = &entry_op,
                        .inputs = inputs,
                        .input_count = 1,
                        .outputs = &input,
                        .output_count = 1,
                        .state = state};
    CD_TRY(cd_graph_record(graph, &record, err));
    CD_ASSERT(input->node != NULL);
    input->node->edges[0] = (cd_edge){0};
    part_run run = state->run;
    run.before.left = run.before.entered = NULL; /* those have other nodes */
    return CD_PASS(run_again(graph, &run, input, output, err));
}

static cddp_status reentrant_route(const cd_op_call *call, cddp_error *err)
{
    cd_graph *graph = call->graph;
    if (graph->inside_grad)
        return cd_fail(err, CDDP_E_STATE,
                       "Checkpointing with re-entrant backward does not work under grad(): use "
                       "backward(), or the non-reentrant kind");
    reentrant *state = call->state;
    state->input_gradient = (cd_gradient){0};
    cd_backward_options options = *graph->backward;
    const bool enabled = graph->grad_enabled;
    cd_value *output = NULL;
    graph->grad_enabled = true;
    cddp_status status = enter_part(graph, state, &output, err);
    graph->grad_enabled = enabled;
    if (status != CDDP_OK) {
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    cd_gradient root = call->out_grads[0];
    if (root.kind == CDDP_GRAD_UNDEFINED) { /* a custom function sees zeros in place of undefined */
        root.kind = CDDP_GRAD_DENSE;
        const cddp_tensor *t = &output->tensor;
        CD_TRY(cd_graph_tensor(graph, t->dtype, t->sizes, t->dim_count, &root.value, err));
    }
    options.roots = &output;
    options.root_count = 1;
    options.root_gradients = &root;
    CD_TRY(cd_graph_backward(graph, &options, err));
    call->in_grads[0] = state->input_gradient;
    return CDDP_OK;
}

static const cd_op reentrant_op = {.name = "CheckpointFunction", .route = reentrant_route};

static cddp_status run_reentrant(cd_graph *graph, const cd_checkpoint *checkpoint, cd_value *input,
                                 cd_value **output, cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(reentrant), &memory, err));
    reentrant *state = memory;
    *state = (reentrant){.run = find_run(graph, checkpoint, input), .input = input};
    bool enabled = graph->grad_enabled;
    cd_value *inner = NULL, *made = NULL;
    graph->grad_enabled = false;
    cddp_status status = run_first(graph, &state->run, input, &inner, err);
    graph->grad_enabled = enabled;
    if (status != CDDP_OK) {
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    CD_TRY(cd_graph_detach(graph, inner, &made, err));
    made->place = inner->place;
    cd_record record = {.op = &reentrant_op,
                        .inputs = &input,
                        .input_count = 1,
                        .outputs = &made,
                        .output_count = 1,
                        .state = state};
    CD_TRY(cd_graph_record(graph, &record, err));
    *output = made;
    return CDDP_OK;
}

/* ---- non-reentrant ---- */

static cd_node *next_node(const cd_graph *graph, size_t *position, size_t end)
{
    while (*position < end) {
        cd_node *node = graph->nodes[(*position)++];
        if (node->op != NULL) return node;
    }
    return NULL;
}

static cddp_status run_segment(cd_graph *graph, const cd_checkpoint *checkpoint, cd_value *input,
                               cd_value **output, cddp_error *err)
{
    if (graph->segment != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "a non-reentrant checkpoint inside another one");
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(cd_segment), &memory, err));
    cd_segment *s = memory;
    *s = (cd_segment){.run = find_run(graph, checkpoint, input),
                      .input = input,
                      .first = graph->node_count};
    graph->segment = s;
    cddp_status status = run_first(graph, &s->run, input, output, err);
    graph->segment = NULL;
    if (status != CDDP_OK) {
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    s->count = graph->node_count - s->first;
    size_t position = s->first;
    for (cd_node *n; (n = next_node(graph, &position, s->first + s->count)) != NULL;) {
        n->inputs = NULL;
        n->state = NULL;
    }
    return CDDP_OK;
}

/* Runs the part again on a side tape and moves its saved tensors into the segment's nodes. */
static cddp_status recompute(cd_graph *graph, cd_segment *s, cddp_error *err)
{
    size_t again = graph->node_count;
    cd_value *output = NULL;
    cddp_status status = run_again(graph, &s->run, s->input, &output, err);
    if (status != CDDP_OK) {
        cd_error_frame(err, __FILE__, __func__, __LINE__);
        return status;
    }
    size_t old_position = s->first, new_position = again;
    for (;;) {
        cd_node *old_node = next_node(graph, &old_position, s->first + s->count);
        cd_node *new_node = next_node(graph, &new_position, graph->node_count);
        if (old_node == NULL && new_node == NULL) break;
        if (old_node == NULL || new_node == NULL || old_node->op != new_node->op)
            return cd_fail(err, CDDP_E_STATE,
                           "checkpoint: recomputing recorded %s where forward recorded %s",
                           new_node != NULL ? new_node->op->name : "nothing",
                           old_node != NULL ? old_node->op->name : "nothing");
        old_node->inputs = new_node->inputs;
        old_node->outputs = new_node->outputs;
        old_node->state = new_node->state;
    }
    s->restored = true;
    return CDDP_OK;
}

cddp_status cd_segment_restore(cd_graph *graph, cd_node *node, cddp_error *err)
{
    if (node->segment->restored) return CDDP_OK;
    return CD_PASS(recompute(graph, node->segment, err));
}

cddp_status cd_checkpoint_run(cd_graph *graph, const cd_checkpoint *checkpoint, cd_value *input,
                              cd_value **output, cddp_error *err)
{
    switch (graph->grad_enabled ? checkpoint->kind : CD_CHECKPOINT_NONE) {
    case CD_CHECKPOINT_REENTRANT:
        return CD_PASS(run_reentrant(graph, checkpoint, input, output, err));
    case CD_CHECKPOINT_NON_REENTRANT:
        return CD_PASS(run_segment(graph, checkpoint, input, output, err));
    case CD_CHECKPOINT_NONE:
        break;
    }
    return CD_PASS(checkpoint->part(graph, checkpoint->context, input, output, err));
}
