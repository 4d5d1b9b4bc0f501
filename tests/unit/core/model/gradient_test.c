/* SPDX-License-Identifier: Apache-2.0 */
/* Every layer's backward against central differences in f64, and every layer's promise about
** samples: the bits of a sample do not depend on its batch, and a parameter's gradient is the left
** fold of the samples' gradients.
**
** Differences use the five-point stencil with h = 2^-10: truncation is O(h⁴) ≈ 1e-12 times the
** fifth derivative, and
** rounding about 2^-53·|L|/h ≈ 1e-13·|L|. 2e-9·(1 + |g|) leaves room for the derivatives of these
** layers and none for a wrong sign, factor or index.
*/
#include "tests/unit/core/model/fixture.h"

#include "core/model/layers/activation.h"
#include "core/model/layers/attention.h"
#include "core/model/layers/conv.h"
#include "core/model/layers/dropout.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/experts.h"
#include "core/model/layers/inner.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/norm.h"
#include "core/model/layers/shapes.h"

#include <math.h>
#include <string.h>

#define SAMPLES 5

/* p: the values of the layer's operands, the first one per sample; sample_ids name the samples of
** this batch. */
typedef struct layer_call {
    fixture *f;
    cd_value *const *p;
    const int64_t *sample_ids;
    int64_t samples;
    const cd_batch_norm *norm;
} layer_call;
typedef cddp_status (*layer_fn)(const layer_call *c, cd_value **y, cddp_error *err);

