/* SPDX-License-Identifier: Apache-2.0 */
/* Shrinking. See Note [Shrinking] */
#include "verify/shrink/shrink.h"

#include "core/base/alloc.h"
#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/os.h"

#include <stdio.h>
#include <string.h>

#define STUCK_NS UINT64_C(2000000000)

#define SCHEDULE_BYTES ((size_t)1 << 20)
#define JOBS_MAX 64

/* ---- trying ---- */

static bool is_interrupted(const cd_shrink *s)
{
    return s->options.interrupted != NULL && s->options.interrupted();
}

cddp_status cd_shrink_try(const cd_shrink *s, const cd_draft *draft, const cd_probe_policy *policy,
                          cd_memory_sink *record, cd_probe *trial, cddp_error *err)
{
    cddp_error refusal = CDDP_ERROR_INIT;
    cddp_plan *plan = NULL;
    *trial = (cd_probe){.refused = true};
    cddp_status status = cd_draft_make(draft, &plan, &refusal);
    if (status == CDDP_E_NOMEM) {
        if (err != NULL) *err = refusal;
        return status;
    }
    if (status != CDDP_OK || cddp_plan_check(plan, &refusal) != CDDP_OK) {
        snprintf(trial->refusal, sizeof trial->refusal, "%.250s", refusal.message);
        cddp_plan_destroy(plan);
        return CDDP_OK;
    }
    /* The failure is known by then: what is that slow again is most likely the same. */
    const bool is_stuck = s->best.failed && strstr(s->best.failure, "not return from") != NULL;
    const cd_probe_options options = {.registry = s->options.registry,
                                      .interrupted = s->options.interrupted,
                                      .stuck_ns = is_stuck ? STUCK_NS : 0,
                                      .plan = plan,
                                      .policy = *policy,
                                      .record = record};
    status = cd_probe_run(&options, trial, err);
    cddp_plan_destroy(plan);
    return status;
}

bool cd_shrink_is_same(const cd_shrink *s, const cd_probe *trial)
{
    return trial->failed && cd_reason_is_same(&s->best.reason, &trial->reason);
}

/* ---- candidates ---- */

typedef struct candidate {
    bool is_edit;
    cd_edit edit;        /* of the scenario; else */
    size_t first, count; /* these deviations become fifo */
} candidate;

typedef struct candidate_list {
    candidate *items; /* (count) */
    size_t count, capacity;
} candidate_list;

static bool push_candidate(candidate_list *list, candidate c)
{
    if (!cd_vec_grow(NULL, (void **)&list->items, &list->capacity, list->count + 1,
                     sizeof *list->items))
        return false;
    list->items[list->count++] = c;
    return true;
}

static bool is_size(const cd_edit *edit)
{
    return edit->kind == CD_EDIT_SIZE || edit->kind == CD_EDIT_SHAPE ||
           edit->kind == CD_EDIT_NUMBER || edit->kind == CD_EDIT_CAP;
}

static cddp_status list_some_edits(cd_shrink *s, candidate_list *list, bool sizes, cddp_error *err)
{
    cd_edit_list edits = {.count = 0};
    cddp_status status = CDDP_OK;
    bool ok = true;
    list->count = 0;
    CD_TRY_OUT(cd_edit_list_make(&edits, &s->draft, true, err));
    for (size_t i = 0; ok && i < edits.count; i++)
        if (is_size(&edits.items[i]) == sizes)
            ok = push_candidate(list, (candidate){.is_edit = true, .edit = edits.items[i]});
    if (!ok) status = cd_fail_memory(err, "a smaller scenario");
out:
    cd_edit_list_fini(&edits);
    return status;
}

static cddp_status list_parts(cd_shrink *s, candidate_list *list, cddp_error *err)
{
    return CD_PASS(list_some_edits(s, list, false, err));
}
static cddp_status list_sizes(cd_shrink *s, candidate_list *list, cddp_error *err)
{
    return CD_PASS(list_some_edits(s, list, true, err));
}

static cddp_status list_deviations(cd_shrink *s, candidate_list *list, cddp_error *err)
{
    const size_t total = s->wishes.count;
    bool ok = true;
    list->count = 0;
    for (size_t chunk = total; ok && chunk > 0; chunk /= 2)
        for (size_t first = 0; ok && first < total; first += chunk)
            ok = push_candidate(list, (candidate){.first = first,
                                                  .count = chunk < total - first ? chunk
                                                                                 : total - first});
    return ok ? CDDP_OK : cd_fail_memory(err, "a smaller schedule");
}

