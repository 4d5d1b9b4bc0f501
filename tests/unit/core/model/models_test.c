/* SPDX-License-Identifier: Apache-2.0 */
/* The named models: all run on every device, totals of the real networks, options, unused
** parameters, nothing allocated in steady iterations, nothing left after a failed allocation.
*/
#include "tests/unit/core/model/fixture.h"

#include "core/base/hash.h"
#include "core/model/layers/inner.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/norm.h"
#include "core/model/type.h"
#include "core/tensor/cpu.h"

#include <math.h>
#include <string.h>

static const int64_t ids[6] = {3, 0, 7, 12, 5, 9};

/* Every model that computes, in its variants. */
static const model_case models[] = {
    {"mlp", NULL, CDDP_F32, true, NULL},
    {"mlp", "widths=6:6:6:3,heads=2,bias=0", CDDP_F64, true, NULL},
    {"mlp", "norm=batch,activation=gelu,dropout=0.5", CDDP_F32, false, NULL},
    {"mlp", "norm=layer,activation=tanh,loss=bce", CDDP_F32, false, NULL},
    {"mlp", "norm=sync,activation=sigmoid,loss=ce", CDDP_F64, false, NULL},
    {"mlp", "widths=5:7:7:2,checkpoint=reentrant", CDDP_F32, false, NULL},
    {"mlp", "widths=5:7:7:2,checkpoint=non_reentrant,dropout=0.25", CDDP_F32, false, NULL},
    {"mlp", NULL, CDDP_F16, true, NULL},
    {"mlp", NULL, CDDP_BF16, true, NULL},
    {"chain", NULL, CDDP_F32, true, NULL},
    {"chain", "tied=1,checkpoint=reentrant", CDDP_F32, true, NULL},
    {"chain", "tied=1,checkpoint=non_reentrant,bias=0", CDDP_F64, true, NULL},
    {"cnn", NULL, CDDP_F32, false, NULL},
    {"cnn", "norm=batch,channels=2:3:4,size=4", CDDP_F64, false, NULL},
    {"transformer", NULL, CDDP_F32, false, NULL},
    {"transformer", "checkpoint=reentrant,sparse=1,ragged=1", CDDP_F32, false, NULL},
    {"transformer", "checkpoint=non_reentrant,dropout=0.1,causal=0", CDDP_F64, false, NULL},
    {"tied_lm", NULL, CDDP_F32, false, NULL},
    {"gan", NULL, CDDP_F32, false, NULL},
    {"gan", "norm=batch", CDDP_F64, false, NULL},
    {"moe", NULL, CDDP_F32, false, NULL},
    {"branchy", NULL, CDDP_F32, true, NULL},
    {"embedding_bag", NULL, CDDP_F32, true, NULL},
    {"embedding_bag", "sparse=0", CDDP_F64, true, NULL},
    {"params", NULL, CDDP_F32, true, NULL},
    {"params",
     "list=a:4x3;b:7:f16;c:2:uses2:output1;d:0;e:3:c64;f:scalar;g:6:frozen;h:2:uses0;i:2:f64,order="
     "8:0:1:2:3:4:5:6:7",
     CDDP_F32, true, NULL},
};

#define EACH_MODEL(i) for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)

static void row_of(const model_case *c)
{
    cd_test_row("%s %s %s", c->name, c->options != NULL ? c->options : "",
                cddp_dtype_name(c->dtype));
}

TEST(models, all_train_and_their_gradients_are_finite)
{
    EACH_MODEL(i)
    {
        model_fixture m;
        cd_outputs outputs;
        cd_value *loss = NULL;
        row_of(&models[i]);
        model_open(&m, &models[i]);
        assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 6}, &outputs, &loss), &m.err);
        assert_true(isfinite(element_get(&loss->tensor, 0)));
        size_t defined = 0;
        for (size_t p = 0; p < m.model->module->parameter_count; p++) {
            const cddp_grad *grad = &m.model->module->parameters[p].grad;
            int64_t at = -1;
            if (grad->kind == CDDP_GRAD_UNDEFINED) continue;
            defined++;
            assert_ok(grad->value.device->find_nonfinite(&grad->value, &at, &m.err), &m.err);
            assert_int_equal(at, -1);
        }
        assert_true(defined > 0);
        model_close(&m);
    }
}

