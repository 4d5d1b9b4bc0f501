/* SPDX-License-Identifier: Apache-2.0 */
/* How many references the ranks of one thread need: counted by the engine, which has one parameter
** of one element. */
#include "core/oracle/share.h"

#include "cddp/alloc.h"
#include "core/tensor/cpu.h"
#include "tests/support/test.h"

#include <string.h>

typedef struct counter {
    cd_oracle_engine table;
    float value[1];
    cddp_tensor parameter;
    cddp_grad gradient;
    uint64_t runs; /* of a rank's micro-step */
} counter;

static cddp_status counter_load(void *self, const cddp_tensor *parameters,
                                const cddp_tensor *buffers, cddp_error *err)
{
    counter *t = self;
    (void)buffers;
    cddp_grad_drop(&t->gradient);
    return cddp_device_cpu()->copy(&t->parameter, &parameters[0], NULL, err);
}

static void counter_drop(void *self) { cddp_grad_drop(&((counter *)self)->gradient); }

static cddp_status counter_run(void *self, const cd_oracle_part *part, cddp_error *err)
{
    counter *t = self;
    t->runs++;
    cddp_status status = cddp_grad_define(&t->gradient, &t->parameter, err);
    if (status == CDDP_OK)
        *(float *)t->gradient.value.storage = t->value[0] * (float)(part->rank + 1);
    t->gradient.is_fresh = false;
    return status;
}

static uint32_t counter_samples(void *self, const cd_oracle_part *part)
{
    (void)self;
    (void)part;
    return 1;
}

static const cddp_grad *counter_gradients(void *self) { return &((counter *)self)->gradient; }

static cddp_tensor scalar(float *storage)
{
    const int64_t one = 1;
    return cddp_tensor_of(cddp_device_cpu(), storage, 0, CDDP_F32, &one, 1);
}

/* What a world of ranks asked for in one reduction. */
typedef struct asked {
    uint64_t references, runs, without; /* computed; runs of the engine; ranks that got none */
} asked;

/* Every rank in turn, the way its start, the scale of its loss and what it found say. */
static asked ask_scaled(uint32_t world, uint32_t starts, uint32_t scales, bool fails,
                        uint32_t steps)
{
    cddp_error err = CDDP_ERROR_INIT;
    asked a = {0};
    counter engine = {.table = {.self = &engine,
                                .load = counter_load,
                                .drop_gradients = counter_drop,
                                .run = counter_run,
                                .sample_count = counter_samples,
                                .gradients = counter_gradients}};
    engine.parameter = scalar(engine.value);
    cd_oracle_share share;
    cd_share_init(&share, cddp_allocator_default(), false);
    for (uint32_t step = 0; step < steps; step++) {
        for (uint32_t rank = 0; rank < world; rank++) {
            float value[1] = {(float)(rank % starts + 1)};
            const cddp_tensor values = scalar(value);
            const cddp_grad none = {0};
            const size_t offsets[] = {0, 1};
            const cd_oracle_parameter meta = {.name = "weight",
                                              .numel = 1,
                                              .dtype = CDDP_F32,
                                              .path = CD_ORACLE_PATH_BUCKET};
            const cd_start start = {.parameters = &meta,
                                    .parameter_count = 1,
                                    .offsets = offsets,
                                    .values = &values,
                                    .kept = &none,
                                    .engine = &engine.table,
                                    .world_size = world,
                                    .digest = rank % starts + 100u * step + 1};
            const cd_oracle_reduction reduction = {.step = step,
                                                   .divisor = world,
                                                   .wire = CDDP_DTYPE_COUNT,
                                                   .loss_scale = rank % scales + 1};
            cd_window *window = NULL;
            assert_ok(cd_share_find(&share, &start, &reduction, &window, &err), &err);
            a.without += window == NULL;
            assert_ptr_equal(cd_share_latest(&share, step), window);
            if (window == NULL) continue;
            assert_true(cd_window_holds(window, &start, &reduction));
            if (!fails) continue;
            cd_share_note_failed(&share, window);
            assert_ok(cd_share_gather(&share, window, &start, &reduction, &err), &err);
            assert_true(window->has_locals);
            /* The last rank's contribution to this start, whichever rank gathered it. */
            assert_true(*cd_locals_get(&window->locals, world - 1, 0, 0) ==
                        (double)value[0] * world);
        }
    }
    a.references = share.computed;
    a.runs = engine.runs;
    cd_share_fini(&share);
    cddp_grad_fini(&engine.gradient);
    return a;
}

