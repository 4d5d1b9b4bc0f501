/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/consumed.h"

#include "cddp/backend.h"
#include "core/tensor/dtype.h"
#include "record/projection.h"
#include "tests/support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VARIABLES = 3, ELEMENTS = 3000 };

static double round_to(int32_t dtype, double x)
{
    if (dtype == CDDP_F64) return x;
    if (dtype == CDDP_F16) return (double)cd_f16_to_f32(cd_f32_to_f16((float)x));
    if (dtype == CDDP_BF16) return (double)cd_bf16_to_f32(cd_f32_to_bf16((float)x));
    return (double)(float)x;
}

static void store(int32_t dtype, char *bytes, int64_t i, double x)
{
    const float single = (float)x;
    const uint16_t half = dtype == CDDP_F16 ? cd_f32_to_f16(single) : cd_f32_to_bf16(single);
    if (dtype == CDDP_F64)
        memcpy(bytes + 8 * i, &x, 8);
    else if (dtype == CDDP_F32)
        memcpy(bytes + 4 * i, &single, 4);
    else
        memcpy(bytes + 2 * i, &half, 2);
}

/* Of either sign and of many sizes; the same for the same seed. */
static double element(uint32_t seed, int64_t i)
{
    const uint32_t bits = (uint32_t)(i * 2654435769 + seed * 40503U) * UINT32_C(2246822519);
    const double size = 0x1p-6 + (double)(bits >> 12) * 0x1p-20;
    return (bits & 1) != 0 ? -size : size;
}

typedef double (*change_fn)(int32_t dtype, double g, int variable, int64_t i);

static void push_projection(cd_consumed *c, int32_t dtype, int variable, uint32_t step,
                            change_fn change)
{
    char *bytes = malloc(8 * ELEMENTS);
    cd_projection p;
    for (int64_t i = 0; i < ELEMENTS; i++) {
        const double g = round_to(dtype, element((uint32_t)variable + 7 * step, i));
        store(dtype, bytes, i, change != NULL ? change(dtype, g, variable, i) : g);
    }
    assert_true(cd_projection_of(bytes, ELEMENTS, dtype, &p));
    free(bytes);
    cddp_event e = {.kind = CDDP_EV_projection, .step = step};
    e.as.projection = (cddp_event_projection){.param = variable,
                                              .reduced = true,
                                              .sum = (int64_t)cd_f64_bits(p.sum),
                                              .magnitude = (int64_t)cd_f64_bits(p.magnitude),
                                              .numel = ELEMENTS,
                                              .dtype = dtype};
    cd_consumed_push(c, &e);
}

static void push_rewrite(cd_consumed *c, uint32_t step, const char *by, double factor,
                         int64_t params)
{
    cddp_event e = {.kind = CDDP_EV_rewrite, .step = step, .text = by};
    e.as.rewrite.factor = (int64_t)cd_f64_bits(factor);
    e.as.rewrite.params = params;
    cd_consumed_push(c, &e);
}

static void push_reduced(cd_consumed *c, int32_t dtype, uint32_t step)
{
    for (int v = 0; v < VARIABLES; v++) {
        cddp_event e = {.kind = CDDP_EV_grad_final, .step = step};
        e.as.grad_final.param = v;
        e.as.grad_final.digest = 1;
        cd_consumed_push(c, &e);
        push_projection(c, dtype, v, step, NULL);
    }
}

static void push_step(cd_consumed *c, int32_t dtype, uint32_t step, double clip, double loss_scale,
                      change_fn change)
{
    cddp_event e = {.kind = CDDP_EV_optimizer_step, .step = step};
    e.as.optimizer_step.clip = (int64_t)cd_f64_bits(clip);
    e.as.optimizer_step.loss_scale = (int64_t)cd_f64_bits(loss_scale);
    cd_consumed_push(c, &e);
    for (int v = 0; v < VARIABLES; v++) {
        e = (cddp_event){.kind = CDDP_EV_optimizer_touch, .step = step};
        e.as.optimizer_touch.param = v;
        e.as.optimizer_touch.touched = true;
        e.as.optimizer_touch.gradient = change != NULL ? 2 : 1;
        cd_consumed_push(c, &e);
        if (change != NULL) push_projection(c, dtype, v, step, change);
    }
}

static void begin(cd_consumed *c, bool is_of_torch)
{
    assert_int_equal(cd_consumed_init(c, 1, NULL, NULL), CDDP_OK);
    if (is_of_torch) cd_consumed_push(c, &(cddp_event){.kind = CDDP_EV_mark, .text = "torch 2.0"});
    for (int v = 0; v < VARIABLES; v++) {
        cddp_event e = {.kind = CDDP_EV_param};
        e.as.param.param = v;
        e.as.param.requires_grad = true;
        cd_consumed_push(c, &e);
    }
}

