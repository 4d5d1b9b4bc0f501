/* SPDX-License-Identifier: Apache-2.0 */
/* One line on the terminal that says how far a long run is: count, rate, time left. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cd_progress {
    bool enabled;
    size_t total;
    uint64_t began_ns, shown_ns;
} cd_progress;

void cd_progress_begin(cd_progress *progress, bool enabled, size_t total);
/* at most ten times a second */
void cd_progress_show(cd_progress *progress, size_t done, const char *current);
void cd_progress_end(cd_progress *progress); /* wipes the line */
