/* SPDX-License-Identifier: Apache-2.0 */
/* I-LIVE: no rank waits forever. When one does, the chain of who waits for whom is followed to its
** root or its cycle.
**
** Judged from   group (members), collective_post, collective_wait, collective_done and rank_end: a
**               rank that hung, whose wait timed out, or whose wait failed because a peer had
**               returned or died without it, waits for the members of that group that have not
**               posted the operation; or, when all have, for one that stopped inside it; or for one
**               whose message names itself. store_wait, store_done: a rank that gave up meeting the
**               others at the rendezvous store waited for who sets the key that it asked for, or
**               for the store's host. waiting_for: for whom the world says that a rank waits, where
**               it opens a group. group_abort: who ended the operations of others.
**               Of an operation that all have posted: whether they posted the same one, and whether
**               one came when another had given up (join_notify: a rank without inputs takes no
**               steps).
**               A rank that waits, in a continuation of an operation, for one that it posted
**               there (cause) keeps the thread that completes operations.
**               Livelock: a rank posts more collectives between two forwards or backwards than
**               its buckets, buffers, control messages and peers can explain (repeats_allowed), and
**               its world says that it never came back. A record that merely stops inside a loop is
**               no livelock: nobody knows how long the loop would have been. A joined rank that
**               shadows more passes than other ranks begin makes none. A mark of the world: it
**               ended ranks that went on without end (core/run/bound.h).
**               A member whose record is missing, or stops before the rank ended, may have posted
**               anything: it is never the one that did not come.
** Exercised     a wait of at least two ranks was followed and every rank's end is known.
** Blame         who posted another operation under a number than several others, with whom it
**               waits; who posted it after the time-out of another; else
**               the rank at the root of the chain, with what it did instead; where most members
**               returned well without an operation that no plan says is due, the rank that waits in
**               it, which differs from them; where the root waits
**               inside an operation that all have posted, the one that stopped inside, or all
**               members where each of them hangs there; of a
**               message, the one that names itself as its other side, or both where both have
**               the same side; in a cycle all ranks on it.
**               A rank that gave up because another had stopped is not the culprit. Where a fault
**               of the network parts the ranks for good, nobody is: both sides are named, and who
**               waits for whom. At the store: the rank at the root of the chain of the first that
**               gave up, as things were at that time, or the network between it and the host.
** Limits        who came late is said by the clock of the record: its hosts must agree to less than
**               the time-out. A rank that still waited when the run was interrupted may be
**               innocent: only waits that timed out before are judged. A time-out of a collective
**               that a planted fault explains belongs to I-FAIL. A rank that waits outside a
**               collective and outside the rendezvous (teardown) is reported without a chain.
*/
#include "core/check/call.h"
#include "core/check/live.h"

#include "cddp/backend.h"
#include "core/trace/rank_end.h"

#include <string.h>

static bool keeps_operation(void *self, const cd_key *key, const void *value);

static bool keeps_continuation(void *self, const cd_key *key, const void *value)
{
    const cd_live_continuation *x = value;
    (void)self, (void)key;
    return !x->is_done;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-LIVE", sizeof(cd_live)}, self, err);
    if (status != CDDP_OK) return status;
    cd_live *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(cd_live_rank));
    cd_table_init(&s->members, context->allocator, sizeof(cd_live_member));
    cd_table_init(&s->operations, context->allocator, sizeof(cd_live_operation));
    cd_circles_init(&s->circles, context->allocator);
    cd_table_init(&s->continuations, context->allocator, sizeof(cd_live_continuation));
    cd_table_init(&s->aborts, context->allocator, sizeof(int64_t));
    cd_writer_set_window(&s->writer, &s->operations, keeps_operation);
    cd_writer_set_window(&s->writer, &s->continuations, keeps_continuation);
    return CDDP_OK;
}

static bool is_message(int64_t op) { return op == CDDP_OP_SEND || op == CDDP_OP_RECV; }

