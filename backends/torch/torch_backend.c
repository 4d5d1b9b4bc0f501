/* SPDX-License-Identifier: Apache-2.0 */
/* A process group of PyTorch as a backend: a Python child per rank and group has the group.
**
** `python3 -m cddp_torch serve` reads requests from a socket and writes replies to it, in the order
** of the requests. It starts each operation when it has read it, so that a send does not keep a
** receive from starting. The shell finds Python: CDDP_PYTHON names another one.
**
** Limits: numbers are the host's, so both ends are on one machine. An operation has the time-out of
** its group. When one fails, the group is over.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/torch/torch_backend.h"

#include "cddp/rendezvous.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_NS UINT64_C(1800000000000) /* 30 minutes, as PyTorch's */
#define START_NS UINT64_C(120000000000)            /* importing torch */
#define MAGIC UINT32_C(0x63647470)
#define CHILD_FD 3
#define TEXT_BYTES 400

/* Also in python/cddp_torch/serve.py. */
typedef struct request {
    uint32_t magic, op, dtype, reduce_op, root, has_counts;
    uint64_t tag, input_bytes, output_bytes;
} request;

typedef struct reply {
    uint32_t status, zero; /* 0, or a cddp_status; then bytes are a text */
    uint64_t byte_count;
} reply;

typedef struct work {
    struct work *next;
    const cddp_allocator *allocator;
    cddp_tensor output;
    bool has_ended;
    cddp_error outcome;
} work;

typedef struct group {
    const cddp_allocator *allocator;
    int socket;
    int64_t process;
    uint32_t rank, size;
    uint64_t timeout_ns;
    bool is_over;
    cddp_error failure;
    work *first, *last; /* not replied to, in the order of their posts */
} group;

/* ---- bytes ---- */

static cddp_status give_up(group *g, cddp_status status, const char *text, cddp_error *err)
{
    if (!g->is_over) {
        cddp_error why = CDDP_ERROR_INIT;
        g->is_over = true;
        (void)cd_fail(&why, status, "%.*s", TEXT_BYTES, text);
        g->failure = why;
    }
    return cd_fail(err, g->failure.status, "%s", g->failure.message);
}

