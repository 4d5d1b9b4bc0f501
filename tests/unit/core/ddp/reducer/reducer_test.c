/* SPDX-License-Identifier: Apache-2.0 */
/* What the reducer leaves in gradients, bit for bit, and in which order it talks (RED, GRD, FIN,
** UNU, NSY, FWD). */
#include "core/ddp/wrap/state_key.h"
#include "tests/unit/core/ddp/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* ---- division ---- */

typedef struct division {
    double k;
    bool all_ranks, alias;
    uint32_t wanted;
} division;

/* Gradients of one rank, or of all; W=3. alias: the gradient stays in its slice between iterations
** (path B). */
static void divide_body(lane *l)
{
    const division *d = l->lab->data;
    l->options.gradient_as_bucket_view = d->alias;
    lane_add(l, "p", CDDP_F32, 5);
    lane_wrap(l);
    double mine = d->all_ranks || l->r == 0 ? d->k : 0.0;
    lane_iterate(l, mine);
    if (d->alias) {
        lane_zero_grad(l, false);
        lane_iterate(l, mine);
    }
    CHECK(bits_of(lane_f32(l, 0)) == d->wanted);
}

TEST(reducer, copying_multiplies_by_the_rounded_reciprocal_and_aliasing_divides)
{
    static const division rows[] = {/* GRD-05, VER-02, TI-M-02 */
                                    {5.0, false, false, 0x3fd55556},
                                    {5.0, false, true, 0x3fd55555},
                                    {7.0, false, false, 0x40155556},
                                    {7.0, false, true, 0x40155555},
                                    {7.0, true, false, 0x40e00001}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("%g, alias %d, all %d", rows[i].k, rows[i].alias, rows[i].all_ranks);
        division d = rows[i];
        lab_of(3, divide_body, &d);
    }
}

static void reciprocal_body(lane *l)
{
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    lane_iterate(l, l->r == 0 ? 1.0 : 0.0);
    CHECK(bits_of(lane_f32(l, 0)) == *(uint32_t *)l->lab->data);
}

TEST(reducer, reciprocals_are_those_of_pytorch)
{
    static const struct {
        uint32_t w, bits;
    } rows[] = {{3, 0x3eaaaaab}, {5, 0x3e4ccccd}, {6, 0x3e2aaaab}, {7, 0x3e124925}};
    for (size_t i = 0; i < 4; i++) {
        uint32_t wanted = rows[i].bits;
        cd_test_row("W=%u", rows[i].w);
        lab_of(rows[i].w, reciprocal_body, &wanted);
    }
}

LAB(reducer, sevens_average_to_more_or_less_than_seven, 3)
{
    lane_add(l, "d", CDDP_F64, 1);
    lane_add(l, "h", CDDP_F16, 1);
    lane_wrap(l);
    lane_iterate(l, 7.0);
    CHECK(lane_value(l, 0) == 6.999999999999999);
    CHECK(lane_value(l, 1) == 6.99609375);
}

/* GRD-06: set_to_none keeps path A, in place; zero-fill changes to B in the second iteration. */
LAB(reducer, views_use_the_reciprocal_while_gradients_are_dropped_and_division_while_they_are_kept,
    3)
{
    l->options.gradient_as_bucket_view = true;
    lane_add(l, "p", CDDP_F32, 3);
    lane_wrap(l);
    for (int i = 0; i < 3; i++) {
        lane_zero_grad(l, true);
        lane_iterate(l, l->r == 0 ? 5.0 : 0.0);
        CHECK(bits_of(lane_f32(l, 0)) == 0x3fd55556);
    }
    lane_zero_grad(l, false);
    lane_iterate(l, l->r == 0 ? 5.0 : 0.0);
    CHECK(bits_of(lane_f32(l, 0)) == 0x3fd55555);
}

