/* SPDX-License-Identifier: Apache-2.0 */
/* The report as SARIF 2.1.0, for code scanning. One rule per invariant, and one result per cause:
** the culprit of a run, with what followed from it as a property. Runs with the same cause share
** one. A result points at the key of the scenario, or at the line of the program, that is to be
** looked at first (place.h). Mistakes of a scenario file are results at their lines. Scenarios that
** could not be judged become notifications. */
#include "verify/report/json.h"
#include "verify/hang/headline.h"
#include "verify/report/place.h"
#include "verify/report/report.h"

#include "cddp/cddp.h"
#include "core/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCENARIO_RULE "scenario" /* of mistakes in a scenario file */

/* ---- rules ---- */

static size_t count_checks(const cd_report *report)
{
    size_t count = 0;
    while (report->registry != NULL && cddp_registry_check(report->registry, count) != NULL)
        count++;
    return count;
}

/* Invariants, mistakes of scenario files, then the lines of the card. -1: it is none of them. */
static int64_t rule_index(const cd_report *report, const char *name)
{
    const size_t checks = count_checks(report);
    for (size_t i = 0; i < checks; i++)
        if (strcmp(cddp_registry_check(report->registry, i)->name, name) == 0) return (int64_t)i;
    return strcmp(name, SCENARIO_RULE) == 0 ? (int64_t)checks : -1;
}

void cd_card_rule(const cd_card *card, const cd_card_line *line, cd_text *text)
{
    cd_text_printf(text, "%s/", card->command);
    for (const char *at = line->name; *at != '\0'; at++)
        cd_text_push_bytes(text, *at == ' ' ? "-" : at, 1);
}

static void put_message(cd_json *json, const char *key, const char *words)
{
    cd_json_key(json, key);
    cd_json_open(json, '{');
    cd_json_put_text(json, "text", words);
    cd_json_close(json, '}');
}

/* "explain.html#i-order", in lower case as headings are linked. */
static void put_help_link(cd_json *json, const cd_report *report, const char *page,
                          const char *name)
{
    cd_text url;
    if (report->docs == NULL || report->docs[0] == '\0') return;
    cd_text_init(&url, false);
    cd_text_printf(&url, "%s/%s", report->docs, page);
    if (name[0] != '\0') cd_text_push(&url, "#");
    for (const char *at = name; *at != '\0'; at++) {
        const bool is_upper = *at >= 'A' && *at <= 'Z';
        cd_text_printf(&url, "%c", is_upper ? *at - 'A' + 'a' : *at);
    }
    cd_json_put_text(json, "helpUri", cd_text_get(&url));
    cd_text_fini(&url);
}

static void put_help(cd_json *json, const cd_report *report, const char *name)
{
    cd_text page;
    cd_text_init(&page, false);
    if (report->explain != NULL && report->explain(name, &page)) {
        cd_json_key(json, "help");
        cd_json_open(json, '{');
        cd_json_put_text(json, "text", cd_text_get(&page));
        cd_json_close(json, '}');
    }
    cd_text_fini(&page);
}

/* The part of cli.md about a command, as it is linked. */
static const char *section_of(const char *command)
{
    static const char *const sections[][2] = {{"explore", "many-schedules"},
                                              {"prove", "all-schedules"},
                                              {"shrink", "smaller-failures"},
                                              {"sweep", "sweeps"},
                                              {"diff", "stored-runs"},
                                              {"replay", "stored-runs"},
                                              {"compare", "one-process-against-many"},
                                              {"hook-conformance", "hooks"},
                                              {"backend-conformance", "backends"}};
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++)
        if (strcmp(sections[i][0], command) == 0) return sections[i][1];
    return "";
}

static void put_rule(cd_json *json, const char *name, const char *title, const char *rule)
{
    cd_json_put_text(json, "id", name);
    put_message(json, "shortDescription", title);
    put_message(json, "fullDescription", rule);
}

