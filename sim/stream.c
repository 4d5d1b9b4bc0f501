/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of operations.
**
** Invariants:
**   S1  operations of one stream take effect in the order in which they were queued;
**   S2  a stream is idle (empty queue), running (its first operation will complete by itself) or held (its first
**       operation waits for a mark or for a collective), and whoever ends the wait kicks it;
**   S3  a mark is done up to the generation of its last record that was reached.
*/
#include "sim/stream.h"

#include "core/base/alloc.h"
#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "sim/stream_ops.h"

#include <string.h>

#define STREAMS_MAX 64u

typedef enum op_kind {
    OP_COPY, OP_COPY_MANY, OP_FILL, OP_REDUCE, OP_DIVIDE, OP_RECIPROCAL, OP_SCALE, OP_AXPY, OP_MATMUL,
    OP_RECORD, OP_WAIT, OP_START, OP_JOIN
} op_kind;

typedef struct op {
    struct op *next;
    op_kind kind;
    cddp_tensor dst, a, b;
    cddp_matmul matmul;
    cddp_copy_pair *pairs; /* (pair_count) a copy */
    size_t pair_count;
    cddp_copy_scale scale;
    cddp_red_op red;
    int64_t n;
    double x;
    cddp_mark *mark;
    uint64_t generation;
    cd_part *part;
} op;

struct cddp_mark {
    struct device *device;
    uint32_t index;
    uint64_t recorded, done; /* S3 */
};

struct cddp_stream {
    cd_completion completion; /* first */
    cd_sim_event event;
    struct device *device;
    uint32_t index;
    op *first, *last;
    bool is_running;
    cd_sim_rank *waiter;
};

/* Storage by its number, so that traces do not depend on addresses. */
typedef struct region {
    struct region *next;
    const void *storage;
    int64_t id;
} region;

typedef struct device {
    cddp_device table; /* first */
    cd_sim *sim;
    cddp_rank *rank;
    const cddp_device *inner;
    uint64_t op_ns;
    cddp_tracer *tracer;
    cddp_stream *streams[STREAMS_MAX]; /* [0] is the default */
    uint32_t stream_count, mark_count;
    region *regions;
    int64_t region_count;
    cddp_status failure;
    cddp_error error;
} device;

static device *device_of(const cddp_device *table)
{
    return (device *)(void *)(uintptr_t)table;
}

static cddp_stream *stream_or_default(device *d, cddp_stream *stream)
{
    return stream != NULL ? stream : d->streams[0];
}

static cddp_tensor unwrapped(const device *d, const cddp_tensor *tensor)
{
    cddp_tensor t = *tensor;
    if (t.device == &d->table) t.device = d->inner;
    return t;
}

/* ---- tracing ---- */

static int64_t region_of(const device *d, const void *storage)
{
    for (const region *r = d->regions; r != NULL; r = r->next)
        if (r->storage == storage) return r->id;
    return -1; /* made by somebody else */
}

static void touch(const device *d, const cddp_stream *s, const cddp_tensor *t, bool write, const char *what)
{
    int64_t esize = (int64_t)cddp_dtype_bytes(t->dtype);
    if (t->device == NULL) return;
    CD_EMIT(d->tracer, touch, what, .region = region_of(d, t->storage), .on_stream = s->index, .write = write, .begin = t->offset * esize,
            .end = (t->offset + cd_numel(t)) * esize);
}

/* ---- the queue ---- */

static void kick(cddp_stream *s);

static cddp_status take_effect(const device *d, const op *o, cddp_error *err)
{
    const cddp_device *inner = d->inner;
    switch (o->kind) {
    case OP_COPY:
        return inner->copy(&o->dst, &o->a, NULL, err);
    case OP_COPY_MANY:
        return inner->copy_many(inner, o->pairs, o->pair_count, o->scale, o->n, NULL, err);
    case OP_FILL:
        return inner->fill(&o->dst, o->x, NULL, err);
    case OP_REDUCE:
        return inner->reduce(o->red, &o->dst, &o->a, NULL, err);
    case OP_DIVIDE:
        return inner->divide(&o->dst, &o->a, o->n, NULL, err);
    case OP_RECIPROCAL:
        return inner->multiply_reciprocal(&o->dst, &o->a, o->n, NULL, err);
    case OP_SCALE:
        return inner->scale(&o->dst, &o->a, o->x, NULL, err);
    case OP_AXPY:
        return inner->axpy(&o->dst, o->x, &o->a, NULL, err);
    case OP_MATMUL: {
        cddp_matmul m = o->matmul;
        m.a = &o->a;
        m.b = &o->b;
        return inner->matmul(&o->dst, &m, NULL, err);
    }
    case OP_RECORD:
    case OP_WAIT:
    case OP_START:
    case OP_JOIN:
        break;
    }
    return CDDP_OK;
}

