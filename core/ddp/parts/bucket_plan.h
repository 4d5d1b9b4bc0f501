/* SPDX-License-Identifier: Apache-2.0 */
/* Which variable goes into which bucket: a pure function of sizes, order and limits (BKT-01…19).
**
** Ownership  a layout owns its arrays, in its arena, until fini; it may be moved.
** Errors     a refused input names the offending entry; nothing is written then.
*/
#pragma once
#include "cddp/tensor.h"
#include "core/base/arena.h"

/* One tensor, as the assignment sees it. */
typedef struct cd_bucket_input {
    uint64_t bytes;        /* numel × element size; 0 is legal (BKT-08) */
    uint64_t key;          /* (dtype, device): tensors of different keys never share a bucket */
    bool is_sparse_layout; /* refused (BKT-01) */
} cd_bucket_input;

typedef struct cd_bucket_request {
    const cd_bucket_input *inputs; /* (input_count) in the order to be assigned */
    size_t input_count;
    const uint64_t *limits; /* (limit_count) bytes, at least one; the last one repeats */
    size_t limit_count;
    const bool *expect_sparse; /* by variable index (BKT-05), or NULL */
    /* (input_count) position → variable index (arrival order), or NULL: identity */
    const uint32_t *indices;
} cd_bucket_request;

/* Buckets as runs of one index vector: bucket b holds indices[starts[b] … starts[b+1]-1]. */
typedef struct cd_bucket_layout {
    cd_arena arena;
    size_t capacity;       /* variables the arrays have room for */
    size_t variable_count; /* = starts[bucket_count] */
    size_t bucket_count;
    uint32_t *indices; /* (variable_count) */
    uint32_t *starts;  /* (bucket_count + 1) */
    uint64_t *limits;  /* (bucket_count) the limit that applied, 0 for a sparse bucket */
} cd_bucket_layout;

/* Room for `capacity` variables in at most as many buckets. */
cddp_status cd_bucket_layout_init(cd_bucket_layout *layout, size_t capacity,
                                  const cddp_allocator *allocator, cddp_error *err);
void cd_bucket_layout_fini(cd_bucket_layout *layout); /* accepts a zeroed layout */

/* compute_bucket_assignment_by_size. Without indices, buckets come sorted by smallest variable
** index; with indices in order of emission (BKT-06), left-over buckets by the arrival position of
** their first variable (BKT-07, our deterministic choice). layout: initialised, with room for every
** input. */
cddp_status cd_bucket_assignment_by_size(const cd_bucket_request *request, cd_bucket_layout *layout,
                                         cddp_error *err);
/* Reverses the list of buckets, not their contents (BKT-10). */
void cd_bucket_layout_reverse(cd_bucket_layout *layout);
/* Folds the layout into one number, for events and comparison. */
uint64_t cd_bucket_layout_digest(const cd_bucket_layout *layout);
/* CD_ASSERTs that the layout is a partition of 0 … variable_count-1 without empty buckets. */
void cd_bucket_layout_audit(const cd_bucket_layout *layout);

/* Capacities in bytes, as the reducer uses them (BKT-11, BKT-12). */
typedef struct cd_bucket_caps {
    uint64_t first_bytes;    /* limit of the first bucket */
    uint64_t capacity_bytes; /* limit of the others */
    const uint64_t *list;    /* (list_count) per-bucket limits, or NULL */
    size_t list_count;
    bool is_default; /* neither a capacity nor a list was given */
} cd_bucket_caps;

#define CD_BUCKET_LIMIT_INFINITE UINT64_MAX

/* Limits of the initial assignment and of the rebuild; written to limits[2] unless the list is
** used. Returns how many, with *chosen pointing at them. */
size_t cd_bucket_caps_initial(const cd_bucket_caps *caps, bool one_bucket, uint64_t limits[2],
                              const uint64_t **chosen);
size_t cd_bucket_caps_rebuild(const cd_bucket_caps *caps, uint64_t limits[2],
                              const uint64_t **chosen);
/* int(mib × 1048576), truncated. */
uint64_t cd_bucket_cap_bytes(double mib);
