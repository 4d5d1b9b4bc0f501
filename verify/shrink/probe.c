/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a smaller scenario. */
#include "verify/shrink/probe.h"

#include "verify/worlds/compose.h"
#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- the reason ---- See Note [The same reason] */

static bool word_is_name(const char *word, size_t length, const char *parameter)
{
    static const char *const who[] = {"rank",    "ranks", "and", "more",
                                      "against", "all",   "no",  "majority"};
    bool name = length == strlen(parameter) && strncmp(word, parameter, length) == 0;
    for (size_t i = 0; i < length; i++)
        name = name || isdigit((unsigned char)word[i]) || word[i] == '.' || word[i] == '\'';
    for (size_t i = 0; i < sizeof who / sizeof who[0]; i++)
        name = name || (strlen(who[i]) == length && strncmp(word, who[i], length) == 0);
    return name;
}

static void take_sentence(const char *title, const char *parameter, char *sentence,
                          size_t sentence_bytes)
{
    size_t used = 0;
    int depth = 0;
    for (const char *at = title; *at != '\0';) {
        depth += *at == '(';
        depth -= *at == ')';
        size_t length = strcspn(at, " ,:;()");
        if (depth == 0 && length > 0 && !word_is_name(at, length, parameter) &&
            used + length + 2 < sentence_bytes) {
            memcpy(sentence + used, at, length);
            used += length;
            sentence[used++] = ' ';
        }
        at += length > 0 ? length : 1;
    }
    sentence[used > 0 ? used - 1 : 0] = '\0';
}

static const char *rank_failure(const cddp_rank_result *result)
{
    switch (result->end) {
    case CDDP_RANK_RETURNED:
        return result->status != CDDP_OK ? result->error.message : NULL;
    case CDDP_RANK_KILLED:
        return "killed";
    case CDDP_RANK_HUNG:
        return "waits for ever";
    case CDDP_RANK_CRASHED:
        return "ended without a result";
    case CDDP_RANK_INTERRUPTED:
        return "was interrupted";
    }
    return NULL;
}

/* A hang stays a hang, with the same cause. */
static void take_hang(cd_reason *reason, const cddp_verdict *v)
{
    reason->hang = cd_hang_shape(v);
    for (uint32_t i = 0; i < v->rank_count && reason->hang != 0; i++) {
        const cddp_rank_result *r = &v->ranks[i].result;
        if (!cd_hang_is_culprit(v, i) || cd_hang_find(v, i) != NULL) continue;
        if (r->end == CDDP_RANK_RETURNED && r->status != CDDP_OK)
            take_sentence(r->error.message, "", reason->why, sizeof reason->why);
        break;
    }
}

static void add_to(uint64_t *set, uint32_t rank)
{
    const uint32_t at = rank < CD_CAST_RANKS ? rank : CD_CAST_RANKS - 1;
    set[at / 64] |= UINT64_C(1) << (at % 64);
}

static void take_cast(cd_cast *cast, const cddp_verdict *v)
{
    const cddp_finding *first = v->finding_count > 0 ? &v->findings[0] : NULL;
    if (v->wait_count == 0) return;
    cast->ranks = v->rank_count;
    for (size_t i = 0; first != NULL && i < first->rank_count; i++)
        add_to(cast->blamed, first->ranks[i]);
    for (size_t i = 0; i < v->wait_count; i++) add_to(cast->waits, v->waits[i].rank);
    for (uint32_t i = 0; i < v->rank_count; i++)
        if (cd_hang_is_culprit(v, i)) add_to(cast->roots, i);
}

static bool is_in(const uint64_t *set, uint64_t rank) { return set[rank / 64] >> rank % 64 & 1; }

/* may_grow: others may have joined them. */
static bool is_same_part(const uint64_t *before, uint64_t first, uint64_t count,
                         const uint64_t *after, bool may_grow)
{
    for (uint64_t i = 0; i + 1 < CD_CAST_RANKS; i++) {
        const uint64_t old = i < first ? i : i + count;
        if (old + 1 >= CD_CAST_RANKS) break;
        const bool is_now = is_in(after, i), was_before = is_in(before, old);
        if (is_now != was_before && !(may_grow && is_now)) return false;
    }
    return true;
}

