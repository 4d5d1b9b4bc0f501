/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints over sockets. See mesh.h.
**
** To meet, each member listens at a port, and writes the address and a random token under its own
** key. Then it connects to the members before it. Whoever connects shows the token. Afterwards
** nobody listens.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/guard/mesh.h"

#include "backends/rendezvous/tcp.h"
#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/os_shortage.h"
#include "core/base/rank_list.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TOKEN_BYTES 16
#define FAREWELL_WAIT_NS UINT64_C(50000000)
#define GREETING_NS UINT64_C(2000000000)
/* How late a farewell may come: a transport takes a while to close each connection. */
#define SILENCE_NS UINT64_C(2000000000)
#define SILENCE_OF_EACH_NS UINT64_C(20000000)

#define WAITING_MAX (2 * CD_MESH_AHEAD_MAX) /* N1 */

typedef enum note_kind { FINGERPRINT = 1, FAREWELL } note_kind;

/* What members send each other. */
typedef struct note {
    uint32_t kind, lost;
    uint64_t round; /* the last one that the sender began, from 1 */
    cd_call_fingerprint call;
} note;

typedef struct greeting {
    uint32_t rank, reserved;
    unsigned char token[TOKEN_BYTES];
} greeting;

typedef struct address {
    char host[64];
    uint32_t port;
    unsigned char token[TOKEN_BYTES];
} address;

typedef struct peer {
    int fd;
    bool has_come;    /* its fingerprint of this round is here */
    bool is_lost;     /* its connection ended */
    bool has_left;    /* it said farewell, */
    uint32_t lost;    /* because of this rank, */
    uint64_t left_in; /* in this round */
    uint64_t
        ends_ns; /* by when its operation of the last round has ended, on this member's clock */
    uint32_t first, count;
    struct {
        cd_call_fingerprint call;
        uint64_t ends_ns;
    } waiting[WAITING_MAX]; /* (count) from first, of rounds to come */
    size_t partial_bytes;
    unsigned char partial[sizeof(note)]; /* (partial_bytes) of a note */
} peer;

struct cd_mesh {
    cd_arena arena;
    cd_mesh_options options;
    peer *peers;          /* (size) */
    struct pollfd *polls; /* (size + 1) the last one is the wake-up pipe */
    uint32_t *polled;     /* (size) members in the order of polls */
    int listener, wake[2];
    pthread_mutex_t sending; /* over what is sent, and: */
    bool has_left;
    uint64_t sent, ended;   /* fingerprints, rounds */
    uint64_t unsent;        /* refused to be announced, and their rounds have not come */
    _Atomic uint64_t begun; /* rounds */
    atomic_bool is_ending;
    _Atomic uint32_t lost; /* world rank that this member missed */
    _Atomic int32_t waits_for;
};

/* ---- meeting ---- */

static cddp_status key_of(const cd_mesh *m, uint32_t member,
                          char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX], cddp_error *err)
{
    int n =
        snprintf(key, CDDP_RENDEZVOUS_KEY_BYTES_MAX, "%sguard/%" PRIu32, m->options.prefix, member);
    if (n < 0 || (uint32_t)n >= CDDP_RENDEZVOUS_KEY_BYTES_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "the key prefix '%s' is too long", m->options.prefix);
    return CDDP_OK;
}

static cddp_status announce(cd_mesh *m, address *mine, cddp_error *err)
{
    char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    const cddp_rendezvous *store = m->options.rendezvous;
    uint16_t port = 0;
    memset(mine, 0, sizeof *mine);
    snprintf(mine->host, sizeof mine->host, "%s", store->bind_host);
    CD_TRY(cd_os_random(mine->token, sizeof mine->token, err));
    CD_TRY(cd_tcp_listen(mine->host, 0, &m->listener, &port, err));
    mine->port = port;
    CD_TRY(key_of(m, m->options.rank, key, err));
    CD_TRY(store->set(store->self, key, mine, sizeof *mine, err));
    return CDDP_OK;
}

