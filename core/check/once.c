/* SPDX-License-Identifier: Apache-2.0 */
/* I-ONCE: every gradient contribution enters the value that the optimizer consumes, exactly once.
**
** Judged from   a ledger per rank and parameter:
**     O1  a parameter is marked ready at most once between two preparations (ERR-03), a bucket
**         launched at most once
**     O2  an optimizer steps on a parameter only when every contribution since its last reduction
**         was reduced: after a grad_local comes a grad_final, or (optimizer in backward) the
**         bucket's completion. Nor does it pass over one whose contributions were not reduced and
**         are still there
**     O3  contributions within a step accumulate: their number falls only after the program dropped
**         gradients
**     O4  compare events whose shape is a missing or doubled contribution
** Exercised     an optimizer stepped on a parameter whose contributions had all been reduced.
** Blame         O1, O3: the rank and parameter. O2: all ranks that stepped; the finding says why:
**               the backward did not synchronise, or the bucket was never launched, the bucket
**               that it waited for and the parameters which that one lacks. Where some ranks alone
**               ran their backward inside no_sync, that is the cause of what their peers find.
** Limits        a program that reduces or gathers gradients itself (a recorder says so), as many
**               elements as are pending, is not accused by O2: what it owes is verify/import's.
**               Nor is one that averages parameters by a cddp_averager, or itself
**               (own_average.h): ranks may step on their own gradients in between, and its
**               verdict is inconclusive. So it is with a parameter server, which steps for others.
**               Gradients of a sharded unit in a recording are reduced when the recorder says it.
**               The weight of a contribution is I-SCALE's and I-REF's business. The ledger counts
**               what the engine reports as accumulated.
*/
#include "core/check/own_average.h"
#include "core/check/tally.h"
#include "core/trace/tracer.h"

#include <string.h>

typedef struct ledger {
    int64_t pending, contributions;
    uint64_t local_sequence, final_sequence;
    uint32_t pending_step, pending_micro; /* the first contribution that has not been reduced */
    uint32_t last_step, final_step;
    int64_t ready_window; /* + 1 */
    int64_t zero_epoch, numel;
    bool has_local, was_unused; /* the last time it was marked ready */
} ledger;

typedef struct rank_facts {
    int64_t window, zero_epoch;
    int64_t pending; /* elements of gradients that have not been reduced */
    int64_t own;     /* that the program itself has all-reduced since the last of them came */
    bool last_sync, is_prepared;
    bool averages;    /* its parameters, in place of gradients */
    bool is_recorded; /* what a program does with cddp/record.h */
    bool has_forward; /* with gradients, in the step of forward_step */
    uint32_t forward_step;
    bool has_left; /* a backward, half-way, in the step of left_step */
    uint32_t left_step;
} rank_facts;

typedef struct bucket_facts {
    int64_t launched_window; /* + 1 */
    uint64_t done_sequence;
    bool is_done;
} bucket_facts;

/* The first step of an optimizer on gradients of a parameter that were not reduced, all ranks
** together. */
typedef struct unreduced {
    int64_t param, tensors;
    cd_rank_set who;
    uint64_t sequence, local_sequence;
    uint32_t rank, step, pending_step, pending_micro;
    int64_t bucket;      /* + 1, that was waited for; 0: none */
    bool is_passed_over; /* an optimizer in backward: nothing came to step on */
    bool is_left_out;    /* by the rank: its backward was not to be reduced */
    char why[160];
    const char *advice;
} unreduced;

typedef struct state {
    cd_writer writer;
    cd_tally tally;
    cd_table ledgers; /* (rank, param) → ledger */
    cd_table buckets; /* (rank, bucket) → bucket_facts */
    cd_ranks ranks;   /* of rank_facts */
    cd_table firsts;  /* param → unreduced */
    cd_table units;   /* (rank, ordinal) → the sharded unit that has it, + 1 */
    cd_own_average own;
    uint64_t consumed;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-ONCE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_tally_init(&s->tally, context->allocator);
    cd_table_init(&s->ledgers, context->allocator, sizeof(ledger));
    cd_table_init(&s->buckets, context->allocator, sizeof(bucket_facts));
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->firsts, context->allocator, sizeof(unreduced));
    cd_table_init(&s->units, context->allocator, sizeof(int64_t));
    cd_own_average_init(&s->own, &s->writer);
    return CDDP_OK;
}