bool cd_cast_is_same(const cd_cast *before, uint64_t first, uint64_t count, const cd_cast *after)
{
    const bool is_split = count > 0 && after->ranks == 2;
    return before->ranks == 0 ||
           (is_same_part(before->blamed, first, count, after->blamed, is_split) &&
            is_same_part(before->waits, first, count, after->waits, false) &&
            is_same_part(before->roots, first, count, after->roots, false));
}

/* Without the name of the wrapper: what fails in one of several may fail in one alone. */
static const char *title_of(const cddp_finding *f)
{
    const char *end = strstr(f->title, "': ");
    return f->wrapper != NULL && strncmp(f->title, "wrapper '", 9) == 0 && end != NULL ? end + 3
                                                                                       : f->title;
}

bool cd_reason_take(cd_reason *reason, const cddp_verdict *v)
{
    const char *failure = NULL;
    *reason = (cd_reason){.finished = true};
    take_hang(reason, v);
    take_cast(&reason->cast, v);
    if (v->outcome != CDDP_OUTCOME_FINDINGS) return false;
    for (size_t i = v->rank_count; i-- > 0;)
        if (rank_failure(&v->ranks[i].result) != NULL) failure = rank_failure(&v->ranks[i].result);
    for (uint32_t i = 0; i < v->rank_count && v->finding_count == 0; i++) {
        const char *cause = rank_failure(&v->ranks[i].result);
        if (cause == NULL || !cd_hang_is_culprit(v, i) || cd_hang_find(v, i) != NULL) continue;
        failure = cause;
        break;
    }
    reason->finished = failure == NULL;
    if (v->finding_count == 0) {
        take_sentence(failure != NULL ? failure : "", "", reason->sentence,
                      sizeof reason->sentence);
        return failure != NULL;
    }
    const cddp_finding *f = &v->findings[0];
    snprintf(reason->check, sizeof reason->check, "%s", f->check);
    take_sentence(title_of(f), f->parameter, reason->sentence, sizeof reason->sentence);
    reason->has_bucket = f->bucket >= 0;
    reason->has_parameter = f->param >= 0 || f->parameter[0] != '\0';
    return true;
}

bool cd_reason_is_same(const cd_reason *a, const cd_reason *b)
{
    /* a bucket that has become one parameter alone is named by it */
    const bool is_named =
        b->has_parameter == a->has_parameter || (a->has_bucket && b->has_parameter);
    return strcmp(a->check, b->check) == 0 && strcmp(a->sentence, b->sentence) == 0 &&
           a->hang == b->hang && strcmp(a->why, b->why) == 0 && a->has_bucket == b->has_bucket &&
           is_named && a->finished == b->finished;
}

/* ---- deciding ---- */

typedef struct decider {
    const cd_probe_policy *policy;
    cd_probe *trial;
    /* (CDDP_CHOICE_KIND_COUNT · (world_size + 1)) choices so far, by kind and rank */
    uint64_t *counts;
    size_t *positions; /* (rank_slots) in the orders */
    uint32_t *left;    /* (rank_slots) gradients that the last choice of the rank was among */
    size_t rank_slots;
    cd_replay_chooser replay;
    cd_chooser inner; /* of a choice string, or at random */
    cd_random_chooser random;
    bool out_of_memory;
} decider;

static uint64_t option_id(const cddp_choice *choice, uint32_t index)
{
    return choice->options != NULL ? choice->options[index] : index;
}

static uint64_t count_choice(decider *d, const cddp_choice *choice)
{
    size_t slot = choice->rank < d->rank_slots - 1 ? choice->rank : d->rank_slots - 1;
    uint64_t *count = &d->counts[(size_t)choice->kind * d->rank_slots + slot];
    if (choice->kind != CDDP_CHOICE_READY) return (*count)++;
    /* Within a backward there is one gradient less to choose from each time. */
    *count += d->left[slot] != 0 && choice->option_count >= d->left[slot];
    d->left[slot] = choice->option_count;
    return *count;
}

