/* SPDX-License-Identifier: Apache-2.0 */
/* An exploration by all processes of a job that a launcher (mpirun, srun) started: each is this
** program with the same arguments. Process 0 divides the runs of a stretch into blocks, takes the
** results in the order of the runs, and reports; the others serve it. So the result is that of one
** process, whatever their number.
**
** A stretch counts when all its blocks have come back, and not before. When a process dies, the
** launcher ends the job, and a frontier file is that of the last whole stretch.
**
** Lifetime   open → agree → (stretch* → dismiss | serve) → close, in all processes.
** Errors     CDDP_E_BACKEND without the module of the transport; what went wrong in one process is
**            said by process 0.
*/
#pragma once
#include "cddp/backend.h"
#include "verify/explore/jobs.h"

typedef struct cd_cluster cd_cluster;

typedef struct cd_cluster_options {
    /* Sees to it that a backend of this name can be opened, and finds it; NULL: it has none. */
    cddp_status (*find_backend)(void *context, const char *name, const cddp_backend **backend,
                                cddp_error *err);
    void *context;
    cddp_environment_fn environment; /* the launcher's variables */
} cd_cluster_options;

/* *cluster is NULL when nobody started this process together with others. */
cddp_status cd_cluster_open(const cd_cluster_options *options, cd_cluster **cluster,
                            cddp_error *err) CDDP_MUST_CHECK;
/* accepts NULL; blocks until all processes are there, when they parted in peace */
void cd_cluster_close(cd_cluster *cluster);
uint32_t cd_cluster_get_size(const cd_cluster *cluster);
/* Process 0, which speaks. NULL: by what the launcher wrote into the environment; true without a
** launcher. */
bool cd_cluster_is_first(const cd_cluster *cluster, cddp_environment_fn environment);

/* Fails in all processes where it failed in one; `mine` is the status of this one. */
cddp_status cd_cluster_agree(cd_cluster *cluster, cddp_status mine,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Process 0. As cd_explore_stretch. */
cddp_status cd_cluster_stretch(cd_cluster *cluster, const cd_explore_jobs *jobs, uint64_t end,
                               bool *done, cddp_error *err) CDDP_MUST_CHECK;
/* Process 0: the others may go. */
cddp_status cd_cluster_dismiss(cd_cluster *cluster, cddp_error *err) CDDP_MUST_CHECK;
/* The others: until they may go. */
cddp_status cd_cluster_serve(cd_cluster *cluster, const cd_explore_jobs *jobs,
                             cddp_error *err) CDDP_MUST_CHECK;
