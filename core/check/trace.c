/* SPDX-License-Identifier: Apache-2.0 */
/* I-TRACE: what happened is in the trace.
**
** Judged from   pairs of events of which the second one cannot be without what the first one
**               reports: a result that ended was posted, a right average was written back. A rank
**               that has the second and never the first does not report it.
** Exercised     an event was there that another one shows to be owed.
** Blame         the ranks whose trace lacks it. What is missing in one place alone is left to
**               others: it may not have happened.
** Limits        traces of a plan that the judge follows (owed): a recorder of other programs need
**               not record both. Where what proves it is a comparison, none of the rank's may be
**               wrong: a reduction that was left out leaves no event either.
*/
#include "core/check/writer.h"

#include "cddp/backend.h"
#include "cddp/tensor.h"
#include "core/base/hash.h"
#include "core/trace/codes.h"

typedef enum thing {
    GROUP,
    POST,
    SHARE,
    DONE,
    PARAM,
    BUFFER,
    LAYOUT,
    REBUILD,
    WRAP,
    REGROUP,
    FORWARD_BEGIN,
    FORWARD_END,
    BUFFER_SYNC,
    JOIN_SYNC,
    SHADOW,
    JOIN_END,
    NO_SYNC_BEGIN,
    NO_SYNC_END,
    SAMPLE,
    BACKWARD_BEGIN,
    LOCAL,
    READY,
    LAUNCH,
    HOOK_IN_FORCE,
    HOOK_CALL,
    HOOK_DONE,
    BUCKET_DONE,
    USED_LOCAL,
    USED_GLOBAL,
    FINAL,
    BACKWARD_END,
    UNIT,
    UNIT_PASS,
    UNIT_STORAGE,
    STOP,
    STEP,
    TOUCH,
    CONSUMED,
    AVERAGE,
    AGREEMENT,
    ZERO_GRAD,
    SAVED,
    LOADED,
    MEMORY,
    THING_COUNT
} thing;

/* What a comparison proves. */
typedef enum proof { BY_EVENTS, BY_AVERAGE, BY_STATE, PROOF_COUNT } proof;

#define REDUCED "an average is right, or a gradient is what its hook delivered"

