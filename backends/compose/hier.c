/* SPDX-License-Identifier: Apache-2.0 */
/* hier:x. All-reduce in three steps that follow the nodes:
**
**     node 0    r0 r1 r2 r3      1  reduce to the first rank of the node        (group up)
**     node 1    r4 r5 r6 r7      2  all-reduce between these leaders            (group leaders)
**                                3  broadcast from the leader inside the node   (group down)
**
** Broadcast takes the same path: inside the root's node, between leaders, inside the other nodes.
** All other operations use one flat group. Up and down are two groups, because a rank may start
** operation k+1 upwards before k arrived from above (P1).
**
** Ranks take different steps for one operation. A rank below has only the last step of a broadcast
** from another node. It could take that one before those of an all-reduce that is on its way up,
** and its leader could not. So an operation begins when none before it has its first step to come.
**
** Nodes come from the text (hier:per=2:x: two consecutive ranks each), else from the composition's
** options, else from the host's name. Each rank sends its node once, when a group is opened, and
** decides only about itself.
**
** Numerics: contributions of a node are added first, so the association is neither the inner
** backend's nor known to cddp. All ranks get the same bits, since these are broadcast; the table
** declares only that. AVG is a sum, divided once on each leader; PREMUL_SUM scales before the first
** step.
**
** Ranks that disagree: a step inside one node does not see it, and the leaders of other nodes would
** wait. So where the inner backend guards its operations, all ranks first compare fingerprints over
** a group of all ranks. It is not the flat one: with several operations in flight, a rank may begin
** to compare k+1 before or after it issues k there (P1). guard=0 leaves that out.
**
** Failures: a step fails for its members alone: a leader knows what a rank of its node cannot. So a
** leader that fails aborts the groups of its node, and a rank that fails inside a node those of its
** leader; both pass on what failed (P7).
**
** Limits: steps advance only when a rank posts, tests or waits, so the table does not declare
** async.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/compose/fingerprint.h"
#include "backends/compose/step.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FLAT, UP, LEADERS, DOWN, GUARD };

typedef struct hier_group {
    cd_step_group base;
    uint64_t *nodes;    /* (size) node of every rank */
    uint32_t *leaders;  /* (leader_count) first rank of every node, in order of rank */
    uint32_t *siblings; /* (sibling_count) ranks of this node */
    uint32_t leader_count, sibling_count;
    uint32_t my_node, my_place; /* index into leaders, into siblings */
    bool guards;                /* the first step compares fingerprints */
    uint64_t number;            /* collectives so far */
} hier_group;

static hier_group *hier_of(cd_step_group *g) { return (hier_group *)(void *)g; }

/* ---- nodes of ranks ---- */

static uint64_t node_of_this_rank(const cd_step_group *g)
{
    const cddp_composition_options *o = &g->node->composition->options;
    uint32_t per = g->node->ranks_per_node != 0 ? g->node->ranks_per_node : o->ranks_per_node;
    char host[256] = "";
    if (per != 0) return g->rank->rank / per;
    if (o->node[0] != '\0') return cd_hash_text(o->node);
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    return cd_hash_text(host);
}

static cddp_status nodes_gather(hier_group *h, cddp_error *err)
{
    cd_step_group *g = &h->base;
    uint64_t mine = node_of_this_rank(g);
    void *work = NULL;
    const cddp_collective c = {.op = CDDP_OP_ALLGATHER,
                               .input = cd_step_bytes(&mine, sizeof mine),
                               .output = cd_step_bytes(h->nodes, g->size * sizeof *h->nodes),
                               .timeout_ns = g->timeout_ns};
    CD_TRY(cd_inner_post(g, FLAT, &c, &work, err));
    cddp_status status = g->inner[FLAT].table->wait(g->inner[FLAT].group, work, 0, err);
    g->inner[FLAT].table->release(g->inner[FLAT].group, work);
    return status;
}

