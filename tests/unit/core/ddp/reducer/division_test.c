/* SPDX-License-Identifier: Apache-2.0 */
/* Where the division sits, in which form and in which dtype, for every path of GRD-17 that this
** build has: six ranks contribute one number, chosen so that multiplying by the rounded reciprocal,
** dividing before the sum and dividing after it all give other bits. Summation order does not
** matter, because all terms are equal.
*/
#include "cddp/averager.h"
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>

#define WORLD 6

typedef enum form { RECIPROCAL, BEFORE, AFTER, FORMS } form;

/* Every operation is rounded to the dtype: f32 by the processor, the half types from the f32
** result, which holds a sum or a quotient of two of them to more than twice their precision plus
** two, so that the second rounding does no harm. */
static float rounded(cddp_dtype dtype, float x)
{
    const cddp_device *cpu = cddp_device_cpu();
    double narrow = 0; /* room for any dtype */
    const int64_t one = 1;
    const cddp_tensor f32 = cddp_tensor_of(cpu, &x, 0, CDDP_F32, &one, 1),
                      low = cddp_tensor_of(cpu, &narrow, 0, dtype, &one, 1);
    if (cpu->copy(&low, &f32, NULL, NULL) != CDDP_OK ||
        cpu->copy(&f32, &low, NULL, NULL) != CDDP_OK)
        abort();
    return x;
}

static float sum_of(cddp_dtype dtype, float term, int terms)
{
    float sum = term;
    for (int i = 1; i < terms; i++) sum = rounded(dtype, sum + term);
    return sum;
}

static float average(form f, cddp_dtype dtype, float value, int terms)
{
    float x = rounded(dtype, value);
    if (f == RECIPROCAL) return sum_of(dtype, rounded(dtype, x * (float)(1.0 / terms)), terms);
    if (f == BEFORE) return sum_of(dtype, rounded(dtype, x / (float)terms), terms);
    return rounded(dtype, sum_of(dtype, x, terms) / (float)terms);
}

/* The first number from 0.75 on whose three averages differ, in steps of the dtype. The half types
** have no reciprocal path. */
static float reporting(cddp_dtype dtype)
{
    float step = dtype == CDDP_F32 ? 0x1p-24f : dtype == CDDP_F16 ? 0x1p-11f : 0x1p-8f;
    for (float v = 0.75f; v < 8; v += v < 1   ? step
                                      : v < 2 ? 2 * step
                                      : v < 4 ? 4 * step
                                              : 8 * step) {
        float before = average(BEFORE, dtype, v, WORLD), after = average(AFTER, dtype, v, WORLD);
        float reciprocal = average(RECIPROCAL, dtype, v, WORLD);
        if (before != after && (dtype != CDDP_F32 || (reciprocal != before && reciprocal != after)))
            return v;
    }
    fail_msg("no number tells the forms apart");
    return 0;
}

typedef struct path {
    const char *name, *hook, *inner, *options;
    form form;
    cddp_dtype dtype; /* in which it is divided */
    int terms;
    bool views, batched, delayed, in_backward;
    cddp_event_enum_path reported; /* where gradients were there before */
} path;

static cddp_status subtract(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    lane *l = context;
    return l->device->axpy(&l->parameters[variable].tensor, -1.0, &grad->value, NULL, err);
}

static void wrap(lane *l, const path *p)
{
    static const char *const delayed[1] = {"q"};
    l->options.gradient_as_bucket_view = p->views;
    l->options.batched_grad_copy = p->batched;
    l->options.delay_all_reduce_named_params = delayed;
    l->options.delay_all_reduce_count = p->delayed;
    l->options.param_to_hook_all_reduce = p->delayed ? "q" : NULL;
    lane_wrap(l);
    const cddp_hook *inner = p->inner != NULL ? cd_hook_find(p->inner) : NULL;
    if (p->hook != NULL)
        CHECK_OK(
            cddp_ddp_register_comm_hook(l->ddp, cd_hook_find(p->hook), inner, p->options, &l->err));
    const cddp_optimizer_in_backward optimizer = {.size = sizeof optimizer,
                                                  .step = subtract,
                                                  .context = l};
    if (p->in_backward) CHECK_OK(cddp_ddp_set_optimizer_in_backward(l->ddp, &optimizer, &l->err));
}

static void expect(lane *l, const path *p, float got, float value)
{
    const float wanted = average(p->form, p->dtype, value, p->terms);
    if (memcmp(&got, &wanted, sizeof got) == 0) return;
    fprintf(stderr, "%s, rank %u: %.9g, wanted %.9g (reciprocal %.9g, before %.9g, after %.9g)\n",
            p->name, l->r, (double)got, (double)wanted,
            (double)average(RECIPROCAL, p->dtype, value, p->terms),
            (double)average(BEFORE, p->dtype, value, p->terms),
            (double)average(AFTER, p->dtype, value, p->terms));
    abort();
}

