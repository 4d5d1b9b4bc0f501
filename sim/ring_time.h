/* SPDX-License-Identifier: Apache-2.0 */
/* The time of a ring, for all ranks at once: what walking its messages gives, to the nanosecond.
** An all-reduce has 2(N-1)N of them, an all-gather and a reduce-scatter (N-1)N.
**
** Lifetime   a plain function over the caller's arrays.
*/
#pragma once
#include "sim/algorithm.h"
#include "sim/network.h"

typedef struct cd_ring_time {
    const cd_network *network; /* without jitter */
    cd_program program;        /* of any rank; cd_ring_time_suits */
    const uint32_t *ranks;     /* (size) world ranks of the members */
    /* (size) in: when each starts; out: when each has finished; whole ns below 2^53 */
    double *time;
    /* (size) in and out: when each one's sending port is free, not before its start */
    double *port;
    double *scratch; /* (cd_ring_time_scratch) */
} cd_ring_time;

/* A ring in which every rank passes on chunks of one size, but for the last ones of an
** all-reduce. */
bool cd_ring_time_suits(const cd_program *program);
size_t cd_ring_time_scratch(const cd_program *program); /* doubles */
void cd_ring_time_run(const cd_ring_time *ring);
