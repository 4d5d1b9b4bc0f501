/* SPDX-License-Identifier: Apache-2.0 */
/* I-PARAMEQ: after the optimizers stepped, parameters and optimizer state are equal on all ranks;
** at the end, and where a join context ends, the loss scaler's state too.
**
** Judged from   value of parameters and optimizer state at moments 5 (after step), 6 (end) and 13
**               (join end), of the scaler at the last two, across ranks; agreement, which narrows
**               that to the ranks that must agree. Of a rank that shows a value several times in a
**               step (two optimizers share a parameter, or one steps twice) the last one counts.
**               Where a join ends, what the rank that handed its state on had to have (expected, or
**               its value at moment 5).
** Exercised     two ranks reported the content of the same parameter after the same step.
** Blame         the odd ranks; with two ranks both.
** Limits        ignored parameters and state without a parameter may differ by right, but where an
**               averager left out one that has a gradient; under a model averager whatever lies in
**               different blocks of an agreement event. Ranks of a program that averages parameters
**               itself (own_average.h) are not accused, and it is not verified. Where the backend
**               does not promise equal bits the check stays silent and the oracle's bound judges
**               instead. Ranks that only shadowed a step (join) say nothing about it.
*/
#include "core/check/own_average.h"
#include "core/check/writer.h"

#include "core/trace/codes.h"

/* A parameter as the last update left it. */
typedef struct update {
    int64_t digest;
    int64_t averaged; /* the same, or as an averager left it then */
    uint32_t step;    /* + 1 */
    int64_t begun;    /* what its step began with */
    uint32_t begins;  /* + 1: which step that is */
    uint32_t bare;    /* + 1: the last step that has had no gradient of it so far */
} update;

/* Why an average left a parameter as it was. */
typedef enum keeping { NOT_KEPT, KEPT, KEPT_BARE } keeping;

typedef struct state {
    cd_writer writer;
    cd_agree values;  /* (moment · 16 + what, step, group, id) → presence, digest, param */
    cd_table ignored; /* ordinal → 1 */
    cd_table named;   /* (rank, variable) → ordinal + 1 */
    cd_table updated; /* (rank, ordinal) → update */
    cd_table kept;    /* (rank, ordinal, step) → keeping: an average left it as it was */
    cd_table drifted; /* (rank, ordinal, step) → 1: it changed between the update and the end */
    cd_table handed; /* (rank, what, id, moment) → update: what it must have at the end of a join */
    cd_ranks groups; /* rank → its wrapper's group, whether it has one, whether it may join */
    cd_ranks lasts;  /* rank → the step of its end */
    uint32_t heir;   /* whose state ranks ended the join with, + 1; 0: nobody's */
    cd_own_average own;
    uint32_t joined; /* + 1: the first step behind which a join ended */
    bool has_digest;
} state;

static cddp_status begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    cddp_status status =
        cd_check_begin(context, &(cd_check_spec){"I-PARAMEQ", sizeof(state)}, self, err);
    if (status != CDDP_OK) return status;
    state *s = *self;
    cd_agree_init(&s->values, context->allocator);
    cd_table_init(&s->ignored, context->allocator, sizeof(int64_t));
    cd_table_init(&s->named, context->allocator, sizeof(int64_t));
    cd_table_init(&s->updated, context->allocator, sizeof(update));
    cd_table_init(&s->drifted, context->allocator, sizeof(int64_t));
    cd_table_init(&s->kept, context->allocator, sizeof(int64_t));
    cd_ranks_init(&s->groups, context->allocator, 3 * sizeof(int64_t));
    cd_table_init(&s->handed, context->allocator, sizeof(update));
    cd_ranks_init(&s->lasts, context->allocator, sizeof(uint32_t));
    cd_own_average_init(&s->own, &s->writer);
    cd_writer_set_agree_window(&s->writer, &s->values, CD_WHOLE_BY_STEP);
    cd_writer_set_window(&s->writer, &s->kept, NULL);
    cd_writer_set_window(&s->writer, &s->drifted, NULL);
    return CDDP_OK;
}

