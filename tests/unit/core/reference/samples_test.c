/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's own sampler, rates and loss scale, against tables made by hand. */
#include "core/reference/samples.h"

#include "core/plan/plan.h"
#include "core/reference/rates.h"
#include "core/reference/scaling.h"
#include "tests/support/test.h"

#include <math.h>

static cddp_plan *make_plan(const char *const *sets)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (; sets[0] != NULL; sets += 2) assert_ok(cddp_plan_set(plan, sets[0], sets[1], &err), &err);
    return plan;
}

static cd_sample find(cd_samples *samples, const cddp_plan *plan, cd_micro_place place, uint32_t i)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan_settings settings;
    cd_sample sample = {0};
    assert_ok(cddp_plan_rank_settings(plan, place.rank, &settings, &err), &err);
    assert_ok(cd_samples_find(samples, &settings, place, i, &sample, &err), &err);
    return sample;
}

TEST(samples, a_tail_is_padded_with_the_first_samples_of_the_same_epoch)
{
    static const char *const sets[] = {
        "world.size", "3", "data.dataset_size", "7", "data.samples", "1", "train.steps", "6", NULL};
    static const struct {
        int64_t id, epoch;
    } expected[3][6] = {{{0, 0}, {3, 0}, {6, 0}, {0, 1}, {3, 1}, {6, 1}},
                        {{1, 0}, {4, 0}, {0, 0}, {1, 1}, {4, 1}, {0, 1}},
                        {{2, 0}, {5, 0}, {1, 0}, {2, 1}, {5, 1}, {1, 1}}};
    cddp_plan *plan = make_plan(sets);
    cd_samples samples;
    cd_samples_init(&samples, plan, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        for (uint32_t back = 6; back > 0; back--) { /* backwards: every walk starts again */
            const uint32_t step = back - 1;
            const cd_sample s = find(&samples, plan, (cd_micro_place){rank, step, 0}, 0);
            assert_int_equal(s.id, expected[rank][step].id);
            assert_int_equal(s.epoch, expected[rank][step].epoch);
        }
    }
    cd_samples_fini(&samples);
    cddp_plan_destroy(plan);
}

TEST(samples, a_tail_that_is_dropped_is_seen_by_nobody)
{
    static const char *const sets[] = {"world.size",
                                       "3",
                                       "data.dataset_size",
                                       "7",
                                       "data.samples",
                                       "1",
                                       "train.steps",
                                       "4",
                                       "data.padding",
                                       "drop",
                                       NULL};
    static const int64_t expected[4] = {2, 5, 2, 5};
    cddp_plan *plan = make_plan(sets);
    cd_samples samples;
    cd_samples_init(&samples, plan, NULL);
    for (uint32_t step = 0; step < 4; step++) {
        const cd_sample s = find(&samples, plan, (cd_micro_place){2, step, 0}, 0);
        assert_int_equal(s.id, expected[step]);
        assert_int_equal(s.epoch, step / 2);
    }
    cd_samples_fini(&samples);
    cddp_plan_destroy(plan);
}

TEST(samples, every_epoch_is_another_permutation)
{
    static const char *const sets[] = {"world.size",
                                       "2",
                                       "data.dataset_size",
                                       "12",
                                       "data.samples",
                                       "2",
                                       "train.steps",
                                       "6",
                                       "data.shuffle",
                                       "true",
                                       NULL};
    cddp_plan *plan = make_plan(sets);
    cd_samples samples;
    uint32_t seen[2][12] = {{0}};
    int64_t order[2][12];
    cd_samples_init(&samples, plan, NULL);
    for (uint32_t step = 0; step < 6; step++) {
        for (uint32_t rank = 0; rank < 2; rank++) {
            for (uint32_t i = 0; i < 2; i++) {
                const cd_sample s = find(&samples, plan, (cd_micro_place){rank, step, 0}, i);
                assert_int_equal(s.epoch, step / 3);
                order[s.epoch][step % 3 * 4 + i * 2 + rank] = s.id;
                seen[s.epoch][s.id]++;
            }
        }
    }
    bool differs = false, is_shuffled = false;
    for (int64_t i = 0; i < 12; i++) {
        assert_int_equal(seen[0][i], 1);
        assert_int_equal(seen[1][i], 1);
        differs |= order[0][i] != order[1][i];
        is_shuffled |= order[0][i] != i;
    }
    assert_true(differs && is_shuffled);
    cd_samples_fini(&samples);
    cddp_plan_destroy(plan);
}

TEST(samples, without_a_dataset_every_sample_is_new)
{
    static const char *const sets[] = {"world.size",  "2", "data.samples",      "2",
                                       "train.steps", "2", "train.micro_steps", "2",
                                       NULL};
    cddp_plan *plan = make_plan(sets);
    cd_samples samples;
    cd_samples_init(&samples, plan, NULL);
    assert_int_equal(find(&samples, plan, (cd_micro_place){1, 0, 0}, 0).id, 1);
    assert_int_equal(find(&samples, plan, (cd_micro_place){1, 0, 1}, 1).id, 7);
    assert_int_equal(find(&samples, plan, (cd_micro_place){0, 1, 1}, 1).id, 14);
    cd_samples_fini(&samples);
    cddp_plan_destroy(plan);
}

