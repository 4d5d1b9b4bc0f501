/* SPDX-License-Identifier: Apache-2.0 */
/* The report as JSON: everything the text report can say, with stable keys (docs/cli.md). */
#include "verify/report/json.h"
#include "verify/report/report.h"

#include "cddp/backend.h"
#include "cddp/cddp.h"
#include "verify/hang/graph.h"
#include "verify/hang/headline.h"

static void put_or_null(cd_json *json, const char *key, int64_t value)
{
    cd_json_key(json, key);
    if (value >= 0)
        cd_json_integer(json, value);
    else
        cd_json_text(json, NULL);
}

static void put_finding(cd_json *json, const cd_result *result, size_t index)
{
    const cddp_finding *f = &result->verdict.findings[index];
    const cd_result_context context = cd_result_get_context(result, index);
    cd_json_open(json, '{');
    cd_json_put_text(json, "invariant", f->check);
    cd_json_put_text(json, "title", f->title);
    cd_json_put_integer(json, "step", f->step);
    cd_json_put_integer(json, "micro_step", f->micro_step);
    put_or_null(json, "rank", f->rank);
    cd_json_key(json, "ranks");
    cd_json_open(json, '[');
    for (size_t i = 0; i < f->rank_count; i++) cd_json_integer(json, f->ranks[i]);
    cd_json_close(json, ']');
    put_or_null(json, "peer", f->peer);
    put_or_null(json, "bucket", f->bucket);
    put_or_null(json, "param", f->param);
    if (f->wrapper != NULL) cd_json_put_text(json, "wrapper", f->wrapper);
    cd_json_put_text(json, "parameter", cd_finding_parameter(f));
    cd_json_put_text(json, "expected", f->expected);
    cd_json_put_text(json, "actual", f->actual);
    cd_json_put_text(json, "advice", f->advice);
    cd_json_key(json, "events");
    cd_json_open(json, '[');
    for (size_t i = 0; i < context.count; i++) cd_json_text(json, context.lines[i]);
    cd_json_close(json, ']');
    cd_json_close(json, '}');
}

static void put_lists(cd_json *json, const cd_result *result)
{
    cd_json_key(json, "findings");
    cd_json_open(json, '[');
    for (size_t i = 0; i < result->verdict.finding_count; i++) put_finding(json, result, i);
    cd_json_close(json, ']');
    cd_json_key(json, "exercised");
    cd_json_open(json, '{');
    for (size_t i = 0; i < result->verdict.exercise_count; i++)
        cd_json_put_text(json, result->verdict.exercises[i].check,
                         result->verdict.exercises[i].how);
    cd_json_close(json, '}');
    cd_json_key(json, "marks");
    cd_json_open(json, '{');
    for (size_t i = 0; i < result->verdict.mark_count; i++)
        cd_json_put_integer(json, result->verdict.marks[i].name,
                            (int64_t)result->verdict.marks[i].count);
    cd_json_close(json, '}');
    cd_json_key(json, "ranks");
    cd_json_open(json, '[');
    for (size_t i = 0; i < result->verdict.rank_count; i++) {
        const cddp_rank_result *r = &result->verdict.ranks[i].result;
        if (cd_result_is_clean(&result->verdict.ranks[i])) continue;
        cd_json_open(json, '{');
        cd_json_put_integer(json, "rank", (int64_t)i);
        cd_json_put_text(json, "end", cd_result_end_name(r->end));
        cd_json_put_integer(json, "step", result->verdict.ranks[i].step);
        cd_json_put_text(json, "message", r->error.message);
        cd_json_close(json, '}');
    }
    cd_json_close(json, ']');
}

/* Who waits for whom at the end, and the ranks at the root of it. */
void cd_report_json_hang(cd_json *json, const cddp_verdict *v)
{
    cd_text headline;
    if (v->wait_count == 0) return;
    cd_text_init(&headline, false);
    cd_hang_print(v, &headline);
    cd_json_key(json, "hang");
    cd_json_open(json, '{');
    cd_json_put_text(json, "headline", cd_text_get(&headline));
    cd_text_fini(&headline);
    cd_json_key(json, "culprits");
    cd_json_open(json, '[');
    for (uint32_t i = 0; i < v->rank_count; i++)
        if (cd_hang_is_culprit(v, i)) cd_json_integer(json, i);
    cd_json_close(json, ']');
    cd_json_key(json, "waits");
    cd_json_open(json, '[');
    for (size_t i = 0; i < v->wait_count; i++) {
        const cddp_wait *w = &v->waits[i];
        const bool is_known = w->op >= 0 && w->op < CDDP_OP_COUNT;
        cd_json_open(json, '{');
        cd_json_put_integer(json, "rank", w->rank);
        cd_json_put_integer(json, "step", w->step);
        cd_json_put_text(json, "status",
                         w->status == CDDP_OK ? "waits" : cddp_status_text(w->status));
        cd_json_put_text(json, "group", w->sequence >= 0 ? w->name : NULL);
        put_or_null(json, "sequence", w->sequence);
        cd_json_put_text(json, "operation", is_known ? cddp_op_name((cddp_op)w->op) : NULL);
        put_or_null(json, "bucket", w->bucket);
        cd_json_key(json, "for");
        cd_json_open(json, '[');
        for (size_t k = 0; k < w->peer_count; k++) cd_json_integer(json, w->peers[k]);
        cd_json_close(json, ']');
        if (w->late_ns > 0) cd_json_put_integer(json, "late_ns", (int64_t)w->late_ns);
        cd_json_close(json, '}');
    }
    cd_json_close(json, ']');
    cd_json_close(json, '}');
}

