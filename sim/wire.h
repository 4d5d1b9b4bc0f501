/* SPDX-License-Identifier: Apache-2.0 */
/* A byte stream between ranks and a server that lives on one of them, as a store's sockets are: a simulated TCP.
**
** The server is passive: it is fed what arrives and asked what it has to say. It answers as long as its host lives:
*bytes
** to a killed host are lost in silence, and one whose program has returned closes its connections.
**
** A write ends when the last byte has arrived; a read pays the way back. Costs are those of the world's links, without
** contention.
**
** Lifetime   in the caller's storage, outside the world's block: snapshots do not cover it. init → … → fini.
** Threads    the world's.
** Errors     CDDP_E_TIMEOUT at a deadline of virtual time, CDDP_E_IO for a closed connection, CDDP_E_ABORTED when the
*world
**            has ended.
*/
#pragma once
#include "sim/world.h"

typedef struct cd_wire_server_ops {
    /* does: takes bytes of a client that arrived. false: the client is to be dropped. */
    bool (*feed)(void *self, uint32_t client, const void *bytes, size_t byte_count);
    /* does: gives at most `room` bytes for a client; returns how many. Others' bytes may have made them ready. */
    size_t (*take)(void *self, uint32_t client, void *bytes, size_t room);
    /* does: forgets a client that went, or greets one that came. */
    void (*reset)(void *self, uint32_t client);
} cd_wire_server_ops;

typedef struct cd_wire cd_wire;

/* One server for all ranks of the world; nobody listens yet. */
cddp_status cd_wire_create(cd_sim *sim, const cd_wire_server_ops *ops, void *self, cd_wire **wire,
                           cddp_error *err) CDDP_MUST_CHECK;
void cd_wire_destroy(cd_wire *wire); /* accepts NULL */

/* From now on the server is on this rank. */
void cd_wire_listen(cd_wire *wire, const cddp_rank *host);
/* As a client, on the rank's own stack. connect is patient while nobody listens. */
cddp_status cd_wire_connect(cd_wire *wire, cddp_rank *rank, uint64_t deadline_ns, cddp_error *err);
void cd_wire_disconnect(cd_wire *wire, const cddp_rank *rank);
cddp_status cd_wire_write(cd_wire *wire, cddp_rank *rank, const void *bytes, size_t byte_count, uint64_t deadline_ns,
                          cddp_error *err);
cddp_status cd_wire_read(cd_wire *wire, cddp_rank *rank, void *bytes, size_t byte_count, uint64_t deadline_ns,
                         cddp_error *err);
