/* SPDX-License-Identifier: Apache-2.0 */
/* The association of every algorithm: written out for four ranks, and the same bits on every
** transport. */
#include "tests/unit/sim/fixture.h"

#include <string.h>

#define N 600

typedef struct job {
    cddp_red_op op;
    uint64_t piece_bytes;
    double premultiplier[8];
    float in[8][N], out[8][N];
} job;

static cddp_status reduce(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    cddp_group *g = NULL;
    int64_t n = N;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    cddp_collective c = {.op = CDDP_OP_ALLREDUCE,
                         .reduce_op = j->op,
                         .premultiplier = j->premultiplier[rank->rank]};
    c.input = cddp_tensor_of(cddp_device_cpu(), j->in[rank->rank], 0, CDDP_F32, &n, 1);
    c.output = cddp_tensor_of(cddp_device_cpu(), j->out[rank->rank], 0, CDDP_F32, &n, 1);
    cddp_work *work = NULL;
    if (status == CDDP_OK) status = cddp_group_post(g, &c, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    cddp_group_destroy(g);
    return status;
}

/* Values whose sums depend on the order. */
static void fill(job *j)
{
    uint64_t h = 1;
    for (int r = 0; r < 8; r++)
        for (int i = 0; i < N; i++) {
            h = h * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            j->in[r][i] = (float)((double)(int32_t)(h >> 32) / (double)(1 << (h >> 58 & 15)));
        }
}

static void run(job *j, cd_algorithm a, cd_sim_transport t, uint32_t ranks)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = j};
    f.config.world_size = ranks;
    f.config.algorithm = a;
    f.config.transport = t;
    f.config.piece_bytes = j->piece_bytes;
    f.config.network.ranks_per_node = 2;
    f.config.network.inter = *cd_link_get(CD_LINK_infiniband_hdr);
    f.config.network.bus = *cd_link_get(CD_LINK_pcie4_x16);
    f.config.network.host_bytes_per_second = UINT64_C(320000000000);
    memset(j->out, 0, sizeof j->out);
    fixture_run(&f, reduce);
    fixture_destroy(&f);
}

static float expected(cd_algorithm a, const job *j, int i)
{
    float x[4] = {j->in[0][i], j->in[1][i], j->in[2][i], j->in[3][i]};
    bool second_half = i >= N / 2;
    int c = i / (N / 4); /* chunk of a ring: from rank c-1 downwards to rank c */
    switch (a) {
    case CD_ALGORITHM_flat:
        return ((x[0] + x[1]) + x[2]) + x[3];
    /* fifo: as they arrive; rank 3 completes the group, and so goes on first */
    case CD_ALGORITHM_any_order:
        return ((x[3] + x[0]) + x[1]) + x[2];
    case CD_ALGORITHM_gloo_ring:
    case CD_ALGORITHM_ring:
        return ((x[(c + 3) % 4] + x[(c + 2) % 4]) + x[(c + 1) % 4]) + x[c];
    case CD_ALGORITHM_halving_doubling:
    case CD_ALGORITHM_binomial_tree:
        return (x[0] + x[1]) + (x[2] + x[3]);
    case CD_ALGORITHM_double_tree:
        return second_half ? x[3] + ((x[1] + x[2]) + x[0]) : x[0] + ((x[2] + x[1]) + x[3]);
    /* two leaders: the second is the first's child in one tree, its parent in the other */
    case CD_ALGORITHM_two_level:
    case CD_ALGORITHM_hfreduce:
        return (x[0] + x[1]) + (x[2] + x[3]);
    case CD_ALGORITHM_COUNT:
        break;
    }
    return 0;
}

