/* SPDX-License-Identifier: Apache-2.0 */
/* One Gloo group inside this process: a context, a queue thread that runs operations in order of
** posting, and lanes that wait for point-to-point messages.
**
** Threads    SIGPIPE is blocked wherever Gloo may write to a socket: the library writes without
**            MSG_NOSIGNAL. The event loop's thread inherits the mask from the lane that opens the
**            context.
** Locks      the lanes' lock also guards `waiting_peer`, `aborted` and `abort_reason`.
*/
#pragma once
#include "backends/gloo/gloo_shim.h"
#include "backends/guard/call_watch.h"
#include "backends/guard/mesh.h"
#include "cddp/backend.h"
#include "cddp/rendezvous.h"
#include "core/base/arena.h"
#include "core/base/os_lane.h"

typedef struct cd_gloo_group cd_gloo_group;
typedef struct cd_gloo_work cd_gloo_work;

/* Receives from each peer have a lane: Gloo can only wait for one, and what another peer sends must
** not wait for it. */
typedef enum cd_gloo_lane {
    CD_GLOO_LANE_COLLECTIVE,
    CD_GLOO_LANE_SEND,
    CD_GLOO_LANE_RECV = CD_OS_LANES_MAX /* from member 0 */
} cd_gloo_lane;

struct cd_gloo_work {
    cd_os_job job;  /* first: a lane returns a pointer to it */
    cd_arena arena; /* owns the work itself, and its counts */
    cd_gloo_group *group;
    cddp_collective call;
    int64_t *counts;         /* copies of call.counts and call.send_counts, or NULL */
    cd_gloo_buffer *message; /* SEND and RECV: started at post */
    bool lost_its_peer;      /* SEND and RECV: that connection ended, and no other one */
    uint64_t deadline_ns, timeout_ns;
    cd_call_fingerprint fingerprint; /* of a guarded collective */
    bool is_announced;               /* its fingerprint was sent at post */
    cd_call_watch watch;             /* its lane writes it, before the job is done */
};

struct cd_gloo_group {
    cd_arena arena; /* owns the group itself, and its members */
    cd_gloo *gloo;
    const cddp_rendezvous *rendezvous;
    cddp_error store_error; /* of the rendezvous, while the context opens */
    const cddp_allocator *allocator;
    char name[128];
    char prefix[200]; /* of rendezvous keys: the group's name and how often that was opened */
    uint32_t rank, size;
    uint32_t *members; /* (size) world ranks, for messages */
    uint64_t timeout_ns;
    cd_mesh *mesh; /* for fingerprints before each collective, or NULL: guard=0, or one rank */
    bool guard;
    bool own_ring; /* use our ring over unbound buffers instead of the library's */
    bool batch;    /* the event loop displaces no other thread */
    cd_os_lanes lanes;
    cd_os_lane *receives; /* (size) */
    int32_t waiting_peer; /* the peer that the collective lane waits for, or -1; under lock */
    bool aborted;         /* under lock; abort_reason is written first and never changes */
    char abort_reason[160];
    uint32_t lost;          /* under lock: a world rank whose message failed, or CD_MESH_NOBODY */
    cddp_op op;             /* the running one; of the collective lane */
    cd_call_room room;      /* of watched operations; of the collective lane */
    unsigned char *scratch; /* (scratch_bytes) of the collective lane */
    size_t scratch_bytes;
};

/* Runs one collective on the collective lane. */
cddp_status cd_gloo_collective_run(cd_gloo_group *group, cd_gloo_work *work, cddp_error *err);
/* Memory that lives until the next call; NULL when memory is exhausted. */
void *cd_gloo_scratch(cd_gloo_group *group, size_t bytes);

/* ---- messages between two members, for collectives: blocking, abortable, errors name the peer
** ---- */

typedef struct cd_gloo_message {
    cd_gloo_buffer *buffer;
    uint32_t peer;
    bool sends;
} cd_gloo_message;

/* slot distinguishes the messages of one operation; it is combined with the operation's sequence
** number. */
cddp_status cd_gloo_message_begin(cd_gloo_group *group, const cd_gloo_work *work,
                                  cd_gloo_message *message, void *data, size_t bytes, uint32_t slot,
                                  cddp_error *err);
cddp_status cd_gloo_message_end(cd_gloo_group *group, const cd_gloo_work *work,
                                cd_gloo_message *message, cddp_error *err);
/* Gives up a message whose operation failed elsewhere. */
void cd_gloo_message_drop(cd_gloo_message *message);

int64_t cd_gloo_milliseconds_left(const cd_gloo_work *work);
bool cd_gloo_is_aborted(cd_gloo_group *group);
/* Turns a code and Gloo's text into a status; peer is -1 when unknown. After an abort the error
** reports the abort. */
cddp_status cd_gloo_fail(cd_gloo_group *group, cd_gloo_code code, int64_t peer, const char *text,
                         cddp_error *err);
/* In the lane of collectives. Where the group has a guard, ranks that took no part are named: that
** can take as long as their time-outs, and two seconds. */
cddp_status cd_gloo_fail_collective(cd_gloo_group *group, cd_gloo_code code, int64_t peer,
                                    const char *text, cddp_error *err);