/* A candidate made concrete. */
typedef struct attempt {
    cd_draft draft;
    cd_decision *wishes; /* (wish_count) */
    size_t wish_count;
    uint64_t digest;
    bool possible;
    size_t policy_count;             /* ways of deciding that are tried */
    uint64_t first_gone, gone_count; /* ranks */
} attempt;

static uint64_t digest_wishes(uint64_t digest, const attempt *a)
{
    for (size_t i = 0; i < a->wish_count; i++) {
        const cd_decision *w = &a->wishes[i];
        digest = cd_hash_mix(cd_hash_mix(digest, ((uint64_t)w->kind << 32) | w->rank),
                             cd_hash_mix(w->nth, w->id));
        digest = cd_hash_mix(digest, w->fifo_id);
    }
    digest = cd_hash_mix(digest, a->policy_count);
    return digest != 0 ? digest : 1;
}

static void attempt_fini(const cd_shrink *s, attempt *a)
{
    cd_draft_fini(&a->draft);
    cd_release(NULL, a->wishes, (s->wishes.count + 1) * sizeof *a->wishes);
    a->wishes = NULL;
}

/* Where a number is once `count` from `first` on are gone; false when it is gone too. */
static bool close_gap(const cd_edit *edit, uint64_t per, uint64_t *n)
{
    if (*n >= edit->first * per && *n < (edit->first + edit->count) * per) return false;
    if (*n >= (edit->first + edit->count) * per) *n -= edit->count * per;
    return true;
}

/* A decision under the numbers that ranks, steps and parameters have after an edit; false when
** there is none left. */
static bool renumber_wish(const cd_shrink *s, const cd_edit *edit, cd_decision *w)
{
    const bool ready = w->kind == CDDP_CHOICE_READY,
               ranks = w->kind == CDDP_CHOICE_RUN || w->kind == CDDP_CHOICE_ORDER;
    uint64_t rank = w->rank;
    switch (edit->kind) {
    case CD_EDIT_RANKS:
        if (w->rank != UINT32_MAX && !close_gap(edit, 1, &rank)) return false;
        w->rank = (uint32_t)rank;
        return !ranks || (close_gap(edit, 1, &w->id) && close_gap(edit, 1, &w->fifo_id));
    case CD_EDIT_STEPS:
        return !ready || close_gap(edit, s->options.plan->settings.train.micro_steps, &w->nth);
    case CD_EDIT_PARAMETER:
        if (!ready) return true;
        if (!close_gap(edit, 1, &w->id)) return false;
        /* Next, the engine reaches the one before it in the module. */
        if (!close_gap(edit, 1, &w->fifo_id)) w->fifo_id = edit->first > 0 ? edit->first - 1 : 0;
        return true;
    default:
        return true;
    }
}

static cddp_status attempt_init(const cd_shrink *s, const candidate *c, attempt *a, cddp_error *err)
{
    *a = (attempt){.possible = true, .policy_count = 1};
    if (c->is_edit && c->edit.kind == CD_EDIT_RANKS) {
        a->first_gone = c->edit.first;
        a->gone_count = c->edit.count;
    }
    cd_draft_init(&a->draft);
    a->wishes = cd_allocate_array(NULL, s->wishes.count + 1, sizeof *a->wishes);
    if (a->wishes == NULL) return cd_fail_memory(err, "a smaller schedule");
    for (size_t i = 0; i < s->wishes.count; i++) {
        cd_decision wish = s->wishes.items[i];
        if (c->is_edit ? renumber_wish(s, &c->edit, &wish)
                       : i < c->first || i >= c->first + c->count)
            a->wishes[a->wish_count++] = wish;
    }
    if (c->is_edit)
        CD_TRY(cd_edit_apply(&c->edit, &s->draft, &a->draft, &a->possible, err));
    else
        CD_TRY(cd_draft_copy(&a->draft, &s->draft, err));
    /* Where fifo fails no other order is needed. */
    if (c->is_edit && s->wishes.count > 0)
        a->policy_count = s->at_random ? 3 + s->options.random_tries : 3;
    cddp_plan *plan = NULL;
    if (a->possible && cd_draft_make(&a->draft, &plan, NULL) != CDDP_OK) a->possible = false;
    if (a->possible) a->digest = digest_wishes(cddp_plan_digest(plan), a);
    cddp_plan_destroy(plan);
    return CDDP_OK;
}