static void drop_first(cddp_stream *s)
{
    op *o = s->first;
    cd_memory *memory = &s->device->sim->memory;
    s->first = o->next;
    if (s->first == NULL) s->last = NULL;
    cd_memory_release(memory, o->pairs, o->pair_count * sizeof *o->pairs);
    cd_memory_release(memory, o, sizeof *o);
}

static void finish_first(cddp_stream *s)
{
    device *d = s->device;
    cddp_error error = CDDP_ERROR_INIT;
    cddp_status status = take_effect(d, s->first, &error);
    if (status != CDDP_OK && d->failure == CDDP_OK) {
        d->failure = status;
        d->error = error;
    }
    s->is_running = false;
    drop_first(s);
    kick(s);
}

static void event_finished(cd_sim *sim, cd_sim_event *event)
{
    (void)sim;
    finish_first((cddp_stream *)(void *)((char *)event - offsetof(cddp_stream, event)));
}

static void completion_finished(cd_sim *sim, cd_completion *completion)
{
    (void)sim;
    finish_first((cddp_stream *)(void *)completion);
}

static void run_first(cddp_stream *s)
{
    device *d = s->device;
    cd_sim *sim = d->sim;
    s->is_running = true;
    if (sim->host->config.completion == CD_SIM_COMPLETE_CHOICE) {
        s->completion = (cd_completion){.group = s, .semantic = cd_hash_mix(d->rank->rank, s->index), .complete = completion_finished};
        cd_sim_add_completion(sim, &s->completion);
    } else {
        s->event.fire = event_finished;
        cd_sim_schedule_event(sim, &s->event, sim->now_ns + d->op_ns);
    }
}

static void kick_all(device *d)
{
    for (uint32_t i = 0; i < d->stream_count; i++)
        if (d->streams[i] != NULL) kick(d->streams[i]);
}

/* Moves a stream on as far as it goes by itself (S2). */
static void kick(cddp_stream *s)
{
    while (s->first != NULL && !s->is_running) {
        op *o = s->first;
        if (o->kind == OP_WAIT && o->mark->done < o->generation) return;
        if (o->kind == OP_JOIN && o->part->state != CD_PART_ENDED && o->part->state != CD_PART_GONE) {
            o->part->joiner = s;
            return;
        }
        if (o->kind < OP_RECORD) {
            run_first(s);
            return;
        }
        op reached = *o;
        drop_first(s);
        if (reached.kind == OP_RECORD) {
            reached.mark->done = reached.generation;
            kick_all(s->device);
        } else if (reached.kind == OP_START) {
            cd_part_reached(reached.part);
        } else if (reached.kind == OP_JOIN) {
            device *d = s->device;
            if (reached.part->state == CD_PART_ENDED && reached.part->status != CDDP_OK && d->failure == CDDP_OK)
                d->failure = cd_fail(&d->error, reached.part->status, "%s", reached.part->why != NULL ? reached.part->why : "a collective failed");
            cd_part_joined(reached.part);
        }
    }
    if (s->first == NULL && s->waiter != NULL) {
        cd_sim_wake(s->device->sim, s->waiter, CD_WAKE_DONE);
        s->waiter = NULL;
    }
}