TEST(algorithm, adds_in_its_documented_order)
{
    (void)state;
    static job j = {.op = CDDP_RED_SUM};
    fill(&j);
    uint32_t differ = 0;
    for (int a = 0; a < CD_ALGORITHM_COUNT; a++) {
        run(&j, (cd_algorithm)a, CD_SIM_DIRECT, 4);
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < N; i++) {
                cd_test_row("%s, rank %d, element %d", cd_algorithm_name((cd_algorithm)a), r, i);
                float want = expected((cd_algorithm)a, &j, i);
                assert_memory_equal(&j.out[r][i], &want, sizeof want);
                differ += want != expected(CD_ALGORITHM_flat, &j, i);
            }
    }
    assert_true(differ > 1000); /* the values do tell orders apart */
}

TEST(algorithm, has_the_same_bits_on_every_transport)
{
    (void)state;
    static job j, k;
    for (uint32_t ranks = 2; ranks <= 8; ranks++)
        for (int a = 0; a < CD_ALGORITHM_any_order; a++) {
            fill(&j);
            fill(&k);
            j.op = k.op = ranks % 2 ? CDDP_RED_AVG : CDDP_RED_SUM;
            run(&j, (cd_algorithm)a, CD_SIM_DIRECT, ranks);
            for (int t = CD_SIM_MODEL; t <= CD_SIM_MESSAGES; t++) {
                run(&k, (cd_algorithm)a, (cd_sim_transport)t, ranks);
                cd_test_row("%s, %u ranks, transport %d", cd_algorithm_name((cd_algorithm)a), ranks,
                            t);
                assert_memory_equal(j.out, k.out, sizeof j.out);
            }
            for (uint32_t r = 1; r < ranks; r++)
                assert_memory_equal(j.out[0], j.out[r], sizeof j.out[0]);
        }
}

/* 600 floats: a tree's half in 300, 43 or 2 pieces, the last of them shorter. */
TEST(algorithm, has_the_same_bits_in_pieces_of_any_size)
{
    static job whole, cut;
    static const uint64_t sizes[] = {4, 28, 1196};
    for (uint32_t ranks = 2; ranks <= 7; ranks += ranks < 3 ? 1 : 2)
        for (int a = 0; a < CD_ALGORITHM_any_order; a++) {
            if (!cd_algorithm_is_tree((cd_algorithm)a)) continue;
            fill(&whole);
            run(&whole, (cd_algorithm)a, CD_SIM_DIRECT, ranks);
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
                for (int t = CD_SIM_DIRECT; t <= CD_SIM_MESSAGES; t++) {
                    fill(&cut);
                    cut.piece_bytes = sizes[s];
                    run(&cut, (cd_algorithm)a, (cd_sim_transport)t, ranks);
                    cd_test_row("%s, %u ranks, pieces of %u bytes, transport %d",
                                cd_algorithm_name((cd_algorithm)a), ranks, (unsigned)sizes[s], t);
                    assert_memory_equal(whole.out, cut.out, sizeof whole.out);
                }
        }
}

TEST(algorithm, averages_divide_the_sum_and_premultipliers_scale_each_contribution)
{
    (void)state;
    static job j;
    for (int t = 0; t <= CD_SIM_MESSAGES; t++) {
        for (int r = 0; r < 3; r++)
            for (int i = 0; i < N; i++) j.in[r][i] = (float)(i % 7 + r);
        j.op = CDDP_RED_AVG;
        run(&j, CD_ALGORITHM_flat, (cd_sim_transport)t, 3);
        for (int i = 0; i < N; i++) assert_true(j.out[1][i] == (float)(3 * (i % 7) + 3) / 3.0f);
        j.op = CDDP_RED_PREMUL_SUM;
        for (int r = 0; r < 3; r++) j.premultiplier[r] = 0.5;
        run(&j, CD_ALGORITHM_gloo_ring, (cd_sim_transport)t, 3);
        for (int i = 0; i < N; i++) assert_true(j.out[2][i] == 0.5f * (float)(3 * (i % 7) + 3));
    }
}

