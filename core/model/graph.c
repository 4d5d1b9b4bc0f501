/* SPDX-License-Identifier: Apache-2.0 */
/* The tape. Values and nodes are pushed onto one arena; the only storage outside it is the list of
** nodes, which grows to the longest tape seen and is kept.
**
** Invariants (cd_graph_audit):
**   G1  node i of the list has index i; sequences grow with the index except for accumulation
**       nodes.
**   G2  an edge leads to an older node or to an accumulation node: the graph has no cycle.
**   G3  accumulate[p], when present, is an accumulation node of parameter p and is on the list.
**
** Not here: backward (engine.c), what an op computes (layers/).
*/
#include "core/model/graph.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/model/layers/shapes.h"
#include "core/model/op.h"

#include <string.h>

#define TAPE_BLOCK_BYTES ((size_t)64 * 1024)
#define OWN_BLOCK_BYTES ((size_t)512)

static void *scratch_allocate(void *context, size_t bytes) { return cd_arena_push(context, bytes); }

static void *scratch_resize(void *context, void *block, size_t bytes_old, size_t bytes_new)
{
    void *grown = cd_arena_push(context, bytes_new);
    if (grown != NULL) memcpy(grown, block, bytes_old < bytes_new ? bytes_old : bytes_new);
    return grown;
}

static void scratch_release(void *context, void *block, size_t bytes)
{
    (void)context;
    (void)block;
    (void)bytes;
}

cddp_status cd_graph_create(cd_module *module, const cddp_allocator *allocator, cd_graph **graph,
                            cddp_error *err)
{
    cd_arena own;
    cd_arena_init(&own, allocator, OWN_BLOCK_BYTES);
    cd_graph *g = cd_arena_push(&own, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "a graph");
    g->own = own;
    g->module = module;
    g->allocator = allocator;
    cd_arena_init(&g->arena, allocator, TAPE_BLOCK_BYTES);
    g->scratch = (cddp_allocator){sizeof g->scratch, &g->arena, scratch_allocate, scratch_resize,
                                  scratch_release};
    size_t count = module->parameter_count;
    g->accumulate = cd_arena_array(&g->own, count, sizeof(cd_node *));
    g->parameters = cd_arena_array(&g->own, count, sizeof(cd_value *));
    const bool is_far =
        (module->device->flags & CDDP_DEVICE_VALUES) && !cd_device_is_direct(module->device);
    g->layers = is_far ? cd_device_layers(module->device) : NULL;
    g->is_far = is_far && g->layers == NULL;
    cd_tape_init(&g->tape, module->device, allocator);
    g->device = g->is_far ? cddp_device_cpu() : module->device;
    if (g->is_far || module->channels_last)
        g->staged = cd_arena_array(&g->own, count, sizeof(cddp_tensor));
    cddp_status status = cd_arena_check(&g->own, err, "a graph of %zu parameters", count);
    if (status != CDDP_OK) {
        cd_graph_destroy(g);
        return status;
    }
    cd_graph_begin(g);
    g->grad_enabled = true;
    g->training = true;
    *graph = g;
    return CDDP_OK;
}

void cd_graph_set_callbacks(cd_graph *graph, const cd_graph_callbacks *callbacks)
{
    graph->callbacks = callbacks != NULL ? *callbacks : (cd_graph_callbacks){0};
}

void cd_graph_begin(cd_graph *graph)
{
    CD_ASSERT(graph->backward == NULL);
    cd_arena_rewind(&graph->arena, (cd_arena_mark){0});
    graph->node_count = 0;
    graph->sequence = 0;
    graph->place = 0;
    graph->segment = NULL;
    cd_tape_rewind(&graph->tape);
    memset(graph->accumulate, 0, graph->module->parameter_count * sizeof(cd_node *));
    memset(graph->parameters, 0, graph->module->parameter_count * sizeof(cd_value *));
}

bool cd_graph_computes(const cd_graph *graph)
{
    return (graph->device->flags & CDDP_DEVICE_HOST) != 0 || graph->layers != NULL;
}

cddp_status cd_graph_push(cd_graph *graph, size_t bytes, void **memory, cddp_error *err)
{
    void *pushed = cd_arena_push(&graph->arena, bytes);
    if (pushed == NULL) return cd_fail_memory(err, "%zu bytes of the tape", bytes);
    *memory = pushed;
    return CDDP_OK;
}

