/* SPDX-License-Identifier: Apache-2.0 */
/* Reports which rank waits for which, as text and as events, when a world has stopped. */
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/rank_list.h"
#include "core/base/text.h"
#include "sim/cluster.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EDGES_MAX 16u /* events of one rank's waiting; texts name ranks without a limit */

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
    int n = cd_vformat(room > 0 ? b->text + b->length : NULL, room, format, args);
    va_end(args);
    if (n > 0) b->length += (size_t)n;
}

static uint32_t add_peer(uint32_t *peers, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++)
        if (peers[i] == rank) return count;
    peers[count] = rank;
    return count + 1;
}

/* Of a part that was started. */
static uint32_t find_absent(const cd_part *part, uint32_t *peers)
{
    const cd_coll *coll = part->coll;
    uint32_t count = 0;
    if (part->is_blocked && part->awaited != UINT32_MAX) {
        peers[0] = cd_coll_rank(coll, part->awaited);
        return 1;
    }
    /* A member that gave up is not missing, as long as one has not come at all. */
    for (int gone = 0; gone < 2 && count == 0; gone++) {
        for (uint32_t i = 0; i < coll->size; i++) {
            const cd_part_state state = coll->parts[i].state;
            const uint32_t rank = cd_coll_rank(coll, i);
            const bool is_dead = coll->comm->sim->ranks[rank].state == CD_RANK_DEAD;
            const bool is_absent = state == CD_PART_EMPTY || state == CD_PART_QUEUED ||
                                   (state == CD_PART_GONE && (gone > 0 || is_dead));
            if (is_absent && i != part->index) peers[count++] = rank;
        }
    }
    return count;
}

/* A part that waits for a slot waits for whatever the started ones wait for. */
static uint32_t find_missing(const cd_part *part, uint32_t *peers)
{
    uint32_t count = 0, *more = peers + part->coll->comm->sim->world_size;
    if (part->state == CD_PART_QUEUED) {
        for (const cd_part *p = part->member->rank->active; p != NULL; p = p->next) {
            const uint32_t n = p != part ? find_absent(p, more) : 0;
            for (uint32_t i = 0; i < n; i++) count = add_peer(peers, count, more[i]);
        }
    }
    return count > 0 ? count : find_absent(part, peers);
}

/* By insertion: groups list their ranks in ascending order, but for rare ones. */
static void sort_peers(uint32_t *peers, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        const uint32_t peer = peers[i];
        uint32_t at = i;
        for (; at > 0 && peers[at - 1] > peer; at--) peers[at] = peers[at - 1];
        peers[at] = peer;
    }
}

