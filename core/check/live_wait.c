/* SPDX-License-Identifier: Apache-2.0 */
/* Every wait that has not ended, with those who keep it. See live.h. */
#include "core/check/live.h"

#include "cddp/backend.h"

/* The members that have not posted what `r` waits for, as far as their records reach. */
static void add_absent(cd_live *s, const cd_live_rank *r, cd_rank_set *peers)
{
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (key->part[0] == r->waiting_group && m->posted <= r->waiting_sequence &&
            !cd_live_is_lost(cd_ranks_find(&s->ranks, (uint32_t)key->part[1])))
            cd_rank_set_add(peers, &s->writer.memory, (uint32_t)key->part[1]);
    }
}

static void add_one(cd_live *s, cd_rank_set *peers, int64_t rank)
{
    if (rank >= 0) cd_rank_set_add(peers, &s->writer.memory, (uint32_t)rank);
}

/* A planted hang of `r` that ended before anybody gave up: it kept nobody waiting. */
static bool is_over(const cd_live *s, const cd_live_rank *r)
{
    for (uint32_t i = 0; r->kept_until_ns != 0 && i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        if (x->has_given_up && x->given_up_ns < r->kept_until_ns) return false;
    }
    return r->kept_until_ns != 0;
}

/* A member that went away in what all have posted, or that a fault keeps there. */
static bool is_out(const cd_live *s, const cd_live_rank *x)
{
    const bool is_kept = x->is_struck && x->kept_until_ns != 0 && !is_over(s, x);
    return is_kept || (cd_live_is_gone(x) && !x->is_waiting);
}

/* All members that a fault put out; of others the first: those behind it may have ended for its
** sake. A struck rank that gave up its own wait is waited for by nobody. false: there is none. */
static bool add_out(cd_live *s, uint32_t rank, const cd_live_rank *r, cd_rank_set *peers)
{
    int64_t gone = -1, struck = -1;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        if (i == rank || cd_table_find(&s->members, CD_KEY(r->waiting_group, i)) == NULL) continue;
        if (x->is_struck && struck < 0 && !x->has_given_up) struck = i;
        if (!is_out(s, x)) continue;
        if (x->is_struck)
            add_one(s, peers, i);
        else if (gone < 0)
            gone = i;
    }
    if (cd_rank_set_count(peers) == 0)
        add_one(s, peers,
                gone >= 0                      ? gone
                : cd_live_find_late(s, r) >= 0 ? cd_live_find_late(s, r)
                                               : struck);
    return cd_rank_set_count(peers) > 0;
}

/* Where all have posted what `r` waits for: who keeps it from its end; nobody: that is not
** known. */
static void add_inside(cd_live *s, uint32_t rank, const cd_live_rank *r, cd_rank_set *peers)
{
    const int64_t itself = cd_live_find_itself(s, r), reported = r->reported_inside - 1;
    if (itself >= 0)
        add_one(s, peers, itself);
    else if (reported >= 0 && reported != (int64_t)rank)
        add_one(s, peers, reported);
    else if (!add_out(s, rank, r, peers) && cd_live_find_stopped(s, r) != (int64_t)rank)
        add_one(s, peers, cd_live_find_stopped(s, r));
}

/* An operation as `rank` posted it: of a message the other side is known. */
static int64_t op_of(const cd_live_operation *o, uint32_t rank)
{
    if (o == NULL) return -1;
    const cd_live_posted *p = cd_live_posted_by(o, rank);
    const bool is_other = p->reporter != (int64_t)rank + 1;
    if (is_other && p->data[0] == CDDP_OP_SEND) return CDDP_OP_RECV;
    return is_other && p->data[0] == CDDP_OP_RECV ? CDDP_OP_SEND : p->data[0];
}

