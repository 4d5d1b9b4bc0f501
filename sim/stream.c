/* SPDX-License-Identifier: Apache-2.0 */
/* The device table of a device with streams: every operation is queued, what blocks waits for the
** default stream. */
#include "sim/stream.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "sim/stream_queue.h"

/* ---- the device table ---- */

/* The storage that was given back last, where one of this size was. */
static cd_stream_region *find_free(cd_stream_device *d, cddp_dtype dtype, int64_t numel)
{
    for (cd_stream_region *r = d->regions; r != NULL; r = r->next)
        if (r->is_free && r->dtype == dtype && r->numel == numel) return r;
    return NULL;
}

static void report_memory(const cd_stream_device *d, const cd_stream_region *r, bool released)
{
    CD_EMIT(d->tracer, memory, NULL, .region = r->id,
            .bytes = r->numel * (int64_t)cddp_dtype_bytes(r->dtype), .released = released);
}

static cddp_status dev_allocate(const cddp_device *table, cddp_dtype dtype, int64_t numel,
                                void **storage, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    cd_stream_region *r = find_free(d, dtype, numel);
    if (r == NULL) {
        void *made = NULL;
        r = cd_memory_allocate(&d->sim->memory, sizeof *r);
        if (r == NULL) return cd_fail_memory(err, "the record of a tensor");
        cddp_status status = d->inner->allocate(d->inner, dtype, numel, &made, err);
        if (status != CDDP_OK) {
            cd_memory_release(&d->sim->memory, r, sizeof *r);
            return status;
        }
        *r = (cd_stream_region){.next = d->regions,
                                .storage = made,
                                .id = d->region_count++,
                                .numel = numel,
                                .dtype = dtype};
        d->regions = r;
    }
    r->is_free = false;
    report_memory(d, r, false);
    *storage = r->storage;
    return CDDP_OK;
}

static void dev_release(const cddp_device *table, cddp_dtype dtype, int64_t numel, void *storage)
{
    cd_stream_device *d = cd_stream_device_of(table);
    for (cd_stream_region **link = &d->regions; *link != NULL; link = &(*link)->next) {
        cd_stream_region *r = *link;
        if (r->storage != storage) continue;
        CD_ASSERT(!r->is_free && r->dtype == dtype && r->numel == numel);
        *link = r->next;
        if (d->is_closed) {
            d->inner->release(d->inner, dtype, numel, storage);
            cd_memory_release(&d->sim->memory, r, sizeof *r);
            return;
        }
        report_memory(d, r, true);
        r->is_free = true;
        r->next = d->regions;
        d->regions = r;
        return;
    }
    CD_UNREACHABLE("storage of another device");
}

/* Orders the host behind the stream from here on; point -1: behind everything queued so far. */
static void order_host(const cd_stream_device *d, const cddp_stream *s)
{
    CD_EMIT(d->tracer, order, NULL, .from = s->index, .to = -1, .point = -1, .waits = 1);
}

/* Also of those who only look, for a trace: they leave the failure to the program. */
static cddp_status look(cd_stream_device *d, cddp_stream *s, cddp_error *err)
{
    while (s->first != NULL) {
        if (d->sim->current == NULL)
            return cd_fail(err, CDDP_E_STATE,
                           "stream %u is busy, and nobody is here to wait for it", s->index);
        s->waiter = d->sim->current;
        const cd_part *part = s->first->kind == CD_STREAM_JOIN ? s->first->part : NULL;
        if (cd_sim_wait(d->sim, "waits for a stream", part, UINT64_MAX) == CD_WAKE_ABORT)
            return cd_fail(err, CDDP_E_ABORTED,
                           "the world ended while rank %u waited for stream %u", d->rank->rank,
                           s->index);
    }
    if (d->failure == CDDP_OK) return CDDP_OK;
    return cd_fail(err, d->failure, "an operation queued earlier failed: %s", d->error.message);
}

static cddp_status wait_idle(cd_stream_device *d, cddp_stream *s, cddp_error *err)
{
    const cddp_status status = look(d, s, err);
    d->failure = CDDP_OK;
    return status;
}

