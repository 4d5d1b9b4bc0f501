/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient slots: in place where defined, sparse rows, complex numbers, empty parameters, devices
** without numbers. */
#include "tests/unit/core/model/fixture.h"

#include "core/model/accumulate.h"
#include "core/model/layers/embedding.h"
#include "core/model/layers/inner.h"
#include "core/model/layers/loss.h"
#include "core/model/layers/shapes.h"
#include "core/tensor/symbol.h"

#include <string.h>

static cd_value *numbers(fixture *f, int64_t count, const double *values)
{
    cddp_tensor t;
    cd_value *value = NULL;
    assert_ok(cd_graph_tensor(f->graph, CDDP_F32, &count, 1, &t, &f->err), &f->err);
    for (int64_t i = 0; i < count; i++) element_set(&t, i, values[i]);
    assert_ok(cd_graph_input(f->graph, &t, &value, &f->err), &f->err);
    return value;
}

/* loss = Σ_s x_s·⟨c, p⟩ */
static cd_value *use(fixture *f, uint32_t parameter, int64_t count, const double *xs)
{
    cd_value *y = NULL, *loss = NULL;
    cd_inner inner = {.x = numbers(f, count, xs), .key = parameter};
    assert_ok(cd_graph_parameter(f->graph, parameter, &inner.p, &f->err), &f->err);
    assert_ok(cd_inner_layer(f->graph, &inner, &y, &f->err), &f->err);
    assert_ok(cd_weighted_sum(f->graph, y, NULL, 0, &loss, &f->err), &f->err);
    return loss;
}

TEST(slot, is_added_to_in_place_wherever_its_value_lies)
{
    fixture f;
    float bucket[4] = {100, 200, 300, 400};
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_F32, (const int64_t[1]){2}, 1);
    cddp_grad *grad = &f.module->parameters[p].grad;
    /* A bucket view, as gradient_as_bucket_view lends it. */
    grad->kind = CDDP_GRAD_DENSE;
    grad->value = cddp_tensor_of(&f.device, bucket, 1, CDDP_F32, (const int64_t[1]){2}, 1);
    fixture_begin(&f);
    assert_ok(backward_from(&f, use(&f, p, 2, (const double[]){1, 2}), false), &f.err);
    assert_true(bucket[0] == 100 && bucket[3] == 400);
    assert_true(bucket[1] == (float)(200 + 3 * cd_inner_constant(p, 0)));
    assert_true(bucket[2] == (float)(300 + 3 * cd_inner_constant(p, 1)));
    assert_ptr_equal(grad->value.storage, bucket);
    fixture_close(&f);
}

TEST(slot, is_born_in_home_and_keeps_its_storage_when_dropped)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_F32, (const int64_t[1]){3}, 1);
    cddp_grad *grad = &f.module->parameters[p].grad;
    void *storage = NULL;
    for (int round = 0; round < 3; round++) {
        fixture_begin(&f);
        assert_ok(backward_from(&f, use(&f, p, 1, (const double[]){2}), false), &f.err);
        assert_true(grad->is_fresh);
        assert_true(element_get(&grad->value, 2) == 2 * cd_inner_constant(p, 2));
        if (round == 0) storage = grad->value.storage;
        assert_ptr_equal(grad->value.storage, storage);
        assert_ok(cd_module_zero_grad(f.module, CD_ZERO_GRAD_TO_NONE, &f.err), &f.err);
        assert_int_equal(grad->kind, CDDP_GRAD_UNDEFINED);
    }
    fixture_close(&f);
}

TEST(slot, zeroed_stays_defined_and_none_stays_none)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_F32, (const int64_t[1]){2}, 1),
             q = fixture_parameter(&f, "q", CDDP_F32, (const int64_t[1]){2}, 1);
    fixture_begin(&f);
    assert_ok(backward_from(&f, use(&f, p, 1, (const double[]){2}), false), &f.err);
    assert_ok(cd_module_zero_grad(f.module, CD_ZERO_GRAD_TO_ZERO, &f.err), &f.err);
    assert_int_equal(f.module->parameters[p].grad.kind, CDDP_GRAD_DENSE);
    assert_true(element_get(&f.module->parameters[p].grad.value, 1) == 0);
    assert_int_equal(f.module->parameters[q].grad.kind, CDDP_GRAD_UNDEFINED);
    fixture_close(&f);
}

