/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for bytes, and the time that they take. Planted faults of links hold them back as they do
** messages. */
#include "sim/wire.h"

#include "core/base/arena.h"
#include "core/base/error.h"
#include "sim/cluster.h"

#define NOBODY UINT32_MAX
#define WIRE_BLOCK_BYTES ((size_t)512)
#define RETRY_NS UINT64_C(5000000) /* as the real client does: a server may start to listen */

struct cd_wire {
    cd_sim *sim;
    cd_wire *next;  /* in the world's list, once a host listens */
    cd_arena arena; /* the wire itself and its arrays */
    cd_wire_server_ops ops;
    void *self;
    uint32_t host;    /* NOBODY: none listens */
    bool *is_open;    /* (world_size) connected clients */
    bool *is_reading; /* (world_size) those whose rank waits for bytes */
};

cddp_status cd_wire_create(cd_sim *sim, const cd_wire_options *options, cd_wire **wire,
                           cddp_error *err)
{
    cd_arena arena;
    cd_arena_init(&arena, options->allocator, WIRE_BLOCK_BYTES);
    cd_wire *w = cd_arena_push(&arena, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "a wire");
    *w = (cd_wire){
        .sim = sim, .arena = arena, .ops = options->ops, .self = options->self, .host = NOBODY};
    w->is_open = cd_arena_array(&w->arena, sim->world_size, sizeof *w->is_open);
    w->is_reading = cd_arena_array(&w->arena, sim->world_size, sizeof *w->is_reading);
    cddp_status status = cd_arena_check(&w->arena, err, "a wire of %u ranks", sim->world_size);
    if (status != CDDP_OK)
        cd_wire_destroy(w);
    else
        *wire = w;
    return status;
}

void cd_wire_destroy(cd_wire *w)
{
    if (w == NULL) return;
    for (cd_wire **link = &w->sim->wires; *link != NULL; link = &(*link)->next)
        if (*link == w) {
            *link = w->next;
            break;
        }
    cd_arena_fini(&w->arena);
}

void cd_wire_listen(cd_wire *w, const cddp_rank *host)
{
    if (w->host == NOBODY) {
        w->next = w->sim->wires;
        w->sim->wires = w;
    }
    w->host = host->rank;
}

/* The state of the host, without the network. */
static cd_wire_state host_of(const cd_wire *w)
{
    if (w->host == NOBODY) return CD_WIRE_ABSENT;
    const cd_sim_rank *host = &w->sim->ranks[w->host];
    if (host->state == CD_RANK_DEAD || host->hang_until_ns > w->sim->now_ns) return CD_WIRE_SILENT;
    return host->state == CD_RANK_ENDED ? CD_WIRE_ABSENT : CD_WIRE_ALIVE;
}

/* A host that hangs for a while finds its bytes when it comes back; 0: it does not hang, or for
** good. */
static uint64_t comes_back_ns(const cd_wire *w)
{
    const cd_sim_rank *host = &w->sim->ranks[w->host];
    const bool hangs = host->state != CD_RANK_DEAD && host->hang_until_ns > w->sim->now_ns;
    return hangs && host->hang_until_ns != UINT64_MAX ? host->hang_until_ns : 0;
}

cd_wire_state cd_wire_look(const cd_wire *w, const cddp_rank *port)
{
    const cd_wire_state host = host_of(w);
    if (host == CD_WIRE_SILENT || w->host == NOBODY || w->host == port->rank) return host;
    const bool is_cut =
        cd_link_is_cut(w->sim, port->rank, w->host) || cd_link_is_cut(w->sim, w->host, port->rank);
    return is_cut ? CD_WIRE_CUT : host;
}

static uint64_t one_way_ns(const cd_wire *w, uint32_t rank, size_t bytes)
{
    if (w->host == NOBODY || w->host == rank) return 0;
    const cd_network *network = &w->sim->host->network;
    const cd_link *link = cd_network_link(network, rank, w->host);
    return link->latency_ns + link->overhead_ns + cd_link_busy_ns(link, bytes);
}

/* Until then, or until the deadline if that is earlier; CDDP_E_TIMEOUT in the second case. */
static cddp_status pass_until(cddp_rank *port, uint64_t end_ns, uint64_t deadline_ns,
                              cddp_error *err)
{
    cd_sim *sim = port->world;
    uint64_t until = end_ns < deadline_ns ? end_ns : deadline_ns;
    if (until > sim->now_ns) CD_TRY(port->ops->sleep_ns(port, until - sim->now_ns, err));
    return end_ns <= deadline_ns ? CDDP_OK : cd_fail(err, CDDP_E_TIMEOUT, "no answer in time");
}

/* When bytes from source reach target; UINT64_MAX: never. */
static uint64_t arrival_ns(const cd_wire *w, uint32_t source, uint32_t target, size_t bytes)
{
    uint64_t arrival = w->sim->now_ns + one_way_ns(w, source == w->host ? target : source, bytes);
    if (source != target && !cd_link_pass(w->sim, source, target, &arrival)) return UINT64_MAX;
    return arrival;
}

static cddp_status over(const cddp_rank *port, const char *what, cddp_error *err)
{
    return cd_fail(err, CDDP_E_ABORTED, "the world has ended; rank %u %s no more", port->rank,
                   what);
}

static bool is_over(cd_wire *w, cddp_rank *port)
{
    return cd_sim_is_over_for(w->sim, cd_sim_rank_of(port));
}

