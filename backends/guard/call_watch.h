/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation was given and what it delivered, by digest, where somebody wants to know who
** else writes to its memory (cddp_collective.is_watched).
**
** Lifetime   of a work. Threads: the lane writes, and whoever waited for the lane reads.
*/
#pragma once
#include "cddp/backend.h"
#include "cddp/device.h"

typedef struct cd_call_watch {
    int64_t read, written; /* 0: not known */
} cd_call_watch;

static inline int64_t cd_call_watch_take(const cddp_collective *call, const cddp_tensor *tensor)
{
    uint64_t digest = 0;
    if (!call->is_watched || tensor->device->digest(tensor, &digest, NULL) != CDDP_OK) return 0;
    return (int64_t)digest;
}
