/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm as a function from an index to an action.
**
** A program is a sequence; a receive waits, a send does not. Programs of one operation fit together because every
** member computes the same boundaries from the same description: members that disagree get programs that do not fit,
** and then messages meet receives they were not meant for, as on a real cluster.
**
** Which algorithm serves which operation:
**   allreduce       as named
**   reduce          flat and any_order: all to the root; otherwise a binomial tree
**   reduce_scatter  flat and any_order: through rank 0; otherwise a ring (chunk c from rank c-1 downwards to rank c)
**   broadcast       binomial tree      allgather  ring      gather, scatter  direct      alltoall  pairwise
**   barrier         dissemination      send, recv direct
*/
#include "sim/algorithm.h"

#include <string.h>

static const struct {
    const char *name, *summary;
} rows[CD_ALGORITHM_COUNT] = {
#define CD_ALGORITHM(name, summary) {#name, summary},
#include "sim/algorithms.def"
#undef CD_ALGORITHM
};

const char *cd_algorithm_name(cd_algorithm algorithm)
{
    return (unsigned)algorithm < CD_ALGORITHM_COUNT ? rows[algorithm].name : "?";
}

const char *cd_algorithm_summary(cd_algorithm algorithm)
{
    return (unsigned)algorithm < CD_ALGORITHM_COUNT ? rows[algorithm].summary : "?";
}

int32_t cd_algorithm_find(const char *name)
{
    for (int32_t i = 0; i < CD_ALGORITHM_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0) return i;
    return -1;
}

/* Where a walk through a program stands: every part of a program takes indices away until one hits zero. */
typedef struct cursor {
    uint32_t left;
    cd_action *action;
} cursor;

static bool hit(cursor *c, cd_action_kind kind, uint32_t peer, int64_t begin, int64_t count)
{
    if (c->left-- != 0) return false;
    *c->action = (cd_action){kind, peer, begin, count};
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

/* Gloo's segments: at least two per rank, at most 1 MiB each, an equal number in each of the N chunks. The plain ring
*has
** one segment per chunk. */
cd_ring_segments cd_ring_get_segments(const cd_program *program)
{
    const cd_program *p = program;
    const uint64_t max_bytes = 1024 * 1024;
    uint64_t n = p->size, esize = p->element_bytes != 0 ? p->element_bytes : 1;
    if (p->algorithm == CD_ALGORITHM_ring) return (cd_ring_segments){1, (p->numel + (int64_t)n - 1) / (int64_t)n};
    uint64_t total = (uint64_t)p->numel * esize;
    uint64_t segment_max = esize * (max_bytes / esize > 1 ? max_bytes / esize : 1);
    uint64_t count = (total + segment_max - 1) / segment_max;
    if (count < 2 * n) count = 2 * n;
    count = (count + n - 1) / n * n;
    uint64_t bytes = (total + count - 1) / count;
    return (cd_ring_segments){(uint32_t)(count / n), (int64_t)((bytes + esize - 1) / esize)};
}

/* Step t of 2(N-1): rank r sends chunk r+1+t to rank r-1 and receives chunk r+2+t from rank r+1, reducing in the first
** N-1 steps and storing in the rest. A segment is passed on as soon as it has been received. */
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
    uint32_t chunk = (p->rank + step + (sends ? 1 : 2)) % n;
    int64_t begin = ((int64_t)chunk * s.per_chunk + segment) * s.elements;
    int64_t count = p->numel - begin < s.elements ? p->numel - begin : s.elements;
    if (count < 0 || step >= steps) count = 0; /* behind the end of the data, or of the ring */
    cd_action_kind receive = step < n - 1 ? CD_ACTION_REDUCE : CD_ACTION_STORE;
    uint32_t peer = sends ? (p->rank + n - 1) % n : (p->rank + 1) % n;
    *action = (cd_action){sends ? CD_ACTION_SEND : receive, peer, begin, count};
    return true;
}

/* The reducing half of the ring, with the members' shares as chunks. */
static bool ring_reduce_scatter(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2;
    if (step >= n - 1) return false;
    bool sends = index % 2 == 0;
    uint32_t chunk = (p->rank + step + (sends ? 1 : 2)) % n;
    int64_t equal = p->numel / (int64_t)n;
    *action = (cd_action){sends ? CD_ACTION_SEND : CD_ACTION_REDUCE, sends ? (p->rank + n - 1) % n : (p->rank + 1) % n,
                          share_begin(p->counts, equal, chunk), share_count(p->counts, equal, chunk)};
    return true;
}

