/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest communication hook: it divides, and sums. Begin here; alternate_hook.c has state.
**
**     cc -shared -fPIC $(pkg-config --cflags cddp) mean_hook.c -o mean_hook.so
**     cddp-verify hook-conformance mean --plugin ./mean_hook.so
*/
#include <cddp/device.h>
#include <cddp/plugin.h>

static cddp_status mean_run(void *self, cddp_grad_bucket *bucket, cddp_group *group,
                            cddp_future *future, cddp_error *err)
{
    const cddp_tensor *flat = &bucket->buffer;
    (void)self;
    if (bucket->sparse != NULL)
        return cddp_error_set(err, CDDP_E_UNSUPPORTED, "hook mean takes flat buckets");
    cddp_collective sum = {.size = sizeof sum,
                           .op = CDDP_OP_ALLREDUCE,
                           .reduce_op = CDDP_RED_SUM,
                           .input = *flat,
                           .output = *flat,
                           .label = (uint64_t)bucket->index + 1};
    cddp_status status = flat->device->divide(flat, flat, cddp_group_size(group), NULL, err);
    if (status == CDDP_OK) status = cddp_group_post(group, &sum, &future->works[0], err);
    future->work_count = status == CDDP_OK;
    future->result = *flat; /* complete when the work has ended */
    return status;
}

static const cddp_hook mean = {.size = sizeof mean,
                               .abi = CDDP_HOOK_ABI,
                               .name = "mean",
                               .flags = CDDP_HOOK_EXACT,
                               .run = mean_run};
static const cddp_hook *const hooks[] = {&mean, NULL};
CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "mean",
                                    .hooks = hooks};
