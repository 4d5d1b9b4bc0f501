/* SPDX-License-Identifier: Apache-2.0 */
/* See Note [A watched operation works elsewhere] in call_watch.h. */
#include "backends/guard/call_watch.h"

#include "core/base/alloc.h"

#include <string.h>

static int64_t digest_of(const cddp_tensor *t)
{
    uint64_t digest = 0;
    if (t->device == NULL || t->device->digest(t, &digest, NULL) != CDDP_OK) return 0;
    return (int64_t)digest;
}

static size_t begin_of(const cddp_tensor *t)
{
    return (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

static size_t end_of(const cddp_tensor *t)
{
    return begin_of(t) + (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static char *at(const cddp_tensor *t, size_t byte) { return (char *)t->storage + byte; }

/* Both operands are contiguous, of one dtype, in one storage. */
static bool may_move(const cddp_collective *c)
{
    return c->input.device != NULL && c->output.device != NULL &&
           (c->output.device->flags & CDDP_DEVICE_HOST) != 0 &&
           c->input.storage == c->output.storage && c->input.dtype == c->output.dtype &&
           cddp_tensor_numel(&c->output) > 0;
}

static bool reserve(cd_call_room *room, size_t bytes)
{
    if (bytes <= room->bytes) return true;
    cd_call_room_fini(room);
    room->memory = cd_allocate(NULL, bytes);
    room->bytes = room->memory != NULL ? bytes : 0;
    return room->memory != NULL;
}

/* One of the operands may be a share of the other. */
static void move(cd_call_room *room, cddp_collective *c)
{
    const size_t element = cddp_dtype_bytes(c->output.dtype),
                 begin = least(begin_of(&c->input), begin_of(&c->output)), a = end_of(&c->input),
                 b = end_of(&c->output), end = a > b ? a : b;
    room->is_used = reserve(room, end - begin);
    if (!room->is_used) return;
    memcpy(room->memory, at(&c->input, begin), end - begin);
    c->input.storage = c->output.storage = room->memory;
    c->input.offset -= (int64_t)(begin / element);
    c->output.offset -= (int64_t)(begin / element);
}

void cd_call_watch_begin(cd_call_watch *watch, cd_call_room *room, cddp_collective *call)
{
    if (!call->is_watched) return;
    room->input = call->input;
    room->output = call->output;
    room->is_used = false;
    if (may_move(call)) move(room, call);
    watch->read = digest_of(&call->input); /* of the copy: what the operation reads */
}

void cd_call_watch_end(cd_call_watch *watch, cd_call_room *room, cddp_collective *call, bool ok)
{
    if (!call->is_watched) return;
    const cddp_tensor result = call->output;
    call->input = room->input;
    call->output = room->output;
    if (ok && room->is_used) {
        const int64_t now = digest_of(&room->input);
        memcpy(at(&room->output, begin_of(&room->output)), at(&result, begin_of(&result)),
               end_of(&result) - begin_of(&result));
        if (now != watch->read) watch->written = now;
    }
    if (ok && watch->written == 0) watch->written = digest_of(&room->output);
}

void cd_call_room_fini(cd_call_room *room)
{
    cd_release(NULL, room->memory, room->bytes);
    room->memory = NULL;
    room->bytes = 0;
}
