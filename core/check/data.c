/* SPDX-License-Identifier: Apache-2.0 */
/* I-DATA: over an epoch every sample is consumed once, by one rank.
**
** Judged from   sample (id, weight, epoch) and samples (how many of them a micro-batch has, and
**               what they add up to; said after the forward).
**               Each rank by itself against the decisions of the plan: id, epoch and weight of
**               every sample, how many there are, by what the loss is divided, and the divisor and
**               weight of each output whose loss is apart.
** Exercised     at least two ranks consumed samples.
** Blame         the rank of the later use, in order of step, micro-step and rank; with its first
**               user as the peer.
** Limits        repetition within one micro-batch is not judged (a forward that runs twice), nor is
**               repetition after a checkpoint was loaded. Samples of weight 0 do not count. A tail
**               that is dropped on purpose is not seen as missing.
*/
#include "core/check/facts.h"
#include "core/check/obey.h"

#include "core/base/hash.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <string.h>

typedef struct place {
    uint32_t step, micro_step, rank;
    uint64_t sequence;
} place;

typedef struct use {
    place first;
    bool is_taken;
} use;

/* Samples of which the use is forgotten: a bit each. */
#define CHUNK 512
typedef struct chunk {
    uint64_t bits[CHUNK / 64];
} chunk;

typedef struct batch {
    int64_t loads;    /* checkpoints loaded by this rank */
    int64_t declared; /* samples of the current micro-batch, -1 when not reported */
    int64_t seen;
    place at;
    int64_t position; /* in the micro-step, over all its forwards */
    uint64_t ids;     /* since the last samples event: as that adds them up */
    double weight;
    int64_t epoch;  /* of the first of them */
    int64_t newest; /* epoch of its last sample */
    uint32_t step, micro_step;
    bool has_returned;
    bool is_recorded; /* cddp/record.h said all of them in one call, of threads mixed */
} batch;

typedef struct state {
    cd_writer writer;
    cd_table uses;  /* (epoch, sample, loads) → use */
    cd_table old;   /* (epoch, sample / CHUNK, loads) → chunk, of uses before the horizon */
    cd_ranks ranks; /* of batch */
    uint64_t repeated, consumers, used;
    place again, before; /* the earliest repetition */
    int64_t again_sample, again_epoch;
    bool is_old; /* nobody knows any more who used it before */
    cd_obey obey;
} state;

/* The sample's chunk, and its bit there. */
static cd_key chunk_of(const cd_key *sample, uint64_t *bit)
{
    const uint64_t id = (uint64_t)sample->part[1];
    *bit = id % CHUNK;
    return (cd_key){{sample->part[0], (int64_t)(id / CHUNK), sample->part[2]}};
}

static bool is_old(const state *s, const cd_key *sample)
{
    uint64_t bit;
    const cd_key key = chunk_of(sample, &bit);
    const chunk *c = cd_table_find(&s->old, &key);
    return c != NULL && (c->bits[bit / 64] >> bit % 64 & 1) != 0;
}

/* A use that is forgotten leaves its bit. */
static bool keeps_use(void *self, const cd_key *key, const void *value)
{
    state *s = self;
    uint64_t bit;
    const cd_key where = chunk_of(key, &bit);
    chunk *c = cd_table_add(&s->old, &where);
    (void)value;
    if (c == NULL) return true;
    c->bits[bit / 64] |= UINT64_C(1) << bit % 64;
    return false;
}

/* Of the epoch in which the slowest rank is, and the one before. */
static bool keeps_chunk(void *self, const cd_key *key, const void *value)
{
    const state *s = self;
    (void)value;
    for (uint32_t r = 0; r < s->ranks.count; r++) {
        const batch *b = cd_ranks_find(&s->ranks, r);
        if (b->at.sequence != 0 && b->newest <= key->part[0] + 1) return true;
    }
    return false;
}

static bool is_missed(void *self, uint32_t rank, const cd_decided *d)
{
    (void)self, (void)rank;
    return d->is.decision == CDDP_DECISION_SAMPLE && d->seen == 0;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-DATA", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->uses, context->allocator, sizeof(use));
    cd_table_init(&s->old, context->allocator, sizeof(chunk));
    cd_writer_set_window(&s->writer, &s->uses, keeps_use);
    cd_writer_set_window(&s->writer, &s->old, keeps_chunk);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(batch));
    cd_obey_init(&s->obey, context->allocator);
    cd_obey_set_window(&s->obey,
                       &(cd_obey_window){cd_facts_get_horizon(context->facts), is_missed, s});
    return CDDP_OK;
}

