/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/rank_list.h"

#include "core/base/hash.h"

#include <stdio.h>
#include <string.h>

#define ITEMS_SHOWN 6u /* ranks and ranges that a text names before it counts */

static bool has(const cd_rank_list *list, uint32_t rank)
{
    return rank != CD_NO_RANK && list->next(list->self, rank) == rank;
}

static uint32_t count_of(const cd_rank_list *list)
{
    uint32_t count = 0;
    for (uint32_t r = list->next(list->self, 0); r != CD_NO_RANK; r = list->next(list->self, r + 1))
        count++;
    return count;
}

/* The last rank of the range that starts at a member; the culprit is named by itself. */
static uint32_t end_of_range(const cd_rank_list *list, uint32_t first, uint32_t culprit)
{
    uint32_t last = first;
    while (last + 1 != culprit && has(list, last + 1)) last++;
    return last >= first + 2 ? last : first;
}

void cd_rank_list_print(const cd_rank_list *list, uint32_t culprit, char *text, size_t text_bytes)
{
    const uint32_t count = count_of(list);
    uint32_t shown = 0, items = 0;
    size_t used = (size_t)snprintf(text, text_bytes,
                                   count == 0   ? "no rank"
                                   : count == 1 ? "rank "
                                                : "ranks ");
    /* the least comes first anyway, and may begin a range */
    if (!has(list, culprit) || culprit == list->next(list->self, 0)) culprit = CD_NO_RANK;
    uint32_t first = culprit != CD_NO_RANK ? culprit : list->next(list->self, 0);
    for (uint32_t from = 0; first != CD_NO_RANK && items < ITEMS_SHOWN; items++) {
        const bool leads = items == 0 && culprit != CD_NO_RANK;
        const uint32_t last = leads ? first : end_of_range(list, first, culprit);
        shown += last - first + 1;
        const char *join = items == 0 ? "" : shown == count ? " and " : ", ";
        if (used >= text_bytes) return;
        used +=
            (size_t)(last > first
                         ? snprintf(text + used, text_bytes - used, "%s%u-%u", join, first, last)
                         : snprintf(text + used, text_bytes - used, "%s%u", join, first));
        from = leads ? 0 : last + 1;
        first = list->next(list->self, from);
        if (first == culprit && first != CD_NO_RANK) first = list->next(list->self, first + 1);
    }
    if (shown < count && used < text_bytes)
        snprintf(text + used, text_bytes - used, " and %u more", count - shown);
}

uint32_t cd_rank_array_next(const void *self, uint32_t from)
{
    const cd_rank_array *a = self;
    size_t low = 0, high = a->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (a->items[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->count ? a->items[low] : CD_NO_RANK;
}

/* Whether `words` go on with "rank N" of this rank; past it. */
static bool names_itself(const char **words, uint32_t rank)
{
    char name[24];
    const size_t length = (size_t)snprintf(name, sizeof name, "rank %u", rank);
    const char after = strncmp(*words, name, length) == 0 ? (*words)[length] : '0';
    if (after >= '0' && after <= '9') return false;
    *words += length;
    return true;
}

bool cd_rank_words_are_alike(const char *a, uint32_t rank_a, const char *b, uint32_t rank_b)
{
    for (;;) {
        const char *past_a = a, *past_b = b;
        if (names_itself(&past_a, rank_a) && names_itself(&past_b, rank_b)) {
            a = past_a;
            b = past_b;
        } else if (*a != *b) {
            return false;
        } else if (*a == '\0') {
            return true;
        } else {
            a++;
            b++;
        }
    }
}

uint64_t cd_rank_members_digest(const uint32_t *members, size_t count)
{
    uint64_t digest = count;
    for (size_t i = 0; i < count; i++) digest = cd_hash_mix(digest, members[i]);
    return digest;
}

uint32_t cd_rank_find_other(uint64_t digest, uint32_t rank, int64_t place, uint32_t count)
{
    for (uint32_t other = 0; other < count; other++) {
        const uint32_t members[2] = {place == 0 ? rank : other, place == 0 ? other : rank};
        if (other != rank && cd_rank_members_digest(members, 2) == digest) return other;
    }
    return CD_NO_RANK;
}
