/* SPDX-License-Identifier: Apache-2.0 */
/* Several scenarios at once.
**
** One process per scenario, at most worker_count alive. Each sends its result through a pipe when
** it is done, and, when the run is recorded, writes a store of its own (<store>.<index>) that is
** copied behind the others in the order of the list and then removed. So the store, too, is the
** same for every number of workers. */
#define _POSIX_C_SOURCE 200809L
#include "cli/jobs.h"

#include "cli/interrupt.h"
#include "cli/progress.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAIT_NS 200000000u /* between two looks at Ctrl-C */

typedef struct worker {
    size_t index; /* of the scenario */
    cd_text bytes;
    bool running;
} worker;

typedef struct pool {
    const cd_jobs *jobs;
    cd_result *results;
    bool *arrived, *died;  /* (count) */
    worker *workers;       /* (worker_count) */
    cd_os_child *children; /* (worker_count) */
    size_t next;           /* to start */
    size_t done;           /* results in place without a gap */
    size_t limit;          /* scenarios from here on do not count any more */
    cd_progress progress;
} pool;

static bool ends_run(const cd_jobs *jobs, const cd_result *result)
{
    return (result->exit_code != CD_EXIT_VERIFIED && !result->skipped && !jobs->keep_going) ||
           cd_interrupt_requested();
}

/* ---- in this process ---- */

static cddp_status run_here(const cd_jobs *jobs, cd_result *results, size_t *done, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_progress progress;
    cd_progress_begin(&progress, jobs->progress, jobs->count);
    for (*done = 0; *done < jobs->count && status == CDDP_OK;) {
        cd_progress_show(&progress, *done, jobs->paths[*done]);
        cd_session session = *jobs->session;
        session.run += *done;
        session.may_skip = jobs->may_skip[*done];
        status = cd_session_run(&session, jobs->paths[*done], &results[*done], err);
        if (status == CDDP_OK && ends_run(jobs, &results[(*done)++])) break;
    }
    cd_progress_end(&progress);
    return status;
}

/* ---- the worker's side ---- */

static void shard_path(const cd_jobs *jobs, size_t index, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s.%zu", cddp_store_path(jobs->session->store), index);
}

typedef struct work {
    const cd_jobs *jobs;
    size_t index;
} work;

static cddp_status do_work(const work *w, cd_result *result, cddp_error *err)
{
    char path[4200];
    cd_session session = *w->jobs->session;
    session.store = NULL;
    session.run += w->index;
    session.may_skip = w->jobs->may_skip[w->index];
    if (w->jobs->session->store != NULL) {
        shard_path(w->jobs, w->index, path, sizeof path);
        unlink(path); /* left behind by a run that was killed */
        CD_TRY(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &session.store, err));
    }
    cddp_status status = cd_session_run(&session, w->jobs->paths[w->index], result, err);
    cddp_store_close(session.store);
    return status;
}

/* Runs in the child. An error that would be everybody's becomes this scenario's result. */
static int work_in_child(void *argument, int write_fd)
{
    const work *w = argument;
    cddp_error err = CDDP_ERROR_INIT;
    cd_result result;
    cd_result_init(&result);
    result.source = w->jobs->paths[w->index];
    if (do_work(w, &result, &err) != CDDP_OK)
        cd_result_set_failure(&result, CD_EXIT_USAGE, err.message, "");
    int exit_code = cd_result_write(&result, write_fd, &err) == CDDP_OK ? 0 : 1;
    cd_result_fini(&result);
    return exit_code;
}

/* ---- our side ---- */

static void note_death(pool *p, const worker *w, int exit_code, int signal_number)
{
    char words[160];
    cd_result *result = &p->results[w->index];
    p->died[w->index] = true;
    cd_result_fini(result);
    cd_result_init(result);
    result->source = cd_result_copy(result, p->jobs->paths[w->index]);
    if (signal_number != 0)
        snprintf(words, sizeof words,
                 "the process that ran it was ended by signal %d (%s): a bug in cddp-verify or in "
                 "a plugin",
                 signal_number, strsignal(signal_number));
    else
        snprintf(words, sizeof words,
                 "the process that ran it left with code %d and without a result", exit_code);
    cd_result_set_failure(result, CD_EXIT_USAGE, words, "");
}

