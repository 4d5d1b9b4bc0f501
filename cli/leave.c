/* SPDX-License-Identifier: Apache-2.0 */
/* Every way out of the program passes here. A plugin's call of _exit is bound to the first object
** that has one, and the program itself comes before the C library; so no process has to watch over
** us, and debuggers, launchers and signals find what they always find. */
#define _DEFAULT_SOURCE /* syscall */
#include "cli/leave.h"

#include "cli/command.h"
#include "core/base/os.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile pid_t guarded; /* 0: nobody; a child that was forked is another one */
static volatile sig_atomic_t is_rank;

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
    static const char words[] = "cddp-verify: a plugin ended the program: there is no verdict\n";
    return cd_os_write_all(STDERR_FILENO, words, sizeof words - 1, NULL) == CDDP_OK
               ? CD_EXIT_USAGE
               : CD_EXIT_ENVIRONMENT;
}

static void refuse(void)
{
    if (guarded == getpid()) leave(code_of_nobody());
}

#if defined(__linux__)
static _Noreturn void leave_unless_guarded(int code)
{
    leave(guarded == getpid() && !is_rank ? code_of_nobody() : code);
}
CDDP_API void _exit(int code) { leave_unless_guarded(code); }
CDDP_API void _Exit(int code) { leave_unless_guarded(code); }
#endif

void cd_leave_begin(void)
{
    guarded = getpid();
    atexit(refuse);
    at_quick_exit(refuse);
}

void cd_leave_as_rank(void) { is_rank = 1; }
void cd_leave_end(void) { guarded = 0; }
