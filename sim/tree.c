/* SPDX-License-Identifier: Apache-2.0 */
/* Trees in pieces.
**
** An all-reduce goes up one or two trees and down again. A tree's data (all of it, or its half) is
** cut into pieces; a member passes a piece on when it has all of it, while the next one is under
** way. A program is a sequence, so the two trees, and what goes up and comes down in them, take
** turns, in rounds. With `levels` above the deepest member, one that is `depth` below the root of a
** tree handles in round i of that tree
**
**     on its way up      piece i - (levels - depth)
**     on its way down    piece i - (levels + depth)
**
** so that a piece makes one step in a round, and has the whole round for it: nobody waits within a
** round for what another does in the same one. (If all handled piece i in round i, each round would
** take a message's time for every level, twice, since who is a leaf in one tree is not in the
** other.) It cannot deadlock: what an entry waits for was sent a round ago. One piece alone has no
** rounds: up the first tree, up the second, down the first, down the second.
**
** two_level: below each member of the trees, the leader of its node, hang the other members of the
** node, in both trees. They send all they have at once and take what comes in the leader's order.
**
** hfreduce: the same, but node leaders are hosts: every member of the node, the leader too, copies
** its pieces up to the host (a prologue to the leader's program), the host adds and passes on, and
** copies the result down to all (an epilogue).
**
** Order of summation: own value, then the node's others in rank order, then children: pieces do not
** change it.
**
** Limitations: a round lasts no less than a message takes, latency included, so pieces much smaller
** than what a link holds do not fill it.
*/
#include "sim/tree.h"

#define CHILDREN_MAX 32
#define PIECES_MAX 65536 /* keeps indices of entries in 32 bits */

/* A tree as one of its members sees it. */
typedef struct branch {
    int64_t parent; /* member, or -1: this is the root */
    uint32_t child_count, children[CHILDREN_MAX];
    int64_t begin, end; /* elements that go through this tree */
} branch;

/* ---- binomial, rooted anywhere ---- */

/* Children are added in order of growing distance, 1, 2, 4 …, and get the result in order of
** falling distance. */
static branch binomial(const cd_program *p, uint32_t root)
{
    uint32_t me = (p->rank + p->size - root) % p->size;
    branch b = {.parent = -1, .end = p->numel};
    for (uint32_t mask = 1; mask != 0 && mask < p->size; mask <<= 1) {
        if (me & mask) {
            b.parent = (me - mask + root) % p->size;
            break;
        }
        if (me + mask < p->size) b.children[b.child_count++] = (me + mask + root) % p->size;
    }
    return b;
}

static uint32_t root_of(const cd_program *p) { return p->op == CDDP_OP_ALLREDUCE ? 0 : p->root; }

static uint32_t binomial_depth(const cd_program *p, uint32_t root)
{
    uint32_t depth = 0;
    for (uint32_t me = (p->rank + p->size - root) % p->size; me != 0; me &= me - 1) depth++;
    return depth;
}

/* ---- double binary ---- */

typedef struct tree_node {
    int64_t parent, children[2]; /* -1: none */
} tree_node;

/* The in-order binary tree of NCCL: ranks with the lowest bit set are leaves, rank 0 hangs on
** top. */
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

/* The second tree is the first one mirrored (even sizes) or shifted by one (odd), so that a leaf
** here works there. */
static int64_t second_of(int64_t size, int64_t rank)
{
    return size % 2 == 0 ? size - 1 - rank : (rank + 1) % size;
}

static int64_t first_of(int64_t size, int64_t rank)
{
    return size % 2 == 0 ? size - 1 - rank : (rank + size - 1) % size;
}

/* The members of the double tree: every stride-th member. */
typedef struct double_tree {
    int64_t size, rank;
    uint32_t stride;
} double_tree;