static bool ring_allgather(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2;
    if (step >= n - 1) return false;
    bool sends = index % 2 == 0;
    uint32_t chunk = (p->rank + 2 * n - step - (sends ? 0 : 1)) % n;
    *action = (cd_action){sends ? CD_ACTION_SEND : CD_ACTION_STORE, sends ? (p->rank + 1) % n : (p->rank + n - 1) % n,
                          share_begin(p->counts, p->numel, chunk), share_count(p->counts, p->numel, chunk)};
    return true;
}

/* ---- binomial trees, rooted anywhere ---- */

static uint32_t relative(const cd_program *p, uint32_t root) { return (p->rank + p->size - root) % p->size; }

static uint32_t absolute(const cd_program *p, uint32_t root, uint32_t member) { return (member + root) % p->size; }

/* Children are added in order of growing distance: 1, 2, 4 … */
static bool binomial_reduce(const cd_program *p, uint32_t root, cursor *c)
{
    uint32_t me = relative(p, root);
    for (uint32_t mask = 1; mask < p->size; mask <<= 1) {
        if (me & mask) return hit(c, CD_ACTION_SEND, absolute(p, root, me - mask), 0, p->numel);
        if (me + mask < p->size && hit(c, CD_ACTION_REDUCE, absolute(p, root, me + mask), 0, p->numel)) return true;
    }
    return false;
}

static bool binomial_broadcast(const cd_program *p, uint32_t root, cursor *c)
{
    uint32_t me = relative(p, root), mask = 1;
    while (mask < p->size && !(me & mask)) mask <<= 1;
    if (me != 0 && hit(c, CD_ACTION_STORE, absolute(p, root, me - mask), 0, p->numel)) return true;
    for (mask >>= 1; mask > 0; mask >>= 1)
        if (me + mask < p->size && hit(c, CD_ACTION_SEND, absolute(p, root, me + mask), 0, p->numel)) return true;
    return false;
}

/* ---- all through one rank ---- */

/* The root starts from its own contribution and adds the others in rank order, or as they come. */
static bool star_reduce(const cd_program *p, uint32_t root, cursor *c)
{
    bool any = p->algorithm == CD_ALGORITHM_any_order;
    if (p->rank != root) return hit(c, CD_ACTION_SEND, root, 0, p->numel);
    if (any && hit(c, CD_ACTION_SEND, root, 0, p->numel)) return true; /* its own takes part in the race */
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
    if (p->rank != root) return hit(c, CD_ACTION_STORE, root, mine, share_count(p->counts, equal, p->rank));
    for (uint32_t peer = 0; peer < p->size; peer++)
        if (peer != root &&
            hit(c, CD_ACTION_SEND, peer, share_begin(p->counts, equal, peer), share_count(p->counts, equal, peer)))
            return true;
    return false;
}

static bool star_gather(const cd_program *p, cursor *c)
{
    if (p->rank != p->root) return hit(c, CD_ACTION_SEND, p->root, 0, share_count(p->counts, p->numel, p->rank));
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
    *action = index % 2 == 0 ? (cd_action){CD_ACTION_SEND, to, share_begin(p->send_counts, p->numel, to),
                                           share_count(p->send_counts, p->numel, to)}
                             : (cd_action){CD_ACTION_STORE, from, share_begin(p->counts, p->numel, from),
                                           share_count(p->counts, p->numel, from)};
    return true;
}

static bool dissemination(const cd_program *p, uint32_t index, cd_action *action)
{
    uint32_t n = p->size, step = index / 2;
    if (step >= 32 || (UINT64_C(1) << step) >= n) return false;
    uint32_t distance = 1u << step;
    *action = index % 2 == 0 ? (cd_action){CD_ACTION_SEND, (p->rank + distance) % n, 0, 0}
                             : (cd_action){CD_ACTION_STORE, (p->rank + n - distance) % n, 0, 0};
    return true;
}

/* ---- recursive halving and doubling ---- */

