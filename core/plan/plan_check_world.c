/* SPDX-License-Identifier: Apache-2.0 */
/* Contradictions in what a plan says of the ranks among themselves: network, rendezvous, faults,
** groups, collectives.
**
** Not here: what each of them trains (plan_check.c).
*/
#include "core/plan/plan_check.h"

#include "core/base/alloc.h"
#include "core/base/hash.h"
#include "core/base/operation.h"
#include "core/base/text.h"

#include <string.h>

static void check_agent(cd_contradictions *c)
{
    const cddp_plan_agent *agent = &c->plan->settings.agent;
    const char *key = agent->late_ms != 0          ? "agent.late_ms"
                      : agent->timeout_ms != 30000 ? "agent.timeout_ms"
                      : agent->attempts != 1       ? "agent.attempts"
                      : agent->backoff_ms != 1000  ? "agent.backoff_ms"
                                                   : NULL;
    for (size_t i = 0; key == NULL && i < c->plan->override_count; i++) {
        key =
            strncmp(c->plan->overrides[i].key, "agent.", 6) == 0 ? c->plan->overrides[i].key : NULL;
    }
    if (key != NULL && !c->plan->rendezvous.enable) {
        cd_plan_contradict(
            c, key,
            "%s has no effect without rendezvous.enable = true: nobody meets through a store", key);
    }
}

static void check_rendezvous(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    check_agent(c);
    if (plan->rendezvous.enable && plan->rendezvous.host >= plan->world.size) {
        cd_plan_contradict(c, "rendezvous.host", "rendezvous.host = %llu, but world.size is %llu",
                           (unsigned long long)plan->rendezvous.host,
                           (unsigned long long)plan->world.size);
    }
    if (plan->rendezvous.enable && plan->world.backend != NULL &&
        strchr(plan->world.backend, ':') != NULL) {
        cd_plan_contradict(c, "rendezvous.enable",
                           "rendezvous.enable with world.backend = \"%s\": the simulated store "
                           "serves one backend, and not a composed one",
                           plan->world.backend);
    }
    if (!plan->rendezvous.enable && (plan->rendezvous.host != 0 || !plan->rendezvous.generations)) {
        cd_plan_contradict(
            c, "rendezvous.enable",
            "settings of [rendezvous] have no effect without rendezvous.enable = true");
    }
}

static void check_fault(cd_contradictions *c, const cddp_plan_fault *fault)
{
    const bool joins = fault->when >= CDDP_FAULT_BEFORE_JOIN;
    cd_plan_check_selector(c, "fault.side", &fault->side, c->plan->world.size, "world.size");
    if (fault->rank != CDDP_PLAN_UNSET && (uint64_t)fault->rank >= c->plan->world.size)
        cd_plan_contradict(c, "fault.rank", "fault.rank = %lld is not below world.size = %llu",
                           (long long)fault->rank, (unsigned long long)c->plan->world.size);
    if (joins && !c->plan->rendezvous.enable) {
        cd_plan_contradict(c, "fault.when",
                           "fault.when around a join needs rendezvous.enable = true: otherwise "
                           "ranks find each other at once");
    }
    if (!joins && fault->joiner != CDDP_PLAN_UNSET) {
        cd_plan_contradict(c, "fault.joiner",
                           "fault.joiner has no effect unless fault.when is before_join, "
                           "inside_join or after_join");
    }
}

/* A rank that is not a member issues nothing. */
static bool has_issuer(const cddp_plan *plan, const cddp_plan_collective *collective)
{
    const cddp_plan_group *group =
        collective->group != NULL ? cd_plan_find_group(plan, collective->group) : NULL;
    for (size_t i = 0; group != NULL && i < group->members.count; i++) {
        if (cddp_selector_has(&collective->ranks, group->members.items[i])) return true;
    }
    return group == NULL || group->members.count == 0;
}

static const cddp_op collective_ops[] = {
    CDDP_OP_ALLREDUCE,      CDDP_OP_BROADCAST, CDDP_OP_ALLGATHER, CDDP_OP_BARRIER,
    CDDP_OP_REDUCE_SCATTER, CDDP_OP_REDUCE,    CDDP_OP_GATHER,    CDDP_OP_SCATTER,
    CDDP_OP_ALLTOALL,       CDDP_OP_SEND,      CDDP_OP_RECV};
static const cddp_red_op collective_reductions[] = {CDDP_RED_SUM, CDDP_RED_AVG, CDDP_RED_PRODUCT,
                                                    CDDP_RED_MIN, CDDP_RED_MAX, CDDP_RED_BAND,
                                                    CDDP_RED_BOR, CDDP_RED_BXOR};

