/* SPDX-License-Identifier: Apache-2.0 */
/* I-ORDER: per group, the k-th collective is the same operation on every member, and all post
** equally many.
**
** Judged from   collective_post, numbered per rank and group by this file (sends and receives do
**               not count: they concern two ranks only); group; rank_end.
**     Where the k-th is the same operation on all, but a bucket of another step on some: cross-step
**     pairing. A rank left one out, or issued one more, and the sizes happen to fit. A rank that
**     shadows the others (join_notify) takes no steps.
**     Where hooks advance in rounds (hook.continuations), which bucket's stage is next follows from
**     the operations before it: bucket_launch, collective_done and the bucket that a post carries.
** Exercised     a collective of some group was posted by at least two of its members.
** Blame         the odd ranks at the first collective that differs; the first difference shifts all
**               later ones, so one finding per group. What most ranks do decides nothing where one
**               knows: of a reduction that is due those are wrong that are past the gradients of
**               its step; of a hook's stages, those that pass over the bucket whose turn it is.
**               Of two ranks whose buckets are of different steps: the one whose sequence leaves a
**               step out. For a short sequence: the ranks that returned without posting the rest;
**               where these are most members, and no plan says that the operation is due, those
**               that posted it, and differ from the others.
** Limits        a rank that died or failed is not blamed for what it did not post: I-FAIL and
**               I-LIVE report it. Of a share no end is known to be right: both ranks are named.
*/
#include "core/check/writer.h"

#include "cddp/backend.h"

/* An operation that was posted as another one completed, by the thread on which that happened. */
typedef struct continuation {
    int64_t group, sequence; /* of that other one */
    bool is_pending, is_waited_for;
} continuation;

typedef struct state {
    cd_writer writer;
    cd_agree posts;    /* (group, k) → op, reduce_op, root, dtype, numel */
    cd_agree shares;   /* (group, sequence, from, to) → elements */
    cd_agree places;   /* (group, k) → step, of operations that carry a bucket, and the bucket */
    cd_agree stages;   /* (group, k) → stage: of a hook that advances in rounds */
    cd_table carried;  /* (rank, bucket) → operations since it was launched */
    cd_table counts;   /* (group, rank) → posted so far */
    cd_ranks ends;     /* rank → rank_end + 1: 1 returned well */
    cd_table reported; /* group → already reported */
    cd_table continuations; /* (group, k, rank) → continuation */
    cd_ranks caused;        /* rank → continuation, of its next post */
    cd_table longest;       /* group → most that a rank posted; at the end */
    cd_ranks joined;        /* rank → 1 while it shadows the others */
    cd_ranks stepped;       /* rank → the last step in which an optimizer stepped, + 1 */
} state;

enum { TIMES = 64 };

typedef struct posted {
    int64_t count;
    int64_t times[TIMES]; /* of the latest posts, see time_of */
    uint64_t last_sequence;
    /* of operations that carry a bucket: the step of the last; the first of the longest ways from
    ** one step to the next */
    int64_t step, stride, stride_from, stride_at;
    int64_t bucket; /* of the last; -1: it carries none */
    bool has_step;
    bool has_ended; /* an operation of the group has, since the last was posted */
} posted;

/* What a rank says of an operation of a hook. See Note [Turns of stages]. */
enum { STAGE_BUCKET, STAGE_CARRIED, STAGE_BEFORE, STAGE_BEGINS };

/* As long as a member may still post it. Of places those that shadow the others say nothing. */
static bool keeps_place(void *self, const cd_key *key, const cd_agree_entry *entry)
{
    state *s = self;
    const cd_agree_entry *post = cd_table_find(&s->posts.entries, key);
    cddp_fact_group group;
    (void)entry;
    return post != NULL && !(cd_writer_find_group(&s->writer, key->part[0], &group) &&
                             (int64_t)post->voters >= group.members);
}

