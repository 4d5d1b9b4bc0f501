/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives over Gloo: the library's ring all-reduce and broadcast, and ours for operations that
** it lacks or cannot abort. Ours use its buffers.
**
** Order of summation, in every algorithm here: gloo_chunk cuts the n elements into W chunks, as
** Gloo does. Chunk c is x[c] + (x[c+1] + (… + x[c-1])): it starts at rank c-1 and moves down
** (GRD-13). The library's ring and ours give the same bits; reduce_scatter and reduce sum in the
** same order.
**
** Unless the group was opened with guard=0, members exchange fingerprints before each operation,
** over sockets of the guard. Without that Gloo aborts the process when sizes disagree, and silently
** mixes data when orders disagree. A fingerprint leaves when its operation is posted, so that it is
** there when the operation before it ends. The exchange runs in the group's lane, beside the
** computation.
*/
#include "backends/gloo/gloo_group.h"

#include "backends/guard/call_fingerprint.h"
#include "core/base/error.h"

#include <string.h>

static char *bytes_of(const cddp_tensor *t)
{
    return (char *)t->storage + (size_t)t->offset * cddp_dtype_bytes(t->dtype);
}

static size_t size_of(const cddp_tensor *t)
{
    return (size_t)cddp_tensor_numel(t) * cddp_dtype_bytes(t->dtype);
}

/* Every member sends to and receives from every other: alltoall and allgather. Offsets and lengths
** are in tables indexed by peer. */
typedef struct exchange {
    char *out, *in;
    const size_t *out_at, *out_bytes, *in_at, *in_bytes; /* (group size) */
    uint32_t slot;
} exchange;

static cddp_status exchange_run(cd_gloo_group *g, const cd_gloo_work *w, const exchange *x,
                                cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_gloo_message *messages = cd_gloo_scratch(g, 2 * g->size * sizeof *messages);
    if (messages == NULL) return cd_fail_memory(err, "an exchange among %u ranks", g->size);
    memset(messages, 0, 2 * g->size * sizeof *messages);
    for (uint32_t i = 1; i < g->size; i++) {
        uint32_t from = (g->rank + g->size - i) % g->size, to = (g->rank + i) % g->size;
        messages[2 * i] = (cd_gloo_message){.peer = from};
        messages[2 * i + 1] = (cd_gloo_message){.peer = to, .sends = true};
        if (x->in_bytes[from] > 0)
            CD_TRY_OUT(cd_gloo_message_begin(g, w, &messages[2 * i], x->in + x->in_at[from],
                                             x->in_bytes[from], x->slot, err));
        if (x->out_bytes[to] > 0)
            CD_TRY_OUT(cd_gloo_message_begin(g, w, &messages[2 * i + 1], x->out + x->out_at[to],
                                             x->out_bytes[to], x->slot, err));
    }
    if (x->out_bytes[g->rank] > 0)
        memmove(x->in + x->in_at[g->rank], x->out + x->out_at[g->rank], x->out_bytes[g->rank]);
    for (uint32_t i = 2; i < 2 * g->size; i++)
        if (messages[i].buffer != NULL) CD_TRY_OUT(cd_gloo_message_end(g, w, &messages[i], err));
out:
    for (uint32_t i = 2; i < 2 * g->size; i++) cd_gloo_message_drop(&messages[i]);
    return status;
}

#define RANKS_MAX 1024
typedef struct spans {
    size_t at[RANKS_MAX], bytes[RANKS_MAX];
} spans;

/* The share of each rank: given by counts, or equal shares of numel. */
static void spans_of(const cd_gloo_group *g, const int64_t *counts, int64_t numel,
                     size_t element_bytes, spans *s)
{
    size_t at = 0;
    for (uint32_t r = 0; r < g->size; r++) {
        s->at[r] = at;
        s->bytes[r] = (size_t)(counts != NULL ? counts[r] : numel) * element_bytes;
        at += s->bytes[r];
    }
}

