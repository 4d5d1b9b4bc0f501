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
#include "core/check/circle.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/trace/rank_end.h"

#include <string.h>

typedef struct member {
    int64_t posted, index;
    int64_t last_op; /* that it posted under the last number */
    /* + 1: the last message that names its own sender or receiver as the other one */
    int64_t to_itself;
    uint64_t itself_sequence; /* of that post */
    int64_t digest;           /* of both members, where there are two */
    bool is_open, has_messages;
} member;

/* A rank at the rendezvous store: its last attempt. */
typedef struct meeting {
    /* when it came; since it waits; when it gave up, and the event that says so */
    uint64_t first_ns, begin_ns, end_ns, sequence;
    int64_t host, missing, attempts;
    bool has_come, has_given_up, is_cut;
    char key[64]; /* that it asked for last */
} meeting;

typedef struct rank_facts {
    int64_t waiting_group, waiting_sequence; /* of the wait that has not ended */
    uint64_t wait_sequence, end_sequence;
    uint32_t step, micro_step; /* of its last event */
    int64_t end, status, wait_status;
    int64_t reported_peer; /* + 1: for whom the world says that it waits outside a collective … */
    int64_t reported_inside; /* + 1: … and inside one */
    meeting meeting;
    bool is_waiting, has_ended, has_given_up, has_timed_out, is_struck, is_known;
    uint64_t end_ns;
    bool is_shadow; /* its inputs ran out: it joins in the others' operations */
    uint64_t given_up_ns;
    uint64_t kept_from_ns, kept_until_ns; /* by a planted hang, which may be behind the post */
    int64_t cause;                        /* + 1: of the operation that it posts next */
    /* of a comm hook that it called and that has not posted or returned since; "": none */
    char hook[48];
    int64_t hook_bucket;
    const char *how; /* it ended, where it did not return */
    char call[96];   /* where it ended, as its world said it: "save of hook x"; "": nobody said */
    int64_t aborter; /* + 1: who aborted the group of the operation that it waited for */
    char error[200]; /* with which it returned; "": without one */
} rank_facts;

/* What some ranks posted under one number, with the least of them. */
typedef struct posted {
    int64_t data[5], bucket;
    int64_t step;     /* of a bucket's operation, else -1: buckets of one step belong together */
    int64_t reporter; /* + 1 */
    uint32_t count;
    int64_t index; /* of the reporter in the group */
} posted;

/* As the least rank posted it, and as others did. When the last came, who may have come too late
** for others. */
typedef struct operation {
    posted first, other;
    uint64_t last_ns;
    uint32_t last_rank;
} operation;

/* An operation that was posted as another one completed. A wait for it occupies the thread on which
** operations complete. */
typedef struct continuation {
    int64_t cause; /* k-th of its group */
    bool is_done, is_waited_for;
} continuation;

typedef struct state {
    cd_writer writer;
    cd_ranks ranks;         /* of rank_facts */
    cd_table members;       /* (group, rank) → member */
    cd_table operations;    /* (group, k) → operation */
    cd_table continuations; /* (group, k, rank) → continuation */
    cd_table aborts;        /* group → the first rank that aborted it, + 1 */
    cd_circles circles;
    uint64_t waits;
    bool has_fault;
    int64_t endless;  /* + 1: the rank whose going on made the world end */
    char parted[160]; /* what a fault of the network itself said; "" without one */
    uint64_t parted_sequence;
    char edges[200]; /* "rank 1 waits for rank 2, …", as the world reported them */
} state;

static bool keeps_operation(void *self, const cd_key *key, const void *value);

static bool keeps_continuation(void *self, const cd_key *key, const void *value)
{
    const continuation *x = value;
    (void)self, (void)key;
    return !x->is_done;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-LIVE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->members, context->allocator, sizeof(member));
    cd_table_init(&s->operations, context->allocator, sizeof(operation));
    cd_circles_init(&s->circles, context->allocator);
    cd_table_init(&s->continuations, context->allocator, sizeof(continuation));
    cd_table_init(&s->aborts, context->allocator, sizeof(int64_t));
    cd_writer_set_window(&s->writer, &s->operations, keeps_operation);
    cd_writer_set_window(&s->writer, &s->continuations, keeps_continuation);
    return CDDP_OK;
}

static bool is_message(int64_t op) { return op == CDDP_OP_SEND || op == CDDP_OP_RECV; }

/* Some member has not posted it, or posted another one. Messages concern two members only. */
static bool keeps_operation(void *self, const cd_key *key, const void *value)
{
    const state *s = self;
    const operation *o = value;
    cddp_fact_group group;
    if (o->other.reporter != 0) return true;
    return !is_message(o->first.data[0]) &&
           !(cd_writer_find_group(&s->writer, key->part[0], &group) &&
             (int64_t)o->first.count >= group.members);
}

/* Both send to each other, or both receive from each other. */
static bool is_same_side(const posted *a, const posted *b)
{
    return is_message(a->data[0]) && a->data[0] == b->data[0] && a->data[2] == b->index &&
           b->data[2] == a->index;
}

static bool is_same_post(const posted *a, const posted *b)
{
    if (is_message(a->data[0]) && is_message(b->data[0])) return !is_same_side(a, b);
    for (size_t i = 0; i < 4; i++)
        if (a->data[i] != b->data[i]) return false;
    return (a->data[0] == CDDP_OP_BARRIER || a->data[4] == b->data[4]) &&
           (a->step < 0 || b->step < 0 || a->step == b->step);
}

/* Of two that are the same: as the least rank posted it. */
static void join_posts(posted *all, const posted *one)
{
    const uint32_t count = all->count + one->count;
    if (all->reporter == 0 || one->reporter < all->reporter) *all = *one;
    all->count = count;
}

static void take_operation(operation *o, const posted *now, const cddp_event *e)
{
    if (o->first.reporter == 0 || is_same_post(&o->first, now))
        join_posts(&o->first, now);
    else
        join_posts(&o->other, now);
    if (o->other.reporter != 0 && o->other.reporter < o->first.reporter) {
        const posted first = o->first;
        o->first = o->other;
        o->other = first;
    }
    if (e->time_ns < o->last_ns) return;
    o->last_ns = e->time_ns;
    o->last_rank = e->rank;
}

static void take_post(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    const bool is_of_step = c->bucket >= 0 && !r->is_shadow;
    member *m = cd_table_add(&s->members, CD_KEY(c->group, e->rank));
    operation *o = cd_table_add(&s->operations, CD_KEY(c->group, c->sequence));
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
                       &(posted){{c->op, c->reduce_op, c->root, c->dtype, c->numel},
                                 c->bucket,
                                 is_of_step ? (int64_t)e->step : -1,
                                 (int64_t)e->rank + 1,
                                 1,
                                 m != NULL ? m->index : -1},
                       e);
}

