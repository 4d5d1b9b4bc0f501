/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog's view of one communicator, as plain data.
**
**     RUNS ──time-out of the oldest operation──▶ FAILED       RUNS ──asynchronous error──▶ FAILED
**     RUNS ──abort──▶ FAILED                                  FAILED ──▶ FAILED (the first reason
**                                                             stays)
**
** The call that changes RUNS into FAILED returns true, once, and its caller aborts the
** communicator. That ends kernels that wait for a missing peer, and with them every wait.
*/
#pragma once
#include "cddp/backend.h"

typedef struct cd_watch {
    bool failed;
    cddp_status status; /* the error of every operation after the failure */
    char reason[400];
    uint32_t rank;     /* world rank of this process */
    const char *group; /* borrowed name */
} cd_watch;

/* One observation of a communicator. */
typedef struct cd_watch_look {
    uint64_t now_ns;
    const char *async_error; /* NULL: none */
    /* The oldest operation that has not ended, if any. */
    bool has_oldest;
    cddp_op op;
    uint64_t sequence, posted_ns, deadline_ns;
} cd_watch_look;

/* True when this observation, not an earlier one, is the failure. */
bool cd_watch_step(cd_watch *watch, const cd_watch_look *look);
bool cd_watch_abort(cd_watch *watch, const char *reason);
