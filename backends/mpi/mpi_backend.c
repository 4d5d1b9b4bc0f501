/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI backend: non-blocking collectives of an MPI library; one lane per group drives them.
**
** An MPI library makes progress only inside its own calls, so every operation runs in the group's
** lane. The lane starts it and tests it until it ended or its deadline passed; it yields the
** processor between tests. Operations are issued in the order of posting (C10-03), and
** communication goes on while backward computes.
**
** The process is a rank already: mpirun or srun started it, perhaps on our request
** (<flavour>_launcher.c; these sources build one module per MPI). The first group initialises MPI;
** MPI is finalised when the process exits. Each group has its own communicator, made from its
** members alone.
**
** Types: f16 and bf16 are two contiguous bytes, reduced by our own operators. MPI leaves NaN
** undefined in MIN and MAX; our operators treat it as the device table does. Counts above 2^30
** elements go in several pieces.
**
** Invariant
**   M1  An operation that has begun cannot be cancelled: any later call of MPI, for any group,
**       continues it and then writes to its tensors; so does finalising MPI. So a process that
**       abandoned an operation (time-out, abort) does not call MPI again. Its tensors are the
**       caller's, every later operation reports why it fails, and the process exits without
**       finalising MPI. The launcher then ends the job.
**
** Options of a group ("key=value,…"):
**   guard=0|1   fingerprints before each collective (default 1). Without them MPI corrupts memory
**               when ranks disagree on a size.
**
** Limits: an MPI that does not return from a call while a peer is stopped (MPICH over shared
** memory) blocks the lane. The wait still ends in time, and the group's memory stays with MPI until
** the process ends. A late peer may still read the memory of an abandoned operation, over shared
** memory or remote DMA, and can die of that inside its MPI. MPI 4.1 has no recovery: when a rank
** dies the launcher ends the job. abort fails queued operations and abandons those in flight; it
** does not call MPI_Abort. The backend needs MPI_THREAD_MULTIPLE; without it a group refuses to
** open and says so.
*/
#define _POSIX_C_SOURCE 200809L
#include "backends/mpi/mpi_group.h"
#include "cddp/plugin.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/pairs.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_NS UINT64_C(1800000000000)
#define STUCK_NS UINT64_C(200000000)

/* MPI belongs to the process, and so does its state. */
static struct {
    atomic_bool given_up;       /* M1 */
    cd_mpi_group *_Atomic kept; /* groups whose memory stays with MPI */
    void *initialising;         /* what MPI_Init_thread still uses */
} mpi_state;

void cd_mpi_give_up(void) { atomic_store(&mpi_state.given_up, true); }

cddp_status cd_mpi_usable(cddp_error *err)
{
    if (!atomic_load_explicit(&mpi_state.given_up, memory_order_relaxed)) return CDDP_OK;
    return cd_fail(
        err, CDDP_E_BACKEND,
        "mpi: an earlier operation never ended in this process, and MPI cannot recover from that");
}

void cd_mpi_leave(void)
{
    if (atomic_load(&mpi_state.given_up)) return;
    int is_final = 0;
    int is_initialised = 0;
    MPI_Initialized(&is_initialised);
    MPI_Finalized(&is_final);
    if (is_initialised && !is_final) MPI_Finalize();
}

/* MPI_Init_thread in a separate thread: where a process of the job never starts, it never
** returns. Then this memory stays with it. */
typedef struct initialising {
    cd_os_job job; /* first: a lane returns a pointer to it */
    cd_os_lanes lanes;
    int provided;
} initialising;

static cddp_status init_run(cd_os_job *job, cddp_error *err)
{
    initialising *i = (initialising *)(void *)job;
    return CD_PASS(cd_mpi_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &i->provided),
                                "MPI_Init_thread", err));
}

