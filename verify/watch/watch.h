/* SPDX-License-Identifier: Apache-2.0 */
/* What a job is doing, from the events that its ranks have emitted so far.
**
** Events of one rank come in their order; how those of different ranks interleave does not matter.
** Memory grows with ranks and groups, not with steps.
**
** Lifetime   init → push…, settle, print → fini. What settle fills is valid until the next push.
** Threads    one thread.
** Errors     no memory.
*/
#pragma once
#include "cddp/run.h"
#include "core/base/arena.h"
#include "core/base/text.h"

#define CD_WATCH_POSTS 64u /* operations of a rank that are remembered, to name what it waits for */

typedef struct cd_watch_post {
    int64_t group, sequence, op, bucket;
    uint32_t step;
} cd_watch_post;

typedef struct cd_watch_rank {
    cddp_verdict_rank end; /* how it ended, or that it still runs; and its step */
    uint64_t time_ns;      /* of its last event, on the clock of `settle` */
    int64_t process;       /* as its shard says; -1: it has none, or is in a store */
    int64_t open;          /* operations posted and not done */
    int64_t waiting_group, waiting_sequence;
    uint64_t post_count;
    cd_watch_post posts[CD_WATCH_POSTS]; /* the last ones, by post_count modulo their number */
    uint16_t kind;                       /* of its last event */
    bool is_known, has_ended, is_waiting, is_last_done;
    bool is_gone;    /* its process is no more, and it said no end */
    bool is_stopped; /* its process stands still (SIGSTOP) */
    bool is_cut;     /* its recording stopped before its program did: what it does is not known */
} cd_watch_rank;

typedef struct cd_watch_group {
    int64_t id;
    char name[64];
    int64_t members; /* as one of them said; 0: nobody did */
    int64_t *posted; /* (rank_count) + 1 of the last; 0: none; -1: no member */
    bool has_messages;
    bool is_said_by_one; /* of two members: the other one has not recorded it */
} cd_watch_group;

typedef struct cd_watch {
    cd_watch_rank *ranks; /* (rank_count) */
    uint32_t rank_count;
    cd_watch_group *groups; /* (group_count) by id */
    size_t group_count, group_capacity;
    uint64_t event_count;
    bool is_abandoned; /* nobody writes its trace any more, and it has no end */
    bool is_whole;     /* its trace says that nothing comes after */
    bool is_growing;   /* a store that somebody writes: silent ranks are still to come */
    /* filled by settle */
    cddp_verdict verdict;       /* ranks and waits alone */
    uint64_t now_ns, silent_ns; /* since the last event of any rank */
    int64_t open;               /* operations of ranks that still run */
    uint32_t running;           /* ranks that have begun and not ended */
    uint32_t silent;            /* ranks of which nothing is there yet */
    cd_arena arena;             /* of the verdict */
} cd_watch;

cddp_status cd_watch_init(cd_watch *watch, uint32_t rank_count, cddp_error *err) CDDP_MUST_CHECK;
void cd_watch_fini(cd_watch *watch); /* accepts a zeroed one */
/* Its time is on the clock that settle is given. Ranks beyond rank_count are ignored. */
cddp_status cd_watch_push(cd_watch *watch, const cddp_event *event,
                          cddp_error *err) CDDP_MUST_CHECK;
/* The recorder of a rank failed, and its program went on. */
bool cd_watch_is_failure(const cddp_event *event);
const cd_watch_group *cd_watch_find_group(const cd_watch *watch, int64_t id); /* NULL: unknown */
/* Members that may have posted the operation, as nothing is known of them that far: they have shown
** nothing, or their recording stopped before their program did. */
uint32_t cd_watch_count_unknown(const cd_watch *watch, const cd_watch_group *group,
                                int64_t sequence);
/* Who waits for whom now. */
cddp_status cd_watch_settle(cd_watch *watch, uint64_t now_ns, cddp_error *err) CDDP_MUST_CHECK;

/* What the page says besides. */
typedef struct cd_watch_page {
    const char *source, *program; /* program "": not known */
    uint64_t stall_ns;            /* so long without an event, while an operation is open */
} cd_watch_page;

/* It has begun, as its events or its shard show, and has not ended. */
bool cd_watch_is_running(const cd_watch *watch, uint32_t rank);
/* After settle. Nothing will come any more. Before the first event nobody knows. */
bool cd_watch_is_over(const cd_watch *watch);
/* After settle. Its ranks or their judge ended, and said no end: nothing will come any more. */
bool cd_watch_is_dead(const cd_watch *watch);
bool cd_watch_is_stalled(const cd_watch *watch, const cd_watch_page *page);
void cd_watch_print(const cd_watch *watch, const cd_watch_page *page, cd_text *text);
void cd_watch_print_json(const cd_watch *watch, const cd_watch_page *page, cd_text *text);
