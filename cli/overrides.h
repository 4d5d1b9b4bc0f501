/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line changes in every scenario: --set, --world-size, --seed, --backend, as keys
** and values.
**
** The same list is stored with a run as text, one "key=value" per line, so that a stored trace can
** be judged with the plan that produced it.
*/
#pragma once
#include "cddp/plan.h"
#include "cli/args.h"
#include "core/base/text.h"

/* Checks the shape of every change and writes the lines. */
cddp_status cd_overrides_read(const cd_args *args, cd_text *lines, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_overrides_apply(const char *lines, cddp_plan *plan, cddp_error *err) CDDP_MUST_CHECK;
/* "cddp-verify replay a.toml --set ddp.bucket_cap_mb=1 --schedule s1:": what reproduces a run,
** quoted for a POSIX shell. schedule NULL: "cddp-verify run", whose choices then follow from the
** plan. command: in place of run or replay. plugins may be NULL. */
typedef struct cd_command_line {
    const char *source, *overrides, *schedule, *command;
    const cd_args *plugins;
} cd_command_line;
void cd_command_line_print(cd_text *text, const cd_command_line *line);
