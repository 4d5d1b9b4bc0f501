/* SPDX-License-Identifier: Apache-2.0 */
/* The allreduce hook: true division in place by the size of the group, then a SUM (HK-01).
**
** Its last bit may differ from a run without a hook when the world size is not a power of two.
** Without a hook the reducer multiplies by the rounded reciprocal while copying (GRD-03, GRD-05).
*/
#include "core/hooks/hook.h"

#include "core/base/error.h"

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    CD_TRY(cd_hook_refuse_options(context, "allreduce", err));
    *self = NULL;
    return CDDP_OK;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
{
    (void)self;
    const cddp_tensor *buffer = &bucket->buffer;
    CD_TRY(cd_hook_refuse_sparse(bucket, "allreduce", err));
    CD_TRY(buffer->device->divide(buffer, buffer, cddp_group_size(group), NULL, err));
    CD_TRY(cd_future_add_allreduce(future, bucket, buffer, group, err));
    future->result = *buffer;
    return CDDP_OK;
}

static uint64_t promise(const void *self, const cddp_grad_bucket *bucket)
{
    (void)self;
    return (uint64_t)cddp_tensor_numel(&bucket->buffer) * cddp_dtype_bytes(bucket->buffer.dtype);
}

const cddp_hook cd_hook_allreduce = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "allreduce",
    .flags = CDDP_HOOK_EXACT | CDDP_HOOK_LINEAR | CDDP_HOOK_SPARSE_PLAIN,
    .create = create,
    .run = run,
    .promise = promise,
};
