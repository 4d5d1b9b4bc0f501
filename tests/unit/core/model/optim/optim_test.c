/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers beyond their numbers (tests/golden/pytorch has those): absent gradients, every device,
** state that is saved and loaded, refusals, memory. */
#include "core/base/alloc.h"
#include "core/model/optim/optimizer.h"
#include "core/tensor/cpu.h"
#include "core/tensor/dtype.h"
#include "core/tensor/symbol.h"
#include "tests/support/tape.h"
#include "tests/unit/core/tensor/fixture.h"

#include <math.h>
#include <stdio.h>

/* One parameter `w` with a gradient slot. */
typedef struct subject {
    fixture f;
    cddp_tensor w;
    cddp_grad grad;
    cd_optimizer *optimizer;
} subject;

static void subject_init(subject *s, const cddp_device *device, cddp_dtype dtype,
                         const cd_optimizer_options *options)
{
    memset(s, 0, sizeof *s);
    s->w = fixture_make(&s->f, device, dtype, SIZES(4, 3));
    assert_ok(device->fill(&s->w, 1, NULL, &s->f.err), &s->f.err);
    cd_optimizer_parameter p = {"w", s->w, &s->grad};
    assert_ok(cd_optimizer_create(options, &p, 1, NULL, &s->optimizer, &s->f.err), &s->f.err);
}

static void subject_fini(subject *s)
{
    cd_optimizer_destroy(s->optimizer);
    cddp_grad_fini(&s->grad);
    fixture_fini(&s->f);
}

static void set_gradient(subject *s, double value)
{
    assert_ok(cddp_grad_define(&s->grad, &s->w, &s->f.err), &s->f.err);
    assert_ok(s->w.device->fill(&s->grad.value, value, NULL, &s->f.err), &s->f.err);
}

static double first_element(subject *s)
{
    unsigned char bytes[12 * 8];
    fixture_read(&s->f, &s->w, bytes);
    return cd_element_get(s->w.dtype, bytes);
}

static cd_optimizer_options with(cd_optimizer_kind kind, double lr, double momentum,
                                 double weight_decay)
{
    cd_optimizer_options o = cd_optimizer_options_default(kind);
    o.lr = lr;
    o.momentum = kind == CD_OPTIMIZER_sgd ? momentum : 0;
    o.weight_decay = weight_decay;
    return o;
}

TEST(optimizer, names_are_in_the_order_of_scenarios)
{
    static const char *const names[] = {"sgd", "adam", "adamw", "adagrad"};
    for (int i = 0; i < CD_OPTIMIZER_KIND_COUNT; i++)
        assert_string_equal(cd_optimizer_name((cd_optimizer_kind)i), names[i]);
    assert_int_equal(CD_OPTIMIZER_KIND_COUNT, 4);
}

TEST(optimizer, no_gradient_is_not_a_zero_gradient)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++) {
        subject s;
        cd_optimizer_state now;
        cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.5, 0.5, 0.25);
        uint64_t before, after;
        subject_init(&s, cddp_device_cpu(), CDDP_F32, &options);
        cd_test_row("%s", cd_optimizer_name((cd_optimizer_kind)kind));
        assert_ok(cd_optimizer_state_digest(s.optimizer, 0, &before, &s.f.err), &s.f.err);
        assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
        assert_ok(cd_optimizer_state_digest(s.optimizer, 0, &after, &s.f.err), &s.f.err);
        cd_optimizer_get_state(s.optimizer, 0, &now);
        assert_true(first_element(&s) == 1 && before == after && now.step == 0);
        assert_int_equal(now.is_present, kind == CD_OPTIMIZER_adagrad); /* which makes it at once */
        set_gradient(&s, 0);
        assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
        assert_ok(cd_optimizer_state_digest(s.optimizer, 0, &after, &s.f.err), &s.f.err);
        cd_optimizer_get_state(s.optimizer, 0, &now);
        /* it decays, and remembers */
        assert_true(first_element(&s) < 1 && now.is_present && after != before);
        cddp_grad_drop(&s.grad);
        double decayed = first_element(&s);
        assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
        assert_true(first_element(&s) == decayed); /* no momentum without a gradient */
        subject_fini(&s);
    }
}

