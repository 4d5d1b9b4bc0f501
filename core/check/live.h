/* SPDX-License-Identifier: Apache-2.0 */
/* What I-LIVE knows of the ranks of a trace, and what its files ask each other.
**
**   live.c           takes the events, and ends the check
**   live_chain.c     who waits for whom
**   live_reported.c  the finding about a rank that waits forever
**   live_store.c     the same at the rendezvous store
**   live_wait.c      every wait that has not ended
*/
#pragma once
#include "core/check/circle.h"
#include "core/check/writer.h"

typedef struct cd_live_member {
    int64_t posted, index;
    int64_t last_op; /* that it posted under the last number */
    /* + 1: the last message that names its own sender or receiver as the other one */
    int64_t to_itself;
    uint64_t itself_sequence; /* of that post */
    int64_t digest;           /* of both members, where there are two */
    bool is_open, has_messages;
} cd_live_member;

/* A rank at the rendezvous store: its last attempt. */
typedef struct cd_live_meeting {
    /* when it came; since it waits; when it gave up, and the event that says so */
    uint64_t first_ns, begin_ns, end_ns, sequence;
    int64_t host, missing, attempts;
    bool has_come, has_given_up, is_cut;
    char key[64]; /* that it asked for last */
} cd_live_meeting;

typedef struct cd_live_rank {
    int64_t waiting_group, waiting_sequence; /* of the wait that has not ended */
    uint64_t wait_sequence, end_sequence;
    uint32_t step, micro_step; /* of its last event */
    int64_t end, status, wait_status;
    int64_t reported_peer; /* + 1: for whom the world says that it waits outside a collective … */
    int64_t reported_inside; /* + 1: … and inside one */
    cd_live_meeting meeting;
    bool is_waiting, has_ended, has_given_up, has_timed_out, is_struck, is_known;
    uint64_t end_ns;
    bool is_shadow; /* its inputs ran out: it joins in the others' operations */
    uint64_t given_up_ns;
    uint64_t kept_from_ns, kept_until_ns; /* by a planted hang, which may be behind the post */
    int64_t cause;                        /* + 1: of the operation that it posts next */
    /* of a comm hook that it called and that has not posted or returned since; "": none */
    char hook[48];
    int64_t hook_bucket;
    const char *how; /* it ended, where it did not return */
    char call[96];   /* where it ended, as its world said it: "save of hook x"; "": nobody said */
    int64_t aborter; /* + 1: who aborted the group of the operation that it waited for */
    char error[200]; /* with which it returned; "": without one */
} cd_live_rank;

/* What some ranks posted under one number, with the least of them. */
typedef struct cd_live_posted {
    int64_t data[5], bucket;
    int64_t step;     /* of a bucket's operation, else -1: buckets of one step belong together */
    int64_t reporter; /* + 1 */
    uint32_t count;
    int64_t index; /* of the reporter in the group */
} cd_live_posted;

/* As the least rank posted it, and as others did. When the last came, who may have come too late
** for others. */
typedef struct cd_live_operation {
    cd_live_posted first, other;
    uint64_t last_ns;
    uint32_t last_rank;
} cd_live_operation;

/* An operation that was posted as another one completed. A wait for it occupies the thread on which
** operations complete. */
typedef struct cd_live_continuation {
    int64_t cause; /* k-th of its group */
    bool is_done, is_waited_for;
} cd_live_continuation;

typedef struct cd_live {
    cd_writer writer;
    cd_ranks ranks;         /* of cd_live_rank */
    cd_table members;       /* (group, rank) → cd_live_member */
    cd_table operations;    /* (group, k) → cd_live_operation */
    cd_table continuations; /* (group, k, rank) → cd_live_continuation */
    cd_table aborts;        /* group → the first rank that aborted it, + 1 */
    cd_circles circles;
    uint64_t waits;
    bool has_fault;
    int64_t endless;  /* + 1: the rank whose going on made the world end */
    char parted[160]; /* what a fault of the network itself said; "" without one */
    uint64_t parted_sequence;
    char edges[200]; /* "rank 1 waits for rank 2, …", as the world reported them */
} cd_live;

typedef struct cd_live_chain {
    uint32_t first, root;
    cd_rank_set who;
    uint32_t length;
    bool is_cycle;
} cd_live_chain;

/* ---- live.c ---- */

/* Both send to each other, or both receive from each other. */
bool cd_live_is_same_side(const cd_live_posted *a, const cd_live_posted *b);

/* ---- live_chain.c ---- */

bool cd_live_is_stuck(const cd_live_rank *rank);
bool cd_live_is_gone(const cd_live_rank *rank); /* accepts NULL */
bool cd_live_has_died(const cd_live_rank *rank);
bool cd_live_is_lost(const cd_live_rank *rank); /* accepts NULL */
bool cd_live_has_lost(const cd_live_rank *rank);
bool cd_live_is_in_hook(const cd_live_rank *rank);
bool cd_live_is_unknown(cd_live *live, const cd_live_rank *rank, cd_rank_set *lost,
                        uint32_t *absent);
/* Ranks that keep `rank` waiting; -1: none. */
int64_t cd_live_find_dead(const cd_live *live, const cd_live_rank *rank);
int64_t cd_live_find_missing(const cd_live *live, const cd_live_rank *rank);
int64_t cd_live_find_stopped(const cd_live *live, const cd_live_rank *rank);
int64_t cd_live_find_itself(const cd_live *live, const cd_live_rank *rank);
int64_t cd_live_next_of(const cd_live *live, const cd_live_rank *rank);
cd_live_chain cd_live_follow(cd_live *live, uint32_t from);
void cd_live_describe_place(const cd_live_rank *rank, char *text, size_t text_bytes);
void cd_live_describe_end(const cd_live_rank *rank, char *text, size_t text_bytes);

/* ---- live_reported.c ---- */

/* An operation as `rank` posted it. */
const cd_live_posted *cd_live_posted_by(const cd_live_operation *operation, uint32_t rank);
/* The member that posted what `rank` waited for when others had given up; -1: none. */
int64_t cd_live_find_late(const cd_live *live, const cd_live_rank *rank);
uint64_t cd_live_lateness(const cd_live *live, const cd_live_rank *rank, uint32_t peer);
void cd_live_report(cd_live *live, uint32_t rank);

/* ---- live_store.c ---- */

int64_t cd_live_first_to_give_up(const cd_live *live); /* -1: none */
void cd_live_report_meeting(cd_live *live, uint32_t first);

/* ---- live_wait.c ---- */

bool cd_live_is_wait(const cd_live *live, const cd_live_rank *rank);
void cd_live_report_wait(cd_live *live, uint32_t rank, const cd_live_rank *facts);