static cddp_status run_linear(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_linear(c->f->graph, c->p[0], c->p[1], c->p[2], y, err);
}
static cddp_status run_linear_no_bias(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_linear(c->f->graph, c->p[0], c->p[1], NULL, y, err);
}
static cddp_status run_conv(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_conv2d_layer(c->f->graph, (cd_value *const[3]){c->p[0], c->p[1], c->p[2]},
                           &(cd_conv2d){1, 1}, y, err);
}
static cddp_status run_conv_stride(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_conv2d_layer(c->f->graph, (cd_value *const[3]){c->p[0], c->p[1], NULL},
                           &(cd_conv2d){2, 0}, y, err);
}
static cddp_status run_pool(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_average_pool2d(c->f->graph, c->p[0], 2, y, err);
}
static cddp_status run_upsample(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_upsample2d(c->f->graph, c->p[0], 3, y, err);
}
static cddp_status run_relu(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_relu(c->f->graph, c->p[0], y, err);
}
static cddp_status run_gelu(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_gelu_layer(c->f->graph, c->p[0], y, err);
}
static cddp_status run_tanh(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_tanh_layer(c->f->graph, c->p[0], y, err);
}
static cddp_status run_sigmoid(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_sigmoid_layer(c->f->graph, c->p[0], y, err);
}
static cddp_status run_dropout(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_dropout dropout = {0.375, 7, 2, 3, c->sample_ids};
    return cd_dropout_layer(c->f->graph, c->p[0], &dropout, y, err);
}
static cddp_status run_layer_norm(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_layer_norm(c->f->graph, c->p[0], c->p[1], c->p[2], y, err);
}
static cddp_status run_batch_norm(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_batch_norm_layer(c->f->graph, c->p[0], c->norm, y, err);
}
static cddp_status run_batch_norm_eval(const layer_call *c, cd_value **y, cddp_error *err)
{
    c->f->graph->training = false;
    cddp_status status = cd_batch_norm_layer(c->f->graph, c->p[0], c->norm, y, err);
    c->f->graph->training = true;
    return status;
}
static cddp_status run_attention(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_attention_layer(c->f->graph, c->p[0], &(cd_attention){2, false}, y, err);
}
static cddp_status run_causal_attention(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_attention_layer(c->f->graph, c->p[0], &(cd_attention){1, true}, y, err);
}
static cddp_status run_add(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_value *square = NULL;
    CD_TRY(cd_tanh_layer(c->f->graph, c->p[0], &square, err));
    return cd_add(c->f->graph, c->p[0], square, y, err);
}
/* x's value goes two ways that meet again, and one gradient is shared by two nodes while a third
** adds to it. */
static cddp_status run_diamond(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_graph *g = c->f->graph;
    cd_value *old = NULL, *young = NULL, *third = NULL, *sum = NULL;
    CD_TRY(cd_tanh_layer(g, c->p[0], &old, err));
    CD_TRY(cd_sigmoid_layer(g, c->p[0], &young, err));
    CD_TRY(cd_tanh_layer(g, young, &third, err));
    CD_TRY(cd_add(g, young, old, &sum, err));
    return cd_add(g, third, sum, y, err);
}
static cddp_status run_scale(const layer_call *c, cd_value **y, cddp_error *err)
{
    return cd_scale(c->f->graph, c->p[0], -2.5, y, err);
}
static cddp_status run_split_concat(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_value *parts[3] = {NULL}, *swapped[2];
    CD_TRY(cd_split(c->f->graph, c->p[0], (const int64_t[3]){2, 1, 3}, 3, parts, err));
    swapped[0] = parts[2];
    swapped[1] = parts[0]; /* the middle one is dropped: its gradient is undefined */
    return cd_concat(c->f->graph, swapped, 2, y, err);
}
static cddp_status run_reshape(const layer_call *c, cd_value **y, cddp_error *err)
{
    CD_TRY(cd_reshape(c->f->graph, c->p[0], (const int64_t[3]){c->samples, 2, 3}, 3, y, err));
    return cd_tanh_layer(c->f->graph, *y, y, err);
}
/* Indices depend on the sample id alone, and hit rows twice within a sample. */
static cddp_status indices_of(const layer_call *c, cddp_tensor *t, cddp_error *err)
{
    CD_TRY(cd_graph_tensor(c->f->graph, CDDP_I64, (const int64_t[2]){c->samples, 4}, 2, t, err));
    for (int64_t i = 0; i < 4 * c->samples; i++)
        ((int64_t *)t->storage)[i] = (c->sample_ids[i / 4] * 3 + (i % 4) * (i % 4)) % 7;
    return CDDP_OK;
}
static cddp_status run_embedding(const layer_call *c, cd_value **y, cddp_error *err)
{
    cddp_tensor index;
    CD_TRY(indices_of(c, &index, err));
    CD_TRY(cd_embedding_layer(c->f->graph, c->p[1], &(cd_embedding){&index, false, false}, y, err));
    return cd_tanh_layer(c->f->graph, *y, y, err);
}
static cddp_status run_embedding_bag(const layer_call *c, cd_value **y, cddp_error *err)
{
    cddp_tensor index;
    CD_TRY(indices_of(c, &index, err));
    CD_TRY(cd_embedding_layer(c->f->graph, c->p[1], &(cd_embedding){&index, true, false}, y, err));
    return cd_tanh_layer(c->f->graph, *y, y, err);
}
static cddp_status run_experts(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_graph *g = c->f->graph;
    cd_value *logits = NULL, *results[3] = {NULL};
    cd_routing routing;
    CD_TRY(cd_linear(g, c->p[0], c->p[1], NULL, &logits, err));
    CD_TRY(cd_route_top1(g, logits, c->sample_ids, &routing, err));
    for (int64_t e = 0; e < 3; e++) {
        if (routing.count[e] == 0) continue;
        CD_TRY(cd_expert_take(g, c->p[0], &routing, e, &results[e], err));
        CD_TRY(cd_linear(g, results[e], c->p[2 + e], NULL, &results[e], err));
    }
    return cd_expert_combine(g, results, &routing, y, err);
}
static cddp_status run_inner(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_inner inner = {.p = c->p[1], .key = 5};
    cddp_tensor x;
    CD_TRY(cd_reshape(c->f->graph, c->p[0], &c->samples, 1, &inner.acc, err));
    CD_TRY(cd_graph_tensor(c->f->graph, c->p[0]->tensor.dtype, &c->samples, 1, &x, err));
    for (int64_t s = 0; s < c->samples; s++)
        element_set(&x, s, 0.3 * (double)(c->sample_ids[s] - 2));
    CD_TRY(cd_graph_input(c->f->graph, &x, &inner.x, err));
    return cd_inner_layer(c->f->graph, &inner, y, err);
}