/* An averager leaves out what has no gradient (AVG-02). */
static void follow_gradient(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    if (v->what != CDDP_WHAT_GRADIENT ||
        (v->moment != CDDP_MOMENT_BEGIN && v->moment != CDDP_MOMENT_BEFORE_STEP))
        return;
    update *u = cd_table_add(&s->updated, CD_KEY(e->rank, v->id));
    if (u != NULL) u->bare = v->presence == CDDP_PRESENCE_ABSENT ? e->step + 1 : 0;
}

/* A step that leaves its backward shows no gradients but these. */
static void follow_local(state *s, const cddp_event *e)
{
    const int64_t *ordinal = cd_table_find(&s->named, CD_KEY(e->rank, e->as.grad_local.param));
    update *u = ordinal != NULL && e->as.grad_local.presence != CDDP_PRESENCE_ABSENT
                    ? cd_table_find(&s->updated, CD_KEY(e->rank, *ordinal - 1))
                    : NULL;
    if (u != NULL) u->bare = 0;
}

static void learn_parameter(state *s, const cddp_event *e)
{
    const cddp_event_param *p = &e->as.param;
    int64_t *flag = p->ignored ? cd_table_add(&s->ignored, CD_KEY(p->ordinal)) : NULL,
            *ordinal = p->param >= 0 ? cd_table_add(&s->named, CD_KEY(e->rank, p->param)) : NULL;
    if (flag != NULL) *flag = 1;
    if (ordinal != NULL) *ordinal = p->ordinal + 1;
}

/* What an averager makes of what the update, or where none ran the step before, has left. */
static void follow_average(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    const bool is_before = v->moment == CDDP_MOMENT_BEGIN || v->moment == CDDP_MOMENT_AFTER_UPDATE;
    if (v->what != CDDP_WHAT_PARAMETER || v->digest == 0) return;
    if (!is_before && v->moment != CDDP_MOMENT_AFTER_AVERAGE) return;
    update *u = is_before ? cd_table_add(&s->updated, CD_KEY(e->rank, v->id))
                          : cd_table_find(&s->updated, CD_KEY(e->rank, v->id));
    if (u == NULL) return;
    if (is_before) {
        u->begun = v->digest;
        u->begins = e->step + 1;
        if (v->moment == CDDP_MOMENT_BEGIN) return;
        u->digest = u->averaged = v->digest;
        u->step = e->step + 1;
        return;
    }
    u->averaged = v->digest;
    if (u->begins != e->step + 1 || u->begun != v->digest) return;
    int64_t *kept = cd_table_add(&s->kept, CD_KEY(e->rank, v->id, e->step));
    if (kept != NULL) *kept = u->bare == e->step + 1 ? KEPT_BARE : KEPT;
}

/* What nothing in a step changes any more. */
static void follow_drift(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    const update *u = v->what == CDDP_WHAT_PARAMETER && v->moment == CDDP_MOMENT_AFTER_STEP
                          ? cd_table_find(&s->updated, CD_KEY(e->rank, v->id))
                          : NULL;
    if (u != NULL && u->step == e->step + 1 && u->averaged != v->digest && v->digest != 0)
        (void)cd_table_add(&s->drifted, CD_KEY(e->rank, v->id, e->step));
}