/* What differs between ranks, or is refused, is no wait, although the operation failed. */
bool cd_live_is_wait(const cd_live *s, const cd_live_rank *r)
{
    const cd_live_meeting *m = &r->meeting;
    /* At the store: who came when others had given up, or was cut off, kept them waiting. */
    if (m->has_given_up) {
        const int64_t first = cd_live_first_to_give_up(s);
        const cd_live_rank *x = first >= 0 ? cd_ranks_find(&s->ranks, (uint32_t)first) : r;
        return m->missing >= 0 && !m->is_cut && m->begin_ns <= x->meeting.end_ns;
    }
    if (r->has_given_up)
        return r->wait_status == CDDP_E_TIMEOUT || r->wait_status == CDDP_E_BACKEND ||
               r->wait_status == CDDP_E_IO;
    if (r->aborter > 0 && r->end == 0) return r->status != CDDP_OK;
    return r->end == 2 && (r->is_waiting || r->reported_peer > 0);
}

void cd_live_report_wait(cd_live *s, uint32_t rank, const cd_live_rank *r)
{
    cd_rank_set peers = {0}, lost = {0};
    uint32_t absent = 0;
    cddp_wait wait = {.size = sizeof wait,
                      .rank = rank,
                      .step = r->step,
                      .status = r->has_given_up  ? (cddp_status)r->wait_status
                                : r->aborter > 0 ? CDDP_E_ABORTED
                                                 : CDDP_OK,
                      .group = -1,
                      .sequence = -1,
                      .op = -1,
                      .bucket = -1,
                      .name = ""};
    if (r->meeting.has_given_up) {
        wait.status = CDDP_E_TIMEOUT;
        add_one(s, &peers, r->meeting.missing);
    } else if (!r->is_waiting && !r->has_given_up && r->aborter == 0) {
        add_one(s, &peers, r->reported_peer - 1);
    } else {
        const cd_live_operation *o =
            cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
        const cd_live_member *own = cd_table_find(&s->members, CD_KEY(r->waiting_group, rank));
        wait.group = r->waiting_group;
        wait.sequence = r->waiting_sequence;
        wait.name = cd_writer_get_group(&s->writer, r->waiting_group);
        /* of several that posted something else under this number only the first is kept */
        wait.op =
            own != NULL && own->posted == r->waiting_sequence + 1 ? own->last_op : op_of(o, rank);
        if (o != NULL) wait.bucket = cd_live_posted_by(o, rank)->bucket;
        const int64_t dead = cd_live_has_lost(r) ? cd_live_find_dead(s, r) : -1;
        if (dead >= 0 && cd_live_find_missing(s, r) == dead)
            add_one(s, &peers, dead);
        else
            add_absent(s, r, &peers);
        wait.is_inside =
            cd_rank_set_count(&peers) == 0 && !cd_live_is_unknown(s, r, &lost, &absent);
        if (wait.is_inside && r->aborter > 0)
            add_one(s, &peers, r->aborter - 1);
        else if (wait.is_inside)
            add_inside(s, rank, r, &peers);
        if (wait.is_inside && cd_rank_set_count(&peers) == 1)
            wait.late_ns = cd_live_lateness(s, r, cd_rank_set_next(&peers, 0));
    }
    wait.peer_count = cd_rank_set_count(&peers);
    /* Lost or broken, with everybody there: the transport failed, and nobody is waited for. Nor by
    ** a rank that a fault kept from coming in time. */
    if (r->has_given_up && wait.is_inside &&
        ((r->is_struck && !is_over(s, r)) || (wait.peer_count == 0 && !r->has_timed_out)))
        return;
    uint32_t *list = cd_arena_push(&s->writer.memory, (wait.peer_count + 1) * sizeof *list);
    if (list == NULL) return;
    wait.peers = list;
    for (uint32_t p = cd_rank_set_next(&peers, 0); p != CD_NO_RANK;
         p = cd_rank_set_next(&peers, p + 1))
        *list++ = p;
    s->writer.context.wait(s->writer.context.reporter, &wait);
}
