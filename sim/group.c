/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: meeting by name, the window of running collectives, failing, closing.
**
** Invariants:
**   P1  members of a group agree on its ordered list of ranks; a rank with another list is refused;
**   P2  window[i] is collective base + i; it leaves the window only from the front, and only when
**       it is reclaimed;
**   P3  a coll is reclaimed when every member posted and released its part and no message refers to
**       it.
*/
#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/text.h"
#include "sim/cluster.h"

#include <stdio.h>
#include <string.h>

/* ---- making ---- */

static bool same_ranks(const cd_comm *comm, const cddp_group_spec *spec)
{
    return comm->size == spec->group_size &&
           memcmp(comm->ranks, spec->members, spec->group_size * sizeof *spec->members) == 0;
}

/* As core/comm does it: equal on all members without asking. */
static uint32_t id_of(const cddp_group_spec *spec)
{
    uint64_t h = cd_hash_text(spec->name);
    for (uint32_t i = 0; i < spec->group_size; i++) h = cd_hash_mix(h, spec->members[i]);
    return (uint32_t)(h & 0x7fffffffu);
}

static void free_comm(cd_comm *comm)
{
    cd_memory *m = &comm->sim->memory;
    for (uint32_t i = 0; i < comm->size; i++) {
        cd_sim_rank *rank = comm->members[i].rank;
        if (rank != NULL && rank->last_group == comm->name) rank->last_group = NULL;
    }
    cd_memory_release(m, comm->window, comm->window_capacity * sizeof *comm->window);
    cd_memory_release(m, comm, comm->bytes);
}

static cd_comm *make_comm(cd_sim *sim, const cddp_group_spec *spec)
{
    /* One block: the group, its members, their ranks, its name. */
    const size_t n = spec->group_size, name_bytes = strlen(spec->name) + 1;
    const size_t bytes =
        sizeof(cd_comm) + n * sizeof(cd_member) + n * sizeof *spec->members + name_bytes;
    cd_comm *comm = cd_memory_allocate(&sim->memory, bytes);
    if (comm == NULL) return NULL;
    memset(comm, 0, bytes);
    *comm = (cd_comm){.sim = sim,
                      .id = id_of(spec),
                      .size = spec->group_size,
                      .bytes = bytes,
                      .members = (cd_member *)(void *)(comm + 1),
                      .window_capacity = 8};
    comm->ranks = (uint32_t *)(void *)(comm->members + n);
    comm->name = (char *)(comm->ranks + n);
    comm->window = cd_memory_allocate(&sim->memory, comm->window_capacity * sizeof *comm->window);
    if (comm->window == NULL) {
        free_comm(comm);
        return NULL;
    }
    memcpy(comm->name, spec->name, name_bytes);
    memcpy(comm->ranks, spec->members, n * sizeof *comm->ranks);
    comm->next = sim->cluster->comms;
    if (comm->next != NULL) comm->next->previous = comm;
    sim->cluster->comms = comm;
    comm->next_joining = sim->cluster->joining;
    if (comm->next_joining != NULL) comm->next_joining->previous_joining = comm;
    sim->cluster->joining = comm;
    return comm;
}

/* All have joined, or it is closed: nobody looks for it any more. */
static void end_joining(cd_comm *comm)
{
    struct cd_cluster *cluster = comm->sim->cluster;
    if (comm->previous_joining != NULL)
        comm->previous_joining->next_joining = comm->next_joining;
    else if (cluster->joining == comm)
        cluster->joining = comm->next_joining;
    if (comm->next_joining != NULL) comm->next_joining->previous_joining = comm->previous_joining;
    comm->next_joining = comm->previous_joining = NULL;
}

static void unlink_comm(cd_comm *comm)
{
    end_joining(comm);
    if (comm->previous != NULL)
        comm->previous->next = comm->next;
    else
        comm->sim->cluster->comms = comm->next;
    if (comm->next != NULL) comm->next->previous = comm->previous;
}

static cd_comm *find_comm(cd_sim *sim, const cddp_group_spec *spec)
{
    for (cd_comm *c = sim->cluster->joining; c != NULL; c = c->next_joining)
        if (c->joined < c->size && strcmp(c->name, spec->name) == 0) return c;
    return NULL;
}

