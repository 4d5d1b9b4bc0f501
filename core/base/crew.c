/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of processes. See crew.h.
**
** C1  tasks are begun in order, each by one worker, which is a fork of this process
** C2  a slot is free exactly when its task is NONE
** C3  task t is taken once, after all before it, and once t < limit
** C4  a record counts when all of it has arrived: a header, and as many bytes as it says
*/
#include "core/base/crew.h"

#include "core/base/arena.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <stdio.h>
#include <string.h>

#define WAIT_NS 100000000u            /* between two looks at `interrupted` */
#define LAST_NS 1000000u              /* between two looks at a child that is leaving */
#define DRAIN_NS UINT64_C(5000000000) /* how long interrupted workers may go on */
#define MAGIC UINT64_C(0x6364647063726577)
#define NONE SIZE_MAX

typedef struct header {
    uint64_t magic, status, byte_count;
} header;

typedef struct task {
    cd_text record;    /* what has arrived */
    uint64_t begun_ns; /* where there is a limit */
    int exit_code, signal_number;
    bool ended, is_late;
} task;

typedef struct crew {
    cd_arena arena; /* owns the tables */
    const cd_crew_options *options;
    task *tasks;             /* (task_count) */
    cd_os_child *children;   /* (worker_count) */
    size_t *slots;           /* (worker_count) the task of each worker; NONE: free */
    size_t limit;            /* tasks from here on do not count */
    uint64_t interrupted_ns; /* when that was seen; 0: not yet */
    cd_crew_count *count;
} crew;

static bool is_interrupted(const cd_crew_options *o)
{
    return o->interrupted != NULL && o->interrupted();
}

/* ---- the worker's side ---- */

typedef struct errand {
    const cd_crew_options *options;
    size_t task;
} errand;

/* Runs in the child; its result is the exit code. */
static int work_in_child(void *argument, int write_fd)
{
    const errand *e = argument;
    cddp_error err = CDDP_ERROR_INIT, unsent = CDDP_ERROR_INIT;
    cd_text result;
    cd_text_init(&result, false);
    cddp_status status = e->options->work(e->options->context, e->task, &result, &err);
    if (status == CDDP_OK && result.failed) status = cd_fail_memory(&err, "the result of a worker");
    const char *bytes = status == CDDP_OK ? cd_text_get(&result) : err.message;
    const header h = {MAGIC, (uint64_t)status,
                      status == CDDP_OK ? result.length : strlen(err.message)};
    const bool is_sent = cd_os_write_all(write_fd, &h, sizeof h, &unsent) == CDDP_OK &&
                         cd_os_write_all(write_fd, bytes, h.byte_count, &unsent) == CDDP_OK;
    cd_text_fini(&result);
    return is_sent ? 0 : 1;
}

/* ---- our side ---- */

static cd_crew_end end_of(const task *t, size_t number)
{
    cd_crew_end end = {.task = number,
                       .message = "",
                       .bytes = "",
                       .exit_code = t->exit_code,
                       .signal_number = t->signal_number,
                       .is_late = t->is_late};
    header h;
    if (t->record.length < sizeof h) return end;
    memcpy(&h, t->record.bytes, sizeof h);
    if (h.magic != MAGIC || h.byte_count != t->record.length - sizeof h) return end; /* C4 */
    end.is_whole = true;
    end.status = (cddp_status)h.status;
    if (end.status != CDDP_OK) {
        end.message = t->record.bytes + sizeof h;
    } else {
        end.bytes = t->record.bytes + sizeof h;
        end.byte_count = (size_t)h.byte_count;
    }
    return end;
}

static cddp_status begin(crew *c, uint32_t slot, cddp_error *err)
{
    errand e = {c->options, c->count->begun};
    CD_TRY(cd_os_child_open(&c->children[slot], work_in_child, &e, err));
    if (c->options->limit_ns != 0) c->tasks[e.task].begun_ns = cd_os_now_ns();
    c->slots[slot] = c->count->begun++; /* C1 */
    return CDDP_OK;
}

static cddp_status drain(crew *c, uint32_t slot, cddp_error *err)
{
    char bytes[16384];
    const cd_crew_options *o = c->options;
    cd_text *record = &c->tasks[c->slots[slot]].record;
    for (int pipe = 0; pipe < CD_OS_PIPE_COUNT; pipe++)
        for (size_t got = 1; got > 0;) {
            CD_TRY(cd_os_child_read(&c->children[slot], (cd_os_pipe)pipe, bytes, sizeof bytes, &got,
                                    err));
            if (got == 0) break;
            if (pipe == CD_OS_PIPE_RESULT)
                cd_text_push_bytes(record, bytes, got);
            else if (o->output != NULL)
                o->output(o->context, bytes, got);
        }
    return record->failed ? cd_fail_memory(err, "the result of a worker") : CDDP_OK;
}

cddp_status cd_crew_check_outside(const cd_crew_end *end, const char *what, cddp_error *err)
{
    if (end->is_whole || end->is_late || !cd_os_signal_is_from_outside(end->signal_number))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_NOMEM,
                   "%s was ended from outside by signal %d (%s): by somebody, or by the system for "
                   "want of memory",
                   what, end->signal_number, cd_os_signal_text(end->signal_number));
}

/* An error when a worker without a result is the end of the whole. */
static cddp_status check_needed(const crew *c, size_t number, cddp_error *err)
{
    const cd_crew_end end = end_of(&c->tasks[number], number);
    if (c->options->needed == NULL || is_interrupted(c->options)) return CDDP_OK;
    char what[60];
    snprintf(what, sizeof what, "a process that %s", c->options->needed);
    CD_TRY(cd_crew_check_outside(&end, what, err));
    if (!end.is_whole)
        return cd_fail(err, CDDP_E_STATE, "a process that %s ended early (code %d, signal %d)",
                       c->options->needed, end.exit_code, end.signal_number);
    return end.status == CDDP_OK ? CDDP_OK : cd_fail(err, end.status, "%s", end.message);
}

