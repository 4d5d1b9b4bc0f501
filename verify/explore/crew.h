/* SPDX-License-Identifier: Apache-2.0 */
/* An exploration by all processes of a job that a launcher (mpirun, srun) started: each is this
** program with the same words. Process 0 deals out the runs of a stretch, block by block, puts
** together what they came to in the order of the runs, and reports; the others serve it. So the
** result is that of one process, whatever their number.
**
** What was dealt out counts when all of it has come back, and not before: when a process dies, the
** launcher ends the job, and a frontier file is that of the last whole stretch.
**
** Lifetime   open → agree → (stretch* → dismiss | serve) → close, in all processes.
** Errors     CDDP_E_BACKEND without the module of the transport; what went wrong in one process is
**            said by process 0.
*/
#pragma once
#include "cli/command.h"
#include "verify/explore/jobs.h"

typedef struct cd_crew cd_crew;

/* *crew is NULL when nobody started this process together with others. */
cddp_status cd_crew_open(cd_cli *cli, cd_crew **crew, cddp_error *err) CDDP_MUST_CHECK;
/* accepts NULL; blocks until all processes are there, when they parted in peace */
void cd_crew_close(cd_crew *crew);
uint32_t cd_crew_get_size(const cd_crew *crew);
/* Process 0, which speaks. NULL: by what the launcher wrote into the environment; true without a
** launcher. */
bool cd_crew_is_first(const cd_crew *crew);

/* Fails in all processes where it failed in one; *mine is what this one has come to. */
cddp_status cd_crew_agree(cd_crew *crew, cddp_status mine, cddp_error *err) CDDP_MUST_CHECK;
/* Process 0. As cd_explore_stretch. */
cddp_status cd_crew_stretch(cd_crew *crew, const cd_explore_jobs *jobs, uint64_t end, bool *done,
                            cddp_error *err) CDDP_MUST_CHECK;
/* Process 0: the others may go. */
cddp_status cd_crew_dismiss(cd_crew *crew, cddp_error *err) CDDP_MUST_CHECK;
/* The others: until they may go. */
cddp_status cd_crew_serve(cd_crew *crew, const cd_explore_jobs *jobs,
                          cddp_error *err) CDDP_MUST_CHECK;
