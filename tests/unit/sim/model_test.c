/* SPDX-License-Identifier: Apache-2.0 */
/* Time: closed forms where there are any, and the static graph against the event queue, to the
** nanosecond. */
#include "tests/unit/sim/fixture.h"

#include <string.h>

typedef struct job {
    cddp_op op;
    int64_t n;
    uint64_t late_ns; /* rank r starts r × this later */
    uint64_t ended[256];
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
    if (status == CDDP_OK)
        status = rank->ops->sleep_ns(rank, 1 + rank->rank * 7 % rank->world_size * j->late_ns, err);
    for (int k = 0; status == CDDP_OK && k < 2; k++) {
        cddp_collective c = {.op = j->op, .input = share, .output = share};
        if (j->op == CDDP_OP_ALLGATHER) c.output = whole;
        if (j->op == CDDP_OP_REDUCE_SCATTER || j->op == CDDP_OP_SCATTER) c.input = whole;
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

/* An operation needs its memory until what it sent has left: the sender's part ends then, the
** receiver's a latency later. Before it ends a next operation does not begin. */
TEST(model, an_operation_has_ended_when_what_it_sent_has_left)
{
    for (int transport = CD_SIM_MODEL; transport <= CD_SIM_MESSAGES; transport++)
        for (uint32_t a = 0; a < 2; a++) {
            job j = {.op = CDDP_OP_BROADCAST, .n = 1000000};
            cd_sim_config c = CD_SIM_CONFIG_INIT;
            c.world_size = 2;
            c.algorithm = a == 0 ? CD_ALGORITHM_flat : CD_ALGORITHM_binomial_tree;
            c.network.inter =
                (cd_link){.latency_ns = 5000, .overhead_ns = 700, .bytes_per_second = 4000000000};
            if (a == 1) c.network.connection_bytes_per_second = 2000000000;
            time_of(&j, c, (cd_sim_transport)transport);
            cd_test_row("transport %d, %s", transport, cd_algorithm_name(c.algorithm));
            const uint64_t once = a == 0 ? 1000700 : 2000700;
            assert_int_equal(j.ended[0], 1 + 2 * once);
            assert_int_equal(j.ended[1], 1 + 2 * once + 5000);
        }
}

/* Two operations: a rank may start the second before others finished the first, in both modes
** alike. */
TEST(model, agrees_with_messages_to_the_nanosecond_without_contention)
{
    (void)state;
    static const cddp_op ops[] = {CDDP_OP_ALLREDUCE, CDDP_OP_ALLGATHER, CDDP_OP_REDUCE_SCATTER,
                                  CDDP_OP_ALLTOALL, CDDP_OP_BARRIER};
    static const uint32_t sizes[] = {2, 3, 5, 8, 13};
    /* the last: equal chunks, with links all alike */
    static const int64_t lengths[] = {1, 1000, 600001, 3120};
    uint32_t compared = 0;
    for (uint32_t a = 0; a < CD_ALGORITHM_COUNT; a++)
        for (size_t o = 0; o < 5; o++)
            for (size_t s = 0; s < 5; s++)
                for (size_t l = 0; l < 4; l++) {
                    /* Where several messages race for one receiver's port there is contention:
                    ** stars, trees, the pairwise exchange. */
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
                    cd_test_row("%s %s, %u ranks, %lld elements",
                                cd_algorithm_name((cd_algorithm)a), cddp_op_name(ops[o]), sizes[s],
                                (long long)lengths[l]);
                    for (uint32_t r = 0; r < sizes[s]; r++)
                        assert_int_equal(model.ended[r], messages.ended[r]);
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
    c.network.inter = (cd_link){.latency_ns = 5000, .bytes_per_second = 1000000000};
    time_of(&j, c, CD_SIM_MODEL);
    /* Chunks of 4000 floats: 16 µs on the wire, 5 µs latency; two operations of 30 steps, begun at
    ** 1 ns. */
    for (int r = 0; r < 16; r++) assert_int_equal(j.ended[r], 1 + 2 * 30 * (16000 + 5000));
}

TEST(model, a_network_port_that_ranks_share_is_a_bottleneck)
{
    (void)state;
    job own = {.op = CDDP_OP_ALLTOALL, .n = 100000}, shared = own;
    cd_sim_config c = CD_SIM_CONFIG_INIT;
    c.world_size = 8;
    c.network = (cd_network_config){.ranks_per_node = 4,
                                    .intra = *cd_link_get(CD_LINK_nvlink_a100),
                                    .inter = *cd_link_get(CD_LINK_infiniband_edr)};
    time_of(&own, c, CD_SIM_MESSAGES);
    c.network.nics_per_node = 1;
    time_of(&shared, c, CD_SIM_MESSAGES);
    /* 4 ranks × 4 peers × 400 kB leave a node twice, through one port of 12.1 GB/s instead of
    ** four. */
    uint64_t last = 0, alone = 0;
    for (int r = 0; r < 8; r++)
        last = shared.ended[r] > last ? shared.ended[r] : last,
        alone = own.ended[r] > alone ? own.ended[r] : alone;
    uint64_t bound = 2 * 16 * UINT64_C(400000) * 10 / 121;
    assert_true(last >= bound);
    assert_true(alone < bound);
}

/* After a while every step adds the same to most ranks, and only the others are looked at: none
** where all chunks are full, else those that the odd chunk or the empty ones pass
** (Note [Steady chunks] in ring_time.c). */
TEST(model, a_ring_that_has_settled_agrees_with_messages_too)
{
    static const uint32_t sizes[] = {16, 37, 64}, nodes[] = {0, 8};
    static const uint64_t late[] = {0, 13, 977, 400000};
    static const int64_t short_of_full[] = {0, 1, 299, 600, 4100};
    for (size_t s = 0; s < 3; s++)
        for (size_t k = 0; k < 2; k++)
            for (size_t l = 0; l < 4; l++)
                for (int variant = 0; variant < 10; variant++) {
                    bool gloo = variant % 2 != 0;
                    /* Gloo cuts a chunk into two segments at least */
                    job model = {.op = CDDP_OP_ALLREDUCE,
                                 .n = (int64_t)sizes[s] * 2 * 300 - short_of_full[variant / 2],
                                 .late_ns = late[l]},
                        messages = model;
                    cd_sim_config c = CD_SIM_CONFIG_INIT;
                    c.world_size = sizes[s];
                    c.algorithm = gloo ? CD_ALGORITHM_gloo_ring : CD_ALGORITHM_ring;
                    c.network = (cd_network_config){.ranks_per_node = nodes[k],
                                                    .intra = *cd_link_get(CD_LINK_nvlink_a100),
                                                    .inter = *cd_link_get(CD_LINK_ethernet_100g)};
                    time_of(&model, c, CD_SIM_MODEL);
                    time_of(&messages, c, CD_SIM_MESSAGES);
                    cd_test_row("%u ranks in nodes of %u, late by %llu, gloo %d, %lld elements",
                                sizes[s], nodes[k], (unsigned long long)late[l], gloo,
                                (long long)model.n);
                    for (uint32_t r = 0; r < sizes[s]; r++)
                        assert_int_equal(model.ended[r], messages.ended[r]);
                }
}

/* What hfreduce does in two nodes shares nothing: every device has its side of the bus, a host
** receives from one host. */
TEST(model, pieces_over_hosts_agree_with_messages_to_the_nanosecond)
{
    static const uint64_t pieces[] = {0, 4096, 40004}, late[] = {0, 977, 400000};
    static const cd_link_kind intras[] = {CD_LINK_pcie4_staged, CD_LINK_nvlink_a100};
    for (uint32_t width = 1; width <= 8; width *= 2)
        for (uint32_t nodes = 1; nodes <= 2; nodes++)
            for (size_t k = 0; k < 3; k++)
                for (size_t l = 0; l < 3; l++) {
                    job model = {.op = CDDP_OP_ALLREDUCE, .n = 200003, .late_ns = late[l]},
                        messages = model;
                    cd_sim_config c = CD_SIM_CONFIG_INIT;
                    if (width * nodes < 2) continue;
                    c.world_size = width * nodes;
                    c.algorithm = CD_ALGORITHM_hfreduce;
                    c.piece_bytes = pieces[k];
                    c.launch_ns = l * 5000;
                    c.network =
                        (cd_network_config){.ranks_per_node = width,
                                            .intra = *cd_link_get(intras[l % 2]),
                                            .inter = *cd_link_get(CD_LINK_infiniband_hdr),
                                            .bus = *cd_link_get(CD_LINK_pcie4_x16),
                                            .connection_bytes_per_second = l * UINT64_C(7000000000),
                                            .host_bytes_per_second = UINT64_C(320000000000)};
                    time_of(&model, c, CD_SIM_MODEL);
                    time_of(&messages, c, CD_SIM_MESSAGES);
                    cd_test_row("%u nodes of %u, pieces of %u bytes, late by %u", nodes, width,
                                (unsigned)pieces[k], (unsigned)late[l]);
                    for (uint32_t r = 0; r < c.world_size; r++)
                        assert_int_equal(model.ended[r], messages.ended[r]);
                }
}

/* Where no message keeps a receiver's port busy there is no contention in a tree either. */
TEST(model, pieces_of_trees_agree_with_messages_to_the_nanosecond)
{
    static const uint64_t pieces[] = {0, 4096, 40004};
    uint32_t compared = 0;
    for (uint32_t ranks = 2; ranks <= 13; ranks++)
        for (uint32_t a = 0; a < CD_ALGORITHM_COUNT; a++)
            for (size_t k = 0; k < 3 && cd_algorithm_is_tree((cd_algorithm)a); k++) {
                job model = {.op = CDDP_OP_ALLREDUCE, .n = 50003, .late_ns = 977}, messages = model;
                cd_sim_config c = CD_SIM_CONFIG_INIT;
                c.world_size = ranks;
                c.algorithm = (cd_algorithm)a;
                c.piece_bytes = pieces[k];
                c.network = (cd_network_config){.ranks_per_node = 4,
                                                .intra = {.latency_ns = 700, .overhead_ns = 300},
                                                .inter = {.latency_ns = 5000, .overhead_ns = 900}};
                time_of(&model, c, CD_SIM_MODEL);
                time_of(&messages, c, CD_SIM_MESSAGES);
                cd_test_row("%s, %u ranks, pieces of %u bytes", cd_algorithm_name((cd_algorithm)a),
                            ranks, (unsigned)pieces[k]);
                for (uint32_t r = 0; r < ranks; r++)
                    assert_int_equal(model.ended[r], messages.ended[r]);
                compared++;
            }
    assert_int_equal(compared, 12 * 4 * 3);
}

/* One rank of a pair sends all it has while it receives: pieces hide all steps but the first. */
TEST(model, pieces_follow_each_other_up_and_down_a_tree)
{
    job whole = {.op = CDDP_OP_ALLREDUCE, .n = 1 << 20}, cut = whole;
    cd_sim_config c = CD_SIM_CONFIG_INIT;
    c.world_size = 64;
    c.algorithm = CD_ALGORITHM_double_tree;
    c.network.inter = (cd_link){.latency_ns = 1000, .bytes_per_second = 10000000000};
    time_of(&whole, c, CD_SIM_MESSAGES);
    c.piece_bytes = 32768;
    time_of(&cut, c, CD_SIM_MESSAGES);
    /* Two operations. A member sends its data up once and down as often as it has children, twice
    ** at most: of 4 MiB no less than 2 × 420 us leave in all, where whole halves need that for
    ** every one of 2 × 6 levels. */
    assert_true(whole.ended[0] > 2 * 2 * 6 * UINT64_C(200000));
    assert_true(cut.ended[0] > 2 * 2 * UINT64_C(419430) && cut.ended[0] < 2 * 3 * UINT64_C(419430));
}

/* Rank 0 sends 4 MB to one neighbour inside the node and to two ranks outside. */
TEST(model, a_bus_is_shared_by_a_gpu_s_card_and_its_neighbours)
{
    job shared = {.op = CDDP_OP_SCATTER, .n = 1000000}, apart = shared;
    cd_sim_config c = CD_SIM_CONFIG_INIT;
    c.world_size = 4;
    c.network = (cd_network_config){.ranks_per_node = 2,
                                    .intra = *cd_link_get(CD_LINK_pcie4_x16),
                                    .inter = *cd_link_get(CD_LINK_infiniband_ndr),
                                    .bus = *cd_link_get(CD_LINK_pcie4_x16)};
    time_of(&shared, c, CD_SIM_MESSAGES);
    c.network.intra = *cd_link_get(CD_LINK_nvlink_a100);
    time_of(&apart, c, CD_SIM_MESSAGES);
    uint64_t three = 2 * 3 * UINT64_C(4000000) / 24, two = 2 * 2 * UINT64_C(4000000) / 24;
    assert_true(shared.ended[0] > three);
    /* what goes to the neighbour is not on the way of the others at all */
    assert_true(apart.ended[0] > two && apart.ended[0] < two + 10000);
}

typedef struct turns_job {
    uint32_t groups;
    uint64_t ended_ns;
} turns_job;

/* Two all-reduces at once, in as many groups. */
static cddp_status reduce_in_turn(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    turns_job *j = f->data;
    cddp_group *groups[2] = {NULL, NULL};
    cddp_work *works[2] = {NULL, NULL};
    int64_t n = 500000;
    cddp_tensor t = cddp_tensor_of(cddp_device_shape(), NULL, 0, CDDP_F32, &n, 1);
    cddp_status status = CDDP_OK;
    for (uint32_t i = 0; status == CDDP_OK && i < j->groups; i++)
        status = fixture_group(f, rank, i == 0 ? "first" : "second", &groups[i], err);
    for (uint32_t i = 0; status == CDDP_OK && i < 2; i++)
        status = cddp_group_allreduce(groups[i % j->groups], &t, CDDP_RED_SUM, &works[i], err);
    for (uint32_t i = 0; status == CDDP_OK && i < 2; i++) status = cddp_work_wait(works[i], 0, err);
    if (rank->rank == 0) j->ended_ns = rank->ops->now_ns(rank);
    for (uint32_t i = 0; i < j->groups; i++) cddp_group_destroy(groups[i]);
    return status;
}

/* 1 MB in each of two steps, on a link of 1 GB/s that one connection fills, or to a half, or to
** three quarters. The second group's messages follow the first one's after 1 ms, when those have
** left the port; their connections take longer. */
TEST(model, groups_share_a_link_and_not_a_connection)
{
    static const struct {
        uint64_t rate, one_ns, two_ns;
    } cases[] = {{0, 4000000, 4000000},
                 {500000000, 8000000, 5000000},
                 {750000000, 5333336, 4333334}};
    for (size_t i = 0; i < 3; i++) {
        uint64_t ended[2];
        for (uint32_t groups = 1; groups <= 2; groups++) {
            turns_job j = {.groups = groups};
            sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &j};
            f.config.world_size = 2;
            f.config.algorithm = CD_ALGORITHM_ring;
            f.config.transport = CD_SIM_MESSAGES;
            f.config.network.inter = (cd_link){.bytes_per_second = 1000000000};
            f.config.network.connection_bytes_per_second = cases[i].rate;
            fixture_run(&f, reduce_in_turn);
            fixture_destroy(&f);
            ended[groups - 1] = j.ended_ns;
        }
        cd_test_row("connections of %u bytes per second", (unsigned)cases[i].rate);
        assert_int_equal(ended[0], cases[i].one_ns);
        assert_int_equal(ended[1], cases[i].two_ns);
    }
}

TEST(model, launching_takes_its_time_in_every_operation)
{
    for (int transport = CD_SIM_MODEL; transport <= CD_SIM_MESSAGES; transport++) {
        job j = {.op = CDDP_OP_ALLREDUCE, .n = 64000};
        cd_sim_config c = CD_SIM_CONFIG_INIT;
        c.world_size = 16;
        c.algorithm = CD_ALGORITHM_ring;
        c.launch_ns = 8400;
        c.network.inter = (cd_link){.latency_ns = 5000, .bytes_per_second = 1000000000};
        time_of(&j, c, (cd_sim_transport)transport);
        cd_test_row("transport %d", transport);
        for (int r = 0; r < 16; r++)
            assert_int_equal(j.ended[r], 1 + 2 * (8400 + 30 * (16000 + 5000)));
    }
}

/* As small as what ranks agree on: nearly all chunks are empty, and the others are walked. Nothing
** at all is over as messages as soon as a rank has posted it, as a graph when all have: so there
** all are on time. */
TEST(model, a_ring_with_fewer_elements_than_ranks_agrees_with_messages_too)
{
    static const int64_t lengths[] = {0, 1, 2, 3, 5, 9};
    for (size_t l = 0; l < 6; l++)
        for (int variant = 0; variant < 4; variant++) {
            job model = {.op = CDDP_OP_ALLREDUCE,
                         .n = lengths[l],
                         .late_ns = variant < 2 || lengths[l] == 0 ? 0 : 977};
            job messages = model;
            cd_sim_config c = CD_SIM_CONFIG_INIT;
            c.world_size = 201;
            c.algorithm = variant % 2 != 0 ? CD_ALGORITHM_gloo_ring : CD_ALGORITHM_ring;
            c.network = (cd_network_config){.ranks_per_node = 8,
                                            .intra = *cd_link_get(CD_LINK_nvlink_a100),
                                            .inter = *cd_link_get(CD_LINK_ethernet_100g)};
            time_of(&model, c, CD_SIM_MODEL);
            time_of(&messages, c, CD_SIM_MESSAGES);
            cd_test_row("%lld elements, late by %llu, variant %d", (long long)lengths[l],
                        (unsigned long long)model.late_ns, variant);
            for (uint32_t r = 0; r < c.world_size; r++)
                assert_int_equal(model.ended[r], messages.ended[r]);
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

/* 20 µs alone, then 20 µs at half the speed while 2 × 10 kB cross the link of 1 GB/s, then the rest
** alone. */
TEST(model, computing_beside_a_transfer_takes_longer_for_as_long_as_it_lasts)
{
    for (int transport = CD_SIM_MODEL; transport <= CD_SIM_MESSAGES; transport++) {
        shared_job alone = {0}, shared = {0};
        for (int i = 0; i < 2; i++) {
            sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = i == 0 ? &alone : &shared};
            f.config.world_size = 2;
            f.config.algorithm = CD_ALGORITHM_ring;
            f.config.transport = (cd_sim_transport)transport;
            f.config.network.inter = (cd_link){.bytes_per_second = 1000000000};
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

TEST_MAIN()