/* O3. */
static void take_local(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_grad_local *g = &e->as.grad_local;
    ledger *l = g->presence != CDDP_PRESENCE_ABSENT
                    ? cd_table_add(&s->ledgers, CD_KEY(e->rank, g->param))
                    : NULL;
    if (l == NULL) return;
    bool may_fall = !l->has_local || l->zero_epoch != r->zero_epoch || l->last_step != e->step;
    if (!may_fall && g->contributions <= l->contributions &&
        cd_writer_is_first(&s->writer, CD_KEY(3, g->param), e)) {
        cddp_finding f = cd_finding_at(&s->writer, e);
        cd_finding_add_event(&f, e->rank, l->local_sequence);
        cd_finding_set_parameter(&s->writer, &f, g->param);
        CD_SAY(f.title,
               CDDP_FINDING_WHO ": the gradient of %s loses what earlier micro-steps accumulated",
               f.parameter);
        CD_SAY(f.expected, "%lld contributions after micro-step %u",
               (long long)l->contributions + 1, e->micro_step);
        CD_SAY(f.actual, "%lld: it was dropped in between, and not by the program",
               (long long)g->contributions);
        CD_SAY(f.advice, "only the program may drop gradients, at the boundary of a step: no "
                         "zero_grad was reported in between");
        cd_writer_hold(&s->writer, CD_KEY(3, g->param), &f);
    }
    r->own = 0;
    if (l->pending++ == 0) {
        r->pending += l->numel;
        l->pending_step = e->step;
        l->pending_micro = e->micro_step;
    }
    l->contributions = g->contributions;
    l->local_sequence = e->sequence;
    l->last_step = e->step;
    l->zero_epoch = r->zero_epoch;
    l->has_local = true;
}

