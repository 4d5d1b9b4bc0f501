/* SPDX-License-Identifier: Apache-2.0 */
/* A set of ranks of any size.
**
** Ranks below 64 lie in the set itself; a larger world takes memory from an arena.
**
** Lifetime   a zeroed set is empty. Its memory is the arena's, so a set is never released, and a
**            copy shares it: copy a set only to read it.
** Errors     when memory is exhausted the rank is missing; the judge learns of it from its
**            allocator.
*/
#pragma once
#include "core/base/arena.h"
#include "core/base/rank_list.h"

#define CD_RANK_SET_BLOCK 4096 /* bytes that an arena of sets takes at a time */

typedef struct cd_rank_set {
    uint64_t low;
    uint64_t *high; /* (high_words) ranks 64 and up */
    size_t high_words;
} cd_rank_set;

/* The world itself (CD_NO_RANK) and ranks beyond CD_RANKS_MAX are no members. */
void cd_rank_set_add(cd_rank_set *set, cd_arena *arena, uint32_t rank);
void cd_rank_set_remove(cd_rank_set *set, uint32_t rank);
void cd_rank_set_unite(cd_rank_set *set, cd_arena *arena, const cd_rank_set *other);
bool cd_rank_set_has(const cd_rank_set *set, uint32_t rank);
uint32_t cd_rank_set_count(const cd_rank_set *set);
/* The least member that is not below `from`; CD_NO_RANK past the last. */
uint32_t cd_rank_set_next(const cd_rank_set *set, uint32_t from);
/* See cd_rank_list_print. */
void cd_rank_set_print(const cd_rank_set *set, uint32_t culprit, char *text, size_t text_bytes);