/* The option that was wished for at this choice, else fifo. A gradient is wished for in front of
** another one, wherever
*** that stands in the backward now. */
static uint32_t grant_wish(const decider *d, const cddp_choice *choice, uint64_t nth)
{
    const cd_probe_policy *p = d->policy;
    for (size_t i = 0; i < p->wish_count; i++) {
        const cd_decision *w = &p->wishes[i];
        if (w->kind != choice->kind || w->rank != choice->rank || w->nth != nth) continue;
        if (choice->kind == CDDP_CHOICE_READY && option_id(choice, 0) != w->fifo_id) continue;
        for (uint32_t k = 0; k < choice->option_count; k++)
            if (option_id(choice, k) == w->id) return k;
    }
    return 0;
}

/* The option that comes next in the order given for this rank. Where two are left the second one
** follows unasked. */
static uint32_t follow_order(decider *d, const cddp_choice *choice)
{
    const cd_probe_policy *p = d->policy;
    size_t *at = &d->positions[choice->rank];
    for (; *at < p->order_count; ++*at) {
        if (p->orders[*at].rank != choice->rank) continue;
        for (uint32_t k = 0; k < choice->option_count; k++) {
            if (option_id(choice, k) != p->orders[*at].id) continue;
            for (uint32_t taken = choice->option_count == 2 ? 2 : 1;
                 taken > 0 && *at < p->order_count; ++*at)
                taken -= p->orders[*at].rank == choice->rank;
            return k;
        }
    }
    return 0;
}

static uint32_t decide(void *self, const cddp_choice *choice, cd_place place)
{
    decider *d = self;
    const cd_probe_policy *p = d->policy;
    cd_decision_list *list = &d->trial->decisions;
    uint64_t nth = count_choice(d, choice);
    uint32_t value = 0;
    if (p->schedule != NULL)
        value = d->inner.choose(d->inner.self, choice, place);
    else if (p->order_count > 0 && choice->kind == CDDP_CHOICE_READY &&
             choice->rank < d->rank_slots)
        value = follow_order(d, choice);
    else if (place.number < p->prefix_count)
        value = p->prefix[place.number].value;
    else if (p->random)
        value = d->inner.choose(d->inner.self, choice, place);
    else
        value = grant_wish(d, choice, nth);
    if (value >= choice->option_count) value = 0;
    if (!cd_vec_grow(NULL, (void **)&list->items, &list->capacity, list->count + 1,
                     sizeof *list->items)) {
        d->out_of_memory = true;
        return value;
    }
    list->items[list->count++] = (cd_decision){.number = place.number,
                                               .nth = nth,
                                               .id = option_id(choice, value),
                                               .fifo_id = option_id(choice, 0),
                                               .kind = choice->kind,
                                               .rank = choice->rank,
                                               .value = value,
                                               .options = choice->option_count};
    d->trial->deviation_count += value != 0;
    return value;
}

static cddp_status finish(void *self, cd_place place, cddp_error *err)
{
    decider *d = self;
    if (d->out_of_memory) return cd_fail_memory(err, "the choices of a run");
    if (d->policy->schedule != NULL) return CD_PASS(d->inner.finish(d->inner.self, place, err));
    return CDDP_OK;
}

/* ---- running ---- */

static void take_verdict(cd_probe *trial, const cddp_verdict *v)
{
    trial->failed = cd_reason_take(&trial->reason, v);
    trial->trace_digest = v->trace_digest;
    trial->event_count = v->event_count;
    trial->refused = v->outcome == CDDP_OUTCOME_ERROR || v->outcome == CDDP_OUTCOME_ENVIRONMENT;
    if (trial->refused) snprintf(trial->refusal, sizeof trial->refusal, "%.250s", v->reason);
    if (v->finding_count > 0) {
        trial->finding = v->findings[0];
        trial->finding.ranks = NULL; /* the verdict's, which goes */
        trial->finding.rank_count = 0;
    }
    cd_text hang;
    cd_text_init(&hang, false);
    cd_hang_print(v, &hang);
    snprintf(trial->hang, sizeof trial->hang, "%s", cd_text_get(&hang));
    cd_text_fini(&hang);
    snprintf(trial->failure, sizeof trial->failure, "%s",
             v->finding_count > 0 ? v->findings[0].title : v->summary);
}

static bool is_interrupted(const cd_probe_options *o)
{
    return o->interrupted != NULL && o->interrupted();
}

static void ignore_event(void *self, const cddp_event *event) { (void)self, (void)event; }

