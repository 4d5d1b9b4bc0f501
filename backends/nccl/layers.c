/* SPDX-License-Identifier: Apache-2.0 */
/* Layers and update rules of the cuda device: operands, scratch, products. The kernels are in
** layers.cu. */
#include "backends/nccl/layers.h"

#include "backends/nccl/cuda.h"
#include "core/base/error.h"
#include "core/tensor/view.h"

/* COMBINE takes as many inputs as there are experts, and the gates. */
static const struct {
    const char *name;
    uint32_t inputs;
} layers[CDDP_LAYER_COUNT] = {
    [CDDP_LAYER_LINEAR] = {"linear", 3},
    [CDDP_LAYER_RELU] = {"relu", 1},
    [CDDP_LAYER_GELU] = {"gelu", 1},
    [CDDP_LAYER_TANH] = {"tanh", 1},
    [CDDP_LAYER_SIGMOID] = {"sigmoid", 1},
    [CDDP_LAYER_CONV2D] = {"conv2d", 3},
    [CDDP_LAYER_AVERAGE_POOL] = {"average pool", 1},
    [CDDP_LAYER_UPSAMPLE] = {"upsample", 1},
    [CDDP_LAYER_DROPOUT] = {"dropout", 1},
    [CDDP_LAYER_EMBEDDING] = {"embedding", 1},
    [CDDP_LAYER_LAYER_NORM] = {"layer norm", 3},
    [CDDP_LAYER_BATCH_NORM] = {"batch norm", 3},
    [CDDP_LAYER_ATTENTION] = {"attention", 1},
    [CDDP_LAYER_SQUARED_ERROR] = {"squared error", 2},
    [CDDP_LAYER_BCE] = {"binary cross entropy", 2},
    [CDDP_LAYER_INNER_PRODUCT] = {"inner product", 2},
    [CDDP_LAYER_CROSS_ENTROPY] = {"cross entropy", 1},
    [CDDP_LAYER_WEIGHTED_SUM] = {"weighted sum", 1},
    [CDDP_LAYER_GATE] = {"gate", 1},
    [CDDP_LAYER_TAKE] = {"expert's rows", 1},
    [CDDP_LAYER_COMBINE] = {"experts' results", 1},
    [CDDP_LAYER_ADD_INNER] = {"inner product with a parameter", 3},
    [CDDP_LAYER_BATCH_NORM_SHARED] = {"synchronised batch norm", 3},
};

/* ---- operands ---- */

static cddp_status check_tensors(const cddp_device *device, const char *name, const char *what,
                                 const cddp_tensor *tensors, uint32_t count, cddp_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        const cddp_tensor *t = &tensors[i];
        if (t->device == NULL) continue;
        if (t->device != device)
            return cd_fail(err, CDDP_E_ARG, "%s: %s %u is on device %s", name, what, i,
                           t->device->name);
        if (!cddp_tensor_is_contiguous(t))
            return cd_fail(err, CDDP_E_ARG, "%s: %s %u has gaps", name, what, i);
    }
    return CDDP_OK;
}

/* pairs: the tensor that may be c64 beside f32, or count. */
static cddp_status check_reals(const char *name, const char *what, const cddp_tensor *tensors,
                               uint32_t count, uint32_t pairs, cddp_dtype dtype, cddp_error *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].device != NULL && tensors[i].dtype != dtype &&
            !(i == pairs && tensors[i].dtype == CDDP_C64 && dtype == CDDP_F32))
            return cd_fail(err, CDDP_E_ARG, "%s: %s %u is %s beside %s", name, what, i,
                           cddp_dtype_name(tensors[i].dtype), cddp_dtype_name(dtype));
    return CDDP_OK;
}