static void put_rules(cd_json *json, const cd_report *report)
{
    const size_t checks = count_checks(report);
    cd_json_key(json, "rules");
    cd_json_open(json, '[');
    for (size_t i = 0; i < checks; i++) {
        const cddp_check *check = cddp_registry_check(report->registry, i);
        cd_json_open(json, '{');
        put_rule(json, check->name, check->title, check->rule);
        put_help(json, report, check->name);
        put_help_link(json, report, "explain.html", check->name);
        cd_json_close(json, '}');
    }
    cd_json_open(json, '{');
    put_rule(json, SCENARIO_RULE, "a scenario can be read",
             "A scenario has known keys only, with values that they allow and that fit together.");
    put_help_link(json, report, "formats/scenario.html", "");
    cd_json_close(json, '}');
    for (size_t i = 0; report->card != NULL && i < report->card->line_count; i++) {
        const cd_card_line *line = &report->card->lines[i];
        cd_text name;
        cd_text_init(&name, false);
        cd_card_rule(report->card, line, &name);
        cd_json_open(json, '{');
        put_rule(json, cd_text_get(&name), line->title, line->title);
        put_help_link(json, report, "cli.html", section_of(report->card->command));
        cd_json_close(json, '}');
        cd_text_fini(&name);
    }
    cd_json_close(json, ']');
}

static void put_logical(cd_json *json, const char *kind, const char *name)
{
    cd_json_open(json, '{');
    cd_json_put_text(json, "name", name);
    cd_json_put_text(json, "kind", kind);
    cd_json_close(json, '}');
}

/* A path as a URI reference (RFC 3986), or a blank would end it and a % begin an escape. */
static void put_uri(cd_json *json, const char *path)
{
    cd_text uri;
    cd_text_init(&uri, false);
    for (const char *at = path; *at != '\0'; at++) {
        unsigned char byte = (unsigned char)*at;
        bool is_plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                        (byte >= '0' && byte <= '9') || strchr("-._~/!$&'()*+,;=@", byte) != NULL;
        cd_text_printf(&uri, is_plain ? "%c" : "%%%02X", byte);
    }
    cd_json_put_text(json, "uri", cd_text_get(&uri));
    cd_text_fini(&uri);
}

static void put_physical(cd_json *json, const char *path, uint32_t line, uint32_t column)
{
    cd_json_key(json, "physicalLocation");
    cd_json_open(json, '{');
    cd_json_key(json, "artifactLocation");
    cd_json_open(json, '{');
    put_uri(json, path);
    cd_json_close(json, '}');
    cd_json_key(json, "region");
    cd_json_open(json, '{');
    cd_json_put_integer(json, "startLine", line > 0 ? line : 1);
    if (column > 0) cd_json_put_integer(json, "startColumn", column);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
}

static void put_location(cd_json *json, const cd_result *result, const cddp_finding *f)
{
    char name[32], path[512];
    uint32_t line = 0;
    cd_json_key(json, "locations");
    cd_json_open(json, '[');
    cd_json_open(json, '{');
    if (cd_finding_find_source(f, path, sizeof path, &line))
        put_physical(json, path, line, 0);
    else if (result->place[0] != '\0')
        put_physical(json, result->place, result->place_line, 0);
    else
        put_physical(json, result->source, 1, 0);
    cd_json_key(json, "logicalLocations");
    cd_json_open(json, '[');
    if (result->place_key[0] != '\0') put_logical(json, "key", result->place_key);
    if (f->rank >= 0)
        put_logical(json, "rank", (snprintf(name, sizeof name, "rank %d", (int)f->rank), name));
    if (f->bucket >= 0)
        put_logical(json, "bucket",
                    (snprintf(name, sizeof name, "bucket %d", (int)f->bucket), name));
    if (f->parameter[0] != '\0') put_logical(json, "parameter", cd_finding_parameter(f));
    cd_json_close(json, ']');
    cd_json_close(json, '}');
    cd_json_close(json, ']');
}

static void put_fingerprint(cd_json *json, uint64_t fingerprint)
{
    char digits[20];
    snprintf(digits, sizeof digits, "%016" PRIx64, fingerprint);
    cd_json_key(json, "partialFingerprints");
    cd_json_open(json, '{');
    cd_json_put_text(json, "cddpCause/v1", digits);
    cd_json_close(json, '}');
}

