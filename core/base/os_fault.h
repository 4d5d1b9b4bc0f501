/* SPDX-License-Identifier: Apache-2.0 */
/* Code from outside that ends its process: by a mistake (SIGSEGV, SIGABRT and their like) or
** by exit. Whoever runs such code may leave its stack instead, and go on.
**
** Lifetime   begin → end, one at a time in a process; forked children have none.
** Threads    only the thread that called begin is asked; elsewhere a fault ends the process as
**            ever.
** Errors     CDDP_E_NOMEM, CDDP_E_LIMIT where the system refuses.
*/
#pragma once
#include "cddp/status.h"

/* Asked in a handler of a signal, on an extra stack, or inside exit. Returns when the fault is
** somebody else's, and the process ends as ever; else it leaves the stack for good. It allocates
** nothing. signal_number is 0 for who leaves with exit_code. */
typedef void (*cd_os_fault_fn)(void *argument, int signal_number, int exit_code);

cddp_status cd_os_fault_begin(cd_os_fault_fn fault, void *argument,
                              cddp_error *err) CDDP_MUST_CHECK;
void cd_os_fault_end(void); /* accepts that there is none */
/* Somebody leaves the process; returns when that is not a fault of whoever began. */
void cd_os_fault_leave(int exit_code);

/* ---- a process that has loaded code from outside, and cannot go on without it ---- */

/* A fault of this process is said in words on standard error. In what a guest was named for, leave
** is called, which does not return; else the process ends as ever. A child that was forked says its
** guest, and ends as ever. Kept until the process ends. */
void cd_os_guests_watch(void (*leave)(void));
/* Whose code this thread runs from now on: "check " and its name, both borrowed; NULL: our own. */
void cd_os_guest_enter(const char *what, const char *name);
/* Who it is: both parts, "" each while this thread runs our own code. */
void cd_os_guest_get(const char **what, const char **name);
/* Asked every now and then, by a handler of a signal too: a guest that this thread entered at least
** limit_ns ago, and that was seen in that very call before, is said, and leave is called. */
void cd_os_guest_look(uint64_t limit_ns);