static cddp_status check_call(const cddp_device *device, const cddp_layer_call *call,
                              cddp_error *err)
{
    if (call->size < sizeof *call || (unsigned)call->layer >= CDDP_LAYER_COUNT ||
        layers[call->layer].name == NULL)
        return cd_fail(err, CDDP_E_ARG, "cuda: layer %d in a call of %u bytes", (int)call->layer,
                       call->size);
    const char *name = layers[call->layer].name;
    const bool fits = call->layer == CDDP_LAYER_COMBINE
                          ? call->input_count >= 2 && call->input_count <= 1 + CD_CUDA_EXPERTS_MAX
                          : call->input_count == layers[call->layer].inputs;
    if (!fits || call->output_count != 1)
        return cd_fail(err, CDDP_E_ARG, "%s: %u inputs and %u outputs", name, call->input_count,
                       call->output_count);
    const cddp_dtype dtype = call->outputs[0].dtype;
    if (dtype != CDDP_F32 && dtype != CDDP_F64)
        return cd_fail(err, CDDP_E_ARG, "%s computes in f32 and f64, not in %s", name,
                       cddp_dtype_name(dtype));
    CD_TRY(check_tensors(device, name, "given tensor", call->given, CDDP_LAYER_GIVEN, err));
    CD_TRY(check_tensors(device, name, "input", call->inputs, call->input_count, err));
    CD_TRY(check_tensors(device, name, "output", call->outputs, 1, err));
    const uint32_t n = call->input_count, pairs = call->layer == CDDP_LAYER_ADD_INNER ? 1 : n;
    CD_TRY(check_reals(name, "input", call->inputs, n, pairs, dtype, err));
    if (!call->is_backward) return CDDP_OK;
    CD_TRY(check_tensors(device, name, "gradient of output", call->out_grads, 1, err));
    CD_TRY(
        check_tensors(device, name, "gradient of input", call->in_grads, call->input_count, err));
    CD_TRY(check_reals(name, "gradient of output", call->out_grads, 1, 1, dtype, err));
    return CD_PASS(check_reals(name, "gradient of input", call->in_grads, n, pairs, dtype, err));
}

/* ---- trace events ---- */

static void touch(cd_cuda *cuda, const cddp_tensor *tensors, uint32_t count, bool write,
                  const char *who)
{
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i].device != NULL)
            cd_observe_touch(&cuda->observer, cuda->stream, &tensors[i], write, who);
}

static void observe_call(cd_cuda *cuda, const cddp_layer_call *call)
{
    const char *who = layers[call->layer].name;
    const bool is_half = call->layer == CDDP_LAYER_BATCH_NORM_SHARED;
    const bool moves_given =
        (is_half && call->integers[1] == 1) ||
        (!call->is_backward &&
         (is_half || call->layer == CDDP_LAYER_BATCH_NORM || call->layer == CDDP_LAYER_GATE));
    if (cuda->observer.tracer == NULL) return;
    touch(cuda, call->inputs, call->input_count, false, who);
    touch(cuda, call->given, CDDP_LAYER_GIVEN, moves_given, who);
    touch(cuda, call->outputs, call->output_count, !call->is_backward, who);
    if (!call->is_backward) return;
    touch(cuda, call->out_grads, call->output_count, false, who);
    touch(cuda, call->in_grads, call->input_count, true, who);
}

/* ---- products ---- */

/* A stored row-major matrix; `by_columns` reads it transposed. */
typedef struct operand {
    const void *data;
    int64_t row, column; /* strides */
} operand;