/* False when the deadline came first, or the world's end. */
static bool is_reached(cd_wire *w, cddp_rank *port, uint64_t deadline_ns)
{
    cd_sim *sim = w->sim;
    for (;;) {
        uint64_t there_and_back = 2 * one_way_ns(w, port->rank, 0);
        if (pass_until(port, sim->now_ns + there_and_back, deadline_ns, NULL) != CDDP_OK)
            return false;
        if (cd_wire_look(w, port) == CD_WIRE_ALIVE) return true;
        if (pass_until(port, sim->now_ns + RETRY_NS, deadline_ns, NULL) != CDDP_OK) return false;
    }
}

cddp_status cd_wire_connect(cd_wire *w, cddp_rank *port, uint64_t deadline_ns, cddp_error *err)
{
    if (is_over(w, port)) return CD_PASS(over(port, "connects", err));
    if (!is_reached(w, port, deadline_ns)) {
        if (w->sim->unwinding) return CD_PASS(over(port, "connects", err));
        return cd_fail(err, CDDP_E_TIMEOUT, "cannot reach the rendezvous: nobody answers");
    }
    w->is_open[port->rank] = true;
    w->ops.reset(w->self, port->rank);
    return CDDP_OK;
}

void cd_wire_disconnect(cd_wire *w, const cddp_rank *port)
{
    if (!w->is_open[port->rank]) return;
    w->is_open[port->rank] = false;
    if (host_of(w) == CD_WIRE_ALIVE) w->ops.reset(w->self, port->rank);
}

/* The request of one client may end the wait of another. */
static void wake_readers(cd_wire *w)
{
    for (uint32_t i = 0; i < w->sim->world_size; i++)
        if (w->is_reading[i] && (!w->is_open[i] || w->ops.has_answer(w->self, i)))
            cd_sim_wake(w->sim, &w->sim->ranks[i], CD_WAKE_DONE);
}

void cd_wires_rank_ended(cd_sim *sim, const cd_sim_rank *rank)
{
    for (cd_wire *w = sim->wires; w != NULL && !sim->unwinding; w = w->next) {
        if (w->host != rank->port.rank) continue;
        for (uint32_t i = 0; i < sim->world_size; i++) w->is_open[i] = false;
        wake_readers(w);
    }
}

static cddp_status closed(cd_wire *w, const cddp_rank *port, cddp_error *err)
{
    w->is_open[port->rank] = false;
    return cd_fail(err, CDDP_E_IO, "the rendezvous server closed the connection");
}

cddp_status cd_wire_write(cd_wire *w, cddp_rank *port, const void *bytes, size_t byte_count,
                          uint64_t deadline_ns, cddp_error *err)
{
    if (is_over(w, port)) return CD_PASS(over(port, "writes", err));
    if (w->host == NOBODY || !w->is_open[port->rank]) return CD_PASS(closed(w, port, err));
    uint64_t arrival = arrival_ns(w, port->rank, w->host, byte_count);
    if (arrival == UINT64_MAX) return CDDP_OK; /* lost without a notice */
    if (arrival < comes_back_ns(w)) arrival = comes_back_ns(w);
    CD_TRY(pass_until(port, arrival, deadline_ns, err));
    const cd_wire_state host = host_of(w);
    if (host == CD_WIRE_SILENT) return CDDP_OK;
    if (host == CD_WIRE_ABSENT || !w->is_open[port->rank]) return CD_PASS(closed(w, port, err));
    w->sim->stats.races++; /* the first request decides the answers to the others */
    cd_sim_note(cd_sim_rank_of(port), "asked the rendezvous", NULL, 0);
    if (!w->ops.feed(w->self, port->rank, bytes, byte_count)) w->is_open[port->rank] = false;
    wake_readers(w);
    return CDDP_OK;
}

/* Until there may be more to read: an answer, a host that comes back, the deadline. */
static cddp_status await_bytes(cd_wire *w, cddp_rank *port, uint64_t deadline_ns, cddp_error *err)
{
    const uint64_t back = comes_back_ns(w);
    if (w->sim->now_ns >= deadline_ns) return cd_fail(err, CDDP_E_TIMEOUT, "no answer in time");
    w->is_reading[port->rank] = true;
    cd_wake wake = cd_sim_wait(w->sim, "waits for the rendezvous", NULL,
                               back != 0 && back < deadline_ns ? back : deadline_ns);
    w->is_reading[port->rank] = false;
    return wake == CD_WAKE_ABORT ? over(port, "reads", err) : CDDP_OK;
}

cddp_status cd_wire_read(cd_wire *w, cddp_rank *port, void *bytes, size_t byte_count,
                         uint64_t deadline_ns, cddp_error *err)
{
    unsigned char *at = bytes;
    size_t left = byte_count;
    if (is_over(w, port)) return CD_PASS(over(port, "reads", err));
    while (left > 0) {
        const cd_wire_state host = host_of(w);
        if (host == CD_WIRE_ABSENT || !w->is_open[port->rank]) return CD_PASS(closed(w, port, err));
        size_t got = host == CD_WIRE_ALIVE ? w->ops.take(w->self, port->rank, at, left) : 0;
        at += got;
        left -= got;
        if (got == 0 && left > 0) CD_TRY(await_bytes(w, port, deadline_ns, err));
    }
    return CD_PASS(
        pass_until(port, arrival_ns(w, w->host, port->rank, byte_count), deadline_ns, err));
}
