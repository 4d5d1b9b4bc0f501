/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous server: one thread, one poll loop over a listening socket, a wake-up pipe and the
** clients.
**
** The server drops and reports a client that sends something wrong; the others do not notice. The
** client learns the reason as well. It binds to exactly the given address.
**
** Clients that only connect: they have a deadline for their greeting, and little memory before it.
** Of one address only so many may be silent at a time. When the table is full, the oldest silent
** client makes room. So whoever greets is served.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/rendezvous/kv.h"
#include "backends/rendezvous/tcp.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/os_shortage.h"
#include "core/base/sized.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_CLIENT 2 /* poll slots 0 and 1 are the listener and the wake-up pipe */

#define GREETING_NS UINT64_C(10000000000)
#define UNGREETED_MAX 64u
#define OUT_OF_FILES_NS UINT64_C(10000000)

/* What the server knows of a connection. */
typedef struct guest {
    cd_kv_client client;
    uint64_t came_ns;
    unsigned char host[16]; /* of its address, IPv4 in the first four bytes */
} guest;

struct cddp_rendezvous_server {
    cd_arena arena; /* of the server itself and of its two tables */
    const cddp_allocator *allocator;
    cddp_rendezvous_server_options options;
    cd_kv kv;
    struct pollfd *polls; /* (FIRST_CLIENT + clients_max) */
    guest *guests;        /* (clients_max), parallel to polls + FIRST_CLIENT */
    uint32_t client_count, clients_max;
    int wake[2]; /* written once, to end the thread */
    uint16_t port;
    pthread_t thread;
    bool thread_runs;
};

