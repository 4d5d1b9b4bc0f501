/* SPDX-License-Identifier: Apache-2.0 */
/* Hellos are of one size, so a connection is either complete or waits for the rest of its hello; it
** has no say in anything before that. */
#define _POSIX_C_SOURCE 200809L
#include "backends/process/process_hub.h"

#include "backends/rendezvous/tcp.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELLO_MAGIC UINT32_C(0x31424843) /* "CHB1" in memory on little-endian hosts */
#define SECRET_BYTES 16
#define WAITING_MAX 64
#define HELLO_PATIENCE_NS UINT64_C(5000000000)
#define ANSWER_PATIENCE_NS UINT64_C(3000000000) /* of a host that says nothing at all */

typedef struct hello_record {
    uint32_t magic;
    unsigned char secret[SECRET_BYTES];
    cd_process_hello who;
} hello_record;

typedef struct waiting {
    int fd; /* -1: free */
    uint64_t since_ns;
    size_t used;
    unsigned char bytes[sizeof(hello_record)];
} waiting;

struct cd_process_hub {
    int fd;
    uint32_t dropped;
    unsigned char secret[SECRET_BYTES];
    char address[CD_PROCESS_HUB_ADDRESS_BYTES];
    waiting waiting[WAITING_MAX];
};

static cddp_status make_secret(unsigned char *secret, cddp_error *err)
{
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, secret, SECRET_BYTES) : -1;
    int reason = errno;
    if (fd >= 0) close(fd);
    if (n != SECRET_BYTES)
        return cd_fail(err, CDDP_E_IO, "cannot make a secret from /dev/urandom: %s",
                       strerror(reason));
    return CDDP_OK;
}

cddp_status cd_process_hub_open(const char *host, cd_process_hub **hub, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint16_t port = 0;
    cd_process_hub *h = cd_allocate_zero(NULL, sizeof *h);
    if (h == NULL) return cd_fail_memory(err, "a hub");
    h->fd = -1;
    for (int i = 0; i < WAITING_MAX; i++) h->waiting[i].fd = -1;
    CD_TRY_OUT(make_secret(h->secret, err));
    CD_TRY_OUT(cd_tcp_listen(host, 0, &h->fd, &port, err));
    /* A launcher that outlived us would hold it open, and the hub would seem to answer. */
    if (fcntl(h->fd, F_SETFD, FD_CLOEXEC) != 0) {
        status =
            cd_fail(err, CDDP_E_IO, "cannot keep the hub from the launcher: %s", strerror(errno));
        goto out;
    }
    int n = snprintf(h->address, sizeof h->address, "%s:%u/", host, (unsigned)port);
    if (n < 0 || (size_t)n + 2 * SECRET_BYTES >= sizeof h->address) {
        status = cd_fail(err, CDDP_E_ARG, "the host name '%.60s…' of the hub is too long", host);
        goto out;
    }
    for (int i = 0; i < SECRET_BYTES; i++)
        snprintf(h->address + n + 2 * i, 3, "%02x", h->secret[i]);
    *hub = h;
    return CDDP_OK;
out:
    cd_process_hub_close(h);
    return status;
}

void cd_process_hub_close(cd_process_hub *hub)
{
    if (hub == NULL) return;
    for (int i = 0; i < WAITING_MAX; i++)
        if (hub->waiting[i].fd >= 0) close(hub->waiting[i].fd);
    if (hub->fd >= 0) close(hub->fd);
    cd_release(NULL, hub, sizeof *hub);
}

const char *cd_process_hub_address(const cd_process_hub *hub) { return hub->address; }

int cd_process_hub_fd(const cd_process_hub *hub) { return hub->fd; }

uint32_t cd_process_hub_dropped_count(const cd_process_hub *hub) { return hub->dropped; }

static void drop(cd_process_hub *hub, waiting *w)
{
    close(w->fd);
    w->fd = -1;
    hub->dropped++;
}

/* A rank that cannot be taken in yet stays in the system's queue. */
static void accept_all(cd_process_hub *hub, uint64_t now)
{
    for (int i = 0; i < WAITING_MAX; i++) {
        waiting *w = &hub->waiting[i];
        if (w->fd >= 0) continue;
        int fd = accept(hub->fd, NULL, NULL);
        if (fd < 0) return;
        if (!cd_tcp_set_nonblocking(fd)) {
            close(fd);
            continue;
        }
        *w = (waiting){.fd = fd, .since_ns = now};
    }
}

/* Secrets are compared in a time that does not depend on where they differ. */
static bool is_ours(const cd_process_hub *hub, const hello_record *r)
{
    unsigned char difference = 0;
    for (int i = 0; i < SECRET_BYTES; i++)
        difference = (unsigned char)(difference | (hub->secret[i] ^ r->secret[i]));
    return r->magic == HELLO_MAGIC && difference == 0 && r->who.pipe < CD_OS_PIPE_COUNT;
}