static void nodes_sort(hier_group *h)
{
    const cd_step_group *g = &h->base;
    for (uint32_t r = 0; r < g->size; r++) {
        uint32_t first = 0;
        while (h->nodes[first] != h->nodes[r]) first++;
        if (h->nodes[r] == h->nodes[g->me]) {
            if (r == g->me) h->my_place = h->sibling_count;
            h->siblings[h->sibling_count++] = r;
        }
        if (first == r) h->leaders[h->leader_count++] = r;
    }
    for (uint32_t i = 0; i < h->leader_count; i++)
        if (h->leaders[i] == h->siblings[0]) h->my_node = i;
}

/* The index of a rank's node. */
static uint32_t node_index(const hier_group *h, uint32_t rank)
{
    uint32_t i = 0;
    while (h->nodes[h->leaders[i]] != h->nodes[rank]) i++;
    return i;
}

static uint32_t place_in_node(const hier_group *h, uint32_t rank)
{
    uint32_t i = 0;
    while (h->siblings[i] != rank) i++;
    return i;
}

/* ---- steps ---- */

/* The steps that this rank takes for an operation: a bit per group. */
static uint32_t steps_of(const hier_group *h, const cddp_collective *c)
{
    bool leads = h->my_place == 0;
    uint32_t between = leads && h->leader_count > 1 ? 1u << LEADERS : 0,
             inside = h->sibling_count > 1;
    if (c->op == CDDP_OP_ALLREDUCE) return (inside ? 1u << UP | 1u << DOWN : 0) | between;
    bool roots_node = node_index(h, c->root) == h->my_node; /* broadcast */
    return between | (inside ? roots_node ? 1u << UP : 1u << DOWN : 0);
}

static bool is_nodewise(const cd_step_group *g, const cddp_collective *c)
{
    const hier_group *h = (const hier_group *)(const void *)g;
    return (c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_BROADCAST) && g->size > 1 &&
           steps_of(h, c) != 0;
}

static cddp_collective step_call(const cd_step_group *g, const cd_step_work *w, uint32_t step)
{
    const hier_group *h = (const hier_group *)(const void *)g;
    cddp_collective c = w->call;
    if (w->call.op == CDDP_OP_BROADCAST) {
        c.root = step == LEADERS ? node_index(h, w->call.root)
                 : step == UP    ? place_in_node(h, w->call.root)
                                 : 0;
        return c;
    }
    bool sums = c.reduce_op == CDDP_RED_AVG || c.reduce_op == CDDP_RED_PREMUL_SUM;
    if (sums) c.reduce_op = CDDP_RED_SUM;
    /* steps taken so far */
    if (w->stage > h->guards || w->call.reduce_op == CDDP_RED_PREMUL_SUM) c.input = c.output;
    c.op = step == UP ? CDDP_OP_REDUCE : step == LEADERS ? CDDP_OP_ALLREDUCE : CDDP_OP_BROADCAST;
    c.root = 0;
    return c;
}

static cddp_status divide(const cd_step_group *g, const cddp_collective *c, cddp_error *err)
{
    return CD_PASS(c->output.device->divide(&c->output, &c->output, g->size, c->stream, err));
}

/* Issues the first step of `steps` after `done`. The mean is taken when all contributions are
** added. */
static cddp_status issue_after(cd_step_group *g, cd_step_work *w, uint32_t done, cddp_error *err)
{
    hier_group *h = hier_of(g);
    uint32_t steps = steps_of(h, &w->call), step = done + 1;
    while ((steps & (1u << step)) == 0) step++;
    bool takes_mean = w->call.op == CDDP_OP_ALLREDUCE && w->call.reduce_op == CDDP_RED_AVG;
    if (takes_mean && step == DOWN && h->my_place == 0) CD_TRY(divide(g, &w->call, err));
    const cddp_collective c = step_call(g, w, step);
    CD_TRY(cd_step_issue(g, w, step, &c, steps >> (step + 1) == 0, err));
    return CDDP_OK;
}

/* The first step behind the guard. */
static cddp_status issue_first(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    if (!is_nodewise(g, c)) {
        CD_TRY(cd_step_issue(g, w, FLAT, c, true, err));
        return CDDP_OK;
    }
    if (c->op == CDDP_OP_ALLREDUCE && c->reduce_op == CDDP_RED_PREMUL_SUM)
        CD_TRY(c->output.device->scale(&c->output, &c->input, c->premultiplier, c->stream, err));
    CD_TRY(issue_after(g, w, FLAT, err));
    return CDDP_OK;
}

