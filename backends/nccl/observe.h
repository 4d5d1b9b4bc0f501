/* SPDX-License-Identifier: Apache-2.0 */
/* What the trace hears of the GPU: which memory is touched on which stream, and which stream waits
** for which (I-HB).
**
** Storage, streams and events are told by number, in the order in which they are first seen, so
** that traces do not depend on addresses. A block that the pool hands out again keeps its number:
** memory that is given away too early is then a race between its old user and its new one.
**
** An order between streams is told by the function that makes it (cd_cuda_record, cd_cuda_wait,
** cd_cuda_synchronize), so the trace cannot hear of an order that was not made.
**
** Cost       one comparison per operation where nobody listens.
** Threads    the rank's own, as the tracer's.
** Limits     sixty-four streams; what finds no memory for its number is left out, which can hide a
**            race and never invent one.
*/
#pragma once
#include <cuda_runtime_api.h>

#include "cddp/trace.h"
#include "cddp/tensor.h"

#define CD_OBSERVED_STREAMS 64

/* Pointers by number: open addressing, never shrinks. */
typedef struct cd_numbers {
    const void **keys; /* (capacity) NULL: free */
    int64_t *ids;      /* (capacity) */
    size_t count, capacity;
} cd_numbers;
/* The number of a pointer, the next free one when it is new; -1 without memory. */
int64_t cd_numbers_of(cd_numbers *numbers, const void *key);
void cd_numbers_fini(cd_numbers *numbers);

typedef struct cd_observer {
    cddp_tracer *tracer; /* NULL: nobody listens */
    uint32_t users;      /* groups that brought it */
    cudaStream_t streams[CD_OBSERVED_STREAMS];
    uint32_t stream_count; /* [0] is the default stream */
    cd_numbers regions, events;
} cd_observer;

/* The first tracer is listened to until all that brought it have left; another one meanwhile is
** refused: false. */
bool cd_observer_add(cd_observer *observer, cddp_tracer *tracer, cudaStream_t default_stream);
void cd_observer_remove(cd_observer *observer);

/* Below, where nobody listens: nothing. */
void cd_observe_memory(cd_observer *observer, const void *storage, size_t bytes, bool released);
void cd_observe_touch(cd_observer *observer, cudaStream_t stream, const cddp_tensor *tensor,
                      bool write, const char *who);
void cd_observe_record(cd_observer *observer, cudaStream_t stream, cudaEvent_t event);
void cd_observe_wait(cd_observer *observer, cudaStream_t stream, cudaEvent_t event);
/* The host has waited for the stream: whatever is enqueued from now on, anywhere, comes after
** it. */
void cd_observe_idle(cd_observer *observer, cudaStream_t stream);
/* The same for an event that was recorded before. */
void cd_observe_passed(cd_observer *observer, cudaEvent_t event);