static asked ask(uint32_t world, uint32_t starts, bool fails, uint32_t steps)
{
    return ask_scaled(world, starts, 1, fails, steps);
}

TEST(share, ranks_that_start_alike_have_one_reference)
{
    for (uint32_t starts = 1; starts <= CD_FAILED_REFERENCES_MAX; starts *= 2) {
        cd_test_row("%u different starts", starts);
        const asked healthy = ask(64, starts, false, 1), wrong = ask(64, starts, true, 1);
        assert_int_equal(healthy.references, starts);
        assert_int_equal(wrong.references, starts);
        /* explaining runs every rank once for each */
        assert_int_equal(wrong.runs, healthy.runs + starts * 64);
        assert_int_equal(wrong.without, 0);
    }
}

TEST(share, work_grows_like_the_world_when_every_rank_is_wrong)
{
    const asked small = ask(128, 128, true, 3), large = ask(256, 256, true, 3);
    assert_int_equal(small.references, 3 * CD_FAILED_REFERENCES_MAX);
    assert_int_equal(large.references, small.references);
    assert_int_equal(large.runs, 2 * small.runs);
    assert_int_equal(large.without, 3 * (256 - CD_FAILED_REFERENCES_MAX));
}

TEST(share, nobody_is_left_out_before_enough_were_found_wrong)
{
    const asked healthy = ask(64, 64, false, 2);
    assert_int_equal(healthy.references, 128);
    assert_int_equal(healthy.without, 0);
    assert_int_equal(ask(CD_FAILED_REFERENCES_MAX, CD_FAILED_REFERENCES_MAX, true, 2).without, 0);
}

/* A reference holds gradients of the loss as its rank scales it. */
TEST(share, ranks_that_scale_their_losses_differently_share_none)
{
    assert_int_equal(ask_scaled(64, 1, 4, false, 1).references, 4);
    assert_int_equal(ask_scaled(64, 2, 2, false, 1).references, 2);
}

/* Each rank in turn judges the statistics of a step twice, from one of so many starts. */
static uint32_t count_judged(cd_oracle_share *share, uint32_t step, uint32_t starts, bool fails)
{
    uint32_t judged = 0;
    for (uint32_t rank = 0; rank < 64; rank++) {
        for (uint32_t exchange = 0; exchange < 2; exchange++) {
            const uint64_t digest = rank % starts + 1;
            const bool judges = cd_share_judges_statistics(share, step, digest);
            judged += judges;
            if (judges && fails) cd_share_note_wrong_statistics(share, step, digest);
        }
    }
    return judged;
}

TEST(share, statistics_are_judged_until_those_of_enough_starts_were_wrong)
{
    cd_oracle_share share;
    cd_share_init(&share, cddp_allocator_default(), false);
    for (uint32_t step = 0; step < 6; step++) {
        cd_test_row("step %u", step);
        assert_int_equal(count_judged(&share, step, 64, false), 128);
        assert_int_equal(count_judged(&share, step, CD_FAILED_REFERENCES_MAX, true), 128);
    }
    for (uint32_t step = 6; step < 9; step++) {
        cd_test_row("step %u", step);
        assert_int_equal(count_judged(&share, step, 64, true), 2 * CD_FAILED_REFERENCES_MAX);
    }
    cd_share_fini(&share);
}

TEST_MAIN()