TEST(algorithm, any_order_is_a_choice_that_random_schedules_explore)
{
    (void)state;
    static job j = {.op = CDDP_RED_SUM};
    fill(&j);
    uint32_t flat = 0, runs = 40;
    for (uint64_t seed = 0; seed < runs; seed++) {
        sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &j};
        f.config.world_size = 4;
        f.config.algorithm = CD_ALGORITHM_any_order;
        f.chooser = cd_chooser_random(&f.random, seed);
        f.config.chooser = &f.chooser;
        fixture_run(&f, reduce);
        fixture_destroy(&f);
        float want = expected(CD_ALGORITHM_flat, &j, 0);
        flat += memcmp(&want, &j.out[0][0], sizeof want) == 0;
        for (int r = 1; r < 4; r++) assert_memory_equal(j.out[0], j.out[r], sizeof j.out[0]);
    }
    assert_true(flat < runs);
}

/* Entries one by one, against those that are found with everything empty left out. */
static size_t compare_found(const cd_program *program)
{
    cd_action wanted, found;
    uint32_t next = 0, index = 0;
    size_t count = 0;
    for (; cd_program_get(program, index, &wanted); index++) {
        if (wanted.count == 0 && program->op != CDDP_OP_BARRIER) continue;
        assert_true(cd_program_find(program, &next, &found));
        assert_int_equal(next++, index);
        assert_true(found.kind == wanted.kind && found.peer == wanted.peer);
        assert_true(found.begin == wanted.begin && found.count == wanted.count);
        count++;
    }
    assert_false(cd_program_find(program, &next, &found));
    return count;
}

TEST(algorithm, programs_are_found_without_what_moves_nothing)
{
    static const uint32_t sizes[] = {1, 2, 3, 7, 16, 70};
    static const int64_t lengths[] = {0, 1, 2, 5, 69, 70, 71, 139, 140, 141, 5000};
    size_t compared = 0;
    for (uint32_t a = 0; a < CD_ALGORITHM_COUNT; a++)
        for (uint32_t op = 0; op < CDDP_OP_COUNT; op++)
            for (size_t s = 0; s < 6; s++)
                for (size_t l = 0; l < 11; l++)
                    for (uint32_t rank = 0; rank < sizes[s]; rank += 1 + sizes[s] / 9) {
                        cd_program p = {.algorithm = (cd_algorithm)a,
                                        .op = (cddp_op)op,
                                        .size = sizes[s],
                                        .rank = rank,
                                        .ranks_per_node = 4,
                                        .numel = lengths[l],
                                        .element_bytes = 8};
                        if (p.op == CDDP_OP_ALLREDUCE && cd_algorithm_is_ring(p.algorithm))
                            p.ring = cd_ring_get_segments(&p);
                        else
                            p.tree = cd_tree_get_pieces(&p);
                        cd_test_row("%s %s, %u of %u ranks, %lld elements",
                                    cd_algorithm_name(p.algorithm), cddp_op_name(p.op), rank,
                                    p.size, (long long)p.numel);
                        compared += compare_found(&p);
                    }
    assert_true(compared > 10000);
}

/* Gloo cuts what is no multiple of a MiB once more, and nothing else. */
TEST(algorithm, segments_of_the_ring_of_gloo_are_whole_mebibytes)
{
    (void)state;
    static const struct {
        int64_t numel;
        uint32_t per_chunk;
        int64_t elements;
    } cases[] = {{8 << 18, 4, 1 << 18}, /* 8 MiB */
                 {(8 << 18) + 1, 5, 209716},
                 {(8 << 18) - 1, 4, 1 << 18},
                 {9 << 18, 5, 235930},
                 {1000, 2, 250}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const cd_program p = {.algorithm = CD_ALGORITHM_gloo_ring,
                              .op = CDDP_OP_ALLREDUCE,
                              .numel = cases[i].numel,
                              .element_bytes = 4,
                              .size = 2};
        const cd_ring_segments s = cd_ring_get_segments(&p);
        cd_test_row("%lld elements", (long long)cases[i].numel);
        assert_int_equal(s.per_chunk, cases[i].per_chunk);
        assert_int_equal(s.elements, cases[i].elements);
    }
}

TEST_MAIN()
