/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run jobs in order. See os_lane.h. */
#define _POSIX_C_SOURCE 200809L
#include "core/base/os_lane.h"

#include "core/base/error.h"
#include "core/base/os.h"

#include <signal.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(sigset_t) <= sizeof(cd_os_sigpipe), "a signal mask fits its guard");

void cd_os_sigpipe_begin(cd_os_sigpipe *guard)
{
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    memcpy(guard->before, &before, sizeof before);
}

void cd_os_sigpipe_end(const cd_os_sigpipe *guard)
{
    sigset_t set, before;
    memcpy(&before, guard->before, sizeof before);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    const struct timespec none = {0, 0};
    if (!sigismember(&before, SIGPIPE))
        while (sigtimedwait(&set, NULL, &none) == SIGPIPE) {
        }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static cd_os_lane *lane_at(cd_os_lanes *lanes, uint32_t index)
{
    return index < CD_OS_LANES_MAX ? &lanes->lane[index] : &lanes->more[index - CD_OS_LANES_MAX];
}

static void lane_init(cd_os_lanes *lanes, cd_os_lane *lane)
{
    lane->lanes = lanes;
    pthread_cond_init(&lane->arrived, NULL);
}

void cd_os_lanes_init(cd_os_lanes *lanes)
{
    memset(lanes, 0, sizeof *lanes);
    /* Waits are measured on the monotonic clock: a clock set back must not prolong them. */
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_cond_init(&lanes->ended, &monotonic);
    for (uint32_t i = 0; i < CD_OS_LANES_MAX; i++) lane_init(lanes, &lanes->lane[i]);
    pthread_condattr_destroy(&monotonic);
}

void cd_os_lanes_add(cd_os_lanes *lanes, cd_os_lane *more, uint32_t count)
{
    lanes->more = more;
    lanes->more_count = count;
    for (uint32_t i = 0; i < count; i++) lane_init(lanes, &more[i]);
}

void cd_os_lanes_fini(cd_os_lanes *lanes)
{
    pthread_mutex_lock(&lanes->lock);
    lanes->closing = true;
    const uint32_t count = CD_OS_LANES_MAX + lanes->more_count;
    for (uint32_t i = 0; i < count; i++) pthread_cond_broadcast(&lane_at(lanes, i)->arrived);
    pthread_mutex_unlock(&lanes->lock);
    for (uint32_t i = 0; i < count; i++) {
        cd_os_lane *lane = lane_at(lanes, i);
        if (lane->runs) pthread_join(lane->thread, NULL);
        pthread_cond_destroy(&lane->arrived);
    }
    pthread_cond_destroy(&lanes->ended);
    pthread_mutex_destroy(&lanes->lock);
}

static cd_os_job *job_take(cd_os_lane *lane)
{
    cd_os_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    while (lane->first == NULL && !lanes->closing) pthread_cond_wait(&lane->arrived, &lanes->lock);
    cd_os_job *job = lane->first;
    if (job != NULL) lane->first = job->next;
    if (lane->first == NULL) lane->last = NULL;
    pthread_mutex_unlock(&lanes->lock);
    return job;
}

void cd_os_job_run(cd_os_lanes *lanes, cd_os_job *job)
{
    cddp_error error = CDDP_ERROR_INIT;
    cddp_status status = job->run(job, &error);
    pthread_mutex_lock(&lanes->lock);
    job->error = error;
    job->error.status = status;
    job->done = true;
    pthread_cond_broadcast(&lanes->ended);
    pthread_mutex_unlock(&lanes->lock);
}

static void *lane_main(void *argument)
{
    cd_os_lane *lane = argument;
    cd_os_sigpipe guard;
    cd_os_sigpipe_begin(&guard);
    cd_os_sleep_punctually();
    for (cd_os_job *job; (job = job_take(lane)) != NULL;) cd_os_job_run(lane->lanes, job);
    return NULL;
}

cddp_status cd_os_lane_push(cd_os_lanes *lanes, uint32_t index, cd_os_job *job, cddp_error *err)
{
    cd_os_lane *lane = lane_at(lanes, index);
    if (!lane->runs) {
        int failure = pthread_create(&lane->thread, NULL, lane_main, lane);
        if (failure != 0)
            return cd_fail(err, CDDP_E_NOMEM, "cannot start a thread: %s", strerror(failure));
        lane->runs = true;
    }
    job->next = NULL;
    job->done = false;
    pthread_mutex_lock(&lanes->lock);
    if (lane->last != NULL)
        lane->last->next = job;
    else
        lane->first = job;
    lane->last = job;
    pthread_cond_signal(&lane->arrived);
    pthread_mutex_unlock(&lanes->lock);
    return CDDP_OK;
}

bool cd_os_lane_withdraw(cd_os_lanes *lanes, uint32_t index, cd_os_job *job)
{
    cd_os_lane *lane = lane_at(lanes, index);
    pthread_mutex_lock(&lanes->lock);
    cd_os_job *before = NULL, *found = lane->first;
    while (found != NULL && found != job) {
        before = found;
        found = found->next;
    }
    const bool is_ours = found != NULL;
    if (is_ours && before != NULL) before->next = job->next;
    if (is_ours && before == NULL) lane->first = job->next;
    if (is_ours && lane->last == job) lane->last = before;
    pthread_mutex_unlock(&lanes->lock);
    return is_ours;
}

cd_os_job *cd_os_lane_queued(cd_os_lanes *lanes, uint32_t index, const cd_os_job *after)
{
    pthread_mutex_lock(&lanes->lock);
    cd_os_job *job = after != NULL ? after->next : lane_at(lanes, index)->first;
    pthread_mutex_unlock(&lanes->lock);
    return job;
}

bool cd_os_job_is_done(cd_os_lanes *lanes, const cd_os_job *job)
{
    pthread_mutex_lock(&lanes->lock);
    bool done = job->done;
    pthread_mutex_unlock(&lanes->lock);
    return done;
}

bool cd_os_job_wait(cd_os_lanes *lanes, const cd_os_job *job, uint64_t timeout_ns)
{
    uint64_t until = cd_os_now_ns() + timeout_ns;
    struct timespec t = {(time_t)(until / UINT64_C(1000000000)),
                         (long)(until % UINT64_C(1000000000))};
    int late = 0;
    pthread_mutex_lock(&lanes->lock);
    while (!job->done && late == 0)
        late = timeout_ns == 0 ? pthread_cond_wait(&lanes->ended, &lanes->lock)
                               : pthread_cond_timedwait(&lanes->ended, &lanes->lock, &t);
    bool done = job->done;
    pthread_mutex_unlock(&lanes->lock);
    return done;
}

cddp_status cd_os_job_outcome(const cd_os_job *job, cddp_error *err)
{
    if (job->error.status != CDDP_OK && err != NULL) *err = job->error;
    return job->error.status;
}
