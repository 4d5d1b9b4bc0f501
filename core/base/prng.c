/* SPDX-License-Identifier: Apache-2.0 */
/* xoshiro256** by Blackman and Vigna (public domain algorithm), seeded through splitmix64. */
#include "core/base/prng.h"

#include "core/base/assert.h"
#include "core/base/hash.h"

#include <string.h>

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

cd_prng cd_prng_seed(uint64_t seed)
{
    cd_prng p;
    for (int i = 0; i < 4; i++) p.state[i] = splitmix(&seed);
    return p;
}

cd_prng cd_prng_split_index(const cd_prng *parent, const char *label, uint64_t index)
{
    uint64_t h = cd_hash64(label, strlen(label), index);
    for (int i = 0; i < 4; i++) h = cd_hash_mix(h, parent->state[i]);
    return cd_prng_seed(h);
}

cd_prng cd_prng_split(const cd_prng *parent, const char *label)
{
    return cd_prng_split_index(parent, label, 0);
}

static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

uint64_t cd_prng_next(cd_prng *prng)
{
    uint64_t *s = prng->state;
    uint64_t result = rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t cd_prng_below(cd_prng *prng, uint64_t bound)
{
    CD_ASSERT(bound > 0);
    const bool is_power = (bound & (bound - 1)) == 0;
    for (;;) {
        const uint64_t x = cd_prng_next(prng);
        if (is_power) return x & (bound - 1);
        /* Values below 2^64 mod bound would be favoured. That is less than bound: most draws need
        ** no division to see that they are not. */
        if (x >= bound || x >= (0 - bound) % bound) return x % bound;
    }
}

int64_t cd_prng_between(cd_prng *prng, int64_t low, int64_t high)
{
    CD_ASSERT(low <= high);
    uint64_t span = (uint64_t)high - (uint64_t)low;
    uint64_t draw = span == UINT64_MAX ? cd_prng_next(prng) : cd_prng_below(prng, span + 1);
    return (int64_t)((uint64_t)low + draw);
}

bool cd_prng_chance(cd_prng *prng, uint64_t numerator, uint64_t denominator)
{
    return cd_prng_below(prng, denominator) < numerator;
}

void cd_prng_shuffle(cd_prng *prng, uint32_t *items, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t j = (size_t)cd_prng_below(prng, i);
        uint32_t t = items[i - 1];
        items[i - 1] = items[j];
        items[j] = t;
    }
}
