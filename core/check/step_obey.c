/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/step_obey.h"

#include "core/trace/models.h"
#include "core/trace/tracer.h"

#include <math.h>
#include <string.h>

/* The values of an update decision, as core/reference decides them. */
enum { UPDATE_NONE, UPDATE_STEP, UPDATE_SKIP, UPDATE_UNKNOWN };
enum { LEAVING_NONE, LEAVING_NO_STEP, LEAVING_ELSE_STEPS };

/* Misses of one decision that are different findings. */
enum {
    OF_COUNT,
    OF_DUE,
    OF_LR,
    OF_SKIP,
    OF_CLOSES,
    OF_MISSING,
    OF_LEFT_OUT,
    OF_ZEROED,
    OF_DELAYED,
    OF_BEHIND_LEFT,
    OF_UNPLANNED,
    OF_GRADIENTS
};

typedef struct rank_state {
    /* since the wrapper was made: a backward ended, a reduction closed, the last backward closed
    ** one */
    bool has_backward, has_gradients, has_just_reduced;
    bool has_returned;
    bool has_forward, was_zeroed; /* in the step at hand */
    int64_t left;                 /* 1 + the last step of which a backward was left */
    int64_t gradients;            /* that came in the backward at hand */
    bool has_hidden;              /* some parameter is trained, and the reducer leaves it out */
    int64_t wrapper, own;         /* whose turn it is; whose decisions these are */
    uint32_t step;
    uint64_t sequence;
} rank_state;

void cd_step_obey_init(cd_step_obey *s, const cddp_allocator *allocator)
{
    cd_obey_init(&s->obey, allocator);
    cd_ranks_init(&s->ranks, allocator, sizeof(rank_state));
    cd_table_init(&s->taken, allocator, sizeof(int64_t));
}

void cd_step_obey_fini(cd_step_obey *s)
{
    cd_obey_fini(&s->obey);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->taken);
}

static cd_decided *find(cd_step_obey *s, const cddp_event *e, int64_t decision, int64_t id)
{
    return cd_obey_find(&s->obey, &(cd_decision_place){e->rank, decision, id, e->step, -1});
}

/* Of the step, or of all steps. */
static cd_decided *find_any(cd_step_obey *s, const cddp_event *e, int64_t decision)
{
    cd_decided *d = find(s, e, decision, -1);
    return d != NULL ? d
                     : cd_obey_find(&s->obey, &(cd_decision_place){e->rank, decision, -1, -1, -1});
}

static const char *name_of(const cddp_event *e)
{
    return e->text != NULL && e->text[0] != '\0' ? e->text : "the optimizer";
}

/* ---- an optimizer's step ---- */

static void judge_due(cd_step_obey *s, const cddp_event *e, cd_decided *update)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    const cd_decided *steps =
        cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_STEPS, -1, -1, -1});
    cd_miss m = {.decision = CDDP_DECISION_UPDATE, .which = OF_DUE};
    if (update != NULL && update->is.value != UPDATE_NONE && update->seen == 1) return;
    if (update == NULL) {
        m.which = OF_COUNT;
        CD_SAY(m.what, "'%s' %s more often than the plan decides", name_of(e),
               o->skipped ? "skips steps" : "steps");
        CD_SAY(m.planned, "%lld steps",
               steps != NULL ? (long long)steps->is.value : (long long)e->step);
        CD_SAY(m.seen, "%s in step %u", o->skipped ? "skips" : "steps", e->step);
    } else {
        CD_SAY(m.what,
               !o->skipped        ? "'%s' steps when it is not due"
               : update->seen > 1 ? "'%s' skips a step that it has taken"
                                  : "'%s' skips a step in which it is not due",
               name_of(e));
        CD_SAY(m.planned,
               update->is.value == UPDATE_NONE ? "no step of '%s' in step %u"
                                               : "one step of '%s' in step %u",
               name_of(e), e->step);
        CD_SAY(m.seen, update->seen > 1 ? "%lld steps%s" : "%lld step%s", (long long)update->seen,
               !o->skipped        ? ""
               : update->seen > 1 ? ", the last of them skipped"
                                  : ", skipped");
    }
    cd_obey_miss(&s->obey, e, &m);
}

