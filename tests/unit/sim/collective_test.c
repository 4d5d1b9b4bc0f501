/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation, with every algorithm, on every transport, gives the mathematical result; the
** summation order of the ring is Gloo's; members that disagree behave as on a wire. */
#include "tests/unit/sim/fixture.h"

#include <stdio.h>
#include <string.h>

#define N_MAX 64

/* What a rank contributes: small integers, so that every sum is exact. */
static int64_t given(uint32_t rank, int64_t i)
{
    return (int64_t)((rank * 7 + (uint32_t)i * 3 + 1) % 11) - 3;
}

static cddp_tensor vector(cddp_dtype dtype, void *data, int64_t n)
{
    return cddp_tensor_of(cddp_device_cpu(), data, 0, dtype, &n, 1);
}

typedef struct grid_point {
    int64_t n;
    uint32_t root;
    cddp_red_op red;
} grid_point;

static cddp_status run_one(cddp_group *g, cddp_collective *c, cddp_error *err)
{
    cddp_work *work = NULL;
    cddp_status status = cddp_group_post(g, c, &work, err);
    return status == CDDP_OK ? cddp_work_wait(work, 0, err) : status;
}

static int64_t reduced(cddp_red_op red, uint32_t size, int64_t i)
{
    int64_t sum = given(0, i);
    for (uint32_t r = 1; r < size; r++) {
        int64_t x = given(r, i);
        switch (red) {
        case CDDP_RED_MIN:
            sum = x < sum ? x : sum;
            break;
        case CDDP_RED_MAX:
            sum = x > sum ? x : sum;
            break;
        case CDDP_RED_PRODUCT:
            sum *= x;
            break;
        case CDDP_RED_BAND:
            sum &= x;
            break;
        case CDDP_RED_BOR:
            sum |= x;
            break;
        case CDDP_RED_BXOR:
            sum ^= x;
            break;
        default:
            sum += x;
        }
    }
    return sum;
}

static cddp_status all_operations(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    const grid_point *grid = f->data;
    uint32_t w = rank->world_size, me = rank->rank;
    int64_t n = grid->n, in[N_MAX * 9], out[N_MAX * 9];
    cddp_group *g = NULL;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    if (status != CDDP_OK) return status;

    for (int64_t i = 0; i < n; i++) in[i] = given(me, i);
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op = grid->red,
                         .input = vector(CDDP_I64, in, n),
                         .output = vector(CDDP_I64, out, n)};
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n; i++) assert_int_equal(out[i], reduced(grid->red, w, i));
    /* inputs are left alone */
    for (int64_t i = 0; i < n; i++) assert_int_equal(in[i], given(me, i));

    c = (cddp_collective){.op = CDDP_OP_REDUCE,
                          .reduce_op = grid->red,
                          .root = grid->root,
                          .input = vector(CDDP_I64, in, n),
                          .output = vector(CDDP_I64, out, n)};
    for (int64_t i = 0; i < n; i++) out[i] = -99;
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(out[i], me == grid->root ? reduced(grid->red, w, i) : -99); /* ZOO-96 */

    for (int64_t i = 0; i < n; i++) out[i] = given(me, i);
    c = (cddp_collective){.op = CDDP_OP_BROADCAST,
                          .root = grid->root,
                          .output = vector(CDDP_I64, out, n)};
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n; i++) assert_int_equal(out[i], given(grid->root, i));

    c = (cddp_collective){.op = CDDP_OP_ALLGATHER,
                          .input = vector(CDDP_I64, in, n),
                          .output = vector(CDDP_I64, out, n * w)};
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n * w; i++) assert_int_equal(out[i], given((uint32_t)(i / n), i % n));

    for (int64_t i = 0; i < n * w; i++) in[i] = given(me, i), out[i] = -99;
    c = (cddp_collective){.op = CDDP_OP_REDUCE_SCATTER,
                          .reduce_op = grid->red,
                          .input = vector(CDDP_I64, in, n * w),
                          .output = vector(CDDP_I64, out, n)};
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n; i++) assert_int_equal(out[i], reduced(grid->red, w, me * n + i));

    c = (cddp_collective){.op = CDDP_OP_GATHER,
                          .root = grid->root,
                          .input = vector(CDDP_I64, in, n),
                          .output = vector(CDDP_I64, out, n * w)};
    assert_ok(run_one(g, &c, err), err);
    if (me == grid->root)
        for (int64_t i = 0; i < n * w; i++)
            assert_int_equal(out[i], given((uint32_t)(i / n), i % n));

    c = (cddp_collective){.op = CDDP_OP_SCATTER,
                          .root = grid->root,
                          .input = vector(CDDP_I64, in, n * w),
                          .output = vector(CDDP_I64, out, n)};
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n; i++) assert_int_equal(out[i], given(grid->root, me * n + i));

    c = (cddp_collective){.op = CDDP_OP_ALLTOALL,
                          .input = vector(CDDP_I64, in, n * w),
                          .output = vector(CDDP_I64, out, n * w)};
    assert_ok(run_one(g, &c, err), err);
    for (int64_t i = 0; i < n * w; i++)
        assert_int_equal(out[i], given((uint32_t)(i / n), me * n + i % n));

    assert_ok(cddp_group_barrier(g, err), err);
    if (w > 1 && me < 2) { /* to and fro */
        c = (cddp_collective){.op = me == 0 ? CDDP_OP_SEND : CDDP_OP_RECV,
                              .root = 1 - me,
                              .tag = 5};
        if (me == 0)
            c.input = vector(CDDP_I64, in, n);
        else
            c.output = vector(CDDP_I64, out, n);
        assert_ok(run_one(g, &c, err), err);
        for (int64_t i = 0; me == 1 && i < n; i++) assert_int_equal(out[i], given(0, i));
    }
    cddp_group_destroy(g);
    return CDDP_OK;
}