static void spans_same(const cd_gloo_group *g, size_t bytes, spans *s)
{
    for (uint32_t r = 0; r < g->size; r++) {
        s->at[r] = 0;
        s->bytes[r] = bytes;
    }
}

static cddp_status guard_run(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    cd_call_fingerprint *all = cd_gloo_scratch(g, g->size * sizeof *all);
    if (all == NULL) return cd_fail_memory(err, "fingerprints of %u ranks", g->size);
    all[g->rank] = w->fingerprint;
    const cd_mesh_round round = {all, w->deadline_ns, w->timeout_ns, w->is_announced};
    const cddp_status status = cd_mesh_exchange(g->mesh, &round, err);
    if (status == CDDP_E_ABORTED) return CD_PASS(cd_gloo_fail(g, CD_GLOO_CLOSED, -1, "", err));
    CD_TRY(status);
    CD_TRY(cd_call_fingerprint_agree(all, g->members, g->rank, g->size, err));
    return CDDP_OK;
}

/* ---- reductions ---- */

typedef struct reduction {
    const cddp_device *device;
    cddp_dtype dtype;
    cddp_red_op op;
    cddp_error *err;
    cddp_status status;
} reduction;

/* out = in1 op in2 in host memory. The device table computes it, so the bits equal the
** simulator's. */
static void reduce_into(void *context, void *out, const void *in1, const void *in2,
                        size_t element_count)
{
    reduction *r = context;
    int64_t n = (int64_t)element_count;
    if (out != in1 && out != in2) memcpy(out, in1, element_count * cddp_dtype_bytes(r->dtype));
    /* The table's views are not const; the operation only reads its second operand. */
    union {
        const void *in;
        void *storage;
    } other = {.in = out == in2 ? in1 : in2};
    cddp_tensor dst = cddp_tensor_of(r->device, out, 0, r->dtype, &n, 1);
    cddp_tensor src = cddp_tensor_of(r->device, other.storage, 0, r->dtype, &n, 1);
    if (r->status == CDDP_OK) r->status = r->device->reduce(r->op, &dst, &src, NULL, r->err);
}

static cd_gloo_message message_to(uint32_t peer, bool sends)
{
    return (cd_gloo_message){.peer = peer, .sends = sends};
}

/* Sends one block to `to` while receiving another from `from`. */
static cddp_status shift(cd_gloo_group *g, cd_gloo_work *w, const exchange *x, uint32_t from,
                         uint32_t to, cddp_error *err)
{
    cddp_status status = CDDP_OK;
    cd_gloo_message in = message_to(from, false), out = message_to(to, true);
    if (*x->in_bytes > 0)
        CD_TRY_OUT(cd_gloo_message_begin(g, w, &in, x->in, *x->in_bytes, x->slot, err));
    if (*x->out_bytes > 0)
        CD_TRY_OUT(cd_gloo_message_begin(g, w, &out, x->out, *x->out_bytes, x->slot, err));
    if (in.buffer != NULL) CD_TRY_OUT(cd_gloo_message_end(g, w, &in, err));
    if (out.buffer != NULL) CD_TRY_OUT(cd_gloo_message_end(g, w, &out, err));
out:
    cd_gloo_message_drop(&in);
    cd_gloo_message_drop(&out);
    return status;
}

