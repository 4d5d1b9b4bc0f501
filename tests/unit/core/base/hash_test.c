/* SPDX-License-Identifier: Apache-2.0 */
/* Digests are the same on every machine: whatever instructions a processor has, they are those of
** scalar XXH3. */
#include "core/base/hash.h"

#include "tests/support/test.h"

#define XXH_INLINE_ALL
#define XXH_VECTOR 0 /* XXH_SCALAR */
#include <xxhash.h>

TEST(hash, known_digests)
{
    /* from the description of XXH3 */
    assert_int_equal(cd_hash64("", 0, 0), UINT64_C(0x2d06800538d394c2));
    assert_int_equal(cd_hash_text(NULL), cd_hash_text(""));
}

TEST(hash, every_length_and_alignment_is_hashed_as_by_scalar_code)
{
    static unsigned char bytes[70000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t count = 0; count < 69000; count += count < 1100 ? 1 : 977)
        for (size_t offset = 0; offset < 3; offset++) {
            cd_test_row("%zu bytes at %zu", count, offset);
            assert_int_equal(cd_hash64(bytes + offset, count, count),
                             XXH3_64bits_withSeed(bytes + offset, count, count));
        }
}

/* Four to eight bytes are hashed by cd_hash64_short. */
TEST(hash, a_single_number_is_hashed_as_by_scalar_code)
{
    unsigned char bytes[8 + 3];
    uint64_t seed = 1;
    for (size_t round = 0; round < 2000; round++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = cd_hash_mix(seed, i);
            bytes[i] = (unsigned char)(seed >> 9);
        }
        const size_t count = 4 + round % 5, offset = round % 4;
        const uint64_t expected = XXH3_64bits_withSeed(bytes + offset, count, seed);
        cd_test_row("%zu bytes, round %zu", count, round);
        assert_int_equal(cd_hash64_short(bytes + offset, count, seed), expected);
        assert_int_equal(cd_hash64(bytes + offset, count, seed), expected);
        assert_int_equal(cd_hash64_block(bytes + offset, count, seed), expected);
    }
}

/* A digest is folded from blocks, each with the last one's hash as its seed. */
TEST(hash, every_version_of_many_bytes_gives_the_same)
{
    static unsigned char bytes[30000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t count = CD_HASH_LONG_MIN; count < 8900; count += count < 1100 ? 1 : 13)
        for (uint64_t seed = 0, i = 0; i < 3; seed = cd_hash64(bytes + i, count, seed), i++) {
            const uint64_t expected = XXH3_64bits_withSeed(bytes + i, count, seed);
            cd_test_row("%zu bytes at %d", count, (int)i);
#if defined(CD_HASH_AVX2)
            if (__builtin_cpu_supports("avx2"))
                assert_int_equal(cd_hash64_avx2(bytes + i, count, seed), expected);
#endif
#if defined(CD_HASH_AVX512)
            if (__builtin_cpu_supports("avx512f"))
                assert_int_equal(cd_hash64_avx512(bytes + i, count, seed), expected);
#endif
            assert_int_equal(cd_hash64_block(bytes + i, count, seed), expected);
            assert_int_equal(cd_hash64(bytes + i, count, seed), expected);
        }
}

TEST(hash, mixing_depends_on_order)
{
    assert_int_not_equal(cd_hash_mix(cd_hash_mix(0, 1), 2), cd_hash_mix(cd_hash_mix(0, 2), 1));
}

TEST_MAIN()