static const struct {
    uint16_t kind;
    proof by;
    const char *shown_by, *which; /* of several of a kind */
} things[THING_COUNT] = {
    [GROUP] = {CDDP_EV_group, BY_EVENTS, "an operation was posted in it", ""},
    [POST] = {CDDP_EV_collective_post, BY_EVENTS, "an operation ended", ""},
    [SHARE] = {CDDP_EV_collective_share, BY_EVENTS,
               "an operation ended whose shares differ by rank", ""},
    [DONE] = {CDDP_EV_collective_done, BY_AVERAGE,
              "a collective reduced gradients that came back, and no average is wrong", ""},
    [PARAM] = {CDDP_EV_param, BY_EVENTS, "one has a place in a bucket, or a value", ""},
    [BUFFER] = {CDDP_EV_buffer, BY_EVENTS, "the wrapper has some", ""},
    [LAYOUT] = {CDDP_EV_bucket_layout, BY_EVENTS, "a bucket was launched", ""},
    [REBUILD] = {CDDP_EV_rebuild, BY_EVENTS, "a newer layout is in force", ""},
    [WRAP] = {CDDP_EV_wrap, BY_EVENTS, "a forward of the wrapper began", ""},
    [REGROUP] = {CDDP_EV_regroup, BY_EVENTS, "buckets go to another group", ""},
    [FORWARD_BEGIN] = {CDDP_EV_forward_begin, BY_EVENTS, "a forward ended", " joined=0"},
    [FORWARD_END] = {CDDP_EV_forward_end, BY_EVENTS, "a backward began behind a forward", ""},
    [BUFFER_SYNC] = {CDDP_EV_buffer_sync, BY_EVENTS, "a broadcast ended in a forward",
                     " of a forward"},
    [JOIN_SYNC] = {CDDP_EV_buffer_sync, BY_EVENTS,
                   "forwards synchronised buffers, and a join ended", " of a join's end"},
    [SHADOW] = {CDDP_EV_join_notify, BY_EVENTS, "the rank shadowed iterations",
                " of a rank without inputs"},
    [JOIN_END] = {CDDP_EV_join_end, BY_EVENTS, "all ranks had joined, and the rank went on", ""},
    [NO_SYNC_BEGIN] = {CDDP_EV_no_sync, BY_AVERAGE,
                       "a forward was inside, and its backward too, or it was left", " entered=1"},
    [NO_SYNC_END] = {CDDP_EV_no_sync, BY_AVERAGE,
                     "what came before was inside, and what follows is outside", " entered=0"},
    [SAMPLE] = {CDDP_EV_sample, BY_EVENTS, "a micro-batch of samples was consumed", ""},
    [BACKWARD_BEGIN] = {CDDP_EV_backward_begin, BY_EVENTS, "a backward ended", ""},
    [LOCAL] = {CDDP_EV_grad_local, BY_EVENTS, "the judge was shown local gradients", ""},
    [READY] = {CDDP_EV_mark_ready, BY_AVERAGE, "a bucket was launched", ""},
    [LAUNCH] = {CDDP_EV_bucket_launch, BY_EVENTS, "a collective carries a bucket", ""},
    [HOOK_IN_FORCE] = {CDDP_EV_hook_in_force, BY_EVENTS, "the plan's hook was called", ""},
    [HOOK_CALL] = {CDDP_EV_hook_call, BY_EVENTS, "a hook's future completed", ""},
    [HOOK_DONE] = {CDDP_EV_hook_done, BY_EVENTS, "the result of a bucket that a hook had arrived",
                   ""},
    [BUCKET_DONE] = {CDDP_EV_bucket_done, BY_AVERAGE, REDUCED, ""},
    [USED_LOCAL] = {CDDP_EV_used_local, BY_EVENTS, "the sum of the maps was read", ""},
    [USED_GLOBAL] = {CDDP_EV_used_global, BY_EVENTS,
                     "what only other ranks used has a gradient here", ""},
    [FINAL] = {CDDP_EV_grad_final, BY_AVERAGE, REDUCED, ""},
    [BACKWARD_END] = {CDDP_EV_backward_end, BY_AVERAGE, REDUCED, ""},
    [UNIT] = {CDDP_EV_unit, BY_EVENTS, "a forward of a unit began", ""},
    [UNIT_PASS] = {CDDP_EV_unit_pass, BY_EVENTS, "a full parameter was read", ""},
    [UNIT_STORAGE] = {CDDP_EV_unit_storage, BY_EVENTS,
                      "the plan has units that are gathered, and a full parameter was read", ""},
    [STOP] = {CDDP_EV_stop, BY_EVENTS, "a step was taken", ""},
    [STEP] = {CDDP_EV_optimizer_step, BY_EVENTS, "an optimizer touched a parameter", ""},
    [TOUCH] = {CDDP_EV_optimizer_touch, BY_STATE,
               "an optimizer of whole parameters stepped, and what came of it is right", ""},
    [CONSUMED] = {CDDP_EV_optimizer_touch, BY_EVENTS,
                  "an average has a digest, and an optimizer touched a parameter",
                  " with the gradient that was consumed"},
    [AVERAGE] = {CDDP_EV_average, BY_EVENTS, "the parameters became the average that is due", ""},
    [AGREEMENT] = {CDDP_EV_agreement, BY_EVENTS, "an averager wrote a parameter back", ""},
    [ZERO_GRAD] = {CDDP_EV_zero_grad, BY_EVENTS, "a step begins without the gradients of the last",
                   ""},
    [SAVED] = {CDDP_EV_checkpoint, BY_EVENTS, "values were shown as they were saved", " loaded=0"},
    [LOADED] = {CDDP_EV_checkpoint, BY_EVENTS, "values were shown as they were loaded",
                " loaded=1"},
    [MEMORY] = {CDDP_EV_memory, BY_EVENTS, "a region was touched", ""},
};

