/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer in backward: its hook sums and divides afterwards; finalize.c calls the optimizer once per variable.
**
** The optimizer sees the slice with the parameter's own strides: PyTorch's contiguous slices would permute channels-last
** gradients (OIB-05). The divisor is the world size also under join (OIB-02).
*/
#include "core/ddp/optimizer_in_backward.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/hooks/hook.h"

static cddp_status divide_result(void *self, cddp_grad_bucket *bucket, cddp_future *future, cddp_error *err)
{
    (void)self;
    const cddp_tensor *buffer = &bucket->buffer;
    CD_TRY(buffer->device->divide(buffer, buffer, (int64_t)future->scratch[0], NULL, err));
    future->result = *buffer;
    return CDDP_OK;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self;
    CD_TRY(cd_hook_refuse_sparse(bucket, cd_optimizer_in_backward_hook.name, err));
    CD_TRY(cd_future_add_allreduce(future, bucket, &bucket->buffer, group, err));
    future->scratch[0] = cddp_group_size(group);
    future->next = divide_result;
    return CDDP_OK;
}

const cddp_hook cd_optimizer_in_backward_hook = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "optimizer_in_backward",
    .flags = CDDP_HOOK_LINEAR,
    .run = run,
};

cddp_status cd_optimizer_in_backward_set(cd_reducer *r, const cddp_optimizer_in_backward *optimizer, cddp_error *err)
{
    if (optimizer == NULL || optimizer->step == NULL)
        return cd_fail(err, CDDP_E_ARG, "an optimizer in backward needs a function that steps one parameter"); /* OIB-04 */
    if (r->hook != NULL)
        return cd_fail(err, CDDP_E_STATE, "the comm-hook slot already holds %s; an optimizer in backward needs it",
                       r->hook->name);
    if (r->iteration > 0)
        return cd_fail(err, CDDP_E_STATE, "an optimizer in backward must be attached before the first forward");
    CD_TRY(cd_reducer_take_hook(r, &cd_optimizer_in_backward_hook, NULL, err));
    for (size_t v = 0; v < r->variable_count; v++)
        r->optimizer_managed[v] = optimizer->managed == NULL || optimizer->managed[v];
    r->optimizer = *optimizer;
    r->optimizer.managed = r->optimizer_managed;
    r->writes_back = false;
    return CDDP_OK;
}
