/* SPDX-License-Identifier: Apache-2.0 */
/* topk, the quantisers and post_local_sgd: exact values, laws, states, refusals. */
#include "tests/unit/core/hooks/drive.h"

#include "core/base/prng.h"
#include "core/hooks/quantize.h"

#include <math.h>
#include <stdio.h>

static drive d; /* large; one at a time */

static void drive_of(const cddp_hook *hook, const char *options, uint32_t ranks, int64_t numel)
{
    memset(&d, 0, sizeof d);
    d.hook = hook;
    d.options = options;
    d.ranks = ranks;
    d.steps = DRIVE_STEPS;
    d.numel = numel;
    cd_prng root = cd_prng_seed(3);
    for (uint32_t r = 0; r < ranks; r++)
        for (uint32_t s = 0; s < DRIVE_STEPS; s++) {
            cd_prng p = cd_prng_split_index(&root, "gradient", r * 100 + s);
            for (int64_t i = 0; i < numel; i++)
                d.in[r][s][i] = (float)cd_prng_between(&p, -1024, 1024) / 64.0f;
        }
}

static void assert_replicas_equal(void)
{
    for (uint32_t r = 1; r < d.ranks; r++) assert_memory_equal(d.out[r], d.out[0], sizeof d.out[0]);
}

TEST(topk, sends_the_largest_and_breaks_ties_by_index)
{
    const float first[2][6] = {{1, -5, 5, 0, 2, 5}, {0, 0, -8, 4, -4, 0}};
    drive_of(&cd_hook_topk, "k=2", 2, 6);
    d.steps = 2;
    for (int r = 0; r < 2; r++) {
        memcpy(d.in[r][0], first[r], sizeof first[r]);
        memset(d.in[r][1], 0, sizeof d.in[r][1]);
    }
    drive_run(&d);
    /* Rank 0 sends -5 at 1 and 5 at 2, not 5 at 5; rank 1 sends -8 at 2 and 4 at 3, not -4 at 4. */
    const float sent[6] = {0, -2.5f, -1.5f, 2, 0, 0};
    assert_memory_equal(d.out[0][0], sent, sizeof sent);
    /* What was owed comes by itself in the next step: 5 at 5 and 2 at 4; -4 at 4 and the 0 of the
    ** smallest index. */
    const float owed[6] = {0, 0, 0, 0, -1, 2.5f};
    assert_memory_equal(d.out[0][1], owed, sizeof owed);
    assert_replicas_equal();
}

TEST(topk, is_exact_when_everything_is_sent)
{
    drive_of(&cd_hook_topk, "ratio=1", 4, 37);
    drive_run(&d);
    for (int64_t i = 0; i < 37; i++)
        for (uint32_t s = 0; s < DRIVE_STEPS; s++)
            assert_true(d.out[0][s][i] ==
                        (d.in[0][s][i] + d.in[1][s][i] + d.in[2][s][i] + d.in[3][s][i]) / 4.0f);
}

/* Values are dyadic, so nothing rounds: what came out so far, and what is sent when everything is,
** is all that went in. */
TEST(topk, telescopes_summed_over_the_ranks)
{
    for (uint32_t ranks = 1; ranks <= 8; ranks *= 2) {
        drive_of(&cd_hook_topk, "k=5", ranks, 25);
        for (uint32_t r = 0; r < ranks; r++)
            for (uint32_t s = 3; s < DRIVE_STEPS; s++) memset(d.in[r][s], 0, sizeof d.in[r][s]);
        drive_run(&d); /* 3 steps bring 25 elements, 5 more steps of 5 send every debt */
        for (int64_t i = 0; i < 25; i++) {
            float in = 0, out = 0;
            for (uint32_t s = 0; s < DRIVE_STEPS; s++) {
                out += d.out[0][s][i] * (float)ranks;
                for (uint32_t r = 0; r < ranks; r++) in += d.in[r][s][i];
            }
            assert_true(in == out);
        }
        assert_replicas_equal();
    }
}

TEST(topk, forgets_what_it_did_not_send_when_reported_so)
{
    drive_of(&cd_hook_topk, "k=1,error_feedback=false", 1, 4);
    d.steps = 2;
    memcpy(d.in[0][0], (float[4]){3, 2, 0, 0}, 4 * sizeof(float));
    memset(d.in[0][1], 0, sizeof d.in[0][1]);
    drive_run(&d);
    for (int i = 0; i < 4; i++) assert_true(d.out[0][1][i] == 0.0f);
}

