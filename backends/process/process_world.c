/* SPDX-License-Identifier: Apache-2.0 */
/* The process world: forks ranks, watches them until every one has ended, says how each of them did.
**
** One launch is a loop over events of all children: take what their pipes hold, reap who has exited, and at
** the kill time kill who is left. The kill time is the deadline, or sooner: grace_ns after the first rank
** failed. A rank that returned an error, was killed or crashed has failed; the others learn of it only through
** their transport, and what they then report is worth waiting for.
**
** Invariants:
**   W1  a result is filled exactly once: by the rank's own record, or by how its process ended;
**   W2  after launch no child is left, whatever launch returns;
**   W3  output that a rank wrote before it ended is forwarded before launch returns.
**
** Note [Ranks that report by themselves]
** Where the transport starts its ranks, one child (mpirun, or rank 0 alone when mpirun started us) takes the place of
** all, and a rank is a set of connections to the hub instead of three pipes. Everything else is the same: records,
** lines, notes, grace, results. Such a rank has ended when it said how it went, and then waits to be released, because
** mpirun kills all others as soon as one leaves without ending MPI. A connection that ends without a result is a
** rank that died. Under a foreign mpirun the connections of a run that went wrong stay open until this process exits:
** our verdict has to be out before mpirun sees anybody leave.
**
** Not here: the format on the pipes (process_wire.c), connections (process_hub.c), the ranks' side of them
** (member_world.c), processes themselves (core/base/os_child_posix.c).
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/process.h"

#include "backends/process/process_hub.h"
#include "backends/process/process_rank.h"
#include "backends/process/process_ring.h"
#include "backends/process/process_wire.h"
#include "core/base/alloc.h"
#include "core/base/arena.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_GRACE_NS UINT64_C(5000000000)
/* A child may end without closing its pipes (a grandchild holds them), so reaping cannot wait for them. */
#define POLL_NS UINT64_C(50000000)
/* A launcher whose ranks have all ended ends by itself, soon; one whose ranks were killed is asked to, then made to. */
#define LEAVE_PATIENCE_NS UINT64_C(6000000000)
#define LOSS_PATIENCE_NS UINT64_C(500000000)
#define END_PATIENCE_NS UINT64_C(500000000)

/* One rank as the launcher sees it. */
typedef struct watched {
    cddp_process_world *world;
    cd_os_child child;
    cd_process_inbox inbox;
    cd_process_lines lines[CD_OS_PIPE_COUNT]; /* of stdout and stderr */
    cddp_rank_result *result;                 /* borrowed until launch returns */
    uint32_t rank;
    uint32_t streams; /* bit per cd_os_pipe that came; they end one by one */
    int32_t process;  /* of a rank that reported by itself, on this host; else 0 */
    bool has_result;  /* its record came */
    uint64_t lost_ns; /* when its connection ended without one; 0: not */
    bool ended;       /* reaped and drained; or it reported how it went, or its connection ended */
} watched;

struct cddp_process_world {
    cddp_process_options options;
    cd_arena texts;    /* of results */
    char *notes;       /* (world_size × CD_PROCESS_NOTE_BYTES) shared with the ranks */
    char *rings;       /* (world_size × cd_process_ring_bytes()) shared with the ranks */
    watched *watched;  /* (world_size) */
    uint64_t start_ns; /* of the launch: 0 on every rank's clock */
    uint64_t kill_ns;  /* when the patience ends; UINT64_MAX: never */
    int32_t failed;    /* first rank that failed, -1 */
    bool killed;       /* the patience ended */
    bool interrupted;  /* because the caller wants no more */
    /* See Note [Ranks that report by themselves]. */
    cd_process_hub *hub; /* NULL: ranks are forked */
    cd_os_child starter;
    cd_process_lines starter_lines[CD_OS_PIPE_COUNT];
    char starter_words[160]; /* the last line it wrote */
    int32_t accused;         /* the first rank whose process it mentioned, -1 */
    uint64_t first_lost_ns;  /* 0: no rank was lost */
    bool starter_ended;
    int starter_code, starter_signal;
    uint64_t starter_end_ns;
};

