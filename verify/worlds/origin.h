/* SPDX-License-Identifier: Apache-2.0 */
/* How this process was started, for backends whose launcher starts the ranks: it starts this very
** command again.
**
** Lifetime   everything is borrowed.
*/
#pragma once
#include <stdint.h>

typedef struct cd_origin {
    char *const *words; /* (NULL-terminated) argv */
    /* we are a rank of a run that somebody else judges there; NULL: we are not */
    const char *hub;
    uint64_t run;        /* of those that the command makes, the one that we belong to, */
    uint64_t repetition; /* and of that run, 0: itself */
    /* the job of processes, one per rank, to which this one belongs; NULL: there is none */
    struct cd_join *join;
} cd_origin;

/* Both in one number, as a rank receives it. */
#define CD_ORIGIN_RUNS (UINT64_C(1) << 20)
static inline uint64_t cd_origin_run(uint64_t run, uint64_t repetition)
{
    return run + repetition * CD_ORIGIN_RUNS;
}
