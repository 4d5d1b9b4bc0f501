/* SPDX-License-Identifier: Apache-2.0 */
/* The second mathematics against a third: central differences of the same loss, formulas by hand,
** and planted ratios. */
#include "core/base/alloc.h"
#include "core/base/prng.h"
#include "core/oracle/numbers.h"
#include "core/oracle/ratio.h"
#include "core/oracle/second/formula.h"
#include "core/oracle/second/repeat.h"
#include "core/oracle/second/program.h"
#include "core/tensor/dtype.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

/* ---- derivatives ---- */

#define PARAMETERS_MAX 24
#define NUMEL_MAX 1024
#define SAMPLES 3

typedef struct shape {
    const char *name;
    size_t numel;
} shape;

/* A model with the sizes of its parameters, inputs and targets. */
typedef struct model_case {
    const char *model, *options;
    shape parameters[PARAMETERS_MAX];
    size_t inputs[2];       /* width; classes below `classes` where that is not 0 */
    size_t target, classes; /* width of the target; classes of inputs and targets */
    bool has_class_inputs, has_class_targets;
    uint32_t branch;
} model_case;

static const model_case cases[] = {
    {.model = "mlp",
     .options = "widths=3:4:2,activation=tanh,norm=layer,dropout=0.25",
     .parameters = {{"layers.0.weight", 12},
                    {"layers.0.bias", 4},
                    {"norms.0.weight", 4},
                    {"norms.0.bias", 4},
                    {"out.weight", 8},
                    {"out.bias", 2}},
     .inputs = {3},
     .target = 2},
    {.model = "mlp",
     .options = "widths=3:4:2,activation=gelu,norm=batch,loss=bce",
     .parameters = {{"layers.0.weight", 12},
                    {"layers.0.bias", 4},
                    {"norms.0.weight", 4},
                    {"norms.0.bias", 4},
                    {"out.weight", 8},
                    {"out.bias", 2}},
     .inputs = {3},
     .target = 2},
    {.model = "chain",
     .options = "depth=2,width=3,tied=1",
     .parameters = {{"layers.0.weight", 9}, {"layers.0.bias", 3}, {"layers.1.bias", 3}},
     .inputs = {3},
     .target = 3},
    {.model = "branchy",
     .options = "in=2,width=3",
     .parameters = {{"trunk.weight", 6},
                    {"trunk.bias", 3},
                    {"branches.1.weight", 9},
                    {"branches.1.bias", 3},
                    {"head.weight", 6},
                    {"head.bias", 2}},
     .inputs = {2},
     .target = 2,
     .branch = 1},
    {.model = "cnn",
     .options = "channels=1:2,size=4,classes=3,norm=batch",
     .parameters = {{"conv1.weight", 18},
                    {"conv1.bias", 2},
                    {"bn1.weight", 2},
                    {"bn1.bias", 2},
                    {"fc.weight", 24},
                    {"fc.bias", 3}},
     .inputs = {16},
     .target = 1,
     .classes = 3,
     .has_class_targets = true},
    {.model = "gan",
     .options = "noise=2,channels=2,size=4,norm=batch",
     .parameters = {{"generator.project.weight", 16},
                    {"generator.project.bias", 8},
                    {"generator.norm.weight", 2},
                    {"generator.norm.bias", 2},
                    {"generator.paint.weight", 18},
                    {"generator.paint.bias", 1},
                    {"discriminator.look1.weight", 32},
                    {"discriminator.look1.bias", 2},
                    {"discriminator.look2.weight", 128},
                    {"discriminator.look2.bias", 4},
                    {"discriminator.judge.weight", 4},
                    {"discriminator.judge.bias", 1}},
     .inputs = {16, 2},
     .branch = 1},
    {.model = "embedding_bag",
     .options = "rows=5,width=2,bag=3",
     .parameters = {{"table.weight", 10}, {"head.weight", 4}, {"head.bias", 2}},
     .inputs = {3},
     .target = 2,
     .classes = 5,
     .has_class_inputs = true},
    {.model = "tied_lm",
     .options = "vocabulary=5,positions=3,width=2",
     .parameters = {{"tokens.weight", 10}, {"hidden.weight", 4}, {"hidden.bias", 2}},
     .inputs = {3},
     .target = 3,
     .classes = 5,
     .has_class_inputs = true,
     .has_class_targets = true},
    {.model = "moe",
     .options = "in=2,width=3,hidden=2,experts=2,out=2",
     .parameters = {{"entry.weight", 6},
                    {"entry.bias", 3},
                    {"gate.weight", 6},
                    {"experts.0.up.weight", 6},
                    {"experts.0.up.bias", 2},
                    {"experts.0.down.weight", 6},
                    {"experts.0.down.bias", 3},
                    {"experts.1.up.weight", 6},
                    {"experts.1.up.bias", 2},
                    {"experts.1.down.weight", 6},
                    {"experts.1.down.bias", 3},
                    {"exit.weight", 6},
                    {"exit.bias", 2}},
     .inputs = {2},
     .target = 2},
    {.model = "transformer",
     .options = "vocabulary=4,positions=2,width=4,heads=2,layers=1,dropout=0.25",
     .parameters = {{"tokens.weight", 16},
                    {"places.weight", 8},
                    {"blocks.0.norm1.weight", 4},
                    {"blocks.0.norm1.bias", 4},
                    {"blocks.0.qkv.weight", 48},
                    {"blocks.0.qkv.bias", 12},
                    {"blocks.0.projection.weight", 16},
                    {"blocks.0.projection.bias", 4},
                    {"blocks.0.norm2.weight", 4},
                    {"blocks.0.norm2.bias", 4},
                    {"blocks.0.up.weight", 64},
                    {"blocks.0.up.bias", 16},
                    {"blocks.0.down.weight", 64},
                    {"blocks.0.down.bias", 4},
                    {"norm.weight", 4},
                    {"norm.bias", 4},
                    {"head.weight", 16}},
     .inputs = {2},
     .target = 2,
     .classes = 4,
     .has_class_inputs = true,
     .has_class_targets = true},
    {.model = "params",
     .options = "list=a:3;b:2:output1;c:100",
     .parameters = {{"a", 3}, {"b", 2}, {"c", 100}},
     .inputs = {1}}};

