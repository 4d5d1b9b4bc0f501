/* SPDX-License-Identifier: Apache-2.0 */
/* Rebuilding in arrival order and the static graph (REB, STA). */
#include "core/hooks/hook.h"
#include "tests/unit/core/ddp/fixture.h"

/* Three Linear layers as PyTorch saw them in VER-04: weight and bias, caps of 20 and 31 bytes.
** Arrival of an engine: bias before weight, last layer first. */
static void three_layers(lane *l)
{
    static const char *const names[6] = {"a.weight", "a.bias",   "b.weight",
                                         "b.bias",   "c.weight", "c.bias"};
    for (int i = 0; i < 6; i++) lane_add(l, names[i], CDDP_F32, i % 2 == 0 ? 6 : 2);
}

static void small_caps(lane *l)
{
    l->options.first_bucket_bytes = 20;
    l->options.bucket_cap_mb = 0; /* default: first 20 bytes, then 25 MiB */
}

LAB(rebuild, happens_once_at_the_second_forward, 2) /* REB-01, REB-03, VER-04 */
{
    cddp_ddp_logging log = {.size = sizeof log};
    three_layers(l);
    small_caps(l);
    lane_wrap(l);
    CHECK_LAYOUT("0 1 2 3 4 5");
    lane_iterate(l, 1.0 + l->r);
    CHECK_LAYOUT("0 1 2 3 4 5");
    lane_mark(l);
    lane_iterate(l, 1.0 + l->r);
    CHECK_LAYOUT("5 4, 3 2 1 0");
    /* REB-07 */
    CHECK(lane_posts(l, CDDP_OP_BROADCAST) == 2 && lane_count(l, CDDP_EV_rebuild, -1) == 1);
    CHECK(lane_has_mark(l, "rebuild_during_accumulation")); /* gradients were not dropped */
    lane_mark(l);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_posts(l, CDDP_OP_BROADCAST) == 0 && lane_count(l, CDDP_EV_rebuild, -1) == 0);
    CHECK(lane_value(l, 0) == 4.5);
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.has_rebuilt_buckets &&
          strcmp(log.rebuilt_per_bucket_param_indices, "5 4, 3 2 1 0") == 0);
    CHECK(strcmp(log.bucket_sizes, "96") == 0 && strcmp(log.rebuilt_bucket_sizes, "32, 64") == 0 &&
          strcmp(log.prev_iteration_grad_ready_order_indices, "5 4 3 2 1 0") == 0);
}

LAB(rebuild, uses_the_list_of_capacities_at_first_and_again, 2) /* BKT-15, VER-04: caps 20 and 31 */
{
    static const double caps[2] = {20.0 / 1048576, 31.0 / 1048576};
    three_layers(l);
    l->options.bucket_cap_mb_list = caps;
    l->options.bucket_cap_mb_list_count = 2;
    lane_wrap(l);
    /* limits 20, 31, 31 … consumed in registration order, then reversed */
    CHECK_LAYOUT("5, 3 4, 1 2, 0");
    lane_iterate(l, 1.0);
    lane_iterate(l, 1.0);
    CHECK_LAYOUT("5 4, 3 2, 1 0");
}

static uint32_t heard_buckets[4], heard_count;

static cddp_status take_rebuilt(void *self, uint32_t bucket_count, cddp_error *err)
{
    (void)self;
    (void)err;
    heard_buckets[heard_count++ % 4] = bucket_count;
    return CDDP_OK;
}

/* A hook that keeps state by bucket must hear of every layout but the first (REB-10). */
LAB(rebuild, a_hook_hears_of_it_once_with_the_new_number_of_buckets, 1)
{
    static cddp_hook hook; /* outlives the wrapper, which borrows it */
    hook = *cd_hook_find("allreduce");
    hook.name = "listens";
    hook.rebuilt = take_rebuilt;
    heard_count = 0;
    three_layers(l);
    small_caps(l);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_register_comm_hook(l->ddp, &hook, NULL, NULL, &l->err));
    lane_iterate(l, 1.0);
    CHECK(heard_count == 0);
    for (int step = 0; step < 3; step++) lane_iterate(l, 1.0);
    CHECK_LAYOUT("5 4, 3 2 1 0");
    CHECK(heard_count == 1 && heard_buckets[0] == 2);
}