static cddp_status world_launch(void *world, cddp_rank_fn program, void *argument, cddp_rank_result *results,
                                cddp_error *err);

static const cddp_world_ops ops = {
    .size = sizeof ops,
    .abi = CDDP_WORLD_ABI,
    .name = "process",
    .launch = world_launch,
    .now_ns = cd_process_rank_now,
    .sleep_ns = cd_process_rank_sleep,
    .compute = cd_process_rank_compute,
    .choose = cd_process_rank_choose,
    .yield = cd_process_rank_yield,
};

const cddp_world_ops *cddp_process_world_ops(void) { return &ops; }

static void keep_last_event(void *self, const cddp_event *event) { cd_process_ring_push(self, event); }

static cd_process_ring *ring_of(const cddp_process_world *w, uint32_t rank)
{
    return (cd_process_ring *)(w->rings + rank * cd_process_ring_bytes());
}

typedef struct program_call {
    const watched *watched;
    cddp_rank_fn program;
    void *argument;
} program_call;

/* The whole life of a rank's process. */
static int rank_main(void *argument, int write_fd)
{
    const program_call *call = argument;
    cddp_process_world *w = call->watched->world;
    cd_process_rank rank = {
        .base = {&ops, w, call->watched->rank, w->options.world_size, w->options.allocator},
        .result_fd = write_fd,
        .note = w->notes + (size_t)call->watched->rank * CD_PROCESS_NOTE_BYTES,
        .last_events = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, ring_of(w, call->watched->rank), keep_last_event,
                        NULL},
        .start_ns = w->start_ns,
        .simulate_compute = w->options.simulate_compute,
    };
    cddp_error error = CDDP_ERROR_INIT;
    cddp_status status = call->program(&rank.base, call->argument, &error);
    if (status == CDDP_OK) cd_error_reset(&error);
    fflush(NULL);
    return cd_process_result_write(write_fd, status, &error, NULL) == CDDP_OK ? 0 : 1;
}

/* ---- the launcher ---- */

static void forward_line(const watched *r, bool is_error, const char *line, size_t length)
{
    const cddp_process_options *o = &r->world->options;
    if (o->output != NULL) {
        o->output(o->context, r->rank, is_error, line, length);
        return;
    }
    char text[sizeof r->lines[0].text + 32];
    int n = snprintf(text, sizeof text, "[%u] %.*s\n", r->rank, (int)length, line);
    /* A closed terminal is not a reason to stop watching the ranks. */
    if (n > 0 && cd_os_write_all(is_error ? 2 : 1, text, (size_t)n, NULL) != CDDP_OK) return;
}

static void forward_stdout(void *context, const char *line, size_t length)
{
    forward_line(context, false, line, length);
}

static void forward_stderr(void *context, const char *line, size_t length)
{
    forward_line(context, true, line, length);
}

/* The first failure starts the grace period. */
static void note_failure(watched *r)
{
    cddp_process_world *w = r->world;
    if (w->failed >= 0) return;
    w->failed = (int32_t)r->rank;
    uint64_t until = cd_os_now_ns() + w->options.grace_ns;
    if (until < w->kill_ns) w->kill_ns = until;
}

static cddp_status take_records(watched *r, cddp_error *err)
{
    for (;;) {
        cd_process_record record;
        bool found;
        CD_TRY(cd_process_inbox_take(&r->inbox, &record, &found, err));
        if (!found) return CDDP_OK;
        const cddp_process_options *o = &r->world->options;
        if (record.kind == CD_PROCESS_MESSAGE) {
            if (o->message != NULL) o->message(o->context, r->rank, record.bytes, record.byte_count);
            continue;
        }
        if (record.kind == CD_PROCESS_NOTE) {
            char *note = r->world->notes + (size_t)r->rank * CD_PROCESS_NOTE_BYTES;
            snprintf(note, CD_PROCESS_NOTE_BYTES, "%.*s", (int)record.byte_count, (const char *)record.bytes);
            continue;
        }
        CD_TRY(cd_process_result_read(&record, &r->world->texts, r->result, err));
        r->has_result = true;
        if (r->result->status != CDDP_OK) note_failure(r);
    }
}