static void judge_skip(cd_step_obey *s, const cddp_event *e, const cd_decided *update)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    const cd_decided *overflow = find(s, e, CDDP_DECISION_OVERFLOW, o->optimizer);
    const bool overflows = overflow != NULL && overflow->is.value != 0;
    const bool skips = update->is.value == UPDATE_SKIP || overflows;
    if (update->is.value == UPDATE_NONE || skips == (o->skipped != 0)) return;
    cd_miss m = {.decision = CDDP_DECISION_OVERFLOW, .which = OF_SKIP};
    CD_SAY(m.what, skips ? "'%s' steps where the plan skips" : "'%s' skips a step without a reason",
           name_of(e));
    CD_SAY(m.planned, "%s in step %u: %s", skips ? "skip" : "step", e->step,
           overflows                         ? "a judged gradient is not finite"
           : update->is.value == UPDATE_SKIP ? "the plan leaves it out"
           : overflow != NULL                ? "every judged gradient is finite"
                                             : "nothing lets it skip");
    CD_SAY(m.seen, "%s", o->skipped ? "skipped" : "stepped");
    cd_obey_miss(&s->obey, e, &m);
}

static void judge_real(cd_step_obey *s, const cddp_event *e, const cd_decided *d,
                       const cd_miss *words, double seen)
{
    if (d == NULL) return;
    s->obey.obeyed++;
    if (cd_decided_fits(d, seen)) return;
    cd_miss m = *words;
    const double bound = cd_f64_of(d->is.bound);
    if (bound > 0)
        CD_SAY(m.planned, "%.17g in step %u, within %.3g", cd_f64_of(d->is.real), e->step, bound);
    else
        CD_SAY(m.planned, "%.17g in step %u", cd_f64_of(d->is.real), e->step);
    CD_SAY(m.seen, "%.17g", seen);
    cd_obey_miss(&s->obey, e, &m);
}

static void judge_order(cd_step_obey *s, const cddp_event *e)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    const cd_decided *order = find_any(s, e, CDDP_DECISION_ORDER);
    if (order == NULL || isnan(cd_f64_of(o->norm)) || order->is.value == o->unscaled_before_clip)
        return;
    cd_miss m = {.decision = CDDP_DECISION_ORDER};
    CD_SAY(m.what, "gradients are %s",
           o->unscaled_before_clip ? "unscaled first, and clipped then"
                                   : "clipped while they are still scaled");
    CD_SAY(m.planned, order->is.value ? "unscale, then clip" : "clip, then unscale");
    CD_SAY(m.seen, order->is.value ? "clip, then unscale" : "unscale, then clip");
    cd_obey_miss(&s->obey, e, &m);
}

/* What a left backward has not delivered is missing in every gradient of the step. */
static void judge_left(cd_step_obey *s, const cddp_event *e, const cd_decided *update,
                       const rank_state *r)
{
    if (update->is.detail == LEAVING_NONE || r->left != (int64_t)e->step + 1) return;
    s->obey.obeyed++;
    if (e->as.optimizer_step.skipped) return;
    cd_miss m = {.decision = CDDP_DECISION_UPDATE, .which = OF_BEHIND_LEFT};
    CD_SAY(m.what, "'%s' steps although a backward of the step was left", name_of(e));
    CD_SAY(m.planned, "no step of '%s' in step %u: its gradients are not whole", name_of(e),
           e->step);
    CD_SAY(m.seen, "stepped");
    cd_obey_miss(&s->obey, e, &m);
}

static cd_decided *find_leave(cd_step_obey *s, const cddp_event *e)
{
    return cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_LEAVE, -1, e->step,
                                                       e->micro_step});
}

/* Much is allowed behind a backward that is left: the plan says which ones are. Gradients that the
** reducer leaves out count, too, and do not show. */
static void judge_leave(cd_step_obey *s, const cddp_event *e, const rank_state *r)
{
    cd_decided *d = find_leave(s, e);
    const int64_t said = e->as.mark.value;
    s->obey.obeyed++;
    const bool came = r->has_hidden ? r->gradients <= said : r->gradients == said;
    if (d != NULL && d->is.value == said && came) return;
    cd_miss m = {.decision = CDDP_DECISION_LEAVE,
                 .which = d == NULL ? OF_UNPLANNED : OF_GRADIENTS,
                 .is_cause = true};
    if (d == NULL) {
        CD_SAY(m.what, "a backward is left that the plan runs to its end");
        CD_SAY(m.planned, "every gradient in step %u micro-step %u", e->step, e->micro_step);
    } else {
        CD_SAY(m.what, "a backward is left at another gradient than the plan decides");
        CD_SAY(m.planned, "left behind %lld gradients", (long long)d->is.value);
    }
    CD_SAY(m.seen, "left behind %lld, of which %lld came", (long long)said,
           (long long)r->gradients);
    cd_obey_miss(&s->obey, e, &m);
}