typedef struct drawn_model {
    cd_second_program program;
    cd_second_forward forward;
    cd_second_parameter parameters[PARAMETERS_MAX];
    double values[PARAMETERS_MAX][NUMEL_MAX], inputs[2][SAMPLES * 64], targets[SAMPLES * 64];
    double weights[SAMPLES], divisors[SAMPLES];
    int64_t ids[SAMPLES];
    bool are_own[SAMPLES];
} drawn_model;

static double draw(cd_prng *prng) { return (double)cd_prng_between(prng, -1000, 1000) / 777; }

static void draw_field(cd_prng *prng, double *values, size_t count, size_t classes)
{
    for (size_t i = 0; i < count; i++)
        values[i] = classes > 0 ? (double)cd_prng_below(prng, classes) : draw(prng);
}

static void draw_model(const model_case *c, cd_prng *prng, drawn_model *m)
{
    size_t count = 0;
    memset(m, 0, sizeof *m);
    for (; count < PARAMETERS_MAX && c->parameters[count].name != NULL; count++) {
        draw_field(prng, m->values[count], c->parameters[count].numel, 0);
        m->parameters[count] = (cd_second_parameter){.name = c->parameters[count].name,
                                                     .values = m->values[count],
                                                     .numel = c->parameters[count].numel,
                                                     .wants_gradient = true};
    }
    for (size_t i = 0; i < SAMPLES; i++) {
        m->ids[i] = (int64_t)i * 3 + 1;
        m->weights[i] = 1 + (double)i / 2;
        m->divisors[i] = i == 0 ? 0 : 2;
        m->are_own[i] = true;
    }
    m->forward = (cd_second_forward){.samples = SAMPLES,
                                     .ids = m->ids,
                                     .weights = m->weights,
                                     .divisors = m->divisors,
                                     .are_own = m->are_own,
                                     .branch = c->branch,
                                     .outputs = UINT32_MAX};
    for (size_t k = 0; k < 2 && c->inputs[k] > 0; k++) {
        draw_field(prng, m->inputs[k], SAMPLES * c->inputs[k],
                   c->has_class_inputs ? c->classes : 0);
        m->forward.inputs[k] = (cd_second_field){m->inputs[k], c->inputs[k]};
    }
    draw_field(prng, m->targets, SAMPLES * c->target, c->has_class_targets ? c->classes : 0);
    m->forward.targets[0] = (cd_second_field){m->targets, c->target};
    m->program = (cd_second_program){.model = c->model,
                                     .options = c->options,
                                     .parameters = m->parameters,
                                     .parameter_count = count,
                                     .forwards = &m->forward,
                                     .forward_count = 1,
                                     .scale = 3,
                                     .dropout_seed = 5,
                                     .roundoff = 0x1p-24};
}