/* Some member has not posted it, or posted another one. Messages concern two members only. */
static bool keeps_operation(void *self, const cd_key *key, const void *value)
{
    const cd_live *s = self;
    const cd_live_operation *o = value;
    cddp_fact_group group;
    if (o->other.reporter != 0) return true;
    return !is_message(o->first.data[0]) &&
           !(cd_writer_find_group(&s->writer, key->part[0], &group) &&
             (int64_t)o->first.count >= group.members);
}

/* Both send to each other, or both receive from each other. */
bool cd_live_is_same_side(const cd_live_posted *a, const cd_live_posted *b)
{
    return is_message(a->data[0]) && a->data[0] == b->data[0] && a->data[2] == b->index &&
           b->data[2] == a->index;
}

static bool is_same_post(const cd_live_posted *a, const cd_live_posted *b)
{
    if (is_message(a->data[0]) && is_message(b->data[0])) return !cd_live_is_same_side(a, b);
    for (size_t i = 0; i < 4; i++)
        if (a->data[i] != b->data[i]) return false;
    return (a->data[0] == CDDP_OP_BARRIER || a->data[4] == b->data[4]) &&
           (a->step < 0 || b->step < 0 || a->step == b->step);
}

/* Of two that are the same: as the least rank posted it. */
static void join_posts(cd_live_posted *all, const cd_live_posted *one)
{
    const uint32_t count = all->count + one->count;
    if (all->reporter == 0 || one->reporter < all->reporter) *all = *one;
    all->count = count;
}

static void take_operation(cd_live_operation *o, const cd_live_posted *now, const cddp_event *e)
{
    if (o->first.reporter == 0 || is_same_post(&o->first, now))
        join_posts(&o->first, now);
    else
        join_posts(&o->other, now);
    if (o->other.reporter != 0 && o->other.reporter < o->first.reporter) {
        const cd_live_posted first = o->first;
        o->first = o->other;
        o->other = first;
    }
    if (e->time_ns < o->last_ns) return;
    o->last_ns = e->time_ns;
    o->last_rank = e->rank;
}

static void take_post(cd_live *s, const cddp_event *e, const cd_live_rank *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    const bool is_of_step = c->bucket >= 0 && !r->is_shadow;
    cd_live_member *m = cd_table_add(&s->members, CD_KEY(c->group, e->rank));
    cd_live_operation *o = cd_table_add(&s->operations, CD_KEY(c->group, c->sequence));
    if (m != NULL && c->sequence + 1 > m->posted) {
        m->posted = c->sequence + 1;
        m->last_op = c->op;
    }
    if (m != NULL && is_message(c->op)) m->has_messages = true;
    if (m != NULL && m->is_open && is_message(c->op) && c->root == m->index) {
        m->to_itself = c->sequence + 1;
        m->itself_sequence = e->sequence;
    }
    if (o != NULL)
        take_operation(o,
                       &(cd_live_posted){{c->op, c->reduce_op, c->root, c->dtype, c->numel},
                                         c->bucket,
                                         is_of_step ? (int64_t)e->step : -1,
                                         (int64_t)e->rank + 1,
                                         1,
                                         m != NULL ? m->index : -1},
                       e);
}

static void take_continuation(cd_live *s, const cddp_event *e, cd_live_rank *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    cd_live_continuation *x =
        r->cause != 0 ? cd_table_add(&s->continuations, CD_KEY(c->group, c->sequence, e->rank))
                      : NULL;
    if (x != NULL) *x = (cd_live_continuation){.cause = r->cause - 1};
    r->cause = 0;
}

static void follow_continuation(cd_live *s, const cddp_event *e, int64_t group, int64_t sequence)
{
    cd_live_continuation *x = cd_table_find(&s->continuations, CD_KEY(group, sequence, e->rank));
    if (x == NULL) return;
    x->is_done |= e->kind == CDDP_EV_collective_done;
    x->is_waited_for |= e->kind == CDDP_EV_collective_wait;
}

#define LIVELOCK_GAPS_MAX 4u /* times between two posts that may pass before its end */

