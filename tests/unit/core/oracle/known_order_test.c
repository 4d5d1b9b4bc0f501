/* SPDX-License-Identifier: Apache-2.0 */
/* The orders of additions as the judge has them, against all-reduces and reduce-scatters that the
** simulator carries out. */
#include "core/oracle/known_order.h"

#include "core/base/prng.h"
#include "core/oracle/numbers.h"
#include "core/tensor/dtype.h"
#include "tests/unit/sim/fixture.h"

#include <math.h>

#define MEMBERS_MAX 13
#define NUMEL_MAX 208

typedef struct job {
    cddp_op op;
    cddp_dtype dtype;
    cddp_red_op reduce_op;
    int64_t numel;
    float in[MEMBERS_MAX][NUMEL_MAX], out[MEMBERS_MAX][NUMEL_MAX]; /* room for any dtype here */
} job;

static cddp_status reduce(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    cddp_group *g = NULL;
    cddp_work *work = NULL;
    const int64_t share = j->op == CDDP_OP_ALLREDUCE ? j->numel : j->numel / rank->world_size;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    cddp_collective c = {.op = j->op, .reduce_op = j->reduce_op};
    c.input = cddp_tensor_of(cddp_device_cpu(), j->in[rank->rank], 0, j->dtype, &j->numel, 1);
    c.output = cddp_tensor_of(cddp_device_cpu(), j->out[rank->rank], 0, j->dtype, &share, 1);
    if (status == CDDP_OK) status = cddp_group_post(g, &c, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    cddp_group_destroy(g);
    return status;
}

static void *element(float *tensor, cddp_dtype dtype, int64_t i)
{
    return (char *)tensor + (size_t)i * cddp_dtype_bytes(dtype);
}

static void fill(job *j, uint64_t seed, double *operands, uint32_t members)
{
    cd_prng prng = cd_prng_seed(seed);
    for (uint32_t m = 0; m < members; m++)
        for (int64_t i = 0; i < j->numel; i++) {
            const double x = ldexp((double)cd_prng_between(&prng, -4096, 4096),
                                   (int)cd_prng_between(&prng, -18, -8));
            cd_element_set(j->dtype, element(j->in[m], j->dtype, i), x);
            operands[m * j->numel + i] = cd_element_get(j->dtype, element(j->in[m], j->dtype, i));
        }
}

typedef struct world {
    cd_algorithm algorithm;
    uint32_t members, ranks_per_node;
    int64_t numel;
} world;

static void try_world(const world *w, cddp_op op, cddp_dtype dtype, cddp_red_op reduce_op)
{
    static job j;
    static double operands[MEMBERS_MAX * NUMEL_MAX];
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &j};
    f.config.world_size = w->members;
    f.config.algorithm = w->algorithm;
    f.config.network.ranks_per_node = w->ranks_per_node;
    f.config.network.host_bytes_per_second = UINT64_C(320000000000);
    j = (job){.op = op, .dtype = dtype, .reduce_op = reduce_op, .numel = w->numel};
    fill(&j, (uint64_t)w->numel + w->members, operands, w->members);
    fixture_run(&f, reduce);
    cd_orders orders;
    cd_orders_read(&orders, cd_algorithm_name(w->algorithm));
    const cd_order_kind kind = orders.count == 1 ? orders.kinds[0] : CD_ORDER_UNKNOWN;
    const bool is_whole = op == CDDP_OP_ALLREDUCE || kind == CD_ORDER_IN_RANK_ORDER;
    const cd_ordered_sum sum = {.order = is_whole ? kind : CD_ORDER_RING,
                                .dtype = dtype,
                                .members = w->members,
                                .ranks_per_node = w->ranks_per_node,
                                .numel = w->numel,
                                .scatters = op == CDDP_OP_REDUCE_SCATTER,
                                .averages = reduce_op == CDDP_RED_AVG,
                                .operands = operands};
    const int64_t share = sum.scatters ? w->numel / w->members : w->numel;
    assert_true(kind != CD_ORDER_UNKNOWN);
    for (int64_t i = 0; i < w->numel; i++) {
        cd_test_row("%s, %u ranks, element %d", cd_algorithm_name(w->algorithm), w->members,
                    (int)i);
        assert_true(cd_ordered_sum_get(&sum, i) ==
                    cd_element_get(dtype, element(j.out[i / share], dtype, i % share)));
    }
    fixture_destroy(&f);
}