static cddp_status look_at(crew *c, uint32_t slot, cddp_error *err)
{
    const size_t number = c->slots[slot];
    task *t = &c->tasks[number];
    /* Polled before the pipes are emptied: what a dead child wrote is in them for certain. */
    const bool ended = cd_os_child_poll(&c->children[slot], &t->exit_code, &t->signal_number);
    CD_TRY(drain(c, slot, err));
    if (!ended) {
        t->is_late =
            c->options->limit_ns != 0 && cd_os_now_ns() - t->begun_ns > c->options->limit_ns;
        if (t->is_late) cd_os_child_kill(&c->children[slot]);
        return CDDP_OK;
    }
    cd_os_child_close(&c->children[slot]);
    t->ended = true;
    c->slots[slot] = NONE; /* C2 */
    CD_TRY(check_needed(c, number, err));
    return CDDP_OK;
}

/* Hands over what has ended, in order. */
static cddp_status settle(crew *c, cddp_error *err)
{
    while (c->count->taken < c->limit && c->tasks[c->count->taken].ended) { /* C3 */
        const cd_crew_end end = end_of(&c->tasks[c->count->taken], c->count->taken);
        bool is_last = false;
        CD_TRY(c->options->take(c->options->context, &end, &is_last, err));
        cd_text_fini(&c->tasks[c->count->taken].record);
        c->count->taken++;
        if (is_last) c->limit = c->count->taken;
    }
    return CDDP_OK;
}

/* A child whose result pipe has ended is about to: nothing in a pipe will wake us then. */
static uint64_t patience_ns(const crew *c)
{
    for (uint32_t i = 0; i < c->options->worker_count; i++)
        if (c->slots[i] != NONE && c->children[i].fds[CD_OS_PIPE_RESULT] < 0) return LAST_NS;
    return WAIT_NS;
}

/* The signal may have reached us alone, so workers are asked to end. One that is in a loop does not
** listen, and is stopped. */
static void end_drain(crew *c)
{
    const uint64_t now_ns = cd_os_now_ns();
    if (!is_interrupted(c->options) || !c->options->drains) return;
    const bool is_first = c->interrupted_ns == 0;
    if (is_first) c->interrupted_ns = now_ns;
    const bool is_over = now_ns - c->interrupted_ns >= DRAIN_NS;
    for (uint32_t i = 0; i < c->options->worker_count; i++) {
        if (c->slots[i] == NONE) continue;
        if (is_first) cd_os_child_interrupt(&c->children[i]);
        if (is_over) cd_os_child_kill(&c->children[i]);
    }
}

/* One round over all workers: begin, wait, read, hand over. */
static cddp_status turn(crew *c, cddp_error *err)
{
    const cd_crew_options *o = c->options;
    for (uint32_t i = 0; i < o->worker_count; i++)
        if (c->slots[i] == NONE && c->count->begun < c->limit && !is_interrupted(o))
            CD_TRY(begin(c, i, err));
    CD_TRY(cd_os_children_wait(c->children, o->worker_count, patience_ns(c), err));
    if (is_interrupted(o) && !o->drains) return CDDP_OK;
    end_drain(c);
    for (uint32_t i = 0; i < o->worker_count; i++)
        if (c->slots[i] != NONE) CD_TRY(look_at(c, i, err));
    return CD_PASS(settle(c, err));
}

static bool is_busy(const crew *c)
{
    const bool interrupted = is_interrupted(c->options);
    if (c->count->taken >= c->limit || (interrupted && !c->options->drains)) return false;
    for (uint32_t i = 0; i < c->options->worker_count; i++)
        if (c->slots[i] != NONE) return true;
    return c->count->begun < c->limit && !interrupted;
}

static cddp_status open_crew(crew *c, cddp_error *err)
{
    static const cd_os_child none = CD_OS_CHILD_NONE;
    const cd_crew_options *o = c->options;
    cd_arena_init(&c->arena, NULL, 4096);
    c->tasks = cd_arena_array(&c->arena, o->task_count, sizeof *c->tasks);
    c->children = cd_arena_array(&c->arena, o->worker_count, sizeof *c->children);
    c->slots = cd_arena_array(&c->arena, o->worker_count, sizeof *c->slots);
    CD_TRY(cd_arena_check(&c->arena, err, "%u workers", (unsigned)o->worker_count));
    for (uint32_t i = 0; i < o->worker_count; i++) {
        c->children[i] = none;
        c->slots[i] = NONE;
    }
    return CDDP_OK;
}

static void close_crew(crew *c)
{
    const cd_crew_options *o = c->options;
    const bool is_open = !c->arena.exhausted;
    for (uint32_t i = 0; is_open && i < o->worker_count; i++) cd_os_child_close(&c->children[i]);
    for (size_t i = 0; is_open && i < c->count->begun; i++) cd_text_fini(&c->tasks[i].record);
    cd_arena_fini(&c->arena);
}

cddp_status cd_crew_run(const cd_crew_options *options, cd_crew_count *count, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    crew c = {.options = options, .limit = options->task_count, .count = count};
    *count = (cd_crew_count){.begun = 0};
    if (options->task_count == 0) return CDDP_OK;
    CD_TRY_OUT(open_crew(&c, err));
    while (is_busy(&c)) {
        CD_TRY_OUT(turn(&c, err));
        if (options->progress != NULL) options->progress(options->context, count->taken);
    }
out:
    close_crew(&c);
    return status;
}
