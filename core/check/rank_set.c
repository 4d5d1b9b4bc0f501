/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/rank_set.h"

#include "core/check/table.h"

#include <string.h>

#define LOW_RANKS 64u

static bool reserve(cd_rank_set *set, cd_arena *arena, size_t words)
{
    if (words <= set->high_words) return true;
    size_t wanted = set->high_words * 2 > words ? set->high_words * 2 : words;
    uint64_t *high = cd_arena_push(arena, wanted * sizeof *high);
    if (high == NULL) return false;
    if (set->high_words > 0) memcpy(high, set->high, set->high_words * sizeof *high);
    set->high = high;
    set->high_words = wanted;
    return true;
}

void cd_rank_set_add(cd_rank_set *set, cd_arena *arena, uint32_t rank)
{
    if (rank < LOW_RANKS) {
        set->low |= UINT64_C(1) << rank;
        return;
    }
    if (rank >= CD_RANKS_MAX) return;
    const size_t word = (rank - LOW_RANKS) / 64;
    if (reserve(set, arena, word + 1)) set->high[word] |= UINT64_C(1) << rank % 64;
}

void cd_rank_set_remove(cd_rank_set *set, uint32_t rank)
{
    if (rank < LOW_RANKS)
        set->low &= ~(UINT64_C(1) << rank);
    else if ((rank - LOW_RANKS) / 64 < set->high_words)
        set->high[(rank - LOW_RANKS) / 64] &= ~(UINT64_C(1) << rank % 64);
}

void cd_rank_set_unite(cd_rank_set *set, cd_arena *arena, const cd_rank_set *other)
{
    set->low |= other->low;
    if (other->high_words == 0 || !reserve(set, arena, other->high_words)) return;
    for (size_t i = 0; i < other->high_words; i++) set->high[i] |= other->high[i];
}

static uint64_t word_of(const cd_rank_set *set, uint32_t rank)
{
    if (rank < LOW_RANKS) return set->low;
    const size_t word = (rank - LOW_RANKS) / 64;
    return word < set->high_words ? set->high[word] : 0;
}

bool cd_rank_set_has(const cd_rank_set *set, uint32_t rank)
{
    return (word_of(set, rank) >> rank % 64 & 1) != 0;
}

uint32_t cd_rank_set_next(const cd_rank_set *set, uint32_t from)
{
    const uint64_t end = LOW_RANKS + 64 * (uint64_t)set->high_words;
    for (uint64_t rank = from; rank < end;) {
        const uint64_t word = word_of(set, (uint32_t)rank) >> rank % 64;
        if (word & 1) return (uint32_t)rank;
        rank = word != 0 ? rank + 1 : (rank / 64 + 1) * 64;
    }
    return CD_NO_RANK;
}

uint32_t cd_rank_set_count(const cd_rank_set *set)
{
    uint32_t count = 0;
    for (uint32_t r = cd_rank_set_next(set, 0); r != CD_NO_RANK; r = cd_rank_set_next(set, r + 1))
        count++;
    return count;
}

static uint32_t next_of(const void *self, uint32_t from) { return cd_rank_set_next(self, from); }

void cd_rank_set_print(const cd_rank_set *set, uint32_t culprit, char *text, size_t text_bytes)
{
    cd_rank_list_print(&(cd_rank_list){set, next_of}, culprit, text, text_bytes);
}
