/* SPDX-License-Identifier: Apache-2.0 */
/* A store link over a socket. */
#define _POSIX_C_SOURCE 200809L
#include "backends/rendezvous/client.h"
#include "backends/rendezvous/tcp.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct tcp_link {
    const cddp_allocator *allocator;
    int fd; /* -1: not connected */
    char host[256];
    uint16_t port;
    char peer[264];
} tcp_link;

static uint64_t tcp_now_ns(void *self)
{
    (void)self;
    return cd_os_now_ns();
}

static void tcp_disconnect(void *self)
{
    tcp_link *c = self;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static cddp_status tcp_connect(void *self, uint64_t deadline_ns, char local[CD_STORE_LOCAL_BYTES],
                               cddp_error *err)
{
    tcp_link *c = self;
    CD_TRY(cd_tcp_connect(c->host, c->port, deadline_ns, &c->fd, err));
    cd_tcp_local_print(c->fd, local);
    return CDDP_OK;
}

static cddp_status tcp_write(void *self, const void *bytes, size_t byte_count, uint64_t deadline_ns,
                             cddp_error *err)
{
    const tcp_link *c = self;
    return CD_PASS(cd_tcp_write(c->fd, bytes, byte_count, deadline_ns, err));
}

static cddp_status tcp_read(void *self, void *bytes, size_t byte_count, uint64_t deadline_ns,
                            cddp_error *err)
{
    const tcp_link *c = self;
    return CD_PASS(cd_tcp_read(c->fd, bytes, byte_count, deadline_ns, err));
}

static void tcp_close(void *self)
{
    tcp_link *c = self;
    tcp_disconnect(c);
    cd_release(c->allocator, c, sizeof *c);
}

static cddp_status parse_host(const char *rest, tcp_link *c, cddp_error *err)
{
    const char *colon = strrchr(rest, ':');
    char *end = NULL;
    unsigned long port = colon != NULL ? strtoul(colon + 1, &end, 10) : 0;
    if (colon == NULL || colon == rest || end == colon + 1 || *end != '\0' || port == 0 ||
        port > 65535)
        return cd_fail(err, CDDP_E_CONFIG, "rendezvous 'tcp://%s' is not tcp://host:port", rest);
    size_t length = (size_t)(colon - rest);
    bool bracketed = rest[0] == '[' && colon[-1] == ']'; /* [::1]:29500 */
    if (bracketed) {
        rest++;
        length -= 2;
    }
    if (length == 0 || length >= sizeof c->host)
        return cd_fail(err, CDDP_E_CONFIG, "rendezvous host in 'tcp://%s' is empty or too long",
                       rest);
    memcpy(c->host, rest, length);
    c->host[length] = '\0';
    c->port = (uint16_t)port;
    return CDDP_OK;
}

cddp_status cd_tcp_store_open(const cddp_rendezvous_options *o, const char *host_and_port,
                              cddp_rendezvous **rendezvous, cddp_error *err)
{
    tcp_link *c = cd_allocate_zero(o->allocator, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "a rendezvous client");
    c->allocator = o->allocator;
    c->fd = -1;
    cddp_status status = parse_host(host_and_port, c, err);
    if (status != CDDP_OK) {
        tcp_close(c);
        return status;
    }
    snprintf(c->peer, sizeof c->peer, "%s:%u", c->host, (unsigned)c->port);
    const cd_store_link link = {c,         c->peer,  tcp_now_ns,     tcp_connect,
                                tcp_write, tcp_read, tcp_disconnect, tcp_close};
    return CD_PASS(cd_store_client_open(o, &link, rendezvous, err));
}