/* Partial sums move down the ring: after W-1 steps rank r has the whole sum of chunk r in
** data. */
static cddp_status ring_reduce(cd_gloo_group *g, cd_gloo_work *w, char *data, const spans *chunks,
                               reduction *r, cddp_error *err)
{
    uint32_t size = g->size, down = (g->rank + size - 1) % size, up = (g->rank + 1) % size;
    size_t largest = 0;
    for (uint32_t c = 0; c < size; c++)
        largest = chunks->bytes[c] > largest ? chunks->bytes[c] : largest;
    char *arrived = cd_gloo_scratch(g, largest);
    if (arrived == NULL) return cd_fail_memory(err, "a ring step of %zu bytes", largest);
    for (uint32_t s = 0; s + 1 < size; s++) {
        uint32_t sent = (g->rank + 1 + s) % size, taken = (g->rank + 2 + s) % size;
        exchange x = {data + chunks->at[sent], arrived, NULL, &chunks->bytes[sent], NULL,
                      &chunks->bytes[taken],   s};
        CD_TRY(shift(g, w, &x, up, down, err));
        reduce_into(r, data + chunks->at[taken], data + chunks->at[taken], arrived,
                    chunks->bytes[taken] / cddp_dtype_bytes(r->dtype));
        CD_TRY(r->status);
    }
    return CDDP_OK;
}

static cddp_status ring_gather(cd_gloo_group *g, cd_gloo_work *w, char *data, const spans *chunks,
                               cddp_error *err)
{
    uint32_t size = g->size, down = (g->rank + size - 1) % size, up = (g->rank + 1) % size;
    for (uint32_t s = 0; s + 1 < size; s++) {
        uint32_t sent = (g->rank + s) % size, taken = (g->rank + s + 1) % size;
        exchange x = {data + chunks->at[sent],
                      data + chunks->at[taken],
                      NULL,
                      &chunks->bytes[sent],
                      NULL,
                      &chunks->bytes[taken],
                      size + s};
        CD_TRY(shift(g, w, &x, up, down, err));
    }
    return CDDP_OK;
}

/* Gloo's cut: ns = roundUp(max(ceil(bytes / 1 MiB), 2W), W) segments of roundUp(ceil(bytes / ns),
** element) bytes, ns/W of them per chunk; the last ones may be short or empty. */
static void gloo_chunks(const cd_gloo_group *g, size_t bytes, size_t element_bytes, spans *chunks)
{
    size_t w = g->size, mib = (bytes + 1048575) / 1048576;
    size_t segments = mib > 2 * w ? mib : 2 * w;
    segments = (segments + w - 1) / w * w;
    size_t segment = (bytes + segments - 1) / segments;
    segment = (segment + element_bytes - 1) / element_bytes * element_bytes;
    size_t chunk = segment * (segments / w);
    for (size_t c = 0; c < w; c++) {
        size_t at = c * chunk < bytes ? c * chunk : bytes;
        chunks->at[c] = at;
        chunks->bytes[c] = bytes - at < chunk ? bytes - at : chunk;
    }
}

static cddp_status premultiply(const cd_gloo_work *w, const cddp_tensor *t, cddp_error *err)
{
    if (w->call.reduce_op != CDDP_RED_PREMUL_SUM) return CDDP_OK;
    CD_TRY(t->device->scale(t, t, w->call.premultiplier, NULL, err));
    return CDDP_OK;
}

static cddp_status average(const cd_gloo_group *g, const cd_gloo_work *w, const cddp_tensor *t,
                           cddp_error *err)
{
    if (w->call.reduce_op != CDDP_RED_AVG) return CDDP_OK;
    CD_TRY(t->device->divide(t, t, g->size, NULL, err));
    return CDDP_OK;
}

static reduction reduction_of(const cd_gloo_work *w, const cddp_tensor *t, cddp_error *err)
{
    bool sums = w->call.reduce_op == CDDP_RED_AVG || w->call.reduce_op == CDDP_RED_PREMUL_SUM;
    return (reduction){t->device, t->dtype, sums ? CDDP_RED_SUM : w->call.reduce_op, err, CDDP_OK};
}

