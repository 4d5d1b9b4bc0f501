/* SPDX-License-Identifier: Apache-2.0 */
/* Making ranks equal: coalesced broadcast of many tensors from one rank (INI-11, INI-12, BUF-03,
** JON-12), and the same way for a reduction.
**
** Tensors of one dtype and device travel together in flat buckets of at most about 250 MiB, at most
** two in flight.
**
** Ownership  a plan borrows storage of the tensors; it owns its flat copies, and in its arena its
**            tables. With keep_storage they
**            stay for the next run, so that a steady buffer sync allocates nothing.
*/
#pragma once
#include "core/ddp/parts/bucket_plan.h"
#include "cddp/comm.h"

#define CD_BROADCAST_BYTES UINT64_C(262144000) /* 250 MiB, INI-12 */
#define CD_BROADCASTS_IN_FLIGHT 2

typedef struct cd_broadcast_bucket cd_broadcast_bucket;

/* Tensors by number; what context points to outlives the plan. */
typedef struct cd_tensor_list {
    const void *context;
    cddp_tensor (*get)(const void *context, size_t i);
} cd_tensor_list;

typedef struct cd_broadcast_plan {
    cd_arena arena;
    cd_tensor_list tensors; /* in order of registration */
    size_t tensor_count;
    cd_bucket_layout layout;
    cd_broadcast_bucket *buckets; /* (layout.bucket_count) */
    cddp_copy_pair *pairs;        /* (largest_count) */
    size_t largest_count;         /* tensors of the bucket that has most */
    bool keep_storage;
    bool reduces; /* each bucket is all-reduced, and not broadcast */
    cddp_red_op reduce_op;
} cd_broadcast_plan;

typedef struct cd_broadcast_spec {
    const cddp_allocator *allocator;
    cd_tensor_list tensors;
    size_t tensor_count;
    uint64_t limit_bytes; /* CD_BROADCAST_BYTES but in tests */
    bool keep_storage;
    bool reduces; /* its root has no meaning then */
    cddp_red_op reduce_op;
} cd_broadcast_spec;

/* No tensors: an empty plan, whose run does nothing. */
cddp_status cd_broadcast_plan_init(cd_broadcast_plan *plan, const cd_broadcast_spec *spec,
                                   cddp_error *err);
void cd_broadcast_plan_fini(cd_broadcast_plan *plan); /* accepts a zeroed plan */
cddp_status cd_broadcast_plan_run(cd_broadcast_plan *plan, cddp_group *group, uint32_t root,
                                  cddp_error *err);
/* All three for a list that is sent once. */
cddp_status cd_broadcast_coalesced(const cd_broadcast_spec *spec, cddp_group *group, uint32_t root,
                                   cddp_error *err);
