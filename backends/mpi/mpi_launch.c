/* SPDX-License-Identifier: Apache-2.0 */
/* Reads numbers and writes commands; nothing here is specific to one MPI. */
#include "backends/mpi/mpi_launch.h"

#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cd_mpi_number(cddp_environment_fn environment, const char *variable, uint32_t *number)
{
    const char *text = environment(variable);
    char *end = NULL;
    unsigned long value = text != NULL ? strtoul(text, &end, 10) : 0;
    if (text == NULL || end == text || *end != '\0' || value > UINT32_MAX) return false;
    *number = (uint32_t)value;
    return true;
}

bool cd_mpi_is_step(cddp_environment_fn environment, bool *one_host)
{
    uint32_t nodes = 0;
    if (environment("SLURM_STEP_ID") == NULL) return false;
    *one_host = (cd_mpi_number(environment, "SLURM_STEP_NUM_NODES", &nodes) ||
                 cd_mpi_number(environment, "SLURM_NNODES", &nodes)) &&
                nodes == 1;
    return true;
}

cddp_status cd_mpi_word(char *words, size_t words_bytes, const char *word, cddp_error *err)
{
    size_t used = strlen(words);
    int n = snprintf(words + used, words_bytes - used, "%s%s", used > 0 ? "\n" : "", word);
    if (n < 0 || (size_t)n >= words_bytes - used)
        return cd_fail(err, CDDP_E_LIMIT, "the command of the launcher is too long");
    return CDDP_OK;
}

cddp_status cd_mpi_setting(cddp_environment_fn environment, char *words, size_t words_bytes,
                           const char *setting, cddp_error *err)
{
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(setting, "="), setting);
    if (environment(name) != NULL) return CDDP_OK;
    CD_TRY(cd_mpi_word(words, words_bytes, setting, err));
    return CDDP_OK;
}