/* Takes everything that has arrived from one rank. */
static cddp_status drain(watched *r, cddp_error *err)
{
    char bytes[65536];
    for (cd_os_pipe pipe = 0; pipe < CD_OS_PIPE_COUNT; pipe++) {
        for (;;) {
            size_t n;
            CD_TRY(cd_os_child_read(&r->child, pipe, bytes, sizeof bytes, &n, err));
            if (n == 0) break;
            if (pipe == CD_OS_PIPE_RESULT) {
                CD_TRY(cd_process_inbox_push(&r->inbox, bytes, n, err));
                CD_TRY(take_records(r, err));
            } else {
                bool is_error = pipe == CD_OS_PIPE_STDERR;
                cd_process_lines_push(&r->lines[pipe], bytes, n, is_error ? forward_stderr : forward_stdout, r);
            }
        }
    }
    return CDDP_OK;
}

/* Fills the result of a rank that sent none, from how its process ended. */
static void judge_end(watched *r, int exit_code, int signal_number)
{
    const cddp_process_world *w = r->world;
    cddp_rank_result *result = r->result;
    if (r->has_result) return; /* W1 */
    const char *note = w->notes + (size_t)r->rank * CD_PROCESS_NOTE_BYTES;
    const char *lead = note[0] != '\0' ? "; its last note: " : "";
    if (w->killed && signal_number != 0) {
        char why[96];
        if (w->interrupted) {
            snprintf(why, sizeof why, "when the run was interrupted");
        } else if (w->failed >= 0) {
            snprintf(why, sizeof why, "%.3f s after rank %d failed", (double)w->options.grace_ns / 1e9, w->failed);
        } else {
            snprintf(why, sizeof why, "at the deadline of %.3f s", (double)w->options.deadline_ns / 1e9);
        }
        result->end = CDDP_RANK_HUNG;
        result->status =
            cd_fail(&result->error, CDDP_E_TIMEOUT, "rank %u was still running %s%s%s", r->rank, why, lead, note);
    } else if (signal_number != 0) {
        result->end = CDDP_RANK_KILLED;
        result->detail = signal_number;
        result->status = cd_fail(&result->error, CDDP_E_ABORTED, "rank %u was killed by signal %d (%s)%s%s", r->rank,
                                 signal_number, cd_os_signal_text(signal_number), lead, note);
    } else {
        result->end = CDDP_RANK_CRASHED;
        result->detail = exit_code;
        result->status = cd_fail(&result->error, CDDP_E_ABORTED, "rank %u exited with code %d and left no result%s%s",
                                 r->rank, exit_code, lead, note);
    }
}

static cddp_status watch(watched *r, cddp_error *err)
{
    int exit_code = 0, signal_number = 0;
    bool exited = cd_os_child_poll(&r->child, &exit_code, &signal_number);
    CD_TRY(drain(r, err)); /* after the poll: what it wrote before it exited is there now (W3) */
    if (!exited) return CDDP_OK;
    cd_process_lines_end(&r->lines[CD_OS_PIPE_STDOUT], forward_stdout, r);
    cd_process_lines_end(&r->lines[CD_OS_PIPE_STDERR], forward_stderr, r);
    cd_os_child_close(&r->child);
    r->ended = true;
    if (!r->has_result) {
        judge_end(r, exit_code, signal_number);
        note_failure(r);
    }
    return CDDP_OK;
}

/* ---- ranks that report by themselves ---- */