TEST(topk, sends_a_nan_before_everything)
{
    drive_of(&cd_hook_topk, "k=1", 2, 9);
    d.steps = 1;
    d.in[1][0][4] = NAN;
    drive_run(&d);
    assert_true(isnan(d.out[0][0][4]) && isnan(d.out[1][0][4]));
}

TEST(compress, a_state_saved_and_loaded_continues_bit_for_bit)
{
    static const struct {
        const cddp_hook *hook;
        const char *options;
    } cases[] = {{&cd_hook_topk, "k=3"},
                 {&cd_hook_post_local_sgd, "start_localSGD_iter=4,subgroup_size=2"}};
    static float straight[DRIVE_STEPS][DRIVE_NUMEL];
    for (size_t c = 0; c < 2; c++) {
        drive_of(cases[c].hook, cases[c].options, 4, 30);
        drive_run(&d);
        memcpy(straight, d.out[1], sizeof straight);
        for (uint32_t at = 1; at < DRIVE_STEPS; at += 2) {
            cd_test_row("%s, saved before step %u", cases[c].hook->name, at);
            drive_of(cases[c].hook, cases[c].options, 4, 30);
            d.swap_at = at;
            drive_run(&d);
            assert_memory_equal(straight, d.out[1], sizeof straight);
        }
    }
}

TEST(compress, a_damaged_state_is_refused_and_harms_nobody)
{
    static const struct {
        const cddp_hook *hook;
        const char *options;
        size_t slot_bytes, numel[2], dtype[2]; /* of an error and of a factor */
    } cases[] = {{&cd_hook_topk, "k=3", 16, {0, 0}, {8, 8}},
                 {&cd_hook_powersgd, "start_powerSGD_iter=2", 40, {0, 8}, {24, 32}},
                 {&cd_hook_batched_powersgd, "start_powerSGD_iter=2", 40, {0, 8}, {24, 32}},
                 {&cd_hook_post_local_sgd, "start_localSGD_iter=4,subgroup_size=2", 0, {0}, {0}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        cd_test_row("%s", cases[c].hook->name);
        drive_of(cases[c].hook, cases[c].options, 2, 33); /* no gradient has as many bytes */
        d.slot_bytes = cases[c].slot_bytes;
        memcpy(d.slot_numel, cases[c].numel, sizeof d.slot_numel);
        memcpy(d.slot_dtype, cases[c].dtype, sizeof d.slot_dtype);
        d.swap_at = 4;
        d.damages = true;
        drive_run(&d);
    }
}

/* What is owed to another model's parameters is refused, not added to whatever has the same
** index. */
TEST(topk, a_state_of_another_model_is_refused_by_size)
{
    memset(&d, 0, sizeof d);
    d.hook = &cd_hook_topk;
    d.options = "k=3";
    d.ranks = 2;
    d.steps = 3;
    d.numel = 60;
    d.swap_at = 2;
    d.resized = true;
    d.expected = CDDP_E_MISMATCH;
    d.words = "its state of parameter 2 is for 20 elements of f32, the gradient has 16 of f32";
    drive_run(&d);
}

TEST(quantizer, has_the_observer_s_scale_and_zero_point)
{
    const float values[] = {-1.0f, 0.5f, 1.55f};
    cd_quantizer q = cd_quantizer_observe(values, 3);
    assert_true(q.scale == (1.55f + 1.0f) / 255.0f && q.zero_point == 100.0f);
    assert_int_equal(cd_quantizer_encode(q, -1.0f), 0);
    assert_int_equal(cd_quantizer_encode(q, 0.0f), 100);
    assert_int_equal(cd_quantizer_encode(q, 1.55f), 255);
    assert_int_equal(cd_quantizer_encode(q, 9.0f), 255);
    assert_true(cd_quantizer_decode(q, 100) == 0.0f);
    /* The range always has 0 in it. */
    const float above[] = {2.55f, 1.0f};
    q = cd_quantizer_observe(above, 2);
    assert_true(q.zero_point == 0.0f && q.scale == 2.55f / 255.0f);
    const float bad[] = {1.0f, INFINITY};
    assert_true(isnan(cd_quantizer_decode(cd_quantizer_observe(bad, 2), 3)));
}

/* QNT-04, with the scales computed here and the f32 sums allowed for. */
TEST(quantize, stays_within_half_a_step_per_rank)
{
    for (int channel = 0; channel < 2; channel++)
        for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
            drive_of(channel ? &cd_hook_quantize_per_channel : &cd_hook_quantize_per_tensor,
                     channel ? "bucket_size=64" : NULL, ranks, 640);
            for (uint32_t r = 0; r < ranks; r++)
                for (int64_t i = 0; i < 64; i++) d.in[r][0][i] *= 100.0f;
            drive_run(&d);
            assert_replicas_equal();
            double worst = 0.0;
            for (uint32_t s = 0; s < DRIVE_STEPS; s++)
                for (int64_t i = 0; i < 640; i++) {
                    double mean = 0.0, bound = 0.0;
                    int64_t from = channel ? i / 64 * 64 : 0, count = channel ? 64 : 640;
                    for (uint32_t r = 0; r < ranks; r++) {
                        float least = 0, most = 0;
                        for (int64_t k = from; k < from + count; k++) {
                            least = fminf(least, d.in[r][s][k]);
                            most = fmaxf(most, d.in[r][s][k]);
                        }
                        mean += (double)d.in[r][s][i] / ranks;
                        bound += (double)(most - least) / 255.0 / 2.0 / ranks;
                    }
                    double off = fabs((double)d.out[0][s][i] - mean);
                    cd_test_row("ranks %u, step %u, element %d: off by %g, bound %g", ranks, s,
                                (int)i, off, bound);
                    assert_true(off <= bound * (1.0 + 0x1p-12));
                    worst = fmax(worst, off / bound);
                }
            assert_true(worst > 0.2); /* it does lose something */
        }
}