/* The structure does not depend on the device: the same parameters fire in the same order. */
TEST(models, fire_in_the_same_order_where_nothing_is_computed)
{
    EACH_MODEL(i)
    {
        /* routed by numbers on one, by sample id on the other */
        if (strcmp(models[i].name, "moe") == 0) continue;
        /* refused there */
        if (models[i].options != NULL && strstr(models[i].options, "sparse=1")) continue;
        if (strcmp(models[i].name, "embedding_bag") == 0 && models[i].options == NULL) continue;
        const cddp_device *devices[2] = {cddp_device_cpu(), cddp_device_shape()};
        arrivals a[2] = {{.count = 0}};
        row_of(&models[i]);
        for (int d = 0; d < 2; d++) {
            model_fixture m;
            cd_outputs outputs;
            cd_value *loss = NULL;
            model_case c = models[i];
            c.device = devices[d];
            model_open(&m, &c);
            cd_graph_callbacks callbacks = {.context = &a[d], .ready = arrivals_ready};
            cd_graph_set_callbacks(m.graph, &callbacks);
            assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 6}, &outputs, &loss),
                      &m.err);
            model_close(&m);
        }
        assert_memory_equal(&a[0], &a[1], sizeof a[0]);
    }
}

TEST(steady_iterations, allocate_nothing)
{
    EACH_MODEL(i)
    {
        model_fixture m;
        cd_outputs outputs;
        cd_value *loss = NULL;
        row_of(&models[i]);
        model_open(&m, &models[i]);
        model_step step = {.ids = ids, .count = 6};
        for (int k = 0; k < 2; k++) assert_ok(model_run(&m, &step, &outputs, &loss), &m.err);
        m.watch.frozen = true;
        for (int k = 0; k < 3; k++) {
            step.order = (cd_ready_order)k;
            assert_ok(model_run(&m, &step, &outputs, &loss), &m.err);
        }
        m.watch.frozen = false;
        assert_int_equal(m.watch.growth_count, 0);
        model_close(&m);
    }
}

static uint32_t choose_any(void *context, const uint64_t *options, uint32_t count)
{
    (void)options;
    return (uint32_t)cd_prng_below(context, count);
}

/* Digest of all gradients after one backward in this order. */
static uint64_t digest_of(const model_case *c, cd_ready_order order, cd_prng *prng)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    uint64_t digest = 0;
    model_open(&m, c);
    cd_graph_callbacks callbacks = {.context = prng, .choose = choose_any};
    cd_graph_set_callbacks(m.graph, &callbacks);
    assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 6, .order = order}, &outputs, &loss),
              &m.err);
    for (size_t p = 0; p < m.model->module->parameter_count; p++) {
        const cddp_grad *grad = &m.model->module->parameters[p].grad;
        uint64_t one = 0;
        if (grad->kind != CDDP_GRAD_UNDEFINED)
            assert_ok(grad->value.device->digest(&grad->value, &one, &m.err), &m.err);
        digest = cd_hash_mix(digest, one);
    }
    model_close(&m);
    return digest;
}

TEST(gradients, have_the_same_bits_in_every_ready_order)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    EACH_MODEL(i)
    {
        row_of(&models[i]);
        uint64_t natural = digest_of(&models[i], CD_READY_PRIORITY, &prng);
        for (int k = 0; k < 5; k++)
            assert_true(digest_of(&models[i], CD_READY_CHOSEN, &prng) == natural);
    }
}

static cddp_status create_and_run(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const model_case *c = argument;
    cddp_status status = CDDP_OK;
    cd_prng prng = cd_prng_seed(4);
    cd_model *model = NULL;
    cd_graph *graph = NULL;
    cd_batch batch;
    cd_outputs outputs;
    cd_value *loss = NULL;
    /* gradients fail too */
    cddp_device device = cd_device_with_allocator(cddp_device_cpu(), allocator);
    cd_model_options options = {.name = c->name,
                                .options = c->options,
                                .dtype = c->dtype,
                                .device = &device,
                                .allocator = allocator,
                                .prng = &prng};
    cd_batch_request request = {.sample_ids = ids, .sample_count = 3, .prng = &prng};
    status = cd_model_create(&options, &model, err);
    if (status == CDDP_OK) status = cd_graph_create(model->module, allocator, &graph, err);
    if (status == CDDP_OK) status = cd_batch_make(graph, model, &request, &batch, err);
    if (status == CDDP_OK) status = cd_model_forward(model, graph, &batch, &outputs, err);
    if (status == CDDP_OK)
        status = cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, &loss, err);
    cd_backward_options backward = {.roots = &loss, .root_count = 1};
    if (status == CDDP_OK) status = cd_graph_backward(graph, &backward, err);
    cd_graph_destroy(graph);
    cd_model_destroy(model);
    return status;
}