/* Losses: the operand is the output, targets come from the sample id. */
static cddp_status target_of(const layer_call *c, cd_value **target, cddp_error *err)
{
    cddp_tensor t;
    CD_TRY(cd_graph_tensor(c->f->graph, c->p[0]->tensor.dtype, c->p[0]->tensor.sizes,
                           c->p[0]->tensor.dim_count, &t, err));
    int64_t width = cd_tensor_row_numel(&t);
    for (int64_t i = 0; i < c->samples * width; i++)
        element_set(&t, i, (double)((c->sample_ids[i / width] * 5 + i % width) % 4) / 4);
    return cd_graph_input(c->f->graph, &t, target, err);
}
static cddp_status run_squared_error(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_value *target = NULL;
    CD_TRY(target_of(c, &target, err));
    return cd_squared_error(c->f->graph, c->p[0], target, y, err);
}
static cddp_status run_bce(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_value *target = NULL;
    CD_TRY(target_of(c, &target, err));
    return cd_bce_with_logits(c->f->graph, c->p[0], target, y, err);
}
static cddp_status run_inner_product(const layer_call *c, cd_value **y, cddp_error *err)
{
    cd_value *target = NULL;
    CD_TRY(target_of(c, &target, err));
    return cd_inner_product(c->f->graph, c->p[0], target, y, err);
}
static cddp_status run_cross_entropy(const layer_call *c, cd_value **y, cddp_error *err)
{
    cddp_tensor t;
    CD_TRY(cd_graph_tensor(c->f->graph, CDDP_I64, c->p[0]->tensor.sizes,
                           c->p[0]->tensor.dim_count - 1, &t, err));
    int64_t width = cd_tensor_row_numel(&t);
    for (int64_t i = 0; i < c->samples * width; i++) {
        int64_t class = (c->sample_ids[i / width] + i % width) % 5;
        ((int64_t *)t.storage)[i] = class == 4 ? CD_IGNORE_CLASS : class;
    }
    return cd_cross_entropy(c->f->graph, c->p[0], &t, y, err);
}

enum { PLAIN = 0, COUPLED = 1, NORM = 2, NO_INPUT = 4 };

typedef struct layer_case {
    const char *name;
    layer_fn run;
    /* COUPLED: samples depend on each other by definition; NORM: p[1…] are batch norm's */
    unsigned flags;
    uint32_t operand_count;
    struct {
        uint32_t dim_count;
        int64_t sizes[4];
    } operands[6]; /* without the sample dimension for the first one */
} layer_case;