static void report_twice(state *s, const cddp_event *e, const char *what,
                         const int64_t param_and_bucket[2])
{
    const cd_key *key =
        CD_KEY(param_and_bucket[0] >= 0 ? 1 : 2, param_and_bucket[0], param_and_bucket[1]);
    if (!cd_writer_is_first(&s->writer, key, e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.bucket = (int32_t)param_and_bucket[1];
    cd_finding_set_parameter(&s->writer, &f, param_and_bucket[0]);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s%s%s twice in one backward", f.parameter,
           f.parameter[0] ? " " : "", what);
    CD_SAY(f.expected, "once between two preparations of the reducer");
    CD_SAY(f.actual, "again at event %llu", (unsigned long long)e->sequence);
    CD_SAY(f.advice, "a parameter used outside forward, a re-entrant checkpoint, or wrong unused "
                     "detection marks it twice (ERR-03)");
    cd_writer_hold(&s->writer, key, &f);
}

/* O1. */
static void take_ready(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_mark_ready *m = &e->as.mark_ready;
    ledger *l = cd_table_add(&s->ledgers, CD_KEY(e->rank, m->param));
    if (l == NULL) return;
    if (l->ready_window == r->window + 1)
        report_twice(s, e, "is marked ready", (int64_t[]){m->param, m->bucket});
    l->ready_window = r->window + 1;
    l->was_unused = m->unused;
}

static void take_launch(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_bucket_launch *b = &e->as.bucket_launch;
    bucket_facts *x = b->shadow ? NULL : cd_table_add(&s->buckets, CD_KEY(e->rank, b->bucket));
    if (x == NULL) return;
    char what[64];
    CD_SAY(what, "bucket %lld is launched", (long long)b->bucket);
    if (x->launched_window == r->window + 1) report_twice(s, e, what, (int64_t[]){-1, b->bucket});
    x->launched_window = r->window + 1;
    x->is_done = false;
}

static void settle(ledger *l, rank_facts *r)
{
    if (l->pending > 0) r->pending -= l->numel;
    l->pending = 0;
}

static void take_final(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    ledger *l = cd_table_add(&s->ledgers, CD_KEY(e->rank, g->param));
    if (l == NULL || g->globally_unused) return;
    /* the program shows what it reduced itself: that much of its reductions was for this one */
    if (l->pending > 0 && g->bucket < 0) r->own -= r->own < l->numel ? r->own : l->numel;
    settle(l, r);
    l->final_sequence = e->sequence;
    l->final_step = e->step;
}

static void take_unit_part(state *s, const cddp_event *e)
{
    int64_t *unit = cd_table_add(&s->units, CD_KEY(e->rank, e->as.unit_part.ordinal));
    if (unit != NULL) *unit = e->as.unit_part.unit + 1;
}

static void take_mark(state *s, const cddp_event *e, rank_facts *r)
{
    const char *mark = e->text != NULL ? e->text : "";
    if (strcmp(mark, CD_TRACER_OWN_REDUCTION) == 0) r->own += e->as.mark.value;
    r->averages |= strcmp(mark, CD_TRACER_AVERAGES) == 0;
    r->is_recorded |= strcmp(mark, CD_TRACER_RECORDED) == 0;
    if (strcmp(mark, CD_TRACER_LEFT) == 0) {
        r->has_left = true;
        r->left_step = e->step;
    }
    if (strcmp(mark, CD_TRACER_UNIT_REDUCED) != 0) return;
    for (size_t i = 0; i < s->units.count; i++) {
        const cd_key *of = cd_table_key(&s->units, i);
        const int64_t *unit = cd_table_value(&s->units, i);
        if (of->part[0] != (int64_t)e->rank || *unit != e->as.mark.value + 1) continue;
        ledger *l = cd_table_find(&s->ledgers, CD_KEY(e->rank, of->part[1]));
        if (l == NULL) continue;
        settle(l, r);
        l->final_sequence = e->sequence;
    }
}

/* What a bucket lacks: the parameters that did not become ready in this window. */
typedef struct lack {
    int64_t bucket, param; /* the first of them; -1: none */
    uint64_t count;
} lack;

static lack find_lack(const state *s, const cddp_event *e, int64_t bucket)
{
    const cddp_facts *facts = s->writer.context.facts;
    const rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
    lack found = {bucket, -1, 0};
    for (int64_t slot = 0;; slot++) {
        int64_t param = facts->member(facts->self, e->rank, &(cddp_fact_slot){bucket, slot});
        if (param < 0) return found;
        const ledger *l = cd_table_find(&s->ledgers, CD_KEY(e->rank, param));
        if (l != NULL && l->ready_window == r->window + 1) continue;
        if (found.count++ == 0) found.param = param;
    }
}

static bool was_launched(const state *s, const cddp_event *e, int64_t bucket)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
    const bucket_facts *b = cd_table_find(&s->buckets, CD_KEY(e->rank, bucket));
    return b != NULL && b->launched_window == r->window + 1;
}

/* Buckets are launched in order: one that is complete waits for the first that is not. */
static lack find_blocking(const state *s, const cddp_event *e, int64_t bucket)
{
    for (int64_t b = 0; b < bucket; b++) {
        if (was_launched(s, e, b)) continue;
        const lack found = find_lack(s, e, b);
        if (found.param >= 0) return found;
    }
    return find_lack(s, e, bucket);
}

static void describe_lack(state *s, const lack *missing, int64_t bucket, unreduced *u)
{
    const char *name = cd_writer_get_parameter(&s->writer, missing->param);
    const char *count = cd_writer_get_count(&s->writer, missing->count, "parameters");
    if (missing->bucket == bucket)
        CD_SAY(u->why, "bucket %lld was never launched: %s%s did not become ready",
               (long long)bucket, name, count);
    else
        CD_SAY(u->why,
               "bucket %lld was never launched: it waited for bucket %lld, in which %s%s did not "
               "become ready",
               (long long)bucket, (long long)missing->bucket, name, count);
}

