/* SPDX-License-Identifier: Apache-2.0 */
/* A connection between every two members of a group, for fingerprints and for farewells.
**
** A round over a transport with its own event loop costs milliseconds where processors are few:
** its threads displace each other. Here the waiting thread polls the sockets itself. It also learns
** from each peer apart: who has not come, who died, and who gave up because of whom.
**
** A member may announce a fingerprint before its round, when the operation is posted. While one
** operation runs, the fingerprints of the next ones travel, and their rounds then wait for nobody.
**
** Invariants
**   N1  a member sends its k-th fingerprint when it has the (k-A)-th of everybody, A =
**       CD_MESH_AHEAD_MAX. So at most 2·A fingerprints and one farewell of a peer are unread;
**   N2  a member that fails sends one farewell, which names the rank that it missed, if it knows,
**       and exchanges nothing afterwards. Its operation ends by the deadline in its fingerprint.
**
** Lifetime   open → exchange … → close; members outlive it
** Threads    exchange from one thread, announce from one; leave and waits_for from any
** Errors     E_TIMEOUT and E_BACKEND begin with "lost rank …"; E_ABORTED after leave
*/
#pragma once
#include "backends/guard/call_fingerprint.h"
#include "cddp/rendezvous.h"

typedef struct cd_mesh cd_mesh;

typedef struct cd_mesh_options {
    uint32_t rank, size;
    const uint32_t *members; /* (size) world ranks; borrowed until close */
    const cddp_rendezvous *rendezvous;
    const char *prefix; /* of the keys, fresh for each opening; at most 200 bytes */
    uint64_t timeout_ns;
} cd_mesh_options;

/* Blocks until all members have connected. */
cddp_status cd_mesh_open(const cd_mesh_options *options, cd_mesh **mesh,
                         cddp_error *err) CDDP_MUST_CHECK;

/* Sends the own fingerprint of a later round, in the order of rounds. False: as many as allowed are
** on their way, so the round itself sends it. */
enum { CD_MESH_AHEAD_MAX = 8 };
bool cd_mesh_announce(cd_mesh *mesh, const cd_call_fingerprint *call, uint64_t deadline_ns);

typedef struct cd_mesh_round {
    cd_call_fingerprint *all; /* (size) in: the own one; out: everybody's */
    uint64_t deadline_ns;     /* on the clock of cd_os_now_ns */
    uint64_t timeout_ns;      /* for the message */
    bool is_announced;        /* the own one was sent */
} cd_mesh_round;
cddp_status cd_mesh_exchange(cd_mesh *mesh, const cd_mesh_round *round,
                             cddp_error *err) CDDP_MUST_CHECK;

#define CD_MESH_NOBODY UINT32_MAX
#define CD_MESH_UNKNOWN (UINT32_MAX - 1)
/* Ends a round in progress and says farewell, once. lost: the world rank that is missing,
** CD_MESH_UNKNOWN: an operation did not end in time, or CD_MESH_NOBODY: the group was aborted. */
void cd_mesh_leave(cd_mesh *mesh, uint32_t lost);
/* The world rank that this member, or one that said farewell, has missed; CD_MESH_NOBODY. It waits
** for farewells for a moment. */
uint32_t cd_mesh_find_lost(cd_mesh *mesh);
/* The member that a round waits for, or -1. */
int32_t cd_mesh_waits_for(const cd_mesh *mesh);
/* A member has said that an operation did not end in time there. */
bool cd_mesh_is_late(const cd_mesh *mesh);
/* After rounds that ended, an operation did not. Says farewell, and waits until everybody else has,
** or has to: ranks that still run give up at their own deadlines. Writes who is silent ("rank 2",
** "ranks 2 and 3") and returns how many. Who has ended its part of the operation may be among them,
** so only one that is silent alone is lost for certain. */
uint32_t cd_mesh_find_silent(cd_mesh *mesh, char *names, size_t names_bytes);
void cd_mesh_close(cd_mesh *mesh); /* accepts NULL */
