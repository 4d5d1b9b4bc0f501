/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that writes once a second, into the header of a shard, that the process lives.
**
** Whoever judges the shard of a process that was killed must know when that was: a rank that waits
** for another one has shown no event since.
**
** Lifetime   begin → end. In a child process that was forked meanwhile there is no such thread:
**            there end must not be called.
** Threads    one at a time; the thread takes no signals.
** Errors     without memory or threads nobody says until when the process lived.
*/
#pragma once
#include "cddp/shard.h"

#include <pthread.h>

typedef struct cd_pulse {
    cddp_shard_header *header; /* borrowed until end */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ends;
    bool is_running, is_over; /* is_over: under lock */
} cd_pulse;

void cd_pulse_begin(cd_pulse *pulse, cddp_shard_header *header);
void cd_pulse_end(cd_pulse *pulse);