cddp_status cd_graph_tensor(cd_graph *graph, cddp_dtype dtype, const int64_t *sizes,
                            uint32_t dim_count, cddp_tensor *tensor, cddp_error *err)
{
    if (graph->layers != NULL && !graph->on_host && dtype != CDDP_I64)
        return CD_PASS(cd_tape_tensor(&graph->tape, dtype, sizes, dim_count, tensor, err));
    return CD_PASS(cd_graph_host_tensor(graph, dtype, sizes, dim_count, tensor, err));
}

cddp_status cd_graph_give(cd_graph *graph, cddp_dtype dtype, const int64_t *sizes,
                          uint32_t dim_count, const void *values, cddp_tensor *tensor,
                          cddp_error *err)
{
    CD_ASSERT(graph->layers != NULL);
    cddp_tensor t;
    CD_TRY(cd_tape_tensor(&graph->tape, dtype, sizes, dim_count, &t, err));
    size_t bytes = (size_t)cddp_tensor_numel(&t) * cddp_dtype_bytes(dtype);
    if (values != NULL && bytes > 0) CD_TRY(t.device->write(&t, values, bytes, err));
    *tensor = t;
    return CDDP_OK;
}

cddp_status cd_graph_place(cd_graph *graph, const cddp_tensor *host, cddp_tensor *placed,
                           cddp_error *err)
{
    *placed = *host;
    if (graph->layers == NULL || graph->on_host || host->dtype == CDDP_I64) return CDDP_OK;
    return CD_PASS(cd_graph_give(graph, host->dtype, host->sizes, host->dim_count,
                                 cd_tensor_data(host), placed, err));
}

cddp_status cd_graph_host_tensor(cd_graph *graph, cddp_dtype dtype, const int64_t *sizes,
                                 uint32_t dim_count, cddp_tensor *tensor, cddp_error *err)
{
    const cddp_device *device = graph->layers != NULL ? cddp_device_cpu() : graph->device;
    cddp_tensor t = cddp_tensor_of(device, NULL, 0, dtype, sizes, dim_count);
    if (cd_graph_computes(graph) || dtype == CDDP_I64)
        CD_TRY(cd_graph_push(graph, (size_t)cddp_tensor_numel(&t) * cddp_dtype_bytes(dtype),
                             &t.storage, err));
    *tensor = t;
    return CDDP_OK;
}

cddp_status cd_graph_input(cd_graph *graph, const cddp_tensor *tensor, cd_value **value,
                           cddp_error *err)
{
    void *made = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(cd_value), &made, err));
    *(cd_value *)made = (cd_value){.tensor = *tensor, .place = graph->place};
    *value = made;
    return CDDP_OK;
}

cddp_status cd_graph_read(cd_graph *graph, cd_value *value, cd_value **read, cddp_error *err)
{
    const cd_graph_callbacks *cb = &graph->callbacks;
    *read = value;
    if (cb->cross == NULL || value == NULL || value->leaf != 0) return CDDP_OK;
    return CD_PASS(cb->cross(cb->context, value, read, err));
}

cddp_status cd_graph_detach(cd_graph *graph, const cd_value *value, cd_value **detached,
                            cddp_error *err)
{
    return CD_PASS(cd_graph_input(graph, &value->tensor, detached, err));
}

static cddp_status add_node(cd_graph *graph, cd_node node, cd_node **added, cddp_error *err)
{
    if (!cd_vec_grow(graph->allocator, (void **)&graph->nodes, &graph->node_capacity,
                     graph->node_count + 1, sizeof *graph->nodes))
        return cd_fail_memory(err, "node %zu of the tape", graph->node_count);
    void *made = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(cd_node), &made, err));
    node.index = (uint32_t)graph->node_count;
    *(cd_node *)made = node;
    graph->nodes[graph->node_count++] = made;
    *added = made;
    return CDDP_OK;
}

/* The leaf of a parameter is made once per tape, however often the parameter is used: its gradients
** meet there. */
static cddp_status accumulation_node(cd_graph *graph, uint32_t parameter, cd_node **node,
                                     cddp_error *err)
{
    if (graph->accumulate[parameter] == NULL) {
        cd_node leaf = {.sequence = CD_SEQUENCE_ACCUMULATE,
                        .parameter = parameter,
                        .output_count = 1};
        CD_TRY(add_node(graph, leaf, &graph->accumulate[parameter], err));
    }
    *node = graph->accumulate[parameter];
    return CDDP_OK;
}

