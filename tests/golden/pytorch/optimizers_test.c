/* SPDX-License-Identifier: Apache-2.0 */
/** Our optimizers and loss scaler against the numbers of optimizers.txt (made by optimizers.py with
**  PyTorch 1.13).
**
** f32 must agree bit for bit: both round every operation once, in one order. f64 may differ by the
** last bits of beta^step, which PyTorch takes from libm's pow and we compute ourselves: at most 8
** ulp of the largest operand.
**
** The file is the executable's argument, so the tests run before the harness sees its own
** options. */
#include "core/model/optim/clip.h"
#include "core/model/optim/loss_scaler.h"
#include "core/model/optim/lr_schedule.h"
#include "core/model/optim/optimizer.h"
#include "core/tensor/dtype.h"
#include "tests/support/test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *path; /* of optimizers.txt */

enum { STEPS = 6, NUMEL_MAX = 35, PARAMETERS = 2 };
static const int64_t shapes[PARAMETERS][2] = {{5, 7}, {11, 1}};

static double pattern(int64_t index, int salt)
{
    return ((double)((index * 37 + salt * 101) % 64) - 31) / 16;
}
static bool has_gradient(int parameter, int step)
{
    return parameter == 0 || (step != 0 && step != 3);
}

/* ---- the file ---- */

/* Finds the line that starts with `key` and reads the numbers behind it. Returns how many; 0: no
** such line. */
static size_t golden(const char *key, double *numbers, size_t most)
{
    static char text[8192];
    FILE *file = fopen(path, "r");
    size_t count = 0, key_bytes = strlen(key);
    assert_non_null(file);
    while (fgets(text, sizeof text, file) != NULL) {
        if (strncmp(text, key, key_bytes) != 0 || text[key_bytes] != ' ') continue;
        char *at = text + key_bytes, *end;
        for (double x = strtod(at, &end); end != at && count < most; x = strtod(at, &end)) {
            numbers[count++] = x;
            at = end;
        }
        break;
    }
    fclose(file);
    return count;
}

/* ---- the same run here ---- */

typedef struct setting {
    const char *name;
    cd_optimizer_kind kind;
    double lr, momentum, dampening, weight_decay, beta1, beta2, eps, lr_decay, initial;
    bool nesterov, maximize, amsgrad;
} setting;

static const setting settings[] = {
    {"sgd", CD_OPTIMIZER_sgd, .lr = 0.1},
    {"sgd_momentum", CD_OPTIMIZER_sgd, .lr = 0.1, .momentum = 0.9},
    {"sgd_dampening", CD_OPTIMIZER_sgd, .lr = 0.1, .momentum = 0.9, .dampening = 0.3},
    {"sgd_nesterov", CD_OPTIMIZER_sgd, .lr = 0.1, .momentum = 0.9, .nesterov = true},
    {"sgd_decay", CD_OPTIMIZER_sgd, .lr = 0.1, .weight_decay = 0.05},
    {"sgd_everything", CD_OPTIMIZER_sgd, .lr = 0.1, .momentum = 0.7, .nesterov = true,
     .weight_decay = 0.05, .maximize = true},
    /* clang-format off */
    {"adam", CD_OPTIMIZER_adam, .lr = 0.01},
    {"adam_decay", CD_OPTIMIZER_adam, .lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1},
    {"adam_amsgrad", CD_OPTIMIZER_adam, .lr = 0.01, .amsgrad = true, .maximize = true},
    {"adamw", CD_OPTIMIZER_adamw, .lr = 0.01, .weight_decay = 0.01},
    {"adamw_decay", CD_OPTIMIZER_adamw, .lr = 0.01, .weight_decay = 0.3, .amsgrad = true},
    {"adagrad", CD_OPTIMIZER_adagrad, .lr = 0.1},
    {"adagrad_decay", CD_OPTIMIZER_adagrad, .lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1, .initial = 0.5},
    /* clang-format on */
};

static cd_optimizer_options options_of(const setting *s)
{
    cd_optimizer_options o = cd_optimizer_options_default(s->kind);
    o.lr = s->lr;
    o.momentum = s->momentum;
    o.dampening = s->dampening;
    o.weight_decay = s->weight_decay;
    o.nesterov = s->nesterov;
    o.maximize = s->maximize;
    o.amsgrad = s->amsgrad;
    o.lr_decay = s->lr_decay;
    o.initial_accumulator_value = s->initial;
    if (s->beta1 != 0) o.beta1 = s->beta1;
    if (s->beta2 != 0) o.beta2 = s->beta2;
    if (s->eps != 0) o.eps = s->eps;
    return o;
}

