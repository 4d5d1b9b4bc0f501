/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and collectives of the training program itself: what real jobs do between the reducer's operations. */
#include "core/run/trainer.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <string.h>

static bool group_position(const cd_trainer *t, const cddp_plan_group *group, uint32_t *position)
{
    for (size_t i = 0; i < group->members.count; i++) {
        if (group->members.items[i] == t->rank->rank) {
            *position = (uint32_t)i;
            return true;
        }
    }
    *position = t->rank->rank;
    return group->members.count == 0;
}

static cddp_status open_one(cd_trainer *t, const cddp_plan_group *planned, cddp_group **group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    uint32_t position;
    if (!group_position(t, planned, &position)) {
        return CDDP_OK;
    }
    const uint32_t world = (uint32_t)t->plan->world.size;
    uint32_t *members = cd_allocate_array(t->allocator, world, sizeof *members);
    if (members == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for the members of group '%s'", planned->name);
    }
    const uint32_t count = planned->members.count > 0 ? (uint32_t)planned->members.count : world;
    for (uint32_t i = 0; i < count && i < world; i++) {
        members[i] = planned->members.count > 0 ? planned->members.items[i] : i;
    }
    const cddp_group_options options = {
        .sequence_start = t->plan->world.sequence_start,
        .size = sizeof options, .backend = t->options.backend, .rank = t->rank, .tracer = t->tracer,
        .spec = {.size = sizeof options.spec, .name = planned->name, .group_rank = position, .group_size = count,
                 .members = members, .timeout_ns = t->plan->world.timeout_ms * 1000000u,
                 .in_flight_max = (uint32_t)t->plan->world.in_flight_max, .options = t->plan->world.backend_options}};
    CD_TRY_OUT(cddp_group_create(&options, group, err));
out:
    cd_release(t->allocator, members, world * sizeof *members);
    return status;
}

cddp_status cd_trainer_open_groups(cd_trainer *t, cddp_error *err)
{
    if (t->plan->group_count == 0) {
        return CDDP_OK;
    }
    t->groups = cd_allocate_array(t->allocator, t->plan->group_count, sizeof(cddp_group *));
    if (t->groups == NULL) {
        return cd_fail(err, CDDP_E_NOMEM, "no memory for %zu groups", t->plan->group_count);
    }
    for (size_t i = 0; i < t->plan->group_count; i++) {
        CD_TRY(open_one(t, &t->plan->groups[i], &t->groups[i], err));
    }
    return CDDP_OK;
}

void cd_trainer_close_groups(cd_trainer *t)
{
    for (size_t i = 0; t->groups != NULL && i < t->plan->group_count; i++) {
        cddp_group_destroy(t->groups[i]);
    }
    cd_release(t->allocator, t->groups, t->plan->group_count * sizeof(cddp_group *));
    t->groups = NULL;
}

/* NULL when this rank is no member. */
static cddp_group *find_group(const cd_trainer *t, const char *name)
{
    for (size_t i = 0; name != NULL && i < t->plan->group_count; i++) {
        if (strcmp(t->plan->groups[i].name, name) == 0) {
            return t->groups[i];
        }
    }
    return name == NULL ? t->group : NULL;
}

static cddp_status run_on_tensor(cd_trainer *t, const cddp_plan_collective *planned, cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_device *device = t->streams.device != NULL ? t->streams.device : cd_trainer_module(t)->device;
    const cddp_dtype dtype = (cddp_dtype)planned->dtype;
    const int64_t numel = (int64_t)planned->numel, total = numel * cddp_group_size(group) + numel + 1;
    cddp_work *work = NULL;
    void *storage;
    CD_TRY(device->allocate(device, dtype, total, &storage, err));
    const cddp_tensor input = cddp_tensor_of(device, storage, 0, dtype, &numel, 1);
    const int64_t gathered = numel * cddp_group_size(group);
    const cddp_tensor output = cddp_tensor_of(device, storage, numel, dtype, &gathered, 1);
    CD_TRY_OUT(device->fill(&input, t->rank->rank + 1.0, NULL, err));
    if (planned->op == 0) {
        CD_TRY_OUT(cddp_group_allreduce(group, &input, CDDP_RED_SUM, &work, err));
    } else if (planned->op == 1) {
        CD_TRY_OUT(cddp_group_broadcast(group, &input, (uint32_t)planned->root, &work, err));
    } else {
        CD_TRY_OUT(cddp_group_allgather(group, &input, &output, &work, err));
    }
    CD_TRY_OUT(cddp_work_wait(work, 0, err));
out:
    device->release(device, dtype, total, storage);
    return status;
}

cddp_status cd_trainer_run_collectives(cd_trainer *t, cd_place_in_step place, cddp_error *err)
{
    for (size_t i = 0; i < t->plan->collective_count; i++) {
        const cddp_plan_collective *planned = &t->plan->collectives[i];
        cddp_group *group = find_group(t, planned->group);
        if (planned->place != (int64_t)place || group == NULL || !cddp_selector_has(&planned->ranks, t->rank->rank) ||
            !cddp_selector_has(&planned->steps, t->step)) {
            continue;
        }
        if (planned->op == 3) {
            CD_TRY(cddp_group_barrier(group, err));
        } else {
            CD_TRY(run_on_tensor(t, planned, group, err));
        }
    }
    return CDDP_OK;
}
