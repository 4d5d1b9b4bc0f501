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

TEST(hash, mixing_depends_on_order)
{
    assert_int_not_equal(cd_hash_mix(cd_hash_mix(0, 1), 2), cd_hash_mix(cd_hash_mix(0, 2), 1));
}

TEST_MAIN()
