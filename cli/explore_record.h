/* SPDX-License-Identifier: Apache-2.0 */
/* Results of an exploration, as runs of a trace store: of every outcome that is not verified, the
** first schedule that led to it, whichever process met it, run once more and recorded here. So
** report, replay, check, diff and shrink read it.
**
** Errors     CDDP_E_STATE when a schedule does not repeat what it came to while it was explored.
*/
#pragma once
#include "cddp/store.h"
#include "verify/explore/frontier.h"
#include "cli/session.h"

typedef struct cd_explore_recorded {
    uint64_t runs;     /* added to the store */
    uint64_t known;    /* were there already, from an earlier session */
    uint64_t too_long; /* outcomes whose choices are too many for a choice string */
} cd_explore_recorded;

/* session: of the exploration, its overrides and store; plan: as it was explored. */
cddp_status cd_explore_record(const cd_session *session, const cddp_plan *plan, const char *source,
                              const cd_failures *failures, cd_explore_recorded *recorded,
                              cddp_error *err) CDDP_MUST_CHECK;
