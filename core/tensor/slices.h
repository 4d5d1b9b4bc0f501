/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of shards: who has which elements of a vector, and who has which whole tensor.
**
** Note [Slices of a vector] N elements on W ranks make slices of ⌈N/W⌉ elements, and rank r has
** [r·⌈N/W⌉, (r+1)·⌈N/W⌉). Leading ranks have full slices. The slice of a trailing rank may end in
** padding, or be nothing else (N = 1, W = 4: one element, then three ranks of padding). Padding is
** at the end of each rank's slice and belongs to nobody.
**
** Not here: what the judge expects of it (core/oracle/partition.c, written apart).
*/
#pragma once
#include "cddp/status.h"

/* Elements [first, end) of a vector; none where both are equal. */
typedef struct cd_range {
    int64_t first, end;
} cd_range;

/* Elements of one slice with its padding: ⌈numel/world⌉. */
int64_t cd_slice_length(int64_t numel, uint32_t world);
/* `count` elements from `first` on, as far as a vector of numel elements has them. */
cd_range cd_range_clipped(int64_t first, int64_t count, int64_t numel);
/* What of slice `rank` is there: slices have `length` elements, the vector has numel. */
cd_range cd_slice_of(int64_t numel, int64_t length, uint32_t rank);
/* The part of a tensor at [first, end) of the vector that lies in a range of the vector, counted
** from the tensor's first element; {0, 0} when there is none. */
cd_range cd_range_within(cd_range range, int64_t first, int64_t end);
static inline int64_t cd_range_numel(cd_range range) { return range.end - range.first; }

/* Positions 0 … count-1, the largest tensor first; of equally large ones the first comes first.
** order: (count) */
void cd_owners_order_by_size(const int64_t *numels, size_t count, uint32_t *order);
/* The rank with the smallest load, the lowest of several; `world` when all are excluded.
** loads: (world). excluded: (world), or NULL: none. */
uint32_t cd_owners_least(const int64_t *loads, const bool *excluded, uint32_t world);
/* Greedy by load: each tensor in this order goes to the least loaded rank. loads: (world), grown by
** what each rank is given. owners: (count) */
void cd_owners_assign(const int64_t *numels, const uint32_t *order, size_t count, int64_t *loads,
                      uint32_t world, uint32_t *owners);