TEST(complex, parameters_receive_their_constants)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_C64, (const int64_t[1]){2}, 1);
    for (int round = 1; round <= 2; round++) {
        fixture_begin(&f);
        assert_ok(backward_from(&f, use(&f, p, 2, (const double[]){0.5, 1}), false), &f.err);
        const float *g = cd_tensor_data(&f.module->parameters[p].grad.value);
        for (int i = 0; i < 4; i++)
            assert_true(g[i] == (float)(round * 1.5 * cd_inner_constant(p, i)));
    }
    fixture_close(&f);
}

TEST(empty, parameters_get_a_defined_empty_gradient)
{
    fixture f;
    arrivals a;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_F32, (const int64_t[2]){0, 3}, 2);
    fixture_begin(&f);
    arrivals_listen(&f, &a);
    for (int round = 0; round < 2; round++)
        assert_ok(backward_from(&f, use(&f, p, 1, (const double[]){1}), false), &f.err);
    assert_int_equal(a.count, 2);
    assert_int_equal(f.module->parameters[p].grad.kind, CDDP_GRAD_DENSE);
    assert_int_equal(cddp_tensor_numel(&f.module->parameters[p].grad.value), 0);
    fixture_close(&f);
}

TEST(half, parameters_compute_in_f32_and_round_their_gradient_once)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_F16, (const int64_t[1]){2}, 1);
    fixture_begin(&f);
    assert_ok(backward_from(&f, use(&f, p, 2, (const double[]){1.0, 1.0 / 4096}), false), &f.err);
    const cddp_grad *grad = &f.module->parameters[p].grad;
    assert_int_equal(grad->value.dtype, CDDP_F16);
    /* 1 + 2^-12 rounds to 1 in f16 at the end, not at every step. */
    assert_true(element_get(&grad->value, 0) == cd_inner_constant(p, 0));
    fixture_close(&f);
}

static const cddp_tensor *low_precision(void *context, uint32_t parameter)
{
    (void)parameter;
    return context;
}

TEST(mixed_precision, computes_with_the_copy_and_accumulates_in_its_dtype)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "p", CDDP_F32, (const int64_t[1]){2}, 1);
    uint16_t halves[2] = {0x3c00, 0x4000}; /* 1, 2 */
    cddp_tensor copy = cddp_tensor_of(&f.device, halves, 0, CDDP_F16, (const int64_t[1]){2}, 1);
    fixture_begin(&f);
    cd_graph_callbacks callbacks = {.context = &copy, .forward_parameter = low_precision};
    cd_graph_set_callbacks(f.graph, &callbacks);
    cd_value *loss = use(&f, p, 1, (const double[]){1});
    assert_true(element_get(&loss->tensor, 0) ==
                cd_inner_constant(p, 0) + 2 * cd_inner_constant(p, 1));
    assert_ok(backward_from(&f, loss, false), &f.err);
    assert_int_equal(f.module->parameters[p].grad.value.dtype, CDDP_F16);
    assert_true(element_get(&f.module->parameters[p].grad.value, 1) == cd_inner_constant(p, 1));
    fixture_close(&f);
}

/* ---- sparse ---- */

static cd_value *look_up(fixture *f, uint32_t table, const int64_t *rows, int64_t count)
{
    cddp_tensor index;
    cd_value *p = NULL, *y = NULL, *ones = NULL, *losses = NULL, *loss = NULL;
    assert_ok(cd_graph_tensor(f->graph, CDDP_I64, (const int64_t[2]){count, 1}, 2, &index, &f->err),
              &f->err);
    memcpy(index.storage, rows, (size_t)count * sizeof *rows);
    assert_ok(cd_graph_parameter(f->graph, table, &p, &f->err), &f->err);
    assert_ok(cd_embedding_layer(f->graph, p, &(cd_embedding){&index, true, true}, &y, &f->err),
              &f->err);
    cddp_tensor t;
    assert_ok(cd_graph_tensor(f->graph, CDDP_F32, y->tensor.sizes, 2, &t, &f->err), &f->err);
    for (int64_t i = 0; i < cddp_tensor_numel(&t); i++) element_set(&t, i, (double)(1 << i));
    assert_ok(cd_graph_input(f->graph, &t, &ones, &f->err), &f->err);
    assert_ok(cd_inner_product(f->graph, y, ones, &losses, &f->err), &f->err);
    assert_ok(cd_weighted_sum(f->graph, losses, NULL, 0, &loss, &f->err), &f->err);
    return loss;
}

static void assert_rows(const cddp_grad *grad, const int64_t *rows, const double *values,
                        int64_t count)
{
    assert_int_equal(grad->kind, CDDP_GRAD_SPARSE);
    assert_int_equal(grad->rows.count, count);
    assert_int_equal(grad->value.sizes[0], count);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(((const int64_t *)grad->rows.storage)[grad->rows.offset + i], rows[i]);
        for (int64_t k = 0; k < 2; k++)
            assert_true(element_get(&grad->value, 2 * i + k) == values[2 * i + k]);
    }
}

