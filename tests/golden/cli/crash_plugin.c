/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin whose hooks end the process that they run in: crash by a signal, the others with 0, as if all were well:
** leave the usual way, leave_now and leave_quickly past what is registered for it. */
#define _POSIX_C_SOURCE 200809L
#include "cddp/plugin.h"

#include <stdlib.h>
#include <unistd.h>

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

static cddp_status leave_now(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    _exit(0);
}

static cddp_status leave_at_once(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    _Exit(0);
}

static cddp_status leave_quickly(void *self, cddp_grad_bucket *bucket, cddp_group *group, cddp_future *future, cddp_error *err)
{
    (void)self, (void)bucket, (void)group, (void)future, (void)err;
    quick_exit(0);
}

static const cddp_hook crash_hook = {.size = sizeof crash_hook, .abi = CDDP_HOOK_ABI, .name = "crash", .run = crash};
static const cddp_hook leave_hook = {.size = sizeof leave_hook, .abi = CDDP_HOOK_ABI, .name = "leave", .run = leave};
static const cddp_hook now_hook = {.size = sizeof now_hook, .abi = CDDP_HOOK_ABI, .name = "leave_now", .run = leave_now};
static const cddp_hook once_hook = {.size = sizeof once_hook, .abi = CDDP_HOOK_ABI, .name = "leave_at_once", .run = leave_at_once};
static const cddp_hook quick_hook = {.size = sizeof quick_hook, .abi = CDDP_HOOK_ABI, .name = "leave_quickly", .run = leave_quickly};
static const cddp_hook *const hooks[] = {&crash_hook, &leave_hook, &now_hook, &once_hook, &quick_hook, NULL};

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1 = {
    .size = sizeof(cddp_plugin), .abi = CDDP_PLUGIN_ABI, .name = "crash", .version = "1", .hooks = hooks};
