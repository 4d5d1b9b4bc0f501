/* SPDX-License-Identifier: Apache-2.0 */
/* Says what this machine lacks for GPUs.
**
** A child process asks: after a fork CUDA does not work in the child of a process that has used
** it, and the program forks its ranks later.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/nccl/cuda.h"

#include "core/base/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define CAPABILITY_MAJOR_MIN 8 /* the oldest architecture that the kernels are compiled for */

/* "" when a GPU can be used. */
static void find_out(char *text, size_t bytes)
{
    int count = 0, major = 0, minor = 0;
    text[0] = '\0';
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        const char *words = dlerror();
        snprintf(text, bytes, "there is no NVIDIA driver (%s)",
                 words != NULL ? words : "libcuda.so.1 is missing");
        return;
    }
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorInsufficientDriver) {
        int driver_version = 0;
        (void)cudaDriverGetVersion(&driver_version);
        snprintf(text, bytes, "the NVIDIA driver speaks CUDA %d.%d, and this build needs %d.%d",
                 driver_version / 1000, driver_version % 1000 / 10, CUDART_VERSION / 1000,
                 CUDART_VERSION % 1000 / 10);
    } else if (code != cudaSuccess || count < 1) {
        snprintf(text, bytes, "no usable GPU: %s",
                 code != cudaSuccess ? cudaGetErrorString(code) : "the driver shows none");
    } else if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) !=
                   cudaSuccess ||
               cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) !=
                   cudaSuccess) {
        snprintf(text, bytes, "GPU 0 does not say what it is: %s",
                 cudaGetErrorString(cudaGetLastError()));
    } else if (major < CAPABILITY_MAJOR_MIN) {
        snprintf(text, bytes, "GPU 0 has compute capability %d.%d, and the kernels need %d.0",
                 major, minor, CAPABILITY_MAJOR_MIN);
    }
}

static size_t read_all(int fd, char *text, size_t bytes)
{
    size_t used = 0;
    while (used < bytes) {
        ssize_t got = read(fd, text + used, bytes - used);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        used += (size_t)got;
    }
    return used;
}

cddp_status cd_cuda_probe(cddp_error *err)
{
    char text[400];
    int fds[2], how = 0;
    if (pipe(fds) != 0) return cd_fail(err, CDDP_E_IO, "cannot ask for a GPU: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        find_out(text, sizeof text);
        ssize_t written = write(fds[1], text, strlen(text) + 1);
        _exit(written < 0);
    }
    close(fds[1]);
    size_t used = child > 0 ? read_all(fds[0], text, sizeof text - 1) : 0;
    close(fds[0]);
    if (child < 0) return cd_fail(err, CDDP_E_IO, "cannot ask for a GPU: %s", strerror(errno));
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) continue;
    text[used] = '\0';
    if (used == 0)
        return cd_fail(err, CDDP_E_BACKEND,
                       "the CUDA runtime ended the process that asked it for a GPU (status %d)",
                       how);
    if (text[0] != '\0') return cd_fail(err, CDDP_E_BACKEND, "%s", text);
    return CDDP_OK;
}
