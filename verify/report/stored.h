/* SPDX-License-Identifier: Apache-2.0 */
/* Results of stored runs: as they were found when recorded, or judged again. */
#pragma once
#include "cli/session.h"

/* Fills a result with what the store says about a run, context included. */
cddp_status cd_stored_take(cd_result *result, cddp_store *store, const cddp_stored_run *run,
                           cddp_error *err) CDDP_MUST_CHECK;
/* Shows the run's events to the checks of the session's registry; the plan comes from the stored
** scenario. */
cddp_status cd_stored_judge(cd_result *result, const cd_session *session,
                            const cddp_stored_run *run, cddp_error *err) CDDP_MUST_CHECK;