/* What it repeats most: an operation, in one pass or in one micro-step; passes; or steps. */
static void describe_repeats(cd_live *s, uint32_t rank, const cd_circle *r, cddp_finding *f)
{
    const bool in_passes = !r->is_over;
    const cd_repeats *most = cd_circles_most(&s->circles, rank, in_passes);
    char words[96] = "";
    const uint64_t count = most == NULL ? 0 : in_passes ? most->count_in_place : most->count;
    if (most != NULL) cd_operation_print(most->data, words, sizeof words);
    if (count > 1) {
        f->bucket = (int32_t)most->bucket;
        CD_SAY(f->title, "rank %u goes round in circles: it posts %s %llu times in one micro-step",
               rank, words, (unsigned long long)count);
        CD_SAY(f->advice, "look at what should end the loop that posts it in group '%s'",
               cd_writer_get_group(&s->writer, most->group));
        return;
    }
    CD_SAY(f->title, "rank %u goes round in circles: it goes on without end in step %u", rank,
           r->step);
    CD_SAY(f->advice, "look at what should end its loop: over steps, passes or events");
}

static void report_livelock(cd_live *s, uint32_t rank, const cd_circle *r)
{
    const cddp_event here = {.rank = rank, .step = r->step, .micro_step = r->micro_step};
    const cddp_event *e = r->is_over || r->has_passed_often ? &r->too_many : &here;
    if (!cd_writer_is_first(&s->writer, CD_KEY(1), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    describe_repeats(s, rank, r, &f);
    if (r->not_counted > 0)
        CD_SAY(f.expected, "a joined rank shadows one pass for each that another rank begins");
    else
        CD_SAY(f.expected,
               "at most %llu collectives between two passes: %lld parameters, %lld buffers, "
               "%llu ranks",
               (unsigned long long)cd_circles_allowed(&s->circles),
               (long long)s->circles.parameters, (long long)s->circles.buffers,
               (unsigned long long)s->ranks.count);
    if (r->not_counted > 0)
        CD_SAY(f.actual,
               "%llu, and it goes on: as a joined rank it shadowed %llu passes that no rank began",
               (unsigned long long)r->posts, (unsigned long long)r->not_counted);
    else if (r->has_passed_often)
        CD_SAY(f.actual, "%llu passes in one micro-step, and it goes on",
               (unsigned long long)r->passes);
    else
        CD_SAY(f.actual, "%llu, and it goes on", (unsigned long long)r->posts);
    cd_writer_hold(&s->writer, CD_KEY(1), &f);
}

static void take_abort(cd_live *s, const cddp_event *e)
{
    int64_t *aborter = cd_table_add(&s->aborts, CD_KEY(e->as.group_abort.group));
    if (aborter != NULL && *aborter == 0) *aborter = (int64_t)e->rank + 1;
}

/* Another rank aborted the group under an operation of this one. */
static void take_aborted(cd_live *s, const cddp_event *e, cd_live_rank *r)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    const int64_t *aborter = cd_table_find(&s->aborts, CD_KEY(d->group));
    if (r->aborter != 0 || r->has_given_up || aborter == NULL || *aborter == (int64_t)e->rank + 1)
        return;
    r->aborter = *aborter;
    r->waiting_group = d->group;
    r->waiting_sequence = d->sequence;
    r->wait_sequence = e->sequence;
}

static void take_done(cd_live *s, const cddp_event *e, cd_live_rank *r)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    bool awaited =
        r->is_waiting && r->waiting_group == d->group && r->waiting_sequence == d->sequence;
    if (d->status != CDDP_OK && d->status != CDDP_E_ABORTED) {
        r->has_given_up = true;
        r->has_timed_out = d->status == CDDP_E_TIMEOUT;
        r->wait_status = d->status;
        r->given_up_ns = e->time_ns;
        r->waiting_group = d->group;
        r->waiting_sequence = d->sequence;
        r->wait_sequence = e->sequence;
    } else if (awaited && !r->has_given_up) {
        r->is_waiting = false;
        if (d->status == CDDP_OK) s->waits++;
    }
    if (d->status == CDDP_E_ABORTED) take_aborted(s, e, r);
}

static void take_wait(const cddp_event *e, cd_live_rank *r)
{
    if (r->has_given_up) return;
    r->aborter = 0;
    r->is_waiting = true;
    r->waiting_group = e->as.collective_wait.group;
    r->waiting_sequence = e->as.collective_wait.sequence;
    r->wait_sequence = e->sequence;
}