/* The k-th way of deciding: by meaning, by position, fifo, at random. */
static cd_probe_policy policy_of(const cd_shrink *s, const attempt *a, size_t k)
{
    cd_probe_policy p = {.seed = s->options.seed + (uint64_t)k};
    if (k == 0) {
        p.wishes = a->wishes;
        p.wish_count = a->wish_count;
    } else if (k == 1) {
        p.prefix = s->best.decisions.items;
        p.prefix_count = s->best.decisions.count;
    } else {
        p.random = k > 2;
    }
    return p;
}

/* The result of trying a candidate: the first way of deciding under which it fails the same, if
** any. */
typedef struct answer {
    size_t policy; /* SIZE_MAX: none */
    uint64_t trials;
} answer;

static cddp_status ask(const cd_shrink *s, const attempt *a, answer *out, cddp_error *err)
{
    out->policy = SIZE_MAX;
    out->trials = 0;
    for (size_t k = 0; k < a->policy_count && out->policy == SIZE_MAX && !is_interrupted(s); k++) {
        cd_probe trial = {.failed = false};
        const cd_probe_policy policy = policy_of(s, a, k);
        CD_TRY(cd_shrink_try(s, &a->draft, &policy, NULL, &trial, err));
        out->trials++;
        if (cd_shrink_is_same(s, &trial) &&
            cd_cast_is_same(&s->best.reason.cast, a->first_gone, a->gone_count, &trial.reason.cast))
            out->policy = k;
        /* Refused, or nothing to choose: no order will make a difference. */
        const bool settled = trial.refused || trial.decisions.count == 0;
        cd_probe_fini(&trial);
        if (settled) break;
    }
    return CDDP_OK;
}

/* ---- what was tried before ---- */

static cddp_status note_tried(cd_shrink *s, uint64_t digest, cddp_error *err)
{
    if (cd_digest_set_add(&s->tried, digest) != CD_DIGEST_NO_MEMORY) return CDDP_OK;
    return cd_fail_memory(err, "what was tried");
}

/* ---- taking one ---- */

static cddp_status keep_wishes(cd_shrink *s, cddp_error *err)
{
    cd_release(NULL, s->wishes.items, s->wishes.capacity * sizeof *s->wishes.items);
    s->wishes = (cd_decision_list){.count = 0};
    if (!cd_vec_grow(NULL, (void **)&s->wishes.items, &s->wishes.capacity,
                     s->best.deviation_count + 1, sizeof *s->wishes.items))
        return cd_fail_memory(err, "the choices of a run");
    for (size_t i = 0; i < s->best.decisions.count; i++)
        if (s->best.decisions.items[i].value != 0)
            s->wishes.items[s->wishes.count++] = s->best.decisions.items[i];
    return CDDP_OK;
}

static cddp_status take(cd_shrink *s, const candidate *c, size_t policy_number, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    attempt a;
    cd_probe trial = {.failed = false};
    CD_TRY_OUT(attempt_init(s, c, &a, err));
    const cd_probe_policy policy = policy_of(s, &a, policy_number);
    CD_TRY_OUT(cd_shrink_try(s, &a.draft, &policy, NULL, &trial, err));
    if (trial.interrupted) goto out; /* the best so far stays */
    const cd_draft old = s->draft;
    s->draft = a.draft;
    a.draft = old;
    attempt_fini(s, &a);
    cd_probe_fini(&s->best);
    s->best = trial;
    s->removed++;
    return CD_PASS(keep_wishes(s, err));
out:
    cd_probe_fini(&trial);
    attempt_fini(s, &a);
    return status;
}

/* ---- several at once ---- */

typedef struct batch {
    const cd_shrink *shrink;
    const attempt *attempts; /* (count) */
    answer *answers;         /* (count) */
} batch;

static cddp_status ask_in_child(void *context, size_t number, cd_text *result, cddp_error *err)
{
    const batch *b = context;
    answer a;
    CD_TRY(ask(b->shrink, &b->attempts[number], &a, err));
    cd_text_push_bytes(result, (const char *)&a, sizeof a);
    return CDDP_OK;
}

