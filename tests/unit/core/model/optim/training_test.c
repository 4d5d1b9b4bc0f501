/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds an optimizer's step: clipping, loss scaling, schedules. */
#include "core/model/optim/clip.h"
#include "core/model/optim/loss_scaler.h"
#include "core/model/optim/lr_schedule.h"
#include "core/tensor/dtype.h"
#include "core/tensor/saved.h"
#include "tests/support/tape.h"
#include "tests/unit/core/tensor/fixture.h"

#include <math.h>

static cddp_grad gradient_of(float *values, int64_t numel)
{
    cddp_grad grad = {.kind = CDDP_GRAD_DENSE};
    grad.value = cddp_tensor_of(cddp_device_cpu(), values, 0, CDDP_F32, &numel, 1);
    return grad;
}

/* ---- clipping ---- */

TEST(clip, the_norm_is_global_and_absent_gradients_do_not_count)
{
    cddp_error err = CDDP_ERROR_INIT;
    float a[] = {3, 0}, b[] = {0, 0, 4};
    cddp_grad ga = gradient_of(a, 2), gb = gradient_of(b, 3), none = {.kind = CDDP_GRAD_UNDEFINED};
    cddp_grad *grads[] = {&ga, &none, &gb};
    double total;
    assert_ok(cd_clip_grad_norm(grads, 3, 10, &total, &err), &err);
    assert_true(total == 5 && a[0] == 3 && b[2] == 4);
    assert_ok(cd_clip_grad_norm(grads, 3, 1, &total, &err), &err);
    const float factor = (float)(1 / (5 + 1e-6));
    assert_true(total == 5 && a[0] == 3 * factor && b[2] == 4 * factor);
    assert_ok(cd_clip_grad_norm(grads, 0, 1, &total, &err), &err);
    assert_true(total == 0);
}

TEST(clip, norms_that_are_not_finite_pass_on_as_in_pytorch)
{
    cddp_error err = CDDP_ERROR_INIT;
    float a[] = {INFINITY, 1}, b[] = {2};
    cddp_grad ga = gradient_of(a, 2), gb = gradient_of(b, 1);
    cddp_grad *grads[] = {&ga, &gb};
    double total;
    assert_ok(cd_clip_grad_norm(grads, 2, 1, &total, &err), &err);
    assert_true(isinf(total) && isnan(a[0]) && a[1] == 0 && b[0] == 0);
    b[0] = 2;
    assert_ok(cd_clip_grad_norm(grads, 2, 1, NULL, &err), &err);
    assert_true(isnan(b[0]));
    assert_fails(cd_clip_grad_norm(grads, 2, -1, NULL, &err), CDDP_E_ARG, &err, "max_norm is -1");
}

TEST(clip, symbol_is_refused_and_shape_passes)
{
    fixture f = FIXTURE_INIT;
    cddp_grad g = {.kind = CDDP_GRAD_DENSE};
    cddp_grad *grads[] = {&g};
    g.value = fixture_make(&f, cddp_device_symbol(), CDDP_F32, SIZES(3));
    assert_fails(cd_clip_grad_norm(grads, 1, 1, NULL, &f.err), CDDP_E_UNSUPPORTED, &f.err, "norm");
    g.value = fixture_make(&f, cddp_device_shape(), CDDP_F32, SIZES(3));
    assert_ok(cd_clip_grad_norm(grads, 1, 1, NULL, &f.err), &f.err);
    fixture_fini(&f);
}

/* ---- loss scaler ---- */

/* One update; the gradient is infinite or 1. Returns the unscaled gradient. */
static float update(cd_loss_scaler *scaler, bool infinite)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_scaled_optimizer third = {.number = 3};
    float value = infinite ? INFINITY : 1;
    bool found;
    cddp_grad grad = gradient_of(&value, 1), none = {.kind = CDDP_GRAD_UNDEFINED};
    assert_ok(cd_loss_scaler_unscale(scaler, &third, (cddp_grad *[]){&none, &grad}, 2, &found,
                                     &err),
              &err);
    assert_int_equal(found, infinite);
    assert_ok(cd_loss_scaler_update(scaler, &err), &err);
    return value;
}

