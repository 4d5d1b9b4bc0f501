/* SPDX-License-Identifier: Apache-2.0 */
/* Explorations by several processes. */
#include "verify/explore/jobs.h"

#include "core/base/alloc.h"
#include "core/base/crew.h"
#include "core/base/error.h"

#include <string.h>

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
        failures->struck |= ~now->missing_faults;
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

typedef struct stretch {
    const cd_explore_jobs *jobs;
    uint64_t first, end, each; /* the runs, and how many of them make a block */
    cd_text *blocks;           /* (worker_count) what came from each */
} stretch;

static uint64_t first_of(const stretch *s, size_t block)
{
    const uint64_t first = s->first + block * s->each;
    return first < s->end ? first : s->end;
}

static cddp_status work(void *context, size_t block, cd_text *result, cddp_error *err)
{
    const stretch *s = context;
    const cd_frontier *f = &s->jobs->frontier;
    memset(f->failures, 0, sizeof *f->failures);
    cd_explorer_begin_part(f->explorer, first_of(s, block));
    CD_TRY(cd_explore_block(s->jobs, first_of(s, block + 1), err));
    if (cd_explore_is_interrupted(s->jobs)) return cd_fail(err, CDDP_E_ABORTED, "interrupted");
    cd_frontier_print(f, result);
    return CDDP_OK;
}

/* ---- our side ---- */

cddp_status cd_explore_absorb(const cd_explore_jobs *jobs, const char *part_text, uint64_t first,
                              cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_explorer part;
    cd_failures *ours = jobs->frontier.failures, *theirs = cd_allocate_zero(NULL, sizeof *theirs);
    const cd_frontier read = {.explorer = &part, .failures = theirs, .plan = jobs->frontier.plan};
    if (theirs == NULL) return cd_fail_memory(err, "what a process explored");
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
    ours->struck |= theirs->struck;
out:
    cd_release(NULL, theirs, sizeof *theirs);
    return status;
}

/* Kept until all blocks are there: a stretch that is interrupted leaves nothing. */
static cddp_status keep(void *context, const cd_crew_end *end, bool *is_last, cddp_error *err)
{
    stretch *s = context;
    cd_text *block = &s->blocks[end->task];
    (void)is_last;
    cd_text_push_bytes(block, end->bytes, end->byte_count);
    return block->failed ? cd_fail_memory(err, "what a process explored") : CDDP_OK;
}

static void pass_output(void *context, const char *bytes, size_t byte_count)
{
    const stretch *s = context;
    if (s->jobs->output != NULL) s->jobs->output(bytes, byte_count);
}

static cddp_status run_blocks(stretch *s, cddp_error *err)
{
    const cd_explore_jobs *jobs = s->jobs;
    const cd_crew_options crew = {.task_count = jobs->worker_count,
                                  .worker_count = jobs->worker_count,
                                  .context = s,
                                  .work = work,
                                  .take = keep,
                                  .output = pass_output,
                                  .interrupted = jobs->interrupted,
                                  .needed = "explored"};
    cd_crew_count count;
    CD_TRY(cd_crew_run(&crew, &count, err));
    for (uint32_t i = 0; i < jobs->worker_count && !cd_explore_is_interrupted(jobs); i++) {
        CD_TRY(cd_explore_absorb(jobs, cd_text_get(&s->blocks[i]), first_of(s, i), err));
        /* later blocks do not count */
        if (jobs->frontier.failures->count > 0 && !jobs->keep_going) break;
    }
    return CDDP_OK;
}

cddp_status cd_explore_stretch(const cd_explore_jobs *jobs, uint64_t end, bool *done,
                               cddp_error *err)
{
    const uint32_t n = jobs->worker_count;
    const uint64_t first = jobs->frontier.explorer->runs;
    stretch s = {.jobs = jobs,
                 .first = first,
                 .end = end,
                 .each = (end - first + n - 1) / n,
                 .blocks = cd_allocate_array(NULL, n, sizeof *s.blocks)};
    cddp_status status =
        s.blocks != NULL ? run_blocks(&s, err) : cd_fail_memory(err, "%u workers", (unsigned)n);
    *done = !cd_explore_is_interrupted(jobs);
    for (uint32_t i = 0; s.blocks != NULL && i < n; i++) cd_text_fini(&s.blocks[i]);
    cd_release(NULL, s.blocks, n * sizeof *s.blocks);
    return status;
}