static void take_continuation(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    continuation *x = r->cause != 0
                          ? cd_table_add(&s->continuations, CD_KEY(c->group, c->sequence, e->rank))
                          : NULL;
    if (x != NULL) *x = (continuation){.cause = r->cause - 1};
    r->cause = 0;
}

static void follow_continuation(state *s, const cddp_event *e, int64_t group, int64_t sequence)
{
    continuation *x = cd_table_find(&s->continuations, CD_KEY(group, sequence, e->rank));
    if (x == NULL) return;
    x->is_done |= e->kind == CDDP_EV_collective_done;
    x->is_waited_for |= e->kind == CDDP_EV_collective_wait;
}

#define LIVELOCK_GAPS_MAX 4u /* times between two posts that may pass before its end */

/* What it repeats most: an operation, in one pass or in one micro-step; passes; or steps. */
static void describe_repeats(state *s, uint32_t rank, const cd_circle *r, cddp_finding *f)
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

static void report_livelock(state *s, uint32_t rank, const cd_circle *r)
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

static void take_abort(state *s, const cddp_event *e)
{
    int64_t *aborter = cd_table_add(&s->aborts, CD_KEY(e->as.group_abort.group));
    if (aborter != NULL && *aborter == 0) *aborter = (int64_t)e->rank + 1;
}

/* Another rank aborted the group under an operation of this one. */
static void take_aborted(state *s, const cddp_event *e, rank_facts *r)
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

static void take_done(state *s, const cddp_event *e, rank_facts *r)
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

static void take_wait(const cddp_event *e, rank_facts *r)
{
    if (r->has_given_up) return;
    r->aborter = 0;
    r->is_waiting = true;
    r->waiting_group = e->as.collective_wait.group;
    r->waiting_sequence = e->as.collective_wait.sequence;
    r->wait_sequence = e->sequence;
}

static void take_store_wait(const cddp_event *e, meeting *m)
{
    if (e->as.store_wait.peer >= 0) CD_SAY(m->key, "%s", e->text != NULL ? e->text : "");
}

static void take_store_done(const cddp_event *e, meeting *m)
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

static void take_edge(state *s, const cddp_event *e)
{
    const cddp_event_waiting_for *w = &e->as.waiting_for;
    /* a rank that gives up reports the rest in another event */
    if (e->rank != UINT32_MAX) return;
    const bool is_edge =
        w->who >= 0 && w->who < CD_RANKS_MAX && w->peer >= 0 && w->peer < CD_RANKS_MAX;
    rank_facts *r = is_edge ? cd_ranks_add(&s->ranks, (uint32_t)w->who) : NULL;
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
    state *s = self;
    if (e->kind == CDDP_EV_fault) {
        s->has_fault = true;
        const bool is_network = e->as.fault.target < 0 || e->as.fault.kind == CDDP_FAULT_LINK_CUT;
        rank_facts *struck =
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
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    r->is_known = true;
    cd_circles_push(&s->circles, e);
    if (e->kind != CDDP_EV_rank_end) {
        r->step = e->step;
        r->micro_step = e->micro_step;
    }
    switch (e->kind) {
    case CDDP_EV_group: {
        member *m = cd_table_add(&s->members, CD_KEY(e->as.group.group, e->rank));
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

static bool is_stuck(const rank_facts *r)
{
    return r->is_known && (r->end == 2 || r->has_given_up);
}

/* A rank that went away without a word: it did not return, it did not give up a wait, and nobody
** interrupted the run. */
static bool is_gone(const rank_facts *r)
{
    return r != NULL && r->has_ended && r->end != 0 && r->end != 4 && !r->has_given_up;
}

static bool has_died(const rank_facts *r) { return r->end == 1 || r->end == 3; }

/* Its record stops, and nobody said how the rank ended: what it did after that is not known. */
static bool is_lost(const rank_facts *r) { return r != NULL && r->is_known && !r->has_ended; }

/* Whether `r` waits for what a member may have posted, of which there is no record, or none that
** reaches its end; *lost: those whose record stops, *absent: how many have none at all. */
static bool is_unknown(state *s, const rank_facts *r, cd_rank_set *lost, uint32_t *absent)
{
    cddp_fact_group group;
    int64_t members = 0;
    *absent = 0;
    if (!(r->is_waiting || r->has_given_up)) return false;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group) continue;
        members++;
        if (m->posted <= r->waiting_sequence &&
            is_lost(cd_ranks_find(&s->ranks, (uint32_t)key->part[1])))
            cd_rank_set_add(lost, &s->writer.memory, (uint32_t)key->part[1]);
    }
    if (cd_writer_find_group(&s->writer, r->waiting_group, &group) && group.members > members &&
        group.members <= CD_RANKS_MAX)
        *absent = (uint32_t)(group.members - members);
    return *absent > 0 || cd_rank_set_count(lost) > 0;
}

/* It waits in another operation than `r`, whose part in that of `r` may be over. One that died with
** both under way, and waited in the earlier one, died inside both. */
static bool has_got_past(const rank_facts *x, const rank_facts *r)
{
    const bool is_same_group = x->waiting_group == r->waiting_group;
    if (!x->is_waiting || (is_same_group && x->waiting_sequence == r->waiting_sequence))
        return false;
    return !has_died(x) || (is_same_group && x->waiting_sequence > r->waiting_sequence);
}

/* Its wait failed as a peer was gone. */
static bool has_lost(const rank_facts *r)
{
    return r->has_given_up && (r->wait_status == CDDP_E_BACKEND || r->wait_status == CDDP_E_IO);
}

/* A member that posted the operation which `r` waits for, and died before it was over; -1: none. */
static int64_t died_inside(const state *s, const rank_facts *r)
{
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        const member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, i));
        const bool has_posted = m != NULL && m->posted > r->waiting_sequence;
        if (has_posted && is_gone(x) && has_died(x) && !x->is_struck && !has_got_past(x, r))
            return i;
    }
    return -1;
}

/* The member of the group that has not posted the operation that `rank` waits for: the first that
** died, or that went away, or else the first; -1 when there is none. */
static int64_t missing_for(const state *s, const rank_facts *r)
{
    if (!r->is_waiting && !r->has_given_up) return -1;
    int64_t missing = -1, gone = -1, dead = -1;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group || m->posted > r->waiting_sequence) continue;
        const rank_facts *x = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        const bool is_out = is_gone(x) && !x->is_waiting;
        if (is_out && has_died(x) && (dead < 0 || key->part[1] < dead)) dead = key->part[1];
        if (is_out && (gone < 0 || key->part[1] < gone)) gone = key->part[1];
        if (is_lost(x)) continue;
        if (missing < 0 || key->part[1] < missing) missing = key->part[1];
    }
    /* who only failed to come lost the dead one, as `r` did */
    const int64_t inside = missing >= 0 && dead < 0 && has_lost(r) ? died_inside(s, r) : -1;
    if (inside >= 0) return inside;
    return dead >= 0 ? dead : gone >= 0 ? gone : missing;
}