/* Whose turn it is matters where the operations differ, and only there. */
static bool keeps_stage(void *self, const cd_key *key, const cd_agree_entry *entry)
{
    const state *s = self;
    const cd_agree_entry *post = cd_table_find(&s->posts.entries, key);
    (void)entry;
    return post != NULL && post->first.next != 0;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-ORDER", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->posts, context->allocator);
    cd_agree_init(&s->shares, context->allocator);
    cd_agree_init(&s->places, context->allocator);
    cd_agree_init(&s->stages, context->allocator);
    cd_table_init(&s->carried, context->allocator, sizeof(int64_t));
    cd_table_init(&s->counts, context->allocator, sizeof(posted));
    cd_ranks_init(&s->ends, context->allocator, sizeof(int64_t));
    cd_table_init(&s->reported, context->allocator, sizeof(int64_t));
    cd_table_init(&s->continuations, context->allocator, sizeof(continuation));
    cd_ranks_init(&s->caused, context->allocator, sizeof(continuation));
    cd_table_init(&s->longest, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->joined, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->stepped, context->allocator, sizeof(int64_t));
    cd_writer_set_agree_window(&s->writer, &s->posts, CD_WHOLE_GROUP);
    cd_agree_set_window(&s->places, &(cd_agree_window){.facts = context->facts,
                                                       .whole = CD_WHOLE_BY_STEP,
                                                       .keeps = keeps_place,
                                                       .self = s});
    cd_agree_set_window(&s->stages, &(cd_agree_window){.facts = context->facts,
                                                       .whole = CD_WHOLE_GROUP,
                                                       .keeps = keeps_stage,
                                                       .self = s,
                                                       .may_differ = true});
    cd_writer_set_agree_window(&s->writer, &s->shares, CD_WHOLE_MOST);
    cd_writer_set_window(&s->writer, &s->continuations, NULL);
    return CDDP_OK;
}

static void take_step(posted *p, const cddp_event *e)
{
    const int64_t stride = p->has_step ? (int64_t)e->step - p->step : 0;
    if (stride > p->stride) {
        p->stride = stride;
        p->stride_from = p->step;
        p->stride_at = p->count;
    }
    p->step = e->step;
    p->has_step = true;
}

/* In halves of steps: before and behind the optimizers. */
static int64_t time_of(const state *s, const cddp_event *e)
{
    const int64_t *stepped = cd_ranks_find(&s->stepped, e->rank);
    return 2 * (int64_t)e->step + (stepped != NULL && *stepped == (int64_t)e->step + 1);
}

/* Elsewhere operations of different buckets may follow each other in any order, or nobody knows. */
static bool advances_in_rounds(const state *s, uint32_t rank)
{
    cddp_fact_setting order;
    return cd_writer_find_setting(&s->writer, rank, CDDP_KEY_hook_continuations, &order) &&
           order.value == CDDP_CONTINUATIONS_ROUNDS && cd_writer_has_hook(&s->writer, rank);
}

static void take_stage(state *s, const posted *p, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    int64_t *carried = c->bucket >= 0 && advances_in_rounds(s, e->rank)
                           ? cd_table_add(&s->carried, CD_KEY(e->rank, c->bucket))
                           : NULL;
    if (carried == NULL) return;
    cd_agree_push(&s->stages,
                  &(cd_statement){.key = CD_KEY(c->group, p->count),
                                  CD_SAYS(c->bucket, *carried, p->bucket, p->has_ended)},
                  e);
    (*carried)++;
}

static void take_launch(state *s, const cddp_event *e)
{
    int64_t *carried = cd_table_find(&s->carried, CD_KEY(e->rank, e->as.bucket_launch.bucket));
    if (carried != NULL) *carried = 0;
}

static void take_done(state *s, const cddp_event *e)
{
    posted *p = cd_table_find(&s->counts, CD_KEY(e->as.collective_done.group, e->rank));
    if (p != NULL) p->has_ended = true;
}

static void take_post(state *s, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    if (c->op == CDDP_OP_SEND || c->op == CDDP_OP_RECV) return;
    posted *p = cd_table_add(&s->counts, CD_KEY(c->group, e->rank));
    if (p == NULL) return;
    cd_agree_push(&s->posts,
                  &(cd_statement){.key = CD_KEY(c->group, p->count),
                                  CD_SAYS(c->op, c->reduce_op, c->root, c->dtype,
                                          c->op != CDDP_OP_BARRIER ? c->numel : 0)},
                  e);
    continuation *caused = cd_ranks_find(&s->caused, e->rank);
    if (caused != NULL && caused->is_pending) {
        continuation *x = cd_table_add(&s->continuations, CD_KEY(c->group, p->count, e->rank));
        if (x != NULL) *x = *caused;
        caused->is_pending = false;
    }
    const int64_t *joined = cd_ranks_find(&s->joined, e->rank);
    if (c->bucket >= 0) take_step(p, e);
    if (c->bucket >= 0 && (joined == NULL || *joined == 0))
        cd_agree_push(&s->places,
                      &(cd_statement){.key = CD_KEY(c->group, p->count),
                                      CD_SAYS(e->step, c->bucket)},
                      e);
    take_stage(s, p, e);
    p->times[p->count % TIMES] = time_of(s, e);
    p->count++;
    p->last_sequence = e->sequence;
    p->bucket = c->bucket;
    p->has_ended = false;
}

