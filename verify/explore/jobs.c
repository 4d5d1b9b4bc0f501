/* SPDX-License-Identifier: Apache-2.0 */
/* Explorations by several processes. */
#include "verify/explore/jobs.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <stdio.h>
#include <string.h>

#define WAIT_NS 100000000u /* between two looks at Ctrl-C */

bool cd_explore_is_interrupted(const cd_explore_jobs *jobs)
{
    return jobs->interrupted != NULL && jobs->interrupted();
}

cddp_status cd_explore_block(const cd_explore_jobs *jobs, uint64_t end, cddp_error *err)
{
    cd_explorer *e = jobs->frontier.explorer;
    cd_failures *failures = jobs->frontier.failures;
    cd_explored *now = &failures->now;
    while (e->runs < end && !cd_explore_is_interrupted(jobs) &&
           (failures->count == 0 || jobs->keep_going)) {
        const cd_chooser *chooser = cd_explorer_next(e);
        if (chooser == NULL) break;
        CD_TRY(cd_explore_run(jobs->subject, e, chooser, now, err));
        if (!now->is_verified)
            cd_failures_add_kind(failures, now->outcome, e->runs + 1, now->schedule);
        if (!now->is_verified && failures->count++ == 0) {
            failures->first = *now;
            failures->first_at = e->runs + 1;
        }
        CD_TRY(cd_explorer_done(e, now->outcome, err));
    }
    return CDDP_OK;
}

/* ---- a worker ---- */

typedef struct block {
    const cd_explore_jobs *jobs;
    uint64_t first, end;
    cd_text bytes; /* what came from it */
    bool running;
} block;

static int work(void *argument, int write_fd)
{
    const block *b = argument;
    const cd_frontier *f = &b->jobs->frontier;
    cddp_error err = CDDP_ERROR_INIT;
    cd_text text;
    memset(f->failures, 0, sizeof *f->failures);
    cd_explorer_begin_part(f->explorer, b->first);
    if (cd_explore_block(b->jobs, b->end, &err) != CDDP_OK) {
        fprintf(stderr, "cddp-verify: %s\n", err.message);
        return 1;
    }
    if (cd_explore_is_interrupted(b->jobs)) return 1;
    cd_text_init(&text, false);
    cd_frontier_print(f, &text);
    bool ok = !text.failed && cd_os_write_all(write_fd, text.bytes, text.length, &err) == CDDP_OK;
    cd_text_fini(&text);
    return ok ? 0 : 1;
}

/* ---- our side ---- */

