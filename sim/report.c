/* SPDX-License-Identifier: Apache-2.0 */
/* Reports which rank waits for which, as text and as events, when a world has stopped. */
#include "core/base/error.h"
#include "sim/cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PEERS_MAX 16u

typedef struct text_builder {
    char *text;
    size_t bytes, length; /* length wanted */
} text_builder;

static void add(text_builder *b, const char *format, ...) CDDP_PRINTF(2, 3);
static void add(text_builder *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = b->length < b->bytes ? b->bytes - b->length : 0;
    int n = vsnprintf(room > 0 ? b->text + b->length : NULL, room, format, args);
    va_end(args);
    if (n > 0) b->length += (size_t)n;
}

static uint32_t add_peer(uint32_t *peers, uint32_t count, uint32_t max, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++)
        if (peers[i] == rank) return count;
    if (count < max) peers[count] = rank;
    return count < max ? count + 1 : count;
}

/* A part that waits for a slot waits for whatever the started ones wait for. */
uint32_t cd_part_missing(const cd_part *part, uint32_t *peers, uint32_t peers_max)
{
    const cd_coll *coll = part->coll;
    uint32_t count = 0;
    if (part->state == CD_PART_QUEUED) {
        for (const cd_part *p = part->member->rank->active; p != NULL; p = p->next)
            if (p != part) {
                uint32_t more[PEERS_MAX], n = cd_part_missing(p, more, PEERS_MAX);
                for (uint32_t i = 0; i < n; i++) count = add_peer(peers, count, peers_max, more[i]);
            }
        if (count > 0) return count;
    }
    if (part->is_blocked && part->awaited != UINT32_MAX)
        return add_peer(peers, 0, peers_max, cd_coll_rank(coll, part->awaited));
    for (uint32_t i = 0; i < coll->size; i++) {
        const cd_part *p = &coll->parts[i];
        bool absent =
            p->state == CD_PART_EMPTY || p->state == CD_PART_QUEUED || p->state == CD_PART_GONE;
        if (absent && i != part->index)
            count = add_peer(peers, count, peers_max, cd_coll_rank(coll, i));
    }
    return count;
}

static void add_peers(text_builder *b, const uint32_t *peers, uint32_t count)
{
    add(b, count == 1 ? " for rank" : " for ranks");
    for (uint32_t i = 0; i < count && i < PEERS_MAX; i++)
        add(b, "%s %u", i > 0 ? "," : "", peers[i]);
    if (count >= PEERS_MAX) add(b, " …");
}

/* Is what the one sends to the other held back for good? */
static bool is_cut(const cd_sim *sim, uint32_t source, uint32_t target)
{
    for (uint32_t i = 0; i < sim->cluster->link_fault_count; i++) {
        const cd_link_fault *l = &sim->cluster->link_faults[i];
        if (l->until_ns == UINT64_MAX && cd_fault_cuts(l->fault, source, target)) return true;
    }
    return false;
}

/* "allreduce #3 of group 'world' for rank 2", with what the missing ranks themselves do. */
static void add_part(text_builder *b, const cd_part *part)
{
    uint32_t peers[PEERS_MAX], count = cd_part_missing(part, peers, PEERS_MAX);
    const cd_sim *sim = part->coll->comm->sim;
    add(b, "%s #%llu of group '%s'", cddp_op_name(part->what.op),
        (unsigned long long)part->coll->ordinal, part->coll->comm->name);
    if (part->state == CD_PART_QUEUED) add(b, " (no slot is free)");
    if (count == 0) return;
    add_peers(b, peers, count);
    if (is_cut(sim, peers[0], part->member->rank->port.rank))
        add(b, ", from whom the network is cut");
    const cd_sim_rank *first = &sim->ranks[peers[0]];
    const cd_part *other = first->waiting_part;
    const char *state = first->state == CD_RANK_DEAD    ? "is dead"
                        : first->state == CD_RANK_ENDED ? "has ended"
                                                        : NULL;
    if (state != NULL)
        add(b, ", which %s", state);
    else if (other != NULL && other != part)
        add(b, ", which waits in %s #%llu of group '%s'", cddp_op_name(other->what.op),
            (unsigned long long)other->coll->ordinal, other->coll->comm->name);
    else if (first->waiting != NULL)
        add(b, ", which %s", first->waiting);
}

void cd_part_print(const cd_part *part, char *text, size_t text_bytes)
{
    text_builder b = {text, text_bytes, 0};
    if (text_bytes > 0) text[0] = '\0';
    if (part->state == CD_PART_ENDED || part->state == CD_PART_GONE) return;
    uint32_t peers[PEERS_MAX], count = cd_part_missing(part, peers, PEERS_MAX);
    if (count == 0) return;
    add(&b, "it waits");
    add_peers(&b, peers, count);
}

