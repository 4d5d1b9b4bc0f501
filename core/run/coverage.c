/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/coverage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_link(int64_t link) { return link > 0 && link < CD_LINK_COUNT; }

static void add_reason(cd_coverage *c, const cddp_event *event)
{
    const cddp_event_unjudged *u = &event->as.unjudged;
    const char *why = event->text != NULL ? event->text : "";
    for (size_t i = 0; i < c->reason_count; i++) {
        cd_coverage_reason *r = &c->reasons[i];
        if (r->link == u->link && strncmp(r->why, why, sizeof r->why - 1) == 0) {
            r->count += (uint64_t)u->count;
            return;
        }
    }
    if (c->reason_count == CD_COVERAGE_REASONS_MAX) {
        c->other_reasons += (uint64_t)u->count;
        return;
    }
    cd_coverage_reason *r = &c->reasons[c->reason_count++];
    *r = (cd_coverage_reason){.link = u->link, .count = (uint64_t)u->count};
    snprintf(r->why, sizeof r->why, "%s", why);
}

void cd_coverage_push(cd_coverage *coverage, const cddp_event *event)
{
    cd_coverage *c = coverage;
    switch (event->kind) {
    case CDDP_EV_compare:
        if (is_link(event->as.compare.link)) c->made[event->as.compare.link]++;
        break;
    case CDDP_EV_owed:
        if (is_link(event->as.owed.link))
            c->owed[event->as.owed.link] += (uint64_t)event->as.owed.count;
        c->owing_ranks += event->as.owed.link == CD_LINK_PRESENCE;
        break;
    case CDDP_EV_unjudged:
        if (is_link(event->as.unjudged.link))
            c->given_up[event->as.unjudged.link] += (uint64_t)event->as.unjudged.count;
        add_reason(c, event);
        break;
    case CDDP_EV_uncompared:
        c->without_base++;
        break;
    default:
        break;
    }
}

static const char *link_name(int64_t link)
{
    if (link == CDDP_LINK_NONE) return "not decided";
    const char *name = cddp_event_word(CDDP_FIELD_link, link);
    return name != NULL ? name : "?";
}

/* An update that another rank made and sent has its own link, and is owed as an update. */
static uint64_t count_made(const cd_coverage *c, int64_t link)
{
    return c->made[link] + c->given_up[link] +
           (link == CD_LINK_UPDATE ? c->made[CD_LINK_SHARE] : 0);
}

const char *cd_coverage_find_gap(const cd_coverage *coverage, uint64_t rank_count, cd_arena *arena,
                                 bool *is_exhausted)
{
    const cd_coverage *c = coverage;
    const char *gap = NULL;
    bool has_gap = false;
    if (c->without_base > 0) {
        has_gap = true;
        gap = cd_arena_printf(arena, "the gradients of %" PRIu64 " reductions have no reference",
                              c->without_base);
    } else if (c->owing_ranks < rank_count) {
        has_gap = true;
        gap = cd_arena_printf(arena, "%" PRIu64 " of %" PRIu64 " ranks were not observed",
                              rank_count - c->owing_ranks, rank_count);
    }
    for (int64_t link = 1; !has_gap && link < CD_LINK_COUNT; link++) {
        const uint64_t made = count_made(c, link);
        if (made >= c->owed[link]) continue;
        has_gap = true;
        gap = cd_arena_printf(arena,
                              "of %" PRIu64 " comparisons that the plan owes (%s), %" PRIu64
                              " were made",
                              c->owed[link], link_name(link), made);
    }
    *is_exhausted |= has_gap && gap == NULL;
    return gap;
}

const char *cd_coverage_print_unjudged(const cd_coverage *coverage, cd_arena *arena)
{
    const char *words = "";
    for (size_t i = 0; words != NULL && i < coverage->reason_count; i++) {
        const cd_coverage_reason *r = &coverage->reasons[i];
        words = cd_arena_printf(arena, "%s%s%s (%" PRIu64 "): %s", words, i > 0 ? "; " : "",
                                link_name(r->link), r->count, r->why);
    }
    if (words != NULL && coverage->other_reasons > 0)
        words = cd_arena_printf(arena, "%s; %" PRIu64 " more", words, coverage->other_reasons);
    return words;
}
