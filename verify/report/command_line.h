/* SPDX-License-Identifier: Apache-2.0 */
/* "cddp-verify replay a.toml --set ddp.bucket_cap_mb=1 --schedule s1:": what reproduces a run,
** quoted for a POSIX shell. */
#pragma once
#include "core/base/text.h"

typedef struct cd_command_line {
    const char *source;
    const char *overrides; /* one "key=value" per line */
    const char *schedule;  /* NULL: "cddp-verify run", whose choices then follow from the plan */
    const char *command;   /* in place of run or replay; NULL: those */
    /* The i-th --plugin, NULL behind the last; NULL: there are none. */
    const char *(*plugin)(const void *context, size_t index);
    const void *context;
} cd_command_line;

void cd_command_line_print(cd_text *text, const cd_command_line *line);
