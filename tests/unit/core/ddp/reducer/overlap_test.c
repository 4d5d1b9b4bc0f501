/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers behind the comm hook: fused ones (OIB-03), and sharded ones whose buckets are assigned
** to the ranks (ZRO-10…12). */
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

#define CAPS 4 /* bytes: every f32 parameter has its own bucket */

/* p -= g / 2, and counts itself in out. */
static cddp_status subtract(void *context, size_t variable, cddp_grad *grad, cddp_error *err)
{
    lane *l = context;
    l->lab->out[l->r][variable]++;
    return l->device->axpy(&l->parameters[variable].tensor, -0.5, &grad->value, NULL, err);
}

static double parameter_of(lane *l, size_t i) { return lane_first(l, &l->parameters[i].tensor); }

static cddp_optimizer_in_backward behind(lane *l, cddp_optimizer_overlap overlap)
{
    return (cddp_optimizer_in_backward){.size = sizeof(cddp_optimizer_in_backward),
                                        .step = subtract,
                                        .context = l,
                                        .overlap = overlap};
}

static void attach(lane *l, const cddp_optimizer_in_backward *optimizer)
{
    CHECK_OK(cddp_ddp_set_optimizer_in_backward(l->ddp, optimizer, &l->err));
}

/* So many parameters of one element, each in its own bucket; the last registered has the
** first. */
static void add_buckets(lane *l, size_t count)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    l->options.bucket_cap_mb = CAPS / 1048576.0;
    for (size_t i = 0; i < count; i++) lane_add(l, names[i], CDDP_F32, 1);
}

/* ---- hook_then_optimizer ---- */

static void fused_body(lane *l)
{
    static const bool managed[2] = {true, false};
    cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_THEN_OPTIMIZER);
    optimizer.managed = managed;
    l->options.gradient_as_bucket_view = l->lab->data != NULL;
    lane_add(l, "p", CDDP_F32, 2);
    lane_add(l, "q", CDDP_F32, 2);
    lane_wrap(l);
    attach(l, &optimizer);
    for (int i = 1; i <= 3; i++) {
        lane_iterate(l, 1.0 + 2.0 * l->r);
        CHECK(parameter_of(l, 0) == -1.0 * i && lane_value(l, 0) == 2.0); /* the gradient stays */
        CHECK(parameter_of(l, 1) == 0.0 && lane_value(l, 1) == 2.0);
        lane_zero_grad(l, true);
    }
    CHECK(lane_count(l, CDDP_EV_hook_call, -1) == 3);
}
TEST(hook_then_optimizer, steps_its_parameters_and_keeps_all_gradients)
{
    lab_of(2, fused_body, NULL);
}
TEST(hook_then_optimizer, steps_its_parameters_and_keeps_all_gradients_in_views)
{
    lab_of(2, fused_body, fused_body);
}

/* The allreduce hook divides before it sums: 1/3 + 1/3 + 1/3 in f32, not 3/3. */
LAB(hook_then_optimizer, divides_before_the_sum, 3)
{
    const cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_THEN_OPTIMIZER);
    lane_add(l, "p", CDDP_F32, 1);
    lane_wrap(l);
    attach(l, &optimizer);
    lane_iterate(l, 1.0 + 16777216.0 * (l->r == 1));
    const volatile float large = 16777217.0f / 3, small = 1.0f / 3;
    CHECK(lane_f32(l, 0) == (small + large) + small || lane_f32(l, 0) == small + (large + small));
}

LAB(hook_then_optimizer, refuses_what_cannot_be_beside_it, 2)
{
    const cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_THEN_OPTIMIZER);
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    cddp_optimizer_in_backward odd = optimizer;
    odd.overlap = (cddp_optimizer_overlap)9;
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &odd, &l->err), CDDP_E_ARG,
                "9 is no overlap");
    odd = optimizer;
    odd.shard_buckets = true;
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &odd, &l->err), CDDP_E_ARG,
                "belongs to hook_with_zero_step");
    attach(l, &optimizer);
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &optimizer, &l->err), CDDP_E_STATE,
                "only one can be");
    CHECK_FAILS(cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("noop"), NULL, NULL, &l->err),
                CDDP_E_STATE, "allreduce is registered");
    cddp_ddp_no_sync_begin(l->ddp);
    lane_forward(l);
    lane_accumulate(l, 0, 1.0);
    CHECK_FAILS(lane_try_hook(l, 0), CDDP_E_STATE, "accumulates nothing");
    cddp_ddp_no_sync_end(l->ddp);
}

LAB(hook_then_optimizer, refuses_a_slot_that_is_taken, 1)
{
    const cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_THEN_OPTIMIZER);
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(
        cddp_ddp_register_comm_hook(l->ddp, cd_hook_find("fp16_compress"), NULL, NULL, &l->err));
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &optimizer, &l->err), CDDP_E_STATE,
                "already holds fp16_compress");
}

/* ---- hook_with_zero_step ---- */

typedef struct zero_row {
    cddp_optimizer_overlap overlap;
    bool views, static_graph;
    const char *hook; /* NULL: none */
} zero_row;

