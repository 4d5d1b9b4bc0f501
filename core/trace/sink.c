/* SPDX-License-Identifier: Apache-2.0 */
/* Memory and digest sinks. */
#include "core/trace/sink.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <string.h>

static bool memory_store(cd_memory_sink *m, const cddp_event *event)
{
    const cddp_allocator *a = m->allocator;
    if (!cd_vec_grow(a, (void **)&m->events, &m->capacity, m->count + 1, sizeof *m->events))
        return false;
    if (!cd_vec_grow(a, (void **)&m->text_offsets, &m->offsets_capacity, m->count + 1,
                     sizeof *m->text_offsets))
        return false;
    size_t offset = 0;
    if (event->text != NULL) {
        size_t bytes = strlen(event->text) + 1;
        if (!cd_vec_grow(a, (void **)&m->texts, &m->texts_capacity, m->texts_used + bytes, 1))
            return false;
        memcpy(m->texts + m->texts_used, event->text, bytes);
        offset = m->texts_used + 1;
        m->texts_used += bytes;
    }
    m->events[m->count] = *event;
    m->events[m->count].text = NULL;
    m->text_offsets[m->count++] = offset;
    return true;
}

static void memory_event(void *self, const cddp_event *event)
{
    cd_memory_sink *m = self;
    if (!m->failed && !memory_store(m, event)) m->failed = true;
}

static cddp_status memory_flush(void *self, cddp_error *err)
{
    const cd_memory_sink *m = self;
    if (m->failed) return cd_fail_memory(err, "the trace after %zu events", m->count);
    return CDDP_OK;
}

void cd_memory_sink_init(cd_memory_sink *memory, const cddp_allocator *allocator)
{
    *memory = (cd_memory_sink){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, memory,
                                        memory_event, memory_flush},
                               .allocator = allocator};
}

void cd_memory_sink_fini(cd_memory_sink *memory)
{
    cd_release(memory->allocator, memory->events, memory->capacity * sizeof *memory->events);
    cd_release(memory->allocator, memory->text_offsets,
               memory->offsets_capacity * sizeof *memory->text_offsets);
    cd_release(memory->allocator, memory->texts, memory->texts_capacity);
    cd_memory_sink_init(memory, memory->allocator);
}

void cd_memory_sink_clear(cd_memory_sink *memory)
{
    memory->count = 0;
    memory->texts_used = 0;
    memory->failed = false;
}

cddp_event cd_memory_sink_get(const cd_memory_sink *memory, size_t index)
{
    CD_ASSERT(index < memory->count);
    cddp_event event = memory->events[index];
    if (memory->text_offsets[index] != 0)
        event.text = memory->texts + memory->text_offsets[index] - 1;
    return event;
}

static void digest_event(void *self, const cddp_event *event)
{
    cd_digest_sink *d = self;
    d->digest = cd_event_digest(d->digest, event, d->timeless);
    d->count++;
}

void cd_digest_sink_init(cd_digest_sink *digest, bool timeless)
{
    *digest = (cd_digest_sink){.sink = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, digest,
                                        digest_event, NULL},
                               .timeless = timeless};
}