LAB(rebuild, never_happens_with_a_dynamic_graph_search, 2) /* REB-01 */
{
    three_layers(l);
    l->options.find_unused_parameters = true;
    l->options.bucket_cap_mb = 0.00001;
    lane_wrap(l);
    for (int i = 0; i < 3; i++) lane_iterate(l, 1.0);
    CHECK_LAYOUT("5, 3 4, 1 2, 0"); /* as observed, forever (REB-03) */
}

LAB(rebuild, adopts_rank_zeros_arrival_order, 2) /* REB-07, VER-05 */
{
    static const int own[2][4] = {{3, 2, 1, 0}, {1, 0, 3, 2}};
    for (int i = 0; i < 4; i++)
        lane_add(l, i == 0 ? "a" : i == 1 ? "b" : i == 2 ? "c" : "d", CDDP_F32, 2 + i);
    lane_wrap(l);
    for (int k = 0; k < 3; k++) {
        lane_forward(l);
        for (int i = 0; i < 4; i++)
            lane_grad(l, (size_t)own[l->r][i], (double)(own[l->r][i] + (int)l->r));
        lane_end(l);
        for (size_t i = 0; i < 4; i++) CHECK(lane_value(l, i) == (double)i + 0.5);
        lane_zero_grad(l, true);
    }
    CHECK_LAYOUT("3 2 1 0");
}

static void views_body(lane *l) /* REB-08: gradients move into the new slices */
{
    three_layers(l);
    small_caps(l);
    l->options.gradient_as_bucket_view = true;
    lane_wrap(l);
    lane_iterate(l, 1.0 + l->r);
    for (size_t i = 0; i < 6; i++) CHECK(lane_value(l, i) == 1.5);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK_LAYOUT("5 4, 3 2 1 0");
    for (size_t i = 0; i < 6; i++)
        CHECK(lane_value(l, i) == 1.5 && l->grads[i].backing_is_borrowed);
    CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
    for (size_t i = 6; i-- > 0;) lane_grad(l, i, 1.0 + l->r);
    lane_end(l);
    for (size_t i = 0; i < 6; i++) CHECK(lane_value(l, i) == 3.0);
}
TEST(rebuild, moves_gradients_that_live_in_buckets) { lab_of(2, views_body, NULL); }

LAB(rebuild, gives_the_small_cap_to_the_bucket_reduced_last_on_request, 2) /* BKT-16 */
{
    three_layers(l);
    small_caps(l);
    l->options.set_last_bucket_cap = true;
    lane_wrap(l);
    lane_iterate(l, 1.0);
    lane_iterate(l, 1.0);
    /* reversed arrival 0 | 1 2 3 4 5, list reversed; inside: reversed arrival */
    CHECK_LAYOUT("1 2 3 4 5, 0");
}

LAB(rebuild, orders_left_over_dtypes_by_arrival, 2) /* BKT-07, decided */
{
    for (int i = 0; i < 6; i++)
        lane_add(l,
                 i == 0   ? "a"
                 : i == 1 ? "b"
                 : i == 2 ? "c"
                 : i == 3 ? "d"
                 : i == 4 ? "e"
                          : "f",
                 i == 2 || i == 3 ? CDDP_F64 : CDDP_F32, 2);
    lane_wrap(l);
    lane_iterate(l, 1.0);
    lane_iterate(l, 1.0);
    CHECK_LAYOUT("5 4 1 0, 3 2");
}

