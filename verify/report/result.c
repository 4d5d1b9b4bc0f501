/* SPDX-License-Identifier: Apache-2.0 */
/* One run, as a report shows it. */
#include "verify/report/result.h"

#include "core/base/text.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"
#include "core/trace/rank_end.h"
#include "verify/hang/graph.h"

#include <stdio.h>
#include <string.h>

void cd_result_init(cd_result *result)
{
    *result = (cd_result){.verdict = {.size = sizeof result->verdict,
                                      .outcome = CDDP_OUTCOME_INCONCLUSIVE,
                                      .summary = "",
                                      .reason = "",
                                      .proven = "",
                                      .unjudged = ""},
                          .name = "not run",
                          .source = "",
                          .title = "",
                          .details = "",
                          .backend = "",
                          .schedule = "",
                          .reproduce = "",
                          .shrink = "",
                          .place = "",
                          .place_key = "",
                          .unjudged = ""};
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

/* Nouns that texts count, each without its s. */
static const char *const counted[] = {"attempt",    "bucket",  "byte",      "collective",
                                      "comparison", "element", "event",     "gradient",
                                      "group",      "header",  "layout",    "member",
                                      "message",    "number",  "operation", "parameter",
                                      "pass",       "rank",    "row",       "sample",
                                      "schedule",   "share",   "step",      "tensor",
                                      "time",       "value",   "variable"};

/* "rank 1 steps" and "bucket 1 events" name one thing by its number: what stands before tells. */
static bool is_number_of(const char *text, const char *one)
{
    const char *end = one, *begin;
    while (end > text && end[-1] == ' ') end--;
    begin = end;
    while (begin > text && begin[-1] >= 'a' && begin[-1] <= 'z') begin--;
    for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++)
        if (strlen(counted[i]) == (size_t)(end - begin) &&
            strncmp(counted[i], begin, (size_t)(end - begin)) == 0)
            return true;
    return false;
}

/* "1 elements" becomes "1 element"; "1 of 1 elements" stays. */
static void make_singular(char *text)
{
    for (char *at = text; (at = strstr(at, "1 ")) != NULL; at += 2) {
        const bool is_alone = at == text || at[-1] == ' ' || at[-1] == '(';
        const bool is_part = at - text >= 3 && strncmp(at - 3, "of ", 3) == 0;
        if (!is_alone || is_part || is_number_of(text, at)) continue;
        for (size_t i = 0; i < sizeof counted / sizeof counted[0]; i++) {
            const size_t length = strlen(counted[i]);
            char *s = at + 2 + length;
            const bool is_plural = strncmp(at + 2, counted[i], length) == 0 && s[0] == 's' &&
                                   strchr(" ,.;:)", s[1]) != NULL;
            if (is_plural) memmove(s, s + 1, strlen(s));
        }
    }
}

static const char *copy_words(cd_result *result, const char *text)
{
    char *copy = (char *)(uintptr_t)cd_result_copy(result, text);
    if (copy[0] != '\0') make_singular(copy);
    return copy;
}

/* A finding may come from a store, that is from anybody. */
cddp_finding cd_result_copy_finding(cd_result *result, const cddp_finding *finding)
{
    cddp_finding copy = *finding;
    copy.check = cd_result_copy(result, finding->check);
    const size_t bytes = finding->rank_count * sizeof *finding->ranks;
    uint32_t *ranks = bytes > 0 ? cd_arena_push(&result->arena, bytes) : NULL;
    if (ranks != NULL) memcpy(ranks, finding->ranks, bytes);
    copy.ranks = ranks;
    copy.rank_count = ranks != NULL ? finding->rank_count : 0;
    copy.name = finding->name != NULL ? cd_result_copy(result, finding->name) : NULL;
    copy.wrapper = finding->wrapper != NULL ? cd_result_copy(result, finding->wrapper) : NULL;
    cd_text_clean(copy.parameter);
    cd_text_clean(copy.title);
    make_singular(copy.title);
    cd_text_clean(copy.expected);
    make_singular(copy.expected);
    cd_text_clean(copy.actual);
    make_singular(copy.actual);
    cd_text_clean(copy.advice);
    make_singular(copy.advice);
    return copy;
}

/* With the gap behind it; 0: there is none. */
static size_t differs_length(const cd_result *result, size_t index)
{
    const char *advice = result->verdict.findings[index].advice;
    const size_t path = strspn(advice, "abcdefghijklmnopqrstuvwxyz0123456789_.[]");
    const char *gap = strstr(advice, "; ");
    const size_t length = gap != NULL ? (size_t)(gap - advice) : strlen(advice);
    const char *on = strstr(advice, " on rank");
    const bool names_ranks = on != NULL && on < advice + length;
    if (index > 0 || memchr(advice, '.', path) == NULL || !names_ranks) return 0;
    if (strncmp(advice + path, " is ", 4) != 0) return 0;
    return gap != NULL ? length + 2 : length;
}

