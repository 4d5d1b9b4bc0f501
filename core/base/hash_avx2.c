/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 of many bytes with AVX2: a stripe is two vectors. CMake compiles this file with -mavx2
** where the compiler knows it. See Note [XXH3 with a seed for each block] in hash_long.h.
*/
#include "core/base/hash.h"

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

/* With `count` stripes more. wanted: where to ask meanwhile, or NULL.
** It comes into the first cache: a step at level digest takes a fifteenth less time than with the
** second one (bench/trace_cost_bench, Zen 5).
** The empty instruction keeps the order of additions: GCC would rather have all products at once,
** which are more than there are registers. */
static inline stripe accumulate(stripe sum, const unsigned char *at, const __m256i *keys,
                                size_t count, cd_hash_places wanted)
{
    __m256i low_as_it_is = _mm256_setzero_si256(), high_as_it_is = low_as_it_is;
#pragma GCC unroll 16
    for (size_t i = 0; i < count; i++, at += CD_HASH_STRIPE_BYTES) {
        const __m256i low = load(at), high = load(at + sizeof low);
        if (wanted.first != NULL)
            _mm_prefetch(wanted.first + i * CD_HASH_STRIPE_BYTES, _MM_HINT_T0);
        if (wanted.second != NULL)
            _mm_prefetch(wanted.second + i * CD_HASH_STRIPE_BYTES, _MM_HINT_T0);
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

/* The stripes between two scrambles, by loops without questions. */
static inline stripe accumulate_round(stripe sum, const unsigned char *at, const __m256i *keys,
                                      cd_hash_places wanted)
{
    if (wanted.second != NULL) return accumulate(sum, at, keys, CD_HASH_STRIPES, wanted);
    if (wanted.first != NULL)
        return accumulate(sum, at, keys, CD_HASH_STRIPES, (cd_hash_places){wanted.first, NULL});
    return accumulate(sum, at, keys, CD_HASH_STRIPES, (cd_hash_places){NULL, NULL});
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

uint64_t cd_hash64_avx2(const cd_hash_input *input, uint64_t seed)
{
    const size_t byte_count = input->byte_count;
    const __m256i plus = _mm256_set1_epi64x((long long)seed),
                  minus = _mm256_sub_epi64(_mm256_setzero_si256(), plus),
                  even = _mm256_blend_epi32(minus, plus, 0x33),
                  odd = _mm256_blend_epi32(plus, minus, 0x33);
    __m256i keys[KEYS];
    for (size_t i = 0; i < KEYS - 1; i += 2) {
        keys[i] = _mm256_add_epi64(load(cd_hash_secret + i), even);
        keys[i + 1] = _mm256_add_epi64(load(cd_hash_secret + i + 1), odd);
    }
    keys[KEYS - 1] = _mm256_add_epi64(load(cd_hash_secret + (KEYS - 1)), even);
    const unsigned char *at = input->bytes, *const last = at + byte_count - CD_HASH_STRIPE_BYTES;
    cd_hash_places wanted = {input->wanted[0], input->wanted[1]};
    const size_t round_bytes = CD_HASH_STRIPES * CD_HASH_STRIPE_BYTES;
    const unsigned char *const rest = at + (byte_count - 1) / round_bytes * round_bytes;
    stripe sum = {load(cd_hash_begin), load(cd_hash_begin + WORDS)};
    for (; at < rest; at += round_bytes) {
        sum = accumulate_round(sum, at, keys, wanted);
        wanted = cd_hash_places_behind(wanted);
        sum.low = scramble(sum.low, keys[CD_HASH_STRIPES]);
        sum.high = scramble(sum.high, keys[CD_HASH_STRIPES + WORDS]);
    }
    sum =
        accumulate(sum, rest, keys,
                   (size_t)(last - rest + CD_HASH_STRIPE_BYTES - 1) / CD_HASH_STRIPE_BYTES, wanted);
    __m256i final[1 + WORDS];
    final[0] = between(keys + CD_HASH_STRIPES - 1, 8);
    final[WORDS] = between(keys + CD_HASH_STRIPES - 1 + WORDS, 8);
    sum = accumulate(sum, last, final, 1, (cd_hash_places){NULL, NULL});
    uint64_t mixed[2 * WORDS];
    _mm256_storeu_si256((__m256i *)mixed, _mm256_xor_si256(sum.low, between(keys + 1, 24)));
    _mm256_storeu_si256((__m256i *)(mixed + WORDS),
                        _mm256_xor_si256(sum.high, between(keys + 1 + WORDS, 24)));
    return cd_hash_end(mixed, byte_count);
}
