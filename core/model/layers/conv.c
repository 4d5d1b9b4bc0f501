/* SPDX-License-Identifier: Apache-2.0 */
/* Convolution by unfolding, pooling, upsampling. Operands stand in PyTorch's edge order: x, weight,
** bias. */
#include "core/model/layers/conv.h"

#include "core/base/error.h"
#include "core/model/layers/product.h"
#include "core/model/op.h"

enum { X, WEIGHT, BIAS };

typedef struct conv_sizes {
    int64_t samples, sample; /* elements of one sample of x */
    int64_t height, width, kernel_height, kernel_width, stride, padding;
    int64_t out, out_width;
    int64_t patch;     /* in · kh · kw */
    int64_t positions; /* of y in one plane */
} conv_sizes;

static conv_sizes conv_sizes_of(const cd_op_call *c)
{
    const cddp_tensor *x = &c->inputs[X], *w = &c->inputs[WEIGHT], *y = &c->outputs[0];
    const cd_conv2d *conv = c->state;
    return (conv_sizes){.samples = x->sizes[0],
                        .sample = cd_tensor_row_numel(x),
                        .height = x->sizes[2],
                        .width = x->sizes[3],
                        .kernel_height = w->sizes[2],
                        .kernel_width = w->sizes[3],
                        .stride = conv->stride,
                        .padding = conv->padding,
                        .out = w->sizes[0],
                        .out_width = y->sizes[3],
                        .patch = cd_tensor_row_numel(w),
                        .positions = y->sizes[2] * y->sizes[3]};
}

/* Which element of the sample patch element k meets at position p; -1 in the padding. */
static int64_t source_of(const conv_sizes *z, int64_t k, int64_t p)
{
    int64_t window = z->kernel_height * z->kernel_width, channel = k / window;
    int64_t row = p / z->out_width * z->stride + k % window / z->kernel_width - z->padding;
    int64_t column = p % z->out_width * z->stride + k % z->kernel_width - z->padding;
    if (row < 0 || row >= z->height || column < 0 || column >= z->width) return -1;
    return (channel * z->height + row) * z->width + column;
}

typedef struct pool_sizes {
    int64_t planes, height, width, size; /* of the larger side */
} pool_sizes;

static pool_sizes pool_sizes_of(const cddp_tensor *large, const void *state)
{
    return (pool_sizes){.planes = large->sizes[0] * large->sizes[1],
                        .height = large->sizes[2],
                        .width = large->sizes[3],
                        .size = *(const int64_t *)state};
}

static cddp_status describe_conv(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    (void)err;
    const cd_conv2d *conv = c->state;
    layer->integers[0] = conv->stride;
    layer->integers[1] = conv->padding;
    return CDDP_OK;
}

static cddp_status describe_resize(const cd_op_call *c, cddp_layer_call *layer, cddp_error *err)
{
    (void)err;
    layer->integers[0] = *(const int64_t *)c->state;
    return CDDP_OK;
}

#define KERNELS "core/model/layers/conv_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op conv_op = CD_OP("Conv2d", conv, CDDP_LAYER_CONV2D, describe_conv);
static const cd_op pool_op = CD_OP("AveragePool2d", pool, CDDP_LAYER_AVERAGE_POOL, describe_resize);
static const cd_op upsample_op =
    CD_OP("Upsample2d", upsample, CDDP_LAYER_UPSAMPLE, describe_resize);

cddp_status cd_conv2d_layer(cd_graph *graph, cd_value *const operands[3], const cd_conv2d *conv,
                            cd_value **y, cddp_error *err)
{
    const cddp_tensor *x = &operands[X]->tensor, *w = &operands[WEIGHT]->tensor;
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes("conv2d", operands, 3, err));
    if (x->dim_count != 4 || w->dim_count != 4 || x->sizes[1] != w->sizes[1] || conv->stride < 1 ||
        conv->padding < 0 || x->sizes[2] + 2 * conv->padding < w->sizes[2] ||
        x->sizes[3] + 2 * conv->padding < w->sizes[3])
        return cd_fail(err, CDDP_E_ARG,
                       "conv2d: x %s, weight %s, stride %lld and padding %lld do not fit",
                       cd_tensor_print_sizes(x, left, sizeof left),
                       cd_tensor_print_sizes(w, right, sizeof right), (long long)conv->stride,
                       (long long)conv->padding);
    if (operands[BIAS] != NULL &&
        (operands[BIAS]->tensor.dim_count != 1 || operands[BIAS]->tensor.sizes[0] != w->sizes[0]))
        return cd_fail(err, CDDP_E_ARG, "conv2d: bias %s does not fit weight %s",
                       cd_tensor_print_sizes(&operands[BIAS]->tensor, left, sizeof left),
                       cd_tensor_print_sizes(w, right, sizeof right));
    int64_t sizes[4] = {x->sizes[0], w->sizes[0],
                        (x->sizes[2] + 2 * conv->padding - w->sizes[2]) / conv->stride + 1,
                        (x->sizes[3] + 2 * conv->padding - w->sizes[3]) / conv->stride + 1};
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof *conv, &state, err));
    *(cd_conv2d *)state = *conv;
    cddp_tensor shape = cd_shape_of(x->dtype, sizes, 4);
    cd_apply apply = {.op = &conv_op,
                      .inputs = operands,
                      .input_count = 3,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}

static cddp_status resize(cd_graph *graph, const cd_op *op, cd_value *x, int64_t size, cd_value **y,
                          cddp_error *err)
{
    const cddp_tensor *t = &x->tensor;
    char text[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes(op->name, &x, 1, err));
    bool shrinks = op == &pool_op;
    if (t->dim_count != 4 || size < 1 ||
        (shrinks && (t->sizes[2] % size != 0 || t->sizes[3] % size != 0)))
        return cd_fail(err, CDDP_E_ARG, "%s: size %lld does not fit x %s", op->name,
                       (long long)size, cd_tensor_print_sizes(t, text, sizeof text));
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof size, &state, err));
    *(int64_t *)state = size;
    cddp_tensor shape = cd_shape_of(t->dtype, t->sizes, 4);
    for (int i = 2; i < 4; i++) shape.sizes[i] = shrinks ? t->sizes[i] / size : t->sizes[i] * size;
    cd_apply apply = {.op = op,
                      .inputs = &x,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, y, err));
}

cddp_status cd_average_pool2d(cd_graph *graph, cd_value *x, int64_t size, cd_value **y,
                              cddp_error *err)
{
    return CD_PASS(resize(graph, &pool_op, x, size, y, err));
}

cddp_status cd_upsample2d(cd_graph *graph, cd_value *x, int64_t size, cd_value **y, cddp_error *err)
{
    return CD_PASS(resize(graph, &upsample_op, x, size, y, err));
}
