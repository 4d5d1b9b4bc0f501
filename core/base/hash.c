/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 behind three functions, so that its 6,000-line header is compiled once. */
#include "core/base/hash.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

uint64_t cd_hash64(const void *bytes, size_t byte_count, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, byte_count, seed);
}

uint64_t cd_hash_text(const char *text)
{
    return text == NULL ? cd_hash64("", 0, 0) : cd_hash64(text, strlen(text), 0);
}

uint64_t cd_hash_mix(uint64_t digest, uint64_t value)
{
    uint64_t x = (digest ^ value) * UINT64_C(0x9fb21c651e98df25);
    x ^= x >> 32;
    x = (x + value) * UINT64_C(0xc2b2ae3d27d4eb4f);
    return x ^ (x >> 29);
}
