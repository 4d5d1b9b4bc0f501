/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that report by themselves, as the process world watches them.
**
** Note [Ranks that report by themselves] Where the transport starts its ranks, one child (mpirun,
** or rank 0 alone when mpirun started us) takes the place of all, and a rank is a set of
** connections to the hub instead of three pipes. Everything else is the same: records, lines,
** notes, grace, results. Such a rank has ended when it said how it went, and then waits to be
** released, because mpirun kills all others as soon as one leaves without ending MPI. A connection
** that ends without a result is a rank that died. Under a foreign mpirun the connections of a run
** that went wrong stay open until this process exits: our verdict has to be out before mpirun sees
** anybody leave.
**
** Not here: connections (process_hub.c), the ranks' side of them (member_world.c), forked ranks
** (process_world.c).
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/process/process_watch.h"
#include "core/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A launcher whose ranks have all ended ends by itself, soon; one whose ranks were killed is asked
** to, then made to. */
#define LEAVE_PATIENCE_NS UINT64_C(6000000000)
#define LOSS_PATIENCE_NS UINT64_C(500000000)
#define END_PATIENCE_NS UINT64_C(500000000)

static void forward_starter(void *context, const char *line, size_t length)
{
    cddp_process_world *w = context;
    const cddp_process_options *o = &w->options;
    if (length > 0) snprintf(w->starter_words, sizeof w->starter_words, "%.*s", (int)length, line);
    /* One sentence replaces its long report on ranks that end in disorder. */
    if (w->failed >= 0 || w->killed || w->first_lost_ns != 0) return;
    if (o->output != NULL) {
        o->output(o->context, CDDP_PROCESS_LAUNCHER, true, line, length);
        return;
    }
    char text[sizeof w->starter_lines[0].text + 32];
    int n = snprintf(text, sizeof text, "[launcher] %.*s\n", (int)length, line);
    if (n > 0 && cd_os_write_all(2, text, (size_t)n, NULL) != CDDP_OK) return;
}

static cddp_status watch_starter(cddp_process_world *w, cddp_error *err)
{
    char bytes[4096];
    if (w->starter_ended) return CDDP_OK;
    bool exited = cd_os_child_poll(&w->starter, &w->starter_code, &w->starter_signal);
    for (cd_os_pipe pipe = CD_OS_PIPE_STDOUT; pipe < CD_OS_PIPE_COUNT; pipe++) {
        for (size_t n = 1; n > 0;) {
            CD_TRY(cd_os_child_read(&w->starter, pipe, bytes, sizeof bytes, &n, err));
            cd_process_lines_push(&w->starter_lines[pipe], bytes, n, forward_starter, w);
        }
    }
    /* It closes the pipe of results at once: an end that nobody reads would wake the judge for
    ** ever. */
    for (size_t n = 1; n > 0;)
        CD_TRY(cd_os_child_read(&w->starter, CD_OS_PIPE_RESULT, bytes, sizeof bytes, &n, err));
    if (!exited) return CDDP_OK;
    for (cd_os_pipe pipe = CD_OS_PIPE_STDOUT; pipe < CD_OS_PIPE_COUNT; pipe++)
        cd_process_lines_end(&w->starter_lines[pipe], forward_starter, w);
    cd_os_child_close(&w->starter);
    w->starter_ended = true;
    w->starter_end_ns = cd_os_now_ns();
    return CDDP_OK;
}

/* On another host a process number means something else; under a foreign launcher it is not ours to
** end a rank. */
static bool numbers_mean_something(const cddp_process_world *w)
{
    return w->options.command != NULL || (w->options.ends_members && w->options.one_host);
}

static bool has_arrived(const cd_process_watched *r)
{
    return r->streams == (1u << CD_OS_PIPE_COUNT) - 1;
}

