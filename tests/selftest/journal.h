/* SPDX-License-Identifier: Apache-2.0 */
/* Outcomes in a file, so that the whole self-test may be measured in parts.
**
**     selftest journal 1: seed 17, 80188 cases, build 8a4f…
**     4711<TAB>1 0 1 3 7<TAB>layers.0.bias<TAB>what was said<TAB>what the blame lacks
**
** Lifetime   open → take what is there → add → close.
** Errors     a journal of another seed, of other cases or of another build is refused.
*/
#pragma once
#include "tests/selftest/outcome.h"

#include <stdio.h>

typedef struct st_journal {
    FILE *file;
} st_journal;

typedef struct st_journal_head {
    uint64_t seed, cases;
} st_journal_head;

/* Takes every outcome that the file has, in its order. The file is made where it is missing. */
cddp_status st_journal_open(st_journal *journal, const char *path, const st_journal_head *head,
                            void (*take)(void *context, size_t index, const st_outcome *outcome),
                            void *context, cddp_error *err) CDDP_MUST_CHECK;
cddp_status st_journal_add(st_journal *journal, size_t index, const st_outcome *outcome,
                           cddp_error *err) CDDP_MUST_CHECK;
void st_journal_close(st_journal *journal); /* accepts a zeroed one */
