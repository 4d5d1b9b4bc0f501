/* SPDX-License-Identifier: Apache-2.0 */
/* I-FAIL: after a fault no rank reads an incomplete result, and the survivors agree to commit a
** step or to give it up.
**
** Judged from   collective_done with a failure, then bucket_done, grad_final or optimizer_step of
**               the same rank in the same step; optimizer_step and failures of all ranks by step;
**               rank_end and fault.
**     F1  a rank that saw an operation of a bucket fail goes on to use a result in that step
**     F2  some survivors committed the step (stepped) that others gave up; not where a rank hung
**         unasked, which is the cause and I-LIVE's
**     F3  a rank died although no fault struck it; named with the operation in which another one
**         missed it
** Exercised     an operation failed, a fault struck or a rank died.
** Blame         F1, F3: the rank. F2: the ranks that gave up, against those that committed.
** Limits        a rank that re-arms (opens a group again) starts afresh.
*/
#include "core/check/call.h"
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "core/base/text.h"
#include "core/trace/rank_end.h"

#include <string.h>

typedef struct rank_facts {
    uint64_t failed_sequence;
    uint32_t failed_step;
    int64_t failed_status;
    uint32_t step, micro_step; /* of its last event */
    /* the operation that it was in last, when is_waiting */
    int64_t wait_group, wait_sequence, wait_op;
    char hook[48]; /* that it called, and that has not returned; "": none */
    int64_t hook_bucket;
    bool is_waiting;
    bool has_failed, is_struck, reported;
} rank_facts;

typedef struct decision {
    bool has_committed, has_failed;
    uint64_t committed_sequence, failed_sequence;
} decision;

typedef struct state {
    cd_writer writer;
    cd_ranks ranks;     /* of rank_facts */
    cd_table decisions; /* (step, rank) → decision */
    cd_table posted;    /* (group, rank) → uint64_t operations */
    uint64_t failures, faults, deaths, hung;
} state;

static bool keeps_decision(void *self, const cd_key *key, const void *value)
{
    const decision *x = value;
    (void)self, (void)key;
    return x->has_failed;
}

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-FAIL", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->decisions, context->allocator, sizeof(decision));
    cd_table_init(&s->posted, context->allocator, sizeof(uint64_t));
    cd_writer_set_window(&s->writer, &s->decisions, keeps_decision);
    return CDDP_OK;
}

static void take_failure(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    if (d->status == CDDP_OK) return;
    s->failures++;
    if (!r->has_failed) {
        r->has_failed = true;
        r->failed_sequence = e->sequence;
        r->failed_step = e->step;
        r->failed_status = d->status;
    }
    decision *x = cd_table_add(&s->decisions, CD_KEY(e->step, e->rank));
    if (x == NULL || x->has_failed) return;
    x->has_failed = true;
    x->failed_sequence = e->sequence;
}

/* F1. */
static void take_use(state *s, const cddp_event *e, rank_facts *r, const char *what)
{
    if (!r->has_failed || r->failed_step != e->step || r->reported) return;
    r->reported = true;
    cddp_finding f = cd_finding_at(&s->writer, e);
    cd_finding_add_event(&f, e->rank, r->failed_sequence);
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s after an operation of the same step failed", what);
    CD_SAY(f.expected, "the failure (%s) ends the step",
           cddp_status_text((cddp_status)r->failed_status));
    CD_SAY(f.actual, "%s at step %u", what, e->step);
    CD_SAY(
        f.advice,
        "a failed or aborted operation leaves its output undefined; wait must hand the failure on");
    cd_writer_report(&s->writer, &f);
}

static void take_post(state *s, const cddp_event *e, rank_facts *r)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    uint64_t *posted = cd_table_add(&s->posted, CD_KEY(c->group, e->rank));
    if (posted != NULL && (uint64_t)c->sequence >= *posted) *posted = (uint64_t)c->sequence + 1;
    r->wait_group = c->group;
    r->wait_sequence = c->sequence;
    r->wait_op = c->op;
    r->is_waiting = true;
}

/* The operation that ended well is not waited for any more; one that failed is what the others were
** missed in. */
static void take_done(const cddp_event *e, rank_facts *r)
{
    const cddp_event_collective_done *d = &e->as.collective_done;
    if (d->group != r->wait_group || d->sequence > r->wait_sequence) return;
    if (d->status == CDDP_OK && d->sequence == r->wait_sequence) r->is_waiting = false;
    if (d->status != CDDP_OK) r->wait_sequence = d->sequence;
}