static const layer_case cases[] = {
    /* clang-format off */
    {"linear", run_linear, PLAIN, 3, {{1, {4}}, {2, {3, 4}}, {1, {3}}}},
    {"linear over positions", run_linear, PLAIN, 3, {{2, {2, 4}}, {2, {3, 4}}, {1, {3}}}},
    {"linear without bias", run_linear_no_bias, PLAIN, 2, {{1, {4}}, {2, {2, 4}}}},
    {"conv2d", run_conv, PLAIN, 3, {{3, {2, 4, 5}}, {4, {3, 2, 3, 3}}, {1, {3}}}},
    {"conv2d with stride", run_conv_stride, PLAIN, 2, {{3, {2, 5, 6}}, {4, {2, 2, 2, 3}}}},
    {"average pooling", run_pool, PLAIN, 1, {{3, {2, 4, 2}}}},
    {"upsampling", run_upsample, PLAIN, 1, {{3, {1, 2, 3}}}},
    {"relu", run_relu, PLAIN, 1, {{1, {7}}}},
    {"gelu", run_gelu, PLAIN, 1, {{1, {7}}}},
    {"tanh", run_tanh, PLAIN, 1, {{1, {7}}}},
    {"sigmoid", run_sigmoid, PLAIN, 1, {{1, {7}}}},
    {"dropout", run_dropout, PLAIN, 1, {{1, {9}}}},
    {"layer norm", run_layer_norm, PLAIN, 3, {{1, {6}}, {1, {6}}, {1, {6}}}},
    {"layer norm over positions", run_layer_norm, PLAIN, 3, {{2, {3, 5}}, {1, {5}}, {1, {5}}}},
    {"batch norm", run_batch_norm, COUPLED | NORM, 1, {{1, {3}}}},
    {"batch norm over images", run_batch_norm, COUPLED | NORM, 1, {{3, {3, 2, 2}}}},
    {"batch norm in evaluation", run_batch_norm_eval, COUPLED | NORM, 1, {{3, {3, 2, 2}}}},
    {"attention", run_attention, PLAIN, 1, {{2, {3, 12}}}},
    {"causal attention", run_causal_attention, PLAIN, 1, {{2, {4, 9}}}},
    {"residual add", run_add, PLAIN, 1, {{1, {4}}}},
    {"diamond", run_diamond, PLAIN, 1, {{1, {4}}}},
    {"scale", run_scale, PLAIN, 1, {{1, {4}}}},
    {"split and concat", run_split_concat, PLAIN, 1, {{2, {2, 6}}}},
    {"reshape", run_reshape, PLAIN, 1, {{1, {6}}}},
    {"embedding", run_embedding, NO_INPUT, 2, {{1, {1}}, {2, {7, 3}}}},
    {"embedding bag", run_embedding_bag, NO_INPUT, 2, {{1, {1}}, {2, {7, 3}}}},
    {"mixture of experts", run_experts, PLAIN, 5, {{1, {4}}, {2, {3, 4}}, {2, {4, 4}}, {2, {4, 4}}, {2, {4, 4}}}},
    {"inner product with a parameter", run_inner, PLAIN, 2, {{1, {1}}, {2, {3, 2}}}},
    {"squared error", run_squared_error, PLAIN, 1, {{1, {3}}}},
    {"binary cross-entropy", run_bce, PLAIN, 1, {{1, {3}}}},
    {"inner product", run_inner_product, PLAIN, 1, {{1, {3}}}},
    {"cross-entropy", run_cross_entropy, PLAIN, 1, {{1, {4}}}},
    {"cross-entropy over positions", run_cross_entropy, PLAIN, 1, {{2, {3, 4}}}},
    /* clang-format on */
};

typedef struct layer_bench {
    fixture f;
    const layer_case *c;
    cddp_dtype dtype;
    cd_batch_norm norm;
} layer_bench;

static void bench_open(layer_bench *b, const layer_case *c, cddp_dtype dtype)
{
    static const char *const names[6] = {"x", "b", "c", "d", "e", "f"};
    fixture_open(&b->f);
    b->c = c;
    b->dtype = dtype;
    for (uint32_t i = 0; i < c->operand_count; i++) {
        int64_t sizes[5] = {SAMPLES};
        uint32_t first = i == 0 ? 1 : 0;
        for (uint32_t d = 0; d < c->operands[i].dim_count; d++)
            sizes[first + d] = c->operands[i].sizes[d];
        fixture_parameter(&b->f, names[i], dtype, sizes, c->operands[i].dim_count + first);
    }
    if (c->flags & NORM)
        assert_ok(cd_batch_norm_register(b->f.module, c->operands[0].sizes[0], dtype, &b->norm,
                                         &b->f.err),
                  &b->f.err);
    if (c->flags & NORM) /* weights of one hide factors */
        for (int64_t k = 0; k < c->operands[0].sizes[0]; k++) {
            element_set(&b->f.module->parameters[b->norm.weight].tensor, k, 0.5 + (double)k);
            element_set(&b->f.module->buffers[b->norm.running_mean].tensor, k, 0.25 * (double)k);
            element_set(&b->f.module->buffers[b->norm.running_var].tensor, k,
                        1.5 - 0.25 * (double)k);
        }
}

