/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "core/base/os_fault.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)64 << 10)

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
#define SIGNAL_COUNT (sizeof signals / sizeof signals[0])

/* A handler of a signal can reach nothing else. */
static struct keeper {
    cd_os_fault_fn fault;
    void *argument;
    pthread_t thread;
    pid_t process;
    stack_t stack, stack_before;
    struct sigaction before[SIGNAL_COUNT];
} keeper;
static volatile sig_atomic_t is_kept;

static bool is_ours(void)
{
    return is_kept && keeper.process == getpid() && pthread_equal(pthread_self(), keeper.thread);
}

/* As if nobody had listened: what faulted does so again, and abort raises again. */
static void restore(int signal_number)
{
    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        if (signals[i] == signal_number) sigaction(signal_number, &keeper.before[i], NULL);
}

static void on_signal(int signal_number)
{
    const int before = errno;
    if (is_ours()) keeper.fault(keeper.argument, signal_number, 0);
    restore(signal_number);
    errno = before;
}

cddp_status cd_os_fault_begin(cd_os_fault_fn fault, void *argument, cddp_error *err)
{
    struct sigaction action;
    cd_os_fault_end();
    keeper.fault = fault;
    keeper.argument = argument;
    keeper.thread = pthread_self();
    keeper.process = getpid();
    keeper.stack = (stack_t){.ss_sp = cd_allocate(NULL, STACK_BYTES), .ss_size = STACK_BYTES};
    if (keeper.stack.ss_sp == NULL) return cd_fail_memory(err, "a stack for signals");
    if (sigaltstack(&keeper.stack, &keeper.stack_before) != 0) {
        cd_release(NULL, keeper.stack.ss_sp, STACK_BYTES);
        return cd_fail(err, CDDP_E_LIMIT, "no stack for signals: %s", strerror(errno));
    }
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    /* a handler that does not come back leaves nothing blocked */
    action.sa_flags = (int)(SA_ONSTACK | SA_NODEFER);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) sigaction(signals[i], &action, &keeper.before[i]);
    is_kept = 1;
    return CDDP_OK;
}

void cd_os_fault_end(void)
{
    if (!is_kept) return;
    is_kept = 0;
    for (size_t i = 0; i < SIGNAL_COUNT; i++) sigaction(signals[i], &keeper.before[i], NULL);
    sigaltstack(&keeper.stack_before, NULL);
    cd_release(NULL, keeper.stack.ss_sp, STACK_BYTES);
    keeper.stack.ss_sp = NULL;
}

void cd_os_fault_leave(int exit_code)
{
    if (is_ours()) keeper.fault(keeper.argument, 0, exit_code);
}

/* ---- guests ---- */

static _Thread_local const char *volatile guest, *volatile guest_name;
static _Thread_local volatile uint64_t guest_call;
static struct host {
    pid_t process; /* 0: nobody watches */
    void (*leave)(void);
    uint64_t call, since_ns; /* seen last, and when first */
} host;

void cd_os_guest_enter(const char *what, const char *name)
{
    guest_name = name;
    guest = what;
    guest_call++;
}

void cd_os_guest_get(const char **what, const char **name)
{
    *what = guest != NULL ? guest : "";
    *name = guest != NULL ? guest_name : "";
}

static void put(const char *words)
{
    /* there is nobody to say that it failed to */
    (void)!write(STDERR_FILENO, words, strlen(words));
}

void cd_os_guest_look(uint64_t limit_ns)
{
    const uint64_t now = cd_os_now_ns();
    if (guest == NULL || guest_call != host.call) {
        host.call = guest_call;
        host.since_ns = now;
        return;
    }
    if (now - host.since_ns < limit_ns || host.process == 0) return;
    put("cddp-verify: ");
    put(guest);
    put(guest_name);
    put(" does not return: there is no verdict\n");
    host.leave();
}

static void on_guest(int signal_number)
{
    const char *what = guest;
    signal(signal_number, SIG_DFL); /* what faulted does so again */
    if (host.process == 0 || (host.process != getpid() && what == NULL)) return;
    put("cddp-verify: ");
    put(what != NULL ? what : "a plugin or cddp itself");
    put(what != NULL ? guest_name : "");
    put(" crashed (");
    put(cd_os_signal_text(signal_number));
    put("): there is no verdict\n");
    if (what != NULL && host.process == getpid()) host.leave();
}

void cd_os_guests_watch(void (*leave)(void))
{
    static _Alignas(16) char bytes[STACK_BYTES];
    const stack_t stack = {.ss_sp = bytes, .ss_size = sizeof bytes};
    struct sigaction action;
    if (host.process != 0 || sigaltstack(&stack, NULL) != 0) return;
    host.process = getpid();
    host.leave = leave;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_guest;
    action.sa_flags = (int)(SA_ONSTACK | SA_NODEFER);
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < SIGNAL_COUNT; i++) sigaction(signals[i], &action, NULL);
}