/* What the wrapper posted is over. At its end it gives back nothing that the program has posted in
** the same group since. */
static void ends_beside_others(lane *l)
{
    cddp_tensor sums[5];
    cddp_work *works[5];
    const int64_t two = 2;
    for (int i = 0; i < 5; i++) {
        sums[i] = lane_tensor(l, CDDP_F32, &two, 1, 1.0);
        CHECK_OK(cddp_group_allreduce(l->group, &sums[i], CDDP_RED_SUM, &works[i], &l->err));
    }
    lane_unwrap(l);
    for (int i = 0; i < 5; i++) {
        CHECK_OK(cddp_work_wait(works[i], 0, &l->err));
        CHECK(lane_first(l, &sums[i]) == l->w);
        lane_release(l, &sums[i]);
    }
}

/* Bucket b is rank b mod W's. */
static void zero_body(lane *l)
{
    const zero_row *row = l->lab->data;
    const cddp_optimizer_in_backward optimizer = behind(l, row->overlap);
    const int first = row->static_graph ? 4 : 3;
    l->options.gradient_as_bucket_view = row->views;
    l->options.static_graph = row->static_graph;
    add_buckets(l, 5);
    lane_wrap(l);
    const cddp_hook *hook = row->hook != NULL ? cd_hook_find(row->hook) : NULL;
    if (hook != NULL)
        CHECK_OK(cddp_ddp_register_comm_hook(
            l->ddp, hook, strstr(hook->name, "wrapper") ? cd_hook_find("allreduce") : NULL, NULL,
            &l->err));
    attach(l, &optimizer);
    for (int i = 1; i <= 6; i++) {
        lane_mark(l);
        lane_iterate(l, 1.0 + 2.0 * l->r);
        const double mean = (double)l->w, steps = i < first ? 0 : i - first + 1;
        for (size_t p = 0; p < l->count; p++) {
            CHECK(parameter_of(l, p) == -0.5 * mean * steps && lane_value(l, p) == mean);
            const bool is_own = (4 - p) % l->w == l->r;
            CHECK(l->lab->out[l->r][p] == (is_own ? steps : 0.0));
            CHECK(cddp_ddp_optimizer_owner(l->ddp, p) ==
                  (i + 1 < first ? -1 : (int64_t)((4 - p) % l->w)));
        }
        if (i >= first) CHECK(lane_posts(l, CDDP_OP_BROADCAST) == 5);
        lane_zero_grad(l, true);
    }
    ends_beside_others(l);
}
static const zero_row plain = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP};
static const zero_row in_views = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP,
                                  .views = true,
                                  .hook = "allreduce"};
static const zero_row on_static = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP,
                                   .static_graph = true};
static const zero_row interleaved = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED};
static const zero_row interleaved_views = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED,
                                           .views = true,
                                           .hook = "fp16_compress"};
static const zero_row behind_a_wrapper = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED,
                                          .hook = "bf16_compress_wrapper"};
static const zero_row interleaved_static = {.overlap = CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED,
                                            .static_graph = true};
static void zero_lab(uint32_t world, const zero_row *row)
{
    lab b = {.world_size = world, .body = zero_body, .data = (void *)(uintptr_t)row};
    lab_run(&b);
}
TEST(zero_step, owners_step_from_the_third_backward_on)
{
    zero_lab(2, &plain);
    zero_lab(3, &plain);
}
TEST(zero_step, works_alone_and_in_worlds_larger_than_its_buckets)
{
    zero_lab(1, &plain);
    zero_lab(8, &plain);
}
TEST(zero_step, works_behind_a_hook_in_views) { zero_lab(2, &in_views); }
TEST(zero_step, a_static_graph_leaves_out_one_more)
{
    zero_lab(2, &on_static);
    zero_lab(2, &interleaved_static);
}
TEST(zero_step, interleaved_does_the_same)
{
    zero_lab(3, &interleaved);
    zero_lab(2, &interleaved_views);
    zero_lab(2, &behind_a_wrapper);
}

/* Which collectives were posted since the mark: R an all-reduce, B a broadcast. */
static void print_posts(const lane *l, char *text)
{
    for (size_t i = l->since; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        if (e->kind == CDDP_EV_collective_post)
            *text++ = e->as.collective_post.op == CDDP_OP_ALLREDUCE ? 'R' : 'B';
    }
    *text = '\0';
}

static void order_body(lane *l)
{
    char posts[64];
    const cddp_optimizer_in_backward optimizer =
        behind(l, l->lab->data != NULL ? CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED
                                       : CDDP_OVERLAP_HOOK_WITH_ZERO_STEP);
    add_buckets(l, 3);
    lane_wrap(l);
    attach(l, &optimizer);
    for (int i = 0; i < 2; i++) lane_iterate(l, 1.0);
    lane_mark(l);
    lane_iterate(l, 1.0);
    print_posts(l, posts);
    CHECK(strcmp(posts, l->lab->data != NULL ? "RRBRBB" : "RRRBBB") == 0);
}
TEST(zero_step, sends_parameters_behind_all_gradients) { lab_of(2, order_body, NULL); }
TEST(zero_step, interleaved_sends_them_between) { lab_of(2, order_body, order_body); }

