/* SPDX-License-Identifier: Apache-2.0 */
/* A bit per part, looked for upwards from the last turn and around. */
#include "sim/turns.h"

#include "core/base/bitset.h"

bool cd_turns_init(cd_turns *turns, cd_memory *memory, uint32_t count)
{
    *turns = (cd_turns){.memory = memory, .count = count, .part = UINT32_MAX};
    turns->due = cd_memory_allocate(memory, CD_BITSET_WORDS(count) * sizeof *turns->due);
    if (turns->due == NULL) return false;
    cd_bitset_clear(turns->due, count);
    for (uint32_t i = 0; i < count; i++) cd_bitset_add(turns->due, i);
    return true;
}

void cd_turns_fini(cd_turns *turns)
{
    cd_memory_release(turns->memory, turns->due,
                      CD_BITSET_WORDS(turns->count) * sizeof *turns->due);
    turns->due = NULL;
}

void cd_turns_add(cd_turns *turns, uint32_t part)
{
    if (part != turns->part) cd_bitset_add(turns->due, part);
}

/* The lowest member of the set at or above from, which has none at or above to; to when there is
** none. */
static uint32_t find(const uint64_t *set, uint32_t from, uint32_t to)
{
    for (uint32_t word = from / 64; from < to; from = ++word * 64) {
        const uint64_t bits = set[word] >> (from % 64);
        if (bits != 0) return from + (uint32_t)__builtin_ctzll(bits);
    }
    return to;
}

bool cd_turns_next(cd_turns *turns, uint32_t *part)
{
    uint32_t found = find(turns->due, turns->at, turns->count);
    if (found == turns->count) {
        found = find(turns->due, 0, turns->at);
        if (found == turns->at) return false;
    }
    cd_bitset_remove(turns->due, found);
    turns->at = found + 1;
    *part = turns->part = found;
    return true;
}