TEST(optimizer, every_layout_of_a_parameter_gets_the_same_update)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++) {
        cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.125, 0.5, 0.25);
        float results[2][12];
        for (int permuted = 0; permuted < 2; permuted++) {
            fixture f = FIXTURE_INIT;
            cddp_tensor w = fixture_make(&f, cddp_device_cpu(), CDDP_F32, SIZES(4, 3));
            cddp_grad grad = {.kind = CDDP_GRAD_UNDEFINED};
            cd_optimizer *optimizer;
            float values[12];
            if (permuted) w = fixture_permuted(&w);
            for (int i = 0; i < 12; i++) values[i] = (float)i - 5;
            fixture_write(&f, &w, values);
            assert_ok(cddp_grad_define(&grad, &w, &f.err), &f.err);
            for (int i = 0; i < 12; i++) values[i] = (float)(i % 5) * 0.25f;
            fixture_write(&f, &grad.value, values);
            cd_optimizer_parameter p = {"w", w, &grad};
            assert_ok(cd_optimizer_create(&options, &p, 1, NULL, &optimizer, &f.err), &f.err);
            for (int step = 0; step < 3; step++)
                assert_ok(cd_optimizer_step(optimizer, &f.err), &f.err);
            fixture_read(&f, &w, results[permuted]);
            cd_optimizer_destroy(optimizer);
            cddp_grad_fini(&grad);
            fixture_fini(&f);
        }
        cd_test_row("%s", cd_optimizer_name((cd_optimizer_kind)kind));
        assert_memory_equal(results[0], results[1], sizeof results[0]);
    }
}

TEST(optimizer, narrow_and_complex_parameters_are_updated_too)
{
    static const cddp_dtype dtypes[] = {CDDP_F16, CDDP_BF16, CDDP_C64};
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++)
        for (size_t d = 0; d < 3; d++) {
            subject s;
            cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.25, 0, 0);
            subject_init(&s, cddp_device_cpu(), dtypes[d], &options);
            set_gradient(&s, 0.5);
            assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
            cd_test_row("%s %s", cd_optimizer_name((cd_optimizer_kind)kind),
                        cddp_dtype_name(dtypes[d]));
            /* The first step of the adaptive ones has the size of the learning rate. */
            assert_true(fabs(first_element(&s) - (kind == CD_OPTIMIZER_sgd ? 0.875 : 0.75)) < 0.01);
            subject_fini(&s);
        }
}

/* ---- devices ---- */

TEST(optimizer, sgd_on_symbol_is_exact)
{
    subject s;
    char text[160] = "";
    cd_optimizer_options options = with(CD_OPTIMIZER_sgd, 0.1, 0.9, 0);
    const cd_atom g = {.kind = CD_ATOM_GRADIENT, .source = 7},
                  w = {.kind = CD_ATOM_PARAMETER, .source = 7};
    cd_symbol_difference difference;
    subject_init(&s, cddp_device_symbol(), CDDP_F32, &options);
    assert_ok(cd_symbol_write_atoms(&s.w, &w, &s.f.err), &s.f.err);
    assert_ok(cddp_grad_define(&s.grad, &s.w, &s.f.err), &s.f.err);
    assert_ok(cd_symbol_write_atoms(&s.grad.value, &g, &s.f.err), &s.f.err);
    for (int step = 0; step < 3; step++)
        assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
    /* 1 + 1.9 + 2.71 gradients, a tenth of each. */
    const cd_term terms[] = {{g, 0, 1, {-561, 1000}}, {w, 0, 1, {1, 1}}};
    assert_ok(cd_symbol_compare(&s.w, &(cd_form){2, terms}, &difference, &s.f.err), &s.f.err);
    cd_form_print(&(cd_form){difference.actual_count, difference.actual}, 1, NULL, text,
                  sizeof text);
    if (difference.index >= 0) print_error("%s\n", text);
    assert_int_equal(difference.index, -1);
    subject_fini(&s);
}

