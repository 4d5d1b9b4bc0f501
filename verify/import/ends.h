/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks ended whose recordings have no end: which of them hung, and which were merely ended.
**
** A rank that waits while others compute towards the same collective is no hang: they may be about
** to arrive. It hangs when one that it waits for never comes, which is known
**   E1  of a rank that ended: it returned, or its process died by itself;
**   E2  of a rank that showed no event for the stall before it was ended, while it was waited for
**       as long; or, where all have posted the operation, of all members;
**   E3  of a rank that hangs by itself: chains and cycles of ranks that wait.
** A rank whose process was gone for the stall before that of one that waits for it died by itself.
** Of a member that has no recording, or one that stopped before its program did, nobody knows what
** it posted: it is never the one that did not come, and where no other is missing nobody hangs.
** Messages of groups of more than two ranks are not paired by their numbers: only E2 is known.
**
** Lifetime   init → push every event → settle → read → fini.
** Errors     no memory.
*/
#pragma once
#include "verify/watch/watch.h"

typedef enum cd_left {
    CD_LEFT_OPEN,    /* its recording has no end, and nobody knows more */
    CD_LEFT_BY_END,  /* it has an end */
    CD_LEFT_BY_CUT,  /* its recording stopped before its program did: the rest is not known */
    CD_LEFT_BY_DEATH /* its process died by itself */
} cd_left;

typedef struct cd_ends_rank {
    cd_left left;
    uint64_t last_ns;  /* of its last event */
    uint64_t until_ns; /* its process lived; not before last_ns */
    uint64_t since_ns; /* of the wait that it has not ended */
    bool is_here;      /* its recording is there */
    bool is_running;   /* its process still runs, on this machine */
    bool has_pulse;    /* until_ns is more than the time of its last event */
    /* filled by settle, of a rank that is CD_LEFT_OPEN */
    bool is_hung, is_early; /* is_early: its process was gone long before those that waited */
} cd_ends_rank;

typedef struct cd_ends {
    cd_watch watch;
    cd_ends_rank *ranks; /* (watch.rank_count) */
    uint64_t stall_ns;
    bool has_hung; /* filled by settle: some rank */
} cd_ends;

cddp_status cd_ends_init(cd_ends *ends, uint32_t rank_count, uint64_t stall_ns,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_ends_fini(cd_ends *ends); /* accepts a zeroed one */
cddp_status cd_ends_push(cd_ends *ends, const cddp_event *event, cddp_error *err) CDDP_MUST_CHECK;
/* After ranks[].left, until_ns and has_pulse were filled in. */
cddp_status cd_ends_settle(cd_ends *ends, cddp_error *err) CDDP_MUST_CHECK;
/* "the job was ended while it waited in allreduce #7 (bucket 0, step 3), for 12 s, where rank 2 was
** missing" */
void cd_ends_print(const cd_ends *ends, uint32_t rank, char *text, size_t text_bytes);
