/* SPDX-License-Identifier: Apache-2.0 */
/* The process world: forks ranks, watches them until every one has ended, says how each of them
** did.
**
** One launch is a loop over events of all children: take what their pipes hold, reap who has
** exited, and at the kill time kill who is left. The kill time is the deadline, or sooner: grace_ns
** after the first rank failed. A rank that returned an error, was killed or crashed has failed; the
** others learn of it only through their transport, and what they then report is worth waiting for.
**
** Invariants:
**   W1  a result is filled exactly once: by the rank's own record, or by how its process ended;
**   W2  after launch no child is left, whatever launch returns;
**   W3  output that a rank wrote before it ended is forwarded before launch returns.
**
** Not here: ranks that a launcher started (process_members.c), the format on the pipes
** (process_wire.c), processes themselves (core/base/os_child_posix.c).
*/
#define _POSIX_C_SOURCE 200809L
#include "cddp/process.h"

#include "backends/process/process_ring.h"
#include "backends/process/process_watch.h"
#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/format.h"
#include "core/base/sized.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_GRACE_NS UINT64_C(5000000000)

static cddp_status world_launch(void *world, cddp_rank_fn program, void *argument,
                                cddp_rank_result *results, cddp_error *err);

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

static void keep_last_event(void *self, const cddp_event *event)
{
    cd_process_ring_push(self, event);
}

static cd_process_ring *ring_of(const cddp_process_world *w, uint32_t rank)
{
    return (cd_process_ring *)(w->rings + rank * cd_process_ring_bytes());
}