/* Ranks differ in what they were to average, and all of them have what their update left. Bare:
** none of them had a gradient of it. */
static keeping why_never_averaged(const state *s, const cd_split *split)
{
    const cd_rank_set *sides[] = {&split->right.ranks, &split->odd_ranks};
    keeping why = KEPT_BARE;
    if (split->key->part[0] != CDDP_MOMENT_AFTER_STEP * 16 + CDDP_WHAT_PARAMETER) return NOT_KEPT;
    for (size_t i = 0; i < 2; i++) {
        for (uint32_t r = cd_rank_set_next(sides[i], 0); r != CD_NO_RANK;
             r = cd_rank_set_next(sides[i], r + 1)) {
            const int64_t *kept =
                cd_table_find(&s->kept, CD_KEY(r, split->key->part[3], split->step));
            if (kept == NULL) return NOT_KEPT;
            if (*kept == KEPT) why = KEPT;
        }
    }
    return why;
}

/* While a rank shadows others its scaler stands still: it is compared where they meet again. */
static bool is_compared(const cddp_event_value *v)
{
    const bool ends = v->moment == CDDP_MOMENT_END || v->moment == CDDP_MOMENT_JOIN_END;
    if (v->what == CDDP_WHAT_SCALER) return ends;
    return (v->what == CDDP_WHAT_PARAMETER || v->what == CDDP_WHAT_OPTIMIZER) &&
           (ends || v->moment == CDDP_MOMENT_AFTER_STEP);
}

/* What a rank has when its last step is done is what it hands on at the end of a join, unless the
** chain expects something else of it there. */
static void follow_heir(state *s, const cddp_event *e, const int64_t what_and_moment[2])
{
    static const int64_t ends[] = {CDDP_MOMENT_JOIN_END, CDDP_MOMENT_END};
    const int64_t what = what_and_moment[0], moment = what_and_moment[1];
    const int64_t *group = cd_ranks_find(&s->groups, e->rank);
    const bool is_expected = e->kind == CDDP_EV_expected;
    if (group == NULL || group[2] == 0 ||
        (what != CDDP_WHAT_PARAMETER && what != CDDP_WHAT_OPTIMIZER))
        return;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (moment != (is_expected ? ends[i] : CDDP_MOMENT_AFTER_STEP)) continue;
        const int64_t id = is_expected ? e->as.expected.id : e->as.value.id;
        update *u = cd_table_add(&s->handed, CD_KEY(e->rank, what, id, ends[i]));
        if (u != NULL)
            *u = (update){.digest = is_expected ? e->as.expected.digest : e->as.value.digest,
                          .step = e->step + 1};
    }
}

static void take_value(state *s, const cddp_event *e)
{
    const cddp_event_value *v = &e->as.value;
    follow_gradient(s, e);
    follow_average(s, e);
    follow_drift(s, e);
    follow_heir(s, e, (int64_t[]){v->what, v->moment});
    if (v->moment == CDDP_MOMENT_END) {
        uint32_t *last = cd_ranks_add(&s->lasts, e->rank);
        if (last != NULL) *last = e->step;
    }
    if (!is_compared(v)) return;
    if (v->what == CDDP_WHAT_OPTIMIZER && v->param < 0) return;
    const int64_t *group = cd_ranks_find(&s->groups, e->rank);
    if (group == NULL || group[1] == 0 || !cd_writer_has_equal_bits(&s->writer, group[0])) return;
    if (v->digest != 0) s->has_digest = true;
    /* At the end a rank that joined early may have counted fewer steps. */
    int64_t step = v->moment == CDDP_MOMENT_END ? -1 : (int64_t)e->step;
    const int64_t block =
        v->what != CDDP_WHAT_PARAMETER
            ? cd_writer_get_block(&s->writer, group[0], e->rank, CDDP_AGREED_STATE)
            : cd_writer_get_parameter_block(&s->writer, group[0], e->rank, v->id);
    cd_agree_restate(&s->values,
                     &(cd_statement){.key = CD_KEY(v->moment * 16 + v->what, step, block, v->id),
                                     CD_SAYS(v->presence, v->digest, v->param)},
                     e);
}

