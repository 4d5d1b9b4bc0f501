/* SPDX-License-Identifier: Apache-2.0 */
/* Results of stored runs, as they were found when they were recorded. */
#pragma once
#include "verify/report/result.h"

/* Facts of a stored run beside its verdict: source, digests, the lines that repeat it. */
void cd_stored_describe(cd_result *result, const cddp_store *store, const cddp_stored_run *run);
/* Fills a result with what the store says about a run, context included. */
cddp_status cd_stored_take(cd_result *result, cddp_store *store, const cddp_stored_run *run,
                           cddp_error *err) CDDP_MUST_CHECK;