/* GRD-08: batched copies divide the whole bucket, so all of it has the bits of a true division. */
static void batched_body(lane *l)
{
    l->options.batched_grad_copy = true;
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    lane_add(l, "p", CDDP_F32, 3);
    lane_add(l, "q", CDDP_F32, 2);
    lane_wrap(l);
    lane_iterate(l, l->r == 0 ? 5.0 : 0.0);
    CHECK(bits_of(lane_f32(l, 0)) == 0x3fd55555 && bits_of(lane_f32(l, 1)) == 0x3fd55555);
}
TEST(reducer, batched_copies_divide_the_whole_bucket) { lab_of(3, batched_body, NULL); }
TEST(reducer, batched_views_divide_the_whole_bucket) { lab_of(3, batched_body, batched_body); }

LAB(reducer, predivision_keeps_equal_halves_finite_but_not_always, 2)
{
    lane_add(l, "h", CDDP_F16, 1);
    lane_wrap(l);
    lane_iterate(l, 32768.0); /* GRD-11, TI-H-11 */
    CHECK(lane_value(l, 0) == 32768.0);
}
/* the dividing path; the reciprocal is rounded to f16 */
LAB(reducer, predivision_may_still_overflow_by_rounding_up, 3)
{
    l->options.batched_grad_copy = true;
    lane_add(l, "h", CDDP_F16, 1);
    lane_wrap(l);
    lane_iterate(l, 65504.0);
    CHECK(isinf(lane_value(l, 0)));
}

/* GRD-13, VER-15: with Gloo's ring the place in the bucket decides the order of summation. The four
** values are such that every order of the four ranks gives its own result. */
LAB(reducer, summation_order_is_the_backends_chunk_order, 4)
{
    static const float contributions[4] = {1.0f, 1e8f, -1e8f, 3.0f};
    lane_add(l, "p", CDDP_F32, 400);
    lane_wrap(l);
    lane_iterate(l, 4.0 * (double)contributions[l->r]); /* ÷ 4 is exact */
    for (int64_t i = 0; i < 400; i += 100) {
        float sum = 0.0f; /* chunk c starts at rank c-1 and goes down, ending with rank c */
        uint32_t c = (uint32_t)(i / 100);
        for (uint32_t k = 1; k <= 4; k++) {
            float x = contributions[(c + 4 - k) % 4];
            sum = k == 1 ? x : sum + x;
        }
        cddp_tensor at = l->grads[0].value;
        at.offset += i;
        CHECK((float)lane_first(l, &at) == sum);
    }
}

/* ---- order ---- */

LAB(reducer, buckets_are_sent_in_index_order_whatever_becomes_ready_first, 3)
{
    static const int orders[3][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}};
    l->options.bucket_cap_mb = 0.00001; /* 10 bytes: one parameter per bucket */
    l->options.find_unused_parameters = true;
    for (int i = 0; i < 4; i++)
        lane_add(l, i == 0 ? "a" : i == 1 ? "b" : i == 2 ? "c" : "d", CDDP_F32, 3 + i);
    lane_wrap(l);
    CHECK_LAYOUT("3, 2, 1, 0");
    for (int step = 0; step < 3; step++) {
        lane_mark(l);
        lane_forward(l);
        for (int i = 0; i < 4; i++)
            lane_grad(l, (size_t)orders[(l->r + (uint32_t)step) % 3][i], 1.0 + l->r);
        lane_end(l);
        int64_t next = 0;
        for (size_t e = l->since; e < l->sink.count; e++)
            if (l->sink.events[e].kind == CDDP_EV_bucket_launch)
                CHECK(l->sink.events[e].as.bucket_launch.bucket == next++);
        CHECK(next == 4);
        lane_zero_grad(l, true);
    }
}

/* RED-09: until the whole backward is over, gradients are local. */
LAB(reducer, gradients_stay_local_until_the_backward_ends, 2)
{
    lane_add(l, "p", CDDP_F32, 4);
    lane_wrap(l);
    lane_forward(l);
    lane_grad(l, 0, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.5);
}

/* ---- several forwards, several backwards ---- */