/* A member that is gone at the end of who waits for whom inside an operation, as the world
** reported it; -1: there is none, or nobody reported. */
static int64_t reported_to_be_gone(const state *s, const rank_facts *r)
{
    int64_t at = r->reported_inside - 1;
    for (uint32_t i = 0; at >= 0 && i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, (uint32_t)at);
        if (x == NULL || x->reported_inside == 0) return is_gone(x) ? at : -1;
        at = x->reported_inside - 1;
    }
    return -1;
}

/* A member that died or stopped inside the operation that `r` waits for, which all have posted; -1:
** none. A rank that waits in a later one got past this. A hung rank may be such a member itself:
** where one died, the others hang for that reason. */
static int64_t stopped_inside(const state *s, const rank_facts *r)
{
    if (!r->is_waiting && !r->has_given_up) return -1;
    int64_t stopped = reported_to_be_gone(s, r);
    if (stopped >= 0) return stopped;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        const member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, i));
        if (!is_gone(x) || x->is_struck || m == NULL || m->posted <= r->waiting_sequence) continue;
        if (has_got_past(x, r)) continue;
        if (has_died(x)) return i;
        if (stopped < 0) stopped = i;
    }
    return stopped;
}

/* Another rank, whose part of the message that `r` waits for names itself as the other side: it
** cannot arrive; -1: none. */
static int64_t named_itself(const state *s, const rank_facts *r)
{
    for (uint32_t i = 0; (r->is_waiting || r->has_given_up) && i < s->ranks.count; i++) {
        const member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, i));
        if (m != NULL && m->to_itself == r->waiting_sequence + 1 &&
            cd_ranks_find(&s->ranks, i) != r)
            return i;
    }
    return -1;
}

/* For whom a stuck rank waits, in a collective or to open a group. */
static int64_t next_of(const state *s, const rank_facts *r)
{
    const bool opens = r->end == 2 && !r->is_waiting && !r->has_given_up;
    return opens ? r->reported_peer - 1 : missing_for(s, r);
}

static bool is_in_hook(const rank_facts *r) { return r->hook[0] != '\0' || r->call[0] != '\0'; }

/* Where it hangs. */
static void describe_place(const rank_facts *r, char *text, size_t text_bytes)
{
    if (r->hook[0] != '\0' && (r->call[0] == '\0' || strncmp(r->call, "hook ", 5) == 0))
        cd_say(text, text_bytes, "does not return from hook %s (bucket %lld, step %u)", r->hook,
               (long long)r->hook_bucket, r->step);
    else if (r->call[0] != '\0')
        cd_say(text, text_bytes, "does not return from %s (step %u)", r->call, r->step);
    else
        cd_say(text, text_bytes, "hangs outside a collective after step %u", r->step);
}

static void describe_end(const rank_facts *r, char *text, size_t text_bytes)
{
    if (!r->has_ended)
        cd_say(text, text_bytes, "was last seen at step %u", r->step);
    else if (r->end == 0 && r->status != CDDP_OK)
        cd_say(text, text_bytes, "ended with an error (%s)",
               cddp_status_text((cddp_status)r->status));
    else if (r->end == 2)
        describe_place(r, text, text_bytes);
    else
        cd_say(text, text_bytes, "%s after step %u", r->end == 0 ? "ended normally" : r->how,
               r->step);
}

typedef struct chain {
    uint32_t first, root;
    cd_rank_set who;
    uint32_t length;
    bool is_cycle;
} chain;

static chain follow(state *s, uint32_t from)
{
    chain c = {.first = from, .root = from};
    for (size_t i = 0; i <= s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, c.root);
        cd_rank_set_add(&c.who, &s->writer.memory, c.root);
        c.length++;
        int64_t next = r != NULL && is_stuck(r) ? next_of(s, r) : -1;
        if (next < 0) return c;
        c.root = (uint32_t)next;
        if (cd_rank_set_has(&c.who, c.root)) {
            c.is_cycle = true;
            return c;
        }
    }
    c.is_cycle = true;
    return c;
}

/* It posts faster than the time since its last post lets one say that it stopped. */
static bool is_posting(const cd_circle *c, const rank_facts *r)
{
    const uint64_t took_ns = c->post_ns - c->begin_ns;
    return r->end_ns >= c->post_ns &&
           r->end_ns - c->post_ns <= LIVELOCK_GAPS_MAX * (took_ns / c->posts);
}

/* Where the world ended them for that: the first rank that went too far in any way, and each that
** is past what a check may know. Else those alone that posted too much. */
static const cd_circle *find_circle(const state *s, uint32_t rank)
{
    const cd_circle *r = s->endless > 0 ? cd_circles_find_now(&s->circles, rank)
                                        : cd_circles_find(&s->circles, rank);
    if (r == NULL && s->endless == (int64_t)rank + 1) return cd_ranks_find(&s->circles.ranks, rank);
    return r;
}

/* A loop that ended was long, no livelock: the rank came to its next pass, or returned. So was one
** that something else ended: the rank or a peer died or hangs elsewhere, a wait failed, or the
** record stops. What is left are ranks that post on and on until their world gives up. */
static bool goes_round(state *s, uint32_t rank, const rank_facts *r)
{
    const cd_circle *own = find_circle(s, rank);
    if (own == NULL || !r->has_ended || r->end != CDDP_RANK_HUNG) return false;
    if (s->endless > 0) return true;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        if (x->is_known && (!x->has_ended || x->end != CDDP_RANK_HUNG || x->has_given_up))
            return false;
    }
    const chain c = follow(s, rank);
    const rank_facts *root = cd_ranks_find(&s->ranks, c.root);
    const cd_circle *other = cd_circles_find(&s->circles, c.root);
    return !s->has_fault && !c.is_cycle && root != NULL && other != NULL && root->call[0] == '\0' &&
           is_posting(own, r) && is_posting(other, root);
}

/* An operation as `rank` posted it. */
static const posted *posted_by(const operation *o, uint32_t rank)
{
    return o->other.reporter == (int64_t)rank + 1 ? &o->other : &o->first;
}

/* What a rank waits in: "allreduce(sum) of 212 f32, #5 of group 'world'". */
static void describe_operation(state *s, const rank_facts *r, char *text, size_t text_bytes)
{
    const operation *o =
        cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
    char operation_words[96] = "an operation";
    if (o != NULL) cd_operation_print(o->first.data, operation_words, sizeof operation_words);
    cd_say(text, text_bytes, "%s, #%lld of group '%s'", operation_words,
           (long long)r->waiting_sequence, cd_writer_get_group(&s->writer, r->waiting_group));
}