/* Leaves the peers in ascending order. */
static void add_peers(text_builder *b, uint32_t *peers, uint32_t count)
{
    char ranks[128];
    sort_peers(peers, count);
    cd_rank_list_print(&(cd_rank_list){&(cd_rank_array){peers, count}, cd_rank_array_next},
                       CD_NO_RANK, ranks, sizeof ranks);
    add(b, " for %s", ranks);
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

static const char *state_of(const cd_sim_rank *rank)
{
    return rank->state == CD_RANK_DEAD ? "dead" : rank->state == CD_RANK_ENDED ? "ended" : NULL;
}

static bool is_alike(const cd_sim_rank *a, const cd_sim_rank *b)
{
    const cd_part *x = a->waiting_part, *y = b->waiting_part;
    if (state_of(a) != state_of(b)) return false;
    if (state_of(a) != NULL) return true;
    if (x != NULL && y != NULL) return x->coll == y->coll;
    return x == y && a->waiting == b->waiting;
}

/* What the missing ranks themselves do; when they do different things, what the first one does. */
static void add_doings(text_builder *b, const cd_part *part, const uint32_t *peers, uint32_t count)
{
    const cd_sim *sim = part->coll->comm->sim;
    const cd_sim_rank *first = &sim->ranks[peers[0]];
    const cd_part *other = first->waiting_part;
    char who[32] = "which";
    bool many = count > 1;
    for (uint32_t i = 1; i < count && many; i++) many = is_alike(first, &sim->ranks[peers[i]]);
    /* what a rank waits for otherwise is said of one rank */
    if (count > 1 && (!many || (state_of(first) == NULL && other == NULL))) {
        snprintf(who, sizeof who, "of which rank %u", peers[0]);
        many = false;
    }
    if (state_of(first) != NULL)
        add(b, ", %s %s %s", who,
            first->state == CD_RANK_DEAD ? (many ? "are" : "is") : (many ? "have" : "has"),
            state_of(first));
    else if (other != NULL && other != part)
        add(b, ", %s %s in %s #%llu of group '%s'", who, many ? "wait" : "waits",
            cddp_op_name(other->what.op), (unsigned long long)other->coll->ordinal,
            other->coll->comm->name);
    else if (first->waiting != NULL)
        add(b, ", %s %s", who, first->waiting);
}

/* "allreduce #3 of group 'world' for rank 2", with what the missing ranks themselves do. */
static void add_part(text_builder *b, const cd_part *part)
{
    const cd_sim *sim = part->coll->comm->sim;
    const uint32_t self = part->member->rank->port.rank;
    uint32_t *peers = sim->cluster->peers, count = find_missing(part, peers), cut = 0;
    add(b, "%s #%llu of group '%s'", cddp_op_name(part->what.op),
        (unsigned long long)part->coll->ordinal, part->coll->comm->name);
    if (part->state == CD_PART_QUEUED) add(b, " (no slot is free)");
    if (count == 0) return;
    add_peers(b, peers, count);
    while (cut < count && is_cut(sim, peers[cut], self)) cut++;
    if (cut == count)
        add(b, ", from whom the network is cut");
    else if (cut > 0)
        add(b, ", from the first of whom the network is cut");
    add_doings(b, part, peers, count);
}

void cd_part_print(const cd_part *part, char *text, size_t text_bytes)
{
    text_builder b = {text, text_bytes, 0};
    if (text_bytes > 0) text[0] = '\0';
    if (part->state == CD_PART_ENDED || part->state == CD_PART_GONE) return;
    uint32_t *peers = part->coll->comm->sim->cluster->peers, count = find_missing(part, peers);
    if (count == 0) return;
    add(&b, "it waits");
    add_peers(&b, peers, count);
}

/* The members that have not opened the group. */
static uint32_t absent_members(const cd_comm *comm, uint32_t *peers)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < comm->size; i++)
        if (!comm->members[i].is_joined) peers[count++] = comm->ranks[i];
    return count;
}

/* The last action of the rank. */
static void add_last(text_builder *b, const cd_sim_rank *rank)
{
    if (rank->last_what == NULL) return;
    add(b, "; last: %s", rank->last_what);
    if (rank->last_group != NULL)
        add(b, " '%s' #%llu", rank->last_group, (unsigned long long)rank->last_ordinal);
    char when[CD_DURATION_BYTES];
    cd_duration_print(rank->last_ns, when, sizeof when);
    add(b, " after %s", when);
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
        uint32_t *peers = comm->sim->cluster->peers, count = absent_members(comm, peers);
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
    uint32_t *peers = sim->cluster->peers, count = 0;
    const cd_part *part = rank->waiting_part;
    if (part != NULL) count = find_missing(part, peers);
    for (uint32_t i = 0; i < count && i < EDGES_MAX; i++)
        CD_SIM_EMIT(sim, waiting_for, text, .group = part->coll->comm->id,
                    .sequence = (int64_t)part->what.sequence, .peer = peers[i], .op = part->what.op,
                    .who = rank->port.rank);
    const cd_comm *comm = part == NULL ? rank->waiting_group : NULL;
    if (comm != NULL) count = absent_members(comm, peers);
    for (uint32_t i = 0; comm != NULL && i < count && i < EDGES_MAX; i++)
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
