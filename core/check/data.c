/* SPDX-License-Identifier: Apache-2.0 */
/* I-DATA: over an epoch every sample is consumed once, by one rank.
**
** Judged from   sample (id, weight, epoch) and samples (how many of them a micro-batch has).
** Exercised     at least two ranks consumed samples.
** Blame         the rank of the later use, in order of step, micro-step and rank; with its first
**               user as the peer.
** Limits        repetition within one micro-batch is not judged (a forward that runs twice), nor is
**               repetition after a checkpoint was loaded. Samples of weight 0 do not count. A tail
**               that is dropped on purpose is not seen as missing.
*/
#include "core/check/writer.h"

#include "core/trace/tracer.h"

typedef struct place {
    uint32_t step, micro_step, rank;
    uint64_t sequence;
} place;

typedef struct use {
    place first;
    bool is_taken;
} use;

typedef struct batch {
    int64_t loads;    /* checkpoints loaded by this rank */
    int64_t declared; /* samples of the current micro-batch, -1 when not reported */
    int64_t seen;
    place at;
} batch;

typedef struct state {
    cd_writer writer;
    cd_table uses;  /* (epoch, sample, loads) → use */
    cd_ranks ranks; /* of batch */
    uint64_t repeated, miscounted, consumers;
    place again, before; /* the earliest repetition */
    int64_t again_sample, again_epoch;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-DATA", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->uses, context->allocator, sizeof(use));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(batch));
    return CDDP_OK;
}

static bool precedes(const place *a, const place *b)
{
    if (a->step != b->step) return a->step < b->step;
    if (a->micro_step != b->micro_step) return a->micro_step < b->micro_step;
    return a->rank < b->rank;
}

static void take_sample(state *s, const cddp_event *e, batch *b)
{
    const cddp_event_sample *x = &e->as.sample;
    place here = {e->step, e->micro_step, e->rank, e->sequence};
    if (b->seen++ == 0 && b->at.sequence == 0) s->consumers++;
    b->at = here;
    if (cd_f64_of(x->weight) == 0) return;
    use *u = cd_table_add(&s->uses, CD_KEY(x->epoch, x->sample, b->loads));
    if (u == NULL) return;
    if (!u->is_taken) {
        *u = (use){here, true};
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
    if (s->repeated++ == 0 || precedes(&second, &s->again)) {
        s->again = second;
        s->before = first;
        s->again_sample = x->sample;
        s->again_epoch = x->epoch;
    }
}

static void report_count(state *s, const cddp_event *e, const batch *b)
{
    if (s->miscounted++ != 0) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title, "rank %u declared %lld samples and consumed %lld", e->rank,
           (long long)b->declared, (long long)b->seen);
    CD_SAY(f.expected, "%lld samples at step %u micro-step %u", (long long)b->declared, b->at.step,
           b->at.micro_step);
    CD_SAY(f.actual, "%lld samples", (long long)b->seen);
    cd_writer_report(&s->writer, &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    batch *b = cd_ranks_add(&s->ranks, e->rank);
    if (b == NULL) return;
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
        if (b->seen > 0 && !fits) report_count(s, e, b);
        b->declared = e->as.samples.count;
        b->seen = 0;
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->consumers > 1)
        cd_writer_exercise(&s->writer, "%zu samples consumed by %llu ranks", s->uses.count,
                           (unsigned long long)s->consumers);
    if (s->repeated > 0) {
        cddp_event at = {.rank = s->again.rank,
                         .step = s->again.step,
                         .micro_step = s->again.micro_step,
                         .sequence = s->again.sequence};
        cddp_finding f = cd_finding_at(&s->writer, &at);
        f.peer = (int32_t)s->before.rank;
        cd_finding_add_event(&f, s->before.rank, s->before.sequence);
        CD_SAY(f.title,
               "rank %u consumes sample %lld again in epoch %lld (%llu repeated uses in all)",
               s->again.rank, (long long)s->again_sample, (long long)s->again_epoch,
               (unsigned long long)s->repeated);
        CD_SAY(f.expected, "used once: by rank %u at step %u micro-step %u", s->before.rank,
               s->before.step, s->before.micro_step);
        CD_SAY(f.actual, "again by rank %u at step %u micro-step %u", s->again.rank, s->again.step,
               s->again.micro_step);
        CD_SAY(f.advice, "a sampler that pads uneven shards repeats samples: drop the tail, give "
                         "them weight 0, or use join");
        cd_writer_report(&s->writer, &f);
    }
    cd_table_fini(&s->uses);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_sample, CDDP_EV_samples, CDDP_EV_checkpoint};

CD_CHECK_TABLE(data, "I-DATA", "every sample is consumed once per epoch",
               "The multiset of weighted sample ids per window and epoch equals the reference's.");
