/* SPDX-License-Identifier: Apache-2.0 */
/* Per-sample losses and their weighted sum. Targets want no gradient. */
#include "core/model/layers/loss.h"

#include "core/base/error.h"
#include "core/model/op.h"

#include <string.h>

typedef struct weighted_sum {
    const double *weights; /* (sample_count) in the tape, or NULL */
    double divisor;
    cddp_tensor there; /* the weights on a device that computes */
} weighted_sum;

typedef struct cross_entropy_state {
    cddp_tensor classes, there; /* there: the classes on a device that computes */
} cross_entropy_state;

static cddp_status describe_weighted_sum(const cd_op_call *c, cddp_layer_call *layer,
                                         cddp_error *err)
{
    weighted_sum *w = c->state;
    if (w->weights != NULL && w->there.device == NULL)
        CD_TRY(
            cd_graph_give(c->graph, CDDP_F64, c->inputs[0].sizes, 1, w->weights, &w->there, err));
    layer->reals[0] = w->divisor;
    layer->given[0] = w->there;
    return CDDP_OK;
}

static cddp_status refuse_class(int64_t given, int64_t sample, int64_t classes, cddp_error *err)
{
    return cd_fail(err, CDDP_E_ARG, "cross entropy: class %lld of sample %lld is not in 0 … %lld",
                   (long long)given, (long long)sample, (long long)classes - 1);
}

static cddp_status describe_cross_entropy(const cd_op_call *c, cddp_layer_call *layer,
                                          cddp_error *err)
{
    cross_entropy_state *s = c->state;
    if (s->there.device == NULL) {
        const int64_t *target = cd_tensor_data(&s->classes),
                      classes = c->inputs[0].sizes[c->inputs[0].dim_count - 1];
        const int64_t positions = cd_tensor_row_numel(&s->classes);
        for (int64_t i = 0, n = cddp_tensor_numel(&s->classes); i < n; i++)
            if (target[i] != CD_IGNORE_CLASS && (target[i] < 0 || target[i] >= classes))
                return CD_PASS(refuse_class(target[i], i / positions, classes, err));
        CD_TRY(cd_graph_give(c->graph, CDDP_I64, s->classes.sizes, s->classes.dim_count, target,
                             &s->there, err));
    }
    layer->given[0] = s->there;
    return CDDP_OK;
}

#define KERNELS "core/model/layers/loss_kernels.h"
#include "core/model/layers/each_real.h"

static const cd_op squared_error_op =
    CD_OP("SquaredError", squared_error, CDDP_LAYER_SQUARED_ERROR, NULL);
static const cd_op bce_op = CD_OP("BCEWithLogits", bce, CDDP_LAYER_BCE, NULL);
static const cd_op inner_product_op =
    CD_OP("InnerProduct", inner_product, CDDP_LAYER_INNER_PRODUCT, NULL);
static const cd_op cross_entropy_op =
    CD_OP("CrossEntropy", cross_entropy, CDDP_LAYER_CROSS_ENTROPY, describe_cross_entropy);
static const cd_op weighted_sum_op =
    CD_OP("WeightedSum", weighted_sum, CDDP_LAYER_WEIGHTED_SUM, describe_weighted_sum);

static cddp_status pair_loss(cd_graph *graph, const cd_op *op, cd_value *const pair[2],
                             cd_value **losses, cddp_error *err)
{
    const cddp_tensor *y = &pair[0]->tensor, *t = &pair[1]->tensor;
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    CD_TRY(cd_op_check_dtypes(op->name, pair, 2, err));
    if (!cd_tensor_same_sizes(y, t) || y->dim_count < 1)
        return cd_fail(err, CDDP_E_ARG, "%s: output %s and target %s differ", op->name,
                       cd_tensor_print_sizes(y, left, sizeof left),
                       cd_tensor_print_sizes(t, right, sizeof right));
    if (pair[1]->node != NULL)
        return cd_fail(err, CDDP_E_UNSUPPORTED, "%s: the target wants a gradient", op->name);
    cddp_tensor shape = cd_shape_of(y->dtype, y->sizes, 1);
    cd_apply apply = {
        .op = op, .inputs = pair, .input_count = 2, .shapes = &shape, .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, losses, err));
}

cddp_status cd_squared_error(cd_graph *graph, cd_value *y, cd_value *target, cd_value **losses,
                             cddp_error *err)
{
    return CD_PASS(
        pair_loss(graph, &squared_error_op, (cd_value *const[2]){y, target}, losses, err));
}

cddp_status cd_bce_with_logits(cd_graph *graph, cd_value *y, cd_value *target, cd_value **losses,
                               cddp_error *err)
{
    return CD_PASS(pair_loss(graph, &bce_op, (cd_value *const[2]){y, target}, losses, err));
}

cddp_status cd_inner_product(cd_graph *graph, cd_value *y, cd_value *target, cd_value **losses,
                             cddp_error *err)
{
    return CD_PASS(
        pair_loss(graph, &inner_product_op, (cd_value *const[2]){y, target}, losses, err));
}

cddp_status cd_cross_entropy(cd_graph *graph, cd_value *y, const cddp_tensor *classes,
                             cd_value **losses, cddp_error *err)
{
    const cddp_tensor *t = &y->tensor;
    CD_TRY(cd_op_check_dtypes("cross entropy", &y, 1, err));
    cddp_tensor positions = *t;
    positions.dim_count = t->dim_count > 0 ? t->dim_count - 1 : 0;
    char left[CD_SIZES_BYTES], right[CD_SIZES_BYTES];
    if (t->dim_count < 2 || t->sizes[t->dim_count - 1] < 1 || classes->dtype != CDDP_I64 ||
        !cd_tensor_same_sizes(&positions, classes))
        return cd_fail(err, CDDP_E_ARG, "cross entropy: logits %s do not fit %s classes %s",
                       cd_tensor_print_sizes(t, left, sizeof left), cddp_dtype_name(classes->dtype),
                       cd_tensor_print_sizes(classes, right, sizeof right));
    void *state = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(cross_entropy_state), &state, err));
    ((cross_entropy_state *)state)->classes = *classes;
    cddp_tensor shape = cd_shape_of(t->dtype, t->sizes, 1);
    cd_apply apply = {.op = &cross_entropy_op,
                      .inputs = &y,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, losses, err));
}

cddp_status cd_weighted_sum(cd_graph *graph, cd_value *losses, const double *weights,
                            double divisor, cd_value **loss, cddp_error *err)
{
    CD_TRY(cd_op_check_dtypes("weighted sum", &losses, 1, err));
    if (losses->tensor.dim_count != 1)
        return cd_fail(err, CDDP_E_ARG,
                       "weighted sum: wants one number per sample, got %u dimensions",
                       (unsigned)losses->tensor.dim_count);
    size_t bytes = (size_t)losses->tensor.sizes[0] * sizeof *weights;
    void *state = NULL, *copy = NULL;
    CD_TRY(cd_graph_push(graph, sizeof(weighted_sum), &state, err));
    if (weights != NULL) {
        CD_TRY(cd_graph_push(graph, bytes, &copy, err));
        if (bytes > 0) memcpy(copy, weights, bytes);
    }
    *(weighted_sum *)state = (weighted_sum){.weights = copy, .divisor = divisor};
    cddp_tensor shape = cd_shape_of(losses->tensor.dtype, NULL, 0);
    cd_apply apply = {.op = &weighted_sum_op,
                      .inputs = &losses,
                      .input_count = 1,
                      .state = state,
                      .shapes = &shape,
                      .output_count = 1};
    return CD_PASS(cd_op_apply(graph, &apply, loss, err));
}
