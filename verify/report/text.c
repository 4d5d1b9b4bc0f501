/* SPDX-License-Identifier: Apache-2.0 */
/* The report for people. Verdict first, then the culprit with both sides shown, the events it rests
** on, and the line that reproduces it. What followed from the culprit is counted, and shown in full
** with --verbose. */
#include "verify/report/report.h"

#include "core/base/alloc.h"
#include "core/base/rank_list.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TEXT_WIDTH 110
#define INDENT 12
#define RANKS_SHOWN 4

static cd_style verdict_style(int exit_code)
{
    return exit_code == CDDP_OUTCOME_VERIFIED       ? CD_STYLE_GREEN
           : exit_code == CDDP_OUTCOME_INCONCLUSIVE ? CD_STYLE_YELLOW
                                                    : CD_STYLE_RED;
}

/* "  expected  all-reduce of 12 f32" */
static void put_line(cd_text *text, const char *label, const char *words)
{
    if (words == NULL || words[0] == '\0') return;
    cd_text_push(text, "  ");
    cd_text_style(text, CD_STYLE_CYAN, "%-*s", INDENT - 2, label);
    cd_text_wrap(text, words, INDENT, TEXT_WIDTH);
}

/* A line that is meant for a shell is never folded. */
static void put_pasteable(cd_text *text, const char *label, const char *command)
{
    if (command[0] == '\0') return;
    cd_text_push(text, "  ");
    cd_text_style(text, CD_STYLE_CYAN, "%-*s", INDENT - 2, label);
    cd_text_printf(text, "%s\n", command);
}

static void put_place(cd_text *text, const cddp_finding *f)
{
    cd_text place;
    cd_text_init(&place, false);
    cd_text_printf(&place, "step %" PRIu32, f->step);
    if (f->micro_step != 0) cd_text_printf(&place, ", micro-step %" PRIu32, f->micro_step);
    if (f->rank >= 0) cd_text_printf(&place, ", rank %" PRId32, f->rank);
    if (f->peer >= 0) cd_text_printf(&place, " against rank %" PRId32, f->peer);
    if (f->bucket >= 0) cd_text_printf(&place, ", bucket %" PRId32, f->bucket);
    if (f->parameter[0] != '\0') /* One without a name is called "parameter 3". */
        cd_text_printf(&place, ", %s%s",
                       strncmp(f->parameter, "parameter ", 10) == 0 ? "" : "parameter ",
                       cd_finding_parameter(f));
    else if (f->param >= 0)
        cd_text_printf(&place, ", parameter %" PRId32, f->param);
    put_line(text, "where", cd_text_get(&place));
    cd_text_fini(&place);
}

/* What mostly is the cause, of a hang as well as of a finding. */
static void put_differs(cd_text *text, const cd_result *result)
{
    char words[CD_DIFFERS_BYTES];
    cd_result_print_differs(result, words, sizeof words);
    put_line(text, "differs", words);
}

static void put_finding(cd_text *text, const cd_result *result, size_t index)
{
    const cddp_finding *f = &result->verdict.findings[index];
    const cd_result_context context = cd_result_get_context(result, index);
    cd_text_push(text, "  ");
    cd_text_style(text, CD_STYLE_RED, "%s", f->check);
    cd_text_push(text, "  ");
    cd_text_style(text, index == 0 ? CD_STYLE_BOLD : CD_STYLE_NONE, "%s", f->title);
    cd_text_push(text, "\n");
    put_place(text, f);
    put_line(text, "expected", f->expected);
    put_line(text, "found", f->actual);
    for (size_t i = 0; i < context.count; i++)
        put_line(text, i == 0 ? "events" : "", context.lines[i]);
    put_line(text, "advice", cd_result_get_advice(result, index));
}

/* "then I-REF 3 times, I-PARAMEQ once" */
static void put_consequences(cd_text *text, const cd_result *result)
{
    cd_text rest;
    cd_text_init(&rest, false);
    for (size_t i = 1; i < result->verdict.finding_count; i++) {
        const char *check = result->verdict.findings[i].check;
        size_t count = 0;
        bool seen = false;
        for (size_t k = 1; k < result->verdict.finding_count; k++) {
            bool same = strcmp(result->verdict.findings[k].check, check) == 0;
            seen = seen || (same && k < i);
            count += same;
        }
        if (seen) continue;
        cd_text_printf(&rest, "%s%s %zu time%s", rest.length > 0 ? ", " : "", check, count,
                       count == 1 ? "" : "s");
    }
    put_line(text, "also", cd_text_get(&rest));
    cd_text_fini(&rest);
}

