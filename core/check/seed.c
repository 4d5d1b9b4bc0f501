/* SPDX-License-Identifier: Apache-2.0 */
/* I-SEED: a random stream is what it was declared to be: shared by all ranks, or distinct per rank;
** and it advances.
**
** Judged from   seed events: per rank the k-th use of a stream with its declared policy and the
**               digest of its state.
**               Each rank by itself: its model and data streams are those of the plan's seed.
** Exercised     a stream was used by at least two ranks.
** Blame         shared: the odd ranks. Distinct: the two ranks with the same state. Advancing: the
**               rank.
** Limits        the quality of randomness is not judged, only its policy.
*/
#include "core/check/obey.h"

#include "core/base/hash.h"

#include <string.h>

typedef struct use {
    int64_t count, state;
    uint32_t step, micro_step;
} use;

/* Where a rank drew: what a finding needs of the event. */
typedef struct draw {
    uint64_t sequence;
    uint32_t rank, step, micro_step;
} draw;

/* Ranks that drew from one state of a distinct stream: the two least, whichever came first. */
typedef struct owner {
    draw least[2];
    cd_rank_set who;
    uint32_t count;
} owner;

typedef struct state {
    cd_writer writer;
    cd_table uses;     /* (label, stream, rank) → use */
    cd_agree shared;   /* (label, stream, k) → state */
    cd_table owners;   /* (label, stream, k, state) → owner, of distinct streams */
    cd_table labels;   /* label → text */
    cd_table reported; /* (label, stream, kind) → reported */
    cd_obey obey;
    cd_table first; /* (rank, stream) → the first use of a stream of the program */
    uint32_t first_rank;
    bool has_first, has_second;
} state;

static bool keeps_owner(void *self, const cd_key *key, const void *value)
{
    const owner *o = value;
    (void)self, (void)key;
    return o->count > 1;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-SEED", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->uses, context->allocator, sizeof(use));
    cd_agree_init(&s->shared, context->allocator);
    cd_table_init(&s->owners, context->allocator, sizeof(owner));
    cd_table_init(&s->labels, context->allocator, CD_WRITER_NAME_BYTES);
    cd_table_init(&s->reported, context->allocator, sizeof(int64_t));
    cd_obey_init(&s->obey, context->allocator);
    cd_table_init(&s->first, context->allocator, sizeof(cddp_event));
    cd_writer_set_window(&s->writer, &s->owners, keeps_owner);
    cd_writer_set_agree_window(&s->writer, &s->shared, CD_WHOLE_MOST);
    return CDDP_OK;
}

static bool report_once(state *s, const cd_key *key)
{
    int64_t *reported = cd_table_add(&s->reported, key);
    return reported != NULL && (*reported)++ == 0;
}

static void report_standing(state *s, const cddp_event *e, const use *before)
{
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": random stream '%s' does not advance",
           e->text != NULL ? e->text : "");
    CD_SAY(f.expected, "another state than at step %u micro-step %u", before->step,
           before->micro_step);
    CD_SAY(f.actual, "the same state %016llx again", (unsigned long long)e->as.seed.state);
    CD_SAY(f.advice, "a seed that is set again every step, or an epoch number that is never passed "
                     "on, repeats the same draws");
    cd_writer_hold(&s->writer, CD_KEY((int64_t)cd_hash_text(e->text), e->as.seed.stream, 1), &f);
}

static void take_distinct(state *s, const cddp_event *e, const cd_key *key)
{
    owner *o = cd_table_add(&s->owners, key);
    if (o == NULL) return;
    draw d = {e->sequence, e->rank, e->step, e->micro_step};
    cd_rank_set_add(&o->who, &s->writer.memory, d.rank);
    for (uint32_t i = 0; i < 2; i++) {
        if (i == o->count) {
            o->least[o->count++] = d;
            return;
        }
        if (d.rank == o->least[i].rank) return;
        if (d.rank > o->least[i].rank) continue;
        draw moved = o->least[i];
        o->least[i] = d;
        d = moved;
    }
}

static void report_equal(state *s, const cd_key *key, const owner *o)
{
    const draw *x = &o->least[0], *y = &o->least[1];
    const char *label = cd_table_find(&s->labels, CD_KEY(key->part[0]));
    cddp_event at = {.rank = y->rank,
                     .step = y->step,
                     .micro_step = y->micro_step,
                     .sequence = y->sequence};
    if (!cd_writer_is_first(&s->writer, CD_KEY(key->part[0], key->part[1], 2), &at)) return;
    cddp_finding f = cd_finding_at(&s->writer, &at);
    f.peer = (int32_t)x->rank;
    cd_finding_set_ranks(&s->writer, &f, &o->who);
    cd_finding_add_event(&f, x->rank, x->sequence);
    CD_SAY(f.title, "ranks %u and %u draw the same numbers from stream '%s'", x->rank, y->rank,
           label != NULL ? label : "");
    CD_SAY(f.expected, "another state on every rank");
    CD_SAY(f.actual, "state %016llx on both", (unsigned long long)key->part[3]);
    CD_SAY(f.advice, "mix the rank into the seed of this stream");
    cd_writer_hold(&s->writer, CD_KEY(key->part[0], key->part[1], 2), &f);
}

