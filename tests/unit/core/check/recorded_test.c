/* SPDX-License-Identifier: Apache-2.0 */
/* What only recorders of other programs show: continuations, gradients that the program rewrites, a
** backward in another context than its forward, buffers of an evaluation, gradients that pile up.
** Each story with its mistake, and without. */
#include "core/check/check.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/trace/setting.h"
#include "core/trace/tracer.h"
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

typedef struct reporter {
    const cddp_trace_sink *sink;
    uint64_t sequences[3];
    uint32_t rank, step;
} reporter;

static void report(reporter *t, const cddp_event *event)
{
    cddp_event e = *event;
    e.rank = t->rank;
    e.step = t->step;
    e.sequence = t->sequences[t->rank]++;
    t->sink->event(t->sink->self, &e);
}
#define SHOW(t, name, words, ...) \
    report((t), &(cddp_event){.kind = CDDP_EV_##name, .text = (words), .as.name = {__VA_ARGS__}})

static void post(reporter *t, int64_t sequence, int64_t numel)
{
    SHOW(t, collective_post, NULL, .sequence = sequence, .root = -1, .dtype = CDDP_F32,
         .numel = numel, .bucket = -1);
}

/* Rank 1 posts an operation in a continuation; where it is wrong, before the one that rank 0 posts
** first. */
static void cross(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++) {
        SHOW(t, group, "world", .members = 2, .group_rank = t->rank);
        post(t, 0, 8);
        if (t->rank == 1) SHOW(t, cause, NULL, .thread = 1, .group = 0, .sequence = 0);
        post(t, 1, t->rank == 1 && is_wrong ? 3 : 5);
        SHOW(t, collective_wait, NULL, .sequence = 1);
    }
}

/* Both ranks wait in a continuation; where it is right, the operation ends. */
static void block(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++) {
        SHOW(t, group, "world", .members = 2, .group_rank = t->rank);
        post(t, 0, 8);
        SHOW(t, collective_done, NULL, .sequence = 0);
        SHOW(t, cause, NULL, .thread = 1, .group = 0, .sequence = 0);
        post(t, 1, 5);
        SHOW(t, collective_wait, NULL, .sequence = 1);
        if (!is_wrong) SHOW(t, collective_done, NULL, .sequence = 1);
        SHOW(t, rank_end, NULL, .status = is_wrong ? CDDP_E_TIMEOUT : CDDP_OK,
             .end = is_wrong ? CDDP_RANK_HUNG : CDDP_RANK_RETURNED);
    }
}

static void clip(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++) {
        SHOW(t, group, "world", .members = 2, .group_rank = t->rank, .order = CDDP_ORDER_SAME);
        SHOW(t, rewrite, "clip_grad_norm_", .optimizer = -1, .params = 4,
             .unreduced = is_wrong ? 4 : 0);
        SHOW(t, optimizer_step, "sgd", .lr = cd_f64_bits(0.1), .loss_scale = cd_f64_bits(1),
             .clip = cd_f64_bits(0.5), .norm = cd_f64_bits(2), .unscaled_before_clip = 1);
    }
}

/* Rank 1 keeps its gradients in a step; where it is right, both drop them, and rank 0 more often
** than there is anything to drop. */
static void drop(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++)
        for (t->step = 0; t->step < 2; t->step++) {
            if (t->rank == 0 || !is_wrong || t->step == 0)
                SHOW(t, zero_grad, NULL, .optimizer = -1, .to_none = 1);
            if (t->rank == 0) SHOW(t, zero_grad, NULL, .optimizer = -1, .to_none = 1);
            SHOW(t, forward_begin, NULL, .sync = 1, .grad_mode = 1);
            SHOW(t, backward_end, NULL, .finalized = 1);
            SHOW(t, optimizer_step, "sgd", .lr = cd_f64_bits(0.1), .loss_scale = cd_f64_bits(1),
                 .clip = cd_f64_bits(1), .norm = cd_f64_bits(2));
        }
}

/* Every step is taken twice; where it is wrong, one of rank 1 alone is. */
static void step_twice(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++)
        for (t->step = 0; t->step < 3; t->step++) {
            const int times = !is_wrong || (t->rank == 1 && t->step == 1) ? 2 : 1;
            SHOW(t, zero_grad, NULL, .optimizer = -1, .to_none = 1);
            SHOW(t, forward_begin, NULL, .sync = 1, .grad_mode = 1);
            for (int k = 0; k < times; k++)
                SHOW(t, optimizer_step, "sgd", .lr = cd_f64_bits(0.1), .loss_scale = cd_f64_bits(1),
                     .clip = cd_f64_bits(1), .norm = cd_f64_bits(2));
        }
}