static void put_exercises(cd_text *text, const cd_result *result)
{
    for (size_t i = 0; i < result->verdict.exercise_count; i++) {
        const cddp_exercise *e = &result->verdict.exercises[i];
        cd_text_push(text, "  ");
        cd_text_style(text, CD_STYLE_CYAN, "%-*s", INDENT - 2, i == 0 ? "exercised" : "");
        cd_text_printf(text, "%-11s", e->check);
        if (e->count > 0)
            cd_text_printf(text, " %" PRIu64 " time%s:", e->count, e->count == 1 ? "" : "s");
        cd_text_printf(text, " %s\n", e->how);
    }
    for (size_t i = 0; i < result->verdict.mark_count; i++) {
        cd_text_push(text, "  ");
        cd_text_style(text, CD_STYLE_CYAN, "%-*s", INDENT - 2, i == 0 ? "reached" : "");
        cd_text_printf(text, "%s (%" PRIu64 ")\n", result->verdict.marks[i].name,
                       result->verdict.marks[i].count);
    }
}

/* ---- ranks that did not return cleanly ---- */

static bool is_culprit(const cddp_verdict *v, uint32_t rank)
{
    if (v->wait_count > 0 || v->finding_count == 0) return cd_hang_is_culprit(v, rank);
    for (size_t i = 0; i < v->findings[0].rank_count; i++)
        if (v->findings[0].ranks[i] == rank) return true;
    return false;
}

/* A rank that returned well, and left others waiting, has one as well. */
static bool has_line(const cddp_verdict *v, uint32_t rank)
{
    return !cd_result_is_clean(&v->ranks[rank]) || (v->wait_count > 0 && is_culprit(v, rank));
}

/* "timed out in allreduce #7 (bucket 0, step 2)" where the rank waited, unless everything is shown;
** else how it ended and its own message. */
static void put_end(cd_text *line, const cd_report *report, const cddp_verdict *v, uint32_t rank)
{
    const cddp_rank_result *r = &v->ranks[rank].result;
    const cddp_wait *wait = cd_hang_find(v, rank);
    if (wait != NULL && !report->verbose) {
        cd_text_push(line, wait->status == CDDP_OK          ? "still waiting "
                           : wait->status == CDDP_E_TIMEOUT ? "timed out "
                                                            : "lost a peer ");
        cd_hang_print_operation(wait, line);
        return;
    }
    /* the simulator's message says it itself */
    if (r->end == CDDP_RANK_HUNG && strncmp(r->error.message, "hung: ", 6) == 0) {
        cd_text_push(line, r->error.message);
        return;
    }
    if (cd_result_is_clean(&v->ranks[rank])) {
        cd_text_printf(line, "ended normally in step %" PRIu32, v->ranks[rank].step);
        return;
    }
    cd_text_printf(line, "%s%s%s",
                   r->end == CDDP_RANK_RETURNED ? "ended with an error"
                                                : cd_result_end_name(r->end),
                   r->error.message[0] != '\0' ? ": " : "", r->error.message);
}

/* Ranks whose lines are equal, but for their own number, share one. */
typedef struct rank_line {
    const cddp_verdict *verdict;
    const cd_report *report;
    uint32_t rank;
    const char *words;
    const bool *shown; /* (rank_count) */
} rank_line;

static uint32_t next_alike(const void *self, uint32_t from)
{
    const rank_line *l = self;
    for (uint32_t i = from; i < l->verdict->rank_count; i++) {
        if (!has_line(l->verdict, i) || l->shown[i]) continue;
        cd_text words;
        cd_text_init(&words, false);
        put_end(&words, l->report, l->verdict, i);
        const bool is_alike = cd_rank_words_are_alike(cd_text_get(&words), i, l->words, l->rank);
        cd_text_fini(&words);
        if (is_alike) return i;
    }
    return CD_NO_RANK;
}

