/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 compiled for AVX2: the same digests as hash.c, read at the speed of memory. CMake compiles
**      this file with -mavx2
** where the compiler knows it; hash.c calls it on processors that have it.
*/
#include "core/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t cd_hash64_avx2(const void *bytes, size_t byte_count, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, byte_count, seed);
}
