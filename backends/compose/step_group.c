/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing groups made of inner groups, and the open groups of a rank. */
#include "backends/compose/step.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- small things ---- */

bool cd_step_is_message(cddp_op op) { return op == CDDP_OP_SEND || op == CDDP_OP_RECV; }

bool cd_step_is_reduction(cddp_op op)
{
    return op == CDDP_OP_ALLREDUCE || op == CDDP_OP_REDUCE || op == CDDP_OP_REDUCE_SCATTER;
}

uint64_t cd_step_now(const cd_step_group *g) { return g->rank->ops->now_ns(g->rank); }

cddp_tensor cd_step_bytes(void *bytes, size_t byte_count)
{
    int64_t numel = (int64_t)byte_count;
    return cddp_tensor_of(cddp_device_cpu(), bytes, 0, CDDP_U8, &numel, 1);
}

bool cd_step_has_input(const cd_step_group *g, const cddp_collective *c)
{
    bool is_root = c->root == g->me;
    switch (c->op) {
    case CDDP_OP_BARRIER:
    case CDDP_OP_BROADCAST:
    case CDDP_OP_RECV:
        return false;
    case CDDP_OP_SCATTER:
        return is_root;
    default:
        return true;
    }
}

bool cd_step_has_output(const cd_step_group *g, const cddp_collective *c)
{
    bool is_root = c->root == g->me;
    switch (c->op) {
    case CDDP_OP_BARRIER:
    case CDDP_OP_SEND:
        return false;
    case CDDP_OP_REDUCE:
    case CDDP_OP_GATHER:
        return is_root;
    default:
        return true;
    }
}

/* ---- the groups of a rank ---- */

static cddp_status rank_join(cd_step_group *g, cddp_error *err)
{
    cd_step_ranks *ranks = g->node->composition->ranks;
    cd_step_rank *r = NULL;
    pthread_mutex_lock(&ranks->lock);
    for (r = ranks->first; r != NULL && r->rank != g->rank; r = r->next) {
    }
    if (r == NULL) {
        r = cd_allocate_zero(g->allocator, sizeof *r);
        if (r != NULL) {
            r->rank = g->rank;
            r->allocator = g->allocator;
            r->next = ranks->first;
            ranks->first = r;
        }
    }
    pthread_mutex_unlock(&ranks->lock);
    if (r == NULL) return cd_fail_memory(err, "group '%s'", g->name);
    g->next_of_rank = r->first;
    r->first = g;
    g->mine = r;
    return CDDP_OK;
}

static void rank_leave(cd_step_group *g)
{
    cd_step_rank *r = g->mine;
    if (r == NULL) return;
    cd_step_group **at = &r->first;
    while (*at != g) at = &(*at)->next_of_rank;
    *at = g->next_of_rank;
    if (r->first != NULL) return;
    cd_step_ranks *ranks = g->node->composition->ranks;
    pthread_mutex_lock(&ranks->lock);
    cd_step_rank **link = &ranks->first;
    while (*link != NULL && *link != r) link = &(*link)->next;
    if (*link == r) *link = r->next;
    pthread_mutex_unlock(&ranks->lock);
    cd_release(r->allocator, r, sizeof *r);
}

/* ---- groups ---- */

cddp_status cd_step_group_create(const cddp_backend *backend, cddp_rank *rank,
                                 const cddp_group_spec *spec, const cd_step_ops *ops,
                                 cd_step_group **group, cddp_error *err)
{
    const cddp_allocator *a = rank->allocator;
    cd_arena arena;
    cd_arena_init(&arena, a, 4096);
    cd_step_group *g = cd_arena_push(&arena, ops->group_bytes);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    g->arena = arena;
    g->node = backend->self;
    g->ops = ops;
    g->rank = rank;
    g->allocator = a;
    g->me = spec->group_rank;
    g->size = spec->group_size;
    g->timeout_ns = spec->timeout_ns;
    g->name = cd_arena_strdup(&g->arena, spec->name);
    g->members = cd_arena_array(&g->arena, g->size, sizeof *g->members);
    if (g->arena.exhausted) {
        cd_arena_fini(&g->arena);
        return cd_fail_memory(err, "group '%s' of %" PRIu32, spec->name, spec->group_size);
    }
    memcpy(g->members, spec->members, g->size * sizeof *g->members);
    const cddp_status status = rank_join(g, err);
    if (status != CDDP_OK)
        cd_arena_fini(&g->arena);
    else
        *group = g;
    return status;
}

cddp_status cd_step_group_open_inner(cd_step_group *g, const cddp_group_spec *spec,
                                     const cd_inner_spec *inner, cddp_error *err)
{
    char name[160];
    cddp_status status = CDDP_OK;
    const uint32_t count = inner->members != NULL ? inner->member_count : g->size;
    CD_ASSERT(g->inner_count < CD_NODE_GROUPS_MAX);
    if (snprintf(name, sizeof name, "%s%s", g->name, inner->suffix) >= (int)sizeof name)
        return cd_fail(err, CDDP_E_LIMIT, "group name '%s' is too long for backend '%s'", g->name,
                       g->node->table.name);
    uint32_t *members = cd_allocate_array(g->allocator, count, sizeof *members);
    if (members == NULL) return cd_fail_memory(err, "group '%s' of %" PRIu32, name, count);
    for (uint32_t i = 0; i < count; i++)
        members[i] = g->members[inner->members != NULL ? inner->members[i] : i];
    cddp_group_spec full = *spec;
    full.name = name;
    full.members = members;
    full.group_size = count;
    full.group_rank = inner->members != NULL ? inner->me : g->me;
    cd_inner *slot = &g->inner[g->inner_count];
    CD_TRY_OUT(inner->node->table.open(&inner->node->table, g->rank, &full, &slot->group, err));
    slot->table = &inner->node->table;
    g->inner_count++;
out:
    cd_release(g->allocator, members, count * sizeof *members);
    return status;
}

void cd_step_group_skip_inner(cd_step_group *g)
{
    CD_ASSERT(g->inner_count < CD_NODE_GROUPS_MAX);
    g->inner[g->inner_count++] = (cd_inner){.table = NULL};
}

void cd_step_group_destroy(void *group)
{
    cd_step_group *g = group;
    if (g == NULL) return;
    if (g->ops->closing != NULL) g->ops->closing(g);
    for (cd_step_work *w = g->made; w != NULL; w = w->next_made)
        if (w->inner != NULL)
            g->inner[w->inner_index].table->release(g->inner[w->inner_index].group, w->inner);
    while (g->inner_count > 0) {
        const cd_inner *inner = &g->inner[--g->inner_count];
        if (inner->table != NULL) inner->table->close(inner->group);
    }
    if (g->ops->fini != NULL) g->ops->fini(g);
    for (const cd_step_work *w = g->first; w != NULL; w = w->next) g->mine->queued--;
    rank_leave(g);
    cd_arena_fini(&g->arena);
}