/* Some launchers end all ranks when one has died, before we can see who was first; but they say whom they mean. */
static void accuse(cddp_process_world *w, const char *line, size_t length)
{
    char text[160];
    snprintf(text, sizeof text, "%.*s", (int)length, line);
    const char *at = strstr(text, "PID ");
    long process = at != NULL ? strtol(at + 4, NULL, 10) : 0;
    for (uint32_t i = 0; process > 0 && w->accused < 0 && i < w->options.world_size; i++)
        if (w->watched[i].process == process) w->accused = (int32_t)i;
}

static void forward_starter(void *context, const char *line, size_t length)
{
    cddp_process_world *w = context;
    const cddp_process_options *o = &w->options;
    if (length > 0) snprintf(w->starter_words, sizeof w->starter_words, "%.*s", (int)length, line);
    accuse(w, line, length);
    /* What it says at length about ranks that end in disorder, we say in one sentence. */
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
    if (!exited) return CDDP_OK;
    for (cd_os_pipe pipe = CD_OS_PIPE_STDOUT; pipe < CD_OS_PIPE_COUNT; pipe++)
        cd_process_lines_end(&w->starter_lines[pipe], forward_starter, w);
    cd_os_child_close(&w->starter);
    w->starter_ended = true;
    w->starter_end_ns = cd_os_now_ns();
    return CDDP_OK;
}

/* Connections of ranks that arrived. One that names a rank that does not exist, or again, is not taken. */
static cddp_status welcome(cddp_process_world *w, cddp_error *err)
{
    for (;;) {
        cd_process_hello who = {0};
        int fd = -1;
        bool found = false;
        CD_TRY(cd_process_hub_take(w->hub, &who, &fd, &found, err));
        if (!found) return CDDP_OK;
        watched *r = who.rank < w->options.world_size ? &w->watched[who.rank] : NULL;
        if (r == NULL || who.world_size != w->options.world_size || r->ended || (r->streams >> who.pipe & 1) != 0) {
            close(fd);
            continue;
        }
        r->child.fds[who.pipe] = fd;
        r->streams |= 1u << who.pipe;
        if (w->options.command != NULL) r->process = who.process; /* on another host the number means nothing */
    }
}

static bool has_arrived(const watched *r) { return r->streams == (1u << CD_OS_PIPE_COUNT) - 1; }

static void judge_loss(watched *r, bool arrived)
{
    const cddp_process_world *w = r->world;
    cddp_rank_result *result = r->result;
    const char *note = w->notes + (size_t)r->rank * CD_PROCESS_NOTE_BYTES;
    const char *lead = note[0] != '\0' ? "; its last note: " : "";
    bool is_first = w->accused >= 0 ? (uint32_t)w->accused == r->rank : r->lost_ns == w->first_lost_ns;
    if (w->killed) {
        judge_end(r, 0, SIGKILL);
    } else if (arrived && !is_first) {
        result->end = CDDP_RANK_HUNG;
        result->status = cd_fail(&result->error, CDDP_E_ABORTED,
                                 "rank %u was ended with the others when one had died%s%s", r->rank, lead, note);
    } else if (arrived) {
        result->end = CDDP_RANK_KILLED;
        result->status = cd_fail(&result->error, CDDP_E_ABORTED,
                                 "rank %u died: its connection ended without a result%s%s", r->rank, lead, note);
    } else {
        const char *words = w->starter_words[0] != '\0' ? ": " : "";
        result->end = CDDP_RANK_CRASHED;
        result->detail = w->starter_code;
        result->status = cd_fail(
            &result->error, CDDP_E_BACKEND, "rank %u never reported; its launcher ended with code %d%s%s", r->rank,
            w->starter_signal != 0 ? 128 + w->starter_signal : w->starter_code, words, w->starter_words);
    }
    note_failure(r);
}

/* Who is lost is judged a moment later, when it can be told who was lost first. */
static bool is_lost(watched *r)
{
    cddp_process_world *w = r->world;
    uint64_t now = cd_os_now_ns();
    if (r->has_result || !has_arrived(r) || r->child.fds[CD_OS_PIPE_RESULT] >= 0) return false;
    if (r->lost_ns == 0) r->lost_ns = now;
    if (w->first_lost_ns == 0) w->first_lost_ns = now;
    return w->accused >= 0 || w->starter_ended || now - w->first_lost_ns > LOSS_PATIENCE_NS;
}

