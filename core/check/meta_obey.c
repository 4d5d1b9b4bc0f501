/* SPDX-License-Identifier: Apache-2.0 */
#include "core/check/meta_obey.h"

#include "core/base/hash.h"
#include "core/trace/tracer.h"

#include <string.h>

/* The last optimizer that stepped, on parameters that the reducer leaves out. */
typedef struct hidden_step {
    int64_t parameters; /* how many there are */
    int64_t optimizer, touched;
    uint32_t step;
} hidden_step;

void cd_meta_obey_init(cd_meta_obey *m, const cddp_allocator *allocator)
{
    cd_obey_init(&m->obey, allocator);
    cd_table_init(&m->seen, allocator, sizeof(cddp_event));
    cd_table_init(&m->averages, allocator, sizeof(int64_t));
    cd_table_init(&m->ordinals, allocator, sizeof(int64_t));
    cd_table_init(&m->touched, allocator, sizeof(int64_t));
    cd_table_init(&m->absent, allocator, sizeof(int64_t));
    cd_table_init(&m->given, allocator, sizeof(int64_t));
    cd_table_init(&m->hidden, allocator, sizeof(int64_t));
    cd_ranks_init(&m->steps, allocator, sizeof(hidden_step));
    cd_ranks_init(&m->ranks, allocator, sizeof(int64_t));
}

void cd_meta_obey_fini(cd_meta_obey *m)
{
    cd_obey_fini(&m->obey);
    cd_table_fini(&m->seen);
    cd_table_fini(&m->averages);
    cd_table_fini(&m->ordinals);
    cd_table_fini(&m->touched);
    cd_table_fini(&m->absent);
    cd_table_fini(&m->given);
    cd_table_fini(&m->hidden);
    cd_ranks_fini(&m->steps);
    cd_ranks_fini(&m->ranks);
}

/* ---- what was seen, and the decision on it; each may come first ---- */

static void judge_parameter(cd_meta_obey *m, const cd_decided *d, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    const bool is_reduced = p->param >= 0;
    m->obey.obeyed++;
    cd_miss miss = {.decision = CDDP_DECISION_PARAMETER};
    if (is_reduced == (d->is.value != 0) && (p->requires_grad != 0) == (d->is.detail != 0)) return;
    miss.which = (p->requires_grad != 0) == (d->is.detail != 0);
    CD_SAY(miss.what, "parameter %s is %s, not as the plan decides", d->text != NULL ? d->text : "",
           miss.which == 0 ? p->requires_grad ? "trained" : "frozen"
           : is_reduced    ? "reduced"
                           : "not reduced");
    CD_SAY(miss.planned, "%s, %s the reducer",
           d->is.detail ? "requires gradients" : "requires no gradients",
           d->is.value ? "taken by" : "left out of");
    CD_SAY(miss.seen, "%s, %s the reducer",
           p->requires_grad ? "requires gradients" : "requires no gradients",
           is_reduced ? "taken by" : "left out of");
    cd_obey_miss(&m->obey, e, &miss);
}

static void miss_hook(cd_meta_obey *m, const cddp_event *e, const char *planned, const char *seen)
{
    cd_miss miss = {.decision = CDDP_DECISION_HOOK};
    CD_SAY(miss.what, "the comm hook in force is not the plan's");
    CD_SAY(miss.planned, "%s", planned[0] != '\0' ? planned : "none");
    CD_SAY(miss.seen, "%s", seen[0] != '\0' ? seen : "none");
    cd_obey_miss(&m->obey, e, &miss);
}

static void judge_hook(cd_meta_obey *m, const cd_decided *d, const cddp_event *e)
{
    const char *planned = d->text != NULL ? d->text : "", *seen = e->text != NULL ? e->text : "";
    m->obey.obeyed++;
    if (strcmp(planned, seen) != 0) miss_hook(m, e, planned, seen);
}

