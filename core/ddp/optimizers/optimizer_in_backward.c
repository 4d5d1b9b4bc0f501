/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer in backward: who may be attached, and with which hook. They step as consumers of
** buckets, once per variable; one that is sharded is zero_step.c's.
**
** OIB-01's hook sums and divides afterwards; OIB-03 takes the allreduce hook, which divides first.
**
** The optimizer sees the slice with the parameter's own strides: PyTorch's contiguous slices would
** permute channels-last gradients (OIB-05). The divisor is the world size also under join (OIB-02).
*/
#include "core/ddp/optimizers/optimizer_in_backward.h"

#include "cddp/device.h"
#include "core/base/error.h"
#include "core/base/sized.h"
#include "core/ddp/optimizers/zero_step.h"
#include "core/hooks/hook.h"

#include <string.h>

static cddp_status divide_result(void *self, cddp_grad_bucket *bucket, cddp_future *future,
                                 cddp_error *err)
{
    (void)self;
    const cddp_tensor *buffer = &bucket->buffer;
    CD_TRY(buffer->device->divide(buffer, buffer, (int64_t)future->scratch[0], NULL, err));
    future->result = *buffer;
    return CDDP_OK;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
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

/* OIB-01: the optimizer steps on the slice of the result, which is the final gradient; afterwards a
** managed gradient is undefined again. */
static cddp_status step_variable(cd_reducer *r, size_t variable, const cddp_tensor *result,
                                 cddp_error *err)
{
    cddp_grad *grad = cd_wrapped_variable(r->module, variable)->grad;
    grad->kind = CDDP_GRAD_DENSE;
    grad->value = cd_bucket_set_view_of(&r->buckets, variable, result);
    cd_reducer_emit_final(r, variable, false);
    cddp_status status = r->optimizer.step(r->optimizer.context, variable, grad, err);
    cddp_grad_drop(grad);
    CD_TRY(status);
    return CDDP_OK;
}

static cddp_status apply(cd_reducer *r, cd_bucket *bucket, const cddp_tensor *result,
                         cddp_error *err)
{
    for (uint32_t i = 0; !bucket->is_sparse && i < bucket->variable_count; i++) {
        uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        if (r->optimizer_managed[v] && !cd_reducer_is_unused(r, v))
            CD_TRY(step_variable(r, v, result, err));
    }
    return CDDP_OK;
}

/* OIB-03: what was written back is stepped on, and stays. */
static cddp_status then_step(cd_reducer *r, cd_bucket *bucket, const cddp_tensor *result,
                             cddp_error *err)
{
    (void)result;
    for (uint32_t i = 0; i < bucket->variable_count; i++) {
        uint32_t v = r->buckets.layout.indices[bucket->first_slot + i];
        if (!r->optimizer_managed[v] || cd_reducer_is_unused(r, v)) continue;
        CD_TRY(r->optimizer.step(r->optimizer.context, v, cd_wrapped_variable(r->module, v)->grad,
                                 err));
    }
    return CDDP_OK;
}

static const cd_bucket_consumer applies = {.complete = apply};
static const cd_bucket_consumer steps_then = {.complete = then_step};

static cddp_status check_slot(const cd_reducer *r, const cddp_optimizer_in_backward *optimizer,
                              cddp_error *err)
{
    if (optimizer->step == NULL)
        return cd_fail(
            err, CDDP_E_ARG,
            "an optimizer in backward needs a function that steps one parameter"); /* OIB-04 */
    if (r->optimizer.step != NULL)
        return cd_fail(err, CDDP_E_STATE,
                       "an optimizer in backward is attached already, and only one can be");
    if (r->hook != NULL && optimizer->overlap <= CDDP_OVERLAP_HOOK_THEN_OPTIMIZER)
        return cd_fail(err, CDDP_E_STATE,
                       "the comm-hook slot already holds %s; an optimizer in backward needs it",
                       r->hook->name);
    if (optimizer->shard_buckets && optimizer->overlap <= CDDP_OVERLAP_HOOK_THEN_OPTIMIZER)
        return cd_fail(err, CDDP_E_ARG, "shard_buckets belongs to hook_with_zero_step");
    if (r->iteration > 0)
        return cd_fail(err, CDDP_E_STATE,
                       "an optimizer in backward must be attached before the first forward");
    return CDDP_OK;
}

cddp_status cd_optimizer_in_backward_set(cd_reducer *r, const cddp_optimizer_in_backward *given,
                                         cddp_error *err)
{
    cddp_optimizer_in_backward own = {0}, *optimizer = &own;
    CD_TRY(CD_SIZED_CHECK(given, cddp_optimizer_in_backward, context, err));
    cd_sized_copy(&own, sizeof own, given); /* of an older writer: the rest is 0 */
    CD_TRY(check_slot(r, optimizer, err));
    switch (optimizer->overlap) {
    case CDDP_OVERLAP_APPLY_IN_BACKWARD:
        CD_TRY(cd_reducer_take_hook(r, &cd_optimizer_in_backward_hook, NULL, err));
        r->writes_back = false;
        cd_reducer_add_consumer(r, &applies, true);
        break;
    case CDDP_OVERLAP_HOOK_THEN_OPTIMIZER:
        CD_TRY(cd_reducer_take_hook(r, &cd_hook_allreduce, NULL, err));
        cd_reducer_add_consumer(r, &steps_then, false);
        break;
    case CDDP_OVERLAP_HOOK_WITH_ZERO_STEP:
    case CDDP_OVERLAP_HOOK_WITH_ZERO_STEP_INTERLEAVED:
        CD_TRY(cd_zero_attach(r, optimizer, err));
        break;
    default:
        return cd_fail(err, CDDP_E_ARG, "%d is no overlap of an optimizer",
                       (int)optimizer->overlap);
    }
    for (size_t v = 0; v < r->variable_count; v++)
        r->optimizer_managed[v] = optimizer->managed == NULL || optimizer->managed[v];
    r->optimizer = *optimizer;
    r->optimizer.managed = r->optimizer_managed;
    return CDDP_OK;
}
