/* SPDX-License-Identifier: Apache-2.0 */
/* Repeating a run under other settings, and comparing how both end.
**
** Each text of expect.same_with is one repetition: settings as for --set, separated by spaces.
** Repetitions are judged like any run, and neither recorded nor logged: the run that the scenario
** describes is the one that is kept.
*/
#include "cli/variants.h"

#include "core/base/error.h"
#include "core/train/trainer.h"

#include <stdio.h>
#include <string.h>

static void keep(void *self, const cddp_event *event)
{
    cd_finals *f = self;
    const cddp_event_value *v = &event->as.value;
    if (event->kind == CDDP_EV_value && event->rank == 0 && v->what == 0 &&
        v->moment == CDDP_MOMENT_END)
        f->memory.sink.event(&f->memory, event);
}

void cd_finals_init(cd_finals *finals)
{
    *finals = (cd_finals){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, finals, keep, NULL}};
    cd_memory_sink_init(&finals->memory, NULL);
}

void cd_finals_fini(cd_finals *finals) { cd_memory_sink_fini(&finals->memory); }

static void set_finding(cd_result *result, const char *summary)
{
    cd_result_set_failure(result, CD_EXIT_FINDINGS, summary, "");
    result->verdict.reason = "expect.same_with";
    result->verdict.as_expected = false;
}

/* True when both ends have the same parameters with the same digests. */
static bool compare(const cd_finals *one, const cd_finals *other, const char *settings,
                    cd_result *result)
{
    char text[400];
    size_t differ = 0;
    cddp_event first = {.text = NULL};
    if (one->memory.count + other->memory.count == 0) {
        snprintf(text, sizeof text, "with %.200s: no values to compare at this level", settings);
        cd_result_set_failure(result, CD_EXIT_INCONCLUSIVE, text, "");
        result->verdict.reason = "expect.same_with";
        return false;
    }
    if (one->memory.count != other->memory.count || one->memory.count == 0) {
        snprintf(text, sizeof text, "with %.200s rank 0 ends with %zu parameters, without with %zu",
                 settings, other->memory.count, one->memory.count);
        set_finding(result, text);
        return false;
    }
    for (size_t i = 0; i < one->memory.count; i++) {
        cddp_event a = cd_memory_sink_get(&one->memory, i),
                   b = cd_memory_sink_get(&other->memory, i);
        if (a.as.value.digest == b.as.value.digest && a.as.value.id == b.as.value.id) continue;
        if (differ++ == 0) first = a;
    }
    if (differ == 0) return true;
    snprintf(text, sizeof text,
             "with %.200s parameter %.80s ends with other bits (%zu of %zu parameters)", settings,
             first.text != NULL ? first.text : "?", differ, one->memory.count);
    set_finding(result, text);
    return false;
}

/* "a=1 b=2" as lines behind those of the command line. */
static void put_settings(cd_text *lines, const char *overrides, const char *settings)
{
    cd_text_push(lines, overrides);
    for (const char *at = settings; *at != '\0';) {
        size_t length = strcspn(at, " ");
        if (length > 0) cd_text_printf(lines, "%.*s\n", (int)length, at);
        at += length + (at[length] == ' ');
    }
}

/* *same: go on with the next one. */
static cddp_status judge_one(const cd_session *session, const cddp_plan *plan, size_t index,
                             const cd_finals *finals, cd_result *result, bool *same,
                             cddp_error *err)
{
    const char *settings = plan->expect.same_with.items[index];
    cddp_status status = CDDP_OK;
    cd_session other = {.cli = session->cli,
                        .level = session->level,
                        .run = session->run,
                        .repetition = index + 1};
    cddp_plan *changed = NULL;
    cd_result ended;
    cd_finals ends;
    cd_text lines, summary;
    cd_text_init(&lines, false);
    cd_text_init(&summary, false);
    cd_result_init(&ended);
    cd_finals_init(&ends);
    put_settings(&lines, session->overrides, settings);
    other.overrides = cd_text_get(&lines);
    other.watcher = &ends.sink;
    ended.source = result->source;
    *same = false;
    cd_session_read_plan(&other, result->source, plan->text, &changed, &ended);
    if (changed != NULL) {
        changed->expect.same_with.count = 0; /* one repetition, not a tree of them */
        CD_TRY_OUT(cd_session_run_plan(&other, changed, &ended, err));
    }
    if (ended.verdict.outcome == CDDP_OUTCOME_VERIFIED) {
        *same = compare(finals, &ends, settings, result);
        goto out;
    }
    const bool is_listed = ended.details[0] != '\0';
    cd_text_printf(&summary, "with %s:%s%s", settings, is_listed ? "\n" : " ",
                   is_listed ? ended.details : ended.verdict.summary);
    /* of findings the summary is the first one */
    if (!is_listed && ended.verdict.outcome == CDDP_OUTCOME_INCONCLUSIVE)
        cd_text_printf(&summary, ": %s", ended.verdict.reason);
    cd_result_set_failure(result, ended.verdict.outcome, cd_text_get(&summary),
                          is_listed ? cd_text_get(&summary) : "");
    result->verdict.as_expected = false;
out:
    cddp_plan_destroy(changed);
    cd_finals_fini(&ends);
    cd_result_fini(&ended);
    cd_text_fini(&lines);
    cd_text_fini(&summary);
    return status;
}

cddp_status cd_variants_be_rank(const cd_session *session, const cddp_plan *plan, cd_result *result,
                                cddp_error *err)
{
    bool same = true;
    cd_finals none;
    uint64_t repetition = session->cli->origin.repetition;
    if (repetition > plan->expect.same_with.count)
        return cd_fail(err, CDDP_E_STATE, "the scenario has no repetition %llu",
                       (unsigned long long)repetition);
    cd_finals_init(&none);
    cddp_status status =
        judge_one(session, plan, (size_t)repetition - 1, &none, result, &same, err);
    cd_finals_fini(&none);
    return status;
}

cddp_status cd_variants_judge(const cd_session *session, const cddp_plan *plan,
                              const cd_finals *finals, cd_result *result, cddp_error *err)
{
    bool same = true;
    for (size_t i = 0; same && i < plan->expect.same_with.count &&
                       result->verdict.outcome == CDDP_OUTCOME_VERIFIED;
         i++) {
        CD_TRY(judge_one(session, plan, i, finals, result, &same, err));
        result->variant_count += same;
    }
    return CDDP_OK;
}
