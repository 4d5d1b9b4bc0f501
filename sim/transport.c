/* SPDX-License-Identifier: Apache-2.0 */
/* Messages: a part's program sends chunks over ports and links, and waits for chunks in its inbox.
**
** A chunk is copied when it is sent. It belongs to one operation (group, ordinal) and one receiver;
** within those the chunks of one sender arrive in order. That is all that ties a receive to a send:
** what the sender believes the operation to be does not matter, exactly as on a wire. A chunk
** shorter than expected fills part of the range; a longer one fails the receiver.
**
** Conservation: messages sent = delivered + lost + under way, and so are bytes (cd_sim_stats).
*/
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "sim/cluster.h"

#include <string.h>

cd_message *cd_message_make(cd_sim *sim, cd_coll *coll)
{
    cd_message *m = sim->cluster->free_messages;
    if (m != NULL)
        sim->cluster->free_messages = m->next;
    else
        m = cd_memory_allocate(&sim->memory, sizeof *m);
    if (m == NULL) return NULL;
    m->next = NULL;
    m->coll = coll;
    m->data.device = NULL;
    m->bytes = 0;
    m->is_received = false;
    m->channel = m->hosts = 0;
    return m;
}

void cd_message_free(cd_sim *sim, cd_message *message, bool lost)
{
    if (message->data.device != NULL) cd_staging_give(sim, &message->data, message->count);
    if (lost) {
        sim->stats.messages_lost++;
        sim->stats.bytes_lost += message->bytes;
    }
    message->next = sim->cluster->free_messages;
    sim->cluster->free_messages = message;
}

void cd_inbox_push(cd_part *part, cd_message *message)
{
    message->next = NULL;
    if (part->inbox == NULL)
        part->inbox = message;
    else
        part->inbox_last->next = message;
    part->inbox_last = message;
}

/* The oldest chunk from where this receive awaits one. */
cd_message *cd_inbox_take(cd_part *part, const cd_action *awaited)
{
    cd_message *before = NULL;
    for (cd_message *m = part->inbox; m != NULL; before = m, m = m->next) {
        if (!cd_message_suits(m, awaited->peer, awaited->channel)) continue;
        if (before == NULL)
            part->inbox = m->next;
        else
            before->next = m->next;
        if (part->inbox_last == m) part->inbox_last = before;
        return m;
    }
    return NULL;
}

void cd_inbox_clear(cd_part *part, bool lost)
{
    const cd_action any = {.peer = UINT32_MAX};
    while (part->inbox != NULL)
        cd_message_free(part->coll->comm->sim, cd_inbox_take(part, &any), lost);
}

/* ---- sending ---- */

static cddp_status copy_chunk(cd_part *part, const cd_action *a, cd_message *m, cddp_error *err)
{
    if (!part->has_content || a->count == 0) return CDDP_OK;
    cddp_tensor source = cd_flat(&cd_flow_of(part)->source, a->begin, a->count);
    cddp_tensor data = {0};
    CD_TRY(cd_staging_take(part->coll->comm->sim, &source, a->count, &data, err));
    m->data = data;
    CD_TRY(data.device->copy(&data, &source, NULL, err));
    return CDDP_OK;
}

/* Does the fault act on what source sends to target now? */
static bool acts_on(const cd_sim *sim, const cd_link_fault *l, uint32_t source, uint32_t target)
{
    const cd_fault *f = l->fault;
    if (l->is_spent || l->until_ns < sim->now_ns) return false;
    if (cd_fault_cuts(f, source, target)) return true;
    return f->side == NULL && f->rank == source && (f->peer == UINT32_MAX || f->peer == target);
}

/* Only messages of collectives have what these change. */
static bool awaits_data(const cd_link_fault *l)
{
    return l->fault->kind == CDDP_FAULT_CHUNK_CORRUPT || l->fault->kind == CDDP_FAULT_LINK_REORDER;
}