/* Another rank shares the line, and its own words name it in the place of `rank`. */
static bool is_for_others(const rank_line *l, uint32_t rank)
{
    for (uint32_t i = next_alike(l, rank + 1); i != CD_NO_RANK; i = next_alike(l, i + 1)) {
        cd_text words;
        cd_text_init(&words, false);
        put_end(&words, l->report, l->verdict, i);
        const bool is_same = strcmp(cd_text_get(&words), l->words) == 0;
        cd_text_fini(&words);
        if (!is_same) return true;
    }
    return false;
}

/* "0, 1 and 3 timed out in …"; marks them as shown. */
static void put_rank(cd_text *text, const char *label, rank_line *l, bool *shown, uint32_t rank)
{
    char who[160];
    cd_text words, line;
    cd_text_init(&words, false);
    cd_text_init(&line, false);
    put_end(&words, l->report, l->verdict, rank);
    l->words = cd_text_get(&words);
    l->rank = rank;
    if (l->report->verbose)
        snprintf(who, sizeof who, "rank %" PRIu32, rank);
    else
        cd_rank_list_print(&(cd_rank_list){l, next_alike}, CD_NO_RANK, who, sizeof who);
    const char *numbers = strchr(who, ' ');
    cd_text_printf(&line, "%s %s", numbers != NULL ? numbers + 1 : who, l->words);
    if (!l->report->verbose && is_for_others(l, rank))
        cd_text_printf(&line, " (the words of rank %" PRIu32 ")", rank);
    put_line(text, label, cd_text_get(&line));
    shown[rank] = true;
    for (uint32_t i = next_alike(l, 0); i != CD_NO_RANK && !l->report->verbose;
         i = next_alike(l, i + 1))
        shown[i] = true;
    cd_text_fini(&words);
    cd_text_fini(&line);
}

/* The culprits first, but for the one that is shown already. When there are many lines, the first
** few say enough. */
static void put_ranks(cd_text *text, const cd_report *report, const cd_result *result,
                      uint32_t explained)
{
    const cddp_verdict *v = &result->verdict;
    const size_t count = v->rank_count;
    size_t lines = 0, left = 0;
    bool *shown = cd_allocate_zero(NULL, count + 1);
    if (shown == NULL) return;
    rank_line l = {v, report, 0, NULL, shown};
    if (explained < count) shown[explained] = true;
    for (int others = 0; others < 2; others++) {
        for (uint32_t i = 0; i < count; i++) {
            if (shown[i] || !has_line(v, i) || (others == 0 && !is_culprit(v, i))) continue;
            if (report->verbose || lines <= RANKS_SHOWN)
                put_rank(text, lines++ == 0 ? "ranks" : "", &l, shown, i);
            else
                left++;
        }
    }
    if (left > 0)
        cd_text_printf(text, "%*sand %zu more rank%s (--verbose shows them)\n", INDENT, "", left,
                       left == 1 ? "" : "s");
    cd_release(NULL, shown, count + 1);
}

/* It did what the others waited for, and too late. */
static bool put_lateness(cd_text *text, const cddp_verdict *v, uint32_t rank)
{
    const cddp_wait *main = cd_hang_main(v);
    char late[CD_DURATION_BYTES];
    cd_text line;
    if (main == NULL || main->late_ns == 0) return false;
    cd_text_init(&line, false);
    cd_duration_print(main->late_ns, late, sizeof late);
    cd_text_printf(&line, "rank %" PRIu32 " is slow, or was kept: it took part ", rank);
    cd_hang_print_operation(main, &line);
    cd_text_printf(&line, " %s after rank %" PRIu32 " had given up", late, main->rank);
    put_line(text, "why", cd_text_get(&line));
    cd_text_fini(&line);
    return true;
}

/* The first culprit that has a message, at best one that died; CD_NO_RANK: there is none. Of one
** that came late its message does not matter. */
static uint32_t find_explained(const cddp_verdict *v)
{
    const cddp_wait *main = cd_hang_main(v);
    const bool is_late = main != NULL && main->late_ns > 0;
    for (int others = 0; others < 2; others++)
        for (uint32_t i = 0; i < v->rank_count; i++)
            if (is_culprit(v, i) && cd_hang_find(v, i) == NULL &&
                (is_late || v->ranks[i].result.error.message[0] != '\0') &&
                (is_late || others > 0 || cd_hang_has_died(v, i)))
                return i;
    return CD_NO_RANK;
}

