/* SPDX-License-Identifier: Apache-2.0 */
/* Iteration times of scenarios on the simulator: the real reducer, a model of sizes, virtual time.
**
**     const char *const sets[] = {"ddp.bucket_cap_mb=25", NULL};
**     paper_time t = paper_run("overlap_two_ranks", sets);
**
** A scenario of scenarios/paper is read, changed as --set would, and run without a judge. The last
** whole iteration is timed, long after buckets were rebuilt; nothing varies from one iteration to
** the next.
**
** Errors     there is nobody to handle one: it is printed, and the program ends.
*/
#pragma once
#include <stdint.h>

typedef struct paper_time {
    double iteration_ms;  /* from one step's begin to the next one's, on rank 0 */
    double compute_ms;    /* forward, backward and passes over gradients within it */
    double exposed_ms;    /* the rest: rank 0 had nothing to do but wait */
    uint32_t collectives; /* posted by rank 0 within it */
    uint64_t bytes;       /* given to them by rank 0 */
} paper_time;

/* sets: (…, NULL) texts "key=value", or NULL. */
paper_time paper_run(const char *scenario, const char *const *sets);