TEST(optimizer, nonlinear_rules_refuse_symbol_by_name)
{
    fixture f = FIXTURE_INIT;
    cddp_grad grad = {.kind = CDDP_GRAD_UNDEFINED};
    cd_optimizer *optimizer;
    cd_optimizer_parameter p = {"fc.weight",
                                fixture_make(&f, cddp_device_symbol(), CDDP_F32, SIZES(2)), &grad};
    for (int kind = CD_OPTIMIZER_adam; kind < CD_OPTIMIZER_KIND_COUNT; kind++) {
        cd_optimizer_options options = cd_optimizer_options_default((cd_optimizer_kind)kind);
        assert_fails(cd_optimizer_create(&options, &p, 1, NULL, &optimizer, &f.err),
                     CDDP_E_UNSUPPORTED, &f.err, "parameter fc.weight: the update is not linear");
    }
    fixture_fini(&f);
}

/* Whatever the caller's memory held. */
TEST(optimizer, slots_that_a_rule_has_not_are_undefined)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++) {
        subject s;
        cd_optimizer_state now;
        cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.5, 0.5, 0.25);
        subject_init(&s, cddp_device_cpu(), CDDP_F32, &options);
        set_gradient(&s, 0);
        assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
        memset(&now, 0xff, sizeof now);
        cd_optimizer_get_state(s.optimizer, 0, &now);
        cd_test_row("%s", cd_optimizer_name((cd_optimizer_kind)kind));
        for (uint32_t i = 0; i < CD_OPTIMIZER_SLOTS_MAX; i++)
            assert_int_equal(now.slots[i].device != NULL, i < now.slot_count);
        subject_fini(&s);
    }
}

TEST(optimizer, on_shape_nothing_moves_but_state_appears)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++) {
        subject s;
        cd_optimizer_state now;
        cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.5, 0.5, 0.25);
        subject_init(&s, cddp_device_shape(), CDDP_F32, &options);
        set_gradient(&s, 0);
        for (int step = 0; step < 2; step++)
            assert_ok(cd_optimizer_step(s.optimizer, &s.f.err), &s.f.err);
        cd_optimizer_get_state(s.optimizer, 0, &now);
        cd_test_row("%s", cd_optimizer_name((cd_optimizer_kind)kind));
        assert_true(now.is_present && (kind == CD_OPTIMIZER_sgd || now.step == 2));
        subject_fini(&s);
    }
}

/* ---- saved state ---- */

TEST(optimizer, a_loaded_state_goes_on_bit_for_bit)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++)
        for (int present = 0; present < 2; present++) {
            static tape m;
            subject a, b;
            uint64_t da, db;
            cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.125, 0.5, 0.25);
            m = (tape){.used = 0};
            subject_init(&a, cddp_device_cpu(), CDDP_F32, &options);
            subject_init(&b, cddp_device_cpu(), CDDP_F32, &options);
            set_gradient(&a, 0.375);
            set_gradient(&b, 0.75);
            if (!present) cddp_grad_drop(&a.grad);
            for (int step = 0; step < 3; step++)
                assert_ok(cd_optimizer_step(a.optimizer, &a.f.err), &a.f.err);
            /* a state that must give way */
            assert_ok(cd_optimizer_step(b.optimizer, &b.f.err), &b.f.err);
            cd_optimizer_set_lr(a.optimizer, 0.0625);
            assert_ok(cd_optimizer_save(a.optimizer, &(cddp_state_writer){&m, tape_write},
                                        &a.f.err),
                      &a.f.err);
            assert_ok(cd_optimizer_load(b.optimizer, &(cddp_state_reader){&m, tape_read}, &b.f.err),
                      &b.f.err);
            assert_int_equal(m.read, m.used);
            assert_true(cd_optimizer_get_lr(b.optimizer) == 0.0625);
            assert_ok(b.w.device->copy(&b.w, &a.w, NULL, &b.f.err), &b.f.err);
            set_gradient(&a, -0.5);
            set_gradient(&b, -0.5);
            for (int step = 0; step < 2; step++) {
                assert_ok(cd_optimizer_step(a.optimizer, &a.f.err), &a.f.err);
                assert_ok(cd_optimizer_step(b.optimizer, &b.f.err), &b.f.err);
            }
            assert_ok(cd_optimizer_state_digest(a.optimizer, 0, &da, &a.f.err), &a.f.err);
            assert_ok(cd_optimizer_state_digest(b.optimizer, 0, &db, &b.f.err), &b.f.err);
            cd_test_row("%s, %s", cd_optimizer_name((cd_optimizer_kind)kind),
                        present ? "present" : "absent");
            assert_true(da == db && first_element(&a) == first_element(&b));
            subject_fini(&a);
            subject_fini(&b);
        }
}

