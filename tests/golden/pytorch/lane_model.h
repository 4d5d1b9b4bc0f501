/* SPDX-License-Identifier: Apache-2.0 */
/* A model of the engine on a lane: its parameters become the lane's, and DDP gets its
** gradients. */
#pragma once
#include "core/base/prng.h"
#include "core/model/engine.h"
#include "core/model/model.h"
#include "tests/unit/core/ddp/fixture.h"

typedef struct lane_model {
    cd_model *model;
    cd_graph *graph;
} lane_model;

/* The test's part of a batch: called to fill inputs and targets, which are allocated. */
typedef void (*lane_batch_fn)(lane *l, cd_batch *batch, const void *argument);

static inline cddp_status lane_model_ready(void *context, uint32_t parameter, cddp_grad *grad,
                                           cddp_error *err)
{
    (void)grad;
    return cddp_ddp_mark_parameter_ready(((lane *)context)->ddp, parameter, err);
}

static inline void lane_model_create_as(lane *l, const char *name, const char *options,
                                        cddp_dtype dtype, lane_model *made)
{
    const cd_prng prng = cd_prng_seed(1);
    const cd_model_options o = {.name = name,
                                .options = options,
                                .dtype = dtype,
                                .device = cddp_device_cpu(),
                                .allocator = cddp_allocator_default(),
                                .prng = &prng};
    const cd_graph_callbacks callbacks = {.context = l, .ready = lane_model_ready};
    CHECK_OK(cd_model_create(&o, &made->model, &l->err));
    CHECK_OK(cd_graph_create(made->model->module, o.allocator, &made->graph, &l->err));
    cd_graph_set_callbacks(made->graph, &callbacks);
    l->count = made->model->module->parameter_count;
    for (uint32_t i = 0; i < l->count; i++) {
        cd_parameter *p = &made->model->module->parameters[i];
        l->parameters[i] = (cddp_parameter){.name = p->name,
                                            .tensor = p->tensor,
                                            .grad = &p->grad,
                                            .requires_grad = true};
    }
}

static inline void lane_model_create(lane *l, const char *options, lane_model *made)
{
    lane_model_create_as(l, "mlp", options, CDDP_F32, made);
}

static inline void lane_model_destroy(lane *l, lane_model *made)
{
    lane_unwrap(l); /* before what it wraps */
    l->count = 0;
    cd_graph_destroy(made->graph);
    cd_model_destroy(made->model);
}

/* The loss of a batch of `count` samples, up to the graph's next beginning. */
static inline cd_value *lane_model_loss(lane *l, const lane_model *made, int64_t count,
                                        lane_batch_fn fill, const void *argument,
                                        cd_outputs *outputs)
{
    int64_t ids[128];
    const cd_prng prng = cd_prng_seed(1);
    const cd_batch_request request = {.sample_ids = ids, .sample_count = count, .prng = &prng};
    cd_batch batch;
    cd_value *loss = NULL;
    CHECK(count <= (int64_t)(sizeof ids / sizeof ids[0]));
    for (int64_t i = 0; i < count; i++) ids[i] = i;
    CHECK_OK(cd_batch_make(made->graph, made->model, &request, &batch, &l->err));
    fill(l, &batch, argument);
    CHECK_OK(cd_model_forward(made->model, made->graph, &batch, outputs, &l->err));
    CHECK_OK(cd_model_loss(made->model, made->graph, &batch, outputs, UINT32_MAX, &loss, &l->err));
    return loss;
}

/* One forward and backward under DDP. */
static inline void lane_model_run(lane *l, const lane_model *made, int64_t count,
                                  lane_batch_fn fill, const void *argument)
{
    cd_outputs outputs;
    cd_graph_begin(made->graph);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    cd_value *loss = lane_model_loss(l, made, count, fill, argument, &outputs);
    CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
    const cd_backward_options backward = {.roots = &loss, .root_count = 1};
    CHECK_OK(cd_graph_backward(made->graph, &backward, &l->err));
    lane_end(l);
}

/* ranks.py's numbers: multiples of 1/parts, `values` of them, the middle one 0. */
static inline void fill_grid(float *at, int64_t count, uint64_t salt, uint64_t values, float parts)
{
    for (int64_t k = 0; k < count; k++) {
        uint64_t h =
            (((uint64_t)k * 7919 + salt * 104729 + 12345) * UINT64_C(2654435761)) & 0xffffffffu;
        at[k] = ((float)((h >> 16) % values) - (float)(values / 2)) / parts;
    }
}

static inline float *lane_floats(const cddp_tensor *t) { return (float *)t->storage + t->offset; }