static void event(void *self, const cddp_event *e)
{
    state *s = self;
    cd_own_average_push(&s->own, e);
    if (e->kind == CDDP_EV_value) {
        take_value(s, e);
    } else if (e->kind == CDDP_EV_expected) {
        follow_heir(s, e, (int64_t[]){e->as.expected.what, e->as.expected.moment});
    } else if (e->kind == CDDP_EV_join_end) {
        if (s->joined == 0 || e->step + 1 < s->joined) s->joined = e->step + 1;
        s->heir = (uint32_t)(e->as.join_end.authority + 1);
    } else if (e->kind == CDDP_EV_param) {
        learn_parameter(s, e);
    } else if (e->kind == CDDP_EV_grad_local) {
        follow_local(s, e);
    } else if (e->kind == CDDP_EV_regroup) {
        int64_t *group = cd_ranks_find(&s->groups, e->rank);
        if (group == NULL) return;
        group[0] = e->as.regroup.group;
        group[1] = e->as.regroup.group >= 0; /* who has left need not agree */
    } else if (e->kind == CDDP_EV_wrap) {
        int64_t *group = cd_ranks_add(&s->groups, e->rank);
        if (group == NULL) return;
        group[0] = e->as.wrap.group;
        group[1] = 1;
        group[2] = cd_writer_has_flag(&s->writer, e->rank, CDDP_KEY_join_enable);
    }
}

/* All of them are wrong alike. */
static void report_average(state *s, const cd_split *split, cddp_finding *f, uint64_t count,
                           bool is_bare)
{
    cd_rank_set who = {0};
    cd_rank_set_unite(&who, &s->writer.memory, &split->right.ranks);
    cd_rank_set_unite(&who, &s->writer.memory, &split->odd_ranks);
    f->rank = -1;
    f->peer = -1;
    cd_finding_set_ranks(&s->writer, f, &who);
    CD_SAY(f->title,
           is_bare ? CDDP_FINDING_WHO " hold different values of %s, which has no gradient in the "
                                      "step of the average%s"
                   : CDDP_FINDING_WHO ": the average of %s is not written back%s",
           f->parameter, cd_writer_get_count(&s->writer, count, "tensors"));
    CD_SAY(f->expected, "one value on all ranks that average it");
    CD_SAY(f->actual, "rank %u has digest %016llx, rank %u %016llx: what their updates left",
           split->right.rank, (unsigned long long)split->right.data[1], split->odd.rank,
           (unsigned long long)split->odd.data[1]);
    CD_SAY(f->advice, "%s",
           is_bare ? "an averager leaves out parameters without a gradient (AVG-02): average after "
                     "a step that trains it, or keep its gradient as zeros (zero_grad "
                     "set_to_none=False)"
                   : "look at what the averager does with the result of its collective");
    cd_writer_report(&s->writer, f);
}

static void say_digests(cddp_finding *f, const cd_split *split)
{
    CD_SAY(f->expected, "rank %u: digest %016llx", split->right.rank,
           (unsigned long long)split->right.data[1]);
    CD_SAY(f->actual, "rank %u: digest %016llx", split->odd.rank,
           (unsigned long long)split->odd.data[1]);
}

static void report_scaler(state *s, const cd_split *split, cddp_finding *f, const char *who)
{
    CD_SAY(f->title, "%s have different states of the loss scaler after %s", who,
           split->key->part[0] / 16 == CDDP_MOMENT_END ? "the last step" : "the join");
    say_digests(f, split);
    CD_SAY(f->advice, "%s",
           cd_writer_has_flag(&s->writer, split->odd.rank, CDDP_KEY_join_enable)
               ? "a rank that has no inputs updates no scaler, and nothing hands the state on: "
                 "broadcast it before the next step or checkpoint"
               : "a scale grows by the steps without an overflow and shrinks by one: compare in "
                 "which steps these ranks found one");
    cd_writer_report(&s->writer, f);
}

