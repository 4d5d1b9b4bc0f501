/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and collectives of the training program itself: what real jobs do between the reducer's
** operations.
**
** Element i of rank r's input is r mod 4 + 1 + i mod 3, on devices that have numbers and complete
** what they begin. So every rank knows every element of the result.
*/
#include "core/train/trainer.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/comm/operands.h"
#include "core/plan/plan.h"
#include "core/trace/tracer.h"
#include "core/train/points.h"

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

cddp_status cd_trainer_open_group(cd_trainer *t, const cddp_plan_group *planned, cddp_group **group,
                                  cddp_error *err)
{
    uint32_t position;
    if (!group_position(t, planned, &position)) return CDDP_OK;
    const uint32_t world = (uint32_t)t->program.plan->world.size;
    const cd_arena_mark mark = cd_arena_get_mark(&t->run_memory);
    uint32_t *members = cd_arena_array(&t->run_memory, world, sizeof *members);
    CD_TRY(cd_arena_check(&t->run_memory, err, "the members of group '%s'", planned->name));
    const uint32_t count = planned->members.count > 0 ? (uint32_t)planned->members.count : world;
    for (uint32_t i = 0; i < count && i < world; i++)
        members[i] = planned->members.count > 0 ? planned->members.items[i] : i;
    const cddp_group_options options = {
        .sequence_start = t->program.plan->world.sequence_start,
        .size = sizeof options,
        .backend = t->options.backend,
        .rank = t->rank,
        .tracer = t->tracer,
        .spec = {.size = sizeof options.spec,
                 .name = planned->name,
                 .group_rank = position,
                 .group_size = count,
                 .members = members,
                 .timeout_ns = t->program.plan->world.timeout_ms * 1000000u,
                 .in_flight_max = (uint32_t)t->program.plan->world.in_flight_max,
                 .options = t->program.plan->world.backend_options}};
    CD_TRY(cddp_group_create(&options, group, err));
    cd_arena_rewind(&t->run_memory, mark);
    return CDDP_OK;
}

cddp_status cd_trainer_open_groups(cd_trainer *t, cddp_error *err)
{
    if (t->program.plan->group_count == 0) return CDDP_OK;
    t->groups.named = t->options.named;
    if (t->groups.named != NULL) return CDDP_OK;
    t->groups.named =
        cd_arena_array(&t->run_memory, t->program.plan->group_count, sizeof(cddp_group *));
    CD_TRY(cd_arena_check(&t->run_memory, err, "%zu groups", t->program.plan->group_count));
    for (size_t i = 0; i < t->program.plan->group_count; i++)
        CD_TRY(cd_trainer_open_group(t, &t->program.plan->groups[i], &t->groups.named[i], err));
    return CDDP_OK;
}

void cd_trainer_close_groups(cd_trainer *t)
{
    const bool has_own = t->groups.named != NULL && t->options.named == NULL;
    for (size_t i = 0; has_own && i < t->program.plan->group_count; i++)
        cddp_group_destroy(t->groups.named[i]);
    t->groups.named = NULL;
    cd_numbers_fini(&t->groups.numbers);
    cd_release(t->allocator, t->groups.values, t->groups.value_capacity * sizeof *t->groups.values);
    t->groups.values = NULL;
    t->groups.value_capacity = 0;
}

cddp_group *cd_trainer_find_group(const cd_trainer *t, const char *name)
{
    for (size_t i = 0; name != NULL && i < t->program.plan->group_count; i++) {
        if (strcmp(t->program.plan->groups[i].name, name) == 0) return t->groups.named[i];
    }
    return name == NULL ? t->groups.world : NULL;
}

/* ---- what is given ---- */

/* A collective at hand, on one member of its group. */
typedef struct own {
    const cddp_plan_collective *planned;
    const cddp_plan_group *members; /* NULL: the whole world */
    cddp_op op;
    cddp_red_op reduction;
    cddp_dtype dtype;
    uint32_t size, me, root; /* root: or the other rank of a message */
    int64_t numel;
} own;

static double value_of(const own *c, uint32_t member, int64_t i)
{
    const bool named = c->members != NULL && c->members->members.count > 0;
    const uint32_t rank = named ? c->members->members.items[member] : member;
    return (double)(rank % 4 + 1 + (uint32_t)(i % 3));
}

/* Elements that this rank gives and gets; 0: none. */
static int64_t given(const own *c)
{
    const int64_t all = c->numel * c->size;
    switch (c->op) {
    case CDDP_OP_REDUCE_SCATTER:
    case CDDP_OP_ALLTOALL:
        return all;
    case CDDP_OP_SCATTER:
        return c->me == c->root ? all : 0;
    case CDDP_OP_BROADCAST:
        return c->me == c->root ? c->numel : 0;
    case CDDP_OP_RECV:
        return 0;
    default:
        return c->numel;
    }
}

static int64_t gotten(const own *c)
{
    const int64_t all = c->numel * c->size;
    switch (c->op) {
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_ALLTOALL:
        return all;
    case CDDP_OP_GATHER:
        return c->me == c->root ? all : 0;
    case CDDP_OP_REDUCE:
        return c->me == c->root ? c->numel : 0;
    case CDDP_OP_SEND:
        return 0;
    default:
        return c->numel;
    }
}

/* ---- running one ---- */

