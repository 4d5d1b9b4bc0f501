/* SPDX-License-Identifier: Apache-2.0 */
/* A trace sink that digests every rank's past. It ignores the order of events that commute.
**
** Two runs with equal digests at a choice continue equally; their results differ only by what
** happened before. So explorers try the continuation once (sim/explore.h).
**
** Ready gradients of one rank commute. Their order is ignored, but its effects count: the order of
** all other events on the rank; the ready gradients of a bucket at its launch; all ready gradients
** at every event other than a launch and its collective. Their order itself counts while a rebuild
** may follow it. Values count where the trace has their digests. Times and turns of other ranks do
** not count.
**
** Interchangeable ranks: the digests of ranks 1 … n-1 are sorted, and events that only name the
** rank are left out. Rank 0 stays separate, because buckets are rebuilt in its order and its values
** are broadcast.
**
** Lifetime   init → begin → events → begin … → fini.
** Threads    one run at a time.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"
#include "core/base/arena.h"

/* buckets with separate sets of ready gradients; the others share one, which merges less */
#define CD_PAST_BUCKETS 64

typedef struct cd_past_options {
    uint32_t world_size;
    bool interchangeable; /* ranks 1 … n-1 run the same program on the same data, or on none */
    bool without_rebuild; /* no bucket is rebuilt in the order of a backward that is explored */
    const cddp_allocator *allocator;
} cd_past_options;

typedef struct cd_past_rank {
    uint64_t ordered; /* of everything whose order counts */
    uint64_t ready;   /* sum over the gradients that became ready */
    uint64_t arrival; /* their order, while it counts */
    uint64_t by_bucket[CD_PAST_BUCKETS];
} cd_past_rank;

typedef struct cd_past {
    cddp_trace_sink sink;
    cd_past_options options;
    cd_arena arena;      /* the two arrays */
    cd_past_rank *ranks; /* (world_size) */
    uint64_t *scratch;   /* (world_size) */
} cd_past;

cddp_status cd_past_init(cd_past *past, const cd_past_options *options,
                         cddp_error *err) CDDP_MUST_CHECK;
void cd_past_fini(cd_past *past); /* accepts a zeroed one */
void cd_past_begin(cd_past *past);
/* The digest at a choice of `rank` (UINT32_MAX: of the world). */
uint64_t cd_past_get(const cd_past *past, const cddp_choice *choice);
