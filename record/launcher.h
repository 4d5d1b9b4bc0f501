/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank of which job this process is, from the variables of whoever started it: torchrun,
** srun, or an MPI launcher.
**
** Lifetime   a value; its texts are in it.
** Errors     a variable that is there and makes no sense is named.
*/
#pragma once
#include "cddp/status.h"

typedef enum cd_launcher_kind {
    CD_LAUNCHER_NONE, /* nobody: a process alone */
    CD_LAUNCHER_TORCHRUN,
    CD_LAUNCHER_SLURM,
    CD_LAUNCHER_MPI
} cd_launcher_kind;

typedef struct cd_launcher {
    cd_launcher_kind kind;
    uint32_t rank, world_size;
    uint32_t generation; /* how often the launcher restarted the job */
    uint64_t job;        /* a digest of its number, equal on all ranks; 0: none is known */
    char host[256];      /* of rank 0; "": not said */
    uint16_t port;       /* 0: not said */
    const char *secret;  /* of the environment; NULL: none */
} cd_launcher;

cddp_status cd_launcher_read(cd_launcher *launcher, cddp_error *err) CDDP_MUST_CHECK;
/* Of a process that nobody started: variables that name one of several ranks, and lack what a
** launcher sets beside them, are an error. It would train alone. */
cddp_status cd_launcher_check(const cd_launcher *launcher, cddp_error *err) CDDP_MUST_CHECK;
/* A variable, or NULL: the only place of the library that reads the environment. */
const char *cd_launcher_variable(const char *name);
