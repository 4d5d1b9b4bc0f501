/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever pieces the bytes come in, the digest is that of scalar XXH3 over blocks. */
#include "core/base/hash_chain.h"

#include "tests/support/test.h"

#include <string.h>

#define XXH_INLINE_ALL
#define XXH_VECTOR 0 /* XXH_SCALAR */
#include <xxhash.h>

/* Bytes that come in pieces have the digest of all at once, and no byte behind `until` counts. */
static uint64_t in_pieces(const unsigned char *bytes, size_t count, size_t piece)
{
    static unsigned char there[20000];
    cd_hash_chain_state chain;
    memset(there, 0xee, sizeof there);
    cd_hash_chain_begin(&chain, there, count, count);
    for (size_t at = 0; at < count; at += piece) {
        const size_t n = count - at < piece ? count - at : piece;
        memcpy(there + at, bytes + at, n);
        cd_hash_chain_advance(&chain, there + at + n);
        cd_hash_chain_advance(&chain, there + at); /* as far as it is already */
    }
    return chain.digest;
}

TEST(hash_chain, a_chain_in_pieces_is_the_chain_at_once)
{
    static const size_t pieces[] = {1, 7, 64, 1000, 1023, 1024, 1025, 2048, 4096, 5000, 20000};
    static unsigned char bytes[20000];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    for (size_t count = 0; count < sizeof bytes; count += count < 12 ? 1 : count / 12) {
        uint64_t expected = count;
        for (size_t at = 0, n; at < count; at += n) {
            n = count - at < 4096 ? count - at : 4096;
            expected = XXH3_64bits_withSeed(bytes + at, n, expected);
        }
        assert_int_equal(cd_hash_chain(bytes, count, count), expected);
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
            cd_test_row("%zu bytes in pieces of %zu", count, pieces[p]);
            assert_int_equal(in_pieces(bytes, count, pieces[p]), expected);
        }
    }
    for (size_t count = 4000; count < 9300; count += 1) {
        cd_test_row("%zu bytes", count);
        assert_int_equal(in_pieces(bytes, count, 1024), cd_hash_chain(bytes, count, count));
    }
}

TEST_MAIN()