/* Fewer gradients than it is to be left behind: it ends as others do. */
static void judge_whole(cd_step_obey *s, const cddp_event *e, const rank_state *r)
{
    const cd_decided *d = find_leave(s, e);
    if (d == NULL || r->gradients < d->is.value) return;
    cd_miss m = {.decision = CDDP_DECISION_LEAVE, .which = OF_LEFT_OUT, .is_cause = true};
    CD_SAY(m.what, "a backward runs to its end that the plan leaves");
    CD_SAY(m.planned, "left behind %lld gradients in step %u micro-step %u", (long long)d->is.value,
           e->step, e->micro_step);
    CD_SAY(m.seen, "ended behind %lld", (long long)r->gradients);
    cd_obey_miss(&s->obey, e, &m);
}

/* It explains why no optimizer steps. */
static void take_left(cd_step_obey *s, const cddp_event *e, rank_state *r)
{
    cd_decided *update;
    judge_leave(s, e, r);
    r->gradients = 0;
    r->left = (int64_t)e->step + 1;
    for (int64_t i = 0; (update = find(s, e, CDDP_DECISION_UPDATE, i)) != NULL; i++)
        update->counted++;
}

static void take_step(cd_step_obey *s, const cddp_event *e, const rank_state *r)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    cd_decided *update = find(s, e, CDDP_DECISION_UPDATE, o->optimizer);
    if (update != NULL && update->is.value == UPDATE_UNKNOWN) {
        update->counted++;
        judge_left(s, e, update, r);
        return;
    }
    if (update != NULL) update->seen++;
    s->obey.obeyed++;
    judge_due(s, e, update);
    if (update == NULL) return;
    judge_skip(s, e, update);
    cd_miss words = {.decision = CDDP_DECISION_UPDATE, .which = OF_LR};
    CD_SAY(words.what, "the learning rate of '%s' is not the plan's", name_of(e));
    judge_real(s, e, update, &words, cd_f64_of(o->lr));
    if (update->is.value == UPDATE_SKIP) return;
    words = (cd_miss){.decision = CDDP_DECISION_SCALE};
    CD_SAY(words.what, "gradients are unscaled by another loss scale than the plan's");
    judge_real(s, e, find_any(s, e, CDDP_DECISION_SCALE), &words, cd_f64_of(o->loss_scale));
    words = (cd_miss){.decision = CDDP_DECISION_CLIP};
    CD_SAY(words.what, "the clip factor does not follow from the judged gradients and max_norm");
    judge_real(s, e, find_any(s, e, CDDP_DECISION_CLIP), &words, cd_f64_of(o->clip));
    judge_order(s, e);
}

/* ---- losses, gradients at the start, windows ---- */

static void take_loss(cd_step_obey *s, const cddp_event *e)
{
    cd_miss words = {.decision = CDDP_DECISION_SCALE, .which = 1};
    CD_SAY(words.what, "a loss is multiplied with another scale than the plan's");
    judge_real(s, e, find_any(s, e, CDDP_DECISION_SCALE), &words, cd_f64_of(e->as.loss.scale));
}

/* Gradients of the step before are there. An optimizer in backward drops what it consumes (OIB-01):
** `dropped` parameters, when the last backward reduced. Whether a parameter was used at all is not
** asked, so the others are a bound. */
static bool is_kept(const rank_state *r, const cddp_event_backward_entry *b, int64_t dropped)
{
    const int64_t there = b->kept + b->unseen, all = b->absent + b->zero + there;
    if (!r->has_backward) return b->kept == 0;
    if (dropped > 0) return !r->has_just_reduced || there <= all - dropped;
    return !r->has_gradients || there + b->zero > 0; /* an average may be exactly zero */
}