static void judge_option(cd_meta_obey *m, const cd_decided *d, const cddp_event *e)
{
    const double seen = cd_f64_of(e->as.hook_option.value);
    m->obey.obeyed++;
    if (cd_decided_fits(d, seen)) return;
    cd_miss miss = {.decision = CDDP_DECISION_HOOK_OPTION, .which = d->is.id};
    CD_SAY(miss.what, "option %s of the comm hook is not the plan's",
           d->text != NULL ? d->text : "");
    CD_SAY(miss.planned, "%.17g", cd_f64_of(d->is.real));
    CD_SAY(miss.seen, "%.17g", seen);
    cd_obey_miss(&m->obey, e, &miss);
}

static void judge(cd_meta_obey *m, const cd_decided *d, const cddp_event *e)
{
    switch (d->is.decision) {
    case CDDP_DECISION_PARAMETER:
        judge_parameter(m, d, e);
        break;
    case CDDP_DECISION_HOOK:
        judge_hook(m, d, e);
        break;
    case CDDP_DECISION_HOOK_OPTION:
        judge_option(m, d, e);
        break;
    default:
        break;
    }
}

/* An option is found by its name, which stands where others have an id. */
static int64_t id_of(int64_t decision, int64_t id, const char *text)
{
    return decision == CDDP_DECISION_HOOK_OPTION ? (int64_t)cd_hash_text(text) : id;
}

static void take_decision(cd_meta_obey *m, const cddp_event *e)
{
    static const int64_t decisions[2] = {CDDP_DECISION_PARAMETER, CDDP_DECISION_AGREEMENT},
                         zeroes[2] = {CDDP_DECISION_ZERO_GRAD, CDDP_DECISION_ZERO_GRAD};
    if (cd_obey_learn(&m->obey, e, zeroes) != NULL) return;
    cddp_event mine = *e;
    cddp_event_decision *is = &mine.as.decision;
    is->id = id_of(is->decision, is->id, e->text);
    const cd_decided *d = cd_obey_learn(&m->obey, &mine, decisions);
    if (d == NULL) return;
    cddp_event *seen = cd_table_find(&m->seen, CD_KEY(e->rank, is->decision, is->id));
    if (seen != NULL) {
        judge(m, d, seen);
    } else if (is->decision == CDDP_DECISION_HOOK && e->text != NULL && e->text[0] != '\0') {
        /* the wrapper stands, and has none */
        miss_hook(m, e, e->text, "");
    }
}

/* text: a copy that lives as long as the events do. */
static void take_seen(cd_meta_obey *m, const cddp_event *e, int64_t decision, int64_t id)
{
    const cd_decided *d =
        cd_obey_find(&m->obey, &(cd_decision_place){e->rank, decision, id, -1, -1});
    if (d != NULL) {
        judge(m, d, e);
        return;
    }
    cddp_event *seen = cd_table_add(&m->seen, CD_KEY(e->rank, decision, id));
    if (seen == NULL) return;
    *seen = *e;
    seen->text = e->text != NULL ? cd_arena_strdup(&m->obey.memory, e->text) : NULL;
}

/* ---- averages ---- */

/* Whether a gradient of this step is there. Of what the reducer leaves out that is not known, nor
** where gradients outlive their step. */
static bool knows_gradient(const cd_meta_obey *m, uint32_t rank, int64_t ordinal)
{
    const cd_decided *d =
        cd_obey_find(&m->obey, &(cd_decision_place){rank, CDDP_DECISION_ZERO_GRAD, -1, -1, -1});
    return d != NULL && d->is.value == CDDP_PRESENCE_ABSENT &&
           cd_table_find(&m->hidden, CD_KEY(rank, ordinal)) == NULL;
}

static bool has_gradient(const cd_meta_obey *m, uint32_t rank, int64_t step, int64_t ordinal)
{
    return cd_table_find(&m->given, CD_KEY(rank, step, ordinal)) != NULL;
}

/* AVG-02, also behind a backward that was left: there no optimizer shows what has a gradient. */
static void judge_bare(cd_meta_obey *m, const cddp_event *e, const cd_decided *d)
{
    if (!knows_gradient(m, e->rank, d->is.id) || has_gradient(m, e->rank, e->step, d->is.id))
        return;
    cd_miss miss = {.decision = CDDP_DECISION_AVERAGE, .which = 3};
    CD_SAY(miss.what, "%s is averaged without a gradient",
           d->text != NULL ? d->text : "a parameter");
    CD_SAY(miss.planned, "left out of the average of step %u (AVG-02)", e->step);
    CD_SAY(miss.seen, "averaged over %lld ranks; none of its gradients came in this step",
           (long long)e->as.average.ranks);
    cd_obey_miss(&m->obey, e, &miss);
}