/* Both ends of every share but a rank's share of itself. */
static void take_share(state *s, const cddp_event *e)
{
    const cddp_event_collective_share *c = &e->as.collective_share;
    if (c->peer == e->rank) return;
    cd_agree_push(&s->shares,
                  &(cd_statement){.key = CD_KEY(c->group, c->sequence, e->rank, c->peer),
                                  CD_SAYS(c->given)},
                  e);
    cd_agree_push(&s->shares,
                  &(cd_statement){.key = CD_KEY(c->group, c->sequence, c->peer, e->rank),
                                  CD_SAYS(c->taken)},
                  e);
}

static void take_cause(state *s, const cddp_event *e)
{
    continuation *next = cd_ranks_add(&s->caused, e->rank);
    if (next == NULL) return;
    *next = (continuation){.group = e->as.cause.group,
                           .sequence = e->as.cause.sequence,
                           .is_pending = true};
}

static void take_wait(state *s, const cddp_event *e)
{
    const cddp_event_collective_wait *w = &e->as.collective_wait;
    continuation *x = cd_table_find(&s->continuations, CD_KEY(w->group, w->sequence, e->rank));
    if (x != NULL) x->is_waited_for = true;
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    int64_t *number;
    switch (e->kind) {
    case CDDP_EV_collective_post:
        take_post(s, e);
        break;
    case CDDP_EV_collective_share:
        take_share(s, e);
        break;
    case CDDP_EV_collective_done:
        take_done(s, e);
        break;
    case CDDP_EV_bucket_launch:
        take_launch(s, e);
        break;
    case CDDP_EV_cause:
        take_cause(s, e);
        break;
    case CDDP_EV_collective_wait:
        take_wait(s, e);
        break;
    case CDDP_EV_group:
        (void)cd_table_add(&s->counts, CD_KEY(e->as.group.group, e->rank));
        break;
    case CDDP_EV_join_notify:
        number = cd_ranks_add(&s->joined, e->rank);
        if (number != NULL) *number = !e->as.join_notify.active;
        break;
    case CDDP_EV_optimizer_step:
        number = cd_ranks_add(&s->stepped, e->rank);
        if (number != NULL) *number = (int64_t)e->step + 1;
        break;
    case CDDP_EV_rank_end:
        number = cd_ranks_add(&s->ends, e->rank);
        if (number != NULL)
            *number = e->as.rank_end.end == 0 && e->as.rank_end.status == CDDP_OK ? 1 : 2;
        break;
    default:
        break;
    }
}

static const continuation *find_continuation(const state *s, const cd_split *split, uint32_t rank,
                                             int64_t *at)
{
    const int64_t group = split->key->part[0], k = split->key->part[1];
    for (*at = k; *at >= 0 && *at + 16 > k; (*at)--) {
        const continuation *x = cd_table_find(&s->continuations, CD_KEY(group, *at, rank));
        if (x != NULL) return x;
    }
    return NULL;
}

static bool explain_by_continuation(const state *s, const cd_split *split, cddp_finding *f)
{
    int64_t at, other_at;
    uint32_t rank = split->odd.rank;
    const continuation *x = find_continuation(s, split, rank, &at);
    const continuation *other = find_continuation(s, split, split->right.rank, &other_at);
    if (x == NULL || (other != NULL && other_at > at)) {
        rank = split->right.rank;
        x = other;
        at = other_at;
    }
    if (x == NULL) return false;
    CD_SAY(
        f->advice,
        "rank %u posts #%lld in a continuation of #%lld%s. Continuations run in another order on "
        "each rank",
        rank, (long long)at, (long long)x->sequence,
        x->is_waited_for ? " and waits for it there" : "");
    return true;
}