static bool precedes(const place *a, const place *b)
{
    if (a->step != b->step) return a->step < b->step;
    if (a->micro_step != b->micro_step) return a->micro_step < b->micro_step;
    return a->rank < b->rank;
}

typedef struct repetition {
    place first, second;
    bool is_old;
} repetition;

static void take_again(state *s, const cddp_event_sample *x, const repetition *r)
{
    cd_horizon_freeze(cd_facts_get_horizon(s->writer.context.facts));
    if (s->repeated++ != 0 && !precedes(&r->second, &s->again)) return;
    s->again = r->second;
    s->before = r->first;
    s->again_sample = x->sample;
    s->again_epoch = x->epoch;
    s->is_old = r->is_old;
}

static void take_sample(state *s, const cddp_event *e, batch *b)
{
    const cddp_event_sample *x = &e->as.sample;
    place here = {e->step, e->micro_step, e->rank, e->sequence};
    if (b->seen == 0) b->epoch = x->epoch;
    b->ids += cd_hash_mix(0, (uint64_t)x->sample);
    b->weight += cd_f64_of(x->weight);
    if (b->seen++ == 0 && b->at.sequence == 0) s->consumers++;
    b->at = here;
    b->newest = x->epoch;
    if (cd_f64_of(x->weight) == 0) return;
    const cd_key *key = CD_KEY(x->epoch, x->sample, b->loads);
    use *u = cd_table_add(&s->uses, key);
    if (u == NULL) return;
    const bool is_first = !u->is_taken, was_old = is_first && is_old(s, key);
    if (is_first) *u = (use){here, true};
    if (is_first && !was_old) s->used++;
    if (is_first && !was_old) return;
    if (was_old) {
        take_again(s, x, &(repetition){.second = here, .is_old = true});
        return;
    }
    if (u->first.rank == here.rank && u->first.step == here.step &&
        u->first.micro_step == here.micro_step)
        return;
    place first = u->first, second = here;
    if (precedes(&second, &first)) {
        place swapped = first;
        first = second;
        second = swapped;
    }
    u->first = first;
    take_again(s, x, &(repetition){first, second, false});
}

static void report_count(state *s, const cddp_event *e, const batch *b)
{
    if (!cd_writer_is_first(&s->writer, CD_KEY(1), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %lld samples were declared and %lld consumed",
           (long long)b->declared, (long long)b->seen);
    CD_SAY(f.expected, "%lld samples at step %u micro-step %u", (long long)b->declared, b->at.step,
           b->at.micro_step);
    CD_SAY(f.actual, "%lld samples", (long long)b->seen);
    cd_writer_hold(&s->writer, CD_KEY(1), &f);
}

/* What is said of all of them after the forward must be what was said of each before it. */
static void judge_whole(state *s, const cddp_event *e, const batch *b)
{
    const cddp_event_samples *x = &e->as.samples;
    if (b->seen == 0 || b->seen != x->count || x->ids == 0) return;
    const bool is_same =
        b->ids == (uint64_t)x->ids && cd_f64_bits(b->weight) == x->weight && b->epoch == x->epoch;
    const cd_key *key = CD_KEY(1);
    if (is_same || !cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, "rank %u: samples changed while the forward consumed them", e->rank);
    CD_SAY(f.expected, "ids %016llx, weight %g, epoch %lld, as before the forward",
           (unsigned long long)b->ids, b->weight, (long long)b->epoch);
    CD_SAY(f.actual, "ids %016llx, weight %g, epoch %lld", (unsigned long long)x->ids,
           cd_f64_of(x->weight), (long long)x->epoch);
    cd_writer_hold(&s->writer, key, &f);
}

/* ---- against the plan ---- */

static void say_sample(char *text, size_t text_bytes, const int64_t sample[3])
{
    cd_say(text, text_bytes, "sample %lld of epoch %lld with weight %g", (long long)sample[0],
           (long long)sample[1], cd_f64_of(sample[2]));
}

static void judge_sample(state *s, const cddp_event *e, batch *b)
{
    const cddp_event_sample *x = &e->as.sample;
    if (b->step != e->step || b->micro_step != e->micro_step) b->position = 0;
    b->step = e->step;
    b->micro_step = e->micro_step;
    const int64_t position = b->position++;
    cd_decided *d = cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_SAMPLE,
                                                                position, e->step, e->micro_step});
    if (!cd_obey_judges(&s->obey, e->rank)) return;
    s->obey.obeyed++;
    if (d != NULL) d->seen++;
    if (d != NULL && d->is.value == x->sample && d->is.detail == x->epoch &&
        d->is.real == x->weight)
        return;
    cd_miss m = {.decision = CDDP_DECISION_SAMPLE,
                 .which = d == NULL                  ? 3
                          : d->is.detail != x->epoch ? 0
                          : d->is.value != x->sample ? 1
                                                     : 2};
    static const char *const kinds_of[] = {"samples of another epoch than the plan's",
                                           "other samples than the plan's",
                                           "samples with other weights than the plan's",
                                           "more samples than the plan's"};
    CD_SAY(m.what, "the forward consumes %s", kinds_of[m.which]);
    CD_SAY(m.planned, "no further sample at step %u micro-step %u", e->step, e->micro_step);
    if (d != NULL)
        say_sample(m.planned, sizeof m.planned,
                   (const int64_t[3]){d->is.value, d->is.detail, d->is.real});
    say_sample(m.seen, sizeof m.seen, (const int64_t[3]){x->sample, x->epoch, x->weight});
    cd_obey_miss(&s->obey, e, &m);
}

