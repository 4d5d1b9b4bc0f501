/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of many bytes, at once or while the bytes are written or read.
**
**     cd_hash_chain_begin(&chain, bytes, byte_count, seed);
**     for each piece that is there:
**         cd_hash_chain_advance(&chain, behind_the_piece);
**     digest = chain.digest;
**
** The digest is folded from blocks: each is hashed with the digest of those before it as its seed.
**
** Note [Hashed by rounds]
** A block is hashed in rounds of 1 KiB. Between the rounds of one chain come those of another, a
** copy, a comparison. Each waits for little memory at a time, and the processor fetches what
** follows while the others compute. So a digest beside a copy is nearly free, and a second digest
** beside a first one. With whole blocks in turns, memory waits for the arithmetic. To ask for all
** memory by instructions is slower than either on Zen 4 (bench/trace_cost_bench).
**
** Ownership  the bytes are borrowed until the chain is at their end.
** Threads    one per chain.
*/
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { CD_HASH_CHAIN_BLOCK_BYTES = 4096, CD_HASH_ROUND_BYTES = 1024, CD_HASH_KEY_WORDS = 84 };

/* XXH3 of a block, behind some of its rounds. */
typedef struct cd_hash_rounds {
    _Alignas(64) uint64_t sums[8];
    uint64_t keys[CD_HASH_KEY_WORDS];
} cd_hash_rounds;

typedef struct cd_hash_chain_state {
    const unsigned char *next, *end;        /* all before next is in */
    const unsigned char *block, *block_end; /* the block that is hashed */
    const unsigned char *rest;              /* of the block, behind its rounds */
    uint64_t digest;                        /* of the blocks before; of everything at the end */
    cd_hash_rounds rounds;                  /* unset at the beginning of a block */
} cd_hash_chain_state;

/* Of bytes of which all are there. */
uint64_t cd_hash_chain(const void *bytes, size_t byte_count, uint64_t seed);

void cd_hash_chain_begin(cd_hash_chain_state *chain, const void *bytes, size_t byte_count,
                         uint64_t seed);
/* Everything before `until` is there. What cannot be hashed without more is left. */
void cd_hash_chain_advance(cd_hash_chain_state *chain, const unsigned char *until);

/* For processors with AVX2 (hash_avx2.c), of blocks of CD_HASH_LONG_MIN bytes or more. rest: what
** is behind the last round, at least one byte; byte_count: of the block, all of which is there. */
void cd_hash_rounds_begin_avx2(cd_hash_rounds *rounds, uint64_t seed);
void cd_hash_rounds_add_avx2(cd_hash_rounds *rounds, const unsigned char *at);
uint64_t cd_hash_rounds_end_avx2(const cd_hash_rounds *rounds, const unsigned char *rest,
                                 size_t byte_count);
