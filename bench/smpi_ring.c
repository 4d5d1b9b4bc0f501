/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of sim_bench as an MPI program, for SimGrid's SMPI: 2(N-1) steps, each sends a chunk to
** one neighbour and receives one from the other. Payload is shared memory, so that nothing is
** copied.
**
**     smpirun … smpi_ring BYTES
*/
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int chunk = (int)((argc > 1 ? atoll(argv[1]) : 4096) / size);
    char *data = SMPI_SHARED_MALLOC((size_t)chunk + 1);
    double start = MPI_Wtime();
    for (int step = 0; step < 2 * (size - 1); step++)
        MPI_Sendrecv(data, chunk, MPI_BYTE, (rank + size - 1) % size, 0, data, chunk, MPI_BYTE,
                     (rank + 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double mine = MPI_Wtime() - start, last;
    MPI_Reduce(&mine, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("simulated %.6f s\n", last);
    SMPI_SHARED_FREE(data);
    MPI_Finalize();
    return 0;
}