static cddp_status fail_when_asked(void *self, cddp_error *err)
{
    return is_interrupted(self) ? cd_fail(err, CDDP_E_ABORTED, "interrupted") : CDDP_OK;
}

static cddp_status run_composed(const cd_probe_options *o, const cd_chooser *chooser,
                                cd_probe *trial, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    cddp_verdict *verdict = NULL;
    cd_probe_options asked = *o;
    const cddp_trace_sink stop = {sizeof stop, CDDP_TRACE_ABI, &asked, ignore_event,
                                  fail_when_asked};
    const cddp_trace_sink *sinks[2] = {&stop, o->record != NULL ? &o->record->sink : NULL};
    const cd_compose_options options = {.plan = o->plan,
                                        .registry = o->registry,
                                        .stuck_ns = o->stuck_ns,
                                        .level = CDDP_TRACE_DIGEST,
                                        .chooser = chooser};
    CD_TRY(cd_compose_open(&options, &compose, err));
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(compose, &run);
    run.registry = o->registry;
    run.sinks = sinks;
    run.sink_count = o->record != NULL ? 2 : 1;
    CD_TRY_OUT(cddp_run(&run, &verdict, err));
    take_verdict(trial, verdict);
out:
    cddp_verdict_destroy(verdict);
    cd_compose_close(compose);
    return status;
}

void cd_probe_fini(cd_probe *trial)
{
    cd_release(NULL, trial->decisions.items,
               trial->decisions.capacity * sizeof *trial->decisions.items);
    *trial = (cd_probe){.failed = false};
}

cddp_status cd_probe_run(const cd_probe_options *options, cd_probe *trial, cddp_error *err)
{
    cddp_error wrong = CDDP_ERROR_INIT;
    decider d = {.policy = &options->policy,
                 .trial = trial,
                 .rank_slots = (size_t)options->plan->world.size + 1};
    const size_t slots = d.rank_slots * CDDP_CHOICE_KIND_COUNT;
    cd_arena tables;
    *trial = (cd_probe){.failed = false};
    if (options->policy.schedule != NULL)
        CD_TRY(cd_chooser_replay(&d.replay, options->policy.schedule, &d.inner, err));
    else
        d.inner = cd_chooser_random(&d.random, options->policy.seed);
    cd_arena_init(&tables, NULL, 4096);
    d.counts = cd_arena_array(&tables, slots, sizeof *d.counts);
    d.positions = cd_arena_array(&tables, d.rank_slots, sizeof *d.positions);
    d.left = cd_arena_array(&tables, d.rank_slots, sizeof *d.left);
    const cd_chooser chooser = {.self = &d, .name = "shrink", .choose = decide, .finish = finish};
    cddp_status status = cd_arena_check(&tables, err, "the choices of a run");
    const bool starved = status != CDDP_OK;
    if (!starved) status = run_composed(options, &chooser, trial, &wrong);
    cd_arena_fini(&tables);
    if (starved) return CD_PASS(status);
    trial->interrupted = is_interrupted(options);
    if (status == CDDP_E_NOMEM ||
        (status != CDDP_OK && options->policy.schedule != NULL && !trial->interrupted)) {
        if (err != NULL) *err = wrong;
        cd_probe_fini(trial);
        return status;
    }
    if (status != CDDP_OK) {
        trial->failed = false;
        trial->refused = true;
        snprintf(trial->refusal, sizeof trial->refusal, "%.250s", wrong.message);
    }
    trial->failed = trial->failed && !trial->interrupted;
    return CDDP_OK;
}

bool cd_decisions_print(const cd_decision *decisions, size_t count, char *text, size_t text_bytes)
{
    cd_schedule schedule = {.capacity = count + 1};
    schedule.items = cd_allocate_array(NULL, count + 1, sizeof *schedule.items);
    if (schedule.items == NULL) return false;
    for (size_t i = 0; i < count; i++)
        cd_schedule_push(&schedule, decisions[i].value, decisions[i].kind);
    bool fits = cd_schedule_print(&schedule, text, text_bytes) < text_bytes && !schedule.overflowed;
    cd_release(NULL, schedule.items, (count + 1) * sizeof *schedule.items);
    return fits;
}
