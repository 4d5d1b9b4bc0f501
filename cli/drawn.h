/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines for the results of a report: of those runs whose events a store has.
**
** Ownership  a drawing owns its timelines.
** Errors     a store that cannot be read is an error; runs that are not drawn, since there are too
**            many, are named in `why`.
*/
#pragma once
#include "verify/report/report.h"
#include "verify/timeline/timeline.h"

typedef struct cd_drawn {
    cd_timeline *timelines;    /* (count) */
    const cd_timeline **shown; /* (count) NULL where a run is not drawn */
    size_t count;
    cd_text why; /* "" when all are drawn */
} cd_drawn;

void cd_drawn_init(cd_drawn *drawn);
void cd_drawn_fini(cd_drawn *drawn);
/* store NULL: nothing was recorded. */
cddp_status cd_drawn_take(cd_drawn *drawn, const char *store, const cd_report *report,
                          cddp_error *err) CDDP_MUST_CHECK;