/* Richardson: (4·D(h/2) − D(h)) / 3 is off by O(h⁴), and what rounding leaves is about 2^-53·L/h.
** */
static double central(cd_scalars *s, cd_scalar loss, const cd_scalar_direction *d, double h)
{
    const double coarse =
        (cd_scalars_evaluate(s, loss, d, h) - cd_scalars_evaluate(s, loss, d, -h)) / (2 * h);
    const double fine =
        (cd_scalars_evaluate(s, loss, d, h / 2) - cd_scalars_evaluate(s, loss, d, -h / 2)) / h;
    return (4 * fine - coarse) / 3;
}

TEST(second, the_derivative_of_every_model_is_its_central_difference)
{
    cddp_error err = CDDP_ERROR_INIT;
    static drawn_model m;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cd_prng prng = cd_prng_seed(40 + i);
        cd_scalars s;
        cd_arena arena;
        cd_second_result result;
        draw_model(&cases[i], &prng, &m);
        cd_scalars_init(&s, NULL);
        cd_arena_init(&arena, NULL, 1 << 16);
        assert_ok(cd_second_write(&m.program, &s, &arena, &result, &err), &err);
        assert_null(result.refusal);
        cd_scalars_find_adjoints(&s, result.loss);
        size_t used = 0;
        for (size_t p = 0; p < m.program.parameter_count; p++) {
            const cd_second_leaves *own = &result.parameters[p];
            double steps[NUMEL_MAX], by_adjoints = 0;
            used += own->is_used;
            for (size_t k = 0; k < own->count; k++) {
                steps[k] = draw(&prng);
                by_adjoints += steps[k] * s.nodes[own->leaves[k]].adjoint;
            }
            const cd_scalar_direction d = {own->leaves, steps, own->count, 0x1p-24};
            const cd_scalar_slope slope = cd_scalars_differentiate(&s, result.loss, &d);
            const double bound = cd_scalars_bound_slope(&s, result.loss, &d);
            const double wanted = central(&s, result.loss, &d, 0x1p-12);
            const double size = 1 + fabs(cd_scalars_get(&s, result.loss));
            if (fabs(slope.value - wanted) > 1e-8 * size + 1e-7 * fabs(wanted))
                fail_msg("%s %s: %.15g, not %.15g", cases[i].model, m.parameters[p].name,
                         slope.value, wanted);
            /* the two orders of the same derivative differ by roundings of f64 */
            assert_true(fabs(slope.value - by_adjoints) <= bound + 1e-9 * size);
        }
        assert_true(used >= 3);
        cd_arena_fini(&arena);
        cd_scalars_fini(&s);
    }
}

/* A bound on an element takes every rounding at its worst, a direction through that element alone
** lets some of them cancel. So the first may not be the smaller one. In f64 it is 2^-29 of that. */
TEST(second, an_element_has_no_smaller_bound_than_the_direction_through_it)
{
    cddp_error err = CDDP_ERROR_INIT;
    static drawn_model m;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cd_prng prng = cd_prng_seed(90 + i);
        cd_scalars s;
        cd_arena arena;
        cd_second_result result;
        draw_model(&cases[i], &prng, &m);
        cd_scalars_init(&s, NULL);
        cd_arena_init(&arena, NULL, 1 << 16);
        assert_ok(cd_second_write(&m.program, &s, &arena, &result, &err), &err);
        cd_scalars_find_adjoints(&s, result.loss);
        cd_scalars_find_adjoint_errors(&s, result.loss);
        for (size_t p = 0; p < m.program.parameter_count; p++) {
            const cd_second_leaves *own = &result.parameters[p];
            for (size_t k = 0; k < own->count && k < 5; k++) {
                const cd_scalar leaf = own->leaves[k];
                const cd_scalar_direction d = {&leaf, &(double){1}, 1, 0x1p-24};
                (void)cd_scalars_differentiate(&s, result.loss, &d);
                const double along = cd_scalars_bound_slope(&s, result.loss, &d);
                const double bound = cd_scalars_get_adjoint_error(&s, leaf);
                const double wanted = s.nodes[leaf].adjoint;
                if (along > bound * (1 + 0x1p-20) || bound * 0x1p-29 > 1e-5 * (1 + fabs(wanted)))
                    fail_msg("%s %s[%zu]: %g, and along a direction %g", cases[i].model,
                             m.parameters[p].name, k, bound, along);
            }
        }
        cd_arena_fini(&arena);
        cd_scalars_fini(&s);
    }
}