static cddp_status dev_read(const cddp_tensor *src, void *host, size_t host_bytes, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(src->device);
    cd_stream_touch(d, d->streams[0], src, false, "read");
    CD_TRY(wait_idle(d, d->streams[0], err));
    order_host(d, d->streams[0]);
    cddp_tensor t = cd_stream_unwrapped(d, src);
    return CD_PASS(d->inner->read(&t, host, host_bytes, err));
}

static cddp_status dev_write(const cddp_tensor *dst, const void *host, size_t host_bytes,
                             cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(dst->device);
    cd_stream_touch(d, d->streams[0], dst, true, "write");
    CD_TRY(wait_idle(d, d->streams[0], err));
    order_host(d, d->streams[0]);
    cddp_tensor t = cd_stream_unwrapped(d, dst);
    return CD_PASS(d->inner->write(&t, host, host_bytes, err));
}

static cddp_status dev_norm(const cddp_tensor *src, double *norm, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(src->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = cd_stream_unwrapped(d, src);
    return CD_PASS(d->inner->norm(&t, norm, err));
}

static cddp_status dev_find_nonfinite(const cddp_tensor *src, int64_t *index, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(src->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = cd_stream_unwrapped(d, src);
    return CD_PASS(d->inner->find_nonfinite(&t, index, err));
}

static cddp_status dev_digest(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(src->device);
    CD_TRY(look(d, d->streams[0], err));
    cddp_tensor t = cd_stream_unwrapped(d, src);
    return CD_PASS(d->inner->digest(&t, digest, err));
}

static cddp_status dev_digest_on(const cddp_tensor *src, cddp_stream *stream, uint64_t *digest,
                                 cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(src->device);
    CD_TRY(look(d, cd_stream_or_default(d, stream), err));
    return CD_PASS(dev_digest(src, digest, err));
}

static cddp_status two(cd_stream_op_kind kind, const cddp_tensor *dst, const cddp_tensor *src,
                       cddp_stream *stream, cd_stream_op extra, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(dst->device);
    extra.kind = kind;
    extra.dst = *dst;
    extra.a = *src;
    return CD_PASS(cd_stream_push(d, stream, &extra, err));
}

/* To the host: only the source is this device's. */
static cddp_status dev_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream,
                            cddp_error *err)
{
    const bool leaves = cd_stream_device_inner(dst->device) == NULL;
    cd_stream_device *d = cd_stream_device_of(leaves ? src->device : dst->device);
    const cd_stream_op o = {.kind = CD_STREAM_COPY, .dst = *dst, .a = *src};
    return CD_PASS(cd_stream_push(d, stream, &o, err));
}

static cddp_status dev_copy_many(const cddp_device *table, const cddp_copy_pair *pairs,
                                 size_t pair_count, cddp_copy_scale scale, int64_t n,
                                 cddp_stream *stream, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    cd_stream_op o = {.kind = CD_STREAM_COPY_MANY,
                      .pair_count = pair_count,
                      .scale = scale,
                      .n = n};
    if (pair_count == 0) return CDDP_OK;
    o.pairs = cd_memory_allocate(&d->sim->memory, pair_count * sizeof *o.pairs);
    if (o.pairs == NULL) return cd_fail_memory(err, "%zu queued copies", pair_count);
    for (size_t i = 0; i < pair_count; i++) {
        o.pairs[i] = pairs[i];
        cd_stream_touch(d, cd_stream_or_default(d, stream), &o.pairs[i].src, false, "copy");
        cd_stream_touch(d, cd_stream_or_default(d, stream), &o.pairs[i].dst, true, "copy");
    }
    return CD_PASS(cd_stream_push(d, stream, &o, err));
}

static cddp_status dev_fill(const cddp_tensor *dst, double value, cddp_stream *stream,
                            cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(dst->device);
    cd_stream_op o = {.kind = CD_STREAM_FILL, .dst = *dst, .x = value};
    return CD_PASS(cd_stream_push(d, stream, &o, err));
}

static cddp_status dev_reduce(cddp_red_op red, const cddp_tensor *dst, const cddp_tensor *src,
                              cddp_stream *stream, cddp_error *err)
{
    return CD_PASS(two(CD_STREAM_REDUCE, dst, src, stream, (cd_stream_op){.red = red}, err));
}

static cddp_status dev_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                              cddp_stream *stream, cddp_error *err)
{
    return CD_PASS(two(CD_STREAM_DIVIDE, dst, src, stream, (cd_stream_op){.n = n}, err));
}

