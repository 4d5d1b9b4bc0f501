/* SPDX-License-Identifier: Apache-2.0 */
/* Several scenarios at once.
**
** One process per scenario, at most worker_count alive. Each sends its result through a pipe when
** it is done. When the run is recorded, it writes its own store (<store>.part-<process>-<index>).
** That is copied behind the others in the order of the list, and then removed. So the store, too,
** is the same for every number of workers.
**
** A fork copies the tables of our pages, which grow with the results, and then every page that
** either of the two writes. So a process of a long list runs several scenarios in turn, where
** nothing is loaded from outside. When it dies, each of them gets a process after all. */
#define _POSIX_C_SOURCE 200809L
#include "cli/jobs.h"

#include "cli/interrupt.h"
#include "cli/progress.h"
#include "core/base/crew.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PART ".part-" /* between the name of a store and that of a worker's */

#define FORKS_EACH 16 /* of a long list, for each worker: none waits long for the last one */

typedef struct pool {
    const cd_jobs *jobs;
    cd_result *results;
    size_t first, end, stride; /* task t: the scenarios from first + t * stride on, before end */
    size_t taken;              /* scenarios whose result counts */
    cd_progress progress;
} pool;

static size_t first_of(const pool *p, size_t task) { return p->first + task * p->stride; }

static size_t end_of(const pool *p, size_t task)
{
    const size_t end = first_of(p, task) + p->stride;
    return end < p->end ? end : p->end;
}

static bool ends_run(const cd_jobs *jobs, const cd_result *result)
{
    return (result->verdict.outcome != CDDP_OUTCOME_VERIFIED && !result->skipped &&
            !jobs->keep_going) ||
           cd_interrupt_requested();
}

/* ---- in this process ---- */

static cddp_status run_here(const cd_jobs *jobs, cd_result *results, size_t *done, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_progress progress;
    cd_progress_begin(&progress, jobs->session->cli, jobs->progress ? jobs->count : 0);
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
    snprintf(path, bytes, "%s" PART "%" PRIu32 "-%zu", cddp_store_path(jobs->session->store),
             jobs->process, index);
}

static cddp_status run_in_child(const cd_jobs *jobs, size_t index, cd_result *result,
                                cddp_error *err)
{
    char path[4200];
    cd_session session = *jobs->session;
    session.store = NULL;
    session.run += index;
    session.may_skip = jobs->may_skip[index];
    if (jobs->session->store != NULL) {
        shard_path(jobs, index, path, sizeof path);
        CD_TRY(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &session.store, err));
    }
    cddp_status status = cd_session_run(&session, jobs->paths[index], result, err);
    cddp_store_close(session.store);
    return status;
}

/* Runs in the child: the results, each behind its size, up to one that ends the run. */
static cddp_status work(void *context, size_t task, cd_text *bytes, cddp_error *err)
{
    const pool *p = context;
    bool is_last = false;
    for (size_t index = first_of(p, task); index < end_of(p, task) && !is_last; index++) {
        cddp_error wrong = CDDP_ERROR_INIT;
        cd_result result;
        cd_text one;
        cd_result_init(&result);
        cd_text_init(&one, false);
        result.source = p->jobs->paths[index];
        /* An error that would be everybody's becomes this scenario's result. */
        if (run_in_child(p->jobs, index, &result, &wrong) != CDDP_OK)
            cd_result_set_failure(&result, CD_EXIT_USAGE, wrong.message, "");
        cd_result_write(&result, &one);
        is_last = ends_run(p->jobs, &result);
        const uint64_t size = one.length;
        cd_text_push_bytes(bytes, (const char *)&size, sizeof size);
        cd_text_push_bytes(bytes, cd_text_get(&one), one.length);
        const bool has_failed = one.failed || bytes->failed;
        cd_text_fini(&one);
        cd_result_fini(&result);
        if (has_failed) return cd_fail_memory(err, "a result");
    }
    return CDDP_OK;
}

