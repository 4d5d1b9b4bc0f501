/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "core/base/os_ticker.h"

#include "core/base/error.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Nobody in this program measures virtual time by signals. */
#define TICK_SIGNAL SIGVTALRM

/* A handler of a signal can reach nothing else. */
static struct ticker {
    cd_os_tick_fn tick;
    void *argument;
    pthread_t thread;
    pid_t process;
    timer_t timer;
} ticker;
static volatile sig_atomic_t is_ticking;

static void on_signal(int signal_number)
{
    const int before = errno;
    if (!is_ticking) return;
    if (pthread_equal(pthread_self(), ticker.thread))
        ticker.tick(ticker.argument);
    else
        pthread_kill(ticker.thread, signal_number);
    errno = before;
}

cddp_status cd_os_ticker_begin(uint64_t period_ns, cd_os_tick_fn tick, void *argument,
                               cddp_error *err)
{
    const struct timespec period = {(time_t)(period_ns / 1000000000),
                                    (long)(period_ns % 1000000000)};
    struct sigevent event;
    struct sigaction action;
    cd_os_ticker_end();
    memset(&event, 0, sizeof event);
    memset(&action, 0, sizeof action);
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = TICK_SIGNAL;
    action.sa_handler = on_signal;
    /* not blocked by a tick that never comes back */
    action.sa_flags = SA_RESTART | (int)SA_NODEFER;
    sigemptyset(&action.sa_mask);
    if (sigaction(TICK_SIGNAL, &action, NULL) != 0 ||
        timer_create(CLOCK_MONOTONIC, &event, &ticker.timer) != 0)
        return cd_fail(err, CDDP_E_LIMIT, "no timer: %s", strerror(errno));
    ticker.tick = tick;
    ticker.argument = argument;
    ticker.thread = pthread_self();
    ticker.process = getpid();
    is_ticking = 1;
    timer_settime(ticker.timer, 0, &(struct itimerspec){period, period}, NULL);
    return CDDP_OK;
}

void cd_os_ticker_end(void)
{
    if (!is_ticking) return;
    is_ticking = 0;
    if (ticker.process == getpid()) timer_delete(ticker.timer);
}
