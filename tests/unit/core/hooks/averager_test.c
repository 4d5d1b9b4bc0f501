/* SPDX-License-Identifier: Apache-2.0 */
/* Model averaging over simulated ranks: when, over whom, of what, and refusals. */
#include "tests/unit/sim/fixture.h"

#include "cddp/averager.h"

#include <stdio.h>
#include <string.h>

#define STEPS 25
#define RANKS 8

typedef struct plan {
    cddp_averager_level levels[3];
    uint32_t level_count;
    uint64_t warmup;
    bool hierarchical;
    bool resets;                    /* parameter 0 is the rank again before every step */
    uint32_t due[STEPS];            /* what rank 5 says */
    float values[RANKS][STEPS + 1]; /* parameter 0 after each step; it starts as the rank */
    float untouched[RANKS];         /* parameter 1 has no gradient */
    uint16_t half[RANKS];           /* parameter 2 is f16 */
} plan;

static cddp_status train(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    plan *p = f->data;
    cddp_group *group = NULL;
    cddp_averager *averager = NULL;
    assert_ok(fixture_group(f, rank, "world", &group, err), err);
    cddp_averager_options options = {.size = sizeof options,
                                     .group = group,
                                     .levels = p->levels,
                                     .level_count = p->level_count,
                                     .warmup_steps = p->warmup,
                                     .hierarchical = p->hierarchical};
    assert_ok(cddp_averager_create(&options, &averager, err), err);
    float value = (float)rank->rank, other = (float)rank->rank;
    uint16_t half = (uint16_t)(rank->rank % 2 == 0 ? 0x3c00 : 0x4200); /* 1 and 3 */
    int64_t one = 1;
    cddp_tensor parameters[3] = {cddp_tensor_of(cddp_device_cpu(), &value, 0, CDDP_F32, &one, 1),
                                 cddp_tensor_of(cddp_device_cpu(), &other, 0, CDDP_F32, &one, 1),
                                 cddp_tensor_of(cddp_device_cpu(), &half, 0, CDDP_F16, &one, 1)};
    cddp_grad defined = {.kind = CDDP_GRAD_DENSE}, undefined = {.kind = CDDP_GRAD_UNDEFINED};
    cddp_grad *gradients[3] = {&defined, &undefined, &defined};
    for (uint64_t step = 0; step < STEPS; step++) {
        if (p->resets) value = (float)rank->rank;
        if (rank->rank == 5) p->due[step] = cddp_averager_get_due(averager);
        if (step == 13) { /* LSG-04: a new one that receives the step goes on as the old one */
            cddp_averager_destroy(averager);
            averager = NULL;
            assert_ok(cddp_averager_create(&options, &averager, err), err);
            cddp_averager_set_step(averager, step);
        }
        assert_ok(cddp_averager_step(averager, parameters, gradients, 3, err), err);
        p->values[rank->rank][step] = value;
    }
    assert_int_equal(cddp_averager_get_step(averager), STEPS);
    p->untouched[rank->rank] = other;
    p->half[rank->rank] = half;
    cddp_averager_destroy(averager);
    cddp_group_destroy(group);
    return CDDP_OK;
}

static void run(plan *p)
{
    static sim_fixture f;
    memset(&f, 0, sizeof f);
    f.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f.config.world_size = RANKS;
    f.data = p;
    fixture_run(&f, train);
    fixture_destroy(&f);
}

/* AVG-02, AVG-03, upstream's own example. TI-G-01: what is averaged is the mean over the ranks. */
TEST(averager, levels_average_when_upstream_says)
{
    static plan p = {.levels = {{2, 2}, {4, 4}, {8, 8}},
                     .level_count = 3,
                     .warmup = 10,
                     .hierarchical = true};
    run(&p);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t expected = step < 10 || step % 2 != 0 ? 0
                            : step % 8 == 0            ? 8
                            : step % 4 == 0            ? 4
                                                       : 2;
        cd_test_row("step %u: %u, wanted %u", step, p.due[step], expected);
        assert_int_equal(p.due[step], expected);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_true(p.values[r][9] == (float)r);
        assert_true(p.values[r][10] == (float)(r / 2 * 2) + 0.5f); /* pairs */
        assert_true(p.values[r][12] == (r < 4 ? 1.5f : 5.5f));     /* fours */
        assert_true(p.values[r][16] == 3.5f);                      /* everybody */
        assert_true(p.untouched[r] == (float)r);
        assert_int_equal(p.half[r], 0x4000); /* (1 + 3) / 2 */
    }
}

