/* SPDX-License-Identifier: Apache-2.0 */
/* The queues of a device with streams. stream.c fills them, stream_queue.c advances them.
**
** Invariants:
**   S1  operations of one stream take effect in the order in which they were queued;
**   S2  a stream is idle (empty queue), running (its first operation will complete by itself) or
**       held (its first operation waits for a mark or for a collective), and the end of the wait
**       restarts it;
**   S3  a mark is done up to the generation of its last record that was reached.
*/
#pragma once
#include "sim/stream.h"
#include "sim/stream_ops.h"

#define CD_STREAMS_MAX 64u

typedef enum cd_stream_op_kind {
    CD_STREAM_COPY,
    CD_STREAM_COPY_MANY,
    CD_STREAM_FILL,
    CD_STREAM_REDUCE,
    CD_STREAM_DIVIDE,
    CD_STREAM_RECIPROCAL,
    CD_STREAM_SCALE,
    CD_STREAM_AXPY,
    CD_STREAM_MATMUL,
    CD_STREAM_RECORD,
    CD_STREAM_WAIT,
    CD_STREAM_START,
    CD_STREAM_JOIN
} cd_stream_op_kind;

typedef struct cd_stream_op {
    struct cd_stream_op *next;
    cd_stream_op_kind kind;
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
} cd_stream_op;

struct cddp_mark {
    struct cd_stream_device *device;
    uint32_t index;
    uint64_t recorded, done; /* S3 */
};

struct cddp_stream {
    cd_completion completion; /* first */
    cd_sim_event event;
    struct cd_stream_device *device;
    uint32_t index;
    cd_stream_op *first, *last;
    bool is_running;
    cd_sim_rank *waiter;
};

/* A piece of storage by its number, so that traces do not depend on addresses. The number outlives
** its owners, so that queued work of a former owner meets the next owner's work. */
typedef struct cd_stream_region {
    struct cd_stream_region *next; /* last given back first */
    void *storage;
    int64_t id, numel;
    cddp_dtype dtype;
    bool is_free;
} cd_stream_region;

#define CD_STREAM_POINTS_FREE_MAX 64u

typedef struct cd_stream_device {
    cddp_device table; /* first */
    cd_sim *sim;
    cddp_rank *rank;
    const cddp_device *inner;
    uint64_t op_ns;
    cddp_tracer *tracer;
    cddp_stream *streams[CD_STREAMS_MAX]; /* [0] is the default */
    const cd_comm *comms[CD_STREAMS_MAX]; /* whose operations run on it; NULL: an ordinary stream */
    uint32_t stream_count, mark_count;
    /* (free_point_count) numbers of marks to be used again */
    uint32_t free_points[CD_STREAM_POINTS_FREE_MAX];
    uint32_t free_point_count;
    cd_stream_region *regions;
    int64_t region_count;
    bool is_closed; /* nothing takes effect any more */
    cddp_status failure;
    cddp_error error;
} cd_stream_device;

static inline cd_stream_device *cd_stream_device_of(const cddp_device *table)
{
    return (cd_stream_device *)(void *)(uintptr_t)table;
}

static inline cddp_stream *cd_stream_or_default(cd_stream_device *d, cddp_stream *stream)
{
    return stream != NULL ? stream : d->streams[0];
}

static inline cddp_tensor cd_stream_unwrapped(const cd_stream_device *d, const cddp_tensor *tensor)
{
    cddp_tensor t = *tensor;
    if (t.device == &d->table) t.device = d->inner;
    return t;
}

/* Queues a copy of an operation; NULL is the default stream. */
cddp_status cd_stream_push(cd_stream_device *device, cddp_stream *stream, const cd_stream_op *what,
                           cddp_error *err);
void cd_stream_kick(cddp_stream *s);       /* moves a stream on as far as it goes by itself (S2) */
void cd_stream_drop_first(cddp_stream *s); /* forgets its first operation */
/* A read or write of a tensor, for the trace. Only of storage that the device made: the rest is the
** program's. */
void cd_stream_touch(const cd_stream_device *d, const cddp_stream *s, const cddp_tensor *t,
                     bool write, const char *what);