static bool same_storage(const cddp_tensor *a, const cddp_tensor *b)
{
    return a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype;
}

const cddp_tensor *cd_graph_source(const cd_graph *graph, uint32_t parameter)
{
    return graph->staged != NULL ? &graph->staged[parameter]
                                 : &graph->parameters[parameter]->tensor;
}

/* A copy of the parameter on the tape: layers read contiguous tensors of the tape's device. */
static cddp_status stage(cd_graph *graph, const cddp_tensor *source, cddp_tensor *copy,
                         cddp_error *err)
{
    CD_TRY(cd_graph_tensor(graph, source->dtype, source->sizes, source->dim_count, copy, err));
    size_t bytes = (size_t)cddp_tensor_numel(copy) * cddp_dtype_bytes(copy->dtype);
    if (bytes > 0) CD_TRY(source->device->read(source, copy->storage, bytes, err));
    return CDDP_OK;
}

static cddp_status make_leaf(cd_graph *graph, uint32_t parameter, const cddp_tensor *source,
                             bool wants, cddp_error *err)
{
    cddp_tensor tensor = *source;
    cd_value *leaf = NULL;
    if (graph->staged != NULL) graph->staged[parameter] = *source;
    if (graph->is_far || (graph->staged != NULL && !cddp_tensor_is_contiguous(source)))
        CD_TRY(stage(graph, source, &tensor, err));
    CD_TRY(cd_graph_input(graph, &tensor, &leaf, err));
    leaf->leaf = parameter + 1;
    if (wants) CD_TRY(accumulation_node(graph, parameter, &leaf->node, err));
    graph->parameters[parameter] = leaf;
    return CDDP_OK;
}

cddp_status cd_graph_parameter(cd_graph *graph, uint32_t parameter, cd_value **value,
                               cddp_error *err)
{
    CD_ASSERT(parameter < graph->module->parameter_count);
    const cd_parameter *p = &graph->module->parameters[parameter];
    const cd_graph_callbacks *cb = &graph->callbacks;
    /* what is recomputed is recomputed for a backward */
    if (cb->use != NULL) CD_TRY(cb->use(cb->context, parameter, graph->backward != NULL, err));
    const cddp_tensor *source =
        cb->forward_parameter != NULL ? cb->forward_parameter(cb->context, parameter) : &p->tensor;
    const cd_value *leaf = graph->parameters[parameter];
    bool wants = p->requires_grad && graph->grad_enabled;
    if (leaf == NULL || (leaf->node != NULL) != wants ||
        !same_storage(cd_graph_source(graph, parameter), source))
        CD_TRY(make_leaf(graph, parameter, source, wants, err));
    /* Every use has its own cast, as with autocast. */
    if (source->dtype == CDDP_F16 || source->dtype == CDDP_BF16) {
        const uint64_t operations = graph->op_count; /* the cast is part of the one that reads it */
        CD_TRY(cd_cast(graph, graph->parameters[parameter], CDDP_F32, value, err));
        graph->op_count = operations;
        (*value)->leaf = parameter + 1;
        return CDDP_OK;
    }
    *value = graph->parameters[parameter];
    return CDDP_OK;
}

static bool is_wanted(const cd_graph *graph, const cd_record *record)
{
    if (!graph->grad_enabled) return false;
    for (uint32_t i = 0; i < record->input_count; i++)
        if (record->inputs[i] != NULL && record->inputs[i]->node != NULL) return true;
    return false;
}

/* Copies of the tensors that backward reads. */
static cddp_status save_tensors(cd_graph *graph, cd_value *const *values, uint32_t count,
                                cddp_tensor **saved, cddp_error *err)
{
    void *memory = NULL;
    CD_TRY(cd_graph_push(graph, count * sizeof(cddp_tensor), &memory, err));
    cddp_tensor *tensors = memory;
    for (uint32_t i = 0; i < count; i++)
        if (values[i] != NULL) tensors[i] = values[i]->tensor;
    *saved = tensors;
    return CDDP_OK;
}

