/* SPDX-License-Identifier: Apache-2.0 */
/* The declared law of sharded optimizers: which rank steps which element. It is independent of the
** run's code.
**
** Threads    no state.
** Errors     no memory.
*/
#pragma once
#include "cddp/alloc.h"

#include <stddef.h>

/* Element e of a parameter belongs to rank (start + e) / share. */
typedef struct cd_part {
    int64_t start, share; /* share 0: every rank steps all of it */
    /* so many consecutive ranks have one copy among them: rank r has what rank r mod period has; 0:
    ** the world has one */
    int64_t period;
} cd_part;

/* The elements of a parameter that rank steps; empty when first = end. */
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
/* ZRO-12: whole buckets go to the ranks in turn. With `cut`, the smallest bucket comes first. A
** piece is as many parameters as stay below a W-th of all elements. It goes to the least loaded
** rank without a piece of this bucket. */
typedef struct cd_partition_bucket {
    const uint32_t *parameters; /* (count) positions in numels */
    size_t count;
} cd_partition_bucket;
cddp_status cd_partition_buckets(const cd_partition *partition, const cd_partition_bucket *buckets,
                                 size_t bucket_count, bool cut, cd_part *parts,
                                 cddp_error *err) CDDP_MUST_CHECK;
/* Equal slices of one vector, padded to a multiple of the ranks. */
void cd_partition_flat(const cd_partition *partition, cd_part *parts);