static cddp_status init_within(uint64_t timeout_ns, int *provided, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    initialising *i = cd_allocate_zero(NULL, sizeof *i);
    if (i == NULL) return cd_fail_memory(err, "the thread that initialises MPI");
    i->job.run = init_run;
    cd_os_lanes_init(&i->lanes);
    CD_TRY_OUT(cd_os_lane_push(&i->lanes, 0, &i->job, err));
    if (!cd_os_job_wait(&i->lanes, &i->job, timeout_ns)) {
        cd_mpi_give_up();
        mpi_state.initialising = i;
        return cd_fail(err, CDDP_E_TIMEOUT,
                       "MPI_Init_thread did not return within %.3g s: a process of this job did "
                       "not start, or does not reach MPI",
                       (double)timeout_ns / 1e9);
    }
    status = cd_os_job_outcome(&i->job, err);
    *provided = i->provided;
out:
    cd_os_lanes_fini(&i->lanes);
    cd_release(NULL, i, sizeof *i);
    return status;
}

/* MPI belongs to the process: the code that initialised it finalises it. */
static cddp_status library_open(uint64_t timeout_ns, cddp_error *err)
{
    int initialised = 0, provided = MPI_THREAD_SINGLE;
    CD_TRY(cd_mpi_usable(err));
    MPI_Initialized(&initialised);
    if (!initialised) {
        CD_TRY(init_within(timeout_ns, &provided, err));
        atexit(cd_mpi_leave);
    } else {
        MPI_Query_thread(&provided);
    }
    if (provided < MPI_THREAD_MULTIPLE)
        return cd_fail(
            err, CDDP_E_UNSUPPORTED,
            "this MPI provides thread level %d; the backend needs MPI_THREAD_MULTIPLE (%d)",
            provided, MPI_THREAD_MULTIPLE);
    return CDDP_OK;
}

static cddp_status take_option(void *self, const char *key, const char *value, cddp_error *err)
{
    cd_mpi_group *g = self;
    if (strcmp(key, "guard") != 0 || (strcmp(value, "0") != 0 && strcmp(value, "1") != 0))
        return cd_fail(err, CDDP_E_CONFIG, "group '%s': mpi knows guard=0|1, not %s=%s", g->name,
                       key, value);
    g->guard = value[0] == '1';
    return CDDP_OK;
}

/* The last one counts, as in every backend. */
static cddp_status parse_options(cd_mpi_group *g, const char *options, cddp_error *err)
{
    char owner[sizeof g->name + 16];
    g->guard = true;
    snprintf(owner, sizeof owner, "group '%s'", g->name);
    return CD_PASS(cd_pairs_read(owner, options, take_option, g, err));
}

