/* SPDX-License-Identifier: Apache-2.0 */
/* Backward. A run counts the gradients that will arrive at every node reachable from its roots. A
** node whose count is zero is ready. Accumulation nodes go first, then the youngest ready node, and
** equal ones in the order in which they became ready. This is the order of PyTorch's engine
** (REB-05).
**
** Undefined gradients propagate like defined ones. A node with only undefined output gradients
** passes undefined on without computing. An accumulation node that receives undefined does not
** change its slot and still fires its hook (UNU-03).
**
** A run inside a run (re-entrant checkpoint) has its own counts. The two share accumulation nodes,
** which may fire once in each.
**
** Not here: addition of gradients (accumulate.c), the arithmetic of nodes (op.h, layers/).
*/
#include "core/model/engine.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/heap.h"
#include "core/base/inject.h"
#include "core/model/accumulate.h"
#include "core/model/checkpoint.h"
#include "core/model/op.h"

typedef struct run {
    cd_graph *graph;
    const cd_backward_options *options;
    size_t node_count;     /* of the tape when the run began; nested runs add more */
    uint32_t *missing;     /* (node_count) gradients that have not arrived */
    bool *seen;            /* (node_count) reachable from the roots */
    cd_gradient *in_grads; /* of the node that goes back now, as many as any node has edges */
    cd_gradient **buffers; /* (node_count) arrived gradients per output of the node, or NULL */
    cd_heap ready;
    uint64_t ready_count; /* nodes that ever became ready: breaks ties */
    cd_node **held;       /* (held_count) accumulation nodes that wait for a choice, oldest first */
    size_t held_count;
    cd_value *const *wanted; /* (wanted_count) cd_graph_grad: values whose gradients are captured */
    uint32_t wanted_count;
    cd_gradient *captured;
} run;

static bool keeps_graph(const run *r)
{
    return r->options->retain_graph || r->options->create_graph;
}

/* ---- preparing ---- */

static cddp_status push_array(cd_graph *graph, size_t count, size_t bytes, void *array,
                              cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, count * bytes, &memory, err));
    *(void **)array = memory;
    return CDDP_OK;
}

static cddp_status run_init(run *r, cddp_error *err)
{
    cd_graph *g = r->graph;
    size_t n = r->node_count = g->node_count;
    cd_heap_entry *entries = NULL;
    uint32_t edges_max = 0;
    for (size_t i = 0; i < n; i++)
        if (g->nodes[i]->edge_count > edges_max) edges_max = g->nodes[i]->edge_count;
    CD_TRY(push_array(g, edges_max, sizeof *r->in_grads, &r->in_grads, err));
    CD_TRY(push_array(g, n, sizeof *r->missing, &r->missing, err));
    CD_TRY(push_array(g, n, sizeof *r->seen, &r->seen, err));
    CD_TRY(push_array(g, n, sizeof *r->buffers, &r->buffers, err));
    CD_TRY(push_array(g, n, sizeof *r->held, &r->held, err));
    CD_TRY(push_array(g, n, sizeof *entries, &entries, err));
    cd_heap_init(&r->ready, entries, n);
    return CDDP_OK;
}

/* Counts the edges into every node that the roots reach. */
static cddp_status count_missing(run *r, cddp_error *err)
{
    cd_node **stack = NULL;
    size_t depth = 0;
    CD_TRY(push_array(r->graph, r->node_count, sizeof *stack, &stack, err));
    for (uint32_t i = 0; i < r->options->root_count; i++) {
        cd_node *root = r->options->roots[i]->node;
        if (root == NULL)
            return cd_fail(err, CDDP_E_STATE,
                           "root %u of backward does not require grad and has no grad_fn",
                           (unsigned)i);
        if (r->seen[root->index]) continue;
        r->seen[root->index] = true;
        stack[depth++] = root;
    }
    while (depth > 0) {
        const cd_node *node = stack[--depth];
        for (uint32_t e = 0; e < node->edge_count; e++) {
            cd_node *next = node->edges[e].node;
            if (next == NULL) continue;
            r->missing[next->index]++;
            if (r->seen[next->index]) continue;
            r->seen[next->index] = true;
            stack[depth++] = next;
        }
    }
    return CDDP_OK;
}

