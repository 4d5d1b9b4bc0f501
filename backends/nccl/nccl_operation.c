/* SPDX-License-Identifier: Apache-2.0 */
/* Operations as NCCL calls on the group's stream.
**
** Reductions use their dtype; other operations move bytes. NCCL has no uneven shares, so allgather
** and reduce_scatter with counts are a fused batch of broadcasts or reductions, one per rank.
** gather, scatter and alltoall are fused sends and receives; the rank's own share is a copy. A
** barrier is a sum of four bytes, and its wait blocks the host. Calls without elements are omitted,
** by every member.
**
** The caller holds the lock, and nothing here waits for the GPU.
*/
#include "backends/nccl/nccl_group.h"

#include "core/base/error.h"

static bool reduces(const cddp_collective *c)
{
    return c->op == CDDP_OP_ALLREDUCE || c->op == CDDP_OP_REDUCE || c->op == CDDP_OP_REDUCE_SCATTER;
}

/* The size and the offset of rank r's share, in bytes. counts NULL: equal shares of `equal`
** elements. */
static size_t share_bytes(const int64_t *counts, int64_t equal, uint32_t r, size_t element)
{
    return (size_t)(counts != NULL ? counts[r] : equal) * element;
}

static size_t share_at(const int64_t *counts, int64_t equal, uint32_t r, size_t element)
{
    size_t at = 0;
    for (uint32_t i = 0; i < r; i++) at += share_bytes(counts, equal, i, element);
    return at;
}

/* ---- reductions ---- */

typedef struct reduction {
    ncclDataType_t type;
    ncclRedOp_t op;
    size_t element;
    bool made; /* op is ours and must be freed */
} reduction;

static cddp_status reduction_begin(cd_nccl_group *g, const cd_nccl_work *w, reduction *r,
                                   cddp_error *err)
{
    const cddp_collective *c = &w->call;
    r->element = cddp_dtype_bytes(c->input.dtype);
    r->made = false;
    if (!cd_nccl_type(c->input.dtype, &r->type) || !cd_nccl_red_op(c->reduce_op, &r->op))
        return cd_fail(err, CDDP_E_UNSUPPORTED, "nccl: no %s of %s", cddp_red_op_name(c->reduce_op),
                       cddp_dtype_name(c->input.dtype));
    if (c->reduce_op != CDDP_RED_PREMUL_SUM) return CDDP_OK;
    cd_nccl_factor factor = cd_nccl_factor_of(c->input.dtype, c->premultiplier);
    ncclResult_t code =
        ncclRedOpCreatePreMulSum(&r->op, &factor, r->type, ncclScalarHostImmediate, g->comm);
    CD_TRY(cd_nccl_settle(g, code, "ncclRedOpCreatePreMulSum", w->deadline_ns, err));
    r->made = true;
    return CDDP_OK;
}

static cddp_status reduction_end(cd_nccl_group *g, const cd_nccl_work *w, const reduction *r,
                                 cddp_error *err)
{
    if (!r->made) return CDDP_OK;
    return CD_PASS(cd_nccl_settle(g, ncclRedOpDestroy(r->op, g->comm), "ncclRedOpDestroy",
                                  w->deadline_ns, err));
}

/* The second half of an average: divides the sum in place. */
static cddp_status average(cd_nccl_group *g, const cd_nccl_work *w, cddp_error *err)
{
    const size_t element = cddp_dtype_bytes(w->call.output.dtype);
    if (w->call.reduce_op != CDDP_RED_AVG || w->out.bytes == 0) return CDDP_OK;
    cd_cuda_view view = {.data = w->out.data,
                         .dtype = (uint32_t)w->call.output.dtype,
                         .dim_count = 1,
                         .sizes = {(int64_t)(w->out.bytes / element)},
                         .strides = {1}};
    cd_cuda_call call = {.dst = view,
                         .src = view,
                         .numel = view.sizes[0],
                         .op = CD_CUDA_DIVIDE,
                         .scalar = {.count = g->size}};
    return CD_PASS(cd_cuda_check((cudaError_t)cd_cuda_launch_call(&call, g->stream),
                                 "dividing an average", err));
}

static cddp_status group_end(cd_nccl_group *g, const cd_nccl_work *w, ncclResult_t inside,
                             cddp_error *err)
{
    ncclResult_t code = ncclGroupEnd();
    if (inside != ncclSuccess && inside != ncclInProgress) code = inside;
    return CD_PASS(cd_nccl_settle_work(g, code, w, err));
}