static void remove_shard(const cd_jobs *jobs, size_t index)
{
    static const char *const suffixes[] = {"", "-wal", "-shm", "-journal"};
    for (size_t k = 0; k < 4; k++) {
        char path[4200], name[4220];
        shard_path(jobs, index, path, sizeof path);
        snprintf(name, sizeof name, "%s%s", path, suffixes[k]);
        unlink(name);
    }
}

static cddp_status copy_shard(const cd_jobs *jobs, size_t index, cd_result *result, cddp_error *err)
{
    char path[4200];
    int64_t run = 0;
    cddp_store *shard = NULL;
    cddp_status status = CDDP_OK;
    shard_path(jobs, index, path, sizeof path);
    CD_TRY_OUT(cddp_store_open(path, CDDP_STORE_READ, NULL, &shard, err));
    CD_TRY_OUT(cddp_store_last_run(shard, &run, err));
    CD_TRY_OUT(cddp_store_copy_run(jobs->session->store, shard, run, &result->stored_run, err));
out:
    cddp_store_close(shard);
    return status;
}

/* Copies the worker's store behind what we have. One that died may have left a run, incomplete, or
** nothing at all. */
static cddp_status collect_shard(pool *p, size_t index, cddp_error *err)
{
    cddp_error ignored = CDDP_ERROR_INIT;
    cd_result *result = &p->results[index];
    if (p->jobs->session->store == NULL) return CDDP_OK;
    bool died = p->died[index];
    cddp_status status = CDDP_OK;
    if (died || result->stored_run > 0)
        status = copy_shard(p->jobs, index, result, died ? &ignored : err);
    remove_shard(p->jobs, index);
    return died ? CDDP_OK : status;
}

/* Takes results in order, until the first one that ends the run. */
static cddp_status settle(pool *p, cddp_error *err)
{
    while (p->done < p->limit && p->arrived[p->done]) {
        CD_TRY(collect_shard(p, p->done, err));
        if (ends_run(p->jobs, &p->results[p->done])) p->limit = p->done + 1;
        p->done++;
    }
    return CDDP_OK;
}

static cddp_status start(pool *p, uint32_t slot, cddp_error *err)
{
    worker *w = &p->workers[slot];
    work job = {p->jobs, p->next};
    w->index = p->next;
    cd_text_init(&w->bytes, false);
    CD_TRY(cd_os_child_open(&p->children[slot], work_in_child, &job, err));
    w->running = true;
    p->next++;
    return CDDP_OK;
}

static void finish(pool *p, uint32_t slot, int exit_code, int signal_number)
{
    worker *w = &p->workers[slot];
    cddp_error err = CDDP_ERROR_INIT;
    cd_os_child_close(&p->children[slot]);
    w->running = false;
    if (exit_code != 0 || signal_number != 0 ||
        cd_result_read(&p->results[w->index], w->bytes.bytes, w->bytes.length, &err) != CDDP_OK)
        note_death(p, w, exit_code, signal_number);
    p->arrived[w->index] = true;
    cd_text_fini(&w->bytes);
}

/* Takes everything that has arrived: the result, and what the worker printed, which is for
** people. */
static cddp_status drain(pool *p, uint32_t slot, cddp_error *err)
{
    char bytes[16384];
    for (int pipe = 0; pipe < CD_OS_PIPE_COUNT; pipe++) {
        for (size_t count = 1; count > 0;) {
            CD_TRY(cd_os_child_read(&p->children[slot], (cd_os_pipe)pipe, bytes, sizeof bytes,
                                    &count, err));
            if (pipe == CD_OS_PIPE_RESULT)
                cd_text_push_bytes(&p->workers[slot].bytes, bytes, count);
            else
                fwrite(bytes, 1, count, stderr);
        }
    }
    return CDDP_OK;
}