static cddp_status watch_member(watched *r, cddp_error *err)
{
    const cddp_process_world *w = r->world;
    bool arrived = has_arrived(r);
    /* What its launcher left behind in the hub's queue has been taken in by now. */
    bool hopeless = w->killed || (w->starter_ended && cd_os_now_ns() - w->starter_end_ns > END_PATIENCE_NS);
    if (arrived) CD_TRY(drain(r, err));
    if (!r->has_result && !is_lost(r) && !hopeless) return CDDP_OK;
    if (arrived) CD_TRY(drain(r, err)); /* what it wrote before it spoke is there now (W3) */
    r->ended = true;
    if (!r->has_result) judge_loss(r, arrived);
    return CDDP_OK;
}

static void kill_members(cddp_process_world *w)
{
    for (uint32_t i = 0; i < w->options.world_size; i++)
        if (w->watched[i].process > 0) kill((pid_t)w->watched[i].process, SIGKILL);
}

/* Whether every rank can still end the transport in good order. */
static bool all_can_leave(const cddp_process_world *w)
{
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        const cddp_rank_result *r = w->watched[i].result;
        bool is_cut_off = r->status == CDDP_E_TIMEOUT || r->status == CDDP_E_BACKEND || r->status == CDDP_E_ABORTED;
        if (r->end != CDDP_RANK_RETURNED || is_cut_off) return false;
    }
    return true;
}

static cddp_status drain_members(cddp_process_world *w, cddp_error *err)
{
    for (uint32_t i = 0; i < w->options.world_size; i++)
        if (has_arrived(&w->watched[i])) CD_TRY(drain(&w->watched[i], err));
    return CDDP_OK;
}

static cddp_status await_starter(cddp_process_world *w, uint64_t patience_ns, cddp_error *err)
{
    uint64_t until = cd_os_now_ns() + patience_ns;
    for (;;) {
        CD_TRY(watch_starter(w, err));
        CD_TRY(drain_members(w, err)); /* after that: what they wrote before they ended is there now (W3) */
        if (w->starter_ended || cd_os_now_ns() >= until) return CDDP_OK;
        CD_TRY(cd_os_children_wait(&w->starter, 1, POLL_NS / 5, err));
    }
}

static cddp_status release_members(cddp_process_world *w, cddp_error *err)
{
    bool leave = all_can_leave(w);
    char word = leave ? CD_PROCESS_LEAVE : CD_PROCESS_QUIT;
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        int fd = w->watched[i].child.fds[CD_OS_PIPE_RESULT];
        /* One that cannot be told any more is gone already. */
        if (fd >= 0 && write(fd, &word, 1) < 0) continue;
    }
    if (leave) {
        CD_TRY(await_starter(w, LEAVE_PATIENCE_NS, err));
    } else if (w->options.command != NULL) {
        w->killed = true;
        kill_members(w);
        if (!w->starter_ended) kill((pid_t)w->starter.process, SIGTERM);
        CD_TRY(await_starter(w, END_PATIENCE_NS, err)); /* what is left then is killed by close */
    } else {
        /* Until we exit: the sockets, and rank 0, which ends with us. */
        for (uint32_t i = 0; i < w->options.world_size; i++) w->watched[i].child = (cd_os_child)CD_OS_CHILD_NONE;
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
            cddp_member_world_ops()->launch(member, call->program, call->argument, NULL, &error) == CDDP_OK)
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

