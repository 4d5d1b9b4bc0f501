/* SPDX-License-Identifier: Apache-2.0 */
/* I-SHOWN: what the judge is shown is what the rank has.
**
** Judged from   shown, the digest of the judge's copies at a moment, against the value events of
**               the same moment, or against grad_local; misshown, what the judge itself found to be
**               different; bucket_shown against bucket_launch, or bucket_layout. Of a sum that
**               seems wrong the mark CD_TRACER_SHOWN_SUM (of a program's collective
**               CD_TRACER_SHOWN_OUTPUT), against what its members posted and what
**               the rank received (sight.h).
** Exercised     copies of a moment were compared with the values that followed them.
** Blame         the ranks of which the judge was shown something else.
** Limits        without a judge nothing is shown. A moment that a rank never reaches is owed
**               elsewhere. The state of AMSGrad is not shown.
*/
#include "core/check/sight.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/hash.h"

#include <string.h>

#define WHAT_COUNT ((int64_t)CDDP_WHAT_AVERAGER + 1)

/* Values that have to follow what was shown. */
typedef struct pending {
    int64_t moment, digest;
    uint64_t seen, expected; /* digests so far; what the chain demands of the same tensors */
    int64_t left, demanded;  /* values, and of them those that the chain derives */
    int64_t count;
} pending;

typedef struct rank_facts {
    pending pending[CDDP_WHAT_AVERAGER + 1];
    uint32_t stepped; /* + 1: the last step in which an optimizer stepped */
    uint64_t arrived; /* digest of the gradients that the backward accumulated */
    int64_t arrived_count;
    bool is_shown;
} rank_facts;

typedef struct launch {
    int64_t content, is_last, shadow;
} launch;

/* The parameters of a bucket in the layout in force. */
typedef struct layout {
    int64_t generation;
    uint64_t content;
} layout;

/* A difference of one kind: the first one, and everybody whose it is in that step. */
typedef struct difference {
    cddp_event at;
    cd_rank_set ranks;
    bool is_known, is_missing;
    int64_t bucket;
    char title[160], expected[128], actual[128], parameter[CD_WRITER_NAME_BYTES];
} difference;

typedef struct state {
    cd_writer writer;
    cd_ranks ranks;       /* of rank_facts */
    cd_table launches;    /* (rank, bucket, generation) → launch */
    cd_table layouts;     /* (rank, bucket) → layout */
    cd_table differences; /* (kind, …) → difference */
    cd_table ordinals;    /* (rank, variable) → ordinal */
    cd_table consumed;    /* (rank, ordinal) → digest of the gradient that was stepped with */
    cd_sights sights;
    uint64_t compared, shown_ranks;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-SHOWN", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->launches, context->allocator, sizeof(launch));
    cd_table_init(&s->layouts, context->allocator, sizeof(layout));
    cd_table_init(&s->differences, context->allocator, sizeof(difference));
    cd_table_init(&s->ordinals, context->allocator, sizeof(int64_t));
    cd_table_init(&s->consumed, context->allocator, sizeof(int64_t));
    cd_sights_init(&s->sights, context->allocator);
    s->sights.takes_forms = true;
    return CDDP_OK;
}

/* NULL: a difference of this kind was seen before, at an earlier place. */
static difference *note(state *s, const cd_key *key, const cddp_event *e)
{
    difference *d = cd_table_add(&s->differences, key);
    if (d == NULL || (d->is_known && e->step > d->at.step)) return NULL;
    if (d->is_known && e->step < d->at.step) d->ranks = (cd_rank_set){0};
    cd_rank_set_add(&d->ranks, &s->writer.memory, e->rank);
    const bool is_earlier = e->step != d->at.step               ? e->step < d->at.step
                            : e->micro_step != d->at.micro_step ? e->micro_step < d->at.micro_step
                                                                : e->rank < d->at.rank;
    if (d->is_known && !is_earlier) return NULL;
    d->is_known = true;
    d->at = *e;
    d->at.text = NULL;
    d->bucket = -1;
    return d;
}

