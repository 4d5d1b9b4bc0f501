/* SPDX-License-Identifier: Apache-2.0 */
/* The operating system, in as few calls as the core needs: a clock, processes with pipes, signals.
**
** Only os_posix.c implements it. Everything above asks the world port for time instead (D1).
*/
#pragma once
#include "cddp/status.h"

uint64_t cd_os_now_ns(void); /* monotonic */
void cd_os_sleep_ns(uint64_t duration_ns);
uint32_t cd_os_process_id(void);
uint32_t cd_os_core_count(void);

/* A child process with one pipe from it to us. */
typedef struct cd_os_child {
    int64_t process; /* -1 once reaped */
    int read_fd;     /* -1 when closed */
} cd_os_child;

typedef int (*cd_os_child_fn)(void *argument, int write_fd); /* its return value is the exit code */

cddp_status cd_os_child_open(cd_os_child *child, cd_os_child_fn program, void *argument, cddp_error *err);
/* Reads what there is within timeout_ns: *byte_count 0 with *closed true at the end, or with false at time-out. */
cddp_status cd_os_child_read(cd_os_child *child, void *bytes, size_t byte_capacity, uint64_t timeout_ns,
                             size_t *byte_count, bool *closed, cddp_error *err);
void cd_os_child_signal(cd_os_child *child, int signal_number);
/* Has it ended? *exit_code, or *signal_number when a signal ended it. Never blocks. */
bool cd_os_child_poll(cd_os_child *child, int *exit_code, int *signal_number);
void cd_os_child_close(cd_os_child *child); /* kills and reaps when still running; accepts a closed one */
cddp_status cd_os_write_all(int fd, const void *bytes, size_t byte_count, cddp_error *err);
