/* SPDX-License-Identifier: Apache-2.0 */
/* How a text names several ranks. Every text that does so uses this printer. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CD_NO_RANK UINT32_MAX

/* Ranks in whatever form, seen in ascending order. */
typedef struct cd_rank_list {
    const void *self;
    /* The least member that is not below `from`; CD_NO_RANK past the last. */
    uint32_t (*next)(const void *self, uint32_t from);
} cd_rank_list;

/* "rank 2", "ranks 0 and 1", "ranks 10, 70-73 and 4 more": `culprit` first, if it is a member, then
** the others in order, three and more in a row as a range. */
void cd_rank_list_print(const cd_rank_list *list, uint32_t culprit, char *text, size_t text_bytes);

/* Ranks in ascending order, as the self of a list with cd_rank_array_next. */
typedef struct cd_rank_array {
    const uint32_t *items;
    size_t count;
} cd_rank_array;
uint32_t cd_rank_array_next(const void *self, uint32_t from);

/* A digest of the members of a group, in the order of its ranks. */
uint64_t cd_rank_members_digest(const uint32_t *members, size_t count);
/* The other member of a group of two with that digest, of which one is `rank` with group rank
** `place`; ranks are below `count`. CD_NO_RANK: none has it. */
uint32_t cd_rank_find_other(uint64_t digest, uint32_t rank, int64_t place, uint32_t count);

/* Two ranks say the same, each of itself: "on rank 0, …" and "on rank 1, …". */
bool cd_rank_words_are_alike(const char *a, uint32_t rank_a, const char *b, uint32_t rank_b);