static uint32_t smaller_limit(uint32_t a, uint32_t b)
{
    if (a == 0 || b == 0) return a + b;
    return a < b ? a : b;
}

/* ---- opening ---- */

static cddp_status check_join(const cd_comm *comm, const cddp_group_spec *spec, uint32_t rank,
                              cddp_error *err)
{
    if (!same_ranks(comm, spec)) /* P1 */
        return cd_fail(err, CDDP_E_MISMATCH,
                       "group '%s': rank %u joins with %u members, others with %u, or in another "
                       "order: the name is "
                       "taken by another set of ranks",
                       spec->name, rank, spec->group_size, comm->size);
    if (comm->members[spec->group_rank].is_joined)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "group '%s': rank %u joins twice, before the others joined once", spec->name,
                       rank);
    return CDDP_OK;
}

static cddp_status wait_for_members(cd_member *member, uint64_t timeout_ns, cddp_error *err)
{
    cd_comm *comm = member->comm;
    cd_sim *sim = comm->sim;
    uint64_t deadline = timeout_ns != 0 ? sim->now_ns + timeout_ns : UINT64_MAX;
    while (comm->joined < comm->size && comm->failure == CDDP_OK) {
        member->rank->waiting_group = comm;
        cd_wake wake = cd_sim_wait(sim, "waits for the members of a group", NULL, deadline);
        member->rank->waiting_group = NULL;
        if (wake == CD_WAKE_DONE) continue;
        if (wake == CD_WAKE_ABORT)
            return cd_fail(err, CDDP_E_ABORTED,
                           "group '%s': the world ended while rank %u waited for its members",
                           comm->name, member->rank->port.rank);
        sim->stats.races++;
        char duration[CD_DURATION_BYTES];
        cd_duration_print(timeout_ns, duration, sizeof duration);
        return cd_fail(err, CDDP_E_TIMEOUT, "group '%s': %u of %u members joined within %s",
                       comm->name, comm->joined, comm->size, duration);
    }
    if (comm->failure != CDDP_OK)
        return cd_fail(err, comm->failure, "group '%s': %s", comm->name, comm->why);
    return CDDP_OK;
}

cddp_status cd_member_open(cddp_rank *port, const cddp_group_spec *spec, cd_member **member,
                           cddp_error *err)
{
    cd_sim *sim = port->world;
    cd_sim_rank *rank = cd_sim_rank_of(port);
    const cd_sim_config *config = &sim->host->config;
    if (cd_sim_is_over_for(sim, rank))
        return cd_fail(err, CDDP_E_ABORTED, "the world has ended; group '%s' is not opened",
                       spec->name);
    for (uint32_t i = 0; i < spec->group_size; i++)
        if (spec->members[i] >= sim->world_size)
            return cd_fail(err, CDDP_E_ARG, "group '%s' names rank %u of a world of %u", spec->name,
                           spec->members[i], sim->world_size);
    cd_comm *comm = find_comm(sim, spec);
    if (comm != NULL)
        CD_TRY(check_join(comm, spec, port->rank, err));
    else
        comm = make_comm(sim, spec);
    if (comm == NULL) return cd_fail_memory(err, "group '%s' of %u", spec->name, spec->group_size);
    cd_member *m = &comm->members[spec->group_rank];
    uint64_t timeout = spec->timeout_ns != 0 ? spec->timeout_ns : config->timeout_ns;
    *m = (cd_member){.comm = comm,
                     .rank = rank,
                     .index = spec->group_rank,
                     .timeout_ns = timeout,
                     .is_joined = true,
                     .slots_max = smaller_limit(spec->in_flight_max, config->slots_per_rank)};
    comm->joined++;
    if (comm->joined == comm->size) end_joining(comm);
    cd_sim_note(rank, "joined group", comm->name, 0);
    if (comm->joined == comm->size)
        for (uint32_t i = 0; i < comm->size; i++)
            if (comm->members[i].rank->waiting_group == comm)
                cd_sim_wake(sim, comm->members[i].rank, CD_WAKE_DONE);
    cddp_status status = wait_for_members(m, timeout, err);
    if (status != CDDP_OK) {
        cd_member_close(m);
        return status;
    }
    *member = m;
    return CDDP_OK;
}

void cd_member_observe(cd_member *member) { member->is_observed = true; }

