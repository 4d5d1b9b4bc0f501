/* SPDX-License-Identifier: Apache-2.0 */
/* What a report says about one run. */
#include "verify/report/result.h"

#include "core/base/text.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <stdio.h>
#include <string.h>

void cd_result_init(cd_result *result)
{
    *result = (cd_result){.source = "",
                          .title = "",
                          .verdict = "not run",
                          .summary = "",
                          .reason = "",
                          .details = "",
                          .backend = "",
                          .schedule = "",
                          .reproduce = "",
                          .shrink = "",
                          .unjudged = "",
                          .exit_code = CDDP_OUTCOME_INCONCLUSIVE};
    cd_arena_init(&result->arena, NULL, 16384);
}

void cd_result_fini(cd_result *result) { cd_arena_fini(&result->arena); }

const char *cd_result_copy(cd_result *result, const char *text)
{
    size_t bytes = text != NULL ? strlen(text) + 1 : 0;
    char *copy = bytes > 1 ? cd_arena_push(&result->arena, bytes) : NULL;
    if (copy == NULL) return "";
    memcpy(copy, text, bytes);
    cd_text_clean(copy);
    return copy;
}

/* A finding may come from a store, that is from anybody. */
void cd_result_take_finding(cd_result *result, cd_result_finding *to, const cddp_finding *finding)
{
    *to = (cd_result_finding){.finding = *finding};
    to->finding.check = cd_result_copy(result, finding->check);
    const size_t bytes = finding->rank_count * sizeof *finding->ranks;
    uint32_t *ranks = bytes > 0 ? cd_arena_push(&result->arena, bytes) : NULL;
    if (ranks != NULL) memcpy(ranks, finding->ranks, bytes);
    to->finding.ranks = ranks;
    to->finding.rank_count = ranks != NULL ? finding->rank_count : 0;
    cd_text_clean(to->finding.parameter);
    cd_text_clean(to->finding.title);
    cd_text_clean(to->finding.expected);
    cd_text_clean(to->finding.actual);
    cd_text_clean(to->finding.advice);
}

const char *cd_result_verdict_name(int exit_code)
{
    static const char *const names[] = {"verified", "findings", "error", "environment",
                                        "inconclusive"};
    return exit_code >= 0 && exit_code <= 4 ? names[exit_code] : "crashed";
}

void cd_result_set_failure(cd_result *result, int exit_code, const char *summary,
                           const char *details)
{
    result->exit_code = exit_code;
    result->verdict = cd_result_verdict_name(exit_code);
    result->summary = cd_result_copy(result, summary);
    result->reason = result->summary;
    result->details = cd_result_copy(result, details);
}

void cd_result_set_skipped(cd_result *result, const char *why)
{
    cd_result_set_failure(result, CDDP_OUTCOME_ENVIRONMENT, why, "");
    result->verdict = "skipped";
    result->skipped = true;
}

/* Zeroed room for count items; count 0 gives NULL, which is not a failure. */
static bool make(cd_result *result, void **items, size_t count, size_t bytes)
{
    *items = count > 0 ? cd_arena_push(&result->arena, count * bytes) : NULL;
    return count == 0 || *items != NULL;
}

static const char *end_name(cddp_rank_end end)
{
    static const char *const names[] = {"returned", "killed", "hung", "crashed", "interrupted"};
    return (unsigned)end < sizeof names / sizeof names[0] ? names[end] : "?";
}

static bool take_ranks(cd_result *result, const cddp_verdict *verdict)
{
    size_t count = 0;
    for (size_t i = 0; i < verdict->rank_count; i++)
        count += verdict->ranks[i].result.end != CDDP_RANK_RETURNED ||
                 verdict->ranks[i].result.status != CDDP_OK;
    if (!make(result, (void **)&result->ranks, count, sizeof *result->ranks)) return false;
    for (size_t i = 0; i < verdict->rank_count; i++) {
        const cddp_rank_result *r = &verdict->ranks[i].result;
        if (r->end == CDDP_RANK_RETURNED && r->status == CDDP_OK) continue;
        result->ranks[result->rank_count++] =
            (cd_result_rank){(uint32_t)i, end_name(r->end),
                             cd_result_copy(result, r->error.message)};
    }
    return true;
}