static cddp_status call_on(cd_mesh *m, uint32_t member, uint64_t deadline_ns, cddp_error *err)
{
    char key[CDDP_RENDEZVOUS_KEY_BYTES_MAX];
    const cddp_rendezvous *store = m->options.rendezvous;
    address theirs = {.port = 0};
    size_t bytes = sizeof theirs;
    greeting mine = {.rank = m->options.rank};
    CD_TRY(key_of(m, member, key, err));
    const cddp_status came =
        store->get(store->self, key, m->options.timeout_ns, &theirs, &bytes, err);
    if (came == CDDP_E_TIMEOUT)
        return cd_fail(err, came, "lost rank %u: it did not come", m->options.members[member]);
    CD_TRY(came);
    if (bytes != sizeof theirs || theirs.port == 0 || theirs.port > 65535)
        return cd_fail(err, CDDP_E_MISMATCH, "rank %u published no address for fingerprints",
                       m->options.members[member]);
    theirs.host[sizeof theirs.host - 1] = '\0';
    const cddp_status reached = cd_tcp_connect_once(theirs.host, (uint16_t)theirs.port, deadline_ns,
                                                    &m->peers[member].fd, err);
    if (reached == CDDP_E_NOMEM) return reached;
    if (reached != CDDP_OK)
        return cd_fail(err, reached, "lost rank %u: it is not at %s:%u any more",
                       m->options.members[member], theirs.host, (unsigned)theirs.port);
    memcpy(mine.token, theirs.token, sizeof mine.token);
    CD_TRY(cd_tcp_write(m->peers[member].fd, &mine, sizeof mine, deadline_ns, err));
    return CDDP_OK;
}

/* A stranger is dropped: it does not know the token. */
static cddp_status admit(cd_mesh *m, const address *mine, uint64_t deadline_ns, uint32_t *missing,
                         cddp_error *err)
{
    greeting theirs = {.rank = 0};
    const uint64_t soon = cd_os_now_ns() + GREETING_NS;
    int fd = accept(m->listener, NULL, NULL);
    if (fd < 0 && cd_errno_is_shortage(errno) && errno != EAGAIN)
        return cd_fail(err, CDDP_E_NOMEM, "cannot accept a connection of the guard: %s",
                       strerror(errno));
    if (fd < 0) return CDDP_OK;
    bool is_member = cd_tcp_set_nonblocking(fd) &&
                     cd_tcp_read(fd, &theirs, sizeof theirs,
                                 soon < deadline_ns ? soon : deadline_ns, NULL) == CDDP_OK &&
                     memcmp(theirs.token, mine->token, sizeof theirs.token) == 0 &&
                     theirs.rank > m->options.rank && theirs.rank < m->options.size &&
                     m->peers[theirs.rank].fd < 0;
    if (!is_member) {
        close(fd);
        return CDDP_OK;
    }
    cd_tcp_set_prompt(fd);
    m->peers[theirs.rank].fd = fd;
    --*missing;
    return CDDP_OK;
}

static uint32_t unmet_next(const void *self, uint32_t from)
{
    const cd_mesh *m = self;
    uint32_t next = CD_NO_RANK;
    for (uint32_t r = m->options.rank + 1; r < m->options.size; r++)
        if (m->peers[r].fd < 0 && m->options.members[r] >= from && m->options.members[r] < next)
            next = m->options.members[r];
    return next;
}

static cddp_status fail_unmet(const cd_mesh *m, cddp_error *err)
{
    char names[160];
    const cd_rank_list list = {m, unmet_next};
    cd_rank_list_print(&list, CD_NO_RANK, names, sizeof names);
    return cd_fail(err, CDDP_E_TIMEOUT, "lost %s: no connection came", names);
}

static cddp_status meet(cd_mesh *m, cddp_error *err)
{
    const uint64_t deadline = cd_os_now_ns() + m->options.timeout_ns;
    uint32_t missing = m->options.size - 1 - m->options.rank;
    address mine;
    CD_TRY(announce(m, &mine, err));
    for (uint32_t r = 0; r < m->options.rank; r++) CD_TRY(call_on(m, r, deadline, err));
    while (missing > 0) {
        struct pollfd p = {.fd = m->listener, .events = POLLIN};
        const uint64_t now = cd_os_now_ns();
        if (now >= deadline) return CD_PASS(fail_unmet(m, err));
        const uint64_t ms = (deadline - now) / 1000000 + 1;
        if (poll(&p, 1, ms > 1000000 ? 1000000 : (int)ms) > 0)
            CD_TRY(admit(m, &mine, deadline, &missing, err));
    }
    close(m->listener);
    m->listener = -1;
    return CDDP_OK;
}