LAB(reducer, one_backward_over_two_forwards_reduces_once, 2) /* FWD-08, VER-11 */
{
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    lane_forward(l);
    lane_forward(l);
    lane_mark(l);
    lane_grad(l, 0, 11.0 * (1.0 + l->r));
    lane_end(l);
    CHECK(lane_value(l, 0) == 16.5);
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 1);
}

/* FWD-09, VER-10, TI-M-09 */
LAB(reducer, a_second_backward_of_the_same_forward_stays_local_and_is_reported, 2)
{
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    lane_forward(l);
    lane_forward(l);
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.5);
    lane_mark(l);
    lane_grad(l, 0, 10.0 * (1.0 + l->r));
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.5 + 10.0 * (1.0 + l->r)); /* 11.5 and 21.5 */
    CHECK(lane_count(l, CDDP_EV_unsynced_grad, -1) == 1 && lane_posts(l, CDDP_OP_ALLREDUCE) == 0);
}

static void dropped_body(lane *l) /* FWD-10, TI-B-17 */
{
    l->options.find_unused_parameters = l->lab->data != NULL;
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    for (int i = 0; i < 4; i++) lane_forward(l);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.5);
}
TEST(reducer, an_output_that_is_dropped_costs_nothing) { lab_of(2, dropped_body, NULL); }
TEST(reducer, an_output_that_is_dropped_costs_nothing_with_the_graph_search)
{
    lab_of(2, dropped_body, dropped_body);
}

LAB(reducer, without_zeroing_the_average_accumulates, 2) /* FIN-06 */
{
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    lane_iterate(l, l->r);
    CHECK(lane_value(l, 0) == 0.5);
    lane_iterate(l, l->r);
    CHECK(lane_value(l, 0) == 1.0);
}

LAB(reducer, no_grad_forwards_are_harmless, 2) /* FWD-07, TI-B-21 */
{
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(cddp_ddp_forward_begin(l->ddp, false, &l->err));
        CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
        lane_iterate(l, 1.0 + l->r);
        CHECK(lane_value(l, 0) == 1.5);
        lane_zero_grad(l, true);
    }
}

LAB(reducer, one_rank_does_everything_too, 1) /* GRD-16 */
{
    l->options.find_unused_parameters = true;
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    lane_mark(l);
    lane_iterate(l, 7.0);
    CHECK(lane_value(l, 0) == 7.0 && lane_posts(l, CDDP_OP_ALLREDUCE) == 2);
}

/* ---- unused parameters ---- */

LAB(reducer, each_rank_uses_its_own_branch, 2) /* UNU-04, VER-06 */
{
    int32_t map[3];
    l->options.find_unused_parameters = true;
    for (int i = 0; i < 3; i++) lane_add(l, i == 0 ? "t0" : i == 1 ? "t1" : "t2", CDDP_F32, 2);
    lane_wrap(l);
    lane_reach(l, 1u << l->r);
    lane_forward(l);
    lane_grad(l, l->r, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 0.5 && lane_value(l, 1) == 1.0 && !lane_has(l, 2));
    CHECK(cddp_ddp_local_used_map(l->ddp, map) && map[0] == 1 && map[1] == 1 && map[2] == 0);
}

/* TI-B-03: both ranks take the same branch, which changes from iteration to iteration: who is not
** used counts 0, else both. */
LAB(reducer, branches_that_are_the_same_everywhere_are_used_by_all_or_by_none, 2)
{
    int32_t map[2];
    l->options.find_unused_parameters = true;
    lane_add(l, "trunk", CDDP_F32, 2);
    lane_add(l, "branch", CDDP_F32, 2);
    lane_wrap(l);
    for (int i = 0; i < 6; i++) {
        const bool takes_branch = i % 2 == 1;
        lane_zero_grad(l, true);
        lane_reach(l, takes_branch ? 3 : 1);
        lane_forward(l);
        if (takes_branch) lane_grad(l, 1, 3.0 + l->r);
        lane_grad(l, 0, 1.0 + l->r);
        lane_end(l);
        CHECK(cddp_ddp_local_used_map(l->ddp, map) && map[0] == (int32_t)l->w &&
              map[1] == (takes_branch ? (int32_t)l->w : 0));
        CHECK(lane_value(l, 0) == 1.5 && lane_has(l, 1) == takes_branch &&
              (!takes_branch || lane_value(l, 1) == 3.5));
    }
}