static cddp_status start_members(cddp_process_world *w, cddp_rank_fn program, void *argument, cddp_error *err)
{
    const char *host = w->options.hub_host != NULL ? w->options.hub_host : "127.0.0.1";
    starter_call call = {w, program, argument};
    w->starter_ended = false;
    w->starter_words[0] = '\0';
    w->accused = -1;
    w->first_lost_ns = 0;
    memset(w->starter_lines, 0, sizeof w->starter_lines);
    cd_process_hub_close(w->hub);
    w->hub = NULL;
    CD_TRY(cd_process_hub_open(host, &w->hub, err));
    CD_TRY(cd_os_child_open(&w->starter, starter_main, &call, err));
    return CDDP_OK;
}

static cddp_status end_members(cddp_process_world *w, cddp_error *err)
{
    cddp_status status = release_members(w, err);
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        watched *r = &w->watched[i];
        cd_process_lines_end(&r->lines[CD_OS_PIPE_STDOUT], forward_stdout, r);
        cd_process_lines_end(&r->lines[CD_OS_PIPE_STDERR], forward_stderr, r);
    }
    cd_os_child_close(&w->starter); /* W2 */
    w->starter_ended = true;
    cd_process_hub_close(w->hub);
    w->hub = NULL;
    return status;
}

/* ---- all of them ---- */

static bool reports_by_itself(const cddp_process_options *o) { return o->command != NULL || o->member != NULL; }

static cddp_status look_at_all(cddp_process_world *w, cd_os_child *children, uint32_t *running, cddp_error *err)
{
    uint32_t count = w->options.world_size;
    bool members = reports_by_itself(&w->options);
    *running = 0;
    if (members) {
        CD_TRY(watch_starter(w, err));
        CD_TRY(welcome(w, err));
        children[count] = w->starter;
        children[count + 1] = (cd_os_child)CD_OS_CHILD_NONE;
        children[count + 1].fds[0] = cd_process_hub_fd(w->hub);
    }
    for (uint32_t i = 0; i < count; i++) {
        watched *r = &w->watched[i];
        if (!r->ended) CD_TRY(members ? watch_member(r, err) : watch(r, err));
        *running += !r->ended;
        children[i] = r->ended ? (cd_os_child)CD_OS_CHILD_NONE : r->child;
    }
    return CDDP_OK;
}

static void end_patience(cddp_process_world *w)
{
    w->killed = true;
    for (uint32_t i = 0; i < w->options.world_size; i++) cd_os_child_kill(&w->watched[i].child);
    if (w->options.command != NULL) kill_members(w);
    if (w->options.command == NULL && reports_by_itself(&w->options)) cd_os_child_kill(&w->starter);
}

static cddp_status watch_all(cddp_process_world *w, cddp_error *err)
{
    uint32_t slots = w->options.world_size + 2, running = 0;
    cddp_status status = CDDP_OK;
    cd_os_child *children = cd_allocate_array(w->options.allocator, slots, sizeof *children);
    if (children == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory to watch %u ranks", w->options.world_size);
    for (uint32_t i = 0; i < slots; i++) children[i] = (cd_os_child)CD_OS_CHILD_NONE;
    for (;;) {
        CD_TRY_OUT(look_at_all(w, children, &running, err));
        if (running == 0) break;
        uint64_t now = cd_os_now_ns();
        /* After a failure the end is near, and is to be told as what it is: mpirun, too, asks us to end then. */
        w->interrupted = w->interrupted || (w->failed < 0 && w->options.interrupted != NULL &&
                                            w->options.interrupted(w->options.context));
        if ((w->interrupted || now >= w->kill_ns) && !w->killed) end_patience(w);
        uint64_t patience = w->killed || w->kill_ns - now > POLL_NS ? POLL_NS : w->kill_ns - now;
        CD_TRY_OUT(cd_os_children_wait(children, slots, patience, err));
    }
out:
    cd_release(w->options.allocator, children, slots * sizeof *children);
    return status;
}

static cddp_status start_all(cddp_process_world *w, cddp_rank_fn program, void *argument, cddp_error *err)
{
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        program_call call = {&w->watched[i], program, argument};
        CD_TRY(cd_os_child_open(&w->watched[i].child, rank_main, &call, err));
    }
    return CDDP_OK;
}