static cddp_status run_allreduce(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *out = &w->call.output;
    size_t bytes = size_of(out), element = cddp_dtype_bytes(out->dtype);
    if (bytes_of(out) != bytes_of(&w->call.input))
        memmove(bytes_of(out), bytes_of(&w->call.input), bytes);
    CD_TRY(premultiply(w, out, err));
    reduction r = reduction_of(w, out, err);
    if (bytes > 0 && g->size > 1 && !g->own_ring) {
        char text[CD_GLOO_TEXT_BYTES];
        cd_gloo_call call = {.data = bytes_of(out),
                             .element_count = bytes / element,
                             .element_bytes = element,
                             .tag = (uint32_t)w->call.sequence,
                             .timeout_ms = cd_gloo_milliseconds_left(w),
                             .reduce = reduce_into,
                             .context = &r};
        cd_gloo_code code = cd_gloo_allreduce(g->gloo, &call, text);
        if (code != CD_GLOO_OK) return CD_PASS(cd_gloo_fail_collective(g, code, -1, text, err));
        CD_TRY(r.status);
    } else if (bytes > 0 && g->size > 1) {
        spans chunks;
        gloo_chunks(g, bytes, element, &chunks);
        CD_TRY(ring_reduce(g, w, bytes_of(out), &chunks, &r, err));
        CD_TRY(ring_gather(g, w, bytes_of(out), &chunks, err));
    }
    CD_TRY(average(g, w, out, err));
    return CDDP_OK;
}

static cddp_status run_reduce_scatter(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *in = &w->call.input, *out = &w->call.output;
    size_t bytes = size_of(in), element = cddp_dtype_bytes(in->dtype);
    spans chunks;
    spans_of(g, w->call.counts, cddp_tensor_numel(out), element, &chunks);
    if (chunks.at[g->size - 1] + chunks.bytes[g->size - 1] != bytes ||
        chunks.bytes[g->rank] != size_of(out))
        return cd_fail(err, CDDP_E_ARG,
                       "reduce_scatter counts do not add up to the %zu bytes of the input", bytes);
    /* The input must not change, so the sums are made in a copy. A ring step has its own
    ** scratch. */
    char *copy = cd_gloo_scratch(g, 2 * bytes);
    if (copy == NULL) return cd_fail_memory(err, "a reduce_scatter of %zu bytes", bytes);
    char *data = copy + bytes;
    memcpy(data, bytes_of(in), bytes);
    int64_t n = cddp_tensor_numel(in);
    cddp_tensor summed = cddp_tensor_of(in->device, data, 0, in->dtype, &n, 1);
    CD_TRY(premultiply(w, &summed, err));
    reduction r = reduction_of(w, in, err);
    CD_TRY(ring_reduce(g, w, data, &chunks, &r, err));
    memcpy(bytes_of(out), data + chunks.at[g->rank], chunks.bytes[g->rank]);
    CD_TRY(average(g, w, out, err));
    return CDDP_OK;
}

/* The sum moves down the ring once, from the rank below the root to the root. */
static cddp_status run_reduce(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *in = &w->call.input;
    size_t bytes = size_of(in);
    uint32_t size = g->size, down = (g->rank + size - 1) % size, up = (g->rank + 1) % size;
    bool is_root = g->rank == w->call.root, is_first = up == w->call.root;
    if (bytes == 0) return CDDP_OK;
    char *sum = cd_gloo_scratch(g, 2 * bytes);
    if (sum == NULL) return cd_fail_memory(err, "a reduce of %zu bytes", bytes);
    memcpy(sum, bytes_of(in), bytes);
    int64_t n = cddp_tensor_numel(in);
    cddp_tensor mine = cddp_tensor_of(in->device, sum, 0, in->dtype, &n, 1);
    CD_TRY(premultiply(w, &mine, err));
    reduction r = reduction_of(w, in, err);
    size_t nothing = 0;
    if (size > 1 && !is_first) {
        exchange x = {NULL, sum + bytes, NULL, &nothing, NULL, &bytes, 0};
        CD_TRY(shift(g, w, &x, up, down, err));
        reduce_into(&r, sum, sum, sum + bytes, (size_t)n);
        CD_TRY(r.status);
    }
    if (size > 1 && !is_root) {
        exchange x = {sum, NULL, NULL, &bytes, NULL, &nothing, 0};
        CD_TRY(shift(g, w, &x, up, down, err));
    }
    if (!is_root) return CDDP_OK;
    memcpy(bytes_of(&w->call.output), sum, bytes);
    CD_TRY(average(g, w, &w->call.output, err));
    return CDDP_OK;
}