static branch binary(const cd_program *p, const double_tree *t, bool second)
{
    int64_t half = p->numel / 2;
    branch b = {.parent = -1, .begin = second ? half : 0, .end = second ? p->numel : half};
    tree_node node = binary_tree(t->size, second ? first_of(t->size, t->rank) : t->rank);
    int64_t ends[3] = {node.parent, node.children[0], node.children[1]};
    for (int i = 0; i < 3; i++) {
        if (ends[i] < 0) continue;
        int64_t member = (second ? second_of(t->size, ends[i]) : ends[i]) * t->stride;
        if (i == 0)
            b.parent = member;
        else
            b.children[b.child_count++] = (uint32_t)member;
    }
    return b;
}

static uint32_t binary_depth(const double_tree *t, bool second)
{
    uint32_t depth = 0;
    int64_t at = second ? first_of(t->size, t->rank) : t->rank;
    for (; at != 0; depth++) at = binary_tree(t->size, at).parent;
    return depth;
}

/* ---- nodes ---- */

typedef struct node {
    uint32_t leader, end; /* members leader … end - 1 */
} node;

static bool has_nodes(const cd_program *p)
{
    return p->op == CDDP_OP_ALLREDUCE &&
           (p->algorithm == CD_ALGORITHM_two_level || p->algorithm == CD_ALGORITHM_hfreduce);
}

static bool is_double(const cd_program *p)
{
    return p->op == CDDP_OP_ALLREDUCE && p->algorithm != CD_ALGORITHM_binomial_tree;
}

static uint32_t node_width(const cd_program *p)
{
    return has_nodes(p) && p->ranks_per_node != 0 ? p->ranks_per_node : 1;
}

static node node_of(const cd_program *p)
{
    uint32_t width = node_width(p), leader = p->rank / width * width;
    return (node){leader, p->size - leader > width ? leader + width : p->size};
}

static double_tree leaders_of(const cd_program *p)
{
    uint32_t width = node_width(p);
    return (double_tree){(p->size + width - 1) / width, p->rank / width, width};
}

/* ---- pieces and rounds ---- */

cd_tree_pieces cd_tree_get_pieces(const cd_program *p)
{
    bool two = is_double(p);
    int64_t longest = two ? p->numel - p->numel / 2 : p->numel, elements = longest;
    if (p->piece_bytes != 0 && p->element_bytes != 0)
        elements = (int64_t)(p->piece_bytes / p->element_bytes);
    if (elements < (longest + PIECES_MAX - 1) / PIECES_MAX)
        elements = (longest + PIECES_MAX - 1) / PIECES_MAX;
    if (elements < 1) elements = 1;
    cd_tree_pieces pieces = {.elements = elements,
                             .count = (uint32_t)((longest + elements - 1) / elements)};
    if (pieces.count == 0) pieces.count = 1;
    double_tree leaders = leaders_of(p);
    uint32_t levels = 0; /* of n members: log2 n, rounded up, in either kind of tree */
    while ((UINT64_C(1) << levels) < (uint64_t)leaders.size) levels++;
    for (int t = 0; t < 2; t++) {
        uint32_t depth = two ? binary_depth(&leaders, t == 1) : binomial_depth(p, root_of(p));
        pieces.up[t] = pieces.count == 1 ? 0 : levels - depth;
        pieces.down[t] = pieces.count == 1 ? 1 : levels + depth;
    }
    return pieces;
}

/* The traffic through a member: up the trees, then down; each in pieces, the first of them in round
** `first`. */
typedef struct rounds {
    uint32_t pieces;
    uint32_t entries[4], first[4]; /* by pass: 0 and 1 up the trees, 2 and 3 down */
} rounds;

/* Entries in front of a round. */
static uint32_t before(const rounds *r, uint32_t round)
{
    uint32_t count = 0;
    for (int pass = 0; pass < 4; pass++) {
        uint32_t begun = round > r->first[pass] ? round - r->first[pass] : 0;
        count += r->entries[pass] * (begun < r->pieces ? begun : r->pieces);
    }
    return count;
}

/* Behind all of them. */
static uint32_t last_round(const rounds *r)
{
    uint32_t first = 0;
    for (int pass = 0; pass < 4; pass++)
        if (r->first[pass] > first) first = r->first[pass];
    return first + r->pieces;
}