TEST(models, leave_nothing_behind_when_any_allocation_fails)
{
    EACH_MODEL(i)
    {
        model_case c = models[i];
        row_of(&c);
        assert_true(cd_test_oom_loop(create_and_run, &c) > 10);
    }
}

/* What a loss weighs with dyadic numbers is exact: whole and folded gradients are the same bits. */
TEST(exact_inputs, make_gradients_independent_of_how_samples_are_split)
{
    EACH_MODEL(i)
    {
        if (!models[i].dyadic || models[i].dtype == CDDP_F16 || models[i].dtype == CDDP_BF16)
            continue;
        static double sums[64][512];
        model_fixture m;
        cd_outputs outputs;
        cd_value *loss = NULL;
        row_of(&models[i]);
        model_open(&m, &models[i]);
        memset(sums, 0, sizeof sums);
        static const double weights[6] = {0.5, 1, 0.25, 2, 1, 0.125};
        for (int part = 0; part < 3; part++) {
            model_step step = {.ids = ids + 4 - 2 * part,
                               .count = 2,
                               .weights = weights + 4 - 2 * part};
            assert_ok(model_run(&m, &step, &outputs, &loss), &m.err);
            for (size_t p = 0; p < m.model->module->parameter_count; p++) {
                const cddp_grad *g = &m.model->module->parameters[p].grad;
                for (int64_t e = 0; g->kind == CDDP_GRAD_DENSE && e < cddp_tensor_numel(&g->value);
                     e++)
                    sums[p][e] += element_get(&g->value, e);
            }
        }
        assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 6, .weights = weights}, &outputs,
                            &loss),
                  &m.err);
        for (size_t p = 0; p < m.model->module->parameter_count; p++) {
            const cddp_grad *g = &m.model->module->parameters[p].grad;
            for (int64_t e = 0; g->kind == CDDP_GRAD_DENSE && e < cddp_tensor_numel(&g->value); e++)
                assert_true(sums[p][e] == element_get(&g->value, e));
        }
        model_close(&m);
    }
}

static size_t count_defined(const model_fixture *m, const char *prefix, bool defined)
{
    size_t count = 0;
    for (size_t p = 0; p < m->model->module->parameter_count; p++) {
        const cd_parameter *parameter = &m->model->module->parameters[p];
        if (strncmp(parameter->name, prefix, strlen(prefix)) != 0) continue;
        count += (parameter->grad.kind != CDDP_GRAD_UNDEFINED) == defined;
    }
    return count;
}

TEST(gan, uses_only_the_half_that_trains)
{
    for (uint32_t branch = 0; branch < 2; branch++) {
        model_fixture m;
        cd_outputs outputs;
        cd_value *loss = NULL;
        model_open(&m, &(model_case){"gan", NULL, CDDP_F32, false, NULL});
        assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 4, .branch = branch}, &outputs,
                            &loss),
                  &m.err);
        assert_int_equal(count_defined(&m, "generator.", branch == 1), 4);
        assert_int_equal(count_defined(&m, "generator.", branch == 0), 0);
        assert_int_equal(count_defined(&m, "discriminator.", branch == 0), 6);
        assert_int_equal(count_defined(&m, "discriminator.", branch == 1), 0);
        bool reachable[16];
        assert_ok(cd_graph_reachable(m.graph, outputs.values, outputs.count, reachable, &m.err),
                  &m.err);
        for (size_t p = 0; p < m.model->module->parameter_count; p++)
            assert_true(reachable[p] ==
                        (m.model->module->parameters[p].grad.kind != CDDP_GRAD_UNDEFINED));
        model_close(&m);
    }
}

