/* SPDX-License-Identifier: Apache-2.0 */
/* What a sweep found, in whatever format was asked for: a line per cell with its settings and its
** cost, and the runs that are not verified.
**
** Lifetime   everything is borrowed for the call, but for the text, which is freed.
*/
#pragma once
#include "cli/report_card.h"
#include "verify/sweep/sheet.h"

typedef struct cd_sweep_report {
    const cd_sheet *sheet;
    cd_by by;
    const char *overrides;    /* lines: those of every cell */
    const cd_result *results; /* (result_count) of cells that are not verified */
    size_t result_count, not_run;
    int exit_code;
} cd_sweep_report;

/* text: the report for a terminal. Returns the exit code. */
int cd_sweep_report_send(cd_cli *cli, const cd_report_target *target, const cd_sweep_report *report,
                         cd_text *text);
