/* SPDX-License-Identifier: Apache-2.0 */
/* I-STEP: every rank takes the same decisions: step or skip, learning rate, loss scale, clipping,
** stop.
**
** Judged from   optimizer_step and stop across ranks; how often gradients were dropped (zero_grad)
**               between two steps, those that a forward of the wrapper had led to; the number of
**               optimizer steps per rank; and,
**               on each rank, that gradients were unscaled before they were clipped, and compare
**               events of link 13: the norm is that of all gradients, each counted once. Each rank
**               by itself against the decisions of the plan (step_obey.h).
** Exercised     two ranks reported the same optimizer's step.
** Blame         the odd ranks; a rank that stepped less often than the others and returned
**               normally; ranks whose optimizer steps again with no work in between: no forward,
**               gradient or zero_grad. A program that does so behind every reduction, on all
**               ranks, means it.
** Limits        the clip coefficient is compared only where the backend promises equal bits. Under
**               join ranks step as often as they have inputs, so their numbers are not compared.
*/
#include "core/check/facts.h"
#include "core/check/step_obey.h"
#include "core/check/tally.h"

#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <math.h>

#include <string.h>

typedef struct rank_facts {
    int64_t steps;
    uint64_t sequence;
    uint32_t last_step;
    bool has_returned, has_left; /* has_left: the wrapper's group */
    int64_t drops;               /* of gradients, since its last optimizer step */
    uint64_t work;               /* forwards, gradients and zero_grads so far */
    bool has_forwards;           /* with gradients, any; has_forward: since the last backward */
    bool has_forward;
    bool is_filled; /* a backward may have left gradients since the last zero_grad */
} rank_facts;

/* An optimizer's steps on a rank. */
typedef struct taken {
    int64_t count;
    int64_t occurrence;    /* of the last one in its step, counted from 0 */
    uint64_t work;         /* of the rank then */
    uint64_t fresh, again; /* steps behind some work, and behind none */
    uint32_t step;
    bool was_skipped;
} taken;

/* Ranks whose optimizer steps again on the same gradients, in the first step that has any. */
typedef struct twice {
    cd_rank_set who;
    uint64_t sequence;
    uint32_t rank, step;
    bool is_known;
} twice;

/* In which step an optimizer took its n-th one, on the rank that came first. */
typedef struct turn {
    uint32_t rank, step;
    bool is_known;
} turn;

typedef struct gap {
    uint32_t rank, peer, step;
    int64_t optimizer;
    bool is_known;
} gap;

typedef struct state {
    cd_writer writer;
    cd_step_obey obeyed;
    cd_agree steps; /* (step, optimizer, occurrence) → skipped, lr, loss scale, clip */
    cd_agree stops; /* step → stop */
    cd_agree drops; /* (step, optimizer, occurrence) → how often gradients were dropped before it */
    cd_ranks ranks;    /* of rank_facts */
    cd_table reported; /* which field → reported */
    cd_table taken;    /* (rank, optimizer) → taken */
    cd_table order;    /* (optimizer, how many before) → turn */
    twice twice;
    gap left_out; /* the first step that one rank took and another one did not */
    bool has_joined, has_unordered;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-STEP", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_step_obey_init(&s->obeyed, context->allocator);
    cd_agree_init(&s->steps, context->allocator);
    cd_agree_init(&s->stops, context->allocator);
    cd_agree_init(&s->drops, context->allocator);
    cd_ranks_init(&s->ranks, context->allocator, sizeof(rank_facts));
    cd_table_init(&s->reported, context->allocator, sizeof(int64_t));
    cd_table_init(&s->taken, context->allocator, sizeof(taken));
    cd_table_init(&s->order, context->allocator, sizeof(turn));
    cd_writer_set_agree_window(&s->writer, &s->steps, CD_WHOLE_BY_STEP);
    cd_writer_set_agree_window(&s->writer, &s->stops, CD_WHOLE_BY_STEP);
    cd_writer_set_agree_window(&s->writer, &s->drops, CD_WHOLE_BY_STEP);
    cd_writer_set_window(&s->writer, &s->order, NULL);
    cd_step_obey_set_window(&s->obeyed, cd_facts_get_horizon(context->facts));
    return CDDP_OK;
}

