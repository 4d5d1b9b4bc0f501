/* SPDX-License-Identifier: Apache-2.0 */
/* Where each parameter lies in the buckets, per rank, as bucket_layout and rebuild events tell. */
#pragma once
#include "core/check/table.h"
#include "cddp/check.h"

typedef struct cd_place {
    int64_t bucket, slot, offset, numel, generation, dtype;
} cd_place;

typedef struct cd_layouts {
    cd_table places;  /* (rank, param) → cd_place in the newest layout */
    cd_table members; /* (rank, bucket, slot) → param, in the newest layout that had the slot */
    cd_ranks newest;  /* rank → newest generation + 1 */
} cd_layouts;

void cd_layouts_init(cd_layouts *layouts, const cddp_allocator *allocator);
void cd_layouts_fini(cd_layouts *layouts);
/* ignores other kinds */
void cd_layouts_learn(cd_layouts *layouts, const cddp_event *event);
/* NULL when unknown */
const cd_place *cd_layouts_find(const cd_layouts *layouts, uint32_t rank, int64_t param);
/* -1 before the first */
int64_t cd_layouts_generation(const cd_layouts *layouts, uint32_t rank);
/* The parameter in a slot of a bucket of the newest layout; -1 past the last. */
int64_t cd_layouts_member(const cd_layouts *layouts, uint32_t rank,
                          const int64_t bucket_and_slot[2]);