TEST(rates, the_closed_form_is_within_its_bound_of_repeated_multiplication)
{
    static const double decays[] = {1, 0.5, 0.9, 0.999, 0.3};
    for (size_t d = 0; d < sizeof decays / sizeof decays[0]; d++) {
        double rate = 0.1;
        for (uint32_t step = 0; step < 400; step++, rate = cd_rates_next(rate, decays[d])) {
            const double closed = cd_rates_closed(0.1, decays[d], step);
            assert_true(fabs(closed - rate) <= cd_rates_bound(step) * rate);
        }
    }
    assert_true(cd_rates_closed(0.125, 0.5, 3) == 0.015625);
    assert_true(cd_rates_closed(0.125, 0.5, 0) == 0.125);
}

static bool is_due(const cddp_plan *plan, const cddp_plan_settings *settings, size_t optimizer,
                   uint32_t step)
{
    return cd_rates_is_due(plan, settings, &(cd_rates_place){0, step, optimizer});
}

TEST(rates, an_optimizer_that_shards_buckets_waits_for_the_rebuild)
{
    static const char *const sets[] = {"optimizer.0.steps", "1%2", "optimizer.1.overlap",
                                       "hook_with_zero_step", NULL};
    cddp_plan *plan = make_plan(sets);
    cddp_plan_settings settings = plan->settings;
    assert_false(is_due(plan, &settings, 0, 0));
    assert_true(is_due(plan, &settings, 0, 1));
    assert_false(is_due(plan, &settings, 1, 1));
    assert_true(is_due(plan, &settings, 1, 2));
    settings.ddp.static_graph = true;
    assert_false(is_due(plan, &settings, 1, 2));
    assert_true(is_due(plan, &settings, 1, 3));
    cddp_plan_destroy(plan);
}

/* Ten steps, grown after three clean ones. */
TEST(scaling, backs_off_after_an_overflow_and_grows_after_the_interval)
{
    const cddp_plan_amp amp = {.enable = true,
                               .init_scale = 1024,
                               .growth_factor = 4,
                               .backoff_factor = 0.5,
                               .growth_interval = 3};
    static const struct {
        bool overflow;
        double after;
    } steps[] = {{false, 1024}, {false, 1024}, {false, 4096}, {false, 4096}, {true, 2048},
                 {false, 2048}, {false, 2048}, {true, 1024},  {true, 512},   {false, 512}};
    cd_scaling scaling;
    cd_scaling_init(&scaling, &amp);
    assert_true(cd_scaling_get(&scaling) == 1024 && cd_scaling_get_inverse(&scaling) == 0x1p-10);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        cd_test_row("step %zu", i);
        cd_scaling_end_step(&scaling, steps[i].overflow);
        assert_true(cd_scaling_get(&scaling) == steps[i].after);
    }
}

TEST(scaling, a_scale_that_would_be_infinite_is_not_taken)
{
    const cddp_plan_amp amp = {.enable = true,
                               .init_scale = 0x1p127,
                               .growth_factor = 2,
                               .backoff_factor = 0.5,
                               .growth_interval = 1};
    cd_scaling scaling;
    cd_scaling_init(&scaling, &amp);
    cd_scaling_end_step(&scaling, false);
    assert_true(cd_scaling_get(&scaling) == 0x1p127);
}

TEST(scaling, without_amp_nothing_is_scaled)
{
    const cddp_plan_amp amp = {.init_scale = 65536, .growth_factor = 2, .growth_interval = 1};
    cd_scaling scaling;
    cd_scaling_init(&scaling, &amp);
    cd_scaling_end_step(&scaling, false);
    assert_true(cd_scaling_get(&scaling) == 1 && cd_scaling_get_inverse(&scaling) == 1);
}

TEST(scaling, clips_only_what_is_longer)
{
    assert_true(cd_scaling_clip(0.5, 0.25) == 1);
    assert_true(cd_scaling_clip(0.5, 1.0) == 0.5 / (1.0 + 1e-6));
    assert_true(cd_scaling_clip(0.5, INFINITY) == 0);
    assert_true(isnan(cd_scaling_clip(0.5, NAN)));
}

static cddp_status walk(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const cddp_plan *plan = argument;
    cd_samples samples;
    cd_micro micro;
    cd_micro_batch batch;
    cd_samples_init(&samples, plan, allocator);
    cd_micro_resolve(plan, &plan->settings, (cd_micro_place){1, 1, 0}, &micro);
    const cddp_status status = cd_samples_fill(&samples, &plan->settings, &micro, &batch, err);
    cd_samples_fini(&samples);
    return status;
}

TEST(samples, running_out_of_memory_leaves_nothing_behind)
{
    static const char *const sets[] = {"data.dataset_size", "8", "data.shuffle", "true", NULL};
    cddp_plan *plan = make_plan(sets);
    cd_test_oom_loop(walk, plan);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