static void report(state *s, const difference *d)
{
    char who[96];
    const uint32_t count = cd_rank_set_count(&d->ranks);
    cddp_finding f = cd_finding_at(&s->writer, &d->at);
    cd_finding_set_ranks(&s->writer, &f, &d->ranks);
    if (count > 1 && count == s->shown_ranks)
        CD_SAY(who, "all ranks");
    else
        cd_rank_set_print(&d->ranks, CD_NO_RANK, who, sizeof who);
    if (d->bucket >= 0) f.bucket = (int32_t)d->bucket;
    CD_SAY(f.title, "%s: the judge was %s", who, d->title);
    CD_SAY(f.expected, "%s", d->expected);
    CD_SAY(f.actual, "%s", d->actual);
    CD_SAY(f.parameter, "%s", d->parameter);
    CD_SAY(f.advice, "%s",
           d->is_missing
               ? "what was to be judged there is not: the run leaves out a moment that the plan has"
               : "what was judged is not what the rank has: something writes to it while it "
                 "is shown, or the verifier's copy of it is wrong");
    cd_writer_report(&s->writer, &f);
}

/* ---- moments ---- */

static const char *noun_of(int64_t what)
{
    static const char *const nouns[] = {[CDDP_WHAT_PARAMETER] = "parameters",
                                        [CDDP_WHAT_BUFFER] = "buffers",
                                        [CDDP_WHAT_GRADIENT] = "gradients",
                                        [CDDP_WHAT_OPTIMIZER] = "optimizer state"};
    return what >= 0 && what <= CDDP_WHAT_OPTIMIZER ? nouns[what] : "state";
}

static const char *moment_of(int64_t moment)
{
    const char *word = cddp_event_word(CDDP_FIELD_moment, moment);
    return word != NULL ? word : "a moment that there is not";
}

static void report_moment(state *s, const cddp_event *e, const pending *p, int64_t what)
{
    difference *d = note(s, CD_KEY(1, what, p->moment), e);
    if (d == NULL) return;
    CD_SAY(d->title, "shown other %s at moment '%s' than the rank has", noun_of(what),
           moment_of(p->moment));
    CD_SAY(d->expected, "%lld of them, digest %016llx", (long long)p->count,
           (unsigned long long)p->seen);
    CD_SAY(d->actual, "shown: digest %016llx", (unsigned long long)p->digest);
}

static void report_order(state *s, const cddp_event *e, int64_t shown, int64_t came)
{
    difference *d = note(s, CD_KEY(2, shown, came), e);
    if (d == NULL) return;
    CD_SAY(d->title, "shown moment '%s', and the rank is at '%s'", moment_of(shown),
           moment_of(came));
    CD_SAY(d->expected, "the values of moment '%s'", moment_of(shown));
    CD_SAY(d->actual, "those of moment '%s'", moment_of(came));
}

/* The gradients of a backward come one by one. */
static void take_local(rank_facts *r, const cddp_event *e)
{
    const uint64_t variable = cd_hash_mix(0, (uint64_t)e->as.grad_local.param);
    r->arrived += cd_hash_mix(variable, (uint64_t)e->as.grad_local.digest); /* in any order */
    r->arrived_count++;
}

static void take_accumulated(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_shown *x = &e->as.shown;
    const uint64_t arrived = r->arrived;
    const int64_t count = r->arrived_count;
    r->arrived = 0;
    r->arrived_count = 0;
    s->compared++;
    if (count == x->count && arrived == (uint64_t)x->digest) return;
    difference *d = note(s, CD_KEY(5), e);
    if (d == NULL) return;
    if (x->count < count)
        CD_SAY(d->title, "not shown %s local gradient that the backward accumulated",
               x->count > 0 ? "every" : "any");
    else
        CD_SAY(d->title,
               "shown another local gradient of a parameter than the backward accumulated");
    CD_SAY(d->expected, "%lld gradients, digest %016llx", (long long)count,
           (unsigned long long)arrived);
    CD_SAY(d->actual, "shown: %lld, digest %016llx", (long long)x->count,
           (unsigned long long)x->digest);
}

