/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes: threads of a backend that run jobs in the order in which they were pushed.
**
** A group of lanes shares one lock and one "a job ended" condition. A library with blocking calls
** only becomes asynchronous by running them in a lane. A waiting caller gets the job's own error.
**
** Lifetime   init → push/wait → fini. A job is the caller's memory; the caller does not touch it
**            until it is done.
** Threads    push, wait and test from any thread; a job's run function runs in its lane, or where
**            the job was withdrawn to.
** Errors     push fails only when the lane's thread cannot be started.
*/
#pragma once
#include <pthread.h>

#include "cddp/status.h"

#define CD_OS_LANES_MAX 4

typedef struct cd_os_job {
    struct cd_os_job *next;
    cddp_status (*run)(struct cd_os_job *job, cddp_error *err);
    cddp_error error; /* valid once done */
    bool done;        /* under the lock of its lanes */
} cd_os_job;

typedef struct cd_os_lane {
    struct cd_os_lanes *lanes;
    pthread_t thread;
    bool runs;
    pthread_cond_t arrived;
    cd_os_job *first, *last;
} cd_os_lane;

typedef struct cd_os_lanes {
    /* guards the queues and `done` of every job; nothing blocks while holding it */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    cd_os_lane lane[CD_OS_LANES_MAX];
    cd_os_lane *more; /* (more_count) lanes from number CD_OS_LANES_MAX on, or NULL */
    uint32_t more_count;
    bool closing;
} cd_os_lanes;

void cd_os_lanes_init(cd_os_lanes *lanes);
/* After init. more: (count) of zeros, borrowed until fini. */
void cd_os_lanes_add(cd_os_lanes *lanes, cd_os_lane *more, uint32_t count);
/* lets jobs that were pushed end, then joins the threads */
void cd_os_lanes_fini(cd_os_lanes *lanes);
/* Starts the lane's thread on first use. Its SIGPIPE is blocked: libraries write to sockets. */
cddp_status cd_os_lane_push(cd_os_lanes *lanes, uint32_t lane, cd_os_job *job, cddp_error *err);
/* Takes a job back that its lane has not begun: the caller runs it. False: too late. */
bool cd_os_lane_withdraw(cd_os_lanes *lanes, uint32_t lane, cd_os_job *job);
/* The job behind `after` in the queue of a lane (NULL: the first), or NULL. For the lane's own
** thread where nobody else withdraws jobs: they stay until it takes them. */
cd_os_job *cd_os_lane_queued(cd_os_lanes *lanes, uint32_t lane, const cd_os_job *after);
/* Runs a job that was withdrawn, in the calling thread. */
void cd_os_job_run(cd_os_lanes *lanes, cd_os_job *job);
bool cd_os_job_is_done(cd_os_lanes *lanes, const cd_os_job *job);
/* timeout_ns 0: no limit. False when the time-out came first. */
bool cd_os_job_wait(cd_os_lanes *lanes, const cd_os_job *job, uint64_t timeout_ns);
/* The outcome of a done job: its status, its error copied. */
cddp_status cd_os_job_outcome(const cd_os_job *job, cddp_error *err);

/* Blocks SIGPIPE in the calling thread around a library call, and consumes one that came
** meanwhile. */
typedef struct cd_os_sigpipe {
    unsigned char before[128]; /* a sigset_t */
} cd_os_sigpipe;
void cd_os_sigpipe_begin(cd_os_sigpipe *guard);
void cd_os_sigpipe_end(const cd_os_sigpipe *guard);
