/* SPDX-License-Identifier: Apache-2.0 */
/* One MPI group inside this process, and the declarations that its files share. */
#pragma once
#include <mpi.h>

#include "backends/guard/call_fingerprint.h"
#include "backends/guard/call_watch.h"
#include "cddp/backend.h"
#include "core/base/arena.h"
#include "core/base/os_lane.h"

typedef struct cd_mpi_group cd_mpi_group;

typedef enum cd_mpi_lane { CD_MPI_LANE_COLLECTIVE, CD_MPI_LANE_SEND, CD_MPI_LANE_RECV } cd_mpi_lane;

/* A round of fingerprints: one receive and one send for each member; the own ones are never
** started. */
typedef struct cd_mpi_round {
    const cd_mpi_group *group;
    cd_call_fingerprint *all; /* (size) */
    MPI_Request *requests;    /* (2 · size) receives, then sends */
    bool *ended;              /* (2 · size) after a time-out */
} cd_mpi_round;

typedef struct cd_mpi_work {
    cd_os_job job;  /* first: a lane returns a pointer to it */
    cd_arena arena; /* owns the work itself, and its counts */
    cd_mpi_group *group;
    cddp_collective call;
    /* (4 × size) receive counts, receive offsets, send counts, send offsets; or NULL */
    int *counts;
    MPI_Request message; /* SEND and RECV: started at post */
    uint64_t deadline_ns, timeout_ns;
    cd_mpi_round round;  /* of a collective whose round began at post; else zeros */
    cd_call_watch watch; /* its lane writes it, before the job is done */
} cd_mpi_work;

struct cd_mpi_group {
    cd_arena arena; /* owns the group itself, and its tables */
    MPI_Comm comm;
    char name[128];
    uint32_t rank, size;
    uint32_t *members; /* (size) world ranks */
    uint64_t timeout_ns;
    bool guard, types_made;
    /* MPI does not return to the lane: memory that it uses cannot be freed */
    bool is_stuck;
    cd_mpi_group *next_kept; /* next group whose memory stays with MPI */
    MPI_Datatype types[CDDP_DTYPE_COUNT];
    MPI_Op ops[CDDP_DTYPE_COUNT][CDDP_RED_COUNT]; /* MPI_OP_NULL: MPI's own operator is used */
    cd_os_lanes lanes;
    uint64_t ends_ns; /* by when the running operation has ended on all members; of its lane */
    uint64_t asks_until_ns; /* under the lanes' lock: who took no part? 0: nobody asks */
    cd_mpi_work *running;   /* under the lanes' lock */
    bool aborted;           /* under the lanes' lock */
    char abort_reason[160];
    cd_call_room room; /* of watched operations; of the collective lane */
    void *scratch;     /* (scratch_bytes) of the collective lane */
    size_t scratch_bytes;
};

extern const cddp_launcher cd_mpi_launcher; /* the MPI that this module is built for */
void cd_mpi_leave(void);
/* Abandons an operation: this process does not call MPI again (M1). */
void cd_mpi_give_up(void);
/* false after an operation was abandoned */
cddp_status cd_mpi_usable(cddp_error *err);
/* what: the name of the call */
cddp_status cd_mpi_check(int code, const char *what, cddp_error *err);
cddp_status cd_mpi_types_init(cd_mpi_group *group, cddp_error *err);
void cd_mpi_types_fini(cd_mpi_group *group);
MPI_Op cd_mpi_op(const cd_mpi_group *group, cddp_dtype dtype, cddp_red_op op);
/* Starts the messages of a collective's round, in the thread that posts it, where members are few.
** They travel while the operation before it runs. */
cddp_status cd_mpi_round_begin(cd_mpi_group *group, cd_mpi_work *work, cddp_error *err);
cddp_status cd_mpi_message_begin(cd_mpi_group *group, cd_mpi_work *work, cddp_error *err);
cddp_status cd_mpi_operation_run(cd_mpi_group *group, cd_mpi_work *work, cddp_error *err);
