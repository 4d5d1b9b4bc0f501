/* SPDX-License-Identifier: Apache-2.0 */
/* Uneven inputs (JON): gradients as ranks drop out, what the shadows do, what is equal at the
** end. */
#include "tests/unit/core/ddp/fixture.h"

static void begin_join(lane *l, bool by_initial)
{
    cddp_join_options o = cddp_join_options_default();
    o.divide_by_initial_world_size = by_initial;
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
}

static void step(lane *l, double value)
{
    lane_zero_grad(l, true);
    lane_iterate(l, value);
}

/* JON-11, VER-08: W=3, rank r has 2+r inputs and gradient r+1. */
static void factors_body(lane *l)
{
    bool by_initial = l->lab->data != NULL;
    static const float initial[4] = {2, 2, 5.0f / 3, 1}, effective[4] = {2, 2, 2.5f, 3};
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    begin_join(l, by_initial);
    for (uint32_t i = 0; i < 2 + l->r; i++) {
        step(l, 1.0 + l->r);
        float wanted = by_initial ? initial[i] : effective[i], got = lane_f32(l, 0);
        CHECK(got > wanted - 1e-6f && got < wanted + 1e-6f);
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}
TEST(join, divides_by_the_initial_world_size) { lab_of(3, factors_body, factors_body); }
TEST(join, divides_by_the_active_ranks_on_request) { lab_of(3, factors_body, NULL); }

/* JON-16, VER-22: no_sync on even steps, effective divisor. */
LAB(join, works_with_no_sync, 3)
{
    static const double wanted[3][6] = {{1, 4, 5, 8}, {2, 4, 6, 8, 10}, {3, 4, 7, 8, 11, 14}};
    static const uint32_t inputs[3] = {4, 5, 6};
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    begin_join(l, false);
    for (uint32_t i = 0; i < inputs[l->r]; i++) {
        if (i % 2 == 0) cddp_ddp_no_sync_begin(l->ddp);
        lane_iterate(l, 1.0 + l->r);
        if (i % 2 == 0) cddp_ddp_no_sync_end(l->ddp);
        CHECK(lane_value(l, 0) == wanted[l->r][i]);
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}

/* JON-12, VER-09: each step adds rank+1 to the parameter; the rank that ran longest decides, ties
** go to the largest. */
static void final_body(lane *l)
{
    bool uneven = l->lab->data != NULL;
    cddp_tensor *p = &lane_add(l, "p", CDDP_F32, 2)->tensor;
    lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    lane_wrap(l);
    begin_join(l, true);
    for (uint32_t i = 0; i < (uneven ? 3 - l->r : 2); i++) step(l, 1.0);
    CHECK_OK(l->device->fill(p, 10.0 * (1.0 + l->r), NULL, &l->err));
    CHECK_OK(l->device->fill(&l->buffers[0].tensor, 7.0 + l->r, NULL, &l->err));
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    CHECK(lane_first(l, p) == (uneven ? 10.0 : 30.0));
    if (uneven) CHECK(lane_first(l, &l->buffers[0].tensor) >= 7.0);
    CHECK(lane_count(l, CDDP_EV_join_end, -1) == 1);
}
TEST(join, ends_with_the_parameters_of_the_rank_that_ran_longest)
{
    lab_of(3, final_body, final_body);
}
TEST(join, breaks_ties_towards_the_largest_rank) { lab_of(3, final_body, NULL); }

/* JON-08: a rank without inputs; if it is rank 0, registration order is what everybody adopts. */
static void layout_body(lane *l)
{
    uint32_t idle = *(uint32_t *)l->lab->data;
    static const char *const names[6] = {"a.w", "a.b", "b.w", "b.b", "c.w", "c.b"};
    for (int i = 0; i < 6; i++) lane_add(l, names[i], CDDP_F32, 2);
    lane_wrap(l);
    begin_join(l, true);
    for (int i = 0; l->r != idle && i < 3; i++) {
        step(l, 2.0);
        CHECK(lane_value(l, 0) == 1.0);
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    CHECK_LAYOUT(idle == 0 ? "0 1 2 3 4 5" : "5 4 3 2 1 0");
    CHECK(l->r != idle || !lane_has(l, 0)); /* JON-06: its own gradients are untouched */
}
TEST(join, without_inputs_on_rank_zero_adopts_registration_order)
{
    uint32_t idle = 0;
    lab_of(2, layout_body, &idle);
}
TEST(join, without_inputs_on_another_rank_keeps_arrival_order)
{
    uint32_t idle = 1;
    lab_of(2, layout_body, &idle);
}

/* JON-15, decided: a joined rank contributes zeros to the map, so a parameter used before the join
** can become globally unused again. 1.13.1 shows [3,0,0] → [3,2,0] → [6,5,0] here. */
LAB(join, contributes_zeros_to_the_used_map, 3)
{
    int32_t map[3];
    l->options.find_unused_parameters = true;
    lane_add(l, "t0", CDDP_F32, 2);
    lane_add(l, "t1", CDDP_F32, 2);
    lane_add(l, "t2", CDDP_F32, 2);
    lane_wrap(l);
    begin_join(l, true);
    for (uint32_t i = 0; i < (l->r == 0 ? 1 : 3); i++) {
        lane_zero_grad(l, true);
        lane_reach(l, 1u << (i == 2 ? 1 : 0));
        lane_forward(l);
        lane_grad(l, i == 2 ? 1 : 0, 3.0);
        lane_end(l);
        CHECK(cddp_ddp_local_used_map(l->ddp, map));
        int32_t wanted = i == 0 ? 3 : 2;
        CHECK(map[0] == (i == 2 ? 0 : wanted) && map[1] == (i == 2 ? 2 : 0) && map[2] == 0);
        CHECK(lane_has(l, 0) == (i != 2));
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}

/* JON-07: the largest active rank's buffers win while ranks are active. */
LAB(join, takes_buffers_from_the_largest_active_rank, 3)
{
    lane_add(l, "p", CDDP_F32, 2);
    cddp_tensor *b = lane_add_buffer(l, "b", CDDP_F32, 1, 0.0);
    lane_wrap(l);
    begin_join(l, true);
    for (uint32_t i = 0; i < (l->r == 2 ? 1 : 2); i++) {
        CHECK_OK(l->device->fill(b, 10.0 + l->r, NULL, &l->err));
        CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
        CHECK(lane_first(l, b) == (i == 0 ? 12.0 : 11.0));
        CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
        lane_grad(l, 0, 1.0);
        lane_end(l);
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}

/* JON-16: join with a static graph: 2, 2, 2, 5/3, 1. */
LAB(join, works_with_a_static_graph, 3)
{
    static const float wanted[5] = {2, 2, 2, 5.0f / 3, 1};
    l->options.static_graph = true;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    begin_join(l, true);
    for (uint32_t i = 0; i < 3 + l->r; i++) {
        step(l, 1.0 + l->r);
        CHECK(lane_f32(l, 0) > wanted[i] - 1e-6f && lane_f32(l, 0) < wanted[i] + 1e-6f);
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}

/* JON-17, TI-F-04: everybody stops after the smallest number of inputs; texts differ by role. */
static void throw_body(lane *l)
{
    cddp_join_options o = cddp_join_options_default();
    o.throw_on_early_termination = true;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    for (uint32_t i = 0; i < 2 + l->r; i++) {
        cddp_status status = cddp_ddp_forward_begin(l->ddp, true, &l->err);
        if (i == 2) {
            CHECK(status == CDDP_E_ABORTED &&
                  strstr(l->err.message, "1 of 3 ranks ran out of inputs") != NULL);
            return;
        }
        CHECK_OK(status);
        CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
        lane_grad(l, 0, 1.0);
        lane_end(l);
    }
    CHECK(l->r == 0);
    CHECK_FAILS(cddp_ddp_join_end(l->ddp, &l->err), CDDP_E_ABORTED,
                "rank 0 ran out of inputs while 2 ranks had more");
}
TEST(join, throws_on_every_rank_on_request) { lab_of(3, throw_body, NULL); }

LAB(join, disabled_changes_nothing, 2) /* JON-19, TI-F-05 */
{
    cddp_join_options o = cddp_join_options_default();
    cddp_ddp_logging log = {.size = sizeof log};
    o.enable = false;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, &o, &l->err), CDDP_E_STATE, "do not nest"); /* ERR-16 */
    lane_mark(l);
    step(l, 1.0);
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 1);
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    CHECK_FAILS(cddp_ddp_join_end(l->ddp, &l->err), CDDP_E_STATE, "without join_begin");
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(!log.join_uneven_inputs);
}

LAB(join, stays_configured_after_the_context, 2) /* JON-14, JON-10 */
{
    cddp_ddp_logging log = {.size = sizeof log};
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    begin_join(l, true);
    step(l, 1.0);
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    lane_mark(l);
    step(l, 1.0);
    CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 3); /* notification, vote, bucket */
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.join_uneven_inputs);
}

/* INT-01: momentum of an early joiner is older; the option sends it along. */
LAB(join, can_broadcast_optimizer_state_at_the_end, 2)
{
    int64_t one = 1;
    cddp_join_options o = cddp_join_options_default();
    cddp_tensor momentum = lane_tensor(l, CDDP_F32, &one, 1, 1.5 + l->r);
    o.optimizer_state = &momentum;
    o.optimizer_state_count = 1;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, &o, &l->err), CDDP_E_CONFIG,
                "join_broadcast_optimizer_state is off");
    lane_unwrap(l);
    l->options.join_broadcast_optimizer_state = true;
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    for (uint32_t i = 0; i < 1 + l->r; i++) step(l, 1.0);
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    CHECK(lane_first(l, &momentum) == 2.5);
    lane_unwrap(l);
    lane_release(l, &momentum);
}

