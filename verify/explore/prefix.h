/* SPDX-License-Identifier: Apache-2.0 */
/* What all schedules of an exploration have in common, run once.
**
** Up to the first choice that is varied every run is the same: models are built, buckets planned,
** states broadcast, and the judge has seen it. There the world (sim/snapshot.c) and all of the run
** that lies outside it (one block of memory: judge, tap, the oracle's share, the storage of
** tensors) are copied, and every further run begins by copying them back. Nothing is left out of
** judging: a check that is put back has seen the events before that moment. Ranks that are still on
** their way to their own first choice go up to it first (cd_sim_gather): that is the same in every
** run too.
**
** Lifetime   create → (start, keep when there is something to, end)* or (resume, end)* → destroy,
**            after the world.
** Errors     what cannot be kept is run from its beginning, every time; that is no error.
*/
#pragma once
#include "core/run/run.h"
#include "sim/world.h"
#include "verify/explore/witness.h"

typedef struct cd_explore_prefix cd_explore_prefix;

/* *prefix stays NULL where worlds cannot be copied. */
cddp_status cd_explore_prefix_create(cd_explore_prefix **prefix, cddp_error *err) CDDP_MUST_CHECK;
void cd_explore_prefix_destroy(cd_explore_prefix *prefix); /* accepts NULL */

/* Forgets everything. No world may hold anything of an earlier run any more. */
void cd_explore_prefix_clear(cd_explore_prefix *prefix);
/* Runs from the beginning. options: no sinks; borrowed until clear, except its allocator, which is
** not used. recall: may be NULL; else the run has a witness. */
cddp_status cd_explore_prefix_start(cd_explore_prefix *prefix, const cddp_run_options *options,
                                    struct cd_recall *recall, cddp_error *err) CDDP_MUST_CHECK;
/* Called at a pending choice of a run that was started: here all others may begin. */
void cd_explore_prefix_keep(cd_explore_prefix *prefix, cd_sim *sim);
bool cd_explore_prefix_is_kept(const cd_explore_prefix *prefix);
/* something was started since create or clear */
bool cd_explore_prefix_is_used(const cd_explore_prefix *prefix);
/* Runs from there. */
cddp_status cd_explore_prefix_resume(cd_explore_prefix *prefix, cd_sim *sim,
                                     cddp_error *err) CDDP_MUST_CHECK;
/* What the run that was started or resumed showed; NULL: it began without a recall. Valid until the
** next one. */
const cd_witness *cd_explore_prefix_get_witness(const cd_explore_prefix *prefix);
/* Every rank of it returned without an error. */
bool cd_explore_prefix_has_returned(const cd_explore_prefix *prefix);
/* The verdict on the run that was started or resumed; to be destroyed before the next one. */
cddp_status cd_explore_prefix_end(cd_explore_prefix *prefix, cddp_verdict **verdict,
                                  cddp_error *err) CDDP_MUST_CHECK;
