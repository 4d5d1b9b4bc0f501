/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/prng.h"

#include "tests/support/test.h"

/* xoshiro256** from the state 1, 2, 3, 4: the first outputs of the authors' reference code. */
TEST(prng, it_is_xoshiro256_starstar)
{
    cd_prng prng = {{1, 2, 3, 4}};
    static const uint64_t wanted[] = {11520, 0, 1509978240, 1215971899390074240};
    for (size_t i = 0; i < 4; i++) assert_true(cd_prng_next(&prng) == wanted[i]);
}

/* Seeds pass through splitmix64, whose first outputs from 0 are published. */
TEST(prng, seeds_are_spread_by_splitmix64)
{
    cd_prng prng = cd_prng_seed(0);
    assert_true(prng.state[0] == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(prng.state[1] == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(prng.state[2] == UINT64_C(0x06c45d188009454f));
}

TEST(prng, the_same_seed_gives_the_same_numbers)
{
    cd_prng a = cd_prng_seed(42), b = cd_prng_seed(42), c = cd_prng_seed(43);
    bool differs = false;
    for (int i = 0; i < 100; i++) {
        uint64_t x = cd_prng_next(&a);
        assert_true(x == cd_prng_next(&b));
        differs |= x != cd_prng_next(&c);
    }
    assert_true(differs);
}

TEST(prng, splitting_leaves_the_parent_alone_and_depends_on_label_and_index)
{
    cd_prng parent = cd_prng_seed(7), untouched = parent;
    cd_prng net = cd_prng_split(&parent, "net"), again = cd_prng_split(&parent, "net");
    cd_prng data = cd_prng_split(&parent, "data"), net1 = cd_prng_split_index(&parent, "net", 1);
    assert_memory_equal(&parent, &untouched, sizeof parent);
    assert_memory_equal(&net, &again, sizeof net);
    assert_memory_not_equal(&net, &data, sizeof net);
    assert_memory_not_equal(&net, &net1, sizeof net);
}

TEST(prng, below_is_uniform_and_in_range)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    enum { BINS = 7, DRAWS = 70000 };
    uint32_t counts[BINS] = {0};
    for (int i = 0; i < DRAWS; i++) {
        uint64_t x = cd_prng_below(&prng, BINS);
        assert_true(x < BINS);
        counts[x]++;
    }
    /* Six standard deviations: sqrt(70000 · 1/7 · 6/7) = 92.6. */
    for (int i = 0; i < BINS; i++) assert_in_range(counts[i], 10000 - 556, 10000 + 556);
    assert_int_equal(cd_prng_below(&prng, 1), 0);
}

TEST(prng, between_reaches_both_ends_also_of_the_whole_range)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    bool low = false, high = false, negative = false;
    for (int i = 0; i < 1000; i++) {
        int64_t x = cd_prng_between(&prng, -2, 2);
        assert_true(x >= -2 && x <= 2);
        low |= x == -2;
        high |= x == 2;
        negative |= cd_prng_between(&prng, INT64_MIN, INT64_MAX) < 0;
    }
    assert_true(low && high && negative);
    assert_int_equal(cd_prng_between(&prng, 5, 5), 5);
}

TEST(prng, chance_is_a_ratio)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    uint32_t hits = 0;
    for (int i = 0; i < 40000; i++) {
        assert_false(cd_prng_chance(&prng, 0, 4));
        assert_true(cd_prng_chance(&prng, 4, 4));
        hits += cd_prng_chance(&prng, 1, 4);
    }
    assert_in_range(hits, 10000 - 520, 10000 + 520); /* six standard deviations */
}

TEST(prng, shuffling_permutes)
{
    cd_prng prng = cd_prng_seed(cd_test_seed());
    uint32_t firsts[5] = {0};
    for (int round = 0; round < 1000; round++) {
        uint32_t items[5] = {0, 1, 2, 3, 4}, seen = 0;
        cd_prng_shuffle(&prng, items, 5);
        for (int i = 0; i < 5; i++) seen |= 1u << items[i];
        assert_int_equal(seen, 31);
        firsts[items[0]]++;
    }
    for (int i = 0; i < 5; i++) assert_in_range(firsts[i], 120, 280);
    cd_prng_shuffle(&prng, NULL, 0);
}

TEST_MAIN()
