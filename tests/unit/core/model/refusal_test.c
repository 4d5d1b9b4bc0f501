/* SPDX-License-Identifier: Apache-2.0 */
/* Layers refuse what does not fit, naming sizes, dtypes and values; and small rules that no
** gradient shows. */
#include "tests/unit/core/model/fixture.h"

#include "core/model/layers/activation.h"
#include "core/model/layers/attention.h"
#include "core/model/layers/conv.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/experts.h"
#include "core/model/layers/inner.h"
#include "core/model/layers/linear.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/norm.h"
#include "core/model/layers/shapes.h"

#include <math.h>

/* A graph over no parameters; values are made directly. */
static void bare_open(fixture *f)
{
    fixture_open(f);
    fixture_begin(f);
}

static cd_value *value_of(fixture *f, cddp_dtype dtype, const int64_t *sizes, uint32_t dim_count)
{
    cddp_tensor t;
    cd_value *value = NULL;
    assert_ok(cd_graph_tensor(f->graph, dtype, sizes, dim_count, &t, &f->err), &f->err);
    assert_ok(cd_graph_input(f->graph, &t, &value, &f->err), &f->err);
    return value;
}

#define F32(...)                                           \
    value_of(&f, CDDP_F32, (const int64_t[]){__VA_ARGS__}, \
             sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define F64(...)                                           \
    value_of(&f, CDDP_F64, (const int64_t[]){__VA_ARGS__}, \
             sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define REFUSED(call, words) assert_fails(call, CDDP_E_ARG, &f.err, words)

TEST(layers, refuse_sizes_that_do_not_fit)
{
    fixture f;
    cd_value *y = NULL, *parts[2];
    bare_open(&f);
    cd_graph *g = f.graph;
    REFUSED(cd_linear(g, F32(2, 3), F32(4, 5), NULL, &y, &f.err),
            "x (2, 3) does not fit weight (4, 5)");
    REFUSED(cd_linear(g, F32(2, 3), F32(4, 3), F32(5), &y, &f.err),
            "bias (5) does not fit weight (4, 3)");
    REFUSED(cd_conv2d_layer(g, (cd_value *const[3]){F32(1, 2, 4, 4), F32(3, 1, 3, 3), NULL},
                            &(cd_conv2d){1, 0}, &y, &f.err),
            "x (1, 2, 4, 4), weight (3, 1, 3, 3), stride 1 and padding 0 do not fit");
    REFUSED(cd_conv2d_layer(g, (cd_value *const[3]){F32(1, 1, 2, 2), F32(3, 1, 3, 3), NULL},
                            &(cd_conv2d){1, 0}, &y, &f.err),
            "do not fit");
    REFUSED(cd_average_pool2d(g, F32(1, 1, 3, 4), 2, &y, &f.err),
            "size 2 does not fit x (1, 1, 3, 4)");
    REFUSED(cd_layer_norm(g, F32(2, 3), F32(4), F32(4), &y, &f.err),
            "x (2, 3) does not fit weight (4)");
    REFUSED(cd_attention_layer(g, F32(1, 2, 9), &(cd_attention){2, false}, &y, &f.err),
            "2 heads do not fit");
    REFUSED(cd_add(g, F32(2, 3), F32(3, 2), &y, &f.err), "sizes (2, 3) and (3, 2) differ");
    REFUSED(cd_reshape(g, F32(2, 3), (const int64_t[]){5}, 1, &y, &f.err),
            "sizes (5) do not hold the elements of (2, 3)");
    REFUSED(cd_split(g, F32(2, 3), (const int64_t[]){1, 1}, 2, parts, &f.err),
            "parts add up to 2, the last size is 3");
    REFUSED(cd_concat(g, (cd_value *const[2]){F32(2, 3), F32(3, 3)}, 2, &y, &f.err),
            "part 1 differs from part 0");
    REFUSED(cd_squared_error(g, F32(2, 3), F32(2, 4), &y, &f.err),
            "output (2, 3) and target (2, 4) differ");
    REFUSED(cd_weighted_sum(g, F32(2, 3), NULL, 0, &y, &f.err),
            "one number per sample, got 2 dimensions");
    fixture_close(&f);
}

TEST(layers, refuse_dtypes_that_do_not_match)
{
    fixture f;
    cd_value *y = NULL;
    bare_open(&f);
    REFUSED(cd_linear(f.graph, F32(2, 3), F64(4, 3), NULL, &y, &f.err),
            "operand 0 is f32, operand 1 is f64");
    REFUSED(cd_scale(f.graph, value_of(&f, CDDP_I64, (const int64_t[]){2}, 1), 2, &y, &f.err),
            "computes in f32 and f64, not in i64");
    cd_inner inner = {.p = F64(2), .x = F32(1)};
    REFUSED(cd_inner_layer(f.graph, &inner, &y, &f.err), "parameter is f64, x is f32");
    fixture_close(&f);
}

TEST(layers, refuse_indices_and_classes_out_of_range)
{
    fixture f;
    cd_value *y = NULL;
    bare_open(&f);
    cddp_tensor index;
    assert_ok(cd_graph_tensor(f.graph, CDDP_I64, (const int64_t[]){2, 1}, 2, &index, &f.err),
              &f.err);
    int64_t *at = index.storage;
    at[1] = 4;
    cd_embedding embedding = {&index, false, false};
    REFUSED(cd_embedding_layer(f.graph, F32(4, 2), &embedding, &y, &f.err),
            "index 4 of sample 1 is not in 0 … 3");
    at[1] = -1;
    REFUSED(cd_embedding_layer(f.graph, F32(4, 2), &embedding, &y, &f.err), "index -1 of sample 1");
    cddp_tensor classes = cddp_tensor_of(index.device, at, 0, CDDP_I64, (const int64_t[]){2}, 1);
    at[1] = 3;
    REFUSED(cd_cross_entropy(f.graph, F32(2, 3), &classes, &y, &f.err),
            "class 3 of sample 1 is not in 0 … 2");
    REFUSED(cd_cross_entropy(f.graph, F32(3, 3), &classes, &y, &f.err),
            "logits (3, 3) do not fit i64 classes (2)");
    fixture_close(&f);
}

TEST(batch_norm, refuses_one_value_per_channel_in_training_and_takes_it_in_evaluation)
{
    fixture f;
    cd_batch_norm norm;
    cd_value *y = NULL;
    fixture_open(&f);
    assert_ok(cd_batch_norm_register(f.module, 3, CDDP_F32, &norm, &f.err), &f.err);
    fixture_begin(&f);
    REFUSED(cd_batch_norm_layer(f.graph, F32(1, 3), &norm, &y, &f.err),
            "expected more than 1 value per channel when training, got 1");
    REFUSED(cd_batch_norm_layer(f.graph, F32(2, 4), &norm, &y, &f.err),
            "x (2, 4) does not fit weight (3)");
    f.graph->training = false;
    assert_ok(cd_batch_norm_layer(f.graph, F32(1, 3), &norm, &y, &f.err), &f.err);
    /* Evaluation counts no batch, training does. */
    const cddp_tensor *batches = &f.module->buffers[norm.num_batches_tracked].tensor;
    assert_true(element_get(batches, 0) == 0);
    f.graph->training = true;
    for (int i = 0; i < 2; i++)
        assert_ok(cd_batch_norm_layer(f.graph, F32(2, 3), &norm, &y, &f.err), &f.err);
    assert_true(element_get(batches, 0) == 2);
    fixture_close(&f);
}

TEST(routing, sends_ties_to_the_lowest_expert_and_keeps_sample_order)
{
    fixture f;
    cd_routing routing;
    static const double logits[5][3] = {{1, 2, 2}, {3, 3, 3}, {0, 1, 5}, {-1, -1, -2}, {0, 4, 4}};
    static const int64_t expert[5] = {1, 0, 2, 0, 1}, position[5] = {0, 0, 0, 1, 1};
    bare_open(&f);
    cd_value *x = F32(5, 3);
    for (int64_t i = 0; i < 15; i++) element_set(&x->tensor, i, logits[i / 3][i % 3]);
    assert_ok(cd_route_top1(f.graph, x, NULL, &routing, &f.err), &f.err);
    assert_memory_equal(routing.expert, expert, sizeof expert);
    assert_memory_equal(routing.position, position, sizeof position);
    assert_int_equal(routing.count[0], 2);
    assert_int_equal(routing.count[1], 2);
    assert_int_equal(routing.count[2], 1);
    assert_true(fabs(element_get(&routing.gates->tensor, 1) - 1.0 / 3) < 1e-7);
    fixture_close(&f);
}

TEST(relu, cuts_at_zero_and_lets_nan_through)
{
    fixture f;
    cd_value *y = NULL;
    bare_open(&f);
    cd_value *x = F32(4);
    static const double values[4] = {-1, 0, 2, NAN};
    for (int i = 0; i < 4; i++) element_set(&x->tensor, i, values[i]);
    assert_ok(cd_reshape(f.graph, x, (const int64_t[]){1, 4}, 2, &x, &f.err), &f.err);
    assert_ok(cd_relu(f.graph, x, &y, &f.err), &f.err);
    assert_true(element_get(&y->tensor, 0) == 0 && element_get(&y->tensor, 2) == 2);
    assert_true(isnan(element_get(&y->tensor, 3)));
    fixture_close(&f);
}

TEST(modules, refuse_names_twice_sizes_out_of_range_and_deep_paths)
{
    fixture f;
    uint32_t index = 0;
    fixture_open(&f);
    cd_parameter_spec spec = {.name = "w", .dtype = CDDP_F32, .dim_count = 2, .sizes = {2, 3}};
    assert_ok(cd_module_push(f.module, &f.err, "a.b"), &f.err);
    assert_ok(cd_module_add_parameter(f.module, &spec, &index, &f.err), &f.err);
    assert_string_equal(f.module->parameters[index].name, "a.b.w");
    assert_fails(cd_module_add_parameter(f.module, &spec, &index, &f.err), CDDP_E_CONFIG, &f.err,
                 "\"a.b.w\" is given twice");
    assert_fails(cd_module_add_buffer(f.module, &spec, &index, &f.err), CDDP_E_CONFIG, &f.err,
                 "\"a.b.w\" is given twice");
    cd_module_pop(f.module);
    spec.sizes[1] = -1;
    assert_fails(cd_module_add_parameter(f.module, &spec, &index, &f.err), CDDP_E_CONFIG, &f.err,
                 "size -1 of dimension 1 is out of range");
    spec.sizes[0] = spec.sizes[1] = INT64_C(1) << 40;
    assert_fails(cd_module_add_parameter(f.module, &spec, &index, &f.err), CDDP_E_CONFIG, &f.err,
                 "out of range");
    for (int depth = 0; depth < CD_SCOPES_MAX; depth++)
        assert_ok(cd_module_push(f.module, &f.err, "%d", depth), &f.err);
    assert_fails(cd_module_push(f.module, &f.err, "x"), CDDP_E_LIMIT, &f.err, "16 scopes");
    assert_int_equal(cd_module_find_parameter(f.module, "a.b.w"), 0);
    assert_int_equal(cd_module_find_parameter(f.module, "a.b"), -1);
    fixture_close(&f);
}

TEST_MAIN()