/* Of a rank; numbers are one more than what they say, 0: none. */
typedef struct rank_facts {
    uint64_t seen;              /* things that it reported */
    bool is_wrong[PROOF_COUNT]; /* a comparison of it */
    bool is_own;                /* the judge follows its plan */
    bool has_buffers, has_forward, in_forward, has_received, has_gradients, has_buckets;
    bool has_carried;                   /* a collective had a bucket, or reduced gradients */
    bool has_uneven;                    /* an operation was posted whose shares differ by rank */
    bool is_finalized;                  /* a backward wrote averages back */
    bool begins_inside;                 /* the last forward was in a no_sync window */
    bool is_inside;                     /* one was */
    bool has_backward_inside;           /* so was its backward */
    bool has_joined;                    /* every rank has no inputs left */
    bool gathers_units;                 /* so the plan says */
    bool has_stepped, has_skipped;      /* its optimizers */
    bool has_digests;                   /* of averages */
    bool drops_gradients;               /* so the plan says */
    int64_t group;                      /* the wrapper's */
    int64_t broadcast_group, broadcast; /* the last one that it posted in a forward */
    int64_t hook;                       /* the name of the plan's, hashed */
    int64_t called;                     /* the bucket for which the hook was called last */
    int64_t unused;                     /* a parameter that its map does not have */
    int64_t stepped;                    /* the name of the last optimizer that did, hashed */
    int64_t delivered, slice;           /* a parameter whose hook delivered, and its digest */
    int64_t due, due_step;              /* a parameter to be averaged, and when */
    int64_t updated, wanted;            /* digests of it: before the average, and behind it */
} rank_facts;

typedef struct state {
    cd_writer writer;
    uint8_t plain[CDDP_EV_COUNT]; /* the thing that every event of a kind reports, + 1; 0: none */
    cd_ranks ranks;               /* of rank_facts */
    cd_table witnesses; /* (thing, rank) → the first event that shows it where it was not seen */
    cd_table empties;   /* parameter without elements, whose gradient has no digest → true */
    uint64_t paired;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    const cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-TRACE", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    for (uint8_t t = 0; t < THING_COUNT; t++)
        if (things[t].which[0] == '\0') s->plain[things[t].kind] = (uint8_t)(t + 1);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->witnesses, context->allocator, sizeof(cddp_event));
    cd_table_init(&s->empties, context->allocator, sizeof(bool));
    return CDDP_OK;
}

static bool has_seen(const rank_facts *r, thing t) { return (r->seen >> t & 1) != 0; }

static void see(rank_facts *r, thing t) { r->seen |= UINT64_C(1) << t; }

/* The event cannot be without this thing before it. */
static void demand(state *s, const rank_facts *r, thing t, const cddp_event *e)
{
    if (has_seen(r, t)) {
        s->paired++;
        return;
    }
    const cd_key *key = CD_KEY(t, e->rank);
    if (cd_table_find(&s->witnesses, key) != NULL) return;
    cddp_event *witness = cd_table_add(&s->witnesses, key);
    if (witness == NULL) return;
    *witness = *e;
    witness->text = NULL;
}

/* ---- construction and collectives ---- */

static void take_wrap(state *s, rank_facts *r, const cddp_event *e)
{
    r->group = e->as.wrap.group + 1;
    r->has_buffers = e->as.wrap.buffers > 0;
    if (r->has_buffers) demand(s, r, BUFFER, e);
}

static void take_layout(state *s, rank_facts *r, const cddp_event *e)
{
    demand(s, r, PARAM, e);
    if (e->as.bucket_layout.generation > 0) demand(s, r, REBUILD, e);
}

