/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/own_samples.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

/* Fewer than that may be equal by chance, or by the choice of who tries a program. */
enum { BATCHES_MIN = 2, DIFFERENT_MIN = 4, SHARED_MIN_PERCENT = 5 };

typedef struct use {
    int64_t sample, group;
    uint32_t rank;
} use;

static int by_sample(const void *a, const void *b)
{
    const use *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->sample != y->sample) return x->sample < y->sample ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void take(cd_own_samples *s, cd_own_samples_rank *rank, int64_t digest)
{
    if (digest == 0 || rank->count >= CD_OWN_SAMPLES_MAX) return;
    if (!cd_vec_grow(s->allocator, (void **)&rank->taken, &rank->capacity, rank->count + 1,
                     sizeof *rank->taken)) {
        s->is_out_of_memory = true;
        return;
    }
    rank->taken[rank->count++] = digest;
}

void cd_own_samples_push(cd_own_samples *s, const cddp_event *e)
{
    cd_own_samples_rank *rank = &s->ranks[e->rank];
    if (e->kind == CDDP_EV_wrap) rank->group = e->as.wrap.group;
    if (e->kind != CDDP_EV_mark || e->text == NULL) return;
    if (strcmp(e->text, CD_OWN_SAMPLE) == 0)
        take(s, rank, e->as.mark.value);
    else if (strcmp(e->text, CD_OWN_BATCH) == 0 && rank->count < CD_OWN_SAMPLES_MAX)
        rank->batches++;
}

/* Different ones among the first; no more than are needed. */
static size_t count_different(const cd_own_samples_rank *rank, size_t count, size_t enough)
{
    size_t different = 0;
    for (size_t i = 0; i < count && different < enough; i++) {
        bool is_new = true;
        for (size_t k = 0; is_new && k < i; k++) is_new = rank->taken[k] != rank->taken[i];
        different += is_new;
    }
    return different;
}

static bool are_twins(const cd_own_samples_rank *a, const cd_own_samples_rank *b)
{
    const size_t count = a->count < b->count ? a->count : b->count;
    if (a->group != b->group || a->batches < BATCHES_MIN || b->batches < BATCHES_MIN) return false;
    return count >= DIFFERENT_MIN && memcmp(a->taken, b->taken, count * sizeof *a->taken) == 0 &&
           count_different(a, count, DIFFERENT_MIN) == DIFFERENT_MIN;
}

bool cd_own_samples_find_twins(const cd_own_samples *s, cd_own_samples_twins *twins)
{
    for (uint32_t i = 0; i < s->rank_count; i++) {
        const cd_own_samples_rank *a = &s->ranks[i];
        uint32_t second = 0, count = 0;
        for (uint32_t k = i + 1; k < s->rank_count; k++) {
            if (!are_twins(a, &s->ranks[k])) continue;
            if (count++ == 0) second = k;
        }
        if (count == 0) continue;
        const cd_own_samples_rank *b = &s->ranks[second];
        *twins =
            (cd_own_samples_twins){.first = i,
                                   .second = second,
                                   .are_all = count + 1 == s->rank_count,
                                   .count = a->count < b->count ? a->count : b->count,
                                   .batches = a->batches < b->batches ? a->batches : b->batches};
        return true;
    }
    return false;
}

uint64_t cd_own_samples_count_shared(cd_own_samples *s)
{
    size_t total = 0, at = 0;
    uint64_t different = 0, shared = 0;
    for (uint32_t i = 0; i < s->rank_count; i++) total += s->ranks[i].count;
    use *all = total > 0 ? cd_allocate_array(s->allocator, total, sizeof *all) : NULL;
    s->is_out_of_memory |= total > 0 && all == NULL;
    if (all == NULL) return 0;
    for (uint32_t i = 0; i < s->rank_count; i++)
        for (size_t k = 0; k < s->ranks[i].count; k++)
            all[at++] = (use){s->ranks[i].taken[k], s->ranks[i].group, i};
    qsort(all, total, sizeof *all, by_sample);
    for (size_t i = 0, end = 0; i < total; i = end) {
        for (end = i;
             end < total && all[end].sample == all[i].sample && all[end].group == all[i].group;)
            end++;
        different++;
        shared += all[i].rank != all[end - 1].rank;
    }
    cd_release(s->allocator, all, total * sizeof *all);
    return shared >= DIFFERENT_MIN && 100 * shared >= SHARED_MIN_PERCENT * different ? shared : 0;
}

cddp_status cd_own_samples_init(cd_own_samples *s, uint32_t rank_count,
                                const cddp_allocator *allocator, cddp_error *err)
{
    *s = (cd_own_samples){.allocator = allocator, .rank_count = rank_count};
    s->ranks = cd_allocate_array(allocator, rank_count, sizeof *s->ranks);
    return s->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "%u ranks", rank_count);
}

void cd_own_samples_fini(cd_own_samples *s)
{
    for (uint32_t i = 0; s->ranks != NULL && i < s->rank_count; i++)
        cd_release(s->allocator, s->ranks[i].taken,
                   s->ranks[i].capacity * sizeof *s->ranks[i].taken);
    cd_release(s->allocator, s->ranks, s->rank_count * sizeof *s->ranks);
    s->ranks = NULL;
}