TEST(branchy, uses_the_branch_that_the_batch_names)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"branchy", "branches=3", CDDP_F32, true, NULL});
    assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 4, .branch = 5}, &outputs, &loss),
              &m.err);
    assert_int_equal(count_defined(&m, "branches.2.", true), 2);
    assert_int_equal(count_defined(&m, "branches.", true), 2);
    assert_int_equal(count_defined(&m, "trunk.", true), 2);
    model_close(&m);
}

TEST(moe, leaves_experts_that_nobody_chose_unused)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"moe", "experts=5", CDDP_F32, false, NULL});
    assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 1}, &outputs, &loss), &m.err);
    assert_int_equal(count_defined(&m, "experts.", true), 4);
    assert_int_equal(count_defined(&m, "gate.", true), 1);
    model_close(&m);
}

TEST(tied_lm, has_one_parameter_under_two_names)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    arrivals a = {.count = 0};
    model_open(&m, &(model_case){"tied_lm", NULL, CDDP_F32, false, NULL});
    assert_int_equal(m.model->module->parameter_count, 3);
    assert_int_equal(cd_module_find_parameter(m.model->module, "head.weight"), 0);
    assert_int_equal(cd_module_find_parameter(m.model->module, "tokens.weight"), 0);
    cd_graph_callbacks callbacks = {.context = &a, .ready = arrivals_ready};
    cd_graph_set_callbacks(m.graph, &callbacks);
    assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 2}, &outputs, &loss), &m.err);
    assert_order(&a, (const uint32_t[]){2, 1, 0}, 3);
    model_close(&m);
}

/* One weight for three layers receives what three equal weights would receive together,
** checkpointed or not; inside a re-entrant checkpoint it fires once per layer, else once for
** all. */
TEST(chain, of_one_weight_adds_up_what_every_layer_gives_it)
{
    static const struct {
        const char *options;
        uint32_t order[6], count;
    } rows[3] = {{"tied=1", {3, 2, 1, 0}, 4},
                 {"tied=1,checkpoint=reentrant", {3, 0, 2, 0, 1, 0}, 6},
                 {"tied=1,checkpoint=non_reentrant", {3, 2, 1, 0}, 4}};
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_fixture apart;
    model_open(&apart, &(model_case){"chain", NULL, CDDP_F64, true, NULL});
    const cd_parameter *q = apart.model->module->parameters; /* weight and bias of three layers */
    for (int layer = 1; layer < 3; layer++)
        for (int64_t i = 0; i < 16; i++)
            element_set(&q[2 * layer].tensor, i, element_get(&q[0].tensor, i));
    assert_ok(model_run(&apart, &(model_step){.ids = ids, .count = 3}, &outputs, &loss),
              &apart.err);
    for (size_t k = 0; k < 3; k++) {
        model_fixture tied;
        arrivals a = {.count = 0};
        cd_test_row("%s", rows[k].options);
        model_open(&tied, &(model_case){"chain", rows[k].options, CDDP_F64, true, NULL});
        const cd_module *module = tied.model->module;
        assert_int_equal(module->parameter_count, 4);
        assert_int_equal(cd_module_find_parameter(module, "layers.2.weight"), 0);
        assert_int_equal(module->parameters[0].forward_cost,
                         q[0].forward_cost + q[2].forward_cost + q[4].forward_cost);
        cd_graph_callbacks callbacks = {.context = &a, .ready = arrivals_ready};
        cd_graph_set_callbacks(tied.graph, &callbacks);
        assert_ok(model_run(&tied, &(model_step){.ids = ids, .count = 3}, &outputs, &loss),
                  &tied.err);
        assert_order(&a, rows[k].order, rows[k].count);
        for (int64_t i = 0; i < 16; i++) {
            double together = 0;
            for (int layer = 0; layer < 3; layer++)
                together += element_get(&q[2 * layer].grad.value, i);
            assert_true(element_get(&module->parameters[0].grad.value, i) == together);
        }
        model_close(&tied);
    }
    model_close(&apart);
}