/* A layout change perturbs low bits for W=3 and never for W=2 (GRD-14, VER-17, TI-M-10): one bucket
** of 1200 elements against the rebuilt four, ring chunks fall elsewhere. */
static void layout_bits_body(lane *l)
{
    static float first[LAB_RANKS][1200];
    const char *const names[4] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) lane_add(l, names[i], CDDP_F32, 300);
    l->options.first_bucket_bytes = 1200;
    l->options.bucket_cap_mb = 0;
    lane_wrap(l);
    size_t changed = 0;
    for (int step = 0; step < 3; step++) {
        lane_zero_grad(l, true);
        lane_forward(l);
        for (size_t i = 4; i-- > 0;) {
            CHECK_OK(cddp_grad_define(&l->grads[i], &l->parameters[i].tensor, &l->err));
            float *g = l->grads[i].value.storage;
            for (uint32_t k = 0; k < 300; k++)
                g[k] =
                    0.5f + (float)((i * 300 + k) * 2654435761u % 1000003u * (l->r + 1) % 65537u) /
                               65537.0f;
            lane_hook(l, i);
        }
        lane_end(l);
        size_t now = 0;
        for (size_t i = 0; i < 4; i++)
            for (size_t k = 0; k < 300; k++) {
                float x = ((float *)l->grads[i].value.storage)[k];
                now += step > 0 && x != first[l->r][i * 300 + k];
                first[l->r][i * 300 + k] = x;
            }
        if (step == 1) changed = now;
        if (step == 2) CHECK(now == 0);
    }
    CHECK((changed > 0) == (l->w == 3));
}
TEST(rebuild, perturbs_low_bits_for_three_ranks) { lab_of(3, layout_bits_body, NULL); }
TEST(rebuild, perturbs_nothing_for_two_ranks) { lab_of(2, layout_bits_body, NULL); }

/* ---- static graph ---- */

LAB(static_graph, counts_collectives_as_pytorch_does, 2) /* RED-13, STA-06, C10-10, REB-03 */
{
    static const size_t reductions[4] = {2, 1, 1, 1}, broadcasts[4] = {0, 0, 2, 0};
    three_layers(l);
    small_caps(l);
    l->options.static_graph = true;
    lane_wrap(l);
    for (int i = 0; i < 4; i++) {
        lane_zero_grad(l, true);
        lane_mark(l);
        lane_iterate(l, 1.0 + l->r);
        size_t buckets = i < 2 ? 1 : 2;
        CHECK(lane_posts(l, CDDP_OP_ALLREDUCE) == reductions[i] - 1 + buckets);
        CHECK(lane_posts(l, CDDP_OP_BROADCAST) == broadcasts[i]);
        CHECK(lane_value(l, 3) == 1.5);
    }
    CHECK_LAYOUT("5 4, 3 2 1 0");
}

LAB(static_graph, sends_the_used_map_before_the_buckets, 2) /* STA-03 */
{
    size_t first_int = 0, first_float = 0;
    lane_add(l, "p", CDDP_F32, 2);
    l->options.static_graph = true;
    lane_wrap(l);
    lane_mark(l);
    lane_iterate(l, 1.0);
    for (size_t e = l->since; e < l->sink.count; e++) {
        if (l->sink.events[e].kind != CDDP_EV_collective_post) continue;
        if (l->sink.events[e].as.collective_post.dtype == CDDP_I32)
            first_int = e;
        else
            first_float = e;
    }
    CHECK(first_int < first_float);
}

LAB(static_graph, unused_sets_may_differ_between_ranks, 2) /* STA-01 */
{
    l->options.static_graph = true;
    for (int i = 0; i < 3; i++) lane_add(l, i == 0 ? "a" : i == 1 ? "b" : "c", CDDP_F32, 2);
    lane_wrap(l);
    for (int step = 0; step < 4; step++) {
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_grad(l, l->r, 1.0 + l->r);
        lane_end(l);
        CHECK(lane_value(l, 0) == 0.5 && lane_value(l, 1) == 1.0 && !lane_has(l, 2));
    }
    CHECK_LAYOUT("0 1 2"); /* rank 0's arrival, then its unused ones (REB-02) */
}