/* Later, or never: false. */
static bool pass_link_fault(const cd_link_fault *l, uint32_t source, uint32_t target,
                            uint64_t *arrival_ns)
{
    if (cd_fault_cuts(l->fault, source, target)) {
        if (l->until_ns == UINT64_MAX) return false;
        if (*arrival_ns < l->until_ns) *arrival_ns = l->until_ns;
    } else if (l->fault->kind == CDDP_FAULT_LINK_DELAY) {
        *arrival_ns += l->fault->amount;
    }
    return true;
}

bool cd_link_is_cut(const cd_sim *sim, uint32_t source, uint32_t target)
{
    for (uint32_t i = 0; i < sim->cluster->link_fault_count; i++) {
        cd_link_fault *l = &sim->cluster->link_faults[i];
        if (!acts_on(sim, l, source, target) || !cd_fault_cuts(l->fault, source, target)) continue;
        l->has_met = true; /* who asked knows it */
        return true;
    }
    return false;
}

bool cd_link_pass(const cd_sim *sim, uint32_t source, uint32_t target, uint64_t *arrival_ns)
{
    for (uint32_t i = 0; i < sim->cluster->link_fault_count; i++) {
        cd_link_fault *l = &sim->cluster->link_faults[i];
        if (!acts_on(sim, l, source, target)) continue;
        l->has_met |= !awaits_data(l);
        if (!pass_link_fault(l, source, target, arrival_ns)) return false;
    }
    return true;
}

/* Chunks of an operation from one sender arrive in order, also when a fault delayed one. */
static void keep_order(cd_link_fault *l, const cd_message *m, bool acts, uint64_t *arrival_ns)
{
    if (l->late_ns != NULL && l->fault->rank == m->source_rank) {
        uint64_t *late = &l->late_ns[m->target_rank];
        if (*arrival_ns < *late) *arrival_ns = *late;
        if (acts) *late = *arrival_ns;
    }
    if (l->held_coll == m->coll && l->held_target == m->target_rank &&
        l->fault->rank == m->source_rank && *arrival_ns < l->held_ns)
        *arrival_ns = l->held_ns;
}

/* Applies planted faults to this message: delay, corruption or loss. False: it is lost. */
static bool pass_link_faults(cd_sim *sim, cd_message *m, uint64_t *arrival_ns)
{
    for (uint32_t i = 0; i < sim->cluster->link_fault_count; i++) {
        cd_link_fault *l = &sim->cluster->link_faults[i];
        const cd_fault *f = l->fault;
        const bool acts = acts_on(sim, l, m->source_rank, m->target_rank);
        l->has_met |= acts && (!awaits_data(l) || m->data.device != NULL);
        if (acts && !pass_link_fault(l, m->source_rank, m->target_rank, arrival_ns)) return false;
        keep_order(l, m, acts, arrival_ns);
        if (!acts) continue;
        if (f->kind == CDDP_FAULT_LINK_REORDER) {
            *arrival_ns += f->amount;
            l->held_coll = m->coll;
            l->held_target = m->target_rank;
            l->held_ns = *arrival_ns;
            l->is_spent = true;
        } else if (f->kind == CDDP_FAULT_CHUNK_CORRUPT && m->data.device != NULL) {
            cd_tensor_flip_bit(&m->data, f->amount);
            l->is_spent = true;
        }
    }
    return true;
}

static uint64_t busy_of(struct cd_cluster *cluster, const cd_link *link, uint64_t bytes)
{
    if (cluster->last_link != link || cluster->last_bytes != bytes) {
        cluster->last_link = link;
        cluster->last_bytes = bytes;
        cluster->last_busy_ns = cd_link_busy_ns(link, bytes);
    }
    return cluster->last_busy_ns;
}

static cd_passage passage_of(const cd_message *m)
{
    return (cd_passage){m->source_rank, m->target_rank, (m->hosts & CD_HOST_HERE) != 0,
                        (m->hosts & CD_HOST_THERE) != 0};
}

