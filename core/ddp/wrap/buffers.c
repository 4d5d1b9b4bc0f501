/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers are broadcast, not averaged: what other ranks had is lost (BUF-04).
**
** Whether a forward synchronises them is decided by the forward before: a synchronising one sets
** the flag, one inside no_sync or without grad mode clears it, and it is read before it is set. So
** the first forward inside no_sync still synchronises, and the first one after it does not
** (BUF-05).
*/
#include "core/ddp/wrap/buffers.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/points.h"
#include "core/trace/tracer.h"

#include <string.h>

static cddp_tensor get_listed(const void *listed, size_t i)
{
    return ((const cddp_buffer *)listed)[i].tensor;
}

static cddp_status make_plan(cd_buffers *b, cddp_error *err)
{
    b->listed_count = 0;
    for (size_t i = 0; i < b->module->buffer_count; i++) {
        const cd_wrapped_buffer *buffer = &b->module->buffers[i];
        if (buffer->is_ignored) continue;
        b->listed[b->listed_count++] =
            (cddp_buffer){.name = buffer->name, .tensor = buffer->tensor};
    }
    cd_broadcast_plan_fini(&b->plan);
    cd_broadcast_spec spec = {.allocator = b->allocator,
                              .tensors = {b->listed, get_listed},
                              .tensor_count = b->listed_count,
                              .limit_bytes = CD_BROADCAST_BYTES,
                              .keep_storage = true};
    CD_TRY(cd_broadcast_plan_init(&b->plan, &spec, err));
    b->is_stale = false;
    return CDDP_OK;
}

cddp_status cd_buffers_init(cd_buffers *buffers, cd_wrapped *module, const cd_ddp_config *config,
                            cd_arena *arena, cddp_error *err)
{
    cd_buffers b = {.allocator = arena->allocator,
                    .module = module,
                    .broadcast_buffers = config->broadcast_buffers,
                    .require_forward_param_sync = true};
    b.listed = cd_arena_array(arena, module->buffer_count, sizeof *b.listed);
    if (b.listed == NULL) return cd_fail_memory(err, "a list of %zu buffers", module->buffer_count);
    CD_TRY(make_plan(&b, err));
    *buffers = b;
    return CDDP_OK;
}

void cd_buffers_fini(cd_buffers *b)
{
    cd_buffers_abandon(b);
    if (b->pending != NULL)
        cd_release(b->allocator, b->pending, b->pending_capacity * sizeof *b->pending);
    cd_broadcast_plan_fini(&b->plan);
    memset(b, 0, sizeof *b);
}

bool cd_buffers_has_hook(const cd_buffers *b) { return b->hook != NULL || b->async_hook != NULL; }

bool cd_buffers_will_sync(const cd_buffers *b, bool after_forward)
{
    bool after = cd_buffers_has_hook(b) && b->hook_after_forward;
    return b->require_forward_param_sync && b->broadcast_buffers && b->listed_count > 0 &&
           after == after_forward;
}

/* ---- hooks that leave something under way ---- */

static void release_works(const cddp_buffer_future *future, uint32_t first)
{
    for (uint32_t i = first; i < future->work_count; i++) cddp_work_release(future->works[i]);
}

static cddp_status run_async_hook(cd_buffers *b, cddp_group *group, cddp_error *err)
{
    cddp_buffer_future future = {.size = sizeof future};
    const size_t before = b->pending_capacity;
    if (!cd_vec_grow(b->allocator, (void **)&b->pending, &b->pending_capacity, b->pending_count + 1,
                     sizeof *b->pending))
        return cd_fail_memory(err, "%zu futures of buffer hooks", b->pending_count + 1);
    b->growth_count += b->pending_capacity != before;
    const cddp_status status =
        b->async_hook(b->hook_context, group, b->listed, b->listed_count, &future, err);
    if (future.work_count > CDDP_FUTURE_WORKS_MAX)
        return cd_fail(err, CDDP_E_ARG, "a buffer hook leaves %u works; a future has at most %d",
                       future.work_count, CDDP_FUTURE_WORKS_MAX);
    if (status != CDDP_OK)
        release_works(&future, 0);
    else
        b->pending[b->pending_count++] = future;
    return status;
}

static cddp_status await_one(const cd_buffers *b, const cddp_buffer_future *future, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (uint32_t i = 0; i < future->work_count; i++) {
        status = cddp_work_wait(future->works[i], 0, err);
        if (status != CDDP_OK) {
            release_works(future, i + 1);
            return status;
        }
    }
    return future->done != NULL ? future->done(b->hook_context, err) : CDDP_OK;
}

cddp_status cd_buffers_await(cd_buffers *b, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    for (size_t i = 0; i < b->pending_count; i++) {
        if (status == CDDP_OK)
            status = await_one(b, &b->pending[i], err);
        else
            release_works(&b->pending[i], 0);
    }
    b->pending_count = 0;
    return CD_PASS(status);
}

void cd_buffers_abandon(cd_buffers *b)
{
    for (size_t i = 0; i < b->pending_count; i++) release_works(&b->pending[i], 0);
    b->pending_count = 0;
}

cddp_status cd_buffers_sync(cd_buffers *b, cddp_group *group, cddp_tracer *tracer, uint32_t root,
                            int64_t location, cddp_error *err)
{
    if (b->is_stale) {
        b->growth_count++;
        CD_TRY(make_plan(b, err));
    }
    if (b->async_hook != NULL)
        CD_TRY(run_async_hook(b, group, err));
    else if (b->hook != NULL)
        CD_TRY(b->hook(b->hook_context, group, b->listed, b->listed_count, err));
    else
        CD_TRY(cd_broadcast_plan_run(&b->plan, group, root, err));
    CD_POINT_TRACED(TENSORS, "buffers.broadcast", tracer, &b->listed[0].tensor, sizeof b->listed[0],
                    b->listed_count);
    CD_EMIT(tracer, buffer_sync, NULL, .authority = cd_buffers_has_hook(b) ? -1 : (int64_t)root,
            .location = location);
    return CDDP_OK;
}

cddp_status cd_buffers_replace(cd_buffers *b, const char *name, const cddp_tensor *tensor,
                               cddp_error *err)
{
    if (name == NULL || tensor == NULL || tensor->device == NULL)
        return cd_fail(err, CDDP_E_ARG, "set_buffer: %s",
                       name == NULL ? "the name is NULL" : "the replacement is no tensor");
    int64_t i = cd_wrapped_find_buffer(b->module, name);
    if (i < 0) return cd_fail(err, CDDP_E_ARG, "there is no buffer '%s'", name);
    cd_wrapped_buffer *buffer = &b->module->buffers[i];
    CD_TRY(cd_wrapped_check_tensor(tensor, name, err));
    if (!cd_device_is_same(tensor->device, buffer->tensor.device))
        return cd_fail(err, CDDP_E_ARG, "buffer '%s' is on %s; its replacement is on %s", name,
                       buffer->tensor.device->name, tensor->device->name);
    if (tensor->dtype != buffer->tensor.dtype ||
        cddp_tensor_numel(tensor) != cddp_tensor_numel(&buffer->tensor))
        return cd_fail(err, CDDP_E_ARG,
                       "buffer '%s' is %s with %lld elements; its replacement is %s with %lld",
                       name, cddp_dtype_name(buffer->tensor.dtype),
                       (long long)cddp_tensor_numel(&buffer->tensor),
                       cddp_dtype_name(tensor->dtype), (long long)cddp_tensor_numel(tensor));
    buffer->tensor = *tensor;
    b->is_stale = true;
    return CDDP_OK;
}