static void judge_number(state *s, const cddp_event *e, int64_t id, int64_t seen)
{
    const cd_decided *d = cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_OUTPUT,
                                                                      id, e->step, e->micro_step});
    if (d == NULL) return;
    s->obey.obeyed++;
    if (cd_decided_fits(d, cd_f64_of(seen))) return;
    const bool is_weight = id == CD_OUTPUT_WEIGHT_ID(e->as.loss.forward, e->as.loss.output);
    cd_miss m = {.decision = CDDP_DECISION_OUTPUT, .which = is_weight};
    CD_SAY(m.what, "the loss of output '%.30s' is %s another number than the plan's",
           e->text != NULL ? e->text : "", is_weight ? "multiplied by" : "divided by");
    CD_SAY(m.planned, "%.17g at step %u micro-step %u", cd_f64_of(d->is.real), e->step,
           e->micro_step);
    CD_SAY(m.seen, "%.17g", cd_f64_of(seen));
    cd_obey_miss(&s->obey, e, &m);
}

/* Of an output whose loss is apart. */
static void judge_output(state *s, const cddp_event *e)
{
    const cddp_event_loss *x = &e->as.loss;
    judge_number(s, e, CD_OUTPUT_DIVISOR_ID(x->forward, x->output), x->divisor);
    judge_number(s, e, CD_OUTPUT_WEIGHT_ID(x->forward, x->output), x->weight);
}

static void judge_loss(state *s, const cddp_event *e)
{
    const cddp_event_loss *x = &e->as.loss;
    if (x->output > 0) {
        judge_output(s, e);
        return;
    }
    const cd_decided *d =
        cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_DIVISOR, x->forward,
                                                    e->step, e->micro_step});
    if (d == NULL)
        d = cd_obey_find(&s->obey,
                         &(cd_decision_place){e->rank, CDDP_DECISION_DIVISOR, -1, -1, -1});
    if (d == NULL) return;
    s->obey.obeyed++;
    if (cd_decided_fits(d, cd_f64_of(x->divisor))) return;
    cd_miss m = {.decision = CDDP_DECISION_DIVISOR};
    CD_SAY(m.what, "the loss is divided by another number than the plan's");
    CD_SAY(m.planned, "%.17g at step %u micro-step %u%s", cd_f64_of(d->is.real), e->step,
           e->micro_step, cd_f64_of(d->is.real) == 0 ? ": it is not divided" : "");
    CD_SAY(m.seen, "%.17g", cd_f64_of(x->divisor));
    cd_obey_miss(&s->obey, e, &m);
}

/* Samples that the plan has, of ranks that trained to their end. */
static void judge_rest(state *s)
{
    for (size_t i = 0; i < s->obey.decided.count; i++) {
        uint32_t rank;
        const cd_decided *d = cd_obey_get(&s->obey, i, &rank);
        const batch *b = cd_ranks_find(&s->ranks, rank);
        if (d->is.decision != CDDP_DECISION_SAMPLE || d->seen > 0 || b == NULL || !b->has_returned)
            continue;
        const cddp_event at = {.rank = rank,
                               .step = (uint32_t)d->is.at_step,
                               .micro_step = (uint32_t)d->is.at_micro,
                               .sequence = d->sequence};
        /* A step that did not take place is I-STEP's. */
        cd_miss m = {.decision = CDDP_DECISION_SAMPLE, .which = 4, .is_consequence = true};
        CD_SAY(m.what, "samples of the plan are not consumed");
        say_sample(m.planned, sizeof m.planned,
                   (const int64_t[3]){d->is.value, d->is.detail, d->is.real});
        CD_SAY(m.seen, "nothing in its place, at step %u micro-step %u", at.step, at.micro_step);
        cd_obey_miss(&s->obey, &at, &m);
    }
}