static cddp_status communicator_open(cd_mpi_group *g, const cddp_group_spec *spec, cddp_error *err)
{
    MPI_Group all = MPI_GROUP_NULL, ours = MPI_GROUP_NULL;
    int world = 0, here = 0;
    cddp_status status = CDDP_OK;
    int *ranks = cd_arena_array(&g->arena, g->size, sizeof *ranks);
    if (ranks == NULL) return cd_fail_memory(err, "group '%s' of %u", g->name, g->size);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    MPI_Comm_rank(MPI_COMM_WORLD, &here);
    for (uint32_t i = 0; i < g->size; i++) ranks[i] = (int)spec->members[i];
    for (uint32_t i = 0; i < g->size; i++) {
        if (ranks[i] < world) continue;
        status = cd_fail(err, CDDP_E_CONFIG,
                         "group '%s' names rank %d, but MPI started %d ranks (use mpirun -n %u)",
                         g->name, ranks[i], world, g->size);
        goto out;
    }
    if (ranks[g->rank] != here) {
        status = cd_fail(err, CDDP_E_CONFIG, "group '%s': this process is MPI rank %d, not rank %d",
                         g->name, here, ranks[g->rank]);
        goto out;
    }
    CD_TRY_OUT(cd_mpi_check(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group", err));
    CD_TRY_OUT(
        cd_mpi_check(MPI_Group_incl(all, (int)g->size, ranks, &ours), "MPI_Group_incl", err));
    /* Only members take part, so groups that do not overlap may be made at the same time. */
    CD_TRY_OUT(cd_mpi_check(MPI_Comm_create_group(MPI_COMM_WORLD, ours, 0, &g->comm),
                            "MPI_Comm_create_group", err));
    MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN);
out:
    if (ours != MPI_GROUP_NULL) MPI_Group_free(&ours);
    if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
    return status;
}

static void mpi_close(void *group)
{
    cd_mpi_group *g = group;
    if (g == NULL) return;
    if (!g->is_stuck) cd_os_lanes_fini(&g->lanes);
    if (atomic_load(&mpi_state.given_up)) {
        g->next_kept = atomic_load(&mpi_state.kept);
        while (!atomic_compare_exchange_weak(&mpi_state.kept, &g->next_kept, g)) {
        }
        return;
    }
    int is_final = 0;
    MPI_Finalized(&is_final);
    if (g->types_made && !is_final) cd_mpi_types_fini(g);
    if (g->comm != MPI_COMM_NULL && !is_final) MPI_Comm_free(&g->comm);
    cd_release(NULL, g->scratch, g->scratch_bytes);
    cd_call_room_fini(&g->room);
    cd_arena_fini(&g->arena);
}

static cddp_status mpi_open(const cddp_backend *backend, cddp_rank *rank,
                            const cddp_group_spec *spec, void **group, cddp_error *err)
{
    (void)backend;
    (void)rank;
    cddp_status status = CDDP_OK;
    CD_TRY(library_open(spec->timeout_ns != 0 ? spec->timeout_ns : DEFAULT_TIMEOUT_NS, err));
    cd_arena arena;
    cd_arena_init(&arena, NULL, 4096);
    cd_mpi_group *g = cd_arena_push(&arena, sizeof *g);
    if (g == NULL) return cd_fail_memory(err, "group '%s'", spec->name);
    g->arena = arena;
    g->comm = MPI_COMM_NULL;
    g->rank = spec->group_rank;
    g->size = spec->group_size;
    g->timeout_ns = spec->timeout_ns != 0 ? spec->timeout_ns : DEFAULT_TIMEOUT_NS;
    snprintf(g->name, sizeof g->name, "%s", spec->name);
    cd_os_lanes_init(&g->lanes);
    g->members = cd_arena_array(&g->arena, g->size, sizeof *g->members);
    if (g->members == NULL) {
        status = cd_fail_memory(err, "group '%s' of %u", spec->name, g->size);
        goto out;
    }
    memcpy(g->members, spec->members, g->size * sizeof *g->members);
    CD_TRY_OUT(parse_options(g, spec->options, err));
    CD_TRY_OUT(communicator_open(g, spec, err));
    CD_TRY_OUT(cd_mpi_types_init(g, err));
    g->types_made = true;
    *group = g;
    return CDDP_OK;
out:
    mpi_close(g);
    return status;
}

/* ---- works ---- */

static cddp_status work_run(cd_os_job *job, cddp_error *err)
{
    cd_mpi_work *w = (cd_mpi_work *)(void *)job;
    cd_mpi_group *g = w->group;
    pthread_mutex_lock(&g->lanes.lock);
    bool aborted = g->aborted;
    g->running = aborted ? NULL : w;
    pthread_mutex_unlock(&g->lanes.lock);
    if (aborted && w->round.all != NULL) cd_mpi_give_up(); /* M1: its messages have begun */
    if (aborted) return cd_fail(err, CDDP_E_ABORTED, "the group was aborted: %s", g->abort_reason);
    cddp_status status = cd_mpi_operation_run(g, w, err);
    pthread_mutex_lock(&g->lanes.lock);
    g->running = NULL;
    pthread_mutex_unlock(&g->lanes.lock);
    return status;
}

static cd_mpi_lane lane_of(cddp_op op)
{
    return op == CDDP_OP_SEND   ? CD_MPI_LANE_SEND
           : op == CDDP_OP_RECV ? CD_MPI_LANE_RECV
                                : CD_MPI_LANE_COLLECTIVE;
}

/* MPI needs int tables of counts and offsets; the caller's tables live only until post
** returns. */
static cddp_status counts_copy(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    bool shares = c->op == CDDP_OP_ALLGATHER || c->op == CDDP_OP_REDUCE_SCATTER ||
                  c->op == CDDP_OP_ALLTOALL || c->op == CDDP_OP_GATHER || c->op == CDDP_OP_SCATTER;
    if (!shares) return CDDP_OK;
    w->counts = cd_arena_array(&w->arena, 4 * (size_t)g->size, sizeof *w->counts);
    if (w->counts == NULL) return cd_fail_memory(err, "the counts of %u ranks", g->size);
    bool small_output = c->op == CDDP_OP_REDUCE_SCATTER || c->op == CDDP_OP_SCATTER;
    int64_t equal = cddp_tensor_numel(small_output ? &c->output : &c->input) /
                    (c->op == CDDP_OP_ALLTOALL ? (int64_t)g->size : 1);
    int64_t at = 0, send_at = 0;
    for (uint32_t r = 0; r < g->size; r++) {
        int64_t count = c->counts != NULL ? c->counts[r] : equal,
                send = c->send_counts != NULL ? c->send_counts[r] : equal;
        if (count < 0 || send < 0 || count > INT32_MAX - at || send > INT32_MAX - send_at)
            return cd_fail(err, CDDP_E_LIMIT,
                           "%s: the counts up to rank %u exceed the range of MPI's int",
                           cddp_op_name(c->op), r);
        w->counts[r] = (int)count;
        w->counts[g->size + r] = (int)at;
        w->counts[2 * g->size + r] = (int)send;
        w->counts[3 * g->size + r] = (int)send_at;
        at += count;
        send_at += send;
    }
    return CDDP_OK;
}

static cddp_status mpi_post(void *group, const cddp_collective *collective, void **work,
                            cddp_error *err)
{
    cd_mpi_group *g = group;
    cddp_status status = CDDP_OK;
    cd_arena arena;
    cd_arena_init(&arena, NULL, 0);
    cd_mpi_work *w = cd_arena_push(&arena, sizeof *w);
    if (w == NULL)
        return cd_fail_memory(err, "%s of group '%s'", cddp_op_name(collective->op), g->name);
    w->arena = arena;
    w->job.run = work_run;
    w->group = g;
    w->call = *collective;
    w->timeout_ns = collective->timeout_ns != 0 ? collective->timeout_ns : g->timeout_ns;
    w->deadline_ns = cd_os_now_ns() + w->timeout_ns;
    CD_TRY_OUT(counts_copy(g, w, err));
    if (lane_of(collective->op) != CD_MPI_LANE_COLLECTIVE)
        CD_TRY_OUT(cd_mpi_message_begin(g, w, err));
    else
        CD_TRY_OUT(cd_mpi_round_begin(g, w, err));
    CD_TRY_OUT(cd_os_lane_push(&g->lanes, lane_of(collective->op), &w->job, err));
    *work = w;
    return CDDP_OK;
out:
    if (w->round.all != NULL) cd_mpi_give_up(); /* M1: its messages have begun */
    cd_arena_fini(&w->arena);
    return status;
}

static cddp_status mpi_test(void *group, void *work, bool *done, cddp_error *err)
{
    cd_mpi_group *g = group;
    cd_mpi_work *w = work;
    bool ended = cd_os_job_is_done(&g->lanes, &w->job);
    if (ended) CD_TRY(cd_os_job_outcome(&w->job, err));
    *done = ended;
    return CDDP_OK;
}

/* How long the lane may still ask who took no part in an operation; 0: it does not. */
static uint64_t patience_to_ask(cd_mpi_group *g)
{
    pthread_mutex_lock(&g->lanes.lock);
    const uint64_t asks_until = g->asks_until_ns;
    pthread_mutex_unlock(&g->lanes.lock);
    const uint64_t now = cd_os_now_ns(), until = asks_until + STUCK_NS;
    return asks_until != 0 && until > now ? until - now : 0;
}

static cddp_status mpi_wait(void *group, void *work, uint64_t timeout_ns, cddp_error *err)
{
    cd_mpi_group *g = group;
    cd_mpi_work *w = work;
    /* The lane notices the deadline, unless a stopped peer keeps it inside a call of MPI. */
    uint64_t now = cd_os_now_ns(), until = w->deadline_ns + STUCK_NS,
             patience = until > now ? until - now : 1;
    bool is_asked = timeout_ns != 0 && timeout_ns < patience;
    bool has_ended = cd_os_job_wait(&g->lanes, &w->job, is_asked ? timeout_ns : patience);
    if (!has_ended && !is_asked && (patience = patience_to_ask(g)) > 0)
        has_ended = cd_os_job_wait(&g->lanes, &w->job, patience);
    if (!has_ended) {
        if (is_asked)
            return cd_fail(err, CDDP_E_TIMEOUT, "mpi: not done within %" PRIu64 " ms",
                           timeout_ns / 1000000);
        g->is_stuck = true;
        cd_mpi_give_up();
        return cd_fail(err, CDDP_E_TIMEOUT,
                       "mpi: %s did not end in time, and the MPI call does not return",
                       cddp_op_name(w->call.op));
    }
    CD_TRY(cd_os_job_outcome(&w->job, err));
    return CDDP_OK;
}

static void mpi_release(void *group, void *work)
{
    cd_mpi_group *g = group;
    cd_mpi_work *w = work;
    if (g->is_stuck) return; /* MPI still uses it, and its thread never returns */
    cd_os_job_wait(&g->lanes, &w->job, 0);
    cd_arena_fini(&w->arena);
}

static cddp_status mpi_abort(void *group, const char *reason, cddp_error *err)
{
    cd_mpi_group *g = group;
    (void)err;
    pthread_mutex_lock(&g->lanes.lock);
    snprintf(g->abort_reason, sizeof g->abort_reason, "%s",
             reason != NULL ? reason : "no reason given");
    g->aborted = true;
    pthread_mutex_unlock(&g->lanes.lock);
    return CDDP_OK;
}

static int64_t mpi_digest_read(void *group, void *work)
{
    const cd_mpi_work *w = work;
    (void)group;
    return w->watch.read;
}

static int64_t mpi_digest_written(void *group, void *work)
{
    const cd_mpi_work *w = work;
    (void)group;
    return w->watch.written;
}

#define ALL_OPS ((1u << CDDP_OP_COUNT) - 1)
#define ALL_DTYPES ((1u << CDDP_DTYPE_COUNT) - 1)
#define ALL_REDUCTIONS ((1u << CDDP_RED_COUNT) - 1)

static const cddp_backend mpi = {
    .size = sizeof mpi,
    .abi = CDDP_BACKEND_ABI,
    .name = CDDP_MPI_NAME,
    /* MPI promises no association. Both libraries give equal bits on all ranks: each part is
    ** reduced along one tree, by all ranks or by one that sends it on, and a + b has the bits of b
    ** + a. The trees are those of Open MPI's and MPICH's all-reduces with a commutative operator of
    ** the user's, whichever of them their settings choose. */
    .capabilities = {.size = sizeof(cddp_capabilities),
                     .ops = ALL_OPS,
                     .dtypes = ALL_DTYPES,
                     .reduce_ops = ALL_REDUCTIONS,
                     .devices = CDDP_DEVICE_HOST,
                     .in_place = true,
                     .async = true,
                     .order = CDDP_ORDER_SAME,
                     .algorithm = "binomial_tree|recursive_doubling|upward_ring|shifted_ring|"
                                  "linear|flat",
                     .world_size_max = 65536,
                     .guards = true},
    .open = mpi_open,
    .close = mpi_close,
    .post = mpi_post,
    .test = mpi_test,
    .wait = mpi_wait,
    .release = mpi_release,
    .abort = mpi_abort,
    .launcher = &cd_mpi_launcher,
    .digest_read = mpi_digest_read,
    .digest_written = mpi_digest_written,
};

static const cddp_backend *const backends[] = {&mpi, NULL};

CDDP_PLUGIN_EXPORT const cddp_plugin cddp_plugin_v1;
const cddp_plugin cddp_plugin_v1 = {.size = sizeof cddp_plugin_v1,
                                    .abi = CDDP_PLUGIN_ABI,
                                    .name = CDDP_MPI_NAME,
                                    .version = "MPI 3.1",
                                    .backends = backends};