/* Weights of every element of the output, by sample id and place: none is zero, none equal to its
** neighbour. */
static cddp_status weigh(layer_bench *b, cd_value *y, const int64_t *ids, cd_value **loss,
                         cddp_error *err)
{
    cd_graph *g = b->f.graph;
    cd_value *weights = NULL, *losses = NULL;
    cddp_tensor t;
    CD_TRY(cd_graph_tensor(g, b->dtype, y->tensor.sizes, y->tensor.dim_count, &t, err));
    int64_t width = cd_tensor_row_numel(&t);
    for (int64_t i = 0; i < y->tensor.sizes[0] * width; i++)
        element_set(&t, i, 0.5 + (double)((ids[i / width] * 11 + (i % width) * 7) % 13) / 7);
    CD_TRY(cd_graph_input(g, &t, &weights, err));
    CD_TRY(cd_inner_product(g, y, weights, &losses, err));
    return cd_weighted_sum(g, losses, NULL, 0, loss, err);
}

/* The loss over samples first … first+count-1, whose ids are their positions. */
static cd_value *bench_forward(layer_bench *b, int64_t first, int64_t count, cd_value **y)
{
    fixture *f = &b->f;
    cd_value *p[6] = {NULL}, *loss = NULL;
    void *memory = NULL;
    fixture_begin(f);
    assert_ok(cd_graph_push(f->graph, SAMPLES * sizeof(int64_t), &memory, &f->err), &f->err);
    int64_t *ids = memory;
    for (int64_t s = 0; s < count; s++) ids[s] = first + s;
    for (uint32_t i = 0; i < b->c->operand_count; i++)
        assert_ok(cd_graph_parameter(f->graph, i, &p[i], &f->err), &f->err);
    if (count < SAMPLES) { /* the samples of the first operand as a constant */
        cddp_tensor part = p[0]->tensor;
        part.offset += first * cd_tensor_row_numel(&part);
        part.sizes[0] = count;
        assert_ok(cd_graph_input(f->graph, &part, &p[0], &f->err), &f->err);
    }
    layer_call call = {f, p, ids, count, &b->norm};
    assert_ok(b->c->run(&call, y, &f->err), &f->err);
    assert_ok(weigh(b, *y, ids, &loss, &f->err), &f->err);
    return loss;
}

static double bench_loss(layer_bench *b)
{
    cd_value *y = NULL;
    return element_get(&bench_forward(b, 0, SAMPLES, &y)->tensor, 0);
}

static void check_element(layer_bench *b, uint32_t parameter, int64_t i)
{
    static const double h = 0x1p-10;
    const cddp_tensor *t = &b->f.module->parameters[parameter].tensor;
    const cddp_grad *grad = &b->f.module->parameters[parameter].grad;
    double x = element_get(t, i), at[4];
    static const double steps[4] = {-2, -1, 1, 2};
    for (int k = 0; k < 4; k++) {
        element_set(t, i, x + steps[k] * h);
        at[k] = bench_loss(b);
    }
    element_set(t, i, x);
    double numeric = (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h);
    double analytic = grad->kind == CDDP_GRAD_UNDEFINED ? 0 : element_get(&grad->value, i);
    if (fabs(numeric - analytic) > 2e-9 * (1 + fabs(numeric)))
        fail_msg("%s: parameter %s element %lld: backward says %.12g, differences %.12g",
                 b->c->name, b->f.module->parameters[parameter].name, (long long)i, analytic,
                 numeric);
}

