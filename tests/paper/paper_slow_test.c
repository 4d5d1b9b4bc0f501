/* SPDX-License-Identifier: Apache-2.0 */
/* Up to 64 simulated GPUs, and PowerSGD on real numbers. Statements that are only remembered from a
** paper ([R] in docs/paper.md) are used as orderings. */
#include "tests/paper/studies.h"
#include "tests/support/test.h"

#include <math.h>

static double cluster(study_backend backend, study_model model, unsigned ranks, double cap)
{
    return study_cluster_ms(&(study_cluster){backend, model, ranks, 1, cap});
}

/* [R]: a bucket per parameter is slow, and slower with 32 than with 16; large buckets overlap
** nothing. */
TEST(paper, the_best_bucket_lies_between_the_extremes)
{
    static const double caps[] = {1, 5, 10, 25, 50};
    for (int backend = 0; backend < 2; backend++)
        for (int model = 0; model < 2; model++) {
            double loss[2];
            for (int k = 0; k < 2; k++) {
                double best = INFINITY;
                unsigned ranks = k == 0 ? 16 : 32;
                for (int i = 0; i < 5; i++)
                    best = fmin(best, cluster((study_backend)backend, (study_model)model, ranks,
                                              caps[i]));
                cd_test_row("backend %d, model %d, %u ranks", backend, model, ranks);
                loss[k] = cluster((study_backend)backend, (study_model)model, ranks, 0) / best;
                assert_true(loss[k] > 1);
                assert_true(cluster((study_backend)backend, (study_model)model, ranks, 1e5) > best);
            }
            assert_true(loss[1] > loss[0]);
        }
}

/* [R]: with NCCL, ResNet is best off with 10 to 25 MB. */
TEST(paper, resnet_over_nccl_prefers_buckets_of_ten_megabytes_to_small_and_large_ones)
{
    for (unsigned ranks = 16; ranks <= 32; ranks *= 2) {
        double ten = cluster(STUDY_NCCL, STUDY_RESNET, ranks, 10);
        cd_test_row("%u ranks", ranks);
        assert_true(ten < cluster(STUDY_NCCL, STUDY_RESNET, ranks, 1));
        assert_true(ten < cluster(STUDY_NCCL, STUDY_RESNET, ranks, 50));
    }
}

/* Of 5, 10 … 50 MB the cap with the fastest iteration; the smallest of them. */
static double best_cap_over_nccl(study_model model, unsigned ranks)
{
    double best = 0, least = INFINITY;
    for (double cap = 5; cap <= 50; cap += 5) {
        double ms = cluster(STUDY_NCCL, model, ranks, cap);
        if (ms < least) best = cap;
        least = fmin(least, ms);
    }
    return best;
}

/* [R]: 10 to 25 MB are best for ResNet, and more for BERT. */
TEST(paper, the_best_bucket_over_nccl_grows_with_the_model)
{
    for (unsigned ranks = 16; ranks <= 32; ranks *= 2) {
        double resnet = best_cap_over_nccl(STUDY_RESNET, ranks);
        cd_test_row("%u ranks", ranks);
        assert_true(10 <= resnet && resnet <= 25);
        assert_true(best_cap_over_nccl(STUDY_BERT, ranks) > resnet);
    }
}

/* [R]: over Gloo one of the paper's sizes is best for both models, below NCCL's for BERT, on 16
** GPUs. */
TEST(paper, the_best_bucket_over_gloo_is_small_for_both_models)
{
    static const double caps[] = {5, 10, 25, 50};
    double best[3] = {0};
    for (int k = 0; k < 3; k++) {
        double least = INFINITY;
        for (int i = 0; i < 4; i++) {
            double ms = cluster(k < 2 ? STUDY_GLOO : STUDY_NCCL, k == 0 ? STUDY_RESNET : STUDY_BERT,
                                16, caps[i]);
            if (ms < least) best[k] = caps[i];
            least = fmin(least, ms);
        }
    }
    assert_true(best[0] == best[1]);
    assert_true(best[1] < best[2]);
}

/* [R]: Gloo is saturated by small messages, NCCL is not. */
TEST(paper, small_buckets_cost_nccl_more_than_gloo)
{
    for (unsigned ranks = 16; ranks <= 32; ranks *= 2)
        for (int model = 0; model < 2; model++) {
            double loss[2];
            for (int b = 0; b < 2; b++)
                loss[b] = cluster((study_backend)b, (study_model)model, ranks, 1) /
                          cluster((study_backend)b, (study_model)model, ranks, 25);
            cd_test_row("model %d, %u ranks", model, ranks);
            assert_true(loss[STUDY_NCCL] > loss[STUDY_GLOO]);
        }
}

/* [R]: Gloo grows faster than NCCL, and with Gloo BERT faster than ResNet; skipping helps Gloo
** more. */
TEST(paper, iterations_grow_with_ranks_as_remembered)
{
    double growth[2][2], skipped[2];
    for (int backend = 0; backend < 2; backend++) {
        for (int model = 0; model < 2; model++) {
            study_cluster c = {(study_backend)backend, (study_model)model, 1, 1, 25};
            double one = study_cluster_ms(&c), before = one;
            for (c.ranks = 8; c.ranks <= 64; c.ranks *= 2) {
                double now = study_cluster_ms(&c);
                cd_test_row("backend %d, model %d, %u ranks", backend, model, c.ranks);
                assert_true(now > before);
                before = now;
            }
            growth[backend][model] = before / one;
        }
        study_cluster every = {(study_backend)backend, STUDY_RESNET, 64, 1, 25}, eighth = every;
        eighth.micro_steps = 8;
        skipped[backend] = study_cluster_ms(&eighth) / study_cluster_ms(&every);
        assert_true(skipped[backend] < 1);
    }
    assert_true(growth[STUDY_GLOO][STUDY_RESNET] > growth[STUDY_NCCL][STUDY_RESNET]);
    assert_true(growth[STUDY_GLOO][STUDY_BERT] > growth[STUDY_NCCL][STUDY_BERT]);
    assert_true(growth[STUDY_GLOO][STUDY_BERT] > growth[STUDY_GLOO][STUDY_RESNET]);
    assert_true(skipped[STUDY_GLOO] < skipped[STUDY_NCCL]);
}

/* matrices: sum of n + m over matrices; vectors: numbers that travel as they are. */
TEST(paper, powersgd_sends_exactly_what_the_formula_says)
{
    static const struct {
        study_net net;
        unsigned long long all, matrices, vectors;
        double ratios[3]; /* published for ranks 1, 2 and 4, without decimals */
    } cases[] = {{STUDY_RESNET18, 11173962, 36325, 9610, {243, 136, 72}},
                 {STUDY_LSTM, 28949319, 49019, 44469, {310, 203, 120}}};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(study_powersgd_bytes(cases[i].net, 0), cases[i].all * 4);
        for (int k = 0; k < 3; k++) {
            unsigned rank = 1u << k;
            unsigned long long bytes = study_powersgd_bytes(cases[i].net, rank);
            cd_test_row("net %d, rank %u", i, rank);
            assert_int_equal(bytes, 4 * (rank * cases[i].matrices + cases[i].vectors));
            assert_true(round((double)cases[i].all * 4 / (double)bytes) == cases[i].ratios[k]);
        }
    }
}

TEST_MAIN()