/* ---- our side ---- */

static void note_death(pool *p, const cd_crew_end *end, size_t index)
{
    char words[160];
    cd_result *result = &p->results[index];
    const bool is_outside = cd_os_signal_is_from_outside(end->signal_number);
    cd_result_fini(result);
    cd_result_init(result);
    result->source = cd_result_copy(result, p->jobs->paths[index]);
    if (is_outside && cd_interrupt_requested()) {
        cd_result_set_failure(
            result, CD_EXIT_INCONCLUSIVE,
            "interrupted; its process was stopped before it could say what it knew", "");
        return;
    }
    if (is_outside)
        snprintf(
            words, sizeof words,
            "the process that ran it was ended from outside by signal %d (%s): by somebody, or "
            "by the system for want of memory",
            end->signal_number, strsignal(end->signal_number));
    else if (end->signal_number != 0)
        snprintf(words, sizeof words,
                 "the process that ran it was ended by signal %d (%s): a bug in cddp-verify or in "
                 "a plugin",
                 end->signal_number, strsignal(end->signal_number));
    else
        snprintf(words, sizeof words,
                 "the process that ran it left with code %d and without a result", end->exit_code);
    cd_result_set_failure(result, is_outside ? CD_EXIT_ENVIRONMENT : CD_EXIT_USAGE, words, "");
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
static cddp_status collect_shard(pool *p, size_t index, bool died, cddp_error *err)
{
    cddp_error ignored = CDDP_ERROR_INIT;
    cd_result *result = &p->results[index];
    if (p->jobs->session->store == NULL) return CDDP_OK;
    cddp_status status = CDDP_OK;
    if (died || result->stored_run > 0)
        status = copy_shard(p->jobs, index, result, died ? &ignored : err);
    remove_shard(p->jobs, index);
    return died ? CDDP_OK : status;
}

/* The size that stands before a result, and what it covers is there. */
static bool read_size(const cd_crew_end *end, size_t at, uint64_t *size)
{
    if (!end->is_whole || end->status != CDDP_OK || end->byte_count - at < sizeof *size)
        return false;
    memcpy(size, end->bytes + at, sizeof *size);
    return *size <= end->byte_count - at - sizeof *size;
}

static cddp_status run_crew(pool *p, size_t *begun, cddp_error *err);

/* The scenarios from `index` on, each in its own process: one of them ended the one they shared. */
static cddp_status run_apart(pool *p, size_t index, size_t end, cddp_error *err)
{
    pool apart = *p;
    size_t begun;
    apart.first = index;
    apart.end = end;
    apart.stride = 1;
    for (size_t i = index; p->jobs->session->store != NULL && i < end; i++)
        remove_shard(p->jobs, i);
    const cddp_status status = run_crew(&apart, &begun, err);
    p->taken = apart.taken;
    return CD_PASS(status);
}

/* In the order of the list, until the first result that ends the run. */
static cddp_status take(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    pool *p = context;
    size_t at = 0;
    for (size_t index = first_of(p, end->task); index < end_of(p, end->task) && !*is_last;
         index++) {
        cddp_error unread = CDDP_ERROR_INIT;
        cd_result *result = &p->results[index];
        uint64_t size = 0;
        const bool died =
            !read_size(end, at, &size) ||
            cd_result_read(result, end->bytes + at + sizeof size, size, &unread) != CDDP_OK;
        if (died && p->stride > 1 && !cd_interrupt_requested()) {
            cd_result_fini(result);
            cd_result_init(result);
            CD_TRY(run_apart(p, index, end_of(p, end->task), err));
            *is_last = p->taken > 0 && ends_run(p->jobs, &p->results[p->taken - 1]);
            return CDDP_OK;
        }
        if (died) note_death(p, end, index);
        CD_TRY(collect_shard(p, index, died, err));
        p->taken = index + 1;
        *is_last = ends_run(p->jobs, result);
        at += sizeof size + size;
    }
    return CDDP_OK;
}

static void show_progress(void *context, size_t tasks)
{
    pool *p = context;
    (void)tasks;
    cd_progress_show(&p->progress, p->taken,
                     p->taken < p->jobs->count ? p->jobs->paths[p->taken] : "");
}

/* The output of a worker is for people. */
static void pass_output(void *context, const char *bytes, size_t byte_count)
{
    (void)context;
    fwrite(bytes, 1, byte_count, stderr);
}

/* "run.db.part-4711-0" is a leftover when process 4711 is no more. */
static bool is_leftover(const char *name, const char *store, size_t store_length)
{
    char *end = NULL;
    if (strncmp(name, store, store_length) != 0 ||
        strncmp(name + store_length, PART, sizeof PART - 1) != 0)
        return false;
    const char *number = name + store_length + sizeof PART - 1;
    const unsigned long process = strtoul(number, &end, 10);
    return end != number && *end == '-' && process > 1 && process < INT32_MAX &&
           kill((pid_t)process, 0) != 0 && errno == ESRCH;
}

/* Removes what a run that was killed left beside the store. */
static void remove_leftovers(const char *store)
{
    char folder[4200];
    const char *slash = strrchr(store, '/'), *name = slash != NULL ? slash + 1 : store;
    const int length =
        slash == NULL ? snprintf(folder, sizeof folder, "./")
                      : snprintf(folder, sizeof folder, "%.*s", (int)(slash - store + 1), store);
    DIR *d = length < (int)sizeof folder ? opendir(folder) : NULL;
    if (d == NULL) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[4500];
        if (!is_leftover(e->d_name, name, strlen(name))) continue;
        snprintf(path, sizeof path, "%s%s", folder, e->d_name);
        unlink(path);
    }
    closedir(d);
}

