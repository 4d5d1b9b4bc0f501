/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 behind three functions, so that its 6,000-line header is compiled once. */
#include "core/base/hash.h"

#define XXH_INLINE_ALL
#include <string.h>
#include <xxhash.h>

#if defined(CD_HASH_AVX2)
/* XXH3 uses no vectors for fewer bytes. */
#define VECTOR_BYTES_MIN 241
#endif

uint64_t cd_hash64(const void *bytes, size_t byte_count, uint64_t seed)
{
#if defined(CD_HASH_AVX2)
    if (byte_count >= VECTOR_BYTES_MIN && __builtin_cpu_supports("avx2"))
        return cd_hash64_avx2(bytes, byte_count, seed);
#endif
    return XXH3_64bits_withSeed(bytes, byte_count, seed);
}

uint64_t cd_hash_text(const char *text)
{
    return text == NULL ? cd_hash64("", 0, 0) : cd_hash64(text, strlen(text), 0);
}
