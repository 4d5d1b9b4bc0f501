/* SPDX-License-Identifier: Apache-2.0 */
/* Emitting events: one line at the place where something happened.
**
**     CD_EMIT(tracer, bucket_launch, NULL, .bucket = b, .numel = n, .digest = d);
**
** A NULL tracer costs one comparison. Times come from the rank's world, never from the system.
*/
#pragma once
#include "cddp/trace.h"
#include "cddp/tensor.h"

struct cddp_tracer {
    const cddp_trace_sink *sink;
    cddp_rank *rank; /* NULL: the world itself */
    const cddp_allocator *allocator;
    uint64_t sequence;
    uint64_t time_ns; /* used when rank is NULL */
    uint32_t step, micro_step;
    cddp_trace_level level;
};

/* Stamps and hands over; tracer is not NULL. */
void cd_tracer_emit(struct cddp_tracer *tracer, cddp_event *event);

#define CD_EMIT(tracer, event_name, event_text, ...)                              \
    do {                                                                          \
        struct cddp_tracer *cd_emit_tracer = (tracer);                            \
        if (cd_emit_tracer != NULL) {                                             \
            cddp_event cd_emit_event;                                             \
            cd_emit_event.kind = CDDP_EV_##event_name;                            \
            cd_emit_event.text = (event_text);                                    \
            cd_emit_event.as.event_name = (cddp_event_##event_name){__VA_ARGS__}; \
            cd_tracer_emit(cd_emit_tracer, &cd_emit_event);                       \
        }                                                                         \
    } while (0)

static inline bool cd_tracer_wants_digest(const struct cddp_tracer *tracer)
{
    return tracer != NULL && tracer->level >= CDDP_TRACE_DIGEST;
}

/* The digest of a tensor's content when the level asks for it and the device can, else 0. */
int64_t cd_tracer_digest(const struct cddp_tracer *tracer, const cddp_tensor *tensor);

static inline int64_t cd_f64_bits(double value)
{
    union {
        double f;
        int64_t i;
    } u = {.f = value};
    return u.i;
}
static inline double cd_f64_of(int64_t bits)
{
    union {
        int64_t i;
        double f;
    } u = {.i = bits};
    return u.f;
}