/* ---- what a program may do with a clip of 0.3 and a loss scale of 7 ---- */

static double at_once(int32_t dtype, double g, int variable, int64_t i)
{
    (void)variable;
    (void)i;
    return round_to(dtype, g * round_to(dtype, 0.3 / 7));
}

static double one_by_one(int32_t dtype, double g, int variable, int64_t i)
{
    (void)variable;
    (void)i;
    const double unscaled = round_to(dtype, g * round_to(dtype, 1.0 / 7));
    return round_to(dtype, unscaled * round_to(dtype, 0.3));
}

static double by_division(int32_t dtype, double g, int variable, int64_t i)
{
    (void)variable;
    (void)i;
    return round_to(dtype, round_to(dtype, g * round_to(dtype, 0.3)) / 7);
}

/* The parts of `at_once` that are wrong. */
static double a_tenth_more(int32_t dtype, double g, int variable, int64_t i)
{
    return round_to(dtype, 1.1 * at_once(dtype, g, variable, i));
}

static double of_the_last_more(int32_t dtype, double g, int variable, int64_t i)
{
    return (variable == 2 ? 1.1 : 1) * at_once(dtype, g, variable, i);
}

static double negated(int32_t dtype, double g, int variable, int64_t i)
{
    return -at_once(dtype, g, variable, i);
}

static double constant(int32_t dtype, double g, int variable, int64_t i)
{
    (void)dtype;
    (void)g;
    (void)variable;
    (void)i;
    return 7;
}

static const int32_t dtypes[] = {CDDP_F64, CDDP_F32, CDDP_F16, CDDP_BF16};

TEST(consumed, any_way_to_apply_a_factor_is_within_the_bound_and_another_factor_is_not)
{
    static const struct {
        const char *name;
        change_fn change;
        uint64_t wrong;
    } rows[] = {{"at once", at_once, 0},           {"one by one", one_by_one, 0},
                {"by division", by_division, 0},   {"more", a_tenth_more, 3},
                {"one more", of_the_last_more, 1}, {"negated", negated, 3},
                {"replaced", constant, 3},         {"not at all", NULL, 3}};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            cd_consumed c;
            /* rounding hides a sign where the sum nearly cancels */
            const bool is_coarse = dtypes[d] == CDDP_F16 || dtypes[d] == CDDP_BF16;
            if (is_coarse && rows[i].change == negated) continue;
            cd_test_row("%s, dtype %d", rows[i].name, dtypes[d]);
            begin(&c, false);
            push_reduced(&c, dtypes[d], 4);
            push_step(&c, dtypes[d], 4, 0.3, 7, rows[i].change);
            cd_consumed_end(&c);
            assert_int_equal(c.wrong.count, rows[i].wrong);
            assert_int_equal(c.held, 3 - rows[i].wrong);
            assert_int_equal(c.unjudged, 0);
            if (rows[i].wrong > 0) assert_int_equal(c.wrong.step, 4);
            cd_consumed_fini(&c);
        }
}

static double decayed(int32_t dtype, double g, int variable, int64_t i)
{
    return round_to(dtype, g + 0.01 * element(99 + (uint32_t)variable, i));
}

static double decayed_a_little(int32_t dtype, double g, int variable, int64_t i)
{
    return round_to(dtype, g + 1e-4 * element(99 + (uint32_t)variable, i));
}

static double halved(int32_t dtype, double g, int variable, int64_t i)
{
    (void)variable;
    (void)i;
    return round_to(dtype, g / 2);
}

static double last_turned(int32_t dtype, double g, int variable, int64_t i)
{
    (void)dtype;
    (void)i;
    return variable == 2 ? -g : g;
}

static double last_dropped(int32_t dtype, double g, int variable, int64_t i)
{
    (void)dtype;
    (void)i;
    return variable == 2 ? 0 : g;
}