TEST(sparse, gradients_have_the_rows_that_were_used_increasing_and_summed)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "table", CDDP_F32, (const int64_t[2]){6, 2}, 2);
    fixture_begin(&f);
    assert_ok(backward_from(&f, look_up(&f, p, (const int64_t[]){4, 1, 4}, 3), false), &f.err);
    assert_rows(&f.module->parameters[p].grad, (const int64_t[]){1, 4},
                (const double[]){4, 8, 1 + 16, 2 + 32}, 2);
    fixture_close(&f);
}

TEST(sparse, gradients_accumulate_as_the_union_of_rows)
{
    fixture f;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "table", CDDP_F32, (const int64_t[2]){6, 2}, 2);
    fixture_begin(&f);
    assert_ok(backward_from(&f, look_up(&f, p, (const int64_t[]){4, 1}, 2), false), &f.err);
    assert_ok(backward_from(&f, look_up(&f, p, (const int64_t[]){5, 4}, 2), false), &f.err);
    assert_rows(&f.module->parameters[p].grad, (const int64_t[]){1, 4, 5},
                (const double[]){4, 8, 1 + 4, 2 + 8, 1, 2}, 3);
    fixture_close(&f);
}

TEST(sparse, gradients_of_two_uses_meet_before_the_parameter_fires)
{
    fixture f;
    arrivals a;
    cd_value *sum = NULL;
    fixture_open(&f);
    uint32_t p = fixture_parameter(&f, "table", CDDP_F32, (const int64_t[2]){6, 2}, 2);
    fixture_begin(&f);
    arrivals_listen(&f, &a);
    cd_value *first = look_up(&f, p, (const int64_t[]){0}, 1),
             *second = look_up(&f, p, (const int64_t[]){3, 0}, 2);
    assert_ok(cd_add(f.graph, first, second, &sum, &f.err), &f.err);
    assert_ok(backward_from(&f, sum, false), &f.err);
    assert_int_equal(a.count, 1);
    assert_rows(&f.module->parameters[p].grad, (const int64_t[]){0, 3},
                (const double[]){1 + 4, 2 + 8, 1, 2}, 2);
    fixture_close(&f);
}

TEST(sparse, gradients_are_scattered_into_dense_ones_and_dense_ones_make_sparse_ones_dense)
{
    for (int dense_first = 0; dense_first < 2; dense_first++) {
        fixture f;
        fixture_open(&f);
        uint32_t p = fixture_parameter(&f, "table", CDDP_F32, (const int64_t[2]){3, 2}, 2);
        fixture_begin(&f);
        for (int k = 0; k < 2; k++) {
            if (k == dense_first)
                assert_ok(backward_from(&f, look_up(&f, p, (const int64_t[]){2}, 1), false),
                          &f.err);
            else
                assert_ok(backward_from(&f, use(&f, p, 1, (const double[]){8}), false), &f.err);
        }
        const cddp_grad *grad = &f.module->parameters[p].grad;
        assert_int_equal(grad->kind, CDDP_GRAD_DENSE);
        for (int i = 0; i < 6; i++)
            assert_true(element_get(&grad->value, i) == 8 * cd_inner_constant(p, i) + (i == 4 ? 1
                                                                                       : i == 5
                                                                                           ? 2
                                                                                           : 0));
        fixture_close(&f);
    }
}

/* ---- devices without numbers ---- */

typedef struct fresh_log {
    uint32_t parameters[16], count;
    void *targets[16];
} fresh_log;

static cddp_status log_fresh(void *context, uint32_t parameter, const cddp_tensor *dst,
                             cddp_error *err)
{
    fresh_log *log = context;
    (void)err;
    log->targets[log->count] = dst->storage;
    log->parameters[log->count++] = parameter;
    return CDDP_OK;
}