/* Numbers that a wrapper broadcasts in a forward are its buffers; layouts are no floating point. */
static void take_post(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_collective_post *c = &e->as.collective_post;
    demand(s, r, GROUP, e);
    if (c->bucket >= 0) demand(s, r, LAUNCH, e);
    r->has_carried = r->has_carried || c->bucket >= 0 || c->op == CDDP_OP_REDUCE_SCATTER;
    r->has_uneven = r->has_uneven || c->numel == -1;
    if (!r->in_forward || c->op != CDDP_OP_BROADCAST || !cddp_dtype_is_float((cddp_dtype)c->dtype))
        return;
    r->broadcast_group = c->group;
    r->broadcast = c->sequence + 1;
}

static void take_done(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_collective_done *c = &e->as.collective_done;
    demand(s, r, POST, e);
    if (r->has_uneven) demand(s, r, SHARE, e);
    if (c->status != CDDP_OK || c->group != r->broadcast_group || c->sequence + 1 != r->broadcast)
        return;
    r->has_received = r->in_forward;
}

/* ---- a micro-step ---- */

static void take_forward_begin(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_forward_begin *f = &e->as.forward_begin;
    if (f->joined) return; /* it shadows collectives alone */
    demand(s, r, WRAP, e);
    see(r, FORWARD_BEGIN);
    r->in_forward = true;
    r->has_received = false;
    r->has_forward = r->has_forward || f->grad_mode;
    r->begins_inside = f->grad_mode && !f->sync;
    r->is_inside = r->is_inside || r->begins_inside;
    /* a window is over */
    if (f->grad_mode && f->sync && (has_seen(r, NO_SYNC_BEGIN) || r->has_backward_inside))
        demand(s, r, NO_SYNC_END, e);
}

static void take_forward_end(state *s, rank_facts *r, const cddp_event *e)
{
    demand(s, r, FORWARD_BEGIN, e);
    if (r->has_received && r->has_buffers) demand(s, r, BUFFER_SYNC, e);
    r->in_forward = false;
}

/* Nobody has inputs left: what comes next is the end of the join. */
static void take_join_notify(rank_facts *r, const cddp_event *e)
{
    const cddp_event_join_notify *j = &e->as.join_notify;
    if (j->active) return;
    see(r, SHADOW);
    r->has_joined = r->has_joined || j->active_ranks == 0;
}

static void take_no_sync(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_no_sync *n = &e->as.no_sync;
    if (!n->entered) {
        if (r->is_inside) demand(s, r, NO_SYNC_BEGIN, e);
        see(r, NO_SYNC_END);
        return;
    }
    if (has_seen(r, NO_SYNC_BEGIN) && n->depth == 1) demand(s, r, NO_SYNC_END, e);
    see(r, NO_SYNC_BEGIN);
}

static void take_backward_begin(state *s, rank_facts *r, const cddp_event *e)
{
    if (r->has_forward) demand(s, r, FORWARD_END, e);
    if (!r->begins_inside || e->as.backward_begin.sync) return;
    r->has_backward_inside = true;
    demand(s, r, NO_SYNC_BEGIN, e);
}

static void take_backward_end(state *s, rank_facts *r, const cddp_event *e)
{
    demand(s, r, BACKWARD_BEGIN, e);
    r->is_finalized = r->is_finalized || e->as.backward_end.finalized;
}

static void take_launch(state *s, rank_facts *r, const cddp_event *e)
{
    const bool is_elsewhere = r->group != 0 && e->as.bucket_launch.group + 1 != r->group;
    if (is_elsewhere) demand(s, r, REGROUP, e);
    demand(s, r, LAYOUT, e);
    if (!e->as.bucket_launch.shadow) demand(s, r, READY, e);
    r->has_buckets = true;
}

static void take_hook_call(state *s, rank_facts *r, const cddp_event *e)
{
    /* others are the wrapper's own */
    if ((int64_t)cd_hash_text(e->text) == r->hook) demand(s, r, HOOK_IN_FORCE, e);
    r->called = e->as.hook_call.bucket + 1;
}

