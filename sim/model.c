/* SPDX-License-Identifier: Apache-2.0 */
/* When every part of a collective ends, from the static graph of its program: no event queue, no
** contention between operations. The same costs as in transport.c, so both agree to the nanosecond
** where nothing is shared.
**
** Any program can be timed by walking it (time_program); a ring is timed as a recurrence over rows
** of ranks (ring_time.c).
*/
#include "core/base/assert.h"
#include "core/base/hash.h"
#include "sim/cluster.h"
#include "sim/ring_time.h"
#include "sim/turns.h"

#include <string.h>

typedef struct walk {
    cd_sim *sim;
    cd_coll *coll;
    uint64_t (*lanes)[CD_LANE_COUNT]; /* (size) when each part's are free */
    cd_turns turns;
} walk;

/* The resources that a message of a part occupies. */
static uint64_t leave(walk *w, const cd_part *part, uint32_t peer, const cd_route *route)
{
    uint64_t time_ns = part->time_ns, *clocks[CD_LANE_COUNT];
    for (int lane = 0; lane < CD_LANE_COUNT; lane++) clocks[lane] = &w->lanes[part->index][lane];
    clocks[CD_LANE_LANDING] = &w->lanes[peer][CD_LANE_LANDING];
    return cd_route_leave(route, &time_ns, clocks);
}

static void send_timed(walk *w, cd_part *part, const cd_action *a)
{
    const cd_network *network = &w->sim->host->network;
    cd_message *m = cd_message_make(w->sim, w->coll);
    if (m == NULL) {
        cd_sim_exhausted(w->sim);
        return;
    }
    uint32_t from = cd_coll_rank(w->coll, part->index), to = cd_coll_rank(w->coll, a->peer);
    m->source = part->index;
    m->bytes = 0;
    m->count = a->count;
    m->time_ns = part->time_ns;
    m->channel = a->channel;
    bool from_host = (a->hosts & CD_HOST_HERE) != 0, to_host = (a->hosts & CD_HOST_THERE) != 0;
    if (from != to || from_host != to_host) {
        const cd_passage passage = {from, to, from_host, to_host};
        const cd_route route =
            cd_network_route(network, &passage,
                             (uint64_t)a->count * cd_flow_of(part)->program.element_bytes);
        uint64_t key =
            network->config.jitter_ns != 0 ? cd_hash_mix(w->coll->comm->id, w->coll->ordinal) : 0;
        uint64_t left_ns = leave(w, part, a->peer, &route);
        cd_flow_keep_until(cd_flow_of(part), left_ns);
        m->time_ns =
            left_ns + route.latency_ns +
            cd_network_jitter_ns(network, from, to,
                                 key != 0 ? cd_hash_mix(key, cd_flow_of(part)->action) : 0);
        if (network->config.jitter_ns != 0) {
            if (m->time_ns < cd_flow_of(part)->last_arrival_ns)
                m->time_ns = cd_flow_of(part)->last_arrival_ns;
            cd_flow_of(part)->last_arrival_ns = m->time_ns;
        }
    }
    cd_inbox_push(&w->coll->parts[a->peer], m);
    cd_turns_add(&w->turns, a->peer);
}

/* Runs one program until it must wait; false when it has finished. */
static bool walk_part(walk *w, cd_part *part)
{
    cd_action a;
    cd_flow *flow = cd_flow_of(part);
    for (; cd_program_find(&flow->program, &flow->action, &a); flow->action++) {
        if (a.kind == CD_ACTION_SEND) {
            send_timed(w, part, &a);
        } else {
            cd_message *m = cd_inbox_take(part, &a);
            if (m == NULL) return true;
            if (m->time_ns > part->time_ns) part->time_ns = m->time_ns;
            if ((a.hosts & CD_HOST_HERE) != 0)
                part->time_ns +=
                    cd_network_host_ns(&w->sim->host->network,
                                       (uint64_t)a.count * flow->program.element_bytes);
            cd_message_free(w->sim, m, false);
        }
    }
    if (part->time_ns < flow->left_ns) part->time_ns = flow->left_ns;
    return false;
}

