/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "record/pulse.h"

#include "core/base/os.h"
#include "record/seal.h"

#include <signal.h>
#include <time.h>

#define STACK_BYTES 262144u

/* One store: whoever reads it meanwhile finds the second before, or this one. */
static void beat(const cd_pulse *p)
{
    const uint64_t lived_ns = cd_os_now_ns() - p->header->monotonic_ns;
    *(volatile uint64_t *)&p->header->alive = cd_seal_alive(p->header, lived_ns / 1000000);
}

static void *run(void *self)
{
    cd_pulse *p = self;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&p->lock);
    while (!p->is_over) {
        beat(p);
        next.tv_sec++;
        /* a wake-up for no reason is a beat too many */
        (void)pthread_cond_timedwait(&p->ends, &p->lock, &next);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) return false;
    const bool is_made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                         pthread_cond_init(condition, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return is_made;
}

/* Signals are the program's: its own threads take them. */
static bool start(cd_pulse *p)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    (void)pthread_attr_setstacksize(&attributes, STACK_BYTES); /* else it has the usual size */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool is_started = pthread_create(&p->thread, &attributes, run, p) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return is_started;
}

void cd_pulse_begin(cd_pulse *p, cddp_shard_header *header)
{
    *p = (cd_pulse){.header = header};
    beat(p);
    if (!init_condition(&p->ends)) return;
    pthread_mutex_init(&p->lock, NULL);
    p->is_running = start(p);
    if (p->is_running) return;
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->ends);
}

void cd_pulse_end(cd_pulse *p)
{
    if (!p->is_running) return;
    pthread_mutex_lock(&p->lock);
    p->is_over = true;
    pthread_cond_signal(&p->ends);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->ends);
    p->is_running = false;
}