/* "hang: ranks 0, 1 and 3 wait …", and the message of the first culprit that has one, which is
** explained with it. False: nobody waits. */
static bool put_hang(cd_text *text, const cd_result *result, uint32_t *explained)
{
    const cddp_verdict *v = &result->verdict;
    cd_text line;
    cd_text_init(&line, false);
    cd_hang_print(v, &line);
    const bool has_one = line.length > 0;
    if (has_one) {
        const char *words = cd_text_get(&line);
        const size_t label = strcspn(words, ":") + 1;
        cd_text_push(text, "  ");
        cd_text_style(text, CD_STYLE_RED, "%.*s", (int)label, words);
        cd_text_push(text, " ");
        cd_text_wrap(text, words + label, INDENT, TEXT_WIDTH);
    }
    cd_text_fini(&line);
    const uint32_t i = has_one ? find_explained(v) : CD_NO_RANK;
    if (i == CD_NO_RANK) return has_one;
    const char *message = v->ranks[i].result.error.message;
    char name[24];
    if (put_lateness(text, v, i)) return true; /* its own error is what came of that */
    snprintf(name, sizeof name, "rank %" PRIu32, i);
    cd_text_init(&line, false);
    cd_text_printf(&line, "%s%s%s", strstr(message, name) == NULL ? name : "",
                   strstr(message, name) == NULL ? ": " : "", message);
    put_line(text, "why", cd_text_get(&line));
    cd_text_fini(&line);
    *explained = i;
    return has_one;
}

/* One line on what stands behind the verdict. */
static void put_facts(cd_text *text, const cd_report *report, const cd_result *result)
{
    cd_text facts;
    cd_text_init(&facts, false);
    cd_text_printf(&facts,
                   "%" PRIu32 " rank%s, %" PRIu32 " step%s on %s, seed %" PRIu64 "; %" PRIu64
                   " events, %zu invariant%s exercised; "
                   "trace %016" PRIx64 ", plan %016" PRIx64,
                   result->world_size, result->world_size == 1 ? "" : "s", result->steps,
                   result->steps == 1 ? "" : "s", result->backend, result->seed,
                   result->verdict.event_count, result->verdict.exercise_count,
                   result->verdict.exercise_count == 1 ? "" : "s", result->verdict.trace_digest,
                   result->verdict.plan_digest);
    if (result->variant_count > 0)
        cd_text_printf(&facts,
                       "; the same parameters bit for bit under %" PRIu32 " other setting%s",
                       result->variant_count, result->variant_count == 1 ? "" : "s");
    if (report->timings && result->wall_ns > 0)
        cd_text_printf(&facts, "; %.1f ms", (double)result->wall_ns / 1e6);
    put_line(text, "run", cd_text_get(&facts));
    cd_text_fini(&facts);
}

static void put_header(cd_text *text, const cd_result *result)
{
    cd_text_style(text, result->skipped ? CD_STYLE_YELLOW : verdict_style(result->verdict.outcome),
                  "%s",
                  result->verdict.outcome == CDDP_OUTCOME_VERIFIED && result->verdict.as_expected
                      ? "as expected"
                      : result->name);
    cd_text_printf(text, ": %s", result->source);
    if (result->stored_run > 0) cd_text_printf(text, " run %" PRId64, result->stored_run);
    if (result->title[0] != '\0') cd_text_printf(text, ": %s", result->title);
    cd_text_push(text, "\n");
}

static void put_details(cd_text *text, const cd_result *result)
{
    if (result->details[0] == '\0') return;
    cd_text_push(text, result->details);
    if (result->details[strlen(result->details) - 1] != '\n') cd_text_push(text, "\n");
}

/* What runs it again, where that can end in the same way. */
static void put_reproduction(cd_text *text, const cd_result *result)
{
    char struck[128], words[240];
    if (result->reproduce[0] != '\0' && cd_result_was_struck(result, struck, sizeof struck)) {
        snprintf(words, sizeof words,
                 "not by a run of the scenario: %s. [[fault]] with kind = \"kill\" plants such an "
                 "end on the simulator",
                 struck);
        put_line(text, "reproduce", words);
        return;
    }
    put_pasteable(text, "reproduce", result->reproduce);
    if (result->verdict.outcome == CDDP_OUTCOME_FINDINGS)
        put_pasteable(text, "shrink", result->shrink);
}