/* The digests of all differ. What a program adds without a word may be its optimizer's, a plain
** mistake may not. */
TEST(consumed, what_a_program_changes_without_a_word_is_a_mistake_or_unexplained)
{
    static const struct {
        const char *name;
        change_fn change;
        uint64_t wrong, unexplained;
        bool hides; /* 16 bits hide that it is a factor, or a sign */
    } rows[] = {{"weight decay", decayed, 0, 3, false},
                {"little of it", decayed_a_little, 0, 3, false},
                {"half of all", halved, 3, 0, true},
                {"one turned round", last_turned, 1, 2, true},
                {"one dropped", last_dropped, 1, 2, false},
                {"nothing", NULL, 0, 0, false}};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            cd_consumed c;
            if (rows[i].hides && (dtypes[d] == CDDP_F16 || dtypes[d] == CDDP_BF16)) continue;
            cd_test_row("%s, dtype %d", rows[i].name, dtypes[d]);
            begin(&c, false);
            push_reduced(&c, dtypes[d], 4);
            push_step(&c, dtypes[d], 4, 1, 1, rows[i].change);
            cd_consumed_end(&c);
            assert_int_equal(c.wrong.count, rows[i].wrong);
            assert_int_equal(c.unexplained.count, rows[i].unexplained);
            cd_consumed_fini(&c);
        }
}

/* A recorder that sees rewrites: by a factor, by one that is not known, and by the program. */
TEST(consumed, what_nobody_explains_is_one_factor_or_nothing)
{
    static const struct {
        const char *name, *by;
        double factor;
        int64_t params;
        change_fn change;
        uint64_t held, unjudged, unexplained, scalings;
    } rows[] = {{"the factor", "clip_grad_norm_", 0.3 / 7, 3, at_once, 3, 0, 0, 0},
                {"a part", "clip_grad_norm_", 0.3 / 7, 2, at_once, 3, 0, 0, 0},
                {"another one", "clip_grad_norm_", 0.3, 3, at_once, 0, 0, 0, 1},
                {"none", "clip_grad_norm_", 0.3, 3, constant, 0, 0, 3, 0},
                {"not known", "unscale", (double)NAN, 3, constant, 0, 3, 0, 0},
                {"itself", "the program itself", (double)NAN, 1, at_once, 0, 0, 0, 1},
                {"itself, negated", "the program itself", (double)NAN, 1, negated, 0, 0, 3, 0},
                {"two factors", "the program itself", (double)NAN, 1, of_the_last_more, 0, 0, 3, 0},
                {"replaced", "the program itself", (double)NAN, 1, constant, 0, 0, 3, 0},
                {"nothing", "clip_grad_norm_", 1, 3, NULL, 3, 0, 0, 0}};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            cd_consumed c;
            cd_test_row("%s, dtype %d", rows[i].name, dtypes[d]);
            begin(&c, true);
            push_reduced(&c, dtypes[d], 0);
            push_rewrite(&c, 0, rows[i].by, rows[i].factor, rows[i].params);
            push_step(&c, dtypes[d], 0, 1, 1, rows[i].change);
            cd_consumed_end(&c);
            assert_int_equal(c.held, rows[i].held);
            assert_int_equal(c.unjudged, rows[i].unjudged);
            assert_int_equal(c.unexplained.count, rows[i].unexplained);
            assert_int_equal(c.scalings, rows[i].scalings);
            assert_int_equal(c.wrong.count, 0);
            cd_consumed_fini(&c);
        }
}

/* A clip in front of a reduction is in what that reduces. */
TEST(consumed, a_reduction_forgets_what_was_done_before_it)
{
    cd_consumed c;
    begin(&c, true);
    push_rewrite(&c, 0, "clip_grad_norm_", 0.3 / 7, 3);
    push_reduced(&c, CDDP_F32, 0);
    push_step(&c, CDDP_F32, 0, 0.3 / 7, 1, NULL);
    push_reduced(&c, CDDP_F32, 1);
    push_rewrite(&c, 1, "clip_grad_norm_", 0.3 / 7, 3);
    push_step(&c, CDDP_F32, 1, 0.3 / 7, 1, at_once);
    cd_consumed_end(&c);
    assert_int_equal(c.held, 3);
    assert_int_equal(c.unexplained.count, 0);
    assert_int_equal(c.scalings, 0);
    cd_consumed_fini(&c);
}

/* ---- reduced twice ---- */

static double doubled(int32_t dtype, double g, int variable, int64_t i)
{
    (void)variable;
    (void)i;
    return round_to(dtype, 2 * g);
}

/* A loss scale that somebody forgot in one step; a program that doubles in each one means it. */
TEST(consumed, what_some_steps_alone_enlarge_nobody_explains)
{
    for (int steps = 1; steps < 3; steps++) {
        cd_consumed c;
        cd_test_row("doubled in %d of 2 steps", steps);
        begin(&c, true);
        for (uint32_t step = 0; step < 2; step++) {
            const bool is_doubled = (int)step < steps;
            push_reduced(&c, CDDP_F32, step);
            if (is_doubled) push_rewrite(&c, step, "the program itself", (double)NAN, 1);
            push_step(&c, CDDP_F32, step, 1, 1, is_doubled ? doubled : NULL);
        }
        cd_consumed_end(&c);
        assert_int_equal(c.scalings, steps);
        assert_int_equal(c.unexplained.count, steps == 1);
        cd_consumed_fini(&c);
    }
}