static cddp_status push(device *d, cddp_stream *stream, const op *what, cddp_error *err)
{
    cddp_stream *s = stream_or_default(d, stream);
    op *o = cd_memory_allocate(&d->sim->memory, sizeof *o);
    if (o == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory to queue an operation on stream %u", s->index);
    *o = *what;
    o->next = NULL;
    if (s->first == NULL) s->first = o;
    else s->last->next = o;
    s->last = o;
    if (o->kind < OP_RECORD && o->kind != OP_COPY_MANY) {
        touch(d, s, &o->a, false, "operation");
        if (o->kind == OP_MATMUL) touch(d, s, &o->b, false, "operation");
        touch(d, s, &o->dst, true, "operation");
    }
    if (s->first == o) kick(s);
    return CDDP_OK;
}

/* ---- the device table ---- */

static cddp_status dev_allocate(const cddp_device *table, cddp_dtype dtype, int64_t numel, void **storage, cddp_error *err)
{
    device *d = device_of(table);
    void *made = NULL;
    CD_TRY(d->inner->allocate(d->inner, dtype, numel, &made, err));
    region *r = d->tracer != NULL ? cd_memory_allocate(&d->sim->memory, sizeof *r) : NULL;
    if (r != NULL) {
        *r = (region){d->regions, made, d->region_count++};
        d->regions = r;
        CD_EMIT(d->tracer, memory, NULL, .region = r->id, .bytes = numel * (int64_t)cddp_dtype_bytes(dtype), .released = 0);
    }
    *storage = made;
    return CDDP_OK;
}

static void dev_release(const cddp_device *table, cddp_dtype dtype, int64_t numel, void *storage)
{
    device *d = device_of(table);
    for (region **link = &d->regions; *link != NULL; link = &(*link)->next) {
        region *r = *link;
        if (r->storage != storage) continue;
        CD_EMIT(d->tracer, memory, NULL, .region = r->id, .bytes = numel * (int64_t)cddp_dtype_bytes(dtype), .released = 1);
        *link = r->next;
        cd_memory_release(&d->sim->memory, r, sizeof *r);
        break;
    }
    d->inner->release(d->inner, dtype, numel, storage);
}

static cddp_status wait_idle(device *d, cddp_stream *s, cddp_error *err)
{
    while (s->first != NULL) {
        if (d->sim->current == NULL) return cd_fail(err, CDDP_E_STATE, "stream %u is busy, and nobody is here to wait for it", s->index);
        s->waiter = d->sim->current;
        if (cd_sim_wait(d->sim, "waits for a stream", NULL, UINT64_MAX) == CD_WAKE_ABORT)
            return cd_fail(err, CDDP_E_ABORTED, "the world ended while rank %u waited for stream %u", d->rank->rank, s->index);
    }
    if (d->failure == CDDP_OK) return CDDP_OK;
    cddp_status status = d->failure;
    d->failure = CDDP_OK;
    return cd_fail(err, status, "an operation queued earlier failed: %s", d->error.message);
}

static cddp_status dev_read(const cddp_tensor *src, void *host, size_t host_bytes, cddp_error *err)
{
    device *d = device_of(src->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = unwrapped(d, src);
    return d->inner->read(&t, host, host_bytes, err);
}

static cddp_status dev_write(const cddp_tensor *dst, const void *host, size_t host_bytes, cddp_error *err)
{
    device *d = device_of(dst->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = unwrapped(d, dst);
    return d->inner->write(&t, host, host_bytes, err);
}

static cddp_status dev_norm(const cddp_tensor *src, double *norm, cddp_error *err)
{
    device *d = device_of(src->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = unwrapped(d, src);
    return d->inner->norm(&t, norm, err);
}

static cddp_status dev_find_nonfinite(const cddp_tensor *src, int64_t *index, cddp_error *err)
{
    device *d = device_of(src->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = unwrapped(d, src);
    return d->inner->find_nonfinite(&t, index, err);
}

static cddp_status dev_digest(const cddp_tensor *src, uint64_t *digest, cddp_error *err)
{
    device *d = device_of(src->device);
    CD_TRY(wait_idle(d, d->streams[0], err));
    cddp_tensor t = unwrapped(d, src);
    return d->inner->digest(&t, digest, err);
}

static cddp_status two(op_kind kind, const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream, op extra, cddp_error *err)
{
    device *d = device_of(dst->device);
    extra.kind = kind;
    extra.dst = unwrapped(d, dst);
    extra.a = unwrapped(d, src);
    return push(d, stream, &extra, err);
}

static cddp_status dev_copy(const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream, cddp_error *err)
{
    return two(OP_COPY, dst, src, stream, (op){.next = NULL}, err);
}

static cddp_status dev_copy_many(const cddp_device *table, const cddp_copy_pair *pairs, size_t pair_count, cddp_copy_scale scale, int64_t n,
                                 cddp_stream *stream, cddp_error *err)
{
    device *d = device_of(table);
    op o = {.kind = OP_COPY_MANY, .pair_count = pair_count, .scale = scale, .n = n};
    if (pair_count == 0) return CDDP_OK;
    o.pairs = cd_memory_allocate(&d->sim->memory, pair_count * sizeof *o.pairs);
    if (o.pairs == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory to queue %zu copies", pair_count);
    for (size_t i = 0; i < pair_count; i++) {
        o.pairs[i] = (cddp_copy_pair){unwrapped(d, &pairs[i].dst), unwrapped(d, &pairs[i].src)};
        touch(d, stream_or_default(d, stream), &o.pairs[i].src, false, "copy");
        touch(d, stream_or_default(d, stream), &o.pairs[i].dst, true, "copy");
    }
    return push(d, stream, &o, err);
}

static cddp_status dev_fill(const cddp_tensor *dst, double value, cddp_stream *stream, cddp_error *err)
{
    device *d = device_of(dst->device);
    op o = {.kind = OP_FILL, .dst = unwrapped(d, dst), .x = value};
    return push(d, stream, &o, err);
}

static cddp_status dev_reduce(cddp_red_op red, const cddp_tensor *dst, const cddp_tensor *src, cddp_stream *stream, cddp_error *err)
{
    return two(OP_REDUCE, dst, src, stream, (op){.red = red}, err);
}

static cddp_status dev_divide(const cddp_tensor *dst, const cddp_tensor *src, int64_t n, cddp_stream *stream, cddp_error *err)
{
    return two(OP_DIVIDE, dst, src, stream, (op){.n = n}, err);
}

static cddp_status dev_reciprocal(const cddp_tensor *dst, const cddp_tensor *src, int64_t n, cddp_stream *stream, cddp_error *err)
{
    return two(OP_RECIPROCAL, dst, src, stream, (op){.n = n}, err);
}

static cddp_status dev_scale(const cddp_tensor *dst, const cddp_tensor *src, double factor, cddp_stream *stream, cddp_error *err)
{
    return two(OP_SCALE, dst, src, stream, (op){.x = factor}, err);
}

static cddp_status dev_axpy(const cddp_tensor *dst, double alpha, const cddp_tensor *x, cddp_stream *stream, cddp_error *err)
{
    return two(OP_AXPY, dst, x, stream, (op){.x = alpha}, err);
}

static cddp_status dev_matmul(const cddp_tensor *dst, const cddp_matmul *operands, cddp_stream *stream, cddp_error *err)
{
    device *d = device_of(dst->device);
    op o = {.kind = OP_MATMUL, .dst = unwrapped(d, dst), .a = unwrapped(d, operands->a), .b = unwrapped(d, operands->b), .matmul = *operands};
    return push(d, stream, &o, err);
}

static cddp_status dev_stream_create(const cddp_device *table, cddp_stream **stream, cddp_error *err)
{
    device *d = device_of(table);
    if (d->stream_count == STREAMS_MAX) return cd_fail(err, CDDP_E_LIMIT, "rank %u already has %u streams", d->rank->rank, STREAMS_MAX);
    cddp_stream *s = cd_memory_allocate(&d->sim->memory, sizeof *s);
    if (s == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for a stream");
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

static cddp_status dev_stream_synchronize(const cddp_device *table, cddp_stream *stream, cddp_error *err)
{
    device *d = device_of(table);
    cddp_stream *s = stream_or_default(d, stream);
    CD_TRY(wait_idle(d, s, err));
    CD_EMIT(d->tracer, order, NULL, .from = s->index, .to = -1, .point = -1, .waits = 1);
    return CDDP_OK;
}

static cddp_status dev_mark_create(const cddp_device *table, cddp_mark **mark, cddp_error *err)
{
    device *d = device_of(table);
    cddp_mark *m = cd_memory_allocate(&d->sim->memory, sizeof *m);
    if (m == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for a mark");
    *m = (cddp_mark){.device = d, .index = d->mark_count++};
    *mark = m;
    return CDDP_OK;
}

/* As with streams: a queued record or wait may still name it. */
static void dev_mark_destroy(const cddp_device *table, cddp_mark *mark)
{
    (void)table, (void)mark;
}

static cddp_status dev_mark_record(const cddp_device *table, cddp_mark *mark, cddp_stream *stream, cddp_error *err)
{
    device *d = device_of(table);
    op o = {.kind = OP_RECORD, .mark = mark, .generation = ++mark->recorded};
    CD_EMIT(d->tracer, order, NULL, .from = stream_or_default(d, stream)->index, .to = -1, .point = mark->index, .waits = 0);
    return push(d, stream, &o, err);
}

static cddp_status dev_mark_wait(const cddp_device *table, cddp_mark *mark, cddp_stream *stream, cddp_error *err)
{
    device *d = device_of(table);
    op o = {.kind = OP_WAIT, .mark = mark, .generation = mark->recorded};
    CD_EMIT(d->tracer, order, NULL, .from = -1, .to = stream_or_default(d, stream)->index, .point = mark->index, .waits = 1);
    return push(d, stream, &o, err);
}

/* ---- collectives ---- */

const cddp_device *cd_stream_device_inner(const cddp_device *table)
{
    return table != NULL && table->allocate == dev_allocate ? device_of(table)->inner : NULL;
}

bool cd_stream_push_start(const cddp_device *table, cddp_stream *stream, cd_part *part)
{
    device *d = device_of(table);
    op o = {.kind = OP_START, .part = part};
    touch(d, stream_or_default(d, stream), &part->what.input, false, "collective");
    touch(d, stream_or_default(d, stream), &part->what.output, true, "collective");
    return push(d, stream, &o, NULL) == CDDP_OK;
}

bool cd_stream_push_join(const cddp_device *table, cddp_stream *stream, cd_part *part)
{
    device *d = device_of(table);
    op o = {.kind = OP_JOIN, .part = part};
    return push(d, stream, &o, NULL) == CDDP_OK;
}

void cd_stream_part_ended(cddp_stream *stream)
{
    kick(stream);
}

/* ---- making ---- */

cddp_status cd_stream_device_create(cddp_rank *rank, const cd_stream_device_config *config, const cddp_device **out, cddp_error *err)
{
    cd_sim *sim = rank->world;
    const cddp_device *inner = config->inner;
    device *d = cd_memory_allocate(&sim->memory, sizeof *d);
    if (d == NULL) return cd_fail(err, CDDP_E_NOMEM, "no memory for a device with streams");
    *d = (device){.sim = sim, .rank = rank, .inner = inner, .op_ns = config->op_ns, .tracer = config->tracer};
    d->table = (cddp_device){
        .size = sizeof d->table, .abi = CDDP_DEVICE_ABI, .name = inner->name, .flags = inner->flags | CDDP_DEVICE_ASYNC, .dtypes = inner->dtypes,
        .self = inner->self, .allocate = dev_allocate, .release = dev_release, .read = dev_read, .write = dev_write, .copy = dev_copy,
        .copy_many = dev_copy_many, .fill = dev_fill, .reduce = dev_reduce, .divide = dev_divide, .multiply_reciprocal = dev_reciprocal,
        .scale = dev_scale, .axpy = dev_axpy, .matmul = dev_matmul, .norm = dev_norm, .find_nonfinite = dev_find_nonfinite, .digest = dev_digest,
        .stream_create = dev_stream_create, .stream_destroy = dev_stream_destroy, .stream_synchronize = dev_stream_synchronize,
        .mark_create = dev_mark_create, .mark_destroy = dev_mark_destroy, .mark_record = dev_mark_record, .mark_wait = dev_mark_wait};
    cddp_stream *first = NULL;
    cddp_status status = dev_stream_create(&d->table, &first, err);
    if (status != CDDP_OK) {
        cd_memory_release(&sim->memory, d, sizeof *d);
        return status;
    }
    *out = &d->table;
    return CDDP_OK;
}

void cd_stream_device_destroy(const cddp_device *table)
{
    if (table == NULL) return;
    device *d = device_of(table);
    cd_memory *memory = &d->sim->memory;
    for (uint32_t i = 0; i < d->stream_count; i++) {
        cddp_stream *s = d->streams[i];
        if (s->is_running) continue; /* its completion is still to come: it goes with the world */
        while (s->first != NULL) drop_first(s);
        cd_memory_release(memory, s, sizeof *s);
        d->streams[i] = NULL;
    }
    for (uint32_t i = 0; i < d->stream_count; i++)
        if (d->streams[i] != NULL) return;
    cd_memory_release(memory, d, sizeof *d);
}