/* Note [Turns of stages]
**
** At the end of a backward a hook's further operations come in rounds: in each, the buckets in the
** order of their indices (HOOK-04). Up to the first operation that differs, all ranks have done the
** same. So the last bucket that had its turn is known. The next one is the first behind it, and
** after the highest the lowest. That is said of one operation only where it cannot be another one
** of the same turn: every side begins a stage (something has ended since its last post) of a bucket
** that has been launched, and all of these buckets have had equally many operations. Elsewhere the
** majority decides. */
static bool begins_turn(const cd_variant *v, const cd_variant *first)
{
    return v->data[STAGE_CARRIED] > 0 && v->data[STAGE_BEGINS] != 0 &&
           v->data[STAGE_CARRIED] == first->data[STAGE_CARRIED] &&
           v->data[STAGE_BEFORE] == first->data[STAGE_BEFORE];
}

static bool is_sooner(const cd_variant *a, const cd_variant *b)
{
    const int64_t before = a->data[STAGE_BEFORE], x = a->data[STAGE_BUCKET],
                  y = b->data[STAGE_BUCKET];
    return (x > before) != (y > before) ? x > before : x < y;
}

/* Whose turn it was; NULL: nobody knows. */
static const cd_variant *find_turn(const state *s, const cd_agree_entry *entry)
{
    const cd_variant *turn = &entry->first;
    for (const cd_variant *v = &entry->first; v != NULL; v = cd_agree_variant(&s->stages, v)) {
        if (!begins_turn(v, &entry->first)) return NULL;
        if (is_sooner(v, turn)) turn = v;
    }
    return turn;
}

static cddp_judgement judge_turn(void *self, uint32_t rank, const cd_variant *said)
{
    const cd_variant *turn = self;
    (void)said;
    return cd_rank_set_has(&turn->ranks, rank) ? CDDP_JUDGED_RIGHT : CDDP_JUDGED_WRONG;
}

/* Of all posts on which they differ, those of which every rank says whose stage it is. */
static void prefer_turns(state *s)
{
    for (size_t i = 0; s->posts.split_count > 0 && i < s->posts.entries.count; i++) {
        const cd_agree_entry *post = cd_table_value(&s->posts.entries, i);
        const cd_key *key = cd_table_key(&s->posts.entries, i);
        const cd_agree_entry *stage =
            post->first.next != 0 ? cd_table_find(&s->stages.entries, key) : NULL;
        if (stage == NULL || stage->first.next == 0 || stage->voters != post->voters) continue;
        const cd_variant *turn = find_turn(s, stage);
        if (turn != NULL)
            cd_agree_set_right(&s->posts, key,
                               &(cd_agree_judge){(void *)(uintptr_t)turn, judge_turn});
    }
}

/* What the rank itself said; NULL: nothing. */
static const cd_variant *find_said(const cd_agree *agree, const cd_key *key, uint32_t rank)
{
    const cd_agree_entry *entry = cd_table_find(&agree->entries, key);
    const cd_variant *v = entry != NULL ? &entry->first : NULL;
    while (v != NULL && !cd_rank_set_has(&v->ranks, rank)) v = cd_agree_variant(agree, v);
    return v;
}

/* -1: too long ago. */
static int64_t find_time(const state *s, const cd_key *key, uint32_t rank)
{
    const posted *p = cd_table_find(&s->counts, CD_KEY(key->part[0], rank));
    const int64_t k = key->part[1];
    return p != NULL && k < p->count && k + TIMES >= p->count ? p->times[k % TIMES] : -1;
}

static bool has_bucket(const state *s, int64_t group, int64_t k)
{
    return cd_table_find(&s->places.entries, CD_KEY(group, k)) != NULL;
}

/* The plan says which steps are taken, and each has its buckets. Without one, or of an operation
** that carries none, nobody says that it is due. */
static bool is_due(const state *s, int64_t group, int64_t k)
{
    cddp_fact_setting steps;
    return cd_writer_find_setting(&s->writer, 0, CDDP_KEY_train_steps, &steps) &&
           has_bucket(s, group, k);
}

typedef struct due {
    const state *s;
    const cd_key *key;
    int64_t time; /* of the reduction */
} due;

