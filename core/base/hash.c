/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 behind three functions, so that its 6,000-line header is compiled once. */
#include "core/base/hash.h"

#define XXH_INLINE_ALL
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#if defined(CD_HASH_AVX512)
/* Older processors slow down for vectors of 512 bits, and Zen 4 splits them. */
static bool has_fast_avx512(void)
{
    return __builtin_cpu_supports("avx512vbmi") && !__builtin_cpu_is("amd");
}
#endif

#if defined(CD_HASH_AVX2)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#endif

uint64_t cd_hash64_block(const void *bytes, size_t byte_count, uint64_t seed)
{
    if (byte_count >= 4 && byte_count <= 8) return cd_hash64_short(bytes, byte_count, seed);
#if defined(CD_HASH_AVX512)
    if (byte_count >= CD_HASH_LONG_MIN && has_fast_avx512())
        return cd_hash64_avx512(bytes, byte_count, seed);
#endif
#if defined(CD_HASH_AVX2)
    if (byte_count >= CD_HASH_LONG_MIN && has_avx2())
        return cd_hash64_avx2(bytes, byte_count, seed);
#endif
    return XXH3_64bits_withSeed(bytes, byte_count, seed);
}

uint64_t cd_hash64(const void *bytes, size_t byte_count, uint64_t seed)
{
    if (byte_count >= 4 && byte_count <= 8) return cd_hash64_short(bytes, byte_count, seed);
    if (byte_count < CD_HASH_LONG_MIN) return XXH3_64bits_withSeed(bytes, byte_count, seed);
    return cd_hash64_block(bytes, byte_count, seed);
}

uint64_t cd_hash_text(const char *text)
{
    return text == NULL ? cd_hash64("", 0, 0) : cd_hash64(text, strlen(text), 0);
}
