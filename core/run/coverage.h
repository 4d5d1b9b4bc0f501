/* SPDX-License-Identifier: Apache-2.0 */
/* What the judge compared, what the plan owed, and what the judge gave up, by link of the oracle;
** and of events that checks judge, how many the plan owes and how many came.
**
** Ownership  a value in caller's storage; a zeroed one has counted nothing.
** Threads    one thread.
*/
#pragma once
#include "cddp/trace.h"
#include "core/base/arena.h"
#include "core/reference/owed.h"
#include "core/trace/codes.h"

#define CD_COVERAGE_REASONS_MAX 24
#define CD_COVERAGE_RANKS_MAX 1024 /* of more ranks nothing that is left is forgiven */

/* Comparisons that were given up for one reason. */
typedef struct cd_coverage_reason {
    int64_t link;
    uint64_t count;
    char why[96];
} cd_coverage_reason;

typedef struct cd_coverage {
    uint64_t made[CD_LINK_COUNT], owed[CD_LINK_COUNT], given_up[CD_LINK_COUNT];
    uint64_t seen[CD_OWED_KINDS], owed_events[CD_OWED_KINDS]; /* what no link has */
    uint64_t owing_ranks;  /* ranks of which it is known what they owe */
    uint64_t without_base; /* rank × reduction that the oracle made no reference for */
    cd_coverage_reason reasons[CD_COVERAGE_REASONS_MAX];
    size_t reason_count;
    uint64_t other_reasons;                   /* comparisons given up for reasons beyond these */
    int32_t under_way[CD_COVERAGE_RANKS_MAX]; /* collectives of a rank without their result */
} cd_coverage;

void cd_coverage_push(cd_coverage *coverage, const cddp_event *event);

/* NULL, or why the run was judged less than its plan owes: the list of it. rank_count: ranks that
** must have said what they owe. *is_exhausted: there was no memory for the words. */
const char *cd_coverage_find_gap(const cd_coverage *coverage, uint64_t rank_count, cd_arena *arena,
                                 bool *is_exhausted);
/* What was given up, and why; "" when nothing was. NULL: no memory. */
const char *cd_coverage_print_unjudged(const cd_coverage *coverage, cd_arena *arena);