/* A step has two rates, one for each time; where it is wrong, the second of rank 1 is another. */
static void step_by_two_rates(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++)
        for (int k = 0; k < 2; k++) {
            const double rate = k == 0 ? 0.1 : is_wrong && t->rank == 1 ? 0.3 : 0.2;
            SHOW(t, forward_begin, NULL, .sync = 1, .grad_mode = 1);
            SHOW(t, optimizer_step, "sgd", .lr = cd_f64_bits(rate), .loss_scale = cd_f64_bits(1),
                 .clip = cd_f64_bits(1), .norm = cd_f64_bits(2));
        }
}

static void show_parameter(reporter *t, int64_t digest)
{
    SHOW(t, value, NULL, .what = CDDP_WHAT_PARAMETER, .moment = CDDP_MOMENT_AFTER_STEP,
         .presence = CDDP_PRESENCE_VALUE, .digest = digest, .nonfinite = -1);
}

/* Ranks show a parameter twice in a step, and have the same one at last; or rank 2 has not. */
static void show_twice(reporter *t, bool is_wrong)
{
    static const int64_t first[] = {5, 6, 5};
    for (t->rank = 0; t->rank < 3; t->rank++) {
        SHOW(t, group, "world", .members = 3, .group_rank = t->rank, .order = CDDP_ORDER_SAME);
        SHOW(t, wrap, NULL, .params = 1);
        show_parameter(t, first[t->rank]);
    }
    for (t->rank = 0; t->rank < 3; t->rank++) show_parameter(t, is_wrong && t->rank == 2 ? 9 : 7);
}

/* A second optimizer steps the parameter as well; where it is wrong, nobody does. */
static void step_by_two(reporter *t, bool is_wrong)
{
    SHOW(t, param, "weight", .numel = 4, .dtype = CDDP_F32, .requires_grad = 1);
    SHOW(t, backward_begin, NULL, .sync = 1);
    SHOW(t, grad_final, NULL, .presence = CDDP_PRESENCE_VALUE, .digest = 11, .dtype = CDDP_F32);
    SHOW(t, optimizer_touch, NULL, .touched = 1, .gradient = 11);
    show_parameter(t, 5);
    if (!is_wrong) SHOW(t, optimizer_touch, NULL, .optimizer = 1, .touched = 1, .gradient = 11);
    show_parameter(t, 6);
}

/* A gradient is another one when the optimizer takes it; the program says so, or does not. */
static void rewrite(reporter *t, bool is_wrong)
{
    SHOW(t, param, "weight", .numel = 4, .dtype = CDDP_F32, .requires_grad = 1);
    SHOW(t, backward_begin, NULL, .sync = 1);
    SHOW(t, grad_final, NULL, .presence = CDDP_PRESENCE_VALUE, .digest = 11, .dtype = CDDP_F32);
    if (!is_wrong) SHOW(t, rewrite, "the program itself", .optimizer = 0, .params = 1);
    SHOW(t, value, NULL, .what = CDDP_WHAT_GRADIENT, .moment = CDDP_MOMENT_BEFORE_STEP,
         .presence = CDDP_PRESENCE_VALUE, .digest = 12, .nonfinite = -1);
    SHOW(t, optimizer_touch, NULL, .touched = 1, .gradient = 12);
}

static void split_inside(reporter *t, bool is_wrong)
{
    if (!is_wrong) SHOW(t, no_sync, NULL, .entered = 1, .depth = 1);
    SHOW(t, forward_begin, NULL, .sync = is_wrong, .grad_mode = 1);
    if (is_wrong) SHOW(t, no_sync, NULL, .entered = 1, .depth = 1);
    SHOW(t, backward_begin, NULL, .sync = is_wrong);
    SHOW(t, backward_end, NULL, .finalized = is_wrong);
    SHOW(t, no_sync, NULL, .entered = 0);
}

/* The right one has a forward that synchronises in front of the one inside no_sync, and one
** backward for both. */
static void split_outside(reporter *t, bool is_wrong)
{
    if (!is_wrong) SHOW(t, forward_begin, NULL, .sync = 1, .grad_mode = 1);
    SHOW(t, no_sync, NULL, .entered = 1, .depth = 1);
    SHOW(t, forward_begin, NULL, .sync = 0, .grad_mode = 1);
    SHOW(t, no_sync, NULL, .entered = 0);
    SHOW(t, backward_begin, NULL, .sync = !is_wrong);
}