TEST(params, receive_gradients_that_are_known_in_advance)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"params", "list=a:3;b:2:uses2;c:4:uses0", CDDP_F32, true, NULL});
    static const double weights[3] = {1, 2, 0.5};
    assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 3, .weights = weights}, &outputs,
                        &loss),
              &m.err);
    const cd_parameter *p = m.model->module->parameters;
    cd_batch batch;
    cd_batch_request request = {.sample_ids = ids,
                                .sample_count = 3,
                                .prng = &m.prng,
                                .exact = true};
    assert_ok(cd_batch_make(m.graph, m.model, &request, &batch, &m.err), &m.err);
    double x = 0;
    for (int64_t s = 0; s < 3; s++) x += weights[s] * element_get(&batch.inputs[0], s);
    for (int64_t i = 0; i < 3; i++)
        assert_true(element_get(&p[0].grad.value, i) == x * cd_inner_constant(1, i));
    for (int64_t i = 0; i < 2; i++)
        assert_true(element_get(&p[1].grad.value, i) == 2 * x * cd_inner_constant(2, i));
    assert_int_equal(p[2].grad.kind, CDDP_GRAD_UNDEFINED);
    model_close(&m);
}

TEST(outputs, can_be_left_out_of_the_loss)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"mlp", "heads=3", CDDP_F32, true, NULL});
    int64_t second = cd_model_find_output(m.model, "head1");
    assert_int_equal(second, 1);
    assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 2, .mask = 1u << second}, &outputs,
                        &loss),
              &m.err);
    assert_int_equal(count_defined(&m, "head1.", true), 2);
    assert_int_equal(count_defined(&m, "head0.", true), 0);
    assert_int_equal(count_defined(&m, "head2.", true), 0);
    assert_int_equal(count_defined(&m, "layers.", true), 2);
    model_close(&m);
}

TEST(units, can_run_never_or_twice)
{
    model_fixture m;
    cd_outputs outputs;
    cd_batch batch;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"chain", NULL, CDDP_F32, true, NULL});
    assert_int_equal(cd_model_find_unit(m.model, "layers.1"), 1);
    cd_graph_begin(m.graph);
    cd_batch_request request = {.sample_ids = ids,
                                .sample_count = 2,
                                .prng = &m.prng,
                                .exact = true};
    assert_ok(cd_batch_make(m.graph, m.model, &request, &batch, &m.err), &m.err);
    batch.uses = (const uint8_t[]){1, 0, 2};
    assert_ok(cd_model_forward(m.model, m.graph, &batch, &outputs, &m.err), &m.err);
    assert_ok(cd_model_loss(m.model, m.graph, &batch, &outputs, UINT32_MAX, &loss, &m.err), &m.err);
    cd_backward_options backward = {.roots = &loss, .root_count = 1};
    assert_ok(cd_graph_backward(m.graph, &backward, &m.err), &m.err);
    assert_int_equal(count_defined(&m, "layers.1.", true), 0);
    assert_int_equal(count_defined(&m, "layers.2.", true), 2);
    model_close(&m);
    model_open(&m, &(model_case){"mlp", "widths=4:5:2", CDDP_F32, true, NULL});
    cd_graph_begin(m.graph);
    assert_ok(cd_batch_make(m.graph, m.model, &request, &batch, &m.err), &m.err);
    batch.uses = (const uint8_t[]){2};
    assert_fails(cd_model_forward(m.model, m.graph, &batch, &outputs, &m.err), CDDP_E_CONFIG,
                 &m.err, "layers.0 runs 2 times");
    model_close(&m);
}

TEST(lists, have_the_sizes_of_the_real_networks)
{
    static const struct {
        const char *name, *options;
        int64_t numel, tensors, buffers;
        double gflops; /* forward, two per multiply-add; 0: not checked */
    } lists[] = {
        {"resnet", "depth=18", 11689512, 62, 60, 3.63},
        {"resnet", "depth=50", 25557032, 161, 159, 8.18},
        {"resnet", "depth=152", 60192808, 467, 465, 23.03},
        {"bert", NULL, 109482240, 199, 0, 0},
        {"gpt2", "parameters=124M", 124439808, 148, 0, 0},
        {"gpt2", "parameters=355M", 354823168, 292, 0, 0},
        {"gpt2", "parameters=774M", 774030080, 436, 0, 0},
        {"gpt2", "parameters=1.5B", 1557611200, 580, 0, 0},
        {"llama", NULL, 6738415616, 291, 0, 0},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        model_fixture m;
        cd_outputs outputs;
        cd_value *loss = NULL;
        cd_test_row("%s %s", lists[i].name, lists[i].options != NULL ? lists[i].options : "");
        model_open(&m, &(model_case){lists[i].name, lists[i].options, CDDP_F32, false,
                                     cddp_device_shape()});
        const cd_module *module = m.model->module;
        assert_int_equal(cd_module_parameter_numel(module), lists[i].numel);
        assert_int_equal(module->parameter_count, lists[i].tensors);
        assert_int_equal(module->buffer_count, lists[i].buffers);
        uint64_t cost = 0;
        for (size_t p = 0; p < module->parameter_count; p++)
            cost += module->parameters[p].forward_cost;
        if (lists[i].gflops > 0) assert_true(fabs((double)cost / 1e9 / lists[i].gflops - 1) < 0.01);
        assert_ok(model_run(&m, &(model_step){.ids = ids, .count = 2}, &outputs, &loss), &m.err);
        for (size_t p = 0; p < module->parameter_count; p++)
            assert_int_equal(module->parameters[p].grad.kind, CDDP_GRAD_DENSE);
        assert_true(m.watch.peak_bytes < 8u << 20); /* billions of parameters, a few megabytes */
        model_close(&m);
    }
}