static cddp_status give_values(cd_trainer *t, const own *c, const cddp_tensor *input,
                               cddp_error *err)
{
    const int64_t numel = cddp_tensor_numel(input);
    if ((input->device->flags & CDDP_DEVICE_VALUES) == 0 || t->streams.device != NULL)
        return CD_PASS(input->device->fill(input, t->rank->rank + 1.0, NULL, err));
    if (!cd_vec_grow(t->allocator, (void **)&t->groups.values, &t->groups.value_capacity,
                     (size_t)numel, sizeof *t->groups.values))
        return cd_fail_memory(err, "the %lld elements of a collective", (long long)numel);
    for (int64_t i = 0; i < numel; i++) t->groups.values[i] = value_of(c, c->me, i);
    return CD_PASS(cd_numbers_write(&t->groups.numbers, input, t->groups.values, err));
}

static cddp_status show_output(cd_trainer *t, const own *c, const cddp_tensor *output,
                               cddp_error *err)
{
    const cd_watched_collective watched = {.planned = c->planned,
                                           .members = c->members,
                                           .group = c->members != NULL
                                                        ? c->members->name
                                                        : cddp_group_name(t->groups.world),
                                           .size = c->size,
                                           .me = c->me,
                                           .output = output};
    if (t->view.watcher == NULL || cddp_tensor_numel(output) == 0 ||
        (output->device->flags & CDDP_DEVICE_VALUES) == 0 || t->streams.device != NULL)
        return CDDP_OK;
    CD_TRY(t->view.watcher->ops->exchanged(t->view.watcher->self, &watched, err));
    return CDDP_OK;
}

static cddp_tensor slice_of(const own *c, const cddp_device *device, void *storage, int64_t offset,
                            int64_t numel)
{
    return cddp_tensor_of(device, storage, offset, c->dtype, &numel, 1);
}

static cddp_status run_on_tensor(cd_trainer *t, const own *c, cddp_group *group, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    const cddp_device *device =
        t->streams.device != NULL ? t->streams.device : cd_trainer_module(t)->device;
    const int64_t in = given(c), out = gotten(c), total = in + out + 1;
    const bool reduces_whole = c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE;
    const bool is_shared =
        in == out && (c->op == CDDP_OP_BROADCAST || (reduces_whole && c->planned->in_place));
    cddp_work *work = NULL;
    void *storage;
    CD_TRY(device->allocate(device, c->dtype, total, &storage, err));
    const cddp_tensor input = slice_of(c, device, storage, 0, in);
    const cddp_tensor output = slice_of(c, device, storage, is_shared ? 0 : in, out);
    cddp_collective call = {.size = sizeof call,
                            .op = c->op,
                            .reduce_op = c->reduction,
                            .root = c->root};
    if (in > 0) CD_TRY_OUT(give_values(t, c, &input, err));
    if (out > 0 && !is_shared) CD_TRY_OUT(device->fill(&output, 0.0, NULL, err));
    const unsigned operands = cd_operands_of(group, &call);
    if ((operands & CD_OPERAND_INPUT) != 0) call.input = input;
    if ((operands & CD_OPERAND_OUTPUT) != 0) call.output = output;
    CD_TRY_OUT(cddp_group_post(group, &call, &work, err));
    CD_TRY_OUT(cddp_work_wait(work, 0, err));
    CD_TRY_OUT(cd_streams_settle(&t->streams, err)); /* before its memory is given back */
    CD_TRY_OUT(show_output(t, c, &output, err));
out:
    device->release(device, c->dtype, total, storage);
    return status;
}

static cddp_status run_one(cd_trainer *t, const cddp_plan_collective *planned, cddp_group *group,
                           cddp_error *err)
{
    own c = {.planned = planned,
             .op = cd_plan_op(planned),
             .reduction = cd_plan_reduction(planned),
             .dtype = (cddp_dtype)planned->dtype,
             .size = cddp_group_size(group),
             .me = cddp_group_rank(group),
             .root = (uint32_t)planned->root,
             .numel = (int64_t)planned->numel};
    if (c.op == CDDP_OP_BARRIER) return CD_PASS(cddp_group_barrier(group, err));
    for (size_t i = 0; planned->group != NULL && i < t->program.plan->group_count; i++) {
        c.members = strcmp(t->program.plan->groups[i].name, planned->group) == 0
                        ? &t->program.plan->groups[i]
                        : c.members;
    }
    return CD_PASS(run_on_tensor(t, &c, group, err));
}

cddp_status cd_trainer_run_collectives(cd_trainer *t, cddp_plan_collective_place place,
                                       cddp_error *err)
{
    for (size_t i = 0; i < t->program.plan->collective_count; i++) {
        const cddp_plan_collective *planned = &t->program.plan->collectives[i];
        cddp_group *group = cd_trainer_find_group(t, planned->group);
        if (planned->place != (int64_t)place || group == NULL ||
            !cddp_selector_has(&planned->ranks, t->rank->rank) ||
            !cddp_selector_has(&planned->steps, t->now.step))
            continue;
        if (group != t->groups.world && CD_POINT_TURNS("collective.group", t))
            group = t->groups.world;
        CD_EMIT(t->tracer, mark, CD_TRACER_OWN_COLLECTIVE, .value = (int64_t)i);
        CD_TRY(run_one(t, planned, group, err));
    }
    return CDDP_OK;
}