static void take_shown(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_shown *x = &e->as.shown;
    s->shown_ranks += !r->is_shown;
    r->is_shown = true;
    if (x->what == CDDP_WHAT_GRADIENT && x->moment == CDDP_MOMENT_AFTER_FORWARD) {
        take_accumulated(s, r, e);
        return;
    }
    if (x->what < 0 || x->what >= WHAT_COUNT || x->count <= 0) return;
    r->pending[x->what] =
        (pending){.moment = x->moment, .digest = x->digest, .left = x->count, .count = x->count};
}

static void take_value(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    if (v->what < 0 || v->what >= WHAT_COUNT) return;
    pending *p = &r->pending[v->what];
    if (p->left == 0) return;
    if (p->moment != v->moment) {
        p->left = 0;
        report_order(s, e, p->moment, v->moment);
        return;
    }
    p->seen = cd_hash_mix(p->seen, (uint64_t)v->digest);
    if (--p->left > 0) return;
    s->compared++;
    /* a value that changed after it was judged is I-CHAIN's */
    const bool is_broken = p->demanded == p->count && p->expected != p->seen;
    if (p->seen != (uint64_t)p->digest && !is_broken) report_moment(s, e, p, v->what);
}

/* Of the state of optimizers, which is shown before the chain says what it must be. */
static void take_expected(rank_facts *r, const cddp_event *e)
{
    const cddp_event_expected *x = &e->as.expected;
    if (x->what != CDDP_WHAT_OPTIMIZER) return;
    pending *p = &r->pending[x->what];
    if (p->left != p->count || p->moment != x->moment) return;
    p->expected = cd_hash_mix(p->expected, (uint64_t)x->digest);
    p->demanded++;
}

/* ---- what the judge found itself ---- */

/* "reduced.micro_step" → "micro step" and "reduced" */
static void split_field(const char *field, char *moment, char *name, size_t bytes)
{
    const size_t length = strcspn(field, ".");
    cd_say(moment, bytes, "%.*s", (int)length, field);
    cd_say(name, bytes, "%s", field[length] == '.' ? field + length + 1 : "");
    for (char *c = name; *c != '\0'; c++) *c = *c == '_' ? ' ' : *c;
    for (char *c = moment; *c != '\0'; c++) *c = *c == '_' ? ' ' : *c;
}

static void take_param(state *s, const cddp_event *e)
{
    const cddp_event_param *x = &e->as.param;
    int64_t *ordinal = x->param >= 0 ? cd_table_add(&s->ordinals, CD_KEY(e->rank, x->param)) : NULL;
    if (ordinal != NULL) *ordinal = x->ordinal;
}

static void take_touch(state *s, const cddp_event *e)
{
    const cddp_event_optimizer_touch *x = &e->as.optimizer_touch;
    const int64_t *ordinal = cd_table_find(&s->ordinals, CD_KEY(e->rank, x->param));
    int64_t *digest =
        ordinal != NULL ? cd_table_add(&s->consumed, CD_KEY(e->rank, *ordinal)) : NULL;
    if (digest != NULL) *digest = x->gradient;
}

/* The copy is what the optimizer stepped with: then the gradient itself changed, which is
** I-CHAIN's. */
static bool was_consumed(const state *s, const cddp_event *e)
{
    const cddp_event_misshown *x = &e->as.misshown;
    const int64_t *digest = cd_table_find(&s->consumed, CD_KEY(e->rank, x->id));
    return digest != NULL && *digest == x->actual;
}