cddp_status cd_mesh_open(const cd_mesh_options *options, cd_mesh **mesh, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 4096);
    cd_mesh *m = cd_arena_push(&arena, sizeof *m);
    if (m == NULL) return cd_fail_memory(err, "the guard of %u ranks", options->size);
    m->arena = arena;
    m->options = *options;
    m->listener = m->wake[0] = m->wake[1] = -1;
    atomic_store(&m->lost, CD_MESH_NOBODY);
    atomic_store(&m->waits_for, -1);
    pthread_mutex_init(&m->sending, NULL);
    m->peers = cd_arena_array(&m->arena, options->size, sizeof *m->peers);
    for (uint32_t r = 0; m->peers != NULL && r < options->size; r++) m->peers[r].fd = -1;
    m->polls = cd_arena_array(&m->arena, options->size + 1, sizeof *m->polls);
    m->polled = cd_arena_array(&m->arena, options->size + 1, sizeof *m->polled);
    CD_TRY_OUT(cd_arena_check(&m->arena, err, "the guard of %u ranks", options->size));
    if (pipe(m->wake) != 0) {
        status = cd_fail(err, cd_errno_status(errno, CDDP_E_IO), "cannot make a pipe: %s",
                         strerror(errno));
        goto out;
    }
    CD_TRY_OUT(meet(m, err));
    *mesh = m;
    return CDDP_OK;
out:
    cd_mesh_close(m);
    return status;
}

void cd_mesh_close(cd_mesh *mesh)
{
    if (mesh == NULL) return;
    for (uint32_t r = 0; mesh->peers != NULL && r < mesh->options.size; r++)
        if (mesh->peers[r].fd >= 0) close(mesh->peers[r].fd);
    if (mesh->listener >= 0) close(mesh->listener);
    for (int i = 0; i < 2; i++)
        if (mesh->wake[i] >= 0) close(mesh->wake[i]);
    pthread_mutex_destroy(&mesh->sending);
    cd_arena_fini(&mesh->arena);
}

/* ---- rounds ---- */

/* A connection that takes nothing is broken, and the next read says so: N1 bounds what is in
** flight. */
static void send_all(cd_mesh *m, const note *n)
{
    for (uint32_t i = 1; i < m->options.size; i++) {
        const int fd = m->peers[(m->options.rank + i) % m->options.size].fd;
        ssize_t sent = send(fd, n, sizeof *n, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)sent;
    }
}

static void take_note(peer *p, const unsigned char *bytes)
{
    note n;
    memcpy(&n, bytes, sizeof n);
    if (n.kind != FINGERPRINT) {
        p->has_left = true;
        p->lost = n.lost;
        p->left_in = n.round;
    } else if (p->count == WAITING_MAX) {
        p->is_lost = true; /* no member of ours: N1 */
    } else {
        const uint32_t last = (p->first + p->count++) % WAITING_MAX;
        p->waiting[last].call = n.call;
        /* it came before now, so this is no earlier than the sender's deadline */
        p->waiting[last].ends_ns = cd_os_now_ns() + n.call.left_ns;
    }
}

/* Takes what has come of a peer, without waiting. */
static void receive(peer *p)
{
    unsigned char bytes[8 * sizeof(note)];
    memcpy(bytes, p->partial, p->partial_bytes);
    ssize_t n =
        recv(p->fd, bytes + p->partial_bytes, sizeof bytes - p->partial_bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) p->is_lost = true;
    if (n <= 0) return;
    size_t at = 0, end = p->partial_bytes + (size_t)n;
    for (; end - at >= sizeof(note); at += sizeof(note)) take_note(p, bytes + at);
    p->partial_bytes = end - at;
    memcpy(p->partial, bytes + at, p->partial_bytes);
}