/* Names the rank that missed a dead rank, and where. It is the first rank that waits for something
** the dead one has not posted, else any that waits. */
static void describe_absence(state *s, uint32_t rank, cddp_finding *f)
{
    int64_t who = -1;
    bool has_posted = false;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        if (r == NULL || i == rank || !r->is_waiting) continue;
        const uint64_t *posted = cd_table_find(&s->posted, CD_KEY(r->wait_group, rank));
        bool here = posted != NULL && *posted > (uint64_t)r->wait_sequence;
        if (posted == NULL || (who >= 0 && (here || !has_posted))) continue;
        who = i;
        has_posted = here;
    }
    if (who < 0) return;
    const rank_facts *r = cd_ranks_find(&s->ranks, (uint32_t)who);
    f->peer = (int32_t)who;
    CD_SAY(f->expected,
           "it returns; rank %lld waits for it in %s #%lld of group '%s', which it had %s",
           (long long)who,
           r->wait_op >= 0 && r->wait_op < CDDP_OP_COUNT ? cddp_op_name((cddp_op)r->wait_op)
                                                         : "an operation",
           (long long)r->wait_sequence, cd_writer_get_group(&s->writer, r->wait_group),
           has_posted ? "posted" : "not posted");
}

static void take_end(state *s, const cddp_event *e, const rank_facts *r)
{
    const cddp_event_rank_end *x = &e->as.rank_end;
    s->hung += x->end == 2 || x->end == 4;
    if (x->end != 1 && x->end != 3) return;
    s->deaths++;
    if (r->is_struck) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    /* A world reports the end at no step; a recording knows the step that had begun. */
    if (e->step <= r->step) {
        f.step = r->step;
        f.micro_step = r->micro_step;
    }
    f.is_cause = x->end == 1; /* of what the others committed or gave up in that step */
    const char *how = cd_rank_end_words(x->end, x->detail, e->text);
    char call[96];
    cd_call_take(e->text, call, sizeof call);
    const bool is_in_run = call[0] == '\0' || strncmp(call, "hook ", 5) == 0;
    if (r->hook[0] != '\0' && is_in_run)
        CD_SAY(f.title, "rank %u %s in hook %s (bucket %lld)", e->rank, how, r->hook,
               (long long)r->hook_bucket);
    else if (call[0] != '\0')
        CD_SAY(f.title, "rank %u %s in %s", e->rank, how, call);
    else
        CD_SAY(f.title, "rank %u %s%s", e->rank, how,
               x->end == 3 && x->detail == 0 && strstr(how, "exit code") != NULL ? " before the end"
                                                                                 : "");
    CD_SAY(f.expected, "it returns");
    describe_absence(s, e->rank, &f);
    char number[40];
    CD_SAY(number, "%s %lld", x->end == 1 ? "signal" : "exit code", (long long)x->detail);
    /* nobody saw how its process ended; or the words have the number themselves */
    if (e->text != NULL && (x->detail == 0 || strstr(e->text, number) != NULL))
        CD_SAY(f.actual, "%s", e->text);
    else
        CD_SAY(f.actual, "%s%s%s", number, e->text != NULL ? ": " : "",
               e->text != NULL ? e->text : "");
    cd_writer_report(&s->writer, &f);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    if (e->kind == CDDP_EV_fault) {
        s->faults++;
        rank_facts *struck =
            e->as.fault.target >= 0 ? cd_ranks_add(&s->ranks, (uint32_t)e->as.fault.target) : NULL;
        if (struck != NULL) struck->is_struck = true;
        return;
    }
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->kind != CDDP_EV_rank_end) {
        r->step = e->step;
        r->micro_step = e->micro_step;
    }
    switch (e->kind) {
    case CDDP_EV_hook_call:
        CD_SAY(r->hook, "%s", e->text != NULL ? e->text : "");
        r->hook_bucket = e->as.hook_call.bucket;
        break;
    case CDDP_EV_hook_done:
        r->hook[0] = '\0';
        break;
    case CDDP_EV_collective_post:
        r->hook[0] = '\0';
        take_post(s, e, r);
        break;
    case CDDP_EV_collective_done:
        take_done(e, r);
        take_failure(s, e, r);
        break;
    case CDDP_EV_group:
        r->has_failed = false;
        break;
    case CDDP_EV_bucket_done:
        take_use(s, e, r, "a bucket's result is taken");
        break;
    case CDDP_EV_grad_final:
        take_use(s, e, r, "a gradient is written back");
        break;
    case CDDP_EV_optimizer_step: {
        if (e->as.optimizer_step.skipped) break;
        decision *x = cd_table_add(&s->decisions, CD_KEY(e->step, e->rank));
        if (x != NULL && !x->has_committed) {
            x->has_committed = true;
            x->committed_sequence = e->sequence;
        }
        take_use(s, e, r, "an optimizer steps");
        break;
    }
    case CDDP_EV_rank_end:
        take_end(s, e, r);
        break;
    default:
        break;
    }
}