cddp_status cd_explore_absorb(const cd_explore_jobs *jobs, const char *part_text, uint64_t first,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_explorer part;
    cd_failures *ours = jobs->frontier.failures, *theirs = cd_allocate_zero(NULL, sizeof *theirs);
    const cd_frontier read = {.explorer = &part, .failures = theirs, .plan = jobs->frontier.plan};
    if (theirs == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for what a process explored");
    CD_TRY_OUT(cd_explorer_init(&part, &jobs->frontier.explorer->options, err));
    status = cd_frontier_read(&read, part_text, err);
    if (status == CDDP_OK)
        status = cd_explorer_absorb(jobs->frontier.explorer, &part, part.runs - first, err);
    cd_explorer_fini(&part);
    if (status == CDDP_OK && theirs->count > 0 && ours->count == 0) {
        ours->first = theirs->first;
        ours->first_at = theirs->first_at;
    }
    for (uint32_t i = 0; status == CDDP_OK && i < theirs->kind_count; i++)
        cd_failures_add_kind(ours, theirs->kinds[i].outcome, theirs->kinds[i].at,
                             theirs->kinds[i].schedule);
    ours->count += theirs->count;
out:
    cd_release(NULL, theirs, sizeof *theirs);
    return status;
}

static cddp_status drain(cd_os_child *child, block *b, cddp_error *err)
{
    char bytes[16384];
    for (int pipe = 0; pipe < CD_OS_PIPE_COUNT; pipe++)
        for (size_t count = 1; count > 0;) {
            CD_TRY(cd_os_child_read(child, (cd_os_pipe)pipe, bytes, sizeof bytes, &count, err));
            if (pipe == CD_OS_PIPE_RESULT)
                cd_text_push_bytes(&b->bytes, bytes, count);
            else
                fwrite(bytes, 1, count, stderr);
        }
    return CDDP_OK;
}

static cddp_status look_at(cd_os_child *child, block *b, cddp_error *err)
{
    int exit_code = 0, signal_number = 0;
    /* before the pipes are emptied */
    bool ended = cd_os_child_poll(child, &exit_code, &signal_number);
    CD_TRY(drain(child, b, err));
    if (!ended) return CDDP_OK;
    b->running = false;
    if (cd_explore_is_interrupted(b->jobs) || (exit_code == 0 && signal_number == 0))
        return CDDP_OK;
    return cd_fail(err, CDDP_E_STATE, "a process that explored ended early (code %d, signal %d)",
                   exit_code, signal_number);
}

static cddp_status wait_for_all(const cd_explore_jobs *jobs, cd_os_child *children, block *blocks,
                                cddp_error *err)
{
    for (bool busy = true; busy && !cd_explore_is_interrupted(jobs);) {
        busy = false;
        CD_TRY(cd_os_children_wait(children, jobs->worker_count, WAIT_NS, err));
        for (uint32_t i = 0; i < jobs->worker_count; i++)
            if (blocks[i].running) {
                CD_TRY(look_at(&children[i], &blocks[i], err));
                busy |= blocks[i].running;
            }
    }
    return CDDP_OK;
}

static cddp_status run_blocks(const cd_explore_jobs *jobs, cd_os_child *children, block *blocks,
                              cddp_error *err)
{
    for (uint32_t i = 0; i < jobs->worker_count; i++) {
        CD_TRY(cd_os_child_open(&children[i], work, &blocks[i], err));
        blocks[i].running = true;
    }
    CD_TRY(wait_for_all(jobs, children, blocks, err));
    for (uint32_t i = 0; i < jobs->worker_count && !cd_explore_is_interrupted(jobs); i++) {
        CD_TRY(cd_explore_absorb(jobs, cd_text_get(&blocks[i].bytes), blocks[i].first, err));
        /* later blocks do not count */
        if (jobs->frontier.failures->count > 0 && !jobs->keep_going) break;
    }
    return CDDP_OK;
}

cddp_status cd_explore_stretch(const cd_explore_jobs *jobs, uint64_t end, bool *done,
                               cddp_error *err)
{
    static const cd_os_child none = CD_OS_CHILD_NONE;
    cddp_status status = CDDP_OK;
    uint32_t n = jobs->worker_count;
    uint64_t first = jobs->frontier.explorer->runs, each = (end - first + n - 1) / n;
    cd_os_child *children = cd_allocate_array(NULL, n, sizeof *children);
    block *blocks = cd_allocate_array(NULL, n, sizeof *blocks);
    if (children == NULL || blocks == NULL)
        CD_TRY_OUT(cd_fail(err, CDDP_E_NOMEM, "no memory for %u workers", (unsigned)n));
    for (uint32_t i = 0; i < n; i++) {
        uint64_t from = first + i * each < end ? first + i * each : end;
        children[i] = none;
        blocks[i] =
            (block){.jobs = jobs, .first = from, .end = from + each < end ? from + each : end};
        cd_text_init(&blocks[i].bytes, false);
    }
    status = run_blocks(jobs, children, blocks, err);
out:
    *done = !cd_explore_is_interrupted(jobs);
    for (uint32_t i = 0; children != NULL && blocks != NULL && i < n; i++) {
        cd_os_child_close(&children[i]);
        cd_text_fini(&blocks[i].bytes);
    }
    cd_release(NULL, children, n * sizeof *children);
    cd_release(NULL, blocks, n * sizeof *blocks);
    return status;
}
