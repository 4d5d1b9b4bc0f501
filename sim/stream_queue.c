/* SPDX-License-Identifier: Apache-2.0 */
/* Moving streams on: when an operation completes, what it does then, who is let go by it. */
#include "sim/stream_queue.h"

#include "core/base/assert.h"
#include "core/base/error.h"
#include "core/base/hash.h"

/* ---- tracing ---- */

static const cd_stream_region *find_region(const cd_stream_device *d, const void *storage)
{
    for (const cd_stream_region *r = d->regions; r != NULL; r = r->next)
        if (r->storage == storage) return r;
    return NULL;
}

void cd_stream_touch(const cd_stream_device *d, const cddp_stream *s, const cddp_tensor *t,
                     bool write, const char *what)
{
    int64_t esize = (int64_t)cddp_dtype_bytes(t->dtype);
    if (d->tracer == NULL || t->device != &d->table) return;
    const cd_stream_region *r = find_region(d, t->storage);
    if (r == NULL) return;
    CD_EMIT(d->tracer, touch, what, .region = r->id, .on_stream = s->index, .write = write,
            .begin = t->offset * esize, .end = (t->offset + cd_numel(t)) * esize);
}

/* ---- the queue ---- */

/* From here on the operation speaks of the storage's own device. */
static void unwrap(const cd_stream_device *d, cd_stream_op *o)
{
    o->dst = cd_stream_unwrapped(d, &o->dst);
    o->a = cd_stream_unwrapped(d, &o->a);
    o->b = cd_stream_unwrapped(d, &o->b);
    for (size_t i = 0; i < o->pair_count; i++)
        o->pairs[i] = (cddp_copy_pair){cd_stream_unwrapped(d, &o->pairs[i].dst),
                                       cd_stream_unwrapped(d, &o->pairs[i].src)};
}

static cddp_status take_effect(const cd_stream_device *d, cd_stream_op *o, cddp_error *err)
{
    const cddp_device *inner = d->inner;
    unwrap(d, o);
    switch (o->kind) {
    case CD_STREAM_COPY:
        return CD_PASS(inner->copy(&o->dst, &o->a, NULL, err));
    case CD_STREAM_COPY_MANY:
        return CD_PASS(inner->copy_many(inner, o->pairs, o->pair_count, o->scale, o->n, NULL, err));
    case CD_STREAM_FILL:
        return CD_PASS(inner->fill(&o->dst, o->x, NULL, err));
    case CD_STREAM_REDUCE:
        return CD_PASS(inner->reduce(o->red, &o->dst, &o->a, NULL, err));
    case CD_STREAM_DIVIDE:
        return CD_PASS(inner->divide(&o->dst, &o->a, o->n, NULL, err));
    case CD_STREAM_RECIPROCAL:
        return CD_PASS(inner->multiply_reciprocal(&o->dst, &o->a, o->n, NULL, err));
    case CD_STREAM_SCALE:
        return CD_PASS(inner->scale(&o->dst, &o->a, o->x, NULL, err));
    case CD_STREAM_AXPY:
        return CD_PASS(inner->axpy(&o->dst, o->x, &o->a, NULL, err));
    case CD_STREAM_MATMUL: {
        cddp_matmul m = o->matmul;
        m.a = &o->a;
        m.b = &o->b;
        return CD_PASS(inner->matmul(&o->dst, &m, NULL, err));
    }
    case CD_STREAM_RECORD:
    case CD_STREAM_WAIT:
    case CD_STREAM_START:
    case CD_STREAM_JOIN:
        break;
    }
    return CDDP_OK;
}

void cd_stream_drop_first(cddp_stream *s)
{
    cd_stream_op *o = s->first;
    cd_memory *memory = &s->device->sim->memory;
    s->first = o->next;
    if (s->first == NULL) s->last = NULL;
    cd_memory_release(memory, o->pairs, o->pair_count * sizeof *o->pairs);
    cd_memory_release(memory, o, sizeof *o);
}

static void finish_first(cddp_stream *s)
{
    cd_stream_device *d = s->device;
    cddp_error error = CDDP_ERROR_INIT;
    if (d->is_closed) return;
    cddp_status status = take_effect(d, s->first, &error);
    if (status != CDDP_OK && d->failure == CDDP_OK) {
        d->failure = status;
        d->error = error;
    }
    s->is_running = false;
    cd_stream_drop_first(s);
    cd_stream_kick(s);
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
    cd_stream_device *d = s->device;
    cd_sim *sim = d->sim;
    s->is_running = true;
    sim->stats.races++;
    if (sim->host->config.completion == CD_SIM_COMPLETE_CHOICE) {
        s->completion = (cd_completion){.group = s,
                                        .semantic = cd_hash_mix(d->rank->rank, s->index),
                                        .complete = completion_finished};
        cd_sim_add_completion(sim, &s->completion);
    } else {
        s->event.fire = event_finished;
        cd_sim_schedule_event(sim, &s->event, sim->now_ns + d->op_ns);
    }
}

static void kick_all(cd_stream_device *d)
{
    for (uint32_t i = 0; i < d->stream_count; i++)
        if (d->streams[i] != NULL) cd_stream_kick(d->streams[i]);
}