static void write_pattern(const cddp_tensor *t, int salt)
{
    cddp_error err = CDDP_ERROR_INIT;
    double wide[NUMEL_MAX];
    unsigned char bytes[NUMEL_MAX * 8];
    int64_t numel = cddp_tensor_numel(t);
    for (int64_t i = 0; i < numel; i++) wide[i] = pattern(i, salt);
    cd_convert(t->dtype, bytes, CDDP_F64, wide, (size_t)numel);
    assert_ok(t->device->write(t, bytes, (size_t)numel * cddp_dtype_bytes(t->dtype), &err), &err);
}

static void read_numbers(const cddp_tensor *t, double *numbers)
{
    cddp_error err = CDDP_ERROR_INIT;
    unsigned char bytes[NUMEL_MAX * 8];
    size_t numel = (size_t)cddp_tensor_numel(t);
    assert_ok(t->device->read(t, bytes, numel * cddp_dtype_bytes(t->dtype), &err), &err);
    cd_convert(CDDP_F64, numbers, t->dtype, bytes, numel);
}

static void assert_as_golden(const char *key, const cddp_tensor *t)
{
    double wanted[NUMEL_MAX], got[NUMEL_MAX];
    size_t numel = (size_t)cddp_tensor_numel(t);
    cd_test_row("%s", key);
    assert_int_equal(golden(key, wanted, NUMEL_MAX), numel);
    read_numbers(t, got);
    for (size_t i = 0; i < numel; i++) {
        /* Values reach 4 and cancel: an ulp of the largest operand is 2^-51. */
        bool fits =
            t->dtype == CDDP_F32 ? got[i] == wanted[i] : fabs(got[i] - wanted[i]) <= 8 * 0x1p-51;
        if (!fits) print_error("%s[%zu] = %a, PyTorch has %a\n", key, i, got[i], wanted[i]);
        assert_true(fits);
    }
}

/* Parameters with gradients, on the stack of one test. */
typedef struct bench {
    cd_optimizer_parameter parameters[PARAMETERS];
    cddp_grad grads[PARAMETERS];
    double storage[PARAMETERS][NUMEL_MAX];
} bench;

static void bench_init(bench *b, cddp_dtype dtype)
{
    static const char *const names[PARAMETERS] = {"weight", "bias"};
    memset(b, 0, sizeof *b);
    for (int i = 0; i < PARAMETERS; i++) {
        cddp_tensor t =
            cddp_tensor_of(cddp_device_cpu(), b->storage[i], 0, dtype, shapes[i], i == 0 ? 2 : 1);
        b->parameters[i] = (cd_optimizer_parameter){names[i], t, &b->grads[i]};
        write_pattern(&t, i);
    }
}

static void bench_fini(bench *b)
{
    for (int i = 0; i < PARAMETERS; i++) cddp_grad_fini(&b->grads[i]);
}

static void set_gradient(bench *b, int i, int salt, bool defined)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_grad_drop(&b->grads[i]);
    if (!defined) return;
    assert_ok(cddp_grad_define(&b->grads[i], &b->parameters[i].tensor, &err), &err);
    write_pattern(&b->grads[i].value, salt);
}

static void compare_with_golden(const bench *b, const cd_optimizer *optimizer, const char *name)
{
    char key[128];
    double none[1];
    for (int i = 0; i < PARAMETERS; i++) {
        const char *dtype = cddp_dtype_name(b->parameters[i].tensor.dtype);
        cd_optimizer_state now;
        snprintf(key, sizeof key, "value %s %s %d", name, dtype, i);
        assert_as_golden(key, &b->parameters[i].tensor);
        cd_optimizer_get_state(optimizer, (size_t)i, &now);
        for (uint32_t s = 0; s < CD_OPTIMIZER_SLOTS_MAX; s++) {
            if (now.slot_names[s] == NULL) continue;
            snprintf(key, sizeof key, "slot %s %s %d %s", name, dtype, i, now.slot_names[s]);
            if (now.slots[s].device != NULL)
                assert_as_golden(key, &now.slots[s]);
            else
                assert_int_equal(golden(key, none, 1), 0); /* absent there too */
        }
    }
}

