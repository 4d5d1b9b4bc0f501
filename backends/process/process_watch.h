/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the process world: what its two parts, forked ranks and ranks that report by themselves,
** share. Nothing outside backends/process includes this. */
#pragma once
#include "cddp/process.h"
#include "backends/process/process_hub.h"
#include "backends/process/process_rank.h"
#include "backends/process/process_wire.h"
#include "core/base/arena.h"
#include "core/base/os.h"

/* A child may end without closing its pipes (a grandchild holds them), so reaping cannot wait for
** them. */
#define CD_PROCESS_POLL_NS UINT64_C(50000000)

/* A transport starts slowly on a busy machine: time-outs of operations are shorter than that. */
#define CD_PROCESS_START_PATIENCE_NS UINT64_C(20000000000)

/* One rank as the launcher sees it. */
typedef struct cd_process_watched {
    cddp_process_world *world;
    cd_os_child child;
    cd_process_inbox inbox;
    cd_process_lines lines[CD_OS_PIPE_COUNT]; /* of stdout and stderr */
    cddp_rank_result *result;                 /* borrowed until launch returns */
    uint32_t rank;
    uint32_t streams;     /* bit per cd_os_pipe that came; they end one by one */
    int64_t process;      /* its id, when it lives on this host; else 0 */
    bool has_result;      /* its record came */
    uint64_t lost_ns;     /* when its connection ended without one; 0: not */
    uint64_t stopped_ns;  /* since when it has been stopped; 0: it is not */
    bool overdue;         /* it was stopped for too long, and killed for that */
    bool was_stopped;     /* when the patience with all ended */
    char start_words[96]; /* the last line on its standard error about the start of MPI; "" */
    int said_signal;      /* that ended it, as Open MPI reports it on its standard error; 0 */
    bool stuck;           /* it never came back, and was killed for that */
    bool ended; /* reaped and drained; or it reported how it went, or its connection ended */
} cd_process_watched;

struct cddp_process_world {
    cd_arena arena; /* owns the world itself, its tables, the texts of results */
    cddp_process_options options;
    char *notes;                 /* (world_size × CD_PROCESS_NOTE_BYTES) shared with the ranks */
    char *rings;                 /* (world_size × cd_process_ring_bytes()) shared with the ranks */
    cd_process_watched *watched; /* (world_size) */
    cd_os_child *children;       /* (world_size + 2) copies, to be waited for */
    uint64_t start_ns;           /* of the launch: 0 on every rank's clock */
    uint64_t kill_ns;            /* when the patience ends; UINT64_MAX: never */
    int32_t failed;              /* first rank that failed, -1 */
    bool killed;                 /* the patience ended */
    bool interrupted;            /* because the caller wants no more */
    uint64_t look_ns;            /* when stopped ranks are looked for again */
    /* See Note [Ranks that report by themselves]. */
    cd_process_hub *hub; /* NULL: ranks are forked */
    cd_os_child starter;
    cd_process_lines starter_lines[CD_OS_PIPE_COUNT];
    char starter_words[160]; /* the last line it wrote */
    uint64_t first_lost_ns;  /* 0: no rank was lost */
    uint64_t arrived_ns;     /* when the first rank had reported; 0: none has */
    bool starter_ended;
    int starter_code, starter_signal;
    uint64_t starter_end_ns;
};

/* ---- any rank (process_world.c) ---- */

/* Takes what has arrived from one rank: everything once it has ended, else a part, since who writes
** faster than we read would keep us from all others, and events from their order. */
cddp_status cd_process_watched_drain(cd_process_watched *watched, bool has_ended,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* Hands over lines without an end. */
void cd_process_watched_end_lines(cd_process_watched *watched);
/* Fills the result of a rank that sent none, from how its process ended. */
void cd_process_watched_judge(cd_process_watched *watched, int exit_code, int signal_number);
/* The first failure of a world starts the grace period. */
void cd_process_watched_fail(cd_process_watched *watched);

/* ---- ranks that report by themselves (process_members.c) ---- */

cddp_status cd_process_members_begin(cddp_process_world *world, cddp_rank_fn program,
                                     void *argument, cddp_error *err) CDDP_MUST_CHECK;
/* Takes ranks that arrived, and their launcher's lines; *launcher and *door are then worth waiting
** for. */
cddp_status cd_process_members_take(cddp_process_world *world, cd_os_child *launcher,
                                    cd_os_child *door, cddp_error *err) CDDP_MUST_CHECK;
cddp_status cd_process_member_watch(cd_process_watched *watched, cddp_error *err) CDDP_MUST_CHECK;
void cd_process_members_kill(cddp_process_world *world);
cddp_status cd_process_members_end(cddp_process_world *world, cddp_error *err) CDDP_MUST_CHECK;
