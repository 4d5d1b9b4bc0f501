/* SPDX-License-Identifier: Apache-2.0 */
/* The report as JUnit XML, as Jenkins, GitLab and the others read it: one test case per scenario, a
** failure per case with findings, an error per case that could not run, and skipped for what is
** absent here. An inconclusive case is a failure: it was not verified. tests/unit/cli validates
** against the Jenkins schema. */
#include "verify/report/json.h"
#include "verify/hang/headline.h"
#include "verify/report/report.h"

#include <inttypes.h>
#include <string.h>

/* XML 1.0 has no way to write most control characters, and no way at all to write invalid UTF-8. */
static void push_escaped(cd_text *text, const char *value)
{
    for (const char *at = value; *at != '\0';) {
        size_t length = cd_utf8_length(at);
        unsigned char byte = (unsigned char)*at;
        if (byte == '&')
            cd_text_push(text, "&amp;");
        else if (byte == '<')
            cd_text_push(text, "&lt;");
        else if (byte == '>')
            cd_text_push(text, "&gt;");
        else if (byte == '"')
            cd_text_push(text, "&quot;");
        else if (byte == '\n')
            cd_text_push(text, "&#10;");
        else if (byte == '\t')
            cd_text_push(text, "&#9;");
        else if (length == 0 || byte < 0x20)
            cd_text_push(text, "\xef\xbf\xbd");
        else if (length == 3 && memcmp(at, "\xef\xbf", 2) == 0 && (unsigned char)at[2] >= 0xbe)
            cd_text_push(text, "\xef\xbf\xbd");
        else
            cd_text_push_bytes(text, at, length);
        at += length == 0 ? 1 : length;
    }
}

static void put_attribute(cd_text *text, const char *name, const char *value)
{
    cd_text_printf(text, " %s=\"", name);
    push_escaped(text, value);
    cd_text_push(text, "\"");
}

static void put_problem(cd_text *text, const char *element, const char *type,
                        const cd_result *result)
{
    cd_text body, headline;
    cd_report one = {.results = result, .count = 1, .exit_code = result->verdict.outcome};
    const char *message = result->verdict.finding_count > 0 ? result->verdict.findings[0].title
                                                            : result->verdict.reason;
    char differs[CD_DIFFERS_BYTES];
    cd_result_print_differs(result, differs, sizeof differs);
    cd_text_init(&headline, false);
    cd_hang_print(&result->verdict, &headline);
    if (headline.length == 0) cd_text_push(&headline, message);
    if (differs[0] != '\0') cd_text_printf(&headline, "; %s", differs);
    cd_text_printf(text, "      <%s", element);
    put_attribute(text, "type", type);
    put_attribute(text, "message", cd_text_get(&headline));
    cd_text_fini(&headline);
    cd_text_push(text, ">");
    cd_text_init(&body, false);
    cd_report_text(&body, &one);
    push_escaped(text, cd_text_get(&body));
    cd_text_fini(&body);
    cd_text_printf(text, "</%s>\n", element);
}

/* The last part of a path is the case, the folders before it are the class. */
static void put_name(cd_text *text, const cd_result *result)
{
    cd_text class_name, name;
    const char *slash = strrchr(result->source, '/');
    const char *file = slash != NULL ? slash + 1 : result->source;
    cd_text_init(&class_name, false);
    cd_text_init(&name, false);
    for (const char *at = result->source; at < file - 1 && slash != NULL; at++)
        cd_text_push_bytes(&class_name, *at == '/' ? "." : at, 1);
    size_t length = strlen(file);
    if (length > 5 && strcmp(file + length - 5, ".toml") == 0) length -= 5;
    cd_text_push_bytes(&name, file, length);
    if (result->stored_run > 0) cd_text_printf(&name, " run %" PRId64, result->stored_run);
    put_attribute(text, "name", cd_text_get(&name));
    put_attribute(text, "classname", class_name.length > 0 ? cd_text_get(&class_name) : "cddp");
    cd_text_fini(&class_name);
    cd_text_fini(&name);
}