/* A child that brings no answer ended in a way that no run should: it did not fail for the same
** reason. */
static cddp_status collect(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    const batch *b = context;
    answer *a = &b->answers[end->task];
    (void)is_last;
    CD_TRY(cd_crew_check_outside(end, "a process that tried an attempt", err));
    *a = (answer){.policy = SIZE_MAX, .trials = 1};
    if (end->byte_count == sizeof *a) memcpy(a, end->bytes, sizeof *a);
    return CDDP_OK;
}

static cddp_status ask_batch(const cd_shrink *s, const attempt *attempts, answer *answers,
                             size_t count, cddp_error *err)
{
    batch b = {s, attempts, answers};
    const cd_crew_options crew = {.task_count = count,
                                  .worker_count = (uint32_t)count,
                                  .context = &b,
                                  .work = ask_in_child,
                                  .take = collect};
    cd_crew_count ended;
    if (count == 1) return CD_PASS(ask(s, &attempts[0], &answers[0], err));
    CD_TRY(cd_crew_run(&crew, &ended, err));
    return CDDP_OK;
}

/* ---- rounds ---- */

static bool is_over(cd_shrink *s)
{
    if (is_interrupted(s))
        s->end = CD_SHRINK_INTERRUPTED;
    else if ((s->options.trials_max > 0 && s->trials >= s->options.trials_max) ||
             (s->options.deadline_ns > 0 && cd_os_now_ns() >= s->options.deadline_ns))
        s->end = CD_SHRINK_OUT_OF_BUDGET;
    return s->end != CD_SHRINK_MINIMAL;
}

/* Goes on from list->items[*at], a batch at a time, to the first candidate that fails the same; *at
** is then its position, and behind the end when there is none. */
static cddp_status find_next(cd_shrink *s, const candidate_list *list, size_t *at, size_t *policy,
                             cddp_error *err)
{
    cddp_status status = CDDP_OK;
    attempt attempts[JOBS_MAX];
    answer answers[JOBS_MAX];
    size_t places[JOBS_MAX], count = 0;
    *policy = SIZE_MAX;
    while (*at < list->count && *policy == SIZE_MAX && !is_over(s)) {
        size_t next = *at;
        for (count = 0; count < s->options.jobs && next < list->count; next++) {
            CD_TRY_OUT(attempt_init(s, &list->items[next], &attempts[count++], err));
            if (attempts[count - 1].possible &&
                !cd_digest_set_has(&s->tried, attempts[count - 1].digest))
                places[count - 1] = next;
            else
                attempt_fini(s, &attempts[--count]);
        }
        *at = next;
        CD_TRY_OUT(count > 0 ? ask_batch(s, attempts, answers, count, err) : CDDP_OK);
        for (size_t i = 0; i < count && *policy == SIZE_MAX && !is_over(s); i++) {
            if (cd_digest_set_has(&s->tried, attempts[i].digest)) continue; /* twice in one batch */
            s->trials += answers[i].trials;
            *policy = answers[i].policy;
            if (*policy != SIZE_MAX)
                *at = places[i];
            else if (!is_interrupted(s))
                CD_TRY_OUT(note_tried(s, attempts[i].digest, err));
        }
        for (; count > 0; count--) attempt_fini(s, &attempts[count - 1]);
        if (s->options.progress != NULL)
            s->options.progress(s->options.context, s->trials, s->removed);
    }
out:
    for (; count > 0; count--) attempt_fini(s, &attempts[count - 1]);
    return status;
}

typedef cddp_status (*list_fn)(cd_shrink *s, candidate_list *list, cddp_error *err);

/* Once through a list, which is made again after every candidate taken. */
static cddp_status run_round(cd_shrink *s, list_fn make, bool *progressed, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    candidate_list list = {.count = 0};
    size_t at = 0, policy = SIZE_MAX;
    CD_TRY_OUT(make(s, &list, err));
    while (at < list.count && !is_over(s)) {
        CD_TRY_OUT(find_next(s, &list, &at, &policy, err));
        if (policy == SIZE_MAX) continue;
        CD_TRY_OUT(take(s, &list.items[at], policy, err));
        *progressed = true;
        CD_TRY_OUT(make(s, &list, err));
    }
out:
    cd_release(NULL, list.items, list.capacity * sizeof *list.items);
    return status;
}