static void take_bucket_done(state *s, rank_facts *r, const cddp_event *e)
{
    if (r->called == e->as.bucket_done.bucket + 1) demand(s, r, HOOK_DONE, e);
    if (r->has_carried) demand(s, r, DONE, e);
}

static void take_used_local(rank_facts *r, const cddp_event *e)
{
    if (e->as.used_local.used == 0)
        r->unused = e->as.used_local.param + 1;
    else if (r->unused == e->as.used_local.param + 1)
        r->unused = 0;
}

static void take_final(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_grad_final *g = &e->as.grad_final;
    const bool has_gradient = g->presence != CDDP_PRESENCE_ABSENT;
    if (g->param + 1 == r->unused && has_gradient && !g->globally_unused)
        demand(s, r, USED_GLOBAL, e);
    r->has_gradients = r->has_gradients || has_gradient;
    r->has_digests = r->has_digests || (g->presence == CDDP_PRESENCE_VALUE && g->digest != 0);
}

/* Gradients that were there are there no more. */
static void take_entry(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_backward_entry *b = &e->as.backward_entry;
    const bool is_empty = b->kept == 0 && b->unseen == 0;
    if (r->has_gradients && r->drops_gradients && is_empty) demand(s, r, ZERO_GRAD, e);
}

/* Of a lossy hook no average is compared. */
static void take_slice(rank_facts *r, const cddp_event *e)
{
    if (e->as.bucket_slice.left) return;
    r->delivered = e->as.bucket_slice.param + 1;
    r->slice = e->as.bucket_slice.digest;
}

static void take_delivered(state *s, const rank_facts *r, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    const bool is_delivered = r->delivered != 0 && v->param + 1 == r->delivered;
    if (!is_delivered || v->digest == 0 || v->digest != r->slice) return;
    demand(s, r, FINAL, e);
    demand(s, r, BUCKET_DONE, e);
    demand(s, r, BACKWARD_END, e);
    if (r->has_carried) demand(s, r, DONE, e);
}

static void take_shown(state *s, const rank_facts *r, const cddp_event *e)
{
    const cddp_event_shown *x = &e->as.shown;
    const bool is_local =
        x->what == CDDP_WHAT_GRADIENT && x->moment == CDDP_MOMENT_AFTER_FORWARD && x->count > 0;
    if (is_local) demand(s, r, LOCAL, e);
}

/* ---- the step ---- */

static void take_decision(rank_facts *r, const cddp_event *e)
{
    const cddp_event_decision *d = &e->as.decision;
    if (d->decision == CDDP_DECISION_HOOK && d->id == 0) r->hook = (int64_t)cd_hash_text(e->text);
    if (d->decision == CDDP_DECISION_ZERO_GRAD)
        r->drops_gradients = d->value != CDDP_PRESENCE_VALUE;
    if (d->decision != CDDP_DECISION_AVERAGE || d->value < 2 || r->due_step == d->at_step + 1)
        return;
    r->due = d->id + 1;
    r->due_step = d->at_step + 1;
    r->updated = r->wanted = 0;
}

static void take_step(state *s, rank_facts *r, const cddp_event *e)
{
    const bool is_skipped = e->as.optimizer_step.skipped;
    demand(s, r, STOP, e);
    r->has_skipped = r->has_skipped || is_skipped;
    r->has_stepped = true;
    if (!is_skipped && e->text != NULL) r->stepped = (int64_t)cd_hash_text(e->text);
}

static bool is_due(const rank_facts *r, const cddp_event *e, int64_t what, int64_t id)
{
    return what == CDDP_WHAT_PARAMETER && id + 1 == r->due && (int64_t)e->step + 1 == r->due_step;
}

