/* SPDX-License-Identifier: Apache-2.0 */
/* A small simulated cluster for tests: a world, its backend, and rank programs that get both. */
#pragma once
#include "backends/sim/sim_backend.h"
#include "cddp/comm.h"
#include "cddp/device.h"
#include "tests/support/test.h"

#include "core/trace/sink.h"

typedef struct sim_fixture {
    cd_sim_config config;
    cd_sim *sim;
    cddp_backend backend;
    cddp_rank_result results[2048];
    uint32_t members[2048];
    cddp_error err;
    cd_random_chooser random;
    cd_chooser chooser;
    cd_digest_sink digest;
    void *data; /* the test's own */
} sim_fixture;

/* Opens the group of all ranks. */
static inline cddp_status fixture_group(sim_fixture *f, cddp_rank *rank, const char *name,
                                        cddp_group **group, cddp_error *err)
{
    uint32_t *all = f->members; /* every rank writes the same */
    for (uint32_t i = 0; i < rank->world_size; i++) all[i] = i;
    cddp_group_options o = {.size = sizeof o,
                            .backend = &f->backend,
                            .rank = rank,
                            .works_max = 64};
    o.spec = (cddp_group_spec){.size = sizeof o.spec,
                               .name = name,
                               .group_rank = rank->rank,
                               .group_size = rank->world_size,
                               .members = all};
    return cddp_group_create(&o, group, err);
}

static inline void fixture_create(sim_fixture *f)
{
    assert_ok(cd_sim_create(&f->config, &f->sim, &f->err), &f->err);
    f->backend = cd_sim_backend(f->sim);
}

static inline void fixture_launch(sim_fixture *f, cddp_rank_fn program)
{
    assert_ok(cd_sim_ops()->launch(f->sim, program, f, f->results, &f->err), &f->err);
}

/* Creates, runs, and checks that every rank returned well. */
static inline void fixture_run(sim_fixture *f, cddp_rank_fn program)
{
    fixture_create(f);
    fixture_launch(f, program);
    for (uint32_t i = 0; i < f->config.world_size; i++) {
        assert_ok(f->results[i].status, &f->results[i].error);
        assert_int_equal(f->results[i].end, CDDP_RANK_RETURNED);
    }
}

static inline void fixture_destroy(sim_fixture *f)
{
    cd_sim_destroy(f->sim);
    f->sim = NULL;
}