static void take_store_wait(const cddp_event *e, cd_live_meeting *m)
{
    if (e->as.store_wait.peer >= 0) CD_SAY(m->key, "%s", e->text != NULL ? e->text : "");
}

static void take_store_done(const cddp_event *e, cd_live_meeting *m)
{
    const cddp_event_store_done *d = &e->as.store_done;
    m->has_given_up = d->status != CDDP_OK && d->is_last;
    m->end_ns = e->time_ns;
    m->begin_ns = d->duration >= 0 && (uint64_t)d->duration <= e->time_ns
                      ? e->time_ns - (uint64_t)d->duration
                      : 0;
    if (!m->has_come || m->begin_ns < m->first_ns) m->first_ns = m->begin_ns;
    m->has_come = true;
    m->sequence = e->sequence;
    m->host = d->host;
    m->missing = d->peer;
    m->attempts = d->attempt;
    m->is_cut = d->is_cut;
}

static void take_edge(cd_live *s, const cddp_event *e)
{
    const cddp_event_waiting_for *w = &e->as.waiting_for;
    /* a rank that gives up reports the rest in another event */
    if (e->rank != UINT32_MAX) return;
    const bool is_edge =
        w->who >= 0 && w->who < CD_RANKS_MAX && w->peer >= 0 && w->peer < CD_RANKS_MAX;
    cd_live_rank *r = is_edge ? cd_ranks_add(&s->ranks, (uint32_t)w->who) : NULL;
    int64_t *reported = r == NULL         ? NULL
                        : w->sequence < 0 ? &r->reported_peer
                                          : &r->reported_inside;
    if (reported != NULL && (*reported == 0 || w->peer + 1 < *reported)) *reported = w->peer + 1;
    const size_t used = strlen(s->edges);
    if (w->who < 0 || w->peer < 0 || used + 40 > sizeof s->edges) return;
    cd_say(s->edges + used, sizeof s->edges - used, "%srank %lld waits for rank %lld",
           used > 0 ? ", " : "", (long long)w->who, (long long)w->peer);
}

/* Such a fault keeps no rank from coming. */
static bool spoils_data(int64_t kind)
{
    return kind == CDDP_FAULT_BIT_FLIP || kind == CDDP_FAULT_NAN ||
           kind == CDDP_FAULT_CHUNK_CORRUPT;
}

