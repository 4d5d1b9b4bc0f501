/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/own_samples.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

/* Fewer than that may be equal by chance, or by the choice of who tries a program. */
enum { BATCHES_MIN = 2, DIFFERENT_MIN = 4, SHARED_MIN_PERCENT = 5, STREAMED_MIN = 3 };

#define PARTS_MAX 65536

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

static void take_streamed(cd_own_samples *s, cd_own_samples_rank *rank, int64_t digest)
{
    if (rank->streamed_count >= CD_OWN_SAMPLES_MAX) return;
    if (!cd_vec_grow(s->allocator, (void **)&rank->streamed, &rank->streamed_capacity,
                     rank->streamed_count + 1, sizeof *rank->streamed)) {
        s->is_out_of_memory = true;
        return;
    }
    rank->streamed[rank->streamed_count++] = digest;
}

static void take_part(cd_own_samples *s, int64_t value)
{
    const cd_own_samples_part part = {value >> 24, value & 0xffffff};
    size_t at = 0;
    if (value < 0 || part.rank >= part.replicas || s->part_count >= PARTS_MAX) return;
    while (at < s->part_count &&
           (s->parts[at].replicas < part.replicas ||
            (s->parts[at].replicas == part.replicas && s->parts[at].rank < part.rank)))
        at++;
    if (at < s->part_count && s->parts[at].replicas == part.replicas &&
        s->parts[at].rank == part.rank)
        return;
    if (!cd_vec_grow(s->allocator, (void **)&s->parts, &s->part_capacity, s->part_count + 1,
                     sizeof *s->parts)) {
        s->is_out_of_memory = true;
        return;
    }
    memmove(&s->parts[at + 1], &s->parts[at], (s->part_count - at) * sizeof *s->parts);
    s->parts[at] = part;
    s->part_count++;
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

static void take_used(cd_own_samples *s, cd_own_samples_rank *rank, const cddp_event *e)
{
    if (rank->used_count == 0 || rank->used[rank->used_count - 1].step != e->step) {
        if (!cd_vec_grow(s->allocator, (void **)&rank->used, &rank->used_capacity,
                         rank->used_count + 1, sizeof *rank->used)) {
            s->is_out_of_memory = true;
            return;
        }
        rank->used[rank->used_count++] = (cd_own_samples_use){.step = e->step};
    }
    rank->used[rank->used_count - 1].count += e->as.samples.count;
}

void cd_own_samples_push(cd_own_samples *s, const cddp_event *e)
{
    cd_own_samples_rank *rank = &s->ranks[e->rank];
    if (e->kind == CDDP_EV_wrap) rank->group = e->as.wrap.group;
    rank->is_known |= e->kind == CDDP_EV_samples;
    rank->has_join |= e->kind == CDDP_EV_join_notify;
    if (e->kind == CDDP_EV_samples) take_used(s, rank, e);
    if (e->kind != CDDP_EV_mark || e->text == NULL) return;
    if (strcmp(e->text, CD_OWN_SAMPLE) == 0) {
        take(s, rank, e->as.mark.value);
    } else if (strcmp(e->text, CD_OWN_BATCH) == 0) {
        rank->batches += rank->count < CD_OWN_SAMPLES_MAX;
        rank->is_known = true;
    } else if (strcmp(e->text, CD_OWN_STREAM) == 0) {
        take_streamed(s, rank, e->as.mark.value);
    } else if (strcmp(e->text, CD_STREAM_WORKERS) == 0) {
        rank->workers = rank->streamed_count == 0 && rank->workers == 0 ? e->as.mark.value : -1;
    } else if (strcmp(e->text, CD_SAMPLER_REPLICAS) == 0) {
        take_part(s, e->as.mark.value);
    } else if (strcmp(e->text, CD_OWN_ORDER) == 0) {
        s->has_own_order = rank->is_known = true;
    }
}

/* Different ones among the first; no more than are needed. */
static size_t count_different(const int64_t *digests, size_t count, size_t enough)
{
    size_t different = 0;
    for (size_t i = 0; i < count && different < enough; i++) {
        bool is_new = true;
        for (size_t k = 0; is_new && k < i; k++) is_new = digests[i] != digests[k];
        different += is_new;
    }
    return different;
}

/* Of what both have: is it the same, and are enough of these different ones? */
static bool begin_alike(const int64_t *a, const int64_t *b, size_t count, size_t enough)
{
    return count >= enough && memcmp(a, b, count * sizeof *a) == 0 &&
           count_different(a, count, enough) == enough;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static bool are_twins(const cd_own_samples_rank *a, const cd_own_samples_rank *b)
{
    return a->group == b->group && a->batches >= BATCHES_MIN && b->batches >= BATCHES_MIN &&
           begin_alike(a->taken, b->taken, least(a->count, b->count), DIFFERENT_MIN);
}

static bool are_streamed_twins(const cd_own_samples_rank *a, const cd_own_samples_rank *b)
{
    return a->group == b->group && !a->is_known && !b->is_known &&
           begin_alike(a->streamed, b->streamed, least(a->streamed_count, b->streamed_count),
                       STREAMED_MIN);
}

bool cd_own_samples_find_twins(const cd_own_samples *s, cd_own_samples_twins *twins)
{
    for (uint32_t i = 0; i < s->rank_count; i++) {
        const cd_own_samples_rank *a = &s->ranks[i];
        uint32_t second = 0, count = 0;
        for (uint32_t k = i + 1; k < s->rank_count; k++) {
            if (!are_twins(a, &s->ranks[k]) && !are_streamed_twins(a, &s->ranks[k])) continue;
            if (count++ == 0) second = k;
        }
        if (count == 0) continue;
        const cd_own_samples_rank *b = &s->ranks[second];
        const bool are_batches = !are_twins(a, b);
        *twins =
            (cd_own_samples_twins){.first = i,
                                   .second = second,
                                   .are_all = count + 1 == s->rank_count,
                                   .are_batches = are_batches,
                                   .count = are_batches
                                                ? least(a->streamed_count, b->streamed_count)
                                                : least(a->count, b->count),
                                   .batches = a->batches < b->batches ? a->batches : b->batches};
        return true;
    }
    return false;
}

static uint64_t count_unlike(const cd_own_samples_rank *a, const cd_own_samples_rank *b)
{
    uint64_t unlike = 0;
    for (size_t i = 0, k = 0; i < a->used_count && k < b->used_count;) {
        const cd_own_samples_use *x = &a->used[i], *y = &b->used[k];
        unlike += x->step == y->step && x->count != y->count;
        i += x->step <= y->step;
        k += y->step <= x->step;
    }
    return unlike;
}

uint64_t cd_own_samples_count_uneven(const cd_own_samples *s)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->rank_count; i++) {
        uint32_t first = 0;
        while (s->ranks[first].group != s->ranks[i].group) first++;
        const cd_own_samples_rank *a = &s->ranks[first], *b = &s->ranks[i];
        const uint64_t unlike = a->has_join || b->has_join ? 0 : count_unlike(a, b);
        most = unlike > most ? unlike : most;
    }
    return most;
}

