/* SPDX-License-Identifier: Apache-2.0 */
/* One run of an exploration. */
#include "verify/explore/run.h"

#include "verify/hang/graph.h"
#include "verify/hang/headline.h"
#include "verify/worlds/compose.h"
#include "verify/explore/prefix.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "core/plan/plan.h"
#include "core/plan/zero.h"
#include "core/run/recall.h"
#include "core/run/verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define READY_CHOSEN 3 /* of schedule.ready */

/* ---- the plan ---- */

static cddp_status change(cddp_plan *plan, const char *key, const char *value, cd_text *overrides,
                          cddp_error *err)
{
    CD_TRY(cddp_plan_set(plan, key, value, err));
    cd_text_printf(overrides, "%s=%s\n", key, value);
    return CDDP_OK;
}

cddp_status cd_explore_prepare(cddp_plan *plan, bool exhaustive, cd_text *overrides,
                               cddp_error *err)
{
    /* a failure that the scenario expects may need the order of the engine */
    const bool expects_failure = plan->expect.finding_count > 0 || plan->expect.error.count > 0;
    const bool has_one_order = cd_zero_shards_model(plan); /* that of backward, on every rank */
    if (plan->schedule.ready == CDDP_READY_ENGINE && !expects_failure && !has_one_order)
        CD_TRY(change(plan, "schedule.ready", "chosen", overrides, err));
    if (!exhaustive || plan->fault_count > 0) return CDDP_OK; /* faults strike at times */
    if (plan->settings.train.forward_us > 0)
        CD_TRY(change(plan, "train.forward_us", "0", overrides, err));
    if (plan->settings.train.backward_us > 0)
        CD_TRY(change(plan, "train.backward_us", "0", overrides, err));
    return CDDP_OK;
}

bool cd_explore_is_without_rebuild(const cddp_plan *plan)
{
    const cddp_plan_settings *s = &plan->settings;
    if (plan->override_count > 0 || s->join.enable) return false;
    if (s->ddp.find_unused_parameters && !s->ddp.static_graph) return true; /* REB-01 */
    return plan->when_count == 0 && s->train.steps == 1 &&
           s->train.micro_steps == 1; /* a rebuild comes with the next forward */
}

/* ---- outcomes ---- */

static uint64_t finding_digest(const cddp_finding *f)
{
    uint64_t h = cd_hash_mix(cd_hash_text(f->check), (uint32_t)f->param);
    if (f->wrapper != NULL) h = cd_hash_mix(h, cd_hash_text(f->wrapper));
    return cd_hash_mix(h, ((uint64_t)f->step << 32) | (uint32_t)f->bucket);
}

/* A sum over ranks of the sum of their findings. Interchangeable ranks are not distinguished. */
static uint64_t findings_digest(const cddp_verdict *v, bool anonymous)
{
    uint64_t h = 0;
    for (int64_t rank = -1; rank < (int64_t)v->rank_count; rank++) {
        uint64_t of_rank = 0;
        for (size_t i = 0; i < v->finding_count; i++)
            if (v->findings[i].rank == rank)
                of_rank += cd_hash_mix(finding_digest(&v->findings[i]), 1);
        h += cd_hash_mix(of_rank, (uint64_t)(anonymous && rank > 0 ? 1 : rank));
    }
    return h;
}

static uint64_t outcome_digest(const cddp_verdict *v, bool anonymous)
{
    uint64_t h = cd_hash_mix((uint64_t)v->outcome, v->finding_count);
    return cd_hash_mix(h, findings_digest(v, anonymous));
}

/* A hang first, as the report of a run has it; then what is found first. */
static void report_culprit(const cddp_verdict *v, cd_explored *e)
{
    cd_text hang;
    snprintf(e->culprit, sizeof e->culprit, "%s", v->reason[0] != '\0' ? v->reason : v->summary);
    for (size_t i = v->rank_count; i-- > 0;)
        if (v->ranks[i].result.status != CDDP_OK)
            snprintf(e->culprit, sizeof e->culprit, "rank %zu: %s", i,
                     v->ranks[i].result.error.message);
    for (uint32_t i = 0; i < v->rank_count; i++) {
        const char *message = v->ranks[i].result.error.message;
        if (!cd_hang_is_culprit(v, i) || cd_hang_find(v, i) != NULL || message[0] == '\0') continue;
        snprintf(e->culprit, sizeof e->culprit, "rank %" PRIu32 ": %s", i, message);
        break;
    }
    if (v->finding_count > 0)
        snprintf(e->culprit, sizeof e->culprit, "%s  %s", v->findings[0].check,
                 v->findings[0].title);
    cd_text_init(&hang, false);
    cd_hang_print(v, &hang);
    if (hang.length > 0) cd_text_printf(&hang, ". %s", e->culprit);
    if (hang.length > 0) snprintf(e->culprit, sizeof e->culprit, "%s", cd_text_get(&hang));
    cd_text_fini(&hang);
}