static cddp_status arrive(run *r, const cd_node *node, uint32_t output, const cd_gradient *gradient,
                          cddp_error *err)
{
    if (gradient->kind == CDDP_GRAD_UNDEFINED) return CDDP_OK;
    cd_gradient **buffer = &r->buffers[node->index];
    if (*buffer == NULL)
        CD_TRY(push_array(r->graph, node->output_count, sizeof(cd_gradient), buffer, err));
    return CD_PASS(cd_gradient_add(r->graph, &(*buffer)[output], gradient, err));
}

static void become_ready(run *r, cd_node *node)
{
    if (node->op == NULL && r->options->order != CD_READY_PRIORITY) {
        r->held[r->held_count++] = node;
        return;
    }
    cd_heap_entry entry = {.time = UINT64_MAX - node->sequence,
                           .sequence = r->ready_count++,
                           .item = node};
    bool pushed = cd_heap_push(&r->ready, entry);
    CD_ASSERT(pushed); /* every node becomes ready once */
}

static cddp_status ones_like(cd_graph *graph, const cddp_tensor *like, cd_gradient *gradient,
                             cddp_error *err)
{
    *gradient = (cd_gradient){.kind = CDDP_GRAD_DENSE};
    CD_TRY(
        cd_graph_tensor(graph, like->dtype, like->sizes, like->dim_count, &gradient->value, err));
    if (!cd_graph_computes(graph)) return CDDP_OK;
    return CD_PASS(graph->device->fill(&gradient->value, 1.0, NULL, err));
}

static cddp_status start_roots(run *r, cddp_error *err)
{
    const cd_backward_options *o = r->options;
    for (uint32_t i = 0; i < o->root_count; i++) {
        const cd_value *root = o->roots[i];
        cd_gradient gradient;
        if (o->root_gradients != NULL) {
            gradient = o->root_gradients[i];
        } else {
            char text[CD_SIZES_BYTES];
            if (cddp_tensor_numel(&root->tensor) != 1)
                return cd_fail(
                    err, CDDP_E_STATE,
                    "grad can be implicitly created only for scalar outputs; root %u has sizes %s",
                    (unsigned)i, cd_tensor_print_sizes(&root->tensor, text, sizeof text));
            CD_TRY(ones_like(r->graph, &root->tensor, &gradient, err));
        }
        CD_TRY(arrive(r, root->node, root->output, &gradient, err));
    }
    for (uint32_t i = 0; i < o->root_count; i++) {
        cd_node *root = o->roots[i]->node;
        if (!r->seen[root->index] || r->missing[root->index] != 0) continue;
        r->seen[root->index] = false; /* the same node may be the root twice */
        become_ready(r, root);
    }
    return CDDP_OK;
}

/* ---- one node ---- */

static cddp_status capture(run *r, const cd_node *node, cddp_error *err)
{
    const cd_gradient *buffer = r->buffers[node->index];
    for (uint32_t i = 0; i < r->wanted_count && buffer != NULL; i++)
        if (r->wanted[i]->node == node)
            CD_TRY(cd_gradient_add(r->graph, &r->captured[i], &buffer[r->wanted[i]->output], err));
    return CDDP_OK;
}

static cddp_status fire(run *r, const cd_node *leaf, cddp_error *err)
{
    if (r->captured != NULL) return CD_PASS(capture(r, leaf, err));
    cd_graph *g = r->graph;
    const cd_gradient *arrived = r->buffers[leaf->index];
    const cd_gradient undefined = {.kind = CDDP_GRAD_UNDEFINED};
    if (g->callbacks.collect != NULL)
        return CD_PASS(g->callbacks.collect(g->callbacks.context, leaf->parameter,
                                            arrived != NULL ? arrived : &undefined, err));
    if (arrived != NULL && arrived->kind != CDDP_GRAD_UNDEFINED)
        CD_TRY(cd_grad_accumulate(g, leaf->parameter, arrived, err));
    if (g->callbacks.ready == NULL) return CDDP_OK;
    return CD_PASS(g->callbacks.ready(g->callbacks.context, leaf->parameter,
                                      &g->module->parameters[leaf->parameter].grad, err));
}

