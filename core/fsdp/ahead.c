/* SPDX-License-Identifier: Apache-2.0 */
/* Marks and waits of the stream of gathers. Not here: which unit is gathered when (fsdp.c). */
#include "core/fsdp/ahead.h"

#include "core/base/assert.h"
#include "core/base/error.h"

/* The cuda device copies to and from the host while it waits. Its units are gathered on the default
** stream, whose order bounds what they need. */
static bool has_streams(const cddp_device *device)
{
    const uint32_t needed = CDDP_DEVICE_ASYNC | CDDP_DEVICE_QUEUES_HOST;
    return device != NULL && (device->flags & needed) == needed;
}

cddp_status cd_fsdp_ahead_init(cd_fsdp_ahead *a, const cd_fsdp_ahead_spec *spec, cddp_error *err)
{
    const cddp_device *d = spec->device;
    *a = (cd_fsdp_ahead){.memory = spec->memory, .has_limit = spec->has_limit};
    if (!has_streams(d)) return CDDP_OK;
    a->device = d;
    /* A unit is full when it is freed, and of those that were gathered two at most are pending. */
    const size_t capacity = (size_t)spec->unit_count + CD_FSDP_FREES_PENDING;
    a->frees = cd_arena_array(spec->arena, capacity, sizeof *a->frees);
    CD_TRY(cd_arena_check(spec->arena, err, "marks of %zu frees", capacity));
    CD_TRY(d->stream_create(d, &a->stream, err));
    CD_TRY(d->mark_create(d, &a->computed, err));
    CD_TRY(d->mark_create(d, &a->gathered, err));
    if (a->has_limit) CD_TRY(d->stream_create(d, &a->host, err));
    for (; a->has_limit && a->capacity < capacity; a->capacity++)
        CD_TRY(d->mark_create(d, &a->frees[a->capacity].mark, err));
    a->memory->has_ahead = true;
    return CDDP_OK;
}

void cd_fsdp_ahead_fini(cd_fsdp_ahead *a)
{
    const cddp_device *d = a->device;
    if (d == NULL) return;
    for (size_t i = 0; i < a->capacity; i++) d->mark_destroy(d, a->frees[i].mark);
    if (a->gathered != NULL) d->mark_destroy(d, a->gathered);
    if (a->computed != NULL) d->mark_destroy(d, a->computed);
    if (a->host != NULL) d->stream_destroy(d, a->host);
    if (a->stream != NULL) d->stream_destroy(d, a->stream);
    *a = (cd_fsdp_ahead){.device = NULL};
}

cddp_stream *cd_fsdp_ahead_get_stream(const cd_fsdp_ahead *a) { return a->stream; }

cddp_status cd_fsdp_ahead_begin(cd_fsdp_ahead *a, cddp_error *err)
{
    const cddp_device *d = a->device;
    if (d == NULL) return CDDP_OK;
    CD_TRY(d->mark_record(d, a->computed, NULL, err));
    CD_TRY(d->mark_wait(d, a->computed, a->stream, err));
    a->memory->settled = a->memory->gives;
    a->count = 0;
    return CDDP_OK;
}

cddp_status cd_fsdp_ahead_join(cd_fsdp_ahead *a, cddp_error *err)
{
    const cddp_device *d = a->device;
    if (d == NULL) return CDDP_OK;
    CD_TRY(d->mark_record(d, a->gathered, a->stream, err));
    return CD_PASS(d->mark_wait(d, a->gathered, NULL, err));
}

cddp_status cd_fsdp_ahead_let(cd_fsdp_ahead *a, bool behind_gathers, cddp_stream *stream,
                              cddp_error *err)
{
    const cddp_device *d = a->device;
    cddp_mark *mark = behind_gathers ? a->gathered : a->computed;
    if (!behind_gathers) CD_TRY(d->mark_record(d, mark, NULL, err));
    return CD_PASS(d->mark_wait(d, mark, stream, err));
}

cddp_status cd_fsdp_ahead_note_free(cd_fsdp_ahead *a, uint32_t unit, cddp_error *err)
{
    if (a->device == NULL || !a->has_limit) return CDDP_OK;
    CD_ASSERT(a->count < a->capacity);
    cd_fsdp_free *f = &a->frees[(a->first + a->count) % a->capacity];
    CD_TRY(a->device->mark_record(a->device, f->mark, NULL, err));
    f->gives = a->memory->gives;
    f->unit = unit;
    a->count++;
    return CDDP_OK;
}

cddp_status cd_fsdp_ahead_limit(cd_fsdp_ahead *a, int64_t *unit, cddp_error *err)
{
    const cddp_device *d = a->device;
    *unit = -1;
    if (d == NULL || a->count < CD_FSDP_FREES_PENDING) return CDDP_OK;
    const cd_fsdp_free *oldest = &a->frees[a->first];
    CD_TRY(d->mark_wait(d, oldest->mark, a->host, err));
    CD_TRY(d->stream_synchronize(d, a->host, err));
    if (a->memory->settled < oldest->gives) a->memory->settled = oldest->gives;
    *unit = oldest->unit;
    a->first = (a->first + 1) % a->capacity;
    a->count--;
    return CDDP_OK;
}

cddp_status cd_fsdp_ahead_settle(cd_fsdp_ahead *a, cddp_error *err)
{
    if (a->device == NULL) return CDDP_OK;
    return CD_PASS(a->device->stream_synchronize(a->device, NULL, err));
}