/* The room of a work: this rank's fingerprint, then those of all. */
static void *room_all(const cd_step_group *g, const cd_step_work *w)
{
    return (unsigned char *)w->extra + cd_fingerprint_bytes(g->size);
}

/* Has an operation before this one to take this one's first step (P1)? */
static bool must_wait(const cd_step_group *g, const cd_step_work *w)
{
    const hier_group *h = (const hier_group *)(const void *)g;
    const uint32_t steps = is_nodewise(g, &w->call) ? steps_of(h, &w->call) : 0;
    const uint32_t first = steps & (~steps + 1u);
    for (const cd_step_work *before = g->first; before != NULL; before = before->next) {
        const uint32_t taken = before->stage > 0 ? (2u << before->inner_index) - 1u : 0;
        if ((steps_of(h, &before->call) & ~taken & first) != 0) return true;
    }
    return false;
}

static cddp_status hier_begin(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    hier_group *h = hier_of(g);
    const size_t bytes = cd_fingerprint_bytes(g->size);
    cd_fingerprint *mine = w->extra;
    if (!h->guards && must_wait(g, w)) return CDDP_OK;
    if (!h->guards || cd_step_is_message(w->call.op)) return CD_PASS(issue_first(g, w, err));
    mine->number = h->number++;
    cd_fingerprint_take(&w->call, g->me, g->size, mine);
    const cddp_collective c = {.op = CDDP_OP_ALLGATHER,
                               .input = cd_step_bytes(mine, bytes),
                               .output = cd_step_bytes(room_all(g, w), g->size * bytes),
                               .timeout_ns = g->timeout_ns};
    CD_TRY(cd_step_issue(g, w, GUARD, &c, false, err));
    return CDDP_OK;
}

static cddp_status fingerprints_compare(const cd_step_group *g, const cd_step_work *w,
                                        cddp_error *err)
{
    char words[320];
    if (cd_fingerprints_agree(room_all(g, w), g->size, g->members, words, sizeof words))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_MISMATCH, "ranks disagree: %s", words);
}

static cddp_status hier_next(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    if (w->inner_index == GUARD) {
        w->is_known_to_all = true;
        CD_TRY(fingerprints_compare(g, w, err));
        w->is_known_to_all = false;
        CD_TRY(issue_first(g, w, err));
        return CDDP_OK;
    }
    if (w->stage == 0) return CD_PASS(issue_first(g, w, err)); /* it had to wait */
    CD_TRY(issue_after(g, w, w->inner_index, err));
    return CDDP_OK;
}

/* A rank alone on its node has no step down, before which its leader would take the mean. */
static cddp_status hier_finish(cd_step_group *g, cd_step_work *w, cddp_error *err)
{
    bool takes_mean = w->call.op == CDDP_OP_ALLREDUCE && w->call.reduce_op == CDDP_RED_AVG &&
                      w->inner_index == LEADERS;
    if (takes_mean) CD_TRY(divide(g, &w->call, err));
    return CDDP_OK;
}

static const cd_step_ops ops = {.group_bytes = sizeof(hier_group),
                                .begin = hier_begin,
                                .next = hier_next,
                                .finish = hier_finish};

/* ---- opening ---- */

static cddp_status open_levels(hier_group *h, const cddp_group_spec *spec, cddp_error *err)
{
    cd_step_group *g = &h->base;
    char suffix[32];
    const cd_node *node = g->node->inner[0];
    const cd_inner_spec leaders = {node, "/leaders", h->leaders, h->leader_count, h->my_node};
    cd_inner_spec siblings = {node, suffix, h->siblings, h->sibling_count, h->my_place};
    bool inside = h->sibling_count > 1;
    snprintf(suffix, sizeof suffix, "/up%" PRIu32, h->my_node);
    if (inside)
        CD_TRY(cd_step_group_open_inner(g, spec, &siblings, err));
    else
        cd_step_group_skip_inner(g);
    if (h->my_place == 0 && h->leader_count > 1)
        CD_TRY(cd_step_group_open_inner(g, spec, &leaders, err));
    else
        cd_step_group_skip_inner(g);
    snprintf(suffix, sizeof suffix, "/down%" PRIu32, h->my_node);
    if (inside)
        CD_TRY(cd_step_group_open_inner(g, spec, &siblings, err));
    else
        cd_step_group_skip_inner(g);
    return CDDP_OK;
}