/* Running statistics are constants of an evaluation: with r = √(var + eps) these are dx = w·dy/r,
** dw = Σ dy·(x - mean)/r and db = Σ dy. No second form of a model has this backward, so it stands
** here in closed form. */
TEST(gradient, batch_norm_in_evaluation_takes_its_statistics_as_constants)
{
    layer_bench b = {.c = NULL};
    const layer_case *c = cases;
    cd_value *y = NULL;
    double dw[3] = {0}, db[3] = {0};
    (void)state;
    while (c->run != run_batch_norm_eval) c++;
    bench_open(&b, c, CDDP_F64);
    cd_value *loss = bench_forward(&b, 0, SAMPLES, &y);
    assert_ok(backward_from(&b.f, loss, false), &b.f.err);
    const cd_module *m = b.f.module;
    const cddp_tensor *x = &m->parameters[0].tensor;
    for (int64_t i = 0; i < cddp_tensor_numel(x); i++) {
        const int64_t sample = i / 12, place = i % 12, k = place / 4;
        const double dy = 0.5 + (double)((sample * 11 + place * 7) % 13) / 7;
        const double mean = 0.25 * (double)k, root = sqrt(1.5 - 0.25 * (double)k + 1e-5);
        dw[k] += dy * (element_get(x, i) - mean) / root;
        db[k] += dy;
        if (fabs(element_get(&m->parameters[0].grad.value, i) - (0.5 + (double)k) * dy / root) >
            1e-12)
            fail_msg("element %lld: the derivative by x is not its definition's", (long long)i);
    }
    for (int64_t k = 0; k < 3; k++) {
        assert_true(fabs(element_get(&m->parameters[b.norm.weight].grad.value, k) - dw[k]) < 1e-11);
        assert_true(fabs(element_get(&m->parameters[b.norm.bias].grad.value, k) - db[k]) < 1e-11);
    }
    fixture_close(&b.f);
}

TEST(gradient, of_every_layer_is_the_limit_of_differences)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        layer_bench b = {.c = NULL};
        cd_value *y = NULL;
        cd_test_row("%s", cases[k].name);
        bench_open(&b, &cases[k], CDDP_F64);
        cd_value *loss = bench_forward(&b, 0, SAMPLES, &y);
        assert_ok(backward_from(&b.f, loss, false), &b.f.err);
        for (uint32_t p = 0; p < b.f.module->parameter_count; p++)
            for (int64_t i = 0; i < cddp_tensor_numel(&b.f.module->parameters[p].tensor); i++)
                check_element(&b, p, i);
        fixture_close(&b.f);
    }
}

static const void *row_bytes(const cddp_tensor *t, int64_t row, size_t *bytes)
{
    *bytes = (size_t)cd_tensor_row_numel(t) * cddp_dtype_bytes(t->dtype);
    return (const unsigned char *)cd_tensor_data(t) + (size_t)row * *bytes;
}

/* Runs every sample alone: its output is its row of the whole batch, and its gradients add up in
** the slots. */
static void fold_samples(layer_bench *b, const cddp_tensor *whole)
{
    for (int64_t s = 0; s < SAMPLES; s++) {
        cd_value *y = NULL;
        size_t bytes = 0, alone_bytes = 0;
        cd_value *loss = bench_forward(b, s, 1, &y);
        const void *in_batch = row_bytes(whole, s, &bytes),
                   *alone = row_bytes(&y->tensor, 0, &alone_bytes);
        assert_int_equal(bytes, alone_bytes);
        assert_memory_equal(in_batch, alone, bytes);
        if (loss->node != NULL) assert_ok(backward_from(&b->f, loss, false), &b->f.err);
    }
}