/* ---- two wrappers that join together (JON-01) ---- */

/* The second one; the first is the lane's. */
typedef struct follower {
    cddp_ddp *ddp;
    cddp_parameter parameter;
    cddp_tensor value;
    cddp_grad grad;
} follower;

static void follow(lane *l, follower *f, const cddp_join_options *options)
{
    const int64_t numel = 2;
    cddp_ddp_options o = l->options;
    cddp_join_options join = *options;
    *f = (follower){.value = lane_tensor(l, CDDP_F32, &numel, 1, 1)};
    f->parameter =
        (cddp_parameter){.name = "q", .tensor = f->value, .grad = &f->grad, .requires_grad = true};
    o.parameters = &f->parameter;
    o.parameter_count = 1;
    CHECK_OK(cddp_ddp_create(&o, &f->ddp, &l->err));
    join.first = l->ddp;
    CHECK_OK(cddp_ddp_join_begin(f->ddp, &join, &l->err));
}

static float iterate(lane *l, follower *f, double value)
{
    CHECK_OK(cddp_ddp_forward_begin(f->ddp, true, &l->err));
    CHECK_OK(cddp_ddp_forward_end(f->ddp, NULL, &l->err));
    cddp_grad_drop(&f->grad);
    CHECK_OK(cddp_grad_define(&f->grad, &f->value, &l->err));
    CHECK_OK(f->grad.value.device->fill(&f->grad.value, value, NULL, &l->err));
    CHECK_OK(cddp_ddp_mark_parameter_ready(f->ddp, 0, &l->err));
    CHECK_OK(cddp_ddp_backward_end(f->ddp, &l->err));
    return (float)lane_first(l, &f->grad.value);
}