/* ---- moving ---- */

static cddp_status run_broadcast(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *out = &w->call.output;
    size_t bytes = size_of(out);
    if (bytes == 0 || g->size == 1) return CDDP_OK;
    if (!g->own_ring) {
        char text[CD_GLOO_TEXT_BYTES];
        cd_gloo_call call = {.data = bytes_of(out),
                             .element_count = bytes,
                             .element_bytes = 1,
                             .root = (int)w->call.root,
                             .tag = (uint32_t)w->call.sequence,
                             .timeout_ms = cd_gloo_milliseconds_left(w)};
        cd_gloo_code code = cd_gloo_broadcast(g->gloo, &call, text);
        if (code != CD_GLOO_OK) return CD_PASS(cd_gloo_fail_collective(g, code, -1, text, err));
        return CDDP_OK;
    }
    /* A binomial tree: in round k the 2^k ranks that have the data (counted from the root) send it
    ** on. */
    uint32_t place = (g->rank + g->size - w->call.root) % g->size;
    size_t nothing = 0;
    for (uint32_t half = 1, round = 0; half < g->size; half *= 2, round++) {
        bool sends = place < half && place + half < g->size,
             takes = place >= half && place < 2 * half;
        if (!sends && !takes) continue;
        uint32_t peer = (w->call.root + (sends ? place + half : place - half)) % g->size;
        exchange x = {bytes_of(out), bytes_of(out),
                      NULL,          sends ? &bytes : &nothing,
                      NULL,          takes ? &bytes : &nothing,
                      round};
        CD_TRY(shift(g, w, &x, peer, peer, err));
    }
    return CDDP_OK;
}

static cddp_status run_allgather(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *in = &w->call.input, *out = &w->call.output;
    spans mine, theirs;
    spans_same(g, size_of(in), &mine);
    spans_of(g, w->call.counts, cddp_tensor_numel(in), cddp_dtype_bytes(out->dtype), &theirs);
    if (theirs.bytes[g->rank] != size_of(in) ||
        theirs.at[g->size - 1] + theirs.bytes[g->size - 1] != size_of(out))
        return cd_fail(err, CDDP_E_ARG,
                       "allgather counts do not fit an input of %zu and an output of %zu bytes",
                       size_of(in), size_of(out));
    exchange x = {bytes_of(in), bytes_of(out), mine.at, mine.bytes, theirs.at, theirs.bytes, 0};
    CD_TRY(exchange_run(g, w, &x, err));
    return CDDP_OK;
}

static cddp_status run_alltoall(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    const cddp_tensor *in = &w->call.input, *out = &w->call.output;
    spans to, from;
    spans_of(g, w->call.send_counts, cddp_tensor_numel(in) / g->size, cddp_dtype_bytes(in->dtype),
             &to);
    spans_of(g, w->call.counts, cddp_tensor_numel(out) / g->size, cddp_dtype_bytes(out->dtype),
             &from);
    uint32_t last = g->size - 1;
    if (to.at[last] + to.bytes[last] != size_of(in) ||
        from.at[last] + from.bytes[last] != size_of(out))
        return cd_fail(err, CDDP_E_ARG,
                       "alltoall counts do not fit an input of %zu and an output of %zu bytes",
                       size_of(in), size_of(out));
    exchange x = {bytes_of(in), bytes_of(out), to.at, to.bytes, from.at, from.bytes, 0};
    CD_TRY(exchange_run(g, w, &x, err));
    return CDDP_OK;
}