static void describe_wait(state *s, uint32_t rank, char *text, size_t text_bytes)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    char words[200] = "opening a group";
    if (r->is_waiting || r->has_given_up) describe_operation(s, r, words, sizeof words);
    cd_say(text, text_bytes, "rank %u waits for rank %lld in %s", rank, (long long)next_of(s, r),
           words);
}

/* A rank of the cycle waits for the others to make a group, and has posted nothing. */
static bool opens_group(const state *s, const chain *c)
{
    for (uint32_t r = cd_rank_set_next(&c->who, 0); r != CD_NO_RANK;
         r = cd_rank_set_next(&c->who, r + 1)) {
        const rank_facts *x = cd_ranks_find(&s->ranks, r);
        if (x != NULL && !x->is_waiting && !x->has_given_up) return true;
    }
    return false;
}

static void report_cycle(state *s, const chain *c, cddp_finding *f)
{
    const rank_facts *other = cd_ranks_find(&s->ranks, c->root);
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &c->who);
    CD_SAY(f->title, "ranks wait for one another in a cycle of %u", c->length);
    describe_wait(s, c->first, f->expected, sizeof f->expected);
    int64_t next = next_of(s, cd_ranks_find(&s->ranks, c->first));
    uint32_t peer = next >= 0 ? (uint32_t)next : c->root;
    describe_wait(s, peer, f->actual, sizeof f->actual);
    f->peer = (int32_t)peer;
    cd_finding_add_event(f, c->root, other->wait_sequence);
    CD_SAY(f->advice, "%s",
           opens_group(s, c)
               ? "ranks must make their groups in one order, as all members of each take part in it"
               : "operations of several groups must be issued in one order on all ranks, or the "
                 "slots for them must suffice");
}

static void advise_hook(const rank_facts *r, cddp_finding *f)
{
    const char *at = r->hook[0] == '\0' ? strstr(r->call, "hook ") : NULL,
               *hook = at != NULL ? at + strlen("hook ") : r->hook;
    if (r->end == CDDP_RANK_RETURNED)
        CD_SAY(f->advice,
               "the error of the rank says what hook %s refused; cddp-verify hook-conformance %s "
               "tries its laws",
               hook, hook);
    else
        CD_SAY(f->advice,
               "look for a loop or a wait in hook %s; cddp-verify hook-conformance %s runs each of "
               "its "
               "laws with a time limit",
               hook, hook);
}

/* The plan says which steps are taken, and each has its buckets. */
static bool is_due(const state *s, const rank_facts *r)
{
    const operation *o =
        cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
    cddp_fact_setting steps;
    return o != NULL && o->first.bucket >= 0 &&
           cd_writer_find_setting(&s->writer, 0, CDDP_KEY_train_steps, &steps);
}

/* Most members returned well without what the first of the chain waits for. */
static bool report_odd(state *s, const chain *c, cddp_finding *f)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, c->first);
    uint32_t members = 0, without = 0;
    char operation_words[200];
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group) continue;
        const rank_facts *x = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        members++;
        without += m->posted <= r->waiting_sequence && x != NULL && x->has_ended && x->end == 0 &&
                   x->status == CDDP_OK;
    }
    if (!(r->is_waiting || r->has_given_up) || without * 2 <= members || is_due(s, r)) return false;
    describe_operation(s, r, operation_words, sizeof operation_words);
    f->rank = (int32_t)c->first;
    f->peer = (int32_t)c->root;
    cd_finding_set_rank(&s->writer, f, c->first);
    CD_SAY(f->title, "rank %u waits in %s, without which %u of %u members returned", c->first,
           operation_words, without, members);
    CD_SAY(f->expected, "all members post it, or none");
    CD_SAY(f->actual, "rank %u posted it, and %u of %u did not (no reference; majority)", c->first,
           without, members);
    CD_SAY(f->advice, "look for an extra collective of rank %u, or one iteration more", c->first);
    return true;
}

static void report_root(state *s, const chain *c, cddp_finding *f)
{
    if (report_odd(s, c, f)) return;
    const rank_facts *root = cd_ranks_find(&s->ranks, c->root);
    f->rank = (int32_t)c->root;
    f->peer = (int32_t)c->first;
    cd_finding_set_rank(&s->writer, f, c->root);
    char did[120];
    describe_end(root, did, sizeof did);
    CD_SAY(f->title, "rank %u %s and never joined what rank %u waits for", c->root, did, c->first);
    describe_wait(s, c->first, f->expected, sizeof f->expected);
    CD_SAY(f->actual, "rank %u %s%s%s", c->root, did, root->error[0] != '\0' ? ": " : "",
           root->error);
    cd_finding_add_event(f, c->root, root->end_sequence);
    if (is_in_hook(root))
        advise_hook(root, f);
    else
        CD_SAY(f->advice, "compare what rank %u posts with the others from step %u on", c->root,
               root->step);
}

/* How many operations of the rank are waited for in continuations, and do not end; *first: one of
** them, and of which operation's. */
static uint32_t count_blocked(const state *s, uint32_t rank, int64_t first[2])
{
    uint32_t count = 0;
    for (size_t i = 0; i < s->continuations.count; i++) {
        const cd_key *key = cd_table_key(&s->continuations, i);
        const continuation *x = cd_table_value(&s->continuations, i);
        if (key->part[2] != (int64_t)rank || x->is_done || !x->is_waited_for) continue;
        if (count++ == 0) {
            first[0] = key->part[1];
            first[1] = x->cause;
        }
    }
    return count;
}

/* Whoever completes operations waits for one. */
static bool report_blocked(state *s, uint32_t rank, cddp_finding *f)
{
    int64_t first[2] = {0, 0};
    const uint32_t count = count_blocked(s, rank, first);
    if (count == 0) return false;
    f->rank = (int32_t)rank;
    cd_finding_set_rank(&s->writer, f, rank);
    CD_SAY(f->title, "rank %u waits in a continuation of #%lld for #%lld, which never completes",
           rank, (long long)first[1], (long long)first[0]);
    CD_SAY(f->expected, "a continuation returns, so that its thread completes other operations");
    CD_SAY(f->actual, "rank %u: %u continuations wait for operations that they posted", rank,
           count);
    CD_SAY(f->advice, "a wait in a future's continuation keeps a thread of the backend. Return the "
                      "next future, or wait on the thread that trains");
    return true;
}