TEST(second, memory_that_runs_out_is_an_error)
{
    static drawn_model m;
    cd_prng prng = cd_prng_seed(1);
    draw_model(&cases[0], &prng, &m);
    for (uint64_t fail_at = 1; fail_at < 1000; fail_at++) {
        cddp_error err = CDDP_ERROR_INIT;
        cd_watch_allocator watch;
        cd_scalars s;
        cd_arena arena;
        cd_second_result result;
        cd_watch_allocator_init(&watch, NULL);
        watch.fail_at = fail_at;
        cd_scalars_init(&s, &watch.table);
        cd_arena_init(&arena, &watch.table, 256);
        const cddp_status status = cd_second_write(&m.program, &s, &arena, &result, &err);
        cd_arena_fini(&arena);
        cd_scalars_fini(&s);
        assert_int_equal(watch.live_count, 0);
        if (status == CDDP_OK) return;
        assert_int_equal(status, CDDP_E_NOMEM);
    }
    fail_msg("it never succeeds");
}

/* ---- formulas ---- */

static cd_formula_result apply(cd_formula f, cd_formula_element before)
{
    before.dtype = CDDP_F64;
    return cd_formula_apply(&f, &before);
}

static void assert_near(cd_ball ball, double wanted)
{
    assert_true(ball.radius < 1e-13 * (1 + fabs(wanted)));
    if (!cd_ball_has(&ball, wanted)) fail_msg("%.17g, not %.17g", ball.value, wanted);
}

TEST(second, sgd_is_damped_from_its_second_step_on)
{
    const cd_formula f = {.kind = CD_FORMULA_SGD,
                          .rate = {0.5, 0},
                          .momentum = 0.5,
                          .dampening = 0.25,
                          .weight_decay = 0.125};
    cd_formula_result r = apply(f, (cd_formula_element){.parameter = 2, .gradient = 1});
    assert_near(r.slots[0], 1.25); /* g + λp, whole */
    assert_near(r.parameter, 1.375);
    r = apply(f,
              (cd_formula_element){.parameter = 2, .gradient = 1, .slots = {4}, .has_slots = true});
    assert_near(r.slots[0], 0.5 * 4 + 0.75 * 1.25);
    assert_near(r.parameter, 2 - 0.5 * 2.9375);
}

TEST(second, nesterov_looks_ahead)
{
    const cd_formula f = {.kind = CD_FORMULA_SGD,
                          .rate = {1, 0},
                          .momentum = 0.5,
                          .nesterov = true};
    const cd_formula_result r =
        apply(f,
              (cd_formula_element){.parameter = 0, .gradient = 1, .slots = {2}, .has_slots = true});
    assert_near(r.slots[0], 2);
    assert_near(r.parameter, -(1 + 0.5 * 2));
}

TEST(second, adam_corrects_its_bias_and_adds_eps_outside_the_root)
{
    const cd_formula f = {
        .kind = CD_FORMULA_ADAM, .rate = {0.5, 0}, .beta1 = 0.5, .beta2 = 0.75, .eps = 1};
    /* first step: m̂ = g, v̂ = g² */
    const cd_formula_result r = apply(f, (cd_formula_element){.parameter = 1, .gradient = 3});
    assert_near(r.slots[0], 1.5);
    assert_near(r.slots[1], 2.25);
    assert_near(r.parameter, 1 - 0.5 * 3 / (3 + 1));
    /* third step: corrections 1 − 1/8 and 1 − 27/64 */
    const cd_formula_result third = apply(f, (cd_formula_element){.parameter = 1,
                                                                  .gradient = 2,
                                                                  .slots = {1, 4},
                                                                  .has_slots = true,
                                                                  .steps = 2});
    assert_near(third.parameter,
                1 - 0.5 * (1.5 / 0.875) / (sqrt((0.75 * 4 + 0.25 * 4) / (1 - 27.0 / 64)) + 1));
}

