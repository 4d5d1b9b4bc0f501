/* SPDX-License-Identifier: Apache-2.0 */
/* Twenty small runs whose traces, times, bits and choice strings are the same on every machine,
** compiler and optimisation level: their digests lie in golden.def. A row that no longer fits is
** printed as it would have to be.
**
** The runs are shaped like training: backward in pieces, a bucket reduced after each, everything
** waited for at the end.
*/
#include "core/base/hash.h"
#include "tests/unit/sim/fixture.h"

#include <stdio.h>
#include <string.h>

#define BUCKETS 4
#define LENGTH 257
#define RANKS_MAX 9

typedef struct job {
    float data[RANKS_MAX][BUCKETS][LENGTH];
} job;

static float given(uint32_t rank, int bucket, int i)
{
    uint64_t h =
        ((uint64_t)rank * 31 + (uint64_t)bucket * 7 + (uint64_t)i) * UINT64_C(0x9E3779B97F4A7C15);
    return (float)((double)(int32_t)(h >> 32) / (double)(1 << (h & 15)));
}

static cddp_status iteration(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    cddp_group *g = NULL;
    cddp_work *works[BUCKETS] = {NULL};
    int64_t n = LENGTH;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    for (int step = 0; status == CDDP_OK && step < 2; step++) {
        for (int b = 0; status == CDDP_OK && b < BUCKETS; b++) {
            float *data = j->data[rank->rank][b];
            const uint64_t ids[2] = {(uint64_t)b, (uint64_t)b + 100};
            cddp_choice c = {.size = sizeof c,
                             .kind = CDDP_CHOICE_READY,
                             .rank = rank->rank,
                             .option_count = 2,
                             .options = ids,
                             .name = "ready"};
            uint32_t twice = rank->ops->choose(rank, &c);
            for (int i = 0; i < LENGTH; i++)
                data[i] = given(rank->rank, b + step, i) * (float)(1 + twice);
            status = rank->ops->compute(rank, 40000 + 1000 * (uint64_t)b, "backward", err);
            cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, CDDP_F32, &n, 1);
            if (status == CDDP_OK)
                status = cddp_group_allreduce(g, &t, b % 2 ? CDDP_RED_AVG : CDDP_RED_SUM, &works[b],
                                              err);
        }
        for (int b = 0; status == CDDP_OK && b < BUCKETS; b++)
            status = cddp_work_wait(works[b], 0, err);
    }
    cddp_group_destroy(g);
    return status;
}

static const cd_fault faults[] = {
    /* clang-format off */
    {.kind = CDDP_FAULT_KILL, .when = CDDP_FAULT_BEFORE, .rank = 1, .at = 5},
    {.kind = CDDP_FAULT_LINK_CUT, .when = CDDP_FAULT_TIME, .rank = 1, .peer = 0, .at = 100000, .duration_ns = 7000000},
    {.kind = CDDP_FAULT_HANG, .when = CDDP_FAULT_INSIDE, .rank = 2, .at = 2, .duration_ns = 900000},
    {.kind = CDDP_FAULT_CHUNK_CORRUPT, .when = CDDP_FAULT_BEFORE, .rank = 0, .peer = UINT32_MAX, .at = 3, .amount = 13},
    /* clang-format on */
};

static const struct {
    const char *name;
    uint32_t ranks, ranks_per_node;
    cd_algorithm algorithm;
    cd_sim_transport transport;
    cd_sim_completion completion;
    uint64_t seed, jitter_ns; /* seed 0: fifo */
    int fault;                /* -1: none */
    uint64_t digest;
} cases[] = {
#define CASE(name, ranks, node, algorithm, transport, completion, seed, jitter, fault, digest) \
    {#name,                                                                                    \
     ranks,                                                                                    \
     node,                                                                                     \
     CD_ALGORITHM_##algorithm,                                                                 \
     CD_SIM_##transport,                                                                       \
     CD_SIM_COMPLETE_##completion,                                                             \
     seed,                                                                                     \
     jitter,                                                                                   \
     fault,                                                                                    \
     UINT64_C(digest)},
#include "tests/unit/sim/golden.def"
#undef CASE
};

static uint64_t digest_of(size_t i)
{
    static job j;
    memset(&j, 0, sizeof j);
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &j};
    f.config.world_size = cases[i].ranks;
    f.config.algorithm = cases[i].algorithm;
    f.config.transport = cases[i].transport;
    f.config.completion = cases[i].completion;
    f.config.seed = cases[i].seed;
    f.config.network = (cd_network_config){.ranks_per_node = cases[i].ranks_per_node,
                                           .intra = *cd_link_get(CD_LINK_pcie3_x16),
                                           .inter = *cd_link_get(CD_LINK_ethernet_10g),
                                           .jitter_ns = cases[i].jitter_ns};
    f.chooser = cd_chooser_random(&f.random, cases[i].seed);
    if (cases[i].seed != 0) f.config.chooser = &f.chooser;
    if (cases[i].fault >= 0) {
        f.config.faults = &faults[cases[i].fault];
        f.config.fault_count = 1;
    }
    cd_digest_sink_init(&f.digest, false);
    f.config.sink = &f.digest.sink;
    f.config.trace_level = CDDP_TRACE_PAYLOAD;
    fixture_create(&f);
    fixture_launch(&f, iteration);
    char schedule[4096];
    cd_sim_stats stats;
    cd_sim_get_stats(f.sim, &stats);
    cd_schedule_print(cd_sim_schedule(f.sim), schedule, sizeof schedule);
    uint64_t digest = cd_hash_mix(f.digest.digest, cd_hash_text(schedule));
    digest = cd_hash_mix(digest, cd_hash64(j.data, sizeof j.data, 0));
    digest = cd_hash_mix(digest, stats.time_ns);
    for (uint32_t r = 0; r < cases[i].ranks; r++)
        digest =
            cd_hash_mix(digest, (uint64_t)f.results[r].end * 100 + (uint64_t)f.results[r].status);
    fixture_destroy(&f);
    return digest;
}

TEST(golden, runs_are_the_same_everywhere)
{
    (void)state;
    uint32_t wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t digest = digest_of(i);
        if (digest == cases[i].digest) continue;
        print_message("%s: the digest is 0x%016llx\n", cases[i].name, (unsigned long long)digest);
        wrong++;
    }
    assert_int_equal(wrong, 0);
}

TEST(golden, a_second_run_is_the_same_as_the_first)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_true(digest_of(i) == digest_of(i));
}

TEST(golden, runs_differ_from_one_another)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = i + 1; k < sizeof cases / sizeof cases[0]; k++)
            assert_true(cases[i].digest != cases[k].digest);
}

TEST_MAIN()