/* The round of the index-th entry, which exists. */
static uint32_t find_round(const rounds *r, uint32_t index)
{
    uint32_t low = 0, high = last_round(r);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (before(r, middle) <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- a member's program ---- */

typedef struct member {
    const cd_program *p;
    node node;
    uint32_t tree_count;
    branch trees[2];
    bool is_leader, at_host;
} member;

/* Entries behind the index are counted down until one hits zero. */
typedef struct cursor {
    uint32_t left;
    cd_action *action;
} cursor;

static bool hit(cursor *c, cd_action action)
{
    if (c->left-- != 0) return false;
    *c->action = action;
    return true;
}

static void piece_of(const member *m, const branch *b, uint32_t piece, int64_t *begin,
                     int64_t *count)
{
    *begin = b->begin + (int64_t)piece * m->p->tree.elements;
    *count = b->end - *begin < m->p->tree.elements ? b->end - *begin : m->p->tree.elements;
    if (*count < 0) *count = 0;
}

/* For one tree in one direction, as if each had its own connection: members differ in which one is
** ahead. With one piece there is only one order. */
static uint8_t channel_of(const member *m, uint32_t tree, bool up)
{
    return m->p->tree.count > 1 ? (uint8_t)(1 + 2 * tree + (up ? 0 : 1)) : 0;
}

/* The exchange between a node's members and their leader: a tree's piece. Data of one piece are not
** sent by halves: they go up before the first tree, and down after the second. False: no action. */
static bool local_piece(const member *m, uint32_t tree, uint32_t piece, bool up, int64_t *begin,
                        int64_t *count)
{
    if (m->p->tree.count > 1) {
        piece_of(m, &m->trees[tree], piece, begin, count);
        return true;
    }
    *begin = 0;
    *count = m->p->numel;
    return tree == (up ? 0 : m->tree_count - 1);
}

/* The node's members below the leader; with a host the leader's own device is one of them. */
static uint32_t first_below(const member *m) { return m->node.leader + (m->at_host ? 0 : 1); }

static bool go_up(const member *m, uint32_t tree, uint32_t piece, cursor *c)
{
    const branch *b = &m->trees[tree];
    int64_t begin = 0, count = 0;
    const uint8_t between = m->at_host ? CD_HOST_HERE | CD_HOST_THERE : 0;
    const uint8_t here = between & CD_HOST_HERE, there = between & CD_HOST_THERE;
    uint8_t channel = channel_of(m, tree, true);
    bool has_local = local_piece(m, tree, piece, true, &begin, &count);
    if (!m->is_leader)
        return has_local &&
               hit(c, (cd_action){CD_ACTION_SEND, m->node.leader, begin, count, channel, there});
    for (uint32_t r = first_below(m); has_local && r < m->node.end; r++) {
        cd_action_kind kind = r == m->node.leader ? CD_ACTION_STORE : CD_ACTION_REDUCE;
        if (hit(c, (cd_action){kind, r, begin, count, channel, here})) return true;
    }
    piece_of(m, b, piece, &begin, &count);
    for (uint32_t i = 0; i < b->child_count; i++)
        if (hit(c, (cd_action){CD_ACTION_REDUCE, b->children[i], begin, count, channel, between}))
            return true;
    if (b->parent < 0) return false;
    return hit(c, (cd_action){CD_ACTION_SEND, (uint32_t)b->parent, begin, count, channel, between});
}

static bool come_down(const member *m, uint32_t tree, uint32_t piece, cursor *c)
{
    const branch *b = &m->trees[tree];
    int64_t begin = 0, count = 0;
    const uint8_t between = m->at_host ? CD_HOST_HERE | CD_HOST_THERE : 0;
    const uint8_t here = between & CD_HOST_HERE, there = between & CD_HOST_THERE;
    bool is_reversed = m->tree_count == 1;
    uint8_t channel = channel_of(m, tree, false);
    bool has_local = local_piece(m, tree, piece, false, &begin, &count);
    if (!m->is_leader)
        return has_local &&
               hit(c, (cd_action){CD_ACTION_STORE, m->node.leader, begin, count, channel, there});
    const int64_t local_begin = begin, local_count = count;
    piece_of(m, b, piece, &begin, &count);
    if (b->parent >= 0 &&
        hit(c, (cd_action){CD_ACTION_STORE, (uint32_t)b->parent, begin, count, channel, between}))
        return true;
    for (uint32_t i = 0; i < b->child_count; i++) {
        uint32_t child = b->children[is_reversed ? b->child_count - 1 - i : i];
        if (hit(c, (cd_action){CD_ACTION_SEND, child, begin, count, channel, between})) return true;
    }
    for (uint32_t r = first_below(m); has_local && r < m->node.end; r++)
        if (hit(c, (cd_action){CD_ACTION_SEND, r, local_begin, local_count, channel, here}))
            return true;
    return false;
}

static bool make_pass(const member *m, uint32_t pass, uint32_t piece, cursor *c)
{
    return pass < 2 ? go_up(m, pass, piece, c) : come_down(m, pass - 2, piece, c);
}

static rounds rounds_of(const member *m, bool goes_up, bool comes_down)
{
    const cd_tree_pieces *pieces = &m->p->tree;
    rounds r = {.pieces = pieces->count};
    cd_action ignored;
    for (uint32_t pass = 0; pass < 4; pass++) {
        uint32_t tree = pass % 2;
        cursor c = {UINT32_MAX, &ignored};
        r.first[pass] = pass < 2 ? pieces->up[tree] : pieces->down[tree];
        /* A member outside the trees passes nothing on: it sends everything, then receives. */
        if (pass >= 2 && !m->is_leader)
            r.first[pass] += pieces->count + pieces->down[0] + pieces->down[1];
        if (tree >= m->tree_count || !(pass < 2 ? goes_up : comes_down)) continue;
        (void)make_pass(m, pass, 0, &c);
        r.entries[pass] = UINT32_MAX - c.left;
    }
    return r;
}

/* Takes the entries of the rounds away from the index. */
static bool in_rounds(const member *m, const rounds *r, cursor *c)
{
    uint32_t count = before(r, last_round(r));
    if (c->left >= count) {
        c->left -= count;
        return false;
    }
    uint32_t round = find_round(r, c->left);
    c->left -= before(r, round);
    for (uint32_t pass = 0; pass < 4; pass++)
        if (r->entries[pass] > 0 && round >= r->first[pass] && round - r->first[pass] < r->pieces &&
            make_pass(m, pass, round - r->first[pass], c))
            return true;
    return false;
}

/* The leader's own device, which copies to the host and from it as the node's others do. */
static bool device_of_leader(const member *m, bool up, cursor *c)
{
    member device = *m;
    if (!m->at_host || !m->is_leader) return false;
    device.is_leader = false;
    rounds r = rounds_of(&device, up, !up);
    return in_rounds(&device, &r, c);
}

bool cd_tree_get(const cd_program *program, uint32_t index, cd_action *action)
{
    const cd_program *p = program;
    member m = {.p = p, .node = node_of(p), .tree_count = is_double(p) ? 2 : 1};
    cursor c = {index, action};
    m.is_leader = m.node.leader == p->rank;
    m.at_host = p->op == CDDP_OP_ALLREDUCE && p->algorithm == CD_ALGORITHM_hfreduce;
    if (is_double(p)) {
        double_tree leaders = leaders_of(p);
        for (int t = 0; t < 2; t++) m.trees[t] = binary(p, &leaders, t == 1);
    } else {
        m.trees[0] = binomial(p, root_of(p));
    }
    rounds r = rounds_of(&m, p->op != CDDP_OP_BROADCAST, p->op != CDDP_OP_REDUCE);
    return device_of_leader(&m, true, &c) || in_rounds(&m, &r, &c) ||
           device_of_leader(&m, false, &c);
}
