/* SPDX-License-Identifier: Apache-2.0 */
/* A set of small integers in caller's storage: one bit each. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CD_BITSET_WORDS(bits) (((bits) + 63) / 64)

static inline void cd_bitset_clear(uint64_t *set, size_t bits)
{
    memset(set, 0, CD_BITSET_WORDS(bits) * sizeof(uint64_t));
}
static inline void cd_bitset_add(uint64_t *set, size_t bit)
{
    set[bit / 64] |= UINT64_C(1) << (bit % 64);
}
static inline void cd_bitset_remove(uint64_t *set, size_t bit)
{
    set[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
}
static inline bool cd_bitset_has(const uint64_t *set, size_t bit)
{
    return (set[bit / 64] >> (bit % 64)) & 1;
}
