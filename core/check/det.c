/* SPDX-License-Identifier: Apache-2.0 */
/* I-DET: where a backend promises equal bits, the same reduction of the same inputs gives the same
** bits again.
**
** Judged from   collective_post and collective_done: two reductions of one group with the same
**               operation, dtype and count whose inputs had equal digests, rank by rank, must have
**               equal outputs. A reduction is left out whose inputs changed after the post.
** Exercised     a reduction was repeated with the inputs of an earlier one.
** Blame         the group; no rank, since all of them took part.
** Limits        inputs are looked for among the reductions of the last 64 steps. Backends that
**               promise nothing are not judged: their reordering stays inside the bound that the
**               oracle derives, and is labelled there. Whole runs are compared by
**               `cddp-verify diff`.
*/
#include "core/check/operands.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/hash.h"

typedef struct operation {
    int64_t op, reduce_op, dtype, numel, output;
    uint64_t inputs; /* sum over ranks of a digest of (rank, input): order-free */
    uint32_t posts, done, step;
    uint32_t rank;
    uint64_t sequence; /* witness */
    bool is_changed;   /* an input, after it was posted */
} operation;

typedef struct outcome {
    int64_t group, sequence, output;
    uint64_t witness;
    uint32_t rank;
    bool is_known;
} outcome;

typedef struct state {
    cd_writer writer;
    cd_table operations; /* (group, sequence) → operation */
    cd_table outcomes;   /* (group, kind, inputs) → outcome */
    cd_operands operands;
    uint64_t repeated;
    bool reported;
} state;

static bool closes_whole(void *self, const cd_key *key, const void *value);

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-DET", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_table_init(&s->operations, context->allocator, sizeof(operation));
    cd_table_init(&s->outcomes, context->allocator, sizeof(outcome));
    cd_operands_init(&s->operands, context->allocator);
    cd_writer_set_window(&s->writer, &s->operations, closes_whole);
    cd_writer_set_window(&s->writer, &s->outcomes, NULL);
    return CDDP_OK;
}

static void report(state *s, const operation *o, const outcome *before, const cd_key *key)
{
    if (s->reported) return;
    s->reported = true;
    cddp_event at = {.rank = UINT32_MAX, .step = o->step};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    f.event_count = 0;
    cd_finding_add_event(&f, o->rank, o->sequence);
    cd_finding_add_event(&f, before->rank, before->witness);
    CD_SAY(f.title, "group '%s' reduces equal inputs to different bits: #%lld and #%lld",
           cd_writer_get_group(&s->writer, key->part[0]), (long long)before->sequence,
           (long long)key->part[1]);
    CD_SAY(f.expected, "%016llx, as in #%lld", (unsigned long long)before->output,
           (long long)before->sequence);
    CD_SAY(f.actual, "%016llx", (unsigned long long)o->output);
    CD_SAY(f.advice, "an input changed after its post (I-HB), or the order of summation depends on "
                     "arrival or on the algorithm: then the backend must not promise equal bits");
    cd_writer_report(&s->writer, &f);
}

static void close_operation(state *s, const operation *o, const cd_key *key)
{
    uint64_t kind = cd_hash_mix(cd_hash_mix(cd_hash_mix((uint64_t)o->op, (uint64_t)o->reduce_op),
                                            (uint64_t)o->dtype),
                                (uint64_t)o->numel);
    if (o->is_changed) return; /* other inputs than were posted: I-HB's */
    outcome *known =
        cd_table_add(&s->outcomes, CD_KEY(key->part[0], (int64_t)kind, (int64_t)o->inputs));
    if (known == NULL) return;
    if (!known->is_known) {
        *known = (outcome){key->part[0], key->part[1], o->output, o->sequence, o->rank, true};
        return;
    }
    s->repeated++;
    if (known->output != o->output) report(s, o, known, key);
}

static void take_post(state *s, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    cd_operands_post(&s->operands, e);
    if (c->op != CDDP_OP_ALLREDUCE || c->digest == 0 ||
        !cd_writer_has_equal_bits(&s->writer, c->group))
        return;
    operation *o = cd_table_add(&s->operations, CD_KEY(c->group, c->sequence));
    if (o == NULL) return;
    o->op = c->op;
    o->reduce_op = c->reduce_op;
    o->dtype = c->dtype;
    o->numel = c->numel;
    o->inputs += cd_hash_mix((uint64_t)c->digest, e->rank);
    o->posts++;
}

static void take_done(state *s, const cddp_event *e)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    cd_posted posted;
    const cd_operand_fate fate = cd_operands_end(&s->operands, e, &posted);
    operation *o = cd_table_find(&s->operations, CD_KEY(d->group, d->sequence));
    if (o != NULL)
        o->is_changed |= fate == CD_OPERAND_BEFORE_START || fate == CD_OPERAND_WHILE_RUNNING;
    if (o == NULL || d->status != CDDP_OK || d->digest == 0) return;
    if (o->done++ == 0 || e->rank < o->rank) {
        o->output = d->digest;
        o->rank = e->rank;
        o->sequence = e->sequence;
        o->step = e->step;
    }
}

static bool is_whole(const state *s, const operation *o, const cd_key *key)
{
    cddp_fact_group g;
    return o->done > 0 && cd_writer_find_group(&s->writer, key->part[0], &g) &&
           (int64_t)o->posts == g.members;
}

/* What every member has posted and completed is closed when it is forgotten. */
static bool closes_whole(void *self, const cd_key *key, const void *value)
{
    state *s = self;
    const operation *o = value;
    if (!is_whole(s, o, key) || o->done != o->posts) return true;
    close_operation(s, o, key);
    return false;
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_collective_post)
        take_post(s, e);
    else if (e->kind == CDDP_EV_collective_done)
        take_done(s, e);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    for (size_t i = 0; i < s->operations.count; i++) {
        const operation *o = cd_table_value(&s->operations, i);
        const cd_key *key = cd_table_key(&s->operations, i);
        if (is_whole(s, o, key)) close_operation(s, o, key);
    }
    if (s->repeated > 0)
        cd_writer_exercise(&s->writer, "%llu reductions repeated with equal inputs",
                           (unsigned long long)s->repeated);
    cd_operands_fini(&s->operands);
    cd_table_fini(&s->operations);
    cd_table_fini(&s->outcomes);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_collective_post, CDDP_EV_collective_done};

CD_CHECK_TABLE(det, "I-DET", "the same reduction gives the same bits",
               "Bits are reproducible where the configuration promises it; otherwise reordering "
               "stays inside the bound "
               "and is labelled, not failed.");
