/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin whose hooks end the process that they run in: crash by a signal, leave with 0, as if all were well. */
#include "cddp/plugin.h"

#include <stdlib.h>

static cddp_status crash(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    abort();
}

static cddp_status leave(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    exit(0);
}

static const cddp_hook crash_hook = {.size = sizeof crash_hook, .abi = CDDP_HOOK_ABI, .name = "crash", .run = crash};
static const cddp_hook leave_hook = {.size = sizeof leave_hook, .abi = CDDP_HOOK_ABI, .name = "leave", .run = leave};
static const cddp_hook *const hooks[] = {&crash_hook, &leave_hook, NULL};

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1 = {
    .size = sizeof(cddp_plugin), .abi = CDDP_PLUGIN_ABI, .name = "crash", .version = "1", .hooks = hooks};
