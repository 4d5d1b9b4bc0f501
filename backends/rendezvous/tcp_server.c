/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous server: one thread, one poll loop over a listening socket, a wake-up pipe and the
** clients.
**
** The server drops and reports a client that sends something wrong; the others do not notice. It
** binds to exactly the given address.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/rendezvous/kv.h"
#include "backends/rendezvous/tcp.h"
#include "core/base/arena.h"
#include "core/base/error.h"
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

struct cddp_rendezvous_server {
    cd_arena arena; /* of the server itself and of its two tables */
    const cddp_allocator *allocator;
    cddp_rendezvous_server_options options;
    cd_kv kv;
    struct pollfd *polls;  /* (FIRST_CLIENT + clients_max) */
    cd_kv_client *clients; /* (clients_max), parallel to polls + FIRST_CLIENT */
    uint32_t client_count, clients_max;
    int wake[2]; /* written once, to end the thread */
    uint16_t port;
    pthread_t thread;
    bool thread_runs;
};

static void drop(cddp_rendezvous_server *s, uint32_t i, const char *reason)
{
    struct pollfd *p = &s->polls[FIRST_CLIENT + i];
    if (reason != NULL && s->options.dropped != NULL) {
        char peer[CD_TCP_PEER_BYTES];
        cd_tcp_peer_print(p->fd, peer);
        s->options.dropped(s->options.context, peer, reason);
    }
    close(p->fd);
    cd_kv_client_fini(&s->clients[i], s->allocator);
    s->client_count--;
    s->clients[i] = s->clients[s->client_count];
    *p = s->polls[FIRST_CLIENT + s->client_count];
}

static void admit(cddp_rendezvous_server *s)
{
    int fd = accept(s->polls[0].fd, NULL, NULL);
    if (fd < 0) return;
    char peer[CD_TCP_PEER_BYTES];
    cd_tcp_peer_print(fd, peer);
    const char *reason = NULL;
    if (s->client_count == s->clients_max)
        reason = "there are too many clients";
    else if (!cd_tcp_set_nonblocking(fd))
        reason = "its socket cannot be made non-blocking";
    else if (cd_kv_client_init(&s->clients[s->client_count], s->allocator, NULL) != CDDP_OK)
        reason = "there is no memory left";
    if (reason != NULL) {
        if (s->options.dropped != NULL) s->options.dropped(s->options.context, peer, reason);
        close(fd);
        return;
    }
    s->polls[FIRST_CLIENT + s->client_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
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
        if (cd_kv_resume(&s->kv, &s->clients[i]) &&
            !client_write(&s->polls[FIRST_CLIENT + i], &s->clients[i]))
            drop(s, i, NULL);
}

static void *serve(void *argument)
{
    cddp_rendezvous_server *s = argument;
    for (;;) {
        if (poll(s->polls, FIRST_CLIENT + s->client_count, -1) < 0) {
            if (errno == EINTR) continue;
            return NULL;
        }
        if (s->polls[1].revents != 0) return NULL;
        /* The loop runs backwards, because drop moves the last client into the gap. */
        for (uint32_t i = s->client_count; i-- > 0;) {
            struct pollfd *p = &s->polls[FIRST_CLIENT + i];
            const char *reason = NULL;
            bool alive = true;
            if (p->revents & POLLOUT) alive = client_write(p, &s->clients[i]);
            if (alive && (p->revents & (POLLIN | POLLHUP | POLLERR)))
                alive = client_read(s, p, &s->clients[i], &reason);
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
    const cddp_allocator *a = options->allocator;
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, a, 65536);
    cddp_rendezvous_server *s = cd_arena_push(&arena, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a rendezvous server");
    s->arena = arena;
    s->allocator = a;
    s->options = *options;
    s->wake[0] = s->wake[1] = -1;
    s->clients_max = options->clients_max != 0 ? options->clients_max : 4096;
    s->polls = cd_arena_array(&s->arena, FIRST_CLIENT + s->clients_max, sizeof *s->polls);
    s->clients = cd_arena_array(&s->arena, s->clients_max, sizeof *s->clients);
    CD_TRY_OUT(cd_arena_check(&s->arena, err, "%u rendezvous clients", s->clients_max));
    s->polls[0] = s->polls[1] = (struct pollfd){.fd = -1, .events = POLLIN};
    CD_TRY_OUT(cd_kv_init(&s->kv, a, options->keys_max != 0 ? options->keys_max : 65536,
                          options->secret, err));
    CD_TRY_OUT(cd_tcp_listen(options->host, options->port, &s->polls[0].fd, &s->port, err));
    if (pipe(s->wake) != 0) {
        status = cd_fail(err, CDDP_E_IO, "cannot make a pipe: %s", strerror(errno));
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

uint16_t cddp_rendezvous_server_port(const cddp_rendezvous_server *server) { return server->port; }

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
