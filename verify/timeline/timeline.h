/* SPDX-License-Identifier: Apache-2.0 */
/* A run as something to look at: what each rank did and when, drawn from its events.
**
** A slice is a stretch of one rank: a forward, a bucket, a collective, a hook, an optimizer step.
** It has two scales: the time of the world, and the position among the recorded events. On the
** simulator much takes no time at all, and only the order shows it.
**
** Lifetime   init → the sink takes the events of one run, in recorded order → end → read → fini.
** Ownership  a timeline owns everything in it; it lies in its arena.
** Errors     taking an event cannot fail; end reports that memory ran out. What is beyond a limit
**            is counted and left out, never cut in silence. What is far from the steps that were
**            named with look_at goes first.
*/
#pragma once
#include "cddp/trace.h"
#include "core/base/arena.h"

/* Beyond these a page is too heavy for a browser. Other formats take every slice. */
#define CD_SLICES_MAX 200000
#define CD_CELLS_MAX 60000
#define CD_PICKS_MAX 4000

typedef enum cd_lane {
    CD_LANE_COMPUTE,
    CD_LANE_BUCKET,
    CD_LANE_COLLECTIVE,
    CD_LANE_HOOK,
    CD_LANE_OPTIMIZER,
    CD_LANE_COUNT
} cd_lane;

typedef enum cd_slice_end {
    CD_SLICE_DONE,
    CD_SLICE_FAILED,
    CD_SLICE_OPEN /* it never ended */
} cd_slice_end;

typedef struct cd_slice {
    uint32_t rank, step, micro_step;
    cd_lane lane;
    cd_slice_end end;
    uint32_t row; /* within the lane: slices that overlap do not share one */
    uint64_t from_ns, to_ns;
    uint64_t from, to; /* positions among the events */
    const char *label;
    int64_t bucket;          /* -1: none */
    int64_t group, sequence; /* of a collective; else -1 */
    int64_t bytes;           /* that it carries; 0: not known */
} cd_slice;

/* One slot of a bucket layout that ranks had in force. */
typedef struct cd_slot {
    uint32_t rank; /* the first that showed it */
    int64_t generation, bucket, slot, param, offset, numel, dtype;
    int64_t wrapper; /* whose */
} cd_slot;

/* Whether a parameter was used: by a rank in a window, or, for rank CD_EVERY_RANK, by how many. */
#define CD_EVERY_RANK UINT32_MAX
typedef struct cd_use {
    uint32_t rank, step;
    int64_t param, used;
} cd_use;

/* How a tensor compared with the reference. */
typedef struct cd_cell {
    uint32_t rank, step, micro_step;
    int64_t link, param, element, ulps, bad, shape;
    double expected, actual, bound, ratio;
} cd_cell;

/* A choice of the schedule. */
typedef struct cd_pick {
    uint64_t at; /* position among the events */
    int64_t point, options, chosen, who;
    const char *name;
} cd_pick;

/* Where an event of a finding stands. */
typedef struct cd_spot {
    uint32_t rank;
    uint64_t sequence; /* of the rank's own order */
    uint64_t at, time_ns;
} cd_spot;

/* Parameters of a wrapper but the first have their numbers from here on, for each further one. */
#define CD_TIMELINE_PARAMS INT64_C(16777216)

typedef struct cd_named {
    int64_t id;
    const char *name;
} cd_named;

typedef struct cd_timeline {
    cd_arena arena;
    cd_slice *slices;
    size_t slice_count, slice_capacity;
    cd_slot *slots;
    size_t slot_count, slot_capacity;
    cd_use *uses;
    size_t use_count, use_capacity;
    cd_cell *cells;
    size_t cell_count, cell_capacity;
    cd_pick *picks;
    size_t pick_count, pick_capacity;
    cd_named *params, *groups;
    size_t param_count, param_capacity, group_count, group_capacity;
    cd_spot *spots; /* (spot_count) as asked for with look_for */
    size_t spot_count, spot_capacity;
    uint32_t *focus; /* (focus_count) the steps that matter */
    size_t focus_count, focus_capacity;
    uint32_t rank_count;
    int64_t wrapper_count; /* of a rank */
    uint64_t event_count, end_ns;
    /* left out, beyond the limits above */
    uint64_t slices_left, cells_left, picks_left;
    struct cd_open *open;                        /* slices that have not ended, in chains by rank */
    size_t open_count, open_capacity, open_free; /* 0: none is free; else a position + 1 */
    struct cd_seen *seen;                        /* (rank_count) */
    size_t seen_capacity;
    cddp_trace_sink sink;
} cd_timeline;

void cd_timeline_init(cd_timeline *timeline);
void cd_timeline_fini(cd_timeline *timeline); /* accepts a zeroed one */
/* Before the events: where this event stands shall be known afterwards. */
void cd_timeline_look_for(cd_timeline *timeline, uint32_t rank, uint64_t sequence);
/* Before the events: this step matters. Without one the first steps do. */
void cd_timeline_look_at(cd_timeline *timeline, uint32_t step);
/* Returns borrowed until fini. */
const cddp_trace_sink *cd_timeline_sink(cd_timeline *timeline);
/* Slices that are still open stay so; rows are given; slices are ordered by rank, lane, begin. Of
** more than `slices_max` those nearest to a step that matters are kept. */
cddp_status cd_timeline_end(cd_timeline *timeline, size_t slices_max,
                            cddp_error *err) CDDP_MUST_CHECK;
/* A group's name; NULL when the run never opened it. */
const char *cd_timeline_group(const cd_timeline *timeline, int64_t group);
const char *cd_lane_name(cd_lane lane); /* "compute" */