void cd_stream_kick(cddp_stream *s)
{
    if (s->device->is_closed) return;
    while (s->first != NULL && !s->is_running) {
        cd_stream_op *o = s->first;
        if (o->kind == CD_STREAM_WAIT && o->mark->done < o->generation) return;
        if (o->kind == CD_STREAM_JOIN && o->part->state != CD_PART_ENDED &&
            o->part->state != CD_PART_GONE) {
            o->part->joiner = s;
            if (s->waiter != NULL) s->waiter->waiting_part = o->part;
            return;
        }
        if (o->kind < CD_STREAM_RECORD) {
            run_first(s);
            return;
        }
        cd_stream_op reached = *o;
        cd_stream_drop_first(s);
        if (reached.kind == CD_STREAM_RECORD) {
            reached.mark->done = reached.generation;
            kick_all(s->device);
        } else if (reached.kind == CD_STREAM_START) {
            cd_part_reached(reached.part);
        } else if (reached.kind == CD_STREAM_JOIN) {
            cd_stream_device *d = s->device;
            if (s->waiter != NULL) s->waiter->waiting_part = NULL;
            if (reached.part->state == CD_PART_ENDED && reached.part->status != CDDP_OK &&
                d->failure == CDDP_OK)
                d->failure =
                    cd_fail(&d->error, reached.part->status, "%s",
                            reached.part->why != NULL ? reached.part->why : "a collective failed");
            cd_part_joined(reached.part);
        }
    }
    if (s->first == NULL && s->waiter != NULL) {
        cd_sim_wake(s->device->sim, s->waiter, CD_WAKE_DONE);
        s->waiter = NULL;
    }
}

cddp_status cd_stream_push(cd_stream_device *d, cddp_stream *stream, const cd_stream_op *what,
                           cddp_error *err)
{
    cddp_stream *s = cd_stream_or_default(d, stream);
    cd_stream_op *o = cd_memory_allocate(&d->sim->memory, sizeof *o);
    if (o == NULL) return cd_fail_memory(err, "an operation on stream %u", s->index);
    *o = *what;
    o->next = NULL;
    if (s->first == NULL)
        s->first = o;
    else
        s->last->next = o;
    s->last = o;
    if (o->kind < CD_STREAM_RECORD && o->kind != CD_STREAM_COPY_MANY) {
        cd_stream_touch(d, s, &o->a, false, "operation");
        if (o->kind == CD_STREAM_MATMUL) cd_stream_touch(d, s, &o->b, false, "operation");
        cd_stream_touch(d, s, &o->dst, true, "operation");
    }
    if (s->first == o) cd_stream_kick(s);
    return CDDP_OK;
}

/* ---- collectives ---- */

/* Operations of one group follow each other, so each group has a stream, made at its first use. */
static cddp_stream *stream_of(cd_stream_device *d, const cd_comm *comm)
{
    for (uint32_t i = 0; i < d->stream_count; i++)
        if (d->comms[i] == comm) return d->streams[i];
    cddp_stream *made = NULL;
    if (d->table.stream_create(&d->table, &made, NULL) != CDDP_OK) return NULL;
    d->comms[made->index] = comm;
    return made;
}

static uint32_t take_point(cd_stream_device *d)
{
    return d->free_point_count > 0 ? d->free_points[--d->free_point_count] : d->mark_count++;
}

static void give_point(cd_stream_device *d, uint32_t point)
{
    if (d->free_point_count < CD_STREAM_POINTS_FREE_MAX)
        d->free_points[d->free_point_count++] = point;
}

static void report_record(const cd_stream_device *d, const cddp_stream *from, uint32_t point)
{
    CD_EMIT(d->tracer, order, NULL, .from = from->index, .to = -1, .point = point, .waits = 0);
}

/* to: -1, the host. */
static void report_wait(const cd_stream_device *d, int64_t to, uint32_t point)
{
    CD_EMIT(d->tracer, order, NULL, .from = -1, .to = to, .point = point, .waits = 1);
}

bool cd_stream_push_start(cd_part *part, const cddp_collective *what)
{
    cd_stream_device *d = cd_stream_device_of(part->stream_device);
    const cddp_stream *posted = cd_stream_or_default(d, what->stream),
                      *own = stream_of(d, part->coll->comm);
    cd_stream_op o = {.kind = CD_STREAM_START, .part = part};
    if (own == NULL) return false;
    part->point = take_point(d);
    if (!part->is_unordered[0]) {
        report_record(d, posted, part->point);
        report_wait(d, own->index, part->point);
    }
    cd_stream_touch(d, own, &what->input, false, "collective");
    cd_stream_touch(d, own, &what->output, true, "collective");
    report_record(d, own, part->point);
    if (!part->is_unordered[0]) return cd_stream_push(d, what->stream, &o, NULL) == CDDP_OK;
    cd_part_reached(part);
    return true;
}

void cd_stream_order_end(const cd_part *part, bool is_host)
{
    cd_stream_device *d = cd_stream_device_of(part->stream_device);
    if (part->is_unordered[1]) return;
    report_wait(d, is_host ? -1 : (int64_t)cd_stream_or_default(d, part->what.stream)->index,
                part->point);
}

void cd_stream_forget_end(const cd_part *part)
{
    give_point(cd_stream_device_of(part->stream_device), part->point);
}

bool cd_stream_push_join(cd_part *part)
{
    cd_stream_op o = {.kind = CD_STREAM_JOIN, .part = part};
    return cd_stream_push(cd_stream_device_of(part->stream_device), part->what.stream, &o, NULL) ==
           CDDP_OK;
}

void cd_stream_part_ended(cddp_stream *stream) { cd_stream_kick(stream); }
