/* SPDX-License-Identifier: Apache-2.0 */
/* The sink of a run: it passes events to the judge and the caller's sinks, and keeps what
** the verdict needs.
**
** Ownership  a value in caller's storage; targets are borrowed.
** Digests    each rank's own order is digested by itself and the digests are folded in rank order,
**            so that a run has one digest however the events of different ranks interleave.
*/
#pragma once
#include "cddp/run.h"
#include "core/base/arena.h"
#include "core/run/coverage.h"
#include "core/run/strikes.h"

#define CD_TAP_MARKS_MAX 64

typedef struct cd_tap_rank {
    uint64_t digest, timeless, count, time_ns;
    uint32_t step;           /* of its last event but rank_end, which is the world's */
    cddp_rank_result result; /* as rank_end reported it: a recorded trace has no other */
} cd_tap_rank;

typedef struct cd_tap {
    cddp_trace_sink sink;
    const cddp_allocator *allocator;
    const cddp_relay_sink *relay; /* whose mute silences ranks; may be NULL */
    bool without_digests;         /* nobody asks for them */
    const cddp_trace_sink *judge; /* may be NULL */
    const cddp_trace_sink *const *targets;
    size_t target_count;
    cd_tap_rank *ranks; /* (rank_count + 1) the last is the world itself */
    size_t rank_count;
    struct {
        char name[64];
        uint64_t count;
    } marks[CD_TAP_MARKS_MAX];
    size_t mark_count;
    cd_coverage coverage;
    cd_strikes strikes;
} cd_tap;

cddp_status cd_tap_init(cd_tap *tap, const cddp_run_options *options, const cddp_trace_sink *judge,
                        cddp_error *err) CDDP_MUST_CHECK;
void cd_tap_fini(cd_tap *tap); /* accepts a zeroed tap */
uint64_t cd_tap_digest(const cd_tap *tap, bool timeless);
uint64_t cd_tap_count(const cd_tap *tap);
uint64_t cd_tap_time(const cd_tap *tap);