cddp_op cd_plan_op(const cddp_plan_collective *collective)
{
    return collective_ops[collective->op];
}

cddp_red_op cd_plan_reduction(const cddp_plan_collective *collective)
{
    return collective_reductions[collective->reduction];
}

static void check_collective(cd_contradictions *c, const cddp_plan_collective *collective)
{
    const cddp_op op = cd_plan_op(collective);
    const cddp_red_op reduction = cd_plan_reduction(collective);
    const cddp_dtype dtype = (cddp_dtype)collective->dtype;
    const bool is_whole = dtype == CDDP_I64 || dtype == CDDP_I32 || dtype == CDDP_U8,
               is_bitwise = collective->reduction >= CDDP_REDUCTION_BAND;
    const char *word = cddp_red_op_name(reduction);
    if (!cd_op_is_reduction(op) && reduction != CDDP_RED_SUM) {
        cd_plan_contradict(c, "collective.reduction", "collective.reduction has no effect on %s",
                           cddp_op_name(op));
    } else if (is_bitwise && !is_whole) {
        cd_plan_contradict(
            c, "collective.reduction",
            "collective.reduction = \"%s\" is of whole numbers, and collective.dtype is %s", word,
            cddp_dtype_name(dtype));
    } else if (reduction == CDDP_RED_AVG && is_whole) {
        cd_plan_contradict(
            c, "collective.reduction",
            "collective.reduction = \"avg\" is of fractions, and collective.dtype is %s",
            cddp_dtype_name(dtype));
    } else if (dtype == CDDP_C64 && reduction != CDDP_RED_SUM && reduction != CDDP_RED_AVG) {
        cd_plan_contradict(
            c, "collective.reduction",
            "collective.reduction = \"%s\": complex numbers are only added and averaged", word);
    }
    if (!collective->in_place && op != CDDP_OP_ALLREDUCE && op != CDDP_OP_REDUCE) {
        cd_plan_contradict(c, "collective.in_place", "collective.in_place has no effect on %s",
                           cddp_op_name(op));
    }
    if (op == CDDP_OP_BARRIER && (collective->numel != 5 || dtype != CDDP_F32)) {
        cd_plan_contradict(c, collective->numel != 5 ? "collective.numel" : "collective.dtype",
                           "a barrier has no tensor: drop collective.%s",
                           collective->numel != 5 ? "numel" : "dtype");
    }
    if (!cd_op_is_rooted(op) && collective->root != 0) {
        cd_plan_contradict(c, "collective.root", "collective.root has no effect on %s",
                           cddp_op_name(op));
    }
    const cddp_plan_group *group =
        collective->group != NULL ? cd_plan_find_group(c->plan, collective->group) : NULL;
    const uint64_t members =
        group != NULL && group->members.count > 0 ? group->members.count : c->plan->world.size;
    if (cd_op_is_rooted(op) && collective->root >= members) {
        cd_plan_contradict(c, "collective.root",
                           "collective.root = %llu, but the group has %llu rank%s",
                           (unsigned long long)collective->root, (unsigned long long)members,
                           cd_plural(members));
    }
    if ((op == CDDP_OP_SEND || op == CDDP_OP_RECV) && collective->ranks.term_count == 0) {
        cd_plan_contradict(c, "collective.op",
                           "collective.op = \"%s\" needs collective.ranks: the rank that %s",
                           cddp_op_name(op), op == CDDP_OP_SEND ? "sends" : "receives");
    }
    if ((op == CDDP_OP_SEND || op == CDDP_OP_RECV) && members != 2) {
        cd_plan_contradict(c, "collective.group",
                           "collective.op = \"%s\" needs a group of two ranks: others would not "
                           "count it among their operations",
                           cddp_op_name(op));
    }
}

/* The first that comes again; one is enough to say. */
static void check_repeated_member(cd_contradictions *c, const cddp_plan_group *group)
{
    for (size_t k = 1; k < group->members.count; k++)
        for (size_t earlier = 0; earlier < k; earlier++)
            if (group->members.items[earlier] == group->members.items[k]) {
                cd_plan_contradict(c, "group.members", "group '%s' has member %u twice",
                                   group->name != NULL ? group->name : "?",
                                   group->members.items[k]);
                return;
            }
}

/* Groups by name, 1 + their number, at their digest or behind it: (NAME_SLOTS(group_count)) */
#define NAME_SLOTS(count) (2 * (count) + 1)

