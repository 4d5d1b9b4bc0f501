/* SPDX-License-Identifier: Apache-2.0 */
/* A small backend that is right: four collectives over TCP sockets. Copy it to begin your own.
**
**     cmake -B build -DCMAKE_PREFIX_PATH=/where/cddp/is/installed && cmake --build build
**     cddp-verify backend-conformance loopback -n 3 --plugin build/loopback_backend.so
**     cddp-verify scenarios/models --backend loopback --plugin build/loopback_backend.so
**
** Every two members have a connection. In each operation every member sends its part to every other
** one, and computes the result by itself, in the order of ranks. So all have the same bits.
**
**   open      listens, publishes its address through the rendezvous (backend->self), connects
**   post      copies this rank's part and puts the operation at the end of the queue
**   test      moves what can be moved of the first operation of the queue
**   wait      the same, until the operation has ended or its time is up
**
** A header goes before each part, so that ranks that disagree get an error and no wrong numbers
** (guard=1, which is always on). An error ends the group: every later operation fails with it.
*/
#define _POSIX_C_SOURCE 200809L
#include <cddp/device.h>
#include <cddp/plugin.h>
#include <cddp/rendezvous.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 16u
#define PATIENCE_NS UINT64_C(30000000000)
#define LINGER_NS UINT64_C(1000000000)

/* Before each part. All but the count must be the same on all members. */
typedef struct header {
    uint64_t sequence, byte_count;
    uint32_t op, dtype, reduce_op, root;
} header;

/* One connection's share of an operation: a header, then bytes. */
typedef struct lane {
    header out, in;
    size_t sent, received; /* bytes, the header's included */
    unsigned char *part;   /* (byte_count) what that member gave; of this rank: a copy */
    size_t byte_count;
} lane;

typedef struct work {
    struct work *next; /* in the queue */
    cddp_collective call;
    lane lanes[RANKS_MAX];
    uint64_t deadline_ns;
    bool has_ended, is_released;
    cddp_status outcome;
    cddp_error error;
} work;

typedef struct group {
    uint32_t rank, size;
    uint32_t members[RANKS_MAX]; /* world ranks, for messages */
    int sockets[RANKS_MAX];      /* by member; -1: none */
    uint64_t timeout_ns;
    work *first, *last; /* operations that have not ended, in the order in which they were posted */
    cddp_status failure; /* of the group, once one has failed */
    cddp_error error;
} group;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static cddp_status fail_system(const char *what, cddp_error *err)
{
    return cddp_error_set(err, CDDP_E_BACKEND, "loopback: %s: %s", what, strerror(errno));
}

/* ---- connections ---- */

/* A socket that is closed with unread bytes takes back what it has sent. So after an error we read
** until the peer has closed, too, for a second at most: it must see our header. */
static void linger(const group *g)
{
    char dropped[4096];
    const uint64_t limit = now_ns() + LINGER_NS;
    for (uint32_t r = 0; r < g->size; r++)
        if (g->sockets[r] >= 0) shutdown(g->sockets[r], SHUT_WR);
    for (uint32_t r = 0; r < g->size; r++) {
        struct pollfd waits = {.fd = g->sockets[r], .events = POLLIN};
        while (g->sockets[r] >= 0 && now_ns() < limit) {
            const ssize_t n =
                poll(&waits, 1, 10) == 1 ? recv(g->sockets[r], dropped, sizeof dropped, 0) : 1;
            if (n <= 0) break;
        }
    }
}

static void loopback_close(void *self)
{
    group *g = self;
    if (g == NULL) return;
    if (g->failure != CDDP_OK) linger(g);
    for (uint32_t r = 0; r < g->size; r++)
        if (g->sockets[r] >= 0) close(g->sockets[r]);
    for (work *w = g->first, *next; w != NULL; w = next) {
        next = w->next;
        for (uint32_t r = 0; r < g->size; r++) free(w->lanes[r].part);
        free(w);
    }
    free(g);
}