/* Of the last contribution of the first parameter. */
static void expect_reported(const lane *l, const path *p)
{
    int64_t reported = -1;
    for (size_t i = 0; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        if (e->kind == CDDP_EV_mark_ready && e->as.mark_ready.param == 0)
            reported = e->as.mark_ready.path;
    }
    CHECK(reported == (int64_t)p->reported);
}

/* Twice; the second time gradients are zeros that were kept, which the paths with views divide in
** place (GRD-04). */
static void divide_body(lane *l)
{
    const path *p = l->lab->data;
    const float value = reporting(p->dtype);
    lane_add(l, "p", CDDP_F32, 3);
    lane_add(l, "q", CDDP_F32, 2);
    wrap(l, p);
    for (int step = 0; step < 2; step++) {
        lane_zero_grad(l, false);
        CHECK_OK(l->device->fill(&l->parameters[0].tensor, 0.0, NULL, &l->err));
        lane_iterate(l, (double)value);
        size_t i = p->delayed ? 1 : 0;
        if (p->in_backward)
            expect(l, p, -(float)lane_first(l, &l->parameters[0].tensor), value);
        else if (step == 1 || !p->views)
            expect(l, p, lane_f32(l, i), value);
    }
    expect_reported(l, p);
}

TEST(division, sits_where_and_is_done_how_the_table_says) /* GRD-17 */
{
    static const path paths[] = {
        /* clang-format off */
        {.name = "no hook, copied", .form = RECIPROCAL, .dtype = CDDP_F32, .terms = WORLD},
        {.name = "no hook, aliased", .form = BEFORE, .dtype = CDDP_F32, .terms = WORLD, .views = true, .reported = CDDP_PATH_DIVIDE},
        {.name = "no hook, batched copy", .form = BEFORE, .dtype = CDDP_F32, .terms = WORLD, .batched = true, .reported = CDDP_PATH_DEFERRED},
        {.name = "allreduce", .hook = "allreduce", .reported = CDDP_PATH_HOOK, .form = BEFORE, .dtype = CDDP_F32, .terms = WORLD},
        {.name = "allreduce on views", .hook = "allreduce", .reported = CDDP_PATH_HOOK, .form = BEFORE, .dtype = CDDP_F32, .terms = WORLD, .views = true},
        {.name = "fp16_compress", .hook = "fp16_compress", .reported = CDDP_PATH_HOOK, .form = BEFORE, .dtype = CDDP_F16, .terms = WORLD},
        {.name = "bf16_compress", .hook = "bf16_compress", .reported = CDDP_PATH_HOOK, .form = BEFORE, .dtype = CDDP_BF16, .terms = WORLD},
        /* clang-format on */
        {.name = "fp16 around allreduce",
         .hook = "fp16_compress_wrapper",
         .reported = CDDP_PATH_HOOK,
         .inner = "allreduce",
         .form = BEFORE,
         .dtype = CDDP_F16,
         .terms = WORLD},
        {.name = "bf16 around PowerSGD",
         .hook = "bf16_compress_wrapper",
         .reported = CDDP_PATH_HOOK,
         .inner = "powersgd",
         .form = AFTER,
         .dtype = CDDP_BF16,
         .options = "start_powerSGD_iter=0,warm_start=false,use_error_feedback=false",
         .terms = WORLD},
        {.name = "PowerSGD, vanilla",
         .hook = "powersgd",
         .reported = CDDP_PATH_HOOK,
         .form = BEFORE,
         .dtype = CDDP_F32,
         .terms = WORLD},
        {.name = "PowerSGD, uncompressed",
         .hook = "powersgd",
         .reported = CDDP_PATH_HOOK,
         .form = AFTER,
         .dtype = CDDP_F32,
         .terms = WORLD,
         .options = "start_powerSGD_iter=0,warm_start=false,use_error_feedback=false"},
        {.name = "post-local SGD, everybody",
         .hook = "post_local_sgd",
         .reported = CDDP_PATH_HOOK,
         .form = BEFORE,
         .dtype = CDDP_F32,
         .terms = WORLD,
         .options = "start_localSGD_iter=9,subgroup_size=3"},
        {.name = "post-local SGD, blocks",
         .hook = "post_local_sgd",
         .reported = CDDP_PATH_HOOK,
         .form = BEFORE,
         .dtype = CDDP_F32,
         .terms = 3,
         .options = "start_localSGD_iter=0,subgroup_size=3"},
        {.name = "optimizer in backward",
         .form = AFTER,
         .dtype = CDDP_F32,
         .terms = WORLD,
         .in_backward = true,
         .reported = CDDP_PATH_HOOK},
        {.name = "delayed", .form = BEFORE, .dtype = CDDP_F32, .terms = WORLD, .delayed = true},
    };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        cd_test_row("%s", paths[i].name);
        lab_of(WORLD, divide_body, (void *)(uintptr_t)&paths[i]);
    }
}