/* The members that have not opened the group. */
static uint32_t absent_members(const cd_comm *comm, uint32_t peers[PEERS_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < comm->size; i++)
        if (!comm->members[i].is_joined) count = add_peer(peers, count, PEERS_MAX, comm->ranks[i]);
    return count;
}

/* The last action of the rank. */
static void add_last(text_builder *b, const cd_sim_rank *rank)
{
    if (rank->last_what == NULL) return;
    add(b, "; last: %s", rank->last_what);
    if (rank->last_group != NULL)
        add(b, " '%s' #%llu", rank->last_group, (unsigned long long)rank->last_ordinal);
    add(b, " at %llu ns", (unsigned long long)rank->last_ns);
}

static void add_wait(text_builder *b, const cd_sim_rank *rank)
{
    const cd_comm *comm = rank->waiting_group;
    add(b, "rank %u ", rank->port.rank);
    if (rank->waiting_part != NULL) {
        add(b, "waits in ");
        add_part(b, rank->waiting_part);
    } else if (comm != NULL) {
        add(b, "waits to open group '%s'", comm->name);
        uint32_t peers[PEERS_MAX], count = absent_members(comm, peers);
        add_peers(b, peers, count);
    } else {
        add(b, "%s", rank->waiting != NULL ? rank->waiting : "is ready");
    }
    add_last(b, rank);
}

void cd_sim_report_death(cd_sim_rank *rank)
{
    char words[CDDP_ERROR_MESSAGE_BYTES - 64];
    text_builder b = {words, sizeof words, 0};
    words[0] = '\0';
    add_last(&b, rank);
    (void)cd_fail(&rank->error, CDDP_E_ABORTED, "rank %u was killed by a planted fault%s",
                  rank->port.rank, words);
}

size_t cd_sim_print_waits(const cd_sim *sim, char *text, size_t text_bytes)
{
    text_builder b = {text, text_bytes, 0};
    if (text_bytes > 0) text[0] = '\0';
    for (uint32_t i = 0; sim->ranks != NULL && i < sim->world_size; i++) {
        const cd_sim_rank *r = &sim->ranks[i];
        if (r->state != CD_RANK_WAITING && !r->hung) continue;
        if (r->hung && sim->unwinding)
            add(&b, "%s", r->error.message); /* it has been cleaned up since */
        else
            add_wait(&b, r);
        add(&b, "\n");
    }
    return b.length;
}

/* One event per edge of the graph. */
static void emit_edges(cd_sim *sim, const cd_sim_rank *rank, const char *text)
{
    uint32_t peers[PEERS_MAX], count = 0;
    const cd_part *part = rank->waiting_part;
    if (part != NULL) count = cd_part_missing(part, peers, PEERS_MAX);
    for (uint32_t i = 0; i < count; i++)
        CD_SIM_EMIT(sim, waiting_for, text, .group = part->coll->comm->id,
                    .sequence = (int64_t)part->what.sequence, .peer = peers[i], .op = part->what.op,
                    .who = rank->port.rank);
    const cd_comm *comm = part == NULL ? rank->waiting_group : NULL;
    if (comm != NULL) count = absent_members(comm, peers);
    for (uint32_t i = 0; comm != NULL && i < count; i++)
        CD_SIM_EMIT(sim, waiting_for, text, .group = comm->id, .sequence = -1, .peer = peers[i],
                    .op = -1, .who = rank->port.rank);
    if (count == 0)
        CD_SIM_EMIT(sim, waiting_for, text, .group = -1, .sequence = -1, .peer = -1, .op = -1,
                    .who = rank->port.rank);
}

void cd_sim_report_hang(cd_sim *sim)
{
    for (uint32_t i = 0; i < sim->world_size; i++) {
        cd_sim_rank *rank = &sim->ranks[i];
        if (!rank->hung) continue;
        char words[CDDP_ERROR_MESSAGE_BYTES - 64];
        text_builder b = {words, sizeof words, 0};
        words[0] = '\0';
        add_wait(&b, rank);
        cddp_status status = sim->out_of_memory ? CDDP_E_NOMEM : CDDP_E_TIMEOUT;
        (void)cd_fail(&rank->error, status, "%s: %s",
                      sim->out_of_time     ? "the virtual time is over"
                      : sim->out_of_memory ? "the world's memory is used up"
                                           : "hung",
                      words);
        emit_edges(sim, rank, words);
    }
}
