/* SPDX-License-Identifier: Apache-2.0 */
/* I-HOOK: a comm hook is called once per bucket per window, in bucket order, with the last one
** marked, and keeps the law that the plan's words define, and its own.
**
** Judged from   hook_call and hook_done between two finalised backwards; bucket_layout for which
**               bucket is last. bucket_law, bucket_sum and bucket_slice, which the judge of hooks
**               states; collective_post, grad_local and grad_final, which it is compared with
**               (hook_sums.c).
**               hook_law: a quantity the hook states itself, with its allowed distance; or the n-th
**               of a bucket's call, summed over the ranks. owed: how many of them there are.
**               Compare events of link 9, and of link 17, of which a wrong mean is a consequence.
**               hook_done digests across ranks where the backend promises equal bits; agreement,
**               which narrows that to the ranks that must agree.
** Exercised     a hook call completed.
** Blame         the rank and the bucket; for a law the rank that broke it, none where it is over
**               all ranks. Of a mean the one rank whose part is missing, where that rank alone does
**               not post its share. See Note [Whose part is missing]. A wrong sum over the ranks
**               is not reported where one rank is known to have sent something else; a law over
**               all ranks that is broken then comes behind it. Of laws that are not stated the
**               ranks that owe them, where most ranks state theirs: what nobody states is not
**               judged, and no finding. Where the plan does not say what a hook states, the ranks
**               that state a law less often than others (hook_voices.h).
** Limits        calls of a joined rank have no window: of them only the zeros are judged. The first
**               pass of a static graph marks no bucket as last (STA-04), so is_last is judged from
**               the second window on; a further first pass behind a new group marks none. What a
**               hook declares to be no communication (noop) makes ranks differ, as it should. Of a
**               plugin's hook only what its table promises is known. A low rank says nothing about
**               which rank forgot an error.
*/
#include "core/check/hook_sums.h"
#include "core/check/hook_voices.h"
#include "core/check/stages.h"
#include "core/check/writer.h"

#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

typedef struct rank_facts {
    /* finalised backwards; bucket of the previous call in this window, + 1 */
    int64_t windows, last_bucket;
    int64_t unwrapped; /* windows before its wrapper was made */
    int64_t group, bucket_count;
    int64_t generation;
    uint64_t calls, done;
    bool is_wrapped, is_shadow; /* is_shadow: the last launch mirrored one of other ranks */
    bool is_odd_shadow;         /* and was not zeros */
    /* the group was set anew (UPG-01), and this window is a first pass of a static graph again */
    bool is_renewed, is_delayed;
} rank_facts;

typedef struct call {
    int64_t window; /* + 1; the window of the last call */
    bool is_open;
    uint64_t sequence;
    uint32_t step, done; /* completions in this step; ranks may have them at other micro-steps */
} call;

/* One statement of a law over all ranks, so far; the place is that of the lowest rank that
** spoke. */
typedef struct joint {
    double left, right, bound;
    uint32_t count, rank, step, micro_step;
    uint64_t sequence;
} joint;

/* What a rank states of a bucket: in which call, and how many times a law in it. */
typedef struct stated {
    uint64_t call, count;
} stated;

/* The laws that a rank owes in a step, and has stated. */
typedef struct due {
    int64_t owed, stated, group;
    uint32_t micro_step;
    uint64_t sequence; /* of the first that is owed */
} due;

typedef struct state {
    cd_writer writer;
    cd_ranks ranks;   /* of rank_facts */
    cd_table calls;   /* (rank, bucket) → call */
    cd_agree results; /* (step, completion, bucket) → digest, dtype */
    cd_table opened;  /* (rank, bucket) → how often a hook was called, shadows included */
    cd_table stated;  /* (rank, bucket, law over all ranks) → stated */
    cd_table joint;   /* (call and how often before in it, bucket, law, group) → joint */
    cd_table dues;    /* (step, rank) → due */
    cd_hook_sums sums;
    cd_hook_voices voices;
    uint64_t completed;
} state;

static bool keeps_joint(void *self, const cd_key *key, const void *value)
{
    const state *s = self;
    const joint *j = value;
    cddp_fact_group group;
    return !cd_writer_find_group(&s->writer, key->part[3], &group) ||
           (int64_t)j->count != group.members;
}

