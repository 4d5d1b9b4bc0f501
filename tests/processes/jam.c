/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before the C library and MPI, where CDDP_TEST_JAM says so: nobody can be connected to
** ("connect"), or MPI never comes up ("mpi"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

__attribute__((visibility("default"))) int connect(int fd, const struct sockaddr *address,
                                                   socklen_t length);
__attribute__((visibility("default"))) int MPI_Init_thread(int *argc, char ***argv, int required,
                                                           int *provided);

typedef int (*connect_fn)(int fd, const struct sockaddr *address, socklen_t length);

static bool jams(const char *what)
{
    const char *wanted = getenv("CDDP_TEST_JAM");
    return wanted != NULL && strcmp(wanted, what) == 0;
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    void *found = dlsym(RTLD_NEXT, "connect");
    connect_fn next;
    memcpy(&next, &found, sizeof next);
    if (!jams("connect") || address->sa_family == AF_UNIX) return next(fd, address, length);
    errno = ECONNREFUSED;
    return -1;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    (void)argc, (void)argv, (void)required, (void)provided;
    for (;;) pause();
}
