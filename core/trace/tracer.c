/* SPDX-License-Identifier: Apache-2.0 */
/* The tracer: stamps time, rank, step and sequence, and hands each event to its sink. */
#include "core/trace/tracer.h"

#include "cddp/device.h"
#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/trace/event.h"

#include <string.h>

cddp_status cddp_tracer_create(cddp_rank *rank, const cddp_trace_sink *sink, cddp_trace_level level,
                               cddp_tracer **tracer, cddp_error *err)
{
    if (sink == NULL || sink->event == NULL)
        return cd_fail(err, CDDP_E_ARG, "a tracer needs a sink with an event function");
    const cddp_allocator *allocator = rank != NULL ? rank->allocator : NULL;
    cddp_tracer *t = cd_allocate_zero(allocator, sizeof *t);
    if (t == NULL) return cd_fail_memory(err, "a tracer");
    t->sink = sink;
    t->rank = rank;
    t->allocator = allocator;
    t->level = level;
    *tracer = t;
    return CDDP_OK;
}

void cddp_tracer_destroy(cddp_tracer *tracer)
{
    if (tracer != NULL) cd_release(tracer->allocator, tracer, sizeof *tracer);
}

void cddp_tracer_set_step(cddp_tracer *tracer, uint32_t step, uint32_t micro_step)
{
    if (tracer == NULL) return;
    tracer->step = step;
    tracer->micro_step = micro_step;
}

cddp_status cddp_tracer_flush(cddp_tracer *tracer, cddp_error *err)
{
    if (tracer == NULL || tracer->sink->flush == NULL) return CDDP_OK;
    CD_TRY(tracer->sink->flush(tracer->sink->self, err));
    return CDDP_OK;
}

static void stamp(const struct cddp_tracer *tracer, cddp_event *event)
{
    event->rank = tracer->rank != NULL ? tracer->rank->rank : UINT32_MAX;
    event->step = tracer->step;
    event->micro_step = tracer->micro_step;
    event->level = (uint16_t)tracer->level;
    /* Fields behind the row's own are zeroed, so that an event is the same bits wherever it was
    ** made. */
    uint32_t used = cd_event_field_counts[event->kind];
    for (uint32_t i = used; i < CDDP_EVENT_FIELDS; i++) event->as.field[i] = 0;
}

static uint64_t now_of(const struct cddp_tracer *tracer)
{
    cddp_rank *rank = tracer->rank;
    return rank != NULL ? rank->ops->now_ns(rank) : tracer->time_ns;
}

void cd_tracer_emit(struct cddp_tracer *tracer, cddp_event *event)
{
    stamp(tracer, event);
    event->time_ns = now_of(tracer);
    event->sequence = tracer->sequence++;
    tracer->sink->event(tracer->sink->self, event);
}

void cd_tracer_begin_values(const struct cddp_tracer *tracer, cddp_event_enum_what what,
                            int64_t moment, cddp_event *event)
{
    event->kind = CDDP_EV_value;
    event->text = NULL;
    stamp(tracer, event);
    event->as.value = (cddp_event_value){.what = what, .moment = moment, .nonfinite = -1};
    if (tracer->values != NULL) tracer->values->begin(tracer->values->self, event);
}

/* Its time is its own: to look at the next tensor, a device may have waited. */
void cd_tracer_emit_value(struct cddp_tracer *tracer, cddp_event *event)
{
    const cd_tracer_values *values = tracer->values;
    event->time_ns = now_of(tracer);
    event->sequence = tracer->sequence++;
    if (values != NULL)
        values->take(values->self, event);
    else
        tracer->sink->event(tracer->sink->self, event);
}

int64_t cd_tracer_take_wrapper(struct cddp_tracer *tracer)
{
    int64_t wrapper = 0;
    if (tracer == NULL) return 0;
    while (wrapper < CD_TRACER_WRAPPERS_MAX - 1 && (tracer->wrappers >> wrapper & 1) != 0)
        wrapper++;
    tracer->wrappers |= UINT64_C(1) << wrapper;
    return wrapper;
}