TEST(optimizer, a_damaged_state_is_refused)
{
    static tape m;
    subject a;
    cd_optimizer_options options = cd_optimizer_options_default(CD_OPTIMIZER_adam);
    subject_init(&a, cddp_device_cpu(), CDDP_F32, &options);
    set_gradient(&a, 0.375);
    assert_ok(cd_optimizer_step(a.optimizer, &a.f.err), &a.f.err);
    m = (tape){.used = 0};
    assert_ok(cd_optimizer_save(a.optimizer, &(cddp_state_writer){&m, tape_write}, &a.f.err),
              &a.f.err);
    for (size_t at = 0; at < m.used * 8; at++) {
        cddp_error err = CDDP_ERROR_INIT;
        m.bytes[at / 8] ^= (unsigned char)(1u << at % 8);
        m.read = 0;
        cd_test_row("bit %zu", at);
        const cddp_status status =
            cd_optimizer_load(a.optimizer, &(cddp_state_reader){&m, tape_read}, &err);
        assert_true(status == CDDP_E_CORRUPT || status == CDDP_E_MISMATCH);
        m.bytes[at / 8] ^= (unsigned char)(1u << at % 8);
    }
    const size_t whole = m.used;
    for (m.used = 0; m.used < whole; m.used++) {
        m.read = 0;
        cd_test_row("%zu of %zu bytes", m.used, whole);
        assert_fails(cd_optimizer_load(a.optimizer, &(cddp_state_reader){&m, tape_read}, &a.f.err),
                     CDDP_E_CORRUPT, &a.f.err, "ends early");
    }
    m.read = 0;
    m.used = whole;
    assert_ok(cd_optimizer_load(a.optimizer, &(cddp_state_reader){&m, tape_read}, &a.f.err),
              &a.f.err);
    subject_fini(&a);
}

TEST(optimizer, a_state_that_does_not_fit_is_refused_with_both_sides)
{
    static tape m;
    subject adam, sgd;
    cd_optimizer_options a = cd_optimizer_options_default(CD_OPTIMIZER_adam),
                         g = with(CD_OPTIMIZER_sgd, 0.1, 0.9, 0);
    cddp_state_reader reader = {&m, tape_read};
    subject_init(&adam, cddp_device_cpu(), CDDP_F32, &a);
    subject_init(&sgd, cddp_device_cpu(), CDDP_F64, &g);
    m = (tape){.used = 0};
    assert_ok(cd_optimizer_save(adam.optimizer, &(cddp_state_writer){&m, tape_write}, &adam.f.err),
              &adam.f.err);
    assert_fails(cd_optimizer_load(sgd.optimizer, &reader, &sgd.f.err), CDDP_E_MISMATCH, &sgd.f.err,
                 "saved by adam, loaded into sgd");
    m.read = 0;
    a.amsgrad = true;
    subject ams;
    subject_init(&ams, cddp_device_cpu(), CDDP_F32, &a);
    assert_fails(cd_optimizer_load(ams.optimizer, &reader, &ams.f.err), CDDP_E_MISMATCH, &ams.f.err,
                 "1 parameters with 2 tensors each were saved, 1 with 3");
    m.read = 0;
    subject wide;
    a.amsgrad = false;
    subject_init(&wide, cddp_device_cpu(), CDDP_F64, &a);
    assert_fails(cd_optimizer_load(wide.optimizer, &reader, &wide.f.err), CDDP_E_MISMATCH,
                 &wide.f.err, "parameter w has 12 elements of f64, saved were 12 of f32");
    m.read = 0;
    m.bytes[0] ^= 1;
    assert_fails(cd_optimizer_load(adam.optimizer, &reader, &adam.f.err), CDDP_E_CORRUPT,
                 &adam.f.err, "not saved");
    m.read = m.used;
    assert_fails(cd_optimizer_load(adam.optimizer, &reader, &adam.f.err), CDDP_E_CORRUPT,
                 &adam.f.err, "ends early");
    m = (tape){.limit = 50};
    assert_fails(cd_optimizer_save(adam.optimizer, &(cddp_state_writer){&m, tape_write},
                                   &adam.f.err),
                 CDDP_E_IO, &adam.f.err, "cannot be written");
    subject_fini(&adam);
    subject_fini(&ams);
    subject_fini(&wide);
    subject_fini(&sgd);
}