/* ---- colls ---- */

cd_coll *cd_comm_make_coll(cd_comm *comm, uint32_t size)
{
    cd_sim *sim = comm->sim;
    bool ordered = sim->host->config.algorithm == CD_ALGORITHM_any_order && size == comm->size;
    size_t bytes = sizeof(cd_coll) + size * sizeof(cd_part),
           order_bytes = ordered ? size * sizeof(uint32_t) : 0;
    cd_coll **pool = size == comm->size ? &comm->free_colls : &comm->free_pairs;
    cd_coll *coll = *pool;
    if (coll != NULL)
        *pool = coll->next;
    else
        coll = cd_memory_allocate(&sim->memory, bytes + order_bytes);
    if (coll == NULL) return NULL;
    *coll = (cd_coll){.comm = comm, .size = size};
    if (ordered) coll->order = (uint32_t *)(void *)((char *)coll + bytes);
    for (uint32_t i = 0; i < size; i++) {
        cd_part *p = &coll->parts[i];
        p->coll = coll;
        p->index = i;
        p->state = CD_PART_EMPTY;
        p->member = NULL;
        p->waiter = NULL;
        p->inbox = p->inbox_last = NULL;
        p->is_blocked = p->has_content = p->is_staged = p->is_released = p->is_given_back =
            p->is_moving = p->is_awaited = p->is_followed = false;
        p->stream_device = NULL;
        p->joiner = NULL;
        p->is_unordered[0] = p->is_unordered[1] = false;
        p->death = NULL;
    }
    return coll;
}

void cd_coll_drop_flows(cd_coll *coll)
{
    cd_memory_release(&coll->comm->sim->memory, coll->flows, coll->size * sizeof *coll->flows);
    coll->flows = NULL;
}

static bool grow_window(cd_comm *comm)
{
    cd_memory *m = &comm->sim->memory;
    size_t capacity = comm->window_capacity * 2;
    cd_coll **window = cd_memory_allocate(m, capacity * sizeof *window);
    if (window == NULL) return false;
    for (size_t i = 0; i < comm->window_count; i++)
        window[i] = comm->window[(comm->window_first + i) % comm->window_capacity];
    cd_memory_release(m, comm->window, comm->window_capacity * sizeof *window);
    comm->window = window;
    comm->window_capacity = capacity;
    comm->window_first = 0;
    return true;
}

cd_coll *cd_comm_get_coll(cd_comm *comm, uint64_t ordinal)
{
    CD_ASSERT(ordinal >= comm->base); /* P2 */
    size_t index = (size_t)(ordinal - comm->base);
    while (index >= comm->window_count) {
        if (comm->window_count == comm->window_capacity && !grow_window(comm)) return NULL;
        comm->window[(comm->window_first + comm->window_count++) % comm->window_capacity] = NULL;
    }
    cd_coll **slot = &comm->window[(comm->window_first + index) % comm->window_capacity];
    if (*slot == NULL) {
        *slot = cd_comm_make_coll(comm, comm->size);
        if (*slot != NULL) (*slot)->ordinal = ordinal;
    }
    return *slot;
}

/* The oldest pair of this direction and tag whose side of ours is still open, or a new one. */
cd_coll *cd_comm_get_pair(cd_comm *comm, const cddp_collective *what, uint32_t me, uint32_t *part)
{
    bool sends = what->op == CDDP_OP_SEND;
    uint32_t from = sends ? me : what->root, to = sends ? what->root : me;
    cd_coll **link = &comm->pairs;
    *part = sends ? 0 : 1;
    for (; *link != NULL; link = &(*link)->next) {
        cd_coll *c = *link;
        const cd_part *other = &c->parts[1 - *part];
        if (c->pair[0] == from && c->pair[1] == to && c->parts[*part].state == CD_PART_EMPTY &&
            other->what.tag == what->tag)
            return c;
    }
    cd_coll *coll = cd_comm_make_coll(comm, 2);
    if (coll == NULL) return NULL;
    coll->is_pair = true;
    coll->pair[0] = from;
    coll->pair[1] = to;
    coll->ordinal = comm->pair_count++;
    *link = coll;
    return coll;
}

