/* SPDX-License-Identifier: Apache-2.0 */
/* A seeded generator (xoshiro256**). It is split by label, so that a new draw in one part shifts no
** other.
**
** There is no floating point in this API: probabilities are ratios.
*/
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cd_prng {
    uint64_t state[4];
} cd_prng;

cd_prng cd_prng_seed(uint64_t seed);
/* An independent generator for a named part; the parent is not advanced. */
cd_prng cd_prng_split(const cd_prng *parent, const char *label);
cd_prng cd_prng_split_index(const cd_prng *parent, const char *label, uint64_t index);
uint64_t cd_prng_next(cd_prng *prng);
/* 0 … bound-1, unbiased; bound > 0 */
uint64_t cd_prng_below(cd_prng *prng, uint64_t bound);
int64_t cd_prng_between(cd_prng *prng, int64_t low, int64_t high); /* inclusive */
bool cd_prng_chance(cd_prng *prng, uint64_t numerator, uint64_t denominator);
void cd_prng_shuffle(cd_prng *prng, uint32_t *items, size_t count); /* Fisher-Yates */
