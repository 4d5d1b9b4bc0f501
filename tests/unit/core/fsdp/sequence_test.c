/* SPDX-License-Identifier: Apache-2.0 */
/* Which collectives are posted in which order, and how much is full at a time, against sequences
** and memory that were seen of PyTorch 1.13.1. */
#include "tests/unit/core/fsdp/fixture.h"

typedef struct mode {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_prefetch prefetch;
    bool forward_prefetch;
    const char *wanted;
} mode;

static void iterates_twice(lane *l)
{
    const mode *m = l->lab->data;
    toy t;
    toy_init(&t, l);
    t.options.strategy = m->strategy;
    t.options.backward_prefetch = m->prefetch;
    t.options.forward_prefetch = m->forward_prefetch;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    lane_mark(l);
    toy_iterate(&t, 1);
    CHECK_SEQUENCE(&t, m->wanted);
    CHECK(lane_posts(l, CDDP_OP_BROADCAST) == 0);
    cddp_fsdp_counts counts = {.size = sizeof counts};
    CHECK_OK(cddp_fsdp_get_counts(t.fsdp, &counts, &l->err));
    CHECK(counts.reductions == 2 * TOY_UNITS && counts.replica_reductions == 0);
    CHECK(counts.gathers > 0 && counts.full_bytes <= counts.full_bytes_peak);
    toy_fini(&t);
}

TEST(sequence, is_that_of_the_strategy) /* TI-N-01 */
{
    static const mode modes[] = {
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_PREFETCH_NONE, false,
         "AG R, AG a, AG b, AG b, RS b, AG a, RS a, RS R"},
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_BACKWARD_PRE, false,
         "AG R, AG a, AG b, AG b, AG a, RS b, RS a, RS R"},
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_BACKWARD_POST, false,
         "AG R, AG a, AG b, AG b, AG a, RS b, RS a, RS R"},
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_PREFETCH_NONE, true,
         "AG R, AG a, AG b, AG b, RS b, AG a, RS a, RS R"},
        {CDDP_FSDP_SHARD_GRAD_OP, CDDP_FSDP_BACKWARD_PRE, false,
         "AG R, AG a, AG b, RS b, RS a, RS R"},
    };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        mode m = modes[i];
        cd_test_row("strategy %d, prefetch %d", (int)m.strategy, (int)m.prefetch);
        lab_of(2, iterates_twice, &m);
    }
}

static void sums_everywhere(lane *l)
{
    toy t;
    toy_init(&t, l);
    t.options.strategy = CDDP_FSDP_NO_SHARD;
    toy_wrap(&t);
    lane_mark(l);
    toy_iterate(&t, 0);
    CHECK_SEQUENCE(&t, "AR b, AR a, AR R");
    cddp_fsdp_counts counts = {.size = sizeof counts};
    CHECK_OK(cddp_fsdp_get_counts(t.fsdp, &counts, &l->err));
    CHECK(counts.replica_reductions == 3 && counts.reductions == 0 && counts.gathers == 0);
    toy_fini(&t);
}
TEST(sequence, of_no_shard_is_that_of_ddp) { lab_of(2, sums_everywhere, NULL); }
TEST(sequence, of_one_rank_reduces_over_itself) { lab_of(1, sums_everywhere, NULL); } /* FSD-13 */

static void windows(lane *l)
{
    const bool keeps = *(const cddp_fsdp_strategy *)l->lab->data == CDDP_FSDP_SHARD_GRAD_OP;
    toy t;
    toy_init(&t, l);
    t.options.strategy = *(const cddp_fsdp_strategy *)l->lab->data;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    lane_mark(l);
    CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
    toy_iterate(&t, 1);
    CHECK_SEQUENCE(&t, keeps ? "AG R, AG a, AG b" : "AG R, AG a, AG b, AG b, AG a");
    lane_mark(l);
    toy_iterate(&t, 2);
    CHECK_SEQUENCE(&t, keeps ? "" : "AG R, AG a, AG b, AG b, AG a");
    CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
    lane_mark(l);
    toy_iterate(&t, 3);
    CHECK_SEQUENCE(&t,
                   keeps ? "RS b, RS a, RS R" : "AG R, AG a, AG b, AG b, AG a, RS b, RS a, RS R");
    toy_fini(&t);
}
TEST(sequence, of_no_sync_reduces_nothing) /* FSY-03 */
{
    cddp_fsdp_strategy strategies[] = {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_SHARD_GRAD_OP};
    for (size_t i = 0; i < 2; i++) lab_of(2, windows, &strategies[i]);
}