/* TI-H-13: one weight under two names, used by two layers: each adds rank + 1 to the one gradient,
** which is reduced once. */
static void shared_weight_body(lane *l)
{
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    lane_add(l, "layer1.weight", CDDP_F32, 6);
    l->parameters[1] = l->parameters[0];
    l->parameters[1].name = "layer2.weight";
    l->count = 2;
    lane_wrap(l);
    l->count = 1;
    CHECK(cddp_ddp_variable_count(l->ddp) == 1);
    for (int step = 0; step < 3; step++) {
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_accumulate(l, 0, 1.0 + l->r);
        lane_grad(l, 0, 1.0 + l->r);
        lane_end(l);
        CHECK(lane_value(l, 0) == 2 * (l->w + 1) / 2.0); /* 2 · mean(r + 1) */
    }
}
TEST(reducer, a_weight_that_two_layers_share_is_reduced_once)
{
    lab_of(2, shared_weight_body, NULL);
}
TEST(reducer, a_weight_that_two_layers_share_is_reduced_once_with_views)
{
    lab_of(4, shared_weight_body, shared_weight_body);
}

LAB(reducer, reachable_without_a_gradient_is_not_used, 2) /* UNU-03, VER-06 */
{
    int32_t map[2];
    l->options.find_unused_parameters = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
    lane_forward(l);
    lane_hook(l, 1); /* its output was not in the loss: the hook fires with an undefined gradient */
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK(cddp_ddp_local_used_map(l->ddp, map) && map[0] == 2 && map[1] == 0 && !lane_has(l, 1));
}

static void stale_body(lane *l) /* GRD-10, FIN-05, VER-16, TI-M-08 */
{
    bool views = l->lab->data != NULL;
    l->options.find_unused_parameters = true;
    l->options.gradient_as_bucket_view = views;
    lane_add(l, "t0", CDDP_F32, 2);
    lane_add(l, "t1", CDDP_F32, 2);
    lane_wrap(l);
    double stale = l->r == 0 ? 10.0 : 20.0;
    lane_accumulate(l, 0, stale);
    lane_accumulate(l, 1, stale);
    lane_mark(l);
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK(lane_value(l, 0) == 16.0);
    CHECK(lane_value(l, 1) == (views ? 15.0 : stale));
    CHECK(lane_has_mark(l, "stale_gradient_contributed") && lane_has_mark(l, "globally_unused"));
}
TEST(reducer, stale_gradients_of_unused_parameters_are_untouched_without_views)
{
    lab_of(2, stale_body, NULL);
}
TEST(reducer, stale_gradients_of_unused_parameters_change_with_views)
{
    lab_of(2, stale_body, stale_body);
}

LAB(reducer, a_zeroed_gradient_that_nobody_uses_stays_zero, 2) /* UNU-06 */
{
    l->options.find_unused_parameters = true;
    lane_add(l, "t0", CDDP_F32, 2);
    lane_add(l, "t1", CDDP_F32, 2);
    lane_wrap(l);
    lane_iterate(l, 1.0);
    lane_zero_grad(l, false);
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 1.0);
    lane_end(l);
    CHECK(lane_has(l, 1) && lane_value(l, 1) == 0.0);
    lane_zero_grad(l, true);
    lane_reach(l, UINT32_MAX); /* TI-B-16: all used again */
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.5 && lane_value(l, 1) == 1.5);
}