static double clipped_and_doubled(int32_t dtype, double g, int variable, int64_t i)
{
    return doubled(dtype, round_to(dtype, 0.25 * g), variable, i);
}

/* The program itself posts an all-reduce of `digest`, once for each gradient or once in all. */
static void push_own(cd_consumed *c, int64_t reduce_op, int64_t digest, int64_t numel, int times)
{
    for (int k = 0; k < times; k++) {
        cddp_event e = {.kind = CDDP_EV_collective_post};
        e.as.collective_post.op = CDDP_OP_ALLREDUCE;
        e.as.collective_post.reduce_op = reduce_op;
        e.as.collective_post.numel = numel;
        e.as.collective_post.digest = digest;
        cd_consumed_push(c, &(cddp_event){.kind = CDDP_EV_mark, .text = "own reduction"});
        cd_consumed_push(c, &e);
    }
}

/* What DDP has averaged is summed once more. Neither a factor of two alone nor an all-reduce of
** something else is that. */
TEST(consumed, a_gradient_that_is_reduced_twice_is_known_by_its_size_and_by_the_second_reduction)
{
    const int64_t all = (int64_t)VARIABLES * ELEMENTS;
    const struct {
        const char *name;
        change_fn change;
        double clip;
        int64_t reduce_op, digest, numel;
        int times;
        uint64_t twice, scalings;
    } rows[] = {
        {"each gradient", doubled, 1, CDDP_RED_SUM, 1, ELEMENTS, 3, 3, 0},
        {"all as one", doubled, 1, CDDP_RED_SUM, 99, all, 1, 3, 0},
        {"and clipped", clipped_and_doubled, 0.25, CDDP_RED_SUM, 99, all, 1, 3, 0},
        {"a mean becomes a sum", doubled, 1, CDDP_RED_SUM, 99, 6, 1, 0, 1},
        {"no reduction", doubled, 1, CDDP_RED_SUM, 0, 0, 0, 0, 1},
        {"the largest ones", doubled, 1, CDDP_RED_MAX, 1, ELEMENTS, 3, 0, 1},
        {"of copies", NULL, 1, CDDP_RED_SUM, 1, ELEMENTS, 3, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cd_consumed c;
        cddp_event group = {.kind = CDDP_EV_group};
        group.as.group.members = 2;
        cd_test_row("%s", rows[i].name);
        begin(&c, true);
        cd_consumed_push(&c, &group);
        push_reduced(&c, CDDP_F32, 2);
        push_own(&c, rows[i].reduce_op, rows[i].digest, rows[i].numel, rows[i].times);
        if (rows[i].clip != 1) push_rewrite(&c, 2, "clip_grad_norm_", rows[i].clip, VARIABLES);
        if (rows[i].change != NULL) push_rewrite(&c, 2, "the program itself", (double)NAN, 1);
        push_step(&c, CDDP_F32, 2, 1, 1, rows[i].change);
        cd_consumed_end(&c);
        assert_int_equal(c.twice.count, rows[i].twice);
        assert_int_equal(c.scalings, rows[i].scalings);
        assert_int_equal(c.unexplained.count, 0);
        if (rows[i].twice > 0) assert_int_equal(c.twice.step, 2);
        cd_consumed_fini(&c);
    }
}

/* A second reduction counts for one step. */
TEST(consumed, a_reduction_of_an_earlier_step_explains_nothing)
{
    cd_consumed c;
    cddp_event group = {.kind = CDDP_EV_group};
    group.as.group.members = 2;
    begin(&c, true);
    cd_consumed_push(&c, &group);
    push_reduced(&c, CDDP_F32, 0);
    push_own(&c, CDDP_RED_SUM, 1, ELEMENTS, 3);
    push_step(&c, CDDP_F32, 0, 1, 1, NULL);
    push_reduced(&c, CDDP_F32, 1);
    push_rewrite(&c, 1, "the program itself", (double)NAN, 1);
    push_step(&c, CDDP_F32, 1, 1, 1, doubled);
    cd_consumed_end(&c);
    assert_int_equal(c.twice.count, 0);
    assert_int_equal(c.scalings, 1);
    cd_consumed_fini(&c);
}

TEST_MAIN()