static void evaluates(lane *l)
{
    toy t;
    toy_init(&t, l);
    t.options.strategy = *(const cddp_fsdp_strategy *)l->lab->data;
    toy_wrap(&t);
    for (int step = 0; step < 3; step++) {
        toy_iterate(&t, step);
        /* between backward and step: what PyTorch would keep is stale afterwards (FSH-15) */
        lane_mark(l);
        CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, false, &l->err));
        for (uint32_t k = TOY_A; k < TOY_UNITS; k++) {
            CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, k, false, &l->err));
            toy_check_unit(&t, k);
            CHECK_OK(cddp_fsdp_post_forward(t.fsdp, k, false, &l->err));
        }
        CHECK_OK(cddp_fsdp_post_forward(t.fsdp, TOY_ROOT, false, &l->err));
        CHECK_SEQUENCE(&t, "AG R, AG a, AG b");
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
    }
    toy_fini(&t);
}
TEST(sequence, of_a_forward_without_gradients_leaves_nothing_full) /* FSH-15, FSH-16 */
{
    cddp_fsdp_strategy strategies[] = {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_SHARD_GRAD_OP};
    for (size_t i = 0; i < 2; i++) lab_of(2, evaluates, &strategies[i]);
}

static void uses_a_unit_twice(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    for (int step = 0; step < 2; step++) {
        lane_mark(l);
        CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
        toy_forward_unit(&t, TOY_A);
        toy_forward_unit(&t, TOY_B);
        toy_forward_unit(&t, TOY_A);
        CHECK_OK(cddp_fsdp_post_forward(t.fsdp, TOY_ROOT, true, &l->err));
        CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_ROOT, &l->err));
        CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err));
        CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_B, &l->err));
        toy_gradients_of(&t, TOY_B, step);
        CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_B, &l->err));
        CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err)); /* its first use */
        toy_gradients_of(&t, TOY_A, step);
        CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_A, &l->err));
        toy_gradients_of(&t, TOY_ROOT, step);
        CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_ROOT, &l->err));
        CHECK_OK(cddp_fsdp_backward_end(t.fsdp, &l->err));
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
    }
    CHECK_SEQUENCE(&t, "AG R, AG a, AG b, AG a, AG b, AG a, RS b, RS a, RS R");
    toy_fini(&t);
}
TEST(sequence, of_a_unit_used_twice_has_one_reduction) /* FSH-17, TI-N-12 */
{
    lab_of(2, uses_a_unit_twice, NULL);
}

static void leaves_a_unit_out(lane *l)
{
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    for (int step = 0; step < 2; step++) {
        lane_mark(l);
        toy_forward(&t);
        /* b's output did not reach the loss: PRE gathers it, and nothing uses it */
        CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_ROOT, &l->err));
        CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err));
        toy_gradients_of(&t, TOY_A, step);
        CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_A, &l->err));
        toy_gradients_of(&t, TOY_ROOT, step);
        CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_ROOT, &l->err));
        CHECK_OK(cddp_fsdp_backward_end(t.fsdp, &l->err));
        cddp_fsdp_counts counts = {.size = sizeof counts};
        CHECK_OK(cddp_fsdp_get_counts(t.fsdp, &counts, &l->err));
        CHECK(counts.full_bytes == 0);
    }
    CHECK_SEQUENCE(&t, "AG R, AG a, AG b, AG b, AG a, RS a, RS R");
    toy_fini(&t);
}
TEST(sequence, an_unused_gather_is_given_back) /* FSH-10, FSH-21, FS2-08 */
{
    lab_of(2, leaves_a_unit_out, NULL);
}

/* ---- memory: five units of 16 elements below a root of 16 ---- */

#define UNITS 6

typedef struct memory {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_prefetch prefetch;
    uint64_t forward, after_forward, peak; /* elements that are full */
} memory;

static uint64_t full_of(lane *l, const cddp_fsdp *f, bool peak)
{
    cddp_fsdp_counts counts = {.size = sizeof counts};
    CHECK_OK(cddp_fsdp_get_counts(f, &counts, &l->err));
    return (peak ? counts.full_bytes_peak : counts.full_bytes) / sizeof(float);
}

