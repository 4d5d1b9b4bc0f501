/* SPDX-License-Identifier: Apache-2.0 */
/* Results for a world of another size. See projection.h. */
#include "verify/prove/projection.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/hash.h"

#include <inttypes.h>

/* ---- numbers in host memory ---- */

static bool read_number(const cddp_tensor *t, int64_t at, double *number)
{
    const size_t i = (size_t)(t->offset + at);
    switch (t->dtype) {
    case CDDP_F32:
        *number = (double)((const float *)t->storage)[i];
        return true;
    case CDDP_F64:
        *number = ((const double *)t->storage)[i];
        return true;
    case CDDP_I32:
        *number = ((const int32_t *)t->storage)[i];
        return true;
    case CDDP_I64:
        *number = (double)((const int64_t *)t->storage)[i];
        return true;
    default:
        return false;
    }
}

static void write_number(const cddp_tensor *t, int64_t at, uint32_t number)
{
    const size_t i = (size_t)(t->offset + at);
    if (t->dtype == CDDP_F32) ((float *)t->storage)[i] = (float)number;
    if (t->dtype == CDDP_F64) ((double *)t->storage)[i] = number;
    if (t->dtype == CDDP_I32) ((int32_t *)t->storage)[i] = (int32_t)number;
    if (t->dtype == CDDP_I64) ((int64_t *)t->storage)[i] = number;
}

/* ---- kinds ---- */

bool cd_is_own_number(const cddp_tensor *t)
{
    const uint32_t wanted = CDDP_DEVICE_VALUES | CDDP_DEVICE_HOST;
    return (t->device->flags & CDDP_DEVICE_EXACT) == 0 && (t->device->flags & wanted) == wanted;
}

static bool are_numbers_below(const cd_received *t, double from, double to)
{
    double number = 0;
    for (int64_t i = 0, n = cddp_tensor_numel(&t->tensor); i < n; i++)
        if (!read_number(&t->tensor, i, &number) || number < from || number > to ||
            number != (double)(int64_t)number)
            return false;
    return true;
}

cd_received_kind cd_received_find_kind(const cd_received *t)
{
    if (t->op == CDDP_OP_ALLGATHER)
        return cd_is_own_number(&t->tensor) ? CD_RECEIVED_SHARES : CD_RECEIVED_CONTENT;
    if (!cd_is_own_number(&t->tensor)) return CD_RECEIVED_CONTENT;
    if (t->op == CDDP_OP_BROADCAST) return CD_RECEIVED_SAME;
    if (t->op != CDDP_OP_ALLREDUCE) return CD_RECEIVED_UNKNOWN;
    if (t->reduce_op == CDDP_RED_MIN && t->tensor.dtype == CDDP_I64) return CD_RECEIVED_SAME;
    if (t->reduce_op == CDDP_RED_SUM && are_numbers_below(t, 0, t->group_size))
        return CD_RECEIVED_COUNT;
    if (t->reduce_op == CDDP_RED_MAX && t->tensor.dtype == CDDP_I32 &&
        are_numbers_below(t, -1, (double)t->group_size - 1))
        return CD_RECEIVED_RANK;
    return CD_RECEIVED_UNKNOWN;
}

/* Of a count: 0 nobody, 1 some, 2 all. Of a rank: 0 nobody, 1 somebody. */
static int class_of(const cd_received *t, cd_received_kind kind, int64_t at)
{
    double number = 0;
    (void)read_number(&t->tensor, at, &number);
    if (kind == CD_RECEIVED_RANK) return number >= 0;
    return number == 0 ? 0 : number < t->group_size ? 1 : 2;
}

bool cd_received_is_alike(const cd_received *a, const cd_received *b)
{
    const cd_received_kind kind = cd_received_find_kind(a);
    if (kind != cd_received_find_kind(b)) return false;
    if (kind == CD_RECEIVED_CONTENT || kind == CD_RECEIVED_SHARES) return true;
    if (kind == CD_RECEIVED_UNKNOWN ||
        cddp_tensor_numel(&a->tensor) != cddp_tensor_numel(&b->tensor))
        return false;
    if (kind == CD_RECEIVED_SAME) {
        uint64_t x = 0, y = 0;
        return a->tensor.device->digest(&a->tensor, &x, NULL) == CDDP_OK &&
               b->tensor.device->digest(&b->tensor, &y, NULL) == CDDP_OK && x == y;
    }
    for (int64_t i = 0, n = cddp_tensor_numel(&a->tensor); i < n; i++)
        if (class_of(a, kind, i) != class_of(b, kind, i)) return false;
    return true;
}

/* ---- representatives ---- */

static uint32_t drawn(const cd_projection *r, const cd_received *received, int64_t at,
                      uint32_t below)
{
    const uint64_t place[] = {r->turn, received->group, received->sequence, (uint64_t)at};
    return (uint32_t)(cd_hash64(place, sizeof place, below) % below);
}

