/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up the comparisons that a run's judge gave up (events `unjudged`), for the report.
**
** Lifetime   init → give its sink to the run → print. No storage but its own.
** Errors     more kinds of reasons than it has room for are counted together.
*/
#pragma once
#include "cddp/trace.h"

#define CD_GIVEN_UP_MAX 12

typedef struct cd_given_up_row {
    int64_t link;
    uint64_t count;
    char why[112];
} cd_given_up_row;

typedef struct cd_given_up {
    cddp_trace_sink sink;
    cd_given_up_row rows[CD_GIVEN_UP_MAX];
    size_t row_count;
    uint64_t others;
} cd_given_up;

void cd_given_up_init(cd_given_up *given_up);
/* "free-running: 6 (a sum rounds); …"; "" when nothing was given up. */
void cd_given_up_print(const cd_given_up *given_up, char *text, size_t text_bytes);
