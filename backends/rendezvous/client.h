/* SPDX-License-Identifier: Apache-2.0 */
/* The two clients behind cddp_rendezvous_open: one of a directory, one of a server over a
** link. */
#pragma once
#include "cddp/rendezvous.h"

/* directory: the text after file://. */
cddp_status cd_file_store_open(const cddp_rendezvous_options *options, const char *directory,
                               cddp_rendezvous **rendezvous, cddp_error *err);
void cd_file_store_close(cddp_rendezvous *rendezvous);

#define CD_STORE_LOCAL_BYTES 64

/* Bytes to a server and back, in order: sockets, or simulated wires. Deadlines are on the link's
** own clock. */
typedef struct cd_store_link {
    void *self;
    const char *peer; /* for messages: "127.0.0.1:29500"; lives as long as self */
    uint64_t (*now_ns)(void *self);
    /* does: connects, and retries while nobody listens yet; then sets local to the address at
    ** which peers reach this end. */
    cddp_status (*connect)(void *self, uint64_t deadline_ns, char local[CD_STORE_LOCAL_BYTES],
                           cddp_error *err);
    /* does: moves the whole buffer or fails; CDDP_E_TIMEOUT at the deadline. */
    cddp_status (*write)(void *self, const void *bytes, size_t byte_count, uint64_t deadline_ns,
                         cddp_error *err);
    cddp_status (*read)(void *self, void *bytes, size_t byte_count, uint64_t deadline_ns,
                        cddp_error *err);
    void (*disconnect)(void *self); /* does: nothing when not connected */
    void (*close)(void *self);      /* (optional) frees self; disconnect was called before */
} cd_store_link;

/* host_and_port: the text after tcp://. */
cddp_status cd_tcp_store_open(const cddp_rendezvous_options *options, const char *host_and_port,
                              cddp_rendezvous **rendezvous, cddp_error *err);

/* Opens the client of a kv server over any link. Takes the link, also when it fails. */
cddp_status cd_store_client_open(const cddp_rendezvous_options *options, const cd_store_link *link,
                                 cddp_rendezvous **rendezvous, cddp_error *err);