static uint64_t mix_words(uint64_t digest, const char *words)
{
    for (const char *at = words; *at != '\0'; at++)
        if (*at < '0' || *at > '9') digest = cd_hash_mix(digest, (unsigned char)*at);
    return cd_hash_mix(digest, 0);
}

uint64_t cd_result_fingerprint(const cd_result *r)
{
    uint64_t digest = mix_words(1, r->place[0] != '\0' ? r->place : r->source);
    if (r->verdict.finding_count == 0) return digest;
    const cddp_finding *f = &r->verdict.findings[0];
    digest = mix_words(digest, f->check);
    digest = mix_words(digest, f->title);
    return mix_words(digest, cd_finding_parameter(f));
}

/* Has a result before it the same cause? */
static bool is_repeated(const cd_report *report, size_t index)
{
    const uint64_t mine = cd_result_fingerprint(&report->results[index]);
    for (size_t i = 0; i < index; i++)
        if (report->results[i].verdict.finding_count > 0 &&
            cd_result_fingerprint(&report->results[i]) == mine)
            return true;
    return false;
}

static size_t count_occurrences(const cd_report *report, size_t index)
{
    const uint64_t mine = cd_result_fingerprint(&report->results[index]);
    size_t count = 0;
    for (size_t i = index; i < report->count; i++)
        count += report->results[i].verdict.finding_count > 0 &&
                 cd_result_fingerprint(&report->results[i]) == mine;
    return count;
}

/* What followed: {"I-REF": 3} */
static void put_consequences(cd_json *json, const cddp_verdict *v)
{
    cd_json_key(json, "also");
    cd_json_open(json, '{');
    for (size_t i = 1; i < v->finding_count; i++) {
        int64_t count = 0;
        bool seen = false;
        for (size_t k = 1; k < v->finding_count; k++) {
            const bool same = strcmp(v->findings[k].check, v->findings[i].check) == 0;
            seen = seen || (same && k < i);
            count += same;
        }
        if (!seen) cd_json_put_integer(json, v->findings[i].check, count);
    }
    cd_json_close(json, '}');
}

static void put_kind(cd_json *json, const cd_report *report, const char *rule, bool is_failure)
{
    const int64_t index = rule_index(report, rule);
    cd_json_put_text(json, "ruleId", rule);
    if (index >= 0) cd_json_put_integer(json, "ruleIndex", index);
    cd_json_put_text(json, "kind", is_failure ? "fail" : "informational");
    cd_json_put_text(json, "level", is_failure ? "error" : "none");
}

static void put_result(cd_json *json, const cd_report *report, size_t index)
{
    const cd_result *result = &report->results[index];
    const cddp_finding *f = &result->verdict.findings[0];
    const size_t occurrences = count_occurrences(report, index);
    cd_text words;
    cd_text_init(&words, false);
    /* The culprit of a hang comes first, as in every report. */
    cd_hang_print(&result->verdict, &words);
    if (words.length > 0) cd_text_push(&words, ". ");
    /* Then what mostly is the cause of either. */
    char differs[CD_DIFFERS_BYTES];
    cd_result_print_differs(result, differs, sizeof differs);
    if (differs[0] != '\0') cd_text_printf(&words, "%s. ", differs);
    cd_text_printf(&words, "%s (step %u). Expected: %s. Found: %s.", f->title, (unsigned)f->step,
                   f->expected, f->actual);
    const char *advice = cd_result_get_advice(result, 0);
    if (advice[0] != '\0') cd_text_printf(&words, " %s", advice);
    cd_json_open(json, '{');
    /* A finding that its scenario expects is shown, but is no reason to fail. */
    put_kind(json, report, f->check, result->verdict.outcome != CDDP_OUTCOME_VERIFIED);
    put_message(json, "message", cd_text_get(&words));
    put_location(json, result, f);
    put_fingerprint(json, cd_result_fingerprint(result));
    if (occurrences > 1) cd_json_put_integer(json, "occurrenceCount", (int64_t)occurrences);
    cd_json_key(json, "properties");
    cd_json_open(json, '{');
    cd_json_put_text(json, "scenario", result->title);
    if (differs[0] != '\0') cd_json_put_text(json, "differs", differs);
    cd_json_put_text(json, "reproduce", cd_result_get_reproduction(result));
    put_consequences(json, &result->verdict);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
    cd_text_fini(&words);
}

