/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of the watchdog. Its thread is in nccl_backend.c. */
#include "backends/nccl/watch.h"

#include <inttypes.h>
#include <stdio.h>

static bool fail(cd_watch *watch, cddp_status status)
{
    watch->failed = true;
    watch->status = status;
    return true;
}

bool cd_watch_step(cd_watch *watch, const cd_watch_look *look)
{
    char oldest[96] = "nothing was in flight";
    if (watch->failed) return false;
    if (look->has_oldest)
        snprintf(oldest, sizeof oldest, "the oldest operation in flight was %s #%" PRIu64,
                 cddp_op_name(look->op), look->sequence);
    if (look->async_error != NULL) {
        snprintf(watch->reason, sizeof watch->reason,
                 "rank %u, group '%s': NCCL reports %.200s; %s", watch->rank, watch->group,
                 look->async_error, oldest);
        return fail(watch, CDDP_E_BACKEND);
    }
    if (look->has_oldest && look->now_ns >= look->deadline_ns) {
        snprintf(watch->reason, sizeof watch->reason,
                 "rank %u, group '%s': %s #%" PRIu64 " did not end within %" PRIu64
                 " ms; a peer did not take part in time",
                 watch->rank, watch->group, cddp_op_name(look->op), look->sequence,
                 (look->deadline_ns - look->posted_ns) / 1000000);
        return fail(watch, CDDP_E_TIMEOUT);
    }
    return false;
}

bool cd_watch_abort(cd_watch *watch, const char *reason)
{
    if (watch->failed) return false;
    snprintf(watch->reason, sizeof watch->reason, "the group was aborted: %.300s",
             reason != NULL ? reason : "no reason given");
    return fail(watch, CDDP_E_ABORTED);
}
