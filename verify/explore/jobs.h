/* SPDX-License-Identifier: Apache-2.0 */
/* A stretch of an exploration done by several processes, each a fork of this one with a block of
** its runs.
**
** The blocks are contiguous and absorbed in order, so that the result is that of one process
** whatever their number.
*/
#pragma once
#include "verify/explore/frontier.h"

typedef struct cd_explore_jobs {
    cd_explore_subject *subject;
    cd_frontier frontier; /* what there is so far; grows */
    uint32_t worker_count;
    bool keep_going;           /* after a schedule that is not verified */
    bool (*interrupted)(void); /* true: end, and keep nothing of the stretch; NULL: never */
    /* what workers print; NULL: it is dropped */
    void (*output)(const char *bytes, size_t byte_count);
} cd_explore_jobs;

bool cd_explore_is_interrupted(const cd_explore_jobs *jobs);
/* Runs up to `end`, which lies in the stretch at hand. *done is false when it was interrupted;
** nothing is kept then. */
cddp_status cd_explore_stretch(const cd_explore_jobs *jobs, uint64_t end, bool *done,
                               cddp_error *err) CDDP_MUST_CHECK;
/* Adds the results of a part whose runs began with `first`: its frontier, as it was printed. In the
** order of the runs. */
cddp_status cd_explore_absorb(const cd_explore_jobs *jobs, const char *part, uint64_t first,
                              cddp_error *err) CDDP_MUST_CHECK;
/* Runs here, one after the other, until `end`, the first failure or Ctrl-C. */
cddp_status cd_explore_block(const cd_explore_jobs *jobs, uint64_t end,
                             cddp_error *err) CDDP_MUST_CHECK;