static cddp_status dev_reciprocal(const cddp_tensor *dst, const cddp_tensor *src, int64_t n,
                                  cddp_stream *stream, cddp_error *err)
{
    return CD_PASS(two(CD_STREAM_RECIPROCAL, dst, src, stream, (cd_stream_op){.n = n}, err));
}

static cddp_status dev_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor,
                             cddp_stream *stream, cddp_error *err)
{
    return CD_PASS(two(CD_STREAM_SCALE, dst, src, stream, (cd_stream_op){.x = factor}, err));
}

static cddp_status dev_axpy(const cddp_tensor *dst, double alpha, const cddp_tensor *x,
                            cddp_stream *stream, cddp_error *err)
{
    return CD_PASS(two(CD_STREAM_AXPY, dst, x, stream, (cd_stream_op){.x = alpha}, err));
}

static cddp_status dev_matmul(const cddp_tensor *dst, const cddp_matmul *operands,
                              cddp_stream *stream, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(dst->device);
    cd_stream_op o = {.kind = CD_STREAM_MATMUL,
                      .dst = *dst,
                      .a = *operands->a,
                      .b = *operands->b,
                      .matmul = *operands};
    return CD_PASS(cd_stream_push(d, stream, &o, err));
}

static cddp_status dev_stream_create(const cddp_device *table, cddp_stream **stream,
                                     cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    if (d->stream_count == CD_STREAMS_MAX)
        return cd_fail(err, CDDP_E_LIMIT, "rank %u already has %u streams", d->rank->rank,
                       CD_STREAMS_MAX);
    cddp_stream *s = cd_memory_allocate(&d->sim->memory, sizeof *s);
    if (s == NULL) return cd_fail_memory(err, "a stream");
    *s = (cddp_stream){.device = d, .index = d->stream_count};
    d->streams[d->stream_count++] = s;
    *stream = s;
    return CDDP_OK;
}

/* Work that is queued still completes, as on a GPU; the stream's memory goes with the device. */
static void dev_stream_destroy(const cddp_device *table, cddp_stream *stream)
{
    (void)table, (void)stream;
}

static cddp_status dev_stream_synchronize(const cddp_device *table, cddp_stream *stream,
                                          cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    cddp_stream *s = cd_stream_or_default(d, stream);
    CD_TRY(wait_idle(d, s, err));
    order_host(d, s);
    return CDDP_OK;
}

static cddp_status dev_mark_create(const cddp_device *table, cddp_mark **mark, cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    cddp_mark *m = cd_memory_allocate(&d->sim->memory, sizeof *m);
    if (m == NULL) return cd_fail_memory(err, "a mark");
    *m = (cddp_mark){.device = d, .index = d->mark_count++};
    *mark = m;
    return CDDP_OK;
}

/* As with streams: a queued record or wait may still name it. */
static void dev_mark_destroy(const cddp_device *table, cddp_mark *mark) { (void)table, (void)mark; }

static cddp_status dev_mark_record(const cddp_device *table, cddp_mark *mark, cddp_stream *stream,
                                   cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    cd_stream_op o = {.kind = CD_STREAM_RECORD, .mark = mark, .generation = ++mark->recorded};
    CD_EMIT(d->tracer, order, NULL, .from = cd_stream_or_default(d, stream)->index, .to = -1,
            .point = mark->index, .waits = 0);
    return CD_PASS(cd_stream_push(d, stream, &o, err));
}