LAB(static_graph, a_layer_used_twice_is_ready_at_its_second_gradient, 2) /* STA-05 */
{
    l->options.static_graph = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
    for (int step = 0; step < 3; step++) {
        lane_zero_grad(l, true);
        lane_forward(l);
        lane_forward(l); /* STA-08: several forwards, one backward */
        lane_grad(l, 1, 1.0 + l->r);
        lane_grad(l, 0, 1.0);
        lane_grad(l, 1, 1.0 + l->r);
        lane_end(l);
        CHECK(lane_value(l, 1) == 3.0 && lane_value(l, 0) == 1.0);
    }
}

LAB(static_graph, counting_belongs_to_the_first_synchronised_backward, 2) /* NSY-07 */
{
    l->options.static_graph = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_wrap(l);
    cddp_ddp_no_sync_begin(l->ddp);
    lane_iterate(l, 1.0 + l->r);
    cddp_ddp_no_sync_end(l->ddp);
    CHECK(lane_value(l, 0) == 1.0 + l->r);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 3.0); /* (1+1+2+2)/2 */
    lane_zero_grad(l, true);
    lane_iterate(l, 1.0 + l->r);
    CHECK(lane_value(l, 0) == 1.5);
}

/* STA-02, ERR-04, TI-B-11 */
LAB(static_graph, can_be_set_after_construction_but_not_after_a_forward, 1)
{
    cddp_ddp_logging log = {.size = sizeof log};
    lane_add(l, "a", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_set_static_graph(l->ddp, &l->err));
    CHECK_OK(cddp_ddp_set_static_graph(l->ddp, &l->err));
    CHECK(lane_has_mark(l, "static_graph_set_twice"));
    CHECK_OK(cddp_ddp_get_logging(l->ddp, &log, &l->err));
    CHECK(log.static_graph);
    lane_iterate(l, 1.0);
    lane_unwrap(l);
    lane_wrap(l);
    lane_iterate(l, 1.0);
    CHECK_FAILS(cddp_ddp_set_static_graph(l->ddp, &l->err), CDDP_E_STATE,
                "before the training loop");
}

/* Its used map is made then: as wide as one that is made with the wrapper. */
LAB(static_graph, set_after_construction_sums_the_use_of_all_ranks, 3)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    for (int i = 0; i < 6; i++) lane_add(l, names[i], CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_set_static_graph(l->ddp, &l->err));
    lane_forward(l);
    lane_grad(l, 3 + l->r, 3.0); /* d, e and f are each used on one rank, a to c on none */
    lane_end(l);
    for (size_t v = 0; v < 6; v++) CHECK(v < 3 ? !lane_has(l, v) : lane_value(l, v) == 1.0);
    for (size_t i = 0; i < l->sink.count; i++) {
        const cddp_event *e = &l->sink.events[i];
        CHECK(e->kind != CDDP_EV_used_global ||
              e->as.used_global.used == (e->as.used_global.param < 3 ? 0 : 1));
    }
    CHECK(lane_count(l, CDDP_EV_used_global, -1) == 6);
}

LAB(static_graph, ignores_find_unused_parameters, 2) /* STA-02 */
{
    l->options.static_graph = l->options.find_unused_parameters = true;
    lane_add(l, "a", CDDP_F32, 2);
    lane_add(l, "b", CDDP_F32, 2);
    lane_wrap(l);
    CHECK_OK(cddp_ddp_forward_begin(l->ddp, true, &l->err));
    CHECK(!cddp_ddp_wants_graph_search(l->ddp));
    CHECK_OK(cddp_ddp_forward_end(l->ddp, NULL, &l->err));
    lane_grad(l, 0, 1.0 + l->r);
    lane_end(l);
    CHECK(lane_value(l, 0) == 1.5 && !lane_has(l, 1));
}

TEST_MAIN()