/* ---- mistakes of scenario files: "FILE:4:1: unknown key …", then the line and a mark ---- */

/* The beginning of the next mistake at or after `at`; NULL: there is none. */
static const char *find_mistake(const cd_result *r, const char *at, uint32_t *line,
                                uint32_t *column)
{
    const size_t length = strlen(r->source);
    for (; at != NULL && *at != '\0'; at = strchr(at, '\n'), at = at != NULL ? at + 1 : NULL) {
        char *end = NULL;
        if (length == 0 || strncmp(at, r->source, length) != 0 || at[length] != ':') continue;
        *line = (uint32_t)strtoul(at + length + 1, &end, 10);
        *column = *end == ':' ? (uint32_t)strtoul(end + 1, &end, 10) : 0;
        if (*line == 0) end = (char *)(uintptr_t)(at + length);
        return end + strspn(end, ": ");
    }
    return NULL;
}

static bool has_mistakes(const cd_result *r)
{
    uint32_t line = 0, column = 0;
    return r->verdict.outcome == CDDP_OUTCOME_ERROR &&
           find_mistake(r, r->details, &line, &column) != NULL;
}

static void put_mistakes(cd_json *json, const cd_report *report, const cd_result *r)
{
    uint32_t line = 0, column = 0;
    for (const char *at = r->details; (at = find_mistake(r, at, &line, &column)) != NULL;) {
        cd_text words;
        cd_text_init(&words, false);
        cd_text_push_bytes(&words, at, strcspn(at, "\n"));
        cd_json_open(json, '{');
        put_kind(json, report, SCENARIO_RULE, true);
        put_message(json, "message", cd_text_get(&words));
        cd_json_key(json, "locations");
        cd_json_open(json, '[');
        cd_json_open(json, '{');
        put_physical(json, r->source, line, column);
        cd_json_close(json, '}');
        cd_json_close(json, ']');
        put_fingerprint(json, mix_words(mix_words(2, r->source), cd_text_get(&words)));
        cd_json_close(json, '}');
        cd_text_fini(&words);
    }
}

/* ---- lines of a card that failed, where no run shows it ---- */

static void put_line(cd_json *json, const cd_report *report, const cd_card_line *line)
{
    const cd_card *card = report->card;
    const size_t index = count_checks(report) + 1 + (size_t)(line - card->lines);
    cd_text name, words;
    cd_text_init(&name, false);
    cd_text_init(&words, false);
    cd_card_rule(card, line, &name);
    cd_text_printf(&words, "%s: %s", line->title, line->message);
    cd_json_open(json, '{');
    cd_json_put_text(json, "ruleId", cd_text_get(&name));
    cd_json_put_integer(json, "ruleIndex", (int64_t)index);
    cd_json_put_text(json, "kind", "fail");
    cd_json_put_text(json, "level", "error");
    put_message(json, "message", cd_text_get(&words));
    cd_json_key(json, "locations");
    cd_json_open(json, '[');
    cd_json_open(json, '{');
    if (card->is_file) put_physical(json, card->subject, 1, 0);
    cd_json_key(json, "logicalLocations");
    cd_json_open(json, '[');
    put_logical(json, card->is_file ? "file" : "module", card->subject);
    cd_json_close(json, ']');
    cd_json_close(json, '}');
    cd_json_close(json, ']');
    put_fingerprint(json, mix_words(mix_words(3, card->subject), cd_text_get(&name)));
    cd_json_close(json, '}');
    cd_text_fini(&name);
    cd_text_fini(&words);
}

