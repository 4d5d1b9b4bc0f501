/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/prng.h"
#include "core/oracle/partition.h"
#include "tests/support/test.h"

#define PARAMETERS_MAX 9

/* ZRO-01, worked out by hand. */
TEST(partition, greedy_gives_the_largest_first_to_the_least_loaded)
{
    (void)state;
    static const int64_t numels[] = {4, 16, 4, 64, 16, 0};
    cddp_error err = CDDP_ERROR_INIT;
    cd_part parts[6];
    const cd_partition p = {numels, 6, 3, NULL};
    assert_ok(cd_partition_whole(&p, true, parts, &err), &err);
    static const uint32_t by_size[] = {1, 1, 2, 0, 2, 1};
    for (size_t i = 0; i < 6; i++) {
        cd_test_row("parameter %zu", i);
        assert_int_equal(parts[i].start / parts[i].share, by_size[i]);
    }
    assert_ok(cd_partition_whole(&p, false, parts, &err), &err);
    static const uint32_t as_registered[] = {0, 1, 2, 0, 2, 1};
    for (size_t i = 0; i < 6; i++) {
        cd_test_row("parameter %zu as registered", i);
        assert_int_equal(parts[i].start / parts[i].share, as_registered[i]);
    }
}

/* ZRO-12, worked out by hand: buckets of 10, 4 and 7 elements on three ranks, a piece ends before
** it would reach 7. */
TEST(partition, buckets_are_assigned_in_turn_or_cut)
{
    (void)state;
    static const int64_t numels[] = {3, 3, 3, 1, 4, 6, 1};
    static const uint32_t positions[] = {6, 5, 4, 3, 2, 1, 0};
    static const cd_partition_bucket buckets[] = {{positions + 3, 4},
                                                  {positions + 2, 1},
                                                  {positions, 2}};
    static const uint32_t in_turn[] = {0, 0, 0, 0, 1, 2, 2};
    /* 4 to rank 0; of the 7 the one to rank 1, the six to rank 2; of the 10 {1, 3} to rank 1, {3,
    ** 3} to rank 0. */
    static const uint32_t cut[] = {0, 0, 1, 1, 0, 2, 1};
    cddp_error err = CDDP_ERROR_INIT;
    cd_part parts[7];
    const cd_partition p = {numels, 7, 3, NULL};
    for (int round = 0; round < 2; round++) {
        assert_ok(cd_partition_buckets(&p, buckets, 3, round == 1, parts, &err), &err);
        for (size_t i = 0; i < 7; i++) {
            cd_test_row("parameter %zu, %s", i, round == 1 ? "cut" : "in turn");
            assert_int_equal(parts[i].start / parts[i].share, (round == 1 ? cut : in_turn)[i]);
        }
    }
}

TEST(partition, slices_end_where_the_padded_vector_says)
{
    (void)state;
    static const int64_t numels[] = {5, 0, 2}; /* 7 elements, 3 ranks: slices of 3 */
    cd_part parts[3];
    const cd_partition p = {numels, 3, 3, NULL};
    cd_partition_flat(&p, parts);
    static const struct {
        size_t parameter;
        uint32_t rank;
        int64_t first, end;
    } rows[] = {{0, 0, 0, 3}, {0, 1, 3, 5}, {0, 2, 0, 0}, {1, 1, 0, 0},
                {2, 0, 0, 0}, {2, 1, 0, 1}, {2, 2, 1, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        cd_test_row("parameter %zu on rank %u", rows[i].parameter, rows[i].rank);
        const cd_part_range r =
            cd_part_get(&parts[rows[i].parameter], numels[rows[i].parameter], rows[i].rank);
        assert_int_equal(r.first, rows[i].first);
        assert_int_equal(r.end, rows[i].end);
    }
    const cd_part whole = {0, 0, 0};
    assert_int_equal(cd_part_get(&whole, 5, 2).end, 5);
}

TEST(partition, every_element_belongs_to_exactly_one_rank)
{
    (void)state;
    cd_prng prng = cd_prng_seed(cd_test_seed());
    for (uint32_t round = 0; round < 500; round++) {
        cddp_error err = CDDP_ERROR_INIT;
        int64_t numels[PARAMETERS_MAX];
        cd_part parts[PARAMETERS_MAX];
        const cd_partition p = {numels, 1 + cd_prng_below(&prng, PARAMETERS_MAX),
                                1 + (uint32_t)cd_prng_below(&prng, 7), NULL};
        for (size_t i = 0; i < p.count; i++) numels[i] = (int64_t)cd_prng_below(&prng, 20);
        const uint64_t kind = cd_prng_below(&prng, 3);
        if (kind == 0)
            cd_partition_flat(&p, parts);
        else
            assert_ok(cd_partition_whole(&p, kind == 1, parts, &err), &err);
        for (size_t i = 0; i < p.count; i++) {
            int64_t next = 0;
            for (uint32_t r = 0; r < p.world; r++) {
                const cd_part_range range = cd_part_get(&parts[i], numels[i], r);
                if (range.first == range.end) continue;
                assert_int_equal(range.first, next); /* in rank order, without gaps */
                next = range.end;
            }
            assert_int_equal(next, numels[i]);
        }
    }
}

TEST_MAIN()