void cd_tracer_leave_wrapper(struct cddp_tracer *tracer, int64_t wrapper)
{
    if (tracer != NULL) tracer->wrappers &= ~(UINT64_C(1) << wrapper);
}

void cd_tracer_mark_wrapper(struct cddp_tracer *tracer, int64_t wrapper)
{
    tracer->wrapper = wrapper;
    CD_EMIT(tracer, mark, CD_TRACER_WRAPPED, .value = wrapper);
}

void cd_tracer_call(const struct cddp_tracer *tracer, const char *hook, const char *function)
{
    cddp_rank *rank = tracer != NULL ? tracer->rank : NULL;
    const size_t needed = offsetof(cddp_world_ops, calls) + sizeof rank->ops->calls;
    if (rank != NULL && rank->ops->size >= needed && rank->ops->calls != NULL)
        rank->ops->calls(rank, hook, function);
}

int64_t cd_tracer_digest(const struct cddp_tracer *tracer, const cddp_tensor *tensor)
{
    if (!cd_tracer_wants_digest(tracer) || tensor->device == NULL) return 0;
    const cd_tracer_reader *reader = tracer->reader;
    int64_t known = 0;
    if (reader != NULL && reader->read(reader->self, tensor, &known)) return known;
    uint64_t digest = 0;
    if (tensor->device->digest(tensor, &digest, NULL) != CDDP_OK) return 0;
    return (int64_t)digest;
}

static bool has_digest_on(const cddp_device *d)
{
    return d->size >= offsetof(cddp_device, digest_on) + sizeof d->digest_on &&
           d->digest_on != NULL;
}

int64_t cd_tracer_digest_on(const struct cddp_tracer *tracer, const cddp_tensor *tensor,
                            cddp_stream *stream)
{
    uint64_t digest = 0;
    if (stream == NULL || tensor->device == NULL || !has_digest_on(tensor->device))
        return cd_tracer_digest(tracer, tensor);
    if (!cd_tracer_wants_digest(tracer)) return 0;
    return tensor->device->digest_on(tensor, stream, &digest, NULL) == CDDP_OK ? (int64_t)digest
                                                                               : 0;
}

void cddp_tracer_mark(cddp_tracer *tracer, const char *name, int64_t value)
{
    CD_EMIT(tracer, mark, name, .value = value);
}

void cddp_tracer_option(cddp_tracer *tracer, const char *name, double value)
{
    CD_EMIT(tracer, hook_option, name, .value = cd_f64_bits(value));
}

/* Without its size nothing of a law can be read: it is one that does not hold, so that whoever
** states it hears of it. */
static bool is_of_known_size(const cddp_law *law)
{
    return law->size >= sizeof *law && law->size <= CDDP_LAW_BYTES_MAX;
}

void cddp_tracer_law(cddp_tracer *tracer, const cddp_law *law)
{
    if (!is_of_known_size(law)) {
        CD_EMIT(tracer, hook_law, "a law begins with its size, sizeof(cddp_law)", .bucket = -1,
                .left = cd_f64_bits(law->size), .right = cd_f64_bits(sizeof *law),
                .bound = cd_f64_bits(0), .over_ranks = false);
        return;
    }
    CD_EMIT(tracer, hook_law, law->name, .bucket = law->bucket, .left = cd_f64_bits(law->left),
            .right = cd_f64_bits(law->right), .bound = cd_f64_bits(law->bound),
            .over_ranks = law->over_ranks);
}

void cddp_tracer_draw(cddp_tracer *tracer, const cddp_draw *draw)
{
    if (draw->size < sizeof *draw || draw->size > CDDP_LAW_BYTES_MAX) return;
    CD_EMIT(tracer, seed, draw->label, .stream = draw->stream,
            .policy = draw->is_shared ? CDDP_POLICY_SHARED : CDDP_POLICY_DISTINCT,
            .state = (int64_t)draw->state);
}
