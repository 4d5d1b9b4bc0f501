/* SPDX-License-Identifier: Apache-2.0 */
/* The noop hook: the local bucket is the result. It measures the cost of communication; replicas
** differ (HK-07). */
#include "core/hooks/hook.h"

#include "core/base/error.h"

static cddp_status create(const cddp_hook_context *context, void **self, cddp_error *err)
{
    CD_TRY(cd_hook_refuse_options(context, "noop", err));
    *self = NULL;
    return CDDP_OK;
}

static cddp_status run(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future,
                       cddp_error *err)
{
    (void)self, (void)group, (void)err;
    future->result = bucket->buffer;
    return CDDP_OK;
}

static uint64_t promise(const void *self, const cddp_grad_bucket *bucket)
{
    (void)self, (void)bucket;
    return 0;
}

const cddp_hook cd_hook_noop = {
    .size = sizeof(cddp_hook),
    .abi = CDDP_HOOK_ABI,
    .name = "noop",
    .flags = CDDP_HOOK_LINEAR | CDDP_HOOK_NO_COMM,
    .create = create,
    .run = run,
    .promise = promise,
};
