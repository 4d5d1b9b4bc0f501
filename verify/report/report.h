/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: results as text for people, and as JSON, JUnit XML and SARIF for programs.
**
** A report is a function of the results alone: no clock, no terminal, no path of this machine. So
** two runs on the simulator give the same bytes. docs/cli.md describes the formats.
*/
#pragma once
#include "cddp/registry.h"
#include "verify/report/card.h"
#include "verify/report/json.h"
#include "verify/report/result.h"
#include "core/base/text.h"

typedef struct cd_report {
    const cd_result *results;
    size_t count;
    const cddp_registry *registry; /* titles and rules of invariants */
    int exit_code;
    bool quiet, verbose, timings;
    bool interrupted;
    size_t not_run; /* scenarios that were left out */
    /* NULL: the results are the report; else they are runs that show what the card says */
    const cd_card *card;
    /* Appends what there is to say of a rule. (optional) */
    bool (*explain)(const char *name, cd_text *text);
    const char *docs; /* where rules are explained, as a URL without its page; NULL: nowhere */
} cd_report;

void cd_report_text(cd_text *text, const cd_report *report);
void cd_report_json(cd_text *text, const cd_report *report);
void cd_report_junit(cd_text *text, const cd_report *report);
void cd_report_sarif(cd_text *text, const cd_report *report);

/* "hook-conformance/replicas": the rule that a line of a card is. */
void cd_card_rule(const cd_card *card, const cd_card_line *line, cd_text *text);
/* The same cause in another run, or with other numbers, has the same fingerprint. */
uint64_t cd_result_fingerprint(const cd_result *result);

/* The member "hang": the headline, the ranks at the root, and who waits for whom; nothing when
** nobody waits. */
void cd_report_json_hang(cd_json *json, const cddp_verdict *verdict);

typedef enum cd_format {
    CD_FORMAT_TEXT,
    CD_FORMAT_JSON,
    CD_FORMAT_JUNIT,
    CD_FORMAT_SARIF,
    CD_FORMAT_HTML,     /* verify/html */
    CD_FORMAT_PERFETTO, /* verify/timeline */
    CD_FORMAT_SVG       /* verify/timeline */
} cd_format;
