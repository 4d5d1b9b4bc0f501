/* SPDX-License-Identifier: Apache-2.0 */
#include "verify/import/sources.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <stdio.h>
#include <string.h>

cddp_status cd_sources_init(cd_sources *s, uint32_t rank_count, cd_arena *arena,
                            const cddp_allocator *allocator, cddp_error *err)
{
    *s = (cd_sources){.allocator = allocator, .arena = arena, .rank_count = rank_count};
    s->ranks = cd_allocate_array(allocator, rank_count, sizeof *s->ranks);
    return s->ranks != NULL ? CDDP_OK : cd_fail_memory(err, "the lines of %u ranks", rank_count);
}

void cd_sources_fini(cd_sources *s)
{
    for (uint32_t i = 0; s->ranks != NULL && i < s->rank_count; i++)
        cd_release(s->allocator, s->ranks[i].lines,
                   s->ranks[i].capacity * sizeof *s->ranks[i].lines);
    cd_release(s->allocator, s->ranks, s->rank_count * sizeof *s->ranks);
    s->ranks = NULL;
}

void cd_sources_push(cd_sources *s, const cddp_event *e)
{
    if (e->kind != CDDP_EV_source || e->rank >= s->rank_count || e->text == NULL) return;
    cd_sources_rank *r = &s->ranks[e->rank];
    const char *text = NULL;
    for (size_t i = r->count; text == NULL && i > 0 && i + 64 > r->count; i--)
        if (strcmp(r->lines[i - 1].text, e->text) == 0) text = r->lines[i - 1].text;
    if (text == NULL) text = cd_arena_printf(s->arena, "%s", e->text);
    if (text == NULL || !cd_vec_grow(s->allocator, (void **)&r->lines, &r->capacity, r->count + 1,
                                     sizeof *r->lines))
        return;
    r->lines[r->count++] = (cd_source_line){e->sequence, text};
}

static const char *find(const cd_sources *s, uint32_t rank, uint64_t sequence)
{
    if (rank >= s->rank_count) return NULL;
    const cd_sources_rank *r = &s->ranks[rank];
    size_t low = 0, high = r->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (r->lines[middle].sequence <= sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? r->lines[low - 1].text : NULL;
}

void cd_sources_add(const cd_sources *s, cddp_finding *f)
{
    char lines[200] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < f->event_count; i++) {
        const char *text = find(s, f->events[i].rank, f->events[i].sequence);
        if (text == NULL || strstr(lines, text) != NULL) continue;
        const int count = snprintf(lines + used, sizeof lines - used, "%srank %u at %s",
                                   used > 0 ? "; " : "", f->events[i].rank, text);
        if (count < 0 || used + (size_t)count >= sizeof lines) {
            lines[used] = '\0';
            break;
        }
        used += (size_t)count;
    }
    if (used == 0) return;
    const size_t old = strlen(f->advice), room = sizeof f->advice - 1;
    const size_t begin = old + used + 2 <= room ? old : room - used - 2;
    snprintf(f->advice + begin, sizeof f->advice - begin, "%s%s", begin > 0 ? ". " : "", lines);
}
