/* SPDX-License-Identifier: Apache-2.0 */
/* How a layer is written: an op is a forward kernel and a backward kernel per element type, or a
** route.
**
** cd_op_apply allocates outputs, runs the forward kernel where the graph computes, and records the
** node with its inputs, outputs and state saved. The engine calls backward with every wanted input
** gradient zeroed; a kernel adds into it. A route passes gradients on unchanged (sink, add,
** reshape) and works on every device.
**
** Where the tape is in a device's memory (cddp_device.layers), a layer that the device has runs
** there. Kernels of other layers run on the host, over copies of the call's operands (cd_op_run).
**
** Every kernel promises, unless its comment excludes it: the bits of a sample do not depend on its
** batch. The gradient of a parameter is the left fold, in sample order, of the gradients of single
** samples.
*/
#pragma once
#include "core/base/error.h"
#include "core/model/graph.h"

typedef struct cd_op_call {
    cd_graph *graph;
    void *state; /* the op's own record in the arena */
    uint32_t input_count, output_count;
    const cddp_tensor *inputs;  /* (input_count) device NULL: an absent optional input */
    const cddp_tensor *outputs; /* (output_count) */
    /* backward: (output_count); kernels see them all dense, routes as they come */
    const cd_gradient *out_grads;
    cd_gradient *in_grads; /* backward: (input_count); UNDEFINED where nobody wants it */
} cd_op_call;

typedef cddp_status (*cd_op_fn)(const cd_op_call *call, cddp_error *err);

struct cd_op {
    const char *name;   /* "Linear", as errors show it */
    bool keeps_nothing; /* no saved tensors: may go back again after its graph was freed */
    /* its backward kernel makes the storage of in_grads itself (sparse ones) */
    bool makes_gradients;
    cd_op_fn forward[2]; /* f32, f64; may be NULL with a route */
    cd_op_fn backward[2];
    cd_op_fn route;      /* passes gradients on; in_grads start undefined */
    bool through_device; /* its kernels touch tensors through the device table alone */
    cddp_layer layer;    /* what a device may compute in the kernels' place, or NONE */
    /* does: refuses what the kernel would refuse, and fills in what the layer is given besides
    ** inputs; layer NONE: the host this time. NULL: nothing to fill in. */
    cddp_status (*describe)(const cd_op_call *call, cddp_layer_call *layer, cddp_error *err);
    /* does: runs what describe described where one call is not enough: ranks talk in between. NULL:
    ** one call is. */
    cddp_status (*run_parts)(const cd_op_call *call, cddp_layer_call *layer, cddp_error *err);
};

/* The table of an op whose kernels are <fn>_forward and <fn>_backward of a kernels header
** (each_real.h). */
#define CD_OP(text, fn, device_layer, device_describe)                          \
    {                                                                           \
        .name = (text), .layer = (device_layer), .describe = (device_describe), \
        .forward = {fn##_forward_f32, fn##_forward_f64}, .backward = {          \
            fn##_backward_f32,                                                  \
            fn##_backward_f64                                                   \
        }                                                                       \
    }

typedef struct cd_apply {
    const cd_op *op;
    cd_value *const *inputs; /* (input_count); NULL: absent */
    uint32_t input_count;
    void *state;
    const cddp_tensor *shapes; /* (output_count) dtype and sizes of the outputs; storage is made */
    uint32_t output_count;
} cd_apply;
cddp_status cd_op_apply(cd_graph *graph, const cd_apply *apply, cd_value **outputs,
                        cddp_error *err) CDDP_MUST_CHECK;

/* Runs an op's forward or backward kernel, here or on the tape's device. The graph computes. */
cddp_status cd_op_run(const cd_op *op, const cd_op_call *call, bool is_backward,
                      cddp_error *err) CDDP_MUST_CHECK;

/* Sizes and dtype without storage, for cd_apply.shapes. */
cddp_tensor cd_shape_of(cddp_dtype dtype, const int64_t *sizes, uint32_t dim_count);
/* Elements per sample: the product of all sizes but the first. */
int64_t cd_tensor_row_numel(const cddp_tensor *t);
bool cd_tensor_same_sizes(const cddp_tensor *a, const cddp_tensor *b);
/* "(2, 3)" in text; returns text. */
const char *cd_tensor_print_sizes(const cddp_tensor *t, char *text, size_t text_bytes);
#define CD_SIZES_BYTES 96

/* First element of a host tensor. */
static inline void *cd_tensor_data(const cddp_tensor *t)
{
    return (unsigned char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

/* Refuses values of different dtypes, naming the layer. */
cddp_status cd_op_check_dtypes(const char *layer, cd_value *const *inputs, uint32_t input_count,
                               cddp_error *err) CDDP_MUST_CHECK;