cddp_status cd_process_hub_take(cd_process_hub *hub, cd_process_hello *hello, int *fd, bool *found,
                                cddp_error *err)
{
    uint64_t now = cd_os_now_ns();
    (void)err;
    *found = false;
    accept_all(hub, now);
    for (int i = 0; i < WAITING_MAX && !*found; i++) {
        waiting *w = &hub->waiting[i];
        hello_record record;
        if (w->fd < 0) continue;
        ssize_t n = recv(w->fd, w->bytes + w->used, sizeof w->bytes - w->used, 0);
        bool later = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
        if (n > 0) w->used += (size_t)n;
        if (w->used == sizeof record) {
            memcpy(&record, w->bytes, sizeof record);
            if (!is_ours(hub, &record)) {
                drop(hub, w);
                continue;
            }
            *hello = record.who;
            *fd = w->fd;
            *found = true;
            w->fd = -1;
        } else if ((n <= 0 && !later) || now - w->since_ns > HELLO_PATIENCE_NS) {
            drop(hub, w);
        }
    }
    return CDDP_OK;
}

/* ---- the rank's side ---- */

static cddp_status parse(const char *address, char *host, size_t host_bytes, uint16_t *port,
                         unsigned char *secret, cddp_error *err)
{
    const char *slash = strchr(address, '/');
    const char *colon = NULL;
    for (const char *at = address; slash != NULL && at < slash; at++)
        if (*at == ':') colon = at; /* the last one: an IPv6 address contains some, too */
    if (colon == NULL || (size_t)(colon - address) >= host_bytes ||
        strlen(slash + 1) != 2 * SECRET_BYTES)
        return cd_fail(err, CDDP_E_CONFIG, "'%.60s' is not the address of a hub", address);
    snprintf(host, host_bytes, "%.*s", (int)(colon - address), address);
    unsigned long number = strtoul(colon + 1, NULL, 10);
    if (number == 0 || number > UINT16_MAX)
        return cd_fail(err, CDDP_E_CONFIG, "'%.60s' names no port", address);
    *port = (uint16_t)number;
    for (int i = 0; i < SECRET_BYTES; i++) {
        unsigned value = 0;
        if (sscanf(slash + 1 + 2 * i, "%2x", &value) != 1)
            return cd_fail(err, CDDP_E_CONFIG, "the address of the hub has no secret");
        secret[i] = (unsigned char)value;
    }
    return CDDP_OK;
}

static cddp_status connect_one(const char *host, uint16_t port, const hello_record *record,
                               uint64_t deadline_ns, int *fd, cddp_error *err)
{
    CD_TRY(cd_tcp_connect_once(host, port, deadline_ns, fd, err));
    CD_TRY(cd_tcp_write(*fd, record, sizeof *record, deadline_ns, err));
    int flags = fcntl(*fd, F_GETFL);
    if (flags < 0 || fcntl(*fd, F_SETFL, flags & ~O_NONBLOCK) != 0)
        return cd_fail(err, CDDP_E_IO, "cannot wait on a socket: %s", strerror(errno));
    return CDDP_OK;
}

bool cd_process_hub_answers(const char *address)
{
    char host[CD_PROCESS_HUB_ADDRESS_BYTES];
    unsigned char secret[SECRET_BYTES];
    uint16_t port = 0;
    int fd = -1;
    if (parse(address, host, sizeof host, &port, secret, NULL) != CDDP_OK) return false;
    if (cd_tcp_connect_once(host, port, cd_os_now_ns() + ANSWER_PATIENCE_NS, &fd, NULL) != CDDP_OK)
        return false;
    close(fd); /* the hub drops who says nothing */
    return true;
}

cddp_status cd_process_hub_join(const char *address, const cd_process_hello *who,
                                uint64_t timeout_ns, int *fds, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    char host[CD_PROCESS_HUB_ADDRESS_BYTES];
    uint16_t port = 0;
    hello_record record;
    memset(&record, 0, sizeof record);
    record.magic = HELLO_MAGIC;
    record.who = *who;
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) fds[i] = -1;
    CD_TRY_OUT(parse(address, host, sizeof host, &port, record.secret, err));
    for (uint32_t i = 0; i < CD_OS_PIPE_COUNT; i++) {
        record.who.pipe = i;
        CD_TRY_OUT(connect_one(host, port, &record, cd_os_now_ns() + timeout_ns, &fds[i], err));
    }
    return CDDP_OK;
out:
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
    return status;
}
