/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a device table whose passes over memory are charged to the world's clock.
**
** Only what the reducer does to gradients is charged: copy, copy_many, divide, multiply_reciprocal;
** and only for floats, since integers are control. What an optimizer or a hook computes is the
** program's own time.
*/
#include "core/train/timed_device.h"

#include "core/base/error.h"

static const cd_timed_device *timed_of(const cddp_device *device)
{
    return (const cd_timed_device *)(const void *)device;
}

static uint64_t bytes_of(const cddp_tensor *tensor)
{
    const bool counts = cddp_dtype_is_float(tensor->dtype) || tensor->dtype == CDDP_C64;
    return counts ? (uint64_t)cddp_tensor_numel(tensor) * cddp_dtype_bytes(tensor->dtype) : 0;
}

static cddp_status charge(const cd_timed_device *timed, uint64_t bytes, const char *what,
                          cddp_error *err)
{
    const uint64_t duration_ns = (uint64_t)((double)bytes * timed->ns_per_byte + 0.5);
    if (duration_ns > 0) CD_TRY(timed->rank->ops->compute(timed->rank, duration_ns, what, err));
    return CDDP_OK;
}

static cddp_status timed_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                              cddp_error *err)
{
    const cd_timed_device *timed = timed_of(dst->device);
    CD_TRY(charge(timed, bytes_of(dst), "copy", err));
    CD_TRY(timed->inner->copy(dst, src, stream, err));
    return CDDP_OK;
}

static cddp_status timed_copy_many(const cddp_device *device, const cddp_copy_pair *pairs,
                                   size_t pair_count, cddp_copy_scale scale, int64_t n,
                                   cddp_stream *stream, cddp_error *err)
{
    const cd_timed_device *timed = timed_of(device);
    uint64_t bytes = 0;
    for (size_t i = 0; i < pair_count; i++) bytes += bytes_of(&pairs[i].dst);
    CD_TRY(charge(timed, bytes, "copy", err));
    CD_TRY(timed->inner->copy_many(timed->inner, pairs, pair_count, scale, n, stream, err));
    return CDDP_OK;
}

static cddp_status timed_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                                cddp_stream *stream, cddp_error *err)
{
    const cd_timed_device *timed = timed_of(dst->device);
    CD_TRY(charge(timed, bytes_of(dst), "divide", err));
    CD_TRY(timed->inner->divide(dst, src, n, stream, err));
    return CDDP_OK;
}

static cddp_status timed_multiply_reciprocal(const cddp_tensor *dst, const cddp_tensor *src,
                                             int64_t n, cddp_stream *stream, cddp_error *err)
{
    const cd_timed_device *timed = timed_of(dst->device);
    CD_TRY(charge(timed, bytes_of(dst), "divide", err));
    CD_TRY(timed->inner->multiply_reciprocal(dst, src, n, stream, err));
    return CDDP_OK;
}

const cddp_device *cd_timed_device_init(cd_timed_device *timed, const cddp_device *inner,
                                        cddp_rank *rank, double us_per_mb)
{
    *timed = (cd_timed_device){.table = *inner,
                               .inner = inner,
                               .rank = rank,
                               .ns_per_byte = us_per_mb / 1000.0};
    timed->table.copy = timed_copy;
    timed->table.copy_many = timed_copy_many;
    timed->table.divide = timed_divide;
    timed->table.multiply_reciprocal = timed_multiply_reciprocal;
    return &timed->table;
}