/* Every member hangs in the operation that `r` waits for, which all have posted: none stopped. */
static bool report_all_inside(state *s, const rank_facts *r, cddp_finding *f)
{
    cd_rank_set who = {0};
    char operation_words[200];
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const member *m = cd_table_value(&s->members, i);
        if (key->part[0] != r->waiting_group) continue;
        const rank_facts *x = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        if (m->posted <= r->waiting_sequence || x == NULL || x->end != 2 || !x->is_waiting ||
            x->waiting_group != r->waiting_group || x->waiting_sequence != r->waiting_sequence)
            return false;
        cd_rank_set_add(&who, &s->writer.memory, (uint32_t)key->part[1]);
    }
    if (cd_rank_set_count(&who) < 2) return false;
    describe_operation(s, r, operation_words, sizeof operation_words);
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &who);
    CD_SAY(f->title, "all members hang inside %s, which all of them have posted", operation_words);
    CD_SAY(f->expected, "the backend completes what all members have posted");
    CD_SAY(f->actual, "%s", s->edges[0] != '\0' ? s->edges : "no member leaves it");
    CD_SAY(f->advice, "no rank is known to have stopped: run the backend's conformance tests at "
                      "this operation, element count, dtype and world size");
    return true;
}

/* Has every member posted what the rank waits for? */
static bool is_posted_by_all(const state *s, const rank_facts *r)
{
    for (size_t i = 0; i < s->members.count; i++) {
        const member *m = cd_table_value(&s->members, i);
        if (cd_table_key(&s->members, i)->part[0] == r->waiting_group &&
            m->posted <= r->waiting_sequence)
            return false;
    }
    return true;
}

/* Two ranks that hang in two operations, each of which the other has posted as well: neither
** stopped. */
static bool report_crossed(state *s, uint32_t rank, cddp_finding *f)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    cd_rank_set who = {0};
    char one[200], other[200];
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        if (x == NULL || x == r || x->end != 2 || !x->is_waiting ||
            x->waiting_group == r->waiting_group ||
            cd_table_find(&s->members, CD_KEY(r->waiting_group, i)) == NULL ||
            cd_table_find(&s->members, CD_KEY(x->waiting_group, rank)) == NULL ||
            !is_posted_by_all(s, r) || !is_posted_by_all(s, x))
            continue;
        cd_rank_set_add(&who, &s->writer.memory, rank);
        cd_rank_set_add(&who, &s->writer.memory, i);
        describe_operation(s, r, one, sizeof one);
        describe_operation(s, x, other, sizeof other);
        f->rank = -1;
        cd_finding_set_ranks(&s->writer, f, &who);
        CD_SAY(f->title, "rank %u waits in %s, and rank %u in %s; both have posted both", rank, one,
               i, other);
        CD_SAY(f->expected, "what all members have posted ends, whichever they wait for first");
        CD_SAY(f->actual, "%s", s->edges[0] != '\0' ? s->edges : "neither ends");
        CD_SAY(f->advice, "the backend goes on with an operation only while its group is waited "
                          "for, as compositions do: let all ranks wait in one order");
        return true;
    }
    return false;
}

static void report_inside(state *s, uint32_t rank, uint32_t inside, cddp_finding *f)
{
    const rank_facts *x = cd_ranks_find(&s->ranks, inside);
    if (x->end == 2 && x->is_waiting && report_crossed(s, inside, f)) return;
    if (x->end == 2 && report_blocked(s, inside, f)) return;
    if (x->end == 2 && report_all_inside(s, cd_ranks_find(&s->ranks, rank), f)) return;
    const char *did = x->end == 0                                        ? ""
                      : x->end == 2                                      ? "stopped"
                      : x->end == 1 && strcmp(x->how, "was killed") == 0 ? "died"
                                                                         : x->how;
    char operation_words[200];
    describe_operation(s, cd_ranks_find(&s->ranks, rank), operation_words, sizeof operation_words);
    f->rank = (int32_t)inside;
    cd_finding_set_rank(&s->writer, f, inside);
    CD_SAY(f->title, "rank %u %s inside %s", inside, did, operation_words);
    CD_SAY(f->expected, "all members, who have posted it, take part to its end");
    CD_SAY(f->actual, "rank %u %s", inside, did);
    if (inside != rank) {
        f->peer = (int32_t)rank;
        CD_SAY(f->actual, "rank %u %s, and rank %u waited for it", inside, did, rank);
        cd_finding_add_event(f, inside, x->end_sequence);
    }
    CD_SAY(f->advice,
           "all members had posted it: look at what became of the process, and at its machine");
}

static void report_itself(state *s, uint32_t rank, uint32_t culprit, cddp_finding *f)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    const member *m = cd_table_find(&s->members, CD_KEY(r->waiting_group, culprit));
    f->rank = (int32_t)culprit;
    f->peer = (int32_t)rank;
    cd_finding_set_rank(&s->writer, f, culprit);
    CD_SAY(f->title,
           "rank %u names itself in message #%lld of group '%s', and rank %u waits for it", culprit,
           (long long)r->waiting_sequence, cd_writer_get_group(&s->writer, r->waiting_group), rank);
    CD_SAY(f->expected, "the other side is rank %u", rank);
    CD_SAY(f->actual, "it is rank %lld of the group, which is rank %u itself", (long long)m->index,
           culprit);
    cd_finding_add_event(f, culprit, m->itself_sequence);
    CD_SAY(f->advice,
           "the root of send and recv is the other rank of the message, counted within the group");
}

/* Messages of a group of more than two have numbers of two ranks only: numbers no longer pair. */
static bool is_paired(const state *s, int64_t group)
{
    uint32_t members = 0;
    bool has_messages = false;
    for (size_t i = 0; i < s->members.count; i++) {
        const member *m = cd_table_value(&s->members, i);
        if (cd_table_key(&s->members, i)->part[0] != group) continue;
        members++;
        has_messages |= m->has_messages;
    }
    return members <= 2 || !has_messages;
}

/* The first operation, up to the one that `r` waits for, that members did not post alike; *number:
** its own. NULL: there is none. */
static const operation *find_split(const state *s, const rank_facts *r, int64_t *number)
{
    const operation *found = NULL;
    if (!(r->is_waiting || r->has_given_up) || !is_paired(s, r->waiting_group)) return NULL;
    for (size_t i = 0; i < s->operations.count; i++) {
        const cd_key *key = cd_table_key(&s->operations, i);
        const operation *o = cd_table_value(&s->operations, i);
        if (key->part[0] != r->waiting_group || key->part[1] > r->waiting_sequence ||
            o->other.reporter == 0 || (found != NULL && key->part[1] > *number))
            continue;
        found = o;
        *number = key->part[1];
    }
    return found;
}

/* The one that posted after `r` had given up; -1: none did. */
static int64_t come_late(const state *s, const rank_facts *r)
{
    const operation *o =
        r->has_given_up
            ? cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence))
            : NULL;
    return o != NULL && r->has_timed_out && o->last_ns > r->given_up_ns ? (int64_t)o->last_rank
                                                                        : -1;
}

