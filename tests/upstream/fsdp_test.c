/* SPDX-License-Identifier: Apache-2.0 */
/* Upstream's tests of fully sharded models that no other test shows, with their shapes and windows.
** Numbers are small integers, so that sums are exact in any order: what W ranks train is what one
** process trains, bit for bit. docs/semantics.md has the table, and what is left out.
*/
#include "tests/unit/core/fsdp/fixture.h"

#define DELAY_NS UINT64_C(250000000)

/* ---- values beside one process ---- */

/* Windows of micro-steps without a reduction, and with one each; one step at the end. */
typedef struct windows {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_prefetch prefetch;
    bool begins_with_no_sync;
} windows;

static void accumulates(lane *l)
{
    const windows *w = l->lab->data;
    int steps[10];
    toy t;
    toy_init(&t, l);
    t.options.strategy = w->strategy;
    t.options.backward_prefetch = w->prefetch;
    toy_wrap(&t);
    for (int m = 0; m < 10; m++) {
        /* three windows of three, and what is left is reduced by the last one */
        const bool no_sync = m < 9 && (m / 3 % 2 == 0) == w->begins_with_no_sync;
        if (no_sync) CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
        toy_iterate(&t, m);
        if (no_sync) CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
        steps[m] = m;
    }
    toy_step(&t);
    toy_step_alone(&t, l->w, steps, 10);
    toy_check_padding(&t);
    toy_fini(&t);
}
TEST(accumulation, in_any_windows_is_one_large_batch) /* TI-N-02 */
{
    for (int i = 0; i < 3 * 3 * 2; i++) {
        windows w = {(cddp_fsdp_strategy)(i % 3), (cddp_fsdp_prefetch)(i / 3 % 3), i / 9 == 0};
        cd_test_row("strategy %d, prefetch %d, %s", (int)w.strategy, (int)w.prefetch,
                    w.begins_with_no_sync ? "no, yes, no" : "yes, no, yes");
        lab_of(2, accumulates, &w);
    }
}

/* One rank is late, in forward, in backward, before its step, or always. */
typedef struct delays {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
    bool in_forward, in_backward, in_step;
} delays;

static void wait_a_little(lane *l, bool waits)
{
    if (waits && l->r == 1) CHECK_OK(l->rank->ops->sleep_ns(l->rank, DELAY_NS, &l->err));
}

static void trains_late(lane *l)
{
    const delays *d = l->lab->data;
    toy t;
    toy_init(&t, l);
    t.options.strategy = d->strategy;
    t.options.layout = d->layout;
    toy_wrap(&t);
    for (int step = 0; step < 3; step++) {
        wait_a_little(l, d->in_forward);
        toy_forward(&t);
        wait_a_little(l, d->in_backward);
        toy_backward(&t, step);
        wait_a_little(l, d->in_step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
    }
    toy_fini(&t);
}
TEST(training, of_a_late_rank_is_the_same) /* TI-N-04, TI-N-10 */
{
    for (int i = 0; i < 3 * 2 * 4; i++) {
        const int where = i / 6;
        delays d = {(cddp_fsdp_strategy)(i % 3), (cddp_fsdp_layout)(i / 3 % 2),
                    where == 0 || where == 3, where == 1 || where == 3, where >= 2};
        cd_test_row("strategy %d, layout %d, delay %d", (int)d.strategy, (int)d.layout, where);
        lab_of(3, trains_late, &d);
    }
}

static void changes_its_shard(lane *l)
{
    toy t;
    toy_init(&t, l);
    t.options.layout = *(const cddp_fsdp_layout *)l->lab->data;
    toy_wrap(&t);
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(t.fsdp, i, &piece, &l->err));
        CHECK_OK(l->device->fill(&piece.tensor, 3.0, NULL, &l->err));
        for (int64_t e = 0; e < toy_numel(i); e++) t.values[i][e] = 3;
    }
    toy_iterate(&t, 0); /* its forward compares with t.values */
    toy_fini(&t);
}
TEST(training, begins_with_what_the_shards_are) /* TI-N-05 */
{
    for (int k = 0; k < 2; k++) {
        cddp_fsdp_layout layout = (cddp_fsdp_layout)k;
        lab_of(2, changes_its_shard, &layout);
    }
}

/* ---- a unit without the root around it ---- */