/* Zeros for the outputs whose gradient is undefined while another one's is defined. */
static cddp_status fill_undefined(run *r, const cd_node *node, cd_gradient *out_grads,
                                  cddp_error *err)
{
    for (uint32_t i = 0; i < node->output_count; i++) {
        if (out_grads[i].kind != CDDP_GRAD_UNDEFINED) continue;
        const cddp_tensor *t = &node->outputs[i];
        out_grads[i].kind = CDDP_GRAD_DENSE;
        CD_TRY(
            cd_graph_tensor(r->graph, t->dtype, t->sizes, t->dim_count, &out_grads[i].value, err));
    }
    return CDDP_OK;
}

static cddp_status run_kernel(run *r, const cd_node *node, const cd_op_call *call, cddp_error *err)
{
    bool computes = cd_graph_computes(r->graph);
    for (uint32_t i = 0; i < node->edge_count; i++) {
        if (node->edges[i].node == NULL) continue;
        cd_gradient *grad = &call->in_grads[i];
        grad->kind = CDDP_GRAD_DENSE;
        if (!computes || node->op->makes_gradients) continue;
        const cddp_tensor *t = &node->inputs[i];
        CD_TRY(cd_graph_tensor(r->graph, t->dtype, t->sizes, t->dim_count, &grad->value, err));
    }
    if (!computes) return CDDP_OK;
    CD_TRY(cd_op_run(node->op, call, true, err));
    CD_INJECT_TENSORS(cd_inject_place("layer", node->op->name), CD_INJECT_EVERYONE,
                      CD_INJECT_EVERYONE, &call->in_grads[0].value, sizeof call->in_grads[0],
                      node->edge_count);
    return CDDP_OK;
}

/* What the node saved of a parameter may be gone since its forward. */
static cddp_status use_leaves(const cd_graph *g, cd_node *node, cddp_error *err)
{
    const cd_graph_callbacks *cb = &g->callbacks;
    for (uint32_t e = 0; node->leaves != NULL && cb->use != NULL && e < node->edge_count; e++) {
        if (node->leaves[e] == 0) continue;
        const uint32_t parameter = node->leaves[e] - 1;
        CD_TRY(cb->use(cb->context, parameter, true, err));
        const bool is_read = node->inputs != NULL && g->staged == NULL;
        if (!is_read || cb->forward_parameter == NULL) continue;
        if (node->inputs[e].dtype == cd_graph_source(g, parameter)->dtype) /* else a cast of it */
            node->inputs[e] = *cb->forward_parameter(cb->context, parameter);
    }
    return CDDP_OK;
}

static cddp_status go_back(run *r, cd_node *node, cddp_error *err)
{
    if (node->released && !node->op->keeps_nothing)
        return cd_fail(err, CDDP_E_STATE,
                       "Trying to backward through the graph a second time: the saved tensors of "
                       "%s have already been "
                       "freed. Specify retain_graph if the graph is needed again",
                       node->op->name);
    if (r->captured != NULL) CD_TRY(capture(r, node, err));
    CD_TRY(use_leaves(r->graph, node, err));
    if (node->segment != NULL) CD_TRY(cd_segment_restore(r->graph, node, err));
    cd_gradient *in_grads = r->in_grads, *out_grads = r->buffers[node->index];
    for (uint32_t e = 0; e < node->edge_count; e++)
        in_grads[e] = (cd_gradient){.kind = CDDP_GRAD_UNDEFINED};
    bool any = out_grads != NULL;
    if (!any) CD_TRY(push_array(r->graph, node->output_count, sizeof *out_grads, &out_grads, err));
    cd_op_call call = {.graph = r->graph,
                       .state = node->state,
                       .input_count = node->edge_count,
                       .output_count = node->output_count,
                       .inputs = node->inputs,
                       .outputs = node->outputs,
                       .out_grads = out_grads,
                       .in_grads = in_grads};
    if (node->op->route != NULL) {
        CD_TRY(node->op->route(&call, err));
    } else if (any) {
        if (cd_graph_computes(r->graph)) CD_TRY(fill_undefined(r, node, out_grads, err));
        CD_TRY(run_kernel(r, node, &call, err));
    }
    if (!keeps_graph(r)) node->released = true;
    for (uint32_t e = 0; e < node->edge_count; e++) {
        cd_node *next = node->edges[e].node;
        if (next == NULL) continue;
        CD_TRY(arrive(r, next, node->edges[e].output, &in_grads[e], err));
        CD_ASSERT(r->missing[next->index] > 0);
        if (--r->missing[next->index] == 0) become_ready(r, next);
    }
    return CDDP_OK;
}

