/* SPDX-License-Identifier: Apache-2.0 */
/* Routing is decided in forward and kept; gradients flow through the gate's probability and the
** rows, not through the choice.
*/
#include "core/model/layers/experts.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/model/op.h"

typedef struct take_state {
    cd_routing routing;
    int64_t expert;
} take_state;

typedef struct gate_state {
    int64_t *expert;   /* (samples) */
    cddp_tensor there; /* the same on a device that computes */
} gate_state;

static cddp_status describe_gate(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    gate_state *g = c->state;
    if (g->there.device == NULL)
        CD_TRY(cd_graph_give(c->graph, CDDP_I64, c->inputs[0].sizes, 1, NULL, &g->there, err));
    layer->given[0] = g->there;
    return CDDP_OK;
}

static cddp_status describe_take(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    (void)err;
    const take_state *t = c->state;
    layer->integers[0] = t->expert;
    layer->given[0] = t->routing.expert_there;
    layer->given[1] = t->routing.position_there;
    return CDDP_OK;
}

static cddp_status describe_combine(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    (void)err;
    const cd_routing *r = c->state;
    layer->given[0] = r->expert_there;
    layer->given[1] = r->position_there;
    return CDDP_OK;
}

/* How many rows an expert gets decides what runs next, so the host waits for the choice here. */
static cddp_status read_choice(const gate_state *g, int64_t samples, cddp_error *err)
{
    if (g->there.device == NULL || samples == 0) return CDDP_OK;
    return CD_PASS(
        g->there.device->read(&g->there, g->expert, (size_t)samples * sizeof(int64_t), err));
}

static cddp_status place_routing(cd_graph *graph, cd_routing *routing, cddp_error *err)
{
    if (graph->layers == NULL) return CDDP_OK;
    const int64_t *n = &routing->sample_count;
    CD_TRY(cd_graph_give(graph, CDDP_I64, n, 1, routing->expert, &routing->expert_there, err));
    return CD_PASS(
        cd_graph_give(graph, CDDP_I64, n, 1, routing->position, &routing->position_there, err));
}

#define KERNELS "core/model/layers/experts_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op gate_op = CD_OP("Top1Gate", gate, CDDP_LAYER_GATE, describe_gate);
static const cd_op take_op = CD_OP("ExpertTake", take, CDDP_LAYER_TAKE, describe_take);
static const cd_op combine_op =
    CD_OP("ExpertCombine", combine, CDDP_LAYER_COMBINE, describe_combine);

cddp_status cd_route_top1(cd_graph *graph, cd_value *logits, const int64_t *sample_ids,
                          cd_routing *routing, cddp_error *err)
{
    const cddp_tensor *t = &logits->tensor;
    char text[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes("routing", &logits, 1, err));
    if (t->dim_count != 2 || t->sizes[1] < 1 || t->sizes[1] > CD_EXPERTS_MAX)
        return cd_fail(err, CDDP_E_ARG, "routing: logits %s, at most %d experts are possible",
                       cd_tensor_print_sizes(t, text, sizeof text), CD_EXPERTS_MAX);
    int64_t samples = t->sizes[0], experts = t->sizes[1];
    void *memory = NULL, *state = NULL;
    CD_TRY(cd_graph_push(graph, (size_t)(2 * samples + experts) * sizeof(int64_t), &memory, err));
    CD_TRY(cd_graph_push(graph, sizeof(gate_state), &state, err));
    int64_t *expert = memory, *position = expert + samples, *count = position + samples;
    *(gate_state *)state = (gate_state){.expert = expert};
    cddp_tensor shape = cd_shape_of(t->dtype, &samples, 1);
    cd_apply apply = {.op = &gate_op,
                      .inputs = &logits,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    cd_value *gates = NULL;
    CD_TRY(cd_op_apply(graph, &apply, &gates, err));
    CD_TRY(read_choice(state, samples, err));
    for (int64_t s = 0; s < samples; s++) {
        if (!cd_graph_computes(graph)) expert[s] = sample_ids[s] % experts;
        position[s] = count[expert[s]]++;
    }
    *routing = (cd_routing){.sample_count = samples,
                            .expert_count = experts,
                            .expert = expert,
                            .position = position,
                            .count = count,
                            .gates = gates};
    return CD_PASS(place_routing(graph, routing, err));
}

cddp_status cd_expert_take(cd_graph *graph, cd_value *x, const cd_routing *routing, int64_t expert,
                           cd_value **rows, cddp_error *err)
{
    CD_ASSERT(expert >= 0 && expert < routing->expert_count);
    CD_TRY(cd_op_check_dtypes("expert", &x, 1, err));
    if (x->tensor.dim_count != 2 || x->tensor.sizes[0] != routing->sample_count)
        return cd_fail(err, CDDP_E_ARG, "expert: x has %lld rows, %lld samples were routed",
                       (long long)x->tensor.sizes[0], (long long)routing->sample_count);
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(take_state), &state, err));
    *(take_state *)state = (take_state){*routing, expert};
    cddp_tensor shape =
        cd_shape_of(x->tensor.dtype, (const int64_t[2]){routing->count[expert], x->tensor.sizes[1]},
                    2);
    cd_apply apply = {.op = &take_op,
                      .inputs = &x,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, rows, err));
}

cddp_status cd_expert_combine(cd_graph *graph, cd_value *const *results, const cd_routing *routing,
                              cd_value **y, cddp_error *err)
{
    cd_value *inputs[1 + CD_EXPERTS_MAX] = {routing->gates};
    int64_t width = -1;
    for (int64_t e = 0; e < routing->expert_count; e++) {
        inputs[1 + e] = results[e];
        if (results[e] == NULL) {
            CD_ASSERT(routing->count[e] == 0);
            continue;
        }
        const cddp_tensor *t = &results[e]->tensor;
        if (t->dim_count != 2 || t->sizes[0] != routing->count[e] ||
            (width >= 0 && t->sizes[1] != width))
            return cd_fail(err, CDDP_E_ARG,
                           "expert %lld: its result does not have %lld rows of the common width",
                           (long long)e, (long long)routing->count[e]);
        width = t->sizes[1];
    }
    if (width < 0) return cd_fail(err, CDDP_E_ARG, "experts: no sample was routed");
    uint32_t input_count = 1 + (uint32_t)routing->expert_count;
    CD_TRY(cd_op_check_dtypes("experts", inputs, input_count, err));
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof *routing, &state, err));
    *(cd_routing *)state = *routing;
    cddp_tensor shape = cd_shape_of(routing->gates->tensor.dtype,
                                    (const int64_t[2]){routing->sample_count, width}, 2);
    cd_apply apply = {.op = &combine_op,
                      .inputs = inputs,
                      .input_count = input_count,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}