static uint64_t arrival_by_route(cd_sim *sim, cd_part *part, cd_message *m)
{
    const cd_network *network = &sim->host->network;
    uint64_t ordinal = cd_hash_mix(cd_hash_mix(part->coll->comm->id, part->coll->ordinal),
                                   cd_flow_of(part)->action);
    const cd_passage passage = passage_of(m);
    const cd_route route = cd_network_route(network, &passage, m->bytes);
    uint64_t *ports = sim->cluster->send_port_free_ns, *clocks[CD_LANE_COUNT];
    for (int lane = 0; lane < CD_LANE_COUNT; lane++)
        clocks[lane] = &ports[cd_network_lane_port(network, m->source_rank, (cd_lane)lane)];
    clocks[CD_LANE_LANDING] =
        &sim->cluster
             ->receive_port_free_ns[cd_network_lane_port(network, m->target_rank, CD_LANE_LANDING)];
    clocks[CD_LANE_CONNECTION] = &part->member->lane_free_ns[CD_LANE_CONNECTION];
    m->is_received = !route.holds_receiver;
    uint64_t left_ns = cd_route_leave(&route, &m->sent_ns, clocks);
    cd_flow_keep_until(cd_flow_of(part), left_ns);
    uint64_t arrival = left_ns + route.latency_ns +
                       cd_network_jitter_ns(network, m->source_rank, m->target_rank, ordinal);
    const uint64_t last = cd_flow_of(part)->last_arrival_ns;
    return arrival < last ? last : arrival;
}

/* Ports are taken in the order of sending; see sim/network.h for the model. */
static uint64_t arrival_of(cd_sim *sim, cd_part *part, cd_message *m)
{
    if (sim->host->config.transport != CD_SIM_MESSAGES) return sim->now_ns;
    const cd_network *network = &sim->host->network;
    if (m->hosts != 0) return arrival_by_route(sim, part, m);
    if (m->source_rank == m->target_rank) return sim->now_ns;
    if (!network->is_plain) return arrival_by_route(sim, part, m);
    const cd_link *link = cd_network_link(network, m->source_rank, m->target_rank);
    m->busy_ns = busy_of(sim->cluster, link, m->bytes);
    uint64_t *port =
        &sim->cluster->send_port_free_ns[cd_network_port(network, m->source_rank, m->target_rank)];
    uint64_t start = *port > sim->now_ns ? *port : sim->now_ns;
    *port = start + link->overhead_ns + m->busy_ns;
    m->sent_ns = start;
    cd_flow_keep_until(cd_flow_of(part), *port);
    uint64_t arrival = *port + link->latency_ns;
    if (network->config.jitter_ns != 0) {
        uint64_t key = cd_hash_mix(part->coll->comm->id, part->coll->ordinal);
        arrival = *port + cd_network_latency_ns(network, m->source_rank, m->target_rank,
                                                cd_hash_mix(key, cd_flow_of(part)->action));
    }
    /* one connection: no overtaking */
    if (arrival < cd_flow_of(part)->last_arrival_ns) arrival = cd_flow_of(part)->last_arrival_ns;
    return arrival;
}

static void deliver(cd_sim *sim, cd_message *m);

/* A receiver's port is busy for as long as the sender's was; without contention that time has just
** passed. */
static uint64_t pass_port(cd_sim *sim, uint32_t port, uint64_t busy_ns, uint64_t now_ns)
{
    uint64_t *free_ns = &sim->cluster->receive_port_free_ns[port];
    *free_ns = *free_ns + busy_ns > now_ns ? *free_ns + busy_ns : now_ns;
    return *free_ns;
}

static uint64_t pass_receiver(cd_sim *sim, const cd_message *m)
{
    const cd_network *network = &sim->host->network;
    if (network->is_plain && m->hosts == 0)
        return pass_port(sim, cd_network_port(network, m->target_rank, m->source_rank), m->busy_ns,
                         sim->now_ns);
    const cd_passage passage = passage_of(m);
    const cd_route route = cd_network_route(network, &passage, m->bytes);
    uint64_t done = sim->now_ns;
    for (int i = 2; i-- > 0;)
        if (route.lanes[i] != CD_LANE_COUNT)
            done = pass_port(sim, cd_network_lane_port(network, m->target_rank, route.lanes[i]),
                             route.lane_ns[i], done);
    return done;
}