static cddp_status send_bytes(group *g, const void *bytes, size_t byte_count, cddp_error *err)
{
    const char *at = bytes;
    while (byte_count > 0) {
        const ssize_t n = send(g->socket, at, byte_count, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return CD_PASS(give_up(g, CDDP_E_BACKEND, "the Python of this rank has ended", err));
        at += n;
        byte_count -= (size_t)n;
    }
    return CDDP_OK;
}

/* Did anything come within that time? */
static bool has_bytes(const group *g, uint64_t timeout_ns)
{
    struct pollfd waits = {.fd = g->socket, .events = POLLIN};
    const uint64_t until = cd_os_now_ns() + timeout_ns;
    for (;;) {
        const uint64_t now = cd_os_now_ns(), left = until > now ? (until - now) / 1000000 : 0;
        const int ready = poll(&waits, 1, left > 60000 ? 60000 : (int)left);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return true; /* reading says why */
        if (cd_os_now_ns() >= until) return false;
    }
}

static cddp_status receive_bytes(group *g, void *bytes, size_t byte_count, cddp_error *err)
{
    char *at = bytes;
    while (byte_count > 0) {
        const ssize_t n = recv(g->socket, at, byte_count, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return CD_PASS(give_up(g, CDDP_E_BACKEND, "the Python of this rank has ended", err));
        at += n;
        byte_count -= (size_t)n;
    }
    return CDDP_OK;
}

static cddp_status receive_text(group *g, uint64_t byte_count, char text[TEXT_BYTES],
                                cddp_error *err)
{
    const size_t kept = byte_count < TEXT_BYTES - 1 ? (size_t)byte_count : TEXT_BYTES - 1;
    char dropped[256];
    CD_TRY(receive_bytes(g, text, kept, err));
    text[kept] = '\0';
    for (uint64_t left = byte_count - kept; left > 0;) {
        const size_t n = left < sizeof dropped ? (size_t)left : sizeof dropped;
        CD_TRY(receive_bytes(g, dropped, n, err));
        left -= n;
    }
    return CDDP_OK;
}

/* ---- works ---- */

static size_t byte_count_of(const cddp_tensor *t)
{
    if (t->device == NULL) return 0;
    return (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
}

static void *bytes_of(const cddp_tensor *t)
{
    return (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

/* Of the work that is first in line. */
static cddp_status take_reply(group *g, cddp_error *err)
{
    work *w = g->first;
    reply r = {0};
    char text[TEXT_BYTES];
    CD_TRY(receive_bytes(g, &r, sizeof r, err));
    if (r.status == CDDP_OK) {
        if (r.byte_count > byte_count_of(&w->output))
            return CD_PASS(give_up(g, CDDP_E_BACKEND, "the result has another size", err));
        CD_TRY(receive_bytes(g, bytes_of(&w->output), (size_t)r.byte_count, err));
    } else {
        CD_TRY(receive_text(g, r.byte_count, text, err));
        const cddp_status status =
            r.status <= CDDP_E_LIMIT ? (cddp_status)r.status : CDDP_E_BACKEND;
        (void)cd_fail(&w->outcome, status, "%s", text);
    }
    w->has_ended = true;
    g->first = w->next;
    if (g->first == NULL) g->last = NULL;
    return CDDP_OK;
}

static cddp_status outcome_of(const work *w, cddp_error *err)
{
    if (w->outcome.status == CDDP_OK) return CDDP_OK;
    return cd_fail(err, w->outcome.status, "%s", w->outcome.message);
}

cddp_status cd_torch_wait(void *self, void *handle, uint64_t timeout_ns, cddp_error *err)
{
    group *g = self;
    work *w = handle;
    const uint64_t patience = timeout_ns != 0 ? timeout_ns : g->timeout_ns;
    const uint64_t until = cd_os_now_ns() + patience;
    while (!w->has_ended) {
        if (g->is_over) return cd_fail(err, g->failure.status, "%s", g->failure.message);
        const uint64_t now = cd_os_now_ns();
        if (!has_bytes(g, until > now ? until - now : 0))
            return cd_fail(err, CDDP_E_TIMEOUT, "torch: not done within %" PRIu64 " ms",
                           patience / 1000000);
        CD_TRY(take_reply(g, err));
    }
    return CD_PASS(outcome_of(w, err));
}

cddp_status cd_torch_test(void *self, void *handle, bool *done, cddp_error *err)
{
    group *g = self;
    work *w = handle;
    while (!w->has_ended && !g->is_over && has_bytes(g, 0)) CD_TRY(take_reply(g, err));
    if (!w->has_ended && g->is_over)
        return cd_fail(err, g->failure.status, "%s", g->failure.message);
    if (w->has_ended) CD_TRY(outcome_of(w, err));
    *done = w->has_ended;
    return CDDP_OK;
}

/* A reply that is still to come has no place to go to any more. */
void cd_torch_release(void *self, void *handle)
{
    group *g = self;
    work *w = handle;
    cddp_error why = CDDP_ERROR_INIT;
    if (!w->has_ended && !g->is_over)
        (void)give_up(g, CDDP_E_ABORTED, "an operation was given up before its end", &why);
    for (work **at = &g->first; *at != NULL; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    g->last = g->first;
    while (g->last != NULL && g->last->next != NULL) g->last = g->last->next;
    cd_release(w->allocator, w, sizeof *w);
}

static cddp_status send_request(group *g, const cddp_collective *c, cddp_error *err)
{
    const bool is_broadcast = c->op == CDDP_OP_BROADCAST;
    const cddp_tensor *input = is_broadcast ? &c->output : &c->input;
    const cddp_tensor *known = input->device != NULL ? input : &c->output;
    const request r = {.magic = MAGIC,
                       .op = (uint32_t)c->op,
                       .dtype = known->device != NULL ? (uint32_t)known->dtype : (uint32_t)CDDP_U8,
                       .reduce_op = (uint32_t)c->reduce_op,
                       .root = c->root,
                       .has_counts =
                           (c->counts != NULL ? 1u : 0u) | (c->send_counts != NULL ? 2u : 0u),
                       .tag = c->tag,
                       .input_bytes = byte_count_of(input),
                       .output_bytes = byte_count_of(&c->output)};
    CD_TRY(send_bytes(g, &r, sizeof r, err));
    if (c->counts != NULL) CD_TRY(send_bytes(g, c->counts, g->size * sizeof *c->counts, err));
    if (c->send_counts != NULL)
        CD_TRY(send_bytes(g, c->send_counts, g->size * sizeof *c->send_counts, err));
    return r.input_bytes > 0 ? CD_PASS(send_bytes(g, bytes_of(input), r.input_bytes, err))
                             : CDDP_OK;
}

cddp_status cd_torch_post(void *self, const cddp_collective *c, void **handle, cddp_error *err)
{
    group *g = self;
    if (g->is_over) return cd_fail(err, g->failure.status, "%s", g->failure.message);
    work *w = cd_allocate_zero(g->allocator, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "%s", cddp_op_name(c->op));
    w->allocator = g->allocator;
    w->output = c->output;
    const cddp_status status = send_request(g, c, err);
    if (status != CDDP_OK) {
        cd_release(g->allocator, w, sizeof *w);
        return CD_PASS(status);
    }
    if (g->last != NULL)
        g->last->next = w;
    else
        g->first = w;
    g->last = w;
    *handle = w;
    return CDDP_OK;
}

cddp_status cd_torch_abort(void *self, const char *reason, cddp_error *err)
{
    cddp_error why = CDDP_ERROR_INIT;
    (void)err;
    (void)give_up(self, CDDP_E_ABORTED, reason != NULL ? reason : "the group was aborted", &why);
    shutdown(((group *)self)->socket, SHUT_RDWR);
    return CDDP_OK;
}

/* ---- groups ---- */

static void stop_child(group *g)
{
    int status = 0;
    if (g->socket >= 0) close(g->socket); /* the child reads its end, and ends */
    while (g->process > 0 && waitpid((pid_t)g->process, &status, 0) < 0 && errno == EINTR) {
    }
}

void cd_torch_close(void *self)
{
    group *g = self;
    if (g == NULL) return;
    stop_child(g);
    cd_release(g->allocator, g, sizeof *g);
}

extern char **environ;

/* A probe is quiet: that there is no such Python is its answer. */
static cddp_status start_child(group *g, bool is_quiet, cddp_error *err)
{
    char shell[] = "sh", option[] = "-c",
         command[] = "exec \"${CDDP_PYTHON:-python3}\" -m cddp_torch serve";
    char *words[] = {shell, option, command, NULL};
    int pair[2] = {-1, -1};
    pid_t process = 0;
    posix_spawn_file_actions_t actions;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return cd_fail(err, CDDP_E_NOMEM, "torch: no socket: %s", strerror(errno));
    for (int i = 0; i < 2; i++) (void)fcntl(pair[i], F_SETFD, FD_CLOEXEC);
    g->socket = pair[0];
    int problem = posix_spawn_file_actions_init(&actions);
    if (problem == 0) {
        (void)posix_spawn_file_actions_adddup2(&actions, pair[1], CHILD_FD);
        if (is_quiet) (void)posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
        problem = posix_spawn(&process, "/bin/sh", &actions, NULL, words, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    close(pair[1]);
    if (problem != 0)
        return cd_fail(err, CDDP_E_BACKEND, "torch: cannot start Python: %s", strerror(problem));
    g->process = process;
    return CDDP_OK;
}

/* A line each way: the child of member 0 answers with a port, all with "ready". */
static cddp_status ask(group *g, const char *line, char answer[TEXT_BYTES], cddp_error *err)
{
    reply r = {0};
    const uint64_t length = strlen(line);
    CD_TRY(send_bytes(g, &length, sizeof length, err));
    CD_TRY(send_bytes(g, line, length, err));
    if (!has_bytes(g, START_NS))
        return CD_PASS(give_up(g, CDDP_E_TIMEOUT, "Python does not answer", err));
    CD_TRY(receive_bytes(g, &r, sizeof r, err));
    CD_TRY(receive_text(g, r.byte_count, answer, err));
    if (r.status == CDDP_OK) return CDDP_OK;
    return cd_fail(err, CDDP_E_BACKEND, "torch: %s", answer);
}

static cddp_status meet(group *g, const cddp_backend *backend, const cddp_group_spec *spec,
                        cddp_error *err)
{
    const cddp_rendezvous *store = backend->self;
    char line[TEXT_BYTES], address[TEXT_BYTES], key[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    size_t length = sizeof address - 1;
    int64_t opening = 0;
    snprintf(key, sizeof key, "torch/%.150s/%u/opens", spec->name, g->rank);
    CD_TRY(store->add(store->self, key, 1, &opening, err));
    snprintf(key, sizeof key, "torch/%.150s/%" PRId64, spec->name, opening);
    if (g->rank == 0) {
        snprintf(line, sizeof line, "port %s", store->bind_host);
        CD_TRY(ask(g, line, address, err));
        CD_TRY(store->set(store->self, key, address, strlen(address), err));
    } else {
        CD_TRY(store->get(store->self, key, START_NS, address, &length, err));
        address[length] = '\0';
    }
    cd_real_format(line, sizeof line, "join %s %.200s %u %u %.3f", backend->name + strlen("torch-"),
                   address, g->rank, g->size, (double)g->timeout_ns / 1e9);
    return CD_PASS(ask(g, line, address, err));
}

cddp_status cd_torch_open(const cddp_backend *backend, cddp_rank *rank, const cddp_group_spec *spec,
                          void **handle, cddp_error *err)
{
    if (backend->self == NULL)
        return cd_fail(err, CDDP_E_CONFIG, "backend %s needs a rendezvous", backend->name);
    if (spec->options != NULL && spec->options[0] != '\0')
        return cd_fail(err, CDDP_E_CONFIG, "backend %s has no options, but was given \"%s\"",
                       backend->name, spec->options);
    (void)rank; /* the heap: a work may outlive what the rank's allocator gives */
    group *g = cd_allocate_zero(NULL, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    cddp_status status = CDDP_OK;
    g->socket = -1;
    g->rank = spec->group_rank;
    g->size = spec->group_size;
    g->timeout_ns = spec->timeout_ns != 0 ? spec->timeout_ns : DEFAULT_TIMEOUT_NS;
    CD_TRY_OUT(start_child(g, false, err));
    CD_TRY_OUT(meet(g, backend, spec, err));
    *handle = g;
    g = NULL;
out:
    cd_torch_close(g);
    return status;
}

cddp_status cd_torch_probe(const cddp_backend *backend, cddp_error *err)
{
    group g = {.socket = -1};
    char line[TEXT_BYTES], answer[TEXT_BYTES];
    cddp_error why = CDDP_ERROR_INIT;
    snprintf(line, sizeof line, "probe %s", backend->name + strlen("torch-"));
    cddp_status status = start_child(&g, true, err);
    if (status == CDDP_OK && ask(&g, line, answer, &why) != CDDP_OK)
        status = cd_fail(err, CDDP_E_BACKEND,
                         "%s; it needs a python3 with torch and cddp_torch (CDDP_PYTHON names "
                         "another one)",
                         why.message);
    stop_child(&g);
    return status;
}
