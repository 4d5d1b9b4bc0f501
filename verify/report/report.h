/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: results as text for people, and as JSON, JUnit XML and SARIF for programs.
**
** A report is a function of the results alone: no clock, no terminal, no path of this machine. So
** two runs on the simulator give the same bytes. docs/cli.md describes the formats.
*/
#pragma once
#include "cli/command.h"
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

/* Reads --format, --output, --quiet and --verbose. */
typedef struct cd_report_target {
    cd_format format;
    const char *path; /* NULL: standard output */
} cd_report_target;

cddp_status cd_report_target_read(const cd_args *args, cd_report_target *target,
                                  cddp_error *err) CDDP_MUST_CHECK;
/* Can the report be written there? Asked before the work that it tells of, by the process that will
** write it. */
cddp_status cd_report_target_check(const cd_report_target *target, cddp_error *err) CDDP_MUST_CHECK;
/* Writes the report where it belongs, or, where that fails, to standard output; returns its exit
** code, or that of a failure to write it. */
int cd_report_send(const cd_cli *cli, const cd_report_target *target, const cd_report *report);
