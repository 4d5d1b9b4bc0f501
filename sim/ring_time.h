/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a ring all-reduce, for all ranks at once: what walking its 2(N-1)N messages gives, to
** the nanosecond.
**
** Lifetime   a plain function over the caller's arrays.
*/
#pragma once
#include "sim/algorithm.h"
#include "sim/network.h"

typedef struct cd_ring_time {
    const cd_network *network; /* without jitter */
    cd_program program;        /* of any rank */
    const uint32_t *ranks;     /* (size) world ranks of the members */
    /* (size) in: when each starts; out: when each has finished; whole ns below 2^53 */
    double *time;
    /* (size) in and out: when each one's sending port is free, not before its start */
    double *port;
    double *scratch; /* (cd_ring_time_scratch) */
} cd_ring_time;

size_t cd_ring_time_scratch(const cd_program *program); /* doubles */
void cd_ring_time_run(const cd_ring_time *ring);
