/* SPDX-License-Identifier: Apache-2.0 */
/* The trace: small typed events, the only thing that checks, reports and replays read.
**
** Events are declared once, in cddp/events.def. A tracer belongs to one rank; it stamps time, rank,
** step and sequence and hands each event to its sink.
**
** Lifetime   an event and its text are borrowed by the sink until its event function returns.
** Threads    a tracer is used by its rank's thread only.
** Errors     emitting cannot fail; a sink remembers its first failure and tells it in flush.
*/
#pragma once
#include "cddp/world.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CDDP_TRACE_ABI 1u
#define CDDP_EVENT_FIELDS 11

typedef cddp_event_enum_level cddp_trace_level; /* CDDP_TRACE_ORDER, _DIGEST, _PAYLOAD */

typedef enum cddp_event_kind {
#define CDDP_EVENT(name, doc, fields) CDDP_EV_##name,
#include "cddp/events.def"
    CDDP_EV_COUNT
} cddp_event_kind;

#define CDDP_FIELD(type, name, doc) int64_t name;
#define CDDP_EVENT(name, doc, fields)  \
    typedef struct cddp_event_##name { \
        fields                         \
    } cddp_event_##name;
#include "cddp/events.def"
#undef CDDP_FIELD

typedef struct cddp_event {
    uint64_t time_ns;
    uint64_t sequence; /* position in this rank's own order */
    const char *text;  /* NULL when the row has none; borrowed */
    uint32_t rank;     /* UINT32_MAX: the world itself */
    uint32_t step;     /* optimizer step, from 0 */
    uint32_t micro_step;
    uint16_t kind; /* cddp_event_kind */
    uint16_t level;
    union {
        int64_t field[CDDP_EVENT_FIELDS];
#define CDDP_EVENT(name, doc, fields) cddp_event_##name name;
#include "cddp/events.def"
    } as;
} cddp_event;

typedef enum cddp_field_type {
    CDDP_FIELD_count,
    CDDP_FIELD_index,
    CDDP_FIELD_bytes,
    CDDP_FIELD_flag,
    CDDP_FIELD_ns,
    CDDP_FIELD_digest,
    CDDP_FIELD_f64,
    CDDP_FIELD_status,
    CDDP_FIELD_dtype,
    CDDP_FIELD_op,
    CDDP_FIELD_redop,
    CDDP_FIELD_param,
    CDDP_FIELD_bucket,
    CDDP_FIELD_rank,
    CDDP_FIELD_group,
    CDDP_FIELD_key,
#define CDDP_EVENT_ENUM(name, words) CDDP_FIELD_##name,
#include "cddp/events.def"
    CDDP_FIELD_TYPE_COUNT
} cddp_field_type;

typedef struct cddp_field_info {
    const char *name;
    cddp_field_type type;
    const char *doc;
} cddp_field_info;

typedef struct cddp_event_info {
    const char *name;
    const char *doc;
    uint32_t field_count;
    cddp_field_info fields[CDDP_EVENT_FIELDS];
} cddp_event_info;

/* The row of a kind. Returns borrowed static data; NULL when kind is out of range. */
CDDP_API const cddp_event_info *cddp_event_describe(uint32_t kind);

/* The word of a field that chooses; NULL when the value is no choice of the type. Returns borrowed
** static data. */
CDDP_API const char *cddp_event_word(cddp_field_type type, int64_t value);

/* The path of a setting ("ddp.static_graph") as an option event names it. Returns borrowed static
** data; NULL when this version knows no such setting. */
CDDP_API const char *cddp_setting_path(int64_t id);

/* Where events go: the store, a ring in memory, the checks, a digest, a fan-out of several. */
typedef struct cddp_trace_sink {
    uint32_t size; /* sizeof(cddp_trace_sink) known to the writer */
    uint32_t abi;  /* CDDP_TRACE_ABI */
    void *self;
    void (*event)(void *self, const cddp_event *event); /* (required) */
    /* (optional) called at the end of each step */
    cddp_status (*flush)(void *self, cddp_error *err);
} cddp_trace_sink;

typedef struct cddp_tracer cddp_tracer;

/* rank may be NULL (the world itself: rank UINT32_MAX, time 0 unless set). sink is borrowed. */
CDDP_API cddp_status cddp_tracer_create(cddp_rank *rank, const cddp_trace_sink *sink,
                                        cddp_trace_level level, cddp_tracer **tracer,
                                        cddp_error *err) CDDP_MUST_CHECK;
CDDP_API void cddp_tracer_destroy(cddp_tracer *tracer); /* accepts NULL */
CDDP_API void cddp_tracer_set_step(cddp_tracer *tracer, uint32_t step, uint32_t micro_step);
CDDP_API cddp_status cddp_tracer_flush(cddp_tracer *tracer, cddp_error *err);
/* For hooks and plugins: a coverage mark ("something worth covering happened"), and one side and
** the other of a law that the hook promises to keep. A NULL tracer is silent. Texts are borrowed
** during the call. */
CDDP_API void cddp_tracer_mark(cddp_tracer *tracer, const char *name, int64_t value);
#define CDDP_LAW_BYTES_MAX 4096u /* of any version to come */
/* All ranks state the same laws of a bucket, alike often; one that cannot: with bound INFINITY.
** I-HOOK finds the rank that leaves one out. */
typedef struct cddp_law {
    /* sizeof(cddp_law) known to the writer; a law without it is reported as broken */
    uint32_t size;
    const char *name;
    int64_t bucket;            /* -1: none */
    double left, right, bound; /* |left - right| <= bound */
    /* of the sums over all ranks */
    bool over_ranks;
} cddp_law;
/* Says which value a comm hook uses for one of its options, so that the checks can compare it with
** the one that the program asked for. NULL: does nothing. */
CDDP_API void cddp_tracer_option(cddp_tracer *tracer, const char *name, double value);
CDDP_API void cddp_tracer_law(cddp_tracer *tracer, const cddp_law *law);
/* For hooks and plugins, called where random numbers are drawn: I-SEED then knows whether all ranks
** drew the same, or each its own, and whether the stream advances. */
typedef struct cddp_draw {
    uint32_t size;     /* sizeof(cddp_draw) known to the writer; a draw without it is ignored */
    const char *label; /* of the stream: "myhook rows" */
    int64_t stream;    /* which one of this label; a new number is a new stream */
    bool is_shared;    /* all ranks draw the same; else no two do */
    uint64_t state;    /* a digest of the generator's state, or of the numbers drawn */
} cddp_draw;
CDDP_API void cddp_tracer_draw(cddp_tracer *tracer, const cddp_draw *draw);

#ifdef __cplusplus
}
#endif
