/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 of many bytes with AVX2: a stripe is two vectors. CMake compiles this file with -mavx2
** where the compiler knows it. See Note [XXH3 with a seed for each block] in hash_long.h.
*/
#include "core/base/hash.h"

#include "core/base/hash_chain.h"
#include "core/base/hash_long.h"

#include <immintrin.h>

/* Words of a vector, and keys: the second half of a stripe has the key that many words further. */
enum { WORDS = 4, KEYS = CD_HASH_STRIPES + WORDS + 1 };

typedef struct stripe {
    __m256i low, high;
} stripe;

static inline __m256i product(__m256i data, __m256i key)
{
    const __m256i mixed = _mm256_xor_si256(data, key);
    return _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
}

static inline __m256i exchange(__m256i words)
{
    return _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
}

static inline __m256i load(const void *at) { return _mm256_loadu_si256(at); }

/* With `count` stripes more.
** The empty instruction keeps the order of additions: GCC would rather have all products at once,
** which are more than there are registers. */
static inline stripe accumulate(stripe sum, const unsigned char *at, const __m256i *keys,
                                size_t count)
{
    __m256i low_as_it_is = _mm256_setzero_si256(), high_as_it_is = low_as_it_is;
#pragma GCC unroll 16
    for (size_t i = 0; i < count; i++, at += CD_HASH_STRIPE_BYTES) {
        const __m256i low = load(at), high = load(at + sizeof low);
        low_as_it_is = _mm256_add_epi64(low_as_it_is, low);
        high_as_it_is = _mm256_add_epi64(high_as_it_is, high);
        sum.low = _mm256_add_epi64(sum.low, product(low, keys[i]));
        sum.high = _mm256_add_epi64(sum.high, product(high, keys[i + WORDS]));
        __asm__("" : "+x"(sum.low), "+x"(sum.high), "+x"(low_as_it_is), "+x"(high_as_it_is));
    }
    sum.low = _mm256_add_epi64(sum.low, exchange(low_as_it_is));
    sum.high = _mm256_add_epi64(sum.high, exchange(high_as_it_is));
    return sum;
}

static inline __m256i scramble(__m256i sum, __m256i key)
{
    const __m256i prime = _mm256_set1_epi64x((long long)CD_HASH_PRIME32);
    const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47)), key);
    const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
    return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

/* The words of two keys, so many bits further. */
static inline __m256i between(const __m256i *key, int bits)
{
    return _mm256_or_si256(_mm256_srli_epi64(key[0], bits), _mm256_slli_epi64(key[1], 64 - bits));
}

static inline void make_keys(__m256i *keys, uint64_t seed)
{
    const __m256i plus = _mm256_set1_epi64x((long long)seed),
                  minus = _mm256_sub_epi64(_mm256_setzero_si256(), plus),
                  even = _mm256_blend_epi32(minus, plus, 0x33),
                  odd = _mm256_blend_epi32(plus, minus, 0x33);
    for (size_t i = 0; i < KEYS - 1; i += 2) {
        keys[i] = _mm256_add_epi64(load(cd_hash_secret + i), even);
        keys[i + 1] = _mm256_add_epi64(load(cd_hash_secret + i + 1), odd);
    }
    keys[KEYS - 1] = _mm256_add_epi64(load(cd_hash_secret + (KEYS - 1)), even);
}

static inline stripe begin(void)
{
    return (stripe){load(cd_hash_begin), load(cd_hash_begin + WORDS)};
}

static inline stripe add_round(stripe sum, const unsigned char *at, const __m256i *keys)
{
    sum = accumulate(sum, at, keys, CD_HASH_STRIPES);
    sum.low = scramble(sum.low, keys[CD_HASH_STRIPES]);
    sum.high = scramble(sum.high, keys[CD_HASH_STRIPES + WORDS]);
    return sum;
}

/* last: the block's last stripe, part of which may be in the one before. */
static inline uint64_t end(stripe sum, const unsigned char *rest, const unsigned char *last,
                           const __m256i *keys, size_t byte_count)
{
    const size_t count = (size_t)(last - rest + CD_HASH_STRIPE_BYTES - 1) / CD_HASH_STRIPE_BYTES;
    if (count == CD_HASH_STRIPES - 1) /* of a whole block: without a question for each stripe */
        sum = accumulate(sum, rest, keys, CD_HASH_STRIPES - 1);
    else
        sum = accumulate(sum, rest, keys, count);
    __m256i final[1 + WORDS];
    final[0] = between(keys + CD_HASH_STRIPES - 1, 8);
    final[WORDS] = between(keys + CD_HASH_STRIPES - 1 + WORDS, 8);
    sum = accumulate(sum, last, final, 1);
    uint64_t mixed[2 * WORDS];
    _mm256_storeu_si256((__m256i *)mixed, _mm256_xor_si256(sum.low, between(keys + 1, 24)));
    _mm256_storeu_si256((__m256i *)(mixed + WORDS),
                        _mm256_xor_si256(sum.high, between(keys + 1 + WORDS, 24)));
    return cd_hash_end(mixed, byte_count);
}

uint64_t cd_hash64_avx2(const void *bytes, size_t byte_count, uint64_t seed)
{
    __m256i keys[KEYS];
    const unsigned char *at = bytes, *const last = at + byte_count - CD_HASH_STRIPE_BYTES;
    const unsigned char *const rest = at + cd_hash_bytes_in_rounds(byte_count);
    stripe sum = begin();
    make_keys(keys, seed);
    for (; at < rest; at += CD_HASH_ROUND_BYTES) sum = add_round(sum, at, keys);
    return end(sum, rest, last, keys, byte_count);
}

/* ---- by rounds ---- */

_Static_assert(sizeof(__m256i) * KEYS == sizeof(uint64_t) * CD_HASH_KEY_WORDS, "as many words");

static inline stripe sums_of(const cd_hash_rounds *rounds)
{
    return (stripe){load(rounds->sums), load(rounds->sums + WORDS)};
}

static inline void keep(cd_hash_rounds *rounds, stripe sum)
{
    _mm256_storeu_si256((__m256i *)rounds->sums, sum.low);
    _mm256_storeu_si256((__m256i *)(rounds->sums + WORDS), sum.high);
}

void cd_hash_rounds_begin_avx2(cd_hash_rounds *rounds, uint64_t seed)
{
    make_keys((__m256i *)rounds->keys, seed);
    keep(rounds, begin());
}

void cd_hash_rounds_add_avx2(cd_hash_rounds *rounds, const unsigned char *at)
{
    keep(rounds, add_round(sums_of(rounds), at, (const __m256i *)rounds->keys));
}

uint64_t cd_hash_rounds_end_avx2(const cd_hash_rounds *rounds, const unsigned char *rest,
                                 size_t byte_count)
{
    const unsigned char *const behind = rest + byte_count - cd_hash_bytes_in_rounds(byte_count);
    return end(sums_of(rounds), rest, behind - CD_HASH_STRIPE_BYTES, (const __m256i *)rounds->keys,
               byte_count);
}
