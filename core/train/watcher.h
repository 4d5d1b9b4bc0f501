/* SPDX-License-Identifier: Apache-2.0 */
/* The watcher: the interface to which the trainer reports values while a rank trains.
**
** The trainer hands out values and moments. It does not know what is expected of them.
**
** Lifetime   open → … → close, while the trainer lives; every other argument is borrowed until the
**            call returns.
** Threads    the rank's.
** Errors     an error ends the training of the rank. A mismatch that the watcher finds is no error.
*/
#pragma once
#include "cddp/ddp.h"
#include "cddp/hook.h"
#include "core/plan/replica/replica.h"
#include "core/trace/tracer.h"

/* What a rank has, as the host sees it. */
typedef struct cd_watched_values {
    const cddp_tensor *parameters; /* (parameter_count) */
    const cddp_grad *gradients;    /* (parameter_count) */
    const cddp_tensor *buffers;    /* (buffer_count) */
} cd_watched_values;

typedef struct cd_watched_model {
    const cddp_device *device; /* of its tensors, without the time that passes take */
    const cd_replica *replica; /* as it was wrapped */
    const int32_t
        *variables; /* (parameter_count) of the wrapper; -1: it does not reduce this one */
} cd_watched_model;

/* What a synchronised layer normalised with, in a forward that contributes to a reduction. */
typedef struct cd_watched_statistics {
    uint32_t step, micro_step;
    size_t exchange;             /* of the micro-step's forwards, from 0 */
    uint32_t buffer;             /* that names the layer: its running mean */
    const double *mean, *spread; /* (channels) */
    size_t channels;
} cd_watched_statistics;

/* A reduction that has ended. */
typedef struct cd_watched_reduction {
    const cd_micro *micro;       /* the synchronising micro-step */
    const cddp_hook *hook;       /* NULL: none */
    const cddp_hook *inner_hook; /* what a wrapper wraps; else NULL */
    bool divides_after;          /* something in the hook's slot sums and then divides */
    cddp_dtype wire;             /* CDDP_DTYPE_COUNT: the bucket's own */
    uint32_t block_count; /* consecutive ranks over which the hook averages; 0: it does not say */
    cd_watched_values values;
} cd_watched_reduction;

/* A bucket's numbers where they are given to the comm hook, or where its result returned. */
typedef struct cd_watched_transfer {
    uint32_t bucket, generation;
    bool is_result, is_last, is_shadow; /* is_shadow: zeros of a joined rank */
    const cddp_tensor *flat;
    uint32_t count;
    const uint32_t *variables;        /* (count) */
    const int64_t *offsets, *lengths; /* (count) elements of flat */
    uint32_t hook_flags;              /* what the hook's table promises: CDDP_HOOK_… */
    cddp_dtype wire;                  /* its wire dtype; CDDP_DTYPE_COUNT: the bucket's own */
} cd_watched_transfer;

/* The numbers that an all-reduce or an all-gather of a lossy comm hook is given, or that it
** gave. */
typedef struct cd_watched_travel {
    uint32_t bucket;
    bool is_result;
    const cddp_tensor *numbers;
} cd_watched_travel;

/* A norm by which gradients are about to be clipped. */
typedef struct cd_watched_norm {
    cd_watched_values values;
    double norm;
    const uint32_t *ranks; /* (rank_count) whose parts entered */
    uint32_t rank_count;
} cd_watched_norm;

typedef struct cd_watched_bucket {
    const uint32_t *parameters; /* (count) */
    size_t count;
} cd_watched_bucket;

typedef struct cd_watched_update {
    uint32_t step;
    const cd_replica *replica;
    cd_watched_values values;
} cd_watched_update;

/* Kinds of values that a moment shows. */
enum {
    CD_WATCHED_PARAMETERS = 1,
    CD_WATCHED_GRADIENTS = 2,
    CD_WATCHED_BUFFERS = 4,
    CD_WATCHED_OPTIMIZERS = 8
};

/* What a rank has at a moment of the `value` event. */
typedef struct cd_watched_moment {
    int64_t moment; /* cddp_event_enum_moment */
    uint32_t step;
    const cd_micro *micro; /* the micro-step at hand, or the last one; NULL before the first */
    bool accumulates;      /* after a backward: no reduction ended, gradients go on */
    bool begins_window;    /* after a reduction in the middle of a step */
    unsigned shown;        /* CD_WATCHED_…: whose value events follow */
    const cd_replica *replica;
    cd_watched_values values;
} cd_watched_moment;

/* A collective of the program itself. */
typedef struct cd_watched_collective {
    const cddp_plan_collective *planned;
    const cddp_plan_group *members; /* NULL: the whole world */
    const char *group;
    uint32_t size, me;         /* of the group */
    const cddp_tensor *output; /* what this rank got */
} cd_watched_collective;

/* A forward that trains nothing. */
typedef struct cd_watched_evaluation {
    uint32_t step, micro_step; /* before which it took place */
    double loss;               /* 0 on a device without numbers */
    cd_watched_values values;
} cd_watched_evaluation;

/* All functions are required. */
typedef struct cd_watcher_ops {
    /* called when: the model was wrapped for the first time. */
    cddp_status (*open)(void *self, const cd_watched_model *model, cddp_error *err);
    /* called when: at every moment of a value event, before its events are emitted. */
    cddp_status (*look)(void *self, const cd_watched_moment *moment, cddp_error *err);
    /* called when: an evaluation ended. */
    cddp_status (*evaluated)(void *self, const cd_watched_evaluation *evaluation, cddp_error *err);
    cddp_status (*normalised)(void *self, const cd_watched_statistics *used, cddp_error *err);
    /* called when: a gradient was accumulated, before the wrapper hears of it. */
    cddp_status (*accumulated)(void *self, size_t parameter, const cddp_grad *gradient,
                               cddp_error *err);
    cddp_status (*reduced)(void *self, const cd_watched_reduction *reduction, cddp_error *err);
    /* called when: a bucket is given to a comm hook, and when its result is there. */
    cddp_status (*transferred)(void *self, const cd_watched_transfer *transfer, cddp_error *err);
    /* called when: between these two, an all-reduce or an all-gather of a lossy hook is posted, or
    ** has ended. */
    cddp_status (*travelled)(void *self, const cd_watched_travel *travel, cddp_error *err);
    /* called when: a sum or an average in a half type is posted, or has ended, whoever posts it; of
    ** one that failed there are no numbers. */
    cddp_status (*summed)(void *self, const cd_tracer_reduction *reduction, cddp_error *err);
    cddp_status (*clips)(void *self, const cd_watched_norm *norm, cddp_error *err);
    /* called when: buckets are assigned to the ranks, each of which steps its own (ZRO-12). */
    cddp_status (*assigned)(void *self, const cd_watched_bucket *buckets, size_t count,
                            cddp_error *err);
    /* called when: after the optimizers, if one stepped. */
    cddp_status (*updated)(void *self, const cd_watched_update *update, cddp_error *err);
    cddp_status (*exchanged)(void *self, const cd_watched_collective *collective, cddp_error *err);
    /* called when: the rank trained to its last step. */
    cddp_status (*finish)(void *self, const cd_watched_values *values, cddp_error *err);
    /* does: gives back what lies on the model's device. called when: before the model goes, also
    ** when open failed. */
    void (*close)(void *self);
} cd_watcher_ops;

typedef struct cd_watcher {
    const cd_watcher_ops *ops;
    void *self;
    /* knows digests of what the latest look read, until the rank goes on; NULL: none are known */
    const cd_tracer_reader *reader;
} cd_watcher;