/* ---- choosing ---- */

static cddp_status choose_held(run *r, size_t *position, cddp_error *err)
{
    const cd_graph_callbacks *cb = &r->graph->callbacks;
    *position = 0;
    if (r->options->order == CD_READY_GIVEN) {
        for (uint32_t g = 0; g < r->options->given_count; g++)
            for (size_t h = 0; h < r->held_count; h++)
                if (r->held[h]->parameter == r->options->given[g]) {
                    *position = h;
                    return CDDP_OK;
                }
        return CDDP_OK;
    }
    if (cb->choose == NULL || r->held_count == 1) return CDDP_OK;
    uint64_t *options = NULL;
    cd_arena_mark mark = cd_arena_get_mark(&r->graph->arena);
    CD_TRY(push_array(r->graph, r->held_count, sizeof *options, &options, err));
    for (size_t h = 0; h < r->held_count; h++) options[h] = r->held[h]->parameter;
    uint32_t chosen = cb->choose(cb->context, options, (uint32_t)r->held_count);
    cd_arena_rewind(&r->graph->arena, mark);
    if (chosen >= r->held_count)
        return cd_fail(err, CDDP_E_ARG, "the chooser answered %u of %zu ready gradients",
                       (unsigned)chosen, r->held_count);
    *position = chosen;
    return CDDP_OK;
}

static cddp_status take_held(run *r, cd_node **leaf, cddp_error *err)
{
    size_t position = 0;
    CD_TRY(choose_held(r, &position, err));
    *leaf = r->held[position];
    for (size_t h = position + 1; h < r->held_count; h++) r->held[h - 1] = r->held[h];
    r->held_count--;
    return CDDP_OK;
}

static cddp_status run_all(run *r, cddp_error *err)
{
    CD_TRY(run_init(r, err));
    CD_TRY(count_missing(r, err));
    CD_TRY(start_roots(r, err));
    for (;;) {
        cd_heap_entry next;
        cd_node *node = NULL;
        if (cd_heap_pop(&r->ready, &next))
            node = next.item;
        else if (r->held_count > 0)
            CD_TRY(take_held(r, &node, err));
        else
            return CDDP_OK;
        if (node->op == NULL)
            CD_TRY(fire(r, node, err));
        else
            CD_TRY(go_back(r, node, err));
    }
}

/* Remembers the outer run, for nested ones and for ops that ask which kind of backward they are
** in. */
static cddp_status run_inside(run *r, cddp_error *err)
{
    cd_graph *g = r->graph;
    const cd_backward_options *outer = g->backward;
    bool outer_grad = g->inside_grad;
    g->backward = r->options;
    g->inside_grad = r->captured != NULL;
    cddp_status status = run_all(r, err);
    g->backward = outer;
    g->inside_grad = outer_grad;
    if (status != CDDP_OK) cd_error_frame(err, __FILE__, __func__, __LINE__);
    return status;
}

cddp_status cd_graph_backward(cd_graph *graph, const cd_backward_options *options, cddp_error *err)
{
    run r = {.graph = graph, .options = options};
    return CD_PASS(run_inside(&r, err));
}

cddp_status cd_graph_grad(cd_graph *graph, const cd_backward_options *options,
                          cd_value *const *values, uint32_t value_count, cd_gradient *gradients,
                          cddp_error *err)
{
    run r = {.graph = graph, .options = options, .wanted = values, .wanted_count = value_count};
    for (uint32_t i = 0; i < value_count; i++)
        if (values[i]->node == NULL)
            return cd_fail(err, CDDP_E_STATE, "value %u of grad does not require grad",
                           (unsigned)i);
    CD_TRY(push_array(graph, value_count, sizeof *r.captured, &r.captured, err));
    CD_TRY(run_inside(&r, err));
    for (uint32_t i = 0; i < value_count; i++) gradients[i] = r.captured[i];
    return CDDP_OK;
}