static void run_setting(const setting *s, cddp_dtype dtype)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_optimizer_options options = options_of(s);
    cd_optimizer *optimizer;
    bench b;
    bench_init(&b, dtype);
    assert_ok(cd_optimizer_create(&options, b.parameters, PARAMETERS, NULL, &optimizer, &err),
              &err);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < PARAMETERS; i++)
            set_gradient(&b, i, 10 + step * 3 + i, has_gradient(i, step));
        assert_ok(cd_optimizer_step(optimizer, &err), &err);
    }
    compare_with_golden(&b, optimizer, s->name);
    cd_optimizer_destroy(optimizer);
    bench_fini(&b);
}

static const cddp_dtype dtypes[] = {CDDP_F32, CDDP_F64};

TEST(optimizers, every_update_rule_gives_pytorchs_numbers)
{
    for (size_t d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
            run_setting(&settings[i], dtypes[d]);
}

static void run_sparse(cd_optimizer_kind kind, cddp_dtype dtype)
{
    static const struct {
        int64_t rows[4], count;
    } steps[] = {{{0, 2, 7}, 3}, {{2, 3}, 2}, {{0, 1, 2, 7}, 4}};
    cddp_error err = CDDP_ERROR_INIT;
    double storage[24], value_storage[12];
    cddp_grad grad = {.kind = CDDP_GRAD_SPARSE};
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), storage, 0, dtype, (int64_t[]){8, 3}, 2);
    cd_optimizer_parameter parameter = {"embedding", t, &grad};
    cd_optimizer_options options = cd_optimizer_options_default(kind);
    cd_optimizer *optimizer;
    char key[64];
    options.lr = 0.1;
    options.lr_decay = kind == CD_OPTIMIZER_adagrad ? 0.1 : 0;
    write_pattern(&t, 1);
    assert_ok(cd_optimizer_create(&options, &parameter, 1, NULL, &optimizer, &err), &err);
    for (int step = 0; step < 3; step++) {
        int64_t rows[4], sizes[2] = {steps[step].count, 3};
        memcpy(rows, steps[step].rows, sizeof rows);
        grad.rows = (cddp_rows){cddp_device_cpu(), rows, 0, sizes[0]};
        grad.value = cddp_tensor_of(cddp_device_cpu(), value_storage, 0, dtype, sizes, 2);
        write_pattern(&grad.value, 20 + step);
        assert_ok(cd_optimizer_step(optimizer, &err), &err);
    }
    snprintf(key, sizeof key, "sparse %s %s", cd_optimizer_name(kind), cddp_dtype_name(dtype));
    assert_as_golden(key, &t);
    cd_optimizer_destroy(optimizer);
}

TEST(optimizers, sparse_gradients_update_their_rows_as_pytorch_does)
{
    for (size_t d = 0; d < 2; d++) {
        run_sparse(CD_OPTIMIZER_sgd, dtypes[d]);
        run_sparse(CD_OPTIMIZER_adagrad, dtypes[d]);
    }
}

/* PyTorch sums norms and computes the factor in the dtype, we in f64: half an ulp for each rounding
** of theirs. */
TEST(optimizers, clipping_gives_pytorchs_norm_and_gradients)
{
    static const struct {
        const char *text;
        double max_norm;
    } cases[] = {{"0x1.0000000000000p+0", 1},
                 {"0x1.9000000000000p+6", 100},
                 {"0x1.0000000000000p-2", 0.25}};
    for (size_t d = 0; d < 2; d++)
        for (size_t c = 0; c < 3; c++) {
            cddp_error err = CDDP_ERROR_INIT;
            const double ulp = dtypes[d] == CDDP_F32 ? 0x1p-23 : 0x1p-52;
            double wanted[NUMEL_MAX + 1], got[NUMEL_MAX], total;
            char key[96];
            bench b;
            bench_init(&b, dtypes[d]);
            for (int i = 0; i < PARAMETERS; i++) set_gradient(&b, i, 30 + i, true);
            assert_ok(cd_clip_grad_norm((cddp_grad *[]){&b.grads[0], &b.grads[1]}, 2,
                                        cases[c].max_norm, &total, &err),
                      &err);
            snprintf(key, sizeof key, "clip %s %s", cddp_dtype_name(dtypes[d]), cases[c].text);
            cd_test_row("%s", key);
            assert_int_equal(golden(key, wanted, NUMEL_MAX + 1), NUMEL_MAX + 1);
            assert_true(fabs(total - wanted[0]) <= 2 * ulp * wanted[0]);
            read_numbers(&b.grads[0].value, got);
            for (int i = 0; i < NUMEL_MAX; i++)
                assert_true(fabs(got[i] - wanted[i + 1]) <= 4 * ulp * fabs(wanted[i + 1]));
            bench_fini(&b);
        }
}

