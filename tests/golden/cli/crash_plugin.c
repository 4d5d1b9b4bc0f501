/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin with a hook that kills the process it runs in: what a worker's crash looks like from outside. */
#include "cddp/plugin.h"

#include <stdlib.h>

static cddp_status crash(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    abort();
}

static const cddp_hook hook = {.size = sizeof hook, .abi = CDDP_HOOK_ABI, .name = "crash", .run = crash};
static const cddp_hook *const hooks[] = {&hook, NULL};

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1 = {
    .size = sizeof(cddp_plugin), .abi = CDDP_PLUGIN_ABI, .name = "crash", .version = "1", .hooks = hooks};