static void take_verdict(const cd_explore_subject *subject, const cddp_verdict *v,
                         const cd_compose *compose, cd_explored *e)
{
    e->outcome = outcome_digest(v, subject->anonymous);
    e->is_verified = v->outcome == CDDP_OUTCOME_VERIFIED || cd_verdict_lacks_faults_only(v);
    e->missing_faults = cd_verdict_get_missing_faults(v);
    e->culprit[0] = e->schedule[0] = '\0';
    if (e->is_verified) return;
    report_culprit(v, e);
    if (cd_compose_print_schedule(compose, e->schedule, sizeof e->schedule) >= sizeof e->schedule)
        e->schedule[0] = '\0';
}

/* ---- the world ---- */

static cddp_trace_level level_of(const cd_explore_subject *subject)
{
    return subject->order_only ? CDDP_TRACE_ORDER : CDDP_TRACE_DIGEST;
}

static cddp_status open_world(const cd_explore_subject *subject, cd_explore_world *world,
                              const cd_chooser *chooser, cddp_error *err)
{
    const cd_compose_options options = {.plan = subject->plan,
                                        .registry = subject->registry,
                                        .level = level_of(subject),
                                        .chooser = chooser};
    if (world->compose != NULL)
        cd_compose_set_chooser(world->compose, chooser);
    else
        CD_TRY(cd_compose_open(&options, &world->compose, err));
    return CDDP_OK;
}

void cd_explore_fini(cd_explore_subject *subject)
{
    for (int i = 0; i < CD_EXPLORE_WORLDS; i++) {
        cd_explore_world *world = &subject->worlds[i];
        cd_compose_close(world->compose);
        cd_explore_prefix_destroy(world->prefix);
        *world = (cd_explore_world){0};
    }
    cd_recall_destroy(subject->recall);
    subject->recall = NULL;
    cd_known_fini(&subject->known);
    cd_answers_fini(&subject->answers);
}

static cd_explore_world *find_world(cd_explore_subject *subject, const cd_explorer *explorer,
                                    cd_recall_manner manner)
{
    return &subject->worlds[cd_explorer_get_kind(explorer) % 2 + 2 * (size_t)manner];
}

static cddp_run_options run_options(const cd_explore_subject *subject,
                                    const cd_explore_world *world)
{
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(world->compose, &run);
    run.registry = subject->registry;
    run.level = level_of(subject);
    return run;
}

/* ---- a run from its beginning, by itself ---- */

static cddp_status run_whole(const cd_explore_subject *subject, cd_explore_world *world,
                             cd_explorer *explorer, const cd_chooser *chooser,
                             cddp_verdict **verdict, cddp_error *err)
{
    const cddp_trace_sink *sinks[2],
        *others[2] = {cd_explorer_get_sink(explorer), subject->watcher};
    CD_TRY(open_world(subject, world, chooser, err));
    cddp_run_options run = run_options(subject, world);
    run.sinks = sinks;
    for (int i = 0; i < 2; i++)
        if (others[i] != NULL) sinks[run.sink_count++] = others[i];
    return CD_PASS(cddp_run(&run, verdict, err));
}

/* ---- runs that share their beginning ---- */

typedef struct keeper {
    cd_explore_subject *subject;
    cd_explore_world *world;
    const cd_explorer *explorer;
    const cd_chooser *inner;
    bool is_behind; /* the moment has passed, or runs that are judged have none */
} keeper;

static uint32_t choose_and_keep(void *self, const cddp_choice *choice, cd_place place)
{
    keeper *k = self;
    if (!k->is_behind && cd_explorer_varies(k->explorer, choice)) {
        k->is_behind = true;
        cd_answers_forget(&k->subject->answers);
        k->world->is_blind = k->subject->recall != NULL && cd_recall_has_missed(k->subject->recall);
        cd_explore_prefix_keep(k->world->prefix, cd_compose_get_sim(k->world->compose));
    }
    return k->inner->choose(k->inner->self, choice, place);
}

static cddp_status finish_inner(void *self, cd_place end, cddp_error *err)
{
    const keeper *k = self;
    return k->inner->finish != NULL ? k->inner->finish(k->inner->self, end, err) : CDDP_OK;
}