/* gather and scatter: the root exchanges messages with all others, they only with the root. */
static cddp_status run_rooted(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    bool gathers = w->call.op == CDDP_OP_GATHER, is_root = g->rank == w->call.root;
    const cddp_tensor *small = gathers ? &w->call.input : &w->call.output;
    const cddp_tensor *large = gathers ? &w->call.output : &w->call.input;
    spans none, one, shares;
    spans_same(g, 0, &none);
    spans_same(g, 0, &one);
    one.bytes[w->call.root] = size_of(small);
    spans_of(g, w->call.counts, cddp_tensor_numel(small), cddp_dtype_bytes(small->dtype), &shares);
    if (is_root && shares.at[g->size - 1] + shares.bytes[g->size - 1] != size_of(large))
        return cd_fail(err, CDDP_E_ARG, "%s counts do not add up to %zu bytes",
                       cddp_op_name(w->call.op), size_of(large));
    const spans *far = is_root ? &shares : &none;
    char *large_bytes = is_root ? bytes_of(large) : NULL;
    exchange x =
        gathers
            ? (exchange){bytes_of(small), large_bytes, one.at, one.bytes, far->at, far->bytes, 0}
            : (exchange){large_bytes, bytes_of(small), far->at, far->bytes, one.at, one.bytes, 0};
    CD_TRY(exchange_run(g, w, &x, err));
    return CDDP_OK;
}

/* Dissemination: in round k each rank receives from the rank 2^k below. */
static cddp_status run_barrier(cd_gloo_group *g, cd_gloo_work *w, cddp_error *err)
{
    char out = 1, in = 0;
    size_t one = 1;
    for (uint32_t distance = 1, round = 0; distance < g->size; distance *= 2, round++) {
        exchange x = {&out, &in, NULL, &one, NULL, &one, round};
        CD_TRY(shift(g, w, &x, (g->rank + g->size - distance) % g->size,
                     (g->rank + distance) % g->size, err));
    }
    return CDDP_OK;
}

static cddp_status run(cd_gloo_group *group, cd_gloo_work *work, cddp_error *err)
{
    switch (work->call.op) {
    case CDDP_OP_ALLREDUCE:
        CD_TRY(run_allreduce(group, work, err));
        break;
    case CDDP_OP_REDUCE_SCATTER:
        CD_TRY(run_reduce_scatter(group, work, err));
        break;
    case CDDP_OP_REDUCE:
        CD_TRY(run_reduce(group, work, err));
        break;
    case CDDP_OP_BROADCAST:
        CD_TRY(run_broadcast(group, work, err));
        break;
    case CDDP_OP_ALLGATHER:
        CD_TRY(run_allgather(group, work, err));
        break;
    case CDDP_OP_ALLTOALL:
        CD_TRY(run_alltoall(group, work, err));
        break;
    case CDDP_OP_GATHER:
    case CDDP_OP_SCATTER:
        CD_TRY(run_rooted(group, work, err));
        break;
    case CDDP_OP_BARRIER:
        CD_TRY(run_barrier(group, work, err));
        break;
    case CDDP_OP_SEND:
    case CDDP_OP_RECV:
    case CDDP_OP_COUNT:
        return cd_fail(err, CDDP_E_ARG, "operation %d is not a collective", (int)work->call.op);
    }
    return CDDP_OK;
}

cddp_status cd_gloo_collective_run(cd_gloo_group *group, cd_gloo_work *work, cddp_error *err)
{
    group->op = work->call.op;
    if (group->mesh != NULL) CD_TRY(guard_run(group, work, err));
    cd_call_watch_begin(&work->watch, &group->room, &work->call);
    const cddp_status status = run(group, work, err);
    cd_call_watch_end(&work->watch, &group->room, &work->call, status == CDDP_OK);
    return CD_PASS(status);
}