/* The decision on a parameter's average at this step, and how many of the rank's were seen then. */
static void take_average(cd_meta_obey *m, const cddp_event *e)
{
    const cddp_event_average *a = &e->as.average;
    cd_decided *d = cd_obey_find(&m->obey, &(cd_decision_place){e->rank, CDDP_DECISION_AVERAGE,
                                                                a->ordinal, e->step, -1});
    if (d == NULL) return;
    d->seen++;
    m->obey.obeyed++;
    (void)cd_table_add(&m->averages, CD_KEY(e->rank, e->step, d->is.value));
    if (d->is.value == a->ranks) {
        judge_bare(m, e, d);
        return;
    }
    cd_miss miss = {.decision = CDDP_DECISION_AVERAGE};
    CD_SAY(miss.what, "%s is averaged otherwise than the plan decides",
           d->text != NULL ? d->text : "a parameter");
    if (d->is.value > 0)
        CD_SAY(miss.planned, "over blocks of %lld ranks in step %u", (long long)d->is.value,
               e->step);
    else
        CD_SAY(miss.planned, "not averaged in step %u", e->step);
    CD_SAY(miss.seen, "averaged over %lld ranks", (long long)a->ranks);
    cd_obey_miss(&m->obey, e, &miss);
}

static void take_agreement(cd_meta_obey *m, const cddp_event *e)
{
    const cddp_event_agreement *a = &e->as.agreement;
    const cd_decided *d =
        cd_obey_find(&m->obey,
                     &(cd_decision_place){e->rank, CDDP_DECISION_AGREEMENT,
                                          a->ordinal > 0 ? a->ordinal - 1 : -1, e->step, -1});
    if (d == NULL) return;
    m->obey.obeyed++;
    if (d->is.value == a->gradients && d->is.detail == a->parameters &&
        cd_f64_of(d->is.real) == (double)a->state)
        return;
    cd_miss miss = {.decision = CDDP_DECISION_AGREEMENT};
    CD_SAY(miss.what, "the blocks of ranks that are to agree are not the plan's");
    CD_SAY(miss.planned, "gradients over %lld ranks, parameters %lld, state %lld",
           (long long)d->is.value, (long long)d->is.detail, (long long)cd_f64_of(d->is.real));
    CD_SAY(miss.seen, "gradients over %lld ranks, parameters %lld, state %lld",
           (long long)a->gradients, (long long)a->parameters, (long long)a->state);
    cd_obey_miss(&m->obey, e, &miss);
}

static void take_ordinal(cd_meta_obey *m, const cddp_event *e)
{
    int64_t *ordinal = e->as.param.param >= 0
                           ? cd_table_add(&m->ordinals, CD_KEY(e->rank, e->as.param.param))
                           : NULL;
    if (ordinal != NULL) *ordinal = e->as.param.ordinal + 1;
}

static void take_hidden(cd_meta_obey *m, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    const cd_key *key = CD_KEY(e->rank, p->ordinal);
    if (p->param >= 0 || !p->requires_grad || cd_table_find(&m->hidden, key) != NULL) return;
    hidden_step *s = cd_ranks_add(&m->steps, e->rank);
    if (cd_table_add(&m->hidden, key) != NULL && s != NULL) s->parameters++;
}

/* In place of a parameter. */
#define ANY (-1)
#define ALL_HIDDEN (-2)

/* Which of them is not said. */
static void take_hidden_touch(cd_meta_obey *m, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    hidden_step *s = cd_obey_judges(&m->obey, e->rank) ? cd_ranks_find(&m->steps, e->rank) : NULL;
    if (s == NULL) return;
    if (s->step != e->step || s->optimizer != t->optimizer) s->touched = 0;
    s->step = e->step;
    s->optimizer = t->optimizer;
    s->touched += t->touched != 0;
    if (s->touched > 0 && s->touched == s->parameters)
        (void)cd_table_add(&m->touched, CD_KEY(e->rank, e->step, ALL_HIDDEN));
}