static void take_moment(state *s, const rank_facts *r, const cddp_event *e)
{
    switch (e->as.value.moment) {
    case CDDP_MOMENT_CHECKPOINT:
        demand(s, r, SAVED, e);
        return;
    case CDDP_MOMENT_RESUME:
        demand(s, r, LOADED, e);
        return;
    case CDDP_MOMENT_JOIN_END:
    case CDDP_MOMENT_END:
        if (r->has_joined) demand(s, r, JOIN_END, e);
        return;
    default:
        return;
    }
}

/* Pieces of parameters have no variable: those are of a rank that steps for others. */
static void take_state(state *s, const rank_facts *r, const cddp_event *e)
{
    const bool is_shown = has_seen(r, TOUCH) || r->stepped == 0 || e->text == NULL;
    if (!is_shown && r->stepped == (int64_t)cd_hash_text(e->text)) demand(s, r, TOUCH, e);
}

static void take_value(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    if (v->id == 0) take_moment(s, r, e);
    if (v->what == CDDP_WHAT_PARAMETER && v->param == 0) demand(s, r, PARAM, e);
    if (v->what == CDDP_WHAT_GRADIENT && v->moment == CDDP_MOMENT_AFTER_BACKWARD)
        take_delivered(s, r, e);
    if (v->what == CDDP_WHAT_OPTIMIZER && v->param >= 0) take_state(s, r, e);
    if (!is_due(r, e, v->what, v->id)) return;
    if (v->moment == CDDP_MOMENT_AFTER_UPDATE) r->updated = v->digest;
    const bool has_moved = r->updated != 0 && v->digest != r->updated;
    if (v->moment == CDDP_MOMENT_AFTER_AVERAGE && has_moved && v->digest == r->wanted)
        demand(s, r, AVERAGE, e);
}

static void take_expected(rank_facts *r, const cddp_event *e)
{
    const cddp_event_expected *x = &e->as.expected;
    if (x->moment == CDDP_MOMENT_AFTER_AVERAGE && is_due(r, e, x->what, x->id))
        r->wanted = x->digest;
}

static void take_compare(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    const bool is_average = c->link == CD_LINK_MATHEMATICS || c->link == CD_LINK_REDUCTION;
    const bool is_step = c->link == CD_LINK_OPTIMIZER || c->link == CD_LINK_UPDATE;
    const proof by = is_average ? BY_AVERAGE : is_step ? BY_STATE : BY_EVENTS;
    r->is_wrong[by] = r->is_wrong[by] || (by != BY_EVENTS && c->bad != 0);
    /* not by the update: that may be another rank's. A step that was skipped touches nothing */
    if (c->link == CD_LINK_OPTIMIZER && r->has_stepped && !r->has_skipped) demand(s, r, TOUCH, e);
    if (by != BY_AVERAGE) return;
    if (r->is_finalized) demand(s, r, FINAL, e);
    if (r->is_finalized && r->has_buckets) demand(s, r, BUCKET_DONE, e);
    if (has_seen(r, FINAL)) demand(s, r, BACKWARD_END, e);
    if (has_seen(r, FINAL) && r->has_carried) demand(s, r, DONE, e);
}

/* The chain from an average to what is stepped on needs the digest of what was consumed. Pieces of
** sharded units have none: they are no parameter's gradient. */
static void take_touch(state *s, rank_facts *r, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    r->delivered = 0; /* what steps in the backward has nothing written back */
    demand(s, r, STEP, e);
    if (!t->touched) return;
    if (t->gradient != 0) see(r, CONSUMED);
    const bool is_empty = cd_table_find(&s->empties, CD_KEY(t->param)) != NULL;
    if (r->has_digests && !has_seen(r, UNIT) && !is_empty) demand(s, r, CONSUMED, e);
}

/* ---- events ---- */