/* Values of a slot; zeros where it is undefined. */
static void read_slot(const layer_bench *b, uint32_t parameter, double values[256])
{
    const cd_parameter *p = &b->f.module->parameters[parameter];
    for (int64_t i = 0; i < cddp_tensor_numel(&p->tensor); i++)
        values[i] = p->grad.kind == CDDP_GRAD_DENSE ? element_get(&p->grad.value, i) : 0;
}

static void check_fold(const layer_case *c, cddp_dtype dtype)
{
    unsigned char kept[4096];
    double expected[6][256] = {{0}}, folded[256] = {0};
    layer_bench b = {.c = NULL};
    cd_value *y = NULL;
    bench_open(&b, c, dtype);
    cd_value *loss = bench_forward(&b, 0, SAMPLES, &y);
    cddp_tensor whole = y->tensor; /* the tape is rewound under it: keep the bytes */
    size_t bytes = (size_t)cddp_tensor_numel(&whole) * cddp_dtype_bytes(dtype);
    assert_true(bytes <= sizeof kept);
    memcpy(kept, cd_tensor_data(&whole), bytes);
    whole.storage = kept;
    whole.offset = 0;
    assert_ok(backward_from(&b.f, loss, false), &b.f.err);
    for (uint32_t p = 1; p < c->operand_count; p++) read_slot(&b, p, expected[p]);
    assert_ok(cd_module_zero_grad(b.f.module, CD_ZERO_GRAD_TO_NONE, &b.f.err), &b.f.err);
    fold_samples(&b, &whole);
    for (uint32_t p = 1; p < c->operand_count; p++) {
        read_slot(&b, p, folded);
        for (int64_t i = 0; i < cddp_tensor_numel(&b.f.module->parameters[p].tensor); i++)
            assert_true(expected[p][i] == folded[i]);
    }
    fixture_close(&b.f);
}

TEST(layers, bits_of_a_sample_do_not_depend_on_its_batch_and_gradients_fold_in_sample_order)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        if (cases[k].flags & COUPLED) continue;
        for (cddp_dtype dtype = CDDP_F64; dtype <= CDDP_F32; dtype++) {
            cd_test_row("%s %s", cases[k].name, cddp_dtype_name(dtype));
            check_fold(&cases[k], dtype);
        }
    }
}

/* The gradient of the first operand of sample 1 stays the same when all other samples change. */
static void check_input_gradient(const layer_case *c, cddp_dtype dtype)
{
    layer_bench b = {.c = NULL};
    cd_value *y = NULL;
    double before[512];
    bench_open(&b, c, dtype);
    cd_parameter *x = &b.f.module->parameters[0];
    assert_ok(backward_from(&b.f, bench_forward(&b, 0, SAMPLES, &y), false), &b.f.err);
    int64_t numel = cddp_tensor_numel(&x->tensor), width = cd_tensor_row_numel(&x->tensor);
    assert_true(numel <= 512);
    for (int64_t i = 0; i < numel; i++) before[i] = element_get(&x->grad.value, i);
    for (int64_t i = 0; i < numel; i++)
        if (i / width != 1) element_set(&x->tensor, i, -0.5 * element_get(&x->tensor, i) + 0.125);
    assert_ok(cd_module_zero_grad(b.f.module, CD_ZERO_GRAD_TO_NONE, &b.f.err), &b.f.err);
    assert_ok(backward_from(&b.f, bench_forward(&b, 0, SAMPLES, &y), false), &b.f.err);
    for (int64_t i = width; i < 2 * width; i++)
        assert_true(before[i] == element_get(&x->grad.value, i));
    fixture_close(&b.f);
}

TEST(layers, input_gradients_of_a_sample_do_not_depend_on_its_batch)
{
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        if (cases[k].flags & (COUPLED | NO_INPUT)) continue;
        for (cddp_dtype dtype = CDDP_F64; dtype <= CDDP_F32; dtype++) {
            cd_test_row("%s %s", cases[k].name, cddp_dtype_name(dtype));
            check_input_gradient(&cases[k], dtype);
        }
    }
}

TEST_MAIN()
