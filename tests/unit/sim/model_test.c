/* SPDX-License-Identifier: Apache-2.0 */
/* Time: closed forms where there are any, and the static graph against the event queue, to the nanosecond. */
#include "tests/unit/sim/fixture.h"

#include <string.h>

typedef struct job {
    cddp_op op;
    int64_t n;
    uint64_t late_ns; /* rank r starts r × this later */
    uint64_t ended[64];
} job;

static cddp_status operation(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    cddp_group *g = NULL;
    int64_t n = j->n, all = n * rank->world_size;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    cddp_tensor share = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &n, 1);
    cddp_tensor whole = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &all, 1);
    if (status == CDDP_OK) status = rank->ops->sleep_ns(rank, 1 + rank->rank * 7 % rank->world_size * j->late_ns, err);
    for (int k = 0; status == CDDP_OK && k < 2; k++) {
        cddp_collective c = {.op = j->op, .input = share, .output = share};
        if (j->op == CDDP_OP_ALLGATHER) c.output = whole;
        if (j->op == CDDP_OP_REDUCE_SCATTER) c.input = whole;
        if (j->op == CDDP_OP_ALLTOALL) c.input = c.output = whole;
        cddp_work *work = NULL;
        status = cddp_group_post(g, &c, &work, err);
        if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    }
    j->ended[rank->rank] = rank->ops->now_ns(rank);
    cddp_group_destroy(g);
    return status;
}

static void time_of(job *j, cd_sim_config config, cd_sim_transport transport)
{
    sim_fixture f = {.config = config, .data = j};
    memset(j->ended, 0, sizeof j->ended);
    f.config.transport = transport;
    fixture_run(&f, operation);
    fixture_destroy(&f);
}

/* Two operations: a rank may start the second before others finished the first, in both modes alike. */
TEST(model, agrees_with_messages_to_the_nanosecond_without_contention)
{
    (void)state;
    static const cddp_op ops[] = {CDDP_OP_ALLREDUCE, CDDP_OP_ALLGATHER, CDDP_OP_REDUCE_SCATTER, CDDP_OP_ALLTOALL,
                                  CDDP_OP_BARRIER};
    static const uint32_t sizes[] = {2, 3, 5, 8, 13};
    static const int64_t lengths[] = {1, 1000, 600001, 3120}; /* the last: equal chunks, with links all alike */
    uint32_t compared = 0;
    for (uint32_t a = 0; a < CD_ALGORITHM_COUNT; a++)
        for (size_t o = 0; o < 5; o++)
            for (size_t s = 0; s < 5; s++)
                for (size_t l = 0; l < 4; l++) {
                    /* Where several messages race for one receiver's port there is contention: stars, trees, the
                     * pairwise exchange. */
                    bool ring = cd_algorithm_is_ring((cd_algorithm)a), even = sizes[s] == 2;
                    bool free = ops[o] == CDDP_OP_ALLGATHER || ops[o] == CDDP_OP_BARRIER ||
                                (ring && ops[o] != CDDP_OP_ALLTOALL) || even;
                    if (!free || a == CD_ALGORITHM_any_order) continue;
                    job model = {.op = ops[o], .n = lengths[l], .late_ns = 977}, messages = model;
                    cd_sim_config c = CD_SIM_CONFIG_INIT;
                    c.world_size = sizes[s];
                    c.algorithm = (cd_algorithm)a;
                    c.network = (cd_network_config){.ranks_per_node = l == 3 ? 0 : 2,
                                                    .intra = *cd_link_get(CD_LINK_nvlink_a100),
                                                    .inter = *cd_link_get(CD_LINK_ethernet_100g)};
                    time_of(&model, c, CD_SIM_MODEL);
                    time_of(&messages, c, CD_SIM_MESSAGES);
                    cd_test_row("%s %s, %u ranks, %lld elements", cd_algorithm_name((cd_algorithm)a),
                                cddp_op_name(ops[o]), sizes[s], (long long)lengths[l]);
                    for (uint32_t r = 0; r < sizes[s]; r++) assert_int_equal(model.ended[r], messages.ended[r]);
                    compared++;
                }
    assert_true(compared > 100);
}

TEST(model, the_ring_takes_two_times_n_minus_one_steps)
{
    (void)state;
    job j = {.op = CDDP_OP_ALLREDUCE, .n = 64000};
    cd_sim_config c = CD_SIM_CONFIG_INIT;
    c.world_size = 16;
    c.algorithm = CD_ALGORITHM_ring;
    c.network.inter = (cd_link){"", 5000, 1000000000, 0};
    time_of(&j, c, CD_SIM_MODEL);
    /* Chunks of 4000 floats: 16 µs on the wire, 5 µs latency; two operations of 30 steps, begun at 1 ns. */
    for (int r = 0; r < 16; r++) assert_int_equal(j.ended[r], 1 + 2 * 30 * (16000 + 5000));
}

TEST(model, a_network_port_that_ranks_share_is_a_bottleneck)
{
    (void)state;
    job own = {.op = CDDP_OP_ALLTOALL, .n = 100000}, shared = own;
    cd_sim_config c = CD_SIM_CONFIG_INIT;
    c.world_size = 8;
    c.network = (cd_network_config){
        .ranks_per_node = 4, .intra = *cd_link_get(CD_LINK_nvlink_a100), .inter = *cd_link_get(CD_LINK_infiniband_edr)};
    time_of(&own, c, CD_SIM_MESSAGES);
    c.network.nics_per_node = 1;
    time_of(&shared, c, CD_SIM_MESSAGES);
    /* 4 ranks × 4 peers × 400 kB leave a node twice, through one port of 12.1 GB/s instead of four. */
    uint64_t last = 0, alone = 0;
    for (int r = 0; r < 8; r++)
        last = shared.ended[r] > last ? shared.ended[r] : last, alone = own.ended[r] > alone ? own.ended[r] : alone;
    uint64_t bound = 2 * 16 * UINT64_C(400000) * 10 / 121;
    assert_true(last >= bound);
    assert_true(alone < bound);
}