static void runs_a_alone(lane *l)
{
    const int step = 0;
    toy t;
    toy_init(&t, l);
    toy_wrap(&t);
    CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_A, true, &l->err));
    toy_check_unit(&t, TOY_A);
    CHECK_OK(cddp_fsdp_post_forward(t.fsdp, TOY_A, true, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(t.fsdp, TOY_A, &l->err));
    toy_gradients_of(&t, TOY_A, step);
    CHECK_OK(cddp_fsdp_post_backward(t.fsdp, TOY_A, &l->err));
    CHECK_OK(cddp_fsdp_backward_end(t.fsdp, &l->err));
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(t.fsdp, i, &piece, &l->err));
        CHECK((piece.gradient.kind == CDDP_GRAD_DENSE) == (toy_unit(i) == TOY_A));
        for (int64_t e = 0; e < piece.count && toy_unit(i) == TOY_A; e++) {
            float sum = 0;
            for (uint32_t r = 0; r < l->w; r++)
                sum += toy_gradient(&t, r, i, piece.first + e, step);
            CHECK(toy_get(l, &piece.gradient.value, e) == (double)(sum / (float)l->w));
        }
    }
    toy_fini(&t);
}
TEST(unit, runs_without_the_root) { lab_of(2, runs_a_alone, NULL); } /* TI-N-11 */

/* ---- rows ---- */

static void counts_rows(lane *l)
{
    const cddp_fsdp_strategy strategy = *(const cddp_fsdp_strategy *)l->lab->data;
    toy t;
    toy_init(&t, l);
    t.options.layout = CDDP_FSDP_ROWS;
    t.options.strategy = strategy;
    t.options.order_check = CDDP_FSDP_ORDER_NONE;
    toy_wrap(&t);
    for (int step = 0; step < 2; step++) {
        lane_mark(l);
        toy_forward(&t);
        CHECK(lane_posts(l, CDDP_OP_ALLGATHER) == TOY_UNITS);
        lane_mark(l);
        toy_backward(&t, step);
        /* the root stays full: reshard_after_forward is None, or False */
        CHECK(lane_posts(l, CDDP_OP_ALLGATHER) ==
              (strategy == CDDP_FSDP_FULL_SHARD ? TOY_UNITS - 1 : 0));
        CHECK(lane_posts(l, CDDP_OP_REDUCE_SCATTER) == TOY_UNITS);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
    }
    toy_fini(&t);
}
TEST(rows, have_the_counts_of_fully_shard) /* TI-N-16 */
{
    for (int i = 0; i < 2; i++) {
        cddp_fsdp_strategy strategy = (cddp_fsdp_strategy)i;
        lab_of(2, counts_rows, &strategy);
    }
}

/* Parameters of one unit whose rows no world divides. */
#define SHAPES 4
static const int64_t shapes[SHAPES][2] = {{16, 15}, {7, 15}, {15, 3}, {17, 8}};

static float gradient(uint32_t rank, size_t i, int64_t e, int step)
{
    return (float)(((int64_t)(i + 2) * (e + 1) + 3 * (int64_t)rank + 5 * step) % 13 - 6);
}

typedef struct matrices {
    lane *l;
    cddp_fsdp *fsdp;
    size_t count;
    const char *other_name; /* of the first one: a tied weight, or NULL */
    float values[SHAPES][256];
} matrices;

static void open_matrices(matrices *m)
{
    static const char *const names[SHAPES] = {"first", "second", "third", "fourth"};
    lane *l = m->l;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    for (size_t i = 0; i < m->count; i++) {
        cddp_parameter *p = lane_add(l, names[i], CDDP_F32, shapes[i][0] * shapes[i][1]);
        p->tensor = cddp_tensor_of(l->device, p->tensor.storage, 0, CDDP_F32, shapes[i], 2);
        for (int64_t e = 0; e < cddp_tensor_numel(&p->tensor); e++)
            m->values[i][e] = ((float *)p->tensor.storage)[e] = (float)(e % 11) - (float)i;
    }
    if (m->other_name != NULL) {
        l->parameters[m->count] = l->parameters[0];
        l->parameters[m->count].name = m->other_name;
    }
    o.parameters = l->parameters;
    o.parameter_count = m->count + (m->other_name != NULL);
    o.group = l->group;
    o.layout = CDDP_FSDP_ROWS;
    CHECK_OK(cddp_fsdp_create(&o, &m->fsdp, &l->err));
}