/* Keeps the first failure of a batch. */
static ncclResult_t first(ncclResult_t before, ncclResult_t now)
{
    return before == ncclSuccess || before == ncclInProgress ? now : before;
}

static cddp_status reduce_scatter_uneven(cd_nccl_group *g, cd_nccl_work *w, const reduction *r,
                                         cddp_error *err)
{
    const int64_t *counts = w->call.counts;
    ncclResult_t code = ncclGroupStart();
    for (uint32_t q = 0; q < g->size; q++) {
        if (counts[q] == 0) continue;
        const char *part = w->in.data + share_at(counts, 0, q, r->element);
        code = first(code, ncclReduce(part, q == g->rank ? w->out.data : NULL, (size_t)counts[q],
                                      r->type, r->op, (int)q, g->comm, g->stream));
    }
    return CD_PASS(group_end(g, w, code, err));
}

static cddp_status run_reduction(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    reduction r;
    bool is_root = c->op != CDDP_OP_REDUCE || g->rank == c->root;
    CD_TRY(reduction_begin(g, w, &r, err));
    cddp_status status = CDDP_OK;
    if (c->op == CDDP_OP_REDUCE_SCATTER && c->counts != NULL) {
        status = reduce_scatter_uneven(g, w, &r, err);
    } else {
        ncclResult_t code = ncclSuccess;
        size_t n = (c->op == CDDP_OP_REDUCE_SCATTER ? w->out.bytes : w->in.bytes) / r.element;
        if (n > 0 && c->op == CDDP_OP_ALLREDUCE)
            code = ncclAllReduce(w->in.data, w->out.data, n, r.type, r.op, g->comm, g->stream);
        else if (n > 0 && c->op == CDDP_OP_REDUCE)
            code = ncclReduce(w->in.data, is_root ? w->out.data : NULL, n, r.type, r.op,
                              (int)c->root, g->comm, g->stream);
        else if (n > 0)
            code = ncclReduceScatter(w->in.data, w->out.data, n, r.type, r.op, g->comm, g->stream);
        status = cd_nccl_settle_work(g, code, w, err);
    }
    if (g->comm_aborted) return status;
    cddp_status ended = reduction_end(g, w, &r, status == CDDP_OK ? err : NULL);
    if (status == CDDP_OK) status = ended;
    if (status == CDDP_OK && is_root) status = average(g, w, err);
    return status;
}

/* ---- moving data ---- */

static cddp_status copy_own(cd_nccl_group *g, char *to, const char *from, size_t bytes,
                            cddp_error *err)
{
    if (bytes == 0 || to == from) return CDDP_OK;
    return CD_PASS(
        cd_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g->stream),
                      "cudaMemcpyAsync", err));
}

static cddp_status run_broadcast(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    ncclResult_t code = ncclSuccess;
    if (w->out.bytes > 0)
        code = ncclBroadcast(w->out.data, w->out.data, w->out.bytes, ncclUint8, (int)w->call.root,
                             g->comm, g->stream);
    return CD_PASS(cd_nccl_settle_work(g, code, w, err));
}

static cddp_status run_allgather(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    const int64_t *counts = w->call.counts;
    const size_t element = cddp_dtype_bytes(w->call.output.dtype);
    if (counts == NULL) {
        if (w->in.bytes * g->size != w->out.bytes)
            return cd_fail(err, CDDP_E_ARG, "allgather of %zu bytes from %u ranks into %zu",
                           w->in.bytes, g->size, w->out.bytes);
        ncclResult_t code = ncclSuccess;
        if (w->in.bytes > 0)
            code =
                ncclAllGather(w->in.data, w->out.data, w->in.bytes, ncclUint8, g->comm, g->stream);
        return CD_PASS(cd_nccl_settle_work(g, code, w, err));
    }
    if (share_bytes(counts, 0, g->rank, element) != w->in.bytes ||
        share_at(counts, 0, g->size, element) != w->out.bytes)
        return cd_fail(err, CDDP_E_ARG,
                       "allgather counts do not fit an input of %zu and an output of %zu bytes",
                       w->in.bytes, w->out.bytes);
    ncclResult_t code = ncclGroupStart();
    for (uint32_t r = 0; r < g->size; r++) {
        if (counts[r] == 0) continue;
        char *part = w->out.data + share_at(counts, 0, r, element);
        code = first(code, ncclBroadcast(r == g->rank ? w->in.data : part, part,
                                         share_bytes(counts, 0, r, element), ncclUint8, (int)r,
                                         g->comm, g->stream));
    }
    return CD_PASS(group_end(g, w, code, err));
}

