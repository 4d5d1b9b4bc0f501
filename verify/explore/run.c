/* SPDX-License-Identifier: Apache-2.0 */
/* One run of an exploration. */
#include "verify/explore/run.h"

#include "verify/worlds/compose.h"
#include "verify/explore/prefix.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/plan/plan.h"

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
    if (plan->schedule.ready == CDDP_READY_ENGINE)
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

static void report_culprit(const cddp_verdict *v, cd_explored *e)
{
    snprintf(e->culprit, sizeof e->culprit, "%s", v->reason[0] != '\0' ? v->reason : v->summary);
    for (size_t i = v->rank_count; i-- > 0;)
        if (v->ranks[i].result.status != CDDP_OK)
            snprintf(e->culprit, sizeof e->culprit, "rank %zu: %s", i,
                     v->ranks[i].result.error.message);
    if (v->finding_count > 0)
        snprintf(e->culprit, sizeof e->culprit, "%s  %s", v->findings[0].check,
                 v->findings[0].title);
}

static void take_verdict(const cd_explore_subject *subject, const cddp_verdict *v,
                         const cd_compose *compose, cd_explored *e)
{
    e->outcome = outcome_digest(v, subject->anonymous);
    e->is_verified = v->outcome == CDDP_OUTCOME_VERIFIED;
    e->culprit[0] = e->schedule[0] = '\0';
    if (e->is_verified) return;
    report_culprit(v, e);
    if (cd_compose_print_schedule(compose, e->schedule, sizeof e->schedule) >= sizeof e->schedule)
        e->schedule[0] = '\0';
}

/* ---- the world ---- */

static cddp_status open_world(cd_explore_subject *subject, const cd_chooser *chooser,
                              cddp_error *err)
{
    const cd_compose_options options = {.plan = subject->plan,
                                        .registry = subject->registry,
                                        .level = CDDP_TRACE_DIGEST,
                                        .chooser = chooser};
    if (subject->compose != NULL)
        cd_compose_set_chooser(subject->compose, chooser);
    else
        CD_TRY(cd_compose_open(&options, &subject->compose, err));
    return CDDP_OK;
}

void cd_explore_fini(cd_explore_subject *subject)
{
    cd_compose_close(subject->compose);
    cd_explore_prefix_destroy(subject->prefix);
    subject->compose = NULL;
    subject->prefix = NULL;
}

static cddp_run_options run_options(const cd_explore_subject *subject)
{
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(subject->compose, &run);
    run.registry = subject->registry;
    return run;
}

/* ---- a run from its beginning, by itself ---- */

static cddp_status run_whole(cd_explore_subject *subject, cd_explorer *explorer,
                             const cd_chooser *chooser, cddp_verdict **verdict, cddp_error *err)
{
    const cddp_trace_sink *sinks[2],
        *others[2] = {cd_explorer_get_sink(explorer), subject->watcher};
    CD_TRY(open_world(subject, chooser, err));
    cddp_run_options run = run_options(subject);
    run.sinks = sinks;
    for (int i = 0; i < 2; i++)
        if (others[i] != NULL) sinks[run.sink_count++] = others[i];
    return CD_PASS(cddp_run(&run, verdict, err));
}

/* ---- runs that share their beginning ---- */

typedef struct keeper {
    cd_explore_subject *subject;
    const cd_explorer *explorer;
    const cd_chooser *inner;
    bool is_behind; /* the moment has passed */
} keeper;

static uint32_t choose_and_keep(void *self, const cddp_choice *choice, cd_place place)
{
    keeper *k = self;
    if (!k->is_behind && cd_explorer_varies(k->explorer, choice)) {
        k->is_behind = true;
        cd_explore_prefix_keep(k->subject->prefix, cd_compose_get_sim(k->subject->compose));
    }
    return k->inner->choose(k->inner->self, choice, place);
}

static cddp_status finish_inner(void *self, cd_place end, cddp_error *err)
{
    const keeper *k = self;
    return k->inner->finish != NULL ? k->inner->finish(k->inner->self, end, err) : CDDP_OK;
}

