/* SPDX-License-Identifier: Apache-2.0 */
/* What the judge of hooks stated, beside what was observed: a part of I-HOOK.
**
**   bucket_law     the plan's hook for a bucket: the name that is called, the bytes on the wire,
**                  and one of the things that are posted
**   bucket_sum     the shares of all ranks (or of a block) add up to every rank's result
**   bucket_slice   a gradient after finalisation is its slice of the result
**
** Lifetime   init → take … → end. Borrows the check's writer.
** Order      findings about one rank come before those about sums: they are the cause.
*/
#pragma once
#include "core/check/agree.h"
#include "core/check/writer.h"

typedef struct cd_hook_sums {
    cd_writer *writer;
    cd_table flights;  /* (rank, bucket) → what was launched last */
    cd_table slices;   /* (rank, parameter) → what its gradient must be */
    cd_table ordinals; /* (rank, bucket, number) → how many sums were stated */
    cd_table sums;     /* (how many before, bucket and number, block, group) → the sum so far */
    cd_table breaches; /* (bucket) → the earliest sum that does not add up */
    cd_table parts;    /* (how many before, bucket and number, rank, group) → what it gave */
    cd_table givers;   /* (bucket) → where ranks first did not give their share as it is */
    cd_ranks launched; /* rank → the bucket that left last, + 1 */
    cd_table culprits; /* (bucket) → the earliest step at which a rank did something else */
    cd_table posts;    /* (group, rank, sequence modulo 64) → what was posted */
    cd_table own_results; /* (bucket) → where a hook first changed what its collective delivered */
    cd_agree outputs; /* (group, sequence) → what a bucket's operation delivered, alike on all */
    uint32_t parted_step;           /* + 1: the first at which they differ */
    uint32_t wrong_step;            /* + 1: the first with a reduction that is not its sum */
    uint64_t judged, tied, members; /* members: of the group that reduces */
} cd_hook_sums;

void cd_hook_sums_init(cd_hook_sums *sums, cd_writer *writer, const cddp_allocator *allocator);
/* Events of the kinds above, and those that they are held against. */
void cd_hook_sums_take(cd_hook_sums *sums, const cddp_event *event, int64_t group);
/* Members of a group got different results of one operation, in this step or before: I-COLL's, and
** the hook's result follows from it. */
bool cd_hook_sums_has_parted(const cd_hook_sums *sums, uint32_t step);
/* Some rank did something else with the bucket, in this step or before: ranks then differ. */
bool cd_hook_sums_has_culprit(const cd_hook_sums *sums, int64_t bucket, uint32_t step);
/* Reports what does not add up, and forgets everything. */
void cd_hook_sums_end(cd_hook_sums *sums);
