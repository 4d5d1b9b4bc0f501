/* SPDX-License-Identifier: Apache-2.0 */
/* The report for people. Verdict first, then the culprit with both sides shown, the events it rests
** on, and the line that reproduces it. What followed from the culprit is counted, and shown in full
** with --verbose. */
#include "verify/report/report.h"

#include <inttypes.h>
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
    if (f->parameter[0] != '\0')
        cd_text_printf(&place, ", parameter %s", f->parameter);
    else if (f->param >= 0)
        cd_text_printf(&place, ", parameter %" PRId32, f->param);
    put_line(text, "where", cd_text_get(&place));
    cd_text_fini(&place);
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
    put_line(text, "advice", f->advice);
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

/* Ranks that did not return cleanly; when there are many, the first few say enough. */
static void put_ranks(cd_text *text, const cd_report *report, const cd_result *result)
{
    size_t count = 0, shown = 0;
    for (size_t i = 0; i < result->verdict.rank_count; i++)
        count += !cd_result_is_clean(&result->verdict.ranks[i]);
    const size_t most = report->verbose || count <= RANKS_SHOWN + 1 ? count : RANKS_SHOWN;
    for (size_t i = 0; i < result->verdict.rank_count && shown < most; i++) {
        const cddp_rank_result *r = &result->verdict.ranks[i].result;
        cd_text line;
        if (cd_result_is_clean(&result->verdict.ranks[i])) continue;
        cd_text_init(&line, false);
        cd_text_printf(&line, "%zu %s%s%s", i, cd_result_end_name(r->end),
                       r->error.message[0] != '\0' ? ": " : "", r->error.message);
        put_line(text, shown++ == 0 ? "ranks" : "", cd_text_get(&line));
        cd_text_fini(&line);
    }
    if (shown < count)
        cd_text_printf(text, "%*sand %zu more ranks (--verbose shows them)\n", INDENT, "",
                       count - shown);
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

static void put_result(cd_text *text, const cd_report *report, const cd_result *result)
{
    put_header(text, result);
    put_details(text, result);
    /* A summary that only repeats the verdict or the culprit's title says nothing new. */
    bool reported = strcmp(result->verdict.summary, result->name) == 0 ||
                    (result->verdict.finding_count > 0 &&
                     strstr(result->verdict.summary, result->verdict.findings[0].title) != NULL);
    if (result->verdict.summary[0] != '\0' && result->details[0] == '\0' && !reported)
        put_line(text, "", result->verdict.summary);
    if (strcmp(result->verdict.reason, result->verdict.summary) != 0)
        put_line(text, "because", result->verdict.reason);
    for (size_t i = 0; i < result->verdict.finding_count && (i == 0 || report->verbose); i++)
        put_finding(text, result, i);
    if (!report->verbose) put_consequences(text, result);
    put_ranks(text, report, result);
    if (report->verbose) put_exercises(text, result);
    /* A scenario that was refused has no facts, and nothing to reproduce. */
    const bool was_refused =
        result->verdict.event_count == 0 && (result->verdict.outcome == CDDP_OUTCOME_ERROR ||
                                             result->verdict.outcome == CDDP_OUTCOME_ENVIRONMENT);
    put_line(text, "proven", result->verdict.proven);
    put_line(text, "not judged", result->verdict.unjudged);
    put_line(text, "unjudged", result->unjudged);
    if (report->verbose) put_line(text, "given up", result->given_up);
    if (result->judged && !was_refused) put_facts(text, report, result);
    if (!was_refused &&
        (result->verdict.outcome != CDDP_OUTCOME_VERIFIED || result->verdict.finding_count > 0))
        put_pasteable(text, "reproduce", result->reproduce);
    if (result->verdict.outcome == CDDP_OUTCOME_FINDINGS)
        put_pasteable(text, "shrink", result->shrink);
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