/* Forgets the beginning, and the world, which may hold what lies in the memory of the beginning. */
static void forget(cd_explore_world *world)
{
    if (world->prefix == NULL || !cd_explore_prefix_is_used(world->prefix)) return;
    cd_compose_close(world->compose);
    world->compose = NULL;
    cd_explore_prefix_clear(world->prefix);
}

static cddp_status start(cd_explore_subject *subject, cd_explore_world *world,
                         const cd_explorer *explorer, const cd_chooser *inner, cddp_error *err)
{
    /* Where a run that judges begins at its beginning, so does one that recalls: what it was
    ** answered is asked again from there. */
    const bool has_no_moment = find_world(subject, explorer, CD_RECALL_JUDGES)->shares_nothing;
    keeper k = {.subject = subject,
                .world = world,
                .explorer = explorer,
                .inner = inner,
                .is_behind = has_no_moment};
    const cd_chooser chooser = {.self = &k,
                                .name = inner->name,
                                .choose = choose_and_keep,
                                .finish = finish_inner};
    forget(world);
    CD_TRY(open_world(subject, world, &chooser, err));
    world->kind = cd_explorer_get_kind(explorer);
    cddp_run_options run = run_options(subject, world);
    run.judge = subject->recall == NULL || !cd_recall_looks(subject->recall);
    return CD_PASS(cd_explore_prefix_start(world->prefix, &run, subject->recall, err));
}

static bool is_ready(const cd_explore_world *world, const cd_explorer *explorer)
{
    return world->prefix != NULL && cd_explore_prefix_is_kept(world->prefix) &&
           world->kind == cd_explorer_get_kind(explorer);
}

static cddp_status run_behind_prefix(cd_explore_subject *subject, cd_explore_world *world,
                                     const cd_explorer *explorer, const cd_chooser *chooser,
                                     cddp_error *err)
{
    if (is_ready(world, explorer)) {
        cd_compose_set_chooser(world->compose, chooser);
        CD_TRY(cd_explore_prefix_resume(world->prefix, cd_compose_get_sim(world->compose), err));
    } else {
        CD_TRY(start(subject, world, explorer, chooser, err));
        /* Nothing to vary, or a world that cannot be copied there: the next one will be no
        ** other. */
        world->shares_nothing = !cd_explore_prefix_is_kept(world->prefix);
    }
    return CDDP_OK;
}

/* A plan that contradicts itself is not run at all; a world of processes is not ours to put
** back. */
static cddp_status make_prefix(cd_explore_subject *subject, cd_explore_world *world,
                               const cd_chooser *chooser, cddp_error *err)
{
    if (world->prefix != NULL || world->shares_nothing || subject->from_scratch) return CDDP_OK;
    CD_TRY(open_world(subject, world, chooser, err));
    if (cddp_plan_check(subject->plan, NULL) == CDDP_OK &&
        cd_compose_get_sim(world->compose) != NULL)
        CD_TRY(cd_explore_prefix_create(&world->prefix, err));
    world->shares_nothing = world->prefix == NULL;
    return CDDP_OK;
}

/* ---- runs that judge, and runs that recall ---- */

#define TRIES_MIN 32    /* before it is said that recalling is not worth while */
#define TRIES_IN_VAIN 8 /* the same, where not one run could be recalled */
#define FORESEEN_MIN 8  /* before it is tried again */
#define ALIKE_MIN 8     /* before a run is made that nobody hears */

static bool is_clean(const cddp_verdict *v)
{
    return v->outcome == CDDP_OUTCOME_VERIFIED && v->finding_count == 0;
}

/* The run was heard and is clean. */
static void note_clean(cd_explore_subject *subject, const cd_explore_world *world,
                       const cddp_verdict *v)
{
    const cd_witness *witness = cd_explore_prefix_get_witness(world->prefix);
    subject->clean_outcome = outcome_digest(v, subject->anonymous);
    if (witness == NULL) return;
    subject->alike = cd_known_has(&subject->known, witness) ? subject->alike + 1 : 0;
    cd_known_add(&subject->known, witness);
}

/* A run that recalls and misses is run twice. So recalling is given up where more runs miss than
** not, as at the beginning, where nearly every order is a new one. Many scenarios have a few
** hundred orders, and know most of them later. A run that judges shows whether it could have been
** recalled, at no cost: see cd_recall_has_news. */
static void begin_trial(cd_explore_subject *subject, bool is_over)
{
    subject->trial.is_over = is_over;
    subject->trial.recalled = subject->trial.missed = subject->trial.foreseen = 0;
}