TEST(optimizer, defined_state_is_zero_and_one_parameter_can_step_alone)
{
    fixture f = FIXTURE_INIT;
    cddp_grad grads[2] = {{.kind = CDDP_GRAD_UNDEFINED}, {.kind = CDDP_GRAD_UNDEFINED}};
    cd_optimizer_parameter parameters[2];
    cd_optimizer_state now;
    cd_optimizer *optimizer;
    cd_optimizer_options options = with(CD_OPTIMIZER_adam, 0.5, 0, 0);
    float values[2][2], moments[2];
    for (int i = 0; i < 2; i++) {
        cddp_tensor w = fixture_make(&f, cddp_device_cpu(), CDDP_F32, SIZES(2));
        fixture_write(&f, &w, (float[]){1, 1});
        assert_ok(cddp_grad_define(&grads[i], &w, &f.err), &f.err);
        fixture_write(&f, &grads[i].value, (float[]){1, -1});
        parameters[i] = (cd_optimizer_parameter){i == 0 ? "first" : "second", w, &grads[i]};
    }
    assert_ok(cd_optimizer_create(&options, parameters, 2, NULL, &optimizer, &f.err), &f.err);
    assert_ok(cd_optimizer_state_define(optimizer, 0, &f.err), &f.err);
    cd_optimizer_get_state(optimizer, 0, &now);
    assert_true(now.is_present && now.step == 0 && now.slot_count == 2);
    assert_string_equal(now.slot_names[1], "exp_avg_sq");
    fixture_read(&f, &now.slots[1], moments);
    assert_true(moments[0] == 0 && moments[1] == 0);
    assert_ok(cd_optimizer_step_parameter(optimizer, 1, &f.err), &f.err);
    fixture_read(&f, &parameters[0].tensor, values[0]);
    fixture_read(&f, &parameters[1].tensor, values[1]);
    assert_true(values[0][0] == 1 && values[1][0] < 1 && values[1][1] > 1);
    assert_fails(cd_optimizer_step_parameter(optimizer, 2, &f.err), CDDP_E_ARG, &f.err,
                 "parameter 2 of 2");
    cd_optimizer_destroy(optimizer);
    for (int i = 0; i < 2; i++) cddp_grad_fini(&grads[i]);
    fixture_fini(&f);
}

/* ---- refusals and memory ---- */

