/* SPDX-License-Identifier: Apache-2.0 */
/* Explorations by the processes of a job. See cluster.h.
**
**   process 0    order | state of the search | own block | reports | results of all | … |
**                the last order
**   the others   order | state of the search | own block | reports | …
**
** Orders and states are broadcast, reports and what came of the blocks are gathered by all.
*/
#include "verify/explore/cluster.h"

#include "cddp/process.h"
#include "verify/worlds/join.h"
#include "core/base/alloc.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* for the slowest block; a process that dies ends the job */
#define WAIT_NS UINT64_C(3600000000000)

struct cd_cluster {
    const cddp_backend *backend;
    cddp_solo_world *world;
    void *group;
    uint32_t rank, size;
    uint32_t *members; /* (size) */
    bool in_peace;     /* all wait for the same */
};

typedef struct order {
    uint64_t explores; /* 0: go */
    uint64_t first, end, state_bytes;
} order;

/* What a process reports before it sends its results. */
typedef struct note {
    uint64_t status, bytes;
    char message[CDDP_ERROR_MESSAGE_BYTES];
} note;

uint32_t cd_cluster_get_size(const cd_cluster *cluster) { return cluster->size; }

/* ---- bytes between processes ---- */

static cddp_tensor bytes_at(void *memory, size_t byte_count)
{
    const int64_t numel = (int64_t)byte_count;
    return cddp_tensor_of(cddp_device_cpu(), memory, 0, CDDP_U8, &numel, 1);
}

static cddp_status run(const cd_cluster *c, cddp_collective *collective, cddp_error *err)
{
    void *work = NULL;
    collective->size = sizeof *collective;
    collective->timeout_ns = WAIT_NS;
    CD_TRY(c->backend->post(c->group, collective, &work, err));
    const cddp_status status = c->backend->wait(c->group, work, WAIT_NS, err);
    c->backend->release(c->group, work);
    return status;
}

/* From process 0 to all. */
static cddp_status report(const cd_cluster *c, void *memory, size_t byte_count, cddp_error *err)
{
    const cddp_tensor t = bytes_at(memory, byte_count);
    cddp_collective all = {.op = CDDP_OP_BROADCAST, .input = t, .output = t};
    return byte_count > 0 ? run(c, &all, err) : CDDP_OK;
}

/* From each to all, equally much: process i's lies at i · byte_count. */
static cddp_status gather(const cd_cluster *c, void *mine, size_t byte_count, void *all,
                          cddp_error *err)
{
    cddp_collective each = {.op = CDDP_OP_ALLGATHER,
                            .input = bytes_at(mine, byte_count),
                            .output = bytes_at(all, byte_count * c->size)};
    return byte_count > 0 ? run(c, &each, err) : CDDP_OK;
}

/* ---- life ---- */

bool cd_cluster_is_first(const cd_cluster *cluster, cddp_environment_fn environment)
{
    const char *number = cd_join_find_launched(environment);
    return cluster != NULL ? cluster->rank == 0 : number == NULL || strcmp(number, "0") == 0;
}

static cddp_status find_transport(const cd_cluster_options *options, cd_cluster *c, cddp_error *err)
{
    cddp_error reason = CDDP_ERROR_INIT;
    bool one_host = false;
    if (options->find_backend(options->context, "mpi", &c->backend, &reason) != CDDP_OK)
        return cd_fail(err, CDDP_E_BACKEND,
                       "processes that a launcher started explore together over MPI; %.400s",
                       reason.message);
    c->size = 1;
    if (c->backend != NULL && c->backend->launcher != NULL)
        (void)c->backend->launcher->identity(options->environment, &c->rank, &c->size, &one_host);
    return CDDP_OK;
}

static cddp_status open_group(cd_cluster *c, cddp_error *err)
{
    const cddp_solo_options solo = {.size = sizeof solo, .rank = c->rank, .world_size = c->size};
    c->members = cd_allocate_array(NULL, c->size, sizeof *c->members);
    if (c->members == NULL) return cd_fail_memory(err, "%u processes", c->size);
    for (uint32_t i = 0; i < c->size; i++) c->members[i] = i;
    CD_TRY(cddp_solo_world_open(&solo, &c->world, err));
    const cddp_group_spec spec = {.size = sizeof spec,
                                  .name = "explore",
                                  .group_rank = c->rank,
                                  .group_size = c->size,
                                  .members = c->members,
                                  .timeout_ns = WAIT_NS};
    CD_TRY(c->backend->open(c->backend, cddp_solo_world_rank(c->world), &spec, &c->group, err));
    c->in_peace = true;
    return CDDP_OK;
}

cddp_status cd_cluster_open(const cd_cluster_options *options, cd_cluster **cluster,
                            cddp_error *err)
{
    if (cd_join_find_launched(options->environment) == NULL)
        return CD_PASS(options->environment("CDDP_HUB") != NULL
                           ? CDDP_OK
                           : cd_join_refuse(options->environment, "search the whole", err));
    cd_cluster *c = cd_allocate_zero(NULL, sizeof *c);
    if (c == NULL) return cd_fail_memory(err, "a job of several processes");
    cddp_status status = find_transport(options, c, err);
    if (status == CDDP_OK && c->size > 1) status = open_group(c, err);
    if (status == CDDP_OK && c->size > 1)
        *cluster = c;
    else
        cd_cluster_close(c);
    return status;
}