cddp_status cd_shrink_run(cd_shrink *s, cddp_error *err)
{
    cd_edit_list singles = {.count = 0};
    for (bool progressed = true; progressed && !is_over(s);) {
        progressed = s->at_random = false;
        CD_TRY(run_round(s, list_deviations, &progressed, err));
        CD_TRY(run_round(s, list_parts, &progressed, err));
        if (!progressed) CD_TRY(run_round(s, list_sizes, &progressed, err));
        s->at_random = true;
        if (!progressed) CD_TRY(run_round(s, list_parts, &progressed, err));
        if (!progressed) CD_TRY(run_round(s, list_sizes, &progressed, err));
    }
    CD_TRY(cd_edit_list_make(&singles, &s->draft, false, err));
    s->single_count = singles.count + s->wishes.count;
    cd_edit_list_fini(&singles);
    return CDDP_OK;
}

/* ---- the run that was given ---- */

/* Its choices as a string, from whoever decided. */
static cddp_status record_schedule(const cd_shrink_options *o, char *text, cddp_error *err)
{
    cd_probe_options options = {.registry = o->registry,
                                .interrupted = o->interrupted,
                                .plan = o->plan};
    const char *chooser = o->plan->schedule.chooser;
    cd_probe trial = {.failed = false};
    if (o->schedule != NULL) {
        options.policy.schedule = o->schedule;
    } else if (chooser != NULL && strcmp(chooser, "replay") == 0) {
        options.policy.schedule = o->plan->schedule.string;
    } else if (chooser != NULL && strcmp(chooser, "random") == 0) {
        options.policy.random = true;
        options.policy.seed = o->plan->world.seed;
    }
    CD_TRY(cd_probe_run(&options, &trial, err));
    bool fits =
        cd_decisions_print(trial.decisions.items, trial.decisions.count, text, SCHEDULE_BYTES);
    bool same = o->trace_digest == 0 || o->trace_digest == trial.trace_digest ||
                trial.interrupted || trial.refused;
    cd_probe_fini(&trial);
    if (!same)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "the recorded run does not repeat itself here; cddp-verify replay shows "
                       "where it parts");
    return fits ? CDDP_OK
                : cd_fail(err, CDDP_E_LIMIT, "the run has more choices than a choice string holds");
}

/* The order in which gradients became ready, in the form that a run with chosen orders takes. */
static cddp_status record_orders(const cd_memory_sink *record, cd_ready **orders, size_t *count,
                                 cddp_error *err)
{
    *count = 0;
    *orders = cd_allocate_array(NULL, record->count + 1, sizeof **orders);
    if (*orders == NULL) return cd_fail_memory(err, "an order of gradients");
    for (size_t i = 0; i < record->count; i++) {
        const cddp_event *e = &record->events[i];
        for (size_t k = 0; e->kind == CDDP_EV_grad_local && k < i; k++) {
            const cddp_event *p = &record->events[k];
            if (p->kind != CDDP_EV_param || p->rank != e->rank ||
                p->as.param.param != e->as.grad_local.param)
                continue;
            (*orders)[(*count)++] =
                (cd_ready){.rank = e->rank, .id = (uint64_t)p->as.param.ordinal};
            break;
        }
    }
    return CDDP_OK;
}