static void check_order(state *s, const cddp_event *e)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    double scale = cd_f64_of(o->loss_scale), clip = cd_f64_of(o->clip);
    if (o->skipped || o->unscaled_before_clip || scale == 1 || clip == 1 ||
        !cd_writer_is_first(&s->writer, CD_KEY(0), e))
        return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    CD_SAY(f.title,
           CDDP_FINDING_WHO
           ": gradients are clipped that are still multiplied by the loss scale %g",
           scale);
    CD_SAY(f.expected, "unscale, then clip");
    CD_SAY(f.actual, "clip coefficient %.9g applied before unscaling", clip);
    CD_SAY(f.advice, "the norm limit is meant for true gradients: unscale first");
    cd_writer_hold(&s->writer, CD_KEY(0), &f);
}

/* A coefficient that is not a number is the same on all ranks, whatever its sign and payload. */
static int64_t get_clip_bits(int64_t clip)
{
    return isnan(cd_f64_of(clip)) ? cd_f64_bits((double)NAN) : clip;
}

static void note_twice(state *s, const cddp_event *e)
{
    twice *t = &s->twice;
    if (t->is_known && e->step > t->step) return;
    cd_horizon_freeze(cd_facts_get_horizon(s->writer.context.facts));
    if (!t->is_known || e->step < t->step) *t = (twice){.is_known = true, .step = e->step};
    const bool is_least = cd_rank_set_count(&t->who) == 0 || e->rank < t->rank;
    cd_rank_set_add(&t->who, &s->writer.memory, e->rank);
    if (!is_least) return;
    t->rank = e->rank;
    t->sequence = e->sequence;
}

/* A step may have an optimizer's several times: the n-th is compared with the n-th. */
static int64_t follow_taken(state *s, const cddp_event *e, const rank_facts *r, taken *t)
{
    const bool is_skipped = e->as.optimizer_step.skipped != 0,
               is_same = t->count > 0 && t->step == e->step,
               is_again = is_same && !is_skipped && !t->was_skipped && t->work == r->work;
    t->occurrence = is_same ? t->occurrence + 1 : 0;
    t->step = e->step;
    t->work = r->work;
    t->was_skipped = is_skipped;
    t->again += is_again;
    t->fresh += !is_again;
    if (is_again) note_twice(s, e);
    return t->occurrence;
}

static void take_step(state *s, const cddp_event *e, rank_facts *r, taken *t)
{
    const cddp_event_optimizer_step *o = &e->as.optimizer_step;
    const int64_t occurrence = follow_taken(s, e, r, t);
    /* behind a step that was taken: it takes no gradients a second time */
    const bool takes_none = o->skipped && r->steps > 0 && r->last_step == e->step;
    r->steps++;
    r->sequence = e->sequence;
    r->last_step = e->step;
    if (!takes_none)
        cd_agree_push(&s->drops,
                      &(cd_statement){.key = CD_KEY(e->step, o->optimizer, occurrence),
                                      CD_SAYS(r->drops)},
                      e);
    r->drops = 0;
    check_order(s, e);
    /* ranks that train alone for some steps clip other gradients, each as the plan decides */
    const bool is_own = s->has_unordered || cd_step_obey_decides_clip(&s->obeyed, e);
    cd_agree_push(&s->steps,
                  &(cd_statement){.key = CD_KEY(e->step, o->optimizer, occurrence),
                                  CD_SAYS(o->skipped, o->lr, o->loss_scale,
                                          is_own ? 0 : get_clip_bits(o->clip))},
                  e);
}

