/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges of statistics, recorded and answered. See statistics.h. */
#include "core/reference/statistics.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

void cd_statistics_init(cd_statistics *statistics, uint32_t world, const cddp_allocator *allocator)
{
    *statistics = (cd_statistics){.allocator = allocator, .world = world};
}

void cd_statistics_forget(cd_statistics *s)
{
    for (size_t i = 0; i < s->count; i++) memset(s->exchanges[i].knows, 0, s->world * sizeof(bool));
}

void cd_statistics_begin(cd_statistics *s, uint32_t rank)
{
    s->rank = rank;
    s->call = 0;
}

static cddp_status find_exchange(cd_statistics *s, size_t width, cd_exchange **exchange,
                                 cddp_error *err)
{
    const size_t needed = s->call + 1;
    if (!cd_vec_grow(s->allocator, (void **)&s->exchanges, &s->capacity, needed,
                     sizeof *s->exchanges))
        return cd_fail_memory(err, "%zu exchanges of statistics", needed);
    while (s->count < needed) s->exchanges[s->count++] = (cd_exchange){.width = 0};
    cd_exchange *e = &s->exchanges[s->call];
    if (e->width != width) {
        cd_arena_fini(&e->arena);
        *e = (cd_exchange){.width = width, .buffer = -1};
        cd_arena_init(&e->arena, s->allocator, 4096);
        e->said = cd_arena_array(&e->arena, s->world * width, sizeof *e->said);
        e->words = cd_arena_array(&e->arena, s->world * width, sizeof *e->words);
        e->knows = cd_arena_array(&e->arena, s->world, sizeof *e->knows);
        CD_TRY(cd_arena_check(&e->arena, err, "the statistics of %u ranks", s->world));
    }
    s->call++;
    *exchange = e;
    return CDDP_OK;
}

/* Records the values that the running rank sends at its next exchange. */
static cddp_status say(cd_statistics *s, const cddp_tensor *mine, cd_exchange **exchange,
                       cddp_error *err)
{
    const size_t width = (size_t)cddp_tensor_numel(mine), bytes = width * sizeof(double);
    CD_TRY(find_exchange(s, width, exchange, err));
    const double *words = (*exchange)->words;
    CD_TRY(mine->device->read(mine, (*exchange)->words, bytes, err));
    double *said = (*exchange)->said + s->rank * width;
    if (!(*exchange)->knows[s->rank] || memcmp(said, words, bytes) != 0) {
        memcpy(said, words, bytes);
        (*exchange)->knows[s->rank] = true;
        s->has_changed = true;
    }
    return CDDP_OK;
}

static const double *row_of(const cd_statistics *s, const cd_exchange *e, uint32_t rank)
{
    return e->said + (e->knows[rank] ? rank : s->rank) * e->width;
}

cddp_status cd_statistics_allgather(cd_statistics *s, const cddp_tensor *mine,
                                    const cddp_tensor *all, cddp_error *err)
{
    cd_exchange *e;
    CD_TRY(say(s, mine, &e, err));
    for (uint32_t r = 0; r < s->world; r++)
        memcpy(e->words + r * e->width, row_of(s, e, r), e->width * sizeof *e->words);
    CD_TRY(all->device->write(all, e->words, s->world * e->width * sizeof *e->words, err));
    return CDDP_OK;
}

cddp_status cd_statistics_allreduce(cd_statistics *s, const cddp_tensor *sums, cddp_error *err)
{
    cd_exchange *e;
    CD_TRY(say(s, sums, &e, err));
    memset(e->words, 0, e->width * sizeof *e->words);
    for (uint32_t r = 0; r < s->world; r++) {
        for (size_t i = 0; i < e->width; i++) e->words[i] += row_of(s, e, r)[i];
    }
    CD_TRY(sums->device->write(sums, e->words, e->width * sizeof *e->words, err));
    return CDDP_OK;
}

void cd_statistics_combined(cd_statistics *s, uint32_t buffer)
{
    if (s->call > 0) s->exchanges[s->call - 1].buffer = buffer;
}

void cd_statistics_fini(cd_statistics *s)
{
    for (size_t i = 0; i < s->count; i++) cd_arena_fini(&s->exchanges[i].arena);
    cd_release(s->allocator, s->exchanges, s->capacity * sizeof *s->exchanges);
    *s = (cd_statistics){.world = 0};
}