typedef struct program_call {
    const cd_process_watched *watched;
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
        .last_events = {sizeof(cddp_trace_sink), CDDP_TRACE_ABI, ring_of(w, call->watched->rank),
                        keep_last_event, NULL},
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

static void forward_line(const cd_process_watched *r, bool is_error, const char *line,
                         size_t length)
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

/* Launchers start programs of MPI, whose library ends the process itself where it cannot start. */
static void forward_stderr(void *context, const char *line, size_t length)
{
    cd_process_watched *r = context;
    char words[sizeof r->start_words];
    snprintf(words, sizeof words, "%.*s", (int)length, line);
    if (strstr(words, "MPI_Init") != NULL) memcpy(r->start_words, words, sizeof words);
    /* "[host:4047] Signal: Segmentation fault (11)" */
    const char *said = strstr(words, "] Signal: "),
               *number = said != NULL ? strrchr(said, '(') : NULL;
    if (number != NULL) r->said_signal = atoi(number + 1);
    forward_line(r, true, line, length);
}

void cd_process_watched_fail(cd_process_watched *r)
{
    cddp_process_world *w = r->world;
    if (w->failed >= 0) return;
    w->failed = (int32_t)r->rank;
    uint64_t until = cd_os_now_ns() + w->options.grace_ns;
    if (until < w->kill_ns) w->kill_ns = until;
}

static cddp_status take_records(cd_process_watched *r, cddp_error *err)
{
    for (;;) {
        cd_process_record record;
        bool found;
        CD_TRY(cd_process_inbox_take(&r->inbox, &record, &found, err));
        if (!found) return CDDP_OK;
        const cddp_process_options *o = &r->world->options;
        if (record.kind == CD_PROCESS_MESSAGE) {
            if (o->message != NULL)
                o->message(o->context, r->rank, record.bytes, record.byte_count);
            continue;
        }
        if (record.kind == CD_PROCESS_NOTE) {
            char *note = r->world->notes + (size_t)r->rank * CD_PROCESS_NOTE_BYTES;
            snprintf(note, CD_PROCESS_NOTE_BYTES, "%.*s", (int)record.byte_count,
                     (const char *)record.bytes);
            continue;
        }
        CD_TRY(cd_process_result_read(&record, &r->world->arena, r->result, err));
        r->has_result = true;
        if (r->result->status != CDDP_OK) cd_process_watched_fail(r);
    }
}

cddp_status cd_process_watched_drain(cd_process_watched *r, bool has_ended, cddp_error *err)
{
    char bytes[65536];
    for (cd_os_pipe pipe = 0; pipe < CD_OS_PIPE_COUNT; pipe++) {
        size_t n;
        for (bool goes_on = true; goes_on; goes_on = has_ended) {
            CD_TRY(cd_os_child_read(&r->child, pipe, bytes, sizeof bytes, &n, err));
            if (n == 0) break;
            if (pipe == CD_OS_PIPE_RESULT) {
                CD_TRY(cd_process_inbox_push(&r->inbox, bytes, n, err));
                CD_TRY(take_records(r, err));
            } else {
                bool is_error = pipe == CD_OS_PIPE_STDERR;
                cd_process_lines_push(&r->lines[pipe], bytes, n,
                                      is_error ? forward_stderr : forward_stdout, r);
            }
        }
    }
    return CDDP_OK;
}

void cd_process_watched_judge(cd_process_watched *r, int exit_code, int signal_number)
{
    const cddp_process_world *w = r->world;
    cddp_rank_result *result = r->result;
    if (r->has_result) return; /* W1 */
    const char *note = w->notes + (size_t)r->rank * CD_PROCESS_NOTE_BYTES;
    const char *lead = note[0] != '\0' ? "; its last note: " : "";
    if (r->stuck) {
        result->end = CDDP_RANK_HUNG;
        result->status =
            cd_fail(&result->error, CDDP_E_TIMEOUT,
                    "rank %u did not come back from what it called, so it was ended", r->rank);
    } else if (r->overdue) {
        result->end = CDDP_RANK_KILLED;
        result->detail = SIGSTOP;
        result->status =
            cd_fail(&result->error, CDDP_E_ABORTED,
                    "rank %u was stopped and did not go on for %.3f s, so it was killed%s%s",
                    r->rank, (double)w->options.patience_ns / 1e9, lead, note);
    } else if (w->killed && w->interrupted && signal_number != 0) {
        result->end = CDDP_RANK_INTERRUPTED;
        result->status = cd_fail(&result->error, CDDP_E_ABORTED,
                                 "rank %u was still running when the run was interrupted%s%s",
                                 r->rank, lead, note);
    } else if (w->killed && signal_number != 0) {
        char why[96];
        if (w->failed >= 0) {
            cd_real_format(why, sizeof why, "%.3f s after rank %d failed",
                           (double)w->options.grace_ns / 1e9, w->failed);
        } else {
            cd_real_format(why, sizeof why, "at the deadline of %.3f s",
                           (double)w->options.deadline_ns / 1e9);
        }
        result->end = r->was_stopped ? CDDP_RANK_KILLED : CDDP_RANK_HUNG;
        result->detail = r->was_stopped ? SIGSTOP : 0;
        result->status =
            cd_fail(&result->error, CDDP_E_TIMEOUT, "rank %u was still %s %s%s%s", r->rank,
                    r->was_stopped ? "stopped (SIGSTOP)" : "running", why, lead, note);
    } else if (signal_number != 0) {
        result->end = CDDP_RANK_KILLED;
        result->detail = signal_number;
        result->status =
            cd_fail(&result->error, CDDP_E_ABORTED, "rank %u was killed by signal %d (%s)%s%s",
                    r->rank, signal_number, cd_os_signal_text(signal_number), lead, note);
    } else {
        result->end = CDDP_RANK_CRASHED;
        result->detail = exit_code;
        result->status = cd_fail(&result->error, CDDP_E_ABORTED,
                                 "rank %u exited with code %d and left no result%s%s", r->rank,
                                 exit_code, lead, note);
    }
}

void cd_process_watched_end_lines(cd_process_watched *r)
{
    cd_process_lines_end(&r->lines[CD_OS_PIPE_STDOUT], forward_stdout, r);
    cd_process_lines_end(&r->lines[CD_OS_PIPE_STDERR], forward_stderr, r);
}

static cddp_status watch(cd_process_watched *r, cddp_error *err)
{
    int exit_code = 0, signal_number = 0;
    bool exited = cd_os_child_poll(&r->child, &exit_code, &signal_number);
    /* after the poll: what it wrote before it exited is there now (W3) */
    CD_TRY(cd_process_watched_drain(r, exited, err));
    if (!exited) return CDDP_OK;
    cd_process_watched_end_lines(r);
    cd_os_child_close(&r->child);
    r->process = 0;
    r->ended = true;
    if (!r->has_result) {
        cd_process_watched_judge(r, exit_code, signal_number);
        cd_process_watched_fail(r);
    }
    return CDDP_OK;
}

/* ---- all of them ---- */

static bool reports_by_itself(const cddp_process_options *o)
{
    return o->command != NULL || o->member != NULL;
}

static cddp_status look_at_all(cddp_process_world *w, cd_os_child *children, uint32_t *running,
                               cddp_error *err)
{
    uint32_t count = w->options.world_size;
    bool members = reports_by_itself(&w->options);
    *running = 0;
    if (members) CD_TRY(cd_process_members_take(w, &children[count], &children[count + 1], err));
    for (uint32_t i = 0; i < count; i++) {
        cd_process_watched *r = &w->watched[i];
        if (!r->ended) CD_TRY(members ? cd_process_member_watch(r, err) : watch(r, err));
        *running += !r->ended;
        children[i] = r->ended ? (cd_os_child)CD_OS_CHILD_NONE : r->child;
    }
    return CDDP_OK;
}

static void look_for_stuck(cddp_process_world *w)
{
    const cddp_process_options *o = &w->options;
    for (uint32_t i = 0; o->is_stuck != NULL && !w->killed && i < o->world_size; i++) {
        cd_process_watched *r = &w->watched[i];
        if (r->ended || r->has_result || r->stuck || r->process <= 0 || !o->is_stuck(o->context, i))
            continue;
        r->stuck = true;
        cd_process_watched_fail(r);
        kill((pid_t)r->process, SIGKILL);
    }
}

/* A stopped rank holds the others up wherever the transport has no time-out, as while it starts. */
static void look_for_stopped(cddp_process_world *w)
{
    uint64_t now = cd_os_now_ns();
    if (w->options.patience_ns == 0 || w->killed || now < w->look_ns) return;
    w->look_ns = now + CD_PROCESS_POLL_NS;
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        cd_process_watched *r = &w->watched[i];
        if (r->ended || r->has_result || r->overdue || r->process <= 0) continue;
        if (!cd_os_process_is_stopped(r->process))
            r->stopped_ns = 0;
        else if (r->stopped_ns == 0)
            r->stopped_ns = now;
        else if (now - r->stopped_ns > w->options.patience_ns)
            r->overdue = true;
        if (!r->overdue) continue;
        cd_process_watched_fail(r);
        kill((pid_t)r->process, SIGKILL);
    }
}