static void arrive(cd_sim *sim, cd_sim_event *event)
{
    cd_message *m = (cd_message *)(void *)event;
    bool wired = sim->host->config.transport == CD_SIM_MESSAGES && m->source_rank != m->target_rank;
    /* copies between a device and its host were received when they were sent */
    if (wired && !m->is_received) {
        uint64_t done = pass_receiver(sim, m);
        m->is_received = true;
        if (done > sim->now_ns) {
            cd_sim_schedule_event(sim, event, done);
            return;
        }
    }
    deliver(sim, m);
}

static cddp_status transmit(cd_part *part, const cd_action *a, cddp_error *err)
{
    cd_coll *coll = part->coll;
    cd_sim *sim = coll->comm->sim;
    cd_message *m = cd_message_make(sim, coll);
    if (m == NULL) return cd_fail_memory(err, "a message");
    m->event.fire = arrive;
    m->source = part->index;
    m->target = a->peer;
    m->channel = a->channel;
    m->hosts = a->hosts;
    m->begin = a->begin;
    m->count = a->count;
    m->bytes = (uint64_t)a->count * cd_flow_of(part)->program.element_bytes;
    m->source_rank = cd_coll_rank(coll, part->index);
    m->target_rank = cd_coll_rank(coll, a->peer);
    m->sent_ns = sim->now_ns;
    cddp_status status = copy_chunk(part, a, m, err);
    if (status != CDDP_OK) {
        cd_message_free(sim, m, false);
        return status;
    }
    uint64_t arrival = arrival_of(sim, part, m);
    sim->stats.messages_sent++;
    sim->stats.bytes_sent += m->bytes;
    /* inside a node, where no link breaks */
    bool is_copy = m->hosts == CD_HOST_HERE || m->hosts == CD_HOST_THERE;
    if (sim->cluster->link_fault_count > 0 && !is_copy && !pass_link_faults(sim, m, &arrival)) {
        cd_message_free(sim, m, true);
        return CDDP_OK;
    }
    if (sim->host->network.config.jitter_ns != 0) cd_flow_of(part)->last_arrival_ns = arrival;
    m->time_ns = arrival;
    coll->messages++;
    cd_sim_schedule_event(sim, &m->event, arrival);
    return CDDP_OK;
}

/* ---- receiving ---- */

static void emit_message(cd_sim *sim, const cd_message *m)
{
    if (sim->tracer.sink == NULL || sim->tracer.level < CDDP_TRACE_PAYLOAD) return;
    CD_SIM_EMIT(sim, message, NULL, .source = m->source_rank, .target = m->target_rank,
                .bytes = (int64_t)m->bytes, .group = m->coll->comm->id,
                .sequence = (int64_t)m->coll->ordinal, .sent = (int64_t)m->sent_ns,
                .digest = cd_tracer_digest(&sim->tracer, &m->data));
}

static void deliver(cd_sim *sim, cd_message *m)
{
    cd_coll *coll = m->coll;
    cd_part *part = &coll->parts[m->target];
    coll->messages--;
    bool is_dead = sim->ranks[m->target_rank].state == CD_RANK_DEAD;
    if (is_dead || part->state == CD_PART_ENDED || part->state == CD_PART_GONE ||
        coll->comm->failure != CDDP_OK) {
        cd_message_free(sim, m, true);
        cd_coll_reclaim(coll);
        return;
    }
    sim->stats.messages++;
    sim->stats.bytes += m->bytes;
    emit_message(sim, m);
    cd_inbox_push(part, m);
    if (part->is_blocked && cd_message_suits(m, part->awaited, part->awaited_channel))
        cd_part_progress(part);
}