static operand operand_of(const cddp_tensor *t, int64_t width, bool by_columns)
{
    const char *data = (const char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
    return by_columns ? (operand){data, 1, width} : (operand){data, width, 1};
}

/* dst (m, n) = a (m, k) · b (k, n) */
static cddp_status run_product(cd_cuda *cuda, const cddp_tensor *dst, const operand *a,
                               const operand *b, int64_t m, int64_t n, int64_t k, cddp_error *err)
{
    bool done = false;
    cd_cuda_product p = {.a = a->data,
                         .b = b->data,
                         .dst = (char *)dst->storage +
                                (size_t)dst->offset * cddp_dtype_bytes(dst->dtype),
                         .dtype = (uint32_t)dst->dtype,
                         .m = m,
                         .n = n,
                         .k = k,
                         .a_row = a->row,
                         .a_k = a->column,
                         .b_k = b->row,
                         .b_col = b->column,
                         .dst_row = n,
                         .dst_col = 1};
    if (m == 0 || n == 0) return CDDP_OK;
    if (k > 0 && m >= (CD_CUDA_LARGE_PRODUCT / n + k - 1) / k)
        CD_TRY(cd_cublas_product(cuda, &p, cuda->stream, &done, err));
    if (done) return CDDP_OK;
    return CD_PASS(cd_cuda_check((cudaError_t)cd_cuda_launch_product(&p, cuda->stream),
                                 "starting a product", err));
}

static cddp_status run_linear_products(cd_cuda *cuda, const cddp_layer_call *call, cddp_error *err)
{
    const cddp_tensor *x = &call->inputs[1], *w = &call->inputs[2];
    const int64_t in = w->sizes[1], out = w->sizes[0];
    int64_t rows = 1;
    for (uint32_t d = 0; d + 1 < x->dim_count; d++) rows *= x->sizes[d];
    if (!call->is_backward) {
        operand a = operand_of(x, in, false), b = operand_of(w, in, true);
        return CD_PASS(run_product(cuda, &call->outputs[0], &a, &b, rows, out, in, err));
    }
    const cddp_tensor *dy = &call->out_grads[0], *dx = &call->in_grads[1], *dw = &call->in_grads[2];
    if (dx->device != NULL) {
        operand a = operand_of(dy, out, false), b = operand_of(w, in, false);
        CD_TRY(run_product(cuda, dx, &a, &b, rows, in, out, err));
    }
    /* several rows per sample: layers.cu */
    if (dw->device == NULL || rows != x->sizes[0]) return CDDP_OK;
    operand a = operand_of(dy, out, true), b = operand_of(x, in, false);
    return CD_PASS(run_product(cuda, dw, &a, &b, out, in, rows, err));
}

/* ---- the table ---- */

static cddp_status need(const cddp_device *device, cd_cuda **cuda, cddp_error *err)
{
    cd_cuda *c = device->self;
    if (!c->is_open) CD_TRY(cd_cuda_open(c, 0, err));
    *cuda = c;
    return CDDP_OK;
}

static cddp_status cuda_run(const cddp_device *device, const cddp_layer_call *call, cddp_error *err)
{
    cd_cuda *cuda;
    void *scratch = NULL;
    CD_TRY(check_call(device, call, err));
    CD_TRY(need(device, &cuda, err));
    observe_call(cuda, call);
    if (call->layer == CDDP_LAYER_LINEAR) CD_TRY(run_linear_products(cuda, call, err));
    const size_t bytes = cd_cuda_layer_scratch(call);
    if (bytes > 0) CD_TRY(cd_cuda_take(cuda, bytes, &scratch, err));
    cddp_status status =
        cd_cuda_check((cudaError_t)cd_cuda_launch_layer(call, scratch, cuda->stream),
                      layers[call->layer].name, err);
    cd_cuda_give(cuda, bytes, scratch);
    return status;
}

static cddp_status cuda_update(const cddp_device *device, const cddp_update_call *call,
                               cddp_error *err)
{
    cd_cuda *cuda;
    if (call->size < sizeof *call || (unsigned)call->rule >= CDDP_UPDATE_COUNT ||
        call->tensors[0] == NULL)
        return cd_fail(err, CDDP_E_ARG, "cuda: update rule %d in a call of %u bytes",
                       (int)call->rule, call->size);
    for (int i = 0; i < CDDP_UPDATE_TENSORS && call->tensors[i] != NULL; i++) {
        const cddp_tensor *t = call->tensors[i];
        if (t->device != device)
            return cd_fail(err, CDDP_E_ARG, "update: tensor %d is on device %s", i,
                           t->device->name);
        if (!cddp_dtype_is_float(t->dtype) && t->dtype != CDDP_C64)
            return cd_fail(err, CDDP_E_ARG, "update: tensor %d is %s", i,
                           cddp_dtype_name(t->dtype));
        CD_TRY(cd_view_check_same(call->tensors[0], t, "update", err));
    }
    CD_TRY(need(device, &cuda, err));
    for (uint32_t i = 0; i < CDDP_UPDATE_TENSORS && call->tensors[i] != NULL; i++)
        touch(cuda, call->tensors[i], 1, i != 1, "update"); /* all but the gradient */
    return CD_PASS(cd_cuda_check((cudaError_t)cd_cuda_launch_update(call, cuda->stream),
                                 "starting an update", err));
}

const cddp_layers cd_cuda_layers = {.size = sizeof cd_cuda_layers,
                                    .abi = CDDP_LAYERS_ABI,
                                    .layers = (CDDP_LAYER_BIT(CDDP_LAYER_COUNT) - 1) &
                                              ~CDDP_LAYER_BIT(CDDP_LAYER_NONE),
                                    .rules = CDDP_UPDATE_BIT(CDDP_UPDATE_COUNT) - 1,
                                    .run = cuda_run,
                                    .update = cuda_update};