static void report(state *s, const cd_split *split, uint64_t count)
{
    cddp_finding f = cd_finding_of(&s->writer, split);
    char who[160];
    cd_split_print(split, who, sizeof who);
    const int64_t what = split->key->part[0] % 16, moment = split->key->part[0] / 16;
    /* ranks that joined end in other steps than the last */
    const uint32_t *last = cd_ranks_find(&s->lasts, split->odd.rank);
    if (moment == CDDP_MOMENT_END && last != NULL) f.step = *last;
    const bool is_state = what == CDDP_WHAT_OPTIMIZER;
    const char *name = what == CDDP_WHAT_SCALER ? ""
                       : is_state ? cd_writer_get_parameter(&s->writer, split->odd.data[2])
                                  : cd_writer_get_ordinal(&s->writer, split->key->part[3]);
    f.param = (int32_t)split->odd.data[2];
    CD_SAY(f.parameter, "%s", name);
    if (what == CDDP_WHAT_SCALER) {
        report_scaler(s, split, &f, who);
        return;
    }
    const keeping why = why_never_averaged(s, split);
    if (why != NOT_KEPT) {
        report_average(s, split, &f, count, why == KEPT_BARE);
        return;
    }
    CD_SAY(f.title, "%s hold different %s %s after %s%s", who,
           is_state ? "optimizer state of" : "values of", name,
           moment == CDDP_MOMENT_END        ? "the last step"
           : moment == CDDP_MOMENT_JOIN_END ? "the join"
                                            : "the step",
           cd_writer_get_count(&s->writer, count, "tensors"));
    say_digests(&f, split);
    if (is_state && moment == CDDP_MOMENT_JOIN_END) {
        CD_SAY(f.advice, "%s",
               cd_writer_has_flag(&s->writer, split->odd.rank,
                                  CDDP_KEY_join_broadcast_optimizer_state)
                   ? "the last joiner's state was to travel (join.broadcast_optimizer_state): look "
                     "for a broadcast that was left out, or for what changed it after that"
                   : "a rank that ran out of inputs keeps its old state (INT-01): let the last "
                     "joiner's travel (join.broadcast_optimizer_state)");
        cd_writer_report(&s->writer, &f);
        return;
    }
    if (s->joined > 0 && split->step >= s->joined && !is_state) {
        CD_SAY(f.advice,
               "a rank that ran out of inputs took fewer steps until the join ended: that "
               "made parameters equal, and left each rank its optimizer's momentum "
               "(INT-01). Broadcast the last joiner's state");
        cd_writer_report(&s->writer, &f);
        return;
    }
    CD_SAY(f.advice, "parameters are never broadcast again after construction (INI-15): but for an "
                     "averager or an optimizer that shares its update, what differs now stays so");
    cd_writer_report(&s->writer, &f);
}

/* A step of a parameter, and who is asked of its ranks. */
typedef struct judged_step {
    const state *s;
    int64_t ordinal, param;
    uint32_t step;
} judged_step;

/* Right is an update from the right average that has stayed as it was. */
static cddp_judgement judge_rank(void *self, uint32_t rank, const cd_variant *said)
{
    static const int64_t links[] = {CD_LINK_REDUCTION, CD_LINK_MATHEMATICS, CD_LINK_UPDATE};
    const judged_step *j = self;
    const cddp_facts *facts = j->s->writer.context.facts;
    cddp_judgement found = CDDP_JUDGED_UNKNOWN;
    (void)said;
    if (cd_table_find(&j->s->drifted, CD_KEY(rank, j->ordinal, j->step)) != NULL)
        return CDDP_JUDGED_WRONG;
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        found = facts->judged(facts->self, &(cddp_fact_judged){rank, j->step, links[i], j->param});
        if (found == CDDP_JUDGED_WRONG) return found;
    }
    return found;
}

