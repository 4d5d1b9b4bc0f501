/* SPDX-License-Identifier: Apache-2.0 */
/* The operating system, in as few calls as the core needs: a clock, child processes with pipes,
** shared memory.
**
** Only os_posix.c and os_child_posix.c implement it. Everything above asks the world port for time
** instead (D1).
**
** Lifetime   a child is opened, read until its pipes end, polled until it is reaped, then closed.
** Threads    one thread.
** Errors     messages carry the words of the system.
*/
#pragma once
#include "cddp/status.h"

uint64_t cd_os_now_ns(void); /* monotonic */
void cd_os_sleep_ns(uint64_t duration_ns);
/* From here on the calling thread's sleeps end when they are due; Linux prolongs them by 50 us
** otherwise. */
void cd_os_sleep_punctually(void);
uint32_t cd_os_process_id(void);
uint32_t cd_os_core_count(void);
/* "Killed" for 9; never NULL. */
const char *cd_os_signal_text(int signal_number);

cddp_status cd_os_write_all(int fd, const void *bytes, size_t byte_count,
                            cddp_error *err) CDDP_MUST_CHECK;

/* Zeroed memory that children forked afterwards share with us. */
cddp_status cd_os_shared_open(size_t byte_count, void **bytes, cddp_error *err) CDDP_MUST_CHECK;
void cd_os_shared_close(void *bytes, size_t byte_count); /* accepts NULL */

/* What a child writes and we read. */
typedef enum cd_os_pipe {
    CD_OS_PIPE_RESULT,
    CD_OS_PIPE_STDOUT,
    CD_OS_PIPE_STDERR,
    CD_OS_PIPE_COUNT
} cd_os_pipe;

typedef struct cd_os_child {
    int64_t process;           /* -1 once reaped */
    int fds[CD_OS_PIPE_COUNT]; /* -1 when closed */
} cd_os_child;
#define CD_OS_CHILD_NONE   \
    {                      \
        -1, { -1, -1, -1 } \
    }

typedef int (*cd_os_child_fn)(void *argument, int write_fd); /* its return value is the exit code */

/* Forks. The child runs program with the writing end of the result pipe and never returns from
** here; its stdout and stderr go into the other two pipes. It dies with us where the system offers
** that (Linux). */
cddp_status cd_os_child_open(cd_os_child *child, cd_os_child_fn program, void *argument,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Waits until a pipe of one of them can be read or has ended, at most timeout_ns. */
cddp_status cd_os_children_wait(const cd_os_child *children, size_t count, uint64_t timeout_ns,
                                cddp_error *err) CDDP_MUST_CHECK;
/* Takes what has arrived, without waiting; *byte_count 0 when that is nothing. Closes the pipe at
** its end. */
cddp_status cd_os_child_read(cd_os_child *child, cd_os_pipe pipe, void *bytes, size_t byte_capacity,
                             size_t *byte_count, cddp_error *err) CDDP_MUST_CHECK;
void cd_os_child_kill(cd_os_child *child);
/* Goes on twice: here with *process, and with *process 0 in a child of this process, which dies
** with it where the system offers that (Linux). Both have the same stdout and stderr. */
cddp_status cd_os_fork(int64_t *process, cddp_error *err) CDDP_MUST_CHECK;
/* Goes on in a child of this process, which dies with it where the system offers that (Linux). This
** process returns never: it ends when the child ended well, else only when whoever started it has
** gone, or is_wanted, which it asks ten times a second, says no. */
cddp_status cd_os_shelter(bool (*is_wanted)(void *context), void *context,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Is a process of this machine stopped (SIGSTOP)? False where the system does not tell (elsewhere
** than on Linux). */
bool cd_os_process_is_stopped(int64_t process);
/* Has it ended? Then *exit_code, or *signal_number when a signal ended it. Never blocks. True for a
** child that was reaped before, without writing. */
bool cd_os_child_poll(cd_os_child *child, int *exit_code, int *signal_number);
/* kills and reaps when still running; accepts CD_OS_CHILD_NONE */
void cd_os_child_close(cd_os_child *child);
