/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by launchers: reads the numbers that they put into the environment, and writes a
** command. */
#pragma once
#include "cddp/backend.h"

/* False when the variable is missing or is not a number. */
bool cd_mpi_number(cddp_environment_fn environment, const char *variable, uint32_t *number);
/* srun started this process as one of a step. *one_host: the whole step is on this machine. */
bool cd_mpi_is_step(cddp_environment_fn environment, bool *one_host);
/* Appends one argument; CDDP_E_LIMIT when the buffer is full. */
cddp_status cd_mpi_word(char *words, size_t words_bytes, const char *word,
                        cddp_error *err) CDDP_MUST_CHECK;
/* Appends NAME=VALUE unless the environment has NAME already: a user's setting wins. */
cddp_status cd_mpi_setting(cddp_environment_fn environment, char *words, size_t words_bytes,
                           const char *setting, cddp_error *err) CDDP_MUST_CHECK;
