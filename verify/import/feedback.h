/* SPDX-License-Identifier: Apache-2.0 */
/* Does a comm hook with error feedback begin with the error that its last call kept? A rank that
** forgets it alone loses a part of its gradients for good, and no law of a single call shows that.
**
** PyTorch's recorder looks at the error of a bucket as a call ends and as the next one begins.
** CD_FEEDBACK_CHANGED, with the bucket, says that it was another one. A change on all ranks may be
** meant: the program begins anew.
**
** Lifetime   init → push every event → find, count → fini.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"

#define CD_FEEDBACK_CHANGED "hook error changed"

typedef struct cd_feedback_rank {
    uint64_t changes; /* a digest of what changed when; 0: nothing ever did */
    uint64_t count;
    int64_t group;  /* of its wrapper */
    int64_t bucket; /* of the first change */
    uint32_t step;
    bool has_wrapper;
} cd_feedback_rank;

typedef struct cd_feedback {
    const cddp_allocator *allocator;
    cd_feedback_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
} cd_feedback;

cddp_status cd_feedback_init(cd_feedback *feedback, uint32_t rank_count,
                             const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
void cd_feedback_fini(cd_feedback *feedback); /* accepts a zeroed one */
/* event->rank is below rank_count. */
void cd_feedback_push(cd_feedback *feedback, const cddp_event *event);
/* The first rank whose error changed, and not alike on all ranks of its group. */
bool cd_feedback_find(const cd_feedback *feedback, uint32_t *rank);
/* Changes of the rank with most of them. */
uint64_t cd_feedback_count(const cd_feedback *feedback);