void cd_result_print_differs(const cd_result *result, char *text, size_t text_bytes)
{
    const size_t length = result->verdict.finding_count > 0 ? differs_length(result, 0) : 0;
    snprintf(text, text_bytes, "%.*s", (int)length,
             length > 0 ? result->verdict.findings[0].advice : "");
    const size_t end = strlen(text);
    if (end > 2 && strcmp(text + end - 2, "; ") == 0) text[end - 2] = '\0';
}

const char *cd_result_get_advice(const cd_result *result, size_t index)
{
    return result->verdict.findings[index].advice + differs_length(result, index);
}

const char *cd_finding_parameter(const cddp_finding *finding)
{
    return finding->name != NULL ? finding->name : finding->parameter;
}

const char *cd_result_verdict_name(int exit_code)
{
    static const char *const names[] = {"verified", "findings", "error", "environment",
                                        "inconclusive"};
    return exit_code >= 0 && exit_code <= 4 ? names[exit_code] : "crashed";
}

const char *cd_result_recorded_name(const cd_result *result)
{
    const cddp_verdict *v = &result->verdict;
    const cddp_wait *wait = cd_hang_main(v);
    if (v->outcome != CDDP_OUTCOME_VERIFIED || !v->as_expected) return result->name;
    if (wait != NULL && cd_hang_is_endless(wait)) return CD_RESULT_AS_EXPECTED "deadlock";
    return v->finding_count > 0 ? CD_RESULT_AS_EXPECTED "findings" : CD_RESULT_AS_EXPECTED "error";
}

void cd_result_set_failure(cd_result *result, int exit_code, const char *summary,
                           const char *details)
{
    result->verdict.outcome = (cddp_outcome)exit_code;
    result->name = cd_result_verdict_name(exit_code);
    result->verdict.summary = cd_result_copy(result, summary);
    result->verdict.reason = result->verdict.summary;
    result->details = cd_result_copy(result, details);
}

void cd_result_set_skipped(cd_result *result, const char *why)
{
    cd_result_set_failure(result, CDDP_OUTCOME_ENVIRONMENT, why, "");
    result->name = "skipped";
    result->skipped = true;
}

/* Zeroed room for count items; count 0 gives NULL, which is not a failure. */
static bool make(cd_result *result, void **items, size_t count, size_t bytes)
{
    *items = count > 0 ? cd_arena_push(&result->arena, count * bytes) : NULL;
    return count == 0 || *items != NULL;
}

const char *cd_result_end_name(cddp_rank_end end)
{
    const char *word = cddp_event_word(CDDP_FIELD_end, end);
    return word != NULL ? word : "?";
}

bool cd_result_is_clean(const cddp_verdict_rank *rank)
{
    return rank->result.end == CDDP_RANK_RETURNED && rank->result.status == CDDP_OK;
}

/* A signal that programs do not send themselves, as Linux numbers them. */
static bool is_from_outside(const cddp_rank_result *r)
{
    enum { HANG_UP = 1, INTERRUPT = 2, KILL = 9, TERMINATE = 15 };
    const int32_t number = r->detail;
    if (r->end != CDDP_RANK_KILLED) return false;
    return number == HANG_UP || number == INTERRUPT || number == KILL || number == TERMINATE ||
           number == CD_RANK_STOPPED || strstr(r->error.message, "its launcher was killed") != NULL;
}

bool cd_result_was_struck(const cd_result *result, char *text, size_t text_bytes)
{
    const char *last = strrchr(result->backend, ':');
    char words[64];
    /* There a scenario, or the backend itself, plants what strikes. */
    if (strstr(result->backend, "fault:") != NULL ||
        strcmp(last != NULL ? last + 1 : result->backend, "sim") == 0)
        return false;
    for (size_t i = 0; i < result->verdict.rank_count; i++) {
        const cddp_rank_result *r = &result->verdict.ranks[i].result;
        if (!is_from_outside(r)) continue;
        cd_rank_end_print(r, words, sizeof words);
        snprintf(text, text_bytes, "rank %zu %s, by somebody outside", i, words);
        return true;
    }
    return false;
}

const char *cd_result_get_reproduction(const cd_result *result)
{
    char words[128];
    return cd_result_was_struck(result, words, sizeof words) ? "" : result->reproduce;
}

