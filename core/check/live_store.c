/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that did not meet at the rendezvous store. See live.h. */
#include "core/check/live.h"

#include <string.h>

/* The rank that was the first to give up meeting the others; -1: none did. */
int64_t cd_live_first_to_give_up(const cd_live *s)
{
    int64_t first = -1;
    uint64_t first_ns = 0;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_meeting *m = &((const cd_live_rank *)cd_ranks_find(&s->ranks, i))->meeting;
        if (!m->has_given_up || (m->missing < 0 && !m->is_cut) ||
            (first >= 0 && m->end_ns >= first_ns))
            continue;
        first = i;
        first_ns = m->end_ns;
    }
    return first;
}

/* Whom it waited for, as long as that one was at the store too and waited for another; the last of
** them. */
static uint32_t follow_meetings(const cd_live *s, uint32_t first)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, first);
    uint64_t at_ns = r->meeting.end_ns;
    uint32_t root = first;
    for (size_t i = 0; i < s->ranks.count; i++) {
        const cd_live_meeting *m = &r->meeting;
        if (!m->has_given_up || m->begin_ns > at_ns || m->is_cut || m->missing < 0) break;
        if (m->end_ns < at_ns) at_ns = m->end_ns;
        root = (uint32_t)m->missing;
        r = cd_ranks_find(&s->ranks, root);
        if (r == NULL) break;
    }
    return root;
}

static void describe_meeting(uint32_t rank, const cd_live_meeting *m, char *text, size_t text_bytes)
{
    if (m->key[0] == '\0' || m->missing == m->host || m->is_cut)
        cd_say(text, text_bytes, "rank %u waits for the store on rank %lld", rank,
               (long long)m->host);
    else
        cd_say(text, text_bytes,
               "rank %u waits for key '%s' of the store on rank %lld, which rank %lld sets", rank,
               m->key, (long long)m->host, (long long)m->missing);
}

static void report_cut(cd_live *s, const cd_live_meeting *m, uint32_t rank, cddp_finding *f)
{
    f->rank = -1;
    f->peer = (int32_t)m->host;
    cd_rank_set both = {0};
    cd_rank_set_add(&both, &s->writer.memory, rank);
    if (m->host >= 0) cd_rank_set_add(&both, &s->writer.memory, (uint32_t)m->host);
    cd_finding_set_ranks(&s->writer, f, &both);
    CD_SAY(f->title,
           "the network between rank %u and the store on rank %lld stays cut, and rank %u gives up",
           rank, (long long)m->host, rank);
    CD_SAY(f->expected, "what they send reaches each other in one of %lld attempts",
           (long long)m->attempts);
    CD_SAY(
        f->advice,
        "look at the network between the two: neither has failed; or let the rank try for longer");
}

/* The root was not at the store when it was waited for there, or it served the store and did so no
** more. */
static void report_absent(cd_live *s, uint32_t first, uint32_t root, cddp_finding *f)
{
    const cd_live_rank *r = cd_ranks_find(&s->ranks, root),
                       *waiter = cd_ranks_find(&s->ranks, first);
    const bool serves = waiter->meeting.host == (int64_t)root;
    const bool has_come =
        r != NULL && r->meeting.has_come && r->meeting.begin_ns > waiter->meeting.end_ns;
    const bool is_late = has_come && r->meeting.first_ns > waiter->meeting.end_ns;
    char did[120] = "never spoke";
    if (is_late)
        CD_SAY(did, "came %llu ms after the run began, when rank %u had given up",
               (unsigned long long)(r->meeting.first_ns / 1000000), first);
    else if (has_come)
        CD_SAY(did, "was between two attempts when rank %u gave up", first);
    else if (r != NULL && r->has_ended)
        cd_live_describe_end(r, did, sizeof did);
    f->rank = (int32_t)root;
    cd_finding_set_rank(&s->writer, f, root);
    f->peer = (int32_t)first;
    if (serves)
        CD_SAY(f->title, "rank %u, which serves the rendezvous store, %s: rank %u meets nobody",
               root, did, first);
    else
        CD_SAY(f->title, "rank %u does not meet the others at the rendezvous store: it %s", root,
               did);
    CD_SAY(f->actual, "rank %u %s", root, did);
    if (r != NULL && r->has_ended) cd_finding_add_event(f, root, r->end_sequence);
    CD_SAY(f->advice,
           serves ? "the store must live as long as somebody may need it: let it run apart from "
                    "the ranks, or start anew on another host"
                  : "a longer time-out or more attempts let a late rank in; see what kept it");
}

void cd_live_report_meeting(cd_live *s, uint32_t first)
{
    const uint32_t root = follow_meetings(s, first);
    const cd_live_rank *waiter = cd_ranks_find(&s->ranks, first),
                       *r = cd_ranks_find(&s->ranks, root);
    cddp_event at = {.rank = first,
                     .step = waiter->step,
                     .micro_step = waiter->micro_step,
                     .sequence = waiter->meeting.sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    describe_meeting(first, &waiter->meeting, f.actual, sizeof f.actual);
    CD_SAY(f.expected, "%s", f.actual);
    if (r != NULL && r->meeting.has_given_up && r->meeting.is_cut)
        report_cut(s, &r->meeting, root, &f);
    else
        report_absent(s, first, root, &f);
    cd_writer_report(&s->writer, &f);
}