void cd_cluster_close(cd_cluster *c)
{
    if (c == NULL) return;
    if (c->group != NULL) c->backend->close(c->group);
    if (c->in_peace) c->backend->launcher->leave();
    cddp_solo_world_close(c->world);
    cd_release(NULL, c->members, c->size * sizeof *c->members);
    cd_release(NULL, c, sizeof *c);
}

/* The notes of all; *notes is the caller's. */
static cddp_status exchange(cd_cluster *c, note *mine, note **notes, cddp_error *err)
{
    *notes = cd_allocate_array(NULL, c->size, sizeof **notes);
    if (*notes == NULL) return cd_fail_memory(err, "the notes of %u processes", c->size);
    const cddp_status status = gather(c, mine, sizeof *mine, *notes, err);
    c->in_peace = c->in_peace && status == CDDP_OK;
    return status;
}

static note note_of(cddp_status status, const cddp_error *err)
{
    note n = {.status = (uint64_t)status};
    if (status != CDDP_OK) snprintf(n.message, sizeof n.message, "%s", err->message);
    return n;
}

/* The first that failed speaks for all. */
static cddp_status first_failure(const cd_cluster *c, const note *notes, cddp_error *err)
{
    for (uint32_t i = 0; i < c->size; i++) {
        const cddp_status status = (cddp_status)notes[i].status;
        if (status == CDDP_OK) continue;
        cd_error_reset(err);
        if (i == 0) return cd_fail(err, status, "%s", notes[i].message);
        return cd_fail(err, status, "process %" PRIu32 " of %" PRIu32 ": %.400s", i, c->size,
                       notes[i].message);
    }
    return CDDP_OK;
}

cddp_status cd_cluster_agree(cd_cluster *c, cddp_status mine, cddp_error *err)
{
    if (c == NULL) return mine;
    note here = note_of(mine, err), *notes = NULL;
    cd_error_reset(err);
    cddp_status status = exchange(c, &here, &notes, err);
    if (status == CDDP_OK) status = first_failure(c, notes, err);
    cd_release(NULL, notes, c->size * sizeof *notes);
    return status;
}

/* ---- a block ---- */

/* The runs of this process, by an explorer that knows the state of the search. */
static cddp_status explore_block(const cd_cluster *c, const cd_explore_jobs *jobs, const order *o,
                                 const char *state, cd_text *result, cddp_error *err)
{
    const uint64_t each = (o->end - o->first + c->size - 1) / c->size,
                   mine = o->first + c->rank * each;
    const uint64_t from = mine < o->end ? mine : o->end,
                   to = from + each < o->end ? from + each : o->end;
    cddp_status status = CDDP_OK;
    cd_explorer part;
    cd_explore_jobs own = *jobs;
    cd_failures *failures = cd_allocate_zero(NULL, sizeof *failures);
    if (failures == NULL) return cd_fail_memory(err, "the runs of a process");
    own.frontier =
        (cd_frontier){.explorer = &part, .failures = failures, .plan = jobs->frontier.plan};
    status = cd_explorer_init(&part, &jobs->frontier.explorer->options, err);
    if (status != CDDP_OK) goto out;
    CD_TRY_OUT(cd_frontier_read(&own.frontier, state, err));
    CD_TRY_OUT(cd_explorer_resume(&part, err));
    cd_explorer_begin_part(&part, from);
    memset(failures, 0, sizeof *failures);
    CD_TRY_OUT(cd_explore_block(&own, to, err));
    if (cd_explore_is_interrupted(jobs)) CD_TRY_OUT(cd_fail(err, CDDP_E_ABORTED, "interrupted"));
    cd_frontier_print(&own.frontier, result);
    if (result->failed) CD_TRY_OUT(cd_fail_memory(err, "the results of a process"));
out:
    cd_explorer_fini(&part);
    cd_release(NULL, failures, sizeof *failures);
    return status;
}

/* All blocks, as texts of equal length behind one another; *all is the caller's. */
static cddp_status collect(cd_cluster *c, cd_text *result, const note *notes, char **all,
                           size_t *each, cddp_error *err)
{
    *each = 0;
    for (uint32_t i = 0; i < c->size; i++)
        if (notes[i].bytes > *each) *each = (size_t)notes[i].bytes;
    char *mine = cd_allocate_zero(NULL, *each);
    *all = cd_allocate_zero(NULL, *each * c->size);
    cddp_status status = CDDP_OK;
    if (mine == NULL || *all == NULL)
        CD_TRY_OUT(cd_fail_memory(err, "the results of %u processes", c->size));
    memcpy(mine, cd_text_get(result), result->length + 1);
    CD_TRY_OUT(gather(c, mine, *each, *all, err));
out:
    c->in_peace = c->in_peace && status == CDDP_OK;
    cd_release(NULL, mine, *each);
    return status;
}