/* Connections of ranks that arrived. One that names a rank that does not exist, or again, is not
** taken. */
static cddp_status welcome(cddp_process_world *w, cddp_error *err)
{
    for (;;) {
        cd_process_hello who = {0};
        int fd = -1;
        bool found = false;
        CD_TRY(cd_process_hub_take(w->hub, &who, &fd, &found, err));
        if (!found) return CDDP_OK;
        cd_process_watched *r = who.rank < w->options.world_size ? &w->watched[who.rank] : NULL;
        if (r == NULL || who.world_size != w->options.world_size || r->ended ||
            (r->streams >> who.pipe & 1) != 0) {
            close(fd);
            continue;
        }
        r->child.fds[who.pipe] = fd;
        r->streams |= 1u << who.pipe;
        if (numbers_mean_something(w)) r->process = who.process;
        if (has_arrived(r) && w->arrived_ns == 0) w->arrived_ns = cd_os_now_ns();
    }
}

cddp_status cd_process_members_take(cddp_process_world *w, cd_os_child *launcher, cd_os_child *door,
                                    cddp_error *err)
{
    CD_TRY(watch_starter(w, err));
    CD_TRY(welcome(w, err));
    *launcher = w->starter;
    *door = (cd_os_child)CD_OS_CHILD_NONE;
    door->fds[0] = cd_process_hub_fd(w->hub);
    return CDDP_OK;
}

/* How long it was waited for, when that was too long: it is dead or stopped, or all wait for such a
** one in a transport that has no time-out while it starts. Launchers start all at the same time. 0:
** it is not late. */
static uint64_t find_lateness(const cd_process_watched *r)
{
    const cddp_process_world *w = r->world;
    uint64_t patience = w->options.patience_ns;
    if (patience == 0 || has_arrived(r)) return 0;
    if (w->arrived_ns == 0 && patience < CD_PROCESS_START_PATIENCE_NS)
        patience = CD_PROCESS_START_PATIENCE_NS;
    return cd_os_now_ns() - (w->arrived_ns != 0 ? w->arrived_ns : w->start_ns) > patience ? patience
                                                                                          : 0;
}

static void judge_loss(cd_process_watched *r, bool arrived)
{
    const cddp_process_world *w = r->world;
    cddp_rank_result *result = r->result;
    const char *note = w->notes + (size_t)r->rank * CD_PROCESS_NOTE_BYTES;
    const char *lead = note[0] != '\0' ? "; its last note: " : "";
    bool is_first = r->lost_ns == w->first_lost_ns;
    const bool is_starting = strstr(note, "connecting group") != NULL;
    /* Nothing of the job ran: what its launcher lacks, this machine lacks. */
    const bool is_lacking = w->options.command != NULL && w->arrived_ns == 0;
    if (w->killed || r->overdue || r->stuck) {
        cd_process_watched_judge(r, 0, SIGKILL);
    } else if (w->options.command != NULL && w->starter_ended && w->starter_signal != 0) {
        result->end = CDDP_RANK_KILLED;
        result->status =
            cd_fail(&result->error, CDDP_E_ABORTED,
                    "rank %u ended since its launcher was killed by signal %d (%s): %s%s%s",
                    r->rank, w->starter_signal, cd_os_signal_text(w->starter_signal),
                    w->options.command[0], lead, note);
    } else if (is_starting && r->start_words[0] != '\0') {
        result->end = CDDP_RANK_CRASHED;
        result->status = cd_fail(&result->error, CDDP_E_NOMEM, "MPI did not start on rank %u: %s",
                                 r->rank, r->start_words);
    } else if (arrived && is_first && is_starting && cd_os_memory_limit() != UINT64_MAX) {
        /* Libraries die there without a word where they get no memory. */
        result->end = CDDP_RANK_CRASHED;
        result->status = cd_fail(
            &result->error, CDDP_E_NOMEM,
            "rank %u died while its transport started, with %llu KiB of memory at most (ulimit -v)",
            r->rank, (unsigned long long)(cd_os_memory_limit() >> 10));
    } else if (arrived && !is_first) {
        result->end = CDDP_RANK_HUNG;
        result->status =
            cd_fail(&result->error, CDDP_E_ABORTED,
                    "rank %u was ended with the others when one had died%s%s", r->rank, lead, note);
    } else if (arrived && r->said_signal > 0) {
        cd_process_watched_judge(r, 0, r->said_signal);
    } else if (arrived) {
        result->end = CDDP_RANK_KILLED;
        result->status =
            cd_fail(&result->error, CDDP_E_ABORTED,
                    "rank %u died: its connection ended without a result%s%s", r->rank, lead, note);
    } else if (find_lateness(r) != 0) {
        result->end = CDDP_RANK_CRASHED;
        result->status =
            cd_fail(&result->error, is_lacking ? CDDP_E_NOMEM : CDDP_E_BACKEND,
                    "rank %u never reported, %.3f s after %s", r->rank,
                    (double)find_lateness(r) / 1e9,
                    w->arrived_ns != 0 ? "the first of the others had" : "the start; nobody did");
    } else {
        const char *words = w->starter_words[0] != '\0' ? ": " : "";
        result->end = CDDP_RANK_CRASHED;
        result->detail = w->starter_code;
        result->status =
            cd_fail(&result->error, is_lacking ? CDDP_E_NOMEM : CDDP_E_BACKEND,
                    "rank %u never reported; its launcher ended with code %d%s%s", r->rank,
                    w->starter_signal != 0 ? 128 + w->starter_signal : w->starter_code, words,
                    w->starter_words);
    }
    cd_process_watched_fail(r);
}