TEST(known_order, is_that_of_every_algorithm)
{
    (void)state;
    static const cd_algorithm algorithms[] = {
        CD_ALGORITHM_flat,          CD_ALGORITHM_gloo_ring,
        CD_ALGORITHM_ring,          CD_ALGORITHM_halving_doubling,
        CD_ALGORITHM_binomial_tree, CD_ALGORITHM_double_tree,
        CD_ALGORITHM_two_level,     CD_ALGORITHM_hfreduce};
    for (size_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++)
        for (uint32_t members = 1; members <= MEMBERS_MAX; members++)
            for (int64_t numel = 3; numel <= 203; numel += 100) {
                const world w = {algorithms[a], members, 1 + members % 4, numel};
                try_world(&w, CDDP_OP_ALLREDUCE, CDDP_BF16, CDDP_RED_SUM);
                try_world(&w, CDDP_OP_ALLREDUCE, CDDP_F16, CDDP_RED_AVG);
                try_world(&w, CDDP_OP_ALLREDUCE, CDDP_F32, CDDP_RED_SUM);
            }
}

TEST(known_order, of_parts_is_a_ring)
{
    (void)state;
    static const cd_algorithm algorithms[] = {CD_ALGORITHM_flat, CD_ALGORITHM_gloo_ring,
                                              CD_ALGORITHM_double_tree};
    for (size_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++)
        for (uint32_t members = 2; members <= MEMBERS_MAX; members++) {
            const world w = {algorithms[a], members, 2, 16 * (int64_t)members};
            try_world(&w, CDDP_OP_REDUCE_SCATTER, CDDP_BF16, CDDP_RED_SUM);
        }
}

static uint32_t count_orders(const char *algorithms)
{
    cd_orders orders;
    cd_orders_read(&orders, algorithms);
    return orders.count;
}

TEST(known_order, of_a_choice_is_unknown)
{
    (void)state;
    assert_int_equal(count_orders("any_order"), 0);
    assert_int_equal(count_orders("no_such_algorithm"), 0);
    assert_int_equal(count_orders("ring|any_order"), 0);
    assert_int_equal(count_orders(NULL), 0);
    assert_int_equal(count_orders("ring|linear"), 2);
}

static double sum_of(cd_order_kind kind, uint32_t members, int64_t numel, int64_t element,
                     const double *operands)
{
    const cd_ordered_sum sum = {
        .order = kind, .dtype = CDDP_F32, .members = members, .numel = numel, .operands = operands};
    return cd_ordered_sum_get(&sum, element);
}

static float add(float a, float b) { return a + b; }

TEST(known_order, of_the_libraries_is_written_out)
{
    (void)state;
    enum { N = 6, NUMEL = 8 };
    double x[N * NUMEL];
    cd_prng prng = cd_prng_seed(7);
    for (size_t i = 0; i < N * NUMEL; i++)
        x[i] = (double)(float)ldexp((double)cd_prng_between(&prng, -(1 << 23), 1 << 23),
                                    (int)cd_prng_between(&prng, -8, 8));
    for (int64_t e = 0; e < NUMEL; e++) {
        float v[N];
        for (int m = 0; m < N; m++) v[m] = (float)x[m * NUMEL + e];
        cd_test_row("element %d", (int)e);
        assert_true(sum_of(CD_ORDER_DOUBLING, N, NUMEL, e, x) ==
                    (double)add(add(add(v[0], v[1]), add(v[2], v[3])), add(v[4], v[5])));
        assert_true(sum_of(CD_ORDER_BACKWARDS, N, NUMEL, e, x) ==
                    (double)add(add(add(add(add(v[5], v[4]), v[3]), v[2]), v[1]), v[0]));
        /* chunks of 2, 2, 1, 1, 1, 1 */
        const int early = e < 4 ? (int)e / 2 : (int)e - 2;
        float up = v[early];
        for (int k = 1; k < N; k++) up = add(up, v[(early + k) % N]);
        assert_true(sum_of(CD_ORDER_UPWARD_RING, N, NUMEL, e, x) == (double)up);
        const int before = (early + N - 1) % N;
        float shifted = v[before];
        for (int k = 1; k < N; k++) shifted = add(shifted, v[(before + k) % N]);
        assert_true(sum_of(CD_ORDER_SHIFTED_RING, N, NUMEL, e, x) == (double)shifted);
    }
}

TEST_MAIN()
