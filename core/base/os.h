/* SPDX-License-Identifier: Apache-2.0 */
/* The calls to the operating system that the core needs: a clock, child processes with pipes,
** shared memory.
**
** Only os_posix.c and os_child_posix.c implement it. All other code asks the world port for time
** (D1).
**
** Lifetime   a child is opened, read until its pipes end, polled until it is reaped, then closed.
** Threads    one thread.
** Errors     messages contain the system's own text.
*/
#pragma once
#include "cddp/status.h"

#include <stdio.h>

uint64_t cd_os_now_ns(void); /* monotonic */
void cd_os_sleep_ns(uint64_t duration_ns);
/* Makes the calling thread's sleeps end on time. By default Linux prolongs them by 50 us. */
void cd_os_sleep_punctually(void);
uint32_t cd_os_process_id(void);
/* Can these bytes be read? Those of a freed block may still be. */
bool cd_os_is_mapped(const void *bytes, size_t byte_count);
uint32_t cd_os_core_count(void);
/* Unpredictable bytes, for tokens and challenges; nothing that a run depends on. At most 256. */
cddp_status cd_os_random(void *bytes, size_t byte_count, cddp_error *err) CDDP_MUST_CHECK;
/* "Killed" for 9; never NULL. */
const char *cd_os_signal_text(int signal_number);
/* A signal that a program does not raise by its own mistake: Ctrl-C, `kill`, or the system when
** memory runs out. */
bool cd_os_signal_is_from_outside(int signal_number);
/* The limit on the size of files that this process writes; UINT64_MAX: none. */
uint64_t cd_os_file_bytes_max(void);

cddp_status cd_os_write_all(int fd, const void *bytes, size_t byte_count,
                            cddp_error *err) CDDP_MUST_CHECK;

/* Is there no such file? */
bool cd_os_is_absent(const char *path);
/* Opens a file for reading. A FIFO, a socket or a device is refused at once: reading it might never
** end. */
cddp_status cd_os_open_regular(const char *path, FILE **file, cddp_error *err) CDDP_MUST_CHECK;

/* A standard stream that was closed would be given to the next file, socket or pipe, and what is
** printed would go into it. Opens /dev/null in its place, such that reading and writing fail as
** before. */
cddp_status cd_os_hold_standard_streams(cddp_error *err) CDDP_MUST_CHECK;
/* How many bytes of memory this process may have (ulimit -v); UINT64_MAX: as many as it wants. */
uint64_t cd_os_memory_limit(void);
/* Has another process of this machine locked the byte at offset? */
bool cd_os_is_locked(const char *path, int64_t offset);

/* Zeroed memory, shared with children that are forked later. */
cddp_status cd_os_shared_open(size_t byte_count, void **bytes, cddp_error *err) CDDP_MUST_CHECK;
/* Likewise, shared with every process of this machine that opens the file, which exists from the
** first time on. Its space is reserved: no later write can fail. */
cddp_status cd_os_shared_file_open(const char *path, size_t byte_count, void **bytes,
                                   cddp_error *err) CDDP_MUST_CHECK;
void cd_os_shared_close(void *bytes, size_t byte_count); /* accepts NULL */

/* The pipes that a child writes and the parent reads. */
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

/* Forks. The child runs program with the writing end of the result pipe, and never returns from
** here. Its stdout and stderr go into the other two pipes. On Linux it dies with its parent.
** SIGTERM ends it. */
cddp_status cd_os_child_open(cd_os_child *child, cd_os_child_fn program, void *argument,
                             cddp_error *err) CDDP_MUST_CHECK;
/* Waits at most timeout_ns until a pipe of some child can be read or has ended. */
cddp_status cd_os_children_wait(const cd_os_child *children, size_t count, uint64_t timeout_ns,
                                cddp_error *err) CDDP_MUST_CHECK;
/* Reads available bytes without waiting; *byte_count is 0 when there are none. Closes the pipe at
** its end. */
cddp_status cd_os_child_read(cd_os_child *child, cd_os_pipe pipe, void *bytes, size_t byte_capacity,
                             size_t *byte_count, cddp_error *err) CDDP_MUST_CHECK;
void cd_os_child_kill(cd_os_child *child);
/* Asks it to end with what it has, by SIGUSR1, which it must catch. Ctrl-C reaches children by
** itself and SIGTERM ends them at once, so neither can ask. */
void cd_os_child_interrupt(cd_os_child *child);
/* Forks and returns twice: here with *process, and in the child with *process 0. On Linux the child
** dies with this process. Both have the same stdout and stderr. */
cddp_status cd_os_fork(int64_t *process, cddp_error *err) CDDP_MUST_CHECK;
/* Forks and returns in the child only, which on Linux dies with this process. This process ends
** when the child has ended well. Otherwise it stays until its parent has gone or is_wanted, asked
** ten times a second, returns false. */
cddp_status cd_os_shelter(bool (*is_wanted)(void *context), void *context,
                          cddp_error *err) CDDP_MUST_CHECK;
/* Is a process of this machine stopped (SIGSTOP)? Always false on systems other than Linux. */
bool cd_os_process_is_stopped(int64_t process);
/* Is there such a process of this machine, which has not ended? Always false elsewhere. */
bool cd_os_process_is_running(int64_t process);
/* What tells this start of the machine from every other one; "" on systems other than Linux. */
void cd_os_read_boot(char *boot, size_t byte_count);
/* True when the child has ended; then writes *exit_code, or *signal_number when a signal ended it.
** Never blocks. For a child that was reaped earlier it is true and writes nothing. */
bool cd_os_child_poll(cd_os_child *child, int *exit_code, int *signal_number);
/* kills and reaps when still running; accepts CD_OS_CHILD_NONE */
void cd_os_child_close(cd_os_child *child);
