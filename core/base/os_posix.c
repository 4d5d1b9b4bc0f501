/* SPDX-License-Identifier: Apache-2.0 */
/* The only clock, process and descriptor calls of the core. */
#define _POSIX_C_SOURCE 200809L
#include "core/base/os.h"

#include "core/base/error.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t cd_os_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void cd_os_sleep_ns(uint64_t duration_ns)
{
    struct timespec t = {(time_t)(duration_ns / UINT64_C(1000000000)), (long)(duration_ns % UINT64_C(1000000000))};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

uint32_t cd_os_process_id(void)
{
    return (uint32_t)getpid();
}

uint32_t cd_os_core_count(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

cddp_status cd_os_child_open(cd_os_child *child, cd_os_child_fn program, void *argument, cddp_error *err)
{
    int ends[2];
    if (pipe(ends) != 0) return cd_fail(err, CDDP_E_IO, "cannot make a pipe: %s", strerror(errno));
    fflush(NULL); /* or the child would print our buffered output again */
    pid_t pid = fork();
    if (pid < 0) {
        int reason = errno;
        close(ends[0]);
        close(ends[1]);
        return cd_fail(err, CDDP_E_LIMIT, "cannot start a process: %s", strerror(reason));
    }
    if (pid == 0) {
        close(ends[0]);
        int code = program(argument, ends[1]);
        fflush(NULL);
        _exit(code);
    }
    close(ends[1]);
    *child = (cd_os_child){pid, ends[0]};
    return CDDP_OK;
}

cddp_status cd_os_child_read(cd_os_child *child, void *bytes, size_t byte_capacity, uint64_t timeout_ns,
                             size_t *byte_count, bool *closed, cddp_error *err)
{
    struct pollfd p = {.fd = child->read_fd, .events = POLLIN};
    uint64_t timeout_ms = timeout_ns / 1000000;
    int ready = poll(&p, 1, timeout_ms > 1000000000 ? 1000000000 : (int)timeout_ms);
    *byte_count = 0;
    *closed = false;
    if (ready == 0 || (ready < 0 && errno == EINTR)) return CDDP_OK;
    if (ready < 0) return cd_fail(err, CDDP_E_IO, "cannot wait for a child process: %s", strerror(errno));
    ssize_t n = read(child->read_fd, bytes, byte_capacity);
    if (n < 0 && errno == EINTR) return CDDP_OK;
    if (n < 0) return cd_fail(err, CDDP_E_IO, "cannot read from a child process: %s", strerror(errno));
    *byte_count = (size_t)n;
    *closed = n == 0;
    return CDDP_OK;
}

void cd_os_child_signal(cd_os_child *child, int signal_number)
{
    if (child->process > 0) kill((pid_t)child->process, signal_number);
}

bool cd_os_child_poll(cd_os_child *child, int *exit_code, int *signal_number)
{
    if (child->process <= 0) return true;
    int status = 0;
    pid_t got = waitpid((pid_t)child->process, &status, WNOHANG);
    if (got != (pid_t)child->process) return false;
    child->process = -1;
    *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    *signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return true;
}

void cd_os_child_close(cd_os_child *child)
{
    if (child->process > 0) {
        kill((pid_t)child->process, SIGKILL);
        while (waitpid((pid_t)child->process, NULL, 0) < 0 && errno == EINTR) {
        }
        child->process = -1;
    }
    if (child->read_fd >= 0) close(child->read_fd);
    child->read_fd = -1;
}

cddp_status cd_os_write_all(int fd, const void *bytes, size_t byte_count, cddp_error *err)
{
    const char *at = bytes;
    while (byte_count > 0) {
        ssize_t n = write(fd, at, byte_count);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cd_fail(err, CDDP_E_IO, "cannot write: %s", strerror(errno));
        at += n;
        byte_count -= (size_t)n;
    }
    return CDDP_OK;
}