static void put_case(cd_text *text, const cd_report *report, const cd_result *result)
{
    cd_text_push(text, "    <testcase");
    put_name(text, result);
    if (report->timings) cd_text_printf(text, " time=\"%.3f\"", (double)result->wall_ns / 1e9);
    bool clean = result->verdict.outcome == CDDP_OUTCOME_VERIFIED;
    cd_text_push(text, clean ? "/>\n" : ">\n");
    if (clean) return;
    switch (result->verdict.outcome) {
    case CDDP_OUTCOME_FINDINGS:
        put_problem(text, "failure",
                    result->verdict.finding_count > 0 ? result->verdict.findings[0].check
                                                      : "findings",
                    result);
        break;
    case CDDP_OUTCOME_INCONCLUSIVE:
        put_problem(text, "failure", "inconclusive", result);
        break;
    case CDDP_OUTCOME_ENVIRONMENT:
        cd_text_push(text, "      <skipped");
        put_attribute(text, "message", result->verdict.reason);
        cd_text_push(text, "/>\n");
        break;
    default:
        put_problem(text, "error", "error", result);
        break;
    }
    cd_text_push(text, "    </testcase>\n");
}

/* ---- a card: a case per line ---- */

/* The first line that is not passed has the whole report. */
static void put_line(cd_text *text, const cd_card *card, const cd_card_line *line, bool is_first)
{
    static const char *const elements[] = {[CD_CARD_PASSED] = NULL,
                                           [CD_CARD_FAILED] = "failure",
                                           [CD_CARD_OPEN] = "failure",
                                           [CD_CARD_SKIPPED] = "skipped"};
    const char *element = elements[line->state];
    cd_text_push(text, "    <testcase");
    put_attribute(text, "name", line->name);
    put_attribute(text, "classname", card->subject);
    cd_text_push(text, element == NULL ? "/>\n" : ">\n");
    if (element == NULL) return;
    cd_text_printf(text, "      <%s", element);
    if (line->state != CD_CARD_SKIPPED)
        put_attribute(text, "type", line->state == CD_CARD_OPEN ? "inconclusive" : line->name);
    put_attribute(text, "message", line->message);
    cd_text_push(text, ">");
    if (line->state != CD_CARD_SKIPPED) push_escaped(text, is_first ? card->text : line->title);
    cd_text_printf(text, "</%s>\n    </testcase>\n", element);
}

static void put_card(cd_text *text, const cd_card *card)
{
    size_t counts[4] = {0};
    for (size_t i = 0; i < card->line_count; i++) counts[card->lines[i].state]++;
    cd_text_push(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite");
    cd_text suite;
    cd_text_init(&suite, false);
    cd_text_printf(&suite, "cddp-verify %s", card->command);
    put_attribute(text, "name", cd_text_get(&suite));
    cd_text_fini(&suite);
    cd_text_printf(text, " tests=\"%zu\" failures=\"%zu\" errors=\"0\" skipped=\"%zu\">\n",
                   card->line_count, counts[CD_CARD_FAILED] + counts[CD_CARD_OPEN],
                   counts[CD_CARD_SKIPPED]);
    bool is_first = true;
    for (size_t i = 0; i < card->line_count; i++) {
        const cd_card_state state = card->lines[i].state;
        put_line(text, card, &card->lines[i], is_first);
        is_first = is_first && state != CD_CARD_FAILED && state != CD_CARD_OPEN;
    }
    cd_text_push(text, "  </testsuite>\n</testsuites>\n");
}

void cd_report_junit(cd_text *text, const cd_report *report)
{
    size_t counts[5] = {0};
    uint64_t wall_ns = 0;
    if (report->card != NULL) {
        put_card(text, report->card);
        return;
    }
    for (size_t i = 0; i < report->count; i++) {
        counts[report->results[i].verdict.outcome]++;
        wall_ns += report->results[i].wall_ns;
    }
    cd_text_push(text, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite "
                       "name=\"cddp-verify\"");
    cd_text_printf(text, " tests=\"%zu\" failures=\"%zu\" errors=\"%zu\" skipped=\"%zu\"",
                   report->count, counts[CDDP_OUTCOME_FINDINGS] + counts[CDDP_OUTCOME_INCONCLUSIVE],
                   counts[CDDP_OUTCOME_ERROR], counts[CDDP_OUTCOME_ENVIRONMENT]);
    if (report->timings) cd_text_printf(text, " time=\"%.3f\"", (double)wall_ns / 1e9);
    cd_text_push(text, ">\n");
    for (size_t i = 0; i < report->count; i++) put_case(text, report, &report->results[i]);
    cd_text_push(text, "  </testsuite>\n</testsuites>\n");
}