static cddp_status look_at(pool *p, uint32_t slot, cddp_error *err)
{
    int exit_code = 0, signal_number = 0;
    /* Polled before the pipes are emptied: what a dead child wrote is in them for certain. */
    bool ended = cd_os_child_poll(&p->children[slot], &exit_code, &signal_number);
    CD_TRY(drain(p, slot, err));
    if (ended) finish(p, slot, exit_code, signal_number);
    return CDDP_OK;
}

/* One round over all workers: start, wait, read, settle. */
static cddp_status turn(pool *p, cddp_error *err)
{
    uint32_t count = p->jobs->worker_count;
    for (uint32_t i = 0; i < count; i++)
        if (!p->workers[i].running && p->next < p->limit && !cd_interrupt_requested())
            CD_TRY(start(p, i, err));
    CD_TRY(cd_os_children_wait(p->children, count, WAIT_NS, err));
    for (uint32_t i = 0; i < count; i++)
        if (p->workers[i].running) CD_TRY(look_at(p, i, err));
    return CD_PASS(settle(p, err));
}

static bool is_busy(const pool *p)
{
    if (p->done >= p->limit) return false;
    for (uint32_t i = 0; i < p->jobs->worker_count; i++)
        if (p->workers[i].running) return true;
    return p->next < p->limit && !cd_interrupt_requested();
}

static cddp_status open_pool(pool *p, cddp_error *err)
{
    static const cd_os_child none = CD_OS_CHILD_NONE;
    uint32_t count = p->jobs->worker_count;
    p->arrived = cd_allocate_array(NULL, p->jobs->count, sizeof *p->arrived);
    p->died = cd_allocate_array(NULL, p->jobs->count, sizeof *p->died);
    p->workers = cd_allocate_array(NULL, count, sizeof *p->workers);
    p->children = cd_allocate_array(NULL, count, sizeof *p->children);
    if (p->arrived == NULL || p->died == NULL || p->workers == NULL || p->children == NULL)
        return cd_fail(err, CDDP_E_NOMEM, "no memory for %u workers", (unsigned)count);
    for (uint32_t i = 0; i < count; i++) p->children[i] = none;
    return CDDP_OK;
}

static void close_pool(pool *p)
{
    uint32_t count = p->jobs->worker_count;
    for (uint32_t i = 0; p->children != NULL && i < count; i++) cd_os_child_close(&p->children[i]);
    for (uint32_t i = 0; p->workers != NULL && i < count; i++) cd_text_fini(&p->workers[i].bytes);
    /* Shards of scenarios that no longer count. */
    for (size_t i = p->done; p->jobs->session->store != NULL && i < p->next; i++)
        remove_shard(p->jobs, i);
    cd_release(NULL, p->children, count * sizeof *p->children);
    cd_release(NULL, p->workers, count * sizeof *p->workers);
    cd_release(NULL, p->arrived, p->jobs->count * sizeof *p->arrived);
    cd_release(NULL, p->died, p->jobs->count * sizeof *p->died);
}

cddp_status cd_jobs_run(const cd_jobs *jobs, cd_result *results, size_t *done, cddp_error *err)
{
    if (jobs->worker_count <= 1) return CD_PASS(run_here(jobs, results, done, err));
    cddp_status status = CDDP_OK;
    pool p = {.jobs = jobs, .results = results, .limit = jobs->count};
    cd_progress_begin(&p.progress, jobs->progress, jobs->count);
    CD_TRY_OUT(open_pool(&p, err));
    while (is_busy(&p)) {
        CD_TRY_OUT(turn(&p, err));
        cd_progress_show(&p.progress, p.done, p.done < jobs->count ? jobs->paths[p.done] : "");
    }
out:
    cd_progress_end(&p.progress);
    *done = p.done;
    close_pool(&p);
    return status;
}