TEST(lists, carry_the_real_names)
{
    static const struct {
        const char *name, *options, *parameter;
        int64_t index;
    } names[] = {
        {"resnet", "depth=50", "conv1.weight", 0},
        {"resnet", "depth=50", "layer1.0.downsample.0.weight", 12},
        {"resnet", "depth=50", "layer4.2.bn3.bias", 158},
        {"resnet", "depth=18", "layer2.0.downsample.1.weight", 22},
        {"bert", NULL, "encoder.layer.11.output.LayerNorm.bias", 196},
        {"gpt2", NULL, "transformer.h.0.attn.c_attn.weight", 4},
        {"gpt2", NULL, "lm_head.weight", 0},
        {"llama", NULL, "model.layers.31.mlp.down_proj.weight", 286},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        model_fixture m;
        cd_test_row("%s %s", names[i].name, names[i].parameter);
        model_open(&m, &(model_case){names[i].name, names[i].options, CDDP_F32, false,
                                     cddp_device_shape()});
        assert_int_equal(cd_module_find_parameter(m.model->module, names[i].parameter),
                         names[i].index);
        model_close(&m);
    }
}

TEST(options, that_are_wrong_are_named_with_what_would_be_accepted)
{
    static const struct {
        const char *name, *options, *words;
    } wrong[] = {
        {"nlp", NULL, "no model is called \"nlp\"; did you mean 'mlp'?"},
        {"mlp", "width=3", "model mlp has no option \"width\"; it has: widths bias"},
        {"mlp", "widths=3", "widths needs an input and an output size"},
        {"mlp", "widths=3:x", "model option widths=x: not an integer"},
        {"mlp", "activation=swish", "activation=swish: must be one of none|relu|gelu|tanh|sigmoid"},
        {"mlp", "dropout=1", "dropout=1: must be in 0 … 0.99"},
        {"mlp", "dropout=1e-3", "not a decimal number"},
        {"mlp", "bias", "model option \"bias\": must be key=value"},
        {"mlp", "bias=2", "bias=2: must be in 0 … 1"},
        {"cnn", "size=6", "size=6 cannot be halved by 2 stages"},
        {"transformer", "width=9", "width=9 is not a multiple of heads=2"},
        {"gan", "size=6", "not a multiple of 4"},
        {"resnet", "depth=34", "must be one of 18|50|101|152"},
        {"params", "list=a", "\"a\" is not name:shape"},
        {"params", "list=a:3y", "\"3y\" of \"a\" is not a shape"},
        {"params", "list=a:3:i64", "neither a dtype nor usesN"},
        {"params", "list=a:3;a:4", "the name \"a\" is given twice"},
        {"params", "order=0:1", "order names 2 of 4 parameters"},
        {"params", "order=0:1:1:2", "named twice"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cd_model *model = NULL;
        cddp_error err;
        cd_prng prng = cd_prng_seed(1);
        cd_test_row("%s %s", wrong[i].name, wrong[i].options != NULL ? wrong[i].options : "");
        cd_model_options options = {.name = wrong[i].name,
                                    .options = wrong[i].options,
                                    .dtype = CDDP_F32,
                                    .device = cddp_device_cpu(),
                                    .prng = &prng};
        assert_fails(cd_model_create(&options, &model, &err), CDDP_E_CONFIG, &err, wrong[i].words);
        assert_null(model);
    }
}

TEST(options, sparse_is_refused_where_nothing_is_computed)
{
    cd_model *model = NULL;
    cddp_error err;
    cd_prng prng = cd_prng_seed(1);
    cd_model_options options = {.name = "embedding_bag",
                                .dtype = CDDP_F32,
                                .device = cddp_device_shape(),
                                .prng = &prng};
    assert_fails(cd_model_create(&options, &model, &err), CDDP_E_CONFIG, &err,
                 "sparse gradients need a device that computes, not shape");
}

TEST(options, sparse_is_refused_for_low_precision)
{
    cd_model *model = NULL;
    cddp_error err;
    cd_prng prng = cd_prng_seed(1);
    cd_model_options options = {.name = "embedding_bag",
                                .dtype = CDDP_F16,
                                .device = cddp_device_cpu(),
                                .prng = &prng};
    assert_fails(cd_model_create(&options, &model, &err), CDDP_E_CONFIG, &err,
                 "need f32 or f64 parameters, not f16");
    options.dtype = CDDP_I64;
    assert_fails(cd_model_create(&options, &model, &err), CDDP_E_CONFIG, &err,
                 "parameters cannot be i64");
    options = (cd_model_options){.name = "params",
                                 .options = "list=a:2:c64",
                                 .dtype = CDDP_F64,
                                 .device = cddp_device_cpu(),
                                 .prng = &prng};
    assert_fails(cd_model_create(&options, &model, &err), CDDP_E_CONFIG, &err,
                 "\"a\" is c64, the model computes in f64");
}

TEST(forward, refuses_no_samples_unknown_branches_and_losses_over_nothing)
{
    model_fixture m;
    cd_outputs outputs;
    cd_value *loss = NULL;
    model_open(&m, &(model_case){"gan", NULL, CDDP_F32, false, NULL});
    assert_fails(model_run(&m, &(model_step){.ids = ids, .count = 0}, &outputs, &loss), CDDP_E_ARG,
                 &m.err, "forward over 0 samples");
    assert_fails(model_run(&m, &(model_step){.ids = ids, .count = -1}, &outputs, &loss), CDDP_E_ARG,
                 &m.err, "-1 samples");
    assert_fails(model_run(&m, &(model_step){.ids = ids, .count = 2, .branch = 2}, &outputs, &loss),
                 CDDP_E_ARG, &m.err, "branch 2; 0 trains");
    /* The discriminator trains: the generator's output does not exist. */
    assert_fails(model_run(&m, &(model_step){.ids = ids, .count = 2, .mask = 2}, &outputs, &loss),
                 CDDP_E_ARG, &m.err, "uses none of its outputs");
    model_close(&m);
}

TEST(catalogue, names_every_model_and_option_once)
{
    assert_int_equal(cd_model_type_count(), 15);
    for (size_t t = 0; t < cd_model_type_count(); t++) {
        const char *name = NULL, *initial = NULL, *doc = NULL;
        assert_non_null(cd_model_type_summary(t));
        for (size_t u = 0; u < t; u++)
            assert_string_not_equal(cd_model_type_name(t), cd_model_type_name(u));
        for (size_t o = 0; cd_model_type_option(t, o, &name, &initial, &doc); o++)
            assert_true(strlen(name) > 0 && strlen(doc) > 0);
    }
    assert_null(cd_model_type_name(cd_model_type_count()));
}

TEST(batches, depend_on_sample_ids_alone)
{
    model_fixture m;
    cd_batch a, b;
    model_open(&m, &(model_case){"transformer", "ragged=1", CDDP_F32, false, NULL});
    cd_batch_request request = {.sample_ids = ids, .sample_count = 6, .prng = &m.prng};
    assert_ok(cd_batch_make(m.graph, m.model, &request, &a, &m.err), &m.err);
    request.sample_ids = ids + 4;
    request.sample_count = 1;
    assert_ok(cd_batch_make(m.graph, m.model, &request, &b, &m.err), &m.err);
    assert_memory_equal((int64_t *)a.inputs[0].storage + 4 * 6, b.inputs[0].storage,
                        6 * sizeof(int64_t));
    assert_memory_equal((int64_t *)a.targets[0].storage + 4 * 6, b.targets[0].storage,
                        6 * sizeof(int64_t));
    assert_memory_not_equal(a.inputs[0].storage, a.targets[0].storage, 6 * sizeof(int64_t));
    int64_t tokens = 0, foretold = 0;
    const int64_t *classes = a.targets[0].storage;
    for (int64_t i = 0; i < cddp_tensor_numel(&a.targets[0]); i++)
        tokens += classes[i] != CD_IGNORE_CLASS;
    for (int i = 0; i < 6; i++) foretold += cd_model_token_count(m.model, &m.prng, ids[i]);
    assert_true(tokens >= 6 && tokens < 36);
    assert_int_equal(tokens, foretold);
    model_close(&m);
}

/* ---- synchronised batch norm: two ranks with halves of a batch compute what one computes on the
** whole ---- */

typedef struct exchange {
    double gathered[2][64], summed[64];
    int rank;
    bool replay; /* second pass: the other rank's numbers are there */
} exchange;

static cddp_status gather(void *context, const cddp_tensor *mine, const cddp_tensor *all,
                          cddp_error *err)
{
    exchange *x = context;
    (void)err;
    int64_t n = cddp_tensor_numel(mine);
    for (int64_t i = 0; i < n; i++) x->gathered[x->rank][i] = element_get(mine, i);
    for (int64_t r = 0; r < 2; r++)
        for (int64_t i = 0; i < n; i++)
            element_set(all, r * n + i, x->gathered[x->replay ? r : x->rank][i]);
    return CDDP_OK;
}

static cddp_status add_up(void *context, const cddp_tensor *sums, cddp_error *err)
{
    exchange *x = context;
    (void)err;
    for (int64_t i = 0; i < cddp_tensor_numel(sums); i++) {
        double mine = element_get(sums, i);
        if (x->replay) element_set(sums, i, mine + x->summed[i]);
        x->summed[i] = mine; /* rank 1 runs first in each pass */
    }
    return CDDP_OK;
}

static void sync_run(model_fixture *m, exchange *x, int rank, double grads[2])
{
    cd_outputs outputs;
    cd_value *loss = NULL;
    x->rank = rank;
    cd_graph_callbacks callbacks = {.context = x,
                                    .rank_count = 2,
                                    .allgather = gather,
                                    .allreduce = add_up};
    cd_graph_set_callbacks(m->graph, &callbacks);
    assert_ok(model_run(m, &(model_step){.ids = ids + 3 * rank, .count = 3}, &outputs, &loss),
              &m->err);
    for (int i = 0; i < 2; i++)
        grads[i] = element_get(&m->model->module->parameters[i].grad.value, i);
}

TEST(synchronised_batch_norm, of_two_halves_is_batch_norm_of_the_whole)
{
    model_fixture whole, half;
    cd_outputs outputs;
    cd_value *loss = NULL;
    exchange x = {.rank = 0};
    double first[2], second[2], unused[2];
    model_open(&whole, &(model_case){"mlp", "norm=batch,activation=tanh,widths=3:4:2", CDDP_F64,
                                     false, NULL});
    assert_ok(model_run(&whole, &(model_step){.ids = ids, .count = 6}, &outputs, &loss),
              &whole.err);
    model_open(&half, &(model_case){"mlp", "norm=sync,activation=tanh,widths=3:4:2", CDDP_F64,
                                    false, NULL});
    /* Pass 1 learns both ranks' moments; pass 2 has the forward right and learns the backward sums;
    ** pass 3 is right. */
    for (int rank = 1; rank >= 0; rank--) sync_run(&half, &x, rank, unused);
    x.replay = true;
    double sums[2][64];
    for (int rank = 0; rank < 2; rank++) {
        sync_run(&half, &x, rank, unused);
        memcpy(sums[rank], x.summed, sizeof x.summed);
    }
    memcpy(x.summed, sums[1], sizeof x.summed);
    sync_run(&half, &x, 0, first);
    memcpy(x.summed, sums[0], sizeof x.summed);
    sync_run(&half, &x, 1, second);
    for (int i = 0; i < 2; i++) {
        double wanted = element_get(&whole.model->module->parameters[i].grad.value, i);
        assert_true(fabs(first[i] + second[i] - wanted) < 1e-13 * (1 + fabs(wanted)));
        assert_true(fabs(first[i] - second[i]) > 1e-6);
    }
    model_close(&whole);
    model_close(&half);
}

TEST_MAIN()
