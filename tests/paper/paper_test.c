/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator against published and measured iterations: bands, orderings, exact ratios.
** docs/paper.md has the curves and the story; paper_slow_test.c has the slower tests. */
#include "tests/paper/published.h"
#include "tests/paper/studies.h"
#include "tests/support/test.h"

#include <math.h>

static void assert_within(double ours, double theirs, double percent)
{
    if (fabs(ours - theirs) <= theirs * percent / 100) return;
    print_message("%.3f is not within %.1f %% of %.3f: %+.2f %%\n", ours, percent, theirs,
                  100 * (ours / theirs - 1));
    fail();
}

static void assert_between(double ours, double low, double high)
{
    if (low <= ours && ours <= high) return;
    print_message("%.4f is not between %.4f and %.4f\n", ours, low, high);
    fail();
}

TEST(paper, the_overlap_of_two_ranks_is_within_ten_percent)
{
    for (int local = 0; local < 2; local++)
        for (int i = 0; i < PUBLISHED_CAPS; i++) {
            cd_test_row("curve %d, cap %.0f MB", local, published_caps_mb[i]);
            assert_within(study_overlap_ms(local, published_caps_mb[i]),
                          published_overlap_ms[local][i], 10);
        }
}

TEST(paper, skipping_reductions_amortises_within_three_percent)
{
    for (int i = 0; i < PUBLISHED_WINDOWS; i++) {
        cd_test_row("every %u", published_windows[i]);
        assert_within(study_window_ms(published_windows[i], published_local_ms[i]),
                      published_window_ms[i], 3);
    }
}

TEST(paper, the_bucket_sweep_over_gloo_is_within_two_percent)
{
    double sync = study_sweep_ms(STUDY_PYTHON_SYNC, 0);
    for (unsigned i = 0; i < PUBLISHED_SWEEP; i++) {
        unsigned x = PUBLISHED_SWEEP_FIRST + i;
        cd_test_row("x = %u", x);
        assert_within(study_sweep_ms(STUDY_DDP, x), published_ddp_ms[i], 2);
        assert_within(study_sweep_ms(STUDY_PYTHON_ASYNC, x), published_async_ms[i], 2);
        assert_within(sync, published_sync_ms[i], 2);
    }
}

/* The fit is on ResNet-50 with one and two GPUs; it predicts sixteen GPUs and ResNet-101. */
TEST(paper, sixteen_gpus_take_seven_to_ten_percent_more_than_one_without_ddp)
{
    for (int model = 0; model < 2; model++) {
        cd_test_row("model %d", model);
        assert_between(study_gpus_ms(model, 16, 25) / published_alone_ms[model], 1.07, 1.10);
    }
}

/* The published times are whole milliseconds of a hundred: the cost of small buckets on 16 GPUs is
** known to half a percent. On one machine ours are too cheap, see docs/paper.md. */
TEST(paper, small_buckets_cost_more_the_more_gpus_there_are)
{
    for (int model = 0; model < 2; model++) {
        double before = 0;
        for (int i = 0; i < PUBLISHED_WORLDS; i++) {
            unsigned ranks = published_worlds[i];
            cd_test_row("model %d on %u", model, ranks);
            double penalty = study_gpus_ms(model, ranks, 1) / study_gpus_ms(model, ranks, 25) - 1;
            assert_true(penalty > before);
            if (model == 0 && ranks < 16)
                assert_true(penalty < published_small_buckets_percent[i] / 100);
            if (model == 0 && ranks == 16)
                assert_between(100 * penalty, published_small_buckets_percent[i] - 0.5,
                               published_small_buckets_percent[i] + 0.5);
            before = penalty;
        }
    }
}

TEST(paper, overlap_saves_what_was_published)
{
    double nccl = study_gain_percent(STUDY_NCCL, STUDY_RESNET),
           gloo = study_gain_percent(STUDY_GLOO, STUDY_RESNET);
    double nccl_bert = study_gain_percent(STUDY_NCCL, STUDY_BERT),
           gloo_bert = study_gain_percent(STUDY_GLOO, STUDY_BERT);
    assert_between(nccl, 35, 38);
    assert_between(gloo, 21, 27);
    assert_between(gloo_bert, 21, 27);
    assert_between(nccl_bert, 35, 38);
    assert_true(nccl > nccl_bert && gloo > gloo_bert && nccl_bert > gloo);
}

TEST(paper, a_ring_takes_as_long_as_in_simgrid)
{
    for (int i = 0; i < PUBLISHED_RINGS; i++) {
        cd_test_row("%u ranks", published_ring_ranks[i]);
        assert_within(study_ring_s(published_ring_ranks[i]), published_ring_s[i], i < 2 ? 0.1 : 2);
    }
}

/* 1.3 times where the published ranges are nearest, 3.9 times at their lower ends. */
TEST(paper, summing_on_hosts_beats_a_ring_of_pcie_gpus)
{
    for (unsigned ranks = 16; ranks <= 64; ranks *= 2) {
        cd_test_row("%u ranks", ranks);
        assert_true(study_pcie_ms("hfreduce", ranks, 1024) < study_pcie_ms("ring", ranks, 1024));
        double gain =
            study_pcie_ms("ring", ranks, 48758784) / study_pcie_ms("hfreduce", ranks, 48758784);
        assert_between(gain, published_host_gb_per_s[0][1] / published_host_gb_per_s[1][0],
                       published_host_gb_per_s[0][1] / published_host_gb_per_s[1][1]);
    }
}

/* [R]: with Gloo three groups help; with NCCL they help BERT, and make no difference to ResNet. */
TEST(paper, several_groups_in_turn_gain_where_one_connection_is_the_limit)
{
    double gain[2][2];
    for (int backend = 0; backend < 2; backend++)
        for (int model = 0; model < 2; model++) {
            double one = study_turns_ms((study_backend)backend, (study_model)model, 1);
            gain[backend][model] =
                1 - study_turns_ms((study_backend)backend, (study_model)model, 3) / one;
            cd_test_row("backend %d, model %d", backend, model);
            double five = study_turns_ms((study_backend)backend, (study_model)model, 5);
            if (backend == STUDY_NCCL && model == STUDY_RESNET)
                assert_within(five, one, 0.1);
            else
                assert_true(five < one);
        }
    assert_true(gain[STUDY_GLOO][STUDY_RESNET] > 0 && gain[STUDY_NCCL][STUDY_BERT] > 0);
    assert_true(gain[STUDY_NCCL][STUDY_RESNET] < gain[STUDY_NCCL][STUDY_BERT]);
    assert_true(gain[STUDY_NCCL][STUDY_RESNET] < gain[STUDY_GLOO][STUDY_RESNET]);
}

TEST_MAIN()
