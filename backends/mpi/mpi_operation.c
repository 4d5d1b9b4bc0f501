/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over MPI: a lane starts one, then tests it until it ended or its deadline passed. */
#define _POSIX_C_SOURCE 200809L
#include "backends/mpi/mpi_group.h"

#include "backends/guard/call_fingerprint.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>

#define PIECE_ELEMENTS_MAX (INT64_C(1) << 30)
#define SPINS_BEFORE_YIELD 2000
#define SPINS_PER_LOOK 64 /* reading the clock costs about as much as a test */
#define YIELD_NS UINT64_C(2000000)

static char *bytes_of(const cddp_tensor *t)
{
    return t->device == NULL ? NULL
                             : (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

static cddp_status may_go_on(cd_mpi_group *g, const cd_mpi_work *w, uint64_t now_ns,
                             const char *what, cddp_error *err)
{
    pthread_mutex_lock(&g->lanes.lock);
    bool aborted = g->aborted;
    pthread_mutex_unlock(&g->lanes.lock);
    if (!aborted && now_ns <= w->deadline_ns) return CDDP_OK;
    cd_mpi_give_up();
    if (aborted) return cd_fail(err, CDDP_E_ABORTED, "the group was aborted: %s", g->abort_reason);
    return cd_fail(err, CDDP_E_TIMEOUT, "mpi: %s did not end in time", what);
}

/* Tests until the end. The first tests are not spaced, since most operations are short. Later
** tests yield the processor; a sleep would cost a tenth of an operation that takes a millisecond.
** After two milliseconds a sleep is short against the time already waited, and leaves the processor
** to the computation. */
static cddp_status finish(cd_mpi_group *g, const cd_mpi_work *w, MPI_Request *request,
                          const char *what, cddp_error *err)
{
    uint64_t began = 0;
    bool sleeps = false;
    for (uint64_t spin = 0;; spin++) {
        int done = 0;
        CD_TRY(cd_mpi_usable(err));
        CD_TRY(cd_mpi_check(MPI_Test(request, &done, MPI_STATUS_IGNORE), what, err));
        if (done) return CDDP_OK;
        if (spin < SPINS_BEFORE_YIELD) continue;
        if (sleeps)
            cd_os_sleep_ns(20000);
        else
            sched_yield();
        if (!sleeps && spin % SPINS_PER_LOOK != 0) continue;
        uint64_t now = cd_os_now_ns();
        if (began == 0) began = now;
        sleeps = now - began > YIELD_NS;
        CD_TRY(may_go_on(g, w, now, what, err));
    }
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

static cddp_status guard_run(cd_mpi_group *g, const cd_mpi_work *w, cddp_error *err)
{
    cd_call_fingerprint *all = scratch(g, (g->size + 1) * sizeof *all), *mine = all + g->size;
    if (all == NULL) return cd_fail_memory(err, "%u fingerprints", g->size + 1);
    *mine = cd_call_fingerprint_of(&w->call, g->rank, g->size);
    MPI_Request request;
    CD_TRY(cd_mpi_check(MPI_Iallgather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE,
                                       g->comm, &request),
                        "MPI_Iallgather of fingerprints", err));
    CD_TRY(finish(g, w, &request, "the exchange of fingerprints", err));
    CD_TRY(cd_call_fingerprint_agree(all, g->members, g->rank, g->size, err));
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

/* A copy of the input for premultiplication: inputs must not change. */
static cddp_status input_copy(cd_mpi_group *g, cd_mpi_work *w, cddp_tensor *copy, cddp_error *err)
{
    const cddp_tensor *in = &w->call.input;
    *copy = *in;
    if (w->call.reduce_op != CDDP_RED_PREMUL_SUM) return CDDP_OK;
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
    int tag = (int)(w->call.tag & 0x7fff); /* a limit that every MPI accepts */
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

cddp_status cd_mpi_operation_run(cd_mpi_group *g, cd_mpi_work *w, cddp_error *err)
{
    cddp_op op = w->call.op;
    CD_TRY(cd_mpi_usable(err));
    if (op == CDDP_OP_SEND || op == CDDP_OP_RECV)
        return CD_PASS(finish(g, w, &w->message, cddp_op_name(op), err));
    if (g->guard && g->size > 1) CD_TRY(guard_run(g, w, err));
    switch (op) {
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