/* QNT-03: a row with its own scale keeps small values apart from large ones. */
TEST(quantize, per_channel_keeps_rows_apart)
{
    float off[2];
    for (int channel = 0; channel < 2; channel++) {
        drive_of(channel ? &cd_hook_quantize_per_channel : &cd_hook_quantize_per_tensor,
                 channel ? "bucket_size=8" : NULL, 1, 16);
        d.steps = 1;
        for (int i = 0; i < 16; i++) d.in[0][0][i] = i < 8 ? 1000.0f : 0.25f;
        drive_run(&d);
        off[channel] = fabsf(d.out[0][0][12] - 0.25f);
    }
    assert_true(off[0] > 0.2f && off[1] < 1e-6f);
}

/* LSG-02: rank + 1 everywhere, over 4 ranks and then over pairs, or alone. */
TEST(post_local_sgd, reduces_over_everybody_and_then_over_its_block)
{
    for (int alone = 0; alone < 2; alone++) {
        drive_of(&cd_hook_post_local_sgd,
                 alone ? "start_localSGD_iter=2,post_local_gradient_allreduce=false"
                       : "start_localSGD_iter=2,subgroup_size=2",
                 4, 3);
        d.steps = 4;
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t s = 0; s < 4; s++)
                for (int i = 0; i < 3; i++) d.in[r][s][i] = (float)(r + 1);
        drive_run(&d);
        for (uint32_t r = 0; r < 4; r++)
            for (uint32_t s = 0; s < 4; s++) {
                float expected = s < 2 ? 2.5f : alone ? (float)(r + 1) : r < 2 ? 1.5f : 3.5f;
                cd_test_row("rank %u, step %u: %g, wanted %g", r, s, (double)d.out[r][s][1],
                            (double)expected);
                assert_true(d.out[r][s][1] == expected);
            }
    }
}