static void put_differs(cd_json *json, const cd_result *result)
{
    char words[CD_DIFFERS_BYTES];
    cd_result_print_differs(result, words, sizeof words);
    if (words[0] != '\0') cd_json_put_text(json, "differs", words);
}

static void put_place(cd_json *json, const cd_result *r)
{
    if (r->place[0] == '\0') return;
    cd_json_key(json, "place");
    cd_json_open(json, '{');
    cd_json_put_text(json, "file", r->place);
    cd_json_put_integer(json, "line", r->place_line);
    if (r->place_key[0] != '\0') cd_json_put_text(json, "key", r->place_key);
    cd_json_close(json, '}');
}

static void put_digest(cd_json *json, const char *key, uint64_t value)
{
    cd_json_key(json, key);
    cd_json_digest(json, value);
}

static void put_result(cd_json *json, const cd_report *report, const cd_result *result)
{
    cd_json_open(json, '{');
    cd_json_put_text(json, "source", result->source);
    if (result->stored_run > 0) cd_json_put_integer(json, "run", result->stored_run);
    cd_json_put_text(json, "title", result->title);
    cd_json_put_text(json, "verdict", result->name);
    cd_json_put_integer(json, "exit_code", result->verdict.outcome);
    cd_json_put_flag(json, "as_expected", result->verdict.as_expected);
    cd_json_put_text(json, "summary", result->verdict.summary);
    cd_json_put_text(json, "reason", result->verdict.reason);
    if (result->details[0] != '\0') cd_json_put_text(json, "details", result->details);
    if (result->verdict.proven != NULL && result->verdict.proven[0] != '\0')
        cd_json_put_text(json, "proven", result->verdict.proven);
    if (result->verdict.unjudged != NULL && result->verdict.unjudged[0] != '\0')
        cd_json_put_text(json, "not_judged", result->verdict.unjudged);
    if (result->unjudged[0] != '\0') cd_json_put_text(json, "unjudged", result->unjudged);
    cd_json_put_text(json, "backend", result->backend);
    cd_json_put_integer(json, "world_size", result->world_size);
    cd_json_put_integer(json, "steps", result->steps);
    cd_json_put_integer(json, "seed", (int64_t)result->seed);
    cd_json_put_text(json, "schedule", result->schedule);
    put_digest(json, "plan", result->verdict.plan_digest);
    put_digest(json, "trace", result->verdict.trace_digest);
    cd_json_put_integer(json, "events", (int64_t)result->verdict.event_count);
    cd_json_put_integer(json, "virtual_time_ns", (int64_t)result->verdict.time_ns);
    if (result->variant_count > 0) cd_json_put_integer(json, "same_with", result->variant_count);
    if (report->timings) cd_json_put_integer(json, "wall_ns", (int64_t)result->wall_ns);
    cd_report_json_hang(json, &result->verdict);
    put_differs(json, result);
    put_lists(json, result);
    put_place(json, result);
    cd_json_put_text(json, "reproduce", cd_result_get_reproduction(result));
    cd_json_close(json, '}');
}

static void put_facts(cd_json *json, const cd_card_fact *facts, size_t count)
{
    cd_json_key(json, "facts");
    cd_json_open(json, '{');
    for (size_t i = 0; i < count; i++) {
        const cd_card_fact *fact = &facts[i];
        cd_json_key(json, fact->name);
        if (fact->text != NULL)
            cd_json_text(json, fact->text);
        else if (fact->number >= -9e15 && fact->number <= 9e15 &&
                 fact->number == (double)(int64_t)fact->number)
            cd_json_integer(json, (int64_t)fact->number);
        else
            cd_json_number(json, fact->number);
    }
    cd_json_close(json, '}');
}

static void put_card(cd_json *json, const cd_card *card)
{
    cd_json_put_text(json, "command", card->command);
    cd_json_put_text(json, "subject", card->subject);
    cd_json_key(json, "lines");
    cd_json_open(json, '[');
    for (size_t i = 0; i < card->line_count; i++) {
        const cd_card_line *line = &card->lines[i];
        cd_json_open(json, '{');
        cd_json_put_text(json, "name", line->name);
        cd_json_put_text(json, "title", line->title);
        cd_json_put_text(json, "state", cd_card_state_name(line->state));
        if (line->case_count > 0) cd_json_put_integer(json, "cases", (int64_t)line->case_count);
        cd_json_put_text(json, "message", line->message);
        if (line->fact_count > 0) put_facts(json, line->facts, line->fact_count);
        cd_json_close(json, '}');
    }
    cd_json_close(json, ']');
    put_facts(json, card->facts, card->fact_count);
    cd_json_put_text(json, "text", card->text);
}

void cd_report_json(cd_text *text, const cd_report *report)
{
    cd_json json;
    cd_json_begin(&json, text);
    cd_json_open(&json, '{');
    cd_json_put_text(&json, "tool", "cddp-verify");
    cd_json_put_text(&json, "version", cddp_version());
    cd_json_put_integer(&json, "format", 1);
    cd_json_put_text(&json, "verdict",
                     report->card != NULL ? report->card->verdict
                                          : cd_result_verdict_name(report->exit_code));
    cd_json_put_integer(&json, "exit_code", report->exit_code);
    cd_json_put_flag(&json, "interrupted", report->interrupted);
    cd_json_put_integer(&json, "not_run", (int64_t)report->not_run);
    if (report->card != NULL) put_card(&json, report->card);
    cd_json_key(&json, "results");
    cd_json_open(&json, '[');
    for (size_t i = 0; i < report->count; i++) put_result(&json, report, &report->results[i]);
    cd_json_close(&json, ']');
    cd_json_close(&json, '}');
}
