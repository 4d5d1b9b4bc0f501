/* SPDX-License-Identifier: Apache-2.0 */
/* Several scenarios at once, in several processes.
**
** The results are the same as one after the other: a scenario that is not verified ends the run at
** its place in the list, whatever ran beside it. A worker that crashes is a result too.
*/
#pragma once
#include "cli/session.h"

typedef struct cd_jobs {
    const cd_session *session; /* its store is that of the whole run */
    char *const *paths;        /* (count) */
    const bool *may_skip;      /* (count) see cd_session */
    size_t count;
    uint32_t worker_count; /* 1: no processes, everything here */
    bool keep_going;
    bool progress;
    uint32_t process; /* this one: part of the names of its workers' stores; set by run */
} cd_jobs;

/* Fills results[0 … *done - 1], in the order of the paths. results: (count) initialised. */
cddp_status cd_jobs_run(const cd_jobs *jobs, cd_result *results, size_t *done,
                        cddp_error *err) CDDP_MUST_CHECK;