/* One bucket of 3, 3, 3 and 1 elements on two ranks: a piece ends before it would reach 5. PyTorch
** would cut again before the third and find nobody; the rest stays with the second piece. */
LAB(zero_step, cuts_a_bucket_between_ranks, 2)
{
    cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP);
    optimizer.shard_buckets = true;
    static const int64_t numels[] = {1, 3, 3, 3};
    for (size_t i = 0; i < 4; i++)
        lane_add(l, (const char *[]){"a", "b", "c", "d"}[i], CDDP_F32, numels[i]);
    lane_wrap(l);
    attach(l, &optimizer);
    for (int i = 0; i < 4; i++) lane_iterate(l, 1.0);
    static const int64_t owners[] = {1, 1, 1, 0};
    for (size_t p = 0; p < 4; p++) {
        CHECK(cddp_ddp_optimizer_owner(l->ddp, p) == owners[p]);
        CHECK(parameter_of(l, p) == parameter_of(l, 0) && parameter_of(l, 0) < 0);
        CHECK(l->lab->out[l->r][p] == (owners[p] == l->r ? 2.0 : 0.0));
    }
}

LAB(zero_step, refuses_what_it_cannot_do, 2)
{
    static const bool managed[2] = {true, false};
    cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP),
                               odd = optimizer;
    lane_add(l, "p", CDDP_F32, 2);
    lane_add(l, "q", CDDP_F32, 2);
    lane_wrap(l);
    odd.managed = managed;
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &odd, &l->err), CDDP_E_CONFIG,
                "one optimizer owns every parameter, 'q' too");
    attach(l, &optimizer);
    CHECK_FAILS(cddp_ddp_update_process_group(l->ddp, l->group, &l->err), CDDP_E_UNSUPPORTED,
                "assign the buckets anew");
    CHECK_FAILS(cddp_ddp_join_begin(l->ddp, NULL, &l->err), CDDP_E_UNSUPPORTED,
                "join cannot shadow hook_with_zero_step");
}

LAB(zero_step, refuses_to_be_attached_under_join, 2)
{
    const cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP);
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_join_begin(l->ddp, NULL, &l->err));
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &optimizer, &l->err), CDDP_E_UNSUPPORTED,
                "attach it outside of join");
    CHECK_OK(cddp_ddp_join_end(l->ddp, &l->err));
}

LAB(zero_step, refuses_buckets_that_are_never_rebuilt, 1)
{
    const cddp_optimizer_in_backward optimizer = behind(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP);
    l->options.find_unused_parameters = true;
    lane_add(l, "p", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_FAILS(cddp_ddp_set_optimizer_in_backward(l->ddp, &optimizer, &l->err), CDDP_E_CONFIG,
                "it would never update anything");
}

/* A bucket that no rank ever uses is not sent, and neither are its parameters: they stay what they
** are, on every rank. */
static void left_out_body(lane *l)
{
    const cddp_optimizer_in_backward optimizer =
        behind(l, l->lab->data != NULL ? CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED
                                       : CDDP_OVERLAP_HOOK_WITH_ZERO_STEP);
    l->options.static_graph = true;
    l->options.skip_all_reduce_unused_params = true;
    add_buckets(l, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_OK(l->device->fill(&l->parameters[i].tensor, 8.0, NULL, &l->err));
    lane_wrap(l);
    attach(l, &optimizer);
    for (int i = 1; i <= 6; i++) {
        lane_forward(l);
        for (size_t p = 4; p-- > 0;)
            if (p % 2 == 0) lane_grad(l, p, 1.0);
        lane_end(l);
        lane_zero_grad(l, true);
        for (size_t p = 0; p < 4; p++)
            CHECK(parameter_of(l, p) == 8.0 - (p % 2 == 0 && i > 3 ? 0.5 * (i - 3) : 0.0));
    }
}
TEST(zero_step, a_bucket_that_is_left_out_keeps_its_parameters) { lab_of(2, left_out_body, NULL); }
TEST(zero_step, interleaved_leaves_out_such_a_bucket) { lab_of(2, left_out_body, left_out_body); }

/* A backward that ends early gives every work back; the next one starts anew. */
LAB(zero_step, gives_back_what_was_under_way, 2)
{
    char posts[64];
    const cddp_optimizer_in_backward optimizer =
        behind(l, CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED);
    add_buckets(l, 3);
    lane_wrap(l);
    attach(l, &optimizer);
    for (int i = 0; i < 2; i++) lane_iterate(l, 1.0);
    lane_mark(l);
    lane_forward(l);
    lane_grad(l, 2, 1.0);
    lane_grad(l, 1, 1.0);
    print_posts(l, posts);
    CHECK(strcmp(posts, "RRB") == 0); /* under way when the wrapper goes */
    lane_unwrap(l);
    lane_drop(l);
    CHECK(lane_count(l, CDDP_EV_collective_done, -1) == 1);
}

TEST_MAIN()