TEST(second, adamw_decays_the_parameter_and_adagrad_adds_squares)
{
    cd_formula f = {.kind = CD_FORMULA_ADAMW,
                    .rate = {0.5, 0},
                    .beta1 = 0.5,
                    .beta2 = 0.75,
                    .weight_decay = 0.25};
    assert_near(apply(f, (cd_formula_element){.parameter = 8, .gradient = 1}).parameter,
                8 * (1 - 0.125) - 0.5);
    f = (cd_formula){.kind = CD_FORMULA_ADAGRAD, .rate = {0.5, 0}, .eps = 1};
    const cd_formula_result r = apply(
        f, (cd_formula_element){.parameter = 1, .gradient = 3, .slots = {16}, .has_slots = true});
    assert_near(r.slots[0], 25);
    assert_near(r.parameter, 1 - 0.5 * 3 / 6);
}

TEST(second, a_divisor_that_may_be_zero_claims_nothing)
{
    const cd_formula f = {.kind = CD_FORMULA_ADAM, .rate = {0.5, 0}, .beta1 = 0.5, .beta2 = 0.5};
    const cd_formula_result r = apply(f, (cd_formula_element){.parameter = 1});
    assert_true(cd_ball_has(&r.parameter, 12345));
}

/* ---- ratios ---- */

#define ELEMENTS 128

static float to_bf16(double x)
{
    unsigned char bytes[sizeof(double)];
    cd_element_set(CDDP_BF16, bytes, x);
    return (float)cd_element_get(CDDP_BF16, bytes);
}

/* Sums of three bfloat16 numbers, rounded after each addition, then scaled in f32. */
static bool finds_ratio(double scale, bool is_constant, double *ratio)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_prng prng = cd_prng_seed(77);
    cd_wide_sum sum;
    cd_ratio_evidence evidence = {.distinct = 0};
    double actual[ELEMENTS] = {0}, addends[ELEMENTS];
    assert_ok(cd_wide_sum_init(&sum, NULL, CDDP_BF16, ELEMENTS, &err), &err);
    cd_wide_sum_clear(&sum);
    for (int rank = 0; rank < 3; rank++) {
        for (size_t i = 0; i < ELEMENTS; i++) {
            addends[i] = to_bf16(draw(&prng));
            if (is_constant) addends[i] = rank == 0 ? 1 : 0.00390625;
            actual[i] = to_bf16(actual[i] + addends[i]);
        }
        cd_wide_sum_push(&sum, addends);
    }
    for (size_t i = 0; i < ELEMENTS; i++) actual[i] = to_bf16(actual[i] * scale);
    const cd_sum_rule rule = {.dtype = CDDP_BF16,
                              .divisor = 1,
                              .roundings = 3,
                              .division_is_exact = true};
    assert_ok(cd_common_ratio_add(&evidence, &sum, actual, &rule, NULL, &err), &err);
    cd_wide_sum_fini(&sum);
    return cd_common_ratio_is_significant(&evidence, ratio);
}

TEST(second, a_ratio_inside_the_bounds_is_found)
{
    double ratio = 0;
    assert_false(finds_ratio(1, false, &ratio));
    assert_true(finds_ratio(0.99, false, &ratio));
    assert_true(fabs(ratio - 0.99) < 0.003);
    assert_true(finds_ratio(1.01, false, &ratio));
    assert_true(fabs(ratio - 1.01) < 0.003);
}

TEST(second, elements_that_round_alike_are_no_ratio)
{
    double ratio = 0; /* each of them loses its two small addends: 1, not 1.0078 */
    assert_false(finds_ratio(1, true, &ratio));
}

/* ---- formulas, bit by bit ---- */

