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

/* A variable's slice of what a comm hook delivers. */
typedef struct cd_tracer_share {
    int64_t bucket, variable; /* -1: that was the last one of the bucket */
    uint32_t ranks;           /* of the group */
    const cddp_tensor *local; /* its gradient, as it entered; NULL: it is no longer there */
    bool is_zero;             /* it has none: zeros entered */
    const cddp_tensor *slice;
} cd_tracer_share;

/* What a recorder wants to see besides digests. It borrows what it is given for the call. */
typedef struct cd_tracer_watch {
    /* a variable's slice of a bucket, as a comm hook is given it */
    void (*entered)(struct cddp_tracer *tracer, int64_t variable, const cddp_tensor *slice);
    void (*returned)(struct cddp_tracer *tracer, const cd_tracer_share *share);
    /* a gradient as it was written back */
    void (*written)(struct cddp_tracer *tracer, int64_t variable, const cddp_tensor *gradient);
    /* a reduced parameter of a wrapper, by its position, and its slot; until the wrapper ends */
    void (*kept)(struct cddp_tracer *tracer, size_t parameter, const cddp_tensor *tensor,
                 const cddp_grad *grad);
    void (*left)(struct cddp_tracer *tracer);
    /* a backward begins in which a comm hook gives blocks of that many ranks the same; 0: all */
    void (*agreed)(struct cddp_tracer *tracer, uint32_t ranks);
    /* a model averager has averaged a parameter over that many ranks; NULL: it was made, or makes
    ** a step */
    void (*averaged)(struct cddp_tracer *tracer, const cddp_tensor *parameter, uint32_t ranks);
    /* a reduction, or a gathering, that carries no bucket is about to be posted, of this tensor */
    void (*posts)(struct cddp_tracer *tracer, const cddp_tensor *tensor);
} cd_tracer_watch;

/* What a member posts to an all-reduce, a reduce-scatter or an all-gather of equal shares, or what
** it receives. */
typedef struct cd_tracer_reduction {
    uint64_t group, sequence;
    uint32_t member, members;
    cddp_red_op op;
    bool scatters, gathers, is_result;
    const cddp_tensor *numbers; /* NULL: it ended without a result */
} cd_tracer_reduction;

/* Who looks at the numbers of reductions: what this rank posts, and what it receives. It borrows
** them for the call. */
typedef struct cd_tracer_operands {
    void *self;
    /* of a bucket's all-reduces and all-gathers */
    void (*pass)(void *self, uint32_t bucket, bool is_result, const cddp_tensor *numbers);
    /* of every all-reduce and every reduce-scatter of equal shares */
    void (*reduce)(void *self, const cd_tracer_reduction *reduction);
} cd_tracer_operands;

/* Who has just read a tensor, or reads its parts with it (core/ddp/reducer/reading.h). */
typedef struct cd_tracer_reader {
    void *self;
    /* false: not that one */
    bool (*read)(void *self, const cddp_tensor *tensor, int64_t *digest);
} cd_tracer_reader;

/* Who takes the values that a rank shows, one by one, in a run in which nobody else hears them:
** they are no events there. */
typedef struct cd_tracer_values {
    void *self;
    /* common: the values that follow have its rank, step, kind and moment. */
    void (*begin)(void *self, const cddp_event *common);
    void (*take)(void *self, const cddp_event *event);
} cd_tracer_values;

struct cddp_tracer {
    const cddp_trace_sink *sink;
    cddp_rank *rank; /* NULL: the world itself */
    const cddp_allocator *allocator;
    uint64_t sequence;
    uint64_t time_ns; /* used when rank is NULL */
    uint32_t step, micro_step;
    cddp_trace_level level;
    const cd_tracer_watch *watch;       /* NULL without a recorder */
    const cd_tracer_operands *operands; /* NULL: nobody looks */
    const cd_tracer_reader *reader;     /* NULL: digests are the device's */
    const cd_tracer_values *values;     /* NULL: values are events */
    bool lends_buckets;                 /* the program can write to buckets: gradients are views */
    int64_t wrapper;                    /* which one the last event was about; -1: unknown */
    uint64_t wrappers;                  /* which numbers are in use, a bit each */
};

/* Stamps and hands over; tracer is not NULL. */
void cd_tracer_emit(struct cddp_tracer *tracer, cddp_event *event);
/* The same for values of one kind that are shown at one moment. What they have in common is stamped
** once; fields of each are set before it is emitted. At level digest. */
void cd_tracer_begin_values(const struct cddp_tracer *tracer, cddp_event_enum_what what,
                            int64_t moment, cddp_event *event);
void cd_tracer_emit_value(struct cddp_tracer *tracer, cddp_event *event);

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

/* A function of a comm hook is called now, or, with NULL, has returned: for reports of a rank that
** ends in it. */
void cd_tracer_call(const struct cddp_tracer *tracer, const char *hook, const char *function);

static inline bool cd_tracer_wants_digest(const struct cddp_tracer *tracer)
{
    return tracer != NULL && tracer->level >= CDDP_TRACE_DIGEST;
}

