/* SPDX-License-Identifier: Apache-2.0 */
/* PCT, probabilistic concurrency testing (Burckhardt and others, 2010): random priorities and d-1
** places where the running one falls behind all others. A bug of depth d among n contenders and k
** choices is met with a probability of at least 1 / (n · k^(d-1)) per run.
**
** Here a contender is whatever an option stands for: a rank that may run, a gradient that may
** become ready, an operation that may complete. Its priority is a function of the seed and of its
** identity, so it keeps it while the run goes on. The guarantee speaks of the choices the world
** offers, and of nothing else.
*/
#pragma once
#include "sim/chooser.h"

#define CD_PCT_DEPTH_MAX 16

typedef struct cd_pct_chooser {
    uint64_t seed;
    uint32_t depth;
    uint64_t change_at[CD_PCT_DEPTH_MAX]; /* (depth - 1) choice points */
    /* (fallen_count) identities behind all others, oldest last in rank */
    uint64_t fallen[CD_PCT_DEPTH_MAX];
    uint32_t fallen_count;
    uint64_t choice_count, contenders_max;
} cd_pct_chooser;

/* choices: how many the run is expected to make (of an earlier run). depth 1 … CD_PCT_DEPTH_MAX. */
cd_chooser cd_chooser_pct(cd_pct_chooser *pct, uint64_t seed, uint32_t depth, uint64_t choices);
