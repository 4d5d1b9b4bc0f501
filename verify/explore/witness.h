/* SPDX-License-Identifier: Apache-2.0 */
/* A trace sink that digests everything of a run that a judge would hear, and the runs that were
** judged.
**
** Note [Known runs] A verdict without findings is used again for a run that equals the judged one
** in everything that is judged. That is: for every rank the digests of what it observed
** (core/run/recall.h), and its events in their order, with their times and texts. Events that
** referees emit follow from what was observed and do not count. How the events of different ranks
** lie between each other does not count either: a stored trace is one sequence per rank, which the
** judge merges by time.
**
** Of a value event the text does not count: it is the name of the tensor that its number stands
** for, and events of the construction have it. In a run that nobody else hears the values are no
** events at all; both forms give the same digests.
**
** Gradients become ready in any order, and every rank has its order. Two kinds of keys take that
** into account without a run for every combination of orders:
**
**   rank   a rank's events in their order. Ready gradients between two other events are a set, as
**          for the referee; those of one parameter are in their order.
**   run    what all ranks observed, all events but ready ones in their order, and the set of ready
**          ones of each rank.
**
** A run is known when its run key is known, and together with it each of its rank keys. This
** assumes that no check compares when a gradient became ready on one rank with when it did on
** another one. What became ready, with its digest, is in the run key.
**
** Lifetime   a witness lies in the memory of its run, which may be put back; cd_known outside.
** Threads    those of the ranks, one at a time.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/trace.h"
#include "core/run/recall.h"
#include "sim/digest_set.h"

/* parameters whose ready events are kept apart; those that share a place are in one order */
#define CD_WITNESS_PLACES 64

typedef struct cd_witness_rank {
    uint64_t others; /* events but ready ones */
    uint64_t all;    /* the same, each with the set of those that were ready before it */
    uint64_t ready;  /* sum over places */
    uint64_t places[CD_WITNESS_PLACES];
    /* since the last event of another kind, as they would go into others and into all */
    struct {
        uint64_t head, others, all, count;
    } values;
} cd_witness_rank;

typedef struct cd_witness {
    cddp_trace_sink sink;
    cd_tracer_values values; /* the same of values, where nobody else hears them */
    const cd_recall *recall;
    uint32_t world_size;
    bool is_closed;
    cd_witness_rank *ranks; /* (world_size + 1) the last one is the world itself */
} cd_witness;

/* *witness is of this allocator, and is not given back by itself. recall: borrowed. */
cddp_status cd_witness_create(const cddp_allocator *allocator, const cd_recall *recall,
                              uint32_t world_size, cd_witness **witness,
                              cddp_error *err) CDDP_MUST_CHECK;
/* The ranks have ended; what their world still says follows from how they did. */
void cd_witness_close(cd_witness *witness);
/* Of all that was heard and observed in the run that has ended. */
uint64_t cd_witness_get_digest(const cd_witness *witness);

typedef struct cd_known {
    cd_digest_set keys; /* of runs and of ranks */
    bool is_full;       /* nothing more is kept */
} cd_known;

void cd_known_fini(cd_known *known); /* accepts a zeroed one */
/* The run was judged and is clean. */
void cd_known_add(cd_known *known, const cd_witness *witness);
bool cd_known_has(const cd_known *known, const cd_witness *witness);
