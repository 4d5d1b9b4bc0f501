/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over MPI: a lane starts one, then tests it until it ended or its deadline passed. */
#define _POSIX_C_SOURCE 200809L
#include "backends/mpi/mpi_group.h"

#include "backends/guard/call_fingerprint.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/base/rank_list.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define PIECE_ELEMENTS_MAX (INT64_C(1) << 30)
#define SPINS_BEFORE_YIELD 2000
#define SPINS_PER_LOOK 16 /* reading the clock costs about as much as a test */
#define YIELD_NS UINT64_C(2000000)
/* Every MPI accepts tags to 32767. */
#define GUARD_TAG 0x4000
#define FAREWELL_TAG 0x4001
#define TAG_MASK 0x3fff
#define SILENCE_NS UINT64_C(2000000000) /* how late a farewell may come */

static char *bytes_of(const cddp_tensor *t)
{
    return t->device == NULL ? NULL
                             : (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

/* Requests that end together. */
typedef struct pending {
    MPI_Request *requests; /* (count) */
    int count;
    const char *what;
    MPI_Status *status; /* of the only request, or NULL */
    bool *ended;        /* (count) out, after a time-out; or NULL */
} pending;

/* While MPI may still be called. */
static void find_ended(const pending *p)
{
    for (int i = 0; p->ended != NULL && i < p->count; i++) {
        int done = 0;
        p->ended[i] = MPI_Test(&p->requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
    }
}

/* Members of which nothing was heard. */
static uint32_t late_next(const void *self, uint32_t from)
{
    const cd_mpi_round *round = self;
    const cd_mpi_group *g = round->group;
    uint32_t next = CD_NO_RANK;
    for (uint32_t r = 0; r < g->size; r++)
        if (r != g->rank && !round->ended[r] && g->members[r] >= from && g->members[r] < next)
            next = g->members[r];
    return next;
}

/* Says farewell to all, and waits until everybody else has, or is late with it: ranks that still
** run give up at their own deadlines. The abandoned operation goes on meanwhile, in tensors that
** the caller has not got back (M1). */
static void exchange_farewells(cd_mpi_group *g, MPI_Request *requests, bool *heard)
{
    const uint64_t until = g->ends_ns + SILENCE_NS;
    pthread_mutex_lock(&g->lanes.lock);
    g->asks_until_ns = until;
    pthread_mutex_unlock(&g->lanes.lock);
    for (uint32_t r = 0; r < 2 * g->size; r++) requests[r] = MPI_REQUEST_NULL;
    memset(heard, 1, g->size * sizeof *heard); /* who cannot be asked is not accused */
    for (uint32_t r = 0; r < g->size; r++) {
        if (r == g->rank) continue;
        if (MPI_Irecv(NULL, 0, MPI_BYTE, (int)r, FAREWELL_TAG, g->comm, &requests[r]) !=
                MPI_SUCCESS ||
            MPI_Isend(NULL, 0, MPI_BYTE, (int)r, FAREWELL_TAG, g->comm, &requests[g->size + r]) !=
                MPI_SUCCESS) {
            memset(heard, 1, g->size * sizeof *heard);
            return;
        }
        heard[r] = false;
    }
    for (uint32_t open = g->size; open > 0 && cd_os_now_ns() < until;) {
        open = 0;
        for (uint32_t r = 0; r < g->size; r++) {
            int done = 0;
            if (heard[r]) continue;
            heard[r] = MPI_Test(&requests[r], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
            open += !heard[r];
        }
        if (open > 0) cd_os_sleep_ns(1000000);
    }
}

/* An operation whose fingerprints had come did not end: names who is silent, and returns how
** many. */
static uint32_t find_silent(cd_mpi_group *g, char *names, size_t names_bytes)
{
    const size_t requests = 2 * (size_t)g->size * sizeof(MPI_Request),
                 bytes = requests + g->size * sizeof(bool);
    char *memory = cd_allocate(NULL, bytes);
    uint32_t count = 0;
    if (memory == NULL) return 0;
    const cd_mpi_round round = {.group = g, .ended = (bool *)(memory + requests)};
    exchange_farewells(g, (MPI_Request *)(void *)memory, round.ended);
    const cd_rank_list list = {&round, late_next};
    for (uint32_t r = late_next(&round, 0); r != CD_NO_RANK; r = late_next(&round, r + 1)) count++;
    if (count > 0) cd_rank_list_print(&list, CD_NO_RANK, names, names_bytes);
    cd_release(NULL, memory, bytes);
    return count;
}

static cddp_status may_go_on(cd_mpi_group *g, const cd_mpi_work *w, uint64_t now_ns,
                             const pending *p, cddp_error *err)
{
    char names[120];
    pthread_mutex_lock(&g->lanes.lock);
    bool aborted = g->aborted;
    pthread_mutex_unlock(&g->lanes.lock);
    if (!aborted && now_ns <= w->deadline_ns) return CDDP_OK;
    find_ended(p);
    const bool is_message = w->call.op == CDDP_OP_SEND || w->call.op == CDDP_OP_RECV,
               may_ask = !aborted && !is_message && p->ended == NULL && g->ends_ns != 0;
    const uint32_t silent = may_ask ? find_silent(g, names, sizeof names) : 0;
    cd_mpi_give_up();
    if (aborted) return cd_fail(err, CDDP_E_ABORTED, "the group was aborted: %s", g->abort_reason);
    if (silent > 0) {
        char library[80];
        snprintf(library, sizeof library, "mpi: %s did not end", p->what);
        return CD_PASS(cd_call_fail_silent(w->call.op, names, silent, library, err));
    }
    return cd_fail(err, CDDP_E_TIMEOUT, "mpi: %s did not end in time", p->what);
}

static int test(const pending *p, int *done)
{
    if (p->count == 1)
        return MPI_Test(p->requests, done, p->status != NULL ? p->status : MPI_STATUS_IGNORE);
    return MPI_Testall(p->count, p->requests, done, MPI_STATUSES_IGNORE);
}

/* Receives may come in another order than that of their posts. What came while its lane waits for
** another one ends now. */
static void end_what_came(cd_mpi_group *g, const cd_mpi_work *w)
{
    cd_os_job *next = NULL;
    if (w->call.op != CDDP_OP_RECV) return;
    for (cd_os_job *job = cd_os_lane_queued(&g->lanes, CD_MPI_LANE_RECV, NULL); job != NULL;
         job = next) {
        const cd_mpi_work *other = (const cd_mpi_work *)(const void *)job;
        int has_come = 0;
        next = cd_os_lane_queued(&g->lanes, CD_MPI_LANE_RECV, job);
        const bool is_known =
            MPI_Request_get_status(other->message, &has_come, MPI_STATUS_IGNORE) == MPI_SUCCESS;
        if (is_known && has_come && cd_os_lane_withdraw(&g->lanes, CD_MPI_LANE_RECV, job))
            cd_os_job_run(&g->lanes, job);
    }
}

/* Tests until the end. The first tests are not spaced, since most operations are short. Later
** tests yield the processor; a sleep would cost a tenth of an operation that takes a millisecond.
** After two milliseconds a sleep is short against the time already waited, and leaves the processor
** to the computation.
**
** On a busy machine a yield takes as long as all the others run, and Open MPI yields within each
** test. So the clock is looked at early, and behind each yield: who waits for this lane gives up
** soon after the deadline, and then nobody names the ranks that did not come. */
static cddp_status finish_all(cd_mpi_group *g, const cd_mpi_work *w, const pending *p,
                              cddp_error *err)
{
    uint64_t began = 0;
    for (uint64_t spin = 0;; spin++) {
        int done = 0;
        CD_TRY(cd_mpi_usable(err));
        CD_TRY(cd_mpi_check(test(p, &done), p->what, err));
        if (done) return CDDP_OK;
        if (spin < SPINS_BEFORE_YIELD && spin % SPINS_PER_LOOK != 0 && spin > 0) continue;
        const uint64_t now = cd_os_now_ns();
        if (began == 0) began = now;
        const bool sleeps = now - began > YIELD_NS;
        if (spin < SPINS_BEFORE_YIELD && !sleeps) continue;
        end_what_came(g, w);
        CD_TRY(may_go_on(g, w, now, p, err));
        if (sleeps)
            cd_os_sleep_ns(20000);
        else
            sched_yield();
    }
}

static cddp_status finish(cd_mpi_group *g, const cd_mpi_work *w, MPI_Request *request,
                          const char *what, cddp_error *err)
{
    const pending p = {.requests = request, .count = 1, .what = what};
    CD_TRY(finish_all(g, w, &p, err));
    return CDDP_OK;
}

static void *scratch(cd_mpi_group *g, size_t bytes)
{
    if (bytes == 0) bytes = 1; /* an empty buffer is still a buffer */
    if (bytes > g->scratch_bytes) {
        cd_release(NULL, g->scratch, g->scratch_bytes);
        g->scratch = cd_allocate(NULL, bytes);
        g->scratch_bytes = g->scratch != NULL ? bytes : 0;
    }
    return g->scratch;
}

static cddp_status fail_late(const cd_mpi_round *round, const cd_mpi_work *w, cddp_error *err)
{
    char names[160];
    const cd_rank_list list = {round, late_next};
    const uint32_t first = late_next(round, 0);
    const bool is_one = first == CD_NO_RANK || late_next(round, first + 1) == CD_NO_RANK;
    if (first == CD_NO_RANK)
        return cd_fail(err, CDDP_E_TIMEOUT, "mpi: fingerprints did not leave within %.3g s",
                       (double)w->timeout_ns / 1e9);
    cd_rank_list_print(&list, first, names, sizeof names);
    return cd_fail(err, CDDP_E_TIMEOUT, "lost %s: %s did not come within %.3g s", names,
                   is_one ? "it" : "they", (double)w->timeout_ns / 1e9);
}

static cddp_status guard_start(cd_mpi_group *g, const cd_mpi_round *round, cddp_error *err)
{
    for (uint32_t r = 0; r < 2 * g->size; r++) round->requests[r] = MPI_REQUEST_NULL;
    for (uint32_t i = 1; i < g->size; i++) {
        const uint32_t from = (g->rank + g->size - i) % g->size, to = (g->rank + i) % g->size;
        CD_TRY(cd_mpi_check(MPI_Irecv(&round->all[from], sizeof *round->all, MPI_BYTE, (int)from,
                                      GUARD_TAG, g->comm, &round->requests[from]),
                            "MPI_Irecv of a fingerprint", err));
        CD_TRY(cd_mpi_check(MPI_Isend(&round->all[g->rank], sizeof *round->all, MPI_BYTE, (int)to,
                                      GUARD_TAG, g->comm, &round->requests[g->size + to]),
                            "MPI_Isend of a fingerprint", err));
    }
    return CDDP_OK;
}

#define ROUND_BYTES(size) \
    ((size) * sizeof(cd_call_fingerprint) + 2 * (size) * (sizeof(MPI_Request) + sizeof(bool)))

/* memory: ROUND_BYTES */
static cd_mpi_round round_in(const cd_mpi_group *g, const cd_mpi_work *w, char *memory)
{
    const size_t fingerprints = g->size * sizeof(cd_call_fingerprint),
                 requests = 2 * (size_t)g->size * sizeof(MPI_Request);
    const cd_mpi_round round = {.group = g,
                                .all = (cd_call_fingerprint *)(void *)memory,
                                .requests = (MPI_Request *)(void *)(memory + fingerprints),
                                .ended = (bool *)(memory + fingerprints + requests)};
    memset(round.ended, 1, 2 * g->size * sizeof(bool));
    round.all[g->rank] = cd_call_fingerprint_of(&w->call, g->rank, g->size);
    round.all[g->rank].left_ns = w->timeout_ns; /* it leaves after the post */
    return round;
}

/* In how many members the thread that posts starts the messages, of about a microsecond each. In
** larger groups the lane does, when the operation's turn comes. All members have one answer, so the
** messages of rounds match in the order of posts. */
#define MEMBERS_AT_POST_MAX 16

cddp_status cd_mpi_round_begin(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    const bool is_due =
        g->guard && g->size > 1 && g->size <= MEMBERS_AT_POST_MAX && cd_mpi_usable(NULL) == CDDP_OK;
    if (!is_due) return CDDP_OK;
    char *memory = cd_arena_push(&w->arena, ROUND_BYTES(g->size));
    if (memory == NULL) return cd_fail_memory(err, "%u fingerprints", g->size);
    w->round = round_in(g, w, memory);
    const cddp_status status = guard_start(g, &w->round, err);
    if (status != CDDP_OK) cd_mpi_give_up(); /* some have begun */
    return status;
}

/* Messages between pairs, not an all-gather: a time-out can say who did not come. */
static cddp_status guard_run(cd_mpi_group *g, const cd_mpi_work *w, cddp_error *err)
{
    cd_mpi_round round = w->round;
    g->ends_ns = 0;
    if (round.all == NULL) {
        char *memory = scratch(g, ROUND_BYTES(g->size));
        if (memory == NULL) return cd_fail_memory(err, "%u fingerprints", g->size);
        round = round_in(g, w, memory);
        CD_TRY(guard_start(g, &round, err));
    }
    const pending p = {.requests = round.requests,
                       .count = 2 * (int)g->size,
                       .what = "the exchange of fingerprints",
                       .ended = round.ended};
    const cddp_status status = finish_all(g, w, &p, err);
    if (status == CDDP_E_TIMEOUT) return CD_PASS(fail_late(&round, w, err));
    CD_TRY(status);
    CD_TRY(cd_call_fingerprint_agree(round.all, g->members, g->rank, g->size, err));
    /* they came before now, so this is no earlier than the deadline of anybody */
    for (uint32_t r = 0; r < g->size; r++)
        if (cd_os_now_ns() + round.all[r].left_ns > g->ends_ns)
            g->ends_ns = cd_os_now_ns() + round.all[r].left_ns;
    return CDDP_OK;
}

static cddp_status premultiply(const cd_mpi_work *w, const cddp_tensor *t, cddp_error *err)
{
    if (w->call.reduce_op != CDDP_RED_PREMUL_SUM) return CDDP_OK;
    CD_TRY(t->device->scale(t, t, w->call.premultiplier, NULL, err));
    return CDDP_OK;
}

static cddp_status average(const cd_mpi_group *g, const cd_mpi_work *w, const cddp_tensor *t,
                           cddp_error *err)
{
    if (w->call.reduce_op != CDDP_RED_AVG) return CDDP_OK;
    CD_TRY(t->device->divide(t, t, g->size, NULL, err));
    return CDDP_OK;
}

static cddp_status run_allreduce(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    const cddp_tensor *out = &w->call.output;
    int64_t numel = cddp_tensor_numel(out);
    size_t element = cddp_dtype_bytes(out->dtype);
    if (bytes_of(out) != bytes_of(&w->call.input))
        memmove(bytes_of(out), bytes_of(&w->call.input), (size_t)numel * element);
    CD_TRY(premultiply(w, out, err));
    MPI_Op op = cd_mpi_op(g, out->dtype, w->call.reduce_op);
    for (int64_t at = 0; at < numel; at += PIECE_ELEMENTS_MAX) {
        int64_t piece = numel - at < PIECE_ELEMENTS_MAX ? numel - at : PIECE_ELEMENTS_MAX;
        MPI_Request request;
        CD_TRY(cd_mpi_check(MPI_Iallreduce(MPI_IN_PLACE, bytes_of(out) + (size_t)at * element,
                                           (int)piece, g->types[out->dtype], op, g->comm, &request),
                            "MPI_Iallreduce", err));
        CD_TRY(finish(g, w, &request, "MPI_Iallreduce", err));
    }
    CD_TRY(average(g, w, out, err));
    return CDDP_OK;
}

static cddp_status run_broadcast(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    const cddp_tensor *out = &w->call.output;
    int64_t numel = cddp_tensor_numel(out);
    size_t element = cddp_dtype_bytes(out->dtype);
    for (int64_t at = 0; at < numel; at += PIECE_ELEMENTS_MAX) {
        int64_t piece = numel - at < PIECE_ELEMENTS_MAX ? numel - at : PIECE_ELEMENTS_MAX;
        MPI_Request request;
        CD_TRY(cd_mpi_check(MPI_Ibcast(bytes_of(out) + (size_t)at * element, (int)piece,
                                       g->types[out->dtype], (int)w->call.root, g->comm, &request),
                            "MPI_Ibcast", err));
        CD_TRY(finish(g, w, &request, "MPI_Ibcast", err));
    }
    return CDDP_OK;
}

/* A copy of the input for premultiplication, as inputs must not change, and where a share is
** reduced in place: MPI takes no memory twice. */
static cddp_status input_copy(cd_mpi_group *g, cd_mpi_work *w, cddp_tensor *copy, cddp_error *err)
{
    const cddp_tensor *in = &w->call.input;
    const bool scatters_in_place =
        w->call.op == CDDP_OP_REDUCE_SCATTER && in->storage == w->call.output.storage;
    *copy = *in;
    if (w->call.reduce_op != CDDP_RED_PREMUL_SUM && !scatters_in_place) return CDDP_OK;
    size_t bytes = (size_t)cddp_tensor_numel(in) * cddp_dtype_bytes(in->dtype);
    void *room = scratch(g, bytes);
    if (room == NULL && bytes > 0) return cd_fail_memory(err, "a copy of %zu bytes", bytes);
    if (bytes > 0) memcpy(room, bytes_of(in), bytes);
    copy->storage = room;
    copy->offset = 0;
    CD_TRY(premultiply(w, copy, err));
    return CDDP_OK;
}

static cddp_status run_reduce(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    cddp_tensor in;
    CD_TRY(input_copy(g, w, &in, err));
    int64_t numel = cddp_tensor_numel(&in);
    bool is_root = g->rank == w->call.root;
    if (numel > PIECE_ELEMENTS_MAX)
        return cd_fail(err, CDDP_E_LIMIT,
                       "mpi: a reduce of %" PRId64 " elements does not fit in one piece", numel);
    if (numel == 0) return CDDP_OK;
    MPI_Request request;
    /* The root may not pass the same memory twice; other ranks may, since they have no output. */
    bool in_place = is_root && bytes_of(&in) == bytes_of(&w->call.output);
    CD_TRY(cd_mpi_check(MPI_Ireduce(in_place ? MPI_IN_PLACE : bytes_of(&in),
                                    is_root ? bytes_of(&w->call.output) : NULL, (int)numel,
                                    g->types[in.dtype], cd_mpi_op(g, in.dtype, w->call.reduce_op),
                                    (int)w->call.root, g->comm, &request),
                        "MPI_Ireduce", err));
    CD_TRY(finish(g, w, &request, "MPI_Ireduce", err));
    if (is_root) CD_TRY(average(g, w, &w->call.output, err));
    return CDDP_OK;
}

static cddp_status run_reduce_scatter(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    cddp_tensor in;
    CD_TRY(input_copy(g, w, &in, err));
    if (cddp_tensor_numel(&in) == 0) return CDDP_OK;
    MPI_Request request;
    CD_TRY(cd_mpi_check(MPI_Ireduce_scatter(bytes_of(&in), bytes_of(&w->call.output), w->counts,
                                            g->types[in.dtype],
                                            cd_mpi_op(g, in.dtype, w->call.reduce_op), g->comm,
                                            &request),
                        "MPI_Ireduce_scatter", err));
    CD_TRY(finish(g, w, &request, "MPI_Ireduce_scatter", err));
    CD_TRY(average(g, w, &w->call.output, err));
    return CDDP_OK;
}

static cddp_status run_moves(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    const int *counts = w->counts, *at = w->counts + g->size, *send = w->counts + 2 * g->size,
              *send_at = w->counts + 3 * g->size;
    MPI_Request request;
    int code = MPI_SUCCESS, root = (int)c->root;
    void *in = bytes_of(&c->input), *out = bytes_of(&c->output);
    if (c->op == CDDP_OP_ALLGATHER) {
        MPI_Datatype t = g->types[c->output.dtype];
        const size_t own = (size_t)at[g->rank] * cddp_dtype_bytes(c->output.dtype);
        if (in == (char *)out + own) in = MPI_IN_PLACE;
        code = MPI_Iallgatherv(in, counts[g->rank], t, out, counts, at, t, g->comm, &request);
    } else if (c->op == CDDP_OP_ALLTOALL) {
        MPI_Datatype t = g->types[c->output.dtype];
        code = MPI_Ialltoallv(in, send, send_at, t, out, counts, at, t, g->comm, &request);
    } else if (c->op == CDDP_OP_GATHER) {
        MPI_Datatype t = g->types[c->input.dtype];
        code = MPI_Igatherv(in, counts[g->rank], t, out, counts, at, t, root, g->comm, &request);
    } else {
        MPI_Datatype t = g->types[c->output.dtype];
        code = MPI_Iscatterv(in, counts, at, t, out, counts[g->rank], t, root, g->comm, &request);
    }
    CD_TRY(cd_mpi_check(code, cddp_op_name(c->op), err));
    CD_TRY(finish(g, w, &request, cddp_op_name(c->op), err));
    return CDDP_OK;
}

static cddp_status run_barrier(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    MPI_Request request;
    CD_TRY(cd_mpi_check(MPI_Ibarrier(g->comm, &request), "MPI_Ibarrier", err));
    CD_TRY(finish(g, w, &request, "MPI_Ibarrier", err));
    return CDDP_OK;
}

cddp_status cd_mpi_message_begin(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    bool sends = w->call.op == CDDP_OP_SEND;
    const cddp_tensor *t = sends ? &w->call.input : &w->call.output;
    int64_t numel = cddp_tensor_numel(t);
    int tag = (int)(w->call.tag & TAG_MASK);
    if (w->call.root == g->rank)
        return cd_fail(err, CDDP_E_ARG, "%s names its own rank %u", cddp_op_name(w->call.op),
                       g->members[g->rank]);
    if (numel > INT32_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "mpi: a message of %" PRId64 " elements is too long",
                       numel);
    CD_TRY(cd_mpi_usable(err));
    int code = sends ? MPI_Isend(bytes_of(t), (int)numel, g->types[t->dtype], (int)w->call.root,
                                 tag, g->comm, &w->message)
                     : MPI_Irecv(bytes_of(t), (int)numel, g->types[t->dtype], (int)w->call.root,
                                 tag, g->comm, &w->message);
    CD_TRY(cd_mpi_check(code, cddp_op_name(w->call.op), err));
    return CDDP_OK;
}

static cddp_status message_late(const cd_mpi_group *g, const cd_mpi_work *w, cddp_error *err)
{
    const bool sends = w->call.op == CDDP_OP_SEND;
    return cd_fail(err, CDDP_E_TIMEOUT,
                   "lost rank %u: it did not %s the message with tag %" PRIu64 " within %.3g s",
                   g->members[w->call.root], sends ? "receive" : "send", w->call.tag,
                   (double)w->timeout_ns / 1e9);
}

/* A longer message ends with an error of MPI, a shorter one does not. */
static cddp_status message_finish(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    const char *name = cddp_op_name(w->call.op);
    MPI_Status ended = {.MPI_ERROR = MPI_SUCCESS};
    const pending p = {.requests = &w->message, .count = 1, .what = name, .status = &ended};
    const cddp_status status = finish_all(g, w, &p, err);
    if (status == CDDP_E_TIMEOUT) return CD_PASS(message_late(g, w, err));
    CD_TRY(status);
    if (w->call.op == CDDP_OP_SEND) return CDDP_OK;
    const int64_t expected = cddp_tensor_numel(&w->call.output);
    int came = 0;
    CD_TRY(cd_mpi_check(MPI_Get_count(&ended, g->types[w->call.output.dtype], &came),
                        "MPI_Get_count", err));
    if (came == expected) return CDDP_OK;
    return cd_fail(err, CDDP_E_MISMATCH,
                   "ranks disagree: rank %u sends %d × %s with tag %" PRIu64
                   ", rank %u expects %" PRId64,
                   g->members[w->call.root], came, cddp_dtype_name(w->call.output.dtype),
                   w->call.tag, g->members[g->rank], expected);
}

static cddp_status run(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    switch (w->call.op) {
    case CDDP_OP_ALLREDUCE:
        CD_TRY(run_allreduce(g, w, err));
        break;
    case CDDP_OP_BROADCAST:
        CD_TRY(run_broadcast(g, w, err));
        break;
    case CDDP_OP_REDUCE:
        CD_TRY(run_reduce(g, w, err));
        break;
    case CDDP_OP_REDUCE_SCATTER:
        CD_TRY(run_reduce_scatter(g, w, err));
        break;
    case CDDP_OP_ALLGATHER:
    case CDDP_OP_ALLTOALL:
    case CDDP_OP_GATHER:
    case CDDP_OP_SCATTER:
        CD_TRY(run_moves(g, w, err));
        break;
    case CDDP_OP_BARRIER:
        CD_TRY(run_barrier(g, w, err));
        break;
    case CDDP_OP_SEND:
    case CDDP_OP_RECV:
    case CDDP_OP_COUNT:
        break;
    }
    return CDDP_OK;
}

cddp_status cd_mpi_operation_run(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    cddp_op op = w->call.op;
    CD_TRY(cd_mpi_usable(err));
    if (op == CDDP_OP_SEND || op == CDDP_OP_RECV) return CD_PASS(message_finish(g, w, err));
    if (g->guard && g->size > 1) CD_TRY(guard_run(g, w, err));
    cd_call_watch_begin(&w->watch, &g->room, &w->call);
    const cddp_status status = run(g, w, err);
    cd_call_watch_end(&w->watch, &g->room, &w->call, status == CDDP_OK);
    return CD_PASS(status);
}
