/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_ring adds in the order in which Gloo does, bit for bit: compared with digests of what
** PyTorch's Gloo backend computed from the same inputs (gloo_golden.py), on every transport. */
#include "tests/unit/sim/fixture.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    uint32_t ranks;
    int64_t n;
    uint64_t f32, f64;
} cases[] = {
#define CASE(ranks, n, f32, f64) {ranks, n, f32, f64},
#include "tests/unit/sim/gloo_golden.def"
#undef CASE
};

static uint64_t mixed(uint32_t rank, int64_t i)
{
    uint64_t h = ((uint64_t)i + (uint64_t)rank * 7919 + 1) * UINT64_C(0x9E3779B97F4A7C15);
    h ^= h >> 29;
    h *= UINT64_C(0xBF58476D1CE4E5B9);
    return h ^ h >> 32;
}

typedef struct job {
    int64_t n;
    cddp_dtype dtype;
    uint64_t digest[8];
} job;

static cddp_status reduce(cddp_rank *rank, void *argument, cddp_error *err)
{
    sim_fixture *f = argument;
    job *j = f->data;
    size_t esize = j->dtype == CDDP_F32 ? 4 : 8;
    unsigned char *data = malloc((size_t)j->n * esize);
    uint64_t digest = 0;
    for (int64_t i = 0; i < j->n; i++) {
        uint64_t h = mixed(rank->rank, i);
        uint32_t b32 = (uint32_t)((h & 0x807fffff) | ((110 + (h >> 40) % 30) << 23));
        uint64_t b64 = (h & UINT64_C(0x800fffffffffffff)) | ((1000 + (h >> 52) % 40) << 52);
        if (esize == 4)
            memcpy(data + i * 4, &b32, 4);
        else
            memcpy(data + i * 8, &b64, 8);
    }
    cddp_tensor t = cddp_tensor_of(cddp_device_cpu(), data, 0, j->dtype, &j->n, 1);
    cddp_group *g = NULL;
    cddp_work *work = NULL;
    cddp_status status = fixture_group(f, rank, "world", &g, err);
    if (status == CDDP_OK) status = cddp_group_allreduce(g, &t, CDDP_RED_SUM, &work, err);
    if (status == CDDP_OK) status = cddp_work_wait(work, 0, err);
    for (int64_t i = 0; i < j->n; i++) {
        uint32_t b32 = 0;
        uint64_t b64 = 0;
        if (esize == 4)
            memcpy(&b32, data + i * 4, 4);
        else
            memcpy(&b64, data + i * 8, 8);
        digest += (esize == 4 ? b32 : b64) * (2 * (uint64_t)i + 1);
    }
    j->digest[rank->rank] = digest;
    cddp_group_destroy(g);
    free(data);
    return status;
}

TEST(gloo_ring, has_the_bits_of_gloo_on_every_rank_and_transport)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int transport = 0; transport <= CD_SIM_MESSAGES; transport++)
            for (int wide = 0; wide < 2; wide++) {
                job j = {cases[c].n, wide ? CDDP_F64 : CDDP_F32, {0}};
                sim_fixture f = {.config = CD_SIM_CONFIG_INIT, .data = &j};
                f.config.world_size = cases[c].ranks;
                f.config.transport = (cd_sim_transport)transport;
                f.config.heap_bytes = (size_t)256 << 20;
                cd_test_row("%u ranks, %lld elements, transport %d, %s", cases[c].ranks,
                            (long long)j.n, transport, wide ? "f64" : "f32");
                fixture_run(&f, reduce);
                for (uint32_t r = 0; r < cases[c].ranks; r++)
                    assert_true(j.digest[r] == (wide ? cases[c].f64 : cases[c].f32));
                fixture_destroy(&f);
            }
}

TEST_MAIN()