TEST(devices_without_numbers, ask_the_world_what_every_firing_contributes)
{
    cd_watch_allocator watch;
    cddp_error err;
    cd_prng prng = cd_prng_seed(1);
    cd_model *model = NULL;
    cd_graph *graph = NULL;
    cd_watch_allocator_init(&watch, cddp_allocator_default());
    cd_model_options options = {.name = "params",
                                .options = "list=a:4;b:2:uses0;c:3",
                                .dtype = CDDP_F32,
                                .device = cddp_device_shape(),
                                .allocator = &watch.table,
                                .prng = &prng};
    assert_ok(cd_model_create(&options, &model, &err), &err);
    assert_ok(cd_graph_create(model->module, &watch.table, &graph, &err), &err);
    fresh_log log = {.count = 0};
    cd_graph_callbacks callbacks = {.context = &log, .fresh = log_fresh};
    cd_graph_set_callbacks(graph, &callbacks);
    for (int round = 0; round < 2; round++) {
        cd_batch batch;
        cd_outputs outputs;
        cd_value *loss = NULL;
        cd_graph_begin(graph);
        cd_batch_request request = {.sample_ids = (const int64_t[]){0, 1},
                                    .sample_count = 2,
                                    .prng = &prng};
        assert_ok(cd_batch_make(graph, model, &request, &batch, &err), &err);
        assert_ok(cd_model_forward(model, graph, &batch, &outputs, &err), &err);
        assert_ok(cd_model_loss(model, graph, &batch, &outputs, UINT32_MAX, &loss, &err), &err);
        cd_backward_options backward = {.roots = &loss, .root_count = 1};
        assert_ok(cd_graph_backward(graph, &backward, &err), &err);
    }
    static const uint32_t wanted[] = {2, 0, 2, 0};
    assert_int_equal(log.count, 4);
    assert_memory_equal(log.parameters, wanted, sizeof wanted);
    /* The first firing writes the slot itself, the second an addend that is then added to it. */
    assert_ptr_equal(log.targets[0], model->module->parameters[2].grad.value.storage);
    assert_ptr_equal(log.targets[2], model->module->parameters[2].extra->addend.storage);
    assert_int_equal(model->module->parameters[0].grad.kind, CDDP_GRAD_DENSE);
    assert_int_equal(model->module->parameters[1].grad.kind, CDDP_GRAD_UNDEFINED);
    cd_graph_destroy(graph);
    cd_model_destroy(model);
    assert_int_equal(watch.live_count, 0);
}

static cddp_status write_atoms(void *context, uint32_t parameter, const cddp_tensor *dst,
                               cddp_error *err)
{
    cd_atom *atom = context;
    atom->source = parameter;
    return cd_symbol_write_atoms(dst, atom, err);
}

static bool keep_terms(void *context, int64_t first, int64_t length, const cd_form *form)
{
    size_t *counts = context;
    assert_int_equal(first, 0);
    assert_int_equal(length, 4);
    counts[0] += form->term_count;
    for (size_t t = 0; t < form->term_count; t++) counts[1 + form->terms[t].atom.micro_step]++;
    return true;
}

TEST(symbols, accumulate_over_micro_steps_as_the_sum_of_their_atoms)
{
    fixture f;
    fixture_open(&f);
    cd_module_destroy(f.module);
    cd_prng prng = cd_prng_seed(1);
    assert_ok(cd_module_create(&f.watch.table, cddp_device_symbol(), &prng, &f.module, &f.err),
              &f.err);
    uint32_t p = 0;
    cd_parameter_spec spec = {.name = "p", .dtype = CDDP_F32, .dim_count = 1, .sizes = {4}};
    assert_ok(cd_module_add_parameter(f.module, &spec, &p, &f.err), &f.err);
    fixture_begin(&f);
    cd_atom atom = {.kind = CD_ATOM_GRADIENT, .rank = 3};
    cd_graph_callbacks callbacks = {.context = &atom, .fresh = write_atoms};
    cd_graph_set_callbacks(f.graph, &callbacks);
    for (; atom.micro_step < 2; atom.micro_step++) {
        fixture_begin(&f);
        cd_value *y = NULL, *loss = NULL, *x = NULL;
        cddp_tensor t;
        assert_ok(cd_graph_tensor(f.graph, CDDP_F32, (const int64_t[1]){2}, 1, &t, &f.err), &f.err);
        assert_null(t.storage);
        assert_ok(cd_graph_input(f.graph, &t, &x, &f.err), &f.err);
        cd_inner inner = {.x = x, .key = 1};
        assert_ok(cd_graph_parameter(f.graph, p, &inner.p, &f.err), &f.err);
        assert_ok(cd_inner_layer(f.graph, &inner, &y, &f.err), &f.err);
        assert_ok(cd_weighted_sum(f.graph, y, NULL, 0, &loss, &f.err), &f.err);
        assert_ok(backward_from(&f, loss, false), &f.err);
    }
    size_t counts[3] = {0};
    assert_ok(cd_symbol_visit(&f.module->parameters[p].grad.value, keep_terms, counts, &f.err),
              &f.err);
    assert_int_equal(counts[0], 2);
    assert_int_equal(counts[1], 1);
    assert_int_equal(counts[2], 1);
    fixture_close(&f);
}

TEST_MAIN()
