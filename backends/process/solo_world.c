/* SPDX-License-Identifier: Apache-2.0 */
/* The world of a process that is one rank already, started by somebody else.
**
** Launch is a call. Time is real, choices are fifo, and nothing here knows the other ranks: only
** the backend talks to them.
*/
#include "cddp/process.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/base/os.h"

struct cddp_solo_world {
    cddp_rank rank;
    const cddp_allocator *allocator;
    uint64_t start_ns;
    bool simulate_compute;
};

static cddp_status solo_launch(void *world, cddp_rank_fn program, void *argument,
                               cddp_rank_result *results, cddp_error *err)
{
    cddp_solo_world *w = world;
    (void)err;
    cddp_rank_result *result = &results[w->rank.rank];
    *result = (cddp_rank_result){.size = sizeof *result, .end = CDDP_RANK_RETURNED};
    result->status = program(&w->rank, argument, &result->error);
    return CDDP_OK;
}

static uint64_t solo_now(cddp_rank *rank)
{
    const cddp_solo_world *w = rank->world;
    return cd_os_now_ns() - w->start_ns;
}

static cddp_status solo_sleep(cddp_rank *rank, uint64_t duration_ns, cddp_error *err)
{
    (void)rank;
    (void)err;
    cd_os_sleep_ns(duration_ns);
    return CDDP_OK;
}

static cddp_status solo_compute(cddp_rank *rank, uint64_t duration_ns, const char *label,
                                cddp_error *err)
{
    const cddp_solo_world *w = rank->world;
    (void)label;
    (void)err;
    if (w->simulate_compute) cd_os_sleep_ns(duration_ns);
    return CDDP_OK;
}

static uint32_t solo_choose(cddp_rank *rank, const cddp_choice *choice)
{
    (void)rank;
    (void)choice;
    return 0;
}

static void solo_yield(cddp_rank *rank) { (void)rank; }

static const cddp_world_ops ops = {
    .size = sizeof ops,
    .abi = CDDP_WORLD_ABI,
    .name = "solo",
    .launch = solo_launch,
    .now_ns = solo_now,
    .sleep_ns = solo_sleep,
    .compute = solo_compute,
    .choose = solo_choose,
    .yield = solo_yield,
};

const cddp_world_ops *cddp_solo_world_ops(void) { return &ops; }

cddp_status cddp_solo_world_open(const cddp_solo_options *options, cddp_solo_world **world,
                                 cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_solo_options, world_size, err));
    if (options->rank >= options->world_size)
        return cd_fail(err, CDDP_E_ARG, "rank %u does not exist in a world of %u", options->rank,
                       options->world_size);
    cddp_solo_world *w = cd_allocate_zero(options->allocator, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "a solo world");
    w->allocator = options->allocator;
    w->rank = (cddp_rank){&ops, w, options->rank, options->world_size, options->allocator};
    w->start_ns = cd_os_now_ns();
    w->simulate_compute = options->simulate_compute;
    *world = w;
    return CDDP_OK;
}

void cddp_solo_world_close(cddp_solo_world *world)
{
    if (world != NULL) cd_release(world->allocator, world, sizeof *world);
}

cddp_rank *cddp_solo_world_rank(cddp_solo_world *world) { return &world->rank; }