static void event(void *self, const cddp_event *e)
{
    cd_live *s = self;
    if (e->kind == CDDP_EV_fault) {
        s->has_fault = true;
        const bool is_network = e->as.fault.target < 0 || e->as.fault.kind == CDDP_FAULT_LINK_CUT;
        cd_live_rank *struck =
            is_network ? NULL : cd_ranks_add(&s->ranks, (uint32_t)e->as.fault.target);
        if (struck != NULL && !spoils_data(e->as.fault.kind)) struck->is_struck = true;
        if (struck != NULL && e->as.fault.kind == CDDP_FAULT_HANG && e->as.fault.duration > 0) {
            struck->kept_from_ns = e->time_ns;
            struck->kept_until_ns = e->time_ns + (uint64_t)e->as.fault.duration;
        }
        if (struck == NULL && e->as.fault.duration == 0 && s->parted[0] == '\0') {
            CD_SAY(s->parted, "%s", e->text != NULL ? e->text : "the network parts");
            s->parted_sequence = e->sequence;
        }
        return;
    }
    if (e->kind == CDDP_EV_waiting_for) {
        take_edge(s, e);
        return;
    }
    if (e->kind == CDDP_EV_mark && e->rank >= CD_RANKS_MAX) {
        if (e->text != NULL && strcmp(e->text, CD_RANK_ENDLESS) == 0)
            s->endless = e->as.mark.value + 1;
        return;
    }
    cd_live_rank *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    r->is_known = true;
    cd_circles_push(&s->circles, e);
    if (e->kind != CDDP_EV_rank_end) {
        r->step = e->step;
        r->micro_step = e->micro_step;
    }
    switch (e->kind) {
    case CDDP_EV_group: {
        cd_live_member *m = cd_table_add(&s->members, CD_KEY(e->as.group.group, e->rank));
        if (m != NULL) m->is_open = true;
        if (m != NULL) m->index = e->as.group.group_rank;
        if (m != NULL && e->as.group.members == 2) m->digest = e->as.group.members_digest;
        break;
    }
    case CDDP_EV_hook_call:
        CD_SAY(r->hook, "%s", e->text != NULL ? e->text : "");
        r->hook_bucket = e->as.hook_call.bucket;
        break;
    case CDDP_EV_hook_done:
        r->hook[0] = '\0';
        break;
    case CDDP_EV_cause:
        r->cause = e->as.cause.sequence + 1;
        break;
    case CDDP_EV_collective_post:
        r->hook[0] = '\0';
        r->aborter = 0; /* it goes on */
        take_post(s, e, r);
        take_continuation(s, e, r);
        break;
    case CDDP_EV_collective_wait:
        take_wait(e, r);
        follow_continuation(s, e, e->as.collective_wait.group, e->as.collective_wait.sequence);
        break;
    case CDDP_EV_collective_done:
        take_done(s, e, r);
        follow_continuation(s, e, e->as.collective_done.group, e->as.collective_done.sequence);
        break;
    case CDDP_EV_group_abort:
        take_abort(s, e);
        break;
    case CDDP_EV_join_notify:
        r->is_shadow = !e->as.join_notify.active;
        break;
    case CDDP_EV_store_wait:
        take_store_wait(e, &r->meeting);
        break;
    case CDDP_EV_store_done:
        take_store_done(e, &r->meeting);
        break;
    case CDDP_EV_rank_end:
        r->has_ended = true;
        if (e->step > r->step) r->step = e->step; /* where a recording stops */
        r->end = e->as.rank_end.end;
        r->how = cd_rank_end_words(r->end, e->as.rank_end.detail, e->text);
        r->status = e->as.rank_end.status;
        r->end_sequence = e->sequence;
        r->end_ns = e->time_ns;
        if (r->end != 0) cd_call_take(e->text, r->call, sizeof r->call);
        if (r->end == 0) CD_SAY(r->error, "%s", e->text != NULL ? e->text : "");
        break;
    default:
        break;
    }
}

/* It posts faster than the time since its last post lets one say that it stopped. */
static bool is_posting(const cd_circle *c, const cd_live_rank *r)
{
    const uint64_t took_ns = c->post_ns - c->begin_ns;
    return r->end_ns >= c->post_ns &&
           r->end_ns - c->post_ns <= LIVELOCK_GAPS_MAX * (took_ns / c->posts);
}

/* Where the world ended them for that: the first rank that went too far in any way, and each that
** is past what a check may know. Else those alone that posted too much. */
static const cd_circle *find_circle(const cd_live *s, uint32_t rank)
{
    const cd_circle *r = s->endless > 0 ? cd_circles_find_now(&s->circles, rank)
                                        : cd_circles_find(&s->circles, rank);
    if (r == NULL && s->endless == (int64_t)rank + 1) return cd_ranks_find(&s->circles.ranks, rank);
    return r;
}

/* A loop that ended was long, no livelock: the rank came to its next pass, or returned. So was one
** that something else ended: the rank or a peer died or hangs elsewhere, a wait failed, or the
** record stops. What is left are ranks that post on and on until their world gives up. */
static bool goes_round(cd_live *s, uint32_t rank, const cd_live_rank *r)
{
    const cd_circle *own = find_circle(s, rank);
    if (own == NULL || !r->has_ended || r->end != CDDP_RANK_HUNG) return false;
    if (s->endless > 0) return true;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        if (x->is_known && (!x->has_ended || x->end != CDDP_RANK_HUNG || x->has_given_up))
            return false;
    }
    const cd_live_chain c = cd_live_follow(s, rank);
    const cd_live_rank *root = cd_ranks_find(&s->ranks, c.root);
    const cd_circle *other = cd_circles_find(&s->circles, c.root);
    return !s->has_fault && !c.is_cycle && root != NULL && other != NULL && root->call[0] == '\0' &&
           is_posting(own, r) && is_posting(other, root);
}

