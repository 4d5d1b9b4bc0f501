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

uint64_t cd_hash64_block(const cd_hash_input *input, uint64_t seed)
{
    if (input->byte_count >= 4 && input->byte_count <= 8)
        return cd_hash64_short(input->bytes, input->byte_count, seed);
#if defined(CD_HASH_AVX512)
    if (input->byte_count >= CD_HASH_LONG_MIN && has_fast_avx512())
        return cd_hash64_avx512(input, seed);
#endif
#if defined(CD_HASH_AVX2)
    if (input->byte_count >= CD_HASH_LONG_MIN && __builtin_cpu_supports("avx2"))
        return cd_hash64_avx2(input, seed);
#endif
    return XXH3_64bits_withSeed(input->bytes, input->byte_count, seed);
}

uint64_t cd_hash64(const void *bytes, size_t byte_count, uint64_t seed)
{
    if (byte_count >= 4 && byte_count <= 8) return cd_hash64_short(bytes, byte_count, seed);
    if (byte_count < CD_HASH_LONG_MIN) return XXH3_64bits_withSeed(bytes, byte_count, seed);
    return cd_hash64_block(&(cd_hash_input){bytes, byte_count, {NULL, NULL}}, seed);
}

uint64_t cd_hash_text(const char *text)
{
    return text == NULL ? cd_hash64("", 0, 0) : cd_hash64(text, strlen(text), 0);
}
