/* SPDX-License-Identifier: Apache-2.0 */
/* One run of an exploration. */
#include "cli/explore_run.h"

#include "cli/compose.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <stdio.h>
#include <string.h>

#define READY_CHOSEN 3 /* of schedule.ready */
#define DEVICE_SHAPE 2 /* of model.device */

/* ---- the plan ---- */

static cddp_status change(cddp_plan *plan, const char *key, const char *value, cd_text *overrides, cddp_error *err)
{
    CD_TRY(cddp_plan_set(plan, key, value, err));
    cd_text_printf(overrides, "%s=%s\n", key, value);
    return CDDP_OK;
}

cddp_status cd_explore_prepare(cddp_plan *plan, bool exhaustive, cd_text *overrides, cddp_error *err)
{
    if (plan->schedule.ready == 0) CD_TRY(change(plan, "schedule.ready", "chosen", overrides, err));
    if (!exhaustive || plan->fault_count > 0) return CDDP_OK; /* faults strike at times */
    if (plan->settings.train.forward_us > 0) CD_TRY(change(plan, "train.forward_us", "0", overrides, err));
    if (plan->settings.train.backward_us > 0) CD_TRY(change(plan, "train.backward_us", "0", overrides, err));
    return CDDP_OK;
}

const char *cd_explore_find_asymmetry(const cddp_plan *plan)
{
    if (plan->settings.model.device != DEVICE_SHAPE) return "they hold different values (device shape holds none)";
    if (plan->override_count > 0) return "keys differ by rank";
    if (plan->group_count > 0) return "groups name ranks";
    if (plan->fault_count > 0) return "faults strike a rank";
    if (plan->settings.data.inputs > 0 || plan->settings.join.enable) return "inputs end at different times";
    for (size_t i = 0; i < plan->when_count; i++)
        if (plan->whens[i].ranks.term_count > 0) return "a [[when]] names ranks";
    for (size_t i = 0; i < plan->collective_count; i++)
        if (plan->collectives[i].ranks.term_count > 0 || plan->collectives[i].op == 1)
            return "a [[collective]] names ranks";
    return NULL;
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

/* A sum over ranks of the sum of their findings. Interchangeable ranks are not told apart. */
static uint64_t findings_digest(const cddp_verdict *v, bool anonymous)
{
    uint64_t h = 0;
    for (int64_t rank = -1; rank < (int64_t)v->rank_count; rank++) {
        uint64_t of_rank = 0;
        for (size_t i = 0; i < v->finding_count; i++)
            if (v->findings[i].rank == rank) of_rank += cd_hash_mix(finding_digest(&v->findings[i]), 1);
        h += cd_hash_mix(of_rank, (uint64_t)(anonymous && rank > 0 ? 1 : rank));
    }
    return h;
}

static uint64_t outcome_digest(const cddp_verdict *v, bool anonymous)
{
    uint64_t h = cd_hash_mix((uint64_t)v->outcome, v->finding_count);
    return cd_hash_mix(h, findings_digest(v, anonymous));
}

static void tell_culprit(const cddp_verdict *v, cd_explored *e)
{
    snprintf(e->culprit, sizeof e->culprit, "%s", v->reason[0] != '\0' ? v->reason : v->summary);
    for (size_t i = v->rank_count; i-- > 0;)
        if (v->ranks[i].result.status != CDDP_OK)
            snprintf(e->culprit, sizeof e->culprit, "rank %zu: %s", i, v->ranks[i].result.error.message);
    if (v->finding_count > 0)
        snprintf(e->culprit, sizeof e->culprit, "%s  %s", v->findings[0].check, v->findings[0].title);
}

static void take_verdict(const cd_explore_subject *subject, const cddp_verdict *v, const cd_compose *compose,
                         cd_explored *e)
{
    e->outcome = outcome_digest(v, subject->anonymous);
    e->is_verified = v->outcome == CDDP_OUTCOME_VERIFIED;
    e->culprit[0] = e->schedule[0] = '\0';
    if (e->is_verified) return;
    tell_culprit(v, e);
    if (cd_compose_print_schedule(compose, e->schedule, sizeof e->schedule) >= sizeof e->schedule)
        e->schedule[0] = '\0';
}

static cddp_status open_world(cd_explore_subject *subject, const cd_chooser *chooser, cddp_error *err)
{
    const cd_compose_options options = {
        .plan = subject->plan, .registry = subject->registry, .level = CDDP_TRACE_DIGEST, .chooser = chooser};
    if (subject->compose != NULL)
        cd_compose_set_chooser(subject->compose, chooser);
    else
        CD_TRY(cd_compose_open(&options, &subject->compose, err));
    return CDDP_OK;
}

void cd_explore_fini(cd_explore_subject *subject)
{
    cd_compose_close(subject->compose);
    subject->compose = NULL;
}

cddp_status cd_explore_run(cd_explore_subject *subject, cd_explorer *explorer, const cd_chooser *chooser,
                           cd_explored *explored, cddp_error *err)
{
    cddp_verdict *verdict = NULL;
    const cddp_trace_sink *sinks[2], *others[2] = {cd_explorer_get_sink(explorer), subject->watcher};
    CD_TRY(open_world(subject, chooser, err));
    cddp_run_options run = cddp_run_options_default();
    cd_compose_fill(subject->compose, &run);
    run.registry = subject->registry;
    run.sinks = sinks;
    for (int i = 0; i < 2; i++)
        if (others[i] != NULL) sinks[run.sink_count++] = others[i];
    CD_TRY(cddp_run(&run, &verdict, err));
    take_verdict(subject, verdict, subject->compose, explored);
    cddp_verdict_destroy(verdict);
    return CDDP_OK;
}