/* RED-10, on both ranks, so that nobody hangs */
LAB(reducer, a_rank_without_any_hook_launches_nothing, 2)
{
    l->options.find_unused_parameters = true;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    lane_reach(l, 0);
    lane_forward(l);
    lane_mark(l);
    lane_end(l);
    CHECK(!lane_has(l, 0) && lane_posts(l, CDDP_OP_ALLREDUCE) == 0);
}

LAB(reducer, wholly_unused_buckets_can_be_skipped, 2) /* UNU-14 */
{
    l->options.find_unused_parameters = true;
    l->options.skip_all_reduce_unused_params = true;
    l->options.bucket_cap_mb = 0.00001;
    lane_add(l, "t0", CDDP_F32, 3);
    lane_add(l, "t1", CDDP_F32, 3);
    lane_add(l, "t2", CDDP_F32, 3);
    lane_wrap(l);
    lane_iterate(l, 1.0 + l->r); /* leaves old futures behind (UNU-15) */
    lane_mark(l);
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 3.0 && lane_value(l, 1) == 1.5);
    /* bucket + map */
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 2 && lane_count(l, CDDP_EV_bucket_skip, -1) == 2);
    CHECK(lane_count(l, CDDP_EV_grad_final, -1) == 3);
}

LAB(reducer, reports_when_the_graph_could_have_been_static, 1) /* UNU-11, TI-B-10 */
{
    cddp_ddp_logging log = {.size = sizeof log};
    l->options.find_unused_parameters = true;
    lane_add(l, "t0", CDDP_F32, 3);
    lane_add(l, "t1", CDDP_F32, 3);
    lane_wrap(l);
    lane_reach(l, 1);
    for (int i = 0; i < 3; i++) {
        lane_forward(l);
        lane_grad(l, 0, 1.0);
        lane_end(l);
    }
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.can_set_static_graph && log.unused_parameter_bytes == 12);
    lane_reach(l, 3);
    lane_iterate(l, 1.0);
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(!log.can_set_static_graph);
}

/* Explored schedules are given up where a state was met before: it must not be another one. */
LAB(reducer, its_state_has_the_gradient_of_every_variable, 1)
{
    static const char *const names[] = {"a", "b", "c"};
    for (size_t i = 0; i < 3; i++) lane_add(l, names[i], CDDP_F32, 1);
    lane_wrap(l);
    lane_zero_grad(l, true);
    const uint64_t before = cd_ddp_state_key(l->ddp);
    for (size_t i = 0; i < 3; i++) {
        const cddp_grad_kind kind = l->grads[i].kind;
        l->grads[i].kind = CDDP_GRAD_SPARSE;
        CHECK(cd_ddp_state_key(l->ddp) != before);
        l->grads[i].kind = kind;
    }
    CHECK(cd_ddp_state_key(l->ddp) == before);
}

/* ---- no_sync ---- */

/* NSY-02, NSY-03, TI-C-01 */
LAB(reducer, no_sync_accumulates_and_the_next_backward_reduces_the_total, 2)
{
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    lane_mark(l);
    cddp_ddp_no_sync_begin(l->ddp);
    cddp_ddp_no_sync_begin(l->ddp);
    lane_iterate(l, 1.0 + l->r);
    cddp_ddp_no_sync_end(l->ddp);
    lane_iterate(l, 1.0 + l->r); /* still inside the outer one (NSY-01) */
    cddp_ddp_no_sync_end(l->ddp);
    CHECK(lane_value(l, 0) == 2.0 * (1.0 + l->r) && lane_posts(l, CDDP_OP_ALLREDUCE) == 0);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 4.5); /* (3 + 6) / 2: not divided by the micro-steps */
}