/* Its average is due in this step. */
static bool is_due(const cd_meta_obey *m, const cddp_event *e, int64_t ordinal)
{
    const cd_decision_place place = {e->rank, CDDP_DECISION_AVERAGE, ordinal, e->step, -1};
    const cd_decided *d = cd_obey_find(&m->obey, &place);
    return d != NULL && d->is.value > 0;
}

/* -1: not known, or the rank is not judged. */
static int64_t find_ordinal(const cd_meta_obey *m, const cddp_event *e, int64_t param)
{
    const int64_t *ordinal = param >= 0 && cd_obey_judges(&m->obey, e->rank)
                                 ? cd_table_find(&m->ordinals, CD_KEY(e->rank, param))
                                 : NULL;
    return ordinal != NULL ? *ordinal - 1 : -1;
}

static void take_presence(cd_meta_obey *m, const cddp_event *e, int64_t param, bool is_absent)
{
    const int64_t ordinal = find_ordinal(m, e, param);
    if (ordinal < 0 || !is_due(m, e, ordinal)) return;
    int64_t *absent = cd_table_add(&m->absent, CD_KEY(e->rank, e->step, ordinal));
    if (absent != NULL) *absent = is_absent;
    if (!is_absent) (void)cd_table_add(&m->given, CD_KEY(e->rank, e->step, ordinal));
}

static void take_local(cd_meta_obey *m, const cddp_event *e)
{
    const cddp_event_grad_local *g = &e->as.grad_local;
    const int64_t ordinal = find_ordinal(m, e, g->param);
    if (g->presence != CDDP_PRESENCE_ABSENT && ordinal >= 0 && is_due(m, e, ordinal))
        (void)cd_table_add(&m->given, CD_KEY(e->rank, e->step, ordinal));
}

static void take_touch(cd_meta_obey *m, const cddp_event *e)
{
    const cddp_event_optimizer_touch *t = &e->as.optimizer_touch;
    const int64_t ordinal = find_ordinal(m, e, t->param);
    if (t->param < 0) take_hidden_touch(m, e);
    if (!t->touched) take_presence(m, e, t->param, true);
    if (ordinal < 0 || !t->touched) return;
    (void)cd_table_add(&m->touched, CD_KEY(e->rank, e->step, ANY));
    if (is_due(m, e, ordinal)) (void)cd_table_add(&m->touched, CD_KEY(e->rank, e->step, ordinal));
}

/* It had no gradient, or may have had none: others were averaged or stepped on then, and this one
** was not. */
static bool was_excused(const cd_meta_obey *m, const cd_decided *d, uint32_t rank)
{
    const bool were_others =
        cd_table_find(&m->averages, CD_KEY(rank, d->is.at_step, d->is.value)) != NULL ||
        cd_table_find(&m->touched, CD_KEY(rank, d->is.at_step, ANY)) != NULL;
    const bool is_hidden = cd_table_find(&m->hidden, CD_KEY(rank, d->is.id)) != NULL;
    const int64_t *absent = cd_table_find(&m->absent, CD_KEY(rank, d->is.at_step, d->is.id));
    if (knows_gradient(m, rank, d->is.id) && has_gradient(m, rank, d->is.at_step, d->is.id))
        return false;
    return (were_others || (absent != NULL && *absent != 0)) &&
           cd_table_find(&m->touched,
                         CD_KEY(rank, d->is.at_step, is_hidden ? ALL_HIDDEN : d->is.id)) == NULL;
}

static bool is_missed(void *self, uint32_t rank, const cd_decided *d)
{
    return d->is.decision == CDDP_DECISION_AVERAGE && d->is.value != 0 && d->seen == 0 &&
           !was_excused(self, d, rank);
}

/* Decisions are judged by what is in the other tables. */
static void forget_decisions(void *self)
{
    cd_meta_obey *m = self;
    cd_table_forget(&m->obey.decided);
}

