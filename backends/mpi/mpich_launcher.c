/* SPDX-License-Identifier: Apache-2.0 */
/* mpiexec of MPICH (Hydra). It accepts more ranks than cores, and root, without an option. When
** one of its processes dies it ends the others at once (ends_all). With -disable-auto-cleanup it
** would lose its own proxy.
*/
#include "backends/mpi/mpi_group.h"
#include "backends/mpi/mpi_launch.h"
#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>

static cddp_status command(uint32_t world_size, cddp_environment_fn environment, char *words,
                           size_t words_bytes, cddp_error *err)
{
    char number[16];
    (void)environment;
    words[0] = '\0';
    CD_TRY(cd_mpi_word(words, words_bytes, CDDP_MPI_LAUNCHER, err));
    CD_TRY(cd_mpi_word(words, words_bytes, "-n", err));
    snprintf(number, sizeof number, "%u", world_size);
    CD_TRY(cd_mpi_word(words, words_bytes, number, err));
    return CDDP_OK;
}

/* srun --mpi=pmi2 sets the same variables as Hydra, except the number of ranks on this host. */
static bool identity(cddp_environment_fn environment, uint32_t *rank, uint32_t *world_size,
                     bool *one_host)
{
    uint32_t local = 0;
    bool is_ours = (environment("PMI_FD") != NULL || environment("PMI_PORT") != NULL) &&
                   cd_mpi_number(environment, "PMI_RANK", rank) &&
                   cd_mpi_number(environment, "PMI_SIZE", world_size);
    if (!is_ours) return false;
    if (!cd_mpi_number(environment, "MPI_LOCALNRANKS", &local) &&
        cd_mpi_is_step(environment, one_host))
        return true;
    *one_host = local == *world_size;
    return true;
}

const cddp_launcher cd_mpi_launcher = {.size = sizeof cd_mpi_launcher,
                                       .name = "mpiexec of MPICH (" CDDP_MPI_LAUNCHER ")",
                                       .command = command,
                                       .identity = identity,
                                       .leave = cd_mpi_leave,
                                       .ends_all = true};