static void end_patience(cddp_process_world *w)
{
    w->killed = true;
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        cd_process_watched *r = &w->watched[i];
        r->was_stopped = !r->ended && cd_os_process_is_stopped(r->process);
        cd_os_child_kill(&r->child);
    }
    if (reports_by_itself(&w->options)) cd_process_members_kill(w);
    if (w->options.command == NULL && reports_by_itself(&w->options)) cd_os_child_kill(&w->starter);
}

static cddp_status watch_all(cddp_process_world *w, cddp_error *err)
{
    uint32_t slots = w->options.world_size + 2, running = 0;
    cddp_status status = CDDP_OK;
    cd_os_child *children = w->children;
    for (uint32_t i = 0; i < slots; i++) children[i] = (cd_os_child)CD_OS_CHILD_NONE;
    for (;;) {
        CD_TRY_OUT(look_at_all(w, children, &running, err));
        if (running == 0) break;
        look_for_stopped(w);
        look_for_stuck(w);
        uint64_t now = cd_os_now_ns();
        /* After a failure the end is near, and is reported as what it is: mpirun, too, asks us to
        ** end then. */
        w->interrupted = w->interrupted || (w->failed < 0 && w->options.interrupted != NULL &&
                                            w->options.interrupted(w->options.context));
        if ((w->interrupted || now >= w->kill_ns) && !w->killed) end_patience(w);
        uint64_t patience = w->killed || w->kill_ns - now > CD_PROCESS_POLL_NS ? CD_PROCESS_POLL_NS
                                                                               : w->kill_ns - now;
        CD_TRY_OUT(cd_os_children_wait(children, slots, patience, err));
    }
out:
    return status;
}