void cd_meta_obey_set_window(cd_meta_obey *m, cd_horizon *horizon)
{
    const cd_table_window window = {.horizon = horizon, .before = forget_decisions, .self = m};
    cd_obey_set_window(&m->obey, &(cd_obey_window){horizon, is_missed, m});
    cd_table_set_window(&m->averages, &window);
    cd_table_set_window(&m->touched, &window);
    cd_table_set_window(&m->absent, &window);
    cd_table_set_window(&m->given, &window);
}

static void miss_average(cd_meta_obey *m, const cd_decided *d, uint32_t rank)
{
    const cddp_event at = {.rank = rank, .step = (uint32_t)d->is.at_step, .sequence = d->sequence};
    const char *name = d->text != NULL ? d->text : "a parameter";
    const bool is_alone =
        cd_table_find(&m->averages, CD_KEY(rank, d->is.at_step, d->is.value)) != NULL;
    if (was_excused(m, d, rank)) return;
    cd_miss miss = {.decision = CDDP_DECISION_AVERAGE, .which = is_alone ? 2 : 1};
    if (is_alone)
        CD_SAY(miss.what, "%s is left out of the average of step %u", name, at.step);
    else
        CD_SAY(miss.what, "the average of step %u does not take place", at.step);
    CD_SAY(miss.planned, "%s over blocks of %lld ranks", name, (long long)d->is.value);
    CD_SAY(miss.seen, "%s",
           is_alone ? "others were averaged then, and this one had a gradient"
                    : "no parameter was averaged then");
    cd_obey_miss(&m->obey, &at, &miss);
}

/* Averages in which a parameter did not take part that had to. */
static void judge_missing_averages(cd_meta_obey *m)
{
    for (size_t i = 0; i < m->obey.decided.count; i++) {
        uint32_t rank;
        const cd_decided *d = cd_obey_get(&m->obey, i, &rank);
        const int64_t *has_returned = cd_ranks_find(&m->ranks, rank);
        if (d->is.decision != CDDP_DECISION_AVERAGE || d->is.value == 0 || d->seen > 0 ||
            has_returned == NULL || *has_returned == 0)
            continue;
        miss_average(m, d, rank);
    }
}

/* ---- events ---- */

void cd_meta_obey_learn(cd_meta_obey *m, const cddp_event *e)
{
    int64_t *has_returned;
    switch (e->kind) {
    case CDDP_EV_decision:
        take_decision(m, e);
        break;
    case CDDP_EV_param:
        take_ordinal(m, e);
        take_hidden(m, e);
        take_seen(m, e, CDDP_DECISION_PARAMETER, e->as.param.ordinal);
        break;
    case CDDP_EV_hook_in_force:
        take_seen(m, e, CDDP_DECISION_HOOK, e->as.hook_in_force.level);
        break;
    case CDDP_EV_hook_call:
        take_seen(m, e, CDDP_DECISION_HOOK, 0);
        break;
    case CDDP_EV_hook_option:
        take_seen(m, e, CDDP_DECISION_HOOK_OPTION, (int64_t)cd_hash_text(e->text));
        break;
    case CDDP_EV_average:
        take_average(m, e);
        break;
    case CDDP_EV_grad_local:
        take_local(m, e);
        break;
    case CDDP_EV_grad_final:
        take_presence(m, e, e->as.grad_final.param,
                      e->as.grad_final.presence == CDDP_PRESENCE_ABSENT);
        break;
    case CDDP_EV_optimizer_touch:
        take_touch(m, e);
        break;
    case CDDP_EV_agreement:
        take_agreement(m, e);
        break;
    case CDDP_EV_rank_end:
        has_returned = cd_ranks_add(&m->ranks, e->rank);
        if (has_returned != NULL)
            *has_returned = e->as.rank_end.end == 0 && e->as.rank_end.status == CDDP_OK;
        break;
    default:
        break;
    }
}

void cd_meta_obey_report(cd_meta_obey *m, cd_writer *writer)
{
    judge_missing_averages(m);
    cd_obey_report(&m->obey, writer);
}
