/* SPDX-License-Identifier: Apache-2.0 */
/* Stable 64-bit digests (XXH3): equal bytes give equal digests on every machine. */
#pragma once
#include "core/base/everywhere.h"

#include <stddef.h>
#include <stdint.h>

uint64_t cd_hash64(const void *bytes, size_t byte_count, uint64_t seed);

/* Four bytes, whatever the machine's order; one load where it is little-endian. */
CD_EVERYWHERE uint32_t cd_hash_load(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

CD_EVERYWHERE uint64_t cd_hash_turn(uint64_t x, uint32_t bits)
{
    return x << bits | x >> (64 - bits);
}

/* The same of 4 to 8 bytes, without a call: a tensor of small models has one number. The first
** constant is of XXH3's secret: its words at 8 and 16, combined. */
CD_EVERYWHERE uint64_t cd_hash64_short(const void *bytes, size_t byte_count, uint64_t seed)
{
    const unsigned char *at = (const unsigned char *)bytes;
    const uint64_t secret = UINT64_C(0xc73ab174c5ecd5a2), prime = UINT64_C(0x9fb21c651e98df25);
    const uint64_t first = cd_hash_load(at), last = cd_hash_load(at + byte_count - 4);
    const uint32_t low = (uint32_t)seed,
                   turned = low >> 24 | (low >> 8 & 0xff00) | (low << 8 & 0xff0000) | low << 24;
    uint64_t h = (last + (first << 32)) ^ (secret - (seed ^ (uint64_t)turned << 32));
    h ^= cd_hash_turn(h, 49) ^ cd_hash_turn(h, 24);
    h *= prime;
    h ^= (h >> 35) + byte_count;
    h *= prime;
    return h ^ h >> 28;
}

/* Bytes of which all are there already. */
uint64_t cd_hash64_block(const void *bytes, size_t byte_count, uint64_t seed);
/* The same of CD_HASH_LONG_MIN bytes or more, for processors with AVX2 and with AVX-512. They exist
** where CMake can compile them (CD_HASH_AVX2, CD_HASH_AVX512). */
enum { CD_HASH_LONG_MIN = 241 };
uint64_t cd_hash64_avx2(const void *bytes, size_t byte_count, uint64_t seed);
uint64_t cd_hash64_avx512(const void *bytes, size_t byte_count, uint64_t seed);

uint64_t cd_hash_text(const char *text); /* NULL hashes as "" */
/* Folds a number into a running digest; order matters. */
CD_EVERYWHERE uint64_t cd_hash_mix(uint64_t digest, uint64_t value)
{
    uint64_t x = (digest ^ value) * UINT64_C(0x9fb21c651e98df25);
    x ^= x >> 32;
    x = (x + value) * UINT64_C(0xc2b2ae3d27d4eb4f);
    return x ^ (x >> 29);
}