/* The fingerprint of this round, if it is there. */
static void take_fingerprint(peer *p, cd_call_fingerprint *call)
{
    if (p->has_come || p->count == 0) return;
    *call = p->waiting[p->first].call;
    p->ends_ns = p->waiting[p->first].ends_ns;
    p->first = (p->first + 1) % WAITING_MAX;
    p->count--;
    p->has_come = true;
}

/* Members that have not come and could still come. */
static nfds_t select_missing(cd_mesh *m)
{
    nfds_t count = 0;
    m->polls[count] = (struct pollfd){.fd = m->wake[0], .events = POLLIN};
    for (uint32_t i = 1; i < m->options.size; i++) {
        const uint32_t r = (m->options.rank + i) % m->options.size;
        const peer *p = &m->peers[r];
        if (p->has_come || p->is_lost || p->has_left) continue;
        m->polled[++count] = r;
        m->polls[count] = (struct pollfd){.fd = p->fd, .events = POLLIN};
    }
    return count;
}

typedef struct lost_list {
    const cd_mesh *mesh;
    bool of_all; /* whoever has not come; else those whose connection ended */
} lost_list;

static uint32_t lost_next(const void *self, uint32_t from)
{
    const lost_list *list = self;
    const cd_mesh_options *o = &list->mesh->options;
    uint32_t next = CD_NO_RANK;
    for (uint32_t r = 0; r < o->size; r++) {
        const peer *p = &list->mesh->peers[r];
        const bool is_in =
            r != o->rank && !p->has_come && !p->has_left && (list->of_all || p->is_lost);
        if (is_in && o->members[r] >= from && o->members[r] < next) next = o->members[r];
    }
    return next;
}

static cddp_status fail_lost(cd_mesh *m, const cd_mesh_round *round, bool is_late, cddp_error *err)
{
    char names[160];
    const lost_list lost = {m, is_late};
    const cd_rank_list list = {&lost, lost_next};
    const uint32_t first = lost_next(&lost, 0);
    atomic_store(&m->lost, first);
    cd_rank_list_print(&list, first, names, sizeof names);
    const char *they = lost_next(&lost, first + 1) == CD_NO_RANK ? "it" : "they";
    if (!is_late)
        return cd_fail(err, CDDP_E_BACKEND, "lost %s: the connection ended before %s came", names,
                       they);
    return cd_fail(err, CDDP_E_TIMEOUT, "lost %s: %s did not come within %.3g s", names, they,
                   (double)round->timeout_ns / 1e9);
}

static cddp_status fail_left(cd_mesh *m, uint32_t member, cddp_error *err)
{
    const uint32_t who = m->options.members[member], lost = m->peers[member].lost;
    if (lost == m->options.members[m->options.rank])
        return cd_fail(err, CDDP_E_BACKEND, "lost rank %u: it gave up waiting for this rank", who);
    if (lost == CD_MESH_NOBODY)
        return cd_fail(err, CDDP_E_BACKEND, "lost rank %u: it gave up the group", who);
    if (lost == CD_MESH_UNKNOWN)
        return cd_fail(err, CDDP_E_BACKEND, "lost rank %u: an operation did not end in time there",
                       who);
    atomic_store(&m->lost, lost);
    return cd_fail(err, CDDP_E_BACKEND, "lost rank %u, as rank %u says", lost, who);
}

/* A member that came is not asked why it left in this round: the round does not need it. One that
** left before takes part in nothing, whatever it had announced. */
static cddp_status look_for_losses(cd_mesh *m, const cd_mesh_round *round, cddp_error *err)
{
    bool is_any_lost = false;
    for (uint32_t r = 0; r < m->options.size; r++) {
        const peer *p = &m->peers[r];
        if (r == m->options.rank) continue;
        if (p->has_left && (!p->has_come || p->left_in < atomic_load(&m->begun)))
            return CD_PASS(fail_left(m, r, err));
        if (p->has_come) continue;
        is_any_lost = is_any_lost || p->is_lost;
    }
    if (is_any_lost) return CD_PASS(fail_lost(m, round, false, err));
    return CDDP_OK;
}