/* How long after `r` had given up `peer` came, or was let go on; 0: that is not known. */
static uint64_t lateness(const state *s, const rank_facts *r, uint32_t peer)
{
    const rank_facts *x = cd_ranks_find(&s->ranks, peer);
    if (!r->has_timed_out || x == NULL) return 0;
    if (come_late(s, r) == (int64_t)peer) {
        const operation *o =
            cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
        return o->last_ns - r->given_up_ns;
    }
    const bool was_kept = x->kept_from_ns < r->given_up_ns && r->given_up_ns < x->kept_until_ns;
    return was_kept ? x->kept_until_ns - r->given_up_ns : 0;
}

static void describe_post(const posted *p, char *text, size_t text_bytes)
{
    char words[96];
    cd_operation_print(p->data, words, sizeof words);
    if (p->step >= 0)
        cd_say(text, text_bytes, "%s (bucket %lld of step %lld)", words, (long long)p->bucket,
               (long long)p->step);
    else
        cd_say(text, text_bytes, "%s", words);
}

/* The one that differs from several is to blame; else nobody knows which side is right. */
static void report_split(state *s, const operation *o, int64_t group, int64_t number,
                         cddp_finding *f)
{
    const bool is_first_odd = o->first.count == 1 && o->other.count > 1;
    const posted *odd = is_first_odd ? &o->first : &o->other,
                 *most = is_first_odd ? &o->other : &o->first;
    const uint32_t rank = (uint32_t)odd->reporter - 1, peer = (uint32_t)most->reporter - 1;
    char odd_words[160], most_words[160];
    cd_rank_set who = {0};
    const bool is_blamed = odd->count == 1 && most->count > 1;
    cd_rank_set_add(&who, &s->writer.memory, rank);
    if (!is_blamed) cd_rank_set_add(&who, &s->writer.memory, peer);
    f->rank = is_blamed ? (int32_t)rank : -1;
    f->peer = (int32_t)peer;
    cd_finding_set_ranks(&s->writer, f, &who);
    describe_post(odd, odd_words, sizeof odd_words);
    describe_post(most, most_words, sizeof most_words);
    if (is_same_side(odd, most)) {
        const bool sends = odd->data[0] == CDDP_OP_SEND;
        const uint32_t low = rank < peer ? rank : peer, high = rank < peer ? peer : rank;
        CD_SAY(f->title, "as #%lld of group '%s' ranks %u and %u both %s each other",
               (long long)number, cd_writer_get_group(&s->writer, group), low, high,
               sends ? "send to" : "receive from");
        CD_SAY(f->expected, "one of them %s", sends ? "receives" : "sends");
        CD_SAY(f->actual, "rank %u: %s; rank %u: %s", rank, odd_words, peer, most_words);
        CD_SAY(f->advice, "one of the two has the other side of this message");
        return;
    }
    CD_SAY(f->title, "as #%lld of group '%s' rank %u posted %s, and rank %u %s", (long long)number,
           cd_writer_get_group(&s->writer, group), rank, odd_words, peer, most_words);
    CD_SAY(f->expected, "rank %u: %s", peer, most_words);
    CD_SAY(f->actual, "rank %u: %s", rank, odd_words);
    CD_SAY(f->advice,
           "operations meet by their number alone: look at what these ranks did before #%lld",
           (long long)number);
}

static void report_late(state *s, uint32_t rank, uint32_t late, cddp_finding *f)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    const operation *o =
        cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
    char words[200];
    describe_operation(s, r, words, sizeof words);
    f->rank = (int32_t)late;
    f->peer = (int32_t)rank;
    cd_finding_set_rank(&s->writer, f, late);
    CD_SAY(f->title, "rank %u came too late for #%lld: rank %u had given up %llu ms before", late,
           (long long)r->waiting_sequence, rank,
           (unsigned long long)((o->last_ns - r->given_up_ns) / 1000000));
    CD_SAY(f->expected, "rank %u posts %s before the time-out of rank %u", late, words, rank);
    CD_SAY(f->actual, "rank %u posted it when rank %u had given up", late, rank);
    CD_SAY(f->advice, "see what kept rank %u, or give the others a longer time-out", late);
}

/* No rank did anything wrong. */
static void report_parted(state *s, cddp_finding *f)
{
    f->rank = -1;
    cd_rank_set stuck = {0};
    for (uint32_t i = 0; i < s->ranks.count; i++)
        if (is_stuck(cd_ranks_find(&s->ranks, i))) cd_rank_set_add(&stuck, &s->writer.memory, i);
    cd_finding_set_ranks(&s->writer, f, &stuck);
    CD_SAY(f->title, "%s, and ranks on both sides wait for each other", s->parted);
    CD_SAY(f->expected, "what one side sends reaches the other");
    CD_SAY(f->actual, "%s", s->edges[0] != '\0' ? s->edges : "they wait");
    cd_finding_add_event(f, UINT32_MAX, s->parted_sequence);
    CD_SAY(f->advice, "look at the network between the two sides: no rank on either has failed");
}

/* ---- at the rendezvous store ---- */

/* The rank that was the first to give up meeting the others; -1: none did. */
static int64_t first_to_give_up(const state *s)
{
    int64_t first = -1;
    uint64_t first_ns = 0;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const meeting *m = &((const rank_facts *)cd_ranks_find(&s->ranks, i))->meeting;
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
static uint32_t follow_meetings(const state *s, uint32_t first)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, first);
    uint64_t at_ns = r->meeting.end_ns;
    uint32_t root = first;
    for (size_t i = 0; i < s->ranks.count; i++) {
        const meeting *m = &r->meeting;
        if (!m->has_given_up || m->begin_ns > at_ns || m->is_cut || m->missing < 0) break;
        if (m->end_ns < at_ns) at_ns = m->end_ns;
        root = (uint32_t)m->missing;
        r = cd_ranks_find(&s->ranks, root);
        if (r == NULL) break;
    }
    return root;
}

static void describe_meeting(uint32_t rank, const meeting *m, char *text, size_t text_bytes)
{
    if (m->key[0] == '\0' || m->missing == m->host || m->is_cut)
        cd_say(text, text_bytes, "rank %u waits for the store on rank %lld", rank,
               (long long)m->host);
    else
        cd_say(text, text_bytes,
               "rank %u waits for key '%s' of the store on rank %lld, which rank %lld sets", rank,
               m->key, (long long)m->host, (long long)m->missing);
}

static void report_cut(state *s, const meeting *m, uint32_t rank, cddp_finding *f)
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
static void report_absent(state *s, uint32_t first, uint32_t root, cddp_finding *f)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, root), *waiter = cd_ranks_find(&s->ranks, first);
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
        describe_end(r, did, sizeof did);
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

