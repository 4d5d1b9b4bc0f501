/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm as a function from an index to an action.
**
** A program is a sequence; a receive waits, a send does not. Programs of one operation fit together
** because every member computes the same boundaries from the same description. Members that
** disagree get programs that do not fit. Their messages then meet wrong receives, as on a real
** cluster.
**
** Which algorithm serves which operation:
**   allreduce       as named
**   reduce          flat and any_order: all to the root; otherwise a binomial tree (tree.c)
**   reduce_scatter  flat and any_order: through rank 0; otherwise a ring (chunk c from rank c-1
**                   downwards to rank c)
**   broadcast       binomial tree      allgather        ring
**   gather, scatter direct             alltoall         pairwise
**   barrier         dissemination      send, recv       direct
*/
#include "sim/algorithm.h"

#include "sim/tree.h"

#include <string.h>

static const char *const names[CD_ALGORITHM_COUNT] = {
#define CD_ALGORITHM(name, summary) #name,
#include "sim/algorithms.def"
#undef CD_ALGORITHM
};

const char *cd_algorithm_name(cd_algorithm algorithm)
{
    return (unsigned)algorithm < CD_ALGORITHM_COUNT ? names[algorithm] : "?";
}

int32_t cd_algorithm_find(const char *name)
{
    for (int32_t i = 0; i < CD_ALGORITHM_COUNT; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Where a walk through a program stands: every part of a program takes indices away until one hits
** zero. */
typedef struct cursor {
    uint32_t left;
    cd_action *action;
} cursor;

/* Between two members' devices. */
static void set(cd_action *action, cd_action_kind kind, uint32_t peer, int64_t begin, int64_t count)
{
    /* one by one: a copy of the whole would wait for the parts it was made of */
    action->kind = kind;
    action->peer = peer;
    action->begin = begin;
    action->count = count;
    action->channel = action->hosts = 0;
}

static bool hit(cursor *c, cd_action_kind kind, uint32_t peer, int64_t begin, int64_t count)
{
    if (c->left-- != 0) return false;
    set(c->action, kind, peer, begin, count);
    return true;
}

/* Elements in front of a member's share, and in it. */
static int64_t share_begin(const int64_t *counts, int64_t equal, uint32_t member)
{
    if (counts == NULL) return equal * member;
    int64_t begin = 0;
    for (uint32_t i = 0; i < member; i++) begin += counts[i];
    return begin;
}

static int64_t share_count(const int64_t *counts, int64_t equal, uint32_t member)
{
    return counts == NULL ? equal : counts[member];
}

/* ---- ring ---- */

/* Gloo's segments: at least two per rank, at most 1 MiB each, an equal number in each of the N
** chunks. The plain ring has one segment per chunk. */
cd_ring_segments cd_ring_get_segments(const cd_program *program)
{
    const cd_program *p = program;
    const uint64_t max_bytes = 1024 * 1024;
    uint64_t n = p->size, esize = p->element_bytes != 0 ? p->element_bytes : 1;
    if (p->algorithm == CD_ALGORITHM_ring)
        return (cd_ring_segments){1, (p->numel + (int64_t)n - 1) / (int64_t)n};
    uint64_t total = (uint64_t)p->numel * esize;
    uint64_t segment_max = esize * (max_bytes / esize > 1 ? max_bytes / esize : 1);
    uint64_t count = (total + segment_max - 1) / segment_max;
    if (count < 2 * n) count = 2 * n;
    count = (count + n - 1) / n * n;
    uint64_t bytes = (total + count - 1) / count;
    return (cd_ring_segments){(uint32_t)(count / n), (int64_t)((bytes + esize - 1) / esize)};
}

/* Step t of 2(N-1): rank r sends chunk r+1+t to rank r-1 and receives chunk r+2+t from rank r+1,
** reducing in the first N-1 steps and storing in the rest. A segment is passed on as soon as it has
** been received. */
static bool ring_get(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, steps = 2 * (n - 1);
    cd_ring_segments s = p->ring;
    bool sends = true;
    uint32_t step = 0, segment = index;
    if (index >= s.per_chunk) {
        uint32_t k = index - s.per_chunk;
        step = k / (2 * s.per_chunk);
        segment = k % (2 * s.per_chunk) / 2;
        sends = k % 2 != 0;
        if (step >= steps) return false;
        if (sends) step++;
    }
    uint32_t chunk = p->rank + step + (sends ? 1 : 2);
    while (chunk >= n) chunk -= n; /* twice at most: a division takes longer */
    int64_t begin = ((int64_t)chunk * s.per_chunk + segment) * s.elements;
    int64_t count = p->numel - begin < s.elements ? p->numel - begin : s.elements;
    if (count < 0 || step >= steps) count = 0; /* behind the end of the data, or of the ring */
    cd_action_kind receive = step < n - 1 ? CD_ACTION_REDUCE : CD_ACTION_STORE;
    const uint32_t before = p->rank > 0 ? p->rank - 1 : n - 1,
                   behind = p->rank + 1 < n ? p->rank + 1 : 0;
    const uint32_t peer = sends ? before : behind;
    set(action, sends ? CD_ACTION_SEND : receive, peer, begin, count);
    return true;
}

/* Entries come in groups of one chunk each: first those that send a rank's own, then those of every
** step. With less data than chunks most groups are empty, in a large ring nearly all: the next that
** may not be is about chunk 0. */
static uint32_t ring_skip(const cd_program *p, uint32_t index)
{
    const uint32_t n = p->size, per_chunk = p->ring.per_chunk, groups = 2 * n - 1;
    const int64_t chunk_elements = p->ring.elements * per_chunk;
    if (p->numel > chunk_elements * (int64_t)(n - 1)) return index; /* no chunk is empty */
    uint32_t group = index < per_chunk ? 0 : (index - per_chunk) / (2 * per_chunk) + 1;
    uint32_t chunk = (p->rank + 1 + group) % n;
    if (chunk * chunk_elements < p->numel) return index;
    group += n - chunk;
    return per_chunk + 2 * per_chunk * ((group < groups && p->numel > 0 ? group : groups) - 1);
}

/* The reducing half of the ring, with the members' shares as chunks. */
static bool ring_reduce_scatter(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2;
    if (step >= n - 1) return false;
    bool sends = index % 2 == 0;
    uint32_t chunk = (p->rank + step + (sends ? 1 : 2)) % n;
    int64_t equal = p->numel / (int64_t)n;
    set(action, sends ? CD_ACTION_SEND : CD_ACTION_REDUCE,
        sends ? (p->rank + n - 1) % n : (p->rank + 1) % n, share_begin(p->counts, equal, chunk),
        share_count(p->counts, equal, chunk));
    return true;
}

static bool ring_allgather(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2;
    if (step >= n - 1) return false;
    bool sends = index % 2 == 0;
    uint32_t chunk = (p->rank + 2 * n - step - (sends ? 0 : 1)) % n;
    set(action, sends ? CD_ACTION_SEND : CD_ACTION_STORE,
        sends ? (p->rank + 1) % n : (p->rank + n - 1) % n, share_begin(p->counts, p->numel, chunk),
        share_count(p->counts, p->numel, chunk));
    return true;
}

/* ---- all through one rank ---- */

/* The root starts from its own contribution and adds the others in rank order, or as they come. */
static bool star_reduce(const cd_program *p, uint32_t root, cursor *c)
{
    bool any = p->algorithm == CD_ALGORITHM_any_order;
    if (p->rank != root) return hit(c, CD_ACTION_SEND, root, 0, p->numel);
    /* its own takes part in the race */
    if (any && hit(c, CD_ACTION_SEND, root, 0, p->numel)) return true;
    for (uint32_t i = any ? 0 : 1; i < p->size; i++) {
        /* flat: 0, 1, 2 … without the root; the first of the race replaces, the others are added */
        uint32_t peer = i <= root ? i - 1 : i;
        cd_action_kind kind = any && i == 0 ? CD_ACTION_STORE : CD_ACTION_REDUCE;
        if (hit(c, kind, any ? UINT32_MAX : peer, 0, p->numel)) return true;
    }
    return false;
}

static bool star_broadcast(const cd_program *p, uint32_t root, cursor *c)
{
    if (p->rank != root) return hit(c, CD_ACTION_STORE, root, 0, p->numel);
    for (uint32_t peer = 0; peer < p->size; peer++)
        if (peer != root && hit(c, CD_ACTION_SEND, peer, 0, p->numel)) return true;
    return false;
}

static bool star_scatter(const cd_program *p, int64_t equal, cursor *c)
{
    uint32_t root = p->op == CDDP_OP_SCATTER ? p->root : 0;
    int64_t mine = p->op == CDDP_OP_SCATTER ? 0 : share_begin(p->counts, equal, p->rank);
    if (p->rank != root)
        return hit(c, CD_ACTION_STORE, root, mine, share_count(p->counts, equal, p->rank));
    for (uint32_t peer = 0; peer < p->size; peer++)
        if (peer != root && hit(c, CD_ACTION_SEND, peer, share_begin(p->counts, equal, peer),
                                share_count(p->counts, equal, peer)))
            return true;
    return false;
}

static bool star_gather(const cd_program *p, cursor *c)
{
    if (p->rank != p->root)
        return hit(c, CD_ACTION_SEND, p->root, 0, share_count(p->counts, p->numel, p->rank));
    for (uint32_t peer = 0; peer < p->size; peer++)
        if (peer != p->root && hit(c, CD_ACTION_STORE, peer, share_begin(p->counts, p->numel, peer),
                                   share_count(p->counts, p->numel, peer)))
            return true;
    return false;
}

static bool pairwise_alltoall(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2 + 1;
    if (step >= n) return false;
    uint32_t to = (p->rank + step) % n, from = (p->rank + n - step) % n;
    if (index % 2 == 0)
        set(action, CD_ACTION_SEND, to, share_begin(p->send_counts, p->numel, to),
            share_count(p->send_counts, p->numel, to));
    else
        set(action, CD_ACTION_STORE, from, share_begin(p->counts, p->numel, from),
            share_count(p->counts, p->numel, from));
    return true;
}

static bool dissemination(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2;
    if (step >= 32 || (UINT64_C(1) << step) >= n) return false;
    uint32_t distance = 1u << step;
    if (index % 2 == 0)
        set(action, CD_ACTION_SEND, (p->rank + distance) % n, 0, 0);
    else
        set(action, CD_ACTION_STORE, (p->rank + n - distance) % n, 0, 0);
    return true;
}

/* ---- recursive halving and doubling ---- */

/* A rank's part of the vector after `steps` halvings. Step s pairs ranks that differ in bit s, and
** the rank with the bit clear keeps the lower half. */
static void halved(int64_t numel, uint32_t rank, uint32_t steps, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = numel;
    for (uint32_t s = 0; s < steps; s++) {
        int64_t middle = *begin + (*end - *begin) / 2;
        if (rank >> s & 1)
            *begin = middle;
        else
            *end = middle;
    }
}

static bool halving_doubling(const cd_program *p, cursor *c)
{
    uint32_t log = 0;
    while ((UINT64_C(2) << log) <= p->size) log++;
    uint32_t power = 1u << log, me = p->rank;
    if (me >= power) { /* folds in first, receives the result last */
        return hit(c, CD_ACTION_SEND, me - power, 0, p->numel) ||
               hit(c, CD_ACTION_STORE, me - power, 0, p->numel);
    }
    bool has_extra = me + power < p->size;
    if (has_extra && hit(c, CD_ACTION_REDUCE, me + power, 0, p->numel)) return true;
    int64_t begin = 0, end = 0;
    for (uint32_t s = 0; s < log; s++) {
        uint32_t partner = me ^ (1u << s);
        halved(p->numel, partner, s + 1, &begin, &end);
        if (hit(c, CD_ACTION_SEND, partner, begin, end - begin)) return true;
        halved(p->numel, me, s + 1, &begin, &end);
        if (hit(c, CD_ACTION_REDUCE, partner, begin, end - begin)) return true;
    }
    for (uint32_t s = log; s-- > 0;) {
        uint32_t partner = me ^ (1u << s);
        halved(p->numel, me, s + 1, &begin, &end);
        if (hit(c, CD_ACTION_SEND, partner, begin, end - begin)) return true;
        halved(p->numel, partner, s + 1, &begin, &end);
        if (hit(c, CD_ACTION_STORE, partner, begin, end - begin)) return true;
    }
    return has_extra && hit(c, CD_ACTION_SEND, me + power, 0, p->numel);
}

/* ---- which program ---- */

static bool allreduce_get(const cd_program *p, uint32_t index, cd_action *action)
{
    cursor c = {index, action};
    switch (p->algorithm) {
    case CD_ALGORITHM_gloo_ring:
    case CD_ALGORITHM_ring:
        return ring_get(p, index, action);
    case CD_ALGORITHM_halving_doubling:
        return halving_doubling(p, &c);
    case CD_ALGORITHM_binomial_tree:
    case CD_ALGORITHM_double_tree:
    case CD_ALGORITHM_two_level:
    case CD_ALGORITHM_hfreduce:
        return cd_tree_get(p, index, action);
    case CD_ALGORITHM_flat:
    case CD_ALGORITHM_any_order:
    case CD_ALGORITHM_COUNT:
        break;
    }
    return star_reduce(p, 0, &c) || star_broadcast(p, 0, &c);
}

bool cd_program_get(const cd_program *program, uint32_t index, cd_action *action)
{
    const cd_program *p = program;
    cursor c = {index, action};
    bool star = p->algorithm == CD_ALGORITHM_flat || p->algorithm == CD_ALGORITHM_any_order;
    if (p->size < 2) return false;
    switch (p->op) {
    case CDDP_OP_ALLREDUCE:
        return allreduce_get(p, index, action);
    case CDDP_OP_BROADCAST:
        return cd_tree_get(p, index, action);
    case CDDP_OP_ALLGATHER:
        return ring_allgather(p, index, action);
    case CDDP_OP_REDUCE_SCATTER:
        if (!star) return ring_reduce_scatter(p, index, action);
        return star_reduce(p, 0, &c) || star_scatter(p, p->numel / (int64_t)p->size, &c);
    case CDDP_OP_REDUCE:
        return star ? star_reduce(p, p->root, &c) : cd_tree_get(p, index, action);
    case CDDP_OP_GATHER:
        return star_gather(p, &c);
    case CDDP_OP_SCATTER:
        return star_scatter(p, p->numel, &c);
    case CDDP_OP_ALLTOALL:
        return pairwise_alltoall(p, index, action);
    case CDDP_OP_SEND:
        return hit(&c, CD_ACTION_SEND, 1, 0, p->numel);
    case CDDP_OP_RECV:
        return hit(&c, CD_ACTION_STORE, 0, 0, p->numel);
    case CDDP_OP_BARRIER:
        return dissemination(p, index, action);
    case CDDP_OP_COUNT:
        break;
    }
    return false;
}

bool cd_program_find(const cd_program *program, uint32_t *index, cd_action *action)
{
    const bool is_ring =
        program->op == CDDP_OP_ALLREDUCE && cd_algorithm_is_ring(program->algorithm);
    while (cd_program_get(program, *index, action)) {
        if (action->count != 0 || program->op == CDDP_OP_BARRIER) return true;
        (*index)++;
        if (is_ring) *index = ring_skip(program, *index);
    }
    return false;
}
