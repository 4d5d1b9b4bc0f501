/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun of Open MPI.
**
** Ranks yield the processor while they wait, are not bound to cores and use shared memory: a
** verification usually has more ranks than cores. mpirun refuses root without two variables, and
** more ranks than cores without an option; they are set only where needed. A rank that dies does
** not end the others: the watcher first lets them report what they were waiting for. A setting that
** the environment already has is kept.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/mpi/mpi_group.h"
#include "backends/mpi/mpi_launch.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static cddp_status command(uint32_t world_size, cddp_environment_fn environment, char *words,
                           size_t words_bytes, cddp_error *err)
{
    static const char *const settings[] = {"OMPI_MCA_mpi_yield_when_idle=1",
                                           "OMPI_MCA_hwloc_base_binding_policy=none",
                                           "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=self,vader",
                                           "OMPI_MCA_oob_tcp_if_include=lo"};
    /* What ranks that are killed leave: shared memory, and the job's own files. */
    static const char *const folders[] = {"OMPI_MCA_btl_vader_backing_directory",
                                          "OMPI_MCA_orte_tmpdir_base"};
    const char *scratch = environment("CDDP_SCRATCH");
    char number[16], setting[640];
    words[0] = '\0';
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        CD_TRY(cd_mpi_setting(environment, words, words_bytes, settings[i], err));
    for (size_t i = 0; scratch != NULL && i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(setting, sizeof setting, "%s=%.511s", folders[i], scratch);
        CD_TRY(cd_mpi_setting(environment, words, words_bytes, setting, err));
    }
    CD_TRY(cd_mpi_word(words, words_bytes, CDDP_MPI_LAUNCHER, err));
    CD_TRY(cd_mpi_word(words, words_bytes, "-q", err));
    CD_TRY(cd_mpi_word(words, words_bytes, "--enable-recovery", err));
    if (geteuid() == 0) CD_TRY(cd_mpi_word(words, words_bytes, "--allow-run-as-root", err));
    if (world_size > cd_os_core_count())
        CD_TRY(cd_mpi_word(words, words_bytes, "--oversubscribe", err));
    CD_TRY(cd_mpi_word(words, words_bytes, "-n", err));
    snprintf(number, sizeof number, "%u", world_size);
    CD_TRY(cd_mpi_word(words, words_bytes, number, err));
    return CDDP_OK;
}

/* srun with PMIx or PMI2 also starts ranks, and sets its own variables. */
static bool identity(cddp_environment_fn environment, uint32_t *rank, uint32_t *world_size,
                     bool *one_host)
{
    uint32_t local = 0;
    if (cd_mpi_number(environment, "OMPI_COMM_WORLD_RANK", rank) &&
        cd_mpi_number(environment, "OMPI_COMM_WORLD_SIZE", world_size)) {
        *one_host = cd_mpi_number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", &local) &&
                    local == *world_size;
        return true;
    }
    bool has_manager = environment("PMIX_RANK") != NULL || environment("PMI2_VERSION") != NULL ||
                       environment("PMI_FD") != NULL;
    return has_manager && cd_mpi_is_step(environment, one_host) &&
           cd_mpi_number(environment, "SLURM_PROCID", rank) &&
           (cd_mpi_number(environment, "SLURM_STEP_NUM_TASKS", world_size) ||
            cd_mpi_number(environment, "SLURM_NTASKS", world_size));
}

const cddp_launcher cd_mpi_launcher = {.size = sizeof cd_mpi_launcher,
                                       .name = "mpirun of Open MPI (" CDDP_MPI_LAUNCHER ")",
                                       .command = command,
                                       .identity = identity,
                                       .leave = cd_mpi_leave};