TEST(loss_scaler, grows_after_the_interval_and_backs_off_at_once)
{
    static const struct {
        bool infinite;
        double scale; /* afterwards */
        uint64_t tracker;
    } steps[] = {{false, 1024, 1}, {false, 1024, 2}, {false, 2048, 0}, {true, 1024, 0},
                 {false, 1024, 1}, {false, 1024, 2}, {true, 512, 0},   {true, 256, 0},
                 {false, 256, 1},  {false, 256, 2},  {false, 512, 0},  {false, 512, 1}};
    cddp_error err = CDDP_ERROR_INIT;
    cd_loss_scaler scaler;
    assert_ok(cd_loss_scaler_init(&scaler, &(cd_loss_scaler_options){1024, 2, 0.5, 3}, &err), &err);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        double before = cd_loss_scaler_get_scale(&scaler);
        float unscaled = update(&scaler, steps[i].infinite);
        cd_test_row("step %d", (int)i);
        assert_true(isinf(unscaled) == steps[i].infinite &&
                    (steps[i].infinite || (double)unscaled == 1 / before));
        assert_true(cd_loss_scaler_get_scale(&scaler) == steps[i].scale &&
                    scaler.growth_tracker == steps[i].tracker);
    }
}

TEST(loss_scaler, one_optimizer_with_an_infinity_backs_off_for_all)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_loss_scaler scaler;
    cd_scaled_optimizer optimizers[2] = {{.number = 0}, {.number = 1}};
    float good = 1, bad = NAN;
    bool found;
    cddp_grad g = gradient_of(&good, 1), b = gradient_of(&bad, 1);
    assert_ok(cd_loss_scaler_init(&scaler, &(cd_loss_scaler_options)CD_LOSS_SCALER_OPTIONS_INIT,
                                  &err),
              &err);
    assert_ok(cd_loss_scaler_unscale(&scaler, &optimizers[0], (cddp_grad *[]){&b}, 1, &found, &err),
              &err);
    assert_true(found);
    assert_ok(cd_loss_scaler_unscale(&scaler, &optimizers[1], (cddp_grad *[]){&g}, 1, &found, &err),
              &err);
    assert_false(found); /* this optimizer may step */
    assert_fails(cd_loss_scaler_unscale(&scaler, &optimizers[1], (cddp_grad *[]){&g}, 1, &found,
                                        &err),
                 CDDP_E_STATE, &err, "already");
    assert_ok(cd_loss_scaler_update(&scaler, &err), &err);
    assert_true(cd_loss_scaler_get_scale(&scaler) == 32768);
    assert_fails(cd_loss_scaler_update(&scaler, &err), CDDP_E_STATE, &err,
                 "without an unscaled optimizer");
    /* the next update: the same optimizer once more */
    assert_ok(cd_loss_scaler_unscale(&scaler, &optimizers[1], (cddp_grad *[]){&g}, 1, &found, &err),
              &err);
}

TEST(loss_scaler, an_infinite_scale_is_never_taken)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_loss_scaler scaler;
    assert_ok(cd_loss_scaler_init(&scaler, &(cd_loss_scaler_options){0x1p127, 2, 0.5, 1}, &err),
              &err);
    update(&scaler, false);
    assert_true(cd_loss_scaler_get_scale(&scaler) == 0x1p127);
    assert_fails(cd_loss_scaler_init(&scaler, &(cd_loss_scaler_options){1, 1, 0.5, 1}, &err),
                 CDDP_E_CONFIG, &err, "growth 1");
    assert_fails(cd_loss_scaler_init(&scaler, &(cd_loss_scaler_options){1, 2, 1, 1}, &err),
                 CDDP_E_CONFIG, &err, "backoff 1");
}

