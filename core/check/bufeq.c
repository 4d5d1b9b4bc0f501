/* SPDX-License-Identifier: Apache-2.0 */
/* I-BUFEQ: after buffers were synchronised, every rank enters forward with the authority's values,
** and the authority is the right one: rank 0, or the largest active rank under join; at the end of
** join the largest last joiner. They are synchronised in the first forward and in each that follows
** a synchronising one, and in no other (BUF-05).
**
** Judged from   buffer_sync before a forward, then value of a buffer at moment 2 (forward entry);
**               the root of the broadcast before buffer_sync and before join_end; last_joiner of
**               every join_end; with the option ddp.broadcast_buffers, buffer_sync between
**               forward_begin and forward_end. Without that option: value of a buffer at the entry
**               of a forward that records no gradients, which must be equal on all ranks.
** Exercised     two ranks reported the content of a buffer at the entry of a forward that had
**               synchronised.
** Blame         the ranks that differ from the authority; for a wrong authority, the ranks that
**               follow it; for a synchronisation that is missing or out of turn, the ranks whose
**               forward it is.
** Limits        forwards that do not synchronise (inside no_sync, and the first one after it,
**               BUF-05) may differ by right; ignored buffers too. A custom buffer hook is not
**               judged here. Under join the ranks vote on which forwards synchronise, and that is
**               not judged.
*/
#include "core/check/writer.h"

#include "cddp/backend.h"

/* in place of the number of a forward; END_OF_JOIN: and the join's in place of the step */
enum { EVALUATION = -1, END_OF_JOIN = -2 };

/* Who took the same rank for the authority in an iteration of a join. */
typedef struct claim {
    int64_t authority; /* + 1; 0: nobody took one */
    cddp_event first;
    cd_rank_set who;
} claim;

/* An iteration of a join, over all ranks, each of which says whether it still has inputs. */
typedef struct turn {
    size_t spoke;           /* ranks */
    int64_t largest_active; /* + 1; 0: none */
    claim claims[2];
} turn;

typedef struct rank_facts {
    int64_t authority;
    int64_t handed_on;             /* by whom, at the end of the last join */
    int64_t last_root;             /* of the last broadcast posted; -1: none yet */
    uint32_t step, forward, joins; /* forward: of the step, those that synchronised before */
    uint32_t turns;                /* of this join */
    bool is_synced, has_begun, has_join;
    bool has_buffers;   /* to broadcast */
    bool is_evaluation; /* this forward records no gradients */
    bool is_shown;      /* what the synchronisation brought */
    bool has_left;      /* a join, and has shown nothing since */
    /* the forward before synchronised, or there was none (BUF-05); this one did, before or after
    ** it */
    bool is_due, has_synced;
} rank_facts;

/* The end of a join context, over all ranks. */
typedef struct join_facts {
    int64_t largest_last_joiner; /* -1: none seen */
    cddp_event first;            /* the earliest join_end, for its place */
} join_facts;

typedef struct state {
    cd_writer writer;
    cd_agree buffers; /* (step, synchronised forward, buffer) → presence, digest */
    cd_ranks ranks;   /* of rank_facts */
    cd_table ignored; /* buffer → 1 */
    cd_table joins;   /* number of the join context → join_facts */
    cd_table turns;   /* (number of the join context, iteration) → turn */
    cd_table handed;  /* (number of the join context, rank) → authority + 1 */
    bool has_digest;
} state;

/* JON-07. Of an iteration in which a rank said nothing others report. */
static const claim *find_wrong(const state *s, const turn *t)
{
    if (t->spoke != s->ranks.count || t->largest_active == 0) return NULL;
    for (size_t i = 0; i < 2; i++)
        if (t->claims[i].authority != 0 && t->claims[i].authority != t->largest_active)
            return &t->claims[i];
    return NULL;
}

static bool keeps_turn(void *self, const cd_key *key, const void *value)
{
    (void)key;
    return find_wrong(self, value) != NULL;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-BUFEQ", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->buffers, context->allocator);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->ignored, context->allocator, sizeof(int64_t));
    cd_table_init(&s->joins, context->allocator, sizeof(join_facts));
    cd_table_init(&s->turns, context->allocator, sizeof(turn));
    cd_writer_set_window(&s->writer, &s->turns, keeps_turn);
    cd_table_init(&s->handed, context->allocator, sizeof(int64_t));
    return CDDP_OK;
}

/* JON-12: what the last joiner has, all have. */
static void take_end_of_join(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_value *v = &e->as.value;
    const bool hands_on = cd_writer_has_flag(&s->writer, e->rank, CDDP_KEY_ddp_broadcast_buffers) &&
                          cd_table_find(&s->ignored, CD_KEY(v->id)) == NULL;
    if (!hands_on || v->digest == 0) return;
    const cd_key *key = CD_KEY(r->joins, END_OF_JOIN, v->id);
    cd_agree_push(&s->buffers, &(cd_statement){.key = key, CD_SAYS(v->presence, v->digest)}, e);
    if (r->handed_on >= 0) cd_agree_set_authority(&s->buffers, key, (uint32_t)r->handed_on);
}