/* Upstream takes sizes that stay the same (AVG-03): the longer period decides, over the same
** ranks. */
TEST(averager, levels_may_be_of_equal_size)
{
    static plan p = {.levels = {{2, 4}, {3, 4}, {5, 8}}, .level_count = 3, .hierarchical = true};
    static plan whole = {.levels = {{2, 8}, {3, 8}}, .level_count = 2, .hierarchical = true};
    run(&p);
    run(&whole);
    for (uint32_t step = 0; step < STEPS; step++) {
        const bool is_over = step % 2 == 0 || step % 3 == 0;
        cd_test_row("step %u: %u", step, p.due[step]);
        assert_int_equal(p.due[step], step % 5 == 0 ? 8 : is_over ? 4 : 0);
        assert_int_equal(whole.due[step], is_over ? 8 : 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) assert_true(p.values[r][0] == 3.5f);
}

/* Whether every rank's parameter is the average after a step, and its own else. */
static void assert_averaged(const plan *p, uint64_t step, bool averaged)
{
    for (uint32_t r = 0; r < RANKS; r++)
        assert_true(p->values[r][step] == (averaged ? (RANKS - 1) / 2.0f : (float)r));
}

static void run_grid(plan *p, uint64_t warmup, bool hierarchical)
{
    *p = (plan){.levels = {{4, RANKS}},
                .level_count = 1,
                .warmup = warmup,
                .hierarchical = hierarchical,
                .resets = true};
    cd_test_row("%s, warm-up %d", hierarchical ? "hierarchical" : "periodic", (int)warmup);
    run(p);
    for (uint32_t r = 0; r < RANKS; r++) assert_true(p->untouched[r] == (float)r);
}

/* AVG-01: counted from the end of the warm-up. Upstream's warm-ups, and one that is no multiple of
** anything. */
TEST(averager, a_periodic_one_averages_at_its_steps_and_at_no_other) /* TI-G-02 */
{
    static const uint64_t warmups[5] = {12, 13, 14, 15, 10};
    static plan p;
    for (int w = 0; w < 5; w++) {
        run_grid(&p, warmups[w], false);
        for (uint64_t step = 0; step < STEPS; step++) {
            bool is_due = step >= warmups[w] && (step - warmups[w]) % 4 == 0;
            assert_int_equal(p.due[step], is_due ? RANKS : 0);
            assert_averaged(&p, step, is_due);
        }
    }
}

/* AVG-03, AVG-04: with one level the period divides the step and not what passed since the warm-up.
** The two are the same when the warm-up is a multiple of the period. Upstream's warm-ups 13 to 15
** are not: its test replaces the hierarchical averager by a periodic one before it begins, and so
** cannot see it. */
TEST(averager, one_level_is_a_periodic_one_in_phase_with_it) /* TI-G-03 */
{
    static plan periodic, one_level;
    for (uint64_t warmup = 0; warmup < 16; warmup++) {
        run_grid(&periodic, warmup, false);
        run_grid(&one_level, warmup, true);
        bool is_same = memcmp(periodic.values, one_level.values, sizeof periodic.values) == 0;
        assert_true(is_same == (warmup % 4 == 0));
        for (uint64_t step = 0; step < STEPS; step++)
            assert_averaged(&one_level, step, step >= warmup && step % 4 == 0);
    }
}

static cddp_status refuse(cddp_rank *rank, void *argument, cddp_error *err)
{
    static const struct {
        cddp_averager_level levels[2];
        uint32_t count;
        bool hierarchical;
        const char *words;
    } cases[] = {
        {{{0, 4}}, 1, false, "must be positive"},
        {{{2, 2}}, 1, false, "the last group size is 2"},
        {{{2, 2}, {4, 4}}, 2, false, "a periodic one has 1"},
        {{{4, 2}, {4, 4}}, 2, true, "periods must grow"},
        {{{2, 4}, {4, 2}}, 2, true, "group sizes must not shrink"},
        {{{2, 3}, {4, 4}}, 2, true, "do not divide"},
    };
    cddp_group *group = NULL;
    assert_ok(fixture_group(argument, rank, "world", &group, err), err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_averager *averager = NULL;
        cddp_error inner = CDDP_ERROR_INIT;
        cddp_averager_options options = {.size = sizeof options,
                                         .group = group,
                                         .levels = cases[i].levels,
                                         .level_count = cases[i].count,
                                         .hierarchical = cases[i].hierarchical};
        cd_test_row("%s", cases[i].words);
        assert_fails(cddp_averager_create(&options, &averager, &inner), CDDP_E_CONFIG, &inner,
                     cases[i].words);
        assert_null(averager);
    }
    cddp_group_destroy(group);
    return CDDP_OK;
}

static cddp_status misuse(cddp_rank *rank, void *argument, cddp_error *err)
{
    cddp_group *group = NULL;
    cddp_averager *averager = NULL;
    cddp_error inner = CDDP_ERROR_INIT;
    const cddp_averager_level level = {1, 2};
    assert_ok(fixture_group(argument, rank, "world", &group, err), err);
    cddp_averager_options options = cddp_averager_options_default(), zeroed = {0};
    assert_fails(cddp_averager_create(NULL, &averager, &inner), CDDP_E_ARG, &inner, "NULL");
    assert_fails(cddp_averager_create(&zeroed, &averager, &inner), CDDP_E_ARG, &inner, "size");
    assert_fails(cddp_averager_create(&options, NULL, &inner), CDDP_E_ARG, &inner, "averager");
    assert_fails(cddp_averager_create(&options, &averager, &inner), CDDP_E_ARG, &inner, "group");
    options.group = group;
    assert_fails(cddp_averager_create(&options, &averager, &inner), CDDP_E_ARG, &inner, "levels");
    options.levels = &level;
    options.level_count = 1;
    assert_ok(cddp_averager_create(&options, &averager, err), err);
    assert_fails(cddp_averager_step(averager, NULL, NULL, 1, &inner), CDDP_E_ARG, &inner, "NULL");
    assert_fails(cddp_averager_step(NULL, NULL, NULL, 0, &inner), CDDP_E_ARG, &inner, "averager");
    assert_int_equal(cddp_averager_get_due(NULL), 0);
    assert_int_equal(cddp_averager_get_step(NULL), 0);
    cddp_averager_set_step(NULL, 1);
    cddp_averager_destroy(averager);
    cddp_averager_destroy(NULL);
    cddp_group_destroy(group);
    return CDDP_OK;
}

TEST(averager, misuse_is_an_error_in_words)
{
    static sim_fixture f;
    memset(&f, 0, sizeof f);
    f.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f.config.world_size = 2;
    fixture_run(&f, misuse);
    fixture_destroy(&f);
}

/* TI-G-05 */
TEST(averager, refuses_settings_that_cannot_work_by_name)
{
    static sim_fixture f;
    memset(&f, 0, sizeof f);
    f.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f.config.world_size = 4;
    fixture_run(&f, refuse);
    fixture_destroy(&f);
}

TEST_MAIN()
