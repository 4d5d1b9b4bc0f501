/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets: listen, connect with retries, read and write whole buffers before a deadline. */
#define _POSIX_C_SOURCE 200809L
#include "backends/rendezvous/tcp.h"

#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/os_shortage.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static cddp_status resolve(const char *host, uint16_t port, bool passive, struct addrinfo **found,
                           cddp_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = passive ? AI_PASSIVE : 0};
    char service[8];
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int failure = getaddrinfo(host, service, &hints, found);
    if (failure != 0)
        return cd_fail(err, CDDP_E_CONFIG, "cannot resolve host '%s': %s", host,
                       gai_strerror(failure));
    return CDDP_OK;
}

bool cd_tcp_set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
           fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

void cd_tcp_set_prompt(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)address)->sin6_port);
    return ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
}

cddp_status cd_tcp_listen(const char *host, uint16_t port, int *fd, uint16_t *port_bound,
                          cddp_error *err)
{
    struct addrinfo *found = NULL;
    CD_TRY(resolve(host, port, true, &found, err));
    int reason = EADDRNOTAVAIL, s = -1;
    for (struct addrinfo *a = found; a != NULL && s < 0; a = a->ai_next) {
        s = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (s < 0) {
            reason = errno;
            continue;
        }
        int on = 1;
        setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 1024) == 0 &&
            cd_tcp_set_nonblocking(s))
            break;
        reason = errno;
        close(s);
        s = -1;
    }
    freeaddrinfo(found);
    if (s < 0)
        return cd_fail(err, cd_errno_status(reason, CDDP_E_IO), "cannot serve at %s:%u: %s", host,
                       (unsigned)port, strerror(reason));
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof bound;
    getsockname(s, (struct sockaddr *)&bound, &length);
    *port_bound = port_of(&bound);
    *fd = s;
    return CDDP_OK;
}

static int milliseconds_to(uint64_t deadline_ns)
{
    uint64_t now = cd_os_now_ns();
    if (now >= deadline_ns) return 0;
    uint64_t ms = (deadline_ns - now + 999999) / 1000000;
    return ms > 1000000 ? 1000000 : (int)ms;
}

/* Makes one attempt; -1 with *reason set when it failed. */
static int connect_once(const struct addrinfo *a, uint64_t deadline_ns, int *reason)
{
    int s = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
    if (s < 0) {
        *reason = errno;
        return -1;
    }
    int failure = 0;
    if (!cd_tcp_set_nonblocking(s))
        failure = errno;
    else if (connect(s, a->ai_addr, a->ai_addrlen) != 0)
        failure = errno;
    if (failure == EINPROGRESS) {
        struct pollfd p = {.fd = s, .events = POLLOUT};
        socklen_t length = sizeof failure;
        if (poll(&p, 1, milliseconds_to(deadline_ns)) <= 0)
            failure = ETIMEDOUT;
        else if (getsockopt(s, SOL_SOCKET, SO_ERROR, &failure, &length) != 0)
            failure = errno;
    }
    if (failure == 0) {
        cd_tcp_set_prompt(s);
        return s;
    }
    *reason = failure;
    close(s);
    return -1;
}

static cddp_status connect_to(const char *host, uint16_t port, bool may_come_later,
                              uint64_t deadline_ns, int *fd, cddp_error *err)
{
    struct addrinfo *found = NULL;
    CD_TRY(resolve(host, port, false, &found, err));
    int reason = 0, s = -1;
    for (;;) {
        for (struct addrinfo *a = found; a != NULL && s < 0; a = a->ai_next)
            s = connect_once(a, deadline_ns, &reason);
        /* Nobody listens yet: rank 0 may still be starting. Other errors are final. */
        bool may_come = may_come_later && (reason == ECONNREFUSED || reason == ECONNRESET);
        if (s >= 0 || !may_come || milliseconds_to(deadline_ns) == 0) break;
        cd_os_sleep_ns(5000000);
    }
    freeaddrinfo(found);
    if (s < 0)
        return cd_fail(err,
                       reason == ETIMEDOUT || reason == ECONNREFUSED
                           ? CDDP_E_TIMEOUT
                           : cd_errno_status(reason, CDDP_E_IO),
                       "cannot reach the rendezvous at %s:%u: %s", host, (unsigned)port,
                       strerror(reason));
    *fd = s;
    return CDDP_OK;
}