/* Workers take turns, so that equal batches follow one another. */
static bool has_copies(const cd_own_samples_rank *rank)
{
    const size_t n = rank->workers > 1 ? (size_t)rank->workers : 0, count = rank->streamed_count;
    if (n == 0 || rank->is_known || count < 2 * n) return false;
    for (size_t i = 0; i < count; i++)
        if (rank->streamed[i] != rank->streamed[i - i % n]) return false;
    return count_different(rank->streamed, count, 2) == 2;
}

bool cd_own_samples_find_copies(const cd_own_samples *s, uint32_t *rank)
{
    for (uint32_t i = 0; i < s->rank_count; i++) {
        if (!has_copies(&s->ranks[i])) continue;
        *rank = i;
        return true;
    }
    return false;
}

bool cd_own_samples_find_missing(const cd_own_samples *s, cd_own_samples_missing *missing)
{
    for (size_t i = 0, end = 0; i < s->part_count; i = end) {
        const int64_t replicas = s->parts[i].replicas;
        int64_t rank = 0;
        for (end = i; end < s->part_count && s->parts[end].replicas == replicas; end++)
            rank += s->parts[end].rank == rank;
        const int64_t count = replicas - (int64_t)(end - i);
        if (count > 0) *missing = (cd_own_samples_missing){replicas, rank, count};
        if (count > 0) return true;
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
    for (uint32_t i = 0; s->ranks != NULL && i < s->rank_count; i++) {
        const cd_own_samples_rank *rank = &s->ranks[i];
        cd_release(s->allocator, rank->taken, rank->capacity * sizeof *rank->taken);
        cd_release(s->allocator, rank->used, rank->used_capacity * sizeof *rank->used);
        cd_release(s->allocator, rank->streamed, rank->streamed_capacity * sizeof *rank->streamed);
    }
    cd_release(s->allocator, s->parts, s->part_capacity * sizeof *s->parts);
    s->parts = NULL;
    cd_release(s->allocator, s->ranks, s->rank_count * sizeof *s->ranks);
    s->ranks = NULL;
}
