/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated TCP: a byte stream between ranks and a server on one of them, such as a store.
**
** The server is passive: it receives bytes and is asked for its answers. It answers while its host
** lives. Bytes to a killed host are lost without a notice. A host that hangs for a while gets them
** when it continues. A host whose program has returned closes its connections. Bytes on a cut link
** arrive when it heals.
**
** A write ends when the last byte has arrived; a read pays the way back. Costs are those of the
** world's links, without contention. Answers depend on the order of requests, so every write counts
** as a race (cd_sim_stats).
**
** Lifetime   create → listen … → destroy. With a rank's allocator it lies in the world's block: a
**            snapshot covers it, and it ends with the run.
** Threads    the world's.
** Errors     CDDP_E_TIMEOUT at a deadline of virtual time, CDDP_E_IO for a closed connection,
**            CDDP_E_ABORTED when the world has ended.
*/
#pragma once
#include "sim/world.h"

typedef struct cd_wire_server_ops {
    /* does: takes bytes of a client that arrived. false: the client is to be dropped. */
    bool (*feed)(void *self, uint32_t client, const void *bytes, size_t byte_count);
    /* does: gives at most `room` bytes for a client; returns how many. Others' bytes may have made
    ** them ready. */
    size_t (*take)(void *self, uint32_t client, void *bytes, size_t room);
    /* does: would take give anything? */
    bool (*has_answer)(void *self, uint32_t client);
    /* does: forgets a client that went, or greets one that came. */
    void (*reset)(void *self, uint32_t client);
} cd_wire_server_ops;

typedef struct cd_wire_options {
    cd_wire_server_ops ops;
    void *self;
    const cddp_allocator *allocator; /* NULL: the process heap */
} cd_wire_options;

typedef struct cd_wire cd_wire;

/* One server for all ranks of the world; no host listens yet. */
cddp_status cd_wire_create(cd_sim *sim, const cd_wire_options *options, cd_wire **wire,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_wire_destroy(cd_wire *wire); /* accepts NULL */

/* From now on the server is on this rank. */
void cd_wire_listen(cd_wire *wire, const cddp_rank *host);

/* The state of the server, for messages about a failure. */
typedef enum cd_wire_state {
    CD_WIRE_ABSENT, /* no host listens: not yet, or the host's program has returned */
    CD_WIRE_ALIVE,
    CD_WIRE_SILENT, /* the host is dead, or hangs */
    CD_WIRE_CUT     /* the network between them is cut, for a while or for good */
} cd_wire_state;
cd_wire_state cd_wire_look(const cd_wire *wire, const cddp_rank *rank);

/* For a client, on the rank's own stack. connect retries while no host listens. */
cddp_status cd_wire_connect(cd_wire *wire, cddp_rank *rank, uint64_t deadline_ns, cddp_error *err);
void cd_wire_disconnect(cd_wire *wire, const cddp_rank *rank);
cddp_status cd_wire_write(cd_wire *wire, cddp_rank *rank, const void *bytes, size_t byte_count,
                          uint64_t deadline_ns, cddp_error *err);
cddp_status cd_wire_read(cd_wire *wire, cddp_rank *rank, void *bytes, size_t byte_count,
                         uint64_t deadline_ns, cddp_error *err);