static void explain(state *s, const cddp_event *e, const ledger *l, unreduced *u)
{
    const rank_facts *r = cd_ranks_find(&s->ranks, e->rank);
    cddp_fact_place place_found;
    const cddp_fact_place *place =
        cd_writer_find_place(&s->writer, e->rank, u->param, &place_found) ? &place_found : NULL;
    const bucket_facts *b =
        place != NULL ? cd_table_find(&s->buckets, CD_KEY(e->rank, place->bucket)) : NULL;
    const bool launched = place != NULL && was_launched(s, e, place->bucket);
    const lack missing = place != NULL && r->is_prepared && !launched
                             ? find_blocking(s, e, place->bucket)
                             : (lack){-1, -1, 0};
    const bool was_reduced = l->final_sequence != 0 && l->final_step == e->step;
    u->bucket = missing.param >= 0 ? missing.bucket + 1 : 0;
    u->advice = "";
    if (cd_table_find(&s->units, CD_KEY(e->rank, u->param)) != NULL && place == NULL) {
        CD_SAY(u->why, "its unit was not reduced");
        u->advice = "units are reduced by a backward outside of no_sync, and are done when it has "
                    "ended: step behind that";
    } else if (r->is_recorded && !r->has_forward && place == NULL) {
        CD_SAY(u->why, "nobody showed a reduction of it");
        u->advice = "reduce it before the step, and show what came of it with cddp_record_reduced";
    } else if (!r->is_prepared && (!r->has_forward || r->forward_step != e->step)) {
        CD_SAY(u->why, "no forward of this step went through the wrapper");
        u->advice = "call what DistributedDataParallel returned, not the module inside of it";
    } else if (!r->is_prepared && r->last_sync && !(was_reduced && l->pending == 1) &&
               (l->was_unused || l->ready_window < r->window)) {
        CD_SAY(u->why, "the wrapper never heard of it: this is not the parameter that was wrapped");
        u->advice = "wrap the model after its parameters were replaced, or replace none after that";
    } else if (l->final_sequence != 0 && l->pending == 1 && !r->is_prepared && r->last_sync) {
        CD_SAY(u->why, "it was added after the reduction had been finalised (FWD-09)");
        u->advice = "a second backward through the same forward is not synchronised: run another "
                    "forward, or add the losses up before one backward";
    } else if (missing.param >= 0) {
        describe_lack(s, &missing, place->bucket, u);
        u->advice = "every parameter of a bucket must become ready in the synchronising backward; "
                    "find_unused_parameters marks those that it does not reach";
    } else if (!r->last_sync) {
        u->is_left_out = true;
        CD_SAY(u->why, "the last forward ran inside no_sync, or outside the wrapper");
        u->advice = "the micro-step before the optimizer must be the synchronising one, forward "
                    "included";
    } else if (launched && b->is_done) {
        CD_SAY(u->why, "bucket %lld was reduced and its result not written back",
               (long long)place->bucket);
    } else if (launched) {
        CD_SAY(u->why, "bucket %lld had been launched and not been finalised",
               (long long)place->bucket);
        u->advice = "the optimizer must not step before the backward has ended";
    } else {
        CD_SAY(u->why, "no reduction was launched for it");
    }
}