/* A rank that is past the gradients of a step has left their reduction out. One that is not may do
** something first that the others leave out: that is not said here. */
static cddp_judgement judge_due(void *self, uint32_t rank, const cd_variant *said)
{
    const due *d = self;
    (void)said;
    if (find_said(&d->s->places, d->key, rank) != NULL) return CDDP_JUDGED_RIGHT;
    return find_time(d->s, d->key, rank) > d->time ? CDDP_JUDGED_WRONG : CDDP_JUDGED_UNKNOWN;
}

/* Of all posts on which they differ, those of which some are the reductions of a step that the plan
** takes. */
static void prefer_due(state *s)
{
    for (size_t i = 0; s->posts.split_count > 0 && i < s->posts.entries.count; i++) {
        const cd_agree_entry *post = cd_table_value(&s->posts.entries, i);
        const cd_key *key = cd_table_key(&s->posts.entries, i);
        const cd_agree_entry *place =
            post->first.next != 0 ? cd_table_find(&s->places.entries, key) : NULL;
        if (place == NULL || place->first.next != 0 || !is_due(s, key->part[0], key->part[1]))
            continue;
        const due d = {s, key, find_time(s, key, place->first.rank)};
        cddp_fact_setting steps;
        const bool is_planned =
            cd_writer_find_setting(&s->writer, place->first.rank, CDDP_KEY_train_steps, &steps) &&
            place->first.data[0] < steps.value;
        if (d.time >= 0 && is_planned)
            cd_agree_set_right(&s->posts, key, &(cd_agree_judge){(void *)(uintptr_t)&d, judge_due});
    }
}

/* "allreduce(sum) of 12 f32, for the gradients of bucket 0" */
static void print_post(const state *s, const cd_key *key, const cd_variant *post, char *text,
                       size_t text_bytes)
{
    char operation[96];
    const cd_variant *place = find_said(&s->places, key, post->rank);
    cd_operation_print(post->data, operation, sizeof operation);
    if (place != NULL)
        cd_say(text, text_bytes, "rank %u: %s, for the gradients of bucket %lld", post->rank,
               operation, (long long)place->data[1]);
    else
        cd_say(text, text_bytes, "rank %u: %s", post->rank, operation);
}

static bool explain_by_turn(const state *s, const cd_split *split, cddp_finding *f)
{
    const cd_variant *right = find_said(&s->stages, split->key, split->right.rank),
                     *odd = find_said(&s->stages, split->key, split->odd.rank);
    if (!split->has_reference || right == NULL || odd == NULL) return false;
    f->bucket = (int32_t)odd->data[STAGE_BUCKET];
    CD_SAY(f->advice,
           "it is the turn of bucket %lld, and rank %u goes on with bucket %lld: stages of a hook "
           "run in rounds, each in the order of the buckets (HOOK-04)",
           (long long)right->data[STAGE_BUCKET], split->odd.rank,
           (long long)odd->data[STAGE_BUCKET]);
    return true;
}

static void report_mismatch(state *s, const cd_split *split)
{
    int64_t group = split->key->part[0];
    int64_t *reported = cd_table_add(&s->reported, CD_KEY(group));
    if (reported == NULL || (*reported)++ != 0) return;
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    CD_SAY(f.title, "%s disagree on collective #%lld of group '%s'", who,
           (long long)split->key->part[1], cd_writer_get_group(&s->writer, group));
    print_post(s, split->key, &split->right, f.expected, sizeof f.expected);
    print_post(s, split->key, &split->odd, f.actual, sizeof f.actual);
    char ranks[96];
    CD_SAY(ranks, "rank %u", split->odd.rank);
    if (!split->has_culprit) CD_SAY(ranks, "ranks %u and %u", split->right.rank, split->odd.rank);
    if (!explain_by_turn(s, split, &f) && !explain_by_continuation(s, split, &f))
        CD_SAY(
            f.advice,
            "look at what %s did just before: a branch, a skipped backward or an extra collective",
            ranks);
    cd_writer_report(&s->writer, &f);
}