/* The same in all processes, from the order on; process 0 takes *all. */
static cddp_status explore_together(cd_cluster *c, const cd_explore_jobs *jobs, const order *o,
                                    const char *state, char **all, size_t *each, cddp_error *err)
{
    cddp_error failure = CDDP_ERROR_INIT;
    cd_text result;
    note *notes = NULL;
    cd_text_init(&result, false);
    note mine = note_of(explore_block(c, jobs, o, state, &result, &failure), &failure);
    mine.bytes = result.length + 1;
    cddp_status status = exchange(c, &mine, &notes, err);
    if (status == CDDP_OK) status = first_failure(c, notes, err);
    if (status == CDDP_OK) status = collect(c, &result, notes, all, each, err);
    cd_release(NULL, notes, c->size * sizeof *notes);
    cd_text_fini(&result);
    return status;
}

/* ---- process 0 ---- */

/* Without what was counted so far: the parts count anew. */
static void print_state(const cd_explore_jobs *jobs, cd_text *text)
{
    static const cd_digest_set none;
    cd_explorer light = *jobs->frontier.explorer;
    light.outcomes = light.offered = light.taken = none;
    cd_frontier_print(&(cd_frontier){&light, jobs->frontier.failures, jobs->frontier.plan}, text);
}

static cddp_status absorb_all(const cd_cluster *c, const cd_explore_jobs *jobs, const order *o,
                              const char *all, size_t each, cddp_error *err)
{
    const uint64_t block = (o->end - o->first + c->size - 1) / c->size;
    for (uint32_t i = 0; i < c->size; i++) {
        const uint64_t first = o->first + i * block < o->end ? o->first + i * block : o->end;
        CD_TRY(cd_explore_absorb(jobs, all + i * each, first, err));
        /* later blocks do not count */
        if (jobs->frontier.failures->count > 0 && !jobs->keep_going) break;
    }
    return CDDP_OK;
}

cddp_status cd_cluster_stretch(cd_cluster *c, const cd_explore_jobs *jobs, uint64_t end, bool *done,
                               cddp_error *err)
{
    cddp_status status = CDDP_OK;
    char *all = NULL;
    size_t each = 0;
    cd_text state;
    cd_text_init(&state, false);
    print_state(jobs, &state);
    order o = {.explores = 1,
               .first = jobs->frontier.explorer->runs,
               .end = end,
               .state_bytes = state.length + 1};
    if (state.failed) CD_TRY_OUT(cd_fail_memory(err, "the state of a search"));
    status = report(c, &o, sizeof o, err);
    if (status == CDDP_OK) status = report(c, state.bytes, state.length + 1, err);
    c->in_peace = c->in_peace && status == CDDP_OK;
    if (status == CDDP_OK)
        status = explore_together(c, jobs, &o, cd_text_get(&state), &all, &each, err);
    *done = status == CDDP_OK && !cd_explore_is_interrupted(jobs);
    /* somebody was interrupted: nothing of this is kept */
    if (status == CDDP_E_ABORTED) status = CDDP_OK;
    if (*done) status = absorb_all(c, jobs, &o, all, each, err);
out:
    cd_release(NULL, all, each * c->size);
    cd_text_fini(&state);
    return status;
}

cddp_status cd_cluster_dismiss(cd_cluster *c, cddp_error *err)
{
    order o = {.explores = 0};
    if (!c->in_peace) return CDDP_OK; /* nobody listens */
    const cddp_status status = report(c, &o, sizeof o, err);
    c->in_peace = status == CDDP_OK;
    return status;
}

/* ---- the others ---- */

static cddp_status serve_once(cd_cluster *c, const cd_explore_jobs *jobs, const order *o,
                              cddp_error *err)
{
    char *all = NULL, *state = cd_allocate_zero(NULL, (size_t)o->state_bytes);
    size_t each = 0;
    if (state == NULL) return cd_fail_memory(err, "the state of a search");
    cddp_status status = report(c, state, (size_t)o->state_bytes, err);
    c->in_peace = c->in_peace && status == CDDP_OK;
    if (status == CDDP_OK) status = explore_together(c, jobs, o, state, &all, &each, err);
    cd_release(NULL, all, each * c->size);
    cd_release(NULL, state, (size_t)o->state_bytes);
    return status;
}

cddp_status cd_cluster_serve(cd_cluster *c, const cd_explore_jobs *jobs, cddp_error *err)
{
    for (;;) {
        order o = {0};
        const cddp_status heard = report(c, &o, sizeof o, err);
        c->in_peace = c->in_peace && heard == CDDP_OK;
        CD_TRY(heard);
        if (o.explores == 0) return CDDP_OK;
        /* What went wrong in somebody's block all know by now, and process 0 says what follows. */
        if (serve_once(c, jobs, &o, err) != CDDP_OK && !c->in_peace) return err->status;
        cd_error_reset(err);
    }
}
