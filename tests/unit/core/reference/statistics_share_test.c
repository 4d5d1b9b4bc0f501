/* SPDX-License-Identifier: Apache-2.0 */
/* How often the statistics of a micro-step are found anew: once per what they depend on. */
#include "core/reference/statistics_share.h"

#include "core/base/alloc.h"
#include "core/tensor/cpu.h"
#include "tests/support/test.h"

#include <stddef.h>

static const cd_statistics_key plain = {.digest = 7, .loss_scale = 1, .step = 3, .micro_step = 1};

/* What a reference does: every rank says a number, unless somebody asked before. */
static void ask(cd_statistics_share *share, const cd_statistics_key *key, double says)
{
    cddp_error err = CDDP_ERROR_INIT;
    cd_said *said = NULL;
    const int64_t one = 1, all = share->world;
    double number, *rows = cd_allocate_array(NULL, share->world, sizeof *rows);
    const cddp_tensor mine = cddp_tensor_of(cddp_device_cpu(), &number, 0, CDDP_F64, &one, 1);
    const cddp_tensor everybodys = cddp_tensor_of(cddp_device_cpu(), rows, 0, CDDP_F64, &all, 1);
    assert_ok(cd_statistics_share_find(share, key, &said, &err), &err);
    if (!said->is_settled) {
        cd_statistics_forget(&said->statistics);
        for (uint32_t rank = 0; rank < share->world; rank++) {
            number = says + rank;
            cd_statistics_begin(&said->statistics, rank);
            assert_ok(cd_statistics_allgather(&said->statistics, &mine, &everybodys, &err), &err);
        }
        said->is_settled = true;
    }
    assert_int_equal(said->statistics.count, 1);
    for (uint32_t rank = 0; rank < share->world; rank++)
        assert_true(said->statistics.exchanges[0].said[rank] == says + rank);
    cd_release(NULL, rows, share->world * sizeof *rows);
}

TEST(statistics_share, finds_once_what_depends_on_the_same)
{
    cd_statistics_share share;
    cd_statistics_share_init(&share, 4, cddp_allocator_default());
    for (uint32_t rank = 0; rank < 4; rank++) ask(&share, &plain, 10);
    assert_int_equal(share.made, 1);
    cd_statistics_share_fini(&share);
}

TEST(statistics_share, shares_nothing_between_keys_that_differ_in_anything)
{
    static const cddp_device other_device;
    const cd_statistics_key keys[] = {
        plain,
        {.digest = 8, .loss_scale = 1, .step = 3, .micro_step = 1},
        {.digest = 7, .loss_scale = 2, .step = 3, .micro_step = 1},
        {.digest = 7, .loss_scale = 1, .step = 4, .micro_step = 1},
        {.digest = 7, .loss_scale = 1, .step = 3, .micro_step = 0},
        {.digest = 7, .loss_scale = 1, .step = 3, .micro_step = 1, .objective = true},
        {.digest = 7, .loss_scale = 1, .step = 3, .micro_step = 1, .settings_rank = 1},
        {.digest = 7, .loss_scale = 1, .step = 3, .micro_step = 1, .device = &other_device},
    };
    const size_t count = sizeof keys / sizeof *keys;
    cd_statistics_share share;
    cd_statistics_share_init(&share, 4, cddp_allocator_default());
    for (size_t round = 0; round < 3; round++)
        for (size_t i = 0; i < count; i++) ask(&share, &keys[i], (double)(100 * i));
    assert_int_equal(share.made, count);
    cd_statistics_share_fini(&share);
}

/* Also where one rank is a step ahead of the others. */
TEST(statistics_share, a_steady_training_allocates_nothing)
{
    cd_watch_allocator watch;
    cd_statistics_share share;
    cd_watch_allocator_init(&watch, cddp_allocator_default());
    cd_statistics_share_init(&share, 4, &watch.table);
    for (uint32_t step = 0; step < 20; step++) {
        watch.frozen = step >= 3;
        for (uint32_t ahead = 0; ahead < 2; ahead++) {
            cd_statistics_key key = {.step = step + ahead, .digest = step + ahead};
            ask(&share, &key, step + ahead);
        }
    }
    assert_int_equal(share.made, 21);
    assert_int_equal(watch.growth_count, 0);
    watch.frozen = false;
    cd_statistics_share_fini(&share);
    assert_int_equal(watch.live_count, 0);
}

/* More keys than are kept cost time, and neither memory without end nor a wrong answer. */
TEST(statistics_share, keeps_a_bounded_number)
{
    cd_statistics_share share;
    cd_statistics_share_init(&share, 4, cddp_allocator_default());
    for (uint64_t digest = 0; digest < 500; digest++)
        ask(&share, &(cd_statistics_key){.digest = digest}, (double)digest);
    assert_int_equal(share.made, 500);
    assert_true(share.count <= 64);
    ask(&share, &(cd_statistics_key){.digest = 499}, 499);
    assert_int_equal(share.made, 500);
    ask(&share, &(cd_statistics_key){.digest = 0}, 0);
    assert_int_equal(share.made, 501);
    cd_statistics_share_fini(&share);
}

TEST_MAIN()
