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

/* All of a block is its rest where it is not hashed by rounds. */
static void begin_block(cd_hash_chain_state *c)
{
    const size_t byte_count = block_bytes(c->next, c->end);
    c->block = c->rest = c->next;
    c->block_end = c->next + byte_count;
#if defined(CD_HASH_AVX2)
    if (byte_count >= CD_HASH_LONG_MIN && __builtin_cpu_supports("avx2"))
        c->rest += cd_hash_bytes_in_rounds(byte_count);
#endif
}

void cd_hash_chain_begin(cd_hash_chain_state *chain, const void *bytes, size_t byte_count,
                         uint64_t seed)
{
    chain->next = bytes;
    chain->end = chain->next + byte_count;
    chain->digest = seed;
    begin_block(chain);
}

static void add_round(cd_hash_chain_state *c)
{
#if defined(CD_HASH_AVX2)
    if (c->next == c->block) cd_hash_rounds_begin_avx2(&c->rounds, c->digest);
    cd_hash_rounds_add_avx2(&c->rounds, c->next);
#endif
    c->next += CD_HASH_ROUND_BYTES;
}

static void end_block(cd_hash_chain_state *c)
{
    const size_t byte_count = (size_t)(c->block_end - c->block);
#if defined(CD_HASH_AVX2)
    if (c->next > c->block)
        c->digest = cd_hash_rounds_end_avx2(&c->rounds, c->next, byte_count);
    else
#endif
        c->digest = cd_hash64_block(c->block, byte_count, c->digest);
    c->next = c->block_end;
    begin_block(c);
}

void cd_hash_chain_advance(cd_hash_chain_state *c, const unsigned char *until)
{
    while (c->next < until) {
        const bool is_there = until >= c->block_end;
        if (is_there && (c->next == c->rest || c->next == c->block))
            end_block(c);
        else if (c->next < c->rest && until - c->next >= CD_HASH_ROUND_BYTES)
            add_round(c);
        else
            return;
    }
}
