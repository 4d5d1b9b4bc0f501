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

/* One of the operands may be a share of the other. */
static void move(cd_call_place *p, cddp_collective *c)
{
    const size_t element = cddp_dtype_bytes(c->output.dtype),
                 begin = least(begin_of(&c->input), begin_of(&c->output)),
                 a = end_of(&c->input), b = end_of(&c->output), end = a > b ? a : b;
    p->memory = cd_allocate(NULL, end - begin);
    if (p->memory == NULL) return;
    p->bytes = end - begin;
    memcpy(p->memory, at(&c->input, begin), p->bytes);
    c->input.storage = c->output.storage = p->memory;
    c->input.offset -= (int64_t)(begin / element);
    c->output.offset -= (int64_t)(begin / element);
}

void cd_call_watch_begin(cd_call_watch *watch, cd_call_place *place, cddp_collective *call)
{
    *place = (cd_call_place){.input = call->input, .output = call->output};
    if (!call->is_watched) return;
    if (may_move(call)) move(place, call);
    /* of the copy: what the operation reads */
    watch->read = digest_of(&call->input);
}

void cd_call_watch_end(cd_call_watch *watch, cd_call_place *place, cddp_collective *call, bool ok)
{
    if (!call->is_watched) return;
    const cddp_tensor result = call->output;
    call->input = place->input;
    call->output = place->output;
    if (ok && place->memory != NULL) {
        const int64_t now = digest_of(&place->input);
        const size_t bytes = end_of(&result) - begin_of(&result);
        memcpy(at(&place->output, begin_of(&place->output)), at(&result, begin_of(&result)), bytes);
        if (now != watch->read) watch->written = now;
    }
    if (ok && watch->written == 0) watch->written = digest_of(&place->output);
    cd_release(NULL, place->memory, place->bytes);
    *place = (cd_call_place){.memory = NULL};
}
