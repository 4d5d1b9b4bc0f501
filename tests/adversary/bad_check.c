/* SPDX-License-Identifier: Apache-2.0 */
/* A check that crashes at the first event that it sees. */
#include <cddp/plugin.h>

#include <stddef.h>

static cddp_status mine_begin(const cddp_check_context *context, void **self, cddp_error *err)
{
    (void)err;
    *self = (void *)(size_t)context;
    return CDDP_OK;
}

static void mine_event(void *self, const cddp_event *event)
{
    volatile int *nowhere = NULL;
    (void)self;
    *nowhere = (int)event->kind;
}

static void mine_end(void *self) { (void)self; }

static const cddp_check check = {.size = sizeof check,
                                 .abi = CDDP_CHECK_ABI,
                                 .name = "MINE",
                                 .title = "a check that crashes",
                                 .rule = "none",
                                 .begin = mine_begin,
                                 .event = mine_event,
                                 .end = mine_end};
static const cddp_check *const checks[] = {&check, NULL};

CDDP_PLUGIN_EXPORT extern const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = "bad check",
                                    .version = "1",
                                    .checks = checks};