/* O2. */
static void take_touch(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    ledger *l = t->param >= 0 ? cd_table_find(&s->ledgers, CD_KEY(e->rank, t->param)) : NULL;
    if (l == NULL || !l->has_local) return;
    cddp_fact_place place_found;
    const cddp_fact_place *place =
        cd_writer_find_place(&s->writer, e->rank, t->param, &place_found) ? &place_found : NULL;
    const bucket_facts *b =
        place != NULL ? cd_table_find(&s->buckets, CD_KEY(e->rank, place->bucket)) : NULL;
    if (!t->touched &&
        (l->pending == 0 || l->zero_epoch != r->zero_epoch || l->pending_step != e->step))
        return;
    /* of a backward that was left nobody reduces anything: zero_grad drops it */
    if (r->has_left && l->pending_step == r->left_step && l->zero_epoch != r->zero_epoch)
        settle(l, r);
    bool in_backward = t->touched && r->is_prepared && b != NULL && b->is_done &&
                       b->done_sequence > l->local_sequence &&
                       l->final_sequence < l->local_sequence;
    if (l->pending == 0 || in_backward) {
        settle(l, r);
        s->consumed++;
        return;
    }
    if (r->averages) {
        settle(l, r);
        return;
    }
    if (r->own > 0 && r->own >= r->pending) {
        r->own -= l->numel;
        settle(l, r);
        return;
    }
    unreduced *u = cd_table_add(&s->firsts, CD_KEY(t->param));
    if (u == NULL || (u->tensors > 0 && u->step < e->step)) return;
    if (u->step > e->step) *u = (unreduced){.tensors = 0}; /* of a rank that was ahead */
    u->step = e->step;
    cd_rank_set_add(&u->who, &s->writer.memory, e->rank);
    if (u->tensors++ == 0 || e->rank < u->rank) {
        u->param = t->param;
        u->rank = e->rank;
        u->sequence = e->sequence;
        u->local_sequence = l->local_sequence;
        u->pending_step = l->pending_step;
        u->pending_micro = l->pending_micro;
        u->is_passed_over = !t->touched;
        explain(s, e, l, u);
    }
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    cd_own_average_push(&s->own, e);
    switch (e->kind) {
    case CDDP_EV_forward_begin:
        r->last_sync = e->as.forward_begin.sync;
        if (e->as.forward_begin.grad_mode) r->has_forward = true;
        if (e->as.forward_begin.grad_mode) r->forward_step = e->step;
        if (e->as.forward_begin.sync && e->as.forward_begin.grad_mode) {
            r->window++;
            r->is_prepared = true;
        }
        break;
    case CDDP_EV_backward_end:
        if (!e->as.backward_end.finalized) break;
        r->window++;
        r->is_prepared = false;
        break;
    case CDDP_EV_zero_grad:
        r->zero_epoch++;
        break;
    case CDDP_EV_checkpoint:
        r->zero_epoch += e->as.checkpoint.loaded;
        break;
    case CDDP_EV_grad_local:
        take_local(s, e, r);
        break;
    case CDDP_EV_mark_ready:
        take_ready(s, e, r);
        break;
    case CDDP_EV_bucket_launch:
        take_launch(s, e, r);
        break;
    case CDDP_EV_bucket_done: {
        bucket_facts *b = cd_table_add(&s->buckets, CD_KEY(e->rank, e->as.bucket_done.bucket));
        if (b == NULL) break;
        b->is_done = true;
        b->done_sequence = e->sequence;
        break;
    }
    case CDDP_EV_grad_final:
        take_final(s, e, r);
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(s, e, r);
        break;
    case CDDP_EV_param: {
        ledger *l = cd_table_add(&s->ledgers, CD_KEY(e->rank, e->as.param.param));
        if (l != NULL) l->numel = e->as.param.numel;
        break;
    }
    case CDDP_EV_mark:
        take_mark(s, e, r);
        break;
    case CDDP_EV_unit_part:
        take_unit_part(s, e);
        break;
    case CDDP_EV_compare:
        if (e->as.compare.shape == CD_SHAPE_MISSING || e->as.compare.shape == CD_SHAPE_DOUBLED ||
            e->as.compare.bad == 0)
            cd_tally_push(&s->tally, e);
        break;
    default:
        break;
    }
}