/* Losses are judged a moment later, when it is known which rank was lost first. */
static bool is_lost(cd_process_watched *r)
{
    cddp_process_world *w = r->world;
    uint64_t now = cd_os_now_ns();
    if (r->has_result || !has_arrived(r) || r->child.fds[CD_OS_PIPE_RESULT] >= 0) return false;
    if (r->lost_ns == 0) r->lost_ns = now;
    r->process = 0; /* it is dead, and its number may soon be another's */
    if (w->first_lost_ns == 0) w->first_lost_ns = now;
    return r->overdue || w->starter_ended || now - w->first_lost_ns > LOSS_PATIENCE_NS;
}

cddp_status cd_process_member_watch(cd_process_watched *r, cddp_error *err)
{
    const cddp_process_world *w = r->world;
    bool arrived = has_arrived(r);
    /* Messages that its launcher left in the hub's queue have been taken in by now. */
    bool hopeless =
        w->killed || (w->starter_ended && cd_os_now_ns() - w->starter_end_ns > END_PATIENCE_NS);
    if (arrived) CD_TRY(cd_process_watched_drain(r, false, err));
    if (!r->has_result && !is_lost(r) && find_lateness(r) == 0 && !hopeless) return CDDP_OK;
    /* what it wrote before it spoke is there now (W3) */
    if (arrived) CD_TRY(cd_process_watched_drain(r, true, err));
    r->ended = true;
    if (!r->has_result) judge_loss(r, arrived);
    return CDDP_OK;
}

void cd_process_members_kill(cddp_process_world *w)
{
    for (uint32_t i = 0; i < w->options.world_size; i++)
        if (w->watched[i].process > 0) kill((pid_t)w->watched[i].process, SIGKILL);
}

/* Whether every rank can still end the transport in good order. */
static bool all_can_leave(const cddp_process_world *w)
{
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        const cddp_rank_result *r = w->watched[i].result;
        bool is_cut_off = r->status == CDDP_E_TIMEOUT || r->status == CDDP_E_BACKEND ||
                          r->status == CDDP_E_ABORTED;
        if (r->end != CDDP_RANK_RETURNED || is_cut_off) return false;
    }
    return true;
}

static cddp_status drain_members(cddp_process_world *w, cddp_error *err)
{
    for (uint32_t i = 0; i < w->options.world_size; i++)
        if (has_arrived(&w->watched[i]))
            CD_TRY(cd_process_watched_drain(&w->watched[i], true, err));
    return CDDP_OK;
}

static cddp_status await_starter(cddp_process_world *w, uint64_t patience_ns, cddp_error *err)
{
    uint64_t until = cd_os_now_ns() + patience_ns;
    for (;;) {
        CD_TRY(watch_starter(w, err));
        /* after that: what they wrote before they ended is there now (W3) */
        CD_TRY(drain_members(w, err));
        if (w->starter_ended || cd_os_now_ns() >= until) return CDDP_OK;
        CD_TRY(cd_os_children_wait(&w->starter, 1, CD_PROCESS_POLL_NS / 5, err));
    }
}

