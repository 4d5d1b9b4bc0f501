/* SPDX-License-Identifier: Apache-2.0 */
/* A sharded optimizer behind the comm hook: every bucket's parameters are stepped by one rank, or
** by a few, which send them to the others (ZRO-10…12).
**
** Lifetime   the reducer's, from attach on; assignments are made at the end of the first backward
**            over rebuilt buckets.
** Ownership  owns one flat vector per bucket, through which parameters travel, from then until
**            fini.
** Threads    the rank's.
** Errors     as the reducer's: leaving a failed backward gives the works back.
*/
#pragma once
#include "core/ddp/reducer/reducer.h"

/* Adjacent variables of one bucket that one rank steps and broadcasts. */
typedef struct cd_zero_assignment {
    uint32_t first, count; /* variables, from the bucket's first on */
    uint32_t rank;
    cddp_tensor flat; /* what travels: the part of the bucket's flat vector */
    cddp_work *work;  /* its broadcast, under way */
} cd_zero_assignment;

struct cd_zero {
    cd_arena arena; /* owns the tables below */
    bool is_interleaved, shards_buckets;
    bool is_assigned;                /* else a backward updates nothing (ZRO-11) */
    cd_zero_assignment *assignments; /* (assignment_count) by bucket, then by rank */
    size_t assignment_count;
    size_t *starts;     /* (bucket_count + 1) of each bucket's assignments */
    cddp_tensor *flats; /* (bucket_count) owned */
    bool *has_stepped;  /* (bucket_count) in this backward */
    size_t bucket_count;
};

/* Adds the optimizer to the consumers of buckets. Refuses what a rebuilt layout, or a rank that
** steps for others, cannot be had with. */
cddp_status cd_zero_attach(cd_reducer *reducer, const cddp_optimizer_in_backward *optimizer,
                           cddp_error *err);
/* The group rank that steps a variable; -1: none yet. */
int64_t cd_zero_owner(const cd_reducer *reducer, size_t variable);