/* Who never came to an exchange of messages has no group of it: the other one names it. */
static void add_other(cd_live *s, int64_t id)
{
    uint32_t other = CD_NO_RANK;
    int64_t index = 0;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const cd_live_member *m = cd_table_value(&s->members, i);
        if (key->part[0] != id || !m->has_messages || m->digest == 0) continue;
        other = cd_rank_find_other((uint64_t)m->digest, (uint32_t)key->part[1], m->index,
                                   (uint32_t)s->ranks.count);
        index = 1 - m->index;
    }
    if (other == CD_NO_RANK || cd_table_find(&s->members, CD_KEY(id, other)) != NULL) return;
    cd_live_member *m = cd_table_add(&s->members, CD_KEY(id, other));
    if (m != NULL) m->index = index;
}

/* Ranks that ended before they opened the group of all ranks, as their records show to the end:
** they are its members that posted nothing. */
static void add_members(cd_live *s, int64_t id)
{
    cddp_fact_group group;
    add_other(s, id);
    if (!cd_writer_find_group(&s->writer, id, &group) || group.members != (int64_t)s->ranks.count)
        return;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *x = cd_ranks_find(&s->ranks, i);
        if (!x->is_known || !x->has_ended) continue;
        (void)cd_table_add(&s->members, CD_KEY(id, i));
    }
}

static void end(void *self)
{
    cd_live *s = self;
    if (s == NULL) return;
    uint32_t known = 0, ended = 0;
    int64_t stuck = -1;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *r = cd_ranks_find(&s->ranks, i);
        known += r->is_known;
        ended += r->is_known && r->has_ended;
        if (stuck < 0 && cd_live_is_stuck(r)) stuck = i;
        if (r->is_waiting || r->has_given_up) add_members(s, r->waiting_group);
    }
    /* A rank that lost a peer that had given up failed second. A rank that gave up waiting
    ** names the peer it waited for. */
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *r = cd_ranks_find(&s->ranks, i);
        if (!cd_live_is_stuck(r) ||
            !(r->end == 2 || r->has_timed_out || cd_live_find_itself(s, r) >= 0))
            continue;
        stuck = i;
        break;
    }
    if (known > 1 && ended == known && s->waits > 1)
        cd_writer_exercise(&s->writer, "%llu waits ended and the end of all %u ranks is known",
                           (unsigned long long)s->waits, known);
    /* One finding: a rank that waits for a stuck rank is stuck for the same reason, and no
    ** rank waits for one that met nobody. */
    const int64_t alone = cd_live_first_to_give_up(s);
    if (alone >= 0)
        cd_live_report_meeting(s, (uint32_t)alone);
    else if (s->endless == 0 && stuck >= 0 &&
             !goes_round(s, (uint32_t)stuck, cd_ranks_find(&s->ranks, (uint32_t)stuck)))
        cd_live_report(s, (uint32_t)stuck);
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const cd_live_rank *r = cd_ranks_find(&s->ranks, i);
        if (r->is_known && cd_live_is_wait(s, r)) cd_live_report_wait(s, i, r);
        if (goes_round(s, i, r)) report_livelock(s, i, find_circle(s, i));
    }
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->members);
    cd_table_fini(&s->operations);
    cd_circles_fini(&s->circles);
    cd_table_fini(&s->continuations);
    cd_table_fini(&s->aborts);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_group,      CDDP_EV_collective_post, CDDP_EV_collective_wait, CDDP_EV_collective_done,
    CDDP_EV_rank_end,   CDDP_EV_fault,           CDDP_EV_waiting_for,     CDDP_EV_store_wait,
    CDDP_EV_store_done, CDDP_EV_forward_begin,   CDDP_EV_backward_begin,  CDDP_EV_param,
    CDDP_EV_mark,       CDDP_EV_buffer,          CDDP_EV_cause,           CDDP_EV_join_notify,
    CDDP_EV_hook_call,  CDDP_EV_hook_done,       CDDP_EV_group_abort};

CD_CHECK_TABLE(live, "I-LIVE", "no rank waits forever",
               "Under a fair schedule and bounded in-flight slots no rank waits forever; the "
               "wait-for graph is acyclic.");