/* Two ends of one share. The rank that expects it is the place of the finding. */
static void report_share(state *s, const cd_split *split)
{
    const int64_t group = split->key->part[0], from = split->key->part[2], to = split->key->part[3];
    int64_t *reported = cd_table_add(&s->reported, CD_KEY(group));
    if (reported == NULL || (*reported)++ != 0) return;
    cddp_finding f = cd_finding_of(&s->writer, split);
    const bool is_odd = split->odd.rank == (uint32_t)from;
    const int64_t given = is_odd ? split->odd.data[0] : split->right.data[0],
                  taken = is_odd ? split->right.data[0] : split->odd.data[0];
    cd_rank_set who = {0};
    cd_rank_set_add(&who, &s->writer.memory, (uint32_t)from);
    cd_rank_set_add(&who, &s->writer.memory, (uint32_t)to);
    f.rank = (int32_t)to;
    f.peer = (int32_t)from;
    cd_finding_set_ranks(&s->writer, &f, &who);
    CD_SAY(f.title, "ranks %lld and %lld disagree on a share of operation #%lld of group '%s'",
           (long long)(from < to ? from : to), (long long)(from < to ? to : from),
           (long long)split->key->part[1], cd_writer_get_group(&s->writer, group));
    CD_SAY(f.expected, "rank %lld gives rank %lld as many elements as that one expects",
           (long long)from, (long long)to);
    CD_SAY(f.actual, "rank %lld gives %lld, rank %lld expects %lld", (long long)from,
           (long long)given, (long long)to, (long long)taken);
    CD_SAY(f.advice, "compare the counts that both ranks compute: in an all-to-all send_counts of "
                     "the one with counts of the other");
    cd_writer_report(&s->writer, &f);
}

/* Of two ranks: does this one come to a step with #k past the other's, which it leaves out? */
static bool leaves_out(const state *s, const cd_key *key, const cd_variant *who, int64_t step)
{
    const posted *p = cd_table_find(&s->counts, CD_KEY(key->part[0], who->rank));
    return p != NULL && p->stride_at == key->part[1] && p->stride_from < step &&
           who->data[0] > step;
}

/* Where neither side has a majority, the one that leaves a step out is to blame. */
static cd_split settle_pairing(const state *s, const cd_split *given)
{
    cd_split split = *given;
    if (split.has_culprit || split.voters != 2) return split;
    const bool is_odd = leaves_out(s, split.key, &split.odd, split.right.data[0]),
               is_right = leaves_out(s, split.key, &split.right, split.odd.data[0]);
    if (is_odd == is_right) return split;
    if (is_right) {
        split.odd = given->right;
        split.odd_ranks = given->right.ranks;
        split.right = given->odd;
    }
    split.has_culprit = true;
    return split;
}

/* The same operation, for buckets of different steps. */
static void report_pairing(state *s, const cd_split *given)
{
    const cd_split settled = settle_pairing(s, given), *split = &settled;
    const int64_t group = split->key->part[0], k = split->key->part[1];
    const int64_t mine = split->odd.data[0], theirs = split->right.data[0];
    if (mine == theirs) return; /* I-CONTENT judges what a bucket has in it */
    int64_t *reported = cd_table_add(&s->reported, CD_KEY(group));
    if (reported == NULL || (*reported)++ != 0) return;
    cddp_finding f = cd_finding_of(&s->writer, split);
    char right[96];
    cd_rank_set_print(&split->right.ranks, split->right.rank, right, sizeof right);
    f.bucket = (int32_t)split->odd.data[1];
    CD_SAY(f.title, "rank %u: bucket %lld of step %lld meets bucket %lld of step %lld of %s",
           split->odd.rank, (long long)split->odd.data[1], (long long)mine,
           (long long)split->right.data[1], (long long)theirs, right);
    CD_SAY(f.expected, "collective #%lld of group '%s' carries one bucket of one step",
           (long long)k, cd_writer_get_group(&s->writer, group));
    if (mine > theirs)
        CD_SAY(f.actual, "rank %u issues nothing for step %lld between #%lld and #%lld",
               split->odd.rank, (long long)theirs, (long long)k - 1, (long long)k);
    else
        CD_SAY(f.actual, "rank %u issues more than %s before #%lld", split->odd.rank, right,
               (long long)k);
    CD_SAY(f.advice,
           "operations are paired by their number alone: look at what rank %u does in "
           "step %lld, up to #%lld",
           split->odd.rank, (long long)(mine < theirs ? mine : theirs), (long long)k);
    cd_writer_report(&s->writer, &f);
}

