/* SPDX-License-Identifier: Apache-2.0 */
#include "core/run/coverage.h"

#include "core/trace/tracer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_link(int64_t link) { return link > 0 && link < CD_LINK_COUNT; }

static void add_reason(cd_coverage *c, const cddp_event_unjudged *u, const char *why)
{
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

static void take_owed(cd_coverage *c, const cddp_event *event)
{
    const cddp_event_owed *o = &event->as.owed;
    if (is_link(o->link)) c->owed[o->link] += (uint64_t)o->count;
    c->owing_ranks += o->link == CD_LINK_PRESENCE;
    for (size_t i = 0; event->text != NULL && i < CD_OWED_KINDS; i++)
        if (o->link == CDDP_LINK_NONE && strcmp(event->text, cd_owed_name((cd_owed_kind)i)) == 0)
            c->owed_events[i] += (uint64_t)o->count;
}

/* Of parameters, at the two moments that every step has. */
static bool is_around_step(int64_t what, int64_t moment)
{
    return what == CDDP_WHAT_PARAMETER &&
           (moment == CDDP_MOMENT_BEGIN || moment == CDDP_MOMENT_AFTER_STEP);
}

/* A law of a bucket, and not of an average; within any distance everything keeps it. */
static bool says_something(const cddp_event_hook_law *law)
{
    return law->bucket >= 0 && isfinite(cd_f64_of(law->bound));
}

static bool is_own_stream(const char *label)
{
    return label != NULL && (strcmp(label, "model") == 0 || strcmp(label, "data") == 0);
}

/* A backward that the plan leaves drops what is under way: nobody takes these results. A rank that
** leaves one against the plan is I-STEP's. */
static void forgive_results(cd_coverage *c, uint32_t rank)
{
    const int32_t count = rank < CD_COVERAGE_RANKS_MAX ? c->under_way[rank] : 0;
    if (count <= 0) return;
    c->under_way[rank] = 0;
    c->seen[CD_OWED_RESULTS] += (uint64_t)count;
    add_reason(c, &(cddp_event_unjudged){.link = CDDP_LINK_NONE, .count = count},
               "a result under way when its backward was left: nobody takes it");
}

/* A result that comes late was forgiven. */
static void see_result(cd_coverage *c, uint32_t rank)
{
    if (rank < CD_COVERAGE_RANKS_MAX && c->under_way[rank]-- <= 0)
        c->under_way[rank] = 0;
    else
        c->seen[CD_OWED_RESULTS]++;
}

/* Where one event comes, another one is owed. */
static void see_pair(cd_coverage *c, const cddp_event *event)
{
    switch (event->kind) {
    case CDDP_EV_wrap:
        c->owed_events[CD_OWED_BUFFERS] += (uint64_t)event->as.wrap.buffers;
        break;
    case CDDP_EV_buffer:
        c->seen[CD_OWED_BUFFERS]++;
        break;
    case CDDP_EV_forward_begin:
        if (event->as.forward_begin.joined) break; /* it shadows collectives alone */
        c->owed_events[CD_OWED_FORWARD_ENDS]++;
        c->seen[CD_OWED_FORWARD_BEGINS]++;
        break;
    case CDDP_EV_forward_end:
        c->owed_events[CD_OWED_FORWARD_BEGINS]++;
        c->seen[CD_OWED_FORWARD_ENDS]++;
        break;
    case CDDP_EV_group:
        c->owed_events[CD_OWED_GROUP_CLOSES]++;
        break;
    case CDDP_EV_group_close:
        c->seen[CD_OWED_GROUP_CLOSES]++;
        break;
    case CDDP_EV_collective_post:
        c->owed_events[CD_OWED_RESULTS]++;
        if (event->rank < CD_COVERAGE_RANKS_MAX) c->under_way[event->rank]++;
        break;
    case CDDP_EV_collective_done:
        see_result(c, event->rank);
        break;
    case CDDP_EV_mark:
        if (event->text != NULL && strcmp(event->text, CD_TRACER_LEFT) == 0)
            forgive_results(c, event->rank);
        break;
    case CDDP_EV_no_sync:
        c->owed_events[CD_OWED_NO_SYNC_ENDS] += event->as.no_sync.entered != 0;
        c->seen[CD_OWED_NO_SYNC_ENDS] += event->as.no_sync.entered == 0;
        break;
    case CDDP_EV_backward_begin:
        c->seen[CD_OWED_BACKWARD_BEGINS]++;
        break;
    case CDDP_EV_backward_end:
        c->owed_events[CD_OWED_BACKWARD_BEGINS]++;
        break;
    default:
        break;
    }
}

static void see(cd_coverage *c, const cddp_event *event)
{
    switch (event->kind) {
    case CDDP_EV_sample:
        c->seen[CD_OWED_SAMPLES]++;
        break;
    case CDDP_EV_loss:
        c->seen[CD_OWED_LOSSES]++;
        break;
    case CDDP_EV_optimizer_step:
        c->seen[CD_OWED_STEPS]++;
        break;
    case CDDP_EV_value:
        c->seen[CD_OWED_VALUES] += is_around_step(event->as.value.what, event->as.value.moment);
        break;
    case CDDP_EV_shown:
        c->seen[CD_OWED_SHOWN] += is_around_step(event->as.shown.what, event->as.shown.moment);
        break;
    case CDDP_EV_unit_pass:
        c->seen[CD_OWED_UNITS] += event->as.unit_pass.pass == CDDP_UNIT_BACKWARD_END;
        break;
    case CDDP_EV_unit_read:
        c->seen[CD_OWED_READS] += event->as.unit_read.pass == CDDP_UNIT_POST_FORWARD ||
                                  event->as.unit_read.pass == CDDP_UNIT_POST_BACKWARD;
        break;
    case CDDP_EV_hook_law:
        c->seen[CD_OWED_LAWS] += says_something(&event->as.hook_law);
        break;
    case CDDP_EV_samples:
        c->seen[CD_OWED_BATCHES]++;
        break;
    case CDDP_EV_seed:
        c->seen[CD_OWED_STREAMS] += is_own_stream(event->text);
        break;
    case CDDP_EV_backward_entry:
        c->seen[CD_OWED_ENTRIES]++;
        break;
    case CDDP_EV_policy:
        c->seen[CD_OWED_DTYPES] += event->as.policy.site == CDDP_SITE_GRADIENT;
        break;
    default:
        see_pair(c, event);
        break;
    }
}

void cd_coverage_push(cd_coverage *coverage, const cddp_event *event)
{
    cd_coverage *c = coverage;
    switch (event->kind) {
    case CDDP_EV_compare:
        if (is_link(event->as.compare.link)) c->made[event->as.compare.link]++;
        break;
    case CDDP_EV_owed:
        take_owed(c, event);
        break;
    case CDDP_EV_bucket_sum:
        c->made[CD_LINK_LAW]++;
        break;
    case CDDP_EV_unjudged:
        if (is_link(event->as.unjudged.link))
            c->given_up[event->as.unjudged.link] += (uint64_t)event->as.unjudged.count;
        add_reason(c, &event->as.unjudged, event->text != NULL ? event->text : "");
        break;
    case CDDP_EV_uncompared:
        c->without_base++;
        break;
    default:
        see(c, event);
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

/* One thing of which less was judged than is owed. */
typedef struct gap {
    uint64_t owed, made;
    const char *what;
} gap;

static const char *add_gap(const char *words, const gap *g, cd_arena *arena)
{
    if (words == NULL || g->made >= g->owed) return words;
    return cd_arena_printf(arena,
                           "%s%sof %" PRIu64 " comparisons that the plan owes (%s), %" PRIu64
                           " were made",
                           words, words[0] != '\0' ? "; " : "", g->owed, g->what, g->made);
}

const char *cd_coverage_find_gap(const cd_coverage *coverage, uint64_t rank_count, cd_arena *arena,
                                 bool *is_exhausted)
{
    const cd_coverage *c = coverage;
    const char *words = "";
    if (c->without_base > 0) {
        words = cd_arena_printf(arena, "the gradients of %" PRIu64 " reductions have no reference",
                                c->without_base);
    } else if (c->owing_ranks < rank_count) {
        words = cd_arena_printf(arena, "%" PRIu64 " of %" PRIu64 " ranks were not observed",
                                rank_count - c->owing_ranks, rank_count);
    } else {
        for (int64_t link = 1; link < CD_LINK_COUNT; link++)
            words =
                add_gap(words, &(gap){c->owed[link], count_made(c, link), link_name(link)}, arena);
        /* a recorder need not record both events of a pair */
        const size_t kinds = c->owing_ranks > 0 ? CD_OWED_KINDS : CD_OWED_BUFFERS;
        for (size_t i = 0; i < kinds; i++)
            words =
                add_gap(words, &(gap){c->owed_events[i], c->seen[i], cd_owed_name((cd_owed_kind)i)},
                        arena);
    }
    *is_exhausted |= words == NULL;
    return words != NULL && words[0] == '\0' ? NULL : words;
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