static cddp_status listen_on(const char *host, int *listener, struct sockaddr_in *address,
                             cddp_error *err)
{
    socklen_t length = sizeof *address;
    memset(address, 0, sizeof *address); /* peers are sent no stale bytes */
    address->sin_family = AF_INET;
    if (inet_pton(AF_INET, host, &address->sin_addr) != 1)
        return cddp_error_set(err, CDDP_E_CONFIG, "loopback: '%s' is no IPv4 address", host);
    *listener = socket(AF_INET, SOCK_STREAM, 0);
    if (*listener < 0 || bind(*listener, (struct sockaddr *)address, sizeof *address) != 0 ||
        listen(*listener, (int)RANKS_MAX) != 0 ||
        getsockname(*listener, (struct sockaddr *)address, &length) != 0)
        return fail_system("cannot listen", err);
    return CDDP_OK;
}

static void key_of(const char *name, uint32_t rank, char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX])
{
    snprintf(key, CDDP_RENDEZVOUS_KEY_BYTES_MAX, "loopback/%.200s/%u", name, (unsigned)rank);
}

/* Who connects says first which member it is. */
static cddp_status connect_to(group *g, uint32_t peer, const struct sockaddr_in *address,
                              cddp_error *err)
{
    const uint32_t me = g->rank;
    g->sockets[peer] = socket(AF_INET, SOCK_STREAM, 0);
    if (g->sockets[peer] < 0 ||
        connect(g->sockets[peer], (const struct sockaddr *)address, sizeof *address) != 0 ||
        send(g->sockets[peer], &me, sizeof me, MSG_NOSIGNAL) != (ssize_t)sizeof me)
        return fail_system("cannot connect", err);
    return CDDP_OK;
}

static cddp_status accept_one(group *g, int listener, cddp_error *err)
{
    struct pollfd waits = {.fd = listener, .events = POLLIN};
    uint32_t peer = UINT32_MAX;
    if (poll(&waits, 1, (int)(g->timeout_ns / 1000000)) != 1)
        return cddp_error_set(err, CDDP_E_TIMEOUT, "loopback: a member of the group did not come");
    const int accepted = accept(listener, NULL, NULL);
    if (accepted < 0) return fail_system("cannot accept", err);
    if (recv(accepted, &peer, sizeof peer, MSG_WAITALL) != (ssize_t)sizeof peer ||
        peer >= g->size || g->sockets[peer] >= 0) {
        close(accepted);
        return cddp_error_set(err, CDDP_E_BACKEND, "loopback: a stranger has connected");
    }
    g->sockets[peer] = accepted;
    return CDDP_OK;
}

/* Members connect to those below them, and are connected to by those above. */
static cddp_status meet(group *g, const cddp_rendezvous *meeting, const char *name, int listener,
                        const struct sockaddr_in *own, cddp_error *err)
{
    char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    key_of(name, g->rank, key);
    cddp_status status = meeting->set(meeting->self, key, own, sizeof *own, err);
    for (uint32_t r = 0; status == CDDP_OK && r < g->rank; r++) {
        struct sockaddr_in address;
        size_t bytes = sizeof address;
        key_of(name, r, key);
        status = meeting->get(meeting->self, key, g->timeout_ns, &address, &bytes, err);
        if (status == CDDP_OK) status = connect_to(g, r, &address, err);
    }
    for (uint32_t r = g->rank + 1; status == CDDP_OK && r < g->size; r++)
        status = accept_one(g, listener, err);
    return status;
}

