/* SPDX-License-Identifier: Apache-2.0 */
/* Which of two devices copies. */
#include "core/fsdp/move.h"

#include "core/base/error.h"

bool cd_fsdp_is_host(const cddp_device *device)
{
    return (device->flags & (CDDP_DEVICE_HOST | CDDP_DEVICE_ASYNC)) == CDDP_DEVICE_HOST;
}

bool cd_fsdp_may_move(const cddp_device *from, const cddp_device *to)
{
    return from == to || (cd_fsdp_is_host(from) && (to->flags & CDDP_DEVICE_ASYNC) != 0);
}

static void *place_of(const cddp_tensor *t)
{
    return (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

cddp_status cd_fsdp_move(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                         cddp_error *err)
{
    const cddp_device *to = dst->device, *from = src->device;
    const int64_t numel = cddp_tensor_numel(dst);
    const size_t bytes = (size_t)numel * cddp_dtype_bytes(dst->dtype);
    if (numel == 0) return CDDP_OK;
    if (to == from || (cd_fsdp_is_host(to) && cd_fsdp_is_host(from)))
        return CD_PASS(to->copy(dst, src, stream, err));
    if ((to->flags & CDDP_DEVICE_QUEUES_HOST) != 0 && cd_fsdp_is_host(from))
        return CD_PASS(to->copy(dst, src, stream, err));
    if ((from->flags & CDDP_DEVICE_QUEUES_HOST) != 0 && cd_fsdp_is_host(to))
        return CD_PASS(from->copy(dst, src, stream, err));
    if (dst->dtype != src->dtype || cddp_tensor_numel(src) != numel)
        return cd_fail(err, CDDP_E_ARG, "a copy from %s to %s has %s and %s", from->name, to->name,
                       cddp_dtype_name(src->dtype), cddp_dtype_name(dst->dtype));
    if (cd_fsdp_is_host(to)) return CD_PASS(from->read(src, place_of(dst), bytes, err));
    if (cd_fsdp_is_host(from)) return CD_PASS(to->write(dst, place_of(src), bytes, err));
    return cd_fail(err, CDDP_E_UNSUPPORTED,
                   "a copy from device %s to device %s: neither is the host", from->name, to->name);
}