static void put_results(cd_json *json, const cd_report *report)
{
    bool has_shown = false;
    cd_json_key(json, "results");
    cd_json_open(json, '[');
    for (size_t i = 0; i < report->count; i++) {
        put_mistakes(json, report, &report->results[i]);
        if (report->results[i].verdict.finding_count == 0) continue;
        has_shown = true;
        if (!is_repeated(report, i)) put_result(json, report, i);
    }
    for (size_t i = 0; !has_shown && report->card != NULL && i < report->card->line_count; i++)
        if (report->card->lines[i].state == CD_CARD_FAILED)
            put_line(json, report, &report->card->lines[i]);
    cd_json_close(json, ']');
}

static void put_notifications(cd_json *json, const cd_report *report)
{
    cd_json_key(json, "toolExecutionNotifications");
    cd_json_open(json, '[');
    for (size_t i = 0; i < report->count; i++) {
        const cd_result *r = &report->results[i];
        if (r->verdict.outcome == CDDP_OUTCOME_VERIFIED || r->verdict.finding_count > 0 ||
            has_mistakes(r))
            continue;
        cd_text words;
        cd_text_init(&words, false);
        cd_text_printf(&words, "%s: %s: ", r->source, r->name);
        cd_hang_print(&r->verdict, &words);
        cd_text_printf(&words, "%s%s", r->verdict.wait_count > 0 ? "; " : "", r->verdict.reason);
        cd_json_open(json, '{');
        cd_json_put_text(json, "level",
                         r->verdict.outcome == CDDP_OUTCOME_ERROR ? "error" : "warning");
        put_message(json, "message", cd_text_get(&words));
        cd_json_close(json, '}');
        cd_text_fini(&words);
    }
    for (size_t i = 0; report->card != NULL && i < report->card->line_count; i++) {
        const cd_card_line *line = &report->card->lines[i];
        cd_text words;
        if (line->state != CD_CARD_OPEN) continue;
        cd_text_init(&words, false);
        cd_text_printf(&words, "%s: %s: %s", line->name, line->title, line->message);
        cd_json_open(json, '{');
        cd_json_put_text(json, "level", "warning");
        put_message(json, "message", cd_text_get(&words));
        cd_json_close(json, '}');
        cd_text_fini(&words);
    }
    cd_json_close(json, ']');
}

static void put_invocation(cd_json *json, const cd_report *report)
{
    cd_json_key(json, "invocations");
    cd_json_open(json, '[');
    cd_json_open(json, '{');
    cd_json_put_flag(json, "executionSuccessful",
                     report->exit_code == CDDP_OUTCOME_VERIFIED ||
                         report->exit_code == CDDP_OUTCOME_FINDINGS);
    cd_json_put_integer(json, "exitCode", report->exit_code);
    cd_json_put_text(json, "exitCodeDescription", cd_result_verdict_name(report->exit_code));
    put_notifications(json, report);
    cd_json_close(json, '}');
    cd_json_close(json, ']');
}

static void put_tool(cd_json *json, const cd_report *report)
{
    cd_json_key(json, "tool");
    cd_json_open(json, '{');
    cd_json_key(json, "driver");
    cd_json_open(json, '{');
    cd_json_put_text(json, "name", "cddp-verify");
    cd_json_put_text(json, "version", cddp_version());
    put_rules(json, report);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
}

void cd_report_sarif(cd_text *text, const cd_report *report)
{
    cd_json json;
    cd_json_begin(&json, text);
    cd_json_open(&json, '{');
    cd_json_put_text(&json, "$schema", "https://json.schemastore.org/sarif-2.1.0.json");
    cd_json_put_text(&json, "version", "2.1.0");
    cd_json_key(&json, "runs");
    cd_json_open(&json, '[');
    cd_json_open(&json, '{');
    put_tool(&json, report);
    put_invocation(&json, report);
    cd_json_put_text(&json, "columnKind", "utf16CodeUnits");
    put_results(&json, report);
    cd_json_close(&json, '}');
    cd_json_close(&json, ']');
    cd_json_close(&json, '}');
}