/* PyTorch chains its schedules step by step and so collects a rounding per step; ours are closed
** forms. */
TEST(optimizers, schedules_follow_pytorchs)
{
    static const cd_lr_schedule schedules[] = {
        {.kind = CD_LR_STEP, .base = 0.3, .period = 4, .gamma = 0.3},
        {.kind = CD_LR_COSINE, .base = 0.3, .period = 10, .floor = 0.01},
        {.kind = CD_LR_LINEAR, .base = 0.3, .period = 5, .start = 0.125},
    };
    for (size_t i = 0; i < 3; i++) {
        cddp_error err = CDDP_ERROR_INIT;
        double wanted[14];
        char key[32];
        snprintf(key, sizeof key, "rates %s", cd_lr_kind_name(schedules[i].kind));
        assert_int_equal(golden(key, wanted, 14), 14);
        assert_ok(cd_lr_schedule_check(&schedules[i], &err), &err);
        for (uint64_t t = 0; t < 14; t++) {
            cd_test_row("%s, step %d", key, (int)t);
            assert_true(fabs(cd_lr_at(&schedules[i], t) - wanted[t]) <= 14 * 0x1p-54);
        }
    }
}

/* ---- the loss scaler ---- */

enum { SCALER_STEPS = 14, SCALER_OPTIMIZERS = 2, SCALED_MAX = 2 };

static const struct {
    const char *name;
    cd_loss_scaler_options options;
} scalers[] = {{"powers", {65536, 2, 0.5, 3}},
               {"rounding", {1000, 1.7, 0.3, 2}},
               {"largest", {0x1p127, 2, 0.5, 1}},
               {"smallest", {1.5e-38, 2, 0.25, 4}}};
/* of the parameters of each optimizer */
static const int64_t scaled_sizes[SCALER_OPTIMIZERS][SCALED_MAX] = {{5, 0}, {4, 3}};

/* Every bit, the sign of zero too; of what is no number, that it is none. */
static void assert_same_floats(const char *key, const cddp_tensor *t)
{
    double wanted[NUMEL_MAX];
    const float *got = (const float *)t->storage + t->offset;
    const size_t numel = (size_t)cddp_tensor_numel(t);
    cd_test_row("%s", key);
    assert_int_equal(golden(key, wanted, NUMEL_MAX), numel);
    for (size_t i = 0; i < numel; i++) {
        const float w = (float)wanted[i];
        const bool fits = isnan(w) ? isnan(got[i]) : memcmp(&w, &got[i], sizeof w) == 0;
        if (!fits) print_error("%s[%zu] = %a, PyTorch has %a\n", key, i, (double)got[i], wanted[i]);
        assert_true(fits);
    }
}

typedef struct scaled {
    cd_optimizer *optimizer;
    cddp_tensor parameters[SCALED_MAX];
    cddp_grad grads[SCALED_MAX], *slots[SCALED_MAX];
    size_t count;
    float storage[SCALED_MAX][5];
} scaled;

static void scaled_init(scaled *s, int which)
{
    static const char *const names[SCALED_MAX] = {"first", "second"};
    cddp_error err = CDDP_ERROR_INIT;
    cd_optimizer_parameter parameters[SCALED_MAX];
    cd_optimizer_options sgd = cd_optimizer_options_default(CD_OPTIMIZER_sgd);
    sgd.lr = 0.1;
    memset(s, 0, sizeof *s);
    for (; s->count < SCALED_MAX && scaled_sizes[which][s->count] > 0; s->count++) {
        const size_t i = s->count;
        s->parameters[i] = cddp_tensor_of(cddp_device_cpu(), s->storage[i], 0, CDDP_F32,
                                          &scaled_sizes[which][i], 1);
        write_pattern(&s->parameters[i], 10 * which + (int)i);
        s->slots[i] = &s->grads[i];
        parameters[i] = (cd_optimizer_parameter){names[i], s->parameters[i], &s->grads[i]};
    }
    assert_ok(cd_optimizer_create(&sgd, parameters, s->count, NULL, &s->optimizer, &err), &err);
}