static cddp_status refuse_options(cddp_rank *rank, void *argument, cddp_error *err)
{
    static const struct {
        const cddp_hook *hook;
        const char *options, *words;
    } cases[] = {
        /* clang-format off */
        {&cd_hook_topk, "k=3,ratio=0.5", "give one of them"},
        {&cd_hook_topk, "k=0", "not between 1"},
        {&cd_hook_topk, "ratio=0", "must be above 0"},
        {&cd_hook_topk, "ratio=1.5", "not between 0 and 1"},
        {&cd_hook_topk, "ration=0.5", "did you mean 'ratio'"},
        {&cd_hook_quantize_per_tensor, "bucket_size=3", "takes no options"},
        {&cd_hook_quantize_per_channel, "bucket_size=0", "not between 1"},
        {&cd_hook_quantize_per_channel, "size=3", "unknown option 'size'"},
        {&cd_hook_post_local_sgd, NULL, "subgroup_size is missing"},
        {&cd_hook_post_local_sgd, "subgroup_size=2", "do not divide"},
        {&cd_hook_post_local_sgd, "subgroup_size=3,post_local_gradient_allreduce=false", "has no effect"},
        /* clang-format on */
    };
    sim_fixture *f = argument;
    cddp_group *group = NULL;
    assert_ok(fixture_group(f, rank, "world", &group, err), err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s %s", cases[i].hook->name, cases[i].options != NULL ? cases[i].options : "");
        void *self = NULL;
        cddp_error inner = CDDP_ERROR_INIT;
        static drive asked; /* too large for a rank's stack */
        asked.hook = cases[i].hook;
        asked.options = cases[i].options;
        drive_watch(&asked, rank);
        assert_fails(drive_make(&asked, rank, group, &self, &inner), CDDP_E_CONFIG, &inner,
                     cases[i].words);
        assert_null(self);
        assert_int_equal(asked.watches[rank->rank].live_count, 0);
    }
    cddp_group_destroy(group);
    return CDDP_OK;
}

TEST(compress, refuses_settings_that_cannot_work_by_name)
{
    static sim_fixture f;
    memset(&f, 0, sizeof f);
    f.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f.config.world_size = 3;
    fixture_run(&f, refuse_options);
    fixture_destroy(&f);
}

typedef struct hungry {
    const cddp_hook *hook;
    const char *options;
    cddp_rank *rank;
    cddp_group *group;
} hungry;

/* A life of the hook on one rank: made, four backwards, saved and loaded. */
static cddp_status live(const cddp_allocator *allocator, void *argument, cddp_error *err)
{
    const hungry *h = argument;
    static drive one;
    static tape kept;
    cddp_hook_context context = {.size = sizeof context,
                                 .group = h->group,
                                 .allocator = allocator,
                                 .options = h->options};
    void *self = NULL;
    cddp_state_writer writer = {&kept, tape_write};
    cddp_state_reader reader = {&kept, tape_read};
    cddp_status status = h->hook->create(&context, &self, err);
    if (status != CDDP_OK) return status;
    one.hook = h->hook;
    one.numel = 30;
    one.devices[h->rank->rank] = cd_device_with_allocator(cddp_device_cpu(), allocator);
    kept.used = kept.read = 0;
    for (uint32_t step = 0; status == CDDP_OK && step < 4; step++)
        status = drive_step(&one, h->rank, h->group, self, step, err);
    if (status == CDDP_OK && h->hook->save != NULL) status = h->hook->save(self, &writer, err);
    if (status == CDDP_OK && h->hook->load != NULL) status = h->hook->load(self, &reader, err);
    h->hook->destroy(self);
    return status;
}

static cddp_status starve(cddp_rank *rank, void *argument, cddp_error *err)
{
    hungry cases[] = {{&cd_hook_topk, "k=3", rank, NULL},
                      {&cd_hook_quantize_per_tensor, NULL, rank, NULL},
                      {&cd_hook_quantize_per_channel, "bucket_size=8", rank, NULL},
                      {&cd_hook_post_local_sgd, "subgroup_size=1", rank, NULL},
                      {&cd_hook_fp16_compress, NULL, rank, NULL},
                      {&cd_hook_powersgd, "start_powerSGD_iter=2", rank, NULL}};
    cddp_group *group = NULL;
    assert_ok(fixture_group(argument, rank, "world", &group, err), err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cd_test_row("%s", cases[i].hook->name);
        cases[i].group = group;
        assert_true(cd_test_oom_loop(live, &cases[i]) > 0);
    }
    cddp_group_destroy(group);
    return CDDP_OK;
}

TEST(compress, survives_every_failing_allocation)
{
    static sim_fixture f;
    memset(&f, 0, sizeof f);
    f.config = (cd_sim_config)CD_SIM_CONFIG_INIT;
    f.config.world_size = 1;
    fixture_run(&f, starve);
    fixture_destroy(&f);
}

TEST_MAIN()
