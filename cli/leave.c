/* SPDX-License-Identifier: Apache-2.0 */
/* Every way out of the program passes here. A plugin's call of _exit is bound to the first object
** that has one, and the program itself comes before the C library; so no process has to watch over
** us, and debuggers, launchers and signals find what they always find. */
#define _DEFAULT_SOURCE /* syscall */
#include "cli/leave.h"

#include "cli/command.h"
#include "core/base/os.h"
#include "core/base/os_fault.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile pid_t guarded; /* 0: nobody; a child that was forked is another one */
static volatile sig_atomic_t is_rank;
static volatile sig_atomic_t has_passed; /* the program is leaving */

#if defined(__linux__)
#include <sys/syscall.h>

static _Noreturn void leave(int code)
{
    for (;;) (void)syscall(SYS_exit_group, code);
}
#else
static _Noreturn void leave(int code) { _exit(code); }
#endif

static int code_of_nobody(void)
{
    const char *what, *name;
    char words[400];
    cd_os_guest_get(&what, &name);
    const int length = snprintf(words, sizeof words,
                                "cddp-verify: %.20s%.280s ended the program: there is no verdict\n",
                                what[0] != '\0' ? what : "a plugin", name);
    return cd_os_write_all(STDERR_FILENO, words, (size_t)length, NULL) == CDDP_OK
               ? CD_EXIT_USAGE
               : CD_EXIT_ENVIRONMENT;
}

static void watch(void);

/* A simulated rank that leaves may be the only one to go. Then exit goes no further here, and the
** next exit is to come by as well. */
static void refuse(int code)
{
    if (!has_passed) watch();
    if (!has_passed) cd_os_fault_leave(code);
    has_passed = 1;
    if (guarded == getpid()) leave(code_of_nobody());
}

/* Nobody says with which code. */
static void refuse_once(void) { refuse(0); }

#if defined(__GLIBC__)
static void refuse_with(int code, void *argument)
{
    (void)argument;
    refuse(code);
}
static void watch_exit(void) { on_exit(refuse_with, NULL); }
#else
static void watch_exit(void) { atexit(refuse_once); }
#endif

#if defined(__linux__)
static _Noreturn void leave_unless_guarded(int code)
{
    cd_os_fault_leave(code);
    leave(guarded == getpid() && !is_rank ? code_of_nobody() : code);
}
CDDP_API void _exit(int code) { leave_unless_guarded(code); }
CDDP_API void _Exit(int code) { leave_unless_guarded(code); }
#endif

static void watch(void)
{
    watch_exit();
    at_quick_exit(refuse_once);
}

void cd_leave_begin(void)
{
    guarded = getpid();
    watch();
}

void cd_leave_as_rank(void) { is_rank = 1; }
void cd_leave_without_verdict(void) { leave(CD_EXIT_USAGE); }
void cd_leave_end(void) { guarded = 0; }