/* Forgets the beginning, and the world, which may hold what lies in the memory of the beginning. */
static void forget(cd_explore_subject *subject)
{
    if (subject->prefix == NULL || !cd_explore_prefix_is_used(subject->prefix)) return;
    cd_compose_close(subject->compose);
    subject->compose = NULL;
    cd_explore_prefix_clear(subject->prefix);
}

static cddp_status start(cd_explore_subject *subject, const cd_explorer *explorer,
                         const cd_chooser *inner, cddp_error *err)
{
    keeper k = {.subject = subject, .explorer = explorer, .inner = inner};
    const cd_chooser chooser = {.self = &k,
                                .name = inner->name,
                                .choose = choose_and_keep,
                                .finish = finish_inner};
    forget(subject);
    CD_TRY(open_world(subject, &chooser, err));
    subject->prefix_kind = cd_explorer_get_kind(explorer);
    const cddp_run_options run = run_options(subject);
    return CD_PASS(cd_explore_prefix_start(subject->prefix, &run, err));
}

static cddp_status run_behind_prefix(cd_explore_subject *subject, const cd_explorer *explorer,
                                     const cd_chooser *chooser, cddp_verdict **verdict,
                                     cddp_error *err)
{
    if (cd_explore_prefix_is_kept(subject->prefix) &&
        subject->prefix_kind == cd_explorer_get_kind(explorer)) {
        cd_compose_set_chooser(subject->compose, chooser);
        CD_TRY(
            cd_explore_prefix_resume(subject->prefix, cd_compose_get_sim(subject->compose), err));
    } else {
        CD_TRY(start(subject, explorer, chooser, err));
        /* Nothing to vary, or a world that cannot be copied there: the next one will be no
        ** other. */
        subject->from_scratch = !cd_explore_prefix_is_kept(subject->prefix);
    }
    return CD_PASS(cd_explore_prefix_end(subject->prefix, verdict, err));
}

/* A plan that contradicts itself is not run at all; a world of processes is not ours to put
** back. */
static cddp_status make_prefix(cd_explore_subject *subject, const cd_chooser *chooser,
                               cddp_error *err)
{
    if (subject->prefix != NULL || subject->from_scratch) return CDDP_OK;
    CD_TRY(open_world(subject, chooser, err));
    if (cddp_plan_check(subject->plan, NULL) == CDDP_OK &&
        cd_compose_get_sim(subject->compose) != NULL)
        CD_TRY(cd_explore_prefix_create(&subject->prefix, err));
    subject->from_scratch = subject->prefix == NULL;
    return CDDP_OK;
}

cddp_status cd_explore_run(cd_explore_subject *subject, cd_explorer *explorer,
                           const cd_chooser *chooser, cd_explored *explored, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    /* The states of a search are made of events, from the first one on. */
    bool is_whole = cd_explorer_get_sink(explorer) != NULL || subject->watcher != NULL;
    if (!is_whole) CD_TRY(make_prefix(subject, chooser, err));
    if (is_whole || subject->from_scratch) {
        forget(subject);
        CD_TRY(run_whole(subject, explorer, chooser, &verdict, err));
    } else {
        CD_TRY(run_behind_prefix(subject, explorer, chooser, &verdict, err));
    }
    take_verdict(subject, verdict, subject->compose, explored);
    cddp_verdict_destroy(verdict);
    return CDDP_OK;
}

cddp_status cd_explore_run_plain(const cd_explore_subject *subject, cd_explored *explored,
                                 bool *has_findings, cddp_error *err)
{
    cd_explore_subject plain = {.plan = subject->plan, .registry = subject->registry};
    cddp_status status = CDDP_OK;
    cddp_verdict *verdict = NULL;
    CD_TRY(open_world(&plain, NULL, err));
    const cddp_run_options run = run_options(&plain);
    CD_TRY_OUT(cddp_run(&run, &verdict, err));
    take_verdict(&plain, verdict, plain.compose, explored);
    *has_findings = verdict->outcome == CDDP_OUTCOME_FINDINGS;
out:
    cddp_verdict_destroy(verdict);
    cd_explore_fini(&plain);
    return status;
}
