/* SPDX-License-Identifier: Apache-2.0 */
/* Several scenarios at once.
**
** One process per scenario, at most worker_count alive. Each sends its result through a pipe when
** it is done, and, when the run is recorded, writes its own store (<store>.<index>) that is
** copied behind the others in the order of the list and then removed. So the store, too, is the
** same for every number of workers. */
#define _POSIX_C_SOURCE 200809L
#include "cli/jobs.h"

#include "cli/interrupt.h"
#include "cli/progress.h"
#include "core/base/crew.h"
#include "core/base/error.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct pool {
    const cd_jobs *jobs;
    cd_result *results;
    cd_progress progress;
} pool;

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
        unlink(path); /* left behind by a run that was killed */
        CD_TRY(cddp_store_open(path, CDDP_STORE_APPEND, NULL, &session.store, err));
    }
    cddp_status status = cd_session_run(&session, jobs->paths[index], result, err);
    cddp_store_close(session.store);
    return status;
}

/* Runs in the child. An error that would be everybody's becomes this scenario's result. */
static cddp_status work(void *context, size_t index, cd_text *bytes, cddp_error *err)
{
    const pool *p = context;
    cddp_error wrong = CDDP_ERROR_INIT;
    cd_result result;
    cd_result_init(&result);
    result.source = p->jobs->paths[index];
    if (run_in_child(p->jobs, index, &result, &wrong) != CDDP_OK)
        cd_result_set_failure(&result, CD_EXIT_USAGE, wrong.message, "");
    cd_result_write(&result, bytes);
    cd_result_fini(&result);
    return bytes->failed ? cd_fail_memory(err, "a result") : CDDP_OK;
}

/* ---- our side ---- */

static void note_death(pool *p, const cd_crew_end *end)
{
    char words[160];
    cd_result *result = &p->results[end->task];
    cd_result_fini(result);
    cd_result_init(result);
    result->source = cd_result_copy(result, p->jobs->paths[end->task]);
    if (end->signal_number != 0)
        snprintf(words, sizeof words,
                 "the process that ran it was ended by signal %d (%s): a bug in cddp-verify or in "
                 "a plugin",
                 end->signal_number, strsignal(end->signal_number));
    else
        snprintf(words, sizeof words,
                 "the process that ran it left with code %d and without a result", end->exit_code);
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

/* In the order of the list, until the first result that ends the run. */
static cddp_status take(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    pool *p = context;
    cddp_error unread = CDDP_ERROR_INIT;
    cd_result *result = &p->results[end->task];
    const bool died = !end->is_whole || end->status != CDDP_OK ||
                      cd_result_read(result, end->bytes, end->byte_count, &unread) != CDDP_OK;
    if (died) note_death(p, end);
    CD_TRY(collect_shard(p, end->task, died, err));
    *is_last = ends_run(p->jobs, result);
    return CDDP_OK;
}

static void show_progress(void *context, size_t done)
{
    pool *p = context;
    cd_progress_show(&p->progress, done, done < p->jobs->count ? p->jobs->paths[done] : "");
}

/* The output of a worker is for people. */
static void pass_output(void *context, const char *bytes, size_t byte_count)
{
    (void)context;
    fwrite(bytes, 1, byte_count, stderr);
}

cddp_status cd_jobs_run(const cd_jobs *jobs, cd_result *results, size_t *done, cddp_error *err)
{
    if (jobs->worker_count <= 1) return CD_PASS(run_here(jobs, results, done, err));
    pool p = {.jobs = jobs, .results = results};
    const cd_crew_options crew = {.task_count = jobs->count,
                                  .worker_count = jobs->worker_count,
                                  .context = &p,
                                  .work = work,
                                  .take = take,
                                  .progress = show_progress,
                                  .output = pass_output,
                                  .interrupted = cd_interrupt_requested,
                                  .drains = true};
    cd_crew_count count;
    cd_progress_begin(&p.progress, jobs->progress, jobs->count);
    const cddp_status status = cd_crew_run(&crew, &count, err);
    cd_progress_end(&p.progress);
    *done = count.taken;
    /* Shards of scenarios that no longer count. */
    for (size_t i = count.taken; jobs->session->store != NULL && i < count.begun; i++)
        remove_shard(jobs, i);
    return status;
}
