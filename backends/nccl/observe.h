/* SPDX-License-Identifier: Apache-2.0 */
/* Trace events of the GPU: the memory that each stream uses, and the stream that it waits for
** (I-HB).
**
** Storage, streams and events are numbered in the order of first use, so that traces do not depend
** on addresses. A block that the pool reuses keeps its number: memory that is freed too early is
** then a race between its old and its new user.
**
** The function that makes an order between streams also reports it (cd_cuda_record, cd_cuda_wait,
** cd_cuda_synchronize). So the trace cannot contain an order that was not made.
**
** Cost       one comparison per operation without a subscriber.
** Threads    the rank's thread, like the tracer.
** Limits     an object without memory for its number is left out: that can hide a race but never
**            invent one.
*/
#pragma once
#include <cuda_runtime_api.h>

#include "cddp/trace.h"
#include "cddp/tensor.h"

/* Pointers by number: open addressing, never shrinks. */
typedef struct cd_numbers {
    const void **keys; /* (capacity) NULL: free */
    int64_t *ids;      /* (capacity) */
    size_t count, capacity;
} cd_numbers;
/* The number of a pointer, or the next free one when it is new; -1 without memory. */
int64_t cd_numbers_of(cd_numbers *numbers, const void *key);
void cd_numbers_fini(cd_numbers *numbers);

typedef struct cd_observer {
    cddp_tracer *tracer;   /* NULL: no subscriber */
    uint32_t users;        /* groups that registered it */
    cudaStream_t *streams; /* (stream_count) [0] is the default stream */
    size_t stream_count, stream_capacity;
    cd_numbers regions, events;
} cd_observer;

/* Registers a tracer until all groups that registered it have left. False: another tracer is
** registered, or there is no memory. */
bool cd_observer_add(cd_observer *observer, cddp_tracer *tracer, cudaStream_t default_stream);
void cd_observer_remove(cd_observer *observer);

/* The functions below do nothing without a subscriber. */
void cd_observe_memory(cd_observer *observer, const void *storage, size_t bytes, bool released);
void cd_observe_touch(cd_observer *observer, cudaStream_t stream, const cddp_tensor *tensor,
                      bool write, const char *who);
void cd_observe_record(cd_observer *observer, cudaStream_t stream, cudaEvent_t event);
void cd_observe_wait(cd_observer *observer, cudaStream_t stream, cudaEvent_t event);
/* The host has waited for the stream: everything enqueued from now on, on any stream, comes after
** it. */
void cd_observe_idle(cd_observer *observer, cudaStream_t stream);
/* The same for an event that was recorded before. */
void cd_observe_passed(cd_observer *observer, cudaEvent_t event);
