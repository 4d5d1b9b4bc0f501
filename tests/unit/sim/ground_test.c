/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds on one ground: the block is kept, and what was in it changes nothing. */
#include "tests/unit/sim/fixture.h"

#include "sim/fiber.h"
#include "sim/ground.h"

#include <string.h>

#define MIB ((size_t)1 << 20)

/* Uses its stack and computes for a time that what it finds there would change. */
static cddp_status deep(cddp_rank *rank, void *argument, cddp_error *err)
{
    volatile unsigned char room[32768];
    (void)argument;
    for (size_t i = 0; i < sizeof room; i++) room[i] = 0xa5;
    return rank->ops->compute(rank, 1000 + 10 * rank->rank + room[77], "work", err);
}

static uint64_t run_world(cd_sim_ground *ground, uint32_t ranks, uint64_t stuck_ns)
{
    sim_fixture f = {.config = CD_SIM_CONFIG_INIT};
    f.config.world_size = ranks;
    f.config.ground = ground;
    f.config.stuck_ns = stuck_ns;
    f.config.stuck_most_ns = 2 * stuck_ns;
    fixture_run(&f, deep);
    cd_sim_stats stats;
    cd_sim_get_stats(f.sim, &stats);
    cd_sim_audit(f.sim);
    fixture_destroy(&f);
    return stats.time_ns;
}

TEST(ground, worlds_of_other_sizes_stand_on_it_and_run_as_on_their_own)
{
    static const uint32_t sizes[] = {3, 3, 17, 2, 64, 5, 1};
    cd_sim_ground ground = {0};
    unsigned char *first = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cd_test_row("%u ranks", (unsigned)sizes[i]);
        assert_int_equal(run_world(&ground, sizes[i], 0), run_world(NULL, sizes[i], 0));
        if (cd_fiber_has_shadow()) continue;
        assert_non_null(ground.block);
        if (i == 0) first = ground.block;
        assert_ptr_equal(ground.block, first);
    }
    cd_sim_ground_fini(&ground);
    assert_null(ground.block);
}

TEST(ground, what_the_last_world_guarded_is_memory_again)
{
    const size_t page = cd_fiber_page_bytes();
    size_t bytes = MIB;
    cd_sim_ground ground = {0};
    (void)state;
    if (cd_fiber_has_shadow()) return;
    unsigned char *block = cd_sim_ground_take(&ground, &bytes);
    assert_non_null(block);
    assert_true(cd_fiber_guard(block + 3 * page, page));
    cd_sim_ground_give(&ground, block, bytes, 4096);
    assert_ptr_equal(cd_sim_ground_take(&ground, &bytes), block);
    memset(block, 1, MIB);
    cd_sim_ground_give(&ground, block, bytes, MIB);
    cd_sim_ground_fini(&ground);
}

/* A plugin may have kept pointers into its world. */
TEST(ground, a_world_that_ran_code_from_outside_leaves_nothing)
{
    cd_sim_ground ground = {0};
    (void)state;
    (void)run_world(&ground, 2, UINT64_C(60000000000));
    assert_null(ground.block);
    cd_sim_ground_fini(&ground);
}

TEST(ground, a_second_world_meanwhile_has_its_own_block)
{
    size_t bytes = MIB, others = MIB;
    cd_sim_ground ground = {0};
    (void)state;
    unsigned char *block = cd_sim_ground_take(&ground, &bytes);
    unsigned char *other = cd_sim_ground_take(&ground, &others);
    assert_non_null(block);
    assert_non_null(other);
    assert_ptr_not_equal(block, other);
    block[0] = other[0] = 1;
    cd_sim_ground_give(&ground, block, bytes, 4096);
    cd_sim_ground_give(&ground, other, others, 4096); /* there is one already */
    if (!cd_fiber_has_shadow()) assert_ptr_equal(ground.block, block);
    cd_sim_ground_fini(&ground);
}

TEST(ground, what_is_too_small_or_was_too_large_is_given_back)
{
    size_t bytes = MIB, more = 1024 * MIB;
    cd_sim_ground ground = {0};
    (void)state;
    unsigned char *block = cd_sim_ground_take(&ground, &bytes);
    assert_non_null(block);
    assert_true(bytes >= MIB);
    cd_sim_ground_give(&ground, block, bytes, 4096);
    block = cd_sim_ground_take(&ground, &more);
    assert_non_null(block);
    assert_true(more >= 1024 * MIB);
    block[more - 1] = 1;
    cd_sim_ground_give(&ground, block, more, 65 * MIB);
    assert_null(ground.block);
    cd_sim_ground_give(&ground, NULL, 0, 0); /* a world that could not be mapped */
    assert_null(ground.block);
}

TEST_MAIN()
