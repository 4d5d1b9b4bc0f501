/* SPDX-License-Identifier: Apache-2.0 */
/* The chooser port decides at choice points. fifo, random and replay are here; explorers implement
** it too.
**
** A run is a function of its configuration and of the answers of its chooser. The world numbers
** every choice point with more than one option 0, 1, 2 … (cd_place.number) and records the answer;
** the record is the run's choice string (sim/schedule.h), and the replay chooser gives the same
** answers again.
**
** Lifetime   a chooser outlives the run. Its state is the caller's; one chooser serves one world at
**            a time.
** Threads    called on the thread that drives the world, never on a rank's stack.
** Errors     choose cannot fail; a chooser with a wrong input answers 0 and reports the error in
**            `finish`.
*/
#pragma once
#include "cddp/world.h"
#include "core/base/prng.h"

typedef struct cd_place {
    uint64_t number;  /* of this choice point in the run, from 0 */
    uint64_t time_ns; /* virtual */
    uint64_t races;   /* so far: see cd_sim_stats */
} cd_place;

typedef struct cd_chooser {
    void *self;
    const char *name;
    /* (required) does: returns an index < choice->option_count, which is at least 2. */
    uint32_t (*choose)(void *self, const cddp_choice *choice, cd_place place);
    /* (optional) does: the run ended, after end.number choices; a failure fails the launch. */
    cddp_status (*finish)(void *self, cd_place end, cddp_error *err);
} cd_chooser;

/* Always the first option: the order in which things happened to be queued. */
cd_chooser cd_chooser_fifo(void);

/* Every option equally likely, from a seed: weighted towards long queues, not uniform over
** interleavings. */
typedef struct cd_random_chooser {
    cd_prng prng;
} cd_random_chooser;
cd_chooser cd_chooser_random(cd_random_chooser *random, uint64_t seed);

/* The answers of a choice string; fifo behind its end. finish fails where the string asked for an
** option that did not exist, or named choice points that the run never reached. */
typedef struct cd_replay_chooser {
    const char *at;       /* what is left of the string; borrowed */
    uint64_t next_number; /* choice point of the next deviation, UINT64_MAX: none left */
    uint32_t next_value;
    uint64_t wrong_number; /* first choice point whose option did not exist, UINT64_MAX: none */
    uint32_t wrong_value, wrong_options;
} cd_replay_chooser;
cddp_status cd_chooser_replay(cd_replay_chooser *replay, const char *schedule, cd_chooser *chooser,
                              cddp_error *err) CDDP_MUST_CHECK;

/* By name: a row of sim/choosers.def ("fifo", "random"); -1 when there is none. */
typedef enum cd_chooser_kind {
#define CD_CHOOSER(name, summary) CD_CHOOSER_##name,
#include "sim/choosers.def"
#undef CD_CHOOSER
    CD_CHOOSER_KIND_COUNT
} cd_chooser_kind;
int32_t cd_chooser_find(const char *name);
