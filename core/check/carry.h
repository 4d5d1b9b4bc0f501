/* SPDX-License-Identifier: Apache-2.0 */
/* What the reducer reports of a bucket, compared with what the group saw: the two come from
** different layers.
**
** Judged from   bucket_launch and bucket_done (the reducer's report), collective_post and
**               collective_done (the group's), hook_call.
**     a bucket that was launched is carried by a collective of its group before it is done;
**     what was posted is what was launched, and what arrived is what the reducer reports.
**     Of a sparse bucket, whose gradients travel as rows in several operations, and where nobody
**     reports digests, only the first of these.
**               And what the reducer says of a bucket's slices, by itself: what was launched is
**               what mark_ready says was packed, and what was written back is what grad_final says
**               of the slice. Both hold under a comm hook, too.
** Limits        what a comm hook sends of a bucket is not judged: the hook decides it, and its
**               operations may still be in flight when its result is there.
*/
#pragma once
#include "core/check/writer.h"

typedef struct cd_carries {
    cd_writer *writer;
    cd_table buckets; /* (rank, bucket) → the launch that is open */
    cd_table windows; /* (rank, group) → from where on operations are numbered */
    cd_table posts;   /* (rank, group, number) → which bucket it carries */
    cd_table slots;   /* (rank, bucket, slot) → what was packed there */
    cd_ranks labels;  /* rank → 1 when its group reports what operations carry */
    uint64_t done;    /* buckets followed from launch to result */
} cd_carries;

/* writer: who reports; it must outlive this. */
void cd_carries_init(cd_carries *carries, cd_writer *writer);
void cd_carries_fini(cd_carries *carries);
void cd_carries_learn(cd_carries *carries, const cddp_event *event); /* ignores other kinds */