static void note_miss(cd_explore_subject *subject)
{
    const uint32_t tries = subject->trial.recalled == 0 ? TRIES_IN_VAIN : TRIES_MIN,
                   missed = ++subject->trial.missed;
    subject->missed++;
    if (missed >= tries && missed > subject->trial.recalled) begin_trial(subject, true);
}

static void note_judged(cd_explore_subject *subject, bool is_foreseen)
{
    uint32_t *foreseen = &subject->trial.foreseen;
    if (!subject->trial.is_over) return;
    if (is_foreseen)
        ++*foreseen;
    else
        *foreseen -= *foreseen < 2 ? *foreseen : 2;
    if (*foreseen >= FORESEEN_MIN) begin_trial(subject, false);
}

/* Where the run that made the beginning is not clean, no later one has what was said in it. Runs
** that share none have their own. */
static cddp_status run_judging(cd_explore_subject *subject, cd_explore_world *world,
                               const cd_explorer *explorer, const cd_chooser *chooser,
                               cddp_verdict **verdict, cddp_error *err)
{
    const bool is_first = !is_ready(world, explorer) && !world->shares_nothing;
    if (subject->recall == NULL && !subject->recalls_nothing)
        CD_TRY(cd_recall_create(&subject->recall, err));
    if (subject->recall != NULL) cd_recall_begin(subject->recall, CD_RECALL_JUDGES);
    CD_TRY(run_behind_prefix(subject, world, explorer, chooser, err));
    CD_TRY(cd_explore_prefix_end(world->prefix, verdict, err));
    if (is_clean(*verdict) && subject->recall != NULL) {
        cd_recall_keep(subject->recall);
        note_clean(subject, world, *verdict);
        note_judged(subject, !cd_recall_has_news(subject->recall));
    } else {
        subject->recalls_nothing = subject->recalls_nothing || is_first;
        note_judged(subject, false);
    }
    return CDDP_OK;
}

/* Nobody hears what the run says. *is_known: it equals a run without a finding in everything that
** is judged. */
static cddp_status run_looking(cd_explore_subject *subject, cd_explore_world *world,
                               const cd_explorer *explorer, const cd_chooser *chooser,
                               bool *is_known, cddp_error *err)
{
    cd_recall_begin(subject->recall, CD_RECALL_LOOKS);
    CD_TRY(run_behind_prefix(subject, world, explorer, chooser, err));
    if (world->shares_nothing && !find_world(subject, explorer, CD_RECALL_JUDGES)->shares_nothing)
        subject->never_looks = true;
    *is_known = cd_explore_prefix_has_returned(world->prefix) &&
                cd_known_has(&subject->known, cd_explore_prefix_get_witness(world->prefix));
    subject->recalled += *is_known;
    if (!*is_known) subject->alike = 0;
    return CDDP_OK;
}

/* *verdict stays NULL where something was observed that nobody judged, or where there is something
** to report. */
static cddp_status run_repeating(cd_explore_subject *subject, cd_explore_world *world,
                                 const cd_explorer *explorer, const cd_chooser *chooser,
                                 cddp_verdict **verdict, cddp_error *err)
{
    cd_recall_begin(subject->recall, CD_RECALL_REPEATS);
    CD_TRY(run_behind_prefix(subject, world, explorer, chooser, err));
    CD_TRY(cd_explore_prefix_end(world->prefix, verdict, err));
    const bool has_missed = cd_recall_has_missed(subject->recall);
    const bool is_alone =
        world->shares_nothing && !find_world(subject, explorer, CD_RECALL_JUDGES)->shares_nothing;
    if (is_alone || world->is_blind) subject->recalls_nothing = true;
    if (!has_missed && is_clean(*verdict)) {
        subject->recalled++;
        subject->trial.recalled += subject->trial.recalled < UINT32_MAX;
        note_clean(subject, world, *verdict);
        return CDDP_OK;
    }
    note_miss(subject);
    cddp_verdict_destroy(*verdict);
    *verdict = NULL;
    return CDDP_OK;
}

/* The same schedule gave other values or events the second time: nothing is verified then. */
static void report_another_run(cd_explored *e)
{
    e->is_verified = false;
    e->outcome = cd_hash_mix(e->outcome, 1);
    snprintf(e->culprit, sizeof e->culprit, "%s",
             "the same schedule gave other values or events when it was run again: something "
             "outside of the "
             "world and of the seed decides them");
}