/* Members that returned well, and had not posted it. */
static uint32_t count_without(const state *s, int64_t group, int64_t k)
{
    uint32_t count = 0;
    for (size_t i = 0; i < s->counts.count; i++) {
        const posted *p = cd_table_value(&s->counts, i);
        const cd_key *key = cd_table_key(&s->counts, i);
        const int64_t *ended = cd_ranks_find(&s->ends, (uint32_t)key->part[1]);
        count += key->part[0] == group && p->count <= k && ended != NULL && *ended == 1;
    }
    return count;
}

static cd_rank_set find_posters(state *s, int64_t group, int64_t k)
{
    cd_rank_set with = {0};
    for (size_t i = 0; i < s->counts.count; i++) {
        const posted *p = cd_table_value(&s->counts, i);
        const cd_key *key = cd_table_key(&s->counts, i);
        if (key->part[0] == group && p->count > k)
            cd_rank_set_add(&with, &s->writer.memory, (uint32_t)key->part[1]);
    }
    return with;
}

/* Half of the members returned without it, and nobody says that it is due: either side may err. */
static void blame_both(state *s, int64_t group, int64_t k, const cd_rank_set *without,
                       cddp_finding *f)
{
    cd_rank_set both = {0};
    char others[96], names[96];
    cd_rank_set with = find_posters(s, group, k);
    cd_rank_set_unite(&both, &s->writer.memory, &with);
    cd_rank_set_unite(&both, &s->writer.memory, without);
    f->rank = -1;
    cd_finding_set_ranks(&s->writer, f, &both);
    cd_rank_set_print(&with, CD_NO_RANK, names, sizeof names);
    cd_rank_set_print(without, CD_NO_RANK, others, sizeof others);
    CD_SAY(f->title,
           "%s returned without collective #%lld of group '%s', which %s posted: no majority",
           others, (long long)k, cd_writer_get_group(&s->writer, group), names);
    CD_SAY(f->advice, "either %s left it out, or %s posted one more than it should", others, names);
}

/* Most members returned without it: who posted it differs from all others. */
static void blame_posters(state *s, int64_t group, int64_t k, const cd_rank_set *without,
                          cddp_finding *f)
{
    const cd_rank_set with = find_posters(s, group, k);
    char others[96], names[96];
    f->peer = f->rank;
    f->rank = (int32_t)cd_rank_set_next(&with, 0);
    cd_finding_set_ranks(&s->writer, f, &with);
    cd_rank_set_print(&with, CD_NO_RANK, names, sizeof names);
    cd_rank_set_print(without, CD_NO_RANK, others, sizeof others);
    CD_SAY(f->title, "%s posted collective #%lld of group '%s', which %s returned without", names,
           (long long)k, cd_writer_get_group(&s->writer, group), others);
    CD_SAY(f->advice,
           "most ranks return without it (no reference; majority): look for an extra collective or "
           "one more iteration of %s; or else for what %s left out",
           names, others);
}

