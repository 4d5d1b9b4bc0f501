/* SPDX-License-Identifier: Apache-2.0 */
/* A world of the self-test: its plan, what its clean run ends with, and who is who in it.
**
** Lifetime   open → run any number of times → close.
** Errors     a scenario that cannot be read, or whose clean run is not verified.
*/
#pragma once
#include "cddp/run.h"
#include "tests/selftest/injection.h"

#define ST_RANKS_MAX 64
#define ST_NAMES_MAX 128
#define ST_NAME_BYTES 96

typedef enum st_how { ST_RUN, ST_PROVE } st_how;

typedef struct st_world_row {
    const char *name, *scenario, *sets;
    st_how how;
    const char *places;
} st_world_row;
extern const st_world_row st_worlds[];
extern const size_t st_world_count;

/* What every rank ends with, and whether it got there. */
typedef struct st_finals {
    uint64_t digests[ST_RANKS_MAX];
} st_finals;

/* The events of a run, as a trace file has them. */
typedef struct st_recording {
    cddp_event *events; /* (count) texts are owned */
    size_t count, capacity;
} st_recording;
void st_recording_fini(st_recording *recording);

typedef struct st_world {
    const st_world_row *row;
    const cddp_registry *registry;
    struct cddp_plan *plan;
    st_finals finals;                             /* of the clean run */
    uint64_t reached[512];                        /* points, there */
    char parameters[ST_NAMES_MAX][ST_NAME_BYTES]; /* by ordinal */
    char buffers[ST_NAMES_MAX][ST_NAME_BYTES];
    int64_t variables[ST_NAMES_MAX]; /* of parameters; -1 */
    /* by variable; newest layout of rank 0 until a step, as bits of buckets */
    uint64_t buckets[ST_NAMES_MAX];
    size_t parameter_count, buffer_count;
    uint32_t ranks, steps;
} st_world;

cddp_status st_world_open(const st_world_row *row, const cddp_registry *registry, st_world *world,
                          cddp_error *err) CDDP_MUST_CHECK;
/* The same of a plan, which the world takes. */
cddp_status st_world_open_plan(struct cddp_plan *plan, const cddp_registry *registry,
                               st_world *world, cddp_error *err) CDDP_MUST_CHECK;
void st_world_close(st_world *world);
/* The injection in force strikes. recording: filled, or NULL. The caller destroys the verdict. */
cddp_status st_world_run(const st_world *world, st_recording *recording, st_finals *finals,
                         cddp_verdict **verdict, cddp_error *err) CDDP_MUST_CHECK;
/* Judged as a stored trace is: by the checks alone. The caller destroys the verdict. */
cddp_status st_recording_judge(st_recording *recording, const st_world *world,
                               cddp_verdict **verdict, cddp_error *err) CDDP_MUST_CHECK;
