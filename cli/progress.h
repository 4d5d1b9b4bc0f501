/* SPDX-License-Identifier: Apache-2.0 */
/* One line on the terminal that says how far a long run is: count, rate, time left. */
#pragma once
#include "cli/command.h"

typedef struct cd_progress {
    bool enabled;
    size_t total, columns;
    uint64_t began_ns, shown_ns;
} cd_progress;

void cd_progress_begin(cd_progress *progress, const cd_cli *cli, size_t total);
/* at most ten times a second */
void cd_progress_show(cd_progress *progress, size_t done, const char *current);
void cd_progress_end(cd_progress *progress); /* wipes the line */

/* How far something is whose end may not be known. */
typedef struct cd_pace {
    double done, total;      /* total 0: not known */
    double seconds, limit_s; /* since the beginning; limit 0: none */
} cd_pace;

/* Appends ", 12.3/s, 40 s left". */
void cd_progress_put_pace(cd_text *line, const cd_pace *pace);
/* Puts the line in the place of the last one, cut at the terminal's edge, and frees it. */
void cd_progress_put(const cd_cli *cli, cd_text *line);
void cd_progress_wipe(void);