TEST(optimizer, impossible_settings_are_refused_with_their_value)
{
    static const struct {
        const char *name, *words;
        cd_optimizer_options options;
    } cases[] = {
        /* clang-format off */
        {"negative lr", "lr is -1", {.kind = CD_OPTIMIZER_sgd, .lr = -1}},
        {"nan lr", "lr is", {.kind = CD_OPTIMIZER_sgd, .lr = (double)NAN}},
        {"negative decay", "weight_decay is -2", {.kind = CD_OPTIMIZER_adamw, .lr = 1, .weight_decay = -2}},
        {"negative momentum", "momentum is -0.5", {.kind = CD_OPTIMIZER_sgd, .lr = 1, .momentum = -0.5}},
        {"nesterov alone", "nesterov needs a momentum", {.kind = CD_OPTIMIZER_sgd, .lr = 1, .nesterov = true}},
        {"beta1 of 1", "beta1 is 1", {.kind = CD_OPTIMIZER_adam, .lr = 1, .beta1 = 1}},
        {"beta2 of 2", "beta2 is 2", {.kind = CD_OPTIMIZER_adam, .lr = 1, .beta2 = 2}},
        {"negative eps", "eps is -1", {.kind = CD_OPTIMIZER_adagrad, .lr = 1, .eps = -1}},
        {"negative lr decay", "lr_decay is -1", {.kind = CD_OPTIMIZER_adagrad, .lr = 1, .lr_decay = -1}},
        /* clang-format on */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_optimizer *optimizer;
        cd_test_row("%s", cases[i].name);
        assert_fails(cd_optimizer_create(&cases[i].options, NULL, 0, NULL, &optimizer, &err),
                     CDDP_E_CONFIG, &err, cases[i].words);
    }
}

TEST(optimizer, sparse_gradients_are_refused_where_pytorch_refuses_them)
{
    static const struct {
        cd_optimizer_kind kind;
        double momentum, weight_decay;
        int64_t rows[2];
        const char *words;
    } cases[] = {{CD_OPTIMIZER_adam, 0, 0, {0, 1}, "does not support sparse gradients"},
                 {CD_OPTIMIZER_adamw, 0, 0, {0, 1}, "does not support sparse gradients"},
                 {CD_OPTIMIZER_sgd, 0.9, 0, {0, 1}, "momentum and weight decay need a dense one"},
                 {CD_OPTIMIZER_sgd, 0, 0.1, {0, 1}, "momentum and weight decay need a dense one"},
                 {CD_OPTIMIZER_sgd, 0, 0, {0, 4}, "sparse row 4 of 4"},
                 {CD_OPTIMIZER_adagrad, 0, 0.1, {0, 1}, "weight decay needs a dense one"},
                 {CD_OPTIMIZER_adagrad, 0, 0, {2, 2}, "sparse row 2 after row 2"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        subject s;
        int64_t rows[2] = {cases[i].rows[0], cases[i].rows[1]};
        float values[6] = {0};
        cd_optimizer_options options =
            with(cases[i].kind, 0.1, cases[i].momentum, cases[i].weight_decay);
        subject_init(&s, cddp_device_cpu(), CDDP_F32, &options);
        s.grad.kind = CDDP_GRAD_SPARSE;
        s.grad.rows = (cddp_rows){cddp_device_cpu(), rows, 0, 2};
        s.grad.value = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, (int64_t[]){2, 3}, 2);
        cd_test_row("case %d", (int)i);
        cddp_status status = cd_optimizer_step(s.optimizer, &s.f.err);
        assert_true(status == CDDP_E_UNSUPPORTED || status == CDDP_E_ARG);
        assert_non_null(strstr(s.f.err.message, cases[i].words));
        assert_true(first_element(&s) == 1);
        subject_fini(&s);
    }
}