/* What is left of the vector for a rank after `steps` halvings; step s pairs ranks that differ in bit s, and the one
** with the bit clear keeps the lower half. */
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
    if (me >= power) { /* folds in first, hears the result last */
        return hit(c, CD_ACTION_SEND, me - power, 0, p->numel) || hit(c, CD_ACTION_STORE, me - power, 0, p->numel);
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

/* ---- double binary tree, over all members or over the leaders of nodes ---- */

typedef struct tree_node {
    int64_t parent, children[2]; /* -1: none */
} tree_node;

/* The in-order binary tree of NCCL: ranks with the lowest bit set are leaves, rank 0 hangs on top. */
static tree_node binary_tree(int64_t size, int64_t rank)
{
    int64_t bit = 1;
    while (bit < size && !(rank & bit)) bit <<= 1;
    if (rank == 0) return (tree_node){-1, {size > 1 ? bit >> 1 : -1, -1}};
    tree_node node = {.parent = (rank ^ bit) | (bit << 1)};
    if (node.parent >= size) node.parent = rank ^ bit;
    int64_t low = bit >> 1;
    node.children[0] = low != 0 ? rank - low : -1;
    node.children[1] = low != 0 ? rank + low : -1;
    while (node.children[1] >= size) {
        low >>= 1;
        node.children[1] = low != 0 ? rank + low : -1;
    }
    return node;
}

/* The second tree is the first one mirrored (even sizes) or shifted by one (odd), so that a leaf here works there. */
static int64_t second_of(int64_t size, int64_t rank) { return size % 2 == 0 ? size - 1 - rank : (rank + 1) % size; }

static int64_t first_of(int64_t size, int64_t rank)
{
    return size % 2 == 0 ? size - 1 - rank : (rank + size - 1) % size;
}

typedef struct double_tree_spec {
    int64_t size, rank; /* among those in the tree */
    uint32_t stride;    /* member = position × stride */
} double_tree_spec;

/* One half of the data in one tree: up (children, then parent) or down. */
static bool tree_pass(const cd_program *p, const double_tree_spec *t, bool second, bool up, cursor *c)
{
    int64_t half = p->numel / 2;
    int64_t begin = second ? half : 0, count = second ? p->numel - half : half;
    tree_node node = binary_tree(t->size, second ? first_of(t->size, t->rank) : t->rank);
    int64_t ends[3] = {node.parent, node.children[0], node.children[1]};
    for (int i = 0; i < 3; i++)
        if (ends[i] >= 0) ends[i] = (second ? second_of(t->size, ends[i]) : ends[i]) * t->stride;
    if (!up && ends[0] >= 0 && hit(c, CD_ACTION_STORE, (uint32_t)ends[0], begin, count)) return true;
    for (int i = 1; i < 3; i++)
        if (ends[i] >= 0 && hit(c, up ? CD_ACTION_REDUCE : CD_ACTION_SEND, (uint32_t)ends[i], begin, count))
            return true;
    return up && ends[0] >= 0 && hit(c, CD_ACTION_SEND, (uint32_t)ends[0], begin, count);
}

/* Both trees go up before either comes down, so that neither waits for the other. */
static bool double_tree(const cd_program *p, double_tree_spec t, cursor *c)
{
    if (t.size < 2) return false;
    return tree_pass(p, &t, false, true, c) || tree_pass(p, &t, true, true, c) || tree_pass(p, &t, false, false, c) ||
           tree_pass(p, &t, true, false, c);
}

static bool two_level(const cd_program *p, cursor *c)
{
    uint32_t width = p->ranks_per_node != 0 ? p->ranks_per_node : 1;
    uint32_t node = p->rank / width, leader = node * width;
    uint32_t end = leader + width < p->size ? leader + width : p->size;
    if (p->rank != leader)
        return hit(c, CD_ACTION_SEND, leader, 0, p->numel) || hit(c, CD_ACTION_STORE, leader, 0, p->numel);
    for (uint32_t r = leader + 1; r < end; r++)
        if (hit(c, CD_ACTION_REDUCE, r, 0, p->numel)) return true;
    if (double_tree(p, (double_tree_spec){(p->size + width - 1) / width, node, width}, c)) return true;
    for (uint32_t r = leader + 1; r < end; r++)
        if (hit(c, CD_ACTION_SEND, r, 0, p->numel)) return true;
    return false;
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
        return binomial_reduce(p, 0, &c) || binomial_broadcast(p, 0, &c);
    case CD_ALGORITHM_double_tree:
        return double_tree(p, (double_tree_spec){p->size, p->rank, 1}, &c);
    case CD_ALGORITHM_two_level:
        return two_level(p, &c);
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
        return binomial_broadcast(p, p->root, &c);
    case CDDP_OP_ALLGATHER:
        return ring_allgather(p, index, action);
    case CDDP_OP_REDUCE_SCATTER:
        if (!star) return ring_reduce_scatter(p, index, action);
        return star_reduce(p, 0, &c) || star_scatter(p, p->numel / (int64_t)p->size, &c);
    case CDDP_OP_REDUCE:
        return star ? star_reduce(p, p->root, &c) : binomial_reduce(p, p->root, &c);
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
