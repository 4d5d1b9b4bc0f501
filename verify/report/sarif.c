/* SPDX-License-Identifier: Apache-2.0 */
/* The report as SARIF 2.1.0, for code scanning: one rule per invariant, one result per finding,
** located at the scenario file and, logically, at rank, bucket and parameter. Scenarios that could
** not be judged become notifications. */
#include "verify/report/json.h"
#include "verify/report/report.h"

#include "cddp/cddp.h"

#include <stdio.h>
#include <string.h>

static int rule_index(const cd_report *report, const char *name)
{
    const cddp_check *check;
    for (size_t i = 0; (check = cddp_registry_check(report->registry, i)) != NULL; i++)
        if (strcmp(check->name, name) == 0) return (int)i;
    return -1;
}

static void put_message(cd_json *json, const char *key, const char *words)
{
    cd_json_key(json, key);
    cd_json_open(json, '{');
    cd_json_put_text(json, "text", words);
    cd_json_close(json, '}');
}

static void put_rules(cd_json *json, const cd_report *report)
{
    const cddp_check *check;
    cd_json_key(json, "rules");
    cd_json_open(json, '[');
    for (size_t i = 0;
         report->registry != NULL && (check = cddp_registry_check(report->registry, i)) != NULL;
         i++) {
        cd_json_open(json, '{');
        cd_json_put_text(json, "id", check->name);
        put_message(json, "shortDescription", check->title);
        put_message(json, "fullDescription", check->rule);
        cd_json_close(json, '}');
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

static void put_location(cd_json *json, const cd_result *result, const cddp_finding *f)
{
    char name[32];
    cd_json_key(json, "locations");
    cd_json_open(json, '[');
    cd_json_open(json, '{');
    cd_json_key(json, "physicalLocation");
    cd_json_open(json, '{');
    cd_json_key(json, "artifactLocation");
    cd_json_open(json, '{');
    put_uri(json, result->source);
    cd_json_close(json, '}');
    cd_json_key(json, "region");
    cd_json_open(json, '{');
    cd_json_put_integer(json, "startLine", 1);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
    cd_json_key(json, "logicalLocations");
    cd_json_open(json, '[');
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

static void put_result(cd_json *json, const cd_report *report, const cd_result *result,
                       const cddp_finding *f)
{
    cd_text words;
    cd_text_init(&words, false);
    cd_text_printf(&words, "%s (step %u). Expected: %s. Found: %s.", f->title, (unsigned)f->step,
                   f->expected, f->actual);
    if (f->advice[0] != '\0') cd_text_printf(&words, " %s", f->advice);
    cd_json_open(json, '{');
    cd_json_put_text(json, "ruleId", f->check);
    int index = report->registry != NULL ? rule_index(report, f->check) : -1;
    if (index >= 0) cd_json_put_integer(json, "ruleIndex", index);
    /* A finding that its scenario expects is shown, but is no reason to fail. */
    bool expected = result->verdict.outcome == CDDP_OUTCOME_VERIFIED;
    cd_json_put_text(json, "kind", expected ? "informational" : "fail");
    cd_json_put_text(json, "level", expected ? "none" : "error");
    put_message(json, "message", cd_text_get(&words));
    put_location(json, result, f);
    cd_json_key(json, "properties");
    cd_json_open(json, '{');
    cd_json_put_text(json, "scenario", result->title);
    cd_json_put_text(json, "reproduce", result->reproduce);
    cd_json_close(json, '}');
    cd_json_close(json, '}');
    cd_text_fini(&words);
}

static void put_notifications(cd_json *json, const cd_report *report)
{
    cd_json_key(json, "toolExecutionNotifications");
    cd_json_open(json, '[');
    for (size_t i = 0; i < report->count; i++) {
        const cd_result *r = &report->results[i];
        if (r->verdict.outcome == CDDP_OUTCOME_VERIFIED || r->verdict.finding_count > 0) continue;
        cd_text words;
        cd_text_init(&words, false);
        cd_text_printf(&words, "%s: %s: %s", r->source, r->name, r->verdict.reason);
        cd_json_open(json, '{');
        cd_json_put_text(json, "level",
                         r->verdict.outcome == CDDP_OUTCOME_ERROR ? "error" : "warning");
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
    cd_json_key(&json, "results");
    cd_json_open(&json, '[');
    for (size_t i = 0; i < report->count; i++)
        for (size_t k = 0; k < report->results[i].verdict.finding_count; k++)
            put_result(&json, report, &report->results[i], &report->results[i].verdict.findings[k]);
    cd_json_close(&json, ']');
    cd_json_close(&json, '}');
    cd_json_close(&json, ']');
    cd_json_close(&json, '}');
}