cddp_status cd_result_take_verdict(cd_result *result, const cddp_verdict *v, cddp_error *err)
{
    bool made =
        make(result, (void **)&result->findings, v->finding_count, sizeof *result->findings) &&
        make(result, (void **)&result->exercises, v->exercise_count, sizeof *result->exercises) &&
        make(result, (void **)&result->marks, v->mark_count, sizeof *result->marks) &&
        take_ranks(result, v);
    if (!made)
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the result of '%s'", result->source);
    result->judged = true;
    result->exit_code = (int)v->outcome;
    result->verdict = cd_result_verdict_name(result->exit_code);
    result->as_expected = v->as_expected;
    result->summary = cd_result_copy(result, v->summary);
    result->reason = cd_result_copy(result, v->reason);
    result->event_count = v->event_count;
    result->trace_digest = v->trace_digest;
    result->plan_digest = v->plan_digest;
    result->virtual_time_ns = v->time_ns;
    for (size_t i = 0; i < v->finding_count; i++)
        cd_result_take_finding(result, &result->findings[i], &v->findings[i]);
    for (size_t i = 0; i < v->exercise_count; i++)
        result->exercises[i] =
            (cddp_exercise){cd_result_copy(result, v->exercises[i].check),
                            cd_result_copy(result, v->exercises[i].how), v->exercises[i].count};
    for (size_t i = 0; i < v->mark_count; i++)
        result->marks[i] =
            (cddp_mark_count){cd_result_copy(result, v->marks[i].name), v->marks[i].count};
    result->finding_count = v->finding_count;
    result->exercise_count = v->exercise_count;
    result->mark_count = v->mark_count;
    return CDDP_OK;
}

/* ---- context ---- */

bool cd_result_wants_context(const cd_result *result)
{
    for (size_t i = 0; i < result->finding_count; i++)
        if (result->findings[i].context_count < result->findings[i].finding.event_count)
            return true;
    return false;
}

static bool rests_on(const cddp_finding *finding, const cddp_event *event)
{
    for (uint32_t i = 0; i < finding->event_count; i++)
        if (finding->events[i].rank == event->rank &&
            finding->events[i].sequence == event->sequence)
            return true;
    return false;
}

void cd_result_add_context(cd_result *result, const cddp_event *event)
{
    char text[1024];
    for (size_t i = 0; i < result->finding_count; i++) {
        cd_result_finding *f = &result->findings[i];
        if (f->context_count >= f->finding.event_count || !rests_on(&f->finding, event)) continue;
        if (f->context == NULL)
            f->context =
                cd_arena_push(&result->arena, CDDP_FINDING_EVENTS_MAX * sizeof *f->context);
        if (f->context == NULL) return;
        cd_event_print(event, text, sizeof text);
        f->context[f->context_count++] = cd_result_copy(result, text);
    }
}

/* ---- all together ---- */

int cd_results_exit_code(const cd_result *results, size_t count)
{
    static const int order[] = {CDDP_OUTCOME_VERIFIED, CDDP_OUTCOME_INCONCLUSIVE,
                                CDDP_OUTCOME_ENVIRONMENT, CDDP_OUTCOME_ERROR,
                                CDDP_OUTCOME_FINDINGS};
    int worst = 0;
    size_t skipped = 0;
    for (size_t i = 0; i < count; i++) {
        skipped += results[i].skipped;
        for (int k = 0; k < 5 && !results[i].skipped; k++)
            if (order[k] == results[i].exit_code && k > worst) worst = k;
    }
    return count > 0 && skipped == count ? CDDP_OUTCOME_ENVIRONMENT : order[worst];
}
