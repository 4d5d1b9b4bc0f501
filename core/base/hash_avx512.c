/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 of many bytes with AVX-512: a stripe is one vector. CMake compiles this file with
** -mavx512f. See Note [XXH3 with a seed for each block] in hash_long.h.
*/
#include "core/base/hash.h"

#include "core/base/hash_long.h"

#include <immintrin.h>

static inline __m512i product(__m512i data, __m512i key)
{
    const __m512i mixed = _mm512_xor_si512(data, key);
    return _mm512_mul_epu32(mixed, _mm512_srli_epi64(mixed, 32));
}

static inline __m512i exchange(__m512i words) { return _mm512_shuffle_epi32(words, _MM_PERM_BADC); }

/* With `count` stripes more. */
static inline __m512i accumulate(__m512i sum, const unsigned char *at, const __m512i *keys,
                                 size_t count)
{
    __m512i as_it_is = _mm512_setzero_si512();
    for (size_t i = 0; i < count; i++, at += CD_HASH_STRIPE_BYTES) {
        const __m512i data = _mm512_loadu_si512(at);
        as_it_is = _mm512_add_epi64(as_it_is, data);
        sum = _mm512_add_epi64(sum, product(data, keys[i]));
    }
    return _mm512_add_epi64(sum, exchange(as_it_is));
}

static inline __m512i scramble(__m512i sum, __m512i key)
{
    const __m512i prime = _mm512_set1_epi64((long long)CD_HASH_PRIME32);
    const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47)), key);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
}

/* The words of two keys, so many bits further. */
static inline __m512i between(__m512i key, __m512i next, unsigned bits)
{
    return _mm512_or_si512(_mm512_srli_epi64(key, bits), _mm512_slli_epi64(next, 64 - bits));
}

uint64_t cd_hash64_avx512(const void *bytes, size_t byte_count, uint64_t seed)
{
    const __m512i plus = _mm512_set1_epi64((long long)seed),
                  minus = _mm512_sub_epi64(_mm512_setzero_si512(), plus),
                  even = _mm512_mask_mov_epi64(minus, 0x55, plus),
                  odd = _mm512_mask_mov_epi64(plus, 0x55, minus);
    __m512i keys[CD_HASH_STRIPES + 1];
    for (size_t i = 0; i < CD_HASH_STRIPES; i += 2) {
        keys[i] = _mm512_add_epi64(_mm512_loadu_si512(cd_hash_secret + i), even);
        keys[i + 1] = _mm512_add_epi64(_mm512_loadu_si512(cd_hash_secret + i + 1), odd);
    }
    keys[CD_HASH_STRIPES] =
        _mm512_add_epi64(_mm512_loadu_si512(cd_hash_secret + CD_HASH_STRIPES), even);
    const unsigned char *at = bytes, *const last = at + byte_count - CD_HASH_STRIPE_BYTES;
    const unsigned char *const rest = at + cd_hash_bytes_in_rounds(byte_count);
    __m512i sum = _mm512_loadu_si512(cd_hash_begin);
    for (; at < rest; at += CD_HASH_STRIPES * CD_HASH_STRIPE_BYTES) {
        sum = accumulate(sum, at, keys, CD_HASH_STRIPES);
        sum = scramble(sum, keys[CD_HASH_STRIPES]);
    }
    sum = accumulate(sum, rest, keys,
                     (size_t)(last - rest + CD_HASH_STRIPE_BYTES - 1) / CD_HASH_STRIPE_BYTES);
    const __m512i final = between(keys[CD_HASH_STRIPES - 1], keys[CD_HASH_STRIPES], 8);
    sum = accumulate(sum, last, &final, 1);
    uint64_t mixed[8];
    _mm512_storeu_si512(mixed, _mm512_xor_si512(sum, between(keys[1], keys[2], 24)));
    return cd_hash_end(mixed, byte_count);
}
