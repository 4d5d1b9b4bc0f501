/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reference/decided_groups.h"

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/plan/plan.h"
#include "core/reference/planned.h"
#include "core/reference/units.h"
#include "core/trace/codes.h"
#include "core/trace/tracer.h"

#include <stdio.h>
#include <string.h>

#define NAME_BYTES 192

const char *cd_decided_group_of(const cddp_plan *whole, size_t wrapper)
{
    const bool has = whole != NULL && wrapper < whole->wrapper_count;
    return has && whole->wrappers[wrapper].own_group ? whole->wrappers[wrapper].name : "world";
}

/* Ranks in order: those of a list, or every stride-th one from the first on. */
typedef struct members {
    const uint32_t *items; /* NULL: first, first + stride, … */
    uint32_t count, first, stride;
} members;

static uint32_t get_member(const members *m, uint32_t position)
{
    return m->items != NULL ? m->items[position] : m->first + position * m->stride;
}

/* The group event's digest. count: the rank is no member. */
static uint64_t digest_members(const members *m, uint32_t rank, uint32_t *position)
{
    uint64_t digest = m->count;
    *position = m->count;
    for (uint32_t i = 0; i < m->count; i++) {
        digest = cd_hash_mix(digest, get_member(m, i));
        if (get_member(m, i) == rank) *position = i;
    }
    return digest;
}

/* 1; 0: the rank is no member. */
static uint32_t emit_group(const cd_decisions *d, int64_t id, const char *name, const members *m,
                           struct cddp_tracer *tracer)
{
    uint32_t position;
    const uint64_t digest = digest_members(m, d->rank, &position);
    if (position == m->count) return 0;
    CD_EMIT(tracer, decision, name, .decision = CDDP_DECISION_GROUP, .id = id, .at_step = -1,
            .at_micro = -1, .value = m->count, .detail = position, .digest = (int64_t)digest);
    return 1;
}

static uint32_t count_world(const cd_decisions *d) { return (uint32_t)d->plan->world.size; }

static members all_of(const cd_decisions *d) { return (members){NULL, count_world(d), 0, 1}; }

/* Consecutive ranks, this one among them. */
static members block_of(const cd_decisions *d, uint32_t size)
{
    return (members){NULL, size, d->rank / size * size, 1};
}

static void name_block(const cd_decisions *d, const char *purpose, uint32_t size,
                       char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "%s/%s of %u from %u", d->group, purpose, size,
             d->rank / size * size);
}

/* ---- what uses them ---- */

/* 0: the hook has no groups itself. */
static uint32_t get_hook_block(const cd_decisions *d)
{
    if (cd_decided_hook_average(&d->hook) != CD_AVERAGE_BLOCKS) return 0;
    const double size = cd_decided_hook_get(&d->hook, "subgroup_size", 0);
    return size >= 1 && size < (double)count_world(d) ? (uint32_t)size : 0;
}

static uint32_t emit_hook_groups(const cd_decisions *d, struct cddp_tracer *tracer)
{
    char name[NAME_BYTES];
    const uint32_t block = get_hook_block(d);
    if (!cd_decided_hook_is_known(&d->hook)) {
        snprintf(name, sizeof name, "%s/", d->group);
        CD_EMIT(tracer, decision, name, .decision = CDDP_DECISION_GROUP, .id = CD_GROUP_OF_PLUGIN,
                .at_step = -1, .at_micro = -1);
    }
    if (block == 0) return !cd_decided_hook_is_known(&d->hook);
    const members m = block_of(d, block);
    name_block(d, "post_local_sgd", block, name);
    return emit_group(d, CD_GROUP_OF_HOOK, name, &m, tracer);
}

static uint32_t emit_averager_groups(const cd_decisions *d, struct cddp_tracer *tracer)
{
    cd_plan_level levels[CD_PLAN_LEVELS_MAX];
    char name[NAME_BYTES];
    uint32_t emitted = 0;
    if (d->settings.averager.kind == CDDP_AVERAGER_NONE) return 0;
    const uint32_t count = cd_plan_read_levels(d->settings.averager.levels, levels);
    for (uint32_t i = 0; i < count; i++) {
        if (levels[i].ranks == 0 || levels[i].ranks >= count_world(d)) continue;
        const members m = block_of(d, levels[i].ranks);
        name_block(d, "average", levels[i].ranks, name);
        emitted += emit_group(d, CD_GROUP_OF_AVERAGE + i, name, &m, tracer);
    }
    return emitted;
}

/* Where shards of the model lie, and who has equal ones. */
typedef struct mesh {
    int64_t strategy;
    uint32_t node; /* ranks that have one copy; of a hybrid strategy only */
    int64_t shards_id, replicas_id;
} mesh;

/* HSD-01: consecutive ranks share a copy, and equal places of the copies a shard. */
static uint32_t emit_mesh(const cd_decisions *d, const mesh *cut, struct cddp_tracer *tracer)
{
    char name[NAME_BYTES];
    const bool is_hybrid =
        cut->strategy == CDDP_SHARDING_HYBRID || cut->strategy == CDDP_SHARDING_HYBRID_ZERO2;
    const members all = all_of(d);
    if (!is_hybrid || cut->node == 0) {
        (void)emit_group(d, cut->shards_id, d->group, &all, tracer);
        return 0; /* it is the wrapper's */
    }
    const members shards = block_of(d, cut->node),
                  replicas = {NULL, count_world(d) / cut->node, d->rank % cut->node, cut->node};
    snprintf(name, sizeof name, "shards %u", d->rank / cut->node);
    const uint32_t emitted = emit_group(d, cut->shards_id, name, &shards, tracer);
    snprintf(name, sizeof name, "replicas %u", d->rank % cut->node);
    return emitted + emit_group(d, cut->replicas_id, name, &replicas, tracer);
}

