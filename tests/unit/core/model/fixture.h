/* SPDX-License-Identifier: Apache-2.0 */
/* A module and a graph on a device whose storage is counted too, for tests of the engine and the
** layers. */
#pragma once
#include "tests/support/test.h"

#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "core/model/engine.h"
#include "core/model/model.h"
#include "core/model/op.h"

typedef struct fixture {
    cd_watch_allocator watch;
    cddp_device device; /* cpu, storage from watch */
    cddp_error err;
    cd_module *module;
    cd_graph *graph;
} fixture;

void fixture_open(fixture *f);
/* Adds a parameter with values in [-5/6, 5/6); the graph is made by fixture_begin. */
uint32_t fixture_parameter(fixture *f, const char *name, cddp_dtype dtype, const int64_t *sizes,
                           uint32_t dim_count);
/* A new tape (and the graph itself the first time). */
void fixture_begin(fixture *f);
void fixture_close(fixture *f); /* asserts that nothing is left */

/* Element i of a contiguous host tensor, as f64. */
double element_get(const cddp_tensor *t, int64_t i);
void element_set(const cddp_tensor *t, int64_t i, double value);

/* Backward from one scalar, PyTorch's order. */
cddp_status backward_from(fixture *f, cd_value *loss, bool retain_graph);

/* Remembers which parameters fired, in order. */
typedef struct arrivals {
    uint32_t order[256];
    uint32_t count;
    bool defined[256]; /* whether the slot was, by position of arrival */
} arrivals;
cddp_status arrivals_ready(void *context, uint32_t parameter, cddp_grad *grad, cddp_error *err);
void arrivals_listen(fixture *f, arrivals *a);
void assert_order(const arrivals *a, const uint32_t *wanted, uint32_t count);

/* A model with its own watch allocator and device. */
typedef struct model_fixture {
    cd_watch_allocator watch;
    cddp_device device;
    cddp_error err;
    cd_prng prng;
    cd_model *model;
    cd_graph *graph;
} model_fixture;
typedef struct model_case {
    const char *name, *options;
    cddp_dtype dtype;
    bool dyadic;
    const cddp_device *device; /* NULL: cpu */
} model_case;
void model_open(model_fixture *m, const model_case *c);
/* begin, batch of these samples, forward, loss over mask, backward; gradients are zeroed to none
** first. */
typedef struct model_step {
    const int64_t *ids;
    int64_t count;
    uint32_t branch, mask; /* mask 0: all outputs */
    const double *weights;
    cd_ready_order order;
} model_step;
cddp_status model_run(model_fixture *m, const model_step *step, cd_outputs *outputs,
                      cd_value **loss);
void model_close(model_fixture *m);