TEST(collective, gives_the_mathematical_result_under_any_schedule)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const int64_t lengths[] = {1, 5, 64};
    static const cddp_red_op reds[] = {CDDP_RED_SUM,  CDDP_RED_MIN, CDDP_RED_MAX, CDDP_RED_PRODUCT,
                                       CDDP_RED_BAND, CDDP_RED_BOR, CDDP_RED_BXOR};
    uint64_t seed = cd_test_seed();
    for (uint32_t a = 0; a < CD_ALGORITHM_COUNT; a++)
        for (uint32_t t = 0; t <= CD_SIM_MESSAGES; t++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
                for (size_t l = 0; l < 3; l++) {
                    if (a == CD_ALGORITHM_any_order && t == CD_SIM_MODEL) continue;
                    seed++;
                    grid_point grid = {lengths[l], (uint32_t)(seed % sizes[s]), reds[seed % 7]};
                    sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &grid};
                    f.config.world_size = sizes[s];
                    f.config.algorithm = (cd_algorithm)a;
                    f.config.transport = (cd_sim_transport)t;
                    f.config.completion =
                        seed % 2 ? CD_SIM_COMPLETE_CHOICE : CD_SIM_COMPLETE_AT_ONCE;
                    f.config.network =
                        (cd_network_config){.ranks_per_node = 2,
                                            .intra = *cd_link_get(CD_LINK_nvlink_v100),
                                            .inter = *cd_link_get(CD_LINK_ethernet_25g),
                                            .jitter_ns = seed % 3 * 1000};
                    f.config.network.bus =
                        *cd_link_get(seed % 5 < 2 ? CD_LINK_pcie4_x16 : CD_LINK_ideal);
                    f.config.network.connection_bytes_per_second = seed % 7 < 2 ? 1000000000 : 0;
                    f.config.network.host_bytes_per_second = seed % 2 * UINT64_C(320000000000);
                    f.config.piece_bytes = seed % 6 * 12;
                    f.config.launch_ns = seed % 4 < 2 ? 8400 : 0;
                    f.config.heap_bytes = 8 << 20;
                    f.config.seed = seed;
                    f.chooser = cd_chooser_random(&f.random, seed);
                    f.config.chooser = seed % 4 ? &f.chooser : NULL;
                    cd_test_row("%s, transport %u, %u ranks, %lld elements, %s",
                                cd_algorithm_name((cd_algorithm)a), t, sizes[s],
                                (long long)lengths[l], cddp_red_op_name(grid.red));
                    fixture_run(&f, all_operations);
                    cd_sim_stats stats;
                    cd_sim_get_stats(f.sim, &stats);
                    assert_int_equal(stats.messages_sent, stats.messages + stats.messages_lost);
                    assert_int_equal(stats.bytes_sent, stats.bytes + stats.bytes_lost);
                    assert_int_equal(stats.messages_lost, 0);
                    fixture_destroy(&f);
                }
}

TEST_MAIN()
