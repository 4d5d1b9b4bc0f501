/* SPDX-License-Identifier: Apache-2.0 */
/* A whole world of a proof, recorded and judged. See world.h. */
#include "verify/prove/world.h"

#include "verify/worlds/compose.h"
#include "core/base/error.h"
#include "core/base/prng.h"

#include <stdio.h>
#include <stdlib.h>

static uint32_t choose(void *self, const cddp_choice *choice, cd_place place)
{
    (void)place;
    cd_window_chooser *w = self;
    if (choice->kind != CDDP_CHOICE_READY || choice->rank >= w->rank_count) return 0;
    const uint32_t r = choice->rank;
    if (w->left[r] <= 2) { /* options fall by one inside a window, down to two */
        double sets = 1;
        for (uint32_t k = 0; k < choice->option_count; k++) sets *= 2;
        w->states += sets;
        w->windows[r]++;
    }
    w->left[r] = choice->option_count;
    w->leaves *= (double)choice->option_count;
    if (w->random != NULL) return (uint32_t)cd_prng_below(w->random, choice->option_count);
    if (w->choice == NULL || r != w->rank || w->windows[r] - 1 != w->choice->window) return 0;
    const uint32_t k = w->choice->digit_count - choice->option_count;
    return k < w->choice->digit_count && w->choice->digits[k] < choice->option_count
               ? w->choice->digits[k]
               : 0;
}

static void note_culprit(cd_world_run *run, const cddp_verdict *v)
{
    snprintf(run->failed.culprit, sizeof run->failed.culprit, "%s",
             v->reason[0] != '\0' ? v->reason : v->summary);
    for (size_t i = v->rank_count; i-- > 0;)
        if (v->ranks[i].result.status != CDDP_OK)
            snprintf(run->failed.culprit, sizeof run->failed.culprit, "rank %zu: %s", i,
                     v->ranks[i].result.error.message);
    if (v->finding_count > 0)
        snprintf(run->failed.culprit, sizeof run->failed.culprit, "%s  %s", v->findings[0].check,
                 v->findings[0].title);
}

/* What the run came to: verified; a finding, or a rank that failed; or no judgement. */
static cd_world_end end_of(const cddp_verdict *v)
{
    bool failed = v->finding_count > 0;
    for (size_t i = 0; i < v->rank_count; i++)
        failed = failed || v->ranks[i].result.status != CDDP_OK ||
                 v->ranks[i].result.end != CDDP_RANK_RETURNED;
    return v->outcome == CDDP_OUTCOME_VERIFIED ? CD_WORLD_VERIFIED
           : failed                            ? CD_WORLD_FAILED
                                               : CD_WORLD_UNJUDGED;
}

cddp_status cd_world_run_record(const cd_prove_options *o, const cddp_plan *plan, cd_world_run *run,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_compose *compose = NULL;
    cddp_verdict *verdict = NULL;
    run->chooser.leaves = 1;
    run->chooser.windows = calloc(plan->world.size, sizeof *run->chooser.windows);
    run->chooser.left = calloc(plan->world.size, sizeof *run->chooser.left);
    if (run->chooser.windows == NULL || run->chooser.left == NULL)
        return cd_fail_memory(err, "a world of %llu ranks", (unsigned long long)plan->world.size);
    run->chooser.rank_count = (uint32_t)plan->world.size;
    run->chooser.chooser = (cd_chooser){.self = &run->chooser, .name = "prove", .choose = choose};
    cd_compose_options composing = {.plan = plan,
                                    .registry = o->registry,
                                    .level = CDDP_TRACE_DIGEST,
                                    .chooser = &run->chooser.chooser};
    CD_TRY(cd_compose_open(&composing, &compose, err));
    cddp_run_options running = cddp_run_options_default();
    cd_compose_fill(compose, &running);
    CD_TRY_OUT(cd_call_tap_init(&run->tap, running.backend, (uint32_t)plan->world.size, err));
    running.backend = &run->tap.table;
    running.registry = o->registry;
    CD_TRY_OUT(cddp_run(&running, &verdict, err));
    run->end = end_of(verdict);
    /* the plan's fault, on every rank and in every order */
    for (size_t i = 0; i < verdict->rank_count; i++) {
        const cddp_rank_result *r = &verdict->ranks[i].result;
        if (r->status == CDDP_E_CONFIG || r->status == CDDP_E_UNSUPPORTED)
            CD_TRY_OUT(cd_fail(err, r->status, "%s", r->error.message));
    }
    if (verdict->outcome == CDDP_OUTCOME_ERROR && run->end == CD_WORLD_UNJUDGED)
        CD_TRY_OUT(cd_fail(err, CDDP_E_CONFIG, "%s",
                           verdict->reason[0] != '\0' ? verdict->reason : verdict->summary));
    if (cd_compose_print_schedule(compose, run->failed.schedule, sizeof run->failed.schedule) >=
        sizeof run->failed.schedule)
        run->failed.schedule[0] = '\0';
    if (run->end != CD_WORLD_VERIFIED) note_culprit(run, verdict);
out:
    cddp_verdict_destroy(verdict);
    cd_compose_close(compose);
    return status;
}

void cd_world_run_fini(cd_world_run *run)
{
    cd_call_tap_fini(&run->tap);
    free(run->chooser.windows);
    free(run->chooser.left);
    run->chooser.windows = run->chooser.left = NULL;
}