/* After a resume the shards may lie otherwise. */
static uint32_t emit_meshes(const cd_decisions *d, struct cddp_tracer *tracer)
{
    cddp_plan_settings settings = d->settings;
    const cddp_plan_fsdp *fsdp = &settings.fsdp;
    if (!fsdp->enable) return 0;
    uint32_t emitted = emit_mesh(d,
                                 &(mesh){fsdp->sharding_strategy, (uint32_t)fsdp->shard_group_size,
                                         CD_GROUP_OF_SHARDS, CD_GROUP_OF_REPLICAS},
                                 tracer);
    if (!settings.train.resume) return emitted;
    cd_planned_resume(&settings);
    emitted += emit_mesh(d,
                         &(mesh){fsdp->sharding_strategy, (uint32_t)fsdp->shard_group_size,
                                 CD_GROUP_OF_SHARDS_RESUMED, CD_GROUP_OF_REPLICAS_RESUMED},
                         tracer);
    return emitted;
}

static bool is_called(const char *name, const char *other)
{
    return name != NULL && other != NULL && strcmp(name, other) == 0;
}

/* Does a collective, a [[when]] or a norm of the plan name the group? */
static bool is_used(const cd_decisions *d, const char *name)
{
    const cddp_plan *plan = d->plan;
    bool found = is_called(d->settings.clip.group, name);
    for (size_t i = 0; i < plan->when_count; i++) found |= is_called(plan->whens[i].group, name);
    for (size_t i = 0; i < plan->collective_count; i++)
        found |= is_called(plan->collectives[i].group, name);
    return found;
}

static uint32_t emit_named_groups(const cd_decisions *d, struct cddp_tracer *tracer)
{
    uint32_t emitted = 0;
    for (size_t i = 0; i < d->plan->group_count; i++) {
        const cddp_plan_group *group = &d->plan->groups[i];
        if (!is_used(d, group->name)) continue;
        const members listed = {group->members.items, (uint32_t)group->members.count, 0, 1},
                      all = all_of(d);
        emitted += emit_group(d, CD_GROUP_NAMED + (int64_t)i, group->name,
                              group->members.count > 0 ? &listed : &all, tracer);
    }
    return emitted;
}

static bool has_swaps(const cd_decisions *d)
{
    bool found = false;
    for (size_t i = 0; i < d->plan->when_count; i++) found |= d->plan->whens[i].group != NULL;
    return found;
}

/* Without a name it is the wrapper's first group, where there is one wrapper that keeps it. */
static void emit_collectives(const cd_decisions *d, struct cddp_tracer *tracer)
{
    for (size_t i = 0; i < d->plan->collective_count; i++) {
        const cddp_plan_collective *c = &d->plan->collectives[i];
        const bool is_alone = d->plan->wrapper_count <= 1 && !has_swaps(d);
        const char *name = c->group != NULL ? c->group : is_alone ? d->group : NULL;
        if (name == NULL || !cddp_selector_has(&c->ranks, d->rank)) continue;
        CD_EMIT(tracer, decision, name, .decision = CDDP_DECISION_GROUP,
                .id = CD_GROUP_OF_COLLECTIVE + (int64_t)i, .at_step = -1, .at_micro = -1,
                .value = 1);
    }
}

/* ---- as a whole ---- */

/* What else a rank posts for no bucket (buffers, norms, bits of what was used) names no purpose. */
static const char which_group[] =
    "in which of its groups a rank posts what is for no bucket and no [[collective]]";

void cd_decided_groups_emit(const cd_decisions *d, struct cddp_tracer *tracer)
{
    const members all = all_of(d);
    uint32_t count = emit_group(d, CD_GROUP_OF_WRAPPER, d->group, &all, tracer);
    count += emit_hook_groups(d, tracer);
    count += emit_averager_groups(d, tracer);
    count += emit_meshes(d, tracer);
    count += emit_named_groups(d, tracer);
    emit_collectives(d, tracer);
    if (count > 1) cd_decisions_give_up(tracer, 1, which_group);
}

/* UPG-02: a comm hook keeps the group that the wrapper had when it was registered. NULL: the plan
** does not say when that was. */
static const char *find_group_of_buckets(const cd_decisions *d, uint32_t step)
{
    const bool is_alone = d->hook.name[0] == '\0' && cd_decisions_has_free_slot(d);
    if (is_alone) return cd_planned_group_name(d->plan, d->rank, step);
    return d->hook.name[0] != '\0' && !d->settings.train.resume ? d->group : NULL;
}

/* A rank that joins early, or a backward that is left, moves the hook's start. */
void cd_decided_groups_emit_place(cd_decisions *d, const cd_micro *micro,
                                  struct cddp_tracer *tracer)
{
    char block_name[NAME_BYTES];
    const char *name = NULL;
    const uint32_t block = get_hook_block(d);
    d->has_left |= micro->abort_after > 0 || micro->early_step;
    if (!cd_decisions_closes(d, micro->place)) return;
    if (block > 0 && !d->has_left && !d->settings.join.enable && !has_swaps(d)) {
        const bool is_block = cd_decisions_get_block(d, micro->place) == block;
        name_block(d, "post_local_sgd", block, block_name);
        name = is_block ? block_name : d->group;
    } else if (block == 0 && has_swaps(d)) {
        name = find_group_of_buckets(d, micro->place.step);
    }
    if (name == NULL) return;
    CD_EMIT(tracer, decision, name, .decision = CDDP_DECISION_GROUP, .id = CD_GROUP_OF_BUCKETS,
            .at_step = micro->place.step, .at_micro = micro->place.micro_step, .value = 1);
}