static void leave(lane *l, follower *f)
{
    cddp_ddp_destroy(f->ddp);
    cddp_grad_fini(&f->grad);
    lane_release(l, &f->value);
}

/* VER-08 for both: one notification per iteration, and one number of active ranks. In PyTorch the
** second one would divide by three. */
static void together_body(lane *l)
{
    static const float initial[4] = {2, 2, 5.0f / 3, 1}, effective[4] = {2, 2, 2.5f, 3};
    cddp_join_options o = cddp_join_options_default();
    follower f;
    o.divide_by_initial_world_size = l->lab->data != NULL;
    const float *wanted = o.divide_by_initial_world_size ? initial : effective;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    follow(l, &f, &o);
    for (uint32_t i = 0; i < 2 + l->r; i++) {
        lane_mark(l);
        step(l, 1.0 + l->r);
        CHECK(lane_f32(l, 0) > wanted[i] - 1e-6f && lane_f32(l, 0) < wanted[i] + 1e-6f);
        const float second = 10 * wanted[i], got = iterate(l, &f, 10 * (1.0 + l->r));
        CHECK(got > second - 1e-5f && got < second + 1e-5f);
        CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == 5); /* notify, and a vote and a bucket of each */
    }
    CHECK_FAILS(cddp_ddp_join_end(f.ddp, &l->err), CDDP_E_STATE, "that of the first one ends all");
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
    CHECK_FAILS(cddp_ddp_join_end(f.ddp, &l->err), CDDP_E_STATE, "without join_begin");
    leave(l, &f);
}
TEST(join, two_wrappers_divide_by_the_initial_world_size)
{
    lab_of(3, together_body, factors_body);
}
TEST(join, two_wrappers_divide_by_the_active_ranks) { lab_of(3, together_body, NULL); }