/* The decision is made when the model stands: its streams were used before. */
static void take_decision(state *s, const cddp_event *e)
{
    static const int64_t decisions[2] = {CDDP_DECISION_SEED, CDDP_DECISION_SEED};
    const cd_decided *d = cd_obey_learn(&s->obey, e, decisions);
    const cddp_event *used = d != NULL ? cd_table_find(&s->first, CD_KEY(e->rank, d->is.id)) : NULL;
    if (used == NULL) return;
    s->obey.obeyed++;
    if (used->as.seed.state == d->is.digest) return;
    cd_miss m = {.decision = CDDP_DECISION_SEED, .which = d->is.id};
    CD_SAY(m.what, "random stream '%s' is not that of world.seed", d->text != NULL ? d->text : "");
    CD_SAY(m.planned, "state %016llx", (unsigned long long)d->is.digest);
    CD_SAY(m.seen, "state %016llx", (unsigned long long)used->as.seed.state);
    cd_obey_miss(&s->obey, used, &m);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_decision) {
        take_decision(s, e);
        return;
    }
    if (!s->has_first) {
        s->first_rank = e->rank;
        s->has_first = true;
    } else if (e->rank != s->first_rank) {
        s->has_second = true;
    }
    const cddp_event_seed *d = &e->as.seed;
    int64_t label = (int64_t)cd_hash_text(e->text);
    char *text = cd_table_add(&s->labels, CD_KEY(label));
    if (text != NULL && e->text != NULL) cd_say(text, CD_WRITER_NAME_BYTES, "%s", e->text);
    use *u = cd_table_add(&s->uses, CD_KEY(label, d->stream, e->rank));
    if (u == NULL) return;
    if (u->count == 0 && e->text != NULL &&
        (strcmp(e->text, "model") == 0 || strcmp(e->text, "data") == 0)) {
        cddp_event *first = cd_table_add(&s->first, CD_KEY(e->rank, d->stream));
        if (first != NULL) *first = *e;
    }
    bool later = u->count > 0 && (u->step != e->step || u->micro_step != e->micro_step);
    if (later && u->state == d->state &&
        cd_writer_is_first(&s->writer, CD_KEY(label, d->stream, 1), e))
        report_standing(s, e, u);
    if (d->policy == CDDP_POLICY_SHARED)
        cd_agree_push(&s->shared,
                      &(cd_statement){.key = CD_KEY(label, d->stream, u->count), CD_SAYS(d->state)},
                      e);
    else
        take_distinct(s, e, CD_KEY(label, d->stream, u->count, d->state));
    *u = (use){u->count + 1, d->state, e->step, e->micro_step};
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->has_second)
        cd_writer_exercise(&s->writer, "%zu random streams followed", s->labels.count);
    cd_obey_report(&s->obey, &s->writer);
    for (size_t i = 0; i < s->owners.count; i++) {
        const owner *o = cd_table_value(&s->owners, i);
        if (o->count > 1) report_equal(s, cd_table_key(&s->owners, i), o);
    }
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->shared, &cursor, &split);) {
        if (!report_once(s, CD_KEY(split.key->part[0], split.key->part[1], 3))) continue;
        if (cd_obey_has_missed(&s->obey, CDDP_DECISION_SEED))
            continue; /* which is right is known */
        cddp_finding f = cd_finding_of(&s->writer, &split);
        char who[160];
        cd_split_print(&split, who, sizeof who);
        const char *label = cd_table_find(&s->labels, CD_KEY(split.key->part[0]));
        CD_SAY(f.title, "%s disagree on shared random stream '%s'", who,
               label != NULL ? label : "");
        CD_SAY(f.expected, "rank %u: state %016llx at use #%lld", split.right.rank,
               (unsigned long long)split.right.data[0], (long long)split.key->part[2]);
        CD_SAY(f.actual, "rank %u: state %016llx", split.odd.rank,
               (unsigned long long)split.odd.data[0]);
        CD_SAY(f.advice,
               "a shared stream takes one seed from one rank and is used equally often by all");
        cd_writer_report(&s->writer, &f);
    }
    cd_table_fini(&s->uses);
    cd_agree_fini(&s->shared);
    cd_table_fini(&s->owners);
    cd_table_fini(&s->labels);
    cd_table_fini(&s->reported);
    cd_obey_fini(&s->obey);
    cd_table_fini(&s->first);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_seed, CDDP_EV_decision};

CD_CHECK_TABLE(seed, "I-SEED", "random streams follow their declared policy",
               "Each random stream follows its declared policy: shared across ranks, or distinct "
               "per rank, and advancing "
               "from step to step.");