static cddp_status dev_mark_wait(const cddp_device *table, cddp_mark *mark, cddp_stream *stream,
                                 cddp_error *err)
{
    cd_stream_device *d = cd_stream_device_of(table);
    cd_stream_op o = {.kind = CD_STREAM_WAIT, .mark = mark, .generation = mark->recorded};
    CD_EMIT(d->tracer, order, NULL, .from = -1, .to = cd_stream_or_default(d, stream)->index,
            .point = mark->index, .waits = 1);
    return CD_PASS(cd_stream_push(d, stream, &o, err));
}

/* Ours are known by their function: no two devices share it. */
const cddp_device *cd_stream_device_inner(const cddp_device *table)
{
    return table != NULL && table->allocate == dev_allocate ? cd_stream_device_of(table)->inner
                                                            : NULL;
}

/* ---- making ---- */

cddp_status cd_stream_device_create(cddp_rank *rank, const cd_stream_device_config *config,
                                    const cddp_device **out, cddp_error *err)
{
    cd_sim *sim = rank->world;
    const cddp_device *inner = config->inner;
    cd_stream_device *d = cd_memory_allocate(&sim->memory, sizeof *d);
    if (d == NULL) return cd_fail_memory(err, "a device with streams");
    *d = (cd_stream_device){
        .sim = sim, .rank = rank, .inner = inner, .op_ns = config->op_ns, .tracer = config->tracer};
    d->table = (cddp_device){.size = sizeof d->table,
                             .abi = CDDP_DEVICE_ABI,
                             .name = inner->name,
                             .flags = inner->flags | CDDP_DEVICE_ASYNC | CDDP_DEVICE_QUEUES_HOST,
                             .dtypes = inner->dtypes,
                             .self = inner->self,
                             .allocate = dev_allocate,
                             .release = dev_release,
                             .read = dev_read,
                             .write = dev_write,
                             .copy = dev_copy,
                             .copy_many = dev_copy_many,
                             .fill = dev_fill,
                             .reduce = dev_reduce,
                             .divide = dev_divide,
                             .multiply_reciprocal = dev_reciprocal,
                             .scale = dev_scale,
                             .axpy = dev_axpy,
                             .matmul = dev_matmul,
                             .norm = dev_norm,
                             .find_nonfinite = dev_find_nonfinite,
                             .digest = dev_digest,
                             .digest_on = dev_digest_on,
                             .stream_create = dev_stream_create,
                             .stream_destroy = dev_stream_destroy,
                             .stream_synchronize = dev_stream_synchronize,
                             .mark_create = dev_mark_create,
                             .mark_destroy = dev_mark_destroy,
                             .mark_record = dev_mark_record,
                             .mark_wait = dev_mark_wait};
    cddp_stream *first = NULL;
    cddp_status status = dev_stream_create(&d->table, &first, err);
    if (status != CDDP_OK) {
        cd_memory_release(&sim->memory, d, sizeof *d);
        return status;
    }
    *out = &d->table;
    return CDDP_OK;
}

static bool is_quiet(const cd_stream_device *d)
{
    for (uint32_t i = 0; i < d->stream_count; i++)
        if (d->streams[i]->first != NULL) return false;
    return true;
}

/* Storage that is free goes back; what somebody still has comes through dev_release. */
static void drop_free_regions(cd_stream_device *d)
{
    for (cd_stream_region **link = &d->regions; *link != NULL;) {
        cd_stream_region *r = *link;
        if (!r->is_free) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        d->inner->release(d->inner, r->dtype, r->numel, r->storage);
        cd_memory_release(&d->sim->memory, r, sizeof *r);
    }
}

/* Operations under way, parts and completions may still name streams and device: those go with the
** world. */
void cd_stream_device_destroy(const cddp_device *table)
{
    if (table == NULL) return;
    cd_stream_device *d = cd_stream_device_of(table);
    cd_memory *memory = &d->sim->memory;
    d->is_closed = true;
    d->tracer = NULL;
    drop_free_regions(d);
    const bool quiet = is_quiet(d);
    for (uint32_t i = 0; quiet && i < d->stream_count; i++)
        cd_memory_release(memory, d->streams[i], sizeof *d->streams[i]);
}