static cddp_status start_all(cddp_process_world *w, cddp_rank_fn program, void *argument,
                             cddp_error *err)
{
    for (uint32_t i = 0; i < w->options.world_size; i++) {
        program_call call = {&w->watched[i], program, argument};
        CD_TRY(cd_os_child_open(&w->watched[i].child, rank_main, &call, err));
        w->watched[i].process = w->watched[i].child.process;
    }
    return CDDP_OK;
}

static cddp_status world_launch(void *world, cddp_rank_fn program, void *argument,
                                cddp_rank_result *results, cddp_error *err)
{
    cddp_process_world *w = world;
    uint32_t count = w->options.world_size;
    cddp_status status = CDDP_OK;
    memset(w->notes, 0, (size_t)count * CD_PROCESS_NOTE_BYTES);
    memset(w->rings, 0, count * cd_process_ring_bytes());
    w->failed = -1;
    w->killed = w->interrupted = false;
    w->look_ns = 0;
    w->start_ns = cd_os_now_ns();
    w->kill_ns = w->options.deadline_ns != 0 ? w->start_ns + w->options.deadline_ns : UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        results[i] = (cddp_rank_result){.size = sizeof results[i], .end = CDDP_RANK_RETURNED};
        w->watched[i] = (cd_process_watched){.world = w,
                                             .child = CD_OS_CHILD_NONE,
                                             .result = &results[i],
                                             .rank = i};
        cd_process_inbox_init(&w->watched[i].inbox, w->options.allocator);
    }
    if (reports_by_itself(&w->options)) {
        CD_TRY_OUT(cd_process_members_begin(w, program, argument, err));
        status = watch_all(w, err);
        cddp_status ended = cd_process_members_end(w, status == CDDP_OK ? err : NULL);
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

cddp_status cddp_process_world_open(const cddp_process_options *options, cddp_process_world **world,
                                    cddp_error *err)
{
    CD_TRY(CD_SIZED_CHECK(options, cddp_process_options, world_size, err));
    if (options->world_size == 0)
        return cd_fail(err, CDDP_E_ARG, "a world needs at least one rank");
    CD_TRY(cd_os_hold_standard_streams(err));
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, options->allocator, 4096);
    cddp_process_world *w = cd_arena_push(&arena, sizeof *w);
    if (w == NULL) return cd_fail_memory(err, "a process world");
    w->arena = arena;
    w->options = *options;
    if (w->options.grace_ns == 0) w->options.grace_ns = DEFAULT_GRACE_NS;
    w->starter = (cd_os_child)CD_OS_CHILD_NONE;
    w->watched = cd_arena_array(&w->arena, options->world_size, sizeof *w->watched);
    w->children = cd_arena_array(&w->arena, options->world_size + 2u, sizeof *w->children);
    CD_TRY_OUT(cd_arena_check(&w->arena, err, "a process world of %u ranks", options->world_size));
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
    cd_os_shared_close(world->notes, (size_t)world->options.world_size * CD_PROCESS_NOTE_BYTES);
    cd_os_shared_close(world->rings, world->options.world_size * cd_process_ring_bytes());
    cd_process_hub_close(world->hub);
    cd_arena_fini(&world->arena);
}

bool cddp_process_world_was_interrupted(const cddp_process_world *world)
{
    return world->interrupted;
}

void cddp_process_world_each_last_event(const cddp_process_world *world, uint32_t rank,
                                        const cddp_trace_sink *sink)
{
    CD_ASSERT(rank < world->options.world_size);
    cd_process_ring_each(ring_of(world, rank), sink);
}