/* TI-C-04: every other iteration goes past the wrapper, to the module itself: its gradients stay
** local and are added up until the next one through the wrapper. Iteration i adds (i + 1) · (r +
** 1); summed by hand, the average of rank + 1 is 1.5. */
static void past_the_wrapper_body(lane *l)
{
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    lane_add(l, "p", CDDP_F32, 2);
    lane_add(l, "q", CDDP_F32, 3);
    lane_wrap(l);
    double reduced = 0, own = 0; /* what is the same everywhere, and what this rank added since */
    for (int i = 0; i < 4; i++) {
        const bool synchronises = i % 2 == 1;
        if (synchronises) lane_forward(l);
        for (size_t p = 2; p-- > 0;) lane_grad(l, p, (i + 1.0) * (1.0 + l->r));
        lane_end(l);
        own += i + 1.0;
        if (synchronises) reduced += own * 1.5, own = 0;
        for (size_t p = 0; p < 2; p++) CHECK(lane_value(l, p) == reduced + own * (1.0 + l->r));
    }
    CHECK(reduced == 15.0);
}
TEST(reducer, what_went_past_the_wrapper_is_reduced_by_the_next_synchronised_backward)
{
    lab_of(2, past_the_wrapper_body, NULL);
}
TEST(reducer, what_went_past_the_wrapper_is_reduced_with_views)
{
    lab_of(2, past_the_wrapper_body, past_the_wrapper_body);
}

LAB(reducer, the_decision_to_synchronise_falls_in_forward, 2) /* FWD-03 */
{
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    lane_forward(l);
    cddp_ddp_no_sync_begin(l->ddp);
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.5);
    lane_zero_grad(l, true);
    lane_forward(l);
    cddp_ddp_no_sync_end(l->ddp);
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.0 + l->r);
}

static void window_body(lane *l) /* NSY-04; VER-07 is the 1.13.1 regression that MAIN fixed */
{
    int32_t map[3];
    l->options.find_unused_parameters = true;
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    for (int i = 0; i < 3; i++) lane_add(l, i == 0 ? "t0" : i == 1 ? "t1" : "t2", CDDP_F32, 2);
    lane_wrap(l);
    cddp_ddp_no_sync_begin(l->ddp);
    lane_forward(l);
    lane_grad(l, 1, 1.0 + l->r);
    lane_end(l);
    cddp_ddp_no_sync_end(l->ddp);
    lane_reach(l, 1);
    lane_forward(l);
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(cddp_ddp_local_used_map(l->ddp, map) && map[0] == 2 && map[1] == 2 && map[2] == 0);
    CHECK(lane_value(l, 0) == 1.5 && lane_value(l, 1) == 1.5 && !lane_has(l, 2));
}
TEST(reducer, use_in_any_micro_step_of_the_window_counts) { lab_of(2, window_body, NULL); }
TEST(reducer, use_in_any_micro_step_of_the_window_counts_with_views)
{
    lab_of(2, window_body, window_body);
}

/* ---- collectives per iteration ---- */

LAB(reducer, issues_exactly_the_golden_number_of_collectives, 2) /* C10-10, VER-18, TI-M-13 */
{
    static const size_t broadcasts[4] = {2, 4, 2, 2};
    lane_add(l, "w", CDDP_F32, 4);
    lane_add(l, "b", CDDP_F32, 2);
    lane_add_buffer(l, "running_mean", CDDP_F32, 2, 0.0);
    lane_add_buffer(l, "num_batches_tracked", CDDP_I64, 1, 0.0);
    lane_wrap(l);
    /* PyTorch 1.13.1: 1 all_gather + 3 broadcasts, one of them shapes. Ours: the smallest and the
    ** largest digest of what ranks wrap, in one all-reduce, which covers both; and the two
    ** broadcasts of values. */
    CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == 0 && lane_posts(l, CDDP_OP_ALLREDUCE) == 1 &&
          lane_posts(l, CDDP_OP_BROADCAST) == 2);
    for (int i = 0; i < 4; i++) {
        lane_mark(l);
        lane_iterate(l, 1.0);
        CHECK(lane_posts(l, CDDP_OP_BROADCAST) == broadcasts[i] &&
              lane_posts(l, CDDP_OP_ALLREDUCE) == 1);
    }
}

TEST_MAIN()
