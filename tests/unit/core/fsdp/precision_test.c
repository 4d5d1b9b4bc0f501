/* SPDX-License-Identifier: Apache-2.0 */
/* Mixed precision: which dtype travels, which stays, and where sums round. */
#include "tests/unit/core/fsdp/fixture.h"

typedef struct precision {
    cddp_fsdp_layout layout;
    cddp_dtype param, reduce;    /* as asked for */
    cddp_dtype gathers, reduces; /* what travels */
    bool keep_low_precision_grads;
} precision;

/* Small whole numbers, and parameters that bf16 has: momentum and steps are exact for a while. */
static void trains(lane *l)
{
    const precision *p = l->lab->data;
    toy t;
    toy_init(&t, l);
    t.options.layout = p->layout;
    t.options.mixed_precision.param_dtype = p->param;
    t.options.mixed_precision.reduce_dtype = p->reduce;
    toy_wrap(&t);
    for (int step = 0; step < 2; step++) {
        lane_mark(l);
        toy_iterate(&t, step);
        toy_step(&t);
        toy_step_alone(&t, l->w, &step, 1);
        toy_check_padding(&t);
        for (size_t i = l->since; i < l->sink.count; i++) {
            const cddp_event_collective_post *c = &l->sink.events[i].as.collective_post;
            if (l->sink.events[i].kind != CDDP_EV_collective_post || c->dtype == CDDP_I64) continue;
            CHECK(c->dtype == (int64_t)(c->op == CDDP_OP_ALLGATHER ? p->gathers : p->reduces));
        }
    }
    cddp_fsdp_unit_info u = {.size = sizeof u};
    CHECK_OK(cddp_fsdp_unit(t.fsdp, TOY_A, &u, &l->err));
    CHECK(u.dtype == CDDP_F32 && u.param_dtype == p->gathers && u.reduce_dtype == p->reduces);
    toy_fini(&t);
}

#define NOT CDDP_DTYPE_COUNT