static void event(void *self, const cddp_event *e)
{
    static const int64_t decisions[2] = {CDDP_DECISION_SAMPLE, CDDP_DECISION_DIVISOR},
                         outputs[2] = {CDDP_DECISION_OUTPUT, CDDP_DECISION_OUTPUT};
    state *s = self;
    batch *b = cd_ranks_add(&s->ranks, e->rank);
    if (b == NULL) return;
    if (e->kind == CDDP_EV_decision) {
        (void)cd_obey_learn(&s->obey, e, decisions);
        (void)cd_obey_learn(&s->obey, e, outputs);
        return;
    }
    if (e->kind == CDDP_EV_rank_end) {
        b->has_returned = e->as.rank_end.end == 0 && e->as.rank_end.status == CDDP_OK;
        return;
    }
    if (e->kind == CDDP_EV_loss) {
        judge_loss(s, e);
        return;
    }
    if (e->kind == CDDP_EV_mark) {
        b->is_recorded |= e->text != NULL && strcmp(e->text, CD_TRACER_RECORDED) == 0;
        return;
    }
    if (e->kind == CDDP_EV_sample) judge_sample(s, e, b);
    if (e->kind == CDDP_EV_sample) {
        take_sample(s, e, b);
    } else if (e->kind == CDDP_EV_checkpoint) {
        b->loads += e->as.checkpoint.loaded;
    } else {
        /* `samples` may open or close a micro-batch; those between two of them must fit one of the
        ** two. */
        int64_t next = e->as.samples.count;
        bool fits =
            b->declared <= 0 || b->seen % b->declared == 0 || (next > 0 && b->seen % next == 0);
        if (b->seen > 0 && !fits && !b->is_recorded) report_count(s, e, b);
        if (!b->is_recorded) judge_whole(s, e, b);
        b->declared = e->as.samples.count;
        b->seen = 0;
        b->ids = 0;
        b->weight = 0;
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->consumers > 1)
        cd_writer_exercise(&s->writer, "%llu samples consumed by %llu ranks",
                           (unsigned long long)s->used, (unsigned long long)s->consumers);
    judge_rest(s);
    cd_obey_report(&s->obey, &s->writer);
    /* Samples that are not the plan's may well repeat: that follows. */
    if (s->repeated > 0 && !cd_obey_has_missed(&s->obey, CDDP_DECISION_SAMPLE)) {
        cddp_event at = {.rank = s->again.rank,
                         .step = s->again.step,
                         .micro_step = s->again.micro_step,
                         .sequence = s->again.sequence};
        cddp_finding f = cd_finding_at(&s->writer, &at);
        f.peer = s->is_old ? -1 : (int32_t)s->before.rank;
        if (!s->is_old) cd_finding_add_event(&f, s->before.rank, s->before.sequence);
        CD_SAY(f.title,
               "rank %u consumes sample %lld again in epoch %lld (%llu repeated uses in all)",
               s->again.rank, (long long)s->again_sample, (long long)s->again_epoch,
               (unsigned long long)s->repeated);
        CD_SAY(f.expected, "used once: by rank %u at step %u micro-step %u", s->before.rank,
               s->before.step, s->before.micro_step);
        if (s->is_old) CD_SAY(f.expected, "used once: more than %u steps before", CD_HORIZON_STEPS);
        CD_SAY(f.actual, "again by rank %u at step %u micro-step %u", s->again.rank, s->again.step,
               s->again.micro_step);
        CD_SAY(f.advice,
               "an epoch uses each sample once: where a sampler pads uneven shards, drop the "
               "tail, give it weight 0, or use join");
        cd_writer_report(&s->writer, &f);
    }
    cd_obey_fini(&s->obey);
    cd_table_fini(&s->uses);
    cd_table_fini(&s->old);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_sample,   CDDP_EV_samples, CDDP_EV_checkpoint,
                                 CDDP_EV_decision, CDDP_EV_loss,    CDDP_EV_rank_end,
                                 CDDP_EV_mark};

CD_CHECK_TABLE(data, "I-DATA", "every sample is consumed once per epoch",
               "The multiset of weighted sample ids per window and epoch equals the reference's.");
