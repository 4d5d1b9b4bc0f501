/* SPDX-License-Identifier: Apache-2.0 */
/* What a run cost, from its events: in the time of its world, which on the simulator is virtual.
**
**   step      from the first forward to the last optimizer step, by the number of steps
**   exposed   how long the rank that waits longest waits for collectives, in a step
**   bytes     what a rank hands to collectives in a step, on the rank with the most
**   memory    the most bytes that the buckets of a rank have, the regions that its device shows,
**             and the full parameters of a sharded model
**
** Of a sharded model what the judge is shown is gathered between steps. So a step is there from the
** first unit's forward to the end of backward, and nothing else counts.
**
** The first `skip` steps can be left out: buckets are rebuilt after the first one. A step is then
** from the end of one to the end of the next. Memory is always that of the whole run.
**
** Lifetime   init → the sink takes the events of one run → end → read → fini.
** Errors     taking an event cannot fail; end reports that memory ran out.
*/
#pragma once
#include "cddp/trace.h"
#include "core/base/arena.h"

typedef struct cd_cost {
    double step_ns, exposed_ns, bytes, memory;
} cd_cost;

typedef struct cd_measure {
    cd_arena arena;
    uint64_t skip;
    struct cd_measure_rank *ranks; /* (rank_count) */
    size_t rank_count, rank_capacity;
    struct cd_region *regions; /* (region_count) allocated, and not released */
    size_t region_count, region_capacity;
    cddp_trace_sink sink;
} cd_measure;

void cd_measure_init(cd_measure *measure, uint64_t skip);
void cd_measure_fini(cd_measure *measure); /* accepts a zeroed one */
/* Returns borrowed until fini. */
const cddp_trace_sink *cd_measure_sink(cd_measure *measure);
cddp_status cd_measure_end(const cd_measure *measure, cd_cost *cost,
                           cddp_error *err) CDDP_MUST_CHECK;
