/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/nccl/observe.h"

#include "core/base/alloc.h"
#include "core/trace/tracer.h"

#include <string.h>

#define HOST INT64_C(-1)
#define UNNUMBERED INT64_C(-2)

/* ---- numbers ---- */

static size_t slot_of(const cd_numbers *n, const void *key)
{
    uint64_t mixed = (uint64_t)(uintptr_t)key * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t)(mixed >> 32) & (n->capacity - 1);
    while (n->keys[at] != NULL && n->keys[at] != key) at = (at + 1) & (n->capacity - 1);
    return at;
}

static bool grow(cd_numbers *n)
{
    cd_numbers larger = {.count = n->count, .capacity = n->capacity == 0 ? 64 : 2 * n->capacity};
    larger.keys = cd_allocate_zero(NULL, larger.capacity * sizeof *larger.keys);
    larger.ids = cd_allocate_zero(NULL, larger.capacity * sizeof *larger.ids);
    if (larger.keys == NULL || larger.ids == NULL) {
        cd_numbers_fini(&larger);
        return false;
    }
    for (size_t i = 0; i < n->capacity; i++) {
        if (n->keys[i] == NULL) continue;
        size_t at = slot_of(&larger, n->keys[i]);
        larger.keys[at] = n->keys[i];
        larger.ids[at] = n->ids[i];
    }
    cd_numbers_fini(n);
    *n = larger;
    return true;
}

int64_t cd_numbers_of(cd_numbers *n, const void *key)
{
    if (2 * (n->count + 1) > n->capacity && !grow(n)) return -1;
    size_t at = slot_of(n, key);
    if (n->keys[at] == NULL) {
        n->keys[at] = key;
        n->ids[at] = (int64_t)n->count++;
    }
    return n->ids[at];
}

void cd_numbers_fini(cd_numbers *n)
{
    cd_release(NULL, n->keys, n->capacity * sizeof *n->keys);
    cd_release(NULL, n->ids, n->capacity * sizeof *n->ids);
    *n = (cd_numbers){0};
}

static void report_record(cd_observer *o, const void *event, int64_t stream)
{
    int64_t point = cd_numbers_of(&o->events, event);
    if (point >= 0 && stream != UNNUMBERED)
        CD_EMIT(o->tracer, order, NULL, .from = stream, .to = HOST, .point = point, .waits = 0);
}

static void report_wait(cd_observer *o, const void *event, int64_t stream)
{
    int64_t point = cd_numbers_of(&o->events, event);
    if (point >= 0 && stream != UNNUMBERED)
        CD_EMIT(o->tracer, order, NULL, .from = HOST, .to = stream, .point = point, .waits = 1);
}

/* A new stream comes after everything that the host has waited for. */
static int64_t stream_of(cd_observer *o, cudaStream_t stream)
{
    for (size_t i = 0; i < o->stream_count; i++)
        if (o->streams[i] == stream) return (int64_t)i;
    if (!cd_vec_grow(NULL, (void **)&o->streams, &o->stream_capacity, o->stream_count + 1,
                     sizeof *o->streams))
        return UNNUMBERED;
    o->streams[o->stream_count] = stream;
    report_record(o, o, HOST);
    report_wait(o, o, (int64_t)o->stream_count);
    return (int64_t)o->stream_count++;
}

/* ---- subscribers ---- */

bool cd_observer_add(cd_observer *o, cddp_tracer *tracer, cudaStream_t default_stream)
{
    if (o->tracer != NULL && o->tracer != tracer) return false;
    if (o->tracer == NULL) {
        if (!cd_vec_grow(NULL, (void **)&o->streams, &o->stream_capacity, 1, sizeof *o->streams))
            return false;
        o->streams[0] = default_stream;
        o->stream_count = 1;
    }
    o->tracer = tracer;
    o->users++;
    return true;
}

void cd_observer_remove(cd_observer *o)
{
    if (--o->users > 0) return;
    cd_numbers_fini(&o->regions);
    cd_numbers_fini(&o->events);
    cd_release(NULL, o->streams, o->stream_capacity * sizeof *o->streams);
    *o = (cd_observer){0};
}

/* ---- events ---- */

void cd_observe_memory(cd_observer *o, const void *storage, size_t bytes, bool released)
{
    if (o->tracer == NULL || storage == NULL) return;
    int64_t region = cd_numbers_of(&o->regions, storage);
    if (region >= 0)
        CD_EMIT(o->tracer, memory, NULL, .region = region, .bytes = (int64_t)bytes,
                .released = released);
}

/* From the first to the last element of a view, gaps included. */
static int64_t extent(const cddp_tensor *t)
{
    int64_t last = 0;
    for (uint32_t i = 0; i < t->dim_count; i++) {
        if (t->sizes[i] == 0) return 0;
        last += (t->sizes[i] - 1) * t->strides[i];
    }
    return last + 1;
}

void cd_observe_touch(cd_observer *o, cudaStream_t stream, const cddp_tensor *t, bool write,
                      const char *who)
{
    if (o->tracer == NULL) return;
    int64_t bytes = (int64_t)cddp_dtype_bytes(t->dtype), numel = extent(t),
            on = stream_of(o, stream);
    if (numel == 0 || on == UNNUMBERED) return;
    int64_t region = cd_numbers_of(&o->regions, t->storage);
    if (region >= 0)
        CD_EMIT(o->tracer, touch, who, .region = region, .on_stream = on, .write = write,
                .begin = t->offset * bytes, .end = (t->offset + numel) * bytes);
}

void cd_observe_record(cd_observer *o, cudaStream_t stream, cudaEvent_t event)
{
    if (o->tracer != NULL) report_record(o, event, stream_of(o, stream));
}

void cd_observe_wait(cd_observer *o, cudaStream_t stream, cudaEvent_t event)
{
    if (o->tracer != NULL) report_wait(o, event, stream_of(o, stream));
}

static void report_passed(cd_observer *o, const void *event)
{
    for (int64_t stream = HOST; stream < (int64_t)o->stream_count; stream++)
        report_wait(o, event, stream);
}

void cd_observe_passed(cd_observer *o, cudaEvent_t event)
{
    if (o->tracer != NULL) report_passed(o, event);
}

/* Like an event after everything on the stream; the stream's handle identifies it. */
void cd_observe_idle(cd_observer *o, cudaStream_t stream)
{
    if (o->tracer == NULL) return;
    report_record(o, stream, stream_of(o, stream));
    report_passed(o, stream);
}