/* What demands one thing alone. */
static void take_plain(state *s, rank_facts *r, const cddp_event *e)
{
    switch (e->kind) {
    case CDDP_EV_join_end:
        if (e->as.join_end.shadow_iterations > 0) demand(s, r, SHADOW, e);
        if (has_seen(r, BUFFER_SYNC)) demand(s, r, JOIN_SYNC, e);
        return;
    case CDDP_EV_param:
        if (e->as.param.numel == 0) (void)cd_table_add(&s->empties, CD_KEY(e->as.param.param));
        return;
    case CDDP_EV_samples:
        if (e->as.samples.count > 0) demand(s, r, SAMPLE, e);
        return;
    case CDDP_EV_hook_done:
        demand(s, r, HOOK_CALL, e);
        return;
    case CDDP_EV_used_global:
        demand(s, r, USED_LOCAL, e);
        return;
    case CDDP_EV_unit_pass:
        demand(s, r, UNIT, e);
        return;
    case CDDP_EV_unit_read:
        demand(s, r, UNIT_PASS, e);
        if (r->gathers_units) demand(s, r, UNIT_STORAGE, e);
        return;
    case CDDP_EV_touch:
        demand(s, r, MEMORY, e);
        return;
    case CDDP_EV_bucket_slice:
        take_slice(r, e);
        return;
    case CDDP_EV_average:
        demand(s, r, AGREEMENT, e);
        return;
    default:
        return;
    }
}

static void take(state *s, rank_facts *r, const cddp_event *e)
{
    switch (e->kind) {
    case CDDP_EV_wrap:
        take_wrap(s, r, e);
        return;
    case CDDP_EV_bucket_layout:
        take_layout(s, r, e);
        return;
    case CDDP_EV_collective_post:
        take_post(s, r, e);
        return;
    case CDDP_EV_collective_done:
        take_done(s, r, e);
        return;
    case CDDP_EV_forward_begin:
        take_forward_begin(s, r, e);
        return;
    case CDDP_EV_forward_end:
        take_forward_end(s, r, e);
        return;
    case CDDP_EV_no_sync:
        take_no_sync(s, r, e);
        return;
    case CDDP_EV_backward_begin:
        take_backward_begin(s, r, e);
        return;
    case CDDP_EV_shown:
        take_shown(s, r, e);
        return;
    case CDDP_EV_bucket_launch:
        take_launch(s, r, e);
        return;
    case CDDP_EV_hook_call:
        take_hook_call(s, r, e);
        return;
    case CDDP_EV_bucket_done:
        take_bucket_done(s, r, e);
        return;
    case CDDP_EV_used_local:
        take_used_local(r, e);
        return;
    case CDDP_EV_grad_final:
        take_final(s, r, e);
        return;
    case CDDP_EV_backward_entry:
        take_entry(s, r, e);
        return;
    case CDDP_EV_decision:
        take_decision(r, e);
        return;
    case CDDP_EV_value:
        take_value(s, r, e);
        return;
    case CDDP_EV_expected:
        take_expected(r, e);
        return;
    case CDDP_EV_compare:
        take_compare(s, r, e);
        return;
    case CDDP_EV_buffer_sync:
        if (r->in_forward) see(r, BUFFER_SYNC);
        if (e->as.buffer_sync.location == CDDP_LOCATION_JOIN_END) see(r, JOIN_SYNC);
        return;
    case CDDP_EV_join_notify:
        take_join_notify(r, e);
        return;
    case CDDP_EV_backward_end:
        take_backward_end(s, r, e);
        return;
    case CDDP_EV_optimizer_touch:
        take_touch(s, r, e);
        return;
    case CDDP_EV_optimizer_step:
        take_step(s, r, e);
        return;
    case CDDP_EV_checkpoint:
        see(r, e->as.checkpoint.loaded ? LOADED : SAVED);
        return;
    case CDDP_EV_planned_storage:
        r->gathers_units = true;
        return;
    case CDDP_EV_owed:
        r->is_own = true;
        return;
    default:
        take_plain(s, r, e);
        return;
    }
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    take(s, r, e);
    if (s->plain[e->kind] != 0) see(r, (thing)(s->plain[e->kind] - 1));
}