/* A chunk of another dtype is read as bytes of ours, as a wire would have it. */
static cddp_status receive(cd_part *part, const cd_action *a, const cd_message *m, cddp_error *err)
{
    uint64_t wanted = (uint64_t)a->count * cd_flow_of(part)->program.element_bytes;
    if (m->bytes > wanted)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "rank %u received %llu bytes from rank %u where it expected %llu",
                       m->target_rank, (unsigned long long)m->bytes, m->source_rank,
                       (unsigned long long)wanted);
    if (m->data.device == NULL || !part->has_content) return CDDP_OK;
    cddp_tensor data = m->data;
    int64_t count = m->count;
    if (data.dtype != cd_flow_of(part)->work.dtype) {
        bool plain = (data.device->flags & CDDP_DEVICE_HOST) != 0 &&
                     (data.device->flags & CDDP_DEVICE_VALUES) != 0;
        if (!plain)
            return cd_fail(err, CDDP_E_MISMATCH,
                           "rank %u received %s from rank %u where it expected %s", m->target_rank,
                           cddp_dtype_name(data.dtype), m->source_rank,
                           cddp_dtype_name(cd_flow_of(part)->work.dtype));
        data.dtype = cd_flow_of(part)->work.dtype;
        count = (int64_t)(m->bytes / cd_flow_of(part)->program.element_bytes);
    }
    if (a->begin + count > cd_numel(&cd_flow_of(part)->work))
        return cd_fail(err, CDDP_E_MISMATCH, "rank %u received more than fits", m->target_rank);
    CD_TRY(cd_part_apply(part, a, &data, count, err));
    return CDDP_OK;
}

/* The host has added the received data, or the sent data has left: the program continues. */
static void go_on(cd_sim *sim, cd_sim_event *event)
{
    cd_part *part = (cd_part *)(void *)((char *)event - offsetof(cd_part, end_event));
    (void)sim;
    part->coll->messages--;
    if (part->state == CD_PART_STARTED)
        cd_part_progress(part);
    else
        cd_coll_reclaim(part->coll);
}

static void go_on_at(cd_part *part, uint64_t time_ns)
{
    part->end_event.fire = go_on;
    part->coll->messages++;
    cd_sim_schedule_event(part->coll->comm->sim, &part->end_event, time_ns);
}

/* True when the host needs time for what it received; the program goes on behind this entry
** afterwards. */
static bool host_adds(cd_part *part, const cd_action *a)
{
    cd_sim *sim = part->coll->comm->sim;
    uint64_t bytes = (uint64_t)a->count * cd_flow_of(part)->program.element_bytes;
    if (sim->host->config.transport != CD_SIM_MESSAGES) return false;
    uint64_t duration = cd_network_host_ns(&sim->host->network, bytes);
    if (duration == 0) return false;
    cd_flow_of(part)->action++;
    go_on_at(part, sim->now_ns + duration);
    return true;
}

static cddp_status advance(cd_part *part, bool *finished, cddp_error *err)
{
    cd_sim *sim = part->coll->comm->sim;
    cd_flow *flow = cd_flow_of(part);
    cd_action a;
    for (; cd_program_find(&flow->program, &flow->action, &a); flow->action++) {
        if (a.kind == CD_ACTION_SEND) {
            CD_TRY(transmit(part, &a, err));
            if (part->death != NULL) return CDDP_OK;
            continue;
        }
        cd_message *m = cd_inbox_take(part, &a);
        part->is_blocked = m == NULL;
        part->awaited = a.peer;
        part->awaited_channel = a.channel;
        if (m == NULL) return CDDP_OK;
        cddp_status status = receive(part, &a, m, err);
        cd_message_free(sim, m, false);
        if (status != CDDP_OK) return status;
        if ((a.hosts & CD_HOST_HERE) != 0 && host_adds(part, &a)) return CDDP_OK;
    }
    if (flow->left_ns > sim->now_ns) {
        go_on_at(part, flow->left_ns);
        return CDDP_OK;
    }
    CD_TRY(cd_part_finish(part, err));
    *finished = true;
    return CDDP_OK;
}

void cd_part_progress(cd_part *part)
{
    cddp_error error = CDDP_ERROR_INIT;
    bool finished = false;
    cddp_status status = advance(part, &finished, &error);
    if (part->death != NULL && !finished) {
        cd_sim_strike(part->coll->comm->sim, part->death);
        return;
    }
    if (status != CDDP_OK) {
        char *why = part->coll->comm->why;
        memcpy(why, error.message, CD_WHY_BYTES - 1);
        why[CD_WHY_BYTES - 1] = '\0';
        cd_part_end(part, status, why);
    } else if (finished) {
        cd_part_end(part, CDDP_OK, NULL);
    }
}