LAB(join, the_first_wrapper_may_go_before_the_others, 2)
{
    cddp_join_options o = cddp_join_options_default();
    follower f;
    o.divide_by_initial_world_size = false;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    follow(l, &f, &o);
    step(l, 1.0);
    CHECK(iterate(l, &f, 3.0) == 3.0f);
    lane_unwrap(l);
    CHECK_OK(cddp_ddp_forward_begin(f.ddp, true, &l->err));
    CHECK_OK(cddp_ddp_forward_end(f.ddp, NULL, &l->err));
    CHECK_FAILS(cddp_ddp_mark_parameter_ready(f.ddp, 0, &l->err), CDDP_E_STATE,
                "that this one joined together with is gone");
    leave(l, &f);
}

LAB(join, wrappers_of_one_context_take_their_turns, 2)
{
    cddp_join_options o = cddp_join_options_default();
    follower f;
    lane_add(l, "p", CDDP_F32, 2);
    l->options.strict = true;
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    follow(l, &f, &o);
    CHECK_FAILS(cddp_ddp_forward_begin(f.ddp, true, &l->err), CDDP_E_STATE,
                "before that of the first wrapper of the join context");
    leave(l, &f);
    follow(l, &f, &o);
    step(l, 1.0);
    CHECK_FAILS(cddp_ddp_forward_begin(l->ddp, true, &l->err), CDDP_E_STATE,
                "again before that of another wrapper of the join context");
    o.first = l->ddp;
    CHECK_FAILS(cddp_ddp_join_begin(f.ddp, &o, &l->err), CDDP_E_STATE, "do not nest");
    leave(l, &f);
}

LAB(join, what_joins_together_has_begun_and_has_one_group, 2)
{
    cddp_join_options o = cddp_join_options_default();
    cddp_ddp *second = NULL;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_create(&l->options, &second, &l->err));
    o.first = l->ddp;
    CHECK_FAILS(cddp_ddp_join_begin(second, &o, &l->err), CDDP_E_STATE,
                "call join_begin of the first wrapper, then of the others");
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, &o, &l->err), CDDP_E_STATE,
                "call join_begin of the first wrapper, then of the others");
    o.first = NULL;
    CHECK_OK(cddp_ddp_join_begin(l->ddp, &o, &l->err));
    o.first = l->ddp;
    o.enable = false;
    CHECK_FAILS(cddp_ddp_join_begin(second, &o, &l->err), CDDP_E_CONFIG,
                "enable is true for the first wrapper, and false for this one");
    cddp_ddp_destroy(second);
}

/* TI-M-07: any input counts, both divisors: the gradient of step i is the mean over those who still
** have inputs. */
static void random_body(lane *l)
{
    const uint32_t *inputs = l->lab->data;
    lane_add(l, "p", CDDP_F64, 3);
    lane_wrap(l);
    begin_join(l, inputs[7] != 0);
    for (uint32_t i = 0; i < inputs[l->r]; i++) {
        double sum = 0, active = 0;
        for (uint32_t r = 0; r < l->w; r++)
            if (inputs[r] > i) sum += 4.0 * (1.0 + r), active += 1.0;
        step(l, 4.0 * (1.0 + l->r));
        double wanted = sum / (inputs[7] != 0 ? (double)l->w : active), got = lane_value(l, 0);
        CHECK(got > wanted - 1e-12 && got < wanted + 1e-12);
    }
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}
TEST(join, gives_the_mean_over_active_ranks_for_any_input_counts)
{
    for (uint32_t seed = 0; seed < 24; seed++) {
        uint32_t inputs[8] = {seed % 3, seed / 3 % 4, (seed * 7) % 5, (seed * 5 + 1) % 3, 0, 0,
                              0,        seed % 2};
        cd_test_row("inputs %u %u %u %u", inputs[0], inputs[1], inputs[2], inputs[3]);
        lab_of(2 + seed % 3, random_body, inputs);
    }
}

TEST_MAIN()