static cddp_status release_members(cddp_process_world *w, cddp_error *err)
{
    bool leave = all_can_leave(w);
    char word = leave ? CD_PROCESS_LEAVE : CD_PROCESS_QUIT;
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        int fd = w->watched[i].child.fds[CD_OS_PIPE_RESULT];
        /* One that cannot be reached any more is gone already. */
        if (fd >= 0 && write(fd, &word, 1) < 0) continue;
    }
    if (leave) {
        CD_TRY(await_starter(w, LEAVE_PATIENCE_NS, err));
    } else if (w->options.command != NULL || w->options.ends_members) {
        w->killed = true;
        cd_process_members_kill(w);
        if (!w->starter_ended) kill((pid_t)w->starter.process, SIGTERM);
        CD_TRY(await_starter(w, END_PATIENCE_NS, err)); /* what is left then is killed by close */
    } else {
        /* Until we exit: the sockets, and rank 0, which ends with us. */
        for (uint32_t i = 0; i < w->options.world_size; i++)
            w->watched[i].child = (cd_os_child)CD_OS_CHILD_NONE;
        w->starter = (cd_os_child)CD_OS_CHILD_NONE;
    }
    return CDDP_OK;
}

typedef struct starter_call {
    cddp_process_world *world;
    cddp_rank_fn program;
    void *argument;
} starter_call;

/* The last words of a child that never became a rank; they reach the judge as its launcher's. */
static void say(const char *words)
{
    if (cd_os_write_all(STDERR_FILENO, words, strlen(words), NULL) != CDDP_OK) return;
}

static int starter_main(void *argument, int write_fd)
{
    const starter_call *call = argument;
    const cddp_process_options *o = &call->world->options;
    cddp_error error = CDDP_ERROR_INIT;
    close(write_fd); /* ranks have connections instead */
    if (o->command == NULL) {
        cddp_member_world *member = NULL;
        cddp_member_options m = *o->member;
        m.address = cd_process_hub_address(call->world->hub);
        cddp_status opened = cddp_member_world_open(&m, &member, &error);
        cd_process_hub_close(call->world->hub); /* the judge alone listens there */
        if (opened == CDDP_OK &&
            cddp_member_world_ops()->launch(member, call->program, call->argument, NULL, &error) ==
                CDDP_OK)
            return 0;
        say(error.message);
        return 1;
    }
    /* Ctrl-C is for us, who then end it; and whatever we are fed is not for it. */
    setpgid(0, 0);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    setenv("CDDP_HUB", cd_process_hub_address(call->world->hub), 1);
    for (const char *const *e = o->environment; e != NULL && *e != NULL; e++) {
        char name[128];
        const char *equals = strchr(*e, '=');
        snprintf(name, sizeof name, "%.*s", (int)(equals != NULL ? equals - *e : 0), *e);
        if (equals != NULL) setenv(name, equals + 1, 1);
    }
    union {
        const char *const *in;
        char *const *out;
    } words = {.in = o->command}; /* execvp writes to none of them */
    execvp(words.out[0], words.out);
    (void)cd_fail(&error, CDDP_E_IO, "cannot start %s: %s", o->command[0], strerror(errno));
    say(error.message);
    return 127;
}

cddp_status cd_process_members_begin(cddp_process_world *w, cddp_rank_fn program, void *argument,
                                     cddp_error *err)
{
    const char *host = w->options.hub_host != NULL ? w->options.hub_host : "127.0.0.1";
    starter_call call = {w, program, argument};
    w->starter_ended = false;
    w->starter_words[0] = '\0';
    w->first_lost_ns = w->arrived_ns = 0;
    memset(w->starter_lines, 0, sizeof w->starter_lines);
    cd_process_hub_close(w->hub);
    w->hub = NULL;
    CD_TRY(cd_process_hub_open(host, &w->hub, err));
    CD_TRY(cd_os_child_open(&w->starter, starter_main, &call, err));
    return CDDP_OK;
}

cddp_status cd_process_members_end(cddp_process_world *w, cddp_error *err)
{
    cddp_status status = release_members(w, err);
    for (uint32_t i = 0; i < w->options.world_size; i++)
        cd_process_watched_end_lines(&w->watched[i]);
    cd_os_child_close(&w->starter); /* W2 */
    w->starter_ended = true;
    cd_process_hub_close(w->hub);
    w->hub = NULL;
    return status;
}