static cddp_status note_leaves(cd_graph *graph, const cd_record *record, cd_node *node,
                               cddp_error *err)
{
    void *leaves = NULL;
    if (graph->callbacks.use == NULL) return CDDP_OK;
    CD_TRY(cd_graph_push(graph, record->input_count * sizeof *node->leaves, &leaves, err));
    node->leaves = leaves;
    for (uint32_t i = 0; i < record->input_count; i++)
        if (record->inputs[i] != NULL) node->leaves[i] = record->inputs[i]->leaf;
    return CDDP_OK;
}

cddp_status cd_graph_record(cd_graph *graph, const cd_record *record, cddp_error *err)
{
    if (!is_wanted(graph, record)) return CDDP_OK;
    cd_node node = {.op = record->op,
                    .sequence = graph->sequence++,
                    .edge_count = record->input_count,
                    .output_count = record->output_count,
                    .state = record->state,
                    .segment = graph->segment};
    void *edges = NULL;
    CD_TRY(cd_graph_push(graph, record->input_count * sizeof(cd_edge), &edges, err));
    node.edges = edges;
    for (uint32_t i = 0; i < record->input_count; i++)
        if (record->inputs[i] != NULL)
            node.edges[i] = (cd_edge){record->inputs[i]->node, record->inputs[i]->output};
    if (cd_graph_computes(graph)) {
        CD_TRY(save_tensors(graph, record->inputs, record->input_count, &node.inputs, err));
        CD_TRY(save_tensors(graph, record->outputs, record->output_count, &node.outputs, err));
    }
    CD_TRY(note_leaves(graph, record, &node, err));
    cd_node *added = NULL;
    CD_TRY(add_node(graph, node, &added, err));
    for (uint32_t i = 0; i < record->output_count; i++) {
        record->outputs[i]->node = added;
        record->outputs[i]->output = i;
    }
    return CDDP_OK;
}

cddp_status cd_graph_reachable(cd_graph *graph, cd_value *const *outputs, uint32_t output_count,
                               bool *reachable, cddp_error *err)
{
    cd_arena_mark mark = cd_arena_get_mark(&graph->arena);
    void *seen_memory = NULL, *stack_memory = NULL;
    CD_TRY(cd_graph_push(graph, graph->node_count * sizeof(bool), &seen_memory, err));
    CD_TRY(cd_graph_push(graph, graph->node_count * sizeof(cd_node *), &stack_memory, err));
    bool *seen = seen_memory;
    cd_node **stack = stack_memory;
    size_t depth = 0;
    memset(reachable, 0, graph->module->parameter_count * sizeof(bool));
    for (uint32_t i = 0; i < output_count; i++) {
        cd_node *root = outputs[i] != NULL ? outputs[i]->node : NULL;
        if (root == NULL || seen[root->index]) continue;
        seen[root->index] = true;
        stack[depth++] = root;
    }
    while (depth > 0) {
        const cd_node *node = stack[--depth];
        if (node->op == NULL) reachable[node->parameter] = true;
        for (uint32_t i = 0; i < node->edge_count; i++) {
            cd_node *next = node->edges[i].node;
            if (next == NULL || seen[next->index]) continue;
            seen[next->index] = true;
            stack[depth++] = next;
        }
    }
    cd_arena_rewind(&graph->arena, mark);
    return CDDP_OK;
}

void cd_graph_audit(const cd_graph *graph)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        const cd_node *node = graph->nodes[i];
        CD_ASSERT(node->index == i); /* G1 */
        for (uint32_t e = 0; e < node->edge_count; e++) {
            const cd_node *next = node->edges[e].node;
            /* G1 G2 */
            CD_ASSERT(next == NULL || next->op == NULL || next->sequence < node->sequence);
        }
    }
    for (size_t p = 0; p < graph->module->parameter_count; p++) {
        const cd_node *leaf = graph->accumulate[p];
        CD_ASSERT(leaf == NULL || (leaf->op == NULL && leaf->parameter == p &&
                                   graph->nodes[leaf->index] == leaf)); /* G3 */
    }
}

void cd_graph_destroy(cd_graph *graph)
{
    if (graph == NULL) return;
    cd_arena_fini(&graph->arena);
    cd_tape_fini(&graph->tape);
    cd_release(graph->allocator, graph->nodes, graph->node_capacity * sizeof *graph->nodes);
    cd_arena_fini(&graph->own);
}
