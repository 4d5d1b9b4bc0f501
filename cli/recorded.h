/* SPDX-License-Identifier: Apache-2.0 */
/* Stored runs, as a session reads them: the plan that is replayed or shrunk, and the verdict of the
** checks of today.
**
** Errors     a plan that no longer means what it meant is refused; a scenario that cannot be read
**            any more is an error of recorded_read and a result of recorded_judge.
*/
#pragma once
#include "cli/session.h"
#include "verify/replay/recipe.h"

/* The session's overrides are those of the recipe. */
cddp_status cd_recorded_read_plan(const cd_recipe *recipe, const cd_session *session,
                                  cddp_plan **plan, cddp_error *err) CDDP_MUST_CHECK;
/* Adds to a result as it was found how the ranks ended and who waits for whom. No table keeps that:
** it is read from the events. */
cddp_status cd_recorded_take_ends(cd_result *result, cddp_store *store, const cddp_stored_run *run,
                                  cddp_error *err) CDDP_MUST_CHECK;
/* Shows the run's events to the checks of the session's registry; the plan comes from the stored
** scenario. */
cddp_status cd_recorded_judge(cd_result *result, const cd_session *session,
                              const cddp_stored_run *run, cddp_error *err) CDDP_MUST_CHECK;