static cd_formula draw_formula(cd_prng *prng)
{
    static const cd_formula_kind kinds[] = {CD_FORMULA_SGD, CD_FORMULA_ADAM, CD_FORMULA_ADAMW,
                                            CD_FORMULA_ADAGRAD};
    cd_formula f = {.kind = kinds[cd_prng_below(prng, 4)],
                    .rate = {0.001 * (double)cd_prng_between(prng, 1, 500), 0},
                    .weight_decay = cd_prng_chance(prng, 1, 2) ? 0.01 : 0,
                    .momentum = cd_prng_chance(prng, 1, 2) ? 0.9 : 0,
                    .dampening = 0.1,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = ldexp(1, (int)cd_prng_between(prng, -30, -3))};
    f.nesterov = f.momentum != 0 && cd_prng_chance(prng, 1, 2);
    if (f.nesterov) f.dampening = 0;
    return f;
}

static double draw_f32(cd_prng *prng)
{
    return (double)(float)ldexp((double)cd_prng_between(prng, -(1 << 26), 1 << 26),
                                (int)cd_prng_between(prng, -36, -24));
}

/* Two writings of one formula: the bits lie in the ball around the real numbers. */
TEST(second, predicted_bits_lie_within_the_formula)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (int round = 0; round < 20000; round++) {
        const cd_formula f = draw_formula(&prng);
        const cd_formula_element e = {.dtype = CDDP_F32,
                                      .parameter = draw_f32(&prng),
                                      .gradient = draw_f32(&prng),
                                      .slots = {draw_f32(&prng), fabs(draw_f32(&prng))},
                                      .has_slots = true,
                                      .steps = cd_prng_below(&prng, 40)};
        cd_formula_element before = e;
        if (f.kind == CD_FORMULA_ADAGRAD) before.slots[0] = fabs(e.slots[0]);
        const cd_formula_result ball = cd_formula_apply(&f, &before);
        const cd_repeat repeat = cd_formula_repeat(&f, &before);
        assert_in_range(repeat.count, 1, 4);
        for (uint32_t i = 0; i < repeat.count; i++) {
            assert_int_equal(repeat.ways[i].slot_count, ball.slot_count);
            assert_true(cd_ball_has(&ball.parameter, repeat.ways[i].parameter.value));
            for (uint32_t s = 0; s < ball.slot_count; s++)
                assert_true(cd_ball_has(&ball.slots[s], repeat.ways[i].slots[s].value));
        }
    }
}

/* Adam by hand, in float. */
TEST(second, predicted_bits_of_adam_are_those_of_float)
{
    (void)state;
    const cd_formula f = {
        .kind = CD_FORMULA_ADAM, .rate = {0.01, 0}, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const float p = 0.3f, g = 0.07f, m0 = 0.011f, v0 = 0.0003f;
    const cd_formula_element e = {.dtype = CDDP_F32,
                                  .parameter = (double)p,
                                  .gradient = (double)g,
                                  .slots = {(double)m0, (double)v0},
                                  .has_slots = true,
                                  .steps = 1};
    const cd_repeat repeat = cd_formula_repeat(&f, &e);
    const float m = m0 * 0.9f + (float)(1 - 0.9) * g;
    const float v = v0 * 0.999f + (float)(1 - 0.999) * g * g;
    const float below = sqrtf(v) / (float)sqrt(1 - 0.999 * 0.999) + 1e-8f;
    const float after = p + (float)-(0.01 / (1 - 0.9 * 0.9)) * m / below;
    assert_int_equal(repeat.count, 1);
    assert_true(repeat.ways[0].slots[0].value == (double)m);
    assert_true(repeat.ways[0].slots[1].value == (double)v);
    assert_true(repeat.ways[0].parameter.value == (double)after);
}

TEST(second, no_bits_are_predicted_of_f64_and_sparse_gradients)
{
    (void)state;
    const cd_formula f = {.kind = CD_FORMULA_SGD, .rate = {0.5, 0}};
    assert_int_equal(
        cd_formula_repeat(&f, &(cd_formula_element){.dtype = CDDP_F64, .gradient = 1}).count, 0);
    assert_int_equal(
        cd_formula_repeat(&f, &(cd_formula_element){.dtype = CDDP_F32, .gradient = 1, .addends = 2})
            .count,
        0);
}

TEST_MAIN()