void cd_comm_trim(cd_comm *comm)
{
    while (comm->window_count > 0) {
        cd_coll *coll = comm->window[comm->window_first];
        bool is_done = coll != NULL && coll->released == coll->size && coll->messages == 0;
        if (!is_done) return; /* P3 */
        cd_coll_drop_flows(coll);
        coll->next = comm->free_colls;
        comm->free_colls = coll;
        comm->window_first = (comm->window_first + 1) % comm->window_capacity;
        comm->window_count--;
        comm->base++;
    }
}

/* ---- failing and closing ---- */

static void fail_coll(cd_coll *coll, cddp_status status)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        if (p->state == CD_PART_QUEUED || p->state == CD_PART_STARTED)
            cd_part_end(p, status, coll->comm->why);
    }
}

void cd_comm_fail(cd_comm *comm, cddp_status status, const char *why)
{
    if (comm->failure != CDDP_OK) return;
    comm->failure = status;
    comm->sim->stats.races++;
    snprintf(comm->why, sizeof comm->why, "%s", why);
    for (size_t i = 0; i < comm->window_count; i++) {
        cd_coll *coll = comm->window[(comm->window_first + i) % comm->window_capacity];
        if (coll != NULL) fail_coll(coll, status);
    }
    for (cd_coll *c = comm->pairs; c != NULL; c = c->next) fail_coll(c, status);
    for (uint32_t i = 0; i < comm->size; i++)
        if (comm->members[i].is_joined && comm->members[i].rank->waiting_group == comm)
            cd_sim_wake(comm->sim, comm->members[i].rank, CD_WAKE_DONE);
}

cddp_status cd_member_abort(cd_member *member, const char *reason, cddp_error *err)
{
    cd_comm *comm = member->comm;
    char why[CD_WHY_BYTES];
    if (cd_sim_is_over_for(comm->sim, member->rank))
        return cd_fail(err, CDDP_E_ABORTED, "the world has ended");
    snprintf(why, sizeof why, "rank %u aborted the group: %s", member->rank->port.rank,
             reason != NULL ? reason : "no reason given");
    cd_comm_fail(comm, CDDP_E_ABORTED, why);
    return CDDP_OK;
}

/* Colls of a group that nobody can reach any more; messages still under way keep theirs. */
static bool is_quiet(const cd_comm *comm)
{
    for (size_t i = 0; i < comm->window_count; i++) {
        const cd_coll *coll = comm->window[(comm->window_first + i) % comm->window_capacity];
        if (coll != NULL && coll->messages > 0) return false;
    }
    for (const cd_coll *c = comm->pairs; c != NULL; c = c->next)
        if (c->messages > 0) return false;
    return true;
}

static void abandon(cd_coll *coll, uint32_t member)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        cd_part *p = &coll->parts[i];
        bool is_mine = p->member != NULL && p->member->index == member;
        if (is_mine && !p->is_released && p->state != CD_PART_EMPTY) cd_part_forget(p);
    }
}

void cd_member_close(cd_member *member)
{
    if (member == NULL || member->is_closed) return;
    cd_comm *comm = member->comm;
    for (size_t i = 0; i < comm->window_count; i++) {
        cd_coll *coll = comm->window[(comm->window_first + i) % comm->window_capacity];
        if (coll != NULL) abandon(coll, member->index);
    }
    for (cd_coll *c = comm->pairs, *next; c != NULL; c = next) {
        next = c->next;
        abandon(c, member->index);
    }
    member->is_closed = true;
    comm->closed++;
    if (comm->closed < comm->size || !is_quiet(comm)) return; /* what is left goes with the world */
    unlink_comm(comm);
    cd_memory *m = &comm->sim->memory;
    bool ordered = comm->sim->host->config.algorithm == CD_ALGORITHM_any_order;
    size_t bytes =
        sizeof(cd_coll) + comm->size * (sizeof(cd_part) + (ordered ? sizeof(uint32_t) : 0));
    for (size_t i = 0; i < comm->window_count; i++) {
        cd_coll *coll = comm->window[(comm->window_first + i) % comm->window_capacity];
        if (coll != NULL) cd_coll_drop_flows(coll);
        cd_memory_release(m, coll, bytes);
    }
    for (cd_coll *c = comm->free_colls, *next; c != NULL; c = next)
        next = c->next, cd_memory_release(m, c, bytes);
    free_comm(comm);
}