static cddp_status hier_open(const cddp_backend *backend, cddp_rank *rank,
                             const cddp_group_spec *spec, void **group, cddp_error *err)
{
    cd_step_group *g = NULL;
    cddp_status status = CDDP_OK;
    CD_TRY(cd_step_group_create(backend, rank, spec, &ops, &g, err));
    hier_group *h = hier_of(g);
    h->guards = g->node->table.capabilities.guards && g->size > 1 &&
                (spec->options == NULL || strstr(spec->options, "guard=0") == NULL);
    g->extra_bytes = (g->size + 1) * cd_fingerprint_bytes(g->size);
    const cd_inner_spec flat = {.node = g->node->inner[0], .suffix = "/flat"},
                        guard = {.node = g->node->inner[0], .suffix = "/guard"};
    h->nodes = cd_arena_array(&g->arena, g->size, sizeof *h->nodes);
    h->leaders = cd_arena_array(&g->arena, g->size, sizeof *h->leaders);
    h->siblings = cd_arena_array(&g->arena, g->size, sizeof *h->siblings);
    CD_TRY_OUT(cd_arena_check(&g->arena, err, "the nodes of group '%s'", spec->name));
    CD_TRY_OUT(cd_step_group_open_inner(g, spec, &flat, err));
    CD_TRY_OUT(nodes_gather(h, err));
    nodes_sort(h);
    CD_TRY_OUT(open_levels(h, spec, err));
    if (h->guards) CD_TRY_OUT(cd_step_group_open_inner(g, spec, &guard, err));
    *group = g;
    g = NULL;
out:
    cd_step_group_destroy(g);
    return status;
}

static cddp_status hier_parse(cd_node *node, const char **at, cddp_error *err)
{
    uint64_t per = 0;
    if (strncmp(*at, "per=", 4) != 0) return CDDP_OK;
    *at += 4;
    const char *begin = *at;
    if (!cd_spec_number(at, &per) || **at != ':' || per < 1 || per > UINT32_MAX)
        return cd_spec_refuse(
            node, begin, err,
            "per= needs a number of ranks per node and a colon, as in hier:per=2:gloo");
    node->ranks_per_node = (uint32_t)per;
    ++*at;
    return CDDP_OK;
}

static cddp_status hier_adopt(cd_node *node, cddp_error *err)
{
    cddp_capabilities *k = &node->table.capabilities;
    const uint32_t needed = 1u << CDDP_OP_ALLREDUCE | 1u << CDDP_OP_REDUCE |
                            1u << CDDP_OP_BROADCAST | 1u << CDDP_OP_ALLGATHER;
    const char *inner = node->inner[0]->table.name;
    for (cddp_op op = 0; op < CDDP_OP_COUNT; op++)
        if ((needed & (1u << op)) != 0 && (k->ops & (1u << op)) == 0)
            return cd_fail(err, CDDP_E_UNSUPPORTED,
                           "hier: needs %s, and backend %s does not implement it", cddp_op_name(op),
                           inner);
    if (!k->in_place || (!k->any_device && (k->devices & CDDP_DEVICE_HOST) == 0) ||
        (k->reduce_ops & (1u << CDDP_RED_SUM)) == 0)
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "hier: needs a backend that sums in place and takes tensors of the host; %s does not",
            inner);
    if (k->order == CDDP_ORDER_KNOWN) k->order = CDDP_ORDER_SAME;
    k->algorithm = "hier";
    k->async = false;
    cd_step_fill_table(&node->table);
    return CDDP_OK;
}

const cd_kind cd_kind_hier = {
    .word = "hier",
    .form = "hier:[per=N:]x",
    .summary = "reduce inside a node, all-reduce between the nodes' first ranks, broadcast inside",
    .parse = hier_parse,
    .adopt = hier_adopt,
    .open = hier_open};