static void take_entry(cd_step_obey *s, const cddp_event *e, const rank_state *r)
{
    const cddp_event_backward_entry *b = &e->as.backward_entry;
    const cd_decided *d = find_any(s, e, CDDP_DECISION_ZERO_GRAD);
    if (d == NULL) return;
    const bool is_fresh = !r->has_backward;
    const bool is_count = b->absent >= 0 && b->zero >= 0 && b->kept >= 0 && b->unseen >= 0;
    const bool holds = !is_count ? false
                       : d->is.value == CDDP_PRESENCE_ABSENT
                           ? b->kept == 0 && b->zero + b->unseen <= d->is.detail
                       : d->is.value == CDDP_PRESENCE_ZERO ? b->kept == 0
                                                           : is_kept(r, b, d->is.detail);
    /* every other gradient is absent: zero_grad has done its part, and the forward has not */
    const bool is_delayed = is_count && d->is.value == CDDP_PRESENCE_ABSENT && d->is.detail > 0 &&
                            b->zero + b->kept + b->unseen <= d->is.detail;
    s->obey.obeyed++;
    if (holds) return;
    cd_miss m = {.decision = CDDP_DECISION_ZERO_GRAD, .which = is_delayed ? OF_DELAYED : OF_COUNT};
    CD_SAY(m.what, is_delayed
                       ? "gradients of delayed parameters are not zero when a backward starts"
                       : "gradients are not as train.zero_grad leaves them when a step starts");
    CD_SAY(m.planned, "%s",
           is_delayed ? "each forward sets them to zero (DEL-04), and all others are absent"
           : d->is.value == CDDP_PRESENCE_ABSENT
               ? d->is.detail > 0 ? "absent, of delayed parameters zero" : "absent"
           : is_fresh                          ? "absent or zero: no backward has run yet"
           : d->is.value == CDDP_PRESENCE_ZERO ? "absent or zero"
           : d->is.detail > 0                  ? "dropped by the optimizer in backward"
                                               : "those of the step before");
    CD_SAY(m.seen, "%lld absent, %lld zero, %lld with a value", (long long)b->absent,
           (long long)b->zero, (long long)(b->kept + b->unseen));
    cd_obey_miss(&s->obey, e, &m);
}

/* A step that ran a forward ends with zero_grad, unless gradients are kept. */
static void close_step(cd_step_obey *s, uint32_t rank, rank_state *r)
{
    const cddp_event at = {.rank = rank, .step = r->step, .sequence = r->sequence};
    const cd_decided *d = find_any(s, &at, CDDP_DECISION_ZERO_GRAD);
    const bool is_open = r->has_forward && !r->was_zeroed;
    r->has_forward = r->was_zeroed = false;
    if (!is_open || d == NULL || d->is.value == CDDP_PRESENCE_VALUE) return;
    cd_miss m = {.decision = CDDP_DECISION_ZERO_GRAD, .which = OF_LEFT_OUT};
    CD_SAY(m.what, "a step ends without zero_grad");
    CD_SAY(m.planned, "gradients dropped or zeroed once in step %u", r->step);
    CD_SAY(m.seen, "nothing of the kind");
    cd_obey_miss(&s->obey, &at, &m);
}

static void take_zero_grad(cd_step_obey *s, const cddp_event *e, rank_state *r)
{
    const cd_decided *d = find_any(s, e, CDDP_DECISION_ZERO_GRAD);
    r->was_zeroed = true;
    if (d == NULL || d->is.value != CDDP_PRESENCE_VALUE) return;
    cd_miss m = {.decision = CDDP_DECISION_ZERO_GRAD, .which = OF_ZEROED};
    CD_SAY(m.what, "zero_grad is called, where gradients are to be kept");
    CD_SAY(m.planned, "no zero_grad in step %u", e->step);
    CD_SAY(m.seen, "one");
    cd_obey_miss(&s->obey, e, &m);
}

static void enter_step(cd_step_obey *s, const cddp_event *e, rank_state *r)
{
    if (r->has_forward && r->step != e->step) close_step(s, e->rank, r);
    r->was_zeroed = r->was_zeroed && r->has_forward;
    r->has_forward = true;
    r->step = e->step;
    r->sequence = e->sequence;
}

static cd_decided *find_window(cd_step_obey *s, const cddp_event *e)
{
    return cd_obey_find(&s->obey, &(cd_decision_place){e->rank, CDDP_DECISION_WINDOW, -1, e->step,
                                                       e->micro_step});
}

/* An armed reducer that does not finish is I-ONCE's. */
static void take_forward(cd_step_obey *s, const cddp_event *e)
{
    const cddp_event_forward_begin *f = &e->as.forward_begin;
    cd_decided *d = f->sync && f->grad_mode && !f->joined ? find_window(s, e) : NULL;
    if (d != NULL) d->seen++;
}