cddp_status cd_result_take_waits(cd_result *result, const cddp_verdict *v, cddp_error *err)
{
    cddp_wait *waits = NULL;
    if (!make(result, (void **)&waits, v->wait_count, sizeof *waits))
        return cd_fail_memory(err, "the result of '%s'", result->source);
    for (size_t i = 0; i < v->wait_count; i++) {
        uint32_t *peers = NULL;
        waits[i] = v->waits[i];
        waits[i].name = cd_result_copy(result, waits[i].name);
        if (!make(result, (void **)&peers, waits[i].peer_count, sizeof *peers))
            return cd_fail_memory(err, "the result of '%s'", result->source);
        if (peers != NULL) memcpy(peers, waits[i].peers, waits[i].peer_count * sizeof *peers);
        waits[i].peers = peers;
    }
    result->verdict.waits = waits;
    result->verdict.wait_count = v->wait_count;
    return CDDP_OK;
}

/* A copy of the verdict's arrays, with clean texts. */
cddp_status cd_result_take_verdict(cd_result *result, const cddp_verdict *v, cddp_error *err)
{
    cddp_finding *findings = NULL;
    cddp_exercise *exercises = NULL;
    cddp_mark_count *marks = NULL;
    cddp_verdict_rank *ranks = NULL;
    const bool made = make(result, (void **)&findings, v->finding_count, sizeof *findings) &&
                      make(result, (void **)&exercises, v->exercise_count, sizeof *exercises) &&
                      make(result, (void **)&marks, v->mark_count, sizeof *marks) &&
                      make(result, (void **)&ranks, v->rank_count, sizeof *ranks);
    if (!made) return cd_fail_memory(err, "the result of '%s'", result->source);
    for (size_t i = 0; i < v->finding_count; i++)
        findings[i] = cd_result_copy_finding(result, &v->findings[i]);
    for (size_t i = 0; i < v->exercise_count; i++)
        exercises[i] =
            (cddp_exercise){cd_result_copy(result, v->exercises[i].check),
                            copy_words(result, v->exercises[i].how), v->exercises[i].count};
    for (size_t i = 0; i < v->mark_count; i++)
        marks[i] = (cddp_mark_count){cd_result_copy(result, v->marks[i].name), v->marks[i].count};
    for (size_t i = 0; i < v->rank_count; i++) {
        ranks[i] = v->ranks[i];
        cd_text_clean(ranks[i].result.error.message);
    }
    result->judged = true;
    result->name = cd_result_verdict_name((int)v->outcome);
    result->verdict = *v;
    result->verdict.memory = NULL; /* the arena */
    result->verdict.summary = copy_words(result, v->summary);
    result->verdict.reason = copy_words(result, v->reason);
    result->verdict.proven = copy_words(result, v->proven);
    result->verdict.unjudged = copy_words(result, v->unjudged);
    result->verdict.findings = findings;
    result->verdict.exercises = exercises;
    result->verdict.marks = marks;
    result->verdict.ranks = ranks;
    result->contexts = NULL;
    CD_TRY(cd_result_take_waits(result, v, err));
    return CDDP_OK;
}

/* ---- context ---- */

cd_result_context cd_result_get_context(const cd_result *result, size_t index)
{
    const cd_result_context none = {NULL, 0};
    return result->contexts != NULL ? result->contexts[index] : none;
}

bool cd_result_wants_context(const cd_result *result)
{
    for (size_t i = 0; i < result->verdict.finding_count; i++)
        if (cd_result_get_context(result, i).count < result->verdict.findings[i].event_count)
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

static void add_line(cd_result *result, cd_result_context *context, const cddp_event *event)
{
    char text[1024];
    if (context->lines == NULL)
        context->lines =
            cd_arena_push(&result->arena, CDDP_FINDING_EVENTS_MAX * sizeof *context->lines);
    if (context->lines == NULL) return;
    /* Whoever reports the end of a rank that was killed does not know its step. */
    cddp_event e = *event;
    if (e.kind == CDDP_EV_rank_end && e.rank < result->verdict.rank_count && e.step == 0)
        e.step = result->verdict.ranks[e.rank].step;
    cd_event_print(&e, text, sizeof text);
    context->lines[context->count++] = cd_result_copy(result, text);
}

void cd_result_add_context(cd_result *result, const cddp_event *event)
{
    const size_t count = result->verdict.finding_count;
    if (result->contexts == NULL && count > 0)
        result->contexts = cd_arena_push(&result->arena, count * sizeof *result->contexts);
    if (result->contexts == NULL) return;
    for (size_t i = 0; i < count; i++) {
        const cddp_finding *f = &result->verdict.findings[i];
        if (result->contexts[i].count < f->event_count && rests_on(f, event))
            add_line(result, &result->contexts[i], event);
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
            if (order[k] == (int)results[i].verdict.outcome && k > worst) worst = k;
    }
    return count > 0 && skipped == count ? CDDP_OUTCOME_ENVIRONMENT : order[worst];
}
