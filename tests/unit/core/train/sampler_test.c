/* SPDX-License-Identifier: Apache-2.0 */
#include "core/train/sampler.h"

#include "core/plan/plan.h"
#include "tests/support/test.h"

#include <stdio.h>

static cddp_plan *make_plan(const char *const *sets, size_t count)
{
    cddp_error err = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    assert_ok(cddp_plan_create(NULL, &plan, &err), &err);
    for (size_t i = 0; i < count; i += 2)
        assert_ok(cddp_plan_set(plan, sets[i], sets[i + 1], &err), &err);
    return plan;
}

static cd_micro resolve(const cddp_plan *plan, uint32_t rank, uint32_t step, uint32_t micro_step)
{
    cd_micro micro;
    cd_micro_resolve(plan, &plan->settings, (cd_micro_place){rank, step, micro_step}, &micro);
    return micro;
}

/* How often each sample of an epoch is seen by all ranks together. */
static void count_epoch(const cddp_plan *plan, uint32_t *seen, size_t size)
{
    cddp_error err = CDDP_ERROR_INIT;
    for (uint32_t rank = 0; rank < plan->world.size; rank++) {
        cd_sampler *sampler = NULL;
        assert_ok(cd_sampler_create(plan, rank, NULL, &sampler, &err), &err);
        for (uint32_t step = 0; step < plan->settings.train.steps; step++) {
            cd_micro_batch batch;
            const cd_micro micro = resolve(plan, rank, step, 0);
            assert_ok(cd_sampler_get(sampler, &micro, &batch, &err), &err);
            for (uint32_t i = 0; i < batch.count; i++) {
                assert_true(batch.ids[i] >= 0 && (size_t)batch.ids[i] < size);
                seen[batch.ids[i]] += batch.epochs[i] == 0;
            }
        }
        cd_sampler_destroy(sampler);
    }
}

TEST(sampler, an_epoch_is_every_sample_once_and_padding_repeats_the_first_ones)
{
    static const char *const sets[] = {"world.size",   "3", "data.dataset_size", "13",
                                       "data.samples", "1", "train.steps",       "5"};
    cddp_plan *plan = make_plan(sets, 8);
    uint32_t seen[13] = {0};
    count_epoch(plan, seen, 13);
    for (size_t i = 0; i < 13; i++) {
        assert_int_equal(seen[i], i < 2 ? 2 : 1); /* 15 places for 13 samples */
    }
    cddp_plan_destroy(plan);
}

TEST(sampler, dropping_the_tail_leaves_samples_out_and_repeats_none)
{
    static const char *const sets[] = {"world.size",   "3",    "data.dataset_size", "13",
                                       "data.padding", "drop", "data.samples",      "1",
                                       "train.steps",  "4",    "data.shuffle",      "true"};
    cddp_plan *plan = make_plan(sets, 12);
    uint32_t seen[13] = {0}, total = 0;
    count_epoch(plan, seen, 13);
    for (size_t i = 0; i < 13; i++) {
        assert_true(seen[i] <= 1);
        total += seen[i];
    }
    assert_int_equal(total, 12);
    cddp_plan_destroy(plan);
}

/* TI-A-21: lengths around the number of ranks, fewer samples than ranks among them. Every rank has
** as many; padding begins again at the front, as often as it must, and dropping leaves less than
** one sample per rank out. */
TEST(sampler, gives_every_rank_as_many_samples_whatever_the_length)
{
    for (uint32_t world = 2; world <= 5; world++) {
        const uint32_t lengths[6] = {1,         world - 1,     world,
                                     world + 1, 2 * world - 1, 100 + world + 1};
        for (int k = 0; k < 12; k++) {
            const bool drops = k >= 6;
            const uint32_t length = lengths[k % 6],
                           each = drops ? length / world : (length + world - 1) / world;
            uint32_t seen[128] = {0}, total = 0;
            char texts[3][16];
            if (each == 0) continue; /* nobody has anything to train on: the plan is refused */
            cd_test_row("%u ranks, %u samples, %s", (unsigned)world, (unsigned)length,
                        drops ? "drop" : "wrap");
            snprintf(texts[0], sizeof texts[0], "%u", (unsigned)world);
            snprintf(texts[1], sizeof texts[1], "%u", (unsigned)length);
            snprintf(texts[2], sizeof texts[2], "%u", (unsigned)each);
            const char *const sets[] = {"world.size",        texts[0],
                                        "data.dataset_size", texts[1],
                                        "train.steps",       texts[2],
                                        "data.samples",      "1",
                                        "data.padding",      drops ? "drop" : "wrap"};
            cddp_plan *plan = make_plan(sets, 10);
            count_epoch(plan, seen, length);
            for (uint32_t i = 0; i < length; i++) {
                const uint32_t places = world * each;
                assert_int_equal(seen[i],
                                 drops ? i < places : places / length + (i < places % length));
                total += seen[i];
            }
            assert_int_equal(total, world * each);
            cddp_plan_destroy(plan);
        }
    }
}

TEST(sampler, a_sample_weighs_the_same_on_every_rank)
{
    static const char *const sets[] = {"world.size",   "2", "data.dataset_size", "8",
                                       "data.samples", "4", "train.steps",       "2"};
    cddp_plan *plan = make_plan(sets, 8);
    cddp_error err = CDDP_ERROR_INIT;
    double weights[8] = {0};
    for (uint32_t rank = 0; rank < 2; rank++) {
        cd_sampler *sampler = NULL;
        assert_ok(cd_sampler_create(plan, rank, NULL, &sampler, &err), &err);
        for (uint32_t step = 0; step < 2; step++) {
            cd_micro_batch batch;
            const cd_micro micro = resolve(plan, rank, step, 0);
            assert_ok(cd_sampler_get(sampler, &micro, &batch, &err), &err);
            for (uint32_t i = 0; i < batch.count; i++) {
                assert_true(weights[batch.ids[i]] == 0 ||
                            weights[batch.ids[i]] == batch.weights[i]);
                weights[batch.ids[i]] = batch.weights[i];
            }
        }
        cd_sampler_destroy(sampler);
    }
    cddp_plan_destroy(plan);
}

static cddp_status make_sampler(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    cd_sampler *sampler = NULL;
    const cddp_status status = cd_sampler_create(argument, 0, allocator, &sampler, err);
    cd_sampler_destroy(sampler);
    return status;
}

TEST(sampler, running_out_of_memory_leaves_nothing_behind)
{
    static const char *const sets[] = {"data.dataset_size", "8", "data.shuffle", "true"};
    cddp_plan *plan = make_plan(sets, 4);
    cd_test_oom_loop(make_sampler, plan);
    cddp_plan_destroy(plan);
}

TEST_MAIN()