TEST(precision, travels_as_asked) /* FMP-01, FMP-02, TI-N-18 */
{
    static const precision cases[] = {
        {CDDP_FSDP_FLAT, NOT, NOT, CDDP_F32, CDDP_F32, false},
        {CDDP_FSDP_FLAT, CDDP_BF16, NOT, CDDP_BF16, CDDP_BF16, false},
        {CDDP_FSDP_FLAT, CDDP_BF16, CDDP_F32, CDDP_BF16, CDDP_F32, false},
        {CDDP_FSDP_FLAT, NOT, CDDP_BF16, CDDP_F32, CDDP_BF16, false},
        {CDDP_FSDP_ROWS, CDDP_BF16, NOT, CDDP_BF16, CDDP_BF16, false},
        {CDDP_FSDP_ROWS, CDDP_BF16, CDDP_F32, CDDP_BF16, CDDP_F32, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        precision p = cases[i];
        cd_test_row("case %zu", i);
        lab_of(2, trains, &p);
        lab_of(4, trains, &p);
    }
}

/* Gradients of 1 in bf16: 300 of them are 256 in bf16, where 256 + 1 is 256. */
static void adds_ones(lane *l)
{
    const precision *p = l->lab->data;
    cddp_fsdp *f = NULL;
    cddp_fsdp_options o = cddp_fsdp_options_default();
    lane_add(l, "w", CDDP_F32, 6);
    o.parameters = l->parameters;
    o.parameter_count = 1;
    o.group = l->group;
    o.layout = p->layout;
    o.mixed_precision.param_dtype = p->param;
    o.mixed_precision.reduce_dtype = p->reduce;
    CHECK_OK(cddp_fsdp_create(&o, &f, &l->err));
    for (int micro = 0; micro < 300; micro++) {
        if (micro == 0) CHECK_OK(cddp_fsdp_no_sync_begin(f, &l->err));
        if (micro == 299) CHECK_OK(cddp_fsdp_no_sync_end(f, &l->err));
        CHECK_OK(cddp_fsdp_pre_forward(f, 0, true, &l->err));
        CHECK_OK(cddp_fsdp_post_forward(f, 0, true, &l->err));
        CHECK_OK(cddp_fsdp_pre_backward(f, 0, &l->err));
        const bool fresh = l->grads[0].kind == CDDP_GRAD_UNDEFINED;
        CHECK_OK(cddp_grad_define(&l->grads[0], cddp_fsdp_parameter(f, 0), &l->err));
        for (int64_t e = 0; e < 6; e++)
            toy_set(l, &l->grads[0].value, e, fresh ? 1 : toy_get(l, &l->grads[0].value, e) + 1);
        CHECK_OK(cddp_fsdp_post_backward(f, 0, &l->err));
        CHECK_OK(cddp_fsdp_backward_end(f, &l->err));
    }
    cddp_parameter flat;
    CHECK_OK(cddp_fsdp_flat(f, 0, &flat, &l->err));
    l->lab->out[l->r][0] = toy_get(l, &flat.grad->value, 0);
    cddp_fsdp_destroy(f);
    cddp_grad_fini(&l->grads[0]);
}

TEST(precision, of_accumulation_is_that_of_the_layout) /* FMP-04, TI-N-19 */
{
    static const struct {
        precision p;
        double wanted;
    } cases[] = {{{CDDP_FSDP_FLAT, CDDP_BF16, CDDP_F32, NOT, NOT, false}, 256},
                 {{CDDP_FSDP_ROWS, CDDP_BF16, CDDP_F32, NOT, NOT, false}, 300},
                 {{CDDP_FSDP_ROWS, CDDP_BF16, NOT, NOT, NOT, false}, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        precision p = cases[i].p;
        cd_test_row("case %zu", i);
        lab b = {.world_size = 2, .body = adds_ones, .data = &p};
        lab_run(&b);
        for (uint32_t r = 0; r < 2; r++) assert_true(b.out[r][0] == cases[i].wanted);
    }
}

static void keeps_low(lane *l)
{
    toy t;
    toy_init(&t, l);
    t.options.mixed_precision.param_dtype = CDDP_BF16;
    t.options.mixed_precision.keep_low_precision_grads = true;
    toy_wrap(&t);
    cddp_parameter flat;
    for (int step = 0; step < 2; step++) { /* two reductions without a step in between */
        toy_iterate(&t, step);
        CHECK_OK(cddp_fsdp_flat(t.fsdp, TOY_A, &flat, &l->err));
        CHECK(flat.tensor.dtype == CDDP_F32 && flat.grad->value.dtype == CDDP_BF16);
    }
    for (size_t i = 2; i < 4; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(t.fsdp, i, &piece, &l->err));
        for (int64_t e = 0; e < piece.count; e++) {
            double sum = 0;
            for (uint32_t r = 0; r < l->w; r++)
                for (int step = 0; step < 2; step++)
                    sum += (double)toy_gradient(&t, r, i, piece.first + e, step);
            CHECK(toy_get(l, &piece.gradient.value, e) == sum / l->w);
        }
    }
    toy_fini(&t);
}
TEST(precision, of_gradients_stays_low_where_asked) { lab_of(2, keeps_low, NULL); } /* FMP-08 */

/* What a program casts: "a" by itself, the root and "b" as all. */
static void says_casts(lane *l)
{
    toy t;
    cddp_fsdp_unit_info info = {.size = sizeof info};
    const cddp_fsdp_unit_options own = {.module = "a",
                                        .mixed_precision = {.param_dtype = CDDP_F16,
                                                            .reduce_dtype = CDDP_DTYPE_COUNT,
                                                            .output_dtype = CDDP_F16,
                                                            .cast_forward_inputs = true}};
    toy_init(&t, l);
    t.options.mixed_precision.param_dtype = CDDP_BF16;
    t.options.unit_options = &own;
    t.options.unit_options_count = 1;
    toy_wrap(&t);
    CHECK_OK(cddp_fsdp_unit(t.fsdp, 0, &info, &l->err)); /* cast_root_forward_inputs */
    CHECK(info.input_dtype == CDDP_BF16 && info.output_dtype == CDDP_DTYPE_COUNT);
    CHECK_OK(cddp_fsdp_unit(t.fsdp, TOY_A, &info, &l->err));
    CHECK(info.input_dtype == CDDP_F16 && info.output_dtype == CDDP_F16);
    CHECK_OK(cddp_fsdp_unit(t.fsdp, TOY_B, &info, &l->err));
    CHECK(info.input_dtype == CDDP_DTYPE_COUNT && info.output_dtype == CDDP_DTYPE_COUNT);
    toy_fini(&t);
}
TEST(precision, of_inputs_and_outputs_is_said) { lab_of(2, says_casts, NULL); } /* FMP-05, FMP-06 */

static void casts_buffers(lane *l)
{
    toy t;
    lane_add_buffer(l, "mean", CDDP_F32, 3, 0.1);
    lane_add_buffer(l, "count", CDDP_I64, 1, 7);
    toy_init(&t, l);
    t.options.buffers = l->buffers;
    t.options.buffer_count = 2;
    t.options.buffer_dtype = CDDP_BF16;
    toy_wrap(&t);
    CHECK(cddp_fsdp_buffer(t.fsdp, 0)->dtype == CDDP_F32);
    toy_iterate(&t, 0);
    CHECK(cddp_fsdp_buffer(t.fsdp, 0)->dtype == CDDP_BF16); /* from the first forward on */
    CHECK(cddp_fsdp_buffer(t.fsdp, 1)->dtype == CDDP_I64);
    CHECK(toy_get(l, cddp_fsdp_buffer(t.fsdp, 0), 2) != 0.1);
    toy_fini(&t);
}
TEST(precision, of_buffers_is_cast_once) { lab_of(2, casts_buffers, NULL); } /* FMP-07 */

static void divides_by(lane *l)
{
    const uint32_t factor = *(const uint32_t *)l->lab->data;
    toy t;
    toy_init(&t, l);
    t.options.gradient_divide_factor = factor;
    toy_wrap(&t);
    toy_iterate(&t, 0);
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        CHECK_OK(cddp_fsdp_get_piece(t.fsdp, i, &piece, &l->err));
        for (int64_t e = 0; e < piece.count; e++) {
            float sum = 0;
            for (uint32_t r = 0; r < l->w; r++) sum += toy_gradient(&t, r, i, piece.first + e, 0);
            CHECK((float)toy_get(l, &piece.gradient.value, e) == sum / (float)factor);
        }
    }
    toy_fini(&t);
}
TEST(division, by_a_factor_rounds_once) /* FSD-06, FS2-11, TI-N-17 */
{
    static const uint32_t factors[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 24, 100};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        uint32_t factor = factors[i];
        cd_test_row("factor %u", factor);
        lab_of(3, divides_by, &factor);
    }
}

TEST_MAIN()