static void sparse_body(lane *l)
{
    static const path sparse = {.name = "sparse",
                                .form = BEFORE,
                                .dtype = CDDP_F32,
                                .terms = WORLD};
    float value = reporting(CDDP_F32), values[2] = {value, value};
    int64_t row = 4, count = 1;
    const int64_t sizes[2] = {1, 2}, whole[2] = {10, 2};
    cddp_parameter *p = lane_add(l, "emb.weight", CDDP_F32, 20);
    p->expect_sparse = true;
    p->tensor = cddp_tensor_of(l->device, p->tensor.storage, 0, CDDP_F32, whole, 2);
    lane_wrap(l);
    lane_forward(l);
    l->grads[0].kind = CDDP_GRAD_SPARSE;
    l->grads[0].value = cddp_tensor_of(l->device, values, 0, CDDP_F32, sizes, 2);
    l->grads[0].rows = (cddp_rows){l->device, &row, 0, count};
    lane_hook(l, 0);
    lane_end(l);
    CHECK(l->grads[0].kind == CDDP_GRAD_SPARSE && cddp_tensor_numel(&l->grads[0].value) == 2);
    expect(l, &sparse, *(const float *)l->grads[0].value.storage, value);
}
/* GRD-17 */
TEST(division, of_a_sparse_gradient_is_true_and_before_the_sum)
{
    lab_of(WORLD, sparse_body, NULL);
}

static void mixed_body(lane *l)
{
    static const path mixed = {.name = "mixed precision",
                               .form = AFTER,
                               .dtype = CDDP_BF16,
                               .terms = WORLD};
    const float value = reporting(CDDP_BF16);
    l->options.mixed_param_dtype = CDDP_F32;
    l->options.mixed_reduce_dtype = CDDP_BF16;
    lane_add(l, "p", CDDP_F32, 4);
    lane_wrap(l);
    lane_iterate(l, (double)value);
    expect(l, &mixed, lane_f32(l, 0), value);
}
/* GRD-17, MIX-04 */
TEST(division, of_mixed_precision_comes_after_the_sum_in_the_reduce_dtype)
{
    lab_of(WORLD, mixed_body, NULL);
}

/* Codes of one number are all 255, and stand for 255 · fl(v / 255). */
static void quantised_body(lane *l)
{
    static const path quantised = {.name = "quantised",
                                   .form = AFTER,
                                   .dtype = CDDP_F32,
                                   .terms = WORLD};
    float value = 0.75f, decoded = 0;
    for (bool reports = false; !reports;) {
        value = nextafterf(value, 8);
        decoded = 255 * (value / 255);
        reports =
            average(AFTER, CDDP_F32, decoded, WORLD) != average(BEFORE, CDDP_F32, decoded, WORLD);
    }
    lane_add(l, "p", CDDP_F32, 4);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("quantize_per_tensor"), NULL, NULL,
                                         &l->err));
    lane_iterate(l, (double)value);
    expect(l, &quantised, lane_f32(l, 0), decoded);
}
/* GRD-17 */
TEST(division, of_decoded_codes_comes_after_their_sum_in_f32)
{
    lab_of(WORLD, quantised_body, NULL);
}

/* Model averaging: ÷ the block, before, in the wider of the dtypes: an f16 parameter beside an f32
** one is divided in f32. */
static void averager_body(lane *l)
{
    static const path averaged = {.name = "averager",
                                  .form = BEFORE,
                                  .dtype = CDDP_F32,
                                  .terms = WORLD};
    const float value = reporting(CDDP_F32);
    const float half = rounded(CDDP_F16, reporting(CDDP_F16));
    cddp_grad *grads[2] = {&l->grads[0], &l->grads[1]};
    cddp_averager *averager = NULL;
    const cddp_averager_level level = {.period = 1, .group_size = WORLD};
    const cddp_averager_options options = {.size = sizeof options,
                                           .group = l->group,
                                           .levels = &level,
                                           .level_count = 1};
    lane_add(l, "p", CDDP_F32, 3);
    lane_add(l, "q", CDDP_F16, 2);
    cddp_tensor parameters[2] = {l->parameters[0].tensor, l->parameters[1].tensor};
    const double values[2] = {(double)value, (double)half};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(l->device->fill(&parameters[i], values[i], NULL, &l->err));
        CHECK_OK(cddp_grad_define(grads[i], &parameters[i], &l->err));
    }
    CHECK_OK(cddp_averager_create(&options, &averager, &l->err));
    CHECK_OK(cddp_averager_step(averager, parameters, grads, 2, &l->err));
    cddp_averager_destroy(averager);
    expect(l, &averaged, (float)lane_first(l, &parameters[0]), value);
    float wide = average(BEFORE, CDDP_F32, half, WORLD);
    CHECK((float)lane_first(l, &parameters[1]) == rounded(CDDP_F16, wide));
    CHECK(rounded(CDDP_F16, wide) != average(BEFORE, CDDP_F16, half, WORLD));
}
/* GRD-17, AVG-02 */
TEST(division, of_models_is_by_the_block_in_the_promoted_dtype)
{
    lab_of(WORLD, averager_body, NULL);
}

TEST_MAIN()