static void take_norm(state *s, const cddp_event *e)
{
    const cddp_event_compare *c = &e->as.compare;
    char name[16];
    if (c->bad == 0 || !cd_writer_is_first(&s->writer, CD_KEY(1), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.is_cause = true; /* of the clip factor, and of the gradients that are clipped by it */
    CD_SAY(f.title, CDDP_FINDING_WHO ": the norm to clip by was taken %s",
           cd_compare_split_name(e->text != NULL ? e->text : "", name, sizeof name));
    CD_SAY(f.expected, "the norm of all gradients, each counted once: %.17g",
           cd_f64_of(c->expected));
    CD_SAY(f.actual, "%.17g", cd_f64_of(c->actual));
    if (cd_f64_of(c->ratio) != 0)
        CD_SAY(f.actual, "%.17g, %.9g times as large", cd_f64_of(c->actual), cd_f64_of(c->ratio));
    if (strstr(f.title, "over the wrong group") != NULL)
        CD_SAY(f.advice, "add the squares of what only one rank steps over all ranks, and those of "
                         "what every rank steps once");
    cd_writer_hold(&s->writer, CD_KEY(1), &f);
}

/* The norm of one rank's part of a gradient says nothing about the gradient. */
static void take_rewrite(state *s, const cddp_event *e)
{
    const cddp_event_rewrite *x = &e->as.rewrite;
    if (x->unreduced == 0 || !cd_writer_is_first(&s->writer, CD_KEY(2), e)) return;
    cddp_finding f = cd_finding_at(&s->writer, e);
    f.is_cause = true; /* of clip factors that differ */
    CD_SAY(f.title, CDDP_FINDING_WHO ": %s changes gradients that are not reduced yet",
           e->text != NULL ? e->text : "the program");
    CD_SAY(f.expected, "first the reduction, then the norm of its result");
    CD_SAY(f.actual, "%lld of %lld gradients have contributions that no reduction has had",
           (long long)x->unreduced, (long long)x->params);
    CD_SAY(f.advice, "clip after the backward that synchronises: the norm of a local gradient "
                     "differs by rank");
    cd_writer_hold(&s->writer, CD_KEY(2), &f);
}

/* A rank whose n-th step of an optimizer comes in a later step than another one's left one out. */
static void learn_order(state *s, const cddp_event *e, taken *mine)
{
    const int64_t optimizer = e->as.optimizer_step.optimizer;
    turn *t = cd_table_add(&s->order, CD_KEY(optimizer, mine->count));
    if (t == NULL) return;
    mine->count++;
    if (!t->is_known) *t = (turn){e->rank, e->step, true};
    const uint32_t first = t->step < e->step ? t->step : e->step;
    if (t->step == e->step || (s->left_out.is_known && s->left_out.step <= first)) return;
    const bool is_mine = e->step > t->step;
    s->left_out =
        (gap){is_mine ? e->rank : t->rank, is_mine ? t->rank : e->rank, first, optimizer, true};
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    rank_facts *r = cd_ranks_add(&s->ranks, e->rank);
    if (r == NULL) return;
    cd_step_obey_learn(&s->obeyed, e);
    switch (e->kind) {
    case CDDP_EV_group:
        s->has_unordered |= !cd_writer_has_equal_bits(&s->writer, e->as.group.group);
        break;
    case CDDP_EV_join_notify:
        s->has_joined = true;
        break;
    case CDDP_EV_optimizer_step: {
        taken *t =
            cd_table_add(&s->taken, CD_KEY((int64_t)e->rank, e->as.optimizer_step.optimizer));
        if (t == NULL) break;
        take_step(s, e, r, t);
        learn_order(s, e, t);
        break;
    }
    case CDDP_EV_forward_begin:
        r->work++;
        if (e->as.forward_begin.grad_mode) r->has_forwards = r->has_forward = true;
        break;
    case CDDP_EV_grad_local:
        r->is_filled |= !r->has_forwards; /* a program without a wrapper */
        r->work++;
        break;
    case CDDP_EV_backward_end:
        r->work++;
        r->is_filled |= r->has_forward;
        r->has_forward = false;
        break;
    case CDDP_EV_zero_grad:
        r->work++;
        r->drops += r->is_filled;
        r->is_filled = false;
        break;
    case CDDP_EV_rewrite:
        take_rewrite(s, e);
        break;
    case CDDP_EV_compare:
        if (e->as.compare.link == CD_LINK_NORM) take_norm(s, e);
        break;
    case CDDP_EV_stop:
        cd_agree_push(&s->stops, &(cd_statement){.key = CD_KEY(e->step), CD_SAYS(e->as.stop.stop)},
                      e);
        break;
    case CDDP_EV_regroup:
        r->has_left = e->as.regroup.group < 0;
        break;
    case CDDP_EV_rank_end:
        r->has_returned = e->as.rank_end.end == 0 && e->as.rank_end.status == CDDP_OK;
        break;
    default:
        break;
    }
}

static void report_step(state *s, const cd_split *split)
{
    static const char *const words[] = {"whether to skip the step", "the learning rate",
                                        "the loss scale", "the clip coefficient"};
    static const int64_t decisions[] = {CDDP_DECISION_OVERFLOW, CDDP_DECISION_UPDATE,
                                        CDDP_DECISION_SCALE, CDDP_DECISION_CLIP};
    size_t field = 0;
    while (field < 3 && split->odd.data[field] == split->right.data[field]) field++;
    /* the plan says which of them is right */
    if (cd_obey_has_missed(&s->obeyed.obey, decisions[field])) return;
    int64_t *reported = cd_table_add(&s->reported, CD_KEY((int64_t)field));
    if (reported == NULL || (*reported)++ != 0) return;
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    CD_SAY(f.title, "%s disagree on %s", who, words[field]);
    if (field == 0) {
        CD_SAY(f.expected, "rank %u %s", split->right.rank,
               split->right.data[0] ? "skipped" : "stepped");
        CD_SAY(f.actual, "rank %u %s", split->odd.rank, split->odd.data[0] ? "skipped" : "stepped");
    } else {
        CD_SAY(f.expected, "rank %u: %.17g", split->right.rank,
               cd_f64_of(split->right.data[field]));
        CD_SAY(f.actual, "rank %u: %.17g", split->odd.rank, cd_f64_of(split->odd.data[field]));
    }
    CD_SAY(f.advice, "decide from values that all ranks share: reduced gradients, a reduced "
                     "overflow flag, one schedule");
    /* The learning rate and the loss scale are settled before the backward, the rest follows from
    ** gradients. */
    f.is_consequence = field != 1 && field != 2;
    cd_writer_report(&s->writer, &f);
}

static void report_stop(state *s, const cd_split *split)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    CD_SAY(f.title, "%s disagree on whether to stop", who);
    CD_SAY(f.expected, "rank %u %s", split->right.rank, split->right.data[0] ? "stops" : "goes on");
    CD_SAY(f.actual, "rank %u %s", split->odd.rank, split->odd.data[0] ? "stops" : "goes on");
    f.is_consequence = true;
    CD_SAY(f.advice, "a barrier does not share a value: broadcast or reduce the decision");
    cd_writer_report(&s->writer, &f);
}

/* What a rank does not drop is in its next contribution once more: the average is wrong alike on
** all ranks, and no comparison of values shows it. */
static void report_drops(state *s, const cd_split *split)
{
    if (cd_obey_has_missed(&s->obeyed.obey, CDDP_DECISION_ZERO_GRAD)) return;
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    CD_SAY(f.title, "%s disagree on whether gradients are dropped before the step", who);
    CD_SAY(f.expected, "rank %u: zero_grad %lld time%s since its last step", split->right.rank,
           (long long)split->right.data[0], split->right.data[0] == 1 ? "" : "s");
    CD_SAY(f.actual, "rank %u: %lld time%s", split->odd.rank, (long long)split->odd.data[0],
           split->odd.data[0] == 1 ? "" : "s");
    CD_SAY(f.advice, "%s",
           split->right.rank == split->odd.rank
               ? "an optimizer steps once on what a reduction brought: look for a second step of it"
               : "a gradient that is kept enters the next reduction once more: call zero_grad "
                 "on every rank, or on none");
    f.is_cause = true;
    cd_writer_report(&s->writer, &f);
}

/* Each optimizer takes every step equally often, on all ranks: a program's own way. */
static bool is_twice_meant(const state *s)
{
    for (size_t i = 0; i < s->taken.count; i++) {
        const taken *t = cd_table_value(&s->taken, i), *first = t;
        const int64_t optimizer = cd_table_key(&s->taken, i)->part[1];
        for (size_t k = 0; k < i && first == t; k++)
            if (cd_table_key(&s->taken, k)->part[1] == optimizer)
                first = cd_table_value(&s->taken, k);
        if (t->again % t->fresh != 0 || t->again / t->fresh != first->again / first->fresh)
            return false;
    }
    return true;
}

static bool report_twice(state *s)
{
    const twice *t = &s->twice;
    if (!t->is_known || is_twice_meant(s)) return false;
    const cddp_event at = {.rank = t->rank, .step = t->step, .sequence = t->sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    char who[96];
    cd_finding_set_ranks(&s->writer, &f, &t->who);
    if (cd_rank_set_count(&t->who) > 1) f.rank = -1;
    cd_rank_set_print(&t->who, t->rank, who, sizeof who);
    CD_SAY(f.title, "%s: an optimizer steps twice in one step, on the same gradients", who);
    CD_SAY(f.expected, "one step behind each reduction");
    CD_SAY(f.actual, "another one in step %u, with no backward and no zero_grad in between",
           t->step);
    CD_SAY(f.advice, "a second step on the same gradients makes the update larger than the "
                     "learning rate says");
    f.is_cause = true;
    cd_writer_report(&s->writer, &f);
    return true;
}

/* Ranks that came to the end with fewer steps than another one. */
static void report_counts(state *s)
{
    const rank_facts *most = NULL, *least = NULL;
    uint32_t most_rank = 0, least_rank = 0;
    for (uint32_t i = 0; i < s->ranks.count; i++) {
        const rank_facts *r = cd_ranks_find(&s->ranks, i);
        if (!r->has_returned || r->has_left) continue;
        if (most == NULL || r->steps > most->steps) {
            most = r;
            most_rank = i;
        }
        if (least == NULL || r->steps < least->steps) {
            least = r;
            least_rank = i;
        }
    }
    if (most == NULL || most->steps == least->steps || least->steps == 0) return;
    cddp_event at = {.rank = least_rank, .step = least->last_step + 1, .sequence = least->sequence};
    cddp_finding f = cd_finding_at(&s->writer, &at);
    f.peer = (int32_t)most_rank;
    CD_SAY(f.title, "rank %u stepped %lld times, rank %u %lld times", least_rank,
           (long long)least->steps, most_rank, (long long)most->steps);
    CD_SAY(f.expected, "equally many steps on every rank");
    const gap *g = &s->left_out;
    if (g->is_known && g->rank == least_rank) {
        CD_SAY(f.actual, "rank %u leaves out optimizer %lld in step %u, where rank %u steps",
               g->rank, (long long)g->optimizer, g->step, g->peer);
        f.step = g->step;
        f.is_cause = true; /* of replicas that part from there on */
    } else {
        CD_SAY(f.actual, "rank %u: last at step %u", least_rank, least->last_step);
        f.is_consequence = true;
    }
    CD_SAY(f.advice, "a step that one rank leaves out makes its replica part from the others");
    cd_writer_report(&s->writer, &f);
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->steps.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu optimizer steps compared across ranks",
                           (unsigned long long)s->steps.shared_count);
    cd_step_obey_report(&s->obeyed, &s->writer);
    cd_split split;
    for (size_t cursor = 0; cd_agree_next(&s->steps, &cursor, &split);) report_step(s, &split);
    const bool is_twice = report_twice(s);
    size_t cursor = 0;
    if (!s->has_joined && cd_agree_next(&s->drops, &cursor, &split)) report_drops(s, &split);
    cursor = 0;
    if (cd_agree_next(&s->stops, &cursor, &split))
        report_stop(s, &split);
    else if (!s->has_joined && !is_twice &&
             !cd_obey_has_missed(&s->obeyed.obey, CDDP_DECISION_UPDATE))
        report_counts(s);
    cd_step_obey_fini(&s->obeyed);
    cd_agree_fini(&s->steps);
    cd_agree_fini(&s->stops);
    cd_agree_fini(&s->drops);
    cd_ranks_fini(&s->ranks);
    cd_table_fini(&s->reported);
    cd_table_fini(&s->taken);
    cd_table_fini(&s->order);
    cd_check_end(s);
}

static const uint16_t kinds[] = {
    CDDP_EV_compare,    CDDP_EV_group,          CDDP_EV_join_notify,  CDDP_EV_optimizer_step,
    CDDP_EV_stop,       CDDP_EV_rank_end,       CDDP_EV_regroup,      CDDP_EV_decision,
    CDDP_EV_loss,       CDDP_EV_backward_entry, CDDP_EV_backward_end, CDDP_EV_forward_begin,
    CDDP_EV_checkpoint, CDDP_EV_zero_grad,      CDDP_EV_rewrite,      CDDP_EV_grad_local,
    CDDP_EV_mark,       CDDP_EV_param};

CD_CHECK_TABLE(step, "I-STEP", "all ranks take the same decisions at a step",
               "Step or skip, loss scale, clip coefficient, learning rate and stop decisions are "
               "equal on all ranks "
               "and equal to the reference.");