static void take_misshown(state *s, const rank_facts *r, const cddp_event *e)
{
    const cddp_event_misshown *x = &e->as.misshown;
    char moment[48], name[48];
    split_field(e->text != NULL ? e->text : "", moment, name, sizeof name);
    const bool is_missing = name[0] == '\0';
    if (strcmp(moment, "updated") == 0 && x->id >= 0 && was_consumed(s, e)) return;
    /* an optimizer that did not step has nothing to show */
    if (is_missing && strcmp(moment, "updated") == 0 && r->stepped != e->step + 1) return;
    difference *d = note(s, CD_KEY(3, (int64_t)cd_hash_text(e->text)), e);
    if (d == NULL) return;
    if (is_missing) {
        const bool is_update = strcmp(moment, "updated") == 0;
        d->is_missing = true;
        CD_SAY(d->title, "not shown moment '%s'%s", moment,
               is_update ? " of a step that was taken" : "");
        CD_SAY(d->expected,
               is_update ? "once, as the plan has it: an optimizer stepped in step %u"
                         : "once, as the plan has it",
               e->step);
        CD_SAY(d->actual, "not shown");
    } else if (x->id < 0) {
        CD_SAY(d->title, "shown another '%s' at moment '%s'", name, moment);
        if (x->expected >= 0)
            CD_SAY(d->expected, "%lld, as the plan has it", (long long)x->expected);
        else
            CD_SAY(d->expected, "none, as the plan has it");
        CD_SAY(d->actual, "shown: %lld", (long long)x->actual);
    } else {
        const char *tensor = x->what == CDDP_WHAT_BUFFER ? cd_writer_get_buffer(&s->writer, x->id)
                                                         : cd_writer_get_ordinal(&s->writer, x->id);
        CD_SAY(d->title, "shown two contents of %s at one moment: '%s' at '%s'", tensor, name,
               moment);
        CD_SAY(d->expected, "digest %013llx, as at the look of that moment",
               (unsigned long long)x->expected);
        CD_SAY(d->actual, "shown: digest %013llx", (unsigned long long)x->actual);
        if (x->what != CDDP_WHAT_BUFFER) CD_SAY(d->parameter, "%s", tensor);
    }
}

/* ---- buckets ---- */

static void take_launch(state *s, const cddp_event *e)
{
    const cddp_event_bucket_launch *x = &e->as.bucket_launch;
    launch *l = cd_table_add(&s->launches, CD_KEY(e->rank, x->bucket, x->generation));
    if (l != NULL) *l = (launch){.content = x->content, .is_last = x->is_last, .shadow = x->shadow};
}

static void take_layout(state *s, const cddp_event *e)
{
    const cddp_event_bucket_layout *x = &e->as.bucket_layout;
    layout *l = cd_table_add(&s->layouts, CD_KEY(e->rank, x->bucket));
    if (l == NULL) return;
    if (l->generation != x->generation || x->slot == 0) *l = (layout){x->generation, 0};
    l->content = cd_hash_mix(l->content, (uint64_t)x->param);
}

/* Of a layout of fewer buckets nothing of the old ones is in force; none is shown either. */
static void take_assigned(state *s, const cddp_event *e)
{
    const cddp_event_bucket_shown *x = &e->as.bucket_shown;
    const layout *l = cd_table_find(&s->layouts, CD_KEY(e->rank, x->bucket));
    s->compared++;
    if (l != NULL && l->content == (uint64_t)x->content) return;
    difference *d = note(s, CD_KEY(5), e);
    if (d == NULL) return;
    d->bucket = x->bucket;
    CD_SAY(d->title, "shown another 'buckets' at moment 'assigned'");
    CD_SAY(d->expected, "the parameters of the layout in force");
    CD_SAY(d->actual, "shown: others in bucket %lld", (long long)x->bucket);
}

