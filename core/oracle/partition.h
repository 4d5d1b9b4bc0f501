/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank has to step which element, where optimizers are sharded: the declared law, found apart
** from the run's own.
**
** Threads    no state.
** Errors     no memory.
*/
#pragma once
#include "cddp/alloc.h"

#include <stddef.h>

/* Element e of a parameter is that of rank (start + e) / share. */
typedef struct cd_part {
    int64_t start, share; /* share 0: every rank steps all of it */
} cd_part;

/* Of a parameter of numel elements: what rank steps; empty when first = end. */
typedef struct cd_part_range {
    int64_t first, end;
} cd_part_range;
cd_part_range cd_part_get(const cd_part *part, int64_t numel, uint32_t rank);

/* One optimizer's parameters. numels and parts: (count). */
typedef struct cd_partition {
    const int64_t *numels;
    size_t count;
    uint32_t world;
    const cddp_allocator *allocator;
} cd_partition;
/* ZRO-01: whole parameters, by greedy load. */
cddp_status cd_partition_whole(const cd_partition *partition, bool by_size, cd_part *parts,
                               cddp_error *err) CDDP_MUST_CHECK;
/* ZRO-12: buckets, in their order, each a rank's alone, in turn; or, when they may be cut, the
** smallest first, and in each as many parameters together as stay below a W-th of all elements, to
** the rank with the least load that has nothing of this bucket. */
typedef struct cd_partition_bucket {
    const uint32_t *parameters; /* (count) positions in numels */
    size_t count;
} cd_partition_bucket;
cddp_status cd_partition_buckets(const cd_partition *partition, const cd_partition_bucket *buckets,
                                 size_t bucket_count, bool cut, cd_part *parts,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* Equal slices of one vector, padded to a multiple of the ranks. */
void cd_partition_flat(const cd_partition *partition, cd_part *parts);
