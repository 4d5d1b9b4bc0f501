/* SPDX-License-Identifier: Apache-2.0 */
/* What the vector versions of XXH3 share: its constants, and how it ends. For more bytes than
** XXH3 hashes without vectors, as https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
** has it.
**
** Note [XXH3 with a seed for each block]
** A digest is folded from blocks of 4 KiB, each with the digest so far as its seed, and the words
** of the secret depend on the seed: + and - in turns. XXH3 writes that secret to memory for each
** block and reads it back at other addresses, which costs a third of the block's time. Here each
** stripe's key is made once and read where it was written.
** The sum of what each stripe adds to the accumulators as it is, with words exchanged, is the
** exchanged sum: so one exchange serves 16 stripes.
*/
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    CD_HASH_STRIPE_BYTES = 64,
    CD_HASH_STRIPES = 16 /* between two scrambles */
};

#define CD_HASH_PRIME32 UINT64_C(0x9e3779b1)
#define CD_HASH_PRIME64 UINT64_C(0x9e3779b185ebca87)

/* The secret of XXH3, in words. */
static const uint64_t cd_hash_secret[24] = {
    UINT64_C(0xbe4ba423396cfeb8), UINT64_C(0x1cad21f72c81017c), UINT64_C(0xdb979083e96dd4de),
    UINT64_C(0x1f67b3b7a4a44072), UINT64_C(0x78e5c0cc4ee679cb), UINT64_C(0x2172ffcc7dd05a82),
    UINT64_C(0x8e2443f7744608b8), UINT64_C(0x4c263a81e69035e0), UINT64_C(0xcb00c391bb52283c),
    UINT64_C(0xa32e531b8b65d088), UINT64_C(0x4ef90da297486471), UINT64_C(0xd8acdea946ef1938),
    UINT64_C(0x3f349ce33f76faa8), UINT64_C(0x1d4f0bc7c7bbdcf9), UINT64_C(0x3159b4cd4be0518a),
    UINT64_C(0x647378d9c97e9fc8), UINT64_C(0xc3ebd33483acc5ea), UINT64_C(0xeb6313faffa081c5),
    UINT64_C(0x49daf0b751dd0d17), UINT64_C(0x9e68d429265516d3), UINT64_C(0xfca1477d58be162b),
    UINT64_C(0xce31d07ad1b8f88f), UINT64_C(0x280416958f3acb45), UINT64_C(0x7e404bbbcafbd7af)};

static const uint64_t cd_hash_begin[8] = {
    UINT64_C(0xc2b2ae3d),         CD_HASH_PRIME64,
    UINT64_C(0xc2b2ae3d27d4eb4f), UINT64_C(0x165667b19e3779f9),
    UINT64_C(0x85ebca77c2b2ae63), UINT64_C(0x85ebca77),
    UINT64_C(0x27d4eb2f165667c5), CD_HASH_PRIME32};

/* Behind them is a rest, of at least one byte. */
static inline size_t cd_hash_bytes_in_rounds(size_t byte_count)
{
    const size_t round_bytes = (size_t)CD_HASH_STRIPES * CD_HASH_STRIPE_BYTES;
    return (byte_count - 1) / round_bytes * round_bytes;
}

/* mixed: accumulators, each with its word of the secret */
static inline uint64_t cd_hash_end(const uint64_t mixed[8], size_t byte_count)
{
    __extension__ typedef unsigned __int128 wide;
    uint64_t hash = byte_count * CD_HASH_PRIME64;
    for (int i = 0; i < 8; i += 2) {
        const wide product = (wide)mixed[i] * mixed[i + 1];
        hash += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    hash = (hash ^ (hash >> 37)) * UINT64_C(0x165667919e3779f9);
    return hash ^ (hash >> 32);
}