static void take_bucket(state *s, const cddp_event *e)
{
    const cddp_event_bucket_shown *x = &e->as.bucket_shown;
    if (x->generation < 0) {
        take_assigned(s, e);
        return;
    }
    const launch *l = cd_table_find(&s->launches, CD_KEY(e->rank, x->bucket, x->generation));
    const char *wrong = l == NULL                             ? "bucket or generation"
                        : l->content != x->content            ? "places"
                        : l->shadow != x->shadow              ? "is shadow"
                        : x->left && l->is_last != x->is_last ? "is last"
                                                              : NULL;
    s->compared++;
    difference *d = wrong != NULL ? note(s, CD_KEY(4, x->left), e) : NULL;
    if (d == NULL) return;
    d->bucket = x->bucket;
    CD_SAY(d->title, "shown another '%s' of a bucket that %s than the reducer launched", wrong,
           x->left ? "leaves" : "returns");
    CD_SAY(d->expected, "a bucket as it was launched");
    CD_SAY(d->actual, "shown: bucket %lld of layout %lld, %s", (long long)x->bucket,
           (long long)x->generation, x->shadow ? "a shadow" : "no shadow");
}

/* ---- sums ---- */

static void judge_sights(state *s)
{
    const cd_key *key;
    const cd_look *look;
    for (size_t i = 0; (look = cd_sights_get_wrong(&s->sights, i, &key)) != NULL; i++) {
        difference *d = note(s, CD_KEY(6), &look->event);
        if (d == NULL) continue;
        CD_SAY(d->title, "shown another %s%s (#%lld of group '%.40s') than %s",
               look->is_output ? "output of " : "", cddp_op_name((cddp_op)look->op),
               (long long)key->part[1], cd_writer_get_group(&s->writer, key->part[0]),
               look->is_output ? "the rank received" : "its members had");
        CD_SAY(d->expected, "digest %016llx of %s", (unsigned long long)look->seen,
               look->is_output ? "it"
               : look->is_form ? "what it is"
                               : "what it is, its operands and its result");
        CD_SAY(d->actual, "shown: digest %016llx", (unsigned long long)look->event.as.mark.value);
    }
}

/* ---- events ---- */

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    switch (e->kind) {
    case CDDP_EV_group:
    case CDDP_EV_collective_post:
    case CDDP_EV_collective_done:
    case CDDP_EV_mark:
        cd_sights_push(&s->sights, e);
        return;
    case CDDP_EV_shown:
        take_shown(s, r, e);
        return;
    case CDDP_EV_grad_local:
        take_local(r, e);
        return;
    case CDDP_EV_value:
        take_value(s, r, e);
        return;
    case CDDP_EV_expected:
        take_expected(r, e);
        return;
    case CDDP_EV_param:
        take_param(s, e);
        return;
    case CDDP_EV_optimizer_touch:
        take_touch(s, e);
        return;
    case CDDP_EV_misshown:
        take_misshown(s, r, e);
        return;
    case CDDP_EV_bucket_launch:
        take_launch(s, e);
        return;
    case CDDP_EV_bucket_shown:
        take_bucket(s, e);
        return;
    case CDDP_EV_bucket_layout:
        take_layout(s, e);
        return;
    default:
        if (!e->as.optimizer_step.skipped) r->stepped = e->step + 1;
        return;
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->compared > 0)
        cd_writer_exercise(&s->writer, "%llu times what was shown is what the rank had",
                           (unsigned long long)s->compared);
    judge_sights(s);
    for (size_t i = 0; i < s->differences.count; i++) report(s, cd_table_value(&s->differences, i));
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->differences);
    cd_table_fini(&s->ordinals);
    cd_table_fini(&s->consumed);
    cd_table_fini(&s->launches);
    cd_table_fini(&s->layouts);
    cd_sights_fini(&s->sights);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_shown,           CDDP_EV_grad_local,      CDDP_EV_value,         CDDP_EV_expected,
    CDDP_EV_misshown,        CDDP_EV_bucket_launch,   CDDP_EV_bucket_shown,  CDDP_EV_param,
    CDDP_EV_optimizer_touch, CDDP_EV_optimizer_step,  CDDP_EV_bucket_layout, CDDP_EV_group,
    CDDP_EV_collective_post, CDDP_EV_collective_done, CDDP_EV_mark};

CD_CHECK_TABLE(shown, "I-SHOWN", "what the judge is shown is what the rank has",
               "Every copy of a value that is judged equals the value that the rank has at that "
               "moment, and everything that is said of its place follows from the plan.");