static cddp_status world_launch(void *world, cddp_rank_fn program, void *argument, cddp_rank_result *results,
                                cddp_error *err)
{
    cddp_process_world *w = world;
    uint32_t count = w->options.world_size;
    cddp_status status = CDDP_OK;
    memset(w->notes, 0, (size_t)count * CD_PROCESS_NOTE_BYTES);
    memset(w->rings, 0, count * cd_process_ring_bytes());
    w->failed = -1;
    w->killed = w->interrupted = false;
    w->start_ns = cd_os_now_ns();
    w->kill_ns = w->options.deadline_ns != 0 ? w->start_ns + w->options.deadline_ns : UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        results[i] = (cddp_rank_result){.size = sizeof results[i], .end = CDDP_RANK_RETURNED};
        w->watched[i] = (watched){.world = w, .child = CD_OS_CHILD_NONE, .result = &results[i], .rank = i};
        cd_process_inbox_init(&w->watched[i].inbox, w->options.allocator);
    }
    if (reports_by_itself(&w->options)) {
        CD_TRY_OUT(start_members(w, program, argument, err));
        status = watch_all(w, err);
        cddp_status ended = end_members(w, status == CDDP_OK ? err : NULL);
        if (status == CDDP_OK) status = ended;
        goto out;
    }
    CD_TRY_OUT(start_all(w, program, argument, err));
    CD_TRY_OUT(watch_all(w, err));
out:
    for (uint32_t i = 0; i < count; i++) {
        cd_os_child_close(&w->watched[i].child); /* W2 */
        cd_process_inbox_fini(&w->watched[i].inbox);
    }
    return status;
}

cddp_status cddp_process_world_open(const cddp_process_options *options, cddp_process_world **world, cddp_error *err)
{
    if (options->world_size == 0) return cd_fail(err, CDDP_E_ARG, "a world needs at least one rank");
    cddp_status status = CDDP_OK;
    cddp_process_world *w = cd_allocate_zero(options->allocator, sizeof *w);
    if (w == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for a process world");
    w->options = *options;
    if (w->options.grace_ns == 0) w->options.grace_ns = DEFAULT_GRACE_NS;
    w->starter = (cd_os_child)CD_OS_CHILD_NONE;
    cd_arena_init(&w->texts, options->allocator, 4096);
    w->watched = cd_allocate_array(options->allocator, options->world_size, sizeof *w->watched);
    if (w->watched == NULL) {
        status = cd_fail(err, CDDP_E_NOMEM, "no memory for a process world of %u ranks", options->world_size);
        goto out;
    }
    void *notes;
    CD_TRY_OUT(cd_os_shared_open((size_t)options->world_size * CD_PROCESS_NOTE_BYTES, &notes, err));
    w->notes = notes;
    void *rings;
    CD_TRY_OUT(cd_os_shared_open(options->world_size * cd_process_ring_bytes(), &rings, err));
    w->rings = rings;
    *world = w;
    return CDDP_OK;
out:
    cddp_process_world_close(w);
    return status;
}

void cddp_process_world_close(cddp_process_world *world)
{
    if (world == NULL) return;
    const cddp_allocator *a = world->options.allocator;
    cd_os_shared_close(world->notes, (size_t)world->options.world_size * CD_PROCESS_NOTE_BYTES);
    cd_os_shared_close(world->rings, world->options.world_size * cd_process_ring_bytes());
    cd_process_hub_close(world->hub);
    cd_release(a, world->watched, world->options.world_size * sizeof *world->watched);
    cd_arena_fini(&world->texts);
    cd_release(a, world, sizeof *world);
}

bool cddp_process_world_was_interrupted(const cddp_process_world *world) { return world->interrupted; }

void cddp_process_world_each_last_event(const cddp_process_world *world, uint32_t rank, const cddp_trace_sink *sink)
{
    CD_ASSERT(rank < world->options.world_size);
    cd_process_ring_each(ring_of(world, rank), sink);
}