static void report_meeting(state *s, uint32_t first)
{
    const uint32_t root = follow_meetings(s, first);
    const rank_facts *waiter = cd_ranks_find(&s->ranks, first), *r = cd_ranks_find(&s->ranks, root);
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

/* Nobody waits for it. Ranks that do not return from the same call are named together, by the first
** of them. */
static void report_stay(state *s, uint32_t rank, cddp_finding *f)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    CD_SAY(f->expected, "it returns");
    if (!is_in_hook(r)) {
        CD_SAY(f->title, "rank %u never comes back", rank);
        CD_SAY(f->actual, "it waits %s",
               r->is_waiting ? "for an operation that all members have posted"
                             : "outside a collective");
        return;
    }
    char place[120], other[120], who[96];
    cd_rank_set all = {0};
    describe_place(r, place, sizeof place);
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        if (x == NULL || !x->is_known || x->end != 2 || !is_in_hook(x)) continue;
        describe_place(x, other, sizeof other);
        if (strcmp(place, other) == 0) cd_rank_set_add(&all, &s->writer.memory, i);
    }
    cd_rank_set_print(&all, rank, who, sizeof who);
    cd_finding_set_ranks(&s->writer, f, &all);
    if (cd_rank_set_count(&all) > 1)
        CD_SAY(f->title, "%s do not return%s", who, place + strlen("does not return"));
    else
        CD_SAY(f->title, "%s %s", who, place);
    CD_SAY(f->actual, "it %s", place);
    advise_hook(r, f);
}

/* All members of which something is known have posted it, and who may not have is not known. */
static void report_unknown(state *s, const rank_facts *r, const cd_rank_set *lost, uint32_t absent,
                           cddp_finding *f)
{
    char operation_words[200], who[96] = "", missing[48] = "";
    describe_operation(s, r, operation_words, sizeof operation_words);
    if (cd_rank_set_count(lost) > 0) cd_rank_set_print(lost, CD_NO_RANK, who, sizeof who);
    if (absent > 0) cd_say(missing, sizeof missing, "%u member%s", absent, absent == 1 ? "" : "s");
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &(cd_rank_set){0}); /* nobody is blamed */
    CD_SAY(f->title, "ranks wait in %s, and no record says whether %s%s%s came", operation_words,
           who, who[0] != '\0' && absent > 0 ? " and " : "", missing);
    CD_SAY(f->expected, "the record of every member, up to its end");
    if (absent > 0)
        CD_SAY(f->actual, "no record of %s of the group", missing);
    else
        CD_SAY(f->actual, "the record of %s stops before", who);
    CD_SAY(f->advice, "judge the records of all ranks together: the cause may be in one that is "
                      "not here");
}

static void report(state *s, uint32_t rank)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, rank);
    chain c = follow(s, rank);
    const rank_facts *root = cd_ranks_find(&s->ranks, c.root);
    bool hung = r->end == 2;
    cd_rank_set lost = {0};
    uint32_t absent = 0;
    const bool may_have_come =
        !c.is_cycle && root != NULL && is_stuck(root) && is_unknown(s, root, &lost, &absent);
    /* A transport that notices that a peer has gone ends the wait with a failure; had
    ** the peer stayed, the wait would have lasted for ever. */
    bool died = root != NULL && has_died(root);
    bool left = root != NULL && c.length > 1 && root->has_ended &&
                ((root->end == 0 && root->status == CDDP_OK) || died);
    /* The root waits as well, inside an operation that all have posted. */
    int64_t inside = !c.is_cycle && root != NULL && is_stuck(root) ? stopped_inside(s, root) : -1;
    const int64_t itself = named_itself(s, r);
    /* Of what all have posted: who posted another operation, or came when others had gone. */
    int64_t blocked[2];
    const rank_facts *stopped = inside >= 0 ? cd_ranks_find(&s->ranks, (uint32_t)inside) : NULL;
    const bool is_posted =
        !c.is_cycle && root != NULL && is_stuck(root) &&
        (inside < 0 || (stopped->is_waiting && count_blocked(s, (uint32_t)inside, blocked) == 0));
    int64_t number = -1;
    const operation *split = is_posted ? find_split(s, root, &number) : NULL;
    const int64_t late = is_posted ? come_late(s, root) : -1;
    if (!hung &&
        (s->has_fault || root == NULL || !(r->has_timed_out || left || inside >= 0 || itself >= 0)))
        return;
    cddp_event at = {.rank = rank,
                     .step = r->step,
                     .micro_step = r->micro_step,
                     .sequence = r->wait_sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    if (s->parted[0] != '\0')
        report_parted(s, &f);
    else if (itself >= 0)
        report_itself(s, rank, (uint32_t)itself, &f);
    else if (c.is_cycle)
        report_cycle(s, &c, &f);
    else if (split != NULL)
        report_split(s, split, root->waiting_group, number, &f);
    else if (may_have_come && (inside < 0 || !has_died(cd_ranks_find(&s->ranks, (uint32_t)inside))))
        report_unknown(s, root, &lost, absent, &f);
    else if (inside >= 0 && (c.length == 1 || inside != c.root))
        report_inside(s, c.root, (uint32_t)inside, &f);
    else if (late >= 0 && late != (int64_t)c.root)
        report_late(s, c.root, (uint32_t)late, &f);
    else if (c.length > 1 && root != NULL)
        report_root(s, &c, &f);
    else
        report_stay(s, rank, &f);
    cd_writer_report(&s->writer, &f);
}

/* ---- who waits for whom ---- */

/* The members that have not posted what `r` waits for, as far as their records reach. */
static void add_absent(state *s, const rank_facts *r, cd_rank_set *peers)
{
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const member *m = cd_table_value(&s->members, i);
        if (key->part[0] == r->waiting_group && m->posted <= r->waiting_sequence &&
            !is_lost(cd_ranks_find(&s->ranks, (uint32_t)key->part[1])))
            cd_rank_set_add(peers, &s->writer.memory, (uint32_t)key->part[1]);
    }
}

static void add_one(state *s, cd_rank_set *peers, int64_t rank)
{
    if (rank >= 0) cd_rank_set_add(peers, &s->writer.memory, (uint32_t)rank);
}

/* A planted hang of `r` that ended before anybody gave up: it kept nobody waiting. */
static bool is_over(const state *s, const rank_facts *r)
{
    for (uint32_t i = 0; r->kept_until_ns != 0 && i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        if (x->has_given_up && x->given_up_ns < r->kept_until_ns) return false;
    }
    return r->kept_until_ns != 0;
}

/* A member that went away in what all have posted, or that a fault keeps there. */
static bool is_out(const state *s, const rank_facts *x)
{
    const bool is_kept = x->is_struck && x->kept_until_ns != 0 && !is_over(s, x);
    return is_kept || (is_gone(x) && !x->is_waiting);
}

