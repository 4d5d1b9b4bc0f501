/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of a vector and owners by load, against what FSDP and ZeRO of PyTorch 1.13.1 do. */
#include "core/tensor/slices.h"

#include "tests/support/test.h"

#include <stdio.h>
#include <string.h>

/* Padding per rank, as PyTorch's flat parameters have it: "slice | padding of rank 0, 1, …". */
static const struct {
    const char *name;
    uint32_t world;
    int64_t numel, length, padding[4];
} cases[] = {
    {"n 1, W 3", 3, 1, 1, {0, 1, 1}},      {"n 2, W 3", 3, 2, 1, {0, 0, 1}},
    {"n 5, W 3", 3, 5, 2, {0, 0, 1}},      {"n 7, W 3", 3, 7, 3, {0, 0, 2}},
    {"n 10, W 3", 3, 10, 4, {0, 0, 2}},    {"n 1, W 4", 4, 1, 1, {0, 1, 1, 1}},
    {"n 5, W 4", 4, 5, 2, {0, 0, 1, 2}},   {"n 9, W 4", 4, 9, 3, {0, 0, 0, 3}},
    {"n 10, W 4", 4, 10, 3, {0, 0, 0, 2}},
};

TEST(slices, are_padded_at_the_end_of_each_rank)
{
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        cd_test_row("%s", cases[c].name);
        const int64_t length = cd_slice_length(cases[c].numel, cases[c].world);
        assert_int_equal(length, cases[c].length);
        for (uint32_t r = 0; r < cases[c].world; r++) {
            const cd_range own = cd_slice_of(cases[c].numel, length, r);
            assert_int_equal(length - cd_range_numel(own), cases[c].padding[r]);
        }
    }
}

TEST(slices, tile_the_vector_once)
{
    for (uint32_t world = 1; world <= 9; world++) {
        for (int64_t numel = 0; numel < 40; numel++) {
            cd_test_row("%lld elements, %u ranks", (long long)numel, world);
            int64_t next = 0;
            for (uint32_t r = 0; r < world; r++) {
                const cd_range own = cd_slice_of(numel, cd_slice_length(numel, world), r);
                assert_true(own.first == next && own.end >= own.first);
                next = own.end;
            }
            assert_int_equal(next, numel);
        }
    }
}

TEST(slices, a_tensor_finds_its_part)
{
    const cd_range slice = {4, 9};
    const struct {
        int64_t first, end;
        cd_range wanted;
    } tensors[] = {{0, 4, {0, 0}}, {0, 5, {4, 5}},  {2, 20, {2, 7}}, {4, 9, {0, 5}},
                   {6, 7, {0, 1}}, {8, 12, {0, 1}}, {9, 12, {0, 0}}, {5, 5, {0, 0}}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        cd_test_row("tensor %zu", i);
        const cd_range part = cd_range_within(slice, tensors[i].first, tensors[i].end);
        assert_int_equal(part.first, tensors[i].wanted.first);
        assert_int_equal(part.end, tensors[i].wanted.end);
    }
}

TEST(owners, are_the_least_loaded_ranks) /* ZRO-01 */
{
    const int64_t numels[] = {3, 9, 1, 9, 0, 4};
    const uint32_t by_size[] = {1, 3, 5, 0, 2, 4}, wanted[] = {1, 0, 1, 1, 0, 0};
    uint32_t order[6], owners[6];
    int64_t loads[2] = {0, 0};
    cd_owners_order_by_size(numels, 6, order);
    assert_memory_equal(order, by_size, sizeof by_size);
    cd_owners_assign(numels, order, 6, loads, 2, owners);
    assert_int_equal(loads[0] + loads[1], 26);
    assert_memory_equal(owners, wanted, sizeof wanted);
}

TEST(owners, excluded_ranks_get_nothing)
{
    const int64_t loads[] = {5, 2, 2, 0};
    const bool last[] = {false, false, false, true}, all[] = {true, true, true, true};
    assert_int_equal(cd_owners_least(loads, NULL, 4), 3);
    assert_int_equal(cd_owners_least(loads, last, 4), 1);
    assert_int_equal(cd_owners_least(loads, all, 4), 4);
}

TEST_MAIN()
