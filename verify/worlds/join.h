/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose processes somebody else started, one per rank: torchrun, srun, a script. They meet in
** a store that rank 0 serves. Rank 0 is the judge, who gives one order per run and at the end its
** exit code; every other process forks a rank per order and leaves with that code.
**
** Lifetime   read → begin → follow (ranks above 0) → end. Borrows nothing.
** Threads    one; begin and follow fork.
** Errors     a rank that does not come, comes twice, or was started for another number of ranks is
**            named, on rank 0 and on itself.
*/
#pragma once
#include "cddp/backend.h"
#include "cddp/process.h"
#include "cddp/rendezvous.h"

typedef struct cd_join {
    uint32_t rank, world_size;
    char host[208];      /* of rank 0: where it serves the store, and hears of its ranks */
    uint16_t port;       /* 0: any; ranks read it from the directory */
    char directory[512]; /* "": none is needed */
    bool is_published;   /* rank 0: there */
    char secret[72];     /* "": none */
    bool has_own_secret; /* the user gave it */
    char url[240];       /* of the store, once it is known */
    char variables[48];  /* those that said which rank this is, for messages */
    uint64_t order;      /* of the run */
    bool one_host;       /* rank 0: all processes are on this machine */
    cddp_rendezvous *store;
    int64_t server; /* rank 0: the process that serves the store; 0: none */
} cd_join;

/* The next order of rank 0. */
typedef struct cd_join_order {
    /* this process was forked for one run: hub and run say which; false: the job has ended */
    bool is_rank;
    char hub[CDDP_PROCESS_ADDRESS_BYTES];
    uint64_t run;
    int exit_code;
} cd_join_order;

typedef struct cd_join_waiting {
    uint64_t patience_ns;      /* for all ranks to come */
    bool (*interrupted)(void); /* true: wait no longer */
} cd_join_waiting;

/* url: "env://", "tcp://host:port" or "file:///directory"; NULL: env:// when the variables of a
** launcher are there. *found false, and join untouched: there is no such job. */
cddp_status cd_join_read(cddp_environment_fn environment, const char *url, cd_join *join,
                         bool *found, cddp_error *err) CDDP_MUST_CHECK;
/* For who joins a job of MPI ranks or begins one: fails when variables make this process one of
** several that were not started so, since each of them would do the whole of it, as `what` says:
** "start all ranks". */
cddp_status cd_join_refuse(cddp_environment_fn environment, const char *what,
                           cddp_error *err) CDDP_MUST_CHECK;
/* The number that an MPI launcher gave to this process, as it wrote it; NULL: nobody started it so,
** or it is a rank of a run. */
const char *cd_join_find_launched(cddp_environment_fn environment);
/* url from host and port. */
void cd_join_make_url(cd_join *join);
/* Blocks until all have come (rank 0), or until rank 0 has. After a failure, too, end is to be
** called. */
cddp_status cd_join_begin(cd_join *join, const cd_join_waiting *waiting,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Ranks above 0. Returns in a child for every run, and here when rank 0 has ended. */
cddp_status cd_join_follow(cd_join *join, const cd_join_waiting *waiting, cd_join_order *order,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Rank 0, in the process of its rank: the order for the run numbered join->order, judged at this
** address. */
cddp_status cd_join_announce(const cd_join *join, uint64_t run, const char *address,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Rank 0: all leave with this code. Others and those that never began: nothing but cleaning up. */
void cd_join_end(cd_join *join, int exit_code);