static void time_program(walk *w)
{
    uint32_t unfinished = w->coll->size, i = 0;
    bool has_memory = cd_turns_init(&w->turns, &w->sim->memory, w->coll->size);
    for (uint32_t k = 0; has_memory && k < w->coll->size; k++)
        has_memory = cd_part_describe_program(&w->coll->parts[k]);
    if (!has_memory) cd_sim_exhausted(w->sim);
    while (!w->sim->out_of_memory && cd_turns_next(&w->turns, &i))
        unfinished -= !walk_part(w, &w->coll->parts[i]);
    CD_ASSERT(unfinished == 0 || w->sim->out_of_memory);
    cd_turns_fini(&w->turns);
}

/* The lane out of which a part sends in a ring: an all-gather's goes up. */
static uint64_t *ring_lane(walk *w, uint32_t part)
{
    const cd_network *network = &w->sim->host->network;
    const uint32_t n = w->coll->size;
    const bool up = w->coll->parts[0].what.op == CDDP_OP_ALLGATHER;
    uint32_t from = cd_coll_rank(w->coll, part),
             to = cd_coll_rank(w->coll, (part + (up ? 1 : n - 1)) % n);
    const cd_passage passage = {.source = from, .target = to};
    return &w->lanes[part][cd_network_route(network, &passage, 0).lanes[0]];
}

/* True when ring_time.c can time the collective, a ring: one member's program describes all. */
static bool time_ring(walk *w)
{
    cd_coll *coll = w->coll;
    if (!cd_part_describe_program(&coll->parts[0])) return false;
    cd_program *p = &cd_flow_of(&coll->parts[0])->program;
    if (w->sim->host->network.config.jitter_ns != 0 || !w->sim->host->network.is_plain ||
        !cd_ring_time_suits(p))
        return false;
    size_t scratch = cd_ring_time_scratch(p), bytes = (scratch + 2 * coll->size) * sizeof(double);
    double *memory = cd_memory_allocate(&w->sim->memory, bytes);
    if (memory == NULL) return false;
    double *port = memory + coll->size;
    for (uint32_t i = 0; i < coll->size; i++) {
        memory[i] = (double)coll->parts[i].time_ns;
        port[i] = (double)*ring_lane(w, i);
    }
    cd_ring_time ring = {&w->sim->host->network, *p, coll->comm->ranks, memory, port,
                         port + coll->size};
    cd_ring_time_run(&ring);
    for (uint32_t i = 0; i < coll->size; i++) {
        coll->parts[i].time_ns = (uint64_t)(memory[i] > port[i] ? memory[i] : port[i]);
        *ring_lane(w, i) = (uint64_t)port[i];
    }
    cd_memory_release(&w->sim->memory, memory, bytes);
    return true;
}

/* A part starts when it was posted and its member's previous operation has ended; its port may be
** busy longer. */
void cd_coll_time(cd_coll *coll)
{
    cd_sim *sim = coll->comm->sim;
    size_t bytes = coll->size * sizeof *((walk *)NULL)->lanes;
    walk w = {.sim = sim, .coll = coll, .lanes = cd_memory_allocate(&sim->memory, bytes)};
    if (w.lanes == NULL) {
        cd_sim_exhausted(sim);
        return;
    }
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        if (!coll->is_pair && p->member->free_ns > p->time_ns) p->time_ns = p->member->free_ns;
        p->time_ns += sim->host->config.launch_ns;
        for (int lane = 0; lane < CD_LANE_COUNT; lane++)
            w.lanes[i][lane] = p->member->lane_free_ns[lane] > p->time_ns
                                   ? p->member->lane_free_ns[lane]
                                   : p->time_ns;
    }
    if (!time_ring(&w)) time_program(&w);
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        if (!coll->is_pair) p->member->free_ns = p->time_ns;
        memcpy(p->member->lane_free_ns, w.lanes[i], sizeof p->member->lane_free_ns);
    }
    cd_memory_release(&sim->memory, w.lanes, bytes);
    cd_coll_drop_flows(coll);
}
