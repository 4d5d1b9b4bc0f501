/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes on POSIX: fork, three pipes each, poll, waitpid.
**
** The parent's ends of the pipes do not block: a child that writes half a record must not delay the
** others. A grandchild may keep a pipe open; the parent closes it together with the child.
*/
#define _POSIX_C_SOURCE 200809L
#include "core/base/os.h"

#include "core/base/alloc.h"
#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Runs in a child. The parent may have died before prctl took effect, so it is compared
** afterwards. SIGTERM ends a child at once: the parent's handler would only raise a flag. */
static void die_with(pid_t parent)
{
    signal(SIGTERM, SIG_DFL);
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
#else
    (void)parent;
#endif
}

/* A SIGTERM that comes before the child has left the parent's handler waits until it has. */
static pid_t fork_child(void)
{
    sigset_t blocked, before;
    const pid_t parent = getpid();
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    const pid_t pid = fork();
    if (pid == 0) die_with(parent);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid;
}

/* The child's side of the fork. */
static void child_main(int ends[CD_OS_PIPE_COUNT][2], cd_os_child_fn program, void *argument)
{
    dup2(ends[CD_OS_PIPE_STDOUT][1], STDOUT_FILENO);
    dup2(ends[CD_OS_PIPE_STDERR][1], STDERR_FILENO);
    close_fd(&ends[CD_OS_PIPE_STDOUT][1]);
    close_fd(&ends[CD_OS_PIPE_STDERR][1]);
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) close_fd(&ends[i][0]);
    int code = program(argument, ends[CD_OS_PIPE_RESULT][1]);
    fflush(NULL);
    _exit(code); /* not exit(): the registered handlers belong to the parent */
}

cddp_status cd_os_child_open(cd_os_child *child, cd_os_child_fn program, void *argument,
                             cddp_error *err)
{
    cddp_status status = CDDP_OK;
    int ends[CD_OS_PIPE_COUNT][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) {
        if (pipe(ends[i]) == 0 && fcntl(ends[i][0], F_SETFL, O_NONBLOCK) == 0) continue;
        status = cd_fail(err, CDDP_E_NOMEM, "cannot make a pipe: %s", strerror(errno));
        goto out;
    }
    fflush(NULL); /* or the child would print our buffered output again */
    const pid_t pid = fork_child();
    if (pid < 0) {
        status = cd_fail(err, CDDP_E_NOMEM, "cannot start a process: %s", strerror(errno));
        goto out;
    }
    if (pid == 0) child_main(ends, program, argument);
    child->process = pid;
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) {
        child->fds[i] = ends[i][0];
        ends[i][0] = -1;
    }
out:
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) {
        close_fd(&ends[i][0]);
        close_fd(&ends[i][1]);
    }
    return status;
}

cddp_status cd_os_children_wait(const cd_os_child *children, size_t count, uint64_t timeout_ns,
                                cddp_error *err)
{
    size_t slots = count * CD_OS_PIPE_COUNT;
    struct pollfd *polled = cd_allocate_array(NULL, slots, sizeof *polled);
    if (polled == NULL) return cd_fail_memory(err, "the pipes of %zu processes", count);
    /* poll skips descriptors below zero. */
    for (size_t i = 0; i < slots; i++)
        polled[i] = (struct pollfd){.fd = children[i / CD_OS_PIPE_COUNT].fds[i % CD_OS_PIPE_COUNT],
                                    .events = POLLIN};
    uint64_t timeout_ms = (timeout_ns + 999999) / 1000000;
    int ready = poll(polled, (nfds_t)slots, timeout_ms > 1000000000 ? 1000000000 : (int)timeout_ms);
    int reason = errno;
    cd_release(NULL, polled, slots * sizeof *polled);
    if (ready < 0 && reason != EINTR)
        return cd_fail(err, CDDP_E_IO, "cannot wait for child processes: %s", strerror(reason));
    return CDDP_OK;
}

cddp_status cd_os_child_read(cd_os_child *child, cd_os_pipe pipe, void *bytes, size_t byte_capacity,
                             size_t *byte_count, cddp_error *err)
{
    ssize_t n = 0;
    if (child->fds[pipe] >= 0) {
        n = read(child->fds[pipe], bytes, byte_capacity);
        /* A socket is reset when its peer was killed with unread bytes. That counts as its end. */
        bool reset = n < 0 && errno == ECONNRESET;
        if (n == 0 || reset) close_fd(&child->fds[pipe]);
        if (n < 0 && !reset && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return cd_fail(err, CDDP_E_IO, "cannot read from a child process: %s", strerror(errno));
    }
    *byte_count = n > 0 ? (size_t)n : 0;
    return CDDP_OK;
}

void cd_os_child_kill(cd_os_child *child)
{
    if (child->process > 0) kill((pid_t)child->process, SIGKILL);
}

void cd_os_child_interrupt(cd_os_child *child)
{
    if (child->process > 0) kill((pid_t)child->process, SIGUSR1);
}

bool cd_os_child_poll(cd_os_child *child, int *exit_code, int *signal_number)
{
    if (child->process <= 0) return true;
    int status = 0;
    if (waitpid((pid_t)child->process, &status, WNOHANG) != (pid_t)child->process) return false;
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
    for (int i = 0; i < CD_OS_PIPE_COUNT; i++) close_fd(&child->fds[i]);
}

cddp_status cd_os_fork(int64_t *process, cddp_error *err)
{
    fflush(NULL); /* or the child would print our buffered output again */
    const pid_t pid = fork_child();
    if (pid < 0) return cd_fail(err, CDDP_E_NOMEM, "cannot start a process: %s", strerror(errno));
    *process = pid;
    return CDDP_OK;
}

cddp_status cd_os_shelter(bool (*is_wanted)(void *context), void *context, cddp_error *err)
{
    int state = 0;
    int64_t child = 0;
    pid_t above = getppid();
    CD_TRY(cd_os_fork(&child, err));
    if (child == 0) return CDDP_OK;
    while (waitpid((pid_t)child, &state, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(state) && WEXITSTATUS(state) == 0) _exit(0);
    while (getppid() == above && is_wanted(context)) cd_os_sleep_ns(UINT64_C(100000000));
    _exit(1);
}

/* The letter of its state, as in "123 (name) T …". The name may be anything. 0: none such. */
static char state_of(int64_t process)
{
    char path[48], text[512];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = '\0';
    const char *end = strrchr(text, ')');
    return end != NULL && end[1] == ' ' ? end[2] : '\0';
}

bool cd_os_process_is_stopped(int64_t process) { return state_of(process) == 'T'; }

bool cd_os_process_is_running(int64_t process)
{
    const char state = process > 0 ? state_of(process) : '\0';
    return state != '\0' && strchr("ZXx", state) == NULL;
}

void cd_os_read_boot(char *boot, size_t byte_count)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, byte_count - 1) : -1;
    if (fd >= 0) close(fd);
    boot[n > 0 ? n : 0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
}