typedef struct ballot {
    cd_rank_set who_committed, who_failed;
    uint64_t committed_sequence, failed_sequence;
    uint32_t committed, failed, committed_rank, failed_rank;
} ballot;

/* F2. */
static void report_ballot(state *s, int64_t step, const ballot *b)
{
    cddp_event at = {.rank = b->failed_rank,
                     .step = (uint32_t)step,
                     .sequence = b->failed_sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    cd_finding_set_ranks(&s->writer, &f, &b->who_failed);
    f.peer = (int32_t)b->committed_rank;
    cd_finding_add_event(&f, b->committed_rank, b->committed_sequence);
    char gave_up[96], committed[96];
    cd_rank_set_print(&b->who_failed, b->failed_rank, gave_up, sizeof gave_up);
    cd_rank_set_print(&b->who_committed, b->committed_rank, committed, sizeof committed);
    CD_SAY(f.title, "%s gave up step %lld which %s committed", gave_up, (long long)step, committed);
    CD_SAY(f.expected, "all survivors commit, or all give up");
    CD_SAY(f.actual, "%u committed, %u gave up", b->committed, b->failed);
    CD_SAY(
        f.advice,
        "agree on the outcome before stepping: a barrier or a reduced flag after the last bucket");
    cd_writer_report(&s->writer, &f);
}

static void judge_decisions(state *s)
{
    cd_table ballots; /* step → ballot */
    cd_table_init(&ballots, s->writer.context.allocator, sizeof(ballot));
    for (size_t i = 0; i < s->decisions.count; i++) {
        const decision *x = cd_table_value(&s->decisions, i);
        const cd_key *key = cd_table_key(&s->decisions, i);
        ballot *b = cd_table_add(&ballots, CD_KEY(key->part[0]));
        if (b == NULL) break;
        uint32_t rank = (uint32_t)key->part[1];
        if (x->has_committed && (b->committed++ == 0 || rank < b->committed_rank)) {
            b->committed_rank = rank;
            b->committed_sequence = x->committed_sequence;
        }
        bool gave_up = x->has_failed && !x->has_committed;
        if (gave_up && (b->failed++ == 0 || rank < b->failed_rank)) {
            b->failed_rank = rank;
            b->failed_sequence = x->failed_sequence;
        }
        if (x->has_committed) cd_rank_set_add(&b->who_committed, &s->writer.memory, rank);
        if (gave_up) cd_rank_set_add(&b->who_failed, &s->writer.memory, rank);
    }
    for (size_t i = 0; i < ballots.count; i++) {
        const ballot *b = cd_table_value(&ballots, i);
        if (b->committed == 0 || b->failed == 0) continue;
        report_ballot(s, cd_table_key(&ballots, i)->part[0], b);
        break;
    }
    cd_table_fini(&ballots);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->failures + s->faults + s->deaths > 0)
        cd_writer_exercise(&s->writer,
                           "%llu operations failed, %llu fault%s struck, %llu rank%s died",
                           (unsigned long long)s->failures, (unsigned long long)s->faults,
                           cd_plural(s->faults), (unsigned long long)s->deaths,
                           cd_plural(s->deaths));
    if (s->hung == 0 || s->faults > 0) judge_decisions(s);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->decisions);
    cd_table_fini(&s->posted);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_fault,           CDDP_EV_collective_post,
                                 CDDP_EV_collective_done, CDDP_EV_group,
                                 CDDP_EV_bucket_done,     CDDP_EV_grad_final,
                                 CDDP_EV_optimizer_step,  CDDP_EV_rank_end,
                                 CDDP_EV_forward_begin,   CDDP_EV_backward_begin,
                                 CDDP_EV_hook_call,       CDDP_EV_hook_done};

CD_CHECK_TABLE(fail, "I-FAIL", "failures are seen, agreed on and contained",
               "After a fault or time-out no rank reads an incomplete result; survivors agree on "
               "abort or commit; "
               "state re-arms cleanly.");