/* As far as the socket takes it at once. */
static void refuse(int fd, const char *reason)
{
    unsigned char frame[CD_KV_GREETING_BYTES_MAX];
    const size_t bytes = cd_kv_refusal(reason, frame);
    unsigned char unread[4096];
    ssize_t n = send(fd, frame, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    /* what nobody has read would make the kernel throw the refusal away */
    while (n > 0) n = recv(fd, unread, sizeof unread, MSG_DONTWAIT);
}

static void drop(cddp_rendezvous_server *s, uint32_t i, const char *reason)
{
    struct pollfd *p = &s->polls[FIRST_CLIENT + i];
    if (reason != NULL) refuse(p->fd, reason);
    if (reason != NULL && s->options.dropped != NULL) {
        char peer[CD_TCP_PEER_BYTES];
        cd_tcp_peer_print(p->fd, peer);
        s->options.dropped(s->options.context, peer, reason);
    }
    close(p->fd);
    cd_kv_client_fini(&s->guests[i].client, s->allocator);
    s->client_count--;
    s->guests[i] = s->guests[s->client_count];
    *p = s->polls[FIRST_CLIENT + s->client_count];
}

/* The oldest client that has not greeted, of this host or (NULL) of any; client_count: none. */
static uint32_t oldest_silent(const cddp_rendezvous_server *s, const unsigned char *host,
                              uint32_t *count)
{
    uint32_t oldest = s->client_count;
    *count = 0;
    for (uint32_t i = 0; i < s->client_count; i++) {
        const guest *g = &s->guests[i];
        if (g->client.greeted || (host != NULL && memcmp(g->host, host, sizeof g->host) != 0))
            continue;
        ++*count;
        if (oldest == s->client_count || g->came_ns < s->guests[oldest].came_ns) oldest = i;
    }
    return oldest;
}

/* Makes room for one more client of this host. */
static bool make_room(cddp_rendezvous_server *s, const unsigned char *host)
{
    uint32_t count = 0;
    uint32_t oldest = oldest_silent(s, host, &count);
    if (count >= s->options.ungreeted_max)
        drop(s, oldest, "too many clients of its address have not greeted");
    if (s->client_count < s->clients_max) return true;
    oldest = oldest_silent(s, NULL, &count);
    if (oldest == s->client_count) return false;
    drop(s, oldest, "there are too many clients, and it has not greeted");
    return true;
}

/* The connection still waits to be accepted. */
static void out_of_files(cddp_rendezvous_server *s)
{
    uint32_t count = 0;
    const uint32_t oldest = oldest_silent(s, NULL, &count);
    if (count > 0)
        drop(s, oldest, "the server has no files left, and it has not greeted");
    else
        cd_os_sleep_ns(OUT_OF_FILES_NS);
}

static void admit(cddp_rendezvous_server *s)
{
    guest new = {.came_ns = cd_os_now_ns()};
    int fd = accept(s->polls[0].fd, NULL, NULL);
    if (fd < 0) {
        if (errno != EAGAIN && cd_errno_is_shortage(errno)) out_of_files(s);
        return;
    }
    char peer[CD_TCP_PEER_BYTES];
    cd_tcp_peer_print(fd, peer);
    cd_tcp_peer_host(fd, new.host);
    const char *reason = NULL;
    if (!make_room(s, new.host))
        reason = "there are too many clients";
    else if (!cd_tcp_set_nonblocking(fd))
        reason = "its socket cannot be made non-blocking";
    else if (cd_kv_client_init(&new.client, s->allocator, NULL) != CDDP_OK)
        reason = "the server has no memory left";
    if (reason != NULL) {
        refuse(fd, reason);
        if (s->options.dropped != NULL) s->options.dropped(s->options.context, peer, reason);
        close(fd);
        return;
    }
    s->guests[s->client_count] = new;
    s->polls[FIRST_CLIENT + s->client_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Drops who is late with its greeting; the milliseconds until the next one is, or -1. */
static int drop_late(cddp_rendezvous_server *s)
{
    const uint64_t now = cd_os_now_ns();
    uint64_t next = UINT64_MAX;
    for (uint32_t i = s->client_count; i-- > 0;) {
        const uint64_t until = s->guests[i].came_ns + s->options.greeting_timeout_ns;
        if (s->guests[i].client.greeted) continue;
        if (until <= now)
            drop(s, i, "it did not greet in time");
        else if (until < next)
            next = until;
    }
    return next == UINT64_MAX ? -1 : (int)((next - now) / 1000000 % 1000000) + 1;
}

/* Sends the answer as far as the socket takes it. False when the client is gone. */
static bool client_write(struct pollfd *p, cd_kv_client *c)
{
    while (c->answer_sent < c->answer_bytes) {
        ssize_t n =
            send(p->fd, c->answer + c->answer_sent, c->answer_bytes - c->answer_sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            p->events = POLLIN | POLLOUT;
            return true;
        }
        if (n < 0) return false;
        c->answer_sent += (size_t)n;
    }
    p->events = POLLIN;
    return true;
}

/* Reads and serves. False: drop the client; *reason is set when the client is at fault. */
static bool client_read(cddp_rendezvous_server *s, struct pollfd *p, cd_kv_client *c,
                        const char **reason)
{
    unsigned char bytes[4096];
    ssize_t n = recv(p->fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    return cd_kv_feed(&s->kv, c, bytes, (size_t)n, reason) && client_write(p, c);
}

static void resume_waiting(cddp_rendezvous_server *s)
{
    for (uint32_t i = s->client_count; i-- > 0;)
        if (cd_kv_resume(&s->kv, &s->guests[i].client) &&
            !client_write(&s->polls[FIRST_CLIENT + i], &s->guests[i].client))
            drop(s, i, NULL);
}

static void *serve(void *argument)
{
    cddp_rendezvous_server *s = argument;
    for (;;) {
        const int patience_ms = drop_late(s);
        if (poll(s->polls, FIRST_CLIENT + s->client_count, patience_ms) < 0) {
            if (errno == EINTR) continue;
            return NULL;
        }
        if (s->polls[1].revents != 0) return NULL;
        /* The loop runs backwards, because drop moves the last client into the gap. */
        for (uint32_t i = s->client_count; i-- > 0;) {
            struct pollfd *p = &s->polls[FIRST_CLIENT + i];
            const char *reason = NULL;
            bool alive = true;
            if (p->revents & POLLOUT) alive = client_write(p, &s->guests[i].client);
            if (alive && (p->revents & (POLLIN | POLLHUP | POLLERR)))
                alive = client_read(s, p, &s->guests[i].client, &reason);
            if (!alive) drop(s, i, reason);
        }
        resume_waiting(s);
        if (s->polls[0].revents & POLLIN) admit(s);
    }
}

cddp_status cddp_rendezvous_server_open(const cddp_rendezvous_server_options *options,
                                        cddp_rendezvous_server **server, cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_rendezvous_server_options, host, err));
    if (options->host == NULL)
        return cd_fail(err, CDDP_E_ARG, "a rendezvous server needs an address to bind to");
    cddp_rendezvous_server_options own = {.size = sizeof own};
    cd_sized_copy(&own, sizeof own, options);
    const cddp_allocator *a = own.allocator;
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, a, 65536);
    cddp_rendezvous_server *s = cd_arena_push(&arena, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a rendezvous server");
    s->arena = arena;
    s->allocator = a;
    s->options = own;
    if (s->options.greeting_timeout_ns == 0) s->options.greeting_timeout_ns = GREETING_NS;
    if (s->options.ungreeted_max == 0) s->options.ungreeted_max = UNGREETED_MAX;
    s->wake[0] = s->wake[1] = -1;
    s->clients_max = s->options.clients_max != 0 ? s->options.clients_max : 4096;
    s->polls = cd_arena_array(&s->arena, FIRST_CLIENT + s->clients_max, sizeof *s->polls);
    s->guests = cd_arena_array(&s->arena, s->clients_max, sizeof *s->guests);
    CD_TRY_OUT(cd_arena_check(&s->arena, err, "%u rendezvous clients", s->clients_max));
    s->polls[0] = s->polls[1] = (struct pollfd){.fd = -1, .events = POLLIN};
    CD_TRY_OUT(cd_kv_init(&s->kv, a, s->options.keys_max != 0 ? s->options.keys_max : 65536,
                          s->options.secret, err));
    if (s->options.bytes_max != 0) s->kv.bytes_max = s->options.bytes_max;
    CD_TRY_OUT(cd_tcp_listen(s->options.host, s->options.port, &s->polls[0].fd, &s->port, err));
    if (pipe(s->wake) != 0) {
        status = cd_fail(err, cd_errno_status(errno, CDDP_E_IO), "cannot make a pipe: %s",
                         strerror(errno));
        goto out;
    }
    s->polls[1].fd = s->wake[0];
    int failure = pthread_create(&s->thread, NULL, serve, s);
    if (failure != 0) {
        status =
            cd_fail(err, CDDP_E_NOMEM, "cannot start the rendezvous thread: %s", strerror(failure));
        goto out;
    }
    s->thread_runs = true;
    *server = s;
    return CDDP_OK;
out:
    cddp_rendezvous_server_close(s);
    return status;
}

uint16_t cddp_rendezvous_server_port(const cddp_rendezvous_server *server)
{
    return server != NULL ? server->port : 0;
}

void cddp_rendezvous_server_close(cddp_rendezvous_server *server)
{
    if (server == NULL) return;
    if (server->thread_runs) {
        ssize_t n = write(server->wake[1], "x", 1);
        (void)n; /* a pipe with an empty buffer takes one byte */
        pthread_join(server->thread, NULL);
    }
    while (server->client_count > 0) drop(server, server->client_count - 1, NULL);
    if (server->polls != NULL && server->polls[0].fd >= 0) close(server->polls[0].fd);
    for (int i = 0; i < 2; i++)
        if (server->wake[i] >= 0) close(server->wake[i]);
    cd_kv_fini(&server->kv);
    cd_arena_fini(&server->arena);
}