static void run_unit(lane *l, cddp_fsdp *f, uint32_t unit)
{
    CHECK_OK(cddp_fsdp_pre_backward(f, unit, &l->err));
    CHECK_OK(cddp_grad_define(&l->grads[unit], cddp_fsdp_parameter(f, unit), &l->err));
    CHECK_OK(l->device->fill(&l->grads[unit].value, 1.0, NULL, &l->err));
    if (unit > 0) CHECK_OK(cddp_fsdp_post_backward(f, unit, &l->err));
}

static void measures(lane *l)
{
    static const char *const names[] = {"w", "u1.w", "u2.w", "u3.w", "u4.w", "u5.w"};
    const memory *m = l->lab->data;
    cddp_fsdp *f = NULL;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    for (size_t i = 0; i < UNITS; i++) lane_add(l, names[i], CDDP_F32, 16);
    o.parameters = l->parameters;
    o.parameter_count = UNITS;
    o.group = l->group;
    o.wrap.kind = CDDP_FSDP_WRAP_ALWAYS;
    o.strategy = m->strategy;
    o.backward_prefetch = m->prefetch;
    CHECK_OK(cddp_fsdp_create(&o, &f, &l->err));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(cddp_fsdp_pre_forward(f, 0, true, &l->err));
        for (uint32_t k = 1; k < UNITS; k++) {
            CHECK_OK(cddp_fsdp_pre_forward(f, k, true, &l->err));
            CHECK(full_of(l, f, false) <= m->forward);
            CHECK_OK(cddp_fsdp_post_forward(f, k, true, &l->err));
        }
        CHECK_OK(cddp_fsdp_post_forward(f, 0, true, &l->err));
        CHECK(full_of(l, f, false) == m->after_forward);
        CHECK_OK(cddp_fsdp_pre_backward(f, 0, &l->err));
        for (uint32_t k = UNITS; k-- > 1;) run_unit(l, f, k);
        run_unit(l, f, 0);
        CHECK_OK(cddp_fsdp_post_backward(f, 0, &l->err));
        CHECK_OK(cddp_fsdp_backward_end(f, &l->err));
        CHECK(full_of(l, f, false) == 0);
    }
    CHECK(full_of(l, f, true) == m->peak);
    cddp_fsdp_destroy(f);
    for (size_t i = 0; i < l->count; i++) cddp_grad_fini(&l->grads[i]);
}

TEST(memory, of_full_parameters_is_the_law_of_the_strategy) /* TI-N-06, TI-N-20 */
{
    static const memory laws[] = {
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_PREFETCH_NONE, 32, 16, 32},
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_BACKWARD_POST, 32, 16, 32},
        {CDDP_FSDP_FULL_SHARD, CDDP_FSDP_BACKWARD_PRE, 32, 16, 48},
        {CDDP_FSDP_SHARD_GRAD_OP, CDDP_FSDP_BACKWARD_PRE, 96, 96, 96},
    };
    for (size_t i = 0; i < sizeof laws / sizeof laws[0]; i++) {
        memory m = laws[i];
        cd_test_row("strategy %d, prefetch %d", (int)m.strategy, (int)m.prefetch);
        lab_of(2, measures, &m);
    }
}

/* ---- the order check ---- */

static void counts_checks(lane *l)
{
    const cddp_fsdp_order_check check = *(const cddp_fsdp_order_check *)l->lab->data;
    toy t;
    uint64_t checks[3];
    toy_init(&t, l);
    t.options.order_check = check;
    toy_wrap(&t);
    for (int step = 0; step < 3; step++) {
        cddp_fsdp_counts counts = {.size = sizeof counts};
        toy_iterate(&t, step);
        CHECK_OK(cddp_fsdp_get_counts(t.fsdp, &counts, &l->err));
        checks[step] = counts.order_checks;
    }
    const uint64_t first = check == CDDP_FSDP_ORDER_NONE ? 0 : 8;
    CHECK(checks[0] == first); /* five gathers and three reductions */
    CHECK(checks[2] == (check == CDDP_FSDP_ORDER_EVERY_ITERATION ? 3 * first : first));
    toy_fini(&t);
}
TEST(order, is_exchanged_in_the_first_iteration) /* FSH-13 */
{
    for (cddp_fsdp_order_check check = 0; check < CDDP_FSDP_ORDER_CHECK_COUNT; check++)
        lab_of(2, counts_checks, &check);
}

TEST_MAIN()
