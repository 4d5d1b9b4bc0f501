/* SPDX-License-Identifier: Apache-2.0 */
/* MPI as a C program calls it from a thread of its own: the same non-blocking operation, and MPI_Wait. */
#include "bench/bare.h"

#include <mpi.h>
#include <stdio.h>

static MPI_Comm comm = MPI_COMM_NULL;

const char *const bare_name = "MPI_Iallreduce and MPI_Wait";

bool bare_open(const char *directory, int rank, int size)
{
    (void)directory;
    (void)rank;
    (void)size;
    return MPI_Comm_dup(MPI_COMM_WORLD, &comm) == MPI_SUCCESS; /* our backend has initialised it */
}

bool bare_allreduce(float *data, size_t count)
{
    MPI_Request request;
    if (MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, comm, &request) == MPI_SUCCESS &&
        MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS)
        return true;
    fprintf(stderr, "bare MPI: an all-reduce failed\n");
    return false;
}

void bare_close(void) { MPI_Comm_free(&comm); }
