/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for bytes, and the time that they take. */
#include "sim/wire.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "sim/state.h"

#define NOBODY UINT32_MAX
#define RETRY_NS UINT64_C(5000000) /* as the real client: somebody may come to listen */

struct cd_wire {
    cd_sim *sim;
    cd_wire_server_ops ops;
    void *self;
    uint32_t host;    /* NOBODY: none listens */
    bool *is_open;    /* (world_size) connected clients */
    bool *is_reading; /* (world_size) those whose rank waits for bytes */
};

cddp_status cd_wire_create(cd_sim *sim, const cd_wire_server_ops *ops, void *self, cd_wire **wire, cddp_error *err)
{
    const cddp_allocator *a = sim->host->allocator;
    cd_wire *w = cd_allocate_zero(a, sizeof *w);
    if (w == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for a wire");
    *w = (cd_wire){.sim = sim, .ops = *ops, .self = self, .host = NOBODY};
    w->is_open = cd_allocate_array(a, sim->world_size, sizeof *w->is_open);
    w->is_reading = cd_allocate_array(a, sim->world_size, sizeof *w->is_reading);
    if (w->is_open == NULL || w->is_reading == NULL) {
        cd_wire_destroy(w);
        return cd_fail(err, CDDP_E_NOMEM, "no memory for a wire of %u ranks", sim->world_size);
    }
    *wire = w;
    return CDDP_OK;
}

void cd_wire_destroy(cd_wire *w)
{
    if (w == NULL) return;
    const cddp_allocator *a = w->sim->host->allocator;
    cd_release(a, w->is_open, w->sim->world_size * sizeof *w->is_open);
    cd_release(a, w->is_reading, w->sim->world_size * sizeof *w->is_reading);
    cd_release(a, w, sizeof *w);
}

void cd_wire_listen(cd_wire *w, const cddp_rank *host) { w->host = host->rank; }

typedef enum host_state { HOST_ABSENT, HOST_ALIVE, HOST_SILENT } host_state;

static host_state host_of(const cd_wire *w)
{
    if (w->host == NOBODY) return HOST_ABSENT;
    const cd_sim_rank *host = &w->sim->ranks[w->host];
    if (host->state == CD_RANK_DEAD || host->hang_until_ns > w->sim->now_ns) return HOST_SILENT;
    return host->state == CD_RANK_ENDED ? HOST_ABSENT : HOST_ALIVE;
}

static uint64_t one_way_ns(const cd_wire *w, uint32_t rank, size_t bytes)
{
    if (w->host == NOBODY || w->host == rank) return 0;
    const cd_network *network = &w->sim->host->network;
    const cd_link *link = cd_network_link(network, rank, w->host);
    return link->latency_ns + link->overhead_ns + cd_link_busy_ns(link, bytes);
}

/* Until then, or until the deadline if that is earlier; CDDP_E_TIMEOUT in the second case. */
static cddp_status pass_until(cddp_rank *port, uint64_t end_ns, uint64_t deadline_ns, cddp_error *err)
{
    cd_sim *sim = port->world;
    uint64_t until = end_ns < deadline_ns ? end_ns : deadline_ns;
    if (until > sim->now_ns) CD_TRY(port->ops->sleep_ns(port, until - sim->now_ns, err));
    return end_ns <= deadline_ns ? CDDP_OK : cd_fail(err, CDDP_E_TIMEOUT, "no answer in time");
}

/* False when the deadline came first, or the world's end. */
static bool is_reached(cd_wire *w, cddp_rank *port, uint64_t deadline_ns)
{
    cd_sim *sim = w->sim;
    for (;;) {
        uint64_t there_and_back = 2 * one_way_ns(w, port->rank, 0);
        if (pass_until(port, sim->now_ns + there_and_back, deadline_ns, NULL) != CDDP_OK) return false;
        if (host_of(w) == HOST_ALIVE) return true;
        if (pass_until(port, sim->now_ns + RETRY_NS, deadline_ns, NULL) != CDDP_OK) return false;
    }
}

cddp_status cd_wire_connect(cd_wire *w, cddp_rank *port, uint64_t deadline_ns, cddp_error *err)
{
    if (!is_reached(w, port, deadline_ns)) {
        if (w->sim->unwinding)
            return cd_fail(err, CDDP_E_ABORTED, "the world has ended; rank %u connects no more", port->rank);
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
    if (host_of(w) == HOST_ALIVE) w->ops.reset(w->self, port->rank);
}

/* What one client said may be what another one waits for. */
static void wake_readers(cd_wire *w)
{
    for (uint32_t i = 0; i < w->sim->world_size; i++)
        if (w->is_reading[i]) cd_sim_wake(w->sim, &w->sim->ranks[i], CD_WAKE_DONE);
}

static cddp_status closed(cd_wire *w, const cddp_rank *port, cddp_error *err)
{
    w->is_open[port->rank] = false;
    return cd_fail(err, CDDP_E_IO, "the rendezvous server closed the connection");
}

cddp_status cd_wire_write(cd_wire *w, cddp_rank *port, const void *bytes, size_t byte_count, uint64_t deadline_ns,
                          cddp_error *err)
{
    CD_TRY(pass_until(port, w->sim->now_ns + one_way_ns(w, port->rank, byte_count), deadline_ns, err));
    host_state host = host_of(w);
    if (host == HOST_SILENT) return CDDP_OK; /* lost; nobody says so */
    if (host == HOST_ABSENT || !w->is_open[port->rank]) return closed(w, port, err);
    if (!w->ops.feed(w->self, port->rank, bytes, byte_count)) w->is_open[port->rank] = false;
    wake_readers(w);
    return CDDP_OK;
}

cddp_status cd_wire_read(cd_wire *w, cddp_rank *port, void *bytes, size_t byte_count, uint64_t deadline_ns,
                         cddp_error *err)
{
    cd_sim *sim = w->sim;
    unsigned char *at = bytes;
    size_t left = byte_count;
    while (left > 0) {
        host_state host = host_of(w);
        if (host == HOST_ABSENT || !w->is_open[port->rank]) return closed(w, port, err);
        size_t got = host == HOST_ALIVE ? w->ops.take(w->self, port->rank, at, left) : 0;
        at += got;
        left -= got;
        if (got > 0 || left == 0) continue;
        if (sim->now_ns >= deadline_ns) return cd_fail(err, CDDP_E_TIMEOUT, "no answer in time");
        w->is_reading[port->rank] = true;
        cd_wake wake = cd_sim_wait(sim, "waits for the rendezvous", NULL, deadline_ns);
        w->is_reading[port->rank] = false;
        if (wake == CD_WAKE_ABORT)
            return cd_fail(err, CDDP_E_ABORTED, "the world has ended; rank %u reads no more", port->rank);
    }
    return pass_until(port, sim->now_ns + one_way_ns(w, port->rank, byte_count), deadline_ns, err);
}
