/* SPDX-License-Identifier: Apache-2.0 */
/* How far an exploration has come, as text: in a file, so that it can go on later, and from a
** worker to the program that started it.
**
** The text begins with what the search is about (plan, strategy, seed …) and ends with a digest of
** everything before it, so that a file of another search, a cut one or one that was edited is
** refused. docs/formats/frontier.md.
**
** Errors     CDDP_E_CONFIG for a text that is none or belongs to another search, CDDP_E_IO for a
**            file.
*/
#pragma once
#include "verify/explore/run.h"

#define CD_FAILURE_KINDS 16
#define CD_FAILURE_SCHEDULE_BYTES 8192

/* An outcome, and the first schedule that led to it. */
typedef struct cd_failure_kind {
    uint64_t outcome, at;                     /* at: its number, from 1 */
    char schedule[CD_FAILURE_SCHEDULE_BYTES]; /* "": does not fit */
} cd_failure_kind;

/* Beside what the explorer knows. */
typedef struct cd_failures {
    uint64_t count;    /* schedules that were not verified */
    uint64_t first_at; /* the number of the first, from 1 */
    uint64_t struck;   /* a bit for each fault that struck in some schedule, or did not have to */
    cd_explored first;
    uint32_t kind_count;
    /* the first outcomes, in the order in which they were met */
    cd_failure_kind kinds[CD_FAILURE_KINDS];
    cd_explored now; /* the run at hand; no part of the frontier */
} cd_failures;

typedef struct cd_frontier {
    cd_explorer *explorer; /* initialised with the options of the search */
    cd_failures *failures;
    uint64_t plan; /* digest */
} cd_frontier;

/* One more of what was found; an outcome that is known, or one too many, is left out. */
void cd_failures_add_kind(cd_failures *failures, uint64_t outcome, uint64_t at,
                          const char *schedule);

void cd_frontier_print(const cd_frontier *frontier, cd_text *text);
/* Into an explorer that has not run yet. */
cddp_status cd_frontier_read(const cd_frontier *frontier, const char *text,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Replaces the file at once, so that it is the old or the new one whatever happens. */
cddp_status cd_frontier_save(const cd_frontier *frontier, const char *path,
                             cddp_error *err) CDDP_MUST_CHECK;
/* *found is false where there is no such file. */
cddp_status cd_frontier_load(const cd_frontier *frontier, const char *path, bool *found,
                             cddp_error *err) CDDP_MUST_CHECK;