/* The whole trace of the rank has none, from the first step on. */
static void report(state *s, thing t, const cddp_event *witness)
{
    const cddp_event_info *info = cddp_event_describe(things[t].kind);
    cddp_finding f = cd_finding_at(&s->writer, witness);
    f.step = f.micro_step = 0;
    CD_SAY(f.title, CDDP_FINDING_WHO ": the trace lacks every %s%s", info->name, things[t].which);
    CD_SAY(f.expected, "%s%s (%s), since %s", info->name, things[t].which, info->doc,
           things[t].shown_by);
    CD_SAY(f.actual, "no such event");
    CD_SAY(f.advice, "it happened, and nobody reported it: the code that emits the event is at "
                     "fault, and not what the findings below blame for want of it");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    for (size_t i = 0; i < s->witnesses.count; i++) {
        const cd_key *key = cd_table_key(&s->witnesses, i);
        const thing t = (thing)key->part[0];
        const rank_facts *r = cd_ranks_find(&s->ranks, (uint32_t)key->part[1]);
        if (r == NULL || !r->is_own || has_seen(r, t) || r->is_wrong[things[t].by]) continue;
        report(s, t, cd_table_value(&s->witnesses, i));
    }
    if (s->paired > 0)
        cd_writer_exercise(&s->writer, "what %llu later events show had been reported",
                           (unsigned long long)s->paired);
    cd_table_fini(&s->witnesses);
    cd_table_fini(&s->empties);
    cd_ranks_fini(&s->ranks);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_owed,
                                 CDDP_EV_group,
                                 CDDP_EV_collective_post,
                                 CDDP_EV_collective_share,
                                 CDDP_EV_collective_done,
                                 CDDP_EV_param,
                                 CDDP_EV_buffer,
                                 CDDP_EV_wrap,
                                 CDDP_EV_bucket_layout,
                                 CDDP_EV_rebuild,
                                 CDDP_EV_forward_begin,
                                 CDDP_EV_forward_end,
                                 CDDP_EV_buffer_sync,
                                 CDDP_EV_join_notify,
                                 CDDP_EV_join_end,
                                 CDDP_EV_no_sync,
                                 CDDP_EV_sample,
                                 CDDP_EV_samples,
                                 CDDP_EV_backward_entry,
                                 CDDP_EV_backward_begin,
                                 CDDP_EV_grad_local,
                                 CDDP_EV_mark_ready,
                                 CDDP_EV_bucket_launch,
                                 CDDP_EV_hook_in_force,
                                 CDDP_EV_hook_call,
                                 CDDP_EV_hook_done,
                                 CDDP_EV_bucket_done,
                                 CDDP_EV_bucket_slice,
                                 CDDP_EV_used_local,
                                 CDDP_EV_used_global,
                                 CDDP_EV_grad_final,
                                 CDDP_EV_backward_end,
                                 CDDP_EV_unit,
                                 CDDP_EV_unit_pass,
                                 CDDP_EV_unit_read,
                                 CDDP_EV_unit_storage,
                                 CDDP_EV_planned_storage,
                                 CDDP_EV_stop,
                                 CDDP_EV_checkpoint,
                                 CDDP_EV_memory,
                                 CDDP_EV_touch,
                                 CDDP_EV_optimizer_touch,
                                 CDDP_EV_optimizer_step,
                                 CDDP_EV_average,
                                 CDDP_EV_zero_grad,
                                 CDDP_EV_regroup,
                                 CDDP_EV_agreement,
                                 CDDP_EV_decision,
                                 CDDP_EV_shown,
                                 CDDP_EV_value,
                                 CDDP_EV_expected,
                                 CDDP_EV_compare};

CD_CHECK_TABLE(trace, "I-TRACE", "what happened is in the trace",
               "Where a later event of a rank shows that something happened, the rank's trace has "
               "events of it.");