/* All members that a fault put out; of others the first: those behind it may have ended for its
** sake. A struck rank that gave up its own wait is waited for by nobody. false: there is none. */
static bool add_out(state *s, uint32_t rank, const rank_facts *r, cd_rank_set *peers)
{
    int64_t gone = -1, struck = -1;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        if (i == rank || cd_table_find(&s->members, CD_KEY(r->waiting_group, i)) == NULL) continue;
        if (x->is_struck && struck < 0 && !x->has_given_up) struck = i;
        if (!is_out(s, x)) continue;
        if (x->is_struck)
            add_one(s, peers, i);
        else if (gone < 0)
            gone = i;
    }
    if (cd_rank_set_count(peers) == 0)
        add_one(s, peers, gone >= 0 ? gone : come_late(s, r) >= 0 ? come_late(s, r) : struck);
    return cd_rank_set_count(peers) > 0;
}

/* Where all have posted what `r` waits for: who keeps it from its end; nobody: that is not
** known. */
static void add_inside(state *s, uint32_t rank, const rank_facts *r, cd_rank_set *peers)
{
    const int64_t itself = named_itself(s, r), reported = r->reported_inside - 1;
    if (itself >= 0)
        add_one(s, peers, itself);
    else if (reported >= 0 && reported != (int64_t)rank)
        add_one(s, peers, reported);
    else if (!add_out(s, rank, r, peers) && stopped_inside(s, r) != (int64_t)rank)
        add_one(s, peers, stopped_inside(s, r));
}

/* An operation as `rank` posted it: of a message the other side is known. */
static int64_t op_of(const operation *o, uint32_t rank)
{
    if (o == NULL) return -1;
    const posted *p = posted_by(o, rank);
    const bool is_other = p->reporter != (int64_t)rank + 1;
    if (is_other && p->data[0] == CDDP_OP_SEND) return CDDP_OP_RECV;
    return is_other && p->data[0] == CDDP_OP_RECV ? CDDP_OP_SEND : p->data[0];
}

/* What differs between ranks, or is refused, is no wait, although the operation failed. */
static bool is_wait(const state *s, const rank_facts *r)
{
    const meeting *m = &r->meeting;
    /* At the store: who came when others had given up, or was cut off, kept them waiting. */
    if (m->has_given_up) {
        const int64_t first = first_to_give_up(s);
        const rank_facts *x = first >= 0 ? cd_ranks_find(&s->ranks, (uint32_t)first) : r;
        return m->missing >= 0 && !m->is_cut && m->begin_ns <= x->meeting.end_ns;
    }
    if (r->has_given_up)
        return r->wait_status == CDDP_E_TIMEOUT || r->wait_status == CDDP_E_BACKEND ||
               r->wait_status == CDDP_E_IO;
    if (r->aborter > 0 && r->end == 0) return r->status != CDDP_OK;
    return r->end == 2 && (r->is_waiting || r->reported_peer > 0);
}

static void report_wait(state *s, uint32_t rank, const rank_facts *r)
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
        const operation *o =
            cd_table_find(&s->operations, CD_KEY(r->waiting_group, r->waiting_sequence));
        const member *own = cd_table_find(&s->members, CD_KEY(r->waiting_group, rank));
        wait.group = r->waiting_group;
        wait.sequence = r->waiting_sequence;
        wait.name = cd_writer_get_group(&s->writer, r->waiting_group);
        /* of several that posted something else under this number only the first is kept */
        wait.op =
            own != NULL && own->posted == r->waiting_sequence + 1 ? own->last_op : op_of(o, rank);
        if (o != NULL) wait.bucket = posted_by(o, rank)->bucket;
        const int64_t dead = has_lost(r) ? died_inside(s, r) : -1;
        if (dead >= 0 && missing_for(s, r) == dead)
            add_one(s, &peers, dead);
        else
            add_absent(s, r, &peers);
        wait.is_inside = cd_rank_set_count(&peers) == 0 && !is_unknown(s, r, &lost, &absent);
        if (wait.is_inside && r->aborter > 0)
            add_one(s, &peers, r->aborter - 1);
        else if (wait.is_inside)
            add_inside(s, rank, r, &peers);
        if (wait.is_inside && cd_rank_set_count(&peers) == 1)
            wait.late_ns = lateness(s, r, cd_rank_set_next(&peers, 0));
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

/* Who never came to an exchange of messages has no group of it: the other one names it. */
static void add_other(state *s, int64_t id)
{
    uint32_t other = CD_NO_RANK;
    int64_t index = 0;
    for (size_t i = 0; i < s->members.count; i++) {
        const cd_key *key = cd_table_key(&s->members, i);
        const member *m = cd_table_value(&s->members, i);
        if (key->part[0] != id || !m->has_messages || m->digest == 0) continue;
        other = cd_rank_find_other((uint64_t)m->digest, (uint32_t)key->part[1], m->index,
                                   (uint32_t)s->ranks.count);
        index = 1 - m->index;
    }
    if (other == CD_NO_RANK || cd_table_find(&s->members, CD_KEY(id, other)) != NULL) return;
    member *m = cd_table_add(&s->members, CD_KEY(id, other));
    if (m != NULL) m->index = index;
}

/* Ranks that ended before they opened the group of all ranks, as their records show to the end:
** they are its members that posted nothing. */
static void add_members(state *s, int64_t id)
{
    cddp_fact_group group;
    add_other(s, id);
    if (!cd_writer_find_group(&s->writer, id, &group) || group.members != (int64_t)s->ranks.count)
        return;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *x = cd_ranks_find(&s->ranks, i);
        if (!x->is_known || !x->has_ended) continue;
        (void)cd_table_add(&s->members, CD_KEY(id, i));
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    uint32_t known = 0, ended = 0;
    int64_t stuck = -1;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        known += r->is_known;
        ended += r->is_known && r->has_ended;
        if (stuck < 0 && is_stuck(r)) stuck = i;
        if (r->is_waiting || r->has_given_up) add_members(s, r->waiting_group);
    }
    /* A rank that lost a peer that had given up failed second. A rank that gave up waiting
    ** names the peer it waited for. */
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        if (!is_stuck(r) || !(r->end == 2 || r->has_timed_out || named_itself(s, r) >= 0)) continue;
        stuck = i;
        break;
    }
    if (known > 1 && ended == known && s->waits > 1)
        cd_writer_exercise(&s->writer, "%llu waits ended and the end of all %u ranks is known",
                           (unsigned long long)s->waits, known);
    /* One finding: a rank that waits for a stuck rank is stuck for the same reason, and no
    ** rank waits for one that met nobody. */
    const int64_t alone = first_to_give_up(s);
    if (alone >= 0)
        report_meeting(s, (uint32_t)alone);
    else if (s->endless == 0 && stuck >= 0 &&
             !goes_round(s, (uint32_t)stuck, cd_ranks_find(&s->ranks, (uint32_t)stuck)))
        report(s, (uint32_t)stuck);
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        if (r->is_known && is_wait(s, r)) report_wait(s, i, r);
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
