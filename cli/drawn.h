/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines for the results of a report: of those runs whose events can be had, from a store or
** from the shards of a recorded job.
**
** Ownership  a drawing owns its timelines.
** Errors     events that cannot be read are an error; runs that are not drawn, since there are too
**            many, are named in `why`.
*/
#pragma once
#include "verify/report/report.h"
#include "verify/timeline/timeline.h"

/* Where the events of results are. */
typedef struct cd_drawn_events {
    const char *name; /* of the file or folder */
    bool (*has)(const void *source, const cd_report *report, size_t result);
    cddp_status (*replay)(void *source, const cd_report *report, size_t result,
                          const cddp_trace_sink *sink, cddp_error *err);
    void *source;
} cd_drawn_events;

typedef struct cd_drawn {
    cd_timeline *timelines;    /* (count) */
    const cd_timeline **shown; /* (count) NULL where a run is not drawn */
    size_t count;
    cd_text why; /* "" when all are drawn */
} cd_drawn;

void cd_drawn_init(cd_drawn *drawn);
void cd_drawn_fini(cd_drawn *drawn);
/* events NULL: nothing was recorded. A timeline has at most `slices_max` slices. */
cddp_status cd_drawn_take(cd_drawn *drawn, const cd_drawn_events *events, const cd_report *report,
                          size_t slices_max, cddp_error *err) CDDP_MUST_CHECK;
/* The same with the runs of a store; NULL: nothing was recorded. */
cddp_status cd_drawn_take_stored(cd_drawn *drawn, const char *store, const cd_report *report,
                                 size_t slices_max, cddp_error *err) CDDP_MUST_CHECK;
