/* SPDX-License-Identifier: Apache-2.0 */
/* I-RESUME: what a run loads is what it saved: model, optimizer, hook, scaler, random and sampler
** state.
**
** Judged from   value at moment 7 (checkpoint) against moment 8 (resume), per rank: tensors by
**               their content, states by the bytes that they would save; checkpoint events by their
**               text.
** Exercised     some state was loaded that this trace also saw being saved.
** Blame         the rank whose state came back different, or not at all.
** Limits        a sharded model that is cut otherwise after the resume: which elements of an
**               optimizer's state a rank has then, I-CHAIN judges by the reference. That the
**               resumed run then goes on like the uninterrupted one is the oracle's link 8, read by
**               I-REF; of a lossy hook, that runs resumed at different steps end with the same bits
**               (expect.same_with).
*/
#include "core/check/writer.h"

#include "core/base/hash.h"

typedef struct saved {
    int64_t presence, digest;
    uint64_t sequence;
    uint32_t step;
    bool is_back;
} saved;

/* A rank's elements of a parameter, and whether it has had others. */
typedef struct part {
    int64_t first, count;
    bool is_known;
} part;

typedef struct state {
    cd_writer writer;
    cd_table parts;       /* (rank, ordinal) → part */
    cd_ranks recut;       /* rank → parameters that are cut otherwise than before */
    cd_table values;      /* (rank, what, id) → saved */
    cd_table checkpoints; /* (rank, text) → saved */
    cd_ranks resumed;     /* rank → values that came back */
    uint64_t compared;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-RESUME", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->values, context->allocator, sizeof(saved));
    cd_table_init(&s->checkpoints, context->allocator, sizeof(saved));
    cd_table_init(&s->parts, context->allocator, sizeof(part));
    cd_ranks_init(&s->recut, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->resumed, context->allocator, sizeof(int64_t));
    return CDDP_OK;
}

static void describe(state *s, char *text, size_t text_bytes, const cd_key *key)
{
    const char *word = cddp_event_word(CDDP_FIELD_what, key->part[1]);
    const int64_t what = word != NULL ? key->part[1] : CDDP_WHAT_PARAMETER;
    if (word == NULL) word = cddp_event_word(CDDP_FIELD_what, what);
    const char *name = what == 0   ? cd_writer_get_ordinal(&s->writer, key->part[2])
                       : what == 1 ? cd_writer_get_buffer(&s->writer, key->part[2])
                                   : "";
    if (name[0] != '\0')
        cd_say(text, text_bytes, "%s %s", word, name);
    else
        cd_say(text, text_bytes, "%s %lld", word, (long long)key->part[2]);
}

static void report_difference(state *s, const cddp_event *e, const saved *before, const char *what)
{
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, before->sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s is not what was saved", what);
    CD_SAY(f.expected, "%016llx, as saved at step %u", (unsigned long long)before->digest,
           before->step);
    bool is_value = e->kind == CDDP_EV_value;
    CD_SAY(f.actual, "%016llx",
           (unsigned long long)(is_value ? e->as.value.digest : e->as.checkpoint.digest));
    CD_SAY(f.advice, "everything that the next step reads belongs into the checkpoint, in the "
                     "order in which it is read back");
    cd_writer_report(&s->writer, &f);
}

static void take_part(state *s, const cddp_event *e)
{
    const cddp_event_unit_part *u = &e->as.unit_part;
    part *p = cd_table_add(&s->parts, CD_KEY(e->rank, u->ordinal));
    int64_t *recut = cd_ranks_add(&s->recut, e->rank);
    if (p == NULL || recut == NULL) return;
    *recut += p->is_known && (p->first != u->first || p->count != u->count);
    *p = (part){u->first, u->count, true};
}

static bool is_recut(const state *s, uint32_t rank)
{
    const int64_t *recut = cd_ranks_find(&s->recut, rank);
    return recut != NULL && *recut > 0;
}

static void take_value(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    const cd_key *key = CD_KEY(e->rank, v->what, v->id);
    if (v->moment == CDDP_MOMENT_CHECKPOINT) {
        saved *kept = cd_table_add(&s->values, key);
        if (kept != NULL) *kept = (saved){v->presence, v->digest, e->sequence, e->step, false};
        return;
    }
    saved *kept = cd_table_find(&s->values, key);
    int64_t *resumed = cd_ranks_add(&s->resumed, e->rank);
    if (resumed != NULL) (*resumed)++;
    if (kept == NULL) return;
    kept->is_back = true;
    if (v->what == CDDP_WHAT_OPTIMIZER && is_recut(s, e->rank)) return;
    s->compared++;
    if (kept->digest == v->digest && kept->presence == v->presence) return;
    char what[120];
    describe(s, what, sizeof what, key);
    report_difference(s, e, kept, what);
}

static void take_checkpoint(state *s, const cddp_event *e)
{
    const cddp_event_checkpoint *c = &e->as.checkpoint;
    const cd_key *key = CD_KEY(e->rank, (int64_t)cd_hash_text(e->text));
    if (!c->loaded) {
        saved *kept = cd_table_add(&s->checkpoints, key);
        if (kept != NULL) *kept = (saved){0, c->digest, e->sequence, e->step, false};
        return;
    }
    const saved *kept = cd_table_find(&s->checkpoints, key);
    if (kept == NULL) return;
    s->compared++;
    if (kept->digest != c->digest)
        report_difference(s, e, kept, e->text != NULL ? e->text : "checkpoint");
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_checkpoint)
        take_checkpoint(s, e);
    else if (e->kind == CDDP_EV_unit_part)
        take_part(s, e);
    else if (e->kind == CDDP_EV_value && (e->as.value.moment == CDDP_MOMENT_CHECKPOINT ||
                                          e->as.value.moment == CDDP_MOMENT_RESUME))
        take_value(s, e);
}

/* A rank that loaded something but not this: the checkpoint forgot it. */
static void report_forgotten(state *s)
{
    for (size_t i = 0; i < s->values.count; i++) {
        const saved *kept = cd_table_value(&s->values, i);
        const cd_key *key = cd_table_key(&s->values, i);
        const int64_t *resumed = cd_ranks_find(&s->resumed, (uint32_t)key->part[0]);
        if (kept->is_back || resumed == NULL || *resumed == 0) continue;
        if (key->part[1] == CDDP_WHAT_OPTIMIZER && is_recut(s, (uint32_t)key->part[0])) continue;
        cddp_event at = {.rank = (uint32_t)key->part[0],
                         .step = kept->step,
                         .sequence = kept->sequence};
        cddp_finding f = cd_finding_at(&s->writer, &at);
        char what[120];
        describe(s, what, sizeof what, key);
        CD_SAY(f.title, CDDP_FINDING_WHO ": %s was saved and never loaded", what);
        CD_SAY(f.expected, "loaded with the rest");
        CD_SAY(f.actual, "absent after resuming");
        cd_writer_report(&s->writer, &f);
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->compared > 0)
        cd_writer_exercise(&s->writer, "%llu saved states loaded again",
                           (unsigned long long)s->compared);
    report_forgotten(s);
    cd_table_fini(&s->values);
    cd_table_fini(&s->checkpoints);
    cd_table_fini(&s->parts);
    cd_ranks_fini(&s->recut);
    cd_ranks_fini(&s->resumed);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_value, CDDP_EV_checkpoint, CDDP_EV_unit_part};

CD_CHECK_TABLE(resume, "I-RESUME", "a resumed run continues from what was saved",
               "A resumed run equals the uninterrupted run: model, optimizer, hook state, random "
               "streams, sampler and scaler.");
