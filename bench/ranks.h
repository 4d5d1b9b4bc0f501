/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by benches over real transports: two ranks of a module's backend in one group, and
** medians.
**
** Ranks of a backend without a launcher are forked here; with one (mpirun) this process is a rank
** already.
** Errors     reported on stderr; the exit code is the result.
*/
#pragma once
#include "cddp/comm.h"

typedef struct bench_call {
    const char *module;  /* path of the backend's shared object */
    const char *options; /* of the group, or NULL */
    /* Rank i that is forked lives in the network namespace HOSTSi, with the address 10.77.0.(i+1)
    ** (bench/overlap_on_a_link.sh); NULL: all here */
    const char *hosts;
    uint32_t size; /* ranks that are forked; a launcher decides by itself */
    /* does: the bench, on every rank. directory is empty, shared by forked ranks, and gone
    ** afterwards; "" under a launcher. */
    cddp_status (*body)(cddp_group *group, const char *directory, void *argument, cddp_error *err);
    void *argument;
    /* how often the ranks are forked, one after the other; 0 is 1. A launcher's ranks make their
    ** group anew instead. */
    uint32_t starts;
    uint32_t start; /* out: which of them body runs in */
    /* a second group of the same ranks with other options, or NULL; out: the group, in body */
    const char *second_options;
    cddp_group *second;
} bench_call;

int bench_run(bench_call *call);

double bench_median(double *values, int count); /* sorts them */

/* Returns from the function with the first status that is not CDDP_OK. */
#define BENCH_TRY(call)                                           \
    do {                                                          \
        cddp_status bench_try_status = (call);                    \
        if (bench_try_status != CDDP_OK) return bench_try_status; \
    } while (0)