/* Orders that were drawn say nothing to a reader, and change with everything that is taken away:
** the same orders as decisions can be shrunk one by one. Only where the run then still fails for
** the same reason. */
static cddp_status unshuffle(cd_shrink *s, const char *schedule, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_draft draft;
    cd_memory_sink record;
    cd_probe trial = {.failed = false};
    cd_ready *orders = NULL;
    size_t count = 0, capacity = 0;
    bool found = false;
    cd_draft_init(&draft);
    cd_memory_sink_init(&record, NULL);
    CD_TRY_OUT(cd_draft_copy(&draft, &s->draft, err));
    CD_TRY_OUT(cd_edit_unshuffle(&draft, &found, err));
    if (!found) goto out;
    const cd_probe_policy before = {.schedule = schedule};
    CD_TRY_OUT(cd_shrink_try(s, &s->draft, &before, &record, &trial, err));
    cd_probe_fini(&trial);
    capacity = record.count + 1;
    CD_TRY_OUT(record_orders(&record, &orders, &count, err));
    const cd_probe_policy policy = {.orders = orders,
                                    .order_count = count,
                                    .wishes = s->wishes.items,
                                    .wish_count = s->wishes.count};
    CD_TRY_OUT(cd_shrink_try(s, &draft, &policy, NULL, &trial, err));
    s->trials += 2;
    if (!cd_shrink_is_same(s, &trial)) goto out;
    const cd_draft old = s->draft;
    const cd_probe old_best = s->best;
    s->draft = draft;
    s->best = trial;
    draft = old;
    trial = old_best;
    CD_TRY_OUT(keep_wishes(s, err));
out:
    cd_release(NULL, orders, capacity * sizeof *orders);
    cd_probe_fini(&trial);
    cd_memory_sink_fini(&record);
    cd_draft_fini(&draft);
    return status;
}

/* A failure of another world is shrunk where the simulator, with the orders of that world, fails
** alike. */
static cddp_status check_failure(const cd_shrink *s, cddp_error *err)
{
    const cd_shrink_options *o = &s->options;
    if (!s->best.failed && o->elsewhere == NULL)
        return cd_fail(err, CDDP_E_ARG, "the run does not fail: there is nothing to shrink");
    if (!s->best.failed)
        return cd_fail(err, CDDP_E_ARG,
                       "it does not fail on the simulator, with the same orders: what fails on "
                       "backend %s lies in the "
                       "processes or in their transport, and there is nothing to shrink",
                       o->elsewhere);
    if (o->elsewhere != NULL && o->found_elsewhere != NULL &&
        strcmp(o->found_elsewhere, s->best.reason.check) != 0)
        return cd_fail(err, CDDP_E_ARG,
                       "the run failed on backend %s with %s. On the simulator, with the same "
                       "orders, it fails with %s: another failure, which is not shrunk in place "
                       "of the first",
                       o->elsewhere,
                       o->found_elsewhere[0] != '\0' ? o->found_elsewhere : "an error of a rank",
                       s->best.reason.check[0] != '\0' ? s->best.reason.check
                                                       : "an error of a rank");
    return CDDP_OK;
}

static cddp_status begin(cd_shrink *s, char *schedule, cddp_error *err)
{
    CD_TRY(record_schedule(&s->options, schedule, err));
    CD_TRY(cd_draft_take(&s->draft, s->options.plan, err));
    CD_TRY(cd_edit_prepare(&s->draft, err));
    const cd_probe_policy policy = {.schedule = schedule};
    CD_TRY(cd_shrink_try(s, &s->draft, &policy, NULL, &s->best, err));
    s->trials = 2;
    if (s->best.interrupted)
        return cd_fail(err, CDDP_E_ABORTED, "interrupted before anything was known");
    if (s->best.refused)
        return cd_fail(err, CDDP_E_CONFIG,
                       "the scenario cannot be run, so nothing of it can be shrunk: %s",
                       s->best.refusal);
    CD_TRY(check_failure(s, err));
    CD_TRY(keep_wishes(s, err));
    CD_TRY(unshuffle(s, schedule, err));
    s->first_decisions = s->best.decisions.count;
    s->first_deviations = s->best.deviation_count;
    return CDDP_OK;
}

cddp_status cd_shrink_begin(cd_shrink *s, const cd_shrink_options *options, cddp_error *err)
{
    *s = (cd_shrink){.options = *options};
    if (s->options.jobs > JOBS_MAX) s->options.jobs = JOBS_MAX;
    cd_draft_init(&s->draft);
    char *schedule = cd_allocate(NULL, SCHEDULE_BYTES);
    if (schedule == NULL) return cd_fail_memory(err, "a smaller scenario");
    cddp_status status = begin(s, schedule, err);
    cd_release(NULL, schedule, SCHEDULE_BYTES);
    return status;
}

void cd_shrink_fini(cd_shrink *s)
{
    cd_draft_fini(&s->draft);
    cd_probe_fini(&s->best);
    cd_release(NULL, s->wishes.items, s->wishes.capacity * sizeof *s->wishes.items);
    cd_digest_set_fini(&s->tried);
    *s = (cd_shrink){.trials = 0};
}