static cddp_status loopback_open(const cddp_backend *backend, cddp_rank *rank,
                                 const cddp_group_spec *spec, void **opened, cddp_error *err)
{
    const cddp_rendezvous *meeting = backend->self;
    struct sockaddr_in own;
    int listener = -1;
    (void)rank;
    if (spec->options != NULL && spec->options[0] != '\0' && strcmp(spec->options, "guard=1") != 0)
        return cddp_error_set(err, CDDP_E_CONFIG, "loopback: \"%s\" is no option; guard=1 is",
                              spec->options);
    if (meeting == NULL)
        return cddp_error_set(err, CDDP_E_CONFIG, "loopback: members have no rendezvous");
    group *g = calloc(1, sizeof *g);
    if (g == NULL) return cddp_error_set(err, CDDP_E_NOMEM, "loopback: no memory");
    g->rank = spec->group_rank;
    g->size = spec->group_size;
    g->timeout_ns = spec->timeout_ns != 0 ? spec->timeout_ns : PATIENCE_NS;
    memcpy(g->members, spec->members, g->size * sizeof *g->members);
    for (uint32_t r = 0; r < g->size; r++) g->sockets[r] = -1;
    cddp_status status = listen_on(meeting->bind_host, &listener, &own, err);
    if (status == CDDP_OK) status = meet(g, meeting, spec->name, listener, &own, err);
    if (listener >= 0) close(listener);
    for (uint32_t r = 0; status == CDDP_OK && r < g->size; r++) {
        const int on = 1;
        if (r == g->rank) continue;
        if (fcntl(g->sockets[r], F_SETFL, O_NONBLOCK) != 0 ||
            setsockopt(g->sockets[r], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
            status = fail_system("cannot set up a connection", err);
    }
    if (status == CDDP_OK)
        *opened = g;
    else
        loopback_close(g);
    return status;
}

/* ---- what an operation makes ---- */

static unsigned char *bytes_of(const cddp_tensor *t)
{
    return (unsigned char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

/* The tensor that a member gives a part of; NULL: it gives nothing. */
static const cddp_tensor *part_of(const cddp_collective *c, uint32_t member)
{
    if (c->op == CDDP_OP_BARRIER) return NULL;
    if (c->op == CDDP_OP_BROADCAST) return member == c->root ? &c->output : NULL;
    return &c->input;
}

/* How many bytes a member gives: every rank knows it. */
static size_t part_bytes(const cddp_collective *c, uint32_t member)
{
    const cddp_tensor *t = part_of(c, member);
    if (t == NULL) return 0;
    const int64_t numel =
        c->op == CDDP_OP_ALLGATHER && c->counts != NULL ? c->counts[member] : cddp_tensor_numel(t);
    return (size_t)numel * cddp_dtype_bytes(t->dtype);
}

/* Parts are added in the order of ranks, the same on all of them. */
static cddp_status reduce_parts(const group *g, const work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    const int64_t numel = cddp_tensor_numel(&c->output);
    const cddp_tensor out = cddp_tensor_of(c->output.device, c->output.storage, c->output.offset,
                                           c->output.dtype, &numel, 1);
    const bool averages = c->reduce_op == CDDP_RED_AVG;
    const cddp_red_op op = averages ? CDDP_RED_SUM : c->reduce_op;
    cddp_status status = CDDP_OK;
    for (uint32_t r = 0; status == CDDP_OK && r < g->size; r++) {
        const cddp_tensor part =
            cddp_tensor_of(out.device, w->lanes[r].part, 0, out.dtype, &numel, 1);
        status = r == 0 ? out.device->copy(&out, &part, NULL, err)
                        : out.device->reduce(op, &out, &part, NULL, err);
    }
    if (status == CDDP_OK && averages) status = out.device->divide(&out, &out, g->size, NULL, err);
    return status;
}

static cddp_status compute(const group *g, const work *w, cddp_error *err)
{
    unsigned char *to = w->call.op != CDDP_OP_BARRIER ? bytes_of(&w->call.output) : NULL;
    if (w->call.op == CDDP_OP_ALLREDUCE) return reduce_parts(g, w, err);
    for (uint32_t r = 0; r < g->size; r++) {
        if (w->lanes[r].byte_count == 0) continue;
        memcpy(to, w->lanes[r].part, w->lanes[r].byte_count);
        to += w->lanes[r].byte_count;
    }
    return CDDP_OK;
}

/* ---- moving bytes ---- */

/* The bytes from `done` on of a header and what follows it. */
static void span_of(header *h, unsigned char *rest, size_t rest_bytes, size_t done, void **at,
                    size_t *count)
{
    const bool is_header = done < sizeof *h;
    *at = is_header ? (void *)((unsigned char *)h + done) : (void *)(rest + (done - sizeof *h));
    *count = is_header ? sizeof *h - done : sizeof *h + rest_bytes - done;
}

static cddp_status lose(const group *g, uint32_t peer, cddp_error *err)
{
    return cddp_error_set(err, CDDP_E_BACKEND, "loopback: lost rank %u",
                          (unsigned)g->members[peer]);
}

static bool is_later(ssize_t moved)
{
    return moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static cddp_status check_header(const group *g, const work *w, uint32_t peer, cddp_error *err)
{
    const header *in = &w->lanes[peer].in, *own = &w->lanes[peer].out;
    if (in->sequence == own->sequence && in->op == own->op && in->dtype == own->dtype &&
        in->reduce_op == own->reduce_op && in->root == own->root &&
        in->byte_count == w->lanes[peer].byte_count)
        return CDDP_OK;
    return cddp_error_set(err, CDDP_E_MISMATCH,
                          "loopback: rank %u posted %s #%llu of %llu bytes, this rank %s #%llu, to "
                          "which rank %u gives %zu",
                          (unsigned)g->members[peer],
                          in->op < CDDP_OP_COUNT ? cddp_op_name((cddp_op)in->op) : "?",
                          (unsigned long long)in->sequence, (unsigned long long)in->byte_count,
                          cddp_op_name((cddp_op)own->op), (unsigned long long)own->sequence,
                          (unsigned)g->members[peer], w->lanes[peer].byte_count);
}

static cddp_status move_lane(group *g, work *w, uint32_t peer, cddp_error *err)
{
    lane *l = &w->lanes[peer], *own = &w->lanes[g->rank];
    void *at;
    size_t count;
    for (ssize_t n = 1; n > 0 && l->sent < sizeof l->out + own->byte_count;) {
        span_of(&l->out, own->part, own->byte_count, l->sent, &at, &count);
        n = send(g->sockets[peer], at, count, MSG_NOSIGNAL);
        if (n < 0 && !is_later(n)) return lose(g, peer, err);
        l->sent += n > 0 ? (size_t)n : 0;
    }
    for (ssize_t n = 1; n > 0 && l->received < sizeof l->in + l->byte_count;) {
        span_of(&l->in, l->part, l->byte_count, l->received, &at, &count);
        n = recv(g->sockets[peer], at, count, 0);
        if (n == 0 || (n < 0 && !is_later(n))) return lose(g, peer, err);
        l->received += n > 0 ? (size_t)n : 0;
        if (n > 0 && l->received == sizeof l->in) {
            const cddp_status status = check_header(g, w, peer, err);
            if (status != CDDP_OK) return status;
        }
    }
    return CDDP_OK;
}

static bool is_done(const group *g, const work *w, uint32_t peer)
{
    const lane *l = &w->lanes[peer];
    return peer == g->rank || (l->sent == sizeof l->out + w->lanes[g->rank].byte_count &&
                               l->received == sizeof l->in + l->byte_count);
}

static void end_work(group *g, work *w, cddp_status outcome, const cddp_error *error)
{
    w->has_ended = true;
    w->outcome = outcome;
    w->error = *error;
    g->first = w->next;
    if (g->first == NULL) g->last = NULL;
    for (uint32_t r = 0; r < g->size; r++) {
        free(w->lanes[r].part);
        w->lanes[r].part = NULL;
    }
    if (w->is_released) free(w);
}

/* Moves the first operation on; it waits for a connection as long as that, at most. */
static void advance(group *g, int timeout_ms)
{
    work *w = g->first;
    struct pollfd waits[RANKS_MAX];
    cddp_error err = CDDP_ERROR_INIT;
    cddp_status status = g->failure;
    nfds_t open = 0;
    if (status != CDDP_OK) err = g->error;
    const bool was_well = status == CDDP_OK;
    for (uint32_t r = 0; was_well && r < g->size; r++) {
        /* after an error, too: the other members must see our header to get the same error */
        const cddp_status moved =
            is_done(g, w, r) ? CDDP_OK : move_lane(g, w, r, status == CDDP_OK ? &err : NULL);
        if (status == CDDP_OK) status = moved;
    }
    for (uint32_t r = 0; r < g->size; r++) {
        const lane *l = &w->lanes[r];
        if (is_done(g, w, r)) continue;
        const bool sends = l->sent < sizeof l->out + w->lanes[g->rank].byte_count;
        waits[open++] =
            (struct pollfd){.fd = g->sockets[r], .events = (short)(POLLIN | (sends ? POLLOUT : 0))};
    }
    if (status == CDDP_OK && open > 0) {
        (void)poll(waits, open, timeout_ms);
        return;
    }
    if (status == CDDP_OK && !w->is_released) status = compute(g, w, &err);
    if (status != CDDP_OK) {
        g->failure = status;
        g->error = err;
    }
    end_work(g, w, status, &err);
}

/* ---- the table ---- */

static cddp_status loopback_post(void *self, const cddp_collective *c, void **posted,
                                 cddp_error *err)
{
    group *g = self;
    work *w = calloc(1, sizeof *w);
    bool has_memory = w != NULL;
    for (uint32_t r = 0; has_memory && r < g->size; r++) {
        w->lanes[r].byte_count = part_bytes(c, r);
        w->lanes[r].part = malloc(w->lanes[r].byte_count + 1);
        w->lanes[r].out = (header){.sequence = c->sequence,
                                   .byte_count = part_bytes(c, g->rank),
                                   .op = (uint32_t)c->op,
                                   .dtype = (uint32_t)c->output.dtype,
                                   .reduce_op = (uint32_t)c->reduce_op,
                                   .root = c->root};
        has_memory = w->lanes[r].part != NULL;
    }
    if (!has_memory) {
        for (uint32_t r = 0; w != NULL && r < g->size; r++) free(w->lanes[r].part);
        free(w);
        return cddp_error_set(err, CDDP_E_NOMEM, "loopback: no memory for %s", cddp_op_name(c->op));
    }
    w->call = *c;
    w->call.counts = NULL; /* borrowed during the call; the lanes know them */
    w->deadline_ns = now_ns() + (c->timeout_ns != 0 ? c->timeout_ns : g->timeout_ns);
    if (w->lanes[g->rank].byte_count > 0)
        memcpy(w->lanes[g->rank].part, bytes_of(part_of(c, g->rank)), w->lanes[g->rank].byte_count);
    if (g->last != NULL) g->last->next = w;
    if (g->first == NULL) g->first = w;
    g->last = w;
    *posted = w;
    return CDDP_OK;
}

static cddp_status loopback_test(void *self, void *posted, bool *done, cddp_error *err)
{
    group *g = self;
    work *w = posted;
    if (!w->has_ended) advance(g, 0);
    *done = w->has_ended;
    if (w->has_ended && w->outcome != CDDP_OK && err != NULL) *err = w->error;
    return w->has_ended ? w->outcome : CDDP_OK;
}

static uint32_t first_missing(const group *g)
{
    uint32_t r = 0;
    while (r + 1 < g->size && (g->first == NULL || is_done(g, g->first, r))) r++;
    return r;
}

static cddp_status loopback_wait(void *self, void *posted, uint64_t timeout_ns, cddp_error *err)
{
    group *g = self;
    work *w = posted;
    const uint64_t limit = timeout_ns != 0 ? now_ns() + timeout_ns : w->deadline_ns;
    while (!w->has_ended && now_ns() < limit) advance(g, 10);
    if (!w->has_ended)
        return cddp_error_set(err, CDDP_E_TIMEOUT,
                              "loopback: rank %u did not take part in %s #%llu in time",
                              (unsigned)g->members[first_missing(g)], cddp_op_name(w->call.op),
                              (unsigned long long)w->call.sequence);
    if (w->outcome != CDDP_OK && err != NULL) *err = w->error;
    return w->outcome;
}

static void loopback_release(void *self, void *posted)
{
    work *w = posted;
    (void)self;
    w->is_released = true; /* one that has not ended goes on, and writes no result */
    if (w->has_ended) free(w);
}

static void loopback_describe(void *self, void *posted, char *text, size_t text_bytes)
{
    const group *g = self;
    const work *w = posted;
    if (!w->has_ended)
        snprintf(text, text_bytes, "waits for rank %u", (unsigned)g->members[first_missing(g)]);
}

static const cddp_backend loopback = {
    .size = sizeof loopback,
    .abi = CDDP_BACKEND_ABI,
    .name = "loopback",
    .capabilities = {.size = sizeof(cddp_capabilities),
                     .ops = 1u << CDDP_OP_ALLREDUCE | 1u << CDDP_OP_BROADCAST |
                            1u << CDDP_OP_ALLGATHER | 1u << CDDP_OP_BARRIER,
                     .dtypes = (1u << CDDP_DTYPE_COUNT) - 1,
                     .reduce_ops = 1u << CDDP_RED_SUM | 1u << CDDP_RED_AVG | 1u << CDDP_RED_MIN |
                                   1u << CDDP_RED_MAX | 1u << CDDP_RED_PRODUCT,
                     .devices = CDDP_DEVICE_HOST,
                     .in_place = true,
                     .order = CDDP_ORDER_SAME,
                     .world_size_max = RANKS_MAX,
                     .guards = true},
    .open = loopback_open,
    .close = loopback_close,
    .post = loopback_post,
    .test = loopback_test,
    .wait = loopback_wait,
    .release = loopback_release,
    .describe = loopback_describe,
};

static const cddp_backend *const backends[] = {&loopback, NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "loopback",
                                    .version = "1",
                                    .backends = backends};
