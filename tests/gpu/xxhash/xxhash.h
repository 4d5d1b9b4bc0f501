/* SPDX-License-Identifier: Apache-2.0 */
/* A stand-in for xxHash on GPU machines that do not have it, used only without the verifier
** (CDDP_VERIFIER=OFF). Its digests are not those of other machines; the tests there ask only
** whether equal bytes have equal digests. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* FNV-1a, then a mixing of the high bits into the low ones. */
static inline uint64_t XXH3_64bits_withSeed(const void *bytes, size_t byte_count, uint64_t seed)
{
    const unsigned char *at = (const unsigned char *)bytes;
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed;
    for (size_t i = 0; i < byte_count; i++) h = (h ^ at[i]) * UINT64_C(0x100000001b3);
    h = (h ^ (h >> 32)) * UINT64_C(0x9fb21c651e98df25);
    return h ^ (h >> 29);
}
