/* SPDX-License-Identifier: Apache-2.0 */
/* Where a report goes, and in which format, as the command line says. */
#pragma once
#include "cli/command.h"
#include "cli/drawn.h"
#include "verify/report/report.h"

/* Reads --format, --output, --quiet and --verbose. */
typedef struct cd_report_target {
    cd_format format;
    const char *path;              /* NULL: standard output */
    const char *store;             /* in which the runs are, for timelines; NULL: nowhere */
    const cd_drawn_events *events; /* where they are, when in no store; else NULL */
} cd_report_target;

cddp_status cd_report_target_read(const cd_args *args, cd_report_target *target,
                                  cddp_error *err) CDDP_MUST_CHECK;
/* Can the report be written there? Asked before the work that it describes, by the process that
** will write it. */
cddp_status cd_report_target_check(const cd_report_target *target, cddp_error *err) CDDP_MUST_CHECK;
/* Writes the report where it belongs, or, where that fails, to standard output; returns its exit
** code, or that of a failure to write it. */
int cd_report_send(const cd_cli *cli, const cd_report_target *target, const cd_report *report);
/* The same with a text that was made already. */
int cd_report_write(const cd_cli *cli, const cd_report_target *target, const cd_text *text,
                    int exit_code);
