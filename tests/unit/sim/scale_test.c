/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks, many worlds: a thousand ranks on ResNet-50's buckets, worlds side by side in threads,
** no growth. */
#include "tests/unit/sim/fixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ResNet-50's gradient in PyTorch's buckets: 1 MiB first, 25 MiB each afterwards, in the order of
** readiness. */
static const int64_t buckets[] = {2049000, 7342592, 6703104, 6562816, 2899520};
#define BUCKETS (sizeof buckets / sizeof buckets[0])

static cddp_status iteration(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    cddp_group *g = NULL;
    cddp_work *works[BUCKETS] = {NULL};
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    for (size_t b = 0; status == CDDP_OK && b < BUCKETS; b++) {
        cddp_tensor t = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &buckets[b], 1);
        status = rank->ops->compute(rank, 20000000, "backward", err);
        if (status == CDDP_OK) status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &works[b], err);
    }
    for (size_t b = 0; status == CDDP_OK && b < BUCKETS; b++)
        status = cddp_work_wait(works[b], 0, err);
    cddp_group_destroy(g);
    return status;
}

TEST(scale, a_thousand_ranks_fit_in_little_memory_and_overlap)
{
    (void)state;
    static sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = 1024;
    f.config.transport = CD_SIM_MODEL;
    f.config.stack_bytes = 65536;
    f.config.network = (cd_network_config){.ranks_per_node = 8,
                                           .intra = *cd_link_get(CD_LINK_nvlink_v100),
                                           .inter = *cd_link_get(CD_LINK_infiniband_edr)};
    fixture_run(&f, iteration);
    cd_sim_stats stats;
    cd_sim_get_stats(f.sim, &stats);
    assert_int_equal(stats.collectives, 1024 * BUCKETS);
    assert_true(stats.heap_used_peak < (size_t)64 << 20);
    /* 100 ms of backward; most of the communication lies under it, but not the last bucket. */
    cd_sim_rank_times t = cd_sim_get_rank_times(f.sim, 500);
    assert_int_equal(t.compute_ns, 100000000);
    assert_true(t.exposed_ns > 1000000 && t.exposed_ns < 40000000);
    assert_int_equal(t.ended_ns, t.compute_ns + t.exposed_ns);
    fixture_destroy(&f);
}

static cddp_status many(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    size_t *peaks = f->data;
    cddp_group *g = NULL;
    int64_t n = 1000, value[1000] = {0};
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), value, 0, CDDP_I64, &n, 1);
    for (int k = 0; status == CDDP_OK && k < 300; k++) {
        cddp_work *work = NULL;
        status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
        if (rank->rank == 0 && (k == 9 || k == 299)) {
            cd_sim_stats stats;
            cd_sim_get_stats(f->sim, &stats);
            peaks[k == 299] = stats.heap_used_peak;
        }
    }
    cddp_group_destroy(g);
    return status;
}

TEST(scale, a_steady_state_takes_no_more_memory)
{
    (void)state;
    for (int transport = 0; transport <= CD_SIM_MESSAGES; transport++) {
        size_t peaks[2] = {0, 0};
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = peaks};
        f.config.world_size = 5;
        f.config.transport = (cd_sim_transport)transport;
        f.config.network.inter = *cd_link_get(CD_LINK_ethernet_10g);
        fixture_run(&f, many);
        fixture_destroy(&f);
        cd_test_row("transport %d", transport);
        assert_true(peaks[0] > 0);
        assert_int_equal(peaks[0], peaks[1]);
    }
}

/* One thread: many worlds one after the other, each with its own seed; returns what they all
** gave. */
static void *worlds(void *argument)
{
    uint64_t *digest = argument;
    for (uint64_t seed = 0; seed < 40; seed++) {
        sim_fixture *f = calloc(1, sizeof *f);
        size_t peaks[2];
        f->config = (cd_sim_config)CD_SIM_CONFIG_INIT;
        f->config.world_size = 3;
        f->config.heap_bytes = 4 << 20;
        f->data = peaks;
        f->chooser = cd_chooser_random(&f->random, seed);
        f->config.chooser = &f->chooser;
        cd_digest_sink_init(&f->digest, false);
        f->config.sink = &f->digest.sink;
        if (cd_sim_create(&f->config, &f->sim, &f->err) == CDDP_OK) {
            f->backend = cd_sim_backend(f->sim);
            if (cd_sim_ops()->launch(f->sim, many, f, f->results, &f->err) == CDDP_OK)
                *digest = *digest * 31 + f->digest.digest;
        }
        cd_sim_destroy(f->sim);
        free(f);
    }
    return NULL;
}

TEST(scale, worlds_in_several_threads_do_not_know_of_each_other)
{
    (void)state;
    uint64_t digests[5] = {0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, worlds, &digests[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    worlds(&digests[4]);
    for (int i = 0; i < 4; i++) assert_true(digests[i] == digests[4]);
    assert_true(digests[4] != 0);
}

TEST_MAIN()