/* uses: how often each parameter is used, so that as many gradients are added up. */
static void train_matrices(matrices *m, int step, int uses)
{
    lane *l = m->l;
    CHECK_OK(cddp_fsdp_pre_forward(m->fsdp, 0, true, &l->err));
    for (size_t i = 0; i < m->count; i++)
        for (int64_t e = 0; e < shapes[i][0] * shapes[i][1]; e++)
            CHECK(toy_get(l, cddp_fsdp_parameter(m->fsdp, i), e) == (double)m->values[i][e]);
    CHECK_OK(cddp_fsdp_post_forward(m->fsdp, 0, true, &l->err));
    CHECK_OK(cddp_fsdp_pre_backward(m->fsdp, 0, &l->err));
    for (size_t i = 0; i < m->count; i++) {
        cddp_grad *grad = &l->grads[i];
        CHECK_OK(cddp_grad_define(grad, cddp_fsdp_parameter(m->fsdp, i), &l->err));
        for (int64_t e = 0; e < shapes[i][0] * shapes[i][1]; e++)
            toy_set(l, &grad->value, e, (double)uses * (double)gradient(l->r, i, e, step));
    }
    CHECK_OK(cddp_fsdp_post_backward(m->fsdp, 0, &l->err));
    CHECK_OK(cddp_fsdp_backward_end(m->fsdp, &l->err));
}

static void step_matrices(matrices *m, int step, int uses)
{
    lane *l = m->l;
    for (size_t i = 0; i < m->count; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(m->fsdp, i, &piece, &l->err));
        for (int64_t e = 0; e < piece.count; e++)
            toy_set(l, &piece.tensor, e,
                    toy_get(l, &piece.tensor, e) - 0.5 * toy_get(l, &piece.gradient.value, e));
        for (int64_t e = 0; e < shapes[i][0] * shapes[i][1]; e++) {
            float sum = 0;
            for (uint32_t r = 0; r < l->w; r++) sum += (float)uses * gradient(r, i, e, step);
            m->values[i][e] -= 0.5f * (sum / (float)l->w);
        }
    }
    CHECK_OK(cddp_fsdp_zero_grad(m->fsdp, true, &l->err));
}

static void close_matrices(matrices *m)
{
    cddp_fsdp_destroy(m->fsdp);
    for (size_t i = 0; i < m->count; i++) cddp_grad_fini(&m->l->grads[i]);
}

static void trains_uneven_rows(lane *l)
{
    matrices m = {.l = l, .count = SHAPES};
    open_matrices(&m);
    for (int step = 0; step < 3; step++) {
        train_matrices(&m, step, 1);
        step_matrices(&m, step, 1);
    }
    close_matrices(&m);
}
TEST(rows, of_uneven_matrices_train_like_one_process) /* TI-N-09 */
{
    for (uint32_t world = 1; world <= 5; world++) {
        cd_test_row("W %u", world);
        lab_of(world, trains_uneven_rows, NULL);
    }
}

/* Bug F-09: of a tied weight the last rank's rows stood still. */
static void trains_a_tied_weight(lane *l)
{
    matrices m = {.l = l, .count = 2, .other_name = "decoder"};
    float before[256];
    open_matrices(&m);
    CHECK_OK(cddp_fsdp_pre_forward(m.fsdp, 0, false, &l->err));
    CHECK(cddp_fsdp_parameter(m.fsdp, 2)->storage == cddp_fsdp_parameter(m.fsdp, 0)->storage);
    CHECK_OK(cddp_fsdp_post_forward(m.fsdp, 0, false, &l->err));
    for (int step = 0; step < 3; step++) {
        memcpy(before, m.values[0], sizeof before);
        train_matrices(&m, step, 2);
        step_matrices(&m, step, 2);
        for (int64_t row = 0; row < shapes[0][0]; row++) /* every row moved */
            CHECK(memcmp(before + row * shapes[0][1], m.values[0] + row * shapes[0][1],
                         (size_t)shapes[0][1] * sizeof *before) != 0);
    }
    train_matrices(&m, 3, 2); /* compares what the last step made */
    close_matrices(&m);
}
TEST(rows, of_a_tied_weight_all_move) /* TI-N-14 */
{
    for (uint32_t world = 2; world <= 5; world++) {
        cd_test_row("W %u", world);
        lab_of(world, trains_a_tied_weight, NULL);
    }
}

TEST_MAIN()