/* Only the rows that are named move, each as the same row of a dense gradient does. The two divide
** and multiply in another order: in three steps of at most three roundings each, of numbers below
** one, either is off by nine units in the last place. */
TEST(optimizer, adagrad_moves_the_rows_of_a_sparse_gradient_and_no_others)
{
    static const cddp_dtype dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16};
    static const double units[] = {0x1p-53, 0x1p-24, 0x1p-11, 0x1p-8};
    int64_t rows[2] = {1, 3};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        subject sparse, dense;
        unsigned char moved[12 * 8], wanted[12 * 8], values[6 * 8];
        const double most = 2 * 9 * units[i];
        const size_t bytes = cddp_dtype_bytes(dtypes[i]);
        cd_optimizer_options options = with(CD_OPTIMIZER_adagrad, 0.5, 0, 0);
        options.lr_decay = 1;
        cd_test_row("%s", cddp_dtype_name(dtypes[i]));
        subject_init(&sparse, cddp_device_cpu(), dtypes[i], &options);
        subject_init(&dense, cddp_device_cpu(), dtypes[i], &options);
        for (int step = 0; step < 3; step++) {
            set_gradient(&dense, 2);
            for (int k = 0; k < 6; k++) cd_element_set(dtypes[i], values + (size_t)k * bytes, 2);
            sparse.grad.kind = CDDP_GRAD_SPARSE;
            sparse.grad.rows = (cddp_rows){cddp_device_cpu(), rows, 0, 2};
            sparse.grad.value =
                cddp_tensor_of(cddp_device_cpu(), values, 0, dtypes[i], (int64_t[]){2, 3}, 2);
            assert_ok(cd_optimizer_step(sparse.optimizer, &sparse.f.err), &sparse.f.err);
            assert_ok(cd_optimizer_step(dense.optimizer, &dense.f.err), &dense.f.err);
        }
        fixture_read(&sparse.f, &sparse.w, moved);
        fixture_read(&dense.f, &dense.w, wanted);
        for (size_t k = 0; k < 12; k++) {
            const double found = cd_element_get(dtypes[i], moved + k * bytes),
                         dense_one = cd_element_get(dtypes[i], wanted + k * bytes);
            assert_true(k / 3 % 2 == 0 ? found == 1
                                       : found < 0.75 && fabs(found - dense_one) <= most);
        }
        assert_true(cd_element_get(dtypes[i], wanted) < 1);
        subject_fini(&sparse);
        subject_fini(&dense);
    }
}

static cddp_status create_and_step(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cddp_device device = cd_device_with_allocator(cddp_device_cpu(), allocator);
    cd_optimizer_options options = with(*(cd_optimizer_kind *)argument, 0.1, 0.9, 0.1);
    options.nesterov = options.kind == CD_OPTIMIZER_sgd;
    options.amsgrad = true;
    float w[4] = {0}, g[4] = {0};
    cddp_grad grad = {.kind = CDDP_GRAD_DENSE};
    grad.value = cddp_tensor_of(&device, g, 0, CDDP_F32, (int64_t[]){4}, 1);
    cd_optimizer_parameter p = {"w", cddp_tensor_of(&device, w, 0, CDDP_F32, (int64_t[]){4}, 1),
                                &grad};
    cd_optimizer *optimizer = NULL;
    cddp_status status = cd_optimizer_create(&options, &p, 1, allocator, &optimizer, err);
    if (status == CDDP_OK) status = cd_optimizer_step(optimizer, err);
    cd_optimizer_destroy(optimizer);
    return status;
}

TEST(optimizer, running_out_of_memory_leaves_nothing_behind)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++)
        assert_true(
            cd_test_oom_loop(create_and_step, &(cd_optimizer_kind){(cd_optimizer_kind)kind}) >= 3);
}

TEST(optimizer, later_steps_allocate_nothing)
{
    for (int kind = 0; kind < CD_OPTIMIZER_KIND_COUNT; kind++) {
        cd_watch_allocator watch;
        cddp_error err = CDDP_ERROR_INIT;
        cd_watch_allocator_init(&watch, NULL);
        cddp_device device = cd_device_with_allocator(cddp_device_cpu(), &watch.table);
        cd_optimizer_options options = with((cd_optimizer_kind)kind, 0.1, 0.9, 0.1);
        float w[4] = {0}, g[4] = {0};
        cddp_grad grad = {.kind = CDDP_GRAD_DENSE};
        grad.value = cddp_tensor_of(&device, g, 0, CDDP_F32, (int64_t[]){4}, 1);
        cd_optimizer_parameter p = {"w", cddp_tensor_of(&device, w, 0, CDDP_F32, (int64_t[]){4}, 1),
                                    &grad};
        cd_optimizer *optimizer;
        assert_ok(cd_optimizer_create(&options, &p, 1, &watch.table, &optimizer, &err), &err);
        assert_ok(cd_optimizer_step(optimizer, &err), &err);
        watch.frozen = watch.abort_on_growth = true;
        for (int step = 0; step < 5; step++) assert_ok(cd_optimizer_step(optimizer, &err), &err);
        cd_optimizer_destroy(optimizer);
        assert_int_equal(watch.live_count, 0);
    }
}

TEST_MAIN()