static bool is_looking(const cd_explore_subject *subject)
{
    return !subject->never_looks && subject->alike >= ALIKE_MIN;
}

/* A run without a referee, first. *is_done: that is enough, and *explored says how it ended. */
static cddp_status run_recalling(cd_explore_subject *subject, cd_explore_world *world,
                                 const cd_explorer *explorer, const cd_chooser *chooser,
                                 cd_explored *explored, bool *is_done, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    if (is_looking(subject)) {
        CD_TRY(run_looking(subject, world, explorer, chooser, is_done, err));
        explored->outcome = subject->clean_outcome;
        explored->is_verified = *is_done;
        explored->missing_faults = 0; /* it equals a clean run */
        explored->culprit[0] = explored->schedule[0] = '\0';
        return CDDP_OK;
    }
    CD_TRY(run_repeating(subject, world, explorer, chooser, &verdict, err));
    *is_done = verdict != NULL;
    if (*is_done) take_verdict(subject, verdict, world->compose, explored);
    cddp_verdict_destroy(verdict);
    return CDDP_OK;
}

static cddp_status run_sharing(cd_explore_subject *subject, const cd_explorer *explorer,
                               const cd_chooser *chooser, cd_explored *explored, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    const cd_recall_manner manner = is_looking(subject) ? CD_RECALL_LOOKS : CD_RECALL_REPEATS;
    cd_explore_world *judging = find_world(subject, explorer, CD_RECALL_JUDGES),
                     *recalling = find_world(subject, explorer, manner);
    uint64_t seen = 0;
    bool is_again = false, is_done = false;
    const bool may_recall =
        subject->recall != NULL && !subject->recalls_nothing && !subject->trial.is_over;
    if (may_recall) CD_TRY(make_prefix(subject, recalling, chooser, err));
    const bool was_judged = judging->shares_nothing || is_ready(judging, explorer);
    if (may_recall && was_judged && recalling->prefix != NULL) {
        const cd_chooser listening = cd_answers_listen(&subject->answers, chooser);
        CD_TRY(run_recalling(subject, recalling, explorer, &listening, explored, &is_done, err));
        if (is_done) return CDDP_OK;
        seen = cd_witness_get_digest(cd_explore_prefix_get_witness(recalling->prefix));
        is_again = true;
    }
    const cd_chooser again = cd_answers_repeat(&subject->answers);
    if (is_again && subject->answers.has_failed) return cd_fail_memory(err, "answers of a run");
    CD_TRY(run_judging(subject, judging, explorer, is_again ? &again : chooser, &verdict, err));
    take_verdict(subject, verdict, judging->compose, explored);
    cddp_verdict_destroy(verdict);
    const cd_witness *witness = cd_explore_prefix_get_witness(judging->prefix);
    if (is_again && cd_witness_get_digest(witness) != seen) report_another_run(explored);
    return CDDP_OK;
}

cddp_status cd_explore_run(cd_explore_subject *subject, cd_explorer *explorer,
                           const cd_chooser *chooser, cd_explored *explored, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    cd_explore_world *world = find_world(subject, explorer, CD_RECALL_JUDGES);
    /* The states of a search are made of events, from the first one on. */
    bool is_whole = cd_explorer_get_sink(explorer) != NULL || subject->watcher != NULL;
    if (!is_whole) CD_TRY(make_prefix(subject, world, chooser, err));
    if (!is_whole && world->prefix != NULL && !subject->from_scratch)
        return CD_PASS(run_sharing(subject, explorer, chooser, explored, err));
    forget(world);
    CD_TRY(run_whole(subject, world, explorer, chooser, &verdict, err));
    take_verdict(subject, verdict, world->compose, explored);
    cddp_verdict_destroy(verdict);
    return CDDP_OK;
}

cddp_status cd_explore_run_plain(const cd_explore_subject *subject, cd_explored *explored,
                                 bool *has_findings, cddp_error *err)
{
    cd_explore_subject plain = {.plan = subject->plan, .registry = subject->registry};
    cddp_status status = CDDP_OK;
    cddp_verdict *verdict = NULL;
    CD_TRY(open_world(&plain, &plain.worlds[0], NULL, err));
    const cddp_run_options run = run_options(&plain, &plain.worlds[0]);
    CD_TRY_OUT(cddp_run(&run, &verdict, err));
    take_verdict(&plain, verdict, plain.worlds[0].compose, explored);
    *has_findings = verdict->outcome == CDDP_OUTCOME_FINDINGS;
out:
    cddp_verdict_destroy(verdict);
    cd_explore_fini(&plain);
    return status;
}