static cddp_status fail_ended(const cd_mesh *m, cddp_error *err)
{
    const uint32_t lost = atomic_load(&m->lost);
    if (lost == CD_MESH_NOBODY) return cd_fail(err, CDDP_E_ABORTED, "the group was aborted");
    return cd_fail(err, CDDP_E_BACKEND, "the group has lost rank %u", lost);
}

/* Where fingerprints were announced, nobody is waited for. A farewell may be behind them. */
static void take_what_came(cd_mesh *m, const cd_mesh_round *round)
{
    for (uint32_t r = 0; r < m->options.size; r++) {
        peer *p = &m->peers[r];
        p->has_come = false;
        if (r == m->options.rank) continue;
        if (!p->is_lost && !p->has_left) receive(p);
        take_fingerprint(p, &round->all[r]);
    }
}

static cddp_status wait_for_all(cd_mesh *m, const cd_mesh_round *round, cddp_error *err)
{
    take_what_came(m, round);
    for (;;) {
        /* first: a farewell may have been read behind the fingerprint of the round before */
        CD_TRY(look_for_losses(m, round, err));
        const nfds_t missing = select_missing(m);
        if (missing == 0) return CDDP_OK;
        atomic_store_explicit(&m->waits_for, (int32_t)m->polled[1], memory_order_relaxed);
        const uint64_t now = cd_os_now_ns();
        if (now >= round->deadline_ns) return CD_PASS(fail_lost(m, round, true, err));
        const uint64_t ms = (round->deadline_ns - now + 999999) / 1000000;
        if (poll(m->polls, missing + 1, ms > 1000000 ? 1000000 : (int)ms) < 0 && errno != EINTR)
            return cd_fail(err, CDDP_E_IO, "cannot wait for sockets: %s", strerror(errno));
        if (atomic_load(&m->is_ending)) return CD_PASS(fail_ended(m, err));
        for (nfds_t i = 1; i <= missing; i++)
            if (m->polls[i].revents != 0) {
                receive(&m->peers[m->polled[i]]);
                take_fingerprint(&m->peers[m->polled[i]], &round->all[m->polled[i]]);
            }
    }
}

static void send_fingerprint(cd_mesh *m, const cd_call_fingerprint *call, uint64_t deadline_ns)
{
    const uint64_t now = cd_os_now_ns();
    note mine = {.kind = FINGERPRINT, .lost = CD_MESH_NOBODY, .call = *call};
    mine.call.left_ns = deadline_ns > now ? deadline_ns - now : 0;
    if (!m->has_left) send_all(m, &mine);
    m->sent++;
}

bool cd_mesh_announce(cd_mesh *m, const cd_call_fingerprint *call, uint64_t deadline_ns)
{
    pthread_mutex_lock(&m->sending);
    const bool may = m->unsent == 0 && m->sent < m->ended + CD_MESH_AHEAD_MAX;
    if (may)
        send_fingerprint(m, call, deadline_ns);
    else
        m->unsent++;
    pthread_mutex_unlock(&m->sending);
    return may;
}

cddp_status cd_mesh_exchange(cd_mesh *m, const cd_mesh_round *round, cddp_error *err)
{
    if (atomic_load(&m->is_ending)) return CD_PASS(fail_ended(m, err));
    atomic_fetch_add(&m->begun, 1);
    pthread_mutex_lock(&m->sending);
    if (!round->is_announced) send_fingerprint(m, &round->all[m->options.rank], round->deadline_ns);
    if (!round->is_announced && m->unsent > 0) m->unsent--;
    pthread_mutex_unlock(&m->sending);
    cddp_status status = wait_for_all(m, round, err);
    atomic_store_explicit(&m->waits_for, -1, memory_order_relaxed);
    if (status != CDDP_OK) return status;
    pthread_mutex_lock(&m->sending);
    m->ended++;
    pthread_mutex_unlock(&m->sending);
    return CDDP_OK;
}

void cd_mesh_leave(cd_mesh *m, uint32_t lost)
{
    const note farewell = {.kind = FAREWELL, .lost = lost, .round = atomic_load(&m->begun)};
    pthread_mutex_lock(&m->sending);
    if (!m->has_left) send_all(m, &farewell);
    m->has_left = true;
    pthread_mutex_unlock(&m->sending);
    atomic_store(&m->is_ending, true);
    ssize_t n = write(m->wake[1], "x", 1);
    (void)n; /* a full pipe has been written to before */
}