/* gather, scatter and alltoall as one exchange: to(r) bytes go to rank r, from(r) bytes come from
** it. */
typedef struct exchange {
    const int64_t *to, *from; /* (size) elements, or NULL for equal shares */
    int64_t to_equal, from_equal;
    int64_t only; /* the only peer, or -1 for all */
    bool sends, receives;
    size_t element;
} exchange;

static cddp_status run_exchange(cd_nccl_group *g, cd_nccl_work *w, const exchange *x,
                                cddp_error *err)
{
    ncclResult_t code = ncclGroupStart();
    for (uint32_t r = 0; r < g->size; r++) {
        if (r == g->rank) continue;
        size_t out = share_bytes(x->to, x->to_equal, r, x->element),
               in = share_bytes(x->from, x->from_equal, r, x->element);
        /* A root's partner has one share; the root has one per rank. */
        size_t out_at =
            x->only >= 0 && !x->receives ? 0 : share_at(x->to, x->to_equal, r, x->element);
        size_t in_at =
            x->only >= 0 && !x->sends ? 0 : share_at(x->from, x->from_equal, r, x->element);
        if (x->only >= 0 && r != (uint32_t)x->only) continue;
        if (x->sends && out > 0)
            code = first(code,
                         ncclSend(w->in.data + out_at, out, ncclUint8, (int)r, g->comm, g->stream));
        if (x->receives && in > 0)
            code = first(code,
                         ncclRecv(w->out.data + in_at, in, ncclUint8, (int)r, g->comm, g->stream));
    }
    return CD_PASS(group_end(g, w, code, err));
}

static cddp_status run_alltoall(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    const size_t element = cddp_dtype_bytes(c->input.dtype);
    exchange x = {.to = c->send_counts,
                  .from = c->counts,
                  .to_equal = (int64_t)(w->in.bytes / element / g->size),
                  .from_equal = (int64_t)(w->out.bytes / element / g->size),
                  .only = -1,
                  .sends = true,
                  .receives = true,
                  .element = element};
    if (share_at(x.to, x.to_equal, g->size, element) != w->in.bytes ||
        share_at(x.from, x.from_equal, g->size, element) != w->out.bytes)
        return cd_fail(err, CDDP_E_ARG,
                       "alltoall counts do not fit an input of %zu and an output of %zu bytes",
                       w->in.bytes, w->out.bytes);
    CD_TRY(copy_own(g, w->out.data + share_at(x.from, x.from_equal, g->rank, element),
                    w->in.data + share_at(x.to, x.to_equal, g->rank, element),
                    share_bytes(x.to, x.to_equal, g->rank, element), err));
    return CD_PASS(run_exchange(g, w, &x, err));
}

/* gather and scatter: the root exchanges data with all others, they only with the root. */
static cddp_status run_rooted(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    const cddp_collective *c = &w->call;
    bool gathers = c->op == CDDP_OP_GATHER, is_root = g->rank == c->root;
    const cddp_tensor *small = gathers ? &c->input : &c->output;
    const size_t element = cddp_dtype_bytes(small->dtype),
                 large = gathers ? w->out.bytes : w->in.bytes;
    const int64_t equal = cddp_tensor_numel(small);
    if (is_root && share_at(c->counts, equal, g->size, element) != large)
        return cd_fail(err, CDDP_E_ARG, "%s counts do not add up to %zu bytes", cddp_op_name(c->op),
                       large);
    exchange x = {.to_equal = equal,
                  .from_equal = equal,
                  .only = is_root ? -1 : (int64_t)c->root,
                  .element = element};
    x.sends = gathers != is_root;
    x.receives = gathers == is_root;
    if (is_root) {
        size_t at = share_at(c->counts, equal, g->rank, element),
               own = share_bytes(c->counts, equal, g->rank, element);
        x.to = x.from = c->counts;
        CD_TRY(copy_own(g, w->out.data + (gathers ? at : 0), w->in.data + (gathers ? 0 : at), own,
                        err));
    }
    return CD_PASS(run_exchange(g, w, &x, err));
}

static cddp_status run_barrier(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    ncclResult_t code = ncclAllReduce(g->flag, g->flag, 1, ncclInt32, ncclSum, g->comm, g->stream);
    return CD_PASS(cd_nccl_settle_work(g, code, w, err));
}

/* ---- operands in host memory ---- */