/* The longest sequence of a group against those that returned early. */
static void report_short(state *s, int64_t group)
{
    int64_t longest = 0, shortest = INT64_MAX;
    uint32_t long_rank = 0, short_rank = 0, short_count = 0, members = 0;
    cd_rank_set who = {0};
    for (size_t i = 0; i < s->counts.count; i++) {
        const posted *p = cd_table_value(&s->counts, i);
        const cd_key *key = cd_table_key(&s->counts, i);
        members += key->part[0] == group;
        bool is_longer = p->count > longest || (p->count == longest && key->part[1] < long_rank);
        if (key->part[0] != group || p->count == 0 || !is_longer) continue;
        longest = p->count;
        long_rank = (uint32_t)key->part[1];
    }
    for (size_t i = 0; i < s->counts.count; i++) {
        const posted *p = cd_table_value(&s->counts, i);
        const cd_key *key = cd_table_key(&s->counts, i);
        const int64_t *ended = cd_ranks_find(&s->ends, (uint32_t)key->part[1]);
        if (key->part[0] != group || p->count >= longest || ended == NULL || *ended != 1) continue;
        cd_rank_set_add(&who, &s->writer.memory, (uint32_t)key->part[1]);
        short_count++;
        if (p->count < shortest || (p->count == shortest && key->part[1] < short_rank)) {
            shortest = p->count;
            short_rank = (uint32_t)key->part[1];
        }
    }
    if (short_count == 0) return;
    const cd_agree_entry *missing = cd_table_find(&s->posts.entries, CD_KEY(group, shortest));
    if (missing == NULL) return;
    cddp_event place = {.rank = short_rank,
                        .step = missing->step,
                        .micro_step = missing->micro_step,
                        .sequence = missing->first.sequence};
    cddp_finding f = cd_finding_at(&s->writer, &place);
    f.event_count = 0;
    cd_finding_add_event(&f, missing->first.rank, missing->first.sequence);
    cd_finding_set_ranks(&s->writer, &f, &who);
    f.peer = (int32_t)long_rank;
    char operation[96], names[96];
    cd_operation_print(missing->first.data, operation, sizeof operation);
    cd_rank_set_print(&who, short_rank, names, sizeof names);
    CD_SAY(f.title, "%s returned without posting collective #%lld of group '%s'", names,
           (long long)shortest, cd_writer_get_group(&s->writer, group));
    CD_SAY(f.expected, "rank %u: %s, %lld collectives in all", missing->first.rank, operation,
           (long long)longest);
    CD_SAY(f.actual, "rank %u: %lld collectives", short_rank, (long long)shortest);
    CD_SAY(f.advice, "rank %u ran fewer synchronising iterations, or left an operation out%s",
           short_rank, s->joined.count == 0 ? "; if it had fewer inputs, join is for that" : "");
    const uint32_t without = count_without(s, group, shortest);
    if (without * 2 > members && !is_due(s, group, shortest))
        blame_posters(s, group, shortest, &who, &f);
    else if (without * 2 == members && !has_bucket(s, group, shortest))
        blame_both(s, group, shortest, &who, &f);
    cd_writer_report(&s->writer, &f);
}

/* Only groups in which somebody posted less are looked at as a whole: there may be many groups. */
static void report_short_groups(state *s)
{
    for (size_t i = 0; i < s->counts.count; i++) {
        const posted *p = cd_table_value(&s->counts, i);
        int64_t *longest = cd_table_add(&s->longest, CD_KEY(cd_table_key(&s->counts, i)->part[0]));
        if (longest != NULL && p->count > *longest) *longest = p->count;
    }
    for (size_t i = 0; i < s->counts.count; i++) {
        const posted *p = cd_table_value(&s->counts, i);
        const int64_t group = cd_table_key(&s->counts, i)->part[0];
        int64_t *longest = cd_table_find(&s->longest, CD_KEY(group));
        if (longest == NULL || p->count >= *longest) continue;
        *longest = 0; /* once */
        int64_t *reported = cd_table_add(&s->reported, CD_KEY(group));
        if (reported == NULL || (*reported)++ != 0) continue;
        report_short(s, group);
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->posts.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu collectives posted by several ranks",
                           (unsigned long long)s->posts.shared_count);
    prefer_turns(s);
    prefer_due(s);
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->posts, &cursor, &split);) report_mismatch(s, &split);
    for (size_t cursor = 0; cd_agree_next(&s->shares, &cursor, &split);) report_share(s, &split);
    for (size_t cursor = 0; cd_agree_next(&s->places, &cursor, &split);) report_pairing(s, &split);
    report_short_groups(s);
    cd_agree_fini(&s->posts);
    cd_agree_fini(&s->shares);
    cd_agree_fini(&s->places);
    cd_agree_fini(&s->stages);
    cd_table_fini(&s->carried);
    cd_table_fini(&s->counts);
    cd_ranks_fini(&s->ends);
    cd_table_fini(&s->reported);
    cd_table_fini(&s->continuations);
    cd_ranks_fini(&s->caused);
    cd_table_fini(&s->longest);
    cd_ranks_fini(&s->joined);
    cd_ranks_fini(&s->stepped);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_collective_post, CDDP_EV_collective_share,
                                 CDDP_EV_group,           CDDP_EV_rank_end,
                                 CDDP_EV_join_notify,     CDDP_EV_cause,
                                 CDDP_EV_collective_wait, CDDP_EV_collective_done,
                                 CDDP_EV_bucket_launch,   CDDP_EV_optimizer_step};

CD_CHECK_TABLE(order, "I-ORDER",
               "every member of a group posts the same collectives in the same order",
               "Per group, the k-th collective on every member has the same operation, reduction, "
               "root, dtype and count, "
               "and all members post equally many.");
