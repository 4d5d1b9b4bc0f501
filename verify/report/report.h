/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: results as text for people, and as JSON, JUnit XML and SARIF for programs.
**
** A report is a function of the results alone: no clock, no terminal, no path of this machine. So
** two runs on the simulator give the same bytes. docs/cli.md describes the formats.
*/
#pragma once
#include "cddp/registry.h"
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
} cd_report;

void cd_report_text(cd_text *text, const cd_report *report);
void cd_report_json(cd_text *text, const cd_report *report);
void cd_report_junit(cd_text *text, const cd_report *report);
void cd_report_sarif(cd_text *text, const cd_report *report);

typedef enum cd_format {
    CD_FORMAT_TEXT,
    CD_FORMAT_JSON,
    CD_FORMAT_JUNIT,
    CD_FORMAT_SARIF
} cd_format;