static cddp_status bring_in(cd_nccl_group *g, const cd_nccl_operand *o, cddp_error *err)
{
    if (o->device == NULL || o->bytes == 0) return CDDP_OK;
    return CD_PASS(cd_cuda_check(cudaMemcpyAsync(o->device, o->pinned, o->bytes,
                                                 cudaMemcpyHostToDevice, g->stream),
                                 "cudaMemcpyAsync", err));
}

static cddp_status bring_back(cd_nccl_group *g, const cd_nccl_operand *o, cddp_error *err)
{
    if (o->device == NULL || o->bytes == 0) return CDDP_OK;
    return CD_PASS(cd_cuda_check(cudaMemcpyAsync(o->pinned, o->device, o->bytes,
                                                 cudaMemcpyDeviceToHost, g->stream),
                                 "cudaMemcpyAsync", err));
}

static cddp_status run(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    if (reduces(&w->call)) return CD_PASS(run_reduction(g, w, err));
    switch (w->call.op) {
    case CDDP_OP_BROADCAST:
        return CD_PASS(run_broadcast(g, w, err));
    case CDDP_OP_ALLGATHER:
        return CD_PASS(run_allgather(g, w, err));
    case CDDP_OP_ALLTOALL:
        return CD_PASS(run_alltoall(g, w, err));
    case CDDP_OP_GATHER:
    case CDDP_OP_SCATTER:
        return CD_PASS(run_rooted(g, w, err));
    case CDDP_OP_BARRIER:
        return CD_PASS(run_barrier(g, w, err));
    default:
        return cd_fail(err, CDDP_E_ARG, "operation %d is not a collective", (int)w->call.op);
    }
}

/* Host memory is not reported to the trace: its wait blocks. */
static void touch(cd_nccl_group *g, const cd_nccl_work *w)
{
    const cddp_collective *c = &w->call;
    const char *who = cddp_op_name(c->op);
    bool is_root = g->rank == c->root,
         writes = c->op == CDDP_OP_BROADCAST ? !is_root : c->op != CDDP_OP_REDUCE || is_root;
    if (w->in.bytes > 0 && c->input.device->self == g->cuda)
        cd_observe_touch(&g->cuda->observer, g->stream, &c->input, false, who);
    if (w->out.bytes > 0 && c->output.device->self == g->cuda)
        cd_observe_touch(&g->cuda->observer, g->stream, &c->output, writes, who);
}

static cddp_status finish(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    touch(g, w);
    CD_TRY(bring_back(g, &w->out, err));
    CD_TRY(cd_cuda_record(g->cuda, w->done, g->stream, err));
    w->issued = true;
    return CDDP_OK;
}

cddp_status cd_nccl_issue(cd_nccl_group *g, cd_nccl_work *w, cddp_error *err)
{
    CD_TRY(cd_cuda_wait(g->cuda, g->stream, w->ready, err));
    CD_TRY(bring_in(g, &w->in, err));
    /* In place on the host the content of the output counts, too. */
    if (w->in.device == NULL || w->call.op == CDDP_OP_BROADCAST) CD_TRY(bring_in(g, &w->out, err));
    CD_TRY(run(g, w, err));
    CD_TRY(finish(g, w, err));
    return CDDP_OK;
}

cddp_status cd_nccl_issue_messages(cd_nccl_group *g, cddp_error *err)
{
    cd_nccl_work *some = NULL;
    for (cd_nccl_work *w = g->in_flight; w != NULL; w = w->next) {
        if (w->issued) continue;
        some = w;
        CD_TRY(cd_cuda_wait(g->cuda, g->stream, w->ready, err));
        CD_TRY(bring_in(g, &w->in, err));
    }
    if (some == NULL) return CDDP_OK;
    ncclResult_t code = ncclGroupStart();
    for (cd_nccl_work *w = g->in_flight; w != NULL; w = w->next) {
        if (w->issued) continue;
        int peer = (int)w->call.root;
        if (w->call.op == CDDP_OP_SEND && w->in.bytes > 0)
            code =
                first(code, ncclSend(w->in.data, w->in.bytes, ncclUint8, peer, g->comm, g->stream));
        else if (w->call.op == CDDP_OP_RECV && w->out.bytes > 0)
            code = first(code,
                         ncclRecv(w->out.data, w->out.bytes, ncclUint8, peer, g->comm, g->stream));
    }
    CD_TRY(group_end(g, some, code, err));
    for (cd_nccl_work *w = g->in_flight; w != NULL; w = w->next)
        if (!w->issued) CD_TRY(finish(g, w, err));
    return CDDP_OK;
}