TEST(loss_scaler, its_state_is_saved_and_loaded)
{
    cddp_error err = CDDP_ERROR_INIT;
    tape m = {.used = 0};
    cd_loss_scaler a, b;
    const cd_loss_scaler_options options = {64, 2, 0.5, 5};
    assert_ok(cd_loss_scaler_init(&a, &options, &err), &err);
    assert_ok(cd_loss_scaler_init(&b, &options, &err), &err);
    update(&a, true);
    update(&a, false);
    assert_ok(cd_loss_scaler_save(&a, &(cddp_state_writer){&m, tape_write}, &err), &err);
    assert_ok(cd_loss_scaler_load(&b, &(cddp_state_reader){&m, tape_read}, &err), &err);
    assert_true(b.scale == 32 && b.growth_tracker == 1);
    cddp_state_reader reader = {&m, tape_read};
    assert_fails(cd_loss_scaler_load(&b, &reader, &err), CDDP_E_CORRUPT, &err, "ends early");
    const size_t whole = m.used;
    for (size_t bit = 0; bit < whole * 8; bit++) {
        m.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        m.read = 0;
        cd_test_row("bit %zu", bit);
        assert_fails(cd_loss_scaler_load(&b, &reader, &err), CDDP_E_CORRUPT, &err, "is damaged");
        m.bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    for (m.used = 0; m.used < whole; m.used++) {
        m.read = 0;
        assert_fails(cd_loss_scaler_load(&b, &reader, &err), CDDP_E_CORRUPT, &err, "ends early");
    }
    assert_true(b.scale == 32 && b.growth_tracker == 1);
}

/* As whoever writes states by himself, and wrongly. */
TEST(loss_scaler, a_scale_that_is_no_f32_is_refused)
{
    static const double wrong[] = {0, -1, 1e300, 1e-300, 3.5e38, 1.0000000001, INFINITY, NAN};
    const cd_loss_scaler_options options = {64, 2, 0.5, 5};
    cddp_error err = CDDP_ERROR_INIT;
    cd_loss_scaler scaler;
    assert_ok(cd_loss_scaler_init(&scaler, &options, &err), &err);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const uint64_t tracker = 1;
        tape m = {.used = 0};
        const cddp_state_writer writer = {&m, tape_write};
        cd_state_out out = {.writer = &writer, .who = "a test"};
        assert_ok(cd_state_put(&out, &wrong[i], sizeof wrong[i], &err), &err);
        assert_ok(cd_state_put(&out, &tracker, sizeof tracker, &err), &err);
        assert_ok(cd_state_put_seal(&out, &err), &err);
        cd_test_row("%g", wrong[i]);
        assert_fails(cd_loss_scaler_load(&scaler, &(cddp_state_reader){&m, tape_read}, &err),
                     CDDP_E_CORRUPT, &err, "scale is");
    }
}

/* ---- schedules ---- */

TEST(lr_schedule, ends_and_middles_are_where_they_belong)
{
    const cd_lr_schedule constant = {.kind = CD_LR_CONSTANT, .base = 0.5};
    const cd_lr_schedule step = {.kind = CD_LR_STEP, .base = 1, .period = 3, .gamma = 0.5};
    const cd_lr_schedule cosine = {.kind = CD_LR_COSINE, .base = 1, .period = 8, .floor = 0.25};
    const cd_lr_schedule linear = {.kind = CD_LR_LINEAR, .base = 1, .period = 4, .start = 0.5};
    assert_true(cd_lr_at(&constant, 0) == 0.5 && cd_lr_at(&constant, 1000) == 0.5);
    assert_true(cd_lr_at(&step, 2) == 1 && cd_lr_at(&step, 3) == 0.5 && cd_lr_at(&step, 8) == 0.25);
    assert_true(cd_lr_at(&cosine, 0) == 1 && cd_lr_at(&cosine, 4) == 0.625 &&
                cd_lr_at(&cosine, 8) == 0.25);
    assert_true(cd_lr_at(&cosine, 16) == 1);
    assert_true(cd_lr_at(&linear, 0) == 0.5 && cd_lr_at(&linear, 2) == 0.75 &&
                cd_lr_at(&linear, 9) == 1);
}

TEST(lr_schedule, impossible_ones_are_refused)
{
    cddp_error err = CDDP_ERROR_INIT;
    assert_fails(cd_lr_schedule_check(&(cd_lr_schedule){.kind = CD_LR_COSINE, .base = 1}, &err),
                 CDDP_E_CONFIG, &err, "cosine schedule with a period of 0");
    assert_fails(cd_lr_schedule_check(&(cd_lr_schedule){.kind = CD_LR_CONSTANT, .base = -1}, &err),
                 CDDP_E_CONFIG, &err, "-1");
    assert_fails(cd_lr_schedule_check(&(cd_lr_schedule){.kind = (cd_lr_kind)9}, &err), CDDP_E_ARG,
                 &err, "9");
}

TEST_MAIN()
