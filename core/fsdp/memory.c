/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers by best fit. Not here: which buffers a unit needs when (unit.c). */
#include "core/fsdp/memory.h"

#include "core/base/error.h"
#include "core/trace/tracer.h"

static void release(cd_fsdp_buffer *buffer)
{
    const cddp_tensor *t = &buffer->tensor;
    t->device->release(t->device, t->dtype, buffer->capacity, t->storage);
    *buffer = (cd_fsdp_buffer){.capacity = 0};
}

static int64_t bytes_of(const cd_fsdp_buffer *buffer)
{
    return cddp_tensor_numel(&buffer->tensor) * (int64_t)cddp_dtype_bytes(buffer->tensor.dtype);
}

#define MEMORY_BLOCK_BYTES ((size_t)2 << 10)

void cd_fsdp_memory_init(cd_fsdp_memory *m, const cddp_allocator *allocator,
                         struct cddp_tracer *tracer)
{
    *m = (cd_fsdp_memory){.tracer = tracer};
    cd_arena_init(&m->arena, allocator, MEMORY_BLOCK_BYTES);
}

static void drop_idle(cd_fsdp_memory *m, size_t i)
{
    release(&m->idle[i]);
    m->idle[i] = m->idle[--m->idle_count];
}

/* The smallest idle buffer that serves; idle_count: none. */
static size_t find_idle(const cd_fsdp_memory *m, const cd_fsdp_wish *wish)
{
    size_t best = m->idle_count;
    for (size_t i = 0; i < m->idle_count; i++) {
        const cd_fsdp_buffer *b = &m->idle[i];
        if (b->tensor.device != wish->device || b->tensor.dtype != wish->dtype ||
            b->capacity < wish->numel || (wish->is_slice && b->capacity / 2 >= wish->numel) ||
            (wish->is_ahead && b->given > m->settled))
            continue;
        if (best == m->idle_count || b->capacity < m->idle[best].capacity) best = i;
    }
    return best;
}

cddp_status cd_fsdp_memory_take(cd_fsdp_memory *m, const cd_fsdp_wish *wish, cd_fsdp_buffer *buffer,
                                cddp_error *err)
{
    cd_fsdp_buffer taken = {.capacity = wish->numel > 0 ? wish->numel : 1};
    const size_t found = find_idle(m, wish);
    void *storage = NULL;
    if (!cd_arena_grow(&m->arena, (void **)&m->idle, &m->idle_capacity,
                       m->idle_count + m->taken_count + 1, sizeof *m->idle))
        return cd_fail_memory(err, "a list of %zu buffers", m->idle_count + m->taken_count + 1);
    if (found < m->idle_count) {
        taken = m->idle[found];
        storage = taken.tensor.storage;
        m->idle[found] = m->idle[--m->idle_count];
    } else {
        for (size_t i = m->idle_count; i-- > 0;)
            if (m->idle[i].tensor.device == wish->device &&
                m->idle[i].tensor.dtype == wish->dtype && m->idle[i].capacity < wish->numel &&
                m->idle[i].given <= m->settled)
                drop_idle(m, i);
        CD_TRY(wish->device->allocate(wish->device, wish->dtype, taken.capacity, &storage, err));
    }
    taken.tensor = cddp_tensor_of(wish->device, storage, 0, wish->dtype, &wish->numel, 1);
    taken.is_full = wish->is_full && wish->numel > 0;
    taken.unit = wish->unit;
    if (taken.is_full) {
        m->full_bytes += (uint64_t)bytes_of(&taken);
        if (m->full_bytes > m->full_bytes_peak) m->full_bytes_peak = m->full_bytes;
        CD_EMIT(m->tracer, unit_storage, NULL, .unit = taken.unit, .bytes = bytes_of(&taken));
    }
    m->taken_count++;
    *buffer = taken;
    return CDDP_OK;
}

void cd_fsdp_memory_give(cd_fsdp_memory *m, cd_fsdp_buffer *buffer)
{
    if (buffer->tensor.device == NULL) return;
    if (buffer->is_full) {
        m->full_bytes -= (uint64_t)bytes_of(buffer);
        CD_EMIT(m->tracer, unit_storage, NULL, .unit = buffer->unit, .bytes = bytes_of(buffer),
                .released = 1);
    }
    if (m->idle_count >= CD_FSDP_IDLE_MAX && m->idle[0].given <= m->settled) drop_idle(m, 0);
    buffer->given = ++m->gives;
    if (!m->has_ahead) m->settled = m->gives;
    m->taken_count--;
    m->idle[m->idle_count++] = *buffer;
    *buffer = (cd_fsdp_buffer){.capacity = 0};
}

void cd_fsdp_memory_trim(cd_fsdp_memory *m)
{
    while (m->idle_count > 0) drop_idle(m, m->idle_count - 1);
}

void cd_fsdp_memory_fini(cd_fsdp_memory *m)
{
    cd_fsdp_memory_trim(m);
    cd_arena_fini(&m->arena);
}