/* Has a group before the i-th its name? Else it is noted. */
static bool is_repeated(const cddp_plan *plan, uint32_t *names, size_t i)
{
    const char *name = plan->groups[i].name;
    if (name == NULL) return false;
    size_t at = cd_hash_text(name) % NAME_SLOTS(plan->group_count);
    while (names[at] != 0 && strcmp(plan->groups[names[at] - 1].name, name) != 0)
        at = (at + 1) % NAME_SLOTS(plan->group_count);
    if (names[at] != 0) return true;
    names[at] = (uint32_t)i + 1;
    return false;
}

static void check_groups(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    /* without memory the backend refuses the name */
    uint32_t *names = cd_allocate_array(NULL, NAME_SLOTS(plan->group_count), sizeof *names);
    for (size_t i = 0; i < plan->group_count; i++) {
        const cddp_plan_group *group = &plan->groups[i];
        cd_plan_enter_table(c, "group", i);
        if (group->name == NULL)
            cd_plan_contradict(c, "group.name", "[[group]] number %zu has no name", i);
        if (names != NULL && is_repeated(plan, names, i))
            cd_plan_contradict(c, "group.name", "two groups are called '%s'", group->name);
        check_repeated_member(c, group);
        for (size_t k = 0; k < group->members.count; k++) {
            if (group->members.items[k] >= plan->world.size) {
                cd_plan_contradict(c, "group.members",
                                   "group '%s' has member %u, but world.size is %llu",
                                   group->name != NULL ? group->name : "?", group->members.items[k],
                                   (unsigned long long)plan->world.size);
            }
        }
    }
    cd_release(NULL, names, NAME_SLOTS(plan->group_count) * sizeof *names);
    for (size_t i = 0; i < plan->collective_count; i++) {
        const cddp_plan_collective *collective = &plan->collectives[i];
        cd_plan_enter_table(c, "collective", i);
        cd_plan_check_selector(c, "collective.ranks", &collective->ranks, plan->world.size,
                               "world.size");
        cd_plan_check_selector(c, "collective.steps", &collective->steps,
                               plan->settings.train.steps, "train.steps");
        check_collective(c, collective);
        if (collective->group != NULL && cd_plan_find_group(plan, collective->group) == NULL) {
            cd_plan_contradict(c, "collective.group",
                               "collective.group = \"%s\", but no [[group]] is called so",
                               collective->group);
        } else if (!has_issuer(plan, collective)) {
            cd_plan_contradict(c, "collective.ranks",
                               "collective.ranks selects nobody of group '%s'", collective->group);
        }
    }
}

/* Settings that the simulator accepts but ignores. */
static void check_network(cd_contradictions *c)
{
    const cddp_plan_network *n = &c->plan->network;
    const bool has_bus = n->bus != NULL && strcmp(n->bus, "ideal") != 0;
    if (n->nics_per_node > 0 && n->transport != CDDP_TRANSPORT_MESSAGES) {
        cd_plan_contradict(c, "network.nics_per_node",
                           "network.nics_per_node: only network.transport = \"messages\" has ranks "
                           "wait for a card that they share");
    }
    if (n->nics_per_node > 0 && n->ranks_per_node == 0) {
        cd_plan_contradict(
            c, "network.nics_per_node",
            "network.nics_per_node needs network.ranks_per_node: the ranks that share the cards");
    }
    const char *idle = has_bus                      ? "network.bus"
                       : n->connection_gb_per_s > 0 ? "network.connection_gb_per_s"
                       : n->launch_us > 0           ? "network.launch_us"
                                                    : NULL;
    if (n->transport == CDDP_TRANSPORT_DIRECT && idle != NULL) {
        cd_plan_contradict(
            c, idle, "%s has no effect with network.transport = \"direct\", which takes no time",
            idle);
    }
    if (n->host_gb_per_s > 0 && (n->algorithm == NULL || strcmp(n->algorithm, "hfreduce") != 0)) {
        cd_plan_contradict(
            c, "network.host_gb_per_s",
            "network.host_gb_per_s: only network.algorithm = \"hfreduce\" adds on hosts");
    }
}

void cd_plan_check_world(cd_contradictions *c)
{
    const cddp_plan *plan = c->plan;
    check_network(c);
    check_rendezvous(c);
    for (size_t i = 0; i < plan->fault_count; i++) {
        cd_plan_enter_table(c, "fault", i);
        check_fault(c, &plan->faults[i]);
    }
    check_groups(c);
}
