/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C. */
#define _POSIX_C_SOURCE 200809L
#include "cli/interrupt.h"

#include "cli/command.h"
#include "cli/leave.h"
#include "core/base/error.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define BY_A_SIGNAL 1
#define BY_THE_LIMIT 2

/* So long after a request that nobody has looked at, the program ends by itself: a hook of a plugin
** that never returns keeps it from ending cleanly. */
#define GRACE_S 10

static volatile sig_atomic_t requested;
static volatile sig_atomic_t is_seen;

static _Noreturn void leave(const char *words)
{
    (void)!write(STDERR_FILENO, words, strlen(words));
    cd_leave_end();
    _exit(CD_EXIT_INCONCLUSIVE);
}

static _Noreturn void give_up(void)
{
    leave("cddp-verify: interrupted; the step at hand did not end within 10 s, so there is no "
          "verdict\n");
}

static void leave_at_once(int signal_number)
{
    (void)signal_number;
    leave("cddp-verify: interrupted; there is no verdict\n");
}

void cd_interrupt_at_once(void)
{
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = leave_at_once;
    sigemptyset(&action.sa_mask);
    /* in the background of a script it is ignored */
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        sigaction(SIGINT, &action, NULL);
}

static void note(int signal_number)
{
    if (requested != 0 && signal_number == SIGALRM) {
        if (!is_seen) give_up();
        return;
    }
    requested = signal_number == SIGALRM ? BY_THE_LIMIT : BY_A_SIGNAL;
    if (is_seen) return;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    alarm(GRACE_S);
}

void cd_interrupt_after(uint64_t limit_ns)
{
    const uint64_t seconds = (limit_ns + 999999999) / 1000000000;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds > 1000000000 ? 1000000000 : (unsigned)seconds);
}

bool cd_interrupt_is_late(void) { return requested == BY_THE_LIMIT; }

void cd_interrupt_begin(void)
{
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    action.sa_flags = (int)SA_RESETHAND; /* the second one ends the program as usual */
    sigemptyset(&action.sa_mask);
    /* The terminal was closed; under nohup we go on. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_flags = 0;
    sigaction(SIGUSR1, &action, NULL);
}

void cd_interrupt_as_rank(void) { signal(SIGTERM, SIG_DFL); }

bool cd_interrupt_requested(void)
{
    if (requested != 0) is_seen = 1;
    return requested != 0;
}

void cd_interrupt_end(void)
{
    alarm(0);
    requested = is_seen = 0;
}

static void ignore_event(void *self, const cddp_event *event) { (void)self, (void)event; }

static cddp_status fail_when_requested(void *self, cddp_error *err)
{
    (void)self;
    return cd_interrupt_requested() ? cd_fail(err, CDDP_E_ABORTED, "interrupted") : CDDP_OK;
}

const cddp_trace_sink *cd_interrupt_sink(void)
{
    static const cddp_trace_sink sink = {sizeof sink, CDDP_TRACE_ABI, NULL, ignore_event,
                                         fail_when_requested};
    return &sink;
}
