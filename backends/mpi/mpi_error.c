/* SPDX-License-Identifier: Apache-2.0 */
/* Reports a failed call of MPI with MPI's own text. */
#include "backends/mpi/mpi_group.h"

#include "core/base/error.h"

cddp_status cd_mpi_check(int code, const char *what, cddp_error *err)
{
    if (code == MPI_SUCCESS) return CDDP_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0, class = MPI_ERR_OTHER;
    MPI_Error_string(code, text, &length);
    MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE)
        return cd_fail(err, CDDP_E_MISMATCH,
                       "ranks disagree: in %s a message is longer than its receiver expects", what);
    return cd_fail(err, CDDP_E_BACKEND, "mpi: %s failed: %s", what, text);
}
