/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of programs that no scenario describes: the shards of a recorded job, or a run of a store
** that came from them. What they owe follows from what they show (verify/import/declared.h).
*/
#pragma once
#include "cli/session.h"

/* The operands of `check` and `report` are shards. */
bool cd_imported_is(const cd_args *args);
/* Merges the shards and judges every run of them. */
int cd_imported_check(cd_cli *cli);
/* A run of a store without a scenario. */
cddp_status cd_imported_judge(cd_result *result, const cd_session *session,
                              const cddp_stored_run *run, cddp_error *err) CDDP_MUST_CHECK;