static void put_result(cd_text *text, const cd_report *report, const cd_result *result)
{
    put_header(text, result);
    put_details(text, result);
    uint32_t explained = CD_NO_RANK;
    const bool is_hang = put_hang(text, result, &explained);
    /* A summary that only repeats the verdict, the culprit's title or the hang says nothing new. */
    bool reported = (is_hang && strstr(result->verdict.summary, " did not finish") != NULL) ||
                    strcmp(result->verdict.summary, result->name) == 0 ||
                    (result->verdict.finding_count > 0 &&
                     strstr(result->verdict.summary, result->verdict.findings[0].title) != NULL);
    if (result->verdict.summary[0] != '\0' && result->details[0] == '\0' && !reported)
        put_line(text, "", result->verdict.summary);
    put_differs(text, result);
    if (strcmp(result->verdict.reason, result->verdict.summary) != 0)
        put_line(text, "because", result->verdict.reason);
    for (size_t i = 0; i < result->verdict.finding_count && (i == 0 || report->verbose); i++)
        put_finding(text, result, i);
    if (!report->verbose) put_consequences(text, result);
    put_ranks(text, report, result, explained);
    if (report->verbose) put_exercises(text, result);
    /* A scenario that was refused has no facts, and nothing to reproduce. */
    const bool was_refused =
        result->verdict.event_count == 0 && (result->verdict.outcome == CDDP_OUTCOME_ERROR ||
                                             result->verdict.outcome == CDDP_OUTCOME_ENVIRONMENT);
    put_line(text, "proven", result->verdict.proven);
    if (report->verbose) put_line(text, "unjudged", result->verdict.unjudged);
    put_line(text, "unjudged", result->unjudged);
    if (result->judged && !was_refused) put_facts(text, report, result);
    if (!was_refused &&
        (result->verdict.outcome != CDDP_OUTCOME_VERIFIED || result->verdict.finding_count > 0))
        put_reproduction(text, result);
}

static void put_totals(cd_text *text, const cd_report *report)
{
    size_t counts[5] = {0}, expected = 0, skipped = 0;
    for (size_t i = 0; i < report->count; i++) {
        skipped += report->results[i].skipped;
        counts[report->results[i].verdict.outcome] += !report->results[i].skipped;
        expected += report->results[i].verdict.outcome == CDDP_OUTCOME_VERIFIED &&
                    report->results[i].verdict.as_expected;
    }
    cd_text_style(text, verdict_style(report->exit_code), "%zu of %zu verified",
                  counts[CDDP_OUTCOME_VERIFIED], report->count + report->not_run);
    if (expected > 0)
        cd_text_printf(text, " (%zu as %s scenario%s expect%s)", expected,
                       expected == 1 ? "its" : "their", expected == 1 ? "" : "s",
                       expected == 1 ? "s" : "");
    static const struct {
        int code;
        const char *words;
    } rest[] = {{CDDP_OUTCOME_FINDINGS, "with findings"},
                {CDDP_OUTCOME_ERROR, "with errors"},
                {CDDP_OUTCOME_ENVIRONMENT, "not possible here"},
                {CDDP_OUTCOME_INCONCLUSIVE, "inconclusive"}};
    for (size_t i = 0; i < 4; i++)
        if (counts[rest[i].code] > 0)
            cd_text_printf(text, ", %zu %s", counts[rest[i].code], rest[i].words);
    if (skipped > 0)
        cd_text_printf(text, ", %zu skipped, which need%s a plugin", skipped,
                       skipped == 1 ? "s" : "");
    if (report->not_run > 0) cd_text_printf(text, ", %zu not run", report->not_run);
    cd_text_push(text, "\n");
}

void cd_report_text(cd_text *text, const cd_report *report)
{
    bool single = report->count == 1 && report->not_run == 0;
    for (size_t i = 0; i < report->count; i++) {
        const cd_result *result = &report->results[i];
        bool worth = result->verdict.outcome != CDDP_OUTCOME_VERIFIED;
        if (report->quiet && !worth) continue;
        if (single || worth || report->verbose)
            put_result(text, report, result);
        else
            put_header(text, result);
    }
    if (report->interrupted)
        cd_text_style(text, CD_STYLE_YELLOW, "interrupted: what is above is what was known\n");
    if (!single || report->quiet) put_totals(text, report);
}
