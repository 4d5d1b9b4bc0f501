/* SPDX-License-Identifier: Apache-2.0 */
/* The few TCP calls that the rendezvous needs. Deadlines are absolute, on the monotonic clock. */
#pragma once
#include "cddp/status.h"

#define CD_TCP_PEER_BYTES 64

/* Binds to exactly host:port and listens; *port_bound is the port that was bound. */
cddp_status cd_tcp_listen(const char *host, uint16_t port, int *fd, uint16_t *port_bound,
                          cddp_error *err);
/* Connects; retries while nobody listens yet, until the deadline. */
cddp_status cd_tcp_connect(const char *host, uint16_t port, uint64_t deadline_ns, int *fd,
                           cddp_error *err);
/* Connects once: fails at once when nobody listens. */
cddp_status cd_tcp_connect_once(const char *host, uint16_t port, uint64_t deadline_ns, int *fd,
                                cddp_error *err);
/* Move the whole buffer or fail; CDDP_E_TIMEOUT at the deadline. */
cddp_status cd_tcp_write(int fd, const void *bytes, size_t byte_count, uint64_t deadline_ns,
                         cddp_error *err);
cddp_status cd_tcp_read(int fd, void *bytes, size_t byte_count, uint64_t deadline_ns,
                        cddp_error *err);
bool cd_tcp_set_nonblocking(int fd);
void cd_tcp_set_prompt(int fd); /* small messages leave at once */
/* The peer's address without its port, IPv4 in the first four bytes; zeros when unknown. */
void cd_tcp_peer_host(int fd, unsigned char host[16]);
void cd_tcp_peer_print(int fd, char text[CD_TCP_PEER_BYTES]);
/* The numeric address of this end of a connection: peers reach this process at it. */
void cd_tcp_local_print(int fd, char text[CD_TCP_PEER_BYTES]);