static void take_value(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_value *v = &e->as.value;
    if (v->what != CDDP_WHAT_BUFFER) return;
    if (r->has_left && (v->moment == CDDP_MOMENT_END || v->moment == CDDP_MOMENT_BEGIN))
        take_end_of_join(s, e, r);
    if (v->moment != CDDP_MOMENT_FORWARD) return;
    /* Nobody keeps them equal, and the results of an evaluation are those of one rank. */
    const bool matters = r->is_evaluation &&
                         !cd_writer_has_flag(&s->writer, e->rank, CDDP_KEY_ddp_broadcast_buffers);
    if (!r->is_synced && !matters) return;
    r->is_shown = true;
    if (cd_table_find(&s->ignored, CD_KEY(v->id)) != NULL) return;
    if (v->digest != 0) s->has_digest = true;
    const cd_key *key = CD_KEY(e->step, matters ? EVALUATION : (int64_t)r->forward, v->id);
    cd_agree_push(&s->buffers, &(cd_statement){.key = key, CD_SAYS(v->presence, v->digest)}, e);
    if (r->authority >= 0) cd_agree_set_authority(&s->buffers, key, (uint32_t)r->authority);
}

/* The root of the values must be the authority, which without join is rank 0 (BUF-03, JON-07,
** JON-12). */
static void judge_authority(state *s, const cddp_event *e, const rank_facts *r, int64_t authority)
{
    bool other_root = authority >= 0 && r->last_root >= 0 && r->last_root != authority;
    bool not_zero = authority > 0 && !r->has_join;
    const cd_key *key = CD_KEY(e->kind, other_root);
    if ((!other_root && !not_zero) || !cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    const char *what = e->kind == CDDP_EV_join_end ? "the state at the end of join" : "buffers";
    if (other_root) {
        CD_SAY(f.title,
               CDDP_FINDING_WHO ": %s came from rank %lld although rank %lld has the authority",
               what, (long long)r->last_root, (long long)authority);
        CD_SAY(f.expected, "a broadcast from rank %lld", (long long)authority);
        CD_SAY(f.actual, "a broadcast from rank %lld", (long long)r->last_root);
    } else {
        CD_SAY(f.title, CDDP_FINDING_WHO ": rank %lld is taken for the authority over %s",
               (long long)authority, what);
        CD_SAY(f.expected, "rank 0, the authority without join");
        CD_SAY(f.actual, "rank %lld", (long long)authority);
    }
    CD_SAY(
        f.advice, "%s",
        e->kind == CDDP_EV_join_end
            ? "among those that ran longest the largest rank hands its state on (JON-12)"
            : "the root of the broadcast is fixed: rank 0, or under join the largest active rank");
    cd_writer_hold(&s->writer, key, &f);
}

/* BUF-05: which forwards synchronise buffers is a function of the forward before. */
static void take_forward_end(state *s, const cddp_event *e, rank_facts *r)
{
    const bool was_due = r->is_due,
               is_judged =
                   cd_writer_has_flag(&s->writer, e->rank, CDDP_KEY_ddp_broadcast_buffers) &&
                   r->has_buffers && !r->has_join && r->has_begun;
    const cd_key *key = CD_KEY(e->kind, was_due);
    r->is_due = e->as.forward_end.prepared;
    if (!is_judged || r->has_synced == was_due || !cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    if (was_due) {
        CD_SAY(f.title, CDDP_FINDING_WHO ": a forward does not synchronise buffers");
        CD_SAY(
            f.expected,
            "a synchronisation of buffers in the first forward and after every synchronising one");
        CD_SAY(f.actual, "none in this forward");
        CD_SAY(f.advice, "with broadcast_buffers the first forward and each that follows a "
                         "synchronising one broadcasts them (BUF-02, BUF-05)");
    } else {
        CD_SAY(f.title, CDDP_FINDING_WHO ": a forward synchronises buffers out of turn");
        CD_SAY(f.expected,
               "none: the forward before this one was inside no_sync or recorded no gradients");
        CD_SAY(f.actual, "a synchronisation of buffers");
        CD_SAY(f.advice,
               "a synchronisation overwrites what other ranks' buffers gathered since the last "
               "one (BUF-04, BUF-05)");
    }
    cd_writer_hold(&s->writer, key, &f);
}

/* ---- who has inputs left ---- */

/* An active rank speaks in front of its forward, and again when its backward has learnt how many
** are active: that is no other iteration. */
static void take_turn(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_join_notify *n = &e->as.join_notify;
    if (n->active && n->active_ranks >= 0) return;
    turn *t = cd_table_add(&s->turns, CD_KEY(r->joins, r->turns++));
    if (t == NULL) return;
    t->spoke++;
    if (n->active && t->largest_active < (int64_t)e->rank + 1)
        t->largest_active = (int64_t)e->rank + 1;
}

/* A rank says whether it is active in front of each forward. */
static void take_claim(state *s, const cddp_event *e, const rank_facts *r)
{
    const int64_t authority = e->as.buffer_sync.authority + 1;
    turn *t = r->turns > 0 ? cd_table_find(&s->turns, CD_KEY(r->joins, r->turns - 1)) : NULL;
    if (t == NULL || authority <= 0) return;
    claim *c = &t->claims[t->claims[0].authority != 0 && t->claims[0].authority != authority];
    if (c->authority == 0) {
        *c = (claim){.authority = authority, .first = *e};
        c->first.text = NULL;
    }
    if (c->authority == authority) cd_rank_set_add(&c->who, &s->writer.memory, e->rank);
}

static void judge_turns(state *s)
{
    for (size_t i = 0; i < s->turns.count; i++) {
        const turn *t = cd_table_value(&s->turns, i);
        const claim *c = find_wrong(s, t);
        if (c == NULL) continue;
        cddp_finding f = cd_finding_at(&s->writer, &c->first);
        cd_finding_set_ranks(&s->writer, &f, &c->who);
        CD_SAY(f.title,
               "rank %lld is taken for the authority over buffers in a forward, not rank %lld",
               (long long)c->authority - 1, (long long)t->largest_active - 1);
        CD_SAY(f.expected, "rank %lld, the largest that still has inputs",
               (long long)t->largest_active - 1);
        CD_SAY(f.actual, "rank %lld", (long long)c->authority - 1);
        CD_SAY(f.advice, "under join buffers come from the largest rank that is active (JON-07)");
        cd_writer_report(&s->writer, &f);
        return; /* what follows it is as wrong */
    }
}

/* ---- the end of a join ---- */

static void take_join_end(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_join_end *j = &e->as.join_end;
    bool is_new = cd_table_find(&s->joins, CD_KEY(r->joins)) == NULL;
    join_facts *facts = cd_table_add(&s->joins, CD_KEY(r->joins));
    int64_t *handed = cd_table_add(&s->handed, CD_KEY(r->joins, e->rank));
    if (handed != NULL) *handed = j->authority + 1;
    r->joins++;
    r->turns = 0;
    r->has_left = true;
    r->handed_on = e->as.join_end.authority;
    judge_authority(s, e, r, j->authority);
    if (facts == NULL) return;
    if (is_new) *facts = (join_facts){.largest_last_joiner = -1, .first = *e};
    if (j->last_joiner != 0 && (int64_t)e->rank > facts->largest_last_joiner)
        facts->largest_last_joiner = (int64_t)e->rank;
}

/* The ranks that take another one's state than they should; -1: none does. */
static int64_t find_followers(state *s, uint32_t join, int64_t authority, cd_rank_set *who)
{
    int64_t other = -1;
    for (uint32_t rank = 0; rank < s->ranks.count; rank++) {
        const int64_t *handed = cd_table_find(&s->handed, CD_KEY(join, rank));
        if (handed == NULL || *handed - 1 == authority) continue;
        if (other < 0) other = *handed - 1;
        cd_rank_set_add(who, &s->writer.memory, rank);
    }
    return other;
}

/* JON-12: among those that ran longest the largest rank hands its state on. */
static void judge_joins(state *s)
{
    for (uint32_t i = 0;; i++) {
        const join_facts *facts = cd_table_find(&s->joins, CD_KEY(i));
        cd_rank_set who = {0};
        if (facts == NULL) return;
        if (facts->largest_last_joiner < 0) continue;
        const int64_t authority = find_followers(s, i, facts->largest_last_joiner, &who);
        if (authority < 0) continue;
        cddp_finding f = cd_finding_at(&s->writer, &facts->first);
        f.rank = (int32_t)cd_rank_set_next(&who, 0);
        cd_finding_set_ranks(&s->writer, &f, &who);
        CD_SAY(f.title, "rank %lld hands its state on at the end of join, not rank %lld",
               (long long)authority, (long long)facts->largest_last_joiner);
        CD_SAY(f.expected, "rank %lld, the largest of those that ran longest",
               (long long)facts->largest_last_joiner);
        CD_SAY(f.actual, "rank %lld", (long long)authority);
        CD_SAY(f.advice, "the largest rank of those that ran longest hands its state on (JON-12)");
        cd_writer_report(&s->writer, &f);
    }
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_buffer) {
        int64_t *flag =
            e->as.buffer.ignored ? cd_table_add(&s->ignored, CD_KEY(e->as.buffer.buffer)) : NULL;
        if (flag != NULL) *flag = 1;
        return;
    }
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->kind == CDDP_EV_forward_begin) {
        const bool same = r->has_begun && r->step == e->step;
        /* the next forward enters with what an evaluation received */
        const bool is_kept = same && r->is_evaluation && r->is_synced && !r->is_shown;
        *r = (rank_facts){.step = e->step,
                          .forward = same ? r->forward + (r->is_synced && !is_kept) : 0,
                          .has_begun = true,
                          .is_synced = is_kept,
                          .authority = is_kept ? r->authority : 0,
                          .last_root = -1,
                          .joins = r->joins,
                          .turns = r->turns,
                          .has_join = r->has_join,
                          .has_buffers = r->has_buffers,
                          .is_due = r->is_due,
                          .is_evaluation =
                              !e->as.forward_begin.grad_mode && !e->as.forward_begin.joined};
    } else if (e->kind == CDDP_EV_forward_end) {
        take_forward_end(s, e, r);
    } else if (e->kind == CDDP_EV_wrap) {
        r->has_buffers = e->as.wrap.buffers > 0;
        r->is_due = true;
    } else if (e->kind == CDDP_EV_buffer_sync &&
               e->as.buffer_sync.location == CDDP_LOCATION_BEFORE_FORWARD) {
        r->is_synced = r->has_synced = true;
        r->is_shown = false;
        r->authority = e->as.buffer_sync.authority;
        judge_authority(s, e, r, r->authority);
        take_claim(s, e, r);
    } else if (e->kind == CDDP_EV_buffer_sync &&
               e->as.buffer_sync.location == CDDP_LOCATION_AFTER_FORWARD) {
        r->has_synced = true;
    } else if (e->kind == CDDP_EV_collective_post &&
               e->as.collective_post.op == CDDP_OP_BROADCAST) {
        r->last_root = e->as.collective_post.root;
    } else if (e->kind == CDDP_EV_join_notify) {
        r->has_join = true;
        take_turn(s, e, r);
    } else if (e->kind == CDDP_EV_join_end) {
        r->has_join = true; /* also of a second wrapper that never had a forward */
        take_join_end(s, e, r);
    } else if (e->kind == CDDP_EV_value) {
        take_value(s, e, r);
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    judge_turns(s);
    judge_joins(s);
    if (s->has_digest && s->buffers.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu buffers compared at forward entry",
                           (unsigned long long)s->buffers.shared_count);
    cd_split split;
    uint64_t count = 0;
    for (size_t cursor = 0; cd_agree_next_step(&s->buffers, &cursor, &split, &count);) {
        cddp_finding f = cd_finding_of(&s->writer, &split);
        char who[160];
        cd_split_print(&split, who, sizeof who);
        const bool is_evaluation = split.key->part[1] == EVALUATION,
                   is_join = split.key->part[1] == END_OF_JOIN;
        CD_SAY(f.title, "%s %s with different values of buffer %s%s", who,
               is_join         ? "leave a join"
               : is_evaluation ? "enter an evaluation"
                               : "enter forward",
               cd_writer_get_buffer(&s->writer, split.key->part[2]),
               cd_writer_get_count(&s->writer, count, "buffers"));
        CD_SAY(f.expected, "rank %u: digest %016llx", split.right.rank,
               (unsigned long long)split.right.data[1]);
        CD_SAY(f.actual, "rank %u: digest %016llx", split.odd.rank,
               (unsigned long long)split.odd.data[1]);
        CD_SAY(f.advice, "%s",
               is_join ? "buffers come from the last joiner when a join ends (JON-12): look for a "
                         "broadcast that was left out or missed this buffer"
               : is_evaluation
                   ? "broadcast_buffers is off: broadcast the buffers before an "
                     "evaluation, or use SyncBatchNorm"
                   : "look for a broadcast that was left out or missed this buffer, and "
                     "for what wrote to it or replaced it after the broadcast");
        cd_writer_report(&s->writer, &f);
    }
    cd_agree_fini(&s->buffers);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->ignored);
    cd_table_fini(&s->joins);
    cd_table_fini(&s->turns);
    cd_table_fini(&s->handed);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_buffer,          CDDP_EV_wrap,
                                 CDDP_EV_forward_begin,   CDDP_EV_forward_end,
                                 CDDP_EV_buffer_sync,     CDDP_EV_value,
                                 CDDP_EV_collective_post, CDDP_EV_join_notify,
                                 CDDP_EV_join_end};

CD_CHECK_TABLE(bufeq, "I-BUFEQ", "buffers are the authority's at forward entry",
               "At forward entry each live buffer equals the authority's value, the authority is "
               "the right rank, and "
               "buffers are synchronised when it is due.");
