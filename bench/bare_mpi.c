/* SPDX-License-Identifier: Apache-2.0 */
/* MPI as a C program calls it from a separate thread: the same non-blocking operation, and
** MPI_Wait. */
#include "bench/bare.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

struct bare {
    MPI_Comm comm;
};

const char *const bare_name = "MPI_Iallreduce and MPI_Wait";

bare *bare_open(const char *directory, int rank, int size)
{
    (void)directory;
    (void)rank;
    (void)size;
    bare *library = malloc(sizeof *library);
    /* our backend has initialised MPI */
    if (library != NULL && MPI_Comm_dup(MPI_COMM_WORLD, &library->comm) == MPI_SUCCESS)
        return library;
    fprintf(stderr, "bare MPI: no communicator\n");
    free(library);
    return NULL;
}

bool bare_allreduce(bare *library, float *data, size_t count)
{
    MPI_Request request;
    if (MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, library->comm,
                       &request) == MPI_SUCCESS &&
        MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS)
        return true;
    fprintf(stderr, "bare MPI: an all-reduce failed\n");
    return false;
}

void bare_close(bare *library)
{
    MPI_Comm_free(&library->comm);
    free(library);
}