/* Full chunks: after a while every step adds the same, and the rest is added at once. */
TEST(model, a_ring_that_has_settled_agrees_with_messages_too)
{
    static const uint32_t sizes[] = {16, 37, 64}, nodes[] = {0, 8};
    static const uint64_t late[] = {0, 13, 977, 400000};
    for (size_t s = 0; s < 3; s++)
        for (size_t k = 0; k < 2; k++)
            for (size_t l = 0; l < 4; l++)
                for (int gloo = 0; gloo < 2; gloo++) {
                    /* Gloo cuts a chunk into two segments at least */
                    job model = {.op = CDDP_OP_ALLREDUCE, .n = (int64_t)sizes[s] * 2 * 300, .late_ns = late[l]},
                        messages = model;
                    cd_sim_config c = CD_SIM_CONFIG_INIT;
                    c.world_size = sizes[s];
                    c.algorithm = gloo ? CD_ALGORITHM_gloo_ring : CD_ALGORITHM_ring;
                    c.network = (cd_network_config){.ranks_per_node = nodes[k],
                                                    .intra = *cd_link_get(CD_LINK_nvlink_a100),
                                                    .inter = *cd_link_get(CD_LINK_ethernet_100g)};
                    time_of(&model, c, CD_SIM_MODEL);
                    time_of(&messages, c, CD_SIM_MESSAGES);
                    cd_test_row("%u ranks in nodes of %u, late by %llu, gloo %d", sizes[s], nodes[k],
                                (unsigned long long)late[l], gloo);
                    for (uint32_t r = 0; r < sizes[s]; r++) assert_int_equal(model.ended[r], messages.ended[r]);
                }
}

typedef struct shared_job {
    uint64_t early_ns, late_ns; /* when rank 0 had computed, when its operation had ended */
} shared_job;

/* Rank 0 computes 100 µs; rank 1 joins the collective 20 µs later than rank 0 posted it. */
static cddp_status compute_beside(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    shared_job *j = f->data;
    cddp_group *g = NULL;
    cddp_work *work = NULL;
    int64_t n = 5000;
    cddp_tensor t = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &n, 1);
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    if (status == CDDP_OK && rank->rank == 1) status = rank->ops->sleep_ns(rank, 20000, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK && rank->rank == 0) {
        status = rank->ops->compute(rank, 100000, "layer", err);
        j->early_ns = rank->ops->now_ns(rank);
    }
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    if (rank->rank == 0) j->late_ns = rank->ops->now_ns(rank);
    cddp_group_destroy(g);
    return status;
}

/* 20 µs alone, then 20 µs at half the speed while 2 × 10 kB cross the link of 1 GB/s, then the rest alone. */
TEST(model, computing_beside_a_transfer_takes_longer_for_as_long_as_it_lasts)
{
    for (int transport = CD_SIM_MODEL; transport <= CD_SIM_MESSAGES; transport++) {
        shared_job alone = {0}, shared = {0};
        for (int i = 0; i < 2; i++) {
            sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = i == 0 ? &alone : &shared};
            f.config.world_size = 2;
            f.config.algorithm = CD_ALGORITHM_ring;
            f.config.transport = (cd_sim_transport)transport;
            f.config.network.inter = (cd_link){"", 0, 1000000000, 0};
            f.config.compute_permille = i == 0 ? 0 : 2000;
            fixture_run(&f, compute_beside);
            fixture_destroy(&f);
        }
        cd_test_row("transport %d", transport);
        assert_int_equal(alone.early_ns, 100000);
        /* messages: rank 0's operation is under way from its posting on, 40 µs in all */
        assert_int_equal(shared.early_ns, 100000 + (transport == CD_SIM_MODEL ? 10000 : 20000));
        assert_int_equal(shared.late_ns, shared.early_ns);
    }
}

TEST(model, jitter_comes_from_the_seed)
{
    (void)state;
    uint64_t ends[3];
    for (int i = 0; i < 3; i++) {
        job j = {.op = CDDP_OP_ALLREDUCE, .n = 1000};
        cd_sim_config c = CD_SIM_CONFIG_INIT;
        c.world_size = 4;
        c.seed = i == 2 ? 8 : 7;
        c.network.inter = *cd_link_get(CD_LINK_ethernet_25g);
        c.network.jitter_ns = 5000;
        time_of(&j, c, CD_SIM_MESSAGES);
        ends[i] = j.ended[0];
    }
    assert_int_equal(ends[0], ends[1]);
    assert_int_not_equal(ends[0], ends[2]);
}

TEST_MAIN(ROW(model, agrees_with_messages_to_the_nanosecond_without_contention),
          ROW(model, the_ring_takes_two_times_n_minus_one_steps),
          ROW(model, a_network_port_that_ranks_share_is_a_bottleneck),
          ROW(model, a_ring_that_has_settled_agrees_with_messages_too),
          ROW(model, computing_beside_a_transfer_takes_longer_for_as_long_as_it_lasts),
          ROW(model, jitter_comes_from_the_seed))