cddp_status cd_tcp_connect(const char *host, uint16_t port, uint64_t deadline_ns, int *fd,
                           cddp_error *err)
{
    return CD_PASS(connect_to(host, port, true, deadline_ns, fd, err));
}

cddp_status cd_tcp_connect_once(const char *host, uint16_t port, uint64_t deadline_ns, int *fd,
                                cddp_error *err)
{
    return CD_PASS(connect_to(host, port, false, deadline_ns, fd, err));
}

static cddp_status wait_for(int fd, short events, uint64_t deadline_ns, cddp_error *err)
{
    struct pollfd p = {.fd = fd, .events = events};
    int ready = poll(&p, 1, milliseconds_to(deadline_ns));
    if (ready < 0 && errno != EINTR)
        return cd_fail(err, CDDP_E_IO, "cannot wait for a socket: %s", strerror(errno));
    if (ready == 0 && milliseconds_to(deadline_ns) == 0)
        return cd_fail(err, CDDP_E_TIMEOUT, "no answer in time");
    return CDDP_OK;
}

cddp_status cd_tcp_write(int fd, const void *bytes, size_t byte_count, uint64_t deadline_ns,
                         cddp_error *err)
{
    const char *at = bytes;
    while (byte_count > 0) {
        ssize_t n = send(fd, at, byte_count, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return cd_fail(err, CDDP_E_IO, "cannot send: %s", strerror(errno));
        if (n < 0) {
            CD_TRY(wait_for(fd, POLLOUT, deadline_ns, err));
            continue;
        }
        at += n;
        byte_count -= (size_t)n;
    }
    return CDDP_OK;
}

cddp_status cd_tcp_read(int fd, void *bytes, size_t byte_count, uint64_t deadline_ns,
                        cddp_error *err)
{
    char *at = bytes;
    while (byte_count > 0) {
        ssize_t n = recv(fd, at, byte_count, 0);
        if (n == 0) return cd_fail(err, CDDP_E_IO, "the rendezvous server closed the connection");
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return cd_fail(err, CDDP_E_IO, "cannot receive: %s", strerror(errno));
        if (n < 0) {
            CD_TRY(wait_for(fd, POLLIN, deadline_ns, err));
            continue;
        }
        at += n;
        byte_count -= (size_t)n;
    }
    return CDDP_OK;
}

static void address_print(const struct sockaddr_storage *address, socklen_t length, bool with_port,
                          char *text)
{
    char host[48] = "?", service[8] = "?";
    getnameinfo((const struct sockaddr *)address, length, host, sizeof host, service,
                sizeof service, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, CD_TCP_PEER_BYTES, with_port ? "%s:%s" : "%s", host, service);
}

void cd_tcp_peer_host(int fd, unsigned char host[16])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    memset(host, 0, 16);
    if (getpeername(fd, (struct sockaddr *)&address, &length) != 0) return;
    if (address.ss_family == AF_INET6)
        memcpy(host, &((const struct sockaddr_in6 *)(const void *)&address)->sin6_addr, 16);
    else if (address.ss_family == AF_INET)
        memcpy(host, &((const struct sockaddr_in *)(const void *)&address)->sin_addr, 4);
}

void cd_tcp_peer_print(int fd, char text[CD_TCP_PEER_BYTES])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    snprintf(text, CD_TCP_PEER_BYTES, "?");
    if (getpeername(fd, (struct sockaddr *)&address, &length) == 0)
        address_print(&address, length, true, text);
}

void cd_tcp_local_print(int fd, char text[CD_TCP_PEER_BYTES])
{
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    snprintf(text, CD_TCP_PEER_BYTES, "127.0.0.1");
    if (getsockname(fd, (struct sockaddr *)&address, &length) == 0)
        address_print(&address, length, false, text);
}