static bool keeps_due(void *self, const cd_key *key, const void *value)
{
    const due *d = value;
    (void)self, (void)key;
    return d->owed > d->stated;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-HOOK", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->calls, context->allocator, sizeof(call));
    cd_agree_init(&s->results, context->allocator);
    cd_table_init(&s->opened, context->allocator, sizeof(uint64_t));
    cd_table_init(&s->stated, context->allocator, sizeof(stated));
    cd_table_init(&s->joint, context->allocator, sizeof(joint));
    cd_table_init(&s->dues, context->allocator, sizeof(due));
    cd_hook_sums_init(&s->sums, &s->writer, context->allocator);
    cd_hook_voices_init(&s->voices, &s->writer, context->allocator);
    cd_writer_set_agree_window(&s->writer, &s->results, CD_WHOLE_BY_STEP);
    cd_writer_set_window(&s->writer, &s->joint, keeps_joint);
    cd_writer_set_window(&s->writer, &s->dues, keeps_due);
    return CDDP_OK;
}

typedef struct breach {
    int64_t bucket;
    const char *title, *expected, *actual;
} breach;

static void report(state *s, const cddp_event *e, const breach *b)
{
    if (!cd_writer_is_first(&s->writer, CD_KEY(0, b->bucket), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)b->bucket;
    CD_SAY(f.title, CDDP_FINDING_WHO ": hook %s%s%s", e->text != NULL ? e->text : "",
           e->text != NULL ? " " : "", b->title);
    CD_SAY(f.expected, "%s", b->expected);
    CD_SAY(f.actual, "%s", b->actual);
    CD_SAY(f.advice,
           "a hook is called once per bucket per synchronised backward, in bucket order (HOOK-04)");
    cd_writer_hold(&s->writer, CD_KEY(0, b->bucket), &f);
}

static void take_call(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_hook_call *h = &e->as.hook_call;
    call *c = cd_table_add(&s->calls, CD_KEY(e->rank, h->bucket));
    if (c == NULL) return;
    r->calls++;
    char expected[96], actual[96];
    CD_SAY(expected, "one call for bucket %lld between two finalisations", (long long)h->bucket);
    CD_SAY(actual, "another call at event %llu", (unsigned long long)e->sequence);
    if (c->window == r->windows + 1)
        report(s, e, &(breach){h->bucket, "is called twice for one bucket", expected, actual});
    CD_SAY(expected, "a bucket after %lld", (long long)(r->last_bucket - 1));
    CD_SAY(actual, "bucket %lld", (long long)h->bucket);
    if (h->bucket + 1 < r->last_bucket)
        report(s, e, &(breach){h->bucket, "is called out of bucket order", expected, actual});
    /* STA-04: a first pass marks the only bucket at most */
    const bool is_first_again = r->is_renewed && r->is_delayed;
    bool is_last = is_first_again ? r->bucket_count == 1 : h->bucket + 1 == r->bucket_count;
    CD_SAY(expected, "is_last %s: bucket %lld of %lld", is_last ? "set" : "not set",
           (long long)h->bucket, (long long)r->bucket_count);
    CD_SAY(actual, "is_last %s", h->is_last ? "set" : "not set");
    if (r->windows > r->unwrapped && r->bucket_count > 0 && is_last != (h->is_last != 0))
        report(s, e,
               &(breach){h->bucket, "is called with the wrong bucket as the last", expected,
                         actual});
    CD_SAY(expected, "layout %lld", (long long)r->generation);
    CD_SAY(actual, "layout %lld", (long long)h->generation);
    if (h->generation != r->generation)
        report(s, e, &(breach){h->bucket, "sees a layout that is not in force", expected, actual});
    *c = (call){r->windows + 1, true, e->sequence, c->step, c->done};
    r->last_bucket = h->bucket + 1;
}

static void take_done(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_hook_done *h = &e->as.hook_done;
    call *c = cd_table_add(&s->calls, CD_KEY(e->rank, h->bucket));
    if (c == NULL) return;
    if (!c->is_open)
        report(s, e,
               &(breach){h->bucket, "completes without having been called", "a call before",
                         "no open call"});
    c->is_open = false;
    c->done = c->step == e->step ? c->done + 1 : 1;
    c->step = e->step;
    r->done++;
    s->completed++;
    if (r->is_wrapped && h->digest != 0 && cd_writer_has_equal_bits(&s->writer, r->group))
        cd_agree_push(&s->results,
                      &(cd_statement){.key =
                                          CD_KEY(e->step, c->done, h->bucket,
                                                 cd_writer_get_block(&s->writer, r->group, e->rank,
                                                                     CDDP_AGREED_GRADIENTS)),
                                      CD_SAYS(h->digest, h->dtype)},
                      e);
}

static bool was_rebuilt(const state *s, uint32_t rank)
{
    const cddp_facts *facts = s->writer.context.facts;
    return facts->generation(facts->self, rank) > 0;
}

static void take_law(state *s, const cddp_event *e)
{
    const cddp_event_hook_law *l = &e->as.hook_law;
    double left = cd_f64_of(l->left), right = cd_f64_of(l->right), bound = cd_f64_of(l->bound);
    if (fabs(left - right) <= bound || isinf(bound)) return; /* of infinities: I-RANGE */
    if (!cd_writer_is_first(&s->writer, CD_KEY(1, l->bucket), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)l->bucket;
    const char *text = e->text != NULL ? e->text : "";
    if (l->bucket < 0)
        CD_SAY(f.title, CDDP_FINDING_WHO ": a law is broken: %s", text);
    else
        CD_SAY(f.title, CDDP_FINDING_WHO ": the hook breaks its law for bucket %lld, \"%s\"",
               (long long)l->bucket, text);
    CD_SAY(f.expected, "%.17g, within %.3g", right, bound);
    CD_SAY(f.actual, "%.17g", left);
    if (l->bucket < 0)
        CD_SAY(f.advice, "a law without a bucket is the model averager's, or one that a plugin "
                         "states: compare what was given to the sum, and what came back");
    else
        CD_SAY(f.advice, "the hook itself stated both sides of this law%s",
               was_rebuilt(s, e->rank) ? "; state that it keys by bucket index does not survive "
                                         "the rebuild"
                                       : "");
    cd_writer_hold(&s->writer, CD_KEY(1, l->bucket), &f);
}

#define STATED_MAX 4096 /* times that a law is stated in one call */

/* The n-th statement of every rank in the k-th call belongs together, whatever step a joined rank
** is in. So one that is left out says nothing of those that follow it. */
static joint *add_to_joint(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_hook_law *l = &e->as.hook_law;
    int64_t law = (int64_t)cd_hash_text(e->text);
    stated *before = cd_table_add(&s->stated, CD_KEY(e->rank, l->bucket, law));
    const uint64_t *opened = cd_table_find(&s->opened, CD_KEY(e->rank, l->bucket));
    if (before == NULL) return NULL;
    if (opened != NULL && before->call != *opened) *before = (stated){.call = *opened};
    const uint64_t place = before->call * STATED_MAX + before->count;
    joint *j = cd_table_add(&s->joint, CD_KEY((int64_t)place, l->bucket, law, r->group));
    if (j == NULL) return NULL;
    before->count++;
    j->left += cd_f64_of(l->left);
    j->right += cd_f64_of(l->right);
    j->bound += cd_f64_of(l->bound);
    if (j->count == 0 || e->rank < j->rank) {
        j->rank = e->rank;
        j->step = e->step;
        j->micro_step = e->micro_step;
        j->sequence = e->sequence;
    }
    j->count++;
    return j;
}

static void take_joint_law(state *s, const cddp_event *e, const rank_facts *r)
{
    cddp_fact_group group;
    const bool is_known = r->is_wrapped && cd_writer_find_group(&s->writer, r->group, &group);
    const joint *j = is_known ? add_to_joint(s, e, r) : NULL;
    if (j == NULL || j->count != (uint64_t)group.members || fabs(j->left - j->right) <= j->bound)
        return;
    cddp_event place = {.kind = e->kind,
                        .rank = j->rank,
                        .step = j->step,
                        .micro_step = j->micro_step,
                        .sequence = j->sequence};
    if (!cd_writer_is_first(&s->writer, CD_KEY(3, e->as.hook_law.bucket), &place)) return;
    cddp_finding f = cd_finding_at(&s->writer, &place);
    f.rank = -1;
    f.bucket = (int32_t)e->as.hook_law.bucket;
    f.is_consequence = cd_hook_sums_has_parted(&s->sums, place.step);
    const char *text = e->text != NULL ? e->text : "";
    if (f.bucket < 0)
        CD_SAY(f.title, "the ranks together break a law: %s", text);
    else
        CD_SAY(f.title, "the hook breaks its law over all ranks for bucket %lld, \"%s\"",
               (long long)f.bucket, text);
    /* not more: the last digits depend on the order of ranks */
    CD_SAY(f.expected, "%.9g, within %.3g", j->right, j->bound);
    CD_SAY(f.actual, "%.9g", j->left);
    CD_SAY(f.advice,
           "both sides are sums over the ranks of what each stated: compare what was averaged, "
           "and by which number. A hook that makes something else may not promise this law");
    cd_writer_hold(&s->writer, CD_KEY(3, e->as.hook_law.bucket), &f);
}

static due *due_of(state *s, const cddp_event *e)
{
    return cd_table_add(&s->dues, CD_KEY(e->step, e->rank));
}

/* Also one within any distance, which says nothing: the rank could not say more, and left nothing
** out. */
static void count_law(state *s, const cddp_event *e)
{
    due *d = e->as.hook_law.bucket >= 0 ? due_of(s, e) : NULL;
    if (d != NULL) d->stated++;
}

static void count_owed(state *s, const cddp_event *e, const rank_facts *r)
{
    if (e->text == NULL || strcmp(e->text, CD_STATED_LAWS) != 0) return;
    due *d = due_of(s, e);
    if (d == NULL) return;
    if (d->owed == 0) d->micro_step = e->micro_step;
    if (d->owed == 0) d->sequence = e->sequence;
    d->owed += e->as.owed.count;
    d->group = r->group;
}

/* What a lossy hook makes of it may lie within the hook's laws. */
static void report_shadow(state *s, const cddp_event *e)
{
    const int64_t bucket = e->as.hook_call.bucket;
    if (!cd_writer_is_first(&s->writer, CD_KEY(4, bucket), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)bucket;
    CD_SAY(f.title,
           CDDP_FINDING_WHO ": after joining, what the hook is given for bucket %lld is not zeros",
           (long long)bucket);
    CD_SAY(f.expected, "zeros: the rank has no more samples");
    CD_SAY(f.actual, "other numbers, which enter the average of all ranks");
    CD_SAY(f.advice, "a joined rank shadows each reduction with zeros (JON-13)");
    cd_writer_hold(&s->writer, CD_KEY(4, bucket), &f);
}

static void count_call(state *s, const cddp_event *e)
{
    uint64_t *opened = cd_table_add(&s->opened, CD_KEY(e->rank, e->as.hook_call.bucket));
    if (opened != NULL) (*opened)++;
}

static void close_window(state *s, const cddp_event *e, rank_facts *r)
{
    for (size_t i = 0; r->calls > r->done && i < s->calls.count; i++) {
        const call *c = cd_table_value(&s->calls, i);
        const cd_key *key = cd_table_key(&s->calls, i);
        int64_t b = key->part[1];
        if (key->part[0] != (int64_t)e->rank || !c->is_open) continue;
        report(s, e,
               &(breach){b, "never completes for a bucket", "a result before finalisation",
                         "none"});
    }
    r->calls = r->done = 0;
    r->last_bucket = 0;
    r->windows++;
    r->is_renewed = r->is_delayed = false;
}

/* Of shapes alone nobody can see that they are zeros. */
static bool has_values(const state *s, uint32_t rank)
{
    cddp_fact_setting device;
    return !cd_writer_find_setting(&s->writer, rank, CDDP_KEY_model_device, &device) ||
           device.value != CDDP_MODEL_DEVICE_SHAPE;
}

/* The reducer expects gradients anew: of what a backward that was left has called nobody takes a
** result. */
static void drop_window(state *s, const cddp_event *e, rank_facts *r)
{
    for (size_t i = 0; r->calls > 0 && i < s->calls.count; i++) {
        call *c = cd_table_value(&s->calls, i);
        if (cd_table_key(&s->calls, i)->part[0] == (int64_t)e->rank)
            *c = (call){.step = c->step, .done = c->done};
    }
    if (r->calls > 0) cd_hook_voices_drop(&s->voices, e->rank);
    r->calls = r->done = 0;
    r->last_bucket = 0;
    r->is_delayed = false;
}

static void take_mark(const cddp_event *e, rank_facts *r)
{
    if (e->text == NULL) return;
    r->is_renewed |= strcmp(e->text, CD_TRACER_LEFT) == 0;
    r->is_delayed |= strcmp(e->text, "static_graph_delayed_reduction") == 0;
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (r->is_wrapped) cd_hook_sums_take(&s->sums, e, r->group);
    cd_hook_voices_take(&s->voices, e, r->group);
    switch (e->kind) {
    case CDDP_EV_wrap:
        r->group = e->as.wrap.group;
        r->is_wrapped = true;
        r->unwrapped = r->windows;
        break;
    case CDDP_EV_bucket_layout:
        if (e->as.bucket_layout.generation != r->generation) r->bucket_count = 0;
        r->generation = e->as.bucket_layout.generation;
        if (e->as.bucket_layout.bucket >= r->bucket_count)
            r->bucket_count = e->as.bucket_layout.bucket + 1;
        break;
    case CDDP_EV_regroup:
        r->is_renewed = true;
        break;
    case CDDP_EV_mark:
        take_mark(e, r);
        break;
    case CDDP_EV_forward_end:
        if (e->as.forward_end.prepared) drop_window(s, e, r);
        break;
    case CDDP_EV_bucket_launch:
        r->is_shadow = e->as.bucket_launch.shadow;
        r->is_odd_shadow =
            r->is_shadow && has_values(s, e->rank) && !cd_stages_is_zeros(&e->as.bucket_launch);
        break;
    case CDDP_EV_owed:
        count_owed(s, e, r);
        break;
    case CDDP_EV_hook_call:
        count_call(s, e);
        if (!r->is_shadow) take_call(s, e, r);
        if (r->is_odd_shadow) report_shadow(s, e);
        break;
    case CDDP_EV_hook_done:
        if (!r->is_shadow) take_done(s, e, r);
        break;
    case CDDP_EV_hook_law:
        count_law(s, e);
        if (e->as.hook_law.over_ranks)
            take_joint_law(s, e, r);
        else
            take_law(s, e);
        break;
    case CDDP_EV_backward_end:
        if (e->as.backward_end.finalized) close_window(s, e, r);
        break;
    default:
        break;
    }
}

typedef struct judged_bucket {
    const cddp_facts *facts;
    int64_t bucket;
    uint32_t step;
} judged_bucket;

/* By the averages of what lies in the bucket now, as far as the oracle looked at them. */
static cddp_judgement judge_bucket(void *self, uint32_t rank, const cd_variant *said)
{
    const judged_bucket *b = self;
    cddp_judgement found = CDDP_JUDGED_UNKNOWN;
    (void)said;
    for (int64_t i = 0;; i++) {
        const int64_t param =
            b->facts->member(b->facts->self, rank, &(cddp_fact_slot){b->bucket, i});
        if (param < 0) return found;
        const cddp_judgement one =
            b->facts->judged(b->facts->self,
                             &(cddp_fact_judged){rank, b->step, CD_LINK_REDUCTION, param});
        if (one == CDDP_JUDGED_WRONG) return one;
        if (one == CDDP_JUDGED_RIGHT) found = one;
    }
}

/* A rank whose averages the oracle found right has the right result, whatever most ranks have. */
static void prefer_reference(state *s)
{
    for (size_t i = 0; s->results.split_count > 0 && i < s->results.entries.count; i++) {
        const cd_agree_entry *entry = cd_table_value(&s->results.entries, i);
        const cd_key *key = cd_table_key(&s->results.entries, i);
        judged_bucket b = {s->writer.context.facts, key->part[2], (uint32_t)key->part[0]};
        if (entry->first.next != 0)
            cd_agree_set_right(&s->results, key, &(cd_agree_judge){&b, judge_bucket});
    }
}

/* A rank that does something else with a bucket than the plan's hook is the cause of what does not
** add up over all ranks. */
static void put_behind_culprits(state *s)
{
    for (size_t i = 0; i < s->joint.count; i++) {
        const int64_t bucket = cd_table_key(&s->joint, i)->part[1];
        cddp_finding *f = cd_writer_get_held(&s->writer, CD_KEY(3, bucket));
        if (f != NULL && cd_hook_sums_has_culprit(&s->sums, bucket, f->step))
            f->is_consequence = true;
    }
}

/* The earliest step in which a rank owes laws; NULL: none. *ranks: all that do so then. */
static const due *find_due(const state *s, uint32_t *step, cd_rank_set *ranks, cd_arena *memory)
{
    const due *found = NULL;
    for (size_t i = 0; i < s->dues.count; i++) {
        const due *d = cd_table_value(&s->dues, i);
        const cd_key *key = cd_table_key(&s->dues, i);
        if (d->owed <= d->stated || (found != NULL && key->part[0] > (int64_t)*step)) continue;
        if (found == NULL || key->part[0] < (int64_t)*step) *ranks = (cd_rank_set){0};
        *step = (uint32_t)key->part[0];
        cd_rank_set_add(ranks, memory, (uint32_t)key->part[1]);
        if (cd_rank_set_next(ranks, 0) == (uint32_t)key->part[1]) found = d;
    }
    return found;
}

/* Where most ranks owe some, the hook states less than it is to: that leaves the run unjudged. */
static void report_due(state *s)
{
    cddp_fact_group group;
    cd_rank_set ranks = {0};
    uint32_t step = 0;
    char who[96];
    const due *d = find_due(s, &step, &ranks, &s->writer.memory);
    if (d == NULL || !cd_writer_find_group(&s->writer, d->group, &group) ||
        2 * cd_rank_set_count(&ranks) >= (uint64_t)group.members)
        return;
    const cddp_event place = {.kind = CDDP_EV_owed,
                              .rank = cd_rank_set_next(&ranks, 0),
                              .step = step,
                              .micro_step = d->micro_step,
                              .sequence = d->sequence};
    cddp_finding f = cd_finding_at(&s->writer, &place);
    cd_rank_set_print(&ranks, place.rank, who, sizeof who);
    cd_finding_set_ranks(&s->writer, &f, &ranks);
    CD_SAY(f.title, "%s: the hook leaves out laws of its buckets that the other ranks state", who);
    CD_SAY(f.expected, "rank %u: %lld laws in step %u, as the plan's hook has them", place.rank,
           (long long)d->owed, step);
    CD_SAY(f.actual, "%lld", (long long)d->stated);
    CD_SAY(f.advice, "what a rank does not state is not judged there: compare the hook's code on "
                     "this rank, and what its tracer was given");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->completed > 0)
        cd_writer_exercise(&s->writer, "%llu hook calls completed",
                           (unsigned long long)s->completed);
    prefer_reference(s);
    cd_split split;
    uint64_t count = 0;
    size_t cursor = 0;
    if (cd_agree_next_step(&s->results, &cursor, &split, &count)) {
        cddp_finding f = cd_finding_of(&s->writer, &split);
        char who[160];
        cd_split_print(&split, who, sizeof who);
        f.bucket = (int32_t)split.key->part[2];
        f.is_consequence = cd_hook_sums_has_parted(&s->sums, split.step) ||
                           cd_hook_sums_has_culprit(&s->sums, f.bucket, split.step);
        CD_SAY(f.title, "%s get different results from the hook for bucket %lld", who,
               (long long)split.key->part[2]);
        CD_SAY(f.expected, "rank %u: %016llx", split.right.rank,
               (unsigned long long)split.right.data[0]);
        CD_SAY(f.actual, "rank %u: %016llx", split.odd.rank, (unsigned long long)split.odd.data[0]);
        CD_SAY(f.advice, "all ranks must have one result (HOOK-08): compare what the hook's "
                         "collectives gave to each, and what it made of that");
        cd_writer_report(&s->writer, &f);
    }
    put_behind_culprits(s);
    cd_hook_sums_end(&s->sums);
    report_due(s);
    cd_hook_voices_report(&s->voices);
    cd_hook_voices_fini(&s->voices);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->calls);
    cd_agree_fini(&s->results);
    cd_table_fini(&s->opened);
    cd_table_fini(&s->stated);
    cd_table_fini(&s->joint);
    cd_table_fini(&s->dues);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_wrap,          CDDP_EV_bucket_layout, CDDP_EV_regroup,         CDDP_EV_forward_end,
    CDDP_EV_bucket_launch, CDDP_EV_hook_call,     CDDP_EV_hook_done,       CDDP_EV_hook_law,
    CDDP_EV_owed,          CDDP_EV_compare,       CDDP_EV_backward_end,    CDDP_EV_bucket_law,
    CDDP_EV_bucket_sum,    CDDP_EV_bucket_slice,  CDDP_EV_collective_post, CDDP_EV_collective_done,
    CDDP_EV_grad_final,    CDDP_EV_grad_local,    CDDP_EV_mark_ready,      CDDP_EV_mark};

CD_CHECK_TABLE(hook, "I-HOOK", "the comm hook keeps its contract and its law",
               "The hook contract is kept per bucket and window; hook state is consistent over "
               "steps, rebuilds and ranks.");