uint32_t cd_mesh_find_lost(cd_mesh *m)
{
    const uint64_t until = cd_os_now_ns() + FAREWELL_WAIT_NS + m->options.size * SILENCE_OF_EACH_NS;
    for (;;) {
        if (atomic_load(&m->lost) != CD_MESH_NOBODY) return atomic_load(&m->lost);
        uint32_t ended = CD_MESH_NOBODY;
        for (uint32_t r = 0; r < m->options.size; r++) {
            peer *p = &m->peers[r];
            if (r == m->options.rank) continue;
            if (!p->is_lost && !p->has_left) receive(p);
            const bool says = p->has_left && p->lost != m->options.members[m->options.rank];
            if (says && p->lost < CD_MESH_UNKNOWN) atomic_store(&m->lost, p->lost);
            if (p->is_lost && !p->has_left && ended == CD_MESH_NOBODY)
                ended = m->options.members[r];
        }
        if (ended != CD_MESH_NOBODY) atomic_store(&m->lost, ended);
        if (cd_os_now_ns() >= until) return atomic_load(&m->lost);
        if (atomic_load(&m->lost) == CD_MESH_NOBODY) cd_os_sleep_ns(1000000);
    }
}

bool cd_mesh_is_late(const cd_mesh *m)
{
    bool is_late = false;
    for (uint32_t r = 0; r < m->options.size; r++)
        is_late |= m->peers[r].has_left && m->peers[r].lost == CD_MESH_UNKNOWN;
    return is_late;
}

typedef struct silent_list {
    const cd_mesh *mesh;
    bool of_ended; /* those whose connection ended; else those whose has not */
} silent_list;

/* Members that should have said farewell, and have not. */
static uint32_t silent_next(const void *self, uint32_t from)
{
    const silent_list *list = self;
    const cd_mesh_options *o = &list->mesh->options;
    uint32_t next = CD_NO_RANK;
    for (uint32_t r = 0; r < o->size; r++) {
        const peer *p = &list->mesh->peers[r];
        const bool is_in = r != o->rank && !p->has_left && p->is_lost == list->of_ended;
        if (is_in && o->members[r] >= from && o->members[r] < next) next = o->members[r];
    }
    return next;
}

/* Until everybody has said farewell, or is late with it. */
static void wait_for_farewells(cd_mesh *m)
{
    const uint64_t patience = SILENCE_NS + m->options.size * SILENCE_OF_EACH_NS;
    for (;;) {
        uint64_t until = 0;
        for (uint32_t r = 0; r < m->options.size; r++) {
            peer *p = &m->peers[r];
            if (r == m->options.rank || p->is_lost || p->has_left) continue;
            receive(p);
            const bool is_due = !p->is_lost && !p->has_left;
            if (is_due && p->ends_ns + patience > until) until = p->ends_ns + patience;
        }
        if (cd_os_now_ns() >= until) return;
        cd_os_sleep_ns(1000000);
    }
}

uint32_t cd_mesh_find_silent(cd_mesh *m, char *names, size_t names_bytes)
{
    silent_list silent = {m, false};
    const cd_rank_list list = {&silent, silent_next};
    uint32_t count = 0;
    cd_mesh_leave(m, CD_MESH_UNKNOWN);
    wait_for_farewells(m);
    /* whose connection ended may have taken its part, and gone */
    silent.of_ended = silent_next(&silent, 0) == CD_NO_RANK;
    for (uint32_t r = silent_next(&silent, 0); r != CD_NO_RANK; r = silent_next(&silent, r + 1))
        count++;
    if (count > 0) cd_rank_list_print(&list, CD_NO_RANK, names, names_bytes);
    if (count == 1) atomic_store(&m->lost, silent_next(&silent, 0));
    return count;
}

int32_t cd_mesh_waits_for(const cd_mesh *m)
{
    return atomic_load_explicit(&m->waits_for, memory_order_relaxed);
}