static cddp_status run_crew(pool *p, size_t *begun, cddp_error *err)
{
    const cd_crew_options crew = {.task_count = (p->end - p->first + p->stride - 1) / p->stride,
                                  .worker_count = p->jobs->worker_count,
                                  .context = p,
                                  .work = work,
                                  .take = take,
                                  .progress = show_progress,
                                  .output = pass_output,
                                  .interrupted = cd_interrupt_requested,
                                  .drains = true};
    cd_crew_count count;
    const cddp_status status = cd_crew_run(&crew, &count, err);
    *begun = count.begun == 0 ? p->first : end_of(p, count.begun - 1);
    return CD_PASS(status);
}

/* What a plugin keeps in its own memory must not reach the next scenario. */
static size_t stride_of(const cd_jobs *jobs)
{
    if (cd_args_has(jobs->session->cli->args, CD_OPTION_plugin)) return 1;
    const size_t stride = jobs->count / FORKS_EACH / jobs->worker_count;
    return stride > 1 ? stride : 1;
}

cddp_status cd_jobs_run(const cd_jobs *given, cd_result *results, size_t *done, cddp_error *err)
{
    cd_jobs here = *given, *jobs = &here;
    if (jobs->worker_count <= 1) return CD_PASS(run_here(jobs, results, done, err));
    here.process = cd_os_process_id();
    if (jobs->session->store != NULL) remove_leftovers(cddp_store_path(jobs->session->store));
    pool p = {.jobs = jobs, .results = results, .end = jobs->count, .stride = stride_of(jobs)};
    size_t begun = 0;
    cd_progress_begin(&p.progress, jobs->session->cli, jobs->progress ? jobs->count : 0);
    const cddp_status status = run_crew(&p, &begun, err);
    cd_progress_end(&p.progress);
    *done = p.taken;
    /* Shards of scenarios that no longer count. */
    for (size_t i = p.taken; jobs->session->store != NULL && i < begun; i++) remove_shard(jobs, i);
    return status;
}