/* One of 1 … group_size-1. */
static uint32_t some_of(const cd_projection *r, const cd_received *received, int64_t at,
                        uint32_t group_size)
{
    const uint32_t fixed[] = {1, 2, 3, 6, group_size / 2, group_size - 2, group_size - 1};
    const uint32_t most = group_size - 1;
    if (r->turn >= sizeof fixed / sizeof fixed[0]) return 1 + drawn(r, received, at, most);
    return fixed[r->turn] < 1 ? 1 : fixed[r->turn] > most ? most : fixed[r->turn];
}

static uint32_t rank_of(const cd_projection *r, const cd_received *received, int64_t at,
                        uint32_t group_size)
{
    double recorded = 0;
    (void)read_number(&received->tensor, at, &recorded);
    switch (r->turn) {
    case 0:
        return (uint32_t)recorded;
    case 1:
        return group_size - 1;
    case 2:
        return 0;
    default:
        return drawn(r, received, at, group_size);
    }
}

static void report_numbers(const cd_projection *r, const cd_received *received,
                           cd_received_kind kind, const cddp_tensor *out, uint32_t group_size)
{
    for (int64_t i = 0, n = cddp_tensor_numel(out); i < n; i++) {
        const int class = class_of(received, kind, i);
        if (class == 2) write_number(out, i, group_size);
        if (class != 1) continue;
        *r->has_choice = true;
        write_number(out, i,
                     kind == CD_RECEIVED_RANK ? rank_of(r, received, i, group_size)
                                              : some_of(r, received, i, group_size));
    }
}

/* ---- shares ---- */

/* numel elements of what was received, from `from` on, to place `to` of the output. */
static cddp_status copy_part(const cddp_tensor *received, int64_t from, const cddp_tensor *out,
                             int64_t to, int64_t numel, cddp_error *err)
{
    if (numel == 0) return CDDP_OK;
    const cddp_tensor source = cddp_tensor_of(received->device, received->storage,
                                              received->offset + from, received->dtype, &numel, 1);
    const cddp_tensor target =
        cddp_tensor_of(out->device, out->storage, out->offset + to, out->dtype, &numel, 1);
    return CD_PASS(out->device->copy(&target, &source, NULL, err));
}

/* Every rank's is its model's, behind those of the ranks before it. */
static cddp_status report_shares(const cd_projection *r, const cd_received *received,
                                 const cddp_collective *c, uint32_t group_size, cddp_error *err)
{
    const int64_t even = c->input.device != NULL ? cddp_tensor_numel(&c->input) : 0;
    int64_t recorded = 0, at = 0;
    for (uint32_t rank = 0; rank < group_size; rank++) {
        const int64_t share = c->counts != NULL ? c->counts[rank] : even;
        recorded += rank < received->group_size ? share : 0;
        at += share;
    }
    if (recorded != cddp_tensor_numel(&received->tensor) || at != cddp_tensor_numel(&c->output))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "the recorded shares of collective %" PRIu64 " do not fit", c->sequence);
    CD_TRY(copy_part(&received->tensor, 0, &c->output, 0, recorded, err));
    at = recorded;
    for (uint32_t rank = received->group_size; rank < group_size; rank++) {
        int64_t from = 0;
        for (uint32_t before = 0; before < r->models[rank]; before++)
            from += c->counts != NULL ? c->counts[before] : even;
        const int64_t share = c->counts != NULL ? c->counts[rank] : even;
        CD_TRY(copy_part(&received->tensor, from, &c->output, at, share, err));
        at += share;
    }
    return CDDP_OK;
}

cddp_status cd_project_received(const cd_projection *r, const cd_received *received,
                                const cddp_collective *c, uint32_t group_size, cddp_error *err)
{
    const cd_received_kind kind = cd_received_find_kind(received);
    const cddp_tensor *out = &c->output;
    const bool same_size = group_size == received->group_size; /* a group that lists its members */
    if (received->tensor.dtype != out->dtype || received->tensor.device != out->device ||
        received->op != (uint32_t)c->op)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "the recorded result of collective %" PRIu64 " does not fit", c->sequence);
    if (kind == CD_RECEIVED_UNKNOWN && !same_size)
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "collective %" PRIu64
                       " brings a number that neither counts ranks nor names one",
                       c->sequence);
    if (received->op == CDDP_OP_ALLGATHER && !same_size)
        return CD_PASS(report_shares(r, received, c, group_size, err));
    if (cddp_tensor_numel(&received->tensor) != cddp_tensor_numel(out))
        return cd_fail(err, CDDP_E_UNSUPPORTED,
                       "the recorded result of collective %" PRIu64 " has another size",
                       c->sequence);
    CD_TRY(copy_part(&received->tensor, 0, out, 0, cddp_tensor_numel(out), err));
    if (!same_size && (kind == CD_RECEIVED_COUNT || kind == CD_RECEIVED_RANK))
        report_numbers(r, received, kind, out, group_size);
    return CDDP_OK;
}