/* Note [Events of several wrappers]
** Parameters and buckets of a wrapper are numbered from 0, and a rank may have several wrappers: a
** generator and a discriminator, each in its own cddp_ddp. Each has a number, and where the events
** of another one begin, a mark "wrapped module" names it. A trace with one wrapper has no such
** mark. core/trace/models.h shows a judge one of them at a time. */
#define CD_TRACER_WRAPPERS_MAX 64
#define CD_TRACER_WRAPPED "wrapped module"
/* A mark: the program left a backward in the middle; value: gradients that had come. */
#define CD_TRACER_LEFT "backward_left_early"
/* A mark: statistics of the whole batch were found wrong; value: digest of what the rank starts the
** step from. */
#define CD_TRACER_STARTS "starts from"
/* value: a parameter without a gradient that the used map has for used (GRD-07) */
#define CD_TRACER_TAKEN_FOR_USED "taken for used"
/* A mark: the reduction or gathering that this rank posts next is the program's own; its value:
** elements. */
#define CD_TRACER_OWN_REDUCTION "own reduction"
/* A mark at the begin of what cddp/record.h records: that recorder says such marks. */
#define CD_TRACER_RECORDED "recorded program"
/* A mark: the operation that this rank posts next is the plan's [[collective]] of this number. */
#define CD_TRACER_OWN_COLLECTIVE "own collective"
/* A mark: a sum seems wrong; value: of what the judge was shown of it. See cd_sum_sight_begin. */
#define CD_TRACER_SHOWN_SUM "shown sum"
/* What is not judged since this world does not show the operands of a sum: its words begin so. */
#define CD_TRACER_SUM_UNKNOWN "a sum in "
/* Of a recorded program: the gradients of a sharded unit have been reduced; value: the unit. */
#define CD_TRACER_UNIT_REDUCED "unit reduced"
/* Of an all-gather that seems right; value: of what it is, without its operands and its result. */
#define CD_TRACER_SHOWN_FORM "shown form"
/* Likewise the result of a collective of the program; value: a digest of what the judge was shown,
** of which CD_SUM_SIGHT_BITS. */
#define CD_TRACER_SHOWN_OUTPUT "shown output"
/* A mark behind a bucket_law, of a hook whose way is its own: if it gives the rank's whole share of
** the bucket as it is, or divided, it posts one of these; value: the digest, of which
** CD_SUM_SIGHT_BITS. */
#define CD_TRACER_WHOLE_SHARE "whole share"
/* A mark: buffers entered a forward otherwise than they were left; value: a digest of what a
** broadcast of them would have sent, of which CD_SUM_SIGHT_BITS. */
#define CD_TRACER_ENTERED "buffers entered"
/* The rank takes part in making a group; value: a digest of its members, then 16 bits with their
** number. */
#define CD_TRACER_NEW_GROUP "new_group"
/* Of a recorded program: this rank leaves by exit with code 0, and has not said that it is done. */
#define CD_TRACER_LEFT_BY_EXIT "left by exit"
/* Of a recorded program: a model averager is there, ranks may train apart in between. */
#define CD_TRACER_AVERAGES "model averager"
/* A delayed gradient came behind the start of its all-reduce; value: the parameter. */
#define CD_TRACER_DELAYED_LATE "delayed gradient came late"

/* What a recorder saw where parameters and gradients lie (record/storage.h). value: how many, that
** is all of a wrapper; then which variable. */
#define CD_TRACER_HELD "parameters held"
#define CD_TRACER_CLEARED "gradients cleared"
#define CD_TRACER_ONE_HELD "parameter held"
#define CD_TRACER_NOT_CLEARED "gradient not cleared"
#define CD_TRACER_CHANGED "parameter changed"
#define CD_TRACER_CHANGED_LAST "parameter changed at the end"
/* a gradient is another one than a backward left that was not reduced yet */
#define CD_TRACER_GRADIENT_CHANGED "gradient changed between backwards"
#define CD_TRACER_GIVEN_CHANGED "gradient changed before its hook"
/* A gradient that is a view of its bucket was written to (Note [Who may write to a bucket]) before
** the bucket was launched; between two stages of its hook; value: the variable. And the
** result of the operation that has just ended was, before the wait; value: its bucket, or -1. */
#define CD_TRACER_READY_WRITTEN "gradient written when ready"
#define CD_TRACER_HOOKED_WRITTEN "gradient written under its hook"
#define CD_TRACER_REDUCED_WRITTEN "result written before its wait"
/* what a step took is not the gradient in its place */
#define CD_TRACER_ELSEWHERE "gradient taken from elsewhere"

/* The least number that no wrapper of the tracer has; further ones share the last number. */
int64_t cd_tracer_take_wrapper(struct cddp_tracer *tracer);
void cd_tracer_leave_wrapper(struct cddp_tracer *tracer, int64_t wrapper);
void cd_tracer_mark_wrapper(struct cddp_tracer *tracer, int64_t wrapper);

/* What follows is about this wrapper. */
static inline void cd_tracer_select(struct cddp_tracer *tracer, int64_t wrapper)
{
    if (tracer != NULL && tracer->wrapper != wrapper) cd_tracer_mark_wrapper(tracer, wrapper);
}

struct cddp_stream;

/* The digest of a tensor's content when the level asks for it and the device can, else 0. A reader
** is asked first. */
int64_t cd_tracer_digest(const struct cddp_tracer *tracer, const cddp_tensor *tensor);
/* Likewise, of what a stream was given so far to make of it; NULL: the default stream. */
int64_t cd_tracer_digest_on(const struct cddp_tracer *tracer, const cddp_tensor *tensor,
                            struct cddp_stream *stream);

/* label: of the collective, the bucket's number + 1 */
static inline void cd_tracer_pass(const struct cddp_tracer *tracer, uint64_t label, bool is_result,
                                  const cddp_tensor *numbers)
{
    if (tracer->operands == NULL || label == 0) return;
    tracer->operands->pass(tracer->operands->self, (uint32_t)(label - 1), is_result, numbers);
}

static inline void cd_tracer_reduce(const struct cddp_tracer *tracer,
                                    const cd_tracer_reduction *reduction)
{
    if (tracer->operands != NULL) tracer->operands->reduce(tracer->operands->self, reduction);
}

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