static void scaled_fini(scaled *s)
{
    cd_optimizer_destroy(s->optimizer);
    for (size_t i = 0; i < s->count; i++) cddp_grad_fini(&s->grads[i]);
}

/* The gradients of a step: a pattern times the scale, spoilt as in the script. */
static void scaled_backward(scaled *s, int which, int step, float scale)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (size_t i = 0; i < s->count; i++) {
        cddp_grad_drop(&s->grads[i]);
        if (i == 1 && step % 2 == 1) continue;
        assert_ok(cddp_grad_define(&s->grads[i], &s->parameters[i], &err), &err);
        write_pattern(&s->grads[i].value, 40 + 5 * step + 10 * which + (int)i);
        float *at = (float *)s->grads[i].value.storage + s->grads[i].value.offset;
        for (int64_t k = 0; k < cddp_tensor_numel(&s->grads[i].value); k++) at[k] *= scale;
        if (i == 0 && which == 0 && (step == 3 || step == 8)) at[1] = INFINITY;
        if (i == 0 && which == 1 && (step == 6 || step == 8)) at[2] = NAN;
    }
}

static void run_scaler(size_t k)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_loss_scaler scaler;
    scaled s[SCALER_OPTIMIZERS];
    cd_scaled_optimizer optimizers[SCALER_OPTIMIZERS] = {{.number = 0}};
    char key[64];
    assert_ok(cd_loss_scaler_init(&scaler, &scalers[k].options, &err), &err);
    for (int which = 0; which < SCALER_OPTIMIZERS; which++) scaled_init(&s[which], which);
    for (int step = 0; step < SCALER_STEPS; step++) {
        bool found[SCALER_OPTIMIZERS];
        double wanted[2 + SCALER_OPTIMIZERS];
        for (int which = 0; which < SCALER_OPTIMIZERS; which++) {
            scaled_backward(&s[which], which, step, (float)cd_loss_scaler_get_scale(&scaler));
            assert_ok(cd_loss_scaler_unscale(&scaler, &optimizers[which], s[which].slots,
                                             s[which].count, &found[which], &err),
                      &err);
            snprintf(key, sizeof key, "unscaled %s %d %d", scalers[k].name, step, which);
            assert_same_floats(key, &s[which].grads[0].value);
            if (!found[which]) assert_ok(cd_optimizer_step(s[which].optimizer, &err), &err);
        }
        assert_ok(cd_loss_scaler_update(&scaler, &err), &err);
        snprintf(key, sizeof key, "scaled %s %d", scalers[k].name, step);
        cd_test_row("%s", key);
        assert_int_equal(golden(key, wanted, 2 + SCALER_OPTIMIZERS), 2 + SCALER_OPTIMIZERS);
        assert_true(cd_loss_scaler_get_scale(&scaler) == wanted[0] &&
                    (double)scaler.growth_tracker == wanted[1]);
        for (int which = 0; which < SCALER_OPTIMIZERS; which++)
            assert_true(found[which] == (wanted[2 + which] != 0));
    }
    for (int which = 0; which < SCALER_OPTIMIZERS; which++) {
        for (size_t i = 0; i < s[which].count; i++) {
            snprintf(key, sizeof key, "stepped %s %d %zu", scalers[k].name, which, i);
            assert_same_floats(key, &s[which].parameters[i]);
        }
        scaled_fini(&s[which]);
    }
}

/* Growth, backing off and steps that are left out, bit for bit. */
TEST(loss_scaler, follows_pytorchs)
{
    for (size_t k = 0; k < sizeof scalers / sizeof scalers[0]; k++) run_scaler(k);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s optimizers.txt [--only PATTERN]\n", argv[0]);
        return 2;
    }
    path = argv[1];
    argv[1] = argv[0];
    return cd_test_main(argc - 1, argv + 1, __FILE__);
}