static void take_backward(cd_step_obey *s, const cddp_event *e, rank_state *r)
{
    cd_decided *d = find_window(s, e);
    judge_whole(s, e, r);
    r->gradients = 0;
    if (d != NULL) d->counted++;
    r->has_backward = true;
    r->has_just_reduced = e->as.backward_end.finalized != 0;
    if (!e->as.backward_end.finalized) return;
    r->has_gradients = true;
    if (d == NULL) return;
    s->obey.obeyed++;
    if (d->is.value != 0) return;
    cd_miss m = {.decision = CDDP_DECISION_WINDOW, .which = OF_CLOSES};
    CD_SAY(m.what, "a reduction closes early");
    CD_SAY(m.planned, "micro-step %u of step %u only accumulates", e->micro_step, e->step);
    CD_SAY(m.seen, "its backward reduced every bucket");
    cd_obey_miss(&s->obey, e, &m);
}

bool cd_step_obey_decides_clip(cd_step_obey *s, const cddp_event *e)
{
    return find_any(s, e, CDDP_DECISION_CLIP) != NULL;
}

/* ---- events ---- */

void cd_step_obey_learn(cd_step_obey *s, const cddp_event *e)
{
    static const int64_t decisions[2] = {CDDP_DECISION_STEPS, CDDP_DECISION_WINDOW},
                         leaves[2] = {CDDP_DECISION_LEAVE, CDDP_DECISION_LEAVE};
    rank_state *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    if (e->kind == CDDP_EV_decision) {
        r->own = r->wrapper;
        (void)cd_obey_learn(&s->obey, e, decisions);
        (void)cd_obey_learn(&s->obey, e, leaves);
        return;
    }
    if (cd_models_is_mark(e)) r->wrapper = e->as.mark.value;
    if (e->kind == CDDP_EV_param)
        r->has_hidden |= e->as.param.param < 0 && e->as.param.requires_grad;
    if (!cd_obey_judges(&s->obey, e->rank)) return;
    switch (e->kind) {
    case CDDP_EV_optimizer_step:
        take_step(s, e, r);
        break;
    case CDDP_EV_loss:
        take_loss(s, e);
        break;
    case CDDP_EV_backward_entry:
        r->gradients = 0;
        take_entry(s, e, r);
        break;
    case CDDP_EV_grad_local:
        r->gradients++;
        break;
    case CDDP_EV_forward_begin:
        if (!e->as.forward_begin.joined) enter_step(s, e, r);
        take_forward(s, e);
        break;
    case CDDP_EV_zero_grad:
        take_zero_grad(s, e, r);
        break;
    case CDDP_EV_backward_end:
        take_backward(s, e, r);
        break;
    case CDDP_EV_checkpoint:
        if (e->as.checkpoint.loaded) r->has_backward = r->has_gradients = false;
        break;
    case CDDP_EV_mark:
        if (e->text != NULL && strcmp(e->text, CD_TRACER_LEFT) == 0 && r->own == r->wrapper)
            take_left(s, e, r);
        break;
    case CDDP_EV_rank_end:
        r->has_returned = e->as.rank_end.end == 0 && e->as.rank_end.status == CDDP_OK;
        if (r->has_returned) close_step(s, e->rank, r);
        break;
    default:
        break;
    }
}

/* ---- the end: what was left out ---- */

static bool is_taken_update(const cd_decided *d)
{
    return d->is.decision == CDDP_DECISION_UPDATE && d->is.value != UPDATE_NONE && d->seen > 0;
}

static int64_t count_seen(const cd_step_obey *s, uint32_t rank, int64_t optimizer)
{
    const int64_t *forgotten = cd_table_find(&s->taken, CD_KEY(rank, optimizer));
    int64_t count = forgotten != NULL ? *forgotten : 0;
    uint32_t other;
    for (size_t i = 0; i < s->obey.decided.count; i++) {
        const cd_decided *d = cd_obey_get(&s->obey, i, &other);
        count += other == rank && d->is.id == optimizer && is_taken_update(d);
    }
    return count;
}

static void miss_update(cd_step_obey *s, uint32_t rank, const cd_decided *d)
{
    const cddp_event at = {.rank = rank, .step = (uint32_t)d->is.at_step, .sequence = d->sequence};
    const cd_decided *steps =
        cd_obey_find(&s->obey, &(cd_decision_place){rank, CDDP_DECISION_STEPS, -1, -1, -1});
    cd_miss m = {.decision = CDDP_DECISION_UPDATE, .which = OF_MISSING};
    CD_SAY(m.what, "optimizer %lld does not step as often as the plan decides",
           (long long)d->is.id);
    CD_SAY(m.planned, "a step in step %lld, of %lld steps in all", (long long)d->is.at_step,
           steps != NULL ? (long long)steps->is.value : -1);
    CD_SAY(m.seen, "none there; updates in %lld steps", (long long)count_seen(s, rank, d->is.id));
    cd_obey_miss(&s->obey, &at, &m);
}

