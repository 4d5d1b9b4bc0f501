/* SPDX-License-Identifier: Apache-2.0 */
/* Without AVX2 a block is hashed once all of it is there: it lies in memory, so nothing is kept. */
#include "core/base/hash_chain.h"

#include "core/base/hash.h"
#include "core/base/hash_long.h"

#include <stdbool.h>

static size_t block_bytes(const unsigned char *block, const unsigned char *end)
{
    const size_t left = (size_t)(end - block);
    return left < CD_HASH_CHAIN_BLOCK_BYTES ? left : CD_HASH_CHAIN_BLOCK_BYTES;
}

uint64_t cd_hash_chain(const void *bytes, size_t byte_count, uint64_t digest)
{
    const unsigned char *at = bytes, *const end = at + byte_count;
    for (size_t n; at < end; at += n) {
        n = block_bytes(at, end);
        digest = cd_hash64_block(at, n, digest);
    }
    return digest;
}

void cd_hash_chain_begin(cd_hash_chain_state *chain, const void *bytes, size_t byte_count,
                         uint64_t seed)
{
    chain->block = chain->next = bytes;
    chain->end = chain->next + byte_count;
    chain->digest = seed;
}

/* One round. false: it is not there yet, or the rest of the block is what is next. */
static bool add_round(cd_hash_chain_state *c, const unsigned char *until, size_t byte_count)
{
#if defined(CD_HASH_AVX2)
    const size_t in_rounds = cd_hash_bytes_in_rounds(byte_count);
    if (!__builtin_cpu_supports("avx2") || byte_count < CD_HASH_LONG_MIN ||
        until - c->next < CD_HASH_ROUND_BYTES || c->next == c->block + in_rounds)
        return false;
    if (c->next == c->block) cd_hash_rounds_begin_avx2(&c->rounds, c->digest);
    cd_hash_rounds_add_avx2(&c->rounds, c->next);
    c->next += CD_HASH_ROUND_BYTES;
    return true;
#else
    (void)c, (void)until, (void)byte_count;
    return false;
#endif
}

static uint64_t end_block(const cd_hash_chain_state *c, size_t byte_count)
{
#if defined(CD_HASH_AVX2)
    if (c->next > c->block) return cd_hash_rounds_end_avx2(&c->rounds, c->next, byte_count);
#endif
    return cd_hash64_block(c->block, byte_count, c->digest);
}

void cd_hash_chain_advance(cd_hash_chain_state *c, const unsigned char *until)
{
    while (c->next < until) {
        const size_t byte_count = block_bytes(c->block, c->end);
        const bool is_there = (size_t)(until - c->block) >= byte_count;
        if (!(is_there && c->next == c->block) && add_round(c, until, byte_count)) continue;
        if (!is_there) return;
        c->digest = end_block(c, byte_count);
        c->block = c->next = c->block + byte_count;
    }
}