/* Where it is wrong the second buffer differs. */
static void evaluate(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++) {
        SHOW(t, buffer, "running_mean", .numel = 4, .dtype = CDDP_F32);
        SHOW(t, buffer, "running_var", .buffer = 1, .numel = 4, .dtype = CDDP_F32);
        SHOW(t, wrap, NULL, .params = 1, .buffers = 2);
        SHOW(t, forward_begin, NULL, .grad_mode = 0);
        for (int64_t id = 0; id < 2; id++)
            SHOW(t, value, NULL, .what = CDDP_WHAT_BUFFER, .moment = CDDP_MOMENT_FORWARD, .id = id,
                 .presence = CDDP_PRESENCE_VALUE, .digest = is_wrong && id == 1 ? 5 + t->rank : 5,
                 .param = -1, .nonfinite = -1);
        SHOW(t, forward_end, NULL, .unused = -1);
    }
}

/* Both ranks make two groups; where it is wrong, in another order. */
static void make_groups(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++)
        for (int64_t k = 0; k < 2; k++) {
            const bool is_first = (k == 0) != (is_wrong && t->rank == 1);
            SHOW(t, mark, CD_TRACER_NEW_GROUP, .value = is_first ? 7 << 16 | 2 : 9 << 16 | 1);
        }
}

/* Rank 0 alone makes a group; where it is right, it comes back. */
static void make_group_alone(reporter *t, bool is_wrong)
{
    for (t->rank = 0; t->rank < 2; t->rank++) {
        if (t->rank == 0) SHOW(t, mark, CD_TRACER_NEW_GROUP, .value = 7 << 16 | 1);
        if (t->rank == 1 || !is_wrong) post(t, 0, 8);
        SHOW(t, rank_end, NULL, .status = CDDP_E_TIMEOUT, .end = CDDP_RANK_HUNG);
    }
}

static const struct {
    const char *name, *check, *words;
    void (*tell)(reporter *t, bool is_wrong);
    const char *advice; /* "": any */
} stories[] = {
    {"a continuation crosses", "I-ORDER", "disagree on collective #1", cross,
     "rank 1 posts #1 in a continuation of #0 and waits for it there"},
    {"continuations block", "I-LIVE", "waits in a continuation of #0 for #1", block, "a wait in"},
    {"a clip before the reduction", "I-STEP", "changes gradients that are not reduced", clip, ""},
    {"a gradient is rewritten", "I-CHAIN", "gradient of weight changed", rewrite, ""},
    {"only the backward in no_sync", "I-META", "a backward runs inside no_sync", split_inside, ""},
    {"only the forward in no_sync", "I-META", "a backward runs outside no_sync", split_outside, ""},
    {"gradients that pile up", "I-STEP", "disagree on whether gradients are dropped", drop,
     "call zero_grad"},
    {"a step that is taken twice", "I-STEP",
     "rank 1: an optimizer steps twice in one step, on the same gradients", step_twice, ""},
    {"two rates in one step", "I-STEP", "rank 0 and rank 1, no majority, disagree on the learning",
     step_by_two_rates, ""},
    {"a value that is shown twice", "I-PARAMEQ",
     "rank 2 against ranks 0 and 1 (no reference; majority) hold different values", show_twice, ""},
    {"two optimizers of one parameter", "I-CHAIN",
     "parameter weight changed between after step of step 0 and after step", step_by_two, ""},
    {"groups in another order", "I-GROUP", "make different groups in call 1 of new_group",
     make_groups, "in the same order"},
    {"a group of rank 0 alone", "I-GROUP",
     "rank 0 makes a group in call 1 of new_group, which rank 1 does not make", make_group_alone,
     "in the same order"},
    {"an evaluation", "I-BUFEQ", "enter an evaluation with different values of buffer running_var",
     evaluate, ""},
};

TEST(recorded, each_mistake_is_found_and_its_right_twin_is_not_accused)
{
    (void)state;
    for (size_t i = 0; i < 2 * sizeof stories / sizeof stories[0]; i++) {
        const bool is_wrong = i % 2 == 0;
        const cddp_check *check = cd_check_find(stories[i / 2].check);
        cddp_error err = CDDP_ERROR_INIT;
        cd_judge *judge = NULL;
        cd_test_row("%s%s", stories[i / 2].name, is_wrong ? "" : ", done right");
        assert_ok(cd_judge_create(&(cd_judge_options){.checks = &check, .check_count = 1}, &judge,
                                  &err),
                  &err);
        reporter t = {.sink = cd_judge_get_sink(judge)};
        stories[i / 2].tell(&t, is_wrong);
        assert_ok(cd_judge_end(judge, &err), &err);
        assert_int_equal(cd_judge_finding_count(judge), is_wrong ? 1 : 0);
        if (is_wrong) {
            const cddp_finding *f = cd_judge_get_finding(judge, 0);
            assert_non_null(strstr(f->title, stories[i / 2].words));
            assert_non_null(strstr(f->advice, stories[i / 2].advice));
        }
        cd_judge_destroy(judge);
    }
}

TEST_MAIN()