static void report_unreduced(state *s, const unreduced *u)
{
    cddp_event at = {.rank = u->rank,
                     .step = u->step,
                     .micro_step = u->pending_micro,
                     .sequence = u->sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    cddp_fact_place place_found;
    const cddp_fact_place *place =
        cd_writer_find_place(&s->writer, u->rank, u->param, &place_found) ? &place_found : NULL;
    char who[96];
    cd_finding_add_event(&f, u->rank, u->local_sequence);
    cd_finding_set_parameter(&s->writer, &f, u->param);
    cd_finding_set_ranks(&s->writer, &f, &u->who);
    if (cd_rank_set_count(&u->who) > 1) f.rank = -1;
    /* of whatever the others post in its place, and of what meets that */
    f.is_cause = u->is_left_out && cd_rank_set_count(&u->who) < s->ranks.count;
    if (place != NULL) f.bucket = (int32_t)place->bucket;
    if (u->bucket > 0) f.bucket = (int32_t)(u->bucket - 1);
    cd_rank_set_print(&u->who, u->rank, who, sizeof who);
    CD_SAY(f.title, "%s: the optimizer %s of %s%s", who,
           u->is_passed_over ? "passes over the gradient" : "steps on a local gradient",
           f.parameter, cd_writer_get_count(&s->writer, (uint64_t)u->tensors, "tensors"));
    CD_SAY(f.expected,
           "reduced: the contribution of step %u micro-step %u, averaged over the group",
           u->pending_step, u->pending_micro);
    CD_SAY(f.actual, "%s", u->why);
    CD_SAY(f.advice, "%s", u->advice != NULL ? u->advice : "");
    cd_writer_report(&s->writer, &f);
}

/* All parameters of the first such step, and of those the one that comes first on the first rank.
** Where ranks average a parameter by themselves they may step on their own gradients. */
static void report_first(state *s)
{
    unreduced all = {.tensors = 0};
    for (size_t i = 0; i < s->firsts.count; i++) {
        const unreduced *u = cd_table_value(&s->firsts, i);
        const bool is_later = all.tensors > 0 && u->step > all.step;
        if (is_later || cd_own_average_has(&s->own, &u->who, u->param) ||
            cd_own_average_serves(&s->own, u->param))
            continue;
        if (u->step < all.step) all = (unreduced){.tensors = 0};
        const bool is_first = all.tensors == 0 || u->rank < all.rank ||
                              (u->rank == all.rank && u->sequence < all.sequence);
        const cd_rank_set who = all.who;
        const int64_t tensors = all.tensors;
        if (is_first) all = *u;
        all.who = who;
        all.tensors = tensors + u->tensors;
        cd_rank_set_unite(&all.who, &s->writer.memory, &u->who);
    }
    if (all.tensors > 0) report_unreduced(s, &all);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->consumed > 0)
        cd_writer_exercise(&s->writer, "%llu reduced gradients reached an optimizer",
                           (unsigned long long)s->consumed);
    cd_own_average_end(&s->own);
    report_first(s);
    cddp_finding f;
    for (size_t i = 0; cd_tally_get(&s->tally, &s->writer, i, &f); i++)
        cd_writer_report(&s->writer, &f);
    cd_tally_fini(&s->tally);
    cd_table_fini(&s->ledgers);
    cd_table_fini(&s->buckets);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->firsts);
    cd_table_fini(&s->units);
    cd_own_average_fini(&s->own);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_forward_begin,  CDDP_EV_backward_end,    CDDP_EV_zero_grad,     CDDP_EV_checkpoint,
    CDDP_EV_grad_local,     CDDP_EV_mark_ready,      CDDP_EV_bucket_launch, CDDP_EV_bucket_done,
    CDDP_EV_grad_final,     CDDP_EV_optimizer_touch, CDDP_EV_compare,       CDDP_EV_param,
    CDDP_EV_mark,           CDDP_EV_unit_part,       CDDP_EV_projection,    CDDP_EV_value,
    CDDP_EV_collective_post};

CD_CHECK_TABLE(once, "I-ONCE", "every contribution reaches the optimizer exactly once",
               "Contribution ledger: each (rank, micro-step, parameter) gradient enters the value "
               "the optimizer "
               "consumes exactly once, with the declared weight.");