/* A rank whose update the oracle found right is right, whatever most others say. */
static void prefer_reference(state *s)
{
    for (size_t i = 0; s->values.split_count > 0 && i < s->values.entries.count; i++) {
        const cd_agree_entry *entry = cd_table_value(&s->values.entries, i);
        const cd_key *key = cd_table_key(&s->values.entries, i);
        if (entry->first.next == 0 || key->part[0] % 16 != CDDP_WHAT_PARAMETER) continue;
        judged_step j = {s, key->part[3], entry->first.data[2], entry->step};
        cd_agree_set_right(&s->values, key, &(cd_agree_judge){&j, judge_rank});
    }
}

static cddp_judgement judge_handed(void *self, uint32_t rank, const cd_variant *said)
{
    const update *u = self;
    (void)rank;
    return said->data[1] == u->digest ? CDDP_JUDGED_RIGHT : CDDP_JUDGED_WRONG;
}

/* All have what the rank that ran longest handed on, and not what most of them have (JON-12). */
static void prefer_heir(state *s)
{
    for (size_t i = 0; s->heir > 0 && s->values.split_count > 0 && i < s->values.entries.count;
         i++) {
        const cd_agree_entry *entry = cd_table_value(&s->values.entries, i);
        const cd_key *key = cd_table_key(&s->values.entries, i);
        const int64_t moment = key->part[0] / 16, what = key->part[0] % 16;
        update *u = entry->first.next != 0
                        ? cd_table_find(&s->handed, CD_KEY(s->heir - 1, what, key->part[3], moment))
                        : NULL;
        if (u != NULL && (moment == CDDP_MOMENT_END || u->step == entry->step + 1))
            cd_agree_set_right(&s->values, key, &(cd_agree_judge){u, judge_handed});
    }
}

static void end(void *self)
{
    state *s = self;
    if (s == NULL) return;
    if (s->has_digest && s->values.shared_count > 0)
        cd_writer_exercise(&s->writer, "%llu tensors compared across ranks after a step",
                           (unsigned long long)s->values.shared_count);
    prefer_reference(s);
    prefer_heir(s);
    cd_own_average_end(&s->own);
    cd_split split, first = {0};
    uint64_t count = 0;
    /* Replicas that have parted stay apart: the first step says it all. */
    for (size_t cursor = 0; cd_agree_next(&s->values, &cursor, &split);) {
        if (cd_own_average_has(&s->own, &split.right.ranks, split.odd.data[2]) &&
            cd_own_average_has(&s->own, &split.odd_ranks, split.odd.data[2]))
            continue;
        bool is_ignored = split.key->part[0] % 16 == 0 &&
                          cd_table_find(&s->ignored, CD_KEY(split.key->part[3])) != NULL &&
                          why_never_averaged(s, &split) != KEPT;
        if (is_ignored ||
            (count > 0 && (split.step != first.step || split.key->part[0] != first.key->part[0])))
            continue;
        if (count++ == 0) first = split;
    }
    if (count > 0) report(s, &first, count);
    cd_agree_fini(&s->values);
    cd_table_fini(&s->ignored);
    cd_table_fini(&s->named);
    cd_table_fini(&s->updated);
    cd_table_fini(&s->kept);
    cd_table_fini(&s->drifted);
    cd_ranks_fini(&s->groups);
    cd_own_average_fini(&s->own);
    cd_table_fini(&s->handed);
    cd_ranks_fini(&s->lasts);
    cd_check_end(s);
}

static const uint16_t kinds[] = {CDDP_EV_param,           CDDP_EV_wrap,
                                 CDDP_EV_value,           CDDP_EV_regroup,
                                 CDDP_EV_grad_local,      CDDP_EV_grad_final,
                                 CDDP_EV_optimizer_touch, CDDP_EV_mark,
                                 CDDP_EV_expected,        CDDP_EV_join_end,
                                 CDDP_EV_projection,      CDDP_EV_collective_post};

CD_CHECK_TABLE(parameq, "I-PARAMEQ", "replicas are equal after every step",
               "Parameter and optimizer-state digests are equal on all ranks after step().");