static void miss_window(cd_step_obey *s, uint32_t rank, const cd_decided *d)
{
    const cddp_event at = {.rank = rank,
                           .step = (uint32_t)d->is.at_step,
                           .micro_step = (uint32_t)d->is.at_micro,
                           .sequence = d->sequence};
    cd_miss m = {.decision = CDDP_DECISION_WINDOW, .which = OF_MISSING, .is_cause = true};
    CD_SAY(m.what, "a reduction does not close where the plan decides");
    CD_SAY(m.planned, "micro-steps %lld to %lld of step %lld are reduced together",
           (long long)d->is.detail, (long long)d->is.at_micro, (long long)d->is.at_step);
    CD_SAY(m.seen, "no forward of micro-step %lld synchronises", (long long)d->is.at_micro);
    cd_obey_miss(&s->obey, &at, &m);
}

static void miss_backwards(cd_step_obey *s, uint32_t rank, const cd_decided *d)
{
    const cddp_event at = {.rank = rank,
                           .step = (uint32_t)d->is.at_step,
                           .micro_step = (uint32_t)d->is.at_micro,
                           .sequence = d->sequence};
    cd_miss m = {.decision = CDDP_DECISION_WINDOW, .which = OF_COUNT, .is_cause = true};
    CD_SAY(m.what, "a micro-step does not run the backwards that the plan decides");
    CD_SAY(m.planned, "%g at step %u micro-step %u", cd_f64_of(d->is.real), at.step, at.micro_step);
    CD_SAY(m.seen, "%lld", (long long)d->counted);
    cd_obey_miss(&s->obey, &at, &m);
}

/* Of a step that took place. */
static bool lacks_backwards(cd_step_obey *s, uint32_t rank, const cd_decided *d)
{
    const cd_decided *update =
        cd_obey_find(&s->obey,
                     &(cd_decision_place){rank, CDDP_DECISION_UPDATE, 0, d->is.at_step, -1});
    const bool has_step = update == NULL || update->is.value == UPDATE_NONE || update->seen > 0;
    return d->is.decision == CDDP_DECISION_WINDOW && has_step &&
           (double)d->counted != cd_f64_of(d->is.real);
}

static bool lacks_update(const cd_decided *d)
{
    const bool is_owed = d->is.value == UPDATE_UNKNOWN
                             ? d->is.detail == LEAVING_ELSE_STEPS && d->counted == 0
                             : d->is.value == UPDATE_STEP || d->is.value == UPDATE_SKIP;
    return d->seen == 0 && d->is.decision == CDDP_DECISION_UPDATE && is_owed;
}

static bool lacks_window(const cd_decided *d)
{
    return d->seen == 0 && d->is.decision == CDDP_DECISION_WINDOW && d->is.value != 0;
}

/* What is not missed is forgotten, but for its number. */
static bool is_missed(void *self, uint32_t rank, const cd_decided *d)
{
    cd_step_obey *s = self;
    if (lacks_backwards(s, rank, d) || lacks_update(d) || lacks_window(d)) return true;
    int64_t *taken = is_taken_update(d) ? cd_table_add(&s->taken, CD_KEY(rank, d->is.id)) : NULL;
    if (taken != NULL) ++*taken;
    return false;
}

void cd_step_obey_set_window(cd_step_obey *s, cd_horizon *horizon)
{
    cd_obey_set_window(&s->obey, &(cd_obey_window){horizon, is_missed, s});
}

void cd_step_obey_report(cd_step_obey *s, cd_writer *writer)
{
    for (size_t i = 0; i < s->obey.decided.count; i++) {
        uint32_t rank;
        const cd_decided *d = cd_obey_get(&s->obey, i, &rank);
        const rank_state *r = cd_ranks_find(&s->ranks, rank);
        if (r == NULL || !r->has_returned) continue;
        if (lacks_backwards(s, rank, d)) miss_backwards(s, rank, d);
        if (lacks_update(d)) miss_update(s, rank, d);
        if (lacks_window(d)) miss_window(s, rank, d);
    }
    cd_obey_report(&s->obey, writer);
}
